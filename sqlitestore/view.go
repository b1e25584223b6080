package sqlitestore

import (
	"context"
	"database/sql"
)

// sqlView makes the view that operators see the calls of tools in: what package toolcall
// and adapters/mcp have recorded, whose heads are JSON objects with a member "tool". What
// the tools returned is not in it, only how much. It is no part of the tables' version:
// a program that does not know it goes on without it.
//
// The time is asked for in a way that the shells of old systems know too.
//
// Heads are opaque bytes. So h is NULL for one that is no JSON: a function for JSON would
// fail on it, and with it the whole query.
const sqlView = `CREATE VIEW IF NOT EXISTS tool_executions AS
SELECT CAST(key AS TEXT) AS idempotency_key,
	json_extract(h, '$.tool') AS tool_name,
	CASE WHEN state = 2 THEN '[dropped]' WHEN length(body) > 0 THEN '[redacted, ' || length(body) || ' bytes]' END AS result,
	strftime('%Y-%m-%dT%H:%M:%SZ', (born + skew) / 1000000, 'unixepoch') AS created_at,
	strftime('%Y-%m-%dT%H:%M:%SZ', (expires + skew) / 1000000, 'unixepoch') AS expires_at,
	json_extract(h, '$.status') AS status,
	json_extract(h, '$.error_type') AS error_type,
	json_extract(h, '$.outcome') AS outcome,
	json_extract(h, '$.attempts') AS attempts,
	holder AS holders
FROM (
	SELECT r.*, m.skew, CASE WHEN json_valid(CAST(r.head AS TEXT)) THEN CAST(r.head AS TEXT) END AS h
	FROM oncehttp_records AS r JOIN oncehttp_meta AS m ON m.id = 1
	WHERE r.state <> 0 AND instr(r.head, CAST('"tool"' AS BLOB)) > 0
)
WHERE json_type(h, '$.tool') = 'text' AND expires + skew > (julianday('now') - 2440587.5) * 86400000000`

// makeView makes it in a file of an older version, unless something else has its name.
func makeView(ctx context.Context, conn *sql.Conn) error {
	var there bool
	err := conn.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'tool_executions' COLLATE NOCASE)`).Scan(&there)
	if err != nil || there {
		return err
	}
	_, err = conn.ExecContext(ctx, sqlView)
	return err
}
