module github.com/oncehttp/oncehttp

go 1.25.0

require (
	github.com/hashicorp/go-retryablehttp v0.7.8
	github.com/sony/gobreaker/v2 v2.4.0
	golang.org/x/time v0.14.0
)

require github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
