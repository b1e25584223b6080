module github.com/oncehttp/oncehttp/bench

go 1.26.0

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/oncehttp/oncehttp v0.0.0
)

require (
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	github.com/hashicorp/go-retryablehttp v0.7.8 // indirect
	github.com/sony/gobreaker/v2 v2.4.0 // indirect
	golang.org/x/time v0.14.0 // indirect
)

replace github.com/oncehttp/oncehttp => ..
