package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/oncehttp/oncehttp"
)

// What can be wrong with a file. Every error that has to do with one is one of
// these, by errors.Is, or SQLite's own; its text says which file, and what to do.
var (
	// ErrLocked says that another process, or a transactional handler, held the
	// file's write lock for longer than the call could wait. Nothing was done.
	ErrLocked = errors.New("the file is locked")

	// ErrReadOnly says that the file, or its directory, cannot be written to.
	ErrReadOnly = errors.New("the file is read-only")

	// ErrNoSpace says that the disk is full, or that the file has the greatest
	// size it may have. A Claim that meets it is also [oncehttp.ErrFull].
	ErrNoSpace = errors.New("there is no space left for the file")

	// ErrCorrupt says that the file is damaged, or not one of SQLite's.
	ErrCorrupt = errors.New("the file is damaged or is not an SQLite database")

	// ErrNewer says that a newer version of this package has written the file.
	ErrNewer = errors.New("the file is from a newer version of sqlitestore")

	// ErrCannotOpen says that there is no file at the path and none can be made.
	ErrCannotOpen = errors.New("the file cannot be opened")

	// ErrClosed is returned by a store that was closed.
	ErrClosed = errors.New("sqlitestore: the store is closed")
)

// advice says what to do.
var advice = map[error]string{
	ErrLocked: "another process, or a transactional handler here, writes to it for too long, or the disk hangs: " +
		"find and end that, or wait longer (WithBusyTimeout)",
	ErrReadOnly: "let this process write to it and to its directory, where SQLite keeps two more files beside it",
	ErrNoSpace:  "free some on its disk, or raise its max_page_count",
	ErrCorrupt: "keep a copy, restore a backup or try .recover of the sqlite3 shell; " +
		"do not start with an empty one: what it knew is what keeps work from being done twice",
	ErrNewer:      "run the version that wrote it, or a newer one",
	ErrCannotOpen: "see that its directory exists, is not itself the path, and may be written to",
}

// A fault is an error that has to do with the file.
type fault struct {
	what, path  string
	kind, cause error
}

func (f *fault) Error() string {
	s := "sqlitestore: " + f.what + ": " + f.path + ": " + f.kind.Error() + "; " + advice[f.kind]
	if f.cause != nil {
		s += ": " + f.cause.Error()
	}
	return s
}

func (f *fault) Unwrap() []error {
	if f.cause == nil {
		return []error{f.kind}
	}
	return []error{f.kind, f.cause}
}

// Primary result codes of SQLite: https://sqlite.org/rescode.html.
const (
	codeError    = 1
	codeBusy     = 5
	codeLocked   = 6
	codeReadOnly = 8
	codeCorrupt  = 11
	codeFull     = 13
	codeCantOpen = 14
	codeNotADB   = 26
)

// code returns SQLite's primary result code of an error, or 0.
func code(err error) int {
	var coded interface{ Code() int } // *sqlite.Error, wherever it came from
	if errors.As(err, &coded) {
		return coded.Code() & 0xff
	}
	return 0
}

func isBusy(err error) bool {
	c := code(err)
	return c == codeBusy || c == codeLocked
}

// explain makes an error that says what is wrong with the file and what to do.
func explain(what, path string, err error) error {
	var f *fault
	switch {
	case err == nil || errors.As(err, &f):
		return err
	case strings.HasPrefix(err.Error(), "sqlitestore: "), strings.HasPrefix(err.Error(), "oncehttp: "):
		return err // it says everything already
	}
	kind := error(nil)
	switch code(err) {
	case codeBusy, codeLocked:
		kind = ErrLocked
	case codeReadOnly:
		kind = ErrReadOnly
	case codeFull:
		kind = ErrNoSpace
	case codeCorrupt, codeNotADB:
		kind = ErrCorrupt
	case codeCantOpen:
		kind = ErrCannotOpen
	default:
		switch {
		case errors.Is(err, fs.ErrPermission):
			kind = ErrReadOnly
		case errors.As(err, new(*fs.PathError)):
			kind = ErrCannotOpen
		}
	}
	if kind == nil {
		return fmt.Errorf("sqlitestore: %s: %s: %w", what, path, err)
	}
	return &fault{what: what, path: path, kind: kind, cause: err}
}

// full marks the error of a claim as ErrFull if there is no space for it.
func full(err error) error {
	if errors.Is(err, ErrNoSpace) {
		return fmt.Errorf("%w: %w", oncehttp.ErrFull, err)
	}
	return err
}

// waited is the error of a call whose context ended while it waited.
func (s *Store) waited(what string, ctx context.Context) error {
	if s.turn.isLent() {
		return fmt.Errorf("sqlitestore: %s: a transactional handler has the write lock, and SQLite runs one at a time: %w", what, ctx.Err())
	}
	return fmt.Errorf("sqlitestore: %s: no answer in time: %w", what, ctx.Err())
}
