// Agent is a support agent with everything that goes wrong in one: a reply that is lost after the
// refund was made, a model that then tries a smaller amount, repeats itself, calls in
// parallel, sends a number that no float64 holds, and asks for more than its budget.
//
// The model is a script, served on the loopback interface in the wire format of chat completions, and so is
// the shop that moves the money; the loop between them is what a real agent would have. It
// prints the conversation as the model sees it, and the shop's ledger, and exits with status 0
// only if every effect happened exactly as often as it was meant.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/toolcall"
)

func main() {
	os.Exit(run(os.Stdout, os.Stderr, &oncehttp.MemoryStore{}))
}

// messages are the user's. Each is a turn.
var messages = []struct {
	text   string
	budget toolcall.Budget
}{
	{"Order A-1041 arrived broken. Please refund the $120.00.", toolcall.Budget{Calls: 20, Wall: time.Minute}},
	{"The second parcel of A-1041 is broken too, refund it as well. And B-2207, $35.50. And move my points.", toolcall.Budget{Calls: 20, Wall: time.Minute}},
	{"Send everybody on my list a coupon.", toolcall.Budget{Calls: 2, Wall: time.Minute}},
}

// meant is what all messages together ask for. The points differ by one, which a float64
// cannot tell; of the coupons the budget admits two.
var meant = []string{
	"refund A-1041 12000",
	"refund A-1041 12000",
	"refund B-2207 3550",
	"points old-card 9007199254740992",
	"points new-card 9007199254740993",
	"coupon ada 10",
	"coupon ben 10",
}

func run(stdout, stderr io.Writer, store oncehttp.Store) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	shop := &shop{}
	ok, err := play(ctx, stdout, shop, &model{}, store)
	if err != nil {
		fmt.Fprintln(stderr, "agent:", err)
		return 1
	}
	if !ok {
		return 1
	}
	return 0
}

// play lets the agent answer all messages, prints what happens, and judges it.
func play(ctx context.Context, out io.Writer, shop *shop, model *model, store oncehttp.Store) (bool, error) {
	shopURL, stop, err := listen(shop.handler())
	if err != nil {
		return false, err
	}
	defer stop()
	modelURL, stop, err := listen(model)
	if err != nil {
		return false, err
	}
	defer stop()

	a, err := newAgent(modelURL, shopURL, store, out)
	if err != nil {
		return false, err
	}
	for i, m := range messages {
		turn := a.runner.Turn(fmt.Sprint("conversation 7, message ", i+1), m.budget)
		if err := a.say(ctx, turn, m.text); err != nil {
			return false, err
		}
	}
	return judge(out, shop.ledger())
}

// judge prints the ledger beside what was meant.
func judge(out io.Writer, made []string) (bool, error) {
	wanted, got := count(meant), count(made)
	ok := true
	fmt.Fprintln(out)
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "effect\tmeant\tmade")
	seen := map[string]bool{}
	for _, all := range [][]string{meant, made} {
		for _, effect := range all {
			if seen[effect] {
				continue
			}
			seen[effect] = true
			ok = ok && wanted[effect] == got[effect]
			fmt.Fprintf(w, "%s\t%d\t%d\n", effect, wanted[effect], got[effect])
		}
	}
	if err := w.Flush(); err != nil {
		return false, err
	}
	verdict := "Every effect happened as often as it was meant."
	if !ok {
		verdict = "An effect happened more or less often than it was meant."
	}
	_, err := fmt.Fprintf(out, "\n%s\n", verdict)
	return ok, err
}

func count(effects []string) map[string]int {
	n := map[string]int{}
	for _, e := range effects {
		n[e]++
	}
	return n
}
