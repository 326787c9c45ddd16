// Package anthropic is the Node's adapter for providers that speak Anthropic's Messages. It says a run's input as a
// request of POST /v1/messages, and reads the streamed events. It makes no call itself.
package anthropic

import "iop/nodeagent/adapter"

// Name is the adapter's name, which its extension of an input bears.
const Name = "anthropic"

// New returns the adapter.
func New() adapter.Adapter { return protocol{} }

type protocol struct{}
