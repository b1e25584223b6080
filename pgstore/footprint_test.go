package pgstore_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/pgstore"
)

func TestARecordWithoutABodyTakesAtMost400Bytes(t *testing.T) {
	t.Parallel()
	const records, limit = 20_000, 400
	pg := services.Postgres(t)
	db := pg.Database(t)
	s := migrated(t, pgstore.New(openPool(t, pg.DSN(db), 1), quiet))
	t.Cleanup(s.Close)

	// pgbench runs the statements of 8 clients, in rounds between which the table
	// is vacuumed, as autovacuum does every minute: the room that finished claims
	// leave on their pages is used again only after it.
	claim, complete := s.Statements()
	const rounds, clients = 5, 8
	for round := range rounds {
		if round > 0 {
			query(t, pg, db, "vacuum oncehttp_records")
		}
		pgbench(t, pg, db, clients, pgbenchFirst(claim, complete), "-t", strconv.Itoa(records/rounds/clients))
	}
	if got := count(t, pg, db, "lapses is null"); got != records {
		t.Fatalf("got %d done records, want %d", got, records)
	}
	bytes := query(t, pg, db, "select pg_total_relation_size('oncehttp_records')")
	n, err := strconv.ParseFloat(bytes, 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s bytes for %d records: %.0f each; %s", bytes, records, n/records, query(t, pg, db, fmt.Sprintf(`select
		'table '||pg_relation_size('oncehttp_records')/%[1]d||', index '||pg_relation_size('oncehttp_records_pkey')/%[1]d||', updates '||n_tup_upd||', heap-only '||n_tup_hot_upd
		from pg_stat_user_tables where relname='oncehttp_records'`, records)))
	if n/records > limit {
		t.Errorf("got %.0f bytes a record, want at most %d", n/records, limit)
	}
}
