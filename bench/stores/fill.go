package main

import (
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/pgstore"
	"github.com/oncehttp/oncehttp/sqlitestore"
)

// Tables are filled past the store, for it would take hours: with rows as the store
// makes them, in the order in which it would. That they are such rows is seen when
// the store replays them.

// fillStep is how many rows are made in one transaction.
const fillStep = 100_000

// filledSQLite returns a store in a new file with so many records.
func filledSQLite(h *host, records int) grownTable {
	file := filepath.Join(h.TempDir(), "once.db")
	s, err := sqlitestore.Open(file)
	h.need(err)
	firstRecord(h, s)
	h.need(s.Close())
	fillSQLite(h, file, records)
	s, err = sqlitestore.Open(file)
	h.need(err)
	h.Cleanup(func() { s.Close() })
	return grownTable{s, records, func() (int64, bool) { return minorFaults([]int{os.Getpid()}) }}
}

func fillSQLite(h *host, file string, records int) {
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=synchronous(0)&_pragma=cache_size(-1000000)")
	h.need(err)
	defer db.Close()
	db.SetMaxOpenConns(1)
	const together = 100
	insert := `INSERT INTO oncehttp_records (key, token, fingerprint, binding, born, lapses, keep, expires, holder, state, owner, head, body)
		SELECT CAST(new.column1 AS BLOB), randomblob(length(token)), randomblob(32), randomblob(32), born, lapses, keep, expires, holder, state, owner, head, body
		FROM (VALUES ` + strings.Repeat("(?),", together-1) + `(?)) AS new, (SELECT * FROM oncehttp_records WHERE id = 1) AS old`
	for i := 1; i < records; {
		tx, err := db.Begin()
		h.need(err)
		many, err := tx.Prepare(insert)
		h.need(err)
		for until := min(i+fillStep, records); i < until; {
			n := min(together, until-i)
			args := make([]any, n)
			for j := range args {
				args[j] = growthKey(i + j)
			}
			if n == together {
				_, err = many.Exec(args...)
			} else {
				_, err = tx.Exec(strings.Replace(insert, strings.Repeat("(?),", together-1), strings.Repeat("(?),", n-1), 1), args...)
			}
			h.need(err)
			i += n
		}
		h.need(tx.Commit())
		fillProgress(h, "SQLite", i, records)
	}
	_, err = db.Exec("PRAGMA wal_checkpoint(TRUNCATE)")
	h.need(err)
}

// filledPostgres returns what makes stores with so many records in a table of their
// own.
func filledPostgres(pg *services.PG) func(h *host, records int) grownTable {
	return func(h *host, records int) grownTable {
		db := pg.Database(h)
		s := openPostgres(h, pg.DSN(db), 8, nil, pgstore.WithoutSweep())
		firstRecord(h, s)
		for i := 1; i < records; i += fillStep {
			last := min(i+fillStep, records) - 1
			pg.SQL(h, db, fmt.Sprintf(`INSERT INTO oncehttp_records (id, key, token, ident, born, expires, lapses, begins, keep, holder, waited, head, body)
				SELECT encode(substr(sha256(new.key), 1, 16), 'hex')::uuid, new.key, substr(sha256(new.key || 'token'), 1, length(old.token)),
					sha256(new.key || 'a') || sha256(new.key || 'b'), born, expires, lapses, begins, keep, holder, waited, head, body
				FROM (SELECT ('or1_' || substr(encode(sha256(i::text::bytea), 'hex'), 1, 40))::bytea AS key FROM generate_series(%d, %d) i) new,
					(SELECT * FROM oncehttp_records WHERE id = '%s') old`, i, last, postgresID(growthKey(0))))
			fillProgress(h, "Postgres", last+1, records)
		}
		pg.SQL(h, db, "vacuum (analyze) oncehttp_records")
		pg.SQL(h, db, "checkpoint")
		backends := backendsOf(h, pg, db) // by now the pool has all of its connections
		return grownTable{s, records, func() (int64, bool) { return minorFaults(backends) }}
	}
}

// backendsOf are the server's processes for the connections to a database, of which
// each has one.
func backendsOf(h *host, pg *services.PG, db string) (pids []int) {
	for _, pid := range strings.Fields(pg.SQL(h, db, "select pid from pg_stat_activity where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()")) {
		n, err := strconv.Atoi(pid)
		h.need(err)
		pids = append(pids, n)
	}
	return pids
}

func fillProgress(h *host, store string, done, of int) {
	if done%1_000_000 == 0 {
		h.progress("%s: %s of %s records", store, thousands(float64(done)), thousands(float64(of)))
	}
}

// postgresID is what a key's row is found by.
func postgresID(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:16])
}
