// Package adapter has what the adapters between package toolcall and other SDKs share.
//
// For those of models, it makes what a model sent into something that its provider takes back. A
// provider refuses a conversation with one malformed call for as long as that is in it,
// so a mistake of the model is answered in its result and not repeated in the conversation.
//
// For those of servers of tools, [Served] runs a call once for its key, and [RPCError] and
// [Hints] tell a Runner what such a server says.
//
// Programs use an adapter, not this package.
package adapter

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
)

// Refused are arguments that no tool is run with: they are no JSON, and the call is answered
// with bad_arguments.
var Refused = json.RawMessage("{")

// Arguments are those of a call as the model sent them. To package toolcall an empty text means that
// a call takes none. Where an answer was cut off they are missing, and the call is refused.
func Arguments(sent string, cut bool) json.RawMessage {
	if cut && sent == "" {
		return Refused
	}
	return json.RawMessage(sent)
}

// Text are the arguments of a tool that takes a text and no JSON: an object with the text as its member
// "input", since a Runner's tools take objects. One that was cut off is refused.
func Text(sent string, cut bool) json.RawMessage {
	if cut {
		return Refused
	}
	b, _ := json.Marshal(map[string]string{"input": sent}) // strings always encode
	return b
}

// Value is what a model is given of a text: the JSON that it is, with every digit of
// its numbers, or else the text.
func Value(text string) any {
	if json.Valid([]byte(text)) {
		return json.RawMessage(text)
	}
	return text
}

// Object returns arguments as a conversation may repeat them: as they are if they are a JSON object, and
// otherwise {}.
func Object[T string | json.RawMessage](sent T) T {
	if b := []byte(sent); !json.Valid(b) || !bytes.HasPrefix(bytes.TrimLeft(b, " \t\r\n"), []byte("{")) {
		return T("{}")
	}
	return sent
}

// Name returns a tool's name as a conversation may repeat it: up to most letters, digits,
// _ and -. Others become _. A model can call a tool that does not exist by any name.
func Name(sent string, most int) string {
	name := plain(sent)
	if name == "" {
		return "_"
	}
	return name[:min(len(name), most)]
}

func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '-' || r == '_' || '0' <= r && r <= '9' || 'A' <= r && r <= 'Z' || 'a' <= r && r <= 'z' {
			return r
		}
		return '_'
	}, s)
}

// IDs are the ids of calls that a conversation has.
type IDs map[string]bool

// Use remembers an id that a conversation has. Nil is none.
func (ids IDs) Use(id *string) {
	if id != nil {
		ids[*id] = true
	}
}

// Add returns id and remembers it. One that is missing, used before, over most bytes long or has other
// characters than letters, digits, _ and - is replaced by one that begins with prefix. The same conversation gets the
// same ids.
func (ids IDs) Add(id, prefix string, most int) string {
	for n := len(ids) + 1; id == "" || len(id) > most || id != plain(id) || ids[id]; n++ {
		id = prefix + strconv.Itoa(n)
	}
	ids[id] = true
	return id
}
