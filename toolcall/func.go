package toolcall

import (
	"bytes"
	"context"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Func makes the Call of a [Tool] from a function with typed arguments. In is
// usually a struct with json tags.
//
// The arguments are decoded strictly. A member that In does not have, by its exact
// name, is refused: encoding/json would drop a misspelt one, and would take "Amount"
// and "amount" for the same and let the last win. So is the absence, or a null, of
// one that In has, unless the field is a pointer, slice, map or interface, or its tag
// says omitempty or omitzero. And so is a value that does not fit. All this is BadArguments, at once,
// with a text that names the argument. An error of f is f's own, even when it comes from
// encoding/json: an upstream's malformed answer is not the model's fault.
//
// Types with an UnmarshalJSON or UnmarshalText of their own are left to it. Numbers in
// interface values arrive as [json.Number], with all their digits.
func Func[In any](f func(ctx context.Context, in In) (any, error)) func(context.Context, json.RawMessage) (any, error) {
	return func(ctx context.Context, args json.RawMessage) (any, error) {
		var in In
		if len(args) == 0 {
			args = json.RawMessage("{}")
		}
		if problem := misfit(reflect.TypeFor[In](), args, ""); problem != "" {
			return nil, BadArguments(problem)
		}
		d := json.NewDecoder(bytes.NewReader(args))
		d.UseNumber()
		if err := d.Decode(&in); err != nil {
			return nil, &Error{Type: TypeBadArguments, Details: decodeProblem(err), Err: err}
		}
		return f(ctx, in)
	}
}

func decodeProblem(err error) string {
	var t *json.UnmarshalTypeError
	if !errors.As(err, &t) {
		return "an argument has a value that the tool does not take"
	}
	kind := t.Value
	if i := strings.IndexByte(kind, ' '); i > 0 {
		kind = kind[:i] // "number 1e400": the rest is the value
	}
	if kind == "object" || kind == "array" {
		kind = "an " + kind
	} else {
		kind = "a " + kind
	}
	if t.Field == "" {
		return fmt.Sprintf("the arguments hold %s where the tool wants %s", kind, wanted(t.Type))
	}
	// The path leads through embedded structs, which have no name in JSON, so only
	// its end is sure to be one that the model knows.
	field := t.Field[strings.LastIndexByte(t.Field, '.')+1:]
	return fmt.Sprintf("argument %s: got %s, want %s", name(field), kind, wanted(t.Type))
}

func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "a whole number that fits"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number that fits and is not negative"
	}
	return "something else"
}

var (
	unmarshaler     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// misfit names the first member of raw that t does not have, or the other way
// round. What else is wrong is left to encoding/json.
func misfit(t reflect.Type, raw json.RawMessage, at string) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if p := reflect.PointerTo(t); p.Implements(unmarshaler) || p.Implements(textUnmarshaler) {
		return ""
	}
	switch t.Kind() {
	case reflect.Struct:
		var members map[string]json.RawMessage
		if json.Unmarshal(raw, &members) != nil || members == nil {
			return ""
		}
		return misfitStruct(t, members, at)
	case reflect.Map:
		var members map[string]json.RawMessage
		if json.Unmarshal(raw, &members) != nil {
			return ""
		}
		for _, n := range slices.Sorted(maps.Keys(members)) { // so that the text is stable
			if problem := misfit(t.Elem(), members[n], at+n+"."); problem != "" {
				return problem
			}
		}
	case reflect.Slice, reflect.Array:
		var elements []json.RawMessage
		if json.Unmarshal(raw, &elements) != nil {
			return ""
		}
		for i, v := range elements {
			if problem := misfit(t.Elem(), v, fmt.Sprintf("%s%d.", at, i)); problem != "" {
				return problem
			}
		}
	}
	return ""
}

func misfitStruct(t reflect.Type, members map[string]json.RawMessage, at string) string {
	known := make(map[string]bool, len(members))
	missing, deeper := "", ""
	for _, f := range reflect.VisibleFields(t) {
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || tag == "-" && options == "" || f.Anonymous && tag == "" || hidden(t, f.Index) {
			continue
		}
		if tag == "" {
			tag = f.Name
		}
		known[tag] = true
		v, there := members[tag]
		switch {
		case there && string(v) != "null":
			if deeper == "" {
				deeper = misfit(f.Type, v, at+tag+".")
			}
		case missing == "" && !optional(f.Type, options):
			missing = "argument " + name(at+tag) + " is missing"
		}
	}
	var unknown []string
	for n := range members {
		if !known[n] {
			unknown = append(unknown, n)
		}
	}
	switch {
	case len(unknown) > 0 && missing != "": // most likely one and the same
		return "argument " + name(at+slices.Min(unknown)) + " does not exist; " + missing
	case len(unknown) > 0:
		return "argument " + name(at+slices.Min(unknown)) + " does not exist"
	case missing != "":
		return missing
	}
	return deeper
}

// hidden reports whether the field is reached through an embedded struct that has
// a name of its own in JSON.
func hidden(t reflect.Type, index []int) bool {
	for i := 1; i < len(index); i++ {
		if f := t.FieldByIndex(index[:i]); f.Tag.Get("json") != "" {
			return true
		}
	}
	return false
}

func optional(t reflect.Type, options string) bool {
	for o := range strings.SplitSeq(options, ",") {
		if o == "omitempty" || o == "omitzero" {
			return true
		}
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Interface:
		return true
	}
	return false
}

// name quotes an argument's name, which the model chose, and bounds it.
func name(s string) string {
	const most = 100
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return `"` + s + `"`
}
