package redisstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/redisstore"
)

// soon waits until f returns true.
func soon(t testing.TB, what string, f func() bool) {
	t.Helper()
	for until := time.Now().Add(30 * time.Second); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("still not after 30s: %s", what)
		}
	}
}

func says(t testing.TB, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("got no error, want one that says %q", parts)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("got error %q, want one that says %q", err, part)
		}
	}
}

func claimErr(s *redisstore.Store, op oncehttp.Op) error {
	_, err := s.Claim(ctx, op, time.Minute, time.Hour)
	return err
}

func TestAServerThatEvictsIsRefused(t *testing.T) {
	t.Parallel()
	r := services.Redis(t, services.RedisPrivate())
	for _, policy := range []string{"allkeys-lru", "allkeys-lfu", "allkeys-random", "volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl"} {
		r.Do(t, "config", "set", "maxmemory-policy", policy)
		s := open(t, connect(t, r))
		says(t, claimErr(s, newOp()), "maxmemory-policy is "+policy, "a second time", "set maxmemory-policy to noeviction")
		says(t, s.Check(ctx), "maxmemory-policy is "+policy)
		if n := r.Do(t, "dbsize"); n != "0" {
			t.Errorf("the refused server has %s keys, want 0", n)
		}
		if policy != "volatile-ttl" {
			continue
		}
		r.Do(t, "config", "set", "maxmemory-policy", "noeviction")
		soon(t, "a claim on a server that was mended", func() bool { return claimErr(s, newOp()) == nil })
	}
}

func TestAServerThatTurnsIntoOneThatEvictsGetsNoNewClaims(t *testing.T) {
	t.Parallel()
	r := services.Redis(t, services.RedisPrivate())
	s := open(t, connect(t, r))
	running := newOp()
	mustClaim(t, s, running, oncehttp.ClaimAcquired)
	r.Do(t, "config", "set", "maxmemory-policy", "allkeys-lru")
	redisstore.LookedLongAgo(s)
	soon(t, "claims are refused", func() bool { return claimErr(s, newOp()) != nil })
	says(t, claimErr(s, newOp()), "maxmemory-policy is allkeys-lru")
	if err := s.Renew(ctx, running, time.Minute); err != nil {
		t.Errorf("Renew of what runs: %v", err)
	}
	if err := s.Complete(ctx, running, []byte("head"), nil, time.Hour); err != nil {
		t.Errorf("Complete of what runs: %v", err)
	}
	r.Do(t, "config", "set", "maxmemory-policy", "noeviction")
	redisstore.LookedLongAgo(s)
	soon(t, "claims are taken again", func() bool { return claimErr(s, newOp()) == nil })
}

func TestAReplicaIsRefused(t *testing.T) {
	t.Parallel()
	master := services.Redis(t, services.RedisPrivate())
	s := open(t, connect(t, replica(t, master)))
	says(t, claimErr(s, newOp()), `role is "slave"`, "connect to the master")

	// The master of a store that has started becomes a replica.
	was := services.Redis(t, services.RedisPrivate())
	for _, plain := range []bool{false, true} {
		was.Do(t, "replicaof", "no", "one")
		s = open(t, redis.NewClient(&redis.Options{Addr: was.Addr(), MaxRetries: -1}))
		if plain {
			redisstore.AsOnRedis6(s)
		}
		op := newOp()
		mustClaim(t, s, op, oncehttp.ClaimAcquired)
		was.Do(t, "replicaof", "127.0.0.1", "1")
		says(t, claimErr(s, newOp()), "replica, or was the master")
		says(t, s.Complete(ctx, op, nil, nil, time.Hour), "replica, or was the master")
	}
}

