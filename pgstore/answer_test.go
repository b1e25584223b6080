package pgstore_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/pgstore"
)

// A narrowConn hands out what the server sends in pieces, and can be cut.
type narrowConn struct {
	net.Conn
	piece *atomic.Int64 // bytes a read; 0: all
	left  *atomic.Int64 // bytes until the connection is cut, if it is not negative
}

func (c narrowConn) Read(b []byte) (int, error) {
	if n := int(c.piece.Load()); n > 0 && n < len(b) {
		b = b[:n]
	}
	if c.left.Load() == 0 {
		return c.cut()
	}
	n, err := c.Conn.Read(b)
	// Not sooner: when a write takes long pgx reads beside it, and may have begun this
	// before it was said where to cut.
	if left := c.left.Load(); left == 0 {
		return c.cut()
	} else if left > 0 {
		n = min(n, int(left))
		c.left.Add(-int64(n))
	}
	return n, err
}

func (c narrowConn) cut() (int, error) {
	c.Close()
	c.left.Store(-1)
	return 0, io.EOF
}

// configured opens a pool of one connection that change has a say in.
func configured(t *testing.T, pg *services.PG, db string, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(pg.DSN(db))
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 1
	change(config)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// narrow opens a store whose one connection is a narrowConn.
func narrow(t *testing.T) (s *pgstore.Store, pool *pgxpool.Pool, piece, left *atomic.Int64) {
	t.Helper()
	pg := services.Postgres(t)
	piece, left = new(atomic.Int64), new(atomic.Int64)
	left.Store(-1)
	pool = configured(t, pg, pg.Database(t), func(c *pgxpool.Config) {
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return narrowConn{conn, piece, left}, err
		}
	})
	return migrated(t, pgstore.New(pool, quiet)), pool, piece, left
}

func record(t *testing.T, s *pgstore.Store, key, head string, body []byte) {
	t.Helper()
	op := newOp(key)
	mustClaim(t, s, op, oncehttp.ClaimAcquired)
	if err := s.Complete(t.Context(), op, []byte(head), body, keep); err != nil {
		t.Fatal(err)
	}
}

func TestAnAnswerMayComeInPiecesOfAnySize(t *testing.T) {
	t.Parallel()
	s, _, piece, _ := narrow(t)
	large := bytes.Repeat([]byte("0123456789abcdef"), 20_000)
	record(t, s, "small", "head", nil)
	record(t, s, "large", "head of a large one", large)
	for _, n := range []int64{1, 2, 3, 5, 7, 100, 4095, 4096, 4097, 0} {
		piece.Store(n)
		if c := mustClaim(t, s, newOp("small"), oncehttp.ClaimDone); string(c.Head) != "head" || len(c.Body) != 0 {
			t.Errorf("%d bytes a read: got head %q and %d bytes of body", n, c.Head, len(c.Body))
		}
		if n > 0 && n < 100 {
			continue // 320 000 reads
		}
		if c := mustClaim(t, s, newOp("large"), oncehttp.ClaimDone); !bytes.Equal(c.Body, large) {
			t.Errorf("%d bytes a read: got %d bytes of body, want %d, the same", n, len(c.Body), len(large))
		}
	}
}

// Wherever an answer is cut, the call asks again on another connection, and the one
// that broke is not used any more.
func TestAnAnswerThatIsCutAnywhereIsAskedForAgain(t *testing.T) {
	t.Parallel()
	s, pool, _, left := narrow(t)
	record(t, s, "key", "head", []byte("body"))
	mustClaim(t, s, newOp("key"), oncehttp.ClaimDone) // prepared
	opened := pool.Stat().NewConnsCount()
	var cuts int64
	for cut := int64(0); ; cut += 1 + cut/24*5 { // each byte of the first messages, some of the others
		left.Store(cut)
		c := mustClaim(t, s, newOp("key"), oncehttp.ClaimDone)
		whole := left.Swap(-1) >= 0
		if string(c.Head) != "head" || string(c.Body) != "body" {
			t.Fatalf("cut after %d bytes: got head %q, body %q", cut, c.Head, c.Body)
		}
		if whole { // so that was more than all of it
			if cut < 100 {
				t.Fatalf("the answer has fewer than %d bytes", cut)
			}
			break
		}
		cuts++
	}
	mustClaim(t, s, newOp("key"), oncehttp.ClaimDone)
	// One that was cut just behind its answer is found out by the next call, which may
	// then have its own cut before it has asked.
	if n := pool.Stat().NewConnsCount() - opened; n < cuts/2 || n > 2*cuts {
		t.Errorf("%d connections were opened for %d cuts", n, cuts)
	}
	if n := pool.Stat().TotalConns(); n != 1 {
		t.Errorf("the pool has %d connections, want 1", n)
	}
}

