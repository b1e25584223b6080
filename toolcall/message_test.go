package toolcall

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/messages.txt anew")

// Every text that a model can be given stands in testdata/messages.txt, to be read
// aloud. A change there is a change of the product.
func TestMessagesAreInstructions(t *testing.T) {
	reasons := map[reason]string{
		plainReason: "", replayed: "replayed", latched: "latched", toolBudget: "tool budget", noTool: "no tool", noLedger: "no ledger",
		stopped: "stopped", unverified: "unverified", tooLarge: "too large", notShown: "not shown", misconfigured: "misconfigured",
	}
	var b strings.Builder
	texts := map[string]string{}
	for e := Unsafe; e <= Read; e++ {
		for _, typ := range []ErrorType{"", TypeDegraded, TypeBadArguments, TypePermanent, TypeTransient, TypeBudgetExceeded} {
			for _, o := range []Outcome{OutcomeNone, OutcomeApplied, OutcomeUnknown} {
				for why := plainReason; why <= misconfigured; why++ {
					status := StatusFailed
					switch typ {
					case "":
						status = StatusOK
					case TypeDegraded:
						status = StatusDegraded
					}
					text, next := message(e, status, typ, o, why)
					at := fmt.Sprintf("%v, %s, outcome %s, %s", e, typ, o, reasons[why])
					if text == "" || len(text) > 1<<10 {
						t.Errorf("%s: a message of %d bytes", at, len(text))
					}
					if again, _ := message(e, status, typ, o, why); again != text {
						t.Errorf("%s: another message the second time", at)
					}
					switch next {
					case NextUseResult, NextFixArguments, NextAskUser, NextUsePartial, NextInformUser, NextVerify, NextSummariseAndStop:
					default:
						t.Errorf("%s: next is %q", at, next)
					}
					lower := strings.ToLower(text)
					if typ != "" && !strings.Contains(lower, "do not ") && !strings.Contains(lower, "no more") && !strings.Contains(lower, "ask whether") && why != noTool {
						t.Errorf("%s: does not say what not to do: %s", at, text)
					}
					if strings.ContainsAny(text, "\"\\\n%") {
						t.Errorf("%s: has bytes that need an escape: %s", at, text)
					}
					key := string(next) + ": " + text
					if _, known := texts[key]; !known {
						texts[key] = at
						fmt.Fprintf(&b, "%s\n\n", key)
					}
				}
			}
		}
	}
	for _, e := range []Effect{Unsafe, Keyed, Idempotent} {
		for _, typ := range []ErrorType{TypePermanent, TypeTransient} {
			text, next := message(e, StatusFailed, typ, OutcomeUnknown, plainReason)
			if next != NextVerify || !strings.Contains(text, "may already have taken effect") || !strings.Contains(text, "smaller") {
				t.Errorf("%v, %s, outcome unknown: got %s: %s", e, typ, next, text)
			}
			text, _ = message(e, StatusFailed, typ, OutcomeNone, plainReason)
			if !strings.Contains(text, "othing happened") {
				t.Errorf("%v, %s, outcome none: got %s", e, typ, text)
			}
		}
	}
	const file = "testdata/messages.txt"
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("the messages are not those of %s; if that is meant, run the test with -update and read the difference", file)
	}
}

func TestAResultIsOneObjectInAFixedOrder(t *testing.T) {
	r := Result{
		Status: StatusFailed, ErrorType: TypeTransient, Retriable: true, Message: "m \"quoted\" <é>", RetryAfter: 1500e6, Outcome: OutcomeUnknown,
		Next: NextVerify, Details: "d", Replayed: true, Result: []byte(`{"a":1}`), Key: "tc1_secret", Tool: "t", ID: "call_1", Attempts: 3,
	}
	const want = `{"status":"failed","error_type":"transient","retriable":true,"message":"m \"quoted\" <é>","retry_after_seconds":2,` +
		`"outcome":"unknown","next":"verify","details":"d","replayed":true,"result":{"a":1}}`
	if got := string(r.JSON()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	r = Result{Status: StatusOK, Message: "m", Outcome: OutcomeNone, Next: NextUseResult}
	const empty = `{"status":"ok","error_type":null,"retriable":false,"message":"m","retry_after_seconds":null,` +
		`"outcome":"none","next":"use_result","details":null,"replayed":false,"result":null}`
	if got := string(r.JSON()); got != empty {
		t.Errorf("got  %s\nwant %s", got, empty)
	}
}
