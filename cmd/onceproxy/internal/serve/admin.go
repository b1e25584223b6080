package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/config"
)

// listenAdmin opens the operator's address. If nobody has chosen one and the default is
// taken, any free port does.
func listenAdmin(c *config.Config) (net.Listener, error) {
	addr := c.AdminAddr()
	if addr == config.Off {
		return nil, nil
	}
	l, err := net.Listen("tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) && c.Admin == "" {
		l, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	// A name such as localhost means what the machine's files say.
	if at, ok := l.Addr().(*net.TCPAddr); !ok || !at.IP.IsLoopback() {
		l.Close()
		return nil, fmt.Errorf("admin: %s is no loopback address, and the operator's page is for this machine only", addr)
	}
	return l, nil
}

// newInner makes a server for operators and their programs.
func newInner(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: time.Minute, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
}

// health adds what probes and Prometheus ask for.
func (p *Proxy) health(mux *http.ServeMux) {
	mux.Handle("GET /metrics", p.metrics.Handler())
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if why := p.unready(r.Context()); why != "" {
			http.Error(w, why, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
}

// unready says why clients should be sent elsewhere, or "".
func (p *Proxy) unready(ctx context.Context) string {
	if p.stopping.Load() {
		return "stopping"
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := p.store.Ready(ctx); err != nil {
		p.log.WarnContext(ctx, "the store does not answer", "err", err)
		return "the store does not answer"
	}
	return ""
}
