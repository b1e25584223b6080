package pgstore_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp"
	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/pgstore"
	"github.com/oncehttp/oncehttp/storetest"
)

// durable is a server that a crash of its machine would not make forget.
func durable(b *testing.B) *services.PG {
	return services.Postgres(b, services.Set("fsync", "on"), services.Set("shared_buffers", "512MB"), services.Set("max_wal_size", "4GB"))
}

func BenchmarkStore(b *testing.B) {
	pg := durable(b)
	p := openPool(b, pg.DSN(pg.Database(b)), 32)
	storetest.Bench(b, func(b *testing.B) oncehttp.Store {
		s := migrated(b, pgstore.New(p, pgstore.WithTable(table())))
		b.Cleanup(s.Close)
		return s
	})
}

// BenchmarkBesidePgbench runs keyed requests, first ones and replays, through a
// Middleware, and lets pgbench run the same statements on the same server.
func BenchmarkBesidePgbench(b *testing.B) {
	pg := durable(b)
	db := pg.Database(b)
	const span = 5 * time.Second
	for _, workers := range []int{8, 32} {
		s := migrated(b, pgstore.New(openPool(b, pg.DSN(db), workers), quiet))
		b.Cleanup(s.Close)
		h := (&oncehttp.Middleware{Store: s}).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusCreated)
		}))
		request := func(key, replayed string) error {
			r := httptest.NewRequest("POST", "/payments", strings.NewReader(`{"to":"A-17"}`))
			r.Header.Set(oncehttp.Header, key)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != http.StatusCreated || w.Header().Get("Idempotent-Replayed") != replayed {
				return fmt.Errorf("got %d: %s", w.Code, w.Body)
			}
			return nil
		}
		const done = 1000
		for i := range done {
			if err := request(fmt.Sprint("done", workers, "-", i), ""); err != nil {
				b.Fatal(err)
			}
		}
		claim, complete := s.Statements()
		for _, what := range []struct {
			name, script string
			do           func(i int64) error
		}{
			{"first", pgbenchFirst(claim, complete), func(int64) error { return request(oncehttp.NewKey(), "") }},
			{"replay", pgbenchReplay(claim, oncehttp.RecordKey("", "POST", "/payments", fmt.Sprint("done", workers, "-0"))), func(i int64) error {
				return request(fmt.Sprint("done", workers, "-", i%done), "true")
			}},
		} {
			b.Run(fmt.Sprintf("%s/workers=%d", what.name, workers), func(b *testing.B) {
				var ours, theirs float64
				for b.Loop() {
					theirs += pgbench(b, pg, db, workers, what.script, "-T", strconv.Itoa(int(span.Seconds())))
					ours += perSecond(b, workers, span, what.do)
				}
				b.ReportMetric(ours/float64(b.N), "ours/s")
				b.ReportMetric(theirs/float64(b.N), "pgbench/s")
				b.ReportMetric(ours/theirs, "ratio")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// perSecond calls do from some goroutines for a while.
func perSecond(b *testing.B, workers int, span time.Duration, do func(i int64) error) float64 {
	var n atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for range workers {
		wg.Go(func() {
			for time.Since(began) < span {
				if err := do(n.Add(1)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return float64(n.Load()) / time.Since(began).Seconds()
}

// pgbench runs a script by prepared statements and returns how often in a second.
func pgbench(b testing.TB, pg *services.PG, db string, clients int, script string, args ...string) float64 {
	b.Helper()
	file := filepath.Join(b.TempDir(), "script.sql")
	if err := os.WriteFile(file, []byte(script), 0o644); err != nil {
		b.Fatal(err)
	}
	args = append([]string{"-h", pg.Host, "-p", strconv.Itoa(pg.Port), "-U", pg.User,
		"-n", "-M", "prepared", "-c", strconv.Itoa(clients), "-j", "2", "-f", file}, args...)
	out, err := exec.Command(filepath.Join(pg.Bin, "pgbench"), append(args, db)...).CombinedOutput()
	tps := regexp.MustCompile(`tps = ([0-9.]+)`).FindSubmatch(out)
	if err != nil || tps == nil {
		b.Fatalf("pgbench: %v\n%s", err, out)
	}
	n, err := strconv.ParseFloat(string(tps[1]), 64)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// pgbench has no byte strings, so the values that differ are made by the server:
// keys of 44 bytes and, as a Middleware records a small answer, heads of 36.
var (
	randomKey = strings.NewReplacer(
		"$1::uuid", "md5(:a || '-' || :b)::uuid",
		"$7::bytea", "('or1_' || md5(:a || '-' || :b) || '01234567')::bytea",
	)
	others = strings.NewReplacer(
		"$2::bytea", `'\x01000102030405060708090a0b0c0d0e0f'::bytea`,
		"$3::bytea", `'\x`+strings.Repeat("ab", 64)+`'::bytea`,
		"$4::int8", "30000000::int8",
		"$5::int8", "86400000000::int8",
		"$6::int8", "NULL::int8",
	)
)

func pgbenchFirst(claim, complete string) string {
	complete = strings.NewReplacer("$3::bytea", `'\x`+strings.Repeat("ab", 36)+`'::bytea`, "$4::bytea", "NULL::bytea").Replace(complete)
	return "\\set a random(1, 2000000000)\n\\set b random(1, 2000000000)\n" +
		oneLine(others.Replace(randomKey.Replace(claim))) + "\n" + oneLine(others.Replace(randomKey.Replace(complete))) + "\n"
}

func pgbenchReplay(claim, key string) string {
	ids := strings.NewReplacer("$1::uuid", "'"+pgstore.RowID(key)+"'::uuid", "$7::bytea", "'"+key+"'::bytea")
	return oneLine(others.Replace(ids.Replace(claim))) + "\n"
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") + ";" }
