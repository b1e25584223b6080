package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/keys"
)

// A record is a story in JSON. Times are in seconds.
type record struct {
	Key         string   `json:"key"`
	State       string   `json:"state"` // running, done or unknown
	AgeSeconds  float64  `json:"age_seconds"`
	LeftSeconds float64  `json:"left_seconds"`
	Holders     int      `json:"holders"`
	Fingerprint string   `json:"fingerprint,omitempty"`
	Binding     string   `json:"binding,omitempty"`
	Response    *answer  `json:"response,omitempty"`
	Story       []string `json:"story,omitempty"`
}

type answer struct {
	Status      int      `json:"status,omitempty"`
	ContentType string   `json:"content_type,omitempty"`
	Fields      []string `json:"header_names,omitempty"`
	BodyKept    bool     `json:"body_kept"`
	BodyBytes   int      `json:"body_bytes"`
	BodySHA256  string   `json:"body_sha256,omitempty"`
}

func recordOf(s keys.Story) record {
	r := record{
		Key: s.Key, State: s.State(), AgeSeconds: seconds(s.Age), LeftSeconds: seconds(s.Left), Holders: s.Holder,
		Fingerprint: s.Fingerprint, Binding: s.Binding,
	}
	if a := s.Answer; a != nil {
		r.Response = &answer{Status: a.Status, ContentType: a.ContentType, Fields: a.Fields, BodyKept: a.Kept, BodyBytes: a.BodyBytes, BodySHA256: a.BodySHA256}
	}
	return r
}

func (c *command) list() func(context.Context) error {
	var search keys.Search
	state := c.fs.String("state", "", "")
	c.fs.DurationVar(&search.MinAge, "min-age", 0, "")
	c.fs.StringVar(&search.Prefix, "prefix", "", "")
	c.fs.StringVar(&search.After, "after", "", "")
	c.fs.IntVar(&search.Limit, "limit", 0, "")
	return func(ctx context.Context) (err error) {
		if len(c.args) > 0 {
			return wrong("list: %.40q is not understood; -prefix searches for keys", c.args[0])
		}
		if search.Status, err = keys.ParseState(*state); err == nil {
			err = search.Check()
		}
		if err != nil {
			return wrong("list: -%v", err)
		}
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		found, err := search.Run(ctx, c.keys)
		if err != nil {
			return err
		}
		if c.json {
			return c.printJSON(pageOf(found))
		}
		return c.printTable(found)
	}
}

type listed struct {
	Keys []record `json:"keys"`
	Next string   `json:"next,omitempty"` // -after for the next page
}

func pageOf(found keys.Found) listed {
	l := listed{Keys: []record{}, Next: found.Next}
	for _, s := range found.Keys {
		l.Keys = append(l.Keys, recordOf(s))
	}
	return l
}

func (c *command) printTable(found keys.Found) error {
	if len(found.Keys) == 0 {
		fmt.Fprintln(c.Err, "no key is like that")
		return nil
	}
	w := tabwriter.NewWriter(c.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "KEY\tSTATE\tAGE\tLEFT\tHOLDERS")
	for _, s := range found.Keys {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\n", printable(s.Key), s.State(), keys.Human(s.Age), keys.Human(s.Left), s.Holder)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if found.Next != "" {
		fmt.Fprintf(c.Err, "there are more: -after %s\n", printable(found.Next))
	}
	return nil
}

func (c *command) show() func(context.Context) error {
	c.naming()
	return func(ctx context.Context) error {
		s, err := c.look(ctx)
		if err != nil {
			return err
		}
		if c.json {
			r := recordOf(s)
			r.Story = s.Sentences()
			return c.printJSON(r)
		}
		c.tell(c.Out, s)
		return nil
	}
}

// look gets the record that the command line names.
func (c *command) look(ctx context.Context) (keys.Story, error) {
	key, err := c.key()
	if err != nil {
		return keys.Story{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := c.keys.Show(ctx, key)
	if err != nil {
		return keys.Story{}, err
	}
	return keys.Tell(r), nil
}

func (c *command) tell(out io.Writer, s keys.Story) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(name string, value any) { fmt.Fprintf(w, "%s\t%v\n", name, value) }
	line("key", printable(s.Key))
	line("state", s.State())
	line("age", keys.Human(s.Age))
	line("left", keys.Human(s.Left))
	line("holders", s.Holder)
	if s.Fingerprint != "" {
		line("digest of the request", s.Fingerprint+"…")
	}
	if s.Binding != "" {
		line("digest of the credentials", s.Binding+"…")
	}
	if a := s.Answer; a != nil {
		if a.Status > 0 {
			line("status", a.Status)
		}
		if a.ContentType != "" {
			line("content type", printable(a.ContentType))
		}
		if len(a.Fields) > 0 {
			line("header fields", printable(strings.Join(a.Fields, ", ")))
		}
		if a.Kept {
			line("body", fmt.Sprintf("%d bytes", a.BodyBytes))
		} else {
			line("body", "not kept")
		}
		if a.BodySHA256 != "" {
			line("SHA-256 of the body", a.BodySHA256)
		}
	}
	w.Flush()
	fmt.Fprintln(out)
	for _, sentence := range s.Sentences() {
		fmt.Fprintln(out, sentence)
	}
}

// printable keeps what others have chosen from steering a terminal.
func printable(s string) string {
	for _, r := range s {
		if r < ' ' || r > '~' {
			return fmt.Sprintf("%+q", s)
		}
	}
	return s
}

func (c *command) printJSON(v any) error {
	e := json.NewEncoder(c.Out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

func seconds(d time.Duration) float64 { return d.Round(time.Millisecond).Seconds() }
