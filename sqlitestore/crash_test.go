package sqlitestore

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
)

func TestTwoProcessesShareAFile(t *testing.T) {
	t.Parallel()
	const keys = 400
	path := filepath.Join(t.TempDir(), "once.db") // which the first of them makes
	var children []*child
	for i := range 2 {
		children = append(children, start(t, "claims", path, strconv.Itoa(keys), strconv.Itoa(i)))
	}
	for _, c := range children {
		c.line(t)
	}
	for _, c := range children {
		c.in.Close()
	}
	by := make(map[string]int)
	for i, c := range children {
		got := 0
		for _, key := range c.rest(t) {
			if other, twice := by[key]; twice {
				t.Errorf("key %s was acquired by process %d and process %d", key, other, i)
			}
			by[key] = i
			got++
		}
		t.Logf("process %d acquired %d keys", i, got)
	}
	if len(by) != keys {
		t.Errorf("%d keys were acquired, want %d", len(by), keys)
	}
	s := open(t, path)
	for key, i := range by {
		if r, err := s.Show(t.Context(), key); err != nil || string(r.Head) != strconv.Itoa(i) {
			t.Fatalf("key %s: got head %q, %v; want that of process %d", key, r.Head, err, i)
		}
	}
}

func TestAProcessThatWritesAllTheTimeKeepsNobodyOut(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "once.db")
	s := open(t, path)
	other := start(t, "hammer", path)
	other.line(t)
	longest := time.Duration(0)
	for i := range 30 {
		began := time.Now()
		if _, err := s.Claim(t.Context(), newOp(fmt.Sprint("key ", i)), time.Minute, day); err != nil {
			t.Fatalf("after %v: %v", time.Since(began), err)
		}
		longest = max(longest, time.Since(began))
	}
	t.Logf("the longest of 30 claims took %v", longest)
	other.end(t)
}

func init() {
	children["hammer"] = func(args []string) {
		s, err := Open(args[0])
		if err != nil {
			die(err)
		}
		var stop atomic.Bool
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for n := 0; !stop.Load(); n++ {
					if _, err := s.Claim(context.Background(), newOp(fmt.Sprintf("hammer %d %d", i, n)), time.Minute, day); err != nil {
						die(err)
					}
				}
			})
		}
		fmt.Println("hammering")
		untilTold()
		stop.Store(true)
		wg.Wait()
		if err := s.Close(); err != nil {
			die(err)
		}
	}

	children["claims"] = func(args []string) {
		s, err := Open(args[0])
		if err != nil {
			die(err)
		}
		fmt.Println("ready")
		untilTold()
		n, _ := strconv.Atoi(args[1])
		order := make(chan int, n)
		for _, i := range rand.Perm(n) {
			order <- i
		}
		close(order)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for i := range order {
					op := newOp(fmt.Sprint("key ", i))
					c, err := s.Claim(context.Background(), op, time.Minute, day)
					for err == nil && c.Status == oncehttp.ClaimRunning {
						if err = s.Wait(context.Background(), op.Key); err == nil {
							c, err = s.Claim(context.Background(), op, time.Minute, day)
						}
					}
					switch {
					case err != nil:
						die(err)
					case c.Status == oncehttp.ClaimDone:
					case c.Status != oncehttp.ClaimAcquired:
						die(c.Status)
					default:
						if err := s.Complete(context.Background(), op, []byte(args[2]), nil, day); err != nil {
							die(err)
						}
						fmt.Println(op.Key)
					}
				}
			})
		}
		wg.Wait()
		if err := s.Close(); err != nil {
			die(err)
		}
	}
}

// A server is killed at random points and started again, while its clients ask for
// every action until it is answered.
func TestAServerThatIsKilledDoesNothingTwice(t *testing.T) {
	t.Parallel()
	c := crashes{mode: "plain"}
	c.run(t)
	unknown := 0
	for action, answer := range c.answers {
		n := c.effects[action]
		switch {
		case n > 1:
			t.Errorf("%s took effect %d times", action, n)
		case answer == "done" && n != 1:
			t.Errorf("%s was answered as done and took effect %d times", action, n)
		case answer == "unknown":
			unknown++
		}
	}
	t.Logf("%d actions, of which %d were answered as unknown", len(c.answers), unknown)
}

func TestAServerThatIsKilledDoesEveryTransactionOnce(t *testing.T) {
	t.Parallel()
	c := crashes{mode: "transactional"}
	c.run(t)
	for action, answer := range c.answers {
		if n := c.effects[action]; n != 1 || answer != "done" {
			t.Errorf("%s was answered as %s and took effect %d times", action, answer, n)
		}
	}
	t.Logf("%d actions", len(c.answers))
}

type crashes struct {
	mode    string
	answers map[string]string // by action
	effects map[string]int    // likewise
}

