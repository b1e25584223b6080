package main

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/oncehttp/oncehttp/sqlitestore"
)

// slowDisk is the fsync time from which on a disk shows whether waits for it are
// shared. On a faster one the wait is too short to matter.
const slowDisk = 300 * time.Microsecond

// measureSQLite compares many callers with one: they share the wait for the disk.
func measureSQLite(h *host, c config, r *report) {
	h.part(func(h *host) {
		s, err := sqlitestore.Open(filepath.Join(h.TempDir(), "once.db"))
		h.need(err)
		h.Cleanup(func() { s.Close() })
		k := protect(s)

		const many = 64
		rate := func(callers int) func(time.Duration) (float64, error) {
			return func(span time.Duration) (float64, error) { return perSecond(callers, span, k.fresh) }
		}
		d := sideBySide(h, c.rounds, c.span, rate(many), rate(1))
		// The disk is asked again, for it may have had other things to do.
		disk := min(r.fsync, fsyncTime(h, h.TempDir()))
		verdict := row{got: d.ratio, limit: 6, cells: []string{fmt.Sprint(many), thousands(d.ours), thousands(d.theirs), fmt.Sprintf("%.1f", d.ratio)}}
		if disk < slowDisk {
			verdict.why = fmt.Sprintf("this disk's fsync takes less than %v; -dir names a directory on another", slowDisk)
		}
		r.table(fmt.Sprintf("SQLite, keyed executions a second (synchronous=FULL, fsync %v)", disk),
			[]string{"at a time", "executions", "one at a time", "ratio"}, []row{verdict})
		r.speeds = append(r.speeds, speed{"SQLite", "executions", 1, d.theirs, 0}, speed{"SQLite", "executions", many, d.ours, 0})

		replay := k.repeats(h, 1000)
		var rows []row
		for _, callers := range []int{1, many} {
			n, err := perSecond(callers, c.span, replay)
			h.need(err)
			rows = append(rows, row{cells: []string{fmt.Sprint(callers), thousands(n)}})
			r.speeds = append(r.speeds, speed{"SQLite", "replays", callers, n, 0})
		}
		r.table("SQLite, replays a second", []string{"at a time", "replays"}, rows)
	})
}
