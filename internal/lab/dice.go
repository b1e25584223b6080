package lab

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// A seed decides everything that happens in a world.
//
// There is no stream of random numbers that is read in turn: goroutines would
// take their numbers in another order in every run. Instead each decision has a
// name, made of what is decided and for whom (client, action, call, attempt), and
// the seed and the name alone decide.
type seed uint64

// roll returns the dice of one decision.
func (s seed) roll(what string, whom ...int) dice {
	h := mix(uint64(s))
	for i := range len(what) {
		h = (h ^ uint64(what[i])) * 0x100000001b3
	}
	for _, n := range whom {
		h = mix(h ^ uint64(n))
	}
	return dice(mix(h))
}

func mix(h uint64) uint64 { // splitmix64
	h += 0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// A dice gives the numbers of one decision.
type dice uint64

func (d *dice) next() uint64 {
	*d++
	return mix(uint64(*d))
}

// n returns a number in [0, n).
func (d *dice) n(n int) int { return int(d.next() % uint64(n)) }

// few returns a number in [0, n), small ones more often than large ones.
func (d *dice) few(n int) int { return min(d.n(n), d.n(n)) }

func (d *dice) float() float64        { return float64(d.next()>>11) / (1 << 53) }
func (d *dice) chance(p float64) bool { return d.float() < p }

// spread returns a duration between lo and hi, of any magnitude with the same
// chance. It is odd to the nanosecond, so that hardly ever two things in a world
// happen at the same instant: what the runtime does then is not the seed's choice.
func (d *dice) spread(lo, hi time.Duration) time.Duration {
	x := float64(lo) * math.Pow(float64(hi)/float64(lo), d.float())
	return time.Duration(x) + time.Duration(d.n(9973))
}

// within returns a duration below hi.
func (d *dice) within(hi time.Duration) time.Duration { return time.Duration(d.float() * float64(hi)) }

// level returns the share of cases in which a kind of fault occurs in a world. In
// half of the worlds it is none: faults that come alone are understood better, and
// some hide others.
func (d *dice) level(hi float64) float64 {
	if d.chance(0.5) {
		return 0
	}
	return hi * math.Pow(0.05, d.float())
}

func pick[T any](d *dice, options ...T) T { return options[d.n(len(options))] }

// A callID names one request that a client makes through a Transport.
type callID struct{ client, action, call int }

// A tryID names one attempt of it.
type tryID struct {
	callID
	try int
}

// labField is the header field in which an attempt carries its name to the server.
// It is no part of what is fingerprinted.
const labField = "X-Lab"

func (id tryID) header() string {
	return fmt.Sprintf("%d/%d/%d/%d", id.client, id.action, id.call, id.try)
}

func parseTry(s string) (id tryID, ok bool) {
	parts := strings.Split(s, "/")
	if len(parts) != 4 {
		return id, false
	}
	for i, p := range []*int{&id.client, &id.action, &id.call, &id.try} {
		n, err := strconv.Atoi(parts[i])
		if err != nil {
			return id, false
		}
		*p = n
	}
	return id, true
}

func (id callID) String() string {
	if id == (callID{}) {
		return ""
	}
	who := "c" + strconv.Itoa(id.client)
	switch id.client {
	case gateway:
		who = "gateway"
	case auditor:
		who = "auditor"
	}
	s := fmt.Sprintf("%s a%d", who, id.action)
	if id.call > 0 {
		s += "." + strconv.Itoa(id.call)
	}
	return s
}

func (id tryID) String() string {
	s := id.callID.String()
	if id.try > 0 {
		s += "." + strconv.Itoa(id.try)
	}
	return s
}

func (id tryID) with(n ...int) []int {
	return append([]int{id.client, id.action, id.call, id.try}, n...)
}

// Clients that are part of the laboratory.
const (
	gateway = 98 // a server's handler that calls the next server
	auditor = 99 // asks about every action at the end
)
