// Package ollama is the Node's adapter for Ollama's own protocol. It says a run's input as a request of POST /api/chat,
// and reads the streamed lines as events. The native protocol is used, not the OpenAI one that Ollama has as well: in it
// alone Ollama says that its engine has died, where it otherwise ends the stream as if nothing were wrong. It makes no
// call itself.
package ollama

import "iop/nodeagent/adapter"

// Name is the adapter's name, which its extension of an input bears.
const Name = "ollama"

// New returns the adapter.
func New() adapter.Adapter { return protocol{} }

type protocol struct{}
