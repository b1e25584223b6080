package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
)

// A ledger is a transactional store and a table of somebody's beside its own.
type ledger struct {
	*TxStore
	db *sql.DB
}

func newLedger(t testing.TB, opts ...Option) *ledger {
	t.Helper()
	path := filepath.Join(t.TempDir(), "once.db")
	s := open(t, path, opts...)
	db := raw(t, path, "&_pragma=foreign_keys(1)")
	mustExec(t, db, `CREATE TABLE payments (what TEXT NOT NULL);
		CREATE TABLE accounts (id INTEGER PRIMARY KEY);
		CREATE TABLE entries (account INTEGER REFERENCES accounts DEFERRABLE INITIALLY DEFERRED)`)
	return &ledger{s.Transactional(), db}
}

// payments are those that were committed.
func (l *ledger) payments(t testing.TB) (n int) {
	t.Helper()
	if err := l.db.QueryRow("SELECT count(*) FROM payments").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// pay writes a payment in the transaction of ctx.
func pay(t testing.TB, ctx context.Context) {
	t.Helper()
	mustExec(t, Tx(ctx), "INSERT INTO payments VALUES ('refund')")
}

func (l *ledger) claim(t testing.TB, key string) oncehttp.Op {
	t.Helper()
	op := newOp(key)
	if c, err := l.Claim(t.Context(), op, time.Minute, day); err != nil || c.Status != oncehttp.ClaimAcquired {
		t.Fatalf("Claim: %v, %v", c.Status, err)
	}
	return op
}

// state is what another who claims the key is told; a free key stays free.
func (l *ledger) state(t testing.TB, key string) string {
	t.Helper()
	op := newOp(key)
	c, err := l.Claim(t.Context(), op, time.Minute, day)
	if err != nil {
		t.Fatal(err)
	}
	if c.Status != oncehttp.ClaimAcquired {
		return c.Status.String()
	}
	if err := l.Release(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	return "free"
}

func TestWhatWorkDoesWithItsTransaction(t *testing.T) {
	commit := func(context.Context) ([]byte, []byte, oncehttp.TxEnd) {
		return []byte("201"), []byte("paid"), oncehttp.TxCommit
	}
	give := func(context.Context) ([]byte, []byte, oncehttp.TxEnd) { return []byte("500"), nil, oncehttp.TxRollback }
	unknown := func(context.Context) ([]byte, []byte, oncehttp.TxEnd) { return []byte("502"), nil, oncehttp.TxUnknown }
	for _, c := range []struct {
		what     string
		work     func(t *testing.T, ctx context.Context)
		answer   func(ctx context.Context) ([]byte, []byte, oncehttp.TxEnd)
		want     error
		payments int
		state    string
	}{
		{"writes and commits", pays, commit, nil, 1, "done"},
		{"writes and does not commit", pays, give, nil, 0, "free"},
		{"writes nothing and commits", func(*testing.T, context.Context) {}, commit, nil, 0, "done"},
		{"calls Commit, which says that it is not its own to call", func(t *testing.T, ctx context.Context) {
			pay(t, ctx)
			if err := Tx(ctx).Commit(); !errors.Is(err, ErrEndsWithWork) {
				t.Errorf("Commit: got error %v", err)
			}
		}, commit, nil, 1, "done"},
		{"calls Commit and fails", func(t *testing.T, ctx context.Context) { pay(t, ctx); Tx(ctx).Commit() }, give, nil, 0, "free"},
		{"calls Rollback and fails", func(t *testing.T, ctx context.Context) {
			pay(t, ctx)
			if err := Tx(ctx).Rollback(); !errors.Is(err, ErrEndsWithWork) {
				t.Errorf("Rollback: got error %v", err)
			}
		}, give, nil, 0, "free"},
		{"calls Rollback and then wants to commit", func(t *testing.T, ctx context.Context) { pay(t, ctx); Tx(ctx).Rollback() },
			commit, oncehttp.ErrRolledBack, 0, "free"},
		{"uses a savepoint", func(t *testing.T, ctx context.Context) {
			pay(t, ctx)
			mustExec(t, Tx(ctx), "SAVEPOINT mine")
			pay(t, ctx)
			mustExec(t, Tx(ctx), "ROLLBACK TO mine")
		}, commit, nil, 1, "done"},
		{"writes and cannot tell what it did elsewhere", pays, unknown, nil, 0, "orphaned"},
		{"executes ROLLBACK and cannot tell", func(t *testing.T, ctx context.Context) { pay(t, ctx); mustExec(t, Tx(ctx), "ROLLBACK") },
			unknown, nil, 0, "orphaned"},
		{"executes COMMIT", func(t *testing.T, ctx context.Context) { pay(t, ctx); mustExec(t, Tx(ctx), "COMMIT") },
			commit, oncehttp.ErrOutcomeUnknown, 1, "running"},
		{"executes COMMIT and fails", func(t *testing.T, ctx context.Context) { pay(t, ctx); mustExec(t, Tx(ctx), "COMMIT") },
			give, oncehttp.ErrOutcomeUnknown, 1, "running"},
		{"executes ROLLBACK and fails", func(t *testing.T, ctx context.Context) { pay(t, ctx); mustExec(t, Tx(ctx), "ROLLBACK") },
			give, nil, 0, "free"},
		{"executes ROLLBACK and then wants to commit", func(t *testing.T, ctx context.Context) { pay(t, ctx); mustExec(t, Tx(ctx), "ROLLBACK") },
			commit, oncehttp.ErrRolledBack, 0, "free"},
		{"executes ROLLBACK and goes on writing", func(t *testing.T, ctx context.Context) {
			mustExec(t, Tx(ctx), "ROLLBACK")
			pay(t, ctx)
		}, commit, oncehttp.ErrOutcomeUnknown, 1, "running"},
		{"meets an error of a statement and goes on", func(t *testing.T, ctx context.Context) {
			if _, err := Tx(ctx).Exec("INSERT INTO payments VALUES (NULL)"); err == nil {
				t.Error("a payment of nothing was taken")
			}
			pay(t, ctx)
		}, commit, nil, 1, "done"},
		{"leaves a debt that the commit refuses", func(t *testing.T, ctx context.Context) {
			pay(t, ctx)
			mustExec(t, Tx(ctx), "INSERT INTO entries VALUES (7)")
		}, commit, oncehttp.ErrRolledBack, 0, "free"},
		{"removes its own record", func(t *testing.T, ctx context.Context) {
			pay(t, ctx)
			mustExec(t, Tx(ctx), "DELETE FROM oncehttp_records")
		}, commit, oncehttp.ErrRolledBack, 0, "free"},
		{"leaves rows and statements open", func(t *testing.T, ctx context.Context) {
			pay(t, ctx)
			if _, err := Tx(ctx).Query("SELECT * FROM payments"); err != nil {
				t.Error(err)
			}
			if _, err := Tx(ctx).Prepare("SELECT * FROM payments"); err != nil {
				t.Error(err)
			}
		}, commit, nil, 1, "done"},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "once.db")
			db := raw(t, path, "&_pragma=foreign_keys(1)")
			s, err := New(db)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			l := &ledger{s.Transactional(), db}
			mustExec(t, db, `CREATE TABLE payments (what TEXT NOT NULL);
				CREATE TABLE accounts (id INTEGER PRIMARY KEY);
				CREATE TABLE entries (account INTEGER REFERENCES accounts DEFERRABLE INITIALLY DEFERRED)`)
			op := l.claim(t, "k")
			ran := 0
			err = l.Transact(t.Context(), op, day, func(ctx context.Context) (head, body []byte, end oncehttp.TxEnd) {
				ran++
				c.work(t, ctx)
				return c.answer(ctx)
			})
			if !errors.Is(err, c.want) || c.want == nil && err != nil {
				t.Errorf("Transact: got error %v, want %v", err, c.want)
			}
			if ran != 1 {
				t.Errorf("work ran %d times", ran)
			}
			if got := l.payments(t); got != c.payments {
				t.Errorf("%d payments were committed, want %d", got, c.payments)
			}
			if got := l.state(t, "k"); got != c.state {
				t.Errorf("the key is %s, want %s", got, c.state)
			}
			// Whatever it did, the store goes on.
			next := l.claim(t, "next")
			err = l.Transact(t.Context(), next, day, func(ctx context.Context) (head, body []byte, end oncehttp.TxEnd) {
				pay(t, ctx)
				return []byte("201"), nil, oncehttp.TxCommit
			})
			if err != nil || l.payments(t) != c.payments+1 || l.state(t, "next") != "done" {
				t.Errorf("the next transaction: %v, %d payments, key %s", err, l.payments(t), l.state(t, "next"))
			}
		})
	}
}

