// Ledger shows that the books of a tool API balance although its server is killed
// while it moves money.
//
// It starts a server whose accounts are in a SQLite file, or with -db in a PostgreSQL
// database, has ten transfers made one after another, and kills the server's process
// with SIGKILL at chosen points: when the handler has begun, when the rows are
// written and not committed, when they are committed and the answer is not sent. The
// client tries again with the same key; for some transfers a twin asks with it at the
// same time. This is done twice, side by side: with the store in transactional mode,
// in which a transfer and the record of its answer are one transaction, and without.
//
// Then it reads the books. It exits with status 0 only if, in transactional mode, no
// money came or went, every transfer that a client was told of is in the ledger once,
// every transfer is, no twin ran, and no client was left without an answer.
package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

func main() {
	if os.Getenv(envMode) != "" {
		fmt.Fprintln(os.Stderr, "ledger: server:", serve((*bank).handler))
		os.Exit(1)
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr, errands()))
}

// errands are the transfers, and where the server is killed meanwhile.
func errands() []errand {
	e := func(n int, from, to string, cents int64, twin bool, kills ...string) errand {
		return errand{transfer{From: from, To: to, Cents: cents, Memo: fmt.Sprintf("no-%02d", n)}, kills, twin}
	}
	return []errand{
		e(1, "ann", "ben", 12_000, false),
		e(2, "ben", "cleo", 3_550, false, written),
		e(3, "cleo", "dan", 8_025, false, committed),
		e(4, "dan", "ann", 1_999, false, begun),
		e(5, "ann", "cleo", 4_400, true, written),
		e(6, "ben", "dan", 700, true),
		e(7, "cleo", "ann", 15_000, false, written, committed),
		e(8, "dan", "ben", 2_630, true, committed),
		e(9, "ann", "dan", 100, false, written),
		e(10, "ben", "ann", 9_999, false),
	}
}

// A result is how one mode fared.
type result struct {
	mode     string
	errands  []errand
	told     map[string][]told // by memo: the client, and its twin if there was one
	books    books
	kills    int
	killedAt map[string]int
	twinsRan int
}

func run(args []string, stdout, stderr io.Writer, errands []errand) int {
	flags := flag.NewFlagSet("ledger", flag.ContinueOnError)
	flags.SetOutput(stderr)
	db := flags.String("db", "", "postgres://… of a database in which schemas may be made; by default SQLite, in a temporary file")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if *db != "" && !(place{*db}).postgres() {
		fmt.Fprintln(stderr, "ledger: -db: want a URL that begins with postgres://, or nothing for SQLite")
		return 2
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	results, err := both(ctx, *db, errands)
	if err == nil {
		err = story(stdout, *db, results)
	}
	if err != nil {
		fmt.Fprintln(stderr, "ledger:", err)
		return 1
	}
	verdict, ok := judge(results[0], results[1])
	fmt.Fprintf(stdout, "\n%s\n", verdict)
	if !ok {
		return 1
	}
	return 0
}

// both runs both modes at the same time.
func both(ctx context.Context, db string, errands []errand) ([]result, error) {
	modes := []string{transactional, plain}
	results := make([]result, len(modes))
	errs := make([]error, len(modes))
	var wg sync.WaitGroup
	for i, mode := range modes {
		wg.Go(func() {
			p, clear, err := newPlace(ctx, db)
			if err != nil {
				errs[i] = err
				return
			}
			defer clear()
			results[i], errs[i] = carryOut(ctx, mode, p, errands)
		})
	}
	wg.Wait()
	return results, errors.Join(errs...)
}

// newPlace makes room for books and records: a file, or a schema.
func newPlace(ctx context.Context, db string) (p place, clear func(), err error) {
	if db == "" {
		dir, err := os.MkdirTemp("", "ledger-")
		return place{filepath.Join(dir, "ledger.db")}, func() { os.RemoveAll(dir) }, err
	}
	u, err := url.Parse(db)
	if err != nil {
		return p, nil, errors.New("-db is no URL") // it may hold a password
	}
	conn, err := sql.Open("pgx", db)
	if err != nil {
		return p, nil, err
	}
	schema := "oncehttp_ledger_" + strings.ToLower(rand.Text()[:8])
	if _, err := conn.ExecContext(ctx, "CREATE SCHEMA "+schema); err != nil {
		conn.Close()
		return p, nil, err
	}
	q := u.Query()
	q.Set("search_path", schema)
	u.RawQuery = q.Encode()
	return place{u.String()}, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		conn.ExecContext(ctx, "DROP SCHEMA "+schema+" CASCADE")
		conn.Close()
	}, nil
}

// carryOut has the transfers made in one mode, and reads the books when the last
// server is gone.
func carryOut(ctx context.Context, mode string, p place, errands []errand) (result, error) {
	r := result{mode: mode, errands: errands, told: make(map[string][]told)}
	if err := makeBooks(ctx, p); err != nil {
		return r, err
	}
	h, err := newHouse(mode, p, errands)
	if err != nil {
		return r, err
	}
	standing, stop := context.WithCancel(ctx)
	defer stop()
	fell := make(chan error, 1)
	var twin []told
	second := newClient()
	h.twin = func(x transfer) { twin = append(twin, ask(standing, second, h.url, x)) }
	go func() {
		fell <- h.keep(standing)
		stop()
	}()
	first := newClient()
	for _, e := range errands {
		all := []told{ask(standing, first, h.url, e.transfer)}
		h.twins.Wait()
		r.told[e.Memo] = append(all, twin...)
		twin = nil
	}
	stop()
	if err := <-fell; err != nil {
		return r, err
	}
	if err := ctx.Err(); err != nil {
		return r, fmt.Errorf("%s: %w", mode, err)
	}
	r.kills, r.killedAt, r.twinsRan = h.kills, h.killedAt, h.twinsRan
	r.books, err = readBooks(ctx, p)
	return r, err
}

