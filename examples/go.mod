module github.com/oncehttp/oncehttp/examples

go 1.26.0

require (
	github.com/hashicorp/go-retryablehttp v0.7.8
	github.com/oncehttp/oncehttp v0.0.0
	github.com/oncehttp/oncehttp/adapters/openai v0.0.0
	github.com/openai/openai-go/v3 v3.99.0
)

require (
	github.com/coder/websocket v1.8.15 // indirect
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	github.com/sony/gobreaker/v2 v2.4.0 // indirect
	github.com/tidwall/gjson v1.20.0 // indirect
	github.com/tidwall/match v1.1.1 // indirect
	github.com/tidwall/pretty v1.2.1 // indirect
	github.com/tidwall/sjson v1.2.5 // indirect
	golang.org/x/time v0.14.0 // indirect
)

replace (
	github.com/oncehttp/oncehttp => ..
	github.com/oncehttp/oncehttp/adapters/openai => ../adapters/openai
)