func pays(t *testing.T, ctx context.Context) { pay(t, ctx) }

func TestAStatementThatIsCancelledDoesNotCommitHalfTheWork(t *testing.T) {
	l := newLedger(t)
	op := l.claim(t, "k")
	err := l.Transact(t.Context(), op, day, func(ctx context.Context) (head, body []byte, end oncehttp.TxEnd) {
		pay(t, ctx)
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		// SQLite rolls the whole transaction back when it interrupts a write.
		_, err := Tx(ctx).ExecContext(short, `INSERT INTO payments WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n`)
		if err == nil {
			t.Error("an endless statement has ended")
		}
		return []byte("500"), nil, oncehttp.TxRollback
	})
	if err != nil {
		t.Errorf("Transact: %v", err)
	}
	if n, state := l.payments(t), l.state(t, "k"); n != 0 || state != "free" {
		t.Errorf("%d payments, the key is %s; want none, free", n, state)
	}
}

func TestATransactionIsOverWhenTheWorkIs(t *testing.T) {
	l := newLedger(t)
	var kept *sql.Tx
	err := l.Transact(t.Context(), l.claim(t, "k"), day, func(ctx context.Context) (head, body []byte, end oncehttp.TxEnd) {
		kept = Tx(ctx)
		return nil, nil, oncehttp.TxCommit
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kept.Exec("INSERT INTO payments VALUES ('late')"); !errors.Is(err, sql.ErrTxDone) {
		t.Errorf("a statement after that: got error %v, want %v", err, sql.ErrTxDone)
	}
	if n := l.payments(t); n != 0 {
		t.Errorf("%d payments, want none", n)
	}
	if Tx(t.Context()) != nil {
		t.Error("a context without a transaction has one")
	}
}

func TestOtherKeysWaitForATransactionAndThenFailUnstarted(t *testing.T) {
	l := newLedger(t, WithBusyTimeout(100*time.Millisecond))
	done := l.claim(t, "done")
	if err := l.Complete(t.Context(), done, []byte("200"), nil, day); err != nil {
		t.Fatal(err)
	}
	queued := l.claim(t, "queued")
	twin := newOp("k")
	err := l.Transact(t.Context(), l.claim(t, "k"), day, func(ctx context.Context) (head, body []byte, end oncehttp.TxEnd) {
		if _, err := l.Claim(t.Context(), newOp("another"), day, day); !errors.Is(err, ErrLocked) {
			t.Errorf("Claim of another key: got error %v, want %v", err, ErrLocked)
		}
		if c, err := l.Claim(t.Context(), newOp("done"), day, day); err != nil || c.Status != oncehttp.ClaimDone {
			t.Errorf("a replay: got %v, %v", c.Status, err)
		}
		if c, err := l.Claim(t.Context(), twin, day, day); err != nil || c.Status != oncehttp.ClaimRunning {
			t.Errorf("a twin: got %v, %v", c.Status, err)
		}
		err := l.Transact(t.Context(), queued, day, func(context.Context) (head, body []byte, end oncehttp.TxEnd) {
			t.Error("two transactions run at a time")
			return nil, nil, oncehttp.TxRollback
		})
		if !errors.Is(err, ErrLocked) {
			t.Errorf("another transaction: got error %v, want %v", err, ErrLocked)
		}
		pay(t, ctx)
		return []byte("201"), nil, oncehttp.TxCommit
	})
	if err != nil || l.payments(t) != 1 {
		t.Errorf("%v, %d payments", err, l.payments(t))
	}
	if got := l.state(t, "another"); got != "free" {
		t.Errorf("a key whose claim failed is %s", got)
	}
	if got := l.state(t, "queued"); got != "running" {
		t.Errorf("a key whose transaction could not begin is %s; its holder has to release it", got)
	}
}

func TestAClaimRunsAsLongAsItsTransaction(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	// As other processes have it. One has given the holder enough time to begin.
	other := open(t, l.path, WithBusyTimeout(time.Minute)).Transactional()
	third := open(t, l.path, WithBusyTimeout(time.Millisecond)).Transactional()
	op := newOp("k")
	if _, err := l.Claim(t.Context(), op, time.Millisecond, day); err != nil {
		t.Fatal(err)
	}
	err := l.Transact(t.Context(), op, day, func(ctx context.Context) (head, body []byte, end oncehttp.TxEnd) {
		time.Sleep(10 * time.Millisecond) // after the lease
		for name, s := range map[string]*TxStore{"this store": l.TxStore, "another store": other, "a third store": third} {
			for what, claim := range map[string]func(context.Context, oncehttp.Op, time.Duration, time.Duration) (oncehttp.Claim, error){
				"Claim": s.Claim, "TakeOver": s.TakeOver, "Claim without a transaction": s.Store.Claim,
			} {
				began := time.Now()
				c, err := claim(t.Context(), newOp("k"), day, day)
				if err != nil || c.Status != oncehttp.ClaimRunning || c.Left <= 0 {
					t.Errorf("%s of %s while the transaction goes on: got %v with %v left, %v; want running", what, name, c.Status, c.Left, err)
				}
				if took := time.Since(began); took > 20*time.Second { // it does not wait for the lock
					t.Errorf("%s of %s took %v", what, name, took)
				}
			}
		}
		return []byte("201"), nil, oncehttp.TxCommit
	})
	if err != nil {
		t.Error(err)
	}
	if c, err := other.Claim(t.Context(), newOp("k"), day, day); err != nil || c.Status != oncehttp.ClaimDone {
		t.Errorf("after it: got %v, %v", c.Status, err)
	}
}

func TestTheKeyOfAHolderThatVanishedIsFreeAtOnce(t *testing.T) {
	l := newLedger(t)
	gone := l.claim(t, "k")
	other := open(t, l.path)
	if c, err := other.Claim(t.Context(), newOp("k"), time.Minute, day); err != nil || c.Status != oncehttp.ClaimRunning {
		t.Fatalf("a key whose holder lives: got %v, %v; want running", c.Status, err)
	}
	vanish(t, l.Store)
	mine := newOp("k")
	c, err := other.Claim(t.Context(), mine, time.Minute, day)
	if err != nil || c.Status != oncehttp.ClaimAcquired || c.Holder != 1 || c.Fingerprint != mine.Fingerprint {
		t.Errorf("a key whose holder vanished: got %v by holder %d, %v; want acquired by the first", c.Status, c.Holder, err)
	}
	// It lives after all.
	err = l.Transact(t.Context(), gone, day, func(ctx context.Context) (head, body []byte, end oncehttp.TxEnd) {
		t.Error("work runs although another has the key")
		return nil, nil, oncehttp.TxCommit
	})
	if !errors.Is(err, oncehttp.ErrClaimLost) {
		t.Errorf("Transact by the one who was late: got error %v, want %v", err, oncehttp.ErrClaimLost)
	}
	if err := other.Complete(t.Context(), mine, []byte("200"), nil, day); err != nil {
		t.Error(err)
	}
}

// However busy the store is with other transactions.
func TestTheKeyOfAHolderThatVanishedIsFreeUnderLoad(t *testing.T) {
	l := newLedger(t)
	l.claim(t, "k")
	vanish(t, l.Store)
	other := open(t, l.path).Transactional()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				op := newOp(fmt.Sprintf("load %d %d", i, n))
				if _, err := other.Claim(ctx, op, time.Minute, day); err != nil {
					continue
				}
				other.Transact(ctx, op, day, func(context.Context) (head, body []byte, end oncehttp.TxEnd) {
					time.Sleep(10 * time.Millisecond)
					return nil, nil, oncehttp.TxCommit
				})
			}
		})
	}
	for c := (oncehttp.Claim{}); c.Status != oncehttp.ClaimAcquired; time.Sleep(10 * time.Millisecond) {
		var err error
		if c, err = other.Claim(ctx, newOp("k"), time.Minute, day); err != nil {
			t.Errorf("a claim of the key: %v", err)
			break
		}
	}
	cancel()
	wg.Wait()
}

