package openai

import (
	"bytes"
	"cmp"
	"slices"
)

const (
	// MediaTokens is what an image or a recording in a prompt counts: engines make a thousand tokens of it, more or less,
	// whatever its bytes are.
	MediaTokens = 1000
	// longestMediaType is how far a data URL's opening quote may be from its data, in bytes.
	longestMediaType = 128
	// leastMedia is from how many bytes on a run of base64 counts as media.
	leastMedia = 1 << 10
)

// mediaStarts are what embedded media begin with: data URLs, and the data of OpenAI's and Anthropic's content parts.
var mediaStarts = [...][]byte{[]byte(`;base64,`), []byte(`"data":"`), []byte(`"data": "`)}

// mediaMembers are the members whose value may be a data URL that a provider decodes. The same in any other member, such as the text
// of a message, is what the model reads: a client that writes its prompt so must not have it at the price of an image.
var mediaMembers = []string{"url", "image_url", "audio_url", "video_url", "file_data", "image", "audio", "video"}

// holdsMedia reports whether a data URL whose data begins at i is the value of one of mediaMembers.
func holdsMedia(prompt []byte, i int) bool {
	from := max(i-longestMediaType, 0)
	quote := from + bytes.LastIndexByte(prompt[from:i], '"')
	if quote < from || !bytes.HasPrefix(prompt[quote+1:], []byte("data:")) {
		return false
	}
	key, isMember := bytes.CutSuffix(bytes.TrimRight(prompt[:quote], " \t\r\n"), []byte{':'})
	key, isName := bytes.CutSuffix(bytes.TrimRight(key, " \t\r\n"), []byte{'"'})
	if !isMember || !isName {
		return false // an escaped quote ends up here, too
	}
	return slices.Contains(mediaMembers, string(key[bytes.LastIndexByte(key, '"')+1:]))
}

// mediaPlaces are the members of messages, of input items and of their content in which providers take media.
var mediaPlaces = slices.Concat(mediaMembers, []string{"source", "input_audio", "file", "data"})

// mediaSpans appends the ranges of a prompt in which media may stand. Elsewhere, as in the arguments of a call, the same is
// text: a model reads all of it. part is the prompt or a part of it.
func mediaSpans(spans []span, prompt, part []byte, level int) []span {
	if is(part, '{') {
		return mediaSpansOf(spans, prompt, part, level)
	}
	for el := arrayElements(part); el.next(); {
		spans = mediaSpansOf(spans, prompt, el.val, level)
	}
	return spans
}

func mediaSpansOf(spans []span, prompt, object []byte, level int) []span {
	for m := objectMembers(object); m.next(); {
		key := string(m.key)
		switch {
		case level <= contentLevels && (key == "content" || key == "output"):
			spans = mediaSpans(spans, prompt, m.val, level+1)
		case key == "source" && text(member(m.val, "type")) == "text": // a document of plain text
		case slices.Contains(mediaPlaces, key):
			start := cap(prompt) - cap(m.key) // m.key and m.val are parts of prompt
			spans = append(spans, span{start, cap(prompt) - cap(m.val) + len(m.val)})
		}
	}
	return spans
}

// referring are members of a content part that name media elsewhere, beside mediaPlaces.
var referring = []string{"file_id", "file_url", "image_embeds", "audio_embeds"}

// referMarks are in a prompt that may have such a part. Most begin with a byte that is rare in text, at which a search stops.
var referMarks = [...][]byte{[]byte(`_url"`), []byte(`_embeds"`), []byte(`_audio"`), []byte(`file_id"`), []byte(`"source"`)}

// mediaParts counts the content parts of a prompt, or of a part of it, that are media, wherever their bytes are.
func mediaParts(part []byte, level int) (n int64) {
	if is(part, '{') {
		return mediaPartsOf(part, level)
	}
	for el := arrayElements(part); el.next(); {
		n += mediaPartsOf(el.val, level)
	}
	return n
}

