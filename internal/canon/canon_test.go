package canon

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"strings"
	"testing"
)

func TestAppend(t *testing.T) {
	for _, tt := range []struct{ what, src, want string }{
		{"literals stay", ` [ null , true , false ] `, `[null,true,false]`},
		{"space goes", "\t{ \"a\" :\r\n [ 1 , { } , [ ] ] } ", `{"a":[1,{},[]]}`},
		{"the order of an array stays", `[3,1,2]`, `[3,1,2]`},
		{"members are sorted", `{"b":1,"a":2,"":3}`, `{"":3,"a":2,"b":1}`},
		{"members are sorted at every depth", `{"z":{"b":{"d":1,"c":2},"a":0},"y":[{"b":1,"a":2}]}`, `{"y":[{"a":2,"b":1}],"z":{"a":0,"b":{"c":2,"d":1}}}`},
		{"a name that begins like another comes after it", `{"aa":1,"a":2}`, `{"a":2,"aa":1}`},
		{"members are sorted by what their names say, not by how they are written", `{"\u0062":1,"a":2}`, `{"a":2,"b":1}`},
		{"an escaped quote sorts as a quote", `{"#":1,"\"":2,"!":3}`, `{"!":3,"\"":2,"#":1}`},
		{"an escaped backslash sorts as a backslash", `{"]":1,"\\":2,"[":3}`, `{"[":3,"\\":2,"]":1}`},
		{"control characters sort below space", `{" ":1,"\u001f":2,"\n":3,"\t":4,"\b":5,"\f":6,"\r":7,"\u0000":8}`, `{"\u0000":8,"\b":5,"\t":4,"\n":3,"\f":6,"\r":7,"\u001f":2," ":1}`},
		{"a name ends before the quote that sorts high", `{"a!":1,"a":2}`, `{"a":2,"a!":1}`},
		{"needless escapes go", `"\u0041\/\u00e9\u20ac\ud83d\ude00"`, `"A/é€😀"`},
		{"needed escapes stay, in their short form", `"\u0008\u0009\u000a\u000c\u000d\u0022\u005c\u001F"`, `"\b\t\n\f\r\"\\\u001f"`},
		{"what may be written as it is is", "\"\x7f\u2028\ufffd<>&\"", "\"\x7f\u2028\ufffd<>&\""},
		{"an escaped replacement character is itself", `"\ufffd"`, "\"\ufffd\""},

		// RFC 8785, section 3.2.2, except that the first number keeps its digits.
		{"the sample of RFC 8785", `{
			"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
			"string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
			"literals": [null, true, false] }`,
			`{"literals":[null,true,false],"numbers":[333333333.33333329,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`},
		// RFC 8785, section 3.2.3. U+1F600 sorts as 0xd83d, before U+FB33.
		{"the sorting sample of RFC 8785", `{
			"\u20ac": "Euro Sign", "\r": "Carriage Return", "\ufb33": "Hebrew Letter Dalet With Dagesh", "1": "One",
			"\ud83d\ude00": "Emoji: Grinning Face", "\u0080": "Control", "\u00f6": "Latin Small Letter O With Diaeresis" }`,
			"{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u0080\":\"Control\",\"ö\":\"Latin Small Letter O With Diaeresis\"," +
				"\"€\":\"Euro Sign\",\"😀\":\"Emoji: Grinning Face\",\"\ufb33\":\"Hebrew Letter Dalet With Dagesh\"}"},
		{"two characters beyond the BMP are in order", `{"😁":1,"😀":2}`, `{"😀":2,"😁":1}`},
	} {
		t.Run(tt.what, func(t *testing.T) { check(t, tt.src, tt.want) })
	}
}

