package storm

import (
	"bytes"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"
	"time"
)

var docs = flag.String("docs", "", "run the whole storm, and write what came of it into this `folder`")

// full is the storm of `make storm`. The others are for every test run: few clients
// for as long, as what fails is counted against all that there is to do, or more
// of them for a short time, as the load of few is a matter of luck.
var (
	full  = Config{Clients: 1000, Length: 10 * time.Minute, From: 2 * time.Minute, Until: 3 * time.Minute, Seed: 1}
	few   = Config{Clients: 40, Length: 10 * time.Minute, From: 2 * time.Minute, Until: 3 * time.Minute, Seed: 1}
	brief = Config{Clients: 150, Length: 100 * time.Second, From: 20 * time.Second, Until: 80 * time.Second, Seed: 1}
)

// TestStorm is `make storm`.
func TestStorm(t *testing.T) {
	if *docs == "" {
		t.Skip("make storm runs it: it takes minutes")
	}
	// Little of what the clients leave behind is alive.
	defer debug.SetGCPercent(debug.SetGCPercent(400))

	began := time.Now()
	calm := make([]*Run, len(Peers))
	runs := make([]*Run, len(Outages)*len(Peers))
	t.Run("runs", func(t *testing.T) {
		for i, o := range Outages {
			for j, p := range Peers {
				runAside(t, p, o, full, &runs[i*len(Peers)+j])
			}
		}
		short := full
		short.Length = full.Until + around
		for j, p := range Peers {
			runAside(t, p, Outage{}, short, &calm[j])
		}
	})
	if t.Failed() {
		return
	}
	byName := map[string]*Run{}
	for _, r := range calm {
		byName[r.Peer.Name] = r
	}
	promises := Judge(runs, calm[0])
	var out bytes.Buffer
	Print(&out, runs, byName)
	PrintPromises(&out, promises)
	fmt.Print(out.String())
	fmt.Printf("\n%d runs of %v and %d clients took %v\n", len(runs)+len(calm), full.Length, full.Clients, time.Since(began).Round(time.Second))
	for i := range Outages {
		if err := Draw(filepath.Join(*docs, "figures"), runs[i*len(Peers):(i+1)*len(Peers)]); err != nil {
			t.Error(err)
		}
	}
	if err := Replace(filepath.Join(*docs, "benchmarks.md"), out.Bytes()); err != nil {
		t.Error(err)
	}
	for _, p := range promises {
		if !p.Kept {
			t.Errorf("%s: %s is %s, and should be within %s", p.Outage.Title(), p.Text, p.Got, p.Need)
		}
	}
}

func runAside(t *testing.T, p Peer, o Outage, c Config, to **Run) {
	t.Run(p.Name+"/"+o.Name(), func(t *testing.T) {
		t.Parallel()
		*to = run(t, p, o, c)
	})
}

// The promises, in storms that are small enough for every test run. Those that
// compare are held against some of the rivals, from whom even so few clients tell
// it apart.
func TestThePromisesHoldInASmallStorm(t *testing.T) {
	storms := []struct {
		outage Outage
		config Config
		peers  []string
		runs   [3]*Run
	}{
		{outage: Outage{Kind: Down}, config: few, peers: []string{"oncehttp", "failsafe-go", "rehttp"}},
		{outage: Outage{Kind: BrownOut}, config: brief, peers: []string{"oncehttp", "rehttp"}},
		{outage: Outage{}, config: brief, peers: []string{"oncehttp"}},
	}
	t.Run("runs", func(t *testing.T) {
		for i := range storms {
			s := &storms[i]
			for j, name := range s.peers {
				runAside(t, peer(t, name), s.outage, s.config, &s.runs[j])
			}
		}
	})
	calm := storms[2].runs[0]
	for _, s := range storms[:2] {
		for _, p := range judge([]Outage{s.outage}, s.runs[:len(s.peers)], calm) {
			if !p.Kept {
				t.Errorf("%s: %s is %s, and should be within %s", p.Outage.Title(), p.Text, p.Got, p.Need)
			}
		}
	}
	if calm.Failed != 0 || calm.SendsPerAction != 1 || calm.Recovery != 0 {
		t.Errorf("without an outage: %+v, want one send for each action and no failure", calm.Outcome)
	}
}