func mediaPartsOf(object []byte, level int) (n int64) {
	media := int64(0)
	for m := objectMembers(object); m.next(); {
		switch key := string(m.key); {
		case level <= contentLevels && (key == "content" || key == "output"):
			n += mediaParts(m.val, level+1)
		case key == "source" && text(member(m.val, "type")) == "text":
		case !is(m.val, 'n') && key != "data" && (slices.Contains(mediaPlaces, key) || slices.Contains(referring, key)):
			media = 1
		}
	}
	return n + media
}

// inSpans reports whether one of the spans, which are in order and apart, holds an offset.
func inSpans(spans []span, at int) bool {
	i, _ := slices.BinarySearchFunc(spans, at, func(s span, at int) int { return cmp.Compare(s.end, at) })
	return i < len(spans) && spans[i].start < at
}

// EstimatePrompt returns about how many tokens the raw JSON of a prompt is, at least 1: a token for each four bytes of
// text, and a thousand for an image, a recording or a document, of which the bytes in base64 or the address say little.
func EstimatePrompt(prompt []byte) int64 {
	text, media := len(prompt), int64(0)
	var spans []span // once there is a candidate
	for _, start := range mediaStarts {
		for rest := prompt; ; {
			i := bytes.Index(rest, start)
			if i < 0 {
				break
			}
			rest = rest[i+len(start):]
			at := len(prompt) - len(rest)
			n := bytes.IndexByte(rest, '"')
			if n < 0 {
				break
			}
			if n >= leastMedia && (start[0] == '"' || holdsMedia(prompt, at)) && !bytes.ContainsAny(rest[:leastMedia], " \\,.") {
				if spans == nil {
					spans = mediaSpans([]span{{}}, prompt, prompt, 0)
				}
				if !inSpans(spans, at) {
					rest = rest[n:]
					continue
				}
				text -= n
				media++
			}
			rest = rest[n:]
		}
	}
	if slices.ContainsFunc(referMarks[:], func(mark []byte) bool { return bytes.Contains(prompt, mark) }) {
		media = max(media, mediaParts(prompt, 0))
	}
	return EstimateTokens(max(text, 0)) + media*MediaTokens
}

// leastRest is how much of a request, in bytes, says how it is answered, and is not read for it: names and parameters.
const leastRest = 4 << 10

// EstimateInput returns about how many tokens the provider reads, at least 1: those of the messages, or of the prompt or
// input, with instructions and tools, and of whatever else is too long for a parameter. body must be the one that e was
// parsed from, of that operation.
func (e *Envelope) EstimateInput(op OpID, body []byte) int64 {
	tokens := e.estimateText(body)
	if ollamaWriting.Has(op) {
		images, size := ollamaImages(body)
		tokens = max(tokens-size/tokenBytes, 1) + images*MediaTokens
	}
	return tokens
}

// ollamaImages counts the images of a request to Ollama and their bytes, of those that are in base64 by their beginning. Ollama
// refuses what is none.
func ollamaImages(body []byte) (images, size int64) {
	if !bytes.Contains(body, []byte(`"images"`)) {
		return 0, 0
	}
	take := func(list []byte) {
		for el := arrayElements(list); el.next(); {
			if n := len(el.val); n >= leastMedia && el.val[0] == '"' && !bytes.ContainsAny(el.val[:leastMedia], " \\,.") {
				images, size = images+1, size+int64(n)
			}
		}
	}
	take(member(body, "images"))
	for el := arrayElements(member(body, "messages")); el.next(); {
		take(member(el.val, "images"))
	}
	return images, size
}

// estimateText is EstimateInput where all is text, but for what EstimatePrompt finds.
func (e *Envelope) estimateText(body []byte) (tokens int64) {
	rest := len(body)
	for i, at := range e.texts {
		n := at.end - at.start
		switch {
		case n == 0:
			continue
		case fieldMessages+field(i) <= fieldInput:
			tokens += EstimatePrompt(body[at.start:at.end])
		default: // instructions and tools, in which all is text
			tokens += EstimateTokens(n)
		}
		rest -= n
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