func (c *crashes) run(t *testing.T) {
	const kills, clients = 6, 8
	dir := t.TempDir()
	db, journal := filepath.Join(dir, "once.db"), filepath.Join(dir, "journal")
	var url atomic.Pointer[string]
	running := 0
	begin := func() *child {
		server := start(t, "server", db, journal, c.mode)
		address := server.line(t)
		url.Store(&address)
		if n, _ := strconv.Atoi(server.line(t)); n > 0 {
			running++
		}
		return server
	}
	server := begin()

	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
	defer cancel()
	var mu sync.Mutex
	c.answers = make(map[string]string)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			for n := 0; !stop.Load(); n++ {
				action := fmt.Sprintf("action-%d-%d", i, n)
				answer, err := untilAnswered(ctx, &url, action)
				if err != nil {
					t.Errorf("%s is stuck: %v", action, err)
					return
				}
				mu.Lock()
				c.answers[action] = answer
				mu.Unlock()
			}
		})
	}
	for range kills {
		time.Sleep(100*time.Millisecond + rand.N(200*time.Millisecond))
		server.kill()
		server = begin()
	}
	stop.Store(true)
	wg.Wait()
	server.end(t)
	t.Logf("%d kills, %d of them while claims were running", kills, running)
	if running < kills/3 {
		t.Errorf("only %d of %d kills hit a running claim, which says little", running, kills)
	}
	if len(c.answers) < clients {
		t.Errorf("only %d actions were answered", len(c.answers))
	}
	c.count(t, db, journal)
}

// count counts effects.
func (c *crashes) count(t *testing.T, db, journal string) {
	c.effects = make(map[string]int)
	if c.mode == "transactional" {
		rows, err := raw(t, db, "").Query("SELECT action FROM effects")
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var action string
			if err := rows.Scan(&action); err != nil {
				t.Fatal(err)
			}
			c.effects[action]++
		}
		return
	}
	f, err := os.Open(journal)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		c.effects[lines.Text()]++
	}
}

// untilAnswered asks for an action until there is an answer: done, or unknown.
func untilAnswered(ctx context.Context, url *atomic.Pointer[string], action string) (string, error) {
	last := "nothing yet"
	for ctx.Err() == nil {
		req, err := http.NewRequestWithContext(ctx, "POST", *url.Load(), strings.NewReader(action))
		if err != nil {
			return "", err
		}
		req.Host = "ledger.test" // the port changes, the request does not
		req.Header.Set(oncehttp.Header, action)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			last = err.Error()
			time.Sleep(5 * time.Millisecond)
			continue
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		last = fmt.Sprintf("%s %s", resp.Status, body)
		var problem struct{ Type string }
		json.Unmarshal(body, &problem)
		switch {
		case err != nil:
		case resp.StatusCode == http.StatusCreated && string(body) == "did "+action:
			return "done", nil
		case strings.HasSuffix(problem.Type, "outcome-unknown"):
			return "unknown", nil
		case resp.StatusCode != http.StatusConflict && resp.StatusCode != http.StatusServiceUnavailable:
			return "", fmt.Errorf("an answer that is none: %s", last)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return "", fmt.Errorf("%w: the last answer was %s", ctx.Err(), last)
}

func init() {
	children["server"] = func(args []string) {
		s, err := Open(args[0])
		if err != nil {
			die(err)
		}
		journal, err := os.OpenFile(args[1], os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			die(err)
		}
		var store oncehttp.Store = s
		effect := func(_ context.Context, action string) error {
			if _, err := io.WriteString(journal, action+"\n"); err != nil {
				return err
			}
			return journal.Sync()
		}
		if args[2] == "transactional" {
			store = s.Transactional()
			if _, err := s.db.Exec("CREATE TABLE IF NOT EXISTS effects (action TEXT)"); err != nil {
				die(err)
			}
			effect = func(ctx context.Context, action string) error {
				_, err := Tx(ctx).ExecContext(ctx, "INSERT INTO effects VALUES (?)", action)
				return err
			}
		}
		once := &oncehttp.Middleware{Store: store, Lease: time.Second, Wait: time.Second, Logger: quiet()}
		handler := once.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			action, err := io.ReadAll(r.Body)
			time.Sleep(rand.N(4 * time.Millisecond))
			if err == nil {
				err = effect(r.Context(), string(action))
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			time.Sleep(rand.N(4 * time.Millisecond))
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, "did %s", action)
		}))
		var running int
		if err := s.db.QueryRow("SELECT count(*) FROM oncehttp_records WHERE state = 0").Scan(&running); err != nil {
			die(err)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			die(err)
		}
		go http.Serve(l, handler)
		fmt.Printf("http://%s/\n%d\n", l.Addr(), running)
		untilTold()
		if err := once.Drain(context.Background()); err != nil {
			die(err)
		}
		if err := s.Close(); err != nil {
			die(err)
		}
	}
}
