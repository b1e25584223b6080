package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/oncehttp/oncehttp"
)

// fewRecords is what a table has that has not grown.
const fewRecords = 10_000

// growthRounds is how often each table is measured. It is more than for speeds:
// what is compared differs by less than what a disk's mood makes of it.
const growthRounds = 9

// measureGrowth compares a small table with a large one, beside each other on one
// server or disk. It asks the stores themselves, for a Middleware adds the same to
// both sides.
func measureGrowth(h *host, c config, r *report) {
	var rows []row
	for _, m := range []struct {
		name, store         string
		claimers, replayers int
		open                func(h *host) func(h *host, records int) oncehttp.Store
	}{
		{"growth-sqlite", "SQLite", 64, 1, func(*host) func(*host, int) oncehttp.Store { return filledSQLite }},
		{"growth-postgres", "Postgres", 8, 8, func(h *host) func(*host, int) oncehttp.Store { return filledPostgres(durablePostgres(h)) }},
	} {
		if !c.wants(m.name) {
			continue
		}
		h.part(func(h *host) {
			open := m.open(h)
			small, large := open(h, fewRecords), open(h, c.records)
			h.progress("%s: measuring", m.store)
			rows = append(rows,
				grown(h, c, m.store+", claim and completion", m.claimers, claims(small), claims(large)),
				grown(h, c, m.store+", replay", m.replayers, replays(small, fewRecords), replays(large, c.records)))
		})
	}
	r.table(fmt.Sprintf("Growth, µs for each call of the store (%s records and %s)", thousands(fewRecords), thousands(float64(c.records))),
		[]string{"", "at a time", "few records", "many records", "ratio"}, rows)
}

// grown measures the two tables in turns.
func grown(h *host, c config, what string, callers int, small, large func(int64) error) row {
	rate := func(do func(int64) error) func(time.Duration) (float64, error) {
		return func(span time.Duration) (float64, error) { return perSecond(callers, span, do) }
	}
	d := sideBySide(h, growthRounds, c.span/2, rate(small), rate(large))
	return row{got: d.ratio, limit: 1.5, atMost: true, cells: []string{what, strconv.Itoa(callers),
		fmt.Sprintf("%.1f", 1e6/d.ours), fmt.Sprintf("%.1f", 1e6/d.theirs), fmt.Sprintf("%.2f", d.ratio)}}
}

const (
	growthLease = 30 * time.Second
	growthKeep  = 24 * time.Hour
)

// growthKey is the key of one of the records that a table is filled with, as long
// as those of a Middleware.
func growthKey(i int) string {
	sum := sha256.Sum256([]byte(strconv.Itoa(i)))
	return "or1_" + hex.EncodeToString(sum[:])[:40]
}

// growthHead is what a Middleware records of a small answer.
var growthHead = []byte("\x01\x00\xc9\x01\x00\x01\x0cContent-Type\x01\x10application/json\x00")

func growthOp(key string) oncehttp.Op {
	op := oncehttp.Op{Key: key, Token: oncehttp.NewToken()}
	op.Fingerprint, op.Binding = sha256.Sum256([]byte(key)), sha256.Sum256([]byte("by "+key))
	return op
}

// claims returns what claims a new key and completes it.
func claims(s oncehttp.Store) func(int64) error {
	ctx := context.Background()
	return func(int64) error {
		op := growthOp(oncehttp.RecordKey("", "POST", path, strconv.FormatInt(freshKeys.Add(1), 10)))
		c, err := s.Claim(ctx, op, growthLease, growthKeep)
		if err != nil || c.Status != oncehttp.ClaimAcquired {
			return fmt.Errorf("a claim of a free key: %v, %w", c.Status, err)
		}
		return s.Complete(ctx, op, growthHead, nil, growthKeep)
	}
}

// replays returns what claims one of n keys that are done, any of them.
func replays(s oncehttp.Store, n int) func(int64) error {
	ctx := context.Background()
	return func(int64) error {
		c, err := s.Claim(ctx, growthOp(growthKey(rand.IntN(n))), growthLease, growthKeep)
		if err != nil || c.Status != oncehttp.ClaimDone || len(c.Head) != len(growthHead) {
			return fmt.Errorf("a claim of a done key: %v, %w", c.Status, err)
		}
		return nil
	}
}

// firstRecord has the store make record 0, which those that the tables are filled
// with are copies of but for what differs from key to key.
func firstRecord(h *host, s oncehttp.Store) {
	op := growthOp(growthKey(0))
	_, err := s.Claim(context.Background(), op, growthLease, growthKeep)
	h.need(err)
	h.need(s.Complete(context.Background(), op, growthHead, nil, growthKeep))
}
