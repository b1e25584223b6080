package main

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
)

func TestOncehttpPaysOnceWhereTheOthersPayAgain(t *testing.T) {
	t.Parallel()
	var out, errOut strings.Builder
	start := time.Now()
	code := run(nil, &out, &errOut, ways())
	if took := time.Since(start); took > 3*time.Second {
		t.Logf("took %v, which should be under 3s on an idle machine", took)
	}
	if code != 0 || errOut.Len() > 0 {
		t.Errorf("exit status %d, stderr %q, want 0 and nothing", code, errOut.String())
	}
	lines := strings.Split(out.String(), "\n")
	for i, want := range [][]string{
		{"way", "attempts", "refunds intended", "refunds made", "money out", "the model was told"},
		{"http.Client and a retry loop", "10", "2", "8", "$622.00", "6 of 6 calls refunded, 6 different receipts"},
		{"go-retryablehttp, defaults", "10", "2", "8", "$622.00", "6 of 6 calls refunded, 6 different receipts"},
		{"oncehttp", "10", "2", "2", "$155.50", "6 of 6 calls refunded, 2 different receipts, 6 replays"},
	} {
		if got := cells(lines[i]); !slices.Equal(got, want) {
			t.Errorf("line %d is\n%q, want\n%q", i+1, got, want)
		}
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), out.String()) {
		t.Errorf("README.md shows another output than\n%s", out.String())
	}
}

// cells splits a line of the table: columns are three or more spaces apart.
func cells(line string) []string {
	var all []string
	for _, c := range strings.Split(line, "   ") {
		if c = strings.TrimSpace(c); c != "" {
			all = append(all, c)
		}
	}
	return all
}

func TestJSONSaysTheSame(t *testing.T) {
	t.Parallel()
	var out, errOut strings.Builder
	if code := run([]string{"-json"}, &out, &errOut, ways()); code != 0 {
		t.Errorf("exit status %d, stderr %q", code, errOut.String())
	}
	var got report
	dec := json.NewDecoder(strings.NewReader(out.String()))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&got); err != nil {
		t.Fatalf("%v in\n%s", err, out.String())
	}
	if dec.More() {
		t.Errorf("more than one JSON value:\n%s", out.String())
	}
	if !got.OK || len(got.Ways) != 3 {
		t.Fatalf("got %+v, want three ways, and ok", got)
	}
	for i, want := range []result{
		{Way: "http.Client and a retry loop", Attempts: 10, Intended: 2, Made: 8, IntendedCents: 15550, OutCents: 62200},
		{Way: "go-retryablehttp, defaults", Attempts: 10, Intended: 2, Made: 8, IntendedCents: 15550, OutCents: 62200},
		{Way: "oncehttp", Attempts: 10, Intended: 2, Made: 2, IntendedCents: 15550, OutCents: 15550},
	} {
		w := got.Ways[i]
		told := w.Told
		w.Told = nil
		if w.Way != want.Way || w.Attempts != want.Attempts || w.Intended != want.Intended || w.Made != want.Made ||
			w.IntendedCents != want.IntendedCents || w.OutCents != want.OutCents {
			t.Errorf("got %+v, want %+v", w, want)
		}
		if len(told) != 6 {
			t.Errorf("%s: the model was told %d things, want 6", w.Way, len(told))
		}
	}
	for _, a := range got.Ways[2].Told {
		if !a.Replayed || a.RefundID != "re_A-1041_1" && a.RefundID != "re_B-2207_1" {
			t.Errorf("oncehttp told the model %+v, want a replay of the first receipt", a)
		}
	}
}

