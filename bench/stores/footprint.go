package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/oncehttp/oncehttp/internal/services"
	"github.com/oncehttp/oncehttp/sqlitestore"
)

// footprintRecords is how many records are made to see what one takes.
const footprintRecords = 50_000

// measureFootprint sees what a record without a body takes, credentials bound and a
// header field recorded.
func measureFootprint(h *host, c config, r *report) {
	var rows []row
	for _, m := range []struct {
		store, how string
		limit      float64
		bytes      func(h *host) int64
	}{
		{"SQLite", "the file", 400, sqliteBytes},
		{"Postgres", "table, index and TOAST, vacuumed in between", 400, postgresBytes},
		{"Redis", "used_memory", 500, redisBytes},
	} {
		h.part(func(h *host) {
			per := float64(m.bytes(h)) / footprintRecords
			rows = append(rows, row{got: per, limit: m.limit, atMost: true, cells: []string{m.store, m.how, fmt.Sprintf("%.0f", per)}})
		})
	}
	r.table(fmt.Sprintf("Bytes a record, without a body (%s records)", thousands(footprintRecords)), []string{"", "measured", "bytes"}, rows)
}

func sqliteBytes(h *host) int64 {
	file := filepath.Join(h.TempDir(), "once.db")
	s, err := sqlitestore.Open(file)
	h.need(err)
	k := protect(s)
	k.auth = true
	h.need(count(64, footprintRecords, k.fresh))
	h.need(s.Close()) // which moves what is in the log into the file
	info, err := os.Stat(file)
	h.need(err)
	return info.Size()
}

// postgresBytes vacuums in between, as autovacuum does once a minute: the room that
// finished claims leave on their pages is used again only after it. The server does
// not wait for its disk, which changes no size.
func postgresBytes(h *host) int64 {
	pg := services.Postgres(h, services.Private())
	db := pg.Database(h)
	k := protect(openPostgres(h, pg.DSN(db), 8, nil))
	k.auth = true
	const rounds = 5
	for i := range rounds {
		if i > 0 {
			pg.SQL(h, db, "vacuum oncehttp_records")
		}
		h.need(count(8, footprintRecords/rounds, k.fresh))
	}
	n, err := strconv.ParseInt(pg.SQL(h, db, "select pg_total_relation_size('oncehttp_records')"), 10, 64)
	h.need(err)
	return n
}

func redisBytes(h *host) int64 {
	server := services.Redis(h, services.RedisPrivate())
	k := protect(openRedis(h, server))
	k.auth = true
	h.need(count(32, 1000, k.fresh)) // connections and buffers are there by now
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	before := usedMemory(h, client)
	h.need(count(32, footprintRecords, k.fresh))
	return usedMemory(h, client) - before
}

func usedMemory(h *host, client *redis.Client) int64 {
	info, err := client.InfoMap(context.Background(), "memory").Result()
	h.need(err)
	n, err := strconv.ParseInt(info["Memory"]["used_memory"], 10, 64)
	h.need(err)
	return n
}
