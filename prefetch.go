//go:build (amd64 || arm64) && gc && !purego

package oncehttp

import "unsafe"

// prefetch has the processor fetch a cache line without waiting for it.
//
//go:noescape
func prefetch(p unsafe.Pointer)
