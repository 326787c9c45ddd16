// Package ollama is the Edge's side of Ollama's own protocol in a normalized run: parsers that make a run's input of a
// client's request to /api/chat and /api/generate, renderers that write the run's events as the lines and objects that
// Ollama's clients read, and the documents about models (/api/tags, ps, show, version) for an Edge that answers them itself.
//
// It works on bytes that somebody else has read and will send: no connection, no goroutine. What the protocol has and a
// run has not is refused by the name that the client wrote; what is passed over is listed in parse.go with the reason.
//
// Some of what a run can say has no place in the protocol and is not written: signatures of thoughts, annotations, and
// choices after the first. A refusal is text. A whole embedding is relayed as it is and never made here.
//
// A chat without messages, or a generation without a prompt, asks Ollama to load or to unload the model. No run does
// that: the parsers refuse it, and [ParseLoad] tells it from the rest, so that the Edge can relay it to an Ollama, or
// answer with [AppendLoaded] where the model's provider keeps its models as it likes and there is nothing to do.
package ollama