func TestWhatMakesNoSenseIsSaid(t *testing.T) {
	t.Parallel()
	c := connect(t, services.Redis(t))
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": services.Redis(t).Addr()}})
	defer ring.Close()
	for _, v := range []struct {
		name   string
		client redis.UniversalClient
		opt    redisstore.Option
		want   string
	}{
		{"no client", nil, quiet, "the client is nil"},
		{"a Ring", ring, quiet, "redis.NewClusterClient"},
		{"an empty prefix", c, redisstore.WithPrefix(""), "WithPrefix"},
		{"a negative number of replicas", c, redisstore.WithReplicas(-1, time.Second), "WithReplicas: the number"},
		{"a timeout of nothing", c, redisstore.WithReplicas(1, 0), "WithReplicas: the timeout"},
	} {
		t.Run(v.name, func(t *testing.T) {
			s := redisstore.New(v.client, v.opt)
			defer s.Close()
			op := newOp()
			_, takeErr := s.TakeOver(ctx, op, time.Second, time.Second)
			_, listErr := s.List(ctx, oncehttp.RecordQuery{})
			_, showErr := s.Show(ctx, op.Key)
			for i, err := range []error{s.Check(ctx), claimErr(s, op), takeErr, s.Renew(ctx, op, time.Second), s.Complete(ctx, op, nil, nil, time.Second),
				s.Release(ctx, op), s.Wait(ctx, op.Key), listErr, showErr, s.Resolve(ctx, op.Key, oncehttp.Resolution{}), s.Purge(ctx, op.Key)} {
				if err == nil || !strings.Contains(err.Error(), v.want) {
					t.Errorf("call %d: got error %v, want one that says %q", i, err, v.want)
				}
			}
		})
	}
}

func TestAWrongPasswordIsSaidButNotTheOneThatWasGiven(t *testing.T) {
	t.Parallel()
	r := services.Redis(t, services.RedisSet("requirepass", "right-one"))
	for _, v := range []struct{ user, password string }{{"", ""}, {"", "wrong-one"}, {"somebody", "wrong-one"}} {
		c := redis.NewClient(&redis.Options{Addr: r.Addr(), Username: v.user, Password: v.password})
		defer c.Close()
		err := claimErr(open(t, c), newOp())
		says(t, err, "Username and Password are not those of the server")
		if strings.Contains(fmt.Sprint(err), "wrong-one") {
			t.Errorf("the error tells the password: %v", err)
		}
	}
	c := redis.NewClient(&redis.Options{Addr: r.Addr(), Password: "right-one"})
	defer c.Close()
	mustClaim(t, open(t, c), newOp(), oncehttp.ClaimAcquired)
}

// The rights that docs/stores.md and the error message name are enough, and what
// is missing is said.
func TestAUserNeedsOnlyTheRightsThatAreDocumented(t *testing.T) {
	t.Parallel()
	r := services.Redis(t, services.RedisPrivate())
	r.Do(t, "acl", "setuser", "app", "on", ">secret", "~app:*", "&app:*", "-@all", "+eval", "+evalsha", "+script|load", "+info", "+get", "+getrange",
		"+set", "+setrange", "+del", "+pttl", "+pexpire", "+publish", "+subscribe", "+unsubscribe", "+ping", "+scan")
	c := redis.NewClient(&redis.Options{Addr: r.Addr(), Username: "app", Password: "secret", MaxRetries: -1})
	defer c.Close()
	s := redisstore.New(c, quiet, redisstore.WithPrefix("app:"))
	defer s.Close()
	op := newOp()
	mustClaim(t, s, op, oncehttp.ClaimAcquired)
	woken := make(chan error, 1)
	go func() { woken <- s.Wait(ctx, op.Key) }()
	soon(t, "the record is flagged", func() bool { return redisstore.Flagged(s, op.Key) })
	other := redisstore.New(c, quiet, redisstore.WithPrefix("app:"))
	defer other.Close()
	if err := other.Complete(ctx, op, nil, nil, time.Hour); err != nil {
		t.Error(err)
	}
	if err := <-woken; err != nil {
		t.Errorf("Wait: %v", err)
	}
	if all, err := s.List(ctx, oncehttp.RecordQuery{}); err != nil || len(all) != 1 {
		t.Errorf("List: got %d records, %v, want 1", len(all), err)
	}
	if _, err := s.Show(ctx, op.Key); err != nil {
		t.Error(err)
	}
	if err := s.Purge(ctx, op.Key); err != nil {
		t.Error(err)
	}

	// Without the right to publish, only the wake-up is lost.
	r.Do(t, "acl", "setuser", "app", "-publish")
	op = newOp()
	mustClaim(t, s, op, oncehttp.ClaimAcquired)
	go func() { woken <- s.Wait(ctx, op.Key) }()
	soon(t, "the record is flagged", func() bool { return redisstore.Flagged(s, op.Key) })
	if err := other.Complete(ctx, op, []byte("head"), nil, time.Hour); err != nil {
		t.Errorf("Complete without the right to publish: %v", err)
	}
	if c := mustClaim(t, s, newTwin(op), oncehttp.ClaimDone); string(c.Head) != "head" {
		t.Errorf("got head %q, want %q", c.Head, "head")
	}
	s.Close()
	<-woken

	// Without the right to subscribe, Wait says so.
	r.Do(t, "acl", "setuser", "app", "-subscribe")
	mustClaim(t, other, newTwin(op), oncehttp.ClaimDone)
	op = newOp()
	mustClaim(t, other, op, oncehttp.ClaimAcquired)
	says(t, other.Wait(ctx, op.Key), "NOPERM", "SUBSCRIBE")

	r.Do(t, "acl", "setuser", "app", "-set")
	says(t, claimErr(other, newOp()), "the store's user needs")
}