// wrong says what is wrong with the books, and with what the clients were told of
// them, or nothing.
func (r *result) wrong() string {
	if err := r.books.balance(); err != nil {
		return err.Error()
	}
	if r.twinsRan > 0 {
		return fmt.Sprintf("%d twins ran", r.twinsRan)
	}
	for _, e := range r.errands {
		entries := r.books.entries(e.Memo)
		if len(entries) > 1 {
			return fmt.Sprintf("%s is in the ledger %d times", e.Memo, len(entries))
		}
		for _, t := range r.told[e.Memo] {
			switch {
			case t.Entry == 0:
			case len(entries) == 0:
				return fmt.Sprintf("a client was told of %s, and it is not in the ledger", e.Memo)
			case entries[0].ID != t.Entry || entries[0].From != e.From || entries[0].To != e.To || entries[0].Cents != e.Cents:
				return fmt.Sprintf("a client was told of %s as entry %d, and the ledger has %+v", e.Memo, t.Entry, entries[0])
			}
		}
	}
	return ""
}

// judge says whether transactional mode did what it promises, where the other one
// could not tell.
func judge(tx, without result) (verdict string, ok bool) {
	for _, r := range []result{tx, without} {
		if w := r.wrong(); w != "" {
			return fmt.Sprintf("The books do not balance (%s): %s.", r.mode, w), false
		}
	}
	for _, e := range tx.errands {
		if len(e.kills) > 0 && (tx.killedAt[e.kills[0]] == 0 || without.kills == 0) {
			return "The server was not killed where it should have been, so this run shows nothing.", false
		}
		for _, t := range tx.told[e.Memo] {
			if t.Entry == 0 {
				return fmt.Sprintf("In transactions a client of %s was told: %s.", e.Memo, t.Why), false
			}
		}
		if len(tx.books.entries(e.Memo)) != 1 {
			return fmt.Sprintf("In transactions %s is missing from the ledger.", e.Memo), false
		}
		if e.twin && len(tx.told[e.Memo]) != 2 {
			return fmt.Sprintf("%s had no twin, so this run shows nothing.", e.Memo), false
		}
	}
	if want := planned(tx.errands); tx.kills != want {
		return fmt.Sprintf("The server was killed %d times, want %d, so this run shows nothing.", tx.kills, want), false
	}
	n := without.unknown()
	if n == 0 {
		return "Without transactions every client knew its outcome, so this run shows nothing.", false
	}
	return fmt.Sprintf("The books balance. In transactions every transfer was made once and every client knows it.\n"+
		"Without, nothing was made twice either, but for %d transfers somebody has to look.", n), true
}

func planned(errands []errand) (n int) {
	for _, e := range errands {
		n += len(e.kills)
	}
	return n
}

// unknown counts the transfers whose clients were told that nobody knows.
func (r *result) unknown() (n int) {
	for _, all := range r.told {
		if len(all) > 0 && all[0].Unknown {
			n++
		}
	}
	return n
}

// story prints what happened, transfer by transfer, and then in sum.
func story(out io.Writer, db string, results []result) error {
	where := "a SQLite file"
	if db != "" {
		where = "PostgreSQL"
	}
	fmt.Fprintf(out, "%d accounts with %s in %s, and a server that is killed while it moves money.\n\n",
		len(owners), dollars(int64(len(owners))*opening), where)
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "transfer\tkilled when\tclients are told in transactions\tand without")
	for _, e := range results[0].errands {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", e.Memo, e.fate(), results[0].saw(e), results[1].saw(e))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	fmt.Fprintln(w, "\tkills\ttold: made\ttold: nobody knows\tin the ledger\tin it twice\ttwins that ran\tall accounts")
	for _, r := range results {
		in, twice, made := 0, 0, 0
		for _, e := range r.errands {
			n := len(r.books.entries(e.Memo))
			in += min(n, 1)
			twice += max(n-1, 0)
			if all := r.told[e.Memo]; len(all) > 0 && all[0].Entry != 0 {
				made++
			}
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", r.mode, r.kills, made, r.unknown(), in, twice, r.twinsRan, dollars(r.books.sum()))
	}
	return w.Flush()
}

// fate is what happens to the server, in words.
func (e *errand) fate() string {
	if len(e.kills) == 0 {
		return "-"
	}
	words := map[string]string{begun: "handler begun", written: "rows written, not committed", committed: "committed, not answered"}
	all := make([]string, len(e.kills))
	for i, k := range e.kills {
		all[i] = words[k]
	}
	return strings.Join(all, "; then ")
}

// saw is what the clients of an errand were told, in a few words.
func (r *result) saw(e errand) string {
	all := r.told[e.Memo]
	if len(all) == 0 {
		return "nothing"
	}
	t := all[0]
	said := "made"
	switch {
	case t.Unknown && len(r.books.entries(e.Memo)) > 0:
		said = "nobody knows (it was made)"
	case t.Unknown:
		said = "nobody knows (it was not)"
	case t.Entry == 0:
		said = t.Why
	}
	switch {
	case len(all) == 1:
	case all[1].Entry == t.Entry && all[1].Unknown == t.Unknown:
		said += ", the twin too"
	default:
		said += ", the twin: " + all[1].Why
	}
	return said
}
