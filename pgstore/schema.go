package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// version is that of the table. It stands in the table's comment.
const version = 1

const defaultTable = "oncehttp_records"

// Schema returns the SQL that makes the table, for people who run migrations
// themselves, and the view tool_executions (of a table of another name: that name
// and _tool_executions), which shows operators the calls of tools that package toolcall
// has recorded. It may be run again: what is there already stays as it is. The
// version of the table is part of its comment, and is looked at before the store
// uses the table.
func (s *Store) Schema() string { return schema(s.table) + viewOf(s.table) }

// Migrate makes the table and the view unless they are there. For that it needs the right to
// create tables; the store itself needs SELECT, INSERT, UPDATE and DELETE on it and
// no more. The schema must be there. It may run in several processes at once.
func (s *Store) Migrate(ctx context.Context) error {
	if s.bad != nil {
		return s.bad
	}
	for range 10 {
		_, err := s.look(ctx)
		if err == nil {
			s.makeView(ctx)
		}
		if !errors.Is(err, errNoTable) {
			return err
		}
		err = s.db.script(ctx, schema(s.table))
		switch {
		case meanwhile(err):
		case state(err) == "3F000":
			return fmt.Errorf("pgstore: migrate: %w: make the schema of %s first", err, s.table)
		case err != nil:
			return s.explain("migrate", err)
		}
	}
	return errors.New("pgstore: migrate: others make and drop the table all the time")
}

// meanwhile reports whether somebody makes the same thing at the same time.
func meanwhile(err error) bool {
	switch state(err) {
	case "23505", "42P07", "42710", "42723", "XX000":
		return true
	}
	return false
}

// A record is one row. What only a running claim needs is NULL once it is done. The
// index has a digest of the key, because that is shorter: an index that is half as
// large stays in memory twice as long, and keys may have any length.
//
// Renew and Complete change no column that has an index, and pages keep some room,
// so that their new row versions stay on the page and the index is not touched
// (heap-only tuples). There is no index on expires for this reason: Sweep reads
// the table itself, some pages at a time.
const schemaText = `CREATE TABLE IF NOT EXISTS {table} (
	born     timestamptz NOT NULL,  -- when the key was first claimed
	expires  timestamptz NOT NULL,  -- when the record is forgotten
	lapses   timestamptz,           -- when the lease ends; NULL: done
	begins   timestamptz,           -- a transactional claim: from then on nobody holds it whose transaction has not locked the row
	keep     bigint,                -- microseconds for which an orphaned record is kept
	holder   integer     NOT NULL,  -- how many tokens have held the key
	waited   boolean,               -- somebody waits to be notified
	id       uuid        NOT NULL PRIMARY KEY, -- the first half of the key's SHA-256
	key      bytea       NOT NULL,
	token    bytea       NOT NULL,
	ident    bytea       NOT NULL,  -- fingerprint and binding
	head     bytea,
	body     bytea
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.1);
COMMENT ON TABLE {table} IS 'oncehttp records, version {version}';
`

func schema(table string) string {
	return strings.NewReplacer("{table}", table, "{version}", fmt.Sprint(version)).Replace(schemaText)
}

// quoteTable checks and quotes the name of a table, with or without a schema.
func quoteTable(name string) (string, error) {
	parts := strings.Split(name, ".")
	if len(parts) > 2 {
		return "", fmt.Errorf("pgstore: WithTable: %q has more than a schema and a name", name)
	}
	for i, p := range parts {
		switch {
		case p == "":
			return "", fmt.Errorf("pgstore: WithTable: %q has an empty part", name)
		case len(p) > 63: // Postgres would cut it off, and two names could become one
			return "", fmt.Errorf("pgstore: WithTable: a part of %q is longer than 63 bytes", name)
		case strings.ContainsAny(p, "\x00'\\"):
			return "", fmt.Errorf("pgstore: WithTable: %q has a byte that no name needs", name)
		}
		parts[i] = `"` + strings.ReplaceAll(p, `"`, `""`) + `"`
	}
	return strings.Join(parts, "."), nil
}
