package services

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A RedisServer is a Redis server that everyone on this machine may use, without
// a password unless RedisSet gives it one. Its methods are safe for concurrent
// use, but for Kill, Stop and Start.
type RedisServer struct {
	Host string // 127.0.0.1
	Port int
	Bin  string // the folder of its programs: redis-cli, redis-benchmark …

	server
	bus int // the port of the cluster's own connections, or 0
}

// A RedisOption says what kind of server a test needs.
type RedisOption func(*redisOptions)

type redisOptions struct {
	private  bool
	settings []string
	env      []string
}

// RedisPrivate asks for a server of the test's own: one that it may kill, stop
// and start, and that ends with the test.
func RedisPrivate() RedisOption { return func(o *redisOptions) { o.private = true } }

// RedisSet changes a line of redis.conf. It implies RedisPrivate.
func RedisSet(name string, values ...string) RedisOption {
	return func(o *redisOptions) {
		o.private = true
		o.settings = append(append(o.settings, "--"+name), values...)
	}
}

// Redis returns a running server: the one that all tests of the binary share,
// each with a prefix of its own, unless opts ask for a private one. It writes
// nothing to disk unless RedisSet says so.
func Redis(t testing.TB, opts ...RedisOption) *RedisServer {
	t.Helper()
	var o redisOptions
	for _, opt := range opts {
		opt(&o)
	}
	if o.private {
		r, err := newRedis(false, o)
		need(t, err)
		r.endWith(t)
		return r
	}
	sharedRedis.once.Do(func() { sharedRedis.r, sharedRedis.err = newRedis(false, redisOptions{}) })
	need(t, sharedRedis.err)
	return sharedRedis.r
}

var sharedRedis struct {
	once sync.Once
	r    *RedisServer
	err  error
}

// RedisCluster returns three masters that share the slots of a cluster, of the
// test's own if there are opts, and otherwise those that all tests share.
func RedisCluster(t testing.TB, opts ...RedisOption) []*RedisServer {
	t.Helper()
	var o redisOptions
	for _, opt := range opts {
		opt(&o)
	}
	if o.private {
		nodes, err := newRedisCluster(o)
		need(t, err)
		for _, r := range nodes {
			r.endWith(t)
		}
		return nodes
	}
	sharedCluster.once.Do(func() { sharedCluster.nodes, sharedCluster.err = newRedisCluster(redisOptions{}) })
	need(t, sharedCluster.err)
	return sharedCluster.nodes
}

var sharedCluster struct {
	once  sync.Once
	nodes []*RedisServer
	err   error
}

// endWith stops the server when the test ends.
func (r *RedisServer) endWith(t testing.TB) {
	t.Cleanup(func() {
		if err := r.stop(syscall.SIGKILL); err != nil {
			t.Errorf("services: %v", err)
		}
		os.RemoveAll(r.dir)
	})
}

func newRedis(cluster bool, o redisOptions) (*RedisServer, error) {
	r, data, err := prepareRedis()
	if err != nil {
		return nil, err
	}
	r.env = o.env
	start := func(port int) error {
		r.Port = port
		// No file is read: what Debian configures is not what a test wants.
		r.argv = []string{filepath.Join(r.Bin, "redis-server"), "--port", strconv.Itoa(port), "--bind", r.Host,
			"--dir", data, "--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction", "--daemonize", "no",
			"--repl-diskless-sync-delay", "0"}
		if r.bus > 0 {
			r.argv = append(r.argv, "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(r.bus), "--cluster-node-timeout", "10000")
		}
		r.argv = append(r.argv, o.settings...)
		return r.start()
	}
	if !cluster {
		return r, onFreePort(start)
	}
	return r, onFreePort(func(bus int) error {
		r.bus = bus
		return onFreePort(start)
	})
}

// prepareRedis returns a server that was not started, and the folder for what it
// writes.
func prepareRedis() (r *RedisServer, data string, err error) {
	bin, err := install(findRedis, "redis-server", "redis-tools")
	if err != nil {
		return nil, "", err
	}
	uid, gid, err := account("redis")
	if err != nil {
		return nil, "", err
	}
	dir, err := folder("redis")
	if err != nil {
		return nil, "", err
	}
	data = filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		return nil, "", err
	}
	if uid >= 0 {
		if err := os.Chown(data, uid, gid); err != nil {
			return nil, "", err
		}
	}
	return &RedisServer{
		Host:   "127.0.0.1",
		Bin:    filepath.Dir(bin),
		server: server{name: "redis", dir: dir, uid: uid, gid: gid},
	}, data, nil
}

