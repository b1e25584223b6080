// Refund shows what becomes of two refunds when the network loses a reply and the
// model asks again.
//
// It starts a payment server on the loopback interface whose network misbehaves
// once for each message, reads two tool-call messages of a model from testdata,
// and carries out their calls in three ways, each against a fresh server. It exits
// with status 0 only if oncehttp made exactly one refund for each intended one
// and both other ways made more. With -json it prints the same as one JSON object.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr, ways()))
}

// A report is what a run prints.
type report struct {
	Ways    []result `json:"ways"`
	OK      bool     `json:"ok"`
	Verdict string   `json:"verdict"`
}

// A result is how one way fared.
type result struct {
	Way           string   `json:"way"`
	Attempts      int      `json:"attempts"` // requests that the server's network saw
	Intended      int      `json:"refunds_intended"`
	Made          int      `json:"refunds_made"`
	IntendedCents int64    `json:"money_intended_cents"`
	OutCents      int64    `json:"money_out_cents"`
	Told          []answer `json:"told"` // one for each tool call, in the order of the messages

	intended, made []refund
}

// An answer is what the model got to read about one call.
type answer struct {
	Text     string `json:"text"`
	RefundID string `json:"refund_id,omitempty"`
	Replayed bool   `json:"replayed"`
}

func run(args []string, stdout, stderr io.Writer, ways []way) int {
	flags := flag.NewFlagSet("refund", flag.ContinueOnError)
	flags.SetOutput(stderr)
	asJSON := flags.Bool("json", false, "print one JSON object instead of the table")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	rep, err := compare(ctx, ways)
	if err == nil {
		if *asJSON {
			err = rep.json(stdout)
		} else {
			err = rep.table(stdout)
		}
	}
	if err != nil {
		fmt.Fprintln(stderr, "refund:", err)
		return 1
	}
	if !rep.OK {
		return 1
	}
	return 0
}

// compare carries out the messages in every way at the same time: the waits that
// the server and go-retryablehttp insist on would otherwise add up.
func compare(ctx context.Context, ways []way) (*report, error) {
	msgs, err := messages()
	if err != nil {
		return nil, err
	}
	results := make([]result, len(ways))
	errs := make([]error, len(ways))
	var wg sync.WaitGroup
	for i, w := range ways {
		wg.Go(func() { results[i], errs[i] = w.carryOut(ctx, msgs) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	rep := &report{Ways: results}
	rep.Verdict, rep.OK = judge(results)
	return rep, nil
}

// carryOut makes every call of every message against a payment server of its own.
// The messages are two customers' and run side by side; the calls of one message
// follow one another.
func (w way) carryOut(ctx context.Context, msgs []message) (result, error) {
	bank := &payments{}
	var h http.Handler = bank
	if w.server != nil {
		h = w.server(h)
	}
	wire := &network{next: h}
	url, stop, err := listen(wire)
	if err != nil {
		return result{}, err
	}
	defer stop()

	told := make([][]answer, len(msgs))
	var wg sync.WaitGroup
	for i, m := range msgs {
		wg.Go(func() {
			for _, c := range m.calls {
				resp, err := w.send(ctx, url+"/refunds", m.turn, c)
				told[i] = append(told[i], tell(resp, err))
			}
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return result{}, fmt.Errorf("%s: %w", w.name, err)
	}

	bank.mu.Lock()
	defer bank.mu.Unlock()
	wire.mu.Lock()
	defer wire.mu.Unlock()
	r := result{Way: w.name, Attempts: wire.requests, made: bank.made}
	if r.intended, err = intentions(msgs); err != nil {
		return result{}, err
	}
	r.Intended, r.IntendedCents = len(r.intended), sum(r.intended)
	r.Made, r.OutCents = len(r.made), sum(r.made)
	for _, answers := range told {
		r.Told = append(r.Told, answers...)
	}
	return r, nil
}

// tell puts the outcome of a call into words for the model.
func tell(resp *http.Response, err error) answer {
	if err != nil {
		return answer{Text: "The refund failed: " + err.Error()}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return answer{Text: "The refund failed: " + err.Error()}
	}
	var got refund
	if resp.StatusCode != http.StatusCreated || json.Unmarshal(body, &got) != nil {
		return answer{Text: fmt.Sprintf("The refund failed: %s: %s", resp.Status, strings.TrimSpace(string(body)))}
	}
	return answer{
		Text:     fmt.Sprintf("Refunded %s for order %s, receipt %s.", dollars(got.Cents), got.OrderID, got.ID),
		RefundID: got.ID,
		Replayed: resp.Header.Get("Idempotent-Replayed") == "true",
	}
}

// intentions are the refunds that somebody wants: within a message, equal calls
// mean one.
func intentions(msgs []message) ([]refund, error) {
	var all []refund
	for _, m := range msgs {
		seen := map[string]bool{}
		for _, c := range m.calls {
			args, err := canonical(c.args)
			if err != nil {
				return nil, err
			}
			if seen[args] {
				continue
			}
			seen[args] = true
			var r refund
			if err := json.Unmarshal(c.args, &r); err != nil {
				return nil, err
			}
			all = append(all, r)
		}
	}
	return all, nil
}

func sum(refunds []refund) (cents int64) {
	for _, r := range refunds {
		cents += r.Cents
	}
	return cents
}

// judge says whether the last way, oncehttp, did what it promises where the others
// did not.
func judge(results []result) (verdict string, ok bool) {
	others, once := results[:len(results)-1], results[len(results)-1]
	for _, want := range once.intended {
		n := 0
		for _, r := range once.made {
			if r.OrderID == want.OrderID && r.Cents == want.Cents && r.Currency == want.Currency {
				n++
			}
		}
		if n != 1 {
			return fmt.Sprintf("%s made %d refunds of %s for order %s, want 1.", once.Way, n, dollars(want.Cents), want.OrderID), false
		}
	}
	if once.Made != once.Intended {
		return fmt.Sprintf("%s made %d refunds, want %d.", once.Way, once.Made, once.Intended), false
	}
	for _, a := range once.Told {
		if a.RefundID == "" {
			return fmt.Sprintf("%s made the refunds but told the model: %s", once.Way, a.Text), false
		}
	}
	for _, o := range others {
		if o.Made <= o.Intended {
			return fmt.Sprintf("%s made %d refunds for %d intended ones, so this run shows nothing.", o.Way, o.Made, o.Intended), false
		}
	}
	return fmt.Sprintf("%s made each refund once; the others paid again for what they had already paid.", once.Way), true
}

func (r *report) table(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "way\tattempts\trefunds intended\trefunds made\tmoney out\tthe model was told")
	for _, x := range r.Ways {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%s\n",
			x.Way, x.Attempts, x.Intended, x.Made, dollars(x.OutCents), gist(x.Told))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "\n%s\n", r.Verdict)
	return err
}

func (r *report) json(out io.Writer) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// gist is what the model was told, in a few words.
func gist(told []answer) string {
	receipts := map[string]bool{}
	done, replayed := 0, 0
	for _, a := range told {
		if a.RefundID != "" {
			done++
			receipts[a.RefundID] = true
		}
		if a.Replayed {
			replayed++
		}
	}
	s := fmt.Sprintf("%d of %d calls refunded, %d different receipts", done, len(told), len(receipts))
	if replayed > 0 {
		s += fmt.Sprintf(", %d replays", replayed)
	}
	return s
}

func dollars(cents int64) string {
	return fmt.Sprintf("$%d.%02d", cents/100, cents%100)
}
