// Package openai is the room for OpenAI's wire formats: the closed table of operations, the request envelope, error
// objects, event streams as they pass, usage, and the model list; and Chat Completions and Responses in whole, for
// normalized runs.
//
// Both ends of the tunnel and the tools around them (simulator, load generator) meet here, so that each format is
// written down once. Everything works on bytes that somebody else has read: the package opens no connection and
// starts no goroutine; the one place that reads is [EventReader], for clients of ours.
//
// Where a request can't be forwarded as it is, it is decoded once: [ParseChat] and [ParseResponses] make the input of a
// normalized run of it, and their [Renderer] writes the run's events as the protocol has them. What either can't say is refused
// by name; docs/openai.md lists it.
//
// What it never does: decode what only has to be forwarded. A request is scanned, not unmarshalled (a breadth bomb
// costs its own size and nothing more), and a few bytes are spliced in; an answer is looked at as it passes, and its
// bytes go on as they came. It sits on the path of every request and every chunk, so the paths that are taken each
// time allocate nothing or one string, and benchmarks stand beside them.
//
// Protocol families with a shape of their own (Anthropic Messages, Ollama) live in packages below this one; what
// they share with it, the error type and the stream filter, knows their shapes already.
package openai
