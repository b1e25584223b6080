package lab

import "testing"

// TestLab runs one world for each seed.
func TestLab(t *testing.T) { Run(t, Config{Must: everything()}) }

// everything is what has to happen in two thousand worlds.
func everything() (all []string) {
	for _, f := range netFaults {
		all = append(all, "network: "+string(f))
	}
	for _, f := range edgeFaults {
		all = append(all, "network: "+string(f))
	}
	for _, f := range dialFaults {
		all = append(all, "network: "+string(f))
	}
	for _, d := range deeds {
		all = append(all, "handler: "+string(d))
	}
	for _, s := range []string{handlerWorks, effectHappened, midStream, beforeMiddleware, beforeResponse, rolledOut, "a client dies"} {
		all = append(all, "death: "+s)
	}
	for _, method := range []string{"Claim", "TakeOver", "Renew", "Complete", "Release"} {
		all = append(all, "death: "+beforeThe+method, "death: "+afterThe+method)
		for _, f := range storeFaults {
			all = append(all, "store: "+method+" "+string(f))
		}
	}
	for _, s := range []string{
		"ran", "released", "attached", "replayed", "unknown", "unknown outcome-unknown", "refused in-progress", "refused key-reused",
		"refused principal-changed", "refused missing-key", "refused response-gone", "refused store-full", "refused store-unavailable", "refused body-unreadable",
	} {
		all = append(all, "outcome: "+s)
	}
	return append(all, "breaker: open", "breaker: half-open", "breaker: closed", "store: "+clockJumps)
}
