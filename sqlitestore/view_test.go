package sqlitestore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp/toolcall"
)

// seen is what the view shows, a line for each row.
func seen(t *testing.T, db *sql.DB) (lines []string) {
	t.Helper()
	rows, err := db.Query(`SELECT idempotency_key, tool_name, result, created_at, expires_at, status, error_type, outcome, attempts, holders FROM tool_executions ORDER BY tool_name`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var key, tool, result, created, expires, status, errorType, outcome, attempts, holders sql.NullString
		if err := rows.Scan(&key, &tool, &result, &created, &expires, &status, &errorType, &outcome, &attempts, &holders); err != nil {
			t.Fatal(err)
		}
		at, err := time.Parse(time.RFC3339, created.String)
		until, err2 := time.Parse(time.RFC3339, expires.String)
		if err = errors.Join(err, err2); err != nil || time.Since(at).Abs() > time.Minute || time.Until(until) < 23*time.Hour {
			t.Errorf("%s: got created_at %s, expires_at %s: %v", key.String, created.String, expires.String, err)
		}
		lines = append(lines, fmt.Sprintf("%s %s %s %s %s %s %s %s", key.String, tool.String, result.String, status.String, errorType.String, outcome.String, attempts.String, holders.String))
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestOperatorsSeeWhatToolsWereRunButNotWhatTheyReturned(t *testing.T) {
	path := filepath.Join(t.TempDir(), "once.db")
	s := open(t, path)
	r := &toolcall.Runner{Scope: "acme/agent", Store: s}
	ok := func(context.Context, json.RawMessage) (any, error) {
		return map[string]string{"iban": "DE89 canary"}, nil
	}
	if err := r.Register(
		toolcall.Tool{Name: "refund", Call: ok},
		toolcall.Tool{Name: `odd "näme" \u0000`, Call: ok},
		toolcall.Tool{Name: "part", Call: func(context.Context, json.RawMessage) (any, error) {
			return nil, &toolcall.Error{Type: toolcall.TypeDegraded, Details: "a \x00 canary", Result: nil}
		}},
		toolcall.Tool{Name: "lost", Call: func(context.Context, json.RawMessage) (any, error) { return nil, errors.New("canary") }},
	); err != nil {
		t.Fatal(err)
	}
	turn := r.Turn("turn_01", toolcall.Budget{})
	args := json.RawMessage(`{"note":"canary"}`)
	res := turn.Do(t.Context(), toolcall.Call{Tool: "refund", Args: args}, toolcall.Call{Tool: `odd "näme" \u0000`, Args: args},
		toolcall.Call{Tool: "part", Args: args}, toolcall.Call{Tool: "lost", Args: args})
	db := raw(t, path, "")
	// Records of others, whose heads are anything.
	for i, head := range []string{"", "\x00", "{", `"tool"`, `{"tool":7}`, `{"tool":null}`, `["tool"]`, "{\"tool\":\"\xff", "\xff\"tool\"\x00", `{"tool":{}}`, `[{"tool":"x"}]`, "\x01\x02HTTP/1.1 200 \"tool\""} {
		op := newOp(fmt.Sprint("other ", i))
		if _, err := s.Claim(t.Context(), op, day, day); err != nil {
			t.Fatal(err)
		}
		if err := s.Complete(t.Context(), op, []byte(head), nil, day); err != nil {
			t.Fatal(err)
		}
	}
	expired := newOp("expired")
	if _, err := s.Claim(t.Context(), expired, day, day); err != nil {
		t.Fatal(err)
	}
	if err := s.Complete(t.Context(), expired, []byte(`{"tool":"expired"}`), nil, time.Microsecond); err != nil {
		t.Fatal(err)
	}
	mustExec(t, db, `UPDATE oncehttp_records SET expires = expires - 1000000 WHERE key = CAST('expired' AS BLOB)`)
	want := []string{
		res[1].Key + ` odd "näme" \u0000 [redacted, 22 bytes] ok  applied 1 1`,
		res[2].Key + ` part  degraded degraded applied 1 1`,
		res[0].Key + ` refund [redacted, 22 bytes] ok  applied 1 1`,
	}
	for range 2 {
		got := strings.Join(seen(t, db), "\n")
		if got != strings.Join(want, "\n") {
			t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
		}
		if strings.Contains(got, "canary") {
			t.Error("the view shows what it must not")
		}
		// An older version's file has no view, and gets it when it is opened.
		s.Close()
		mustExec(t, db, `DROP VIEW tool_executions`)
		s = open(t, path)
	}
}

func TestTheViewLeavesATableOfItsNameAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shop.db")
	db := raw(t, path, "")
	mustExec(t, db, `CREATE TABLE Tool_Executions (mine TEXT)`)
	mustExec(t, db, `INSERT INTO tool_executions VALUES ('kept')`)
	s := open(t, path)
	if _, err := s.Claim(t.Context(), newOp("k"), day, day); err != nil {
		t.Error(err)
	}
	var mine string
	if err := db.QueryRow(`SELECT mine FROM tool_executions`).Scan(&mine); err != nil || mine != "kept" {
		t.Errorf("got %q, %v", mine, err)
	}
}