// A holder that waits for its turn behind other transactions is not gone.
func TestAHolderThatQueuesKeepsItsKey(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	other := open(t, l.path).Transactional()
	queued := l.claim(t, "queued")
	first := newOp("first")
	if _, err := other.Claim(t.Context(), first, time.Minute, day); err != nil {
		t.Fatal(err)
	}
	begun, ended := make(chan struct{}), make(chan error)
	go func() {
		ended <- other.Transact(t.Context(), first, day, func(ctx context.Context) (head, body []byte, end oncehttp.TxEnd) {
			close(begun)
			time.Sleep(300 * time.Millisecond)
			return nil, nil, oncehttp.TxCommit
		})
	}()
	<-begun
	result := make(chan error)
	go func() {
		result <- l.Transact(t.Context(), queued, day, func(ctx context.Context) (head, body []byte, end oncehttp.TxEnd) {
			time.Sleep(100 * time.Millisecond)
			return []byte("201"), nil, oncehttp.TxCommit
		})
	}()
	for range 10 {
		if c, err := other.Claim(t.Context(), newOp("queued"), day, day); err != nil || c.Status != oncehttp.ClaimRunning {
			t.Fatalf("a key whose holder queues: got %v, %v", c.Status, err)
		}
		time.Sleep(25 * time.Millisecond)
	}
	if err := errors.Join(<-ended, <-result); err != nil {
		t.Error(err)
	}
	if c, err := other.Claim(t.Context(), newOp("queued"), day, day); err != nil || c.Status != oncehttp.ClaimDone {
		t.Errorf("in the end: got %v, %v", c.Status, err)
	}
}

