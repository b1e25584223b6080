// Package command is what onceproxy does besides being a proxy: it looks at the keys in
// a store, and settles them.
package command

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/config"
	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/keys"
	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/stores"
)

// Exit statuses, as scripts see them.
const (
	exitOK          = 0
	exitFailed      = 1 // the store, or a file
	exitUsage       = 2
	exitNotFound    = 3
	exitState       = 4 // the key's state does not allow it
	exitUnconfirmed = 5
)

// patience is how long the store gets for one command.
const patience = 30 * time.Second

// A Terminal is where a command reads and writes.
type Terminal struct {
	In       io.Reader
	Out, Err io.Writer
	Getenv   func(string) (string, bool)
}

// A command is one run of `onceproxy keys`.
type command struct {
	Terminal
	name string
	fs   *flag.FlagSet

	store, config string
	json          bool
	request       keys.Request // names a key by what the client sent

	args []string
	keys oncehttp.Inspector
}

// usageError is a command line that makes no sense.
type usageError struct{ msg string }

func (e usageError) Error() string { return e.msg }

func wrong(format string, args ...any) error { return usageError{fmt.Sprintf(format, args...)} }

var (
	errUnconfirmed = errors.New("nothing was changed, because you did not confirm it; -yes confirms without a question")
	errHelp        = errors.New("help")
)

// Keys runs `onceproxy keys` with the arguments after that, and returns the exit status:
// 0 for success, 1 when the store or a file cannot be used, 2 for a wrong command line,
// 3 when there is no such key, 4 when its state does not allow what is asked, 5 when it
// was not confirmed.
func Keys(args []string, t Terminal) int {
	c := &command{Terminal: t}
	err := c.run(args)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errHelp):
		return exitOK
	}
	fmt.Fprintf(t.Err, "onceproxy keys: %v\n", err)
	if _, ok := errors.AsType[usageError](err); ok {
		fmt.Fprintln(t.Err, "onceproxy keys -help says what there is.")
		return exitUsage
	}
	switch {
	case errors.Is(err, oncehttp.ErrNotFound):
		return exitNotFound
	case errors.Is(err, oncehttp.ErrNotOrphaned), errors.Is(err, oncehttp.ErrNotPurgeable):
		return exitState
	case errors.Is(err, errUnconfirmed):
		return exitUnconfirmed
	}
	return exitFailed
}

func (c *command) run(args []string) error {
	if len(args) == 0 {
		return wrong("say what to do: list, show, resolve or purge")
	}
	c.name = args[0]
	c.fs = flag.NewFlagSet("onceproxy keys "+c.name, flag.ContinueOnError)
	c.fs.SetOutput(io.Discard)
	c.fs.StringVar(&c.store, "store", "", "")
	c.fs.StringVar(&c.config, "config", "", "")
	c.fs.BoolVar(&c.json, "json", false, "")
	var do func(context.Context) error
	switch c.name {
	case "list":
		do = c.list()
	case "show":
		do = c.show()
	case "resolve":
		do = c.resolve()
	case "purge":
		do = c.purge()
	case "help", "-h", "-help", "--help":
		fmt.Fprint(c.Out, help)
		return errHelp
	default:
		return wrong("%.40q is none of list, show, resolve and purge", c.name)
	}
	if err := c.parse(args[1:]); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	opened, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer opened.Close()
	c.keys = opened
	return do(ctx)
}

// parse reads flags wherever they stand.
func (c *command) parse(args []string) error {
	for len(args) > 0 {
		if err := c.fs.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				fmt.Fprint(c.Out, help)
				return errHelp
			}
			return wrong("%s: %v", c.name, err)
		}
		if rest := c.fs.Args(); len(rest) < len(args) && len(args)-len(rest) > 0 && args[len(args)-len(rest)-1] == "--" {
			c.args = append(c.args, rest...)
			return nil
		}
		if args = c.fs.Args(); len(args) > 0 {
			c.args = append(c.args, args[0])
			args = args[1:]
		}
	}
	return nil
}

// open opens the store that the command line, the environment or the file of settings
// names. It makes none: a store that is not there has no keys, and was named wrongly.
func (c *command) open(ctx context.Context) (*stores.Opened, error) {
	name := c.store
	if name == "" {
		name, _ = c.Getenv("ONCEPROXY_STORE")
	}
	file := c.config
	if file == "" {
		file, _ = c.Getenv("ONCEPROXY_CONFIG")
	}
	if name == "" {
		conf := new(config.Config)
		if file != "" {
			if err := conf.Load(file); err != nil {
				return nil, err
			}
		}
		name = conf.StoreURL()
	}
	switch scheme, _, _ := strings.Cut(name, ":"); scheme {
	case "memory":
		return nil, wrong("a store in memory is inside of the proxy; use the operator's page")
	case "postgres", "postgresql", "redis", "rediss":
	default:
		path := strings.TrimPrefix(name, "sqlite://")
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("store: there is no file %s; name the proxy's with -store", path)
		}
	}
	return stores.Open(ctx, name, slog.New(slog.NewTextHandler(c.Err, &slog.HandlerOptions{Level: slog.LevelWarn})))
}

// naming adds the flags that name a key by what the client sent.
func (c *command) naming() {
	c.fs.StringVar(&c.request.Method, "method", "", "")
	c.fs.StringVar(&c.request.Path, "path", "", "")
	c.fs.StringVar(&c.request.Key, "key", "", "")
	c.fs.StringVar(&c.request.Scope, "scope", "", "")
}

// key is the record's key that the command line names, in one way or the other.
func (c *command) key() (string, error) {
	if c.request != (keys.Request{}) {
		if len(c.args) > 0 {
			return "", wrong("%s: name the key by itself, or by -method, -path, -key and -scope, not by both", c.name)
		}
		key, err := c.request.RecordKey()
		if err != nil {
			return "", wrong("%s: -%v", c.name, err)
		}
		return key, nil
	}
	if len(c.args) != 1 {
		return "", wrong("%s: name one key, as list shows it, or what the client sent: -path /v1/charges -key KEY", c.name)
	}
	return c.args[0], nil
}

const help = `onceproxy keys looks at the keys in a proxy's store, and settles them. The proxy may run.

	onceproxy keys list    [-state running|done|unknown] [-min-age TIME] [-prefix TEXT]
	                       [-limit N] [-after KEY]
	onceproxy keys show    KEY
	onceproxy keys resolve KEY -happened -status N [-content-type TYPE -body FILE]
	onceproxy keys resolve KEY -did-not-happen
	onceproxy keys purge   KEY

KEY is the record's key, as list shows it. What the client sent names it too:

	-method METHOD       (default POST)
	-path PATH           as the client sends it, without the query
	-key KEY             the client's idempotency key
	-scope NAME          what the route's scope calls the client (default: no scope)

All of them take these:

	-store URL           as the proxy's (default ONCEPROXY_STORE, else the file's, else once.db)
	-config FILE         the proxy's settings, which name the store
	-json                print JSON

resolve settles a key whose outcome is unknown: with -happened repeats get the answer
that you give (-body - reads it from standard input), with -did-not-happen they are sent
on. purge forgets a key in any state but running. Both ask first, unless -yes is there.

Exit status: 0 done, 1 the store or a file cannot be used, 2 wrong command line,
3 no such key, 4 the key's state does not allow it, 5 not confirmed.
`
