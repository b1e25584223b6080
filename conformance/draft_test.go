package conformance

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
)

// The scenarios of draft-ietf-httpapi-idempotency-key-header-06. Each row's name
// begins with the section it is from.
func TestTheIdempotencyKeyDraft(t *testing.T) {
	type request struct {
		method, key, body string
	}
	type answer struct {
		status int
		body   string
		header http.Header
	}
	const payment, other = `{"amount":100}`, `{"amount":7}`
	const key = `"8e03978e-40d5-43dd-bc93-6894a57f9324"` // the draft's own example
	for _, row := range []struct {
		name     string
		requests []request
		want     []int // statuses
		runs     int
		check    func(t *testing.T, answers []answer)
	}{
		{"2.1 the key is a String of structured fields", []request{{"POST", key, payment}}, []int{201}, 1, nil},
		{"2.1 an unquoted key, as most APIs have it, is the same key", []request{{"POST", key, payment}, {"POST", strings.Trim(key, `"`), payment}}, []int{201, 201}, 1, nil},
		{"2.1 a number is no key of its own but an unquoted one", []request{{"POST", "42", payment}, {"POST", `"42"`, payment}}, []int{201, 201}, 1, nil},
		{"2.1 a list is refused", []request{{"POST", key + `, "b"`, payment}}, []int{400}, 0, nil},
		{"2.1 a string that does not end is refused", []request{{"POST", `"abc`, payment}}, []int{400}, 0, nil},
		{"2.2 a key is not to be reused with another payload", []request{{"POST", key, payment}, {"POST", key, other}}, []int{201, 422}, 1, nil},
		{"2.2 another key is another request", []request{{"POST", key, payment}, {"POST", `"b"`, payment}}, []int{201, 201}, 2, nil},
		{"2.3 a key is honoured until it expires", []request{{"POST", key, payment}, {"POST", key, payment}, {"expire", "", ""}, {"POST", key, payment}}, []int{201, 201, 0, 201}, 2, nil},
		{"2.4 a fingerprint tells payloads apart under one key", []request{{"PATCH", key, payment}, {"PATCH", key, other}}, []int{201, 422}, 1, nil},
		{"2.4 the same value written differently has the same fingerprint", []request{{"POST", key, payment}, {"POST", key, "{ \"amount\" : 1.0e2 }"}}, []int{201, 201}, 1, nil},
		{"2.6 first time request: processed and answered", []request{{"POST", key, payment}}, []int{201}, 1, nil},
		{"2.6 duplicate request: the result of the first is sent again", []request{{"POST", key, payment}, {"POST", key, payment}}, []int{201, 201}, 1, func(t *testing.T, a []answer) {
			if a[0].body != a[1].body || a[0].header.Get("Location") != a[1].header.Get("Location") {
				t.Errorf("the duplicate got %q, the first %q", a[1].body, a[0].body)
			}
		}},
		{"2.6 duplicate request: so is an error of the first", []request{{"POST", key, `{"amount":-1}`}, {"POST", key, `{"amount":-1}`}}, []int{402, 402}, 1, nil},
		{"2.6 concurrent request: a conflict while the first is processed", []request{{"POST", key, `{"slow":true}`}, {"POST", key, `{"slow":true}`}}, []int{201, 409}, 1, func(t *testing.T, a []answer) {
			if a[1].header.Get("Retry-After") == "" {
				t.Error("the conflict does not say when to come back")
			}
		}},
		{"2.7 the key is missing where it is required: 400 with a link to documentation", []request{{"POST", "", payment}}, []int{400}, 0, func(t *testing.T, a []answer) {
			problem(t, a[0].header, a[0].body, 400)
		}},
		{"2.7 the key is reused with another payload: 422 with a link to documentation", []request{{"POST", key, payment}, {"POST", key, other}}, []int{201, 422}, 1, func(t *testing.T, a []answer) {
			problem(t, a[1].header, a[1].body, 422)
		}},
		{"2.7 the first is still being processed: 409 with a link to documentation", []request{{"POST", key, `{"slow":true}`}, {"POST", key, `{"slow":true}`}}, []int{201, 409}, 1, func(t *testing.T, a []answer) {
			problem(t, a[1].header, a[1].body, 409)
		}},
		{"2.7 other errors are the resource's own", []request{{"POST", key, `{"amount":-1}`}}, []int{402}, 1, nil},
		{"1 methods that are idempotent by themselves need no key", []request{{"GET", "", ""}, {"GET", key, ""}}, []int{200, 200}, 2, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			var runs atomic.Int32
			started, finish := make(chan struct{}, 1), make(chan struct{})
			const keep = 300 * time.Millisecond // where a row waits for its end
			m := &oncehttp.Middleware{
				Store:    &oncehttp.MemoryStore{},
				Wait:     20 * time.Millisecond,
				Required: func(*http.Request) bool { return true },
				DocsURL:  "https://developer.example.com/idempotency",
			}
			if slices.ContainsFunc(row.requests, func(q request) bool { return q.method == "expire" }) {
				m.Keep = keep
			}
			srv := httptest.NewServer(m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n := runs.Add(1)
				body, _ := io.ReadAll(r.Body)
				if strings.Contains(string(body), "slow") {
					started <- struct{}{}
					<-finish
				}
				switch {
				case r.Method == "GET":
				case strings.Contains(string(body), "-1"):
					w.WriteHeader(http.StatusPaymentRequired)
				default:
					w.Header().Set("Location", "/payments/"+string(rune('0'+n)))
					w.WriteHeader(http.StatusCreated)
					io.WriteString(w, "payment "+string(rune('0'+n)))
				}
			})))
			defer srv.Close()
			send := func(q request) answer {
				req, _ := http.NewRequest(q.method, srv.URL+"/payments", strings.NewReader(q.body))
				req.Header.Set("Content-Type", "application/json")
				if q.key != "" {
					req.Header.Set("Idempotency-Key", q.key)
				}
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Error(err)
					return answer{}
				}
				defer resp.Body.Close()
				body, _ := io.ReadAll(resp.Body)
				return answer{resp.StatusCode, string(body), resp.Header}
			}
			answers := make([]answer, len(row.requests))
			slow := strings.Contains(row.requests[0].body, "slow")
			first := make(chan struct{})
			for i, q := range row.requests {
				switch {
				case q.method == "expire":
					time.Sleep(2 * keep)
				case slow && i == 0:
					go func() {
						defer close(first)
						answers[0] = send(q)
					}()
					<-started
				default:
					answers[i] = send(q)
				}
			}
			if slow {
				close(finish)
				<-first
			}
			for i, want := range row.want {
				if answers[i].status != want {
					t.Errorf("request %d got %d, want %d: %s", i+1, answers[i].status, want, answers[i].body)
				}
			}
			if got := int(runs.Load()); got != row.runs {
				t.Errorf("the resource was processed %d times, want %d", got, row.runs)
			}
			if row.check != nil && !t.Failed() {
				row.check(t, answers)
			}
		})
	}
}

// problem checks an answer against what the draft's section 2.7 and RFC 9457 ask.
func problem(t *testing.T, h http.Header, body string, status int) {
	t.Helper()
	if got := h.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("Content-Type is %q, want application/problem+json (RFC 9457, section 3)", got)
	}
	if link := h.Get("Link"); !strings.Contains(link, "https://developer.example.com/idempotency") || !strings.Contains(link, `rel="describedby"`) {
		t.Errorf("Link is %q, want it to lead to the documentation", link)
	}
	var p struct {
		Type, Title, Detail string
		Status              int
	}
	if err := json.Unmarshal([]byte(body), &p); err != nil {
		t.Fatal(err)
	}
	if p.Type == "" || p.Title == "" || p.Detail == "" || p.Status != status {
		t.Errorf("problem = %+v, want a type, a title, a detail and status %d", p, status)
	}
}
