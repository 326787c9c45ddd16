package openai

import (
	"bytes"
	"fmt"
	"unicode/utf8"

	"iop/execution/safetext"
)

// MaxModelLength is the longest model name in bytes.
const MaxModelLength = 256

// MaxHintLength is the longest affinity hint that is read, in bytes. A longer one is passed on like any other field
// but is not a hint: hints are kept per run, and a client must not decide how much that is.
const MaxHintLength = 512

// Envelope is what the Edge must know of a JSON request: the fields that route it, and where they stand. Nothing else
// of the body was decoded. It belongs to the body it was parsed from.
type Envelope struct {
	Model     string // empty if the request names none
	Stream    bool
	StreamSet bool // the request has a stream that is not null: Ollama streams unless told not to
	// IncludeUsage is what the client asked for, so that the usage event may be withheld from one who did not ask.
	IncludeUsage bool

	// Hints for affinity, empty where absent, null or longer than MaxHintLength. Of several the last counts.
	SessionID      string
	PromptCacheKey string
	User           string

	// MaxTokens is the least of max_tokens, max_completion_tokens and max_output_tokens that is a positive integer, 0
	// if none is. Together with Choices it estimates a cost: what is odd about these fields is the provider's to refuse.
	MaxTokens int64
	Choices   int64 // n, at least 1

	open         int // offset after the root's opening brace
	empty        bool
	model        span // the value of model
	options      span // the value of stream_options
	includeUsage span // the value of include_usage in it
	optionsOpen  int  // offset after the opening brace of stream_options, 0 if it is no object
	optionsEmpty bool
	seenFields   uint8 // bit per field
	prompt       span  // the value of messages, prompt or input
	promptField  field // which of them it is, or fieldNone
	metadata     span  // the value of metadata
}

// span is a range of the body. The zero value is "absent": no value begins at the very start of an object.
type span struct{ start, end int }

// field is a member of the request that the Edge reads.
type field uint8

const (
	fieldNone field = iota
	fieldModel
	fieldStream
	fieldStreamOptions
	fieldIncludeUsage
	fieldSessionID
	fieldPromptCacheKey
	fieldUser
	fieldMaxTokens // under any of its names
	fieldChoices
	fieldMessages // the three that may hold the prompt, the one that counts most first
	fieldPrompt
	fieldInput
	fieldMetadata
)

var fieldNames = [...]string{
	"", "model", "stream", "stream_options", "stream_options.include_usage", "session_id", "prompt_cache_key", "user",
	"max_tokens", "n", "messages", "prompt", "input", "metadata",
}

func (f field) String() string { return fieldNames[f] }

// ParseEnvelope scans a JSON request to its end. The document must be one well-formed object (RFC 8259) nested at most
// 64 deep; the fields may stand anywhere in it. Any error is an *Error with status 400, and its Param names the field
// where the fault is a field's.
//
// A routed field (model, stream, stream_options and include_usage in it) may appear once, and only in its exact
// spelling. Decoders differ in which of two they take, and some match names without regard to case, so that a second
// `model` or a `MODEL` would let one model pass the policy and another run.
func ParseEnvelope(body []byte) (Envelope, error) {
	e := Envelope{Choices: 1}
	p := envelopeParser{scanner: scanner{b: body}, e: &e}
	if err := p.parse(); err != nil {
		return Envelope{}, err
	}
	return e, nil
}

type envelopeParser struct {
	scanner
	e *Envelope
}

func (p *envelopeParser) parse() *Error {
	i := p.space(0)
	if i >= len(p.b) {
		return InvalidRequest("", "the request body is empty; a JSON object is expected")
	}
	if p.b[i] != '{' {
		if i = p.value(i, 0); i < 0 {
			return p.malformed()
		}
		return InvalidRequest("", "the request body must be a JSON object")
	}
	e := p.e
	e.open = i + 1
	i = p.space(e.open)
	if i < len(p.b) && p.b[i] == '}' {
		e.empty = true
		return p.tail(i + 1)
	}
	for done := false; !done; {
		start := i
		end, val := p.key(i)
		if val < 0 {
			return p.malformed()
		}
		f, exact := topField(p.b[start+1:end-1], p.escaped)
		var err *Error
		if f == fieldNone {
			i = p.value(val, 1)
		} else if i, err = p.take(f, exact, val); err != nil {
			return err
		}
		if i < 0 {
			return p.malformed()
		}
		if i, done = p.next(i, '}'); i < 0 {
			return p.malformed()
		}
	}
	return p.tail(i)
}

// tail checks that nothing follows the document.
func (p *envelopeParser) tail(i int) *Error {
	if i = p.space(i); i < len(p.b) {
		p.unexpected(i)
		return p.malformed()
	}
	return nil
}

