package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/oncehttp/oncehttp"
)

// fewRecords is what a table has that has not grown.
const fewRecords = 10_000

// growthRounds is how often each table is measured. It is more than for speeds:
// what is compared differs by less than what a disk's mood makes of it.
const growthRounds = 9

// warmLimit is how long a warm-up may take.
const warmLimit = time.Minute

// A grownTable is a store's table with so many records.
type grownTable struct {
	store   oncehttp.Store
	records int
	faults  func() (n int64, known bool) // of the processes that read and write the table
}

// measureGrowth compares a small table with a large one, beside each other on one
// server or disk. It asks the stores themselves, for a Middleware adds the same to
// both sides.
//
// What is judged is what a server does that has run for a while. A process of it meets
// each page of its shared memory once for the first time, which is a page fault: a few
// hundred of a small table, after a moment, and tens of thousands of a large one. So
// both tables are first asked for records, any of them, until that is over. What the
// first calls take, with their faults, is printed too, and how many faults are left.
// Replays come first: claims let the small table grow.
func measureGrowth(h *host, c config, r *report) {
	var rows []row
	for _, m := range []struct {
		name, store         string
		claimers, replayers int
		open                func(h *host) func(h *host, records int) grownTable
	}{
		{"growth-sqlite", "SQLite", 64, 1, func(*host) func(*host, int) grownTable { return filledSQLite }},
		{"growth-postgres", "Postgres", 8, 8, func(h *host) func(*host, int) grownTable { return filledPostgres(durablePostgres(h)) }},
	} {
		if !c.wants(m.name) {
			continue
		}
		h.part(func(h *host) {
			open := m.open(h)
			small, large := open(h, fewRecords), open(h, c.records)
			h.progress("%s: measuring", m.store)
			first := grown(h, 1, c.span/2, m.store+", the first replays", m.replayers, small, large, replays)
			first.limit = 0
			for _, t := range []grownTable{small, large} {
				t.warm(h, c.span, m.replayers)
			}
			rows = append(rows, first,
				grown(h, growthRounds, c.span/2, m.store+", replay", m.replayers, small, large, replays),
				grown(h, growthRounds, c.span/2, m.store+", claim and completion", m.claimers, small, large, claims))
		})
	}
	r.table(fmt.Sprintf("Growth, µs for each call of the store (%s records and %s)", thousands(fewRecords), thousands(float64(c.records))),
		[]string{"", "at a time", "few records", "many records", "ratio", "page faults a call"}, rows)
}

// grown measures the two tables in turns.
func grown(h *host, rounds int, span time.Duration, what string, callers int, small, large grownTable, calls func(grownTable) func(int64) error) row {
	var few, many faultTally
	d := sideBySide(h, rounds, span, few.watch(small, callers, calls(small)), many.watch(large, callers, calls(large)))
	return row{got: d.ratio, limit: 1.5, atMost: true, cells: []string{what, strconv.Itoa(callers),
		fmt.Sprintf("%.1f", 1e6/d.ours), fmt.Sprintf("%.1f", 1e6/d.theirs), fmt.Sprintf("%.2f", d.ratio), few.String() + ", " + many.String()}}
}

// warm asks for records until a call's page faults have settled. Where faults are not
// told, it asks for as long as it may.
func (t grownTable) warm(h *host, span time.Duration, callers int) {
	do := replays(t)
	s := newSettling()
	for began := time.Now(); ; {
		var f faultTally
		_, err := f.watch(t, callers, do)(span)
		h.need(err)
		if !f.unknown && s.settled(f.perCall()) {
			return
		}
		if time.Since(began) > warmLimit {
			h.progress("after %v a call has %v page faults", warmLimit, &f)
			return
		}
	}
}

// A settling sees when page faults have become as few as they will.
type settling struct {
	lowest float64
	same   int // so many spans in a row had no fewer
}

func newSettling() *settling { return &settling{lowest: math.Inf(1)} }

// settled takes the faults of a call in one more span. They have settled when there is
// hardly one, or for three spans no fewer: a program that makes garbage always has some.
func (s *settling) settled(perCall float64) bool {
	const hardly, fewer = 0.01, 0.9
	if perCall < fewer*s.lowest {
		s.lowest, s.same = perCall, 0
	} else {
		s.same++
	}
	return perCall < hardly || s.same == 3
}

// A faultTally counts the page faults of calls.
type faultTally struct {
	faults  int64
	calls   atomic.Int64
	unknown bool
}

// watch is perSecond, but counts.
func (f *faultTally) watch(t grownTable, callers int, do func(int64) error) func(time.Duration) (float64, error) {
	return func(span time.Duration) (float64, error) {
		before, _ := t.faults()
		rate, err := perSecond(callers, span, func(i int64) error {
			f.calls.Add(1)
			return do(i)
		})
		after, known := t.faults()
		f.faults += after - before
		f.unknown = f.unknown || !known
		return rate, err
	}
}

func (f *faultTally) perCall() float64 { return float64(f.faults) / float64(f.calls.Load()) }

func (f *faultTally) String() string {
	if f.unknown {
		return "?"
	}
	return fmt.Sprintf("%.2f", f.perCall())
}

// minorFaults is how many page faults processes have had that took no disk, and
// whether the system tells.
func minorFaults(pids []int) (n int64, known bool) {
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, false
		}
		// pid (name) state ppid pgrp session tty tpgid flags minflt …, and the name may have anything in it
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		if len(fields) < 8 {
			return 0, false
		}
		faults, err := strconv.ParseInt(fields[7], 10, 64)
		if err != nil {
			return 0, false
		}
		n += faults
	}
	return n, true
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
func claims(t grownTable) func(int64) error {
	ctx := context.Background()
	return func(int64) error {
		op := growthOp(oncehttp.RecordKey("", "POST", path, strconv.FormatInt(freshKeys.Add(1), 10)))
		c, err := t.store.Claim(ctx, op, growthLease, growthKeep)
		if err != nil || c.Status != oncehttp.ClaimAcquired {
			return fmt.Errorf("a claim of a free key: %v, %w", c.Status, err)
		}
		return t.store.Complete(ctx, op, growthHead, nil, growthKeep)
	}
}

// replays returns what claims one of the keys that are done, any of them.
func replays(t grownTable) func(int64) error {
	ctx := context.Background()
	return func(int64) error {
		c, err := t.store.Claim(ctx, growthOp(growthKey(rand.IntN(t.records))), growthLease, growthKeep)
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
