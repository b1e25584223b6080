package pgstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/pgstore"
	"github.com/oncehttp/oncehttp/toolcall"
)

func TestOperatorsSeeWhatToolsWereRunButNotWhatTheyReturned(t *testing.T) {
	pg := services.Postgres(t)
	for name, view := range map[string]string{
		"oncehttp_records":         `"tool_executions"`,
		"billing.once":             `"billing"."once_tool_executions"`,
		"Odd \"name":               `"Odd ""name_tool_executions"`,
		strings.Repeat("long", 15): "", // what the server would cut off
	} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			db := pg.Database(t)
			query(t, pg, db, "create schema billing")
			p := openPool(t, pg.DSN(db), 8)
			if view == "" {
				view = pgstore.ViewName(name)
				if len(view) > 63 {
					t.Errorf("got a view of the name %s, which is too long", view)
				}
			}
			s := migrated(t, pgstore.New(p, quiet, pgstore.WithTable(name)))
			t.Cleanup(s.Close)
			r := &toolcall.Runner{Scope: "acme/agent", Store: s}
			ok := func(context.Context, json.RawMessage) (any, error) {
				return map[string]string{"iban": "DE89 canary"}, nil
			}
			if err := r.Register(
				toolcall.Tool{Name: "refund", Call: ok},
				toolcall.Tool{Name: `odd "näme" \u0000`, Call: ok},
				toolcall.Tool{Name: "part", Call: func(context.Context, json.RawMessage) (any, error) {
					return nil, &toolcall.Error{Type: toolcall.TypeDegraded, Details: "a \x00\x00 canary \\\x00"}
				}},
				toolcall.Tool{Name: "lost", Call: func(context.Context, json.RawMessage) (any, error) { return nil, errors.New("canary") }},
			); err != nil {
				t.Fatal(err)
			}
			args := json.RawMessage(`{"note":"canary"}`)
			res := r.Turn("turn_01", toolcall.Budget{}).Do(ctx, toolcall.Call{Tool: "refund", Args: args}, toolcall.Call{Tool: `odd "näme" \u0000`, Args: args},
				toolcall.Call{Tool: "part", Args: args}, toolcall.Call{Tool: "lost", Args: args})
			complete := func(key, head string, keep time.Duration) {
				t.Helper()
				op := newOp(key)
				mustClaim(t, s, op, oncehttp.ClaimAcquired)
				if err := s.Complete(ctx, op, []byte(head), nil, keep); err != nil {
					t.Fatal(err)
				}
			}
			// Records of others, whose heads are anything.
			for i, head := range []string{"", "\x00", "{", `"tool"`, `{"tool":7}`, `{"tool":null}`, `["tool"]`, "{\"tool\":\"\xff\"}", "\xff\"tool\"\x00", "{\"tool\":\"a\x00b\"}",
				`{"tool":{}}`, `[{"tool":"x"}]`, "\x01\x02HTTP/1.1 200 \"tool\"", `{"tool":"\ud800"}`, `{"tool":"x","n":1e999999}`, strings.Repeat("[", 100_000) + `"tool"`} {
				complete(fmt.Sprint("other ", i), head, keep)
			}
			complete("expired", `{"tool":"expired"}`, time.Microsecond)
			want := []string{
				res[1].Key + ` odd "näme" \u0000 [redacted, 22 bytes] ok  applied 1 1`,
				res[2].Key + ` part  degraded degraded applied 1 1`,
				res[0].Key + ` refund [redacted, 22 bytes] ok  applied 1 1`,
			}
			// Whoever may read the view need not be able to read the table.
			query(t, pg, db, "create role operator_"+db+" login; grant usage on schema billing to operator_"+db)
			operator := openPool(t, strings.Replace(pg.DSN(db), "postgres@", "operator_"+db+"@", 1), 2)
			for range 2 {
				query(t, pg, db, "grant select on "+view+" to operator_"+db)
				rows, err := operator.Query(ctx, `select concat_ws(' ', idempotency_key, tool_name, coalesce(result, ''), status, coalesce(error_type, ''), outcome, attempts, holders)
					from `+view+` where created_at between now() - interval '1 minute' and now() and expires_at > now() + interval '1 minute' order by tool_name collate "C"`)
				if err != nil {
					t.Fatal(err)
				}
				var got []string
				for rows.Next() {
					var line string
					if err := rows.Scan(&line); err != nil {
						t.Fatal(err)
					}
					got = append(got, strings.ReplaceAll(line, "  degraded", " degraded"))
				}
				if err := rows.Err(); err != nil {
					t.Fatal(err)
				}
				all := strings.Join(got, "\n")
				if w := strings.ReplaceAll(strings.Join(want, "\n"), "  degraded", " degraded"); all != w {
					t.Errorf("got\n%s\nwant\n%s", all, w)
				}
				if strings.Contains(all, "canary") {
					t.Error("the view shows what it must not")
				}
				if _, err := operator.Exec(ctx, "select * from "+pgstore.QuoteTable(name)); err == nil {
					t.Error("who may read the view can read the table")
				}
				// An older version's table has no view, and gets it by Migrate.
				query(t, pg, db, "drop view "+view)
				migrated(t, pgstore.New(p, quiet, pgstore.WithTable(name)))
			}
			query(t, pg, db, s.Schema()) // which may be run again
		})
	}
}

func TestTheViewLeavesATableOfItsNameAlone(t *testing.T) {
	pg := services.Postgres(t)
	db := pg.Database(t)
	query(t, pg, db, "create table tool_executions (mine text); insert into tool_executions values ('kept')")
	s := migrated(t, pgstore.New(openPool(t, pg.DSN(db), 2), quiet))
	t.Cleanup(s.Close)
	mustClaim(t, s, newOp("k"), oncehttp.ClaimAcquired)
	if got := query(t, pg, db, "select mine from tool_executions"); strings.TrimSpace(got) != "kept" {
		t.Errorf("got %q", got)
	}
}
