package pgstore_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

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

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") + ";" }