func TestNumbers(t *testing.T) {
	for _, tt := range []struct{ what, src, want string }{
		{"zero", "0", "0"},
		{"minus zero is zero", "-0", "0"},
		{"zero with a fraction and an exponent is zero", "-0.000e-7", "0"},
		{"zero is zero whatever its exponent", "0e99999999999999999999", "0"},
		{"an integer stays", "100", "100"},
		{"a fraction of zero goes", "1.0", "1"},
		{"an exponent of zero goes", "1e0", "1"},
		{"an exponent of zero may have a sign and zeros", "1E-000", "1"},
		{"trailing zeros of a fraction go", "-4.50", "-4.5"},
		{"a fraction may be all exponent", "1.00e2", "100"},
		{"an exponent may have leading zeros", "1e+002", "100"},
		{"2^53 and the next one differ", "[9007199254740992,9007199254740993]", "[9007199254740992,9007199254740993]"},
		{"a money amount keeps its digits", "12345678901234567.89", "12345678901234567.89"},
		{"21 digits are written out", "100e18", "100000000000000000000"},
		{"21 digits are written out, if they come with an exponent", "1.5e20", "150000000000000000000"},
		{"22 digits are not", "1000000000000000000000", "1e+21"},
		{"more digits than that are all kept", "123456789012345678901234567890", "1.2345678901234567890123456789e+29"},
		{"many digits before a point are all kept", "1234567890123456789012.5", "1.2345678901234567890125e+21"},
		{"many digits behind a point are all kept", "1.2345678901234567890123456789", "1.2345678901234567890123456789"},
		{"six places behind the point are written out", "0.000001", "0.000001"},
		{"six places behind the point, if they come with an exponent", "12.3e-7", "0.00000123"},
		{"seven are not", "0.0000001", "1e-7"},
		{"seven places, several digits", "-0.000000123", "-1.23e-7"},
		{"beyond a float64 is no infinity", "1e400", "1e+400"},
		{"below a float64 is no zero", "1e-400", "1e-400"},
		{"the largest exponent", "1e999999999", "1e+999999999"},
		{"the largest exponent, written otherwise", "1000e999999996", "1e+999999999"},
		{"the smallest exponent", "0.1e-999999998", "1e-999999999"},
	} {
		t.Run(tt.what, func(t *testing.T) { check(t, tt.src, tt.want) })
	}

	// RFC 8785, appendix B: what a float64 is written as is the shortest text of
	// an exact decimal too, so all of them are their own canonical form.
	for _, s := range strings.Fields(`0 5e-324 -5e-324 1.7976931348623157e+308 -1.7976931348623157e+308
		9007199254740992 -9007199254740992 295147905179352830000 9.999999999999997e+22 1e+23
		1.0000000000000001e+23 999999999999999700000 999999999999999900000 1e+21
		9.999999999999997e-7 0.000001 333333333.3333332 333333333.33333325 333333333.3333333
		333333333.3333334 333333333.33333343 -0.0000033333333333333333 1424953923781206.2`) {
		check(t, s, s)
	}
}

func check(t *testing.T, src, want string) {
	t.Helper()
	got, err := Append([]byte("before "), []byte(src))
	if err != nil {
		t.Fatalf("Append(%s): %v", src, err)
	}
	if string(got) != "before "+want {
		t.Errorf("Append(%s)\n got %s\nwant before %s", src, got, want)
	}
	again, err := Append(nil, []byte(want))
	if err != nil || string(again) != want {
		t.Errorf("Append(%s) = %s, %v; a canonical text is its own canonical form", want, again, err)
	}
}

