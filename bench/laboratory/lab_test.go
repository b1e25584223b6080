package laboratory

import (
	"testing"

	"github.com/oncehttp/oncehttp/internal/lab"
)

// stores are where the worlds' records are kept: the names are those that
// make lab STORE=… takes.
var stores = []struct {
	name    string
	storage func(*testing.T) func(lab.Setting) lab.Storage
	mishaps []string // that the way to the store has to have met
}{
	{"sqlite", sqlite, []string{locked, locked + aMoment}},
	{"postgres", postgres, []string{nothingArrives, replyIsLost}},
	{"redis", redisServer, []string{nothingArrives, replyIsLost}},
}

// TestLab runs the worlds of internal/lab over each of the durable stores.
func TestLab(t *testing.T) {
	for _, s := range stores {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			lab.Run(t, lab.Config{
				Storage: s.storage(t), Seeds: 45, RaceSeeds: 8,
				Must: must(s.mishaps), Again: "make lab STORE=" + s.name,
			})
		})
	}
}

// must is what has to have happened in a hundred worlds.
func must(mishaps []string) []string {
	all := []string{
		"outcome: ran", "outcome: released", "outcome: attached", "outcome: replayed", "outcome: unknown",
		"outcome: unknown outcome-unknown", "outcome: refused in-progress", "outcome: refused store-unavailable",
		"death: before the handler works", "death: after the effect", "death: after the store's Claim", "death: before the store's Complete",
		"death: a server is shut down, and the next one started", "store: its clock jumps",
	}
	for _, what := range mishaps {
		for _, method := range []string{"Claim", "Renew", "Complete", "Release"} {
			all = append(all, "store: "+method+" "+what)
		}
	}
	return all
}
