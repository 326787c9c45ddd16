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
