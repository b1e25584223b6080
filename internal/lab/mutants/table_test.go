package main

import "testing"

// Whoever changes a line that stands in the table learns of it here, and not when
// somebody has the minutes for the whole check.
func TestEveryMutantStillApplies(t *testing.T) {
	names := map[string]bool{}
	for _, m := range mutants {
		if names[m.name] {
			t.Errorf("two mutants are called %q", m.name)
		}
		names[m.name] = true
		if m.old == m.new {
			t.Errorf("%s: it changes nothing", m.name)
		}
		if _, err := m.patched("../../.."); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
	if len(mutants) < 25 {
		t.Errorf("%d mutants, want 25 at least", len(mutants))
	}
}
