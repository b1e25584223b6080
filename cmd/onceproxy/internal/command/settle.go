package command

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/keys"
)

func (c *command) resolve() func(context.Context) error {
	c.naming()
	happened := c.fs.Bool("happened", false, "")
	not := c.fs.Bool("did-not-happen", false, "")
	yes := c.fs.Bool("yes", false, "")
	word := keys.Word{}
	c.fs.IntVar(&word.Status, "status", 0, "")
	c.fs.StringVar(&word.ContentType, "content-type", "", "")
	file := c.fs.String("body", "", "")
	return func(ctx context.Context) (err error) {
		if *happened == *not {
			return wrong("resolve: say either -happened, with the answer that repeats get, or -did-not-happen")
		}
		if *file == "-" && !*yes {
			return wrong("resolve: with -body - standard input cannot confirm as well; add -yes")
		}
		s, err := c.look(ctx)
		if err != nil {
			return err
		}
		if s.Status != oncehttp.ClaimOrphaned {
			return fmt.Errorf("the key is %s: %w", s.State(), oncehttp.ErrNotOrphaned)
		}
		word.Happened = *happened
		if *file != "" {
			if word.Body, err = c.read(*file); err != nil {
				return err
			}
		}
		res, err := word.Resolution()
		if err != nil {
			return wrong("resolve: %v", err)
		}
		what := "The key is freed: a repeat is sent to the upstream. If the request took effect after all, it then takes effect twice."
		if word.Happened {
			what = fmt.Sprintf("Repeats get the answer %d, with a body of %d bytes. Nothing is sent to the upstream.", word.Status, len(word.Body))
		}
		if err := c.confirm(s, *yes, what); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		if err := c.keys.Resolve(ctx, s.Key, res); err != nil {
			return err
		}
		end := "freed"
		if word.Happened {
			end = "recorded"
		}
		return c.done(s.Key, end)
	}
}

func (c *command) purge() func(context.Context) error {
	c.naming()
	yes := c.fs.Bool("yes", false, "")
	return func(ctx context.Context) error {
		s, err := c.look(ctx)
		if err != nil {
			return err
		}
		if s.Status == oncehttp.ClaimRunning {
			return oncehttp.ErrNotPurgeable
		}
		err = c.confirm(s, *yes, "The store forgets the key: a repeat is sent to the upstream as if it were new. If the request has taken effect already, it then takes effect twice.")
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		if err := c.keys.Purge(ctx, s.Key); err != nil {
			return err
		}
		return c.done(s.Key, "purged")
	}
}

// done says what was done, in one word for scripts.
func (c *command) done(key, what string) error {
	if c.json {
		return c.printJSON(map[string]string{"key": key, "done": what})
	}
	fmt.Fprintf(c.Out, "%s %s\n", what, printable(key))
	return nil
}

// confirm asks whether to go on, unless that was said already.
func (c *command) confirm(s keys.Story, yes bool, what string) error {
	if yes {
		return nil
	}
	c.tell(c.Err, s)
	fmt.Fprintf(c.Err, "\n%s\nType yes to go on: ", what)
	line, _ := bufio.NewReader(io.LimitReader(c.In, 100)).ReadString('\n')
	fmt.Fprintln(c.Err)
	if strings.TrimSpace(line) != "yes" {
		return errUnconfirmed
	}
	return nil
}

// read reads the body of an answer from a file, or from standard input.
func (c *command) read(name string) ([]byte, error) {
	in := c.In
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("body: %w", err)
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, keys.MaxBody+1))
	if err != nil {
		return nil, fmt.Errorf("body: %w", err)
	}
	return b, nil
}
