package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp/internal/services"
)

// unprotected is a mode of the server that is not the program's: no Middleware.
const unprotected = "unprotected"

// TestMain is also the server's process.
func TestMain(m *testing.M) {
	switch os.Getenv(envMode) {
	case "":
		os.Exit(m.Run())
	case unprotected:
		fmt.Fprintln(os.Stderr, serve(func(b *bank) http.Handler { return http.HandlerFunc(b.transfer) }))
	case transactional, plain:
		fmt.Fprintln(os.Stderr, serve((*bank).handler))
	}
	os.Exit(1)
}

func TestTheBooksBalance(t *testing.T) {
	t.Parallel()
	var out, errOut strings.Builder
	if code := run(nil, &out, &errOut, errands()); code != 0 || errOut.Len() > 0 {
		t.Errorf("exit status %d, stderr %q, want 0 and nothing; output\n%s", code, errOut.String(), out.String())
	}
	said := rows(out.String(), "in transactions")
	want := []string{"in transactions", "8", "10", "0", "10", "0", "0", "$4000.00"}
	if len(said) != 1 || strings.Join(said[0], "|") != strings.Join(want, "|") {
		t.Errorf("got %q, want %q; output\n%s", said, want, out.String())
	}
	// On a machine that stands still for a second the plain server's lease may lapse
	// while its process lives; the clients are told that nobody knows then.
	if plainly := rows(out.String(), "without"); len(plainly) != 1 || strings.Join(plainly[0][1:4], "|") != "7|3|7" {
		t.Logf("a slow machine: %q", plainly)
		return
	}
	doc, err := os.ReadFile("../../docs/stores.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(doc), out.String()) {
		t.Errorf("docs/stores.md shows another output than\n%s", out.String())
	}
}

func TestTheBooksBalanceInPostgreSQL(t *testing.T) {
	t.Parallel()
	pg := services.Postgres(t)
	db := pg.Database(t)
	var out, errOut strings.Builder
	if code := run([]string{"-db", pg.DSN(db)}, &out, &errOut, errands()); code != 0 || errOut.Len() > 0 {
		t.Errorf("exit status %d, stderr %q, want 0 and nothing; output\n%s", code, errOut.String(), out.String())
	}
	if !strings.Contains(out.String(), "in PostgreSQL") {
		t.Errorf("it does not say where:\n%s", out.String())
	}
	if left := pg.SQL(t, db, "select count(*) from pg_namespace where nspname like 'oncehttp%'"); left != "0" {
		t.Errorf("%s schemas are left behind", left)
	}
}

// rows are the cells of the lines that begin with a word.
func rows(text, word string) (all [][]string) {
	for _, line := range strings.Split(text, "\n") {
		if !strings.HasPrefix(line, word) {
			continue
		}
		var cells []string
		for _, c := range strings.Split(line, "   ") {
			if c = strings.TrimSpace(c); c != "" {
				cells = append(cells, c)
			}
		}
		all = append(all, cells)
	}
	return all
}

// The same kills, and servers that keep their promise only half or not at all.
func TestBooksThatDoNotBalanceAreNoticed(t *testing.T) {
	t.Parallel()
	few := errands()[1:3] // killed when the rows are written, and when they are committed
	for _, tc := range []struct{ mode, want string }{
		{plain, "In transactions a client of no-02 was told: 409 Conflict"},
		{unprotected, "no-03 is in the ledger 2 times"},
	} {
		t.Run(tc.mode, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			p := place{filepath.Join(t.TempDir(), "ledger.db")}
			r, err := carryOut(ctx, tc.mode, p, few)
			if err != nil {
				t.Fatal(err)
			}
			if r.kills < 2 {
				t.Errorf("%d kills, want 2", r.kills)
			}
			if verdict, ok := judge(r, r); ok || !strings.Contains(verdict, tc.want) {
				t.Errorf("got %v, %q; want false and %q", ok, verdict, tc.want)
			}
		})
	}
}

func TestAServerThatDoesNotStartIsSaid(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p := place{filepath.Join(t.TempDir(), "ledger.db")}
	_, err := carryOut(ctx, "no such mode", p, errands()[:1])
	if err == nil || !strings.Contains(err.Error(), "ended by itself") {
		t.Errorf("got error %v", err)
	}
}

