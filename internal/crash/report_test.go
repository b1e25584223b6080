package crash

import (
	"strings"
	"testing"
	"time"
)

func TestEveryBrokenPromiseIsAFault(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(1000+int64(s), 0) }
	effect := func(run string, s int) Effect { return Effect{run, at(s), at(s)} }
	answered := func(run string) *done { return &done{body: did("a", run), recorded: true, began: at(0), ended: at(1)} }
	for _, v := range []struct {
		name             string
		exactly, forgets bool
		a                action
		effects          []Effect
		fault            string // "" for none
	}{
		{"once, and answered", false, false, action{done: answered("1")}, []Effect{effect("1", 0)}, ""},
		{"unknown, and never", false, false, action{unknowns: 1}, nil, ""},
		{"unknown, and once", false, false, action{unknowns: 1}, []Effect{effect("1", 0)}, ""},
		{"twice", false, false, action{done: answered("1")}, []Effect{effect("1", 0), effect("2", 20)}, "took effect 2 times"},
		{"unknown, and twice", false, false, action{unknowns: 1}, []Effect{effect("1", 0), effect("2", 20)}, "took effect 2 times"},
		{"answered, and never", false, false, action{done: answered("1")}, nil, "no such run took effect"},
		{"answered by another run", false, false, action{done: answered("2")}, []Effect{effect("1", 0)}, "no such run took effect"},
		{"unknown where that cannot be", true, false, action{unknowns: 1}, []Effect{effect("1", 0)}, "answered as unknown"},
		{"never where that cannot be", true, false, action{done: answered("1")}, nil, "never took effect"},
		{"twice in two lives of what forgets", false, true, action{done: answered("1")}, []Effect{effect("1", 0), effect("2", 20)}, ""},
		{"twice in one life of what forgets", false, true, action{done: answered("1")}, []Effect{effect("1", 0), effect("2", 5)}, "took effect 2 times"},
		{"three times in two lives of what forgets", false, true, action{done: answered("1")}, []Effect{effect("3", 25), effect("1", 0), effect("2", 20)}, "took effect 3 times"},
	} {
		t.Run(v.name, func(t *testing.T) {
			v.a.name = "a"
			v.a.first = at(0)
			var e epochs
			e.died(at(10), at(11))
			r := &Report{Exactly: v.exactly, Forgets: v.forgets}
			// One more that is as it should be: a report of nothing is a fault.
			fine := &action{name: "fine", done: &done{body: did("fine", "1")}}
			l := &load{actions: []*action{&v.a, fine}}
			r.judge(l, map[string][]Effect{"a": v.effects, "fine": {effect("1", 0)}}, &e, false, time.Minute)
			got := strings.Join(r.Faults, "; ")
			if v.fault == "" && got != "" || !strings.Contains(got, v.fault) {
				t.Errorf("got faults %q, want %q", got, v.fault)
			}
		})
	}
	t.Run("the whole", func(t *testing.T) {
		r := &Report{Kills: 10, Hits: 3}
		l := &load{faults: []string{"what a client saw"}, firsts: []time.Duration{2 * time.Minute}}
		r.judge(l, map[string][]Effect{"a": {effect("1", 0)}}, &epochs{}, true, time.Minute)
		for _, want := range []string{"what a client saw", "nobody had asked", "2m0s until something new", "nothing was done", "3 of 10 kills"} {
			if got := strings.Join(r.Faults, "; "); !strings.Contains(got, want) {
				t.Errorf("got faults %q, want %q among them", got, want)
			}
		}
	})
}

func TestAJournalGivesBackWhatWasWritten(t *testing.T) {
	path := t.TempDir() + "/journal"
	j, err := OpenJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	want := Effect{newRun(), time.Unix(3, 4), time.Unix(5, 6)}
	for range 2 {
		if err := j.Append(t.Context(), "a", want); err != nil {
			t.Fatal(err)
		}
	}
	got, err := ReadJournal(path)
	if err != nil || len(got) != 1 || len(got["a"]) != 2 || got["a"][1] != want {
		t.Errorf("got %v, %v; want %v twice", got, err, want)
	}
	if _, err := j.f.WriteString("half a li"); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadJournal(path); err == nil {
		t.Errorf("a line that was cut: got %v and no error", got)
	}
}
