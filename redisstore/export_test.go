package redisstore

import "time"

// AsOnRedis6 makes a store run its scripts as it does on Redis 6, once it has
// looked at the server.
func AsOnRedis6(s *Store) {
	s.Check(background)
	s.server.modern.Store(false)
}

// LookedLongAgo makes a store's last look at the server one that was long ago.
func LookedLongAgo(s *Store) { s.server.checked.Store(time.Now().Add(-time.Hour).UnixNano()) }

// Flagged reports whether somebody waits for a record.
func Flagged(s *Store, key string) bool {
	return s.client.GetRange(background, s.opts.prefix+key, 1, 2).Val() == "R1"
}

// LimitQueue changes how many calls may wait to be sent.
func LimitQueue(s *Store, calls int) {
	s.lanes.mu.Lock()
	defer s.lanes.mu.Unlock()
	s.lanes.waiting.max = calls
}

// Queued is how many calls wait to be sent.
func Queued(s *Store) int {
	s.lanes.mu.Lock()
	defer s.lanes.mu.Unlock()
	return s.lanes.waiting.calls.Len()
}

// Apart is how many calls are under way that go by themselves.
func Apart(s *Store) int { return int(s.apart.n.Load()) }

// LimitApart changes how many calls may be under way that go by themselves.
func LimitApart(s *Store, calls int) { s.apart.max = int64(calls) }

// Lines is how many lines there are, and how many of them somebody has.
func Lines(s *Store) (all, held int) {
	s.lanes.mu.Lock()
	defer s.lanes.mu.Unlock()
	return len(s.lanes.free) + s.lanes.held, s.lanes.held
}

// MoveClock changes what a store takes the server's clock to be, or has it not know
// that. It looks at the server before.
func MoveClock(s *Store, by time.Duration) {
	s.Check(background)
	if by == 0 {
		s.server.clock.Store(0)
		return
	}
	s.server.clock.Add(by.Microseconds())
}
