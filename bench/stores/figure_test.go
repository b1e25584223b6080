package main

import (
	"os"
	"path/filepath"
	"reflect"
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
	st := statement{"UPDATE t\n\tSET a = $2::bytea, b = $3::int8, c = $4::bytea, e = $5::bytea WHERE id = $1::uuid AND d = $2::bytea",
		[]any{"0-1", []byte{1, 0xab}, int64(7), nil, []byte(nil)}}
	s := script{"first;\n", []string{"of first"}}
	s.add(st, func(arg any) string {
		if arg == "0-1" {
			return "md5(:a)"
		}
		return ""
	})
	want := script{"first;\nUPDATE t SET a = :v1::bytea, b = :v2::int8, c = NULL::bytea, e = NULL::bytea WHERE id = md5(:a)::uuid AND d = :v1::bytea;\n",
		[]string{"of first", `\x01ab`, "7"}}
	if !reflect.DeepEqual(s, want) {
		t.Errorf("got  %q\nwant %q", s, want)
	}
}