// malformed says where the document breaks, and nothing of what stands there.
func (p *envelopeParser) malformed() *Error {
	switch p.fault {
	case faultDepth:
		return InvalidRequest("", fmt.Sprintf("the request body nests deeper than %d levels (at byte %d)", maxDepth, p.at))
	case faultEnd:
		return InvalidRequest("", "the request body is not valid JSON: it ends too early")
	}
	return InvalidRequest("", fmt.Sprintf("the request body is not valid JSON: unexpected byte at offset %d", p.at))
}

// take reads the value at i of a field that the Edge knows, and returns the offset after it (-1: malformed).
func (p *envelopeParser) take(f field, exact bool, i int) (int, *Error) {
	if err := p.once(f, exact); err != nil {
		return 0, err
	}
	if f == fieldStreamOptions {
		return p.takeOptions(i)
	}
	end := p.value(i, 1)
	if end < 0 {
		return -1, nil
	}
	raw, e := p.b[i:end], p.e
	switch f {
	case fieldModel:
		e.model = span{i, end}
		return end, p.takeModel(raw)
	case fieldStream:
		return end, takeBool(f, raw, &e.Stream, &e.StreamSet)
	case fieldSessionID:
		return end, takeHint(f, raw, &e.SessionID)
	case fieldPromptCacheKey:
		return end, takeHint(f, raw, &e.PromptCacheKey)
	case fieldUser:
		return end, takeHint(f, raw, &e.User)
	case fieldMaxTokens:
		if n := positive(raw); n > 0 && (e.MaxTokens == 0 || n < e.MaxTokens) {
			e.MaxTokens = n
		}
	case fieldChoices:
		e.Choices = max(e.Choices, min(positive(raw), maxChoices))
	case fieldMetadata:
		e.metadata = span{i, end}
	case fieldMessages, fieldPrompt, fieldInput:
		if raw[0] != 'n' && (e.promptField == fieldNone || f <= e.promptField) {
			e.prompt, e.promptField = span{i, end}, f
		}
	}
	return end, nil
}

// What a request may count up to here, so that the product of two counts is still a number. No model comes near it.
const (
	maxCount   = 1 << 40
	maxChoices = 1 << 20
)

// positive returns a scanned value that is a positive integer, at most maxCount, and 0 for any other.
func positive(raw []byte) (n int64) {
	for _, c := range raw {
		if c-'0' > 9 {
			return 0
		}
		n = min(10*n+int64(c-'0'), maxCount)
	}
	return n
}

// Prompt returns the value of messages, prompt or input as the client wrote it, of the first of these that is there
// and not null; nil if none is. It is a part of body, which must be the one that e was parsed from.
func (e *Envelope) Prompt(body []byte) []byte {
	if e.promptField == fieldNone {
		return nil
	}
	return body[e.prompt.start:e.prompt.end]
}

// MetadataSessionID returns the session_id of the request's metadata, empty where there is none, it is no string or it is
// longer than MaxHintLength. body must be the one that e was parsed from.
func (e *Envelope) MetadataSessionID(body []byte) string {
	if e.metadata == (span{}) {
		return ""
	}
	raw := member(body[e.metadata.start:e.metadata.end], "session_id")
	if len(raw)-2 > MaxHintLength {
		return ""
	}
	return text(raw)
}

// EstimateTokens returns about how many tokens a prompt of so many bytes is, at least 1: a token is four bytes of
// English, and less of most else, of which JSON's own signs make up a part.
func EstimateTokens(promptBytes int) int64 { return max(1, int64(promptBytes)/4) }

// once refuses the second appearance of a routed field and any appearance in another spelling.
func (p *envelopeParser) once(f field, exact bool) *Error {
	if f > fieldIncludeUsage {
		return nil
	}
	if !exact {
		return InvalidRequest(f.String(), fmt.Sprintf("%s must be spelled exactly so, in lower case", f))
	}
	if bit := uint8(1) << f; p.e.seenFields&bit == 0 {
		p.e.seenFields |= bit
		return nil
	}
	return InvalidRequest(f.String(), fmt.Sprintf("%s appears more than once", f))
}

func (p *envelopeParser) takeModel(raw []byte) *Error {
	if raw[0] != '"' {
		return InvalidRequest("model", "model must be a string")
	}
	if len(raw) > 6*MaxModelLength+2 { // no longer than its longest escaped form, before anything is decoded
		return checkModel(string(raw[:2*MaxModelLength]))
	}
	p.e.Model = unquote(raw)
	return checkModel(p.e.Model)
}

// checkModel refuses a model's name that can't be one.
func checkModel(name string) *Error {
	if fault := modelFault(name); fault != "" {
		return InvalidRequest("model", fault)
	}
	return nil
}

