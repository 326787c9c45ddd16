package openai

import (
	"net/http"
	"strings"
)

// codeContextLength is OpenAI's code for a prompt that is longer than the model's context. Clients shorten the
// conversation when they read it.
const codeContextLength = "context_length_exceeded"

// promptTooLong is what Anthropic says of the same; its clients look for these words, as there is no code.
const promptTooLong = "prompt is too long"

// overflowWords are those by which engines' refusals of a long prompt are told from others, in lower case: OpenAI and
// vLLM, llama.cpp, Ollama, Anthropic.
var overflowWords = []string{"maximum context length", "available context size", "exceeds the context length", "context window", promptTooLong}

// isOverflow reports whether the provider's error, with its status, says that the prompt is longer than the context.
func (e *Error) isOverflow() bool {
	if e.Code == codeContextLength {
		return true
	}
	if e.Status != http.StatusBadRequest && e.Status != http.StatusRequestEntityTooLarge && e.Status != http.StatusUnprocessableEntity {
		return false
	}
	message := strings.ToLower(e.Message)
	for _, words := range overflowWords {
		if strings.Contains(message, words) {
			return true
		}
	}
	return false
}

// overflowing says of a long prompt what Anthropic's clients look for.
func overflowing(message string) string {
	if strings.Contains(message, promptTooLong) {
		return message
	}
	return promptTooLong + ": " + message
}
