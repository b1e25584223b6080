package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"
)

// A transfer is what a client wants: so many cents from one account to another.
type transfer struct {
	ID    int64  `json:"id,omitempty"`
	From  string `json:"from"`
	To    string `json:"to"`
	Cents int64  `json:"cents"`
	Memo  string `json:"memo"`
}

// opening is what is in each account at first.
const opening = 100_000

var owners = []string{"ann", "ben", "cleo", "dan"}

// The tables would let a transfer be entered twice: that it is not is up to the
// server.
const schema = `
CREATE TABLE accounts (owner TEXT PRIMARY KEY, cents BIGINT NOT NULL CHECK (cents >= 0));
CREATE TABLE transfers (id %s, payer TEXT NOT NULL, payee TEXT NOT NULL, cents BIGINT NOT NULL, memo TEXT NOT NULL);`

// A place is where the accounts and the records of the keys are: a SQLite file, or a
// schema of a PostgreSQL database.
type place struct{ dsn string }

func (p place) postgres() bool {
	return strings.HasPrefix(p.dsn, "postgres://") || strings.HasPrefix(p.dsn, "postgresql://")
}

func (p place) open() (*sql.DB, error) {
	if p.postgres() {
		return sql.Open("pgx", p.dsn)
	}
	return sql.Open("sqlite", "file:"+p.dsn+"?_pragma=busy_timeout(5000)")
}

// makeBooks makes the tables and opens the accounts.
func makeBooks(ctx context.Context, p place) error {
	db, err := p.open()
	if err != nil {
		return err
	}
	defer db.Close()
	id := "INTEGER PRIMARY KEY AUTOINCREMENT"
	if p.postgres() {
		id = "BIGSERIAL PRIMARY KEY"
	}
	if _, err := db.ExecContext(ctx, fmt.Sprintf(schema, id)); err != nil {
		return err
	}
	for _, o := range owners {
		if _, err := db.ExecContext(ctx, "INSERT INTO accounts VALUES ($1, $2)", o, opening); err != nil {
			return err
		}
	}
	return nil
}

var errFunds = errors.New("the payer has not that much")

// post enters a transfer: three statements that belong together.
func (x *transfer) post(ctx context.Context, tx *sql.Tx) error {
	took, err := tx.ExecContext(ctx, "UPDATE accounts SET cents = cents - $1 WHERE owner = $2 AND cents >= $1", x.Cents, x.From)
	if err != nil {
		return err
	}
	if n, err := took.RowsAffected(); err != nil || n != 1 {
		return errors.Join(err, errFunds)
	}
	if _, err := tx.ExecContext(ctx, "UPDATE accounts SET cents = cents + $1 WHERE owner = $2", x.Cents, x.To); err != nil {
		return err
	}
	return tx.QueryRowContext(ctx, "INSERT INTO transfers (payer, payee, cents, memo) VALUES ($1, $2, $3, $4) RETURNING id",
		x.From, x.To, x.Cents, x.Memo).Scan(&x.ID)
}

// books are what is committed.
type books struct {
	transfers []transfer
	balances  map[string]int64
}

func readBooks(ctx context.Context, p place) (b books, err error) {
	db, err := p.open()
	if err != nil {
		return b, err
	}
	defer db.Close()
	rows, err := db.QueryContext(ctx, "SELECT id, payer, payee, cents, memo FROM transfers ORDER BY id")
	if err != nil {
		return b, err
	}
	defer rows.Close()
	for rows.Next() {
		var x transfer
		if err := rows.Scan(&x.ID, &x.From, &x.To, &x.Cents, &x.Memo); err != nil {
			return b, err
		}
		b.transfers = append(b.transfers, x)
	}
	if err := rows.Err(); err != nil {
		return b, err
	}
	b.balances = make(map[string]int64)
	accounts, err := db.QueryContext(ctx, "SELECT owner, cents FROM accounts")
	if err != nil {
		return b, err
	}
	defer accounts.Close()
	for accounts.Next() {
		var owner string
		var cents int64
		if err := accounts.Scan(&owner, &cents); err != nil {
			return b, err
		}
		b.balances[owner] = cents
	}
	return b, accounts.Err()
}

// entries are the transfers with a memo.
func (b *books) entries(memo string) (found []transfer) {
	for _, x := range b.transfers {
		if x.Memo == memo {
			found = append(found, x)
		}
	}
	return found
}

// sum is all the money there is.
func (b *books) sum() (cents int64) {
	for _, c := range b.balances {
		cents += c
	}
	return cents
}

// balance says what is wrong with the books by themselves: money that came from
// nowhere, or an account that is not what its transfers make it.
func (b *books) balance() error {
	if got, want := b.sum(), int64(len(owners))*opening; got != want {
		return fmt.Errorf("all accounts together hold %s, want %s", dollars(got), dollars(want))
	}
	want := make(map[string]int64)
	for _, o := range owners {
		want[o] = opening
	}
	for _, x := range b.transfers {
		want[x.From] -= x.Cents
		want[x.To] += x.Cents
	}
	for _, o := range owners {
		if b.balances[o] != want[o] {
			return fmt.Errorf("%s has %s, and %s by the transfers", o, dollars(b.balances[o]), dollars(want[o]))
		}
	}
	return nil
}

func dollars(cents int64) string { return fmt.Sprintf("$%d.%02d", cents/100, cents%100) }