// A claim whose answer was cut has taken the key, and finds itself.
func TestAClaimWhoseAnswerWasCutFindsItself(t *testing.T) {
	t.Parallel()
	s, _, _, left := narrow(t)
	mustClaim(t, s, newOp("prepares"), oncehttp.ClaimAcquired)
	left.Store(20)
	op := newOp("key")
	mustClaim(t, s, op, oncehttp.ClaimAcquired)
	if left.Load() != -1 {
		t.Fatal("no answer was cut")
	}
	mustClaim(t, s, newOp("key"), oncehttp.ClaimRunning)
	if err := s.Complete(t.Context(), op, []byte("head"), nil, keep); err != nil {
		t.Fatal(err)
	}
}

// What the server says of its own accord reaches those whom the pool's owner has
// set, though a statement of the store is under way.
func TestNoticesNotificationsAndErrorsAreHandedOn(t *testing.T) {
	t.Parallel()
	pg := services.Postgres(t)
	db := pg.Database(t)
	var mu sync.Mutex
	var heard []string
	hear := func(s string) {
		mu.Lock()
		defer mu.Unlock()
		heard = append(heard, s)
	}
	var hangsUp atomic.Bool
	pool := configured(t, pg, db, func(c *pgxpool.Config) {
		c.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { hear("notice: " + n.Message) }
		c.ConnConfig.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { hear("notification: " + n.Channel + " " + n.Payload) }
		c.ConnConfig.OnPgError = func(_ *pgconn.PgConn, e *pgconn.PgError) bool {
			hear("error: " + e.Message)
			return !hangsUp.Load()
		}
	})
	s := migrated(t, pgstore.New(pool, quiet))
	for _, q := range []string{
		"listen news",
		`create function speaks() returns trigger language plpgsql as $$ begin
			raise notice 'claimed';
			perform pg_notify('news', 'a claim');
			if new.key = 'refused' then raise exception 'not this one'; end if;
			return new;
		end $$`,
		"create trigger speaks before insert on oncehttp_records for each row execute function speaks()",
	} {
		if _, err := pool.Exec(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	mustClaim(t, s, newOp("key"), oncehttp.ClaimAcquired)
	mustClaim(t, s, newOp("key"), oncehttp.ClaimRunning) // the notification may have come after the answer
	opened := pool.Stat().NewConnsCount()
	for _, v := range []bool{false, true} {
		hangsUp.Store(v)
		var refused *pgconn.PgError
		if _, err := s.Claim(t.Context(), newOp("refused"), lease, keep); !errors.As(err, &refused) || refused.Message != "not this one" || refused.Code != "P0001" {
			t.Errorf("got error %v, want the trigger's", err)
		}
		mustClaim(t, s, newOp("key"), oncehttp.ClaimRunning)
	}
	want := "notice: claimed, notification: news a claim, notice: claimed, error: not this one, notice: claimed, error: not this one"
	if got := strings.Join(heard, ", "); got != want {
		t.Errorf("heard %s; want %s", got, want)
	}
	if n := pool.Stat().NewConnsCount() - opened; n != 1 {
		t.Errorf("%d connections were opened, want 1: OnPgError asked for it", n)
	}
}

// A hook of the pool's owner that panics ends its call, and the connection with the
// rest of that call's answer: nobody else is given it.
func TestAHookThatPanicsLeavesNobodyItsAnswer(t *testing.T) {
	t.Parallel()
	pg := services.Postgres(t)
	var panics atomic.Bool
	pool := configured(t, pg, pg.Database(t), func(c *pgxpool.Config) {
		c.ConnConfig.OnNotice = func(*pgconn.PgConn, *pgconn.Notice) {
			if panics.Load() {
				panic("the hook")
			}
		}
	})
	s := migrated(t, pgstore.New(pool, quiet))
	for _, who := range []string{"alice", "bob"} {
		record(t, s, who, "head of "+who, []byte("secret of "+who))
	}
	for _, q := range []string{ // the notice comes alone, and the answer later
		`create function speaks() returns trigger language plpgsql as $$ begin
			raise notice 'claimed';
			perform pg_sleep(0.01);
			return new;
		end $$`,
		"create trigger speaks before insert on oncehttp_records for each row execute function speaks()",
	} {
		if _, err := pool.Exec(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	opened := pool.Stat().NewConnsCount()
	panics.Store(true)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the hook was not called")
			}
		}()
		s.Claim(t.Context(), newOp("new"), lease, keep)
	}()
	panics.Store(false)
	time.Sleep(50 * time.Millisecond) // for the answer to come, and those who look at statements under way
	for range 3 {
		for _, who := range []string{"alice", "bob"} {
			if c := mustClaim(t, s, newOp(who), oncehttp.ClaimDone); string(c.Head) != "head of "+who || string(c.Body) != "secret of "+who {
				t.Errorf("%s got head %q, body %q", who, c.Head, c.Body)
			}
		}
	}
	if n := pool.Stat().NewConnsCount() - opened; n != 1 {
		t.Errorf("%d connections were opened, want 1", n)
	}
}

// A connection that the server has closed meanwhile is an error that is not told,
// whatever it said before.
func TestAConnectionThatWasEndedMeanwhileIsReplaced(t *testing.T) {
	t.Parallel()
	pg := services.Postgres(t)
	db := pg.Database(t)
	pool := openPool(t, pg.DSN(db), 1)
	s := migrated(t, pgstore.New(pool, quiet))
	other, err := pgx.Connect(t.Context(), pg.DSN(db))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(context.Background())
	for range 5 {
		mustClaim(t, s, newOp("key"+oncehttp.NewToken()), oncehttp.ClaimAcquired)
		var pid int
		if err := pool.QueryRow(t.Context(), "select pg_backend_pid()").Scan(&pid); err != nil {
			t.Fatal(err)
		}
		if _, err := other.Exec(t.Context(), "select pg_terminate_backend($1, 10000)", pid); err != nil {
			t.Fatal(err)
		}
	}
	mustClaim(t, s, newOp("last"), oncehttp.ClaimAcquired)
}

// A server that hangs in the middle of an answer keeps a call no longer than its
// context says.
func TestAnAnswerThatStopsHalfWayEndsWithTheContext(t *testing.T) {
	t.Parallel()
	pg := services.Postgres(t)
	var stops atomic.Bool
	pool := configured(t, pg, pg.Database(t), func(c *pgxpool.Config) {
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return &stuckConn{Conn: conn, stops: &stops}, err
		}
	})
	s := migrated(t, pgstore.New(pool, quiet))
	record(t, s, "key", "head", nil)
	mustClaim(t, s, newOp("key"), oncehttp.ClaimDone)
	stops.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := s.Claim(ctx, newOp("key"), lease, keep)
	if d := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || d > 10*time.Second {
		t.Errorf("got error %v after %v, want that the deadline has passed", err, d)
	}
	stops.Store(false)
	mustClaim(t, s, newOp("key"), oncehttp.ClaimDone)
}

// A stuckConn gives the first 20 bytes of an answer, then nothing until its deadline.
type stuckConn struct {
	net.Conn
	stops *atomic.Bool
	read  bool
}

func (c *stuckConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if !c.stops.Load() {
		return n, err
	}
	if !c.read && err == nil {
		c.read = true
		return min(20, n), nil
	}
	for err == nil { // what comes is not told
		_, err = c.Conn.Read(b)
	}
	return 0, err
}
