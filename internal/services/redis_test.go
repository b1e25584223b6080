package services

import (
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestTestsShareARedisServerThatWritesNothing(t *testing.T) {
	r := Redis(t)
	if again := Redis(t); again != r {
		t.Errorf("got a second server on port %d, want the one on port %d", again.Port, r.Port)
	}
	if got := r.Do(t, "config", "get", "save"); got != "save" {
		t.Errorf("save: got %q, want no schedule", got)
	}
	if got := r.Do(t, "ping"); got != "PONG" {
		t.Errorf("ping: got %q, want PONG", got)
	}
}

func TestAKilledRedisServerIsGoneAndKeepsWhatItsDiskKept(t *testing.T) {
	for _, kept := range []bool{true, false} {
		opts := []RedisOption{RedisPrivate()}
		want := ""
		if kept {
			opts = append(opts, RedisSet("appendonly", "yes"), RedisSet("appendfsync", "always"))
			want = "42"
		}
		r := Redis(t, opts...)
		r.Do(t, "set", "kept", "42")
		r.Kill(t)
		if c, err := net.Dial("tcp", r.Addr()); err == nil {
			c.Close()
			t.Error("a killed server still accepts connections")
		}
		r.Start(t)
		if got := r.Do(t, "get", "kept"); got != want {
			t.Errorf("after a kill, with appendonly %v: got %q, want %q", kept, got, want)
		}
		r.Stop(t)
		r.Start(t)
		if got := r.Do(t, "get", "kept"); got != want {
			t.Errorf("after a stop, with appendonly %v: got %q, want %q", kept, got, want)
		}
	}
}

func TestThreeRedisServersAreACluster(t *testing.T) {
	nodes := RedisCluster(t)
	var moved []string
	for _, r := range nodes {
		out, err := r.cli("set", "key", "value")
		switch {
		case err == nil && out == "OK":
		case err != nil && strings.Contains(err.Error(), "MOVED"):
			moved = append(moved, r.Addr())
		default:
			t.Errorf("set: got %q, %v", out, err)
		}
	}
	if len(moved) != 2 {
		t.Errorf("got the key moved by %q of %d nodes, want by all but one", moved, len(nodes))
	}
	if again := RedisCluster(t); !slices.Equal(again, nodes) {
		t.Error("got a second cluster, want the first")
	}
}

func TestASentinelMakesAReplicaTheMaster(t *testing.T) {
	master := Redis(t, RedisPrivate())
	replica := Redis(t, RedisSet("replicaof", master.Host, strconv.Itoa(master.Port)))
	s := RedisSentinel(t, master, 1)
	master.Kill(t)
	need(t, s.ready(func() error {
		role, err := replica.cli("role")
		if err == nil && !strings.HasPrefix(role, "master") {
			err = errors.New("the replica is still one")
		}
		return err
	}))
}
