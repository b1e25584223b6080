package lab

import (
	"log/slog"
	"reflect"
	"sync"
	"time"
	"unsafe"

	"github.com/oncehttp/oncehttp"
)

// A Storage is where the hosts of one world keep their records: in the bubble, or
// outside of it on a real server. A call that waits for a real connection or for a
// disk is no wait as far as the bubble is concerned: until it returns the world's
// clock stands still. The clock of the records must be the world's, which time.Now
// tells.
type Storage interface {
	// Open opens the records of a host, for a process that has just started.
	Open(host string, log *slog.Logger) (Store, error)

	// Jump moves the records' clock on, against the world's.
	Jump(by time.Duration)

	// Close forgets all records. All stores were closed before.
	Close()
}

// A Store is a process's way to the records of its host.
type Store interface {
	oncehttp.Store
	oncehttp.Waiter
	oncehttp.Inspector

	// Kill is what the death of its process does to the store. It does not wait,
	// and Close is called later all the same.
	Kill()

	// Close ends what goes on in the background. Every call has returned by then.
	Close()
}

// A Breakable store has a way to its records that something can happen to.
type Breakable interface {
	// Break has the next call meet a mishap: before it has taken effect, or after.
	// It returns what that is called, and what ends it if no call has met it.
	Break(after bool) (what string, mend func())
}

// A Setting is what a Storage may want to know of its world.
type Setting struct {
	MaxRecords int // of stores that have such limits
	MaxBytes   int64
	Log        *slog.Logger
}

// memory keeps records in MemoryStores, which outlive the processes that use them.
type memory struct {
	setting Setting
	mu      sync.Mutex
	stores  map[string]*oncehttp.MemoryStore
}

func inMemory(s Setting) Storage {
	return &memory{setting: s, stores: map[string]*oncehttp.MemoryStore{}}
}

func (m *memory) Open(host string, _ *slog.Logger) (Store, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.stores[host]
	if s == nil {
		s = &oncehttp.MemoryStore{MaxRecords: m.setting.MaxRecords, MaxBytes: m.setting.MaxBytes, Logger: m.setting.Log}
		m.stores[host] = s
	}
	return memoryStore{s}, nil
}

// Jump moves the clocks on. What a MemoryStore knows of time is how long ago its
// epoch was, so that is moved back. No wall clock does that to it; but other stores
// live on machines whose clocks are set.
func (m *memory) Jump(by time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, store := range m.stores {
		s := reflect.ValueOf(store).Elem()
		mu := (*sync.Mutex)(unsafe.Pointer(s.FieldByName("mu").UnsafeAddr()))
		epoch := (*time.Time)(unsafe.Pointer(s.FieldByName("epoch").UnsafeAddr()))
		mu.Lock()
		if !epoch.IsZero() {
			*epoch = epoch.Add(-by)
		}
		mu.Unlock()
	}
}

func (m *memory) Close() {}

type memoryStore struct{ *oncehttp.MemoryStore }

func (memoryStore) Kill()  {}
func (memoryStore) Close() {}
