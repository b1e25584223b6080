// Package keys is what an operator can learn of the keys in a store and do to them, the
// same for the page and for the command line.
package keys

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/oncehttp/oncehttp"
)

// A Story is what there is to tell of a key. It holds no body, and of the header only
// the names of its fields: what was answered is between the client and the upstream.
type Story struct {
	Key    string
	Status oncehttp.ClaimStatus
	Age    time.Duration // since the first request
	Left   time.Duration // of the lease while running, else until it is forgotten
	Holder int           // how many have held the key

	// Fingerprint and Binding are the beginnings of the digests of what was asked, and
	// of whose credentials; "" where there are none.
	Fingerprint, Binding string

	Answer *Answer // nil unless the state is done, or in a list
}

// An Answer is the recorded response, without what it says.
type Answer struct {
	Status      int // 0: this is no HTTP response
	ContentType string
	Fields      []string // names, sorted
	BodyBytes   int
	BodySHA256  string // "" where there is no body
	Kept        bool   // false: too large, or dropped since; repeats are told so
}

// Tell makes the story of a record.
func Tell(r oncehttp.Record) Story {
	s := Story{
		Key: r.Key, Status: r.Status, Age: r.Age, Left: r.Left, Holder: r.Holder,
		Fingerprint: beginning(r.Fingerprint), Binding: beginning(r.Binding),
	}
	if r.Status == oncehttp.ClaimDone && r.Head != nil {
		s.Answer = answerOf(r)
	}
	return s
}

func answerOf(r oncehttp.Record) *Answer {
	status, header, err := oncehttp.DecodeResponse(r.Head, r.Body)
	a := &Answer{Status: status, BodyBytes: len(r.Body), Kept: err == nil}
	if status == 0 { // of a program that records something else
		a.Kept = !r.BodyDropped
	}
	a.ContentType = header.Get("Content-Type")
	a.Fields = slices.Sorted(maps.Keys(header))
	if len(r.Body) > 0 {
		sum := sha256.Sum256(r.Body)
		a.BodySHA256 = hex.EncodeToString(sum[:])
	}
	return a
}

func beginning(digest [32]byte) string {
	if digest == [32]byte{} {
		return ""
	}
	return hex.EncodeToString(digest[:8])
}

// State is what operators call the key's state: running, done, or unknown.
func (s Story) State() string { return StateName(s.Status) }

// StateName is what operators call a state. An orphaned key is one whose outcome nobody
// knows, and that is what its clients are told.
func StateName(s oncehttp.ClaimStatus) string {
	if s == oncehttp.ClaimOrphaned {
		return "unknown"
	}
	return s.String()
}

// ParseState is the inverse of StateName. "" is any state, which is 0; orphaned is
// unknown.
func ParseState(name string) (oncehttp.ClaimStatus, error) {
	switch name {
	case "":
		return 0, nil
	case "running":
		return oncehttp.ClaimRunning, nil
	case "done":
		return oncehttp.ClaimDone, nil
	case "unknown", "orphaned":
		return oncehttp.ClaimOrphaned, nil
	}
	return 0, fmt.Errorf("state: %.20q is none of running, done and unknown", name)
}

// Sentences say what happened, and what that means for a repeat.
func (s Story) Sentences() []string {
	said := []string{fmt.Sprintf("The first request with this key came %s ago.", Human(s.Age))}
	if s.Holder > 1 {
		said = append(said, fmt.Sprintf("It was taken up %d times, because who held it before had vanished.", s.Holder))
	}
	switch s.Status {
	case oncehttp.ClaimRunning:
		said = append(said, "It is running now: the upstream has not answered yet.",
			fmt.Sprintf("Its holder has to report within %s, or else its outcome counts as unknown.", Human(s.Left)),
			"A repeat waits for it, and nothing is sent again.")
	case oncehttp.ClaimOrphaned:
		said = append(said, "It was sent, or may have been, and nobody recorded how that ended.",
			"A repeat is told that the outcome is unknown, and nothing is sent again, unless the route says otherwise.",
			fmt.Sprintf("In %s the key is forgotten, and a repeat would be sent as if it were new.", Human(s.Left)))
	case oncehttp.ClaimDone:
		said = append(said, s.doneSentence(), fmt.Sprintf("In %s the key is forgotten.", Human(s.Left)))
	}
	return said
}

func (s Story) doneSentence() string {
	switch a := s.Answer; {
	case a == nil || a.Status == 0:
		return "It was done. What is recorded is not an HTTP response."
	case !a.Kept:
		return fmt.Sprintf("It was answered with %d, and the body is not kept. A repeat is told so, and nothing is sent again.", a.Status)
	default:
		return fmt.Sprintf("It was answered with %d. A repeat gets that answer, and nothing is sent again.", a.Status)
	}
}

// Human words a duration for people, with two units at most.
func Human(d time.Duration) string {
	units := []struct {
		size time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}}
	if d < time.Second {
		return "less than 1 s"
	}
	for i, u := range units {
		if d < u.size {
			continue
		}
		text := fmt.Sprintf("%d %s", d/u.size, u.name)
		if i+1 < len(units) {
			if n := d % u.size / units[i+1].size; n > 0 {
				text += fmt.Sprintf(" %d %s", n, units[i+1].name)
			}
		}
		return text
	}
	return d.String()
}

// Short is a key for tables and logs: the beginning is enough to find it by. Keys that
// are not digests are not shown.
func Short(key string) string {
	if strings.HasPrefix(key, "or1_") && len(key) > 16 {
		return key[:16]
	}
	sum := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(sum[:8])
}
