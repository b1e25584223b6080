package oncehttp

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"mime/multipart"
	"net/textproto"
	"slices"
	"strings"
	"testing"
	"time"
)

// asked is a request as fingerprint sees it.
type asked struct {
	host, query, contentType, contentEncoding, ifMatch, body string
}

func (a asked) fingerprint() string {
	sum := fingerprint(a.host, a.query, a.contentType, a.contentEncoding, a.ifMatch, []byte(a.body))
	return hex.EncodeToString(sum[:])
}

func TestFingerprint(t *testing.T) {
	// More pairs than a short sort takes, which keeps equals in order by chance.
	var mixed, as, bs []string
	for i := range 50 {
		a, b := fmt.Sprint("a=", i), fmt.Sprint("b=", i)
		mixed, as, bs = append(mixed, b, a), append(as, a), append(bs, b)
	}
	query := func(pairs ...[]string) string { return strings.Join(slices.Concat(pairs...), "&") }
	const js = "application/json"
	for _, tt := range []struct {
		what string
		same bool
		a, b asked
	}{
		{"the same request", true, asked{"api.example", "a=1", js, "", `"v1"`, "{}"}, asked{"api.example", "a=1", js, "", `"v1"`, "{}"}},

		{"another host", false, asked{host: "api.example"}, asked{host: "evil.example"}},
		{"another port", false, asked{host: "api.example"}, asked{host: "api.example:8443"}},
		{"a host in capitals", true, asked{host: "api.example"}, asked{host: "API.Example"}},

		{"another value in the query", false, asked{query: "a=1"}, asked{query: "a=2"}},
		{"another name in the query", false, asked{query: "a=1"}, asked{query: "b=1"}},
		{"a parameter more", false, asked{query: "a=1"}, asked{query: "a=1&b=2"}},
		{"a parameter twice", false, asked{query: "a=1"}, asked{query: "a=1&a=1"}},
		{"a query and none", false, asked{query: "a=1"}, asked{}},
		{"an empty value and none", false, asked{query: "a="}, asked{query: "a"}},
		{"parameters in another order", true, asked{query: "b=2&a=1&c=3"}, asked{query: "c=3&b=2&a=1"}},
		{"values of one parameter in another order", false, asked{query: "a=1&a=2"}, asked{query: "a=2&a=1"}},
		{"the same with another parameter between", true, asked{query: "a=1&b=0&a=2"}, asked{query: "b=0&a=1&a=2"}},
		{"many values of two parameters", true, asked{query: query(mixed)}, asked{query: query(bs, as)}},
		{"values of one parameter in another order, one name escaped", false, asked{query: "a=1&%61=2"}, asked{query: "%61=2&a=1"}},
		{"a query that no one can parse, in another order", false, asked{query: "a=%zz&b=1"}, asked{query: "b=1&a=%zz"}},
		{"the same with half an escape", false, asked{query: "a=%4&b=1"}, asked{query: "b=1&a=%4"}},
		{"a query with semicolons, in another order", false, asked{query: "a=1;b=2&c=3"}, asked{query: "c=3&a=1;b=2"}},
		{"a query that no one can parse, again", true, asked{query: "a=%zz&b=1"}, asked{query: "a=%zz&b=1"}},
		{"an ampersand within a value", false, asked{query: "a=1%26b=2"}, asked{query: "a=1&b=2"}},

		{"another If-Match", false, asked{ifMatch: `"v1"`}, asked{ifMatch: `"v2"`}},
		{"an If-Match and none", false, asked{ifMatch: `"v1"`}, asked{}},
		{"a host moved into the If-Match", false, asked{host: "a", ifMatch: "b"}, asked{host: "ab"}},
		{"a query moved into the body", false, asked{query: "a=1"}, asked{body: "a=1"}},

		{"another media type", false, asked{contentType: "text/plain", body: "1"}, asked{contentType: "text/csv", body: "1"}},
		{"a media type and none", false, asked{contentType: "text/plain", body: "1"}, asked{body: "1"}},
		{"JSON and text of the same bytes", false, asked{contentType: js, body: "1"}, asked{contentType: "text/plain", body: "1"}},
		{"two kinds of JSON", false, asked{contentType: js, body: "1"}, asked{contentType: "application/merge-patch+json", body: "1"}},
		{"a media type in capitals", true, asked{contentType: "text/plain", body: "1"}, asked{contentType: "Text/PLAIN", body: "1"}},
		{"a parameter's name and spacing", true, asked{contentType: "text/plain; charset=latin1", body: "1"}, asked{contentType: `text/plain;CharSet="latin1"`, body: "1"}},
		{"a charset in capitals", true, asked{contentType: "text/plain; charset=utf-8", body: "1"}, asked{contentType: "text/plain; charset=UTF-8", body: "1"}},
		{"another charset", false, asked{contentType: "text/plain; charset=utf-8", body: "1"}, asked{contentType: "text/plain; charset=latin1", body: "1"}},
		{"a charset and none", false, asked{contentType: "text/plain; charset=utf-8", body: "1"}, asked{contentType: "text/plain", body: "1"}},
		{"parameters in another order", true, asked{contentType: "text/plain; charset=utf-8; format=flowed", body: "1"}, asked{contentType: "text/plain; format=flowed; charset=utf-8", body: "1"}},
		{"another value of another parameter", false, asked{contentType: js + "; version=1", body: "1"}, asked{contentType: js + "; version=2", body: "1"}},
		{"a boundary means nothing outside of multipart and so counts", false, asked{contentType: js + "; boundary=1", body: "1"}, asked{contentType: js + "; boundary=2", body: "1"}},
		{"a parameter in the extended form that no one can decode", false, asked{contentType: "text/plain; a*=x", body: "1"}, asked{contentType: "text/plain; a*=y", body: "1"}},
		{"a media type that no one can parse", false, asked{contentType: "text/plain; charset", body: "1"}, asked{contentType: "text/plain; charset=", body: "1"}},
		{"a media type that no one can parse, again", true, asked{contentType: "text/plain; charset", body: "1"}, asked{contentType: "text/plain; charset", body: "1"}},

		{"JSON, members in another order", true, asked{contentType: js, body: `{"order":"A-17","amount":100}`}, asked{contentType: js, body: `{"amount":100,"order":"A-17"}`}},
		{"JSON, spaced", true, asked{contentType: js, body: `{"a":[1,2]}`}, asked{contentType: js, body: " {\n\t\"a\" : [ 1, 2 ] }\r\n"}},
		{"JSON, escaped", true, asked{contentType: js, body: `{"a":"é/\n"}`}, asked{contentType: js, body: `{"\u0061":"\u00e9\/\u000a"}`}},
		{"JSON, a number as a float", true, asked{contentType: js, body: `{"amount":100}`}, asked{contentType: js, body: `{"amount":1.000e2}`}},
		{"JSON, another amount", false, asked{contentType: js, body: `{"amount":100}`}, asked{contentType: js, body: `{"amount":50}`}},
		{"JSON, numbers that are one float64", false, asked{contentType: js, body: `{"id":9007199254740992}`}, asked{contentType: js, body: `{"id":9007199254740993}`}},
		{"JSON, cents beyond a float64", false, asked{contentType: js, body: `12345678901234567.89`}, asked{contentType: js, body: `12345678901234567.88`}},
		{"JSON, a number and its text", false, asked{contentType: js, body: `{"amount":100}`}, asked{contentType: js, body: `{"amount":"100"}`}},
		{"JSON, null and absent", false, asked{contentType: js, body: `{"a":null}`}, asked{contentType: js, body: `{}`}},
		{"JSON, an array in another order", false, asked{contentType: js, body: `[1,2]`}, asked{contentType: js, body: `[2,1]`}},
		{"JSON, a name in capitals", false, asked{contentType: js, body: `{"a":1}`}, asked{contentType: js, body: `{"A":1}`}},
		{"JSON with charset=utf-8 and without", true, asked{contentType: js, body: `{"a":1}`}, asked{contentType: js + "; charset=utf-8", body: ` {"a":1}`}},
		{"JSON with charset=utf-8 and without space before it", true, asked{contentType: js + ";charset=utf-8", body: `{"a":1}`}, asked{contentType: js + "; charset=utf-8", body: ` {"a":1}`}},
		{"JSON with charset=UTF-8 and without", true, asked{contentType: js, body: `{"a":1}`}, asked{contentType: `Application/JSON; charset="UTF-8"`, body: ` {"a":1}`}},
		{"JSON with another charset is bytes", false, asked{contentType: js + "; charset=utf-16", body: `{"a":1}`}, asked{contentType: js + "; charset=utf-16", body: ` {"a":1}`}},
		{"a media type on top of JSON is JSON", true, asked{contentType: "application/problem+json", body: `{"a":1}`}, asked{contentType: "application/problem+json", body: ` {"a":1}`}},
		{"what only ends like JSON is bytes", false, asked{contentType: "application/notjson", body: `{"a":1}`}, asked{contentType: "application/notjson", body: ` {"a":1}`}},
		{"JSON without a media type is bytes", false, asked{body: `{"a":1}`}, asked{body: ` {"a":1}`}},
		{"JSON lines are bytes", false, asked{contentType: "application/x-ndjson", body: `{"a":1}`}, asked{contentType: "application/x-ndjson", body: ` {"a":1}`}},
		{"JSON and its canonical bytes where JSON is not compared by value", false, asked{contentType: js, body: `{"a":1,"a":1}`}, asked{contentType: js, body: `{"a":1}`}},
		{"JSON with a duplicate member is bytes", false, asked{contentType: js, body: `{"a":1,"a":2}`}, asked{contentType: js, body: `{"a":2,"a":1}`}},
		{"JSON with a lone surrogate is not JSON with a replacement character", false, asked{contentType: js, body: `"\ud800"`}, asked{contentType: js, body: `"\ufffd"`}},
		{"two lone surrogates", false, asked{contentType: js, body: `"\ud800"`}, asked{contentType: js, body: `"\ud801"`}},
		{"two invalid bytes", false, asked{contentType: js, body: "\"\xff\""}, asked{contentType: js, body: "\"\xfe\""}},
		{"JSON and data behind it", false, asked{contentType: js, body: "1"}, asked{contentType: js, body: "1 1"}},
		{"broken JSON, spaced otherwise", false, asked{contentType: js, body: "{1}"}, asked{contentType: js, body: "{ 1}"}},
		{"broken JSON again", true, asked{contentType: js, body: "{1}"}, asked{contentType: js, body: "{1}"}},
		{"JSON too deep", false, asked{contentType: js, body: strings.Repeat("[", 65) + strings.Repeat("]", 65)}, asked{contentType: js, body: strings.Repeat("[", 65) + " " + strings.Repeat("]", 65)}},
		{"JSON just deep enough", true, asked{contentType: js, body: strings.Repeat("[", 64) + strings.Repeat("]", 64)}, asked{contentType: js, body: strings.Repeat("[", 64) + " " + strings.Repeat("]", 64)}},
		{"no body and an empty object", false, asked{contentType: js}, asked{contentType: js, body: "{}"}},
		{"no body and a body of space", false, asked{contentType: js}, asked{contentType: js, body: " "}},

		{"a form, fields in another order, is bytes", false, asked{contentType: "application/x-www-form-urlencoded", body: "a=1&b=2"}, asked{contentType: "application/x-www-form-urlencoded", body: "b=2&a=1"}},
		{"text, spaced", false, asked{contentType: "text/plain", body: "a"}, asked{contentType: "text/plain", body: "a "}},

		{"a compressed body and a plain one of the same bytes", false, asked{contentType: js, contentEncoding: "gzip", body: "1"}, asked{contentType: js, body: "1"}},
		{"a compressed body is bytes", false, asked{contentType: js, contentEncoding: "x-custom", body: "[1]"}, asked{contentType: js, contentEncoding: "x-custom", body: "[ 1]"}},
		{"the coding's name in capitals", true, asked{contentType: js, contentEncoding: "gzip", body: "\x1f\x8b"}, asked{contentType: js, contentEncoding: " GZIP", body: "\x1f\x8b"}},
		{"another coding", false, asked{contentEncoding: "gzip", body: "1"}, asked{contentEncoding: "br", body: "1"}},
		{"the coding that is none", true, asked{contentType: js, contentEncoding: "identity", body: "[1]"}, asked{contentType: js, body: "[ 1]"}},
	} {
		t.Run(tt.what, func(t *testing.T) {
			a, b := tt.a.fingerprint(), tt.b.fingerprint()
			if same := a == b; same != tt.same {
				t.Errorf("%+v and %+v: same is %t, want %t", tt.a, tt.b, same, tt.same)
			}
			if again := tt.a.fingerprint(); again != a {
				t.Errorf("%+v twice: %s and %s", tt.a, a, again)
			}
		})
	}
}

