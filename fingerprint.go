package oncehttp

import (
	"crypto/sha256"
	"encoding/binary"
	"strings"
)

// fingerprint returns the digest of what a request asks for, apart from its
// method and path.
func fingerprint(host, rawQuery, contentType, contentEncoding, ifMatch string, body []byte) [32]byte {
	b := append([]byte(nil), "oncehttp-fingerprint/v1\x00"...)
	for _, p := range []string{strings.ToLower(host), rawQuery, contentType, contentEncoding, ifMatch, string(body)} {
		b = binary.BigEndian.AppendUint64(b, uint64(len(p)))
		b = append(b, p...)
	}
	return sha256.Sum256(b)
}
