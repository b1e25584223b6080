// Polyglot shows three programs that know nothing of oncehttp, in three languages,
// each with the retry loop that everybody writes, over a network that loses replies.
//
// curl, Python's urllib and Node's fetch each refund one order: first straight to a
// payment server that does not know idempotency keys, then through onceproxy in front
// of the same server. The network between them and where they send to loses the first
// two replies to each. It exits with status 0 only if each got its refund through the
// proxy, exactly once, and each made more than one without.
//
// A language that is not installed is left out, and said so.
package main

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
)

//go:embed clients
var scripts embed.FS

// A client is a program in some language.
type client struct {
	name    string
	command string
	script  string
}

var clients = []client{
	{"curl in a shell", "sh", "refund.sh"},
	{"Python, urllib", "python3", "refund.py"},
	{"Node, fetch", "node", "refund.mjs"},
}

// lost is how many replies the network loses to each client.
const lost = 2

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	ok, err := run(ctx, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "polyglot:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// A result is how one client fared.
type result struct {
	client        client
	missing       string // what is not installed
	direct, proxy int    // refunds made
	sent          int    // requests through the proxy's network
	answer        string
	err           error
}

// held reports whether the promise held, where it had to.
func (r *result) held() bool {
	return r.err == nil && r.direct > 1 && r.proxy == 1 && r.sent == lost+1 && strings.Contains(r.answer, `"refunded"`)
}

func run(ctx context.Context, out io.Writer) (ok bool, err error) {
	dir, err := os.MkdirTemp("", "polyglot")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	if err := os.CopyFS(dir, scripts); err != nil {
		return false, err
	}
	pay := newPayments()
	defer pay.close()
	proxy, err := startProxy(ctx, dir, pay.url())
	if err != nil {
		return false, err
	}
	defer proxy.stop()

	var results []*result
	for i, c := range clients {
		r := &result{client: c}
		results = append(results, r)
		if r.missing = c.missing(); r.missing == "" {
			r.err = r.compare(ctx, dir, pay, proxy.addr, i)
		}
	}
	return report(out, results), nil
}

// missing names the program that is not installed, or is "".
func (c client) missing() string {
	for _, name := range []string{c.command, map[string]string{"sh": "curl"}[c.command]} {
		if name == "" {
			continue
		}
		if _, err := exec.LookPath(name); err != nil {
			return name
		}
	}
	return ""
}

// compare lets the client refund one order straight, and another through the proxy.
func (r *result) compare(ctx context.Context, dir string, pay *payments, proxy string, n int) error {
	order := func(way string) string { return fmt.Sprintf("%s-%d", way, n+1) }
	if _, _, err := r.refund(ctx, dir, pay.addr(), order("direct")); err != nil {
		return fmt.Errorf("straight: %w", err)
	}
	var err error
	if r.answer, r.sent, err = r.refund(ctx, dir, proxy, order("proxy")); err != nil {
		return fmt.Errorf("through the proxy: %w", err)
	}
	r.direct, r.proxy = pay.refunds(order("direct")), pay.refunds(order("proxy"))
	return nil
}

// refund runs the client's script against addr, over a network that loses replies. It
// returns what the script printed, and how many requests the network carried.
func (r *result) refund(ctx context.Context, dir, addr, order string) (string, int, error) {
	network, err := newLossy(addr, lost)
	if err != nil {
		return "", 0, err
	}
	defer network.close()
	cmd := exec.CommandContext(ctx, r.client.command, filepath.Join(dir, "clients", r.client.script), "http://"+network.addr()+"/refunds", "refund-"+order, order)
	cmd.WaitDelay = time.Second
	cmd.Env = append(os.Environ(), "no_proxy=127.0.0.1")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", network.carried(), errors.Join(err, errors.New(strings.TrimSpace(stderr.String())))
	}
	return strings.TrimSpace(stdout.String()), network.carried(), nil
}

func report(out io.Writer, results []*result) bool {
	ok, ran := true, 0
	fmt.Fprintf(out, "Three programs refund an order each. The network loses the first %d replies to each.\n\n", lost)
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "client\trequests\trefunds made straight\tthrough onceproxy\ttold")
	for _, r := range results {
		switch {
		case r.missing != "":
			fmt.Fprintf(w, "%s\tleft out: %s is not installed\t\t\t\n", r.client.name, r.missing)
			continue
		case r.err != nil:
			fmt.Fprintf(w, "%s\tfailed: %v\t\t\t\n", r.client.name, r.err)
		default:
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\n", r.client.name, r.sent, r.direct, r.proxy, r.answer)
		}
		ran++
		ok = ok && r.held()
	}
	w.Flush()
	switch {
	case ran == 0:
		fmt.Fprintln(out, "\nNone of the programs is installed, so nothing was shown.")
		return false
	case ok:
		fmt.Fprintln(out, "\nThrough onceproxy each refund was made once, and each program got its answer.")
	default:
		fmt.Fprintln(out, "\nThe promise did not hold.")
	}
	return ok
}
