// Package linear records what concurrent callers of a store ask for and are
// told, and has porcupine decide whether one caller after another could have
// been told the same. It stands in a module of its own, so that no importer of
// oncehttp carries a checker.
package linear

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/oncehttp/oncehttp"
)

// method is what was asked for.
type method int

const (
	claim method = iota
	takeOver
	renew
	orphan // Renew with a lease of zero
	complete
	release
)

func (m method) String() string {
	return [...]string{"Claim", "TakeOver", "Renew", "Renew(0)", "Complete", "Release"}[m]
}

type input struct {
	method method
	key    string
	token  string
	head   string
}

type output struct {
	status oncehttp.ClaimStatus // of Claim and TakeOver
	head   string
	holder int
	lost   bool // ErrClaimLost
}

// state is a key as the contract knows it while no time passes.
type state struct {
	status oncehttp.ClaimStatus // 0: free
	token  string
	head   string
	holder int
}

// step is the contract's table: what a call is told in a state, and the next one.
func (s state) step(in input) (output, state) {
	own := s.status != 0 && s.token == in.token
	switch in.method {
	case claim, takeOver:
		switch {
		case s.status == 0:
			s = state{oncehttp.ClaimRunning, in.token, "", 1}
		case s.status == oncehttp.ClaimDone:
			return output{status: oncehttp.ClaimDone, head: s.head, holder: s.holder}, s
		case own:
			s.status = oncehttp.ClaimRunning
		case s.status == oncehttp.ClaimOrphaned && in.method == takeOver:
			s = state{oncehttp.ClaimRunning, in.token, "", s.holder + 1}
		default:
			return output{status: s.status, holder: s.holder}, s
		}
		return output{status: oncehttp.ClaimAcquired, holder: s.holder}, s
	case release:
		switch {
		case s.status == 0:
			return output{}, s
		case !own:
			return output{lost: true}, s
		case s.status == oncehttp.ClaimDone:
			return output{}, s
		}
		return output{}, state{}
	}
	switch {
	case !own:
		return output{lost: true}, s
	case s.status == oncehttp.ClaimDone:
		return output{}, s
	}
	switch in.method {
	case renew:
		s.status = oncehttp.ClaimRunning
	case orphan:
		s.status = oncehttp.ClaimOrphaned
	case complete:
		s.status, s.head = oncehttp.ClaimDone, in.head
	}
	return output{}, s
}

var model = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, op := range history {
			key := op.Input.(input).key
			byKey[key] = append(byKey[key], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return state{} },
	Step: func(s, in, out any) (bool, any) {
		want, next := s.(state).step(in.(input))
		return want == out.(output), next
	},
	DescribeOperation: func(in, out any) string {
		i, o := in.(input), out.(output)
		said := "nil"
		switch {
		case o.lost:
			said = "ErrClaimLost"
		case o.status != 0:
			said = fmt.Sprintf("%v %s (holder %d)", o.status, o.head, o.holder)
		}
		return fmt.Sprintf("%v by %s: %s", i.method, i.token, said)
	},
}

// Config says how hard to try.
type Config struct {
	Writers int    // concurrent callers; 0: 8
	Calls   int    // calls of each; 0: 60
	Keys    int    // keys that they share; 0: 4
	Prefix  string // of the keys, where a store is shared between runs
	Seed    uint64
}

// Check lets writers loose on a store and fails t if no order of their calls
// explains what they were told. It returns the number of calls.
func Check(t testing.TB, s oncehttp.Store, c Config) int {
	t.Helper()
	history := record(t, s, c)
	result, info := porcupine.CheckOperationsVerbose(model, history, time.Minute)
	switch result {
	case porcupine.Ok:
	case porcupine.Unknown:
		t.Errorf("seed %d: the checker did not come to an end within a minute", c.Seed)
	default:
		t.Errorf("seed %d: no order of the calls explains what the callers were told:\n%s", c.Seed, story(info))
	}
	return len(history)
}

// story prints the longest explanation that was found for each key, and what it
// leaves unexplained.
func story(info porcupine.LinearizationInfo) (s string) {
	for _, part := range info.PartialLinearizationsOperations() {
		for _, line := range part {
			for _, op := range line {
				s += fmt.Sprintf("  %s %s\n", op.Input.(input).key, model.DescribeOperation(op.Input, op.Output))
			}
			s += "  then nothing fits\n"
		}
	}
	return s
}

func record(t testing.TB, s oncehttp.Store, c Config) []porcupine.Operation {
	writers, calls, keys := or(c.Writers, 8), or(c.Calls, 60), or(c.Keys, 4)
	began := time.Now()
	var mu sync.Mutex
	var history []porcupine.Operation
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(c.Seed, uint64(w)))
			held := map[string]string{} // the latest token for each key
			for n := range calls {
				key := fmt.Sprintf("%s%d", c.Prefix, r.IntN(keys))
				in := input{method: method(r.IntN(6)), key: key, head: fmt.Sprintf("%d.%d", w, n)}
				if in.token = held[key]; in.token == "" || in.method <= takeOver && r.IntN(3) > 0 {
					in.token = fmt.Sprintf("%d-%d-%d", c.Seed, w, n)
					held[key] = in.token
				}
				call := time.Since(began)
				out, err := ask(s, in)
				if err != nil {
					t.Errorf("seed %d: %v: %v", c.Seed, in.method, err)
					return
				}
				op := porcupine.Operation{ClientId: w, Input: in, Call: int64(call), Output: out, Return: int64(time.Since(began))}
				mu.Lock()
				history = append(history, op)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return history
}

func ask(s oncehttp.Store, in input) (out output, err error) {
	const long = time.Hour // no lease lapses and no record expires meanwhile
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	op := oncehttp.Op{Key: in.key, Token: in.token}
	var c oncehttp.Claim
	switch in.method {
	case claim:
		c, err = s.Claim(ctx, op, long, long)
	case takeOver:
		c, err = s.TakeOver(ctx, op, long, long)
	case renew:
		err = s.Renew(ctx, op, long)
	case orphan:
		err = s.Renew(ctx, op, 0)
	case complete:
		err = s.Complete(ctx, op, []byte(in.head), nil, long)
	case release:
		err = s.Release(ctx, op)
	}
	if errors.Is(err, oncehttp.ErrClaimLost) {
		return output{lost: true}, nil
	}
	return output{status: c.Status, head: string(c.Head), holder: c.Holder}, err
}

func or(n, none int) int {
	if n == 0 {
		return none
	}
	return n
}
