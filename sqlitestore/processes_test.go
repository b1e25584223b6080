package sqlitestore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
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
