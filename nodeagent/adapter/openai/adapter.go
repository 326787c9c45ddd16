// Package openai is the Node's adapter for providers that speak Chat Completions: OpenAI, and the engines that took over
// its protocol. It says a run's input as a request of POST /v1/chat/completions, and reads the streamed chunks as events.
// It makes no call itself.
package openai

import "iop/nodeagent/adapter"

// Name is the adapter's name, which its extension of an input bears.
const Name = "openai"

// New returns the adapter.
func New() adapter.Adapter { return protocol{} }

type protocol struct{}