func TestBrokenOncehttpExitsWithOne(t *testing.T) {
	t.Parallel()
	client := &http.Client{Transport: &oncehttp.Transport{}}
	for _, tc := range []struct {
		name   string
		broken way
		want   string
	}{
		{
			"keys that do not outlive a call: the model's repeats pay again",
			way{send: func(ctx context.Context, url, turn string, c call) (*http.Response, error) {
				return post(ctx, client, url, c.args)
			}, server: protected},
			"made 3 refunds of $120.00 for order A-1041, want 1.",
		},
		{
			"a server that ignores keys",
			way{send: once(&http.Client{Transport: &oncehttp.Transport{}})},
			"made 4 refunds of $120.00 for order A-1041, want 1.",
		},
		{
			// The comparison gives the other two a server without the middleware.
			// With it they would pay as often, because they send no key.
			"a protected server and a client without keys",
			way{send: retryably(), server: protected},
			"made 4 refunds of $120.00 for order A-1041, want 1.",
		},
		{
			// The third call of each message brings the receipt of the first.
			"one attempt for each call: the refund is made and the model hears of an error",
			way{send: once(&http.Client{Transport: &oncehttp.Transport{Attempts: 1}}), server: protected},
			"broken made the refunds but told the model: The refund failed: ",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			all := ways()
			tc.broken.name = "broken"
			all[2] = tc.broken
			var out, errOut strings.Builder
			code := run(nil, &out, &errOut, all)
			if code != 1 || !strings.Contains(out.String(), tc.want) {
				t.Errorf("exit status %d, want 1 and %q; output\n%s%s", code, tc.want, out.String(), errOut.String())
			}
		})
	}
}

func TestJudge(t *testing.T) {
	wanted := []refund{{OrderID: "A", Cents: 100, Currency: "usd"}, {OrderID: "B", Cents: 50, Currency: "usd"}}
	way := func(name string, made ...refund) result {
		r := result{Way: name, Intended: len(wanted), Made: len(made), intended: wanted, made: made}
		for range wanted {
			r.Told = append(r.Told, answer{RefundID: "re"})
		}
		return r
	}
	twice := slices.Concat(wanted, wanted)
	for _, tc := range []struct {
		name    string
		results []result
		ok      bool
	}{
		{"once for each, the others more", []result{way("plain", twice...), way("peer", twice...), way("oncehttp", wanted...)}, true},
		{"as many refunds as intended, but twice the same", []result{way("plain", twice...), way("peer", twice...), way("oncehttp", wanted[0], wanted[0])}, false},
		{"one refund too many", []result{way("plain", twice...), way("peer", twice...), way("oncehttp", twice[:3]...)}, false},
		{"an order too many", []result{way("plain", twice...), way("peer", twice...), way("oncehttp", append(wanted, refund{OrderID: "C"})...)}, false},
		{"another amount", []result{way("plain", twice...), way("peer", twice...), way("oncehttp", wanted[0], refund{OrderID: "B", Cents: 49, Currency: "usd"})}, false},
		{"no refund", []result{way("plain", twice...), way("peer", twice...), way("oncehttp")}, false},
		{"the plain client pays once too", []result{way("plain", wanted...), way("peer", twice...), way("oncehttp", wanted...)}, false},
		{"the peer pays once too", []result{way("plain", twice...), way("peer", wanted...), way("oncehttp", wanted...)}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if verdict, ok := judge(tc.results); ok != tc.ok {
				t.Errorf("got %v (%s), want %v", ok, verdict, tc.ok)
			}
		})
	}
}

func TestMessages(t *testing.T) {
	msgs, err := messages()
	if err != nil {
		t.Fatal(err)
	}
	if len(msgs) != 2 {
		t.Fatalf("got %d messages, want 2", len(msgs))
	}
	for i, want := range []string{
		`{"amount_cents":12000,"currency":"usd","order_id":"A-1041","reason":"arrived broken"}`,
		`{"amount_cents":3550,"currency":"usd","order_id":"B-2207","reason":"charged twice"}`,
	} {
		m := msgs[i]
		if m.turn == "" || len(m.calls) != 3 {
			t.Errorf("message %d: turn %q with %d calls, want a turn and 3 calls", i, m.turn, len(m.calls))
		}
		for _, c := range m.calls {
			got, err := canonical(c.args)
			if err != nil || got != want || c.tool != "process_refund" {
				t.Errorf("message %d: %s(%s), %v, want process_refund(%s)", i, c.tool, got, err, want)
			}
		}
	}
}

func TestCanonicalKeepsEveryDigit(t *testing.T) {
	a, err := canonical(json.RawMessage(`{"n": 9007199254740992}`))
	if err != nil {
		t.Fatal(err)
	}
	b, err := canonical(json.RawMessage(`{"n": 9007199254740993}`))
	if err != nil {
		t.Fatal(err)
	}
	if a == b {
		t.Errorf("two different amounts have one form: %s", a)
	}
	if _, err := canonical(json.RawMessage(`{} {}`)); err == nil {
		t.Error("data after the arguments is accepted")
	}
}
