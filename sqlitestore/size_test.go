package sqlitestore

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/oncehttp/oncehttp"
)

// recordedHead is what a Middleware records of an answer, and the key it does so
// under.
func recordedHead(t testing.TB) (key string, head []byte) {
	t.Helper()
	var store oncehttp.MemoryStore
	h := (&oncehttp.Middleware{Store: &store}).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "/refunds/re_3MmlLrLkdIwHu7ix0uke3Ezy")
		w.WriteHeader(http.StatusNoContent)
	}))
	req := httptest.NewRequest("POST", "/refunds", strings.NewReader("{}"))
	req.Header.Set("Idempotency-Key", oncehttp.NewKey())
	req.Header.Set("Authorization", "Bearer x")
	h.ServeHTTP(httptest.NewRecorder(), req)
	list, err := store.List(t.Context(), oncehttp.RecordQuery{})
	if err != nil || len(list) != 1 {
		t.Fatalf("%d records, %v", len(list), err)
	}
	r, err := store.Show(t.Context(), list[0].Key)
	if err != nil {
		t.Fatal(err)
	}
	return r.Key, r.Head
}

// fill makes n done records with the writer's own statements, many in one
// transaction.
func fill(t testing.TB, s *Store, n int) {
	t.Helper()
	key, head := recordedHead(t)
	const most, together = 6400, 64
	for made := 0; made < n; made += most {
		c := &call{what: "fill", do: func(w *writer, _ *call) error {
			for i := 0; i < min(most, n-made); i += together {
				ops := make([]oncehttp.Op, min(together, n-made-i))
				for j := range ops {
					var random [20]byte
					rand.Read(random[:])
					ops[j] = newOp(fmt.Sprintf("%s%x", key[:len(key)-40], random)) // as long as those of a Middleware
					rand.Read(ops[j].Fingerprint[:])
					rand.Read(ops[j].Binding[:])
					if err := doClaim(w, &call{op: ops[j], lease: 30e6, keep: day.Microseconds()}); err != nil {
						return err
					}
				}
				for _, op := range ops {
					if err := doComplete(w, &call{op: op, keep: day.Microseconds(), head: head}); err != nil {
						return err
					}
				}
			}
			return nil
		}}
		if err := s.submit(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
}

// used is how many bytes of the file hold something.
func used(t testing.TB, s *Store) int64 {
	t.Helper()
	var pages, free, size int64
	for pragma, v := range map[string]*int64{"page_count": &pages, "freelist_count": &free, "page_size": &size} {
		if err := s.db.QueryRow("PRAGMA " + pragma).Scan(v); err != nil {
			t.Fatal(err)
		}
	}
	return (pages - free) * size
}

func TestARecordWithoutABodyAllocatesAtMost400Bytes(t *testing.T) {
	t.Parallel()
	n := 100_000
	if raceEnabled {
		n = 5_000 // the race detector makes SQLite itself many times slower; without it the same test runs in full
	}
	s := tempStore(t)
	fill(t, s, n)
	per := used(t, s) / int64(n)
	_, head := recordedHead(t)
	t.Logf("%d records with a head of %d bytes and no body: %d bytes each", n, len(head), per)
	if per > 400 {
		t.Errorf("a record takes %d bytes, want at most 400", per)
	}
}
