package toolcall

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// marshal is json.Marshal for a reader that is no browser: < stays <.
func marshal(value any) (json.RawMessage, error) {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return nil, err
	}
	b := bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
	if !utf8.Valid(b) { // a RawMessage is passed on as it is
		b = bytes.ToValidUTF8(b, []byte("\uFFFD"))
	}
	return b, nil
}

// cut is the beginning of b, as a JSON string of at most about most bytes.
func cut(b json.RawMessage, most int) json.RawMessage {
	for n := most; ; n /= 2 {
		s := appendString(nil, strings.ToValidUTF8(string(b[:n]), "")+"…")
		if len(s) <= most || n < 2 {
			return s // each quote in it takes two bytes now
		}
	}
}
