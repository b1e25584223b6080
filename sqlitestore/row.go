package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"time"

	"github.com/oncehttp/oncehttp"
)

// version is that of the tables.
const version = 1

// What is kept of a key. Times are microseconds on the store's clock. A table with
// row ids, since rows that stand in the order in which they came fill their pages;
// only the index of keys is written to all over.
//
// What asks for records that run, or that are due to go, takes the second index:
// those that run are few among those that are done.
var schema = []string{
	`CREATE TABLE IF NOT EXISTS oncehttp_meta (
	id      INTEGER PRIMARY KEY CHECK (id = 1),
	version INTEGER NOT NULL,
	skew    INTEGER NOT NULL,
	late    INTEGER NOT NULL
)`,
	`INSERT OR IGNORE INTO oncehttp_meta (id, version, skew, late) VALUES (1, 1, 0, 0)`,
	`CREATE TABLE IF NOT EXISTS oncehttp_records (
	id          INTEGER PRIMARY KEY,
	key         BLOB NOT NULL,
	token       BLOB NOT NULL, -- empty: nobody's, since an operator resolved it
	fingerprint BLOB,          -- NULL: all zero
	binding     BLOB,          -- NULL: all zero
	born        INTEGER NOT NULL,
	lapses      INTEGER NOT NULL,
	keep        INTEGER NOT NULL,
	expires     INTEGER NOT NULL,
	holder      INTEGER NOT NULL,
	state       INTEGER NOT NULL, -- 0 claimed, 1 done, 2 done but its body was dropped
	owner       INTEGER,       -- the store whose transactional claim this is
	head        BLOB,
	body        BLOB
)`,
	`CREATE UNIQUE INDEX IF NOT EXISTS oncehttp_key ON oncehttp_records (key)`,
	`CREATE INDEX IF NOT EXISTS oncehttp_due ON oncehttp_records (state, expires)`,
}

const (
	stateClaimed = 0
	stateDone    = 1
	stateDropped = 2
)

const (
	columns = `id, key, token, fingerprint, binding, born, lapses, keep, expires, holder, state, owner`

	sqlMeta     = `SELECT version, skew, late FROM oncehttp_meta WHERE id = 1`
	sqlTellMeta = `UPDATE oncehttp_meta SET skew = ?1, late = max(late, ?2) WHERE id = 1`

	sqlLoad = `SELECT ` + columns + `, head, body FROM oncehttp_records WHERE key = ?1`

	sqlLoadState = `SELECT token, lapses, expires, state FROM oncehttp_records WHERE key = ?1`

	sqlInsert = `INSERT INTO oncehttp_records (key, token, fingerprint, binding, born, lapses, keep, expires, holder, state, owner)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 1, 0, ?9) ON CONFLICT (key) DO NOTHING`

	// Claim repeated by its token, or TakeOver.
	sqlHold = `UPDATE oncehttp_records SET token = ?2, lapses = ?3, keep = ?4, expires = ?5, holder = ?6, owner = ?7 WHERE id = ?1`

	// A key made an orphan is one whatever becomes of the store that claimed it.
	sqlRenew = `UPDATE oncehttp_records SET lapses = ?3 + ?4, expires = ?3 + max(keep, ?4), owner = iif(?4 > 0, owner, NULL)
WHERE key = ?1 AND token = ?2 AND state = 0 AND expires > ?3`

	sqlComplete = `UPDATE oncehttp_records SET state = ?4, expires = ?3 + ?5, head = ?6, body = ?7, owner = NULL
WHERE key = ?1 AND token = ?2 AND state = 0 AND expires > ?3`

	sqlRelease = `DELETE FROM oncehttp_records WHERE key = ?1 AND token = ?2 AND state = 0`

	// A claim that was left behind, of a key that was taken over: the orphan again that
	// it was.
	sqlOrphan = `UPDATE oncehttp_records SET lapses = min(lapses, ?2), owner = NULL WHERE id = ?1`

	sqlResolve = `UPDATE oncehttp_records SET token = x'', state = ?2, expires = ?3, head = ?4, body = ?5, owner = NULL WHERE id = ?1`

	sqlRemove = `DELETE FROM oncehttp_records WHERE id = ?1`

	sqlExpired = `SELECT id, ifnull(length(head), 0) + ifnull(length(body), 0) FROM oncehttp_records
WHERE state = ?1 AND expires <= ?2 ORDER BY expires LIMIT ?3`

	sqlDue = `SELECT min(expires) FROM oncehttp_records WHERE state = ?1`
)

