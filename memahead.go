package oncehttp

import "unsafe"

// Among a million records a repeat meets memory that no cache has: the slot of the index
// that tells where its record is, and then the record. A Middleware knows the key some
// time before it claims it, since it has a body to read and to digest. So it says so at
// once, and the processor fetches first the one and then the other meanwhile. Nobody
// waits for that: while another call has the store, nothing is fetched.

// fetchSlot fetches where the index has a key, and returns what fetchRecord asks for.
func (s *MemoryStore) fetchSlot(key string) (hash uint64) {
	if !s.mu.TryLock() {
		return 0
	}
	defer s.mu.Unlock()
	if s.table.n == 0 { // and perhaps no seed yet
		return 0
	}
	hash = s.table.hash(key)
	if slot := s.table.index.home(hash); slot != nil {
		prefetch(unsafe.Pointer(slot))
	}
	return hash
}

// fetchRecord fetches what a repeat reads of the record of a key whose slot was fetched.
func (s *MemoryStore) fetchRecord(hash uint64) {
	if hash == 0 || !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	if r := s.table.likely(hash); r != nil {
		for at := uintptr(0); at < unsafe.Offsetof(r.hash); at += 64 {
			prefetch(unsafe.Add(unsafe.Pointer(r), at))
		}
	}
}
