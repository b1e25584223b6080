package pgstore

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

func TestATimeIsReadAsItWasWritten(t *testing.T) {
	types := pgtype.NewMap()
	for _, text := range []string{
		"2000-01-01T00:00:00Z", "1999-12-31T23:59:59.999999Z", "1969-07-20T20:17:40.000001Z", "2026-11-30T22:04:53.123456Z", "2318-02-03T04:05:06.7Z",
	} {
		want, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			t.Fatal(err)
		}
		sent, err := types.Encode(pgtype.TimestamptzOID, pgtype.BinaryFormatCode, want, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := readTime(sent); !ok || !got.Equal(want) {
			t.Errorf("got %v, %v; want %v", got.UTC(), ok, want)
		}
	}
}

func TestAColumnThatDoesNotFitIsNamed(t *testing.T) {
	eight := binary.BigEndian.AppendUint64(nil, 7)
	var b bool
	var n int64
	var at time.Time
	var text string
	for _, v := range []struct {
		values [][]byte
		dest   []any
		want   string
	}{
		{[][]byte{eight}, nil, "1 columns, want 0"},
		{[][]byte{eight}, []any{&b}, "column 1 does not fit in a *bool"},
		{[][]byte{eight, {1}}, []any{&n, &n}, "column 2 does not fit in a *int64"},
		{[][]byte{nil}, []any{&n}, "column 1 does not fit in a *int64"},
		{[][]byte{nil}, []any{&at}, "column 1 does not fit in a *time.Time"},
		{[][]byte{nil}, []any{&text}, "column 1 does not fit in a *string"},
		{[][]byte{eight}, []any{new(float64)}, "column 1 does not fit in a *float64"},
	} {
		if err := readRow(v.values, v.dest); err == nil || !strings.Contains(err.Error(), v.want) {
			t.Errorf("got error %v, want one that says %q", err, v.want)
		}
	}
}

// What is read outlives the connection's buffer, and no value reaches into the next.
func TestARowIsACopy(t *testing.T) {
	values := [][]byte{[]byte("one"), nil, {}, []byte("two")}
	var one, none, empty, two []byte
	if err := readRow(values, []any{&one, &none, &empty, &two}); err != nil {
		t.Fatal(err)
	}
	copy(values[0], "XXX")
	one = append(one, "more"...)
	if string(one) != "onemore" || none != nil || empty == nil || len(empty) != 0 || string(two) != "two" {
		t.Errorf("got %q, %v, %v and %q", one, none, empty, two)
	}
}
