package gateway

import (
	"bytes"

	"iop/execution"
	"iop/openai"
)

// failedText are the marks of errors that hold what the model wrote: the provider refused its own answer, because it is not the
// JSON or the call that the request asked for, and the client can have that happen on purpose. Groq and Cerebras, llama.cpp,
// Ollama.
var failedText = [...][]byte{[]byte(`"failed_generation"`), []byte("Failed to parse input at pos "), []byte("error parsing tool call: raw=")}

// usedForError is the usage of a run that its provider ended with an error of that body: known to be something where the model's
// text is in it. Other errors cost nothing: a provider that refuses or fails mostly does no work.
func (x *exchange) usedForError(reported execution.Usage, body []byte) execution.Usage {
	if reported.Known {
		return reported
	}
	for _, mark := range failedText {
		if bytes.Contains(body, mark) {
			return execution.Usage{Input: x.input, Output: openai.EstimateTokens(len(body)), Known: true, Estimated: true}
		}
	}
	return reported
}
