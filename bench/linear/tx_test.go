package linear

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/pgstore"
	"github.com/oncehttp/oncehttp/sqlitestore"
)

// transactional opens the stores of two processes whose work runs in transactions.
var transactional = []struct {
	name string
	open func(t *testing.T) []txStore
}{
	{"sqlitestore", openSQLiteTx},
	{"pgstore", openPostgresTx},
}

type txStore interface {
	oncehttp.Store
	oncehttp.Transactor
}

func openSQLiteTx(t *testing.T) (all []txStore) {
	path := filepath.Join(t.TempDir(), "once.db")
	for range 2 {
		s, err := sqlitestore.Open(path, sqlitestore.WithLogger(quiet), sqlitestore.WithBusyTimeout(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		all = append(all, s.Transactional())
	}
	return all
}

func openPostgresTx(t *testing.T) (all []txStore) {
	pg := services.Postgres(t)
	config, err := pgxpool.ParseConfig(pg.DSN(pg.Database(t)))
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 20
	for range 2 {
		pool, err := pgxpool.NewWithConfig(context.Background(), config.Copy())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		s := pgstore.New(pool, pgstore.WithLogger(quiet))
		if err := s.Migrate(context.Background()); err != nil {
			t.Fatal(err)
		}
		tx := s.Transactional()
		t.Cleanup(tx.Close)
		all = append(all, tx)
	}
	return all
}

// A Transact is two steps: it begins, and from when its work starts others find the
// key running; and it ends.
const (
	begin method = iota + release + 1
	commit
	rollBack
	unknown
	txMethods
)

// A txInput is asked of the store of one of the processes.
type txInput struct {
	input
	process int
}

// A txHeld is a key's state, whose claim that is, and whether a transaction that runs
// has locked it.
type txHeld struct {
	state
	process int
	locked  bool
}

// txStep is step, with the steps of Transact, and with the one thing that is
// different: while no transaction has locked it, a claim may be over as soon as
// another process asks for its key, which then is free. Its holder must learn that it
// is lost before its work starts.
func txStep(s txHeld, in txInput, out output) (bool, txHeld) {
	own := s.status != 0 && s.token == in.token
	switch in.method {
	case begin:
		if !own || s.status == oncehttp.ClaimDone {
			return out == output{lost: true}, s
		}
		s.status, s.locked = oncehttp.ClaimRunning, true
		return out == output{}, s
	case commit, rollBack, unknown:
		if !own || !s.locked {
			return false, s
		}
		s.locked = false
		switch in.method {
		case commit:
			s.status, s.head = oncehttp.ClaimDone, in.head
		case rollBack:
			s.state = state{}
		case unknown:
			s.status = oncehttp.ClaimOrphaned
		}
		return out == output{}, s
	case claim, takeOver:
		if out.status == oncehttp.ClaimAcquired && s.status == oncehttp.ClaimRunning && !own && !s.locked && in.process != s.process {
			s.state = state{}
		}
	}
	want, next := s.step(in.input)
	if want.status == oncehttp.ClaimAcquired {
		s.process = in.process
	}
	s.state = next
	return out == want, s
}

var txModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) (parts [][]porcupine.Operation) {
		byKey := map[string][]porcupine.Operation{}
		for _, op := range history {
			key := op.Input.(txInput).key
			byKey[key] = append(byKey[key], op)
		}
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return txHeld{} },
	Step: func(s, in, out any) (bool, any) { return txStep(s.(txHeld), in.(txInput), out.(output)) },
	DescribeOperation: func(in, out any) string {
		i := in.(txInput)
		if i.method > release {
			name := [...]string{"begins", "commits", "rolls back", "cannot tell"}[i.method-begin]
			return fmt.Sprintf("Transact by %s of process %d %s: %+v", i.token, i.process, name, out)
		}
		return fmt.Sprintf("process %d: %s", i.process, model.DescribeOperation(i.input, out))
	},
}