// A holder that lives has its lease to come, and then the time to wait for the lock.
func TestAHolderThatNeverBeginsIsNotWaitedForForEver(t *testing.T) {
	t.Parallel()
	const lease, busy = 200 * time.Millisecond, 300 * time.Millisecond
	l := newLedger(t)
	other := open(t, l.path, WithBusyTimeout(busy))
	began := time.Now()
	if _, err := l.Claim(t.Context(), newOp("k"), lease, day); err != nil {
		t.Fatal(err)
	}
	for running := 0; ; time.Sleep(10 * time.Millisecond) {
		c, err := other.Claim(t.Context(), newOp("k"), time.Minute, day)
		switch took := time.Since(began); {
		case err != nil || c.Status != oncehttp.ClaimRunning && c.Status != oncehttp.ClaimAcquired:
			t.Fatalf("got %v, %v; want running, and then acquired", c.Status, err)
		case c.Status == oncehttp.ClaimRunning && took > 20*time.Second:
			t.Fatal("a holder that never begins keeps its key")
		case c.Status == oncehttp.ClaimRunning:
			running++
		case took < lease+busy || running == 0:
			t.Fatalf("the key was given away after %v, asked for %d times before; want %v", took, running, lease+busy)
		default:
			return
		}
	}
}

func TestAnOrphanStaysOneWhenItsStoreIsGone(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	op := l.claim(t, "k")
	if err := l.Renew(t.Context(), op, 0); err != nil { // nobody knows what happened
		t.Fatal(err)
	}
	vanish(t, l.Store)
	other := open(t, l.path).Transactional()
	for range 5 {
		if c, err := other.Claim(t.Context(), newOp("k"), day, day); err != nil || c.Status != oncehttp.ClaimOrphaned {
			t.Fatalf("got %v, %v; want orphaned", c.Status, err)
		}
	}
}

