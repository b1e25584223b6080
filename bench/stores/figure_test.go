package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheFigureShowsEveryStore(t *testing.T) {
	var speeds []speed
	for _, what := range []string{"executions", "replays"} {
		speeds = append(speeds, speed{"SQLite", what, 1, 1000, 0}, speed{"SQLite", what, 64, 13000, 0},
			speed{"Postgres", what, 8, 3000, 3100}, speed{"Postgres", what, 32, 5000, 5200},
			speed{"Redis", what, 1, 8000, 20000}, speed{"Redis", what, 32, 30000, 60000})
	}
	file := filepath.Join(t.TempDir(), "stores.svg")
	if err := drawFigure(speeds, file); err != nil {
		t.Fatal(err)
	}
	svg, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"SQLite, replays", "Postgres, executions", "Redis, replays"} {
		if !strings.Contains(string(svg), want) {
			t.Errorf("the figure does not say %q", want)
		}
	}
	if err := drawFigure(speeds[:2], file); err == nil || !strings.Contains(err.Error(), "Postgres") {
		t.Errorf("a figure without Postgres: got %v, want an error that names it", err)
	}
}

func TestARowIsJudgedByItsLimit(t *testing.T) {
	for _, tt := range []struct {
		name   string
		row    row
		want   string
		missed bool
	}{
		{"fast enough", row{got: 0.7, limit: 0.7}, "holds", false},
		{"too slow", row{got: 0.69, limit: 0.7}, "MISSED", true},
		{"small enough", row{got: 400, limit: 400, atMost: true}, "holds", false},
		{"too large", row{got: 401, limit: 400, atMost: true}, "MISSED", true},
		{"without a limit", row{got: 1}, "not judged", false},
		{"where it means nothing", row{got: 1, limit: 6, why: "a fast disk"}, "not judged: a fast disk", false},
	} {
		if got := tt.row.verdict(); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
		r := &report{out: new(strings.Builder)}
		r.table("", nil, []row{tt.row})
		if got := r.verdict() != 0; got != tt.missed {
			t.Errorf("%s: got a failing exit %v, want %v", tt.name, got, tt.missed)
		}
	}
}

func TestStatementsAreWrittenForPgbench(t *testing.T) {
	s := statement{"UPDATE t\n\tSET a = $2::bytea, b = $3::int8, c = $4::bytea WHERE id = $1::uuid AND d = $2::bytea", []any{"0-1", []byte{1, 0xab}, int64(7), nil}}
	want := `UPDATE t SET a = '\x01ab'::bytea, b = 7::int8, c = NULL::bytea WHERE id = '0-1'::uuid AND d = '\x01ab'::bytea;` + "\n"
	if got := s.inlined(literal); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