// checkTx is Check for the transactional stores of several processes. A token stays
// with its process, as it does in life. If slow they let enough time pass between
// calls for a claim that nobody runs to be taken for one of a process that died.
func checkTx(t *testing.T, stores []txStore, seed uint64, slow bool) int {
	const writers, calls, keys = 8, 40, 3
	start := time.Now()
	var mu sync.Mutex
	var history []porcupine.Operation
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w)))
			held := map[string]string{}
			gaveUp := map[string]bool{} // by token
			for n := range calls {
				if slow {
					time.Sleep(rand.N(30 * time.Millisecond))
				}
				key := fmt.Sprintf("%d-%d", seed, r.IntN(keys))
				in := txInput{input{method: method(r.IntN(int(txMethods - 1))), key: key, head: fmt.Sprintf("%d.%d", w, n)}, w % len(stores)}
				if in.method >= begin {
					in.method++ // by how it is to end
				}
				if in.token = held[key]; in.token == "" || in.method <= takeOver && r.IntN(3) > 0 {
					in.token = fmt.Sprintf("%d-%d-%d", seed, w, n)
					held[key] = in.token
				}
				if in.method >= begin && gaveUp[in.token] {
					in.method = claim // whoever has made an orphan of a key begins nothing
				}
				gaveUp[in.token] = gaveUp[in.token] || in.method == orphan || in.method == unknown
				ops, err := askTx(stores[in.process], in, func() int64 { return int64(time.Since(start)) })
				if err != nil {
					t.Errorf("seed %d: %v", seed, err)
					return
				}
				mu.Lock()
				for _, op := range ops {
					op.ClientId = w
					history = append(history, op)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	result, info := porcupine.CheckOperationsVerbose(txModel, history, time.Minute)
	if result == porcupine.Illegal {
		t.Errorf("seed %d: no order of the calls explains what the callers were told:\n%s", seed, txStory(info, history))
	}
	if result == porcupine.Unknown {
		t.Errorf("seed %d: the checker did not come to an end within a minute", seed)
	}
	return len(history)
}

// txStory prints the longest explanation for each key that has none, and the calls
// that it leaves out.
func txStory(info porcupine.LinearizationInfo, history []porcupine.Operation) (s string) {
	line := func(op porcupine.Operation) string {
		return fmt.Sprintf("  %s %9v to %9v  %s\n", op.Input.(txInput).key, time.Duration(op.Call), time.Duration(op.Return),
			txModel.DescribeOperation(op.Input, op.Output))
	}
	parts := txModel.Partition(history)
	for _, lines := range info.PartialLinearizationsOperations() {
		var longest []porcupine.Operation
		for _, ops := range lines {
			if len(ops) > len(longest) {
				longest = ops
			}
		}
		for _, part := range parts {
			if len(longest) == 0 || len(longest) == len(part) || part[0].Input.(txInput).key != longest[0].Input.(txInput).key {
				continue
			}
			for _, op := range longest {
				s += line(op)
			}
			s += "  then none of these fits\n"
			for _, op := range part {
				if !slices.Contains(longest, op) {
					s += line(op)
				}
			}
		}
	}
	return s
}

// askTx asks, and returns the steps that were taken.
func askTx(s txStore, in txInput, now func() int64) ([]porcupine.Operation, error) {
	first := porcupine.Operation{Input: in, Call: now()}
	if in.method <= release {
		out, err := ask(s, in.input)
		first.Output, first.Return = out, now()
		return []porcupine.Operation{first}, err
	}
	end := map[method]oncehttp.TxEnd{commit: oncehttp.TxCommit, rollBack: oncehttp.TxRollback, unknown: oncehttp.TxUnknown}[in.method]
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	first.Input = txInput{input{method: begin, key: in.key, token: in.token}, in.process}
	ran, last := 0, first
	err := s.Transact(ctx, oncehttp.Op{Key: in.key, Token: in.token}, time.Hour, func(context.Context) ([]byte, []byte, oncehttp.TxEnd) {
		first.Output, first.Return = output{}, now()
		last = porcupine.Operation{Input: in, Output: output{}, Call: now()}
		ran++
		runtime.Gosched()
		return []byte(in.head), nil, end
	})
	switch {
	case err == nil && ran == 1:
		last.Return = now()
		return []porcupine.Operation{first, last}, nil
	case errors.Is(err, oncehttp.ErrClaimLost) && ran == 0:
		first.Output, first.Return = output{lost: true}, now()
		return []porcupine.Operation{first}, nil
	}
	return nil, fmt.Errorf("Transact that ends with %v: its work ran %d times, and then: %w", end, ran, err)
}

func TestTheTransactionalStoresAreLinearizable(t *testing.T) {
	histories := uint64(10)
	if os.Getenv("ONCEHTTP_SOAK") == "1" {
		histories = 500
	}
	for _, d := range transactional {
		t.Run(d.name, func(t *testing.T) {
			began, calls := time.Now(), 0
			for seed := range histories {
				t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
					calls += checkTx(t, d.open(t), seed, seed%5 == 0)
				})
				if t.Failed() {
					return
				}
			}
			t.Logf("%d histories of 8 writers in two processes, %d calls in all, have an order; %v", histories, calls, time.Since(began).Round(time.Millisecond))
		})
	}
}
