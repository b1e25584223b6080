package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/oncehttp/oncehttp"
)

// state returns the SQLSTATE that the server gave an error, or "". Drivers agree
// on the method, not on the type.
func state(err error) string {
	var coded interface{ SQLState() string }
	if errors.As(err, &coded) {
		return coded.SQLState()
	}
	return ""
}

const (
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	failedTransaction    = "25P02"
	noSavepoint          = "3B001" // work has ended the transaction, and begun another
)

// disconnected reports whether err is of the connection and not of a statement.
// Whether the statement took effect is then not known.
func disconnected(err error) bool {
	switch code := state(err); {
	case code == "":
		return err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
	case code[:2] == "08", code == "57P01", code == "57P02", code == "57P03", code == "57P05":
		return true // connection exception; shutdown; crash; start-up; idle session
	}
	return false
}

// losses counts what a call has lost to connections that broke. Its zero value is ready
// to use.
type losses struct{ met, idle, others int }

// another reports whether another connection may be better than the one that err is of.
// A pool may hold many that a server has ended, and shows that one by one, to whoever
// uses them; each is met once. They are those that were idle at the first loss: who uses
// one now will see by itself, and one that was made since then says that the server is
// not well. Beyond those there are two more tries.
func (l *losses) another(db database, err error) bool {
	if !disconnected(err) {
		return false
	}
	if connect := (*pgconn.ConnectError)(nil); !errors.As(err, &connect) {
		if l.met == 0 {
			l.idle = db.idle()
		}
		if l.met++; l.met <= l.idle {
			return true
		}
	}
	l.others++
	return l.others <= 2
}

// explain says what to do about an error, where that is known.
func (s *Store) explain(what string, err error) error {
	wrap := func(advice string) error { return fmt.Errorf("pgstore: %s: %w: %s", what, err, advice) }
	switch state(err) {
	case "42P05", "26000":
		return wrap("prepared statements do not survive the pooler between us and the server: " +
			"set default_query_exec_mode=exec in the connection string")
	case "42P01":
		return wrap("the table " + s.table + " is not there: call Migrate, or run what Schema returns")
	case "42703":
		return wrap("the table " + s.table + " is not one of this version: compare it with what Schema returns")
	case "42501":
		return wrap("the store needs SELECT, INSERT, UPDATE and DELETE on " + s.table + ", and Migrate the right to create it")
	case "25006":
		return wrap("this server is a standby, or was the primary: set target_session_attrs=read-write in the connection string")
	case "53100":
		return fmt.Errorf("pgstore: %s: %w: %w", what, oncehttp.ErrFull, err)
	case "53300":
		return wrap("the server has no connection left: lower the pool's maximum, or raise max_connections")
	}
	return fmt.Errorf("pgstore: %s: %w", what, err)
}
