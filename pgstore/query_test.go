package pgstore_test

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/oncehttp/oncehttp/internal/services"
)

// query runs statements in a database, and returns what psql prints of them. It does
// so on a connection that is kept until the test ends: on some machines a new one, and
// psql, take longer than most tests otherwise do.
func query(t testing.TB, pg *services.PG, db, statements string) string {
	t.Helper()
	v, _ := queriers.LoadOrStore(db, new(querier)) // no two databases have the same name
	q := v.(*querier)
	q.Lock()
	defer q.Unlock()
	if q.conn == nil {
		conn, err := pgx.Connect(context.Background(), pg.DSN(db))
		if err != nil {
			t.Fatal(err)
		}
		q.conn = conn
		t.Cleanup(func() {
			q.Lock()
			defer q.Unlock()
			q.conn.Close(context.Background())
			q.conn = nil
		})
	}
	results, err := q.conn.PgConn().Exec(context.Background(), statements).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, r := range results {
		for _, row := range r.Rows {
			lines = append(lines, string(bytes.Join(row, []byte("|"))))
		}
	}
	return strings.Join(lines, "\n")
}

// A querier is the connection to a database that query keeps.
type querier struct {
	sync.Mutex
	conn *pgx.Conn
}

var queriers sync.Map // by database