func TestAUserOfAClusterOrOfReplicasNeedsAFewMore(t *testing.T) {
	t.Parallel()
	name := fmt.Sprintf("few%d:", prefixes.Add(1)) // the cluster is everybody's
	rules := []string{"acl", "setuser", "few", "on", ">secret", "resetkeys", "~" + name + "*", "resetchannels", "&" + name + "*", "-@all", "+eval", "+evalsha", "+script|load", "+info", "+get", "+getrange",
		"+set", "+setrange", "+del", "+pttl", "+pexpire", "+publish", "+subscribe", "+unsubscribe", "+ping", "+scan"}
	nodes := services.RedisCluster(t)
	var addrs []string
	for _, r := range nodes {
		r.Do(t, append(rules, "+cluster|slots")...)
		addrs = append(addrs, r.Addr())
	}
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, Username: "few", Password: "secret"})
	defer cluster.Close()
	master := services.Redis(t, services.RedisPrivate())
	replica(t, master)
	master.Do(t, append(rules, "+wait")...)
	single := redis.NewClient(&redis.Options{Addr: master.Addr(), Username: "few", Password: "secret"})
	defer single.Close()
	for _, s := range []*redisstore.Store{
		redisstore.New(cluster, quiet, redisstore.WithPrefix(name)),
		redisstore.New(single, quiet, redisstore.WithPrefix(name), redisstore.WithReplicas(1, 10*time.Second)),
	} {
		defer s.Close()
		for range 10 {
			op := newOp()
			mustClaim(t, s, op, oncehttp.ClaimAcquired)
			woken := make(chan error, 1)
			go func() { woken <- s.Wait(ctx, op.Key) }()
			if err := s.Complete(ctx, op, nil, nil, time.Hour); err != nil {
				t.Error(err)
			}
			if err := <-woken; err != nil {
				t.Errorf("Wait: %v", err)
			}
		}
		if all, err := s.List(ctx, oncehttp.RecordQuery{}); err != nil || len(all) != 10 {
			t.Errorf("List: got %d records, %v, want 10", len(all), err)
		}
	}
}