// What the first holder did is still not known when the one who took over vanishes.
func TestAnOrphanThatWasTakenOverIsOneAgain(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	first := newOp("k")
	if c, err := l.Store.Claim(t.Context(), first, time.Minute, day); err != nil || c.Status != oncehttp.ClaimAcquired {
		t.Fatalf("Claim: %v, %v", c.Status, err)
	}
	if err := l.Store.Renew(t.Context(), first, 0); err != nil {
		t.Fatal(err)
	}
	take := func(s oncehttp.Store, want oncehttp.ClaimStatus, holder int) {
		t.Helper()
		c, err := s.TakeOver(t.Context(), newOp("k"), time.Minute, day)
		if err != nil || c.Status != want || c.Holder != holder {
			t.Fatalf("TakeOver: got %v by holder %d, %v; want %v by holder %d", c.Status, c.Holder, err, want, holder)
		}
	}
	take(l.TxStore, oncehttp.ClaimAcquired, 2)
	other := open(t, l.path)
	take(other, oncehttp.ClaimRunning, 2)
	vanish(t, l.Store)
	for range 5 { // and it stays one
		if c, err := other.Claim(t.Context(), newOp("k"), time.Minute, day); err != nil || c.Status != oncehttp.ClaimOrphaned {
			t.Fatalf("got %v, %v; want orphaned", c.Status, err)
		}
	}
	take(other.Transactional(), oncehttp.ClaimAcquired, 3)
}

