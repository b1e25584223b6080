package oncehttp

import (
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A hostKey says which server a request goes to: scheme, host and port, the
// same value however the URL was spelled.
type hostKey struct {
	scheme string
	host   string // lower case; with its port, unless that is the scheme's own
}

// hostKeyOf returns the key of u. It allocates only when u has upper case in it.
func hostKeyOf(u *url.URL) hostKey {
	k := hostKey{u.Scheme, strings.ToLower(u.Host)}
	if k.scheme != "https" && k.scheme != "http" {
		k.scheme = strings.ToLower(k.scheme)
	}
	i := strings.LastIndexByte(k.host, ':')
	if i < 0 {
		return k
	}
	switch port := k.host[i+1:]; { // of [::1] it is "1]", which is none of these
	case port == "", // RFC 3986, section 3.2.3: the same as none
		port == "443" && k.scheme == "https",
		port == "80" && k.scheme == "http":
		k.host = k.host[:i]
	}
	return k
}

// String returns the key as an origin, such as https://api.example.com:8443.
func (k hostKey) String() string { return k.scheme + "://" + k.host }

// How many hosts a hostMap remembers: beyond hostsKept those that have nothing
// to lose are forgotten, least recently used first; beyond hostsMost all are.
const (
	hostsKept = 1024
	hostsMost = 8 * hostsKept
)

// A hostMap holds one V for each host. Its zero value is ready to use, it is
// safe for concurrent use, and it is bounded: an address space full of hosts
// costs hostsMost entries and no more.
type hostMap[V any, P hostEntry[V]] struct {
	mu     sync.RWMutex
	m      map[hostKey]*hostSlot[V]
	evicts int // the size at which to look for entries to forget; 0: hostsKept

	// inserts is the clock by which entries age: an entry's last use is the
	// number of inserts before it. While hosts only repeat it stands still, so
	// that a hit writes nothing that other processors must fetch.
	inserts atomic.Uint64
}

// A hostEntry is a *V that can be asked to go. Of its own will it goes when it
// holds nothing that a fresh V would not; with must set it has no choice. An
// entry that says yes must know that it is no longer the one for its host.
type hostEntry[V any] interface {
	*V
	leave(now time.Time, must bool) bool
}

type hostSlot[V any] struct {
	used atomic.Uint64
	gone atomic.Bool // no longer in the map
	key  hostKey
	v    V
}

// get returns the entry of k, a fresh one if there was none.
func (m *hostMap[V, P]) get(k hostKey, now time.Time) *V {
	if v := m.find(k); v != nil {
		return v
	}
	return &m.insert(k, now).v
}

// A hostNear remembers an entry of a hostMap that belongs to one host, for whoever
// asks for that host's again and again.
type hostNear[V any] struct{ slot atomic.Pointer[hostSlot[V]] }

// near is get by way of what n remembers. Who finds that the entry is gone calls
// n.forget and asks again.
func (m *hostMap[V, P]) near(n *hostNear[V], k hostKey, now time.Time) *V {
	s := n.slot.Load()
	if s == nil {
		if s = m.slot(k); s == nil {
			s = m.insert(k, now)
		}
		n.slot.Store(s)
	}
	m.touch(s)
	return &s.v
}

func (n *hostNear[V]) forget() { n.slot.Store(nil) }

// insert adds an entry for k, unless somebody has.
func (m *hostMap[V, P]) insert(k hostKey, now time.Time) *hostSlot[V] {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.m[k]; s != nil {
		return s
	}
	if m.m == nil {
		m.m = make(map[hostKey]*hostSlot[V])
	}
	if len(m.m) >= max(m.evicts, hostsKept) {
		m.evict(now)
	}
	// The strings of k are parts of a URL, query and all: do not keep that alive.
	s := &hostSlot[V]{key: hostKey{strings.Clone(k.scheme), strings.Clone(k.host)}}
	s.used.Store(m.inserts.Add(1))
	m.m[s.key] = s
	return s
}

// find returns the entry of k, or nil.
func (m *hostMap[V, P]) find(k hostKey) *V {
	s := m.slot(k)
	if s == nil {
		return nil
	}
	return &s.v
}

func (m *hostMap[V, P]) slot(k hostKey) *hostSlot[V] {
	m.mu.RLock()
	s := m.m[k]
	m.mu.RUnlock()
	if s != nil {
		m.touch(s)
	}
	return s
}

// touch notes that s is in use.
func (m *hostMap[V, P]) touch(s *hostSlot[V]) {
	if n := m.inserts.Load(); s.used.Load() != n {
		s.used.Store(n)
	}
}

// evict makes room. It removes many at a time, and looks again only after the
// map has grown by an eighth, so that an insert pays for few entries whether or
// not they want to go. m.mu is held.
func (m *hostMap[V, P]) evict(now time.Time) {
	all := make([]*hostSlot[V], 0, len(m.m))
	oldest := make([]uint64, 0, len(m.m)) // last use, and index in all: numbers sort fast
	for _, s := range m.m {
		oldest = append(oldest, s.used.Load()*hostsMost+uint64(len(all)))
		all = append(all, s)
	}
	slices.Sort(oldest)

	remove := func(downTo int, must bool) {
		for _, n := range oldest {
			if len(m.m) <= downTo {
				return
			}
			if s := all[n%hostsMost]; P(&s.v).leave(now, must) {
				delete(m.m, s.key)
				s.gone.Store(true)
			}
		}
	}
	remove(hostsKept-hostsKept/8, false)
	if len(m.m) >= hostsMost {
		remove(hostsMost-hostsMost/8, true)
	}
	m.evicts = min(hostsMost, len(m.m)+len(m.m)/8)
}

// each calls f for every entry, without holding the lock.
func (m *hostMap[V, P]) each(f func(hostKey, *V)) {
	m.mu.RLock()
	all := slices.Collect(maps.Values(m.m))
	m.mu.RUnlock()
	for _, s := range all {
		f(s.key, &s.v)
	}
}