func TestArgumentsThatMakeNoSenseAreSaid(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-db", "mysql://secret@host/db"}, {"-no-such-flag"}} {
		var out, errOut strings.Builder
		if code := run(args, &out, &errOut, errands()); code != 2 || errOut.Len() == 0 {
			t.Errorf("%q: exit status %d, stderr %q; want 2 and a reason", args, code, errOut.String())
		}
		if strings.Contains(errOut.String(), "secret") {
			t.Errorf("it repeats what may be a password: %s", errOut.String())
		}
	}
}

func TestJudge(t *testing.T) {
	wanted := []errand{
		{transfer{From: "ann", To: "ben", Cents: 100, Memo: "a"}, []string{written}, false},
		{transfer{From: "ben", To: "ann", Cents: 30, Memo: "b"}, nil, true},
	}
	// fresh is a run in which all is well.
	fresh := func() (tx, without result) {
		for i, r := range []*result{&tx, &without} {
			*r = result{
				mode: transactional, errands: wanted, kills: 1, killedAt: map[string]int{written: 1},
				told:  map[string][]told{"a": {{Entry: 1}}, "b": {{Entry: 2}, {Entry: 2}}},
				books: books{balances: map[string]int64{"ann": opening - 70, "ben": opening + 70, "cleo": opening, "dan": opening}},
			}
			for n, e := range wanted {
				e.ID = int64(n + 1)
				r.books.transfers = append(r.books.transfers, e.transfer)
			}
			if i == 1 {
				r.mode = plain
				r.told["a"] = []told{{Unknown: true, Why: "409"}}
			}
		}
		return tx, without
	}
	for _, tc := range []struct {
		name   string
		change func(tx, without *result)
		ok     bool
	}{
		{"all is well", func(tx, without *result) {}, true},
		{"a transfer is there twice, and the accounts say so", func(tx, _ *result) {
			tx.books.transfers = append(tx.books.transfers, transfer{3, "ann", "ben", 100, "a"})
			tx.books.balances["ann"] -= 100
			tx.books.balances["ben"] += 100
		}, false},
		{"a transfer is there twice without transactions", func(_, without *result) {
			without.books.transfers = append(without.books.transfers, transfer{3, "ann", "ben", 100, "a"})
			without.books.balances["ann"] -= 100
			without.books.balances["ben"] += 100
		}, false},
		{"a transfer took money from one account only", func(tx, _ *result) { tx.books.balances["ben"] -= 100 }, false},
		{"money moved without a transfer", func(tx, _ *result) { tx.books.balances["ann"]--; tx.books.balances["dan"]++ }, false},
		{"a client was told of a transfer that is not there", func(tx, _ *result) {
			tx.books.transfers = tx.books.transfers[:1]
			tx.books.balances["ann"] -= 30
			tx.books.balances["ben"] += 30
		}, false},
		{"a client was told of another entry", func(tx, _ *result) { tx.told["a"][0].Entry = 2 }, false},
		{"a twin was told of another entry", func(tx, _ *result) { tx.told["b"][1].Entry = 1 }, false},
		{"a client was told that nobody knows", func(tx, _ *result) { tx.told["a"][0] = told{Unknown: true} }, false},
		{"a twin was told of an error", func(tx, _ *result) { tx.told["b"][1] = told{Why: "503"} }, false},
		{"a twin was not sent", func(tx, _ *result) { tx.told["b"] = tx.told["b"][:1] }, false},
		{"a twin ran", func(tx, _ *result) { tx.twinsRan = 1 }, false},
		{"the server was not killed", func(tx, _ *result) { tx.kills, tx.killedAt = 0, nil }, false},
		{"the server was killed at another point", func(tx, _ *result) { tx.killedAt = map[string]int{begun: 1} }, false},
		{"nothing was unknown without transactions", func(_, without *result) { without.told["a"] = []told{{Entry: 1}} }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tx, without := fresh()
			tc.change(&tx, &without)
			if verdict, ok := judge(tx, without); ok != tc.ok {
				t.Errorf("got %v (%s), want %v", ok, verdict, tc.ok)
			}
		})
	}
}
