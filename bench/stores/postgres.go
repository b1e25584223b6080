package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/pgstore"
)

// durablePostgres starts a server that the crash of its machine does not make
// forget, with the settings that a small one of its own has.
func durablePostgres(h *host) *services.PG {
	return services.Postgres(h, services.Set("fsync", "on"), services.Set("synchronous_commit", "on"),
		services.Set("shared_buffers", "512MB"), services.Set("max_wal_size", "4GB"))
}

// openPostgres returns a store with a pool of so many connections.
func openPostgres(h *host, dsn string, conns int, tracer pgx.QueryTracer, opts ...pgstore.Option) *pgstore.Store {
	config, err := pgxpool.ParseConfig(dsn)
	h.need(err)
	config.MaxConns, config.MinConns = int32(conns), int32(conns)
	config.ConnConfig.Tracer = tracer
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	h.need(err)
	h.Cleanup(pool.Close)
	s := pgstore.New(pool, append(opts, pgstore.WithLogger(quiet))...)
	h.Cleanup(s.Close)
	h.need(s.Migrate(context.Background()))
	return s
}

// measurePostgres compares a Middleware with pgbench, which runs the statements
// that the store was seen to send, on the same server.
func measurePostgres(h *host, c config, r *report) {
	h.part(func(h *host) {
		pg := durablePostgres(h)
		db := pg.Database(h)
		first, replay := scripts(h, pg.DSN(db))
		var rows []row
		for _, callers := range []int{8, 32} {
			k := protect(openPostgres(h, pg.DSN(db), callers, nil, pgstore.WithTable(fmt.Sprint("once_", callers))))
			repeat := k.repeats(h, 1000)
			for _, m := range []struct {
				what   string
				script script
				do     func(int64) error
				limit  float64
			}{
				{"executions", first, k.fresh, 0.7},
				{"replays", replay, repeat, 0.6},
			} {
				d := sideBySide(h, c.rounds, c.span,
					func(span time.Duration) (float64, error) { return perSecond(callers, span, m.do) },
					func(span time.Duration) (float64, error) { return pgbench(h, pg, db, callers, m.script, span) })
				rows = append(rows, row{got: d.ratio, limit: m.limit, cells: d.cells(m.what, callers)})
				r.speeds = append(r.speeds, speed{"Postgres", m.what, callers, d.ours, d.theirs})
			}
		}
		r.table("Postgres, a second (fsync=on, synchronous_commit=on; pgbench -M prepared with the same statements)",
			[]string{"", "workers", "oncehttp", "pgbench", "ratio"}, rows)
	})
}

// pgbench runs a script for a while and returns how often a second.
func pgbench(h *host, pg *services.PG, db string, clients int, s script, span time.Duration) (float64, error) {
	file := filepath.Join(h.TempDir(), "script.sql")
	if err := os.WriteFile(file, []byte(s.text), 0o644); err != nil {
		return 0, err
	}
	args := []string{"-h", pg.Host, "-p", strconv.Itoa(pg.Port), "-U", pg.User, "-n", "-M", "prepared", "-c", strconv.Itoa(clients), "-j", "2",
		"-f", file, "-T", strconv.Itoa(int(max(1, span.Round(time.Second).Seconds())))}
	for i, value := range s.values {
		args = append(args, "-D", fmt.Sprintf("v%d=%s", i, value))
	}
	out, err := exec.Command(filepath.Join(pg.Bin, "pgbench"), append(args, db)...).CombinedOutput()
	tps := regexp.MustCompile(`tps = ([0-9.]+)`).FindSubmatch(out)
	if err != nil || tps == nil {
		return 0, fmt.Errorf("pgbench: %w\n%s", err, out)
	}
	return strconv.ParseFloat(string(tps[1]), 64)
}

// scripts lets a store run one request and its replay, watches what it sends, and
// returns that for pgbench.
func scripts(h *host, dsn string) (first, replay script) {
	var seen recorder
	k := protect(openPostgres(h, dsn, 1, &seen))
	const key = "watched"
	h.need(k.request(key, false))
	executed := seen.take()
	h.need(k.request(key, true))
	replayed := seen.take()
	if len(executed) != 2 || len(replayed) != 1 {
		h.Fatalf("the store sent %d statements for a request and %d for its replay, want 2 and 1", len(executed), len(replayed))
	}
	id := executed[0].args[0]
	record := oncehttp.RecordKey("", "POST", path, key)
	random := func(arg any) string {
		b, _ := arg.([]byte)
		switch {
		case arg == id:
			return "md5(:a || '-' || :b)"
		case string(b) == record: // of the same length, and different each time
			return "('or1_' || md5(:a || '-' || :b) || '01234567')"
		}
		return ""
	}
	first.text = "\\set a random(1, 2000000000)\n\\set b random(1, 2000000000)\n"
	first.add(executed[0], random)
	first.add(executed[1], random)
	replay.add(replayed[0], func(any) string { return "" })
	return first, replay
}

// A statement is one that a store has sent.
type statement struct {
	sql  string
	args []any
}

// A script is one of pgbench, with the values of its variables v0, v1 and so on, which
// -M prepared makes the parameters of its statements.
type script struct {
	text   string
	values []string
}

// add writes the statement as one line of the script, with its parameters as they were,
// but where other says something else.
func (s *script) add(st statement, other func(arg any) string) {
	names := make([]string, len(st.args))
	for i, arg := range st.args {
		value, ok := literal(arg)
		switch instead := other(arg); {
		case instead != "":
			names[i] = instead
		case !ok:
			names[i] = "NULL"
		default:
			names[i] = fmt.Sprint(":v", len(s.values))
			s.values = append(s.values, value)
		}
	}
	text := regexp.MustCompile(`\$[0-9]+`).ReplaceAllStringFunc(st.sql, func(p string) string {
		n, _ := strconv.Atoi(p[1:])
		return names[n-1]
	})
	s.text += strings.Join(strings.Fields(text), " ") + ";\n"
}

// literal is the text of a parameter, unless that is NULL, which no variable can be.
func literal(arg any) (text string, ok bool) {
	switch v := arg.(type) {
	case nil:
		return "", false
	case []byte:
		return `\x` + hex.EncodeToString(v), v != nil
	}
	return fmt.Sprint(arg), true
}

// A recorder sees what is sent.
type recorder struct {
	mu   sync.Mutex
	seen []statement
}

// TraceQueryStart implements pgx.QueryTracer.
func (r *recorder) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	// What looks at the table comes once, before everything else.
	if strings.Contains(q.SQL, "$1") {
		r.seen = append(r.seen, statement{q.SQL, append([]any(nil), q.Args...)})
	}
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (r *recorder) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// take returns what was seen since the last time.
func (r *recorder) take() []statement {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := r.seen
	r.seen = nil
	return seen
}
