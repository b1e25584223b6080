package pgstore_test

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/pgstore"
)

// realistic is how a Middleware records a small answer: keys of 44 bytes, and a
// head with the one header field that every API sends.
func realistic(n int64) (op oncehttp.Op, head []byte) {
	op = oncehttp.Op{Key: "or1_" + oncehttp.DeriveKey("record", strconv.FormatInt(n, 10))[4:], Token: oncehttp.NewToken()}
	for i := range op.Fingerprint {
		op.Fingerprint[i], op.Binding[i] = byte(n)+byte(i), byte(n>>8)^byte(i)
	}
	head = []byte("\x01\x00\xc9\x01\x00\x01\x0cContent-Type\x01\x10application/json\x00")
	return op, head
}

func TestARecordWithoutABodyTakesAtMost400Bytes(t *testing.T) {
	const records, limit = 100_000, 400
	pg := services.Postgres(t)
	db := pg.Database(t)
	s := migrated(t, pgstore.New(openPool(t, pg.DSN(db), 8), quiet))
	t.Cleanup(s.Close)

	var next atomic.Int64
	fill := func(until int64) {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for n := next.Add(1); n <= until; n = next.Add(1) {
					op, head := realistic(n)
					if _, err := s.Claim(context.Background(), op, 30*time.Second, time.Hour); err != nil {
						t.Error(err)
						return
					}
					if err := s.Complete(context.Background(), op, head, nil, 24*time.Hour); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		next.Store(until)
	}
	// What autovacuum does every minute: the room that finished claims leave on
	// their pages is used again only after it.
	for i := range int64(10) {
		fill((i + 1) * records / 10)
		if i < 9 {
			pg.SQL(t, db, "vacuum oncehttp_records")
		}
	}
	bytes := pg.SQL(t, db, "select pg_total_relation_size('oncehttp_records')")
	n, err := strconv.ParseFloat(bytes, 64)
	if err != nil {
		t.Fatal(err)
	}
	pg.SQL(t, db, "select pg_stat_force_next_flush()")
	t.Logf("%s bytes for %d records: %.0f each; %s", bytes, records, n/records, pg.SQL(t, db, `select
		'table '||pg_relation_size('oncehttp_records')/100000||', index '||pg_relation_size('oncehttp_records_pkey')/100000||', updates '||n_tup_upd||', heap-only '||n_tup_hot_upd
		from pg_stat_user_tables where relname='oncehttp_records'`))
	if n/records > limit {
		t.Errorf("got %.0f bytes a record, want at most %d", n/records, limit)
	}
}