func peer(t *testing.T, name string) Peer {
	for _, p := range Peers {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("no peer is named %s", name)
	return Peer{}
}

// Pauses are drawn at random, and clients race for the service. What is reported
// must not depend on it.
func TestAStormRepeats(t *testing.T) {
	c := Config{Clients: 200, Length: 100 * time.Second, From: 20 * time.Second, Until: 80 * time.Second, Seed: 1}
	var runs [2]*Run
	t.Run("runs", func(t *testing.T) {
		for i := range runs {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				runs[i] = run(t, peer(t, "oncehttp"), Outage{Kind: Down}, c)
			})
		}
	})
	a, b := runs[0], runs[1]
	for _, f := range []struct {
		name string
		of   func(r *Run) float64
	}{
		{"sends per action", func(r *Run) float64 { return r.SendsPerAction }},
		{"sends per action while it lasts", func(r *Run) float64 { return r.OutageSends }},
		{"peak load", func(r *Run) float64 { return r.Peak }},
		{"wasted sends", func(r *Run) float64 { return r.Wasted }},
		{"failed actions", func(r *Run) float64 { return r.Failed }},
		{"the healthy host's p99", func(r *Run) float64 { return float64(r.HealthyP99) }},
	} {
		if x, y := f.of(a), f.of(b); math.Abs(x-y) > 0.05*max(x, y) {
			t.Errorf("%s: %v and then %v, more than 5 %% apart", f.name, x, y)
		}
	}
}

// A judge who finds nothing proves nothing.
func TestTheJudgeFindsWhatIsNotKept(t *testing.T) {
	good := Outcome{SendsPerAction: 1.02, Peak: 1, Failed: 0.1, Recovery: 10 * time.Second, HealthyP99: 50 * time.Millisecond}
	for _, row := range []struct {
		name   string
		outage Outage
		spoil  func(o *Outcome)
		found  int
	}{
		{"nothing is wrong, down", Outage{Kind: Down}, func(*Outcome) {}, 0},
		{"nothing is wrong, brown-out", Outage{Kind: BrownOut}, func(*Outcome) {}, 0},
		{"more sends than the limit and the rivals", Outage{Kind: Down}, func(o *Outcome) { o.SendsPerAction = 1.16 }, 2},
		{"more sends than the rivals", Outage{Kind: Down}, func(o *Outcome) { o.SendsPerAction = 1.12 }, 1},
		{"more failures", Outage{Kind: Down}, func(o *Outcome) { o.Failed = 0.13 }, 1},
		{"a higher peak", Outage{Kind: BrownOut}, func(o *Outcome) { o.Peak = 1.2 }, 1},
		{"a slow recovery", Outage{Kind: Slow}, func(o *Outcome) { o.Recovery = 16 * time.Second }, 1},
		{"a slow healthy host", Outage{Kind: Slow}, func(o *Outcome) { o.HealthyP99 = 60 * time.Millisecond }, 1},
		{"a healthy host that fails", Outage{Kind: Slow}, func(o *Outcome) { o.HealthyFailed = 0.01 }, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			ours := &Run{Peer: Peers[0], Outage: row.outage, Outcome: good}
			row.spoil(&ours.Outcome)
			other := &Run{Peer: Peers[1], Outage: row.outage, Outcome: Outcome{SendsPerAction: 1.1, Peak: 1.1, Failed: 0.1}}
			bare := &Run{Peer: Peers[len(Peers)-1], Outage: row.outage} // never retries, so it does not count
			found := 0
			for _, p := range judge([]Outage{row.outage}, []*Run{ours, other, bare}, &Run{Outcome: good}) {
				if !p.Kept {
					found++
				}
			}
			if found != row.found {
				t.Errorf("found %d promises broken, want %d", found, row.found)
			}
		})
	}
}

func TestTheTableGoesBetweenItsMarks(t *testing.T) {
	name := filepath.Join(t.TempDir(), "page.md")
	os.WriteFile(name, []byte("before\n"+opens+"\nold\n"+closes+"\nafter\n"), 0o600)
	for range 2 {
		if err := Replace(name, []byte("new\n")); err != nil {
			t.Fatal(err)
		}
	}
	got, _ := os.ReadFile(name)
	if want := "before\n" + opens + "\n\nnew\n\n" + closes + "\nafter\n"; string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
	os.WriteFile(name, []byte("no marks"), 0o600)
	if err := Replace(name, nil); err == nil {
		t.Error("a page without marks: no error")
	}
}
