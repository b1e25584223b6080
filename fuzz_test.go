package oncehttp

import (
	"bytes"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/oncehttp/oncehttp/internal/canon"
)

func FuzzParseKey(f *testing.F) {
	for _, value := range []string{
		"order-1", `"order-1"`, ` "a\"b\\c" `, `"k";a=1;b="x;\"y, z"; c=tok/en:*;g=%"f%c3%bc"`, "", `""`, `"`, `"\`, `"a`,
		"a,b", `"a", "b"`, "a;b=1", "a b", "\x00", "ü", "\xff", strings.Repeat("k", 255), strings.Repeat("k", 256),
	} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		key, err := ParseKey(http.Header{Header: {value}})
		if err != nil {
			if !errors.Is(err, ErrBadKey) || key != "" {
				t.Fatalf("ParseKey(%q) = %q, %v, want ErrBadKey and no key", value, key, err)
			}
			// Shorter values may be words of the text.
			if len(value) > 20 && strings.Contains(err.Error(), value) {
				t.Fatalf("ParseKey(%q): %v quotes the key", value, err)
			}
			if checkKey(value) == nil && !strings.ContainsAny(value, `,;"\`) {
				t.Fatalf("ParseKey(%q): %v, though it is a bare key", value, err)
			}
			return
		}
		if err := checkKey(key); err != nil {
			t.Fatalf("ParseKey(%q) = %q: %v", value, key, err)
		}
		for _, quote := range []bool{false, true} {
			field := formatKey(key, quote)
			if again, err := ParseKey(http.Header{Header: {field}}); again != key || err != nil {
				t.Fatalf("ParseKey(formatKey(%q, %t)) = %q, %v, want it back", key, quote, again, err)
			}
		}
	})
}

func FuzzFingerprint(f *testing.F) {
	f.Add("a=1&b=2", "application/json", "", []byte(`{"order":"A-17","amount":1.00e2,"x":[{"b":1,"a":2}]}`))
	f.Add("b=2&a=%31", "application/vnd.api+json; charset=UTF-8", "identity", []byte(`[1, 2.0]`))
	f.Add("a=%zz;b", "application/json", "gzip", []byte("\x1f\x8b"))
	f.Add("", "multipart/form-data; boundary=x", "", []byte(form("x", "Content-Type: application/json\r\n\r\n{\"a\":1}", "\r\ntext")))
	f.Add("", "multipart/form-data; boundary=x", "", []byte("--x\r\nA: b\r\n\r\ncut"))
	f.Add("", "multipart/mixed; boundary=x", "", []byte(form("x", "Content-Type: multipart/mixed; boundary=y\r\n\r\n"+form("y", "\r\n1"))))
	f.Add("", "text/plain; charset", "", []byte("text"))
	f.Add("", "application/json", "", []byte(`{"a":1,"a":2}`))
	f.Add("", "text/plain; a*=x", "", []byte("text"))
	f.Fuzz(func(t *testing.T, query, contentType, contentEncoding string, body []byte) {
		of := func(query, contentType string, body []byte) [32]byte {
			return fingerprint("api.example", query, contentType, contentEncoding, "", body)
		}
		before := bytes.Clone(body)
		sum := of(query, contentType, body)
		if !bytes.Equal(body, before) {
			t.Fatal("the body was changed")
		}
		if of(query, contentType, body) != sum {
			t.Fatal("the same request has two fingerprints")
		}
		mediaType, _, err := mime.ParseMediaType(contentType)
		multi := err == nil && strings.HasPrefix(mediaType, "multipart/")

		// A byte more is something else, whatever it is behind, unless it falls
		// into a part of multipart that means nothing.
		if !multi && of(query, contentType, append(bytes.Clone(body), 'x')) == sum {
			t.Error("a byte more in the body makes no difference")
		}
		if of(query+"x", contentType, body) == sum || of(query, contentType+"x", body) == sum {
			t.Error("a byte more in the query or the media type makes no difference")
		}

		// The order of parameters of different names means nothing.
		if values, err := url.ParseQuery(query); err == nil {
			pairs := strings.Split(query, "&")
			if len(values) == len(pairs) {
				pairs = append(pairs[1:], pairs[0])
				if of(strings.Join(pairs, "&"), contentType, body) != sum {
					t.Errorf("the query %q in another order makes a difference", query)
				}
			}
		}

		// JSON counts by value: as it is and spaced out, or not at all.
		if contentEncoding == "" && mediaType == "application/json" && contentType == mediaType {
			var spaced bytes.Buffer
			if json.Indent(&spaced, body, " ", "\t") == nil && !bytes.Equal(spaced.Bytes(), body) {
				_, err := canon.Append(nil, body)
				if same := of(query, contentType, spaced.Bytes()) == sum; same != (err == nil) {
					t.Errorf("JSON %q and %q: same is %t, but canonical form: %v", body, spaced.Bytes(), same, err)
				}
			}
		}
	})
}
