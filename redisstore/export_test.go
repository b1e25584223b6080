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
