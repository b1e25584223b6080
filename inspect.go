package oncehttp

import (
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// String describes a record without what it answers: of head and body it tells the
// length alone, since they may hold what is nobody's business. Keys are shown as they
// are; those of a [Middleware] are digests.
func (r Record) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q %v, age %v, left %v, holder %d, head %s", r.Key, r.Status, r.Age.Round(time.Millisecond), r.Left.Round(time.Millisecond), r.Holder, redacted(r.Head))
	if r.BodyDropped {
		b.WriteString(", body dropped")
	} else {
		b.WriteString(", body " + redacted(r.Body))
	}
	return b.String()
}

// GoString is String, so that %#v does not show more.
func (r Record) GoString() string { return "oncehttp.Record{" + r.String() + "}" }

// LogValue implements [slog.LogValuer]. It is as discreet as String.
func (r Record) LogValue() slog.Value { return slog.StringValue(r.String()) }

func redacted(b []byte) string { return fmt.Sprintf("[%d bytes]", len(b)) }