func TestErrors(t *testing.T) {
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	objects := func(n int) string { return strings.Repeat(`{"a":`, n) + "0" + strings.Repeat("}", n) }
	check(t, nested(MaxDepth), nested(MaxDepth))
	check(t, objects(MaxDepth), objects(MaxDepth))

	for _, tt := range []struct{ what, src, want string }{
		{"nothing", "", "unexpected end at byte 0"},
		{"only space", " \n", "unexpected end at byte 2"},
		{"a byte order mark", "\ufeff1", "unexpected byte at byte 0"},
		{"two values", "1 2", "data after the value at byte 2"},
		{"two lines", "{}\n{}", "data after the value at byte 3"},
		{"a NUL behind the value", "1\x00", "data after the value at byte 1"},
		{"a member twice", `{"a":1,"a":1}`, "duplicate member at byte 7"},
		{"a member twice, not side by side", `{"b":1,"c":2,"a":3,"c":4}`, "duplicate member at byte 19"},
		{"a member twice, once escaped", `{"a":1,"\u0061":1}`, "duplicate member at byte 7"},
		{"a member twice, deep", `{"x":[{"b":0,"a":1,"b":2}]}`, "duplicate member at byte 19"},
		{"nesting by arrays", nested(MaxDepth + 1), "nesting too deep at byte 64"},
		{"nesting by objects", objects(MaxDepth + 1), "nesting too deep at byte 320"},
		{"invalid UTF-8", "\"\xff\"", "invalid UTF-8 at byte 1"},
		{"truncated UTF-8", "\"ok\xe2\x82\"", "invalid UTF-8 at byte 3"},
		{"a surrogate in UTF-8", "\"\xed\xa0\x80\"", "invalid UTF-8 at byte 1"},
		{"overlong UTF-8", "\"\xc0\x80\"", "invalid UTF-8 at byte 1"},
		{"a high surrogate alone", `"\ud800"`, "lone surrogate at byte 1"},
		{"a low surrogate alone", `"\udc00"`, "lone surrogate at byte 1"},
		{"surrogates in the wrong order", `"\ude00\ud83d"`, "lone surrogate at byte 1"},
		{"a high surrogate and no escape", `"\ud83dxxxxxx"`, "lone surrogate at byte 1"},
		{"a high surrogate and another escape", `"\ud83d\n"`, "lone surrogate at byte 1"},
		{"a high surrogate and half an escape", `"\ud83d\u12`, "lone surrogate at byte 1"},
		{"a high surrogate at the end", `"\ud83d`, "lone surrogate at byte 1"},
		{"a lone surrogate in a name", `{"\ud800":1}`, "lone surrogate at byte 2"},
		{"an unknown escape", `"\x41"`, "invalid escape at byte 1"},
		{"an escape of three digits", `"\u123"`, "invalid escape at byte 1"},
		{"an escape cut short", `"\`, "unexpected end at byte 1"},
		{"a control character", "\"\n\"", "control character in a string at byte 1"},
		{"an open string", `"abc`, "unexpected end at byte 4"},
		{"an open array", `[1`, "unexpected end at byte 2"},
		{"an open object", `{"a":1`, "unexpected end at byte 6"},
		{"an array that ends in a comma", `[1,]`, "unexpected byte at byte 3"},
		{"an object that ends in a comma", `{"a":1,}`, "unexpected byte at byte 7"},
		{"an array without a comma", `[1 2]`, "unexpected byte at byte 3"},
		{"an object without a comma", `{"a":1 "b":2}`, "unexpected byte at byte 7"},
		{"an object without a colon", `{"a" 1}`, "unexpected byte at byte 5"},
		{"a name without quotes", `{a:1}`, "unexpected byte at byte 1"},
		{"a name without a value", `{"a":}`, "unexpected byte at byte 5"},
		{"brackets that do not match", `[}`, "unexpected byte at byte 1"},
		{"single quotes", `'a'`, "unexpected byte at byte 0"},
		{"a comment", `/**/1`, "unexpected byte at byte 0"},
		{"a literal cut short", `tru`, "invalid literal at byte 0"},
		{"a literal in capitals", `True`, "unexpected byte at byte 0"},
		{"a literal that goes on", `nullx`, "data after the value at byte 4"},
		{"not a number", `NaN`, "unexpected byte at byte 0"},
		{"minus infinity", `-Infinity`, "unexpected byte at byte 1"},
		{"a minus alone", `-`, "unexpected end at byte 1"},
		{"a plus", `+1`, "unexpected byte at byte 0"},
		{"a leading zero", `01`, "number with a leading zero at byte 0"},
		{"a leading zero behind a minus", `[-012]`, "number with a leading zero at byte 1"},
		{"a point without digits before it", `.5`, "unexpected byte at byte 0"},
		{"a point without digits behind it", `1.`, "unexpected end at byte 2"},
		{"an exponent without digits", `1e`, "unexpected end at byte 2"},
		{"an exponent with only a sign", `[1e+]`, "unexpected byte at byte 4"},
		{"a hexadecimal number", `0x10`, "data after the value at byte 1"},
		{"an exponent beyond the bound", `1e1000000000`, "exponent out of range at byte 0"},
		{"an exponent below the bound", `[1e-1000000000]`, "exponent out of range at byte 1"},
		{"an exponent pushed over the bound by its digits", `10e999999999`, "exponent out of range at byte 0"},
		{"an exponent that would overflow an int", `1e9223372036854775808`, "exponent out of range at byte 0"},
		{"an exponent that would overflow and wrap", `1e18446744073709551617`, "exponent out of range at byte 0"},
		{"an exponent of a thousand digits", `-1e-` + strings.Repeat("9", 1000), "exponent out of range at byte 0"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			dst := []byte("before")
			got, err := Append(dst, []byte(tt.src))
			if err == nil {
				t.Fatalf("Append(%q) = %s, want an error", tt.src, got)
			}
			if err.Error() != tt.want {
				t.Errorf("Append(%q): %q, want %q", tt.src, err, tt.want)
			}
			if e := (*Error)(nil); !errors.As(err, &e) {
				t.Errorf("Append(%q): a %T, want an *Error", tt.src, err)
			}
			if string(got) != "before" {
				t.Errorf("Append(%q) = %q with an error, want dst as it was", tt.src, got)
			}
		})
	}
}

