package oncehttp

import (
	"fmt"
	"net/url"
	"testing"
	"time"
)

func mustURL(t *testing.T, s string) *url.URL {
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestAHostIsFoundHoweverItsURLIsSpelled(t *testing.T) {
	var tr Transport
	want := tr.hostOf(mustURL(t, "http://a.example/x"))
	for _, s := range []string{"http://a.example/x", "http://A.example/", "http://a.example:80", "http://a.example?q"} {
		for range 2 {
			if got := tr.hostOf(mustURL(t, s)); got != want {
				t.Errorf("%s is another host than http://a.example", s)
			}
		}
	}
	for _, s := range []string{"https://a.example", "http://a.example:81", "http://b.example"} {
		for range 2 {
			if got := tr.hostOf(mustURL(t, s)); got == want {
				t.Errorf("%s is the same host as http://a.example", s)
			}
		}
	}
}

func TestAForgottenHostIsNotFoundNearby(t *testing.T) {
	var tr Transport
	u := mustURL(t, "http://a.example/")
	old := tr.hostOf(u)
	for i := range 2 * hostsKept {
		tr.hosts.get(hostKey{"http", fmt.Sprintf("h%d.example", i)}, time.Now())
	}
	fresh := tr.hostOf(u)
	if fresh == old {
		t.Fatal("a forgotten host is in use again")
	}
	if got := tr.hostOf(u); got != fresh {
		t.Error("its successor is not found")
	}
}

func TestACalmBreakerStillChecksALongerTimeout(t *testing.T) {
	b := &Breaker{Window: 2 * time.Minute}
	k := hostKey{"http", "a.example"}
	var near hostNear[hostBreaker]
	for _, timeout := range []time.Duration{time.Second, time.Minute, -1, time.Second} {
		if _, err := b.allowNear(&near, k, timeout, true, time.Now()); err != nil {
			t.Errorf("%v: got %v", timeout, err)
		}
	}
	if _, err := b.allowNear(&near, k, time.Hour, true, time.Now()); err == nil {
		t.Error("a Window that is too short for the AttemptTimeout passes, as another Transport's was not")
	}
	old := b.hosts.find(k)
	old.leave(time.Now(), true)
	delete(b.hosts.m, k)
	if ticket, err := b.allowNear(&near, k, time.Second, true, time.Now()); err != nil || ticket.h == old {
		t.Errorf("an attempt went to a breaker that was forgotten (%v)", err)
	}
}
