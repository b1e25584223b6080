package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/redisstore"
)

// measureRedis compares a Middleware with redis-benchmark on the same server: one
// that keeps its data in memory only, where the store has the hardest time to keep
// up, and, not judged, one that writes everything to its disk before it answers.
func measureRedis(h *host, c config, r *report) {
	h.part(func(h *host) {
		server := services.Redis(h, services.RedisPrivate())
		r.table("Redis, a second (no persistence; redis-benchmark without pipelining)",
			redisColumns, redisRows(h, c, r, server, true))
	})
	h.part(func(h *host) {
		server := services.Redis(h, services.RedisSet("appendonly", "yes"), services.RedisSet("appendfsync", "always"))
		c.rounds = 1
		r.table("Redis, a second (appendonly yes, appendfsync always)",
			redisColumns, redisRows(h, c, nil, server, false))
	})
}

var redisColumns = []string{"", "at a time", "oncehttp", "redis-benchmark", "ratio"}

// redisRows measures one server.
func redisRows(h *host, c config, r *report, server *services.RedisServer, judged bool) []row {
	s := openRedis(h, server)
	k := protect(s)
	repeat := k.repeats(h, 1000)
	var rows []row
	for _, callers := range []int{1, 8, 32} {
		for _, m := range []struct {
			what, test string
			do         func(int64) error
			limit      float64
		}{
			{"executions", "SET", k.fresh, 0.25},
			{"replays", "GET", repeat, 0.45},
		} {
			d := sideBySide(h, c.rounds, c.span,
				func(span time.Duration) (float64, error) { return perSecond(callers, span, m.do) },
				redisBenchmark(server, m.test, callers))
			row := row{got: d.ratio, cells: d.cells(m.what+", "+m.test, callers)}
			if judged {
				row.limit = m.limit
				r.speeds = append(r.speeds, speed{"Redis", m.what, callers, d.ours, d.theirs})
			}
			rows = append(rows, row)
		}
	}
	return rows
}

func openRedis(h *host, server *services.RedisServer) *redisstore.Store {
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	h.Cleanup(func() { client.Close() })
	s := redisstore.New(client, redisstore.WithLogger(quiet))
	h.Cleanup(s.Close)
	h.need(s.Check(context.Background()))
	return s
}

// redisBenchmark returns what runs one of redis-benchmark's tests for about as long
// as it is told. redis-benchmark itself wants to be told how often; what one run did
// in a second says that for the next.
func redisBenchmark(server *services.RedisServer, test string, clients int) func(time.Duration) (float64, error) {
	rate := 0.0
	run := func(n int) (float64, error) {
		out, err := exec.Command(filepath.Join(server.Bin, "redis-benchmark"), "-h", server.Host, "-p", strconv.Itoa(server.Port),
			"-c", strconv.Itoa(clients), "-n", strconv.Itoa(n), "-t", strings.ToLower(test), "--csv").CombinedOutput()
		if err != nil {
			return 0, fmt.Errorf("redis-benchmark: %w\n%s", err, out)
		}
		for line := range strings.Lines(string(out)) {
			cells := strings.Split(line, `","`)
			if len(cells) > 1 && strings.Trim(cells[0], `"`) == test {
				return strconv.ParseFloat(strings.Trim(cells[1], "\"\n"), 64)
			}
		}
		return 0, fmt.Errorf("redis-benchmark printed no rate of %s:\n%s", test, out)
	}
	return func(span time.Duration) (float64, error) {
		if rate == 0 {
			var err error
			if rate, err = run(1000 * clients); err != nil {
				return 0, err
			}
		}
		var err error
		rate, err = run(int(max(1000, rate*span.Seconds())))
		return rate, err
	}
}