// form is a multipart body of parts that are each a header, an empty line and a
// body.
func form(boundary string, parts ...string) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString("--" + boundary + "\r\n" + p + "\r\n")
	}
	return b.String() + "--" + boundary + "--\r\n"
}

func TestFingerprintOfMultipart(t *testing.T) {
	const (
		name   = "Content-Disposition: form-data; name=\"name\"\r\n\r\nA-17"
		file   = "Content-Disposition: form-data; name=\"file\"; filename=\"a.csv\"\r\nContent-Type: text/csv\r\n\r\na,b\r\n1,2"
		meta   = "Content-Disposition: form-data; name=\"meta\"\r\nContent-Type: application/json\r\n\r\n{\"a\":1,\"b\":2}"
		data   = "multipart/form-data; boundary="
		nested = "Content-Type: multipart/mixed; boundary=%s\r\n\r\n%s"
	)
	swap := strings.NewReplacer
	deep := func(n int, boundary, innermost string) string {
		part := "Content-Type: application/json\r\n\r\n" + innermost
		for i := range n {
			b := fmt.Sprint(boundary, i)
			part = fmt.Sprintf(nested, b, form(b, part))
		}
		return form(boundary, part)
	}
	for _, tt := range []struct {
		what string
		same bool
		a, b asked
	}{
		{"another boundary", true, asked{contentType: data + "x", body: form("x", name, file)}, asked{contentType: data + `"y y"`, body: form("y y", name, file)}},
		{"another preamble and epilogue", true, asked{contentType: data + "x", body: form("x", name)}, asked{contentType: data + "x", body: "hello\r\n" + form("x", name) + "bye"}},
		{"a part's headers in another order", true, asked{contentType: data + "x", body: form("x", meta)},
			asked{contentType: data + "x", body: form("x", "content-type: application/json\r\nContent-Disposition: form-data; name=\"meta\"\r\n\r\n{\"a\":1,\"b\":2}")}},
		{"a JSON part by value", true, asked{contentType: data + "x", body: form("x", name, meta)}, asked{contentType: data + "y", body: form("y", name, swap(`{"a":1,"b":2}`, `{ "b":2.0, "a":1 }`).Replace(meta))}},
		{"a JSON part with another value", false, asked{contentType: data + "x", body: form("x", meta)}, asked{contentType: data + "x", body: form("x", swap(`"b":2`, `"b":3`).Replace(meta))}},
		{"a text part by bytes", false, asked{contentType: data + "x", body: form("x", name)}, asked{contentType: data + "x", body: form("x", name+" ")}},
		{"parts in another order", false, asked{contentType: data + "x", body: form("x", name, file)}, asked{contentType: data + "x", body: form("x", file, name)}},
		{"a part more", false, asked{contentType: data + "x", body: form("x", name)}, asked{contentType: data + "x", body: form("x", name, file)}},
		{"a part twice", false, asked{contentType: data + "x", body: form("x", name)}, asked{contentType: data + "x", body: form("x", name, name)}},
		{"another field name", false, asked{contentType: data + "x", body: form("x", name)}, asked{contentType: data + "x", body: form("x", swap(`"name"`, `"nome"`).Replace(name))}},
		{"another file name", false, asked{contentType: data + "x", body: form("x", file)}, asked{contentType: data + "x", body: form("x", swap("a.csv", "b.csv").Replace(file))}},
		{"another media type of a part", false, asked{contentType: data + "x", body: form("x", file)}, asked{contentType: data + "x", body: form("x", swap("text/csv", "text/tsv").Replace(file))}},
		{"another kind of multipart", false, asked{contentType: data + "x", body: form("x", name)}, asked{contentType: "multipart/mixed; boundary=x", body: form("x", name)}},
		{"another parameter of multipart/related", false, asked{contentType: "multipart/related; boundary=x; start=a", body: form("x", name)}, asked{contentType: "multipart/related; boundary=x; start=b", body: form("x", name)}},
		{"a part with two media types", false,
			asked{contentType: data + "x", body: form("x", "Content-Type: application/json\r\nContent-Type: text/plain\r\n\r\n[1]")},
			asked{contentType: data + "x", body: form("x", "Content-Type: application/json\r\nContent-Type: text/csv\r\n\r\n[1]")}},
		{"a JSON part in a transfer encoding is bytes", false,
			asked{contentType: data + "x", body: form("x", "Content-Type: application/json\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n[1]")},
			asked{contentType: data + "x", body: form("x", "Content-Type: application/json\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n[ 1]")}},
		{"a JSON part in the transfer encoding that is none", true,
			asked{contentType: data + "x", body: form("x", "Content-Type: application/json\r\nContent-Transfer-Encoding: 8bit\r\n\r\n[1]")},
			asked{contentType: data + "x", body: form("x", "Content-Type: application/json\r\nContent-Transfer-Encoding: 8bit\r\n\r\n[ 1]")}},
		{"a part that is escaped otherwise is not decoded", false,
			asked{contentType: data + "x", body: form("x", "Content-Transfer-Encoding: quoted-printable\r\n\r\n=41")},
			asked{contentType: data + "x", body: form("x", "Content-Transfer-Encoding: quoted-printable\r\n\r\nA")}},
		{"no parts, and a part that is empty", false, asked{contentType: data + "x", body: form("x")}, asked{contentType: data + "x", body: form("x", "\r\n")}},
		{"multipart within multipart, all boundaries changed", true,
			asked{contentType: data + "x", body: form("x", fmt.Sprintf(nested, "in1", form("in1", name, meta)))},
			asked{contentType: data + "y", body: form("y", fmt.Sprintf(nested, "in2", form("in2", name, meta)))}},
		{"multipart within multipart, another value", false, asked{contentType: data + "x", body: deep(2, "x", "1")}, asked{contentType: data + "x", body: deep(2, "x", "2")}},
		{"multipart three deep is read", true, asked{contentType: data + "x", body: deep(3, "x", "1")}, asked{contentType: data + "y", body: deep(3, "y", "1.0")}},
		{"multipart deeper than that is bytes", false, asked{contentType: data + "x", body: deep(4, "x", "1")}, asked{contentType: data + "x", body: deep(4, "x", "1.0")}},
		{"parts moved into a part", false, asked{contentType: data + "x", body: form("x", name, meta)}, asked{contentType: data + "x", body: form("x", fmt.Sprintf(nested, "in", form("in", name, meta)))}},

		{"malformed: no boundary parameter", false, asked{contentType: "multipart/form-data", body: form("x", name)}, asked{contentType: "multipart/form-data", body: form("y", name)}},
		{"malformed: the boundary never comes", false, asked{contentType: data + "x", body: "1"}, asked{contentType: data + "x", body: "2"}},
		{"malformed: only a preamble, and the end", false, asked{contentType: data + "x", body: "1\r\n--x"}, asked{contentType: data + "x", body: "2\r\n--x"}},
		{"malformed: cut inside a part", false, asked{contentType: data + "x", body: "--x\r\n" + name}, asked{contentType: data + "x", body: "--x\r\n" + name + "8"}},
		{"malformed: cut after a part, then another boundary", false, asked{contentType: data + "x", body: "--x\r\n" + name + "\r\n--x\r\n"}, asked{contentType: data + "y", body: "--y\r\n" + name + "\r\n--y\r\n"}},
		{"malformed: cut after a boundary, and not", false, asked{contentType: data + "x", body: "--x\r\n" + name + "\r\n--x\r\n"}, asked{contentType: data + "x", body: form("x", name)}},
		{"malformed: cut within a header, and not", false, asked{contentType: data + "x", body: "--x\r\n" + name + "\r\n--x\r\nA: b\r\n"}, asked{contentType: data + "x", body: form("x", name)}},
		{"malformed: cut within a closing boundary, and not", false, asked{contentType: data + "x", body: "--x\r\n" + name + "\r\n--x-"}, asked{contentType: data + "x", body: form("x", name)}},
		{"a closing boundary without a line end", true, asked{contentType: data + "x", body: "--x\r\n" + name + "\r\n--x--"}, asked{contentType: data + "x", body: form("x", name)}},
		{"malformed: the same bytes with another boundary", false, asked{contentType: data + "x", body: "1"}, asked{contentType: data + "y", body: "1"}},
		{"malformed: a header line that is none", false, asked{contentType: data + "x", body: form("x", "nonsense\r\n\r\n1")}, asked{contentType: data + "x", body: form("x", "nonsense\r\n\r\n2")}},
		{"malformed: the same again", true, asked{contentType: data + "x", body: "--x\r\n" + name}, asked{contentType: data + "x", body: "--x\r\n" + name}},
	} {
		t.Run(tt.what, func(t *testing.T) {
			if same := tt.a.fingerprint() == tt.b.fingerprint(); same != tt.same {
				t.Errorf("%+v\nand %+v: same is %t, want %t", tt.a, tt.b, same, tt.same)
			}
		})
	}
}

