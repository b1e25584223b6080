package adapter_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/oncehttp/oncehttp/toolcall/adapter"
)

func TestIDsAreReplacedWhereAProviderWouldNotTakeThem(t *testing.T) {
	ids, old := adapter.IDs{}, "old"
	ids.Use(&old)
	ids.Use(nil)
	var got []string
	for _, id := range []string{"a", "a", "", "old", strings.Repeat("b", 9), "p:0", "call_4"} {
		got = append(got, ids.Add(id, "call_", 8))
	}
	if s, want := strings.Join(got, " "), "a call_3 call_4 call_5 call_6 call_7 call_8"; s != want {
		t.Errorf("got %s, want %s", s, want)
	}
}

func TestNames(t *testing.T) {
	for sent, want := range map[string]string{"refund_order-1": "refund_order-1", "refund order!": "refund_o", "": "_", "é": "_", "0123456789": "01234567"} {
		most := 8
		if sent == "refund_order-1" {
			most = 64
		}
		if got := adapter.Name(sent, most); got != want {
			t.Errorf("%q: got %q, want %q", sent, got, want)
		}
	}
}

func TestArguments(t *testing.T) {
	for _, row := range []struct {
		sent, kept string
		cut        bool
		valid      bool // what is passed on
	}{
		{`{"n":9007199254740993}`, `{"n":9007199254740993}`, false, true},
		{` {}`, ` {}`, true, true},
		{`{"n":`, `{}`, false, false},
		{`[]`, `{}`, false, true},
		{`null`, `{}`, false, true},
		{``, `{}`, true, false},
	} {
		if got := adapter.Object(row.sent); got != row.kept {
			t.Errorf("%q is kept as %q, want %q", row.sent, got, row.kept)
		}
		if got := adapter.Arguments(row.sent, row.cut); json.Valid(got) != row.valid || row.sent != "" && string(got) != row.sent {
			t.Errorf("%q is passed on as %q", row.sent, got)
		}
	}
	if got := adapter.Arguments("", false); len(got) != 0 {
		t.Errorf("no arguments are passed on as %q", got)
	}
	if got := adapter.Text("a\n\"b\"", false); string(got) != `{"input":"a\n\"b\""}` {
		t.Errorf("a text is passed on as %s", got)
	}
	if json.Valid(adapter.Text("a", true)) {
		t.Error("a text that was cut off is passed on")
	}
}