func TestAServerWithoutADiskIsWarnedOfOnce(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		r    *services.RedisServer
		want int
	}{{services.Redis(t), 1}, {services.Redis(t, onDisk...), 0}} {
		var out bytes.Buffer
		s := redisstore.New(connect(t, v.r), redisstore.WithPrefix(prefix()), redisstore.WithLogger(slog.New(slog.NewTextHandler(&out, nil))))
		defer s.Close()
		for range 3 {
			if err := s.Check(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if got := strings.Count(out.String(), "appendonly is off"); got != v.want {
			t.Errorf("got %d warnings, want %d:\n%s", got, v.want, &out)
		}
	}
}

// newTwin is the same action by somebody else.
func newTwin(op oncehttp.Op) oncehttp.Op {
	op.Token = oncehttp.NewToken()
	return op
}

func TestANodeOfAClusterWithoutAClusterClientIsSaid(t *testing.T) {
	t.Parallel()
	s := open(t, connect(t, services.RedisCluster(t)[0]))
	for range 100 {
		if err := claimErr(s, newOp()); err != nil {
			says(t, err, "MOVED", "use redis.NewClusterClient instead of redis.NewClient")
			return
		}
	}
	t.Error("a node took the keys of the whole cluster")
}

func TestAFullServerRefusesNewKeysAndRecordsWhatRuns(t *testing.T) {
	t.Parallel()
	r := services.Redis(t, services.RedisSet("maxmemory", "4mb"))
	s := open(t, connect(t, r))
	var running []oncehttp.Op
	for range 20 {
		op := newOp()
		mustClaim(t, s, op, oncehttp.ClaimAcquired)
		running = append(running, op)
	}
	var err error
	done, body := newOp(), make([]byte, 10_000)
	for n := 0; err == nil && n < 10_000; n++ {
		op := newOp()
		if err = claimErr(s, op); err == nil {
			done = op
			if err := s.Complete(ctx, op, []byte("head"), body, time.Hour); err != nil {
				t.Fatalf("Complete of a key that was acquired: %v", err)
			}
		}
	}
	if !errors.Is(err, oncehttp.ErrFull) {
		t.Fatalf("Claim on a full server: got error %v, want ErrFull", err)
	}
	says(t, err, "has reached its maxmemory", "raise it")
	for _, op := range running {
		if err := s.Renew(ctx, op, time.Minute); err != nil {
			t.Errorf("Renew on a full server: %v", err)
		}
		if err := s.Complete(ctx, op, []byte("head"), body, time.Hour); err != nil {
			t.Errorf("Complete on a full server: %v", err)
		}
	}
	for _, op := range append(running, done) {
		if c := mustClaim(t, s, newTwin(op), oncehttp.ClaimDone); len(c.Body) != len(body) {
			t.Errorf("got a body of %d bytes, want %d", len(c.Body), len(body))
		}
	}
	all, err := s.List(ctx, oncehttp.RecordQuery{Status: oncehttp.ClaimDone})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		if err := s.Purge(ctx, r.Key); err != nil {
			t.Errorf("Purge on a full server: %v", err)
		}
	}
	mustClaim(t, s, newOp(), oncehttp.ClaimAcquired)

	// Redis 6 cannot go over its maxmemory, but says the same.
	redisstore.AsOnRedis6(s)
	for err = nil; err == nil; {
		op := newOp()
		if err = claimErr(s, op); err == nil {
			err = s.Complete(ctx, op, nil, body, time.Hour)
		}
	}
	if !errors.Is(err, oncehttp.ErrFull) {
		t.Errorf("with the scripts of Redis 6: got error %v, want ErrFull", err)
	}
}

func TestAServerThatHangsHoldsNobodyLongerThanTheirContext(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		name string
		new  func(t *testing.T) (*services.RedisServer, redis.UniversalClient)
	}{
		{"a server", func(t *testing.T) (*services.RedisServer, redis.UniversalClient) {
			r := services.Redis(t, services.RedisPrivate())
			return r, connect(t, r)
		}},
		{"a cluster", func(t *testing.T) (*services.RedisServer, redis.UniversalClient) {
			nodes := services.RedisCluster(t, services.RedisPrivate())
			return nodes[0], connectCluster(t, nodes)
		}},
	} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			r, client := v.new(t)
			s := open(t, client)
			if err := s.Check(ctx); err != nil {
				t.Fatal(err)
			}
			r.Pause(t)
			resumed := false
			defer func() {
				if !resumed {
					r.Resume(t)
				}
			}()
			const calls = 40
			results := make(chan error, calls)
			lost := make([]oncehttp.Op, calls)
			began := time.Now()
			for i := range lost {
				lost[i] = newOp()
				go func() {
					ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
					defer cancel()
					_, err := s.Claim(ctx, lost[i], time.Minute, time.Hour)
					results <- err
				}()
			}
			failed := 0
			for range lost {
				if err := <-results; err != nil {
					failed++
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("got error %v, want a deadline that was exceeded", err)
					}
				}
			}
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("calls with a deadline of 200ms took %v", took)
			}
			if failed < calls/10 {
				t.Errorf("%d of %d calls failed while a server hung", failed, calls)
			}
			r.Resume(t)
			resumed = true
			for _, op := range lost {
				c, err := s.Claim(ctx, op, time.Minute, time.Hour)
				if err != nil || c.Status != oncehttp.ClaimAcquired || c.Holder != 1 {
					t.Fatalf("repeated Claim: got %v, holder %d, %v, want acquired by 1", c.Status, c.Holder, err)
				}
			}
		})
	}
}

