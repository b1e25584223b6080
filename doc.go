// Package oncehttp makes an HTTP call that changes something take effect once.
package oncehttp
