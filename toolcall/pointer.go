package toolcall

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/oncehttp/oncehttp/internal/canon"
)

// identity returns what of the canonical arguments makes a call the same call.
func (t *Tool) identity(canonical []byte) ([]byte, error) {
	if len(t.KeyFields) == 0 && len(t.IgnoreFields) == 0 {
		return canonical, nil
	}
	doc := decode(canonical)
	if len(t.KeyFields) == 0 {
		for _, p := range t.IgnoreFields {
			remove(doc, pointerSteps(p))
		}
		return encode(doc)
	}
	key := make(map[string]any, len(t.KeyFields))
	for _, p := range t.KeyFields {
		if v, ok := lookup(doc, pointerSteps(p)); ok {
			key[p] = v
		}
	}
	if len(key) == 0 {
		// Nothing is left to tell this call from any other one of the tool.
		return nil, BadArguments("none of the arguments that identify the call is there: " + strings.Join(t.KeyFields, ", "))
	}
	return encode(key)
}

// decode reads canonical JSON and keeps the digits of its numbers.
func decode(canonical []byte) (doc any) {
	d := json.NewDecoder(bytes.NewReader(canonical))
	d.UseNumber()
	d.Decode(&doc) // it is canonical, so it decodes
	return doc
}

func encode(doc any) ([]byte, error) {
	b, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	return canon.Append(nil, b)
}

// validPointer reports whether p is a JSON pointer (RFC 6901) to something within
// the document.
func validPointer(p string) bool {
	if p == "" || p[0] != '/' {
		return false
	}
	for i := range len(p) {
		if p[i] == '~' && (i+1 == len(p) || p[i+1] != '0' && p[i+1] != '1') {
			return false
		}
	}
	return true
}

var unescapePointer = strings.NewReplacer("~1", "/", "~0", "~")

func pointerSteps(p string) []string {
	steps := strings.Split(p[1:], "/")
	for i, s := range steps {
		steps[i] = unescapePointer.Replace(s)
	}
	return steps
}

func lookup(doc any, steps []string) (any, bool) {
	for _, s := range steps {
		switch v := doc.(type) {
		case map[string]any:
			next, ok := v[s]
			if !ok {
				return nil, false
			}
			doc = next
		case []any:
			i, ok := arrayIndex(s, len(v))
			if !ok {
				return nil, false
			}
			doc = v[i]
		default:
			return nil, false
		}
	}
	return doc, true
}

// remove takes a member out of its object. An element of an array becomes null,
// so that the others keep their places.
func remove(doc any, steps []string) {
	last := len(steps) - 1
	parent, ok := lookup(doc, steps[:last])
	if !ok {
		return
	}
	switch v := parent.(type) {
	case map[string]any:
		delete(v, steps[last])
	case []any:
		if i, ok := arrayIndex(steps[last], len(v)); ok {
			v[i] = nil
		}
	}
}

// arrayIndex reads an index as RFC 6901, section 4, writes it.
func arrayIndex(s string, n int) (int, bool) {
	i, err := strconv.Atoi(s)
	return i, err == nil && i >= 0 && i < n && strconv.Itoa(i) == s
}
