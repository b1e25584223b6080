package main

import (
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/history"
)

func TestEveryEffectHappensAsOftenAsItIsMeant(t *testing.T) {
	t.Parallel()
	var out, errOut strings.Builder
	code := run(&out, &errOut, &oncehttp.MemoryStore{})
	if code != 0 || errOut.Len() > 0 {
		t.Errorf("exit status %d, stderr %q, want 0 and nothing; output\n%s", code, errOut.String(), out.String())
	}
	for _, want := range []string{
		"amount_cents\":12000}\nresult  failed, transient; outcome unknown; next verify\n",
		"amount_cents\":100}\nresult  failed, permanent; outcome none; next verify\n",
		"{\"amount_cents\":1.2e4,\"order_id\":\"A-1041\"}\nresult  ok; outcome applied; next use_result\n",
		"\"cyd\",\"percent\":10}\nresult  failed, budget_exceeded; outcome none; next summarise_and_stop\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output does not say\n%s\nbut\n%s", want, out.String())
		}
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	ledger := out.String()[strings.Index(out.String(), "effect "):]
	if !strings.Contains(string(readme), ledger) {
		t.Errorf("README.md shows another ledger than\n%s", ledger)
	}
}

// The model takes whatever it is sent. A provider would not.
func TestTheConversationIsOneThatAProviderTakes(t *testing.T) {
	t.Parallel()
	m := &model{}
	if ok, err := play(t.Context(), io.Discard, &shop{}, m, &oncehttp.MemoryStore{}); !ok || err != nil {
		t.Errorf("got %v, %v", ok, err)
	}
	log := history.Log{API: history.Chat}
	for _, body := range m.bodies {
		if err := log.Sent(body); err != nil {
			t.Error(err)
		}
	}
	if all, closing := log.Requests(); all != len(script) || closing != 1 {
		t.Errorf("%d requests, %d of them closing, want %d and 1", all, closing, len(script))
	}
}

func TestTheVerdictIsOfTheLedger(t *testing.T) {
	for _, row := range []struct {
		what string
		made []string
		ok   bool
	}{
		{"what was meant", meant, true},
		{"one more", append([]string{"refund A-1041 100"}, meant...), false},
		{"one twice", append([]string{meant[2]}, meant...), false},
		{"one less", meant[1:], false},
		{"one point less", append([]string{"points new-card 9007199254740992"}, append(meant[:4:4], meant[5:]...)...), false},
	} {
		var out strings.Builder
		if ok, err := judge(&out, row.made); ok != row.ok || err != nil {
			t.Errorf("%s: got %v, %v", row.what, ok, err)
		}
		if bad := regexp.MustCompile("more or less often").MatchString(out.String()); bad == row.ok {
			t.Errorf("%s: the output says\n%s", row.what, out.String())
		}
	}
}
