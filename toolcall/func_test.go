package toolcall

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"
)

func TestArgumentsAreDecodedStrictly(t *testing.T) {
	type line struct {
		SKU string `json:"sku"`
		N   int8   `json:"n,omitempty"`
	}
	type base struct {
		Order string `json:"order"`
	}
	type in struct {
		base
		Amount int64           `json:"amount"`
		Lines  []line          `json:"lines"`
		Extra  map[string]line `json:"extra"`
		Note   *string         `json:"note"`
		Any    any             `json:"any"`
		At     time.Time       `json:"at,omitzero"`
		Secret string          `json:"-"`
	}
	for _, row := range []struct{ args, want string }{
		{`{"order":"A","amount":9007199254740993}`, ""},
		{`{"order":"A","amount":1,"lines":[{"sku":"x","n":1}],"extra":{"a":{"sku":"y"}},"note":"n","any":{"what":["ever"]},"at":"2026-01-02T03:04:05Z"}`, ""},
		{`{"order":"A","amount":1,"lines":null,"note":null}`, ""},
		{`{"order":"A"}`, `argument "amount" is missing`},
		{`{"order":"A","amount":null}`, `argument "amount" is missing`},
		{`{"order":"A","Amount":1}`, `argument "Amount" does not exist; argument "amount" is missing`},
		{`{"order":"A","amount":1,"zzz":1,"aaa":2}`, `argument "aaa" does not exist`},
		{`{"order":"A","amount":1,"Secret":"x"}`, `argument "Secret" does not exist`},
		{`{"order":"A","amount":1,"":"x"}`, `argument "" does not exist`},
		{`{"order":"A","amount":1,"lines":[{"sku":"x"},{"sk":"x"}]}`, `argument "lines.1.sk" does not exist; argument "lines.1.sku" is missing`},
		{`{"order":"A","amount":1,"extra":{"b":{"sku":"x","q":1},"a":{}}}`, `argument "extra.a.sku" is missing`},
		{`{"order":"A","amount":"1"}`, `argument "amount": got a string, want a whole number that fits`},
		{`{"order":"A","amount":1.5}`, `argument "amount": got a number, want a whole number that fits`},
		{`{"order":"A","amount":1,"lines":[{"sku":"x","n":300}]}`, `argument "n": got a number, want a whole number that fits`},
		{`{"order":{},"amount":1}`, `argument "order": got an object, want a string`},
		{`{"order":"A","amount":1,"at":"SECRET"}`, `an argument has a value that the tool does not take`},
	} {
		ran := false
		_, err := Func(func(_ context.Context, v in) (any, error) { ran = true; return nil, nil })(t.Context(), json.RawMessage(row.args))
		var e *Error
		switch {
		case row.want == "" && (err != nil || !ran):
			t.Errorf("%s: got %v", row.args, err)
		case row.want != "" && (ran || !errors.As(err, &e) || e.Type != TypeBadArguments || e.Details != row.want):
			t.Errorf("%s: got %v, want %s", row.args, err, row.want)
		}
	}
}

func TestAToolsOwnDecodingErrorsAreNotTheModels(t *testing.T) {
	f := Func(func(context.Context, struct{}) (any, error) {
		var upstream struct{ N int }
		return nil, json.Unmarshal([]byte(`{"N":"x"}`), &upstream)
	})
	_, err := f(t.Context(), nil)
	if v := classify(Read, nil, err, false); err == nil || v.typ != TypePermanent {
		t.Errorf("got %v, %s", err, v.typ)
	}
}

func TestNumbersInInterfacesKeepTheirDigits(t *testing.T) {
	f := Func(func(_ context.Context, in map[string]any) (any, error) { return in, nil })
	v, err := f(t.Context(), json.RawMessage(`{"n":9007199254740993}`))
	if b, _ := json.Marshal(v); err != nil || string(b) != `{"n":9007199254740993}` {
		t.Errorf("got %s, %v", b, err)
	}
}

func FuzzFunc(f *testing.F) {
	type in struct {
		A int            `json:"a"`
		B map[string]any `json:"b"`
		C []struct{ D *string }
	}
	f.Add(`{"a":1,"b":{"x":1},"C":[{"D":"d"}]}`)
	f.Add(`{"A":1}`)
	f.Add(`[null]`)
	call := Func(func(_ context.Context, v in) (any, error) { return v, nil })
	f.Fuzz(func(t *testing.T, args string) {
		_, err := call(t.Context(), json.RawMessage(args))
		var e *Error
		if err != nil && (!errors.As(err, &e) || e.Type != TypeBadArguments || e.Details == "") {
			t.Errorf("%q: got %v", args, err)
		}
	})
}