func TestAServerThatForgotTheScriptsGetsThemAgain(t *testing.T) {
	t.Parallel()
	r := services.Redis(t, services.RedisPrivate())
	s := open(t, connect(t, r))
	op := newOp()
	for _, step := range []func() error{
		func() error { return claimErr(s, op) },
		func() error { return s.Renew(ctx, op, 0) },
		func() error { _, err := s.TakeOver(ctx, op, time.Minute, time.Hour); return err },
		func() error { _, err := s.List(ctx, oncehttp.RecordQuery{}); return err },
		func() error { _, err := s.Show(ctx, op.Key); return err },
		func() error { return s.Complete(ctx, op, nil, nil, time.Hour) },
		func() error { return s.Release(ctx, op) },
		func() error { return s.Wait(ctx, op.Key) },
		func() error { return s.Purge(ctx, op.Key) },
	} {
		r.Do(t, "script", "flush")
		if err := step(); err != nil {
			t.Errorf("after the scripts were forgotten: %v", err)
		}
	}
}

func TestWhatIsNotARecordIsNeverRun(t *testing.T) {
	t.Parallel()
	r := services.Redis(t)
	c := connect(t, r)
	name := prefix()
	s := redisstore.New(c, quiet, redisstore.WithPrefix(name))
	defer s.Close()
	for what, v := range map[string]string{
		"a newer version":   "\x02" + strings.Repeat("x", 200),
		"text":              "hello",
		"nothing":           "",
		"a head that ended": "\x01D0" + strings.Repeat("\xff", 113),
	} {
		op := newOp()
		c.Set(ctx, name+op.Key, v, time.Hour)
		got, err := s.Claim(ctx, op, time.Minute, time.Hour)
		says(t, err, "not written by this version")
		if got.Status != 0 {
			t.Errorf("%s: Claim: got %v", what, got.Status)
		}
		_, err = s.TakeOver(ctx, op, time.Minute, time.Hour)
		says(t, err, "not written by this version")
		if all, err := s.List(ctx, oncehttp.RecordQuery{}); err != nil || len(all) != 0 && what != "a head that ended" {
			t.Errorf("%s: List: got %d records, %v", what, len(all), err)
		}
		if err := s.Purge(ctx, op.Key); err != nil && what != "nothing" {
			t.Errorf("%s: Purge: %v", what, err)
		}
		c.Del(ctx, name+op.Key)
		mustClaim(t, s, op, oncehttp.ClaimAcquired)
		s.Release(ctx, op)
	}
	op := newOp()
	c.LPush(ctx, name+op.Key, "x")
	says(t, claimErr(s, op), "something else uses keys")
	if all, err := s.List(ctx, oncehttp.RecordQuery{}); err != nil || len(all) != 0 {
		t.Errorf("List beside a list: got %d records, %v", len(all), err)
	}
}

// Nothing is written that Redis would keep for ever.
func TestEveryRecordExpires(t *testing.T) {
	t.Parallel()
	r := services.Redis(t, services.RedisPrivate())
	c := connect(t, r)
	s := open(t, c)
	var ops [8]oncehttp.Op
	for i := range ops {
		ops[i] = newOp()
		mustClaim(t, s, ops[i], oncehttp.ClaimAcquired)
	}
	s.Renew(ctx, ops[1], 0)
	s.TakeOver(ctx, newTwin(ops[1]), time.Minute, time.Hour)
	s.Renew(ctx, ops[2], time.Minute)
	s.Complete(ctx, ops[3], nil, nil, time.Hour)
	s.Renew(ctx, ops[4], 0)
	s.Resolve(ctx, ops[4].Key, oncehttp.Resolution{Applied: true})
	s.Renew(ctx, ops[5], 0)
	s.Resolve(ctx, ops[5].Key, oncehttp.Resolution{Applied: true, Keep: time.Hour})
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	s.Wait(short, ops[6].Key)
	cancel()
	keys := c.Keys(ctx, "*").Val()
	if len(keys) != len(ops) {
		t.Errorf("got %d keys, want %d: one for each record", len(keys), len(ops))
	}
	for _, k := range keys {
		if ttl := c.PTTL(ctx, k).Val(); ttl <= 59*time.Minute || ttl > time.Hour+time.Millisecond {
			t.Errorf("%s expires in %v, want an hour", k, ttl)
		}
	}
}
