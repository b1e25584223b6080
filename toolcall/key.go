package toolcall

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"

	"github.com/oncehttp/oncehttp/internal/canon"
)

// Key returns the key of a call: the same scope, tool, turn and arguments give the
// same key in any process. A Runner makes its keys with it; a tool reads its own
// with [KeyFromContext].
//
// It is "tc1_" and the first 40 lower-case hexadecimal digits of the SHA-256, or
// with a secret the HMAC-SHA-256, of: the 15 bytes "toolcall-key/v1" and a zero
// byte; scope, tool, turn and canonical arguments, each behind its length in bytes
// as 8 bytes, most significant first; and the ordinal as 4 bytes.
//
// Canonical arguments have the layout of RFC 8785, but numbers keep every digit:
// 9007199254740992 and 9007199254740993 are two calls, 100 and 1e2 are one. Empty
// args count as {}. Arguments that are no JSON object, or that two readers may take
// for different values (duplicate members, invalid UTF-8, lone surrogates, data
// behind the object, more than 64 levels), have no key: the error is an [*Error]
// of type BadArguments.
//
// Without a secret whoever knows the arguments knows the key.
func Key(secret []byte, scope, tool, turn string, args json.RawMessage, ordinal uint32) (string, error) {
	c, err := canonical(args)
	if err != nil {
		return "", err
	}
	sum := keySum(secret, scope, tool, turn, c, ordinal)
	return callKey(&sum), nil
}

// canonical is the canonical form of a call's arguments.
func canonical(args json.RawMessage) ([]byte, error) {
	if len(args) == 0 {
		return []byte("{}"), nil // what some models send for a tool without parameters
	}
	c, err := canon.Append(make([]byte, 0, len(args)), args)
	if err != nil {
		e := err.(*canon.Error)
		return nil, &Error{Type: TypeBadArguments, Details: "the arguments are not valid JSON: " + e.Error(), Err: err}
	}
	if c[0] != '{' {
		return nil, BadArguments("the arguments are not a JSON object")
	}
	return c, nil
}

func keySum(secret []byte, scope, tool, turn string, canonical []byte, ordinal uint32) [32]byte {
	var stack [512]byte
	b := append(stack[:0], "toolcall-key/v1\x00"...)
	for _, p := range [...]string{scope, tool, turn} {
		b = binary.BigEndian.AppendUint64(b, uint64(len(p)))
		b = append(b, p...)
	}
	b = binary.BigEndian.AppendUint64(b, uint64(len(canonical)))
	b = append(b, canonical...)
	b = binary.BigEndian.AppendUint32(b, ordinal)
	return digest(secret, b)
}

func digest(secret, b []byte) (sum [32]byte) {
	if len(secret) == 0 {
		return sha256.Sum256(b)
	}
	h := hmac.New(sha256.New, secret)
	h.Write(b)
	h.Sum(sum[:0])
	return sum
}

func callKey(sum *[32]byte) string {
	var b [44]byte
	copy(b[:], "tc1_")
	hex.Encode(b[4:], sum[:20])
	return string(b[:])
}
