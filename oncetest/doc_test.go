package oncetest_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/oncetest"
)

// Refunds is somebody's adapter. It repeats what has failed, without a key.
type Refunds struct {
	Client *http.Client
	URL    string
}

func (a Refunds) Refund(order string, amount int) error {
	for {
		resp, err := a.Client.Post(a.URL+"/refunds", "text/plain", strings.NewReader(fmt.Sprint(order, " ", amount)))
		if err != nil {
			time.Sleep(2 * time.Millisecond)
			continue
		}
		defer resp.Body.Close()
		io.Copy(io.Discard, resp.Body)
		if resp.StatusCode != http.StatusCreated {
			return fmt.Errorf("refund: %s", resp.Status)
		}
		return nil
	}
}

// The next two functions are the tests in the package's documentation, to the
// letter, but for their first lines.

func testARefundIsMadeOnce(t oncetest.TB) {
	srv := oncetest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		oncetest.Effect(r) // here the money moves
		w.WriteHeader(http.StatusCreated)
	}), oncetest.LoseReply())
	adapter := Refunds{Client: srv.Client(), URL: srv.URL} // the code under test
	adapter.Refund("A-17", 100)
	oncetest.Once(t, srv)
}

func testARefundIsRepeatedUnderItsKey(t oncetest.TB) {
	pay := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		oncetest.Effect(r)
		w.WriteHeader(http.StatusCreated)
	})
	once := &oncehttp.Middleware{Store: new(oncehttp.MemoryStore)}
	srv := oncetest.NewServer(t, once.Handler(pay), oncetest.LoseReply())
	client := srv.Client()
	client.Transport = &oncehttp.Transport{Base: client.Transport}
	adapter := Refunds{Client: client, URL: srv.URL}
	if err := adapter.Refund("A-17", 100); err != nil {
		t.Errorf("a lost reply: %v\n%s", err, srv.Timeline())
	}
	oncetest.Once(t, srv)
}

func TestTheDocumentationIsTrue(t *testing.T) {
	doc := source(t, "doc.go")
	test := source(t, "doc_test.go")
	for _, block := range regexp.MustCompile(`(?ms)^//\tfunc T(.*?)^//\t}$`).FindAllString(doc, -1) {
		block = strings.ReplaceAll(strings.ReplaceAll(block, "//\t", ""), "//\n", "\n")
		_, body, _ := strings.Cut(block, "\n")
		name := regexp.MustCompile(`func T(\w+)`).FindStringSubmatch(block)[1]
		if want := "func t" + name + "(t oncetest.TB) {\n" + body; !strings.Contains(test, want) {
			t.Errorf("the documentation's test is not the one that runs:\n%s", block)
		}
		if n := strings.Count(block, "\n") + 1; n > 17 {
			t.Errorf("a test of %d lines is too long for a beginning", n)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		r := new(recorder)
		testARefundIsMadeOnce(r)
		r.finish()
		if len(r.failures) != 1 {
			t.Fatalf("the naive adapter: got %q, want a failure", r.failures)
		}
		story := "//\n//\t" + strings.ReplaceAll(r.failures[0], "\n", "\n//\t") + "\n//\n"
		if !strings.Contains(doc, story) {
			t.Errorf("the documentation's story is not the one that is told:\n%s", story)
		}
	})
	synctest.Test(t, func(t *testing.T) { testARefundIsRepeatedUnderItsKey(t) })
	testARefundIsRepeatedUnderItsKey(t)
}

func source(t *testing.T, name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
