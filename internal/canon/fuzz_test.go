package canon

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"
	"unicode/utf8"
)

// FuzzCanon compares Append with a slow reference that shares no code with it:
// tokens come from encoding/json, digits from math/big.
func FuzzCanon(f *testing.F) {
	for _, s := range []string{
		`{"order_id":"A-17","amount":1.00e2}`, `[1,1.0,1e0,-0,0.0000001,1e21,123456789012345678901234567890]`,
		`{"b":{"d":1,"c":[{},[]]},"a":null}`, `{"a":1,"\u0061":2}`, `"\ud83d\ude00"`, `"\ud800"`, "\"\xff\"",
		`{"\u20ac":1,"\r":2,"\ufb33":3,"1":4,"\ud83d\ude00":5,"\u0080":6,"\u00f6":7}`,
		`1e999999999`, `1e1000000000`, `0e99999999999999999999`, `[1,]`, `{"a":1}{}`, `01`, `-`, "", "\"\u2028\x7f\"",
		strings.Repeat("[", 65) + strings.Repeat("]", 65),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		if len(src) > 1<<12 {
			t.Skip("the reference is quadratic")
		}
		before := bytes.Clone(src)
		got, err := Append(nil, src)
		if !bytes.Equal(src, before) {
			t.Fatal("src was changed")
		}
		want, refErr := reference(src)
		if (err == nil) != (refErr == nil) {
			t.Fatalf("Append(%q) = %s, %v; reference says %v", src, got, err, refErr)
		}
		if err != nil {
			return
		}
		if string(got) != want {
			t.Fatalf("Append(%q)\n got %s\nwant %s", src, got, want)
		}
		again, err := Append(nil, got)
		if err != nil || !bytes.Equal(again, got) {
			t.Fatalf("Append(%s) = %s, %v; want it unchanged", got, again, err)
		}
	})
}

// An escape, and what follows it unless that is an escape too.
var escapes = regexp.MustCompile(`\\(u....|[^u])[^\\]?`)

func reference(src []byte) (string, error) {
	if !json.Valid(src) || !utf8.Valid(src) {
		return "", errors.New("not JSON")
	}
	high := ""
	for _, escape := range escapes.FindAllString(string(src), -1) {
		code := uint64(0)
		if escape[1] == 'u' {
			code, _ = strconv.ParseUint(escape[2:6], 16, 32)
		}
		low := code >= 0xdc00 && code < 0xe000
		if (high != "") != low {
			return "", errors.New("lone surrogate")
		}
		high = ""
		if code >= 0xd800 && code < 0xdc00 {
			if high = escape; len(escape) != 6 { // something stands between the halves
				return "", errors.New("lone surrogate")
			}
		}
	}
	if high != "" {
		return "", errors.New("lone surrogate")
	}
	d := json.NewDecoder(bytes.NewReader(src))
	d.UseNumber()
	return referenceValue(d, 0)
}

func referenceValue(d *json.Decoder, depth int) (string, error) {
	token, err := d.Token()
	if err != nil {
		return "", err
	}
	switch v := token.(type) {
	case nil:
		return "null", nil
	case bool:
		return strconv.FormatBool(v), nil
	case string:
		return referenceString(v), nil
	case json.Number:
		return referenceNumber(string(v))
	}
	if depth == MaxDepth {
		return "", errors.New("too deep")
	}
	if token == json.Delim('[') {
		var values []string
		for d.More() {
			s, err := referenceValue(d, depth+1)
			if err != nil {
				return "", err
			}
			values = append(values, s)
		}
		d.Token()
		return "[" + strings.Join(values, ",") + "]", nil
	}
	var names []string
	values := map[string]string{}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return "", err
		}
		s, err := referenceValue(d, depth+1)
		if err != nil {
			return "", err
		}
		if _, ok := values[name.(string)]; ok {
			return "", errors.New("duplicate member")
		}
		names = append(names, name.(string))
		values[name.(string)] = s
	}
	d.Token()
	slices.SortFunc(names, func(a, b string) int {
		return slices.Compare(utf16.Encode([]rune(a)), utf16.Encode([]rune(b)))
	})
	var members []string
	for _, name := range names {
		members = append(members, referenceString(name)+":"+values[name])
	}
	return "{" + strings.Join(members, ",") + "}", nil
}

func referenceString(s string) string {
	var b strings.Builder
	for _, r := range s {
		if i := strings.IndexRune("\b\t\n\f\r\"\\", r); i >= 0 {
			b.WriteString(`\` + `btnfr"\`[i:i+1])
		} else if r < ' ' {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return `"` + b.String() + `"`
}

var numberParts = regexp.MustCompile(`^(-?)(\d+)(?:\.(\d+))?(?:[eE]([-+]?\d+))?$`)

func referenceNumber(s string) (string, error) {
	m := numberParts.FindStringSubmatch(s)
	digits, _ := new(big.Int).SetString(m[2]+m[3], 10)
	if digits.Sign() == 0 {
		return "0", nil
	}
	exponent := new(big.Int)
	if m[4] != "" {
		exponent.SetString(m[4], 10)
	}
	exponent.Sub(exponent, big.NewInt(int64(len(m[3]))))
	for ten, rest := big.NewInt(10), new(big.Int); ; exponent.Add(exponent, big.NewInt(1)) {
		q, _ := new(big.Int).QuoRem(digits, ten, rest)
		if rest.Sign() != 0 {
			break
		}
		digits = q
	}
	text := digits.String()
	scientific := new(big.Int).Add(exponent, big.NewInt(int64(len(text)-1)))
	if scientific.CmpAbs(big.NewInt(999_999_999)) > 0 {
		return "", errors.New("exponent out of range")
	}
	e := int(scientific.Int64())
	switch {
	case e >= 21 || e < -6: // with an exponent, below
	case e >= len(text)-1:
		return m[1] + text + strings.Repeat("0", e-len(text)+1), nil
	case e >= 0:
		return m[1] + text[:e+1] + "." + text[e+1:], nil
	default:
		return m[1] + "0." + strings.Repeat("0", -e-1) + text, nil
	}
	if len(text) > 1 {
		text = text[:1] + "." + text[1:]
	}
	return fmt.Sprintf("%s%se%+d", m[1], text, e), nil
}
