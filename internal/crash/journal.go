package crash

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// An Effect is a run of an action that took effect.
type Effect struct {
	// Run names the run. The answer of [Work] names it too.
	Run string
	// Arrived is when the request came in, before there was a claim; Began is when
	// the handler began to work, after there was one.
	Arrived, Began time.Time
}

// newRun names a run.
func newRun() string {
	var b [8]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// A Journal is a file with a line for each effect. An effect counts from the moment
// at which its line is in the file, which no kill of the writer undoes; Append
// returns when it is on the disk too. It is safe for concurrent use.
type Journal struct {
	mu sync.Mutex
	f  *os.File
}

// OpenJournal opens the file, which it makes if it is not there. Several processes
// may have it open.
func OpenJournal(path string) (*Journal, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	return &Journal{f: f}, err
}

// Append writes an effect of an action, whose name has no spaces, in one write.
func (j *Journal) Append(_ context.Context, action string, e Effect) error {
	line := fmt.Sprintf("%s %s %d %d\n", action, e.Run, e.Arrived.UnixNano(), e.Began.UnixNano())
	j.mu.Lock()
	_, err := j.f.WriteString(line)
	j.mu.Unlock()
	if err != nil {
		return err
	}
	return j.f.Sync()
}

// Close closes the file.
func (j *Journal) Close() error { return j.f.Close() }

// ReadJournal returns the effects that the file holds, by action.
func ReadJournal(path string) (map[string][]Effect, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	all := make(map[string][]Effect)
	if len(b) > 0 && !bytes.HasSuffix(b, []byte("\n")) {
		return nil, fmt.Errorf("crash: the journal ends within a line")
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) != 4 {
			return nil, fmt.Errorf("crash: a line of the journal that is none: %q", line)
		}
		arrived, err1 := strconv.ParseInt(f[2], 10, 64)
		began, err2 := strconv.ParseInt(f[3], 10, 64)
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("crash: a line of the journal without times: %q", line)
		}
		all[f[0]] = append(all[f[0]], Effect{f[1], time.Unix(0, arrived), time.Unix(0, began)})
	}
	return all, nil
}
