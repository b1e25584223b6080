// Onceproxy stands in front of an HTTP API that nobody can change, for clients in any
// language, and has each request with an Idempotency-Key take effect once. It is
// oncehttp's Middleware, a standard reverse proxy, and oncehttp's Transport, in one
// program.
//
//	onceproxy -upstream https://api.example.com
//	onceproxy keys list|show|resolve|purge
//
// docs/onceproxy.md in the repository is its manual; -help lists the settings.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/command"
	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/config"
	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/page"
	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/serve"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run returns the exit status: 0 for success, 2 for settings that are wrong, 1 for
// anything else.
func run(args []string, out, errs io.Writer) int {
	if len(args) > 0 && args[0] == "keys" {
		return command.Keys(args[1:], command.Terminal{In: os.Stdin, Out: out, Err: errs, Getenv: config.Environ})
	}
	line, err := config.ParseLine(args, config.Environ, out)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(errs, "onceproxy: %v\n", err)
		return 2
	case line.Version:
		fmt.Fprintln(out, "onceproxy", version())
		return 0
	}
	conf, err := line.Load()
	if err != nil {
		fmt.Fprintf(errs, "onceproxy: the settings are wrong:\n%v\n", err)
		return 2
	}
	if line.CheckOnly {
		fmt.Fprint(out, conf.Explain())
		return 0
	}
	return serveUntilSignal(line, out, errs)
}

func serveUntilSignal(line *config.Line, out, errs io.Writer) int {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt, syscall.SIGHUP)
	p, err := serve.Start(context.Background(), line, serve.Options{Version: version(), Out: out, Err: errs, Page: page.New})
	if err != nil {
		fmt.Fprintf(errs, "onceproxy: %v\n", err)
		return 1
	}
	for {
		select {
		case s := <-signals:
			if s == syscall.SIGHUP {
				p.Reload()
				continue
			}
			go func() { // a second signal does not wait
				for s := range signals {
					if s != syscall.SIGHUP {
						os.Exit(1)
					}
				}
			}()
			if p.Stop() != nil {
				return 1
			}
			return 0
		case err := <-p.Failed():
			fmt.Fprintf(errs, "onceproxy: %v\n", err)
			p.Stop()
			return 1
		}
	}
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