// A tool call's key, as another program would compute it from the canonical
// arguments.
func toolCallKey(mac func() hash.Hash, scope, tool, turn, args string, ordinal uint32) (string, error) {
	canonical, err := Append(nil, []byte(args))
	if err != nil {
		return "", err
	}
	h := mac()
	h.Write([]byte("toolcall-key/v1\x00"))
	for _, s := range []string{scope, tool, turn, string(canonical)} {
		binary.Write(h, binary.BigEndian, uint64(len(s)))
		h.Write([]byte(s))
	}
	binary.Write(h, binary.BigEndian, ordinal)
	return "tc1_" + hex.EncodeToString(h.Sum(nil)[:20]), nil
}

func TestToolCallKeysComeOutAsPublished(t *testing.T) {
	secret := func() hash.Hash { return hmac.New(sha256.New, []byte("deployment-secret")) }
	for _, tt := range []struct {
		what       string
		mac        func() hash.Hash
		turn, args string
		ordinal    uint32
		want       string
	}{
		{"the call", sha256.New, "turn_01", `{"order_id":"A-17","amount":100}`, 0, "tc1_5230094754c7fb5a3561e8a25b19aeeebe3a14db"},
		{"the call, written otherwise", sha256.New, "turn_01", ` {"amount":1.00e2,"order_id":"A-17"}`, 0, "tc1_5230094754c7fb5a3561e8a25b19aeeebe3a14db"},
		{"the call in the next turn", sha256.New, "turn_02", `{"order_id":"A-17","amount":100}`, 0, "tc1_7c52e4840cb5c552f2189ff59051ebd4d288c165"},
		{"the second intended call", sha256.New, "turn_01", `{"order_id":"A-17","amount":100}`, 1, "tc1_537d8e3eebbb4304165a092da1db5eca613c770f"},
		{"the call under a deployment secret", secret, "turn_01", `{"order_id":"A-17","amount":100}`, 0, "tc1_af5dffe6e3167a72ed9dc18d09774db6ed159c05"},
	} {
		got, err := toolCallKey(tt.mac, "acme/support-agent", "refund_order", tt.turn, tt.args, tt.ordinal)
		if got != tt.want || err != nil {
			t.Errorf("%s: %s, %v, want %s", tt.what, got, err, tt.want)
		}
	}
}

func TestManyMembersAreSorted(t *testing.T) {
	// Enough members for every path of the sort, each object unsorted.
	var src, want strings.Builder
	src.WriteByte('{')
	want.WriteByte('{')
	const n = 2000
	for i := range n {
		if i > 0 {
			src.WriteByte(',')
			want.WriteByte(',')
		}
		fmt.Fprintf(&src, `"%05d":{"b":%d,"a":0}`, (i*769)%n, (i*769)%n) // 769 and 2000 share no factor
		fmt.Fprintf(&want, `"%05d":{"a":0,"b":%d}`, i, i)
	}
	check(t, src.String()+"}", want.String()+"}")
}

// document is an object of about 10 KB as APIs send them.
func document(sorted bool) []byte {
	var b strings.Builder
	b.WriteString(`{"items": [`)
	for i := range 60 {
		if i > 0 {
			b.WriteString(", ")
		}
		id := fmt.Sprintf(`"id": "item_%08d"`, i)
		rest := fmt.Sprintf(`"amount": %d.50, "currency": "EUR", "description": "Überweisung number %d", "meta": {"order": "A-%d", "retry": false}`, i*100, i, i)
		if sorted {
			rest = strings.Replace(rest, `"meta"`, id+`, "meta"`, 1)
		} else {
			rest = id + ", " + rest
		}
		b.WriteString("{" + rest + "}")
	}
	b.WriteString(`], "total": 12345.00}`)
	return []byte(b.String())
}

func BenchmarkAppend(b *testing.B) {
	for _, bb := range []struct {
		name string
		src  []byte
	}{
		{"sorted", document(true)},
		{"unsorted", document(false)},
		{"small", []byte(`{"amount":42}`)},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.SetBytes(int64(len(bb.src)))
			b.ReportAllocs()
			var dst []byte
			for b.Loop() {
				var err error
				if dst, err = Append(dst[:0], bb.src); err != nil {
					b.Fatal(err)
				}
			}
			// 100 MB/s of a document of some 10 KB.
			if mb := float64(len(bb.src)) * float64(b.N) / 1e6 / b.Elapsed().Seconds(); b.N >= 1000 && len(bb.src) > 8000 && mb < 100 {
				b.Errorf("got %.0f MB/s of %d bytes, want at least 100", mb, len(bb.src))
			}
		})
	}
}
