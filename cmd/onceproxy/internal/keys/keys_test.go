package keys

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
)

func TestAStorySaysWhatARepeatGets(t *testing.T) {
	body := []byte("secret body")
	head := oncehttp.EncodeResponse(201, http.Header{"Content-Type": {"text/plain"}, "X-Id": {"secret value"}}, body)
	for _, c := range []struct {
		what   string
		record oncehttp.Record
		want   string
	}{
		{"running", oncehttp.Record{Status: oncehttp.ClaimRunning, Left: 30 * time.Second, Holder: 1}, "has to report within 30 s"},
		{"orphaned", oncehttp.Record{Status: oncehttp.ClaimOrphaned, Holder: 1}, "told that the outcome is unknown"},
		{"taken over", oncehttp.Record{Status: oncehttp.ClaimRunning, Holder: 3}, "taken up 3 times"},
		{"done", oncehttp.Record{Status: oncehttp.ClaimDone, Head: head, Body: body, Holder: 1}, "answered with 201. A repeat gets that answer"},
		{"done, without its body", oncehttp.Record{Status: oncehttp.ClaimDone, Head: head, BodyDropped: true, Holder: 1}, "answered with 201, and the body is not kept"},
		{"done by another program", oncehttp.Record{Status: oncehttp.ClaimDone, Head: []byte("x"), Body: body, Holder: 1}, "is not an HTTP response"},
		{"done, with nothing recorded", oncehttp.Record{Status: oncehttp.ClaimDone, Holder: 1}, "is not an HTTP response"},
	} {
		s := Tell(c.record)
		text := strings.Join(s.Sentences(), " ")
		if !strings.Contains(text, c.want) {
			t.Errorf("%s: got %q, want %q in it", c.what, text, c.want)
		}
		if strings.Contains(text, "secret") {
			t.Errorf("%s: the story shows the answer: %q", c.what, text)
		}
	}
	a := Tell(oncehttp.Record{Status: oncehttp.ClaimDone, Head: head, Body: body}).Answer
	if a.Status != 201 || a.ContentType != "text/plain" || strings.Join(a.Fields, " ") != "Content-Type X-Id" || a.BodyBytes != 11 || !a.Kept || len(a.BodySHA256) != 64 {
		t.Errorf("the answer is %+v", a)
	}
}

func TestHumanWordsDurations(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "less than 1 s", 0: "less than 1 s", time.Second: "1 s", 90 * time.Second: "1 min 30 s", time.Hour: "1 h",
		25 * time.Hour: "1 d 1 h", 24*time.Hour + 59*time.Second: "1 d", 23*time.Hour + 59*time.Minute + 59*time.Second: "23 h 59 min",
	} {
		if got := Human(d); got != want {
			t.Errorf("%v: got %q, want %q", d, got, want)
		}
	}
}

func TestShortNamesNoKeyThatIsNoDigest(t *testing.T) {
	if got := Short(oncehttp.RecordKey("", "POST", "/", "k")); len(got) != 16 || !strings.HasPrefix(got, "or1_") {
		t.Errorf("a record's key: got %q", got)
	}
	if got := Short("refund of alice"); strings.Contains(got, "alice") {
		t.Errorf("another key: got %q", got)
	}
}

func TestRecordKeysAreThoseOfTheMiddleware(t *testing.T) {
	want := oncehttp.RecordKey("s", "POST", "/a%2fb", "k")
	for _, r := range []Request{
		{Path: "/a%2Fb", Key: "k", Scope: "s"}, {Method: "POST", Path: "/a%2fb?x=/y", Key: `"k"`, Scope: "s"},
	} {
		if got, err := r.RecordKey(); got != want || err != nil {
			t.Errorf("%+v: got %q, %v", r, got, err)
		}
	}
	for _, r := range []Request{
		{}, {Path: "/"}, {Key: "k"}, {Path: "http://h/", Key: "k"}, {Path: "/a b", Key: "k"}, {Path: "/", Key: "a,b"},
		{Path: "/", Key: strings.Repeat("k", 300)}, {Path: "/" + strings.Repeat("p", 9000), Key: "k"}, {Method: "POST /", Path: "/", Key: "k"},
	} {
		if got, err := r.RecordKey(); err == nil || strings.Contains(err.Error(), "kkk") {
			t.Errorf("%.60v: got %q, %v", r, got, err)
		}
	}
}
