// Package conformance holds oncehttp against outside judges: the RFCs and the
// draft it follows, and public SDKs as callers. Nobody imports it.
package conformance