var modelLengthFault = fmt.Sprintf("model must have 1 to %d bytes", MaxModelLength)

// modelFault says what is wrong with a model's name, or nothing: it goes into logs, metrics, headers and other
// systems' requests.
func modelFault(name string) string {
	if name == "" || len(name) > MaxModelLength {
		return modelLengthFault
	}
	for _, r := range name {
		if r == utf8.RuneError || safetext.Unfit(r) {
			return "model must be valid UTF-8 without control characters or format characters"
		}
	}
	return ""
}

func takeBool(f field, raw []byte, v, set *bool) *Error {
	switch raw[0] {
	case 't':
		*v, *set = true, true
	case 'f':
		*v, *set = false, true
	case 'n':
	default:
		return InvalidRequest(f.String(), fmt.Sprintf("%s must be true or false", f))
	}
	return nil
}

func takeHint(f field, raw []byte, v *string) *Error {
	switch {
	case raw[0] == 'n':
		*v = ""
	case raw[0] != '"':
		return InvalidRequest(f.String(), fmt.Sprintf("%s must be a string", f))
	case len(raw)-2 > MaxHintLength:
		*v = ""
	default:
		*v = unquote(raw)
	}
	return nil
}

// takeOptions reads stream_options at i and returns the offset after it (-1: malformed).
func (p *envelopeParser) takeOptions(i int) (int, *Error) {
	e := p.e
	if i >= len(p.b) || p.b[i] != '{' {
		end := p.value(i, 1)
		if end >= 0 && p.b[i] != 'n' {
			return 0, InvalidRequest("stream_options", "stream_options must be an object")
		}
		e.options = span{i, end}
		return end, nil
	}
	e.options.start, e.optionsOpen = i, i+1
	i = p.space(i + 1)
	if i < len(p.b) && p.b[i] == '}' {
		e.optionsEmpty = true
		e.options.end = i + 1
		return i + 1, nil
	}
	for done := false; !done; {
		start := i
		end, val := p.key(i)
		if val < 0 {
			return -1, nil
		}
		exact, match := matches(p.b[start+1:end-1], p.escaped, "include_usage")
		if i = p.value(val, 2); i < 0 {
			return -1, nil
		}
		if match {
			if err := p.takeIncludeUsage(exact, span{val, i}); err != nil {
				return 0, err
			}
		}
		if i, done = p.next(i, '}'); i < 0 {
			return -1, nil
		}
	}
	e.options.end = i
	return i, nil
}

func (p *envelopeParser) takeIncludeUsage(exact bool, at span) *Error {
	if err := p.once(fieldIncludeUsage, exact); err != nil {
		return err
	}
	p.e.includeUsage = at
	var set bool
	return takeBool(fieldIncludeUsage, p.b[at.start:at.end], &p.e.IncludeUsage, &set)
}

// topField returns which known field a top-level member's name is, and whether it is spelled exactly so.
func topField(raw []byte, escaped bool) (f field, exact bool) {
	if !escaped {
		switch string(raw) {
		case "model":
			return fieldModel, true
		case "stream":
			return fieldStream, true
		case "stream_options":
			return fieldStreamOptions, true
		case "session_id":
			return fieldSessionID, true
		case "prompt_cache_key":
			return fieldPromptCacheKey, true
		case "user":
			return fieldUser, true
		case "messages":
			return fieldMessages, true
		case "prompt":
			return fieldPrompt, true
		case "input":
			return fieldInput, true
		case "max_tokens", "max_completion_tokens", "max_output_tokens":
			return fieldMaxTokens, true
		case "n":
			return fieldChoices, true
		case "metadata":
			return fieldMetadata, true
		}
	}
	for f := fieldModel; f <= fieldStreamOptions; f++ {
		if exact, match := matches(raw, escaped, f.String()); match {
			return f, exact
		}
	}
	return fieldNone, false
}

// matches compares a member's name, as it is written, with an ASCII name under the folding that the laxest decoders use:
// Unicode's simple folding, where 'ſ' is an 's'. A name with an escape is decoded first and never exact: nobody honest
// writes one there.
func matches(raw []byte, escaped bool, name string) (exact, match bool) {
	if len(raw) < len(name) || len(raw) > 6*len(name) { // \u0073 is six bytes for one
		return false, false
	}
	if escaped {
		var buf [6 * len("stream_options")]byte
		raw = appendUnescaped(buf[:0], raw)
	} else if string(raw) == name {
		return true, true
	}
	return false, len(raw) <= 3*len(name) && equalFold(raw, name)
}

func equalFold(raw []byte, name string) bool {
	if raw[0] < utf8.RuneSelf && raw[0]|0x20 != name[0]|0x20 {
		return false
	}
	return bytes.EqualFold(raw, []byte(name))
}
