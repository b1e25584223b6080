package oncehttp_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/dropin"
)

// TestDropIn holds that a client that puts &oncehttp.Transport{} in front of its
// transport loses nothing that net/http gave it. Every row runs against the bare
// transport too, which proves the row.
func TestDropIn(t *testing.T) {
	t.Run("bare", dropin.Setup{}.Run)
	t.Run("oncehttp", dropin.Setup{Over: func(base http.RoundTripper) http.RoundTripper {
		return &oncehttp.Transport{Base: base, Logger: quiet()}
	}}.Run)
}

func TestDropInCoversFortyBehaviours(t *testing.T) {
	seen := map[string]bool{}
	for _, row := range dropin.Rows {
		if seen[row.Does] {
			t.Errorf("two rows are called %q", row.Does)
		}
		seen[row.Does] = true
	}
	if len(seen) < 40 {
		t.Errorf("got %d rows, want 40 or more", len(seen))
	}
}

func TestTheZeroValueIsReady(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) }))
	defer srv.Close()
	client := &http.Client{Transport: &oncehttp.Transport{}}
	resp, err := client.Post(srv.URL, "text/plain", strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	if got := bodyOf(t, resp); got != "hello" {
		t.Errorf("got %q, want hello", got)
	}
	client.CloseIdleConnections() // of http.DefaultTransport
	(&oncehttp.Transport{Base: noBase{}}).CloseIdleConnections()
}