// No other process may get the key between the rollback and the orphan, because it
// would do again what work did elsewhere.
func TestAnUnknownOutcomeIsNeverFreeForAMoment(t *testing.T) {
	t.Parallel()
	l := newLedger(t)
	other := open(t, l.path).Transactional()
	op := l.claim(t, "k")
	var ended atomic.Bool
	var asked atomic.Int32
	var twins sync.WaitGroup
	defer twins.Wait()
	defer ended.Store(true)
	err := l.Transact(t.Context(), op, day, func(ctx context.Context) (head, body []byte, end oncehttp.TxEnd) {
		pay(t, ctx)
		twins.Go(func() {
			for !ended.Load() {
				c, err := other.Claim(t.Context(), newOp("k"), time.Minute, day)
				if err != nil || c.Status != oncehttp.ClaimRunning && c.Status != oncehttp.ClaimOrphaned {
					t.Errorf("a twin gets %v, %v", c.Status, err)
					return
				}
				asked.Add(1)
			}
		})
		for asked.Load() < 3 {
			time.Sleep(time.Millisecond)
		}
		return nil, nil, oncehttp.TxUnknown
	})
	if err != nil || l.payments(t) != 0 {
		t.Errorf("%v, %d payments; want none of both", err, l.payments(t))
	}
	if c, err := other.Claim(t.Context(), newOp("k"), time.Minute, day); err != nil || c.Status != oncehttp.ClaimOrphaned {
		t.Errorf("then: got %v, %v; want orphaned", c.Status, err)
	}
}

// quiet is a logger for what is expected to be logged.
func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func TestAMiddlewareOverTransactions(t *testing.T) {
	l := newLedger(t, WithBusyTimeout(200*time.Millisecond))
	stuck := make(chan struct{})
	var runs atomic.Int32
	handler := (&oncehttp.Middleware{Store: l.TxStore, Logger: quiet(), Wait: time.Minute}).Handler(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			runs.Add(1)
			if Tx(r.Context()) == nil {
				t.Error("the handler has no transaction")
				return
			}
			pay(t, r.Context())
			switch r.URL.Path {
			case "/fails":
				w.WriteHeader(http.StatusInternalServerError)
			case "/panics":
				panic(http.ErrAbortHandler)
			case "/unknown":
				oncehttp.Unknown(r.Context())
				w.WriteHeader(http.StatusBadGateway)
			case "/takes-back":
				Tx(r.Context()).Rollback()
				w.WriteHeader(http.StatusCreated)
			case "/sticks":
				<-stuck
				w.WriteHeader(http.StatusCreated)
			default:
				w.WriteHeader(http.StatusCreated)
			}
			fmt.Fprint(w, "run ", runs.Load())
		}))
	post := func(path, key string) (r *httptest.ResponseRecorder) {
		defer func() { recover() }()
		req := httptest.NewRequest("POST", path, strings.NewReader("{}"))
		req.Header.Set("Idempotency-Key", key)
		r = httptest.NewRecorder()
		handler.ServeHTTP(r, req)
		return r
	}
	expect := func(what string, r *httptest.ResponseRecorder, status, payments int) {
		t.Helper()
		if r.Code != status || l.payments(t) != payments {
			t.Errorf("%s: got %d %s and %d payments, want %d and %d", what, r.Code, r.Body, l.payments(t), status, payments)
		}
	}
	first := post("/", "a")
	expect("the first", first, 201, 1)
	again := post("/", "a")
	expect("a repeat", again, 201, 1)
	if first.Body.String() != again.Body.String() || again.Header().Get("Idempotent-Replayed") != "true" {
		t.Errorf("the repeat got %q, the first %q", again.Body, first.Body)
	}
	expect("one that fails", post("/fails", "b"), 500, 1)
	expect("a repeat of it", post("/fails", "b"), 500, 1)
	post("/panics", "c")
	post("/panics", "c")
	if l.payments(t) != 1 || runs.Load() != 5 {
		t.Errorf("%d payments in %d runs; want 1 in 5: what fails is rolled back and may run again", l.payments(t), runs.Load())
	}
	undone := post("/takes-back", "g")
	expect("one that is rolled back and wants to be committed", undone, 503, 1)
	if undone.Header().Get("Retry-After") != "1" || !strings.Contains(undone.Body.String(), `"retry_same_key":true`) {
		t.Errorf("it is answered %v %s", undone.Header(), undone.Body)
	}
	expect("a repeat of it", post("/takes-back", "g"), 503, 1)
	if runs.Load() != 7 {
		t.Errorf("%d runs, want 7: what is rolled back may run again", runs.Load())
	}
	expect("one that cannot tell", post("/unknown", "d"), 502, 1)
	expect("a repeat of it", post("/unknown", "d"), 409, 1)

	var wg sync.WaitGroup
	wg.Go(func() { expect("one that takes its time", post("/sticks", "e"), 201, 2) })
	for !l.turn.isLent() {
		time.Sleep(time.Millisecond)
	}
	wg.Go(func() { expect("a twin that waits for it", post("/sticks", "e"), 201, 2) })
	other := post("/", "f")
	if other.Code != 503 || other.Header().Get("Retry-After") == "" {
		t.Errorf("a first request with another key meanwhile: got %d %s", other.Code, other.Body)
	}
	expect("a replay meanwhile", post("/", "a"), 201, 1)
	close(stuck)
	wg.Wait()
	expect("the other key afterwards", post("/", "f"), 201, 3)
}

