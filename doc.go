// Package oncehttp makes an HTTP call that changes something take effect once.
package oncehttp

import (
	_ "github.com/hashicorp/go-retryablehttp"
	_ "github.com/sony/gobreaker/v2"
	_ "golang.org/x/time/rate"
)
