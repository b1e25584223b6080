package pgstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// viewText makes the view that operators see the calls of tools in: what package toolcall
// and adapters/mcp have recorded, whose heads are JSON objects with a member "tool". What
// the tools returned is not in it, only how much. It is no part of the table's version:
// a program that does not know it goes on without it.
//
// Heads are opaque bytes, and before PostgreSQL 16 only a function can try whether bytes
// are JSON. U+0000, which a jsonb cannot hold, is replaced. The view runs with its owner's
// rights, so who may read it need not be able to read the table; security_barrier keeps
// the rows that it leaves out from functions in their conditions.
const viewText = `DO $oncehttp$ BEGIN
IF to_regclass({view_text}) IS NULL THEN
	CREATE OR REPLACE FUNCTION {function}(head bytea) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog AS $head$
	BEGIN
		IF position('"tool"'::bytea IN head) = 0 THEN RETURN NULL; END IF;
		BEGIN
			RETURN regexp_replace(convert_from(head, 'UTF8'), '(?<!\\)((?:\\\\)*)\\u0000', '\1\\ufffd', 'g')::jsonb;
		EXCEPTION WHEN data_exception OR program_limit_exceeded THEN RETURN NULL;
		END;
	END $head$;
	CREATE VIEW {view} WITH (security_barrier = true) AS
	SELECT encode(key, 'escape') AS idempotency_key, h->>'tool' AS tool_name,
		CASE WHEN octet_length(body) > 0 THEN '[redacted, ' || octet_length(body) || ' bytes]' END AS result,
		born AS created_at, expires AS expires_at,
		h->>'status' AS status, h->>'error_type' AS error_type, h->>'outcome' AS outcome, h->>'attempts' AS attempts, holder AS holders
	FROM (SELECT *, {function}(head) AS h FROM {table} WHERE lapses IS NULL AND expires > statement_timestamp() OFFSET 0) AS records
	WHERE jsonb_typeof(h->'tool') = 'string';
	COMMENT ON VIEW {view} IS 'oncehttp tool executions, version 1';
END IF;
END $oncehttp$;
`

// viewOf is viewText for a table.
func viewOf(table string) string {
	view := viewName(table)
	function := view[:len(view)-1] + `_head"`
	return strings.NewReplacer("{table}", table, "{view}", view, "{function}", function, "{view_text}", "'"+view+"'").Replace(viewText)
}

// viewName is tool_executions beside the default table, and else the table's name with
// that behind it, since a schema may have several tables.
func viewName(table string) string {
	schema, name := "", table
	if i := strings.LastIndex(table, `"."`); i >= 0 {
		schema, name = table[:i+2], table[i+2:]
	}
	name = name[1 : len(name)-1]
	const suffix = "tool_executions"
	switch {
	case name == defaultTable:
		name = suffix
	case len(name)+len("_"+suffix+"_head") > 63: // the server would cut it off
		sum := sha256.Sum256([]byte(name))
		name = hex.EncodeToString(sum[:8]) + "_" + suffix
	default:
		name += "_" + suffix
	}
	return schema + `"` + name + `"`
}

// makeView makes the view beside a table of an older version. A role that may not, or
// something else of its name, is no reason not to start.
func (s *Store) makeView(ctx context.Context) {
	var err error
	for range 3 {
		err = s.db.script(ctx, viewOf(s.table))
		if !meanwhile(err) {
			break
		}
	}
	if err != nil && ctx.Err() == nil {
		s.log().Info("pgstore: the view of tool executions is not there: let a role that may create one run what Schema returns", "err", err)
	}
}
