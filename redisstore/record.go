package redisstore

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"time"

	"github.com/oncehttp/oncehttp"
)

// A record is a string, so that it takes little room and is written at once:
//
//	 0     version, 1
//	 1     'R' for running (or orphaned: the lease tells), 'D' for done
//	 2     '1' if somebody waits for it, else '0'
//	 3–19  token of the holder: how it is packed, and 16 bytes
//	20–27  the lease, or 0 if it was ended; if done, when the record expires, or 0
//	28–35  keep
//	36–39  how many have held it
//	40–47  how old it was when its expiry was set
//	48–79  fingerprint
//	80–111 binding
//	112–   if done: 4 bytes of the length of the head, the head, the body
//
// Times are milliseconds, as big-endian doubles: Lua has no other numbers. All but one
// are durations. Whatever sets one of them sets the key's expiry too, to 1 ms more than
// lease and keep, so what is left of that (PTTL) tells for how long the record has been
// what it is, on the server's clock.
//
// The one is when a done record expires: in Unix milliseconds, on the server's clock as
// who completed it took it to be, or 0 if he did not know. It is there so that Claim can
// tell what is left of the record without a PTTL; the key expires by itself.
const (
	version   = 1
	headerLen = 116
	stateDone = 'D'
)

var errUnreadable = errors.New("the record under this key was not written by this version of the package: " +
	"upgrade the program, or name another prefix with WithPrefix")

// A record is one as the server has it.
type record struct {
	done                 bool
	lease, keep, age     float64
	expires              float64
	holder               int
	fingerprint, binding [32]byte
	head, body           []byte
}

// readRecord reads a record, or the beginning of one that is not done.
func readRecord(v string) (r record, err error) {
	if len(v) < headerLen || v[0] != version {
		return r, errUnreadable
	}
	number := func(at int) float64 {
		return math.Float64frombits(binary.BigEndian.Uint64([]byte(v[at : at+8])))
	}
	r.done = v[1] == stateDone
	r.lease, r.keep, r.age = number(20), number(28), number(40)
	r.holder = int(binary.BigEndian.Uint32([]byte(v[36:40])))
	copy(r.fingerprint[:], v[48:])
	copy(r.binding[:], v[80:])
	if r.done {
		r.lease, r.expires = 0, r.lease
		n := int64(binary.BigEndian.Uint32([]byte(v[112:headerLen])))
		if n > int64(len(v)-headerLen) {
			return r, errUnreadable
		}
		all := []byte(v[headerLen:])
		r.head, r.body = all[:n:n], all[n:]
	}
	return r, nil
}

// since is for how long a record has been what it is, when so much is left of its
// expiry.
func (r *record) since(ttl int64) float64 { return max(r.lease, r.keep) + 1 - float64(ttl) }

// newRecord is the record of a key that was free.
func newRecord(op *oncehttp.Op, lease, keep int64) []byte {
	b := make([]byte, 0, headerLen)
	b = append(b, version, 'R', '0')
	b = append(b, packToken(op.Token)...)
	b = binary.BigEndian.AppendUint64(b, math.Float64bits(float64(lease)))
	b = binary.BigEndian.AppendUint64(b, math.Float64bits(float64(keep)))
	b = binary.BigEndian.AppendUint32(b, 1)
	b = binary.BigEndian.AppendUint64(b, 0)
	b = append(append(b, op.Fingerprint[:]...), op.Binding[:]...)
	return binary.BigEndian.AppendUint32(b, 0)
}

// join is the end of a done record.
func join(head, body []byte) []byte {
	b := make([]byte, 0, 4+len(head)+len(body))
	b = binary.BigEndian.AppendUint32(b, uint32(len(head)))
	return append(append(b, head...), body...)
}

// packToken makes 17 bytes of any token. Those that [oncehttp.NewToken] returns
// are packed one to one, others by a digest.
func packToken(token string) []byte {
	// 0 is how a token is packed that nobody has: see resolveScript.
	const plain, digest = 1, 2
	b := make([]byte, 17)
	if len(token) == 32 {
		if _, err := hex.Decode(b[1:], []byte(token)); err == nil && hex.EncodeToString(b[1:]) == token {
			b[0] = plain
			return b
		}
	}
	sum := sha256.Sum256([]byte(token))
	copy(b[1:], sum[:])
	b[0] = digest
	return b
}

// readClaim reads what takeScript returns.
func readClaim(reply any) (c oncehttp.Claim, err error) {
	parts, ok := reply.([]any)
	if !ok || len(parts) == 0 {
		return c, errReply
	}
	status, _ := parts[0].(int64)
	switch status {
	case int64(oncehttp.ClaimAcquired), int64(oncehttp.ClaimRunning), int64(oncehttp.ClaimDone), int64(oncehttp.ClaimOrphaned):
	case replyUnreadable:
		return c, errUnreadable
	default:
		return c, errReply
	}
	if len(parts) == 1 && status == int64(oncehttp.ClaimAcquired) {
		return oncehttp.Claim{Status: oncehttp.ClaimAcquired}, nil
	}
	if len(parts) != 3 {
		return c, errReply
	}
	left, _ := parts[1].(int64)
	v, _ := parts[2].(string)
	r, err := readRecord(v)
	if err != nil {
		return c, err
	}
	return oncehttp.Claim{
		Status:      oncehttp.ClaimStatus(status),
		Fingerprint: r.fingerprint,
		Binding:     r.binding,
		Head:        r.head,
		Body:        r.body,
		Left:        r.left(left),
		Holder:      r.holder,
	}, nil
}

// left is the rest of a record's time, of which Redis said ms. That may be what was
// left of the record before it, which was to last longer; or 1 ms more than was asked
// for.
func (r *record) left(ms int64) time.Duration {
	most := r.keep
	if !r.done {
		most = max(r.lease, r.keep)
	}
	if ms < 0 || float64(ms) > most { // below 0: somebody has taken its expiry away
		ms = int64(most)
	}
	return duration(max(ms, 1))
}

var errReply = errors.New("the server's answer to a script is not what the script returns")
