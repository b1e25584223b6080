package redisstore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncehttp/oncehttp"
)

// A reply is an error that the server sent.
type reply string

func (r reply) Error() string { return string(r) }
func (reply) RedisError()     {}

func TestAnErrorSaysWhatToDo(t *testing.T) {
	const inScript = "ERR Error running script (call to f_3f): @user_script:16: @user_script: 16: -"
	for _, v := range []struct {
		err  error
		want string
	}{
		{reply("OOM command not allowed when used memory > 'maxmemory'."), "raise it"},
		{reply(inScript + "OOM command not allowed when used memory > 'maxmemory'."), "raise it"},
		{reply("READONLY You can't write against a read only replica."), "connect to the master"},
		{reply(inScript + "READONLY You can't write against a read only replica."), "connect to the master"},
		{reply("LOADING Redis is loading the dataset in memory"), "has just started"},
		{reply("MOVED 3999 127.0.0.1:6381"), "redis.NewClusterClient"},
		{reply("CROSSSLOT Keys in request don't hash to the same slot"), "redis.NewClusterClient"},
		{reply("CLUSTERDOWN The cluster is down"), "CLUSTER INFO"},
		{reply("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."), "CLUSTER INFO"},
		{reply("WRONGPASS invalid username-password pair or user is disabled."), "Username and Password"},
		{reply("NOAUTH Authentication required."), "Username and Password"},
		{reply("ERR invalid password"), "Username and Password"},
		{reply("NOPERM this user has no permissions to run the 'info' command"), "the store's user needs"},
		{reply("ERR The user executing the script can't run this command or subcommand"), "the store's user needs"},
		{reply("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk."), "cannot write to its disk"},
		{reply("NOREPLICAS Not enough good replicas to write."), "min-replicas-to-write"},
		{reply("BUSY Redis is busy running a script."), "keeps the server from answering"},
		{reply("WRONGTYPE Operation against a key holding the wrong kind of value"), "WithPrefix"},
		{reply("ERR max number of clients reached"), "maxclients"},
		{reply("ERR something new"), "something new"},
		{redis.ErrPoolTimeout, "raise PoolSize"},
		{redis.ErrClosed, "client is closed"},
		{io.EOF, "the connection broke"},
		{syscall.ECONNRESET, "the connection broke"},
		{context.Canceled, "context canceled"},
		{&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, "not known"},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, "no server can be reached"},
	} {
		got := explain("claim", v.err)
		if !strings.HasPrefix(got.Error(), "redisstore: claim: ") || !strings.Contains(got.Error(), v.want) {
			t.Errorf("%v: got %q, want one that says %q", v.err, got, v.want)
		}
		if !errors.Is(got, v.err) {
			t.Errorf("%q does not wrap its cause", got)
		}
		if full := strings.Contains(v.err.Error(), "OOM"); errors.Is(got, oncehttp.ErrFull) != full {
			t.Errorf("%q: is ErrFull: %v, want %v", got, !full, full)
		}
	}
}

func TestAServerIsJudgedByWhatItTells(t *testing.T) {
	fit := "redis_version:7.0.15\r\nrole:master\r\nmaxmemory_policy:noeviction\r\n"
	for _, v := range []struct{ text, want string }{
		{fit, ""},
		{strings.Replace(fit, "7.0.15", "6.0.0", 1), ""},
		{strings.Replace(fit, "7.0.15", "10.1", 1), ""},
		{strings.Replace(fit, "7.0.15", "5.0.14", 1), "the oldest that works is 6.0"},
		{strings.Replace(fit, "7.0.15", "new", 1), "the oldest that works is 6.0"},
		{strings.Replace(fit, "role:master", "role:slave", 1), "not master"},
		{strings.Replace(fit, "noeviction", "volatile-lru", 1), "set maxmemory-policy to noeviction"},
		{strings.Replace(fit, "maxmemory_policy", "other", 1), "does not tell its maxmemory-policy"},
		{"", "does not tell its version"},
	} {
		err := parseInfo("# Server\r\n" + v.text).judge()
		if v.want == "" && err != nil || v.want != "" && (err == nil || !strings.Contains(err.Error(), v.want)) {
			t.Errorf("%q: got error %v, want %q", v.text, err, v.want)
		}
	}
}

func TestTokensStayApart(t *testing.T) {
	sum := sha256.Sum256([]byte("a"))
	digestOfA := hex.EncodeToString(sum[:16])
	seen := map[string]string{string(make([]byte, 17)): "nobody's"}
	for _, token := range []string{"0123456789abcdef0123456789abcdef", "0123456789ABCDEF0123456789ABCDEF", "0123456789abcdef0123456789abcdeg",
		"00000000000000000000000000000000", "a", digestOfA, "b", "\x00", "0123456789abcdef"} {
		b := packToken(token)
		if len(b) != 17 {
			t.Errorf("%q is packed in %d bytes, want 17", token, len(b))
		}
		if other, ok := seen[string(b)]; ok {
			t.Errorf("%q and %q are packed alike", token, other)
		}
		seen[string(b)] = token
	}
}

func TestDurationsKeepTheirLength(t *testing.T) {
	for d, want := range map[time.Duration]int64{0: 0, 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, 1<<63 - 1: 9223372036855} {
		if got := millis(d); got != want {
			t.Errorf("millis(%d): got %d, want %d", d, got, want)
		}
		if got := duration(millis(d)); got < d-time.Millisecond {
			t.Errorf("%d comes back as %d", d, got)
		}
	}
}

// What a server sends cannot make the store panic, or take a record for another.
func FuzzReadRecord(f *testing.F) {
	header := strings.Repeat("x", headerLen-2)
	f.Add("\x01D"+header[:headerLen-6]+"\x00\x00\x00\x02hebody", int64(3))
	f.Add("\x01R"+header, int64(2))
	f.Add("\x01D"+header, int64(4))
	f.Add("\x02", int64(1))
	f.Add("", int64(-2))
	f.Fuzz(func(t *testing.T, v string, status int64) {
		r, err := readRecord(v)
		if err == nil && r.done {
			if got := append(r.head[:len(r.head):len(r.head)], r.body...); !bytes.Equal(got, []byte(v[headerLen:])) {
				t.Errorf("head and body are %q, want %q", got, v[headerLen:])
			}
			if !bytes.Equal(join(r.head, r.body), []byte(v[headerLen-4:])) {
				t.Errorf("a record of %q is not what it was read from", v)
			}
		}
		for _, reply := range []any{nil, int64(status), v, []any{}, []any{status}, []any{v}, []any{status, int64(5), v}, []any{status, v, status}} {
			c, err := readClaim(reply)
			if err == nil && (c.Status < oncehttp.ClaimAcquired || c.Status > oncehttp.ClaimOrphaned || len(v) == 0 && c.Status != oncehttp.ClaimAcquired) {
				t.Errorf("readClaim(%q): got %+v", reply, c)
			}
			readShown(reply)
		}
		readShown([]any{status, v})
		parseInfo(v).judge()
	})
}
