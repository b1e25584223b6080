package toolcall

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

const refundArgs = `{"order_id":"A-17","amount":100}`

func TestKeysAreTheSameEverywhere(t *testing.T) {
	for _, row := range []struct {
		what, secret, turn, args string
		ordinal                  uint32
		want                     string
	}{
		{"a refund", "", "turn_01", refundArgs, 0, "tc1_5230094754c7fb5a3561e8a25b19aeeebe3a14db"},
		{"written otherwise", "", "turn_01", ` {"amount":1.00e2,"order_id":"A-17"}`, 0, "tc1_5230094754c7fb5a3561e8a25b19aeeebe3a14db"},
		{"in the next turn", "", "turn_02", refundArgs, 0, "tc1_7c52e4840cb5c552f2189ff59051ebd4d288c165"},
		{"a second one that is meant", "", "turn_01", refundArgs, 1, "tc1_537d8e3eebbb4304165a092da1db5eca613c770f"},
		{"with a secret", "deployment-secret", "turn_01", refundArgs, 0, "tc1_af5dffe6e3167a72ed9dc18d09774db6ed159c05"},
	} {
		got, err := Key([]byte(row.secret), "acme/support-agent", "refund_order", row.turn, json.RawMessage(row.args), row.ordinal)
		if err != nil || got != row.want {
			t.Errorf("%s: got %s, %v, want %s", row.what, got, err, row.want)
		}
	}
}

func TestKeysTellCallsApart(t *testing.T) {
	key := func(scope, tool, turn, args string) string {
		k, err := Key(nil, scope, tool, turn, json.RawMessage(args), 0)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	seen := map[string]string{}
	for _, row := range [][4]string{
		{"a", "b", "c", `{}`},
		{"ab", "", "c", `{}`},
		{"a", "bc", "", `{}`},
		{"a", "b", "c", `{"n":9007199254740992}`},
		{"a", "b", "c", `{"n":9007199254740993}`},
		{"a", "b", "c", `{"n":"1"}`},
		{"a", "b", "c", `{"n":1}`},
		{"a", "b", "c", `{"n":null}`},
	} {
		k := key(row[0], row[1], row[2], row[3])
		if other, dup := seen[k]; dup {
			t.Errorf("%q and %q have one key", row, other)
		}
		seen[k] = strings.Join(row[:], "|")
	}
	if got, want := key("a", "b", "c", ""), key("a", "b", "c", `{}`); got != want {
		t.Errorf("no arguments: got %s, want the key of an empty object, %s", got, want)
	}
}

func TestArgumentsThatCanBeReadTwoWaysHaveNoKey(t *testing.T) {
	for what, args := range map[string]string{
		"duplicate members":  `{"a":1,"a":2}`,
		"an escaped twin":    `{"a":1,"\u0061":2}`,
		"invalid UTF-8":      "{\"a\":\"\xff\"}",
		"a lone surrogate":   `{"a":"\ud800"}`,
		"trailing data":      `{"a":1}{}`,
		"65 levels":          strings.Repeat(`{"a":`, 65) + "1" + strings.Repeat("}", 65),
		"an array":           `[1]`,
		"a string":           `"secret"`,
		"null":               `null`,
		"white space":        "  ",
		"cut off":            `{"a":`,
		"a number like none": `{"a":01}`,
	} {
		_, err := Key(nil, "s", "t", "u", json.RawMessage(args), 0)
		var e *Error
		if !errors.As(err, &e) || e.Type != TypeBadArguments || e.Details == "" || strings.Contains(e.Details, "secret") {
			t.Errorf("%s: got %v, want bad arguments", what, err)
		}
	}
}

func TestFieldsChooseWhatACallIs(t *testing.T) {
	id := func(tool Tool, args string) string {
		c, err := canonical(json.RawMessage(args))
		if err != nil {
			t.Fatal(err)
		}
		b, err := tool.identity(c)
		if err != nil {
			return "error: " + err.Error()
		}
		return string(b)
	}
	key := Tool{KeyFields: []string{"/order/id", "/lines/1", "/a~1b"}}
	ignore := Tool{IgnoreFields: []string{"/note", "/order/text", "/lines/0"}}
	for _, row := range []struct {
		what string
		tool Tool
		args string
		want string
	}{
		{"a key field deep down", key, `{"order":{"id":9007199254740993,"text":"x"},"note":"y"}`, `{"/order/id":9007199254740993}`},
		{"one in an array, one with a slash", key, `{"lines":[1,2],"a/b":3}`, `{"/a~1b":3,"/lines/1":2}`},
		{"a number keeps its digits", key, `{"order":{"id":1e400}}`, `{"/order/id":1e+400}`},
		{"ignored members go", ignore, `{"order":{"id":1,"text":"x"},"note":"y"}`, `{"order":{"id":1}}`},
		{"ignored elements keep their place", ignore, `{"lines":[1,2]}`, `{"lines":[null,2]}`},
		{"ignored ones may be absent", ignore, `{"lines":[]}`, `{"lines":[]}`},
		{"markup stays", ignore, `{"a":"<&>\u2028"}`, "{\"a\":\"<&>\u2028\"}"},
	} {
		if got := id(row.tool, row.args); got != row.want {
			t.Errorf("%s: got %s, want %s", row.what, got, row.want)
		}
	}
	if got := id(key, `{"note":"y"}`); !strings.Contains(got, "/order/id") || !strings.HasPrefix(got, "error") {
		t.Errorf("no key field at all: got %s, want an error that names them", got)
	}
}

func FuzzIdentity(f *testing.F) {
	f.Add(refundArgs, "/order_id")
	f.Add(`{"a":[{"b~":1}]}`, "/a/0/b~0")
	f.Add(`{"":{"":1}}`, "//")
	f.Fuzz(func(t *testing.T, args, pointer string) {
		c, err := canonical(json.RawMessage(args))
		if err != nil || !validPointer(pointer) {
			return
		}
		for _, tool := range []Tool{{KeyFields: []string{pointer}}, {IgnoreFields: []string{pointer}}} {
			id, err := tool.identity(c)
			if err != nil {
				continue
			}
			again, err := tool.identity(c)
			if err != nil || string(again) != string(id) || !json.Valid(id) {
				t.Errorf("identity of %q by %q: %q, then %q, %v", args, pointer, id, again, err)
			}
		}
	})
}