// A row is what the file has of a key.
type row struct {
	id                          int64
	key, token                  []byte
	fingerprint, binding        [32]byte
	born, lapses, keep, expires int64
	holder                      int64
	state                       int64
	owner                       int64 // 0: none
	head, body                  []byte
}

// load reads the row of a key. There need not be one.
func load(ctx context.Context, stmt *sql.Stmt, key string) (r row, found bool, err error) {
	rows, err := stmt.QueryContext(ctx, []byte(key))
	if err != nil {
		return r, false, err
	}
	defer rows.Close()
	if !rows.Next() {
		return r, false, rows.Err()
	}
	if err := r.scan(rows, &r.head, &r.body); err != nil {
		return r, false, err
	}
	return r, true, rows.Close()
}

// scan reads columns, and more if there are more.
func (r *row) scan(rows *sql.Rows, more ...any) error {
	var fingerprint, binding []byte
	var owner sql.NullInt64
	dest := append([]any{&r.id, &r.key, &r.token, &fingerprint, &binding, &r.born, &r.lapses, &r.keep, &r.expires,
		&r.holder, &r.state, &owner}, more...)
	if err := rows.Scan(dest...); err != nil {
		return err
	}
	copy(r.fingerprint[:], fingerprint)
	copy(r.binding[:], binding)
	r.owner = owner.Int64
	return nil
}

// digest is how a fingerprint or binding is kept.
func digest(d *[32]byte) any {
	if *d == [32]byte{} {
		return nil
	}
	return d[:]
}

// status is the row's state at a time. transacting: a transaction holds the claim,
// or will as soon as it can begin, so that it runs however long ago its lease
// lapsed.
func (r *row) status(now int64, transacting bool) oncehttp.ClaimStatus {
	switch {
	case r.state != stateClaimed:
		return oncehttp.ClaimDone
	case now < r.lapses || transacting:
		return oncehttp.ClaimRunning
	}
	return oncehttp.ClaimOrphaned
}

// claim is what somebody who does not hold the key is told.
func (r *row) claim(now int64, status oncehttp.ClaimStatus) oncehttp.Claim {
	c := oncehttp.Claim{
		Status:      status,
		Fingerprint: r.fingerprint,
		Binding:     r.binding,
		Left:        duration(r.expires - now),
		Holder:      int(r.holder),
	}
	switch status {
	case oncehttp.ClaimRunning:
		c.Left = duration(r.lapses - now)
		if c.Left <= 0 {
			c.Left = time.Second // nobody knows how long the transaction takes
		}
	case oncehttp.ClaimDone:
		c.Head, c.Body, c.BodyDropped = r.head, r.body, r.state == stateDropped
	}
	return c
}

// micros rounds up: the shortest lease is not none.
func micros(d time.Duration) int64 {
	m := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		m++
	}
	return m
}

// duration is a number of microseconds, or the longest duration there is.
func duration(micros int64) time.Duration {
	if micros > math.MaxInt64/int64(time.Microsecond) {
		return math.MaxInt64
	}
	return time.Duration(micros) * time.Microsecond
}

func (s *Store) status(r *row, now int64) oncehttp.ClaimStatus {
	return r.status(now, s.isTransacting(r))
}

// foreign reports whether the row is a transactional claim of another store on
// this file: in another process, or of one that has ended.
func (s *Store) foreign(r *row) bool {
	return r.state == stateClaimed && r.owner != 0 && r.owner != s.id
}

// overdue is when the holder of a transactional claim has had its lease to come, and
// then the time to wait for the write lock.
func (s *Store) overdue(r *row) int64 { return r.lapses + micros(s.busy()) }

var errVanished = errors.New("a record that could not be inserted is not there")
