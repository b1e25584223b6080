//go:build !((amd64 || arm64) && gc && !purego)

package oncehttp

import "unsafe"

func prefetch(unsafe.Pointer) {}
