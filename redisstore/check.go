package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// serverState is what is known of the server, or of all masters of the cluster.
type serverState struct {
	modern   atomic.Bool           // knows scripts with flags: Redis 7
	clock    atomic.Int64          // its clock, see there; 0: not known
	checked  atomic.Int64          // when it was looked at last, in Unix nanoseconds; 0: never
	refused  atomic.Pointer[error] // why it gets no claims
	checking chan struct{}         // holds one who looks at it
	warned   atomic.Bool
}

const (
	recheck        = time.Minute
	recheckRefused = time.Second
	checkPatience  = 10 * time.Second
)

// Check looks at the server, or at every master of the cluster, and says what makes
// it unfit: a maxmemory-policy that evicts records, that it is a replica, a version
// before 6.0, that it cannot be reached. A store that is not checked does so with
// its first call. The user needs the right to run INFO.
func (s *Store) Check(ctx context.Context) error {
	if s.bad != nil {
		return s.bad
	}
	if err := s.look(ctx, func() bool { return true }); err != nil {
		return err
	}
	return s.refusal()
}

// prepare makes sure that the server was looked at, and that it may have claims.
func (s *Store) prepare(ctx context.Context, claims bool) error {
	if s.bad != nil {
		return s.bad
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("redisstore: %w", err)
	}
	never := func() bool { return s.server.checked.Load() == 0 }
	if never() {
		if err := s.look(ctx, never); err != nil {
			return err
		}
	}
	if !claims {
		return nil
	}
	err := s.refusal()
	every := recheck
	if err != nil {
		every = recheckRefused
	}
	if time.Since(time.Unix(0, s.server.checked.Load())) > every {
		s.lookLater()
	}
	return err
}

func (s *Store) refusal() error {
	if err := s.server.refused.Load(); err != nil {
		return *err
	}
	return nil
}

// look looks at the server if it is needed when the others who do so are through.
func (s *Store) look(ctx context.Context, needed func() bool) error {
	select {
	case s.server.checking <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("redisstore: look at the server: %w", ctx.Err())
	}
	if !needed() {
		<-s.server.checking
		return nil
	}
	// The client may not watch ctx.
	result := make(chan error, 1)
	go func() {
		defer func() { <-s.server.checking }()
		result <- s.inspectServer()
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return fmt.Errorf("redisstore: look at the server: it has not answered: %w", ctx.Err())
	}
}

// lookLater looks at the server in the background, unless somebody does.
func (s *Store) lookLater() {
	select {
	case s.server.checking <- struct{}{}:
	default:
		return
	}
	go func() {
		defer func() { <-s.server.checking }()
		before := s.refusal()
		if s.inspectServer() != nil {
			// Whoever needs the server will be told. This was no look at it, but
			// the next one need not come at once.
			s.server.checked.Store(time.Now().Add(recheckRefused - recheck).UnixNano())
			return
		}
		if err := s.refusal(); err != nil && before == nil {
			s.log().Error("redisstore: the server has become unfit; it gets no new claims until that is mended", "err", err)
		}
	}()
}

// inspectServer notes what the server is like. It returns an error if that cannot
// be learned.
func (s *Store) inspectServer() (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("redisstore: look at the server: the client panicked: %v", p)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), checkPatience)
	defer cancel()
	var mu sync.Mutex
	var refused error
	modern, persists, seen := true, true, false
	var theirs clock
	err = s.masters(ctx, func(ctx context.Context, node redis.Cmdable) error {
		asked := time.Since(started)
		text, err := node.Info(ctx).Result()
		if err != nil {
			return err
		}
		info := parseInfo(text)
		told := info.clock((asked + time.Since(started)) / 2)
		unfit := info.judge()
		if unfit == nil {
			for _, sc := range allScripts {
				if err := node.ScriptLoad(ctx, sc.text(info.major() >= 7)).Err(); err != nil {
					return err
				}
			}
		}
		mu.Lock()
		defer mu.Unlock()
		seen, theirs = true, told
		modern = modern && info.major() >= 7
		persists = persists && info["aof_enabled"] != "0"
		if refused == nil {
			refused = unfit
		}
		return nil
	})
	switch {
	case err != nil:
		return explain("look at the server", err)
	case !seen:
		return errors.New("redisstore: look at the server: the cluster has no master")
	}
	s.server.modern.Store(modern)
	s.server.clock.Store(int64(theirs))
	if refused != nil {
		s.server.refused.Store(&refused)
	} else {
		s.server.refused.Store(nil)
	}
	s.server.checked.Store(time.Now().UnixNano())
	if !persists && s.opts.replicas == 0 && !s.server.warned.Swap(true) {
		s.log().Warn("redisstore: appendonly is off on the server: if it ends, records are lost and their work can be done twice")
	}
	return nil
}

// masters calls f for the server, or for every master of the cluster at once.
func (s *Store) masters(ctx context.Context, f func(ctx context.Context, node redis.Cmdable) error) error {
	if cluster, ok := s.client.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return f(ctx, node) })
	}
	return f(ctx, s.client)
}

// An info is what the command of that name says.
type info map[string]string

func parseInfo(text string) info {
	i := make(info)
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimRight(line, "\r\n"), ":"); ok {
			i[k] = v
		}
	}
	return i
}

func (i info) major() int {
	major, _, _ := strings.Cut(i["redis_version"], ".")
	n, _ := strconv.Atoi(major)
	return n
}

// judge says why a server is unfit.
func (i info) judge() error {
	switch policy, role := i["maxmemory_policy"], i["role"]; {
	case i["redis_version"] == "":
		return errors.New("redisstore: the server does not tell its version by INFO, so it is not one that is known to work")
	case i.major() < 6:
		return fmt.Errorf("redisstore: the server is Redis %s; the oldest that works is 6.0", i["redis_version"])
	case role != "master":
		return fmt.Errorf("redisstore: the server's role is %q, not master: what is written there is lost, or refused: "+
			"connect to the master, by redis.NewFailoverClient or redis.NewClusterClient if it changes", role)
	case policy == "":
		return errors.New("redisstore: the server does not tell its maxmemory-policy by INFO, so it may evict records")
	case policy != "noeviction":
		return fmt.Errorf("redisstore: the server's maxmemory-policy is %s: when its memory is full it evicts records, and their work is done a second time: "+
			"set maxmemory-policy to noeviction, or use a server of the records' own", policy)
	}
	return nil
}
