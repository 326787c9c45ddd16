package openai

import "bytes"

const (
	// MediaTokens is what an image or a recording in a prompt counts: engines make a thousand tokens of it, more or less,
	// whatever its bytes are.
	MediaTokens = 1000
	// leastMedia is from how many bytes on a run of base64 counts as media.
	leastMedia = 1 << 10
)

// mediaStarts are what embedded media begin with: data URLs, and the data of OpenAI's and Anthropic's content parts.
var mediaStarts = [...][]byte{[]byte(`;base64,`), []byte(`"data":"`), []byte(`"data": "`)}

// EstimatePrompt returns about how many tokens the raw JSON of a prompt is, at least 1: a token for each four bytes of
// text, and a thousand for an image or a recording in base64, of which the bytes say little.
func EstimatePrompt(prompt []byte) int64 {
	text, media := len(prompt), int64(0)
	for _, start := range mediaStarts {
		for rest := prompt; ; {
			i := bytes.Index(rest, start)
			if i < 0 {
				break
			}
			rest = rest[i+len(start):]
			n := bytes.IndexByte(rest, '"')
			if n < 0 {
				break
			}
			if n >= leastMedia && !bytes.ContainsAny(rest[:leastMedia], " \\,.") {
				text -= n
				media++
			}
			rest = rest[n:]
		}
	}
	return EstimateTokens(max(text, 0)) + media*MediaTokens
}

// leastRest is how much of a request, in bytes, says how it is answered, and is not read for it: names and parameters.
const leastRest = 4 << 10

// EstimateInput returns about how many tokens the provider reads, at least 1: those of the messages, or of the prompt or
// input, with instructions and tools, and of whatever else is too long for a parameter. body must be the one that e was
// parsed from.
func (e *Envelope) EstimateInput(body []byte) (tokens int64) {
	rest := len(body)
	for _, at := range e.texts {
		if at != (span{}) {
			tokens += EstimatePrompt(body[at.start:at.end])
			rest -= at.end - at.start
		}
	}
	if tokens == 0 {
		return EstimateTokens(rest)
	}
	_, numbers := e.Prompts(body)
	return max(tokens, numbers) + int64(max(rest-leastRest, 0)/4)
}

// Prompts returns how many prompts the request holds, at least 1: prompt and input may be lists, each element of which is
// answered for itself. tokens is how many of them were written as numbers, of which the bytes say little. body must be the
// one that e was parsed from.
func (e *Envelope) Prompts(body []byte) (prompts, tokens int64) {
	for _, f := range [...]field{fieldPrompt, fieldInput} {
		if at := e.texts[f-fieldMessages]; at != (span{}) {
			p, n := countPrompts(body[at.start:at.end], f == fieldPrompt)
			prompts, tokens = max(prompts, p), tokens+n
		}
	}
	return max(prompts, 1), tokens
}

// countPrompts counts the prompts of a list. objects are prompts too where they can be: llama.cpp has text and media in
// one; input has messages there, and what one answer is to.
func countPrompts(list []byte, objects bool) (prompts, tokens int64) {
	for elements := arrayElements(list); elements.next(); {
		switch v := elements.val; {
		case v[0] == '"':
			prompts++
		case v[0] == '[':
			prompts++
			tokens += int64(bytes.Count(v, []byte{','})) + 1
		case v[0] == '{' && objects:
			prompts++
		case v[0] != '{':
			tokens++
		}
	}
	return prompts, tokens
}