func TestARepeatedUploadIsARepeat(t *testing.T) {
	// mime/multipart draws a new boundary for every attempt.
	upload := func(amount string) asked {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		h := textproto.MIMEHeader{"Content-Type": {"application/json"}, "Content-Disposition": {`form-data; name="meta"`}}
		p, _ := w.CreatePart(h)
		fmt.Fprintf(p, `{"amount":%s}`, amount)
		p, _ = w.CreateFormFile("receipt", "receipt.pdf")
		p.Write(bytes.Repeat([]byte("%PDF\r\n--not the boundary\r\n"), 1000))
		w.Close()
		return asked{contentType: w.FormDataContentType(), body: b.String()}
	}
	a, b, c := upload("100"), upload("100.0"), upload("50")
	if a.contentType == b.contentType {
		t.Fatal("two uploads have one boundary")
	}
	if a.fingerprint() != b.fingerprint() {
		t.Error("an upload and its repeat differ")
	}
	if a.fingerprint() == c.fingerprint() {
		t.Error("uploads with different amounts are the same")
	}
}

// Records outlive a process and a version: a digest that changes turns every
// repeat after an upgrade into a reused key.
func TestFingerprintsDoNotChangeBetweenVersions(t *testing.T) {
	// Computed by another program.
	for _, tt := range []struct {
		what string
		a    asked
		want string
	}{
		{"nothing", asked{}, "d98f22809f1fce4ba11dc6c726be5832239c2fd2c8209efd9b2d1a7955fb6b6b"},
		{"a JSON refund", asked{"api.example", "dry=0&b=1", "application/json", "", `"v1"`, `{"order":"A-17","amount":100}`}, "a4f6c874cb7a740a421a5221e5a803887966ad420e37ef75f8a3657d715d6bf0"},
		{"broken JSON", asked{host: "api.example", contentType: "application/json", body: `{"order"`}, "d058e280d8863c41e8f3bca008a803c83beefb61c7b14e8b17a180c09e855f45"},
		{"a form", asked{host: "api.example", contentType: "application/x-www-form-urlencoded; charset=UTF-8", body: "a=1"}, "44b7b02f88355ae46d45ffab835a62510ac4d2efafe1a7b77f41916e1297a5db"},
		{"a compressed body", asked{host: "api.example", query: "a=%zz", contentType: "text/plain", contentEncoding: "gzip", body: "\x1f\x8b"}, "d5be2a8cd1bca9e7690c273eb09e41adf749e16eaba1e633399d3425201ae83d"},
		{"multipart", asked{host: "api.example", contentType: "multipart/form-data; boundary=x", body: form("x", "Content-Type: application/json\r\nX-A: 1\r\n\r\n{\"b\":1,\"a\":2}", "\r\ntext")}, "0f30254420f9fbd6c1818f9f35b1105e1e3d7acdf96fdb8757c0682c031b9975"},
	} {
		if got := tt.a.fingerprint(); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.what, got, tt.want)
		}
	}
}

func TestFingerprintAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("under the race detector a sync.Pool forgets on purpose")
	}
	json, text := []byte(`{"amount":42}`), []byte("amount=42&x=1")
	large := bytes.Repeat([]byte("x"), 1<<20)
	for _, tt := range []struct {
		what string
		most float64
		f    func()
	}{
		{"JSON of 13 bytes", 1, func() { fingerprint("api.example", "", "application/json", "", "", json) }},
		{"JSON with a charset", 1, func() { fingerprint("api.example", "", "application/json; charset=utf-8", "", "", json) }},
		{"a form", 1, func() { fingerprint("api.example", "b=1&a=2", "application/x-www-form-urlencoded", "", "", text) }},
		{"a megabyte", 1, func() { fingerprint("api.example", "", "", "", "", large) }},
	} {
		if got := testing.AllocsPerRun(100, tt.f); got > tt.most {
			t.Errorf("%s: %v allocations, want at most %v", tt.what, got, tt.most)
		}
	}
}

func TestAMegabyteOfTheSmallestThingsTakesNoLongTime(t *testing.T) {
	// Each takes a tenth of a second. The bound is for a slow machine and the race
	// detector; with anything quadratic the number of steps is beyond 10^10.
	const bound = 10 * time.Second
	members := make([]string, 100_000)
	for i := range members {
		members[i] = fmt.Sprintf(`"%d":0`, (i*7919)%len(members)) // 7919 is prime: all different, none in order
	}
	object := "{" + strings.Join(members, ",") + "}"
	for what, a := range map[string]asked{
		"parts":   {contentType: "multipart/mixed; boundary=x", body: strings.Repeat("--x\r\n\r\n\r\n", 1<<20/9) + "--x--"},
		"pairs":   {query: strings.Repeat("b&a&", 1<<18)},
		"members": {contentType: "application/json", body: object},
		"nesting": {contentType: "application/json", body: strings.Repeat(`{"b":`, 63) + object + strings.Repeat(`,"a":0}`, 63)},
	} {
		t.Run(what, func(t *testing.T) {
			for range 3 { // the machine may have been busy with something else
				start := time.Now()
				a.fingerprint()
				d := time.Since(start)
				if d <= bound {
					return
				}
				t.Logf("it took %v, want at most %v", d, bound)
			}
			t.Error("it took too long three times")
		})
	}
}

func BenchmarkFingerprint(b *testing.B) {
	large := []byte(`{"items":[` + strings.Repeat(`{"sku":"A-17","amount":100.50,"note":"größer"},`, 200) + `{}]}`)
	for _, bb := range []struct {
		name, contentType string
		body              []byte
	}{
		{"json 13 B", "application/json", []byte(`{"amount":42}`)},
		{"json 10 KB", "application/json", large},
		{"text 10 KB", "text/plain", large},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.SetBytes(int64(len(bb.body)))
			b.ReportAllocs()
			for b.Loop() {
				fingerprint("api.example", "", bb.contentType, "", "", bb.body)
			}
		})
	}
}
