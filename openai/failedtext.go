package openai

import "bytes"

// failedText are the marks of errors that hold what the model wrote: the provider refused its own answer, because it is not the
// JSON or the call that the request asked for, and the client can have that happen on purpose. Groq and Cerebras, llama.cpp,
// Ollama.
var failedText = [...][]byte{[]byte(`"failed_generation"`), []byte("Failed to parse input at pos "), []byte("error parsing tool call: raw=")}

// HoldsFailedText reports whether a provider's error holds what the model wrote.
func HoldsFailedText(failure []byte) bool {
	for _, mark := range failedText {
		if bytes.Contains(failure, mark) {
			return true
		}
	}
	return false
}

// failed counts an error of the stream that holds what the model wrote.
func (f *StreamFilter) failed(failure []byte) {
	if HoldsFailedText(failure) {
		f.produced += TokensIn(len(failure))
	}
}

// textNames are the names of members of a chunk that have text for the client, as they end.
var textNames = [...][]byte{[]byte(`content"`), []byte(`text"`), []byte(`reasoning"`), []byte(`arguments"`), []byte(`response"`), []byte(`thinking"`),
	[]byte(`refusal"`), []byte(`input"`), []byte(`summary"`), []byte(`transcript"`)}

// shortChunk is the longest chunk of chat, or line of Ollama's, whose text is not measured: one without text is as long.
const shortChunk = 160

// chunkTokens is TokensIn for a chunk whose shape is not known. In a string the names would have escaped quotes.
func chunkTokens(chunk []byte) int {
	if len(chunk) <= shortChunk {
		return 1
	}
	n := 0
	for _, name := range textNames {
		for rest := chunk; ; {
			_, after, found := bytes.Cut(rest, name)
			if !found {
				break
			}
			n += textLength(after)
			rest = after
		}
	}
	return TokensIn(n)
}

// textLength is the length of the string behind a member's name and a colon, 0 where that is none.
func textLength(b []byte) (n int) {
	s := scanner{b: b}
	i := s.space(0)
	if i >= len(b) || b[i] != ':' {
		return 0
	}
	if i = s.space(i + 1); i >= len(b) || b[i] != '"' {
		return 0
	}
	if end := s.str(i); end > 0 {
		return end - i - len(`""`)
	}
	return 0
}