// RedisSentinel returns a Sentinel that watches a master, which has replicas of
// its own already, under the name of "main", and makes one of them the master a
// second after that was lost.
func RedisSentinel(t testing.TB, master *RedisServer, replicas int) *RedisServer {
	t.Helper()
	r, data, err := prepareRedis()
	need(t, err)
	conf := filepath.Join(data, "sentinel.conf") // which it rewrites
	need(t, onFreePort(func(port int) error {
		r.Port = port
		text := fmt.Sprintf("port %d\nbind %s\ndir %s\nsentinel monitor main %s %d 1\nsentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 10000\n",
			port, r.Host, data, master.Host, master.Port)
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			return err
		}
		if r.uid >= 0 {
			if err := os.Chown(conf, r.uid, r.gid); err != nil {
				return err
			}
		}
		r.argv = []string{filepath.Join(r.Bin, "redis-server"), conf, "--sentinel"}
		return r.start()
	}))
	r.endWith(t)
	need(t, r.ready(func() error {
		info, err := r.cli("info", "sentinel")
		if err == nil && !strings.Contains(info, fmt.Sprintf("status=ok,address=%s,slaves=%d", master.Addr(), replicas)) {
			err = fmt.Errorf("the Sentinel does not know the replicas:\n%s", info)
		}
		return err
	}))
	return r
}

// findRedis returns redis-server, if redis-cli is there too.
func findRedis() string {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return ""
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(path), "redis-cli")); err != nil {
		return ""
	}
	return path
}

func newRedisCluster(o redisOptions) ([]*RedisServer, error) {
	const slots = 16384
	nodes := make([]*RedisServer, 3)
	for i := range nodes {
		r, err := newRedis(true, o)
		if err != nil {
			return nil, err
		}
		nodes[i] = r
		n := len(nodes)
		if _, err := r.cli("cluster", "set-config-epoch", strconv.Itoa(i+1)); err != nil {
			return nil, err
		}
		if _, err := r.cli("cluster", "addslotsrange", strconv.Itoa(slots*i/n), strconv.Itoa(slots*(i+1)/n-1)); err != nil {
			return nil, err
		}
		if i == 0 {
			continue
		}
		if _, err := r.cli("cluster", "meet", nodes[0].Host, strconv.Itoa(nodes[0].Port), strconv.Itoa(nodes[0].bus)); err != nil {
			return nil, err
		}
	}
	for _, r := range nodes {
		if err := r.ready(func() error {
			info, err := r.cli("cluster", "info")
			if err == nil && !(strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_size:3")) {
				err = fmt.Errorf("the cluster is not ready:\n%s", info)
			}
			return err
		}); err != nil {
			return nil, err
		}
	}
	return nodes, nil
}

func (r *RedisServer) start() error {
	if err := r.server.start(); err != nil {
		return err
	}
	return r.ready(r.ping)
}

// ping asks the server whether it answers, and has read what is on its disk.
func (r *RedisServer) ping() error {
	c, err := net.DialTimeout("tcp", r.Addr(), time.Second)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Second))
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	switch {
	case err != nil:
		return err
	case strings.HasPrefix(line, "+PONG"), strings.HasPrefix(line, "-NOAUTH"):
		return nil
	}
	return errors.New(strings.TrimSpace(line))
}

// stop ends the server with a signal.
func (r *RedisServer) stop(sig syscall.Signal) error {
	select {
	case <-r.gone:
		return nil
	default:
	}
	r.signal(syscall.SIGCONT) // it may have been paused
	if err := r.signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return r.ended()
}

// Kill ends the server at once, as kill -9 does.
func (r *RedisServer) Kill(t testing.TB) {
	t.Helper()
	need(t, r.stop(syscall.SIGKILL))
}

// Stop ends the server in order.
func (r *RedisServer) Stop(t testing.TB) {
	t.Helper()
	need(t, r.stop(syscall.SIGTERM))
}

// Start starts a server that was killed or stopped, on the same port, and waits
// until it answers.
func (r *RedisServer) Start(t testing.TB) {
	t.Helper()
	var err error
	for range 20 { // for a moment after a kill the port can still be taken
		if err = r.start(); err == nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	need(t, err)
}

// Pause stops the server from doing anything until Resume, with its connections
// open: what a network that swallows packets looks like.
func (r *RedisServer) Pause(t testing.TB) {
	t.Helper()
	need(t, r.signal(syscall.SIGSTOP))
}

// Resume ends what Pause began.
func (r *RedisServer) Resume(t testing.TB) {
	t.Helper()
	need(t, r.signal(syscall.SIGCONT))
}

// Addr is where the server listens.
func (r *RedisServer) Addr() string { return net.JoinHostPort(r.Host, strconv.Itoa(r.Port)) }

// Do runs a command by redis-cli and returns what that prints, without trailing
// space. An error reply fails the test.
func (r *RedisServer) Do(t testing.TB, args ...string) string {
	t.Helper()
	out, err := r.cli(args...)
	need(t, err)
	return out
}

func (r *RedisServer) cli(args ...string) (string, error) {
	argv := []string{filepath.Join(r.Bin, "redis-cli"), "-e", "-h", r.Host, "-p", strconv.Itoa(r.Port)}
	out, err := run(-1, -1, r.dir, append(argv, args...)...)
	return strings.TrimSpace(out), err
}
