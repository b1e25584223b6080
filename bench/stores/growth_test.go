package main

import (
	"testing"
	"time"
)

func TestPageFaultsSettle(t *testing.T) {
	for name, tt := range map[string]struct {
		spans []float64
		ends  bool // with the last of them
	}{
		"hardly any":               {[]float64{5, 2, 0.3, 0.02, 0.005}, true},
		"garbage":                  {[]float64{0.4, 0.04, 0.04, 0.05, 0.039}, true},
		"they fall, if slowly":     {[]float64{5, 4.8, 4.6, 4.4, 4.2, 4, 3.8, 3.6}, false},
		"they fell again in three": {[]float64{1, 1, 1, 0.5, 0.5, 0.5}, false},
	} {
		s := newSettling()
		for i, n := range tt.spans {
			if got, want := s.settled(n), tt.ends && i == len(tt.spans)-1; got != want {
				t.Errorf("%s: settled after span %d: %v, want %v", name, i, got, want)
			}
		}
	}
}

func TestFaultsAreOfTheCallsThatHadThem(t *testing.T) {
	n := int64(1000) // what was before does not count
	table := grownTable{faults: func() (int64, bool) { return n, true }}
	var f faultTally
	for range 2 {
		_, err := f.watch(table, 1, func(int64) error { n += 3; return nil })(time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
	}
	// A span in which not one call was made, on a machine that is slow, tells nothing.
	if f.calls.Load() > 0 && f.String() != "3.00" {
		t.Errorf("a call has %v faults, want 3.00", &f)
	}
	table.faults = func() (int64, bool) { return 0, false }
	if _, err := f.watch(table, 1, func(int64) error { return nil })(time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if f.String() != "?" {
		t.Errorf("where faults are not told a call has %v, want ?", &f)
	}
}
