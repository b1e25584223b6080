package oncehttp

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// Operators print and log records; what was answered stays out of it.
func TestARecordIsShownWithoutWhatItAnswers(t *testing.T) {
	r := Record{
		Key: "or1_abc", Status: ClaimDone, Age: 90 * time.Second, Left: time.Hour, Holder: 2,
		Head: []byte("secret head"), Body: []byte("secret body!"), Binding: [32]byte{0xbe}, Fingerprint: [32]byte{0xef},
	}
	const want = `"or1_abc" done, age 1m30s, left 1h0m0s, holder 2, head [11 bytes], body [12 bytes]`
	if got := r.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	var logged bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&logged, nil))
	log.Info("a record", "record", r, "pointer", &r)
	for _, shown := range []string{
		fmt.Sprint(r), fmt.Sprintf("%v", &r), fmt.Sprintf("%+v", r), fmt.Sprintf("%#v", r), fmt.Sprintf("%s", []Record{r}), logged.String(),
	} {
		if !strings.Contains(shown, "or1_abc") || !strings.Contains(shown, "body [12 bytes]") {
			t.Errorf("%s does not tell enough", shown)
		}
		for _, secret := range []string{"secret", "115 101 99", "c2VjcmV0"} {
			if strings.Contains(shown, secret) {
				t.Errorf("%s tells what was answered", shown)
			}
		}
	}
	r.Body, r.BodyDropped = nil, true
	if got := r.String(); !strings.HasSuffix(got, "body dropped") {
		t.Errorf("got %s", got)
	}
}
