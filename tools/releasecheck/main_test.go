package main

import (
	"maps"
	"slices"
	"testing"
)

func TestWhatImportersMustNotCarry(t *testing.T) {
	for _, row := range []struct {
		name    string
		dir     string
		carried []string
		want    []string
	}{
		{"the root and its three dependencies", "", rootCarries, nil},
		{"the root and a driver", "", append(slices.Clone(rootCarries), "github.com/jackc/pgx/v5"), []string{"github.com/jackc/pgx/v5"}},
		{"a store and its own driver", "pgstore", []string{root, "github.com/jackc/pgx/v5"}, nil},
		{"an adapter and its SDK", "adapters/mcp", []string{root, "github.com/modelcontextprotocol/go-sdk"}, nil},
		{"a store and an adapter's SDK", "pgstore", []string{root, "github.com/modelcontextprotocol/go-sdk"}, []string{"github.com/modelcontextprotocol/go-sdk"}},
		{"an adapter and what its SDK imports", "adapters/anthropic", []string{root, "go.opentelemetry.io/otel/trace"}, nil},
		{"an adapter and what another's SDK imports", "adapters/openai", []string{root, "go.opentelemetry.io/otel/trace"}, []string{"go.opentelemetry.io/otel/trace"}},
		{"a program and every driver", "cmd/onceproxy", append(slices.Collect(maps.Values(drivers)), root), nil},
		{"a store and another's driver", "pgstore", []string{root, "modernc.org/sqlite"}, []string{"modernc.org/sqlite"}},
	} {
		if got := tooMuch(row.dir, row.carried); !slices.Equal(got, row.want) {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
	}
}
