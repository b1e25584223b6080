package adapter

import "github.com/oncehttp/oncehttp/toolcall"

// Hints are what a server says of one of its tools.
type Hints struct{ ReadOnly, Idempotent bool }

// Declare sets the tool's Effect, and in its Note who says so. What the caller knows of its
// tools, by name, wins. Otherwise a trusted server is believed; the hints of one that nobody
// vouches for loosen nothing, so that its tools are Unsafe.
func (h Hints) Declare(tool *toolcall.Tool, known map[string]toolcall.Effect, trusted bool) {
	effect, ok := known[tool.Name]
	switch {
	case ok:
		tool.Effect, tool.Note = effect, "declared by the caller"
	case !trusted:
		tool.Effect = toolcall.Unsafe
	case h.ReadOnly:
		tool.Effect, tool.Note = toolcall.Read, "the server's hint that it only reads"
	case h.Idempotent:
		tool.Effect, tool.Note = toolcall.Idempotent, "the server's hint that it is idempotent"
	}
}