// A twin that has waited as long as it may gets 409, in the same process and in
// another one, however long the transaction takes; and it never runs.
func TestATwinOfATransactionGets409AfterItsWait(t *testing.T) {
	l := newLedger(t)
	const wait = 400 * time.Millisecond // longer than the lock is there to be had by a holder
	var ran atomic.Int32
	runs, goOn := make(chan bool), make(chan bool)
	var servers []http.Handler
	for _, s := range []*TxStore{l.TxStore, open(t, l.path).Transactional()} {
		m := &oncehttp.Middleware{Store: s, Logger: quiet(), Wait: wait}
		servers = append(servers, m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ran.Add(1)
			pay(t, r.Context())
			close(runs)
			<-goOn
			w.WriteHeader(http.StatusCreated)
		})))
	}
	post := func(server http.Handler) *httptest.ResponseRecorder {
		req := httptest.NewRequest("POST", "/payments", strings.NewReader("{}"))
		req.Header.Set("Idempotency-Key", "key")
		r := httptest.NewRecorder()
		server.ServeHTTP(r, req)
		return r
	}
	var first sync.WaitGroup
	first.Go(func() {
		if r := post(servers[0]); r.Code != http.StatusCreated {
			t.Errorf("the first got %d %s, want 201", r.Code, r.Body)
		}
	})
	<-runs
	for i, server := range servers {
		began := time.Now()
		r := post(server)
		if r.Code != http.StatusConflict || !strings.Contains(r.Body.String(), "urn:oncehttp:in-progress") || r.Header().Get("Retry-After") == "" {
			t.Errorf("a twin in process %d got %d, Retry-After %q, %s; want 409 in-progress", i, r.Code, r.Header().Get("Retry-After"), r.Body)
		}
		if d := time.Since(began); d < wait {
			t.Errorf("a twin in process %d was refused after %v, want %v", i, d, wait)
		}
	}
	close(goOn)
	first.Wait()
	if r := post(servers[1]); r.Code != http.StatusCreated || r.Header().Get("Idempotent-Replayed") != "true" {
		t.Errorf("afterwards: got %d %s, want the recorded 201", r.Code, r.Body)
	}
	if ran.Load() != 1 || l.payments(t) != 1 {
		t.Errorf("%d runs and %d payments, want 1 of each", ran.Load(), l.payments(t))
	}
}
