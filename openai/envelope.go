package openai

import (
	"bytes"
	"fmt"
	"strings"
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

	// Hints for affinity, empty where absent, null or longer than MaxHintLength.
	SessionID      string
	PromptCacheKey string
	User           string

	// Choices is how many answers are asked for to each prompt, at least 1: the greatest of n, best_of and what engines
	// call them.
	Choices int64

	// What the answer's length may be, by the names in lengthNames, and num_predict of Ollama's options: 0 where absent or
	// null, noBound where the value bounds nothing.
	lengths      [len(lengthNames)]int64
	optionLength int64
	optionAt     span // the value of the latter

	open         int // offset after the root's opening brace
	empty        bool
	model        span // the value of model
	options      span // the value of stream_options
	includeUsage span // the value of include_usage in it
	optionsOpen  int  // offset after the opening brace of stream_options, 0 if it is no object
	optionsEmpty bool
	seen         uint64                               // bit per field below fieldSteering
	hosted       bool                                 // see ReadsMore
	known        OpSet                                // the operations that define all members of the root, in this spelling
	oddNested    bool                                 // a nested member is not known, see nestedMembers
	otherModel   string                               // the name of the first member that anyModel stands for
	steering     steeringSet                          // the names of steeringNames that are there, and neither null nor false
	texts        [fieldTools - fieldMessages + 1]span // of what is read before the answer, by field; null is absent
	metaSession  span                                 // the value of metadata.session_id
}

// span is a range of the body. The zero value is "absent": no value begins at the very start of an object.
type span struct{ start, end int }

// ParseEnvelope scans a JSON request to its end. The document must be one well-formed object (RFC 8259) in UTF-8, nested
// at most 64 deep; the fields may stand anywhere in it. Any error is an *Error with status 400, and its Param names the
// field where the fault is a field's.
//
// Decoders differ in which of two members of the same name they take, some match names without regard to case, some
// drop the bytes of a name that are no UTF-8, and some take "5" and true for numbers. So what decides something here may
// appear once, in its exact spelling, with a value that all of them read alike: otherwise one model would pass the
// policy and another run.
func ParseEnvelope(body []byte) (Envelope, error) {
	e := Envelope{Choices: 1, known: everyOp}
	if at := invalidUTF8(body); at >= 0 {
		return Envelope{}, notUTF8(at)
	}
	p := envelopeParser{scanner: scanner{b: body, names: true}, e: &e}
	if err := p.parse(); err != nil {
		return Envelope{}, err
	}
	return e, nil
}

func notUTF8(at int) *Error {
	return InvalidRequest("", fmt.Sprintf("the request body is not valid UTF-8 at byte %d", at))
}

// invalidUTF8 returns the offset of the first byte that is no UTF-8, -1 if there is none.
func invalidUTF8(b []byte) int {
	if utf8.Valid(b) {
		return -1
	}
	for i := 0; ; {
		r, size := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
}

type envelopeParser struct {
	scanner
	e          *Envelope
	optionSeen bool // options.num_predict
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
		end, val := p.memberName(i)
		if val < 0 {
			return p.malformed()
		}
		f, exact := fieldOf(p.b[start+1:end-1], p.escaped)
		var err *Error
		if f == fieldNone {
			if !isASCII(p.b[start+1:end-1], p.escaped) {
				return InvalidRequest("", fmt.Sprintf("a member name must be ASCII (at byte %d)", start))
			}
			i = p.other(p.b[start+1:end-1], p.escaped, val)
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
	case faultName:
		return InvalidRequest("", fmt.Sprintf("a member name contains an unpaired surrogate or U+0000 (at byte %d)", p.at))
	case faultPrototype:
		return InvalidRequest("", fmt.Sprintf("a member may not be named %s (at byte %d)", prototype, p.at))
	}
	return InvalidRequest("", fmt.Sprintf("the request body is not valid JSON: unexpected byte at offset %d", p.at))
}

// prototype is a name that sets an object's prototype where JavaScript copies the member, as Object.assign does. From then
// on the object has the prototype's members too: a second length, or any of steeringNames.
const prototype = "__proto__"

// memberName is scanner.key for an object that is no content.
func (p *envelopeParser) memberName(at int) (end, val int) {
	if end, val = p.key(at); val < 0 {
		return end, val
	}
	name := p.b[at+1 : end-1]
	if p.escaped && len(name) <= 6*len(prototype) {
		name = appendUnescaped(nil, name)
	}
	if string(name) == prototype {
		return -1, p.fail(faultPrototype, at)
	}
	return end, val
}

// take reads the value at i of a field that the Edge knows, and returns the offset after it (-1: malformed).
func (p *envelopeParser) take(f field, exact bool, i int) (int, *Error) {
	if f >= fieldSteering {
		return p.takeSteering(f, exact, i)
	}
	if err := p.once(f, exact); err != nil {
		return 0, err
	}
	p.e.known &= fieldOps[f]
	switch f {
	case fieldStreamOptions:
		return p.takeStreamOptions(i)
	case fieldOptions:
		return p.takeNested(i, optionLength, nestedMembers[optionsMember], p.takeOptionLength)
	case fieldMetadata:
		return p.takeNested(i, "session_id", nestedMembers["metadata"], p.takeMetaSession)
	}
	end := p.scanField(f, i)
	if end < 0 {
		return -1, nil
	}
	raw, e := p.b[i:end], p.e
	switch f {
	case fieldModel:
		e.model = span{i, end}
		return end, p.takeModel(raw)
	case fieldStream:
		return end, takeBool(f.String(), raw, &e.Stream, &e.StreamSet)
	case fieldSessionID:
		return end, takeHint(f, raw, &e.SessionID)
	case fieldPromptCacheKey:
		return end, takeHint(f, raw, &e.PromptCacheKey)
	case fieldUser:
		return end, takeHint(f, raw, &e.User)
	}
	switch {
	case f.isText() && raw[0] != 'n':
		e.texts[f-fieldMessages] = span{i, end}
	case f.isCount():
		return end, p.takeCount(f, raw)
	case f.isLength():
		return end, takeLength(f.String(), raw, &e.lengths[f-fieldMaxTokens])
	}
	return end, nil
}

// scanField scans the value at i of a field, and returns the offset after it.
func (p *envelopeParser) scanField(f field, i int) int {
	switch {
	case f == fieldTools:
		return p.tools(i, 1)
	case f.isText():
		return p.content(i, 1, 0)
	}
	return p.value(i, 1)
}

// other scans the value at i of a member that is none of the fields.
func (p *envelopeParser) other(key []byte, escaped bool, i int) int {
	m := knownMembers[string(key)]
	p.e.known &= m.ops
	if m.content {
		return p.value(i, 1)
	}
	if (m.fetches || m.ops == 0) && i < len(p.b) && p.b[i] != 'n' && p.b[i] != 'f' && !bytes.HasPrefix(p.b[i:], emptyText) {
		p.e.hosted = true
	}
	if string(key) == templateMember {
		if i < len(p.b) && p.b[i] == '{' {
			return p.takeTemplate(i)
		}
		p.noteNested(i)
	}
	return p.watchMember(key, escaped, i, 1, watched{bit: anyModelBit})
}

// emptyText is a value that says nothing: Ollama's clients send each member of a request.
var emptyText = []byte(`""`)

// noteNested notes the value at i of a member of nestedMembers that is no object.
func (p *envelopeParser) noteNested(i int) {
	p.e.oddNested = p.e.oddNested || i < len(p.b) && p.b[i] != 'n'
}

// takeTemplate reads the object of templateMember at i.
func (p *envelopeParser) takeTemplate(i int) int {
	return p.eachMember(i, 2, func(key []byte, escaped bool, val int) int {
		p.e.oddNested = p.e.oddNested || !nestedMembers[templateMember].knows(key)
		return p.watchMember(key, escaped, val, 2, watched{bit: anyModelBit})
	})
}

// takeSteering notes that a member of steeringNames is there. Its spelling is as good as any other.
func (p *envelopeParser) takeSteering(f field, exact bool, i int) (int, *Error) {
	end := p.value(i, 1)
	if end >= 0 && p.b[i] != 'n' && p.b[i] != 'f' {
		p.e.steering.add(int(f - fieldSteering))
	}
	if !exact {
		p.e.known = 0
	}
	return end, nil
}

// takeNested reads an object at i of which one member is known, and returns the offset after it (-1: malformed). The
// member may be there once, in its exact spelling. Any other value means nothing here. known says which others there may be.
func (p *envelopeParser) takeNested(i int, name string, known *nestedTable, take func(exact bool, at span) *Error) (int, *Error) {
	if i >= len(p.b) || p.b[i] != '{' {
		p.noteNested(i)
		return p.value(i, 1), nil
	}
	var err *Error
	i = p.eachMember(i, 2, func(key []byte, escaped bool, val int) (end int) {
		exact, match := matches(key, escaped, name)
		p.e.oddNested = p.e.oddNested || !known.knows(key)
		if known.content {
			end = p.value(val, 2)
		} else {
			end = p.watchMember(key, escaped, val, 2, watched{bit: anyModelBit})
		}
		if end >= 0 && match {
			if err = take(exact, span{val, end}); err != nil {
				return -1
			}
		}
		return end
	})
	return i, err
}

// Prompt returns the value of messages, prompt or input as the client wrote it, of the first of these that is there
// and not null; nil if none is. It is a part of body, which must be the one that e was parsed from.
func (e *Envelope) Prompt(body []byte) []byte {
	for _, at := range e.texts[:fieldInput-fieldMessages+1] {
		if at != (span{}) {
			return body[at.start:at.end]
		}
	}
	return nil
}

// MetadataSessionID returns the session_id of the request's metadata, empty where there is none, it is no string or it is
// longer than MaxHintLength. body must be the one that e was parsed from.
func (e *Envelope) MetadataSessionID(body []byte) string {
	raw := body[e.metaSession.start:e.metaSession.end]
	if len(raw)-2 > MaxHintLength {
		return ""
	}
	return text(raw)
}

// EstimateTokens returns about how many tokens a prompt of so many bytes is, at least 1: a token is four bytes of
// English, and less of most else, of which JSON's own signs make up a part.
func EstimateTokens(promptBytes int) int64 { return max(1, int64(promptBytes)/4) }

// once refuses the second appearance of a field and any appearance in another spelling.
func (p *envelopeParser) once(f field, exact bool) *Error {
	bit := uint64(1) << f
	err := onlyOnce(f.String(), exact, p.e.seen&bit != 0)
	p.e.seen |= bit
	return err
}

func onlyOnce(name string, exact, seen bool) *Error {
	switch {
	case !exact:
		return InvalidRequest(name, fmt.Sprintf("%s must be spelled exactly like this, in lower case", name))
	case seen:
		return InvalidRequest(name, fmt.Sprintf("%s appears more than once", name))
	}
	return nil
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

var modelLengthFault = fmt.Sprintf("model must be 1 to %d bytes long", MaxModelLength)

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

func takeBool(name string, raw []byte, v, set *bool) *Error {
	switch raw[0] {
	case 't':
		*v, *set = true, true
	case 'f':
		*v, *set = false, true
	case 'n':
	default:
		return InvalidRequest(name, fmt.Sprintf("%s must be true or false", name))
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
		if *v = unquote(raw); strings.ContainsRune(*v, utf8.RuneError) {
			return InvalidRequest(f.String(), fmt.Sprintf("%s must be valid Unicode without U+FFFD", f))
		}
	}
	return nil
}

const includeUsageName = "stream_options.include_usage"

// takeStreamOptions reads stream_options at i and returns the offset after it (-1: malformed).
func (p *envelopeParser) takeStreamOptions(i int) (int, *Error) {
	e := p.e
	if i < len(p.b) && p.b[i] == '{' {
		e.optionsOpen = i + 1
		k := p.space(i + 1)
		e.optionsEmpty = k < len(p.b) && p.b[k] == '}'
	}
	end, err := p.takeNested(i, "include_usage", nestedMembers["stream_options"], p.takeIncludeUsage)
	if err != nil || end < 0 {
		return end, err
	}
	if e.optionsOpen == 0 && p.b[i] != 'n' {
		return 0, InvalidRequest("stream_options", "stream_options must be an object")
	}
	e.options = span{i, end}
	return end, nil
}

func (p *envelopeParser) takeIncludeUsage(exact bool, at span) *Error {
	e := p.e
	if err := onlyOnce(includeUsageName, exact, e.includeUsage != span{}); err != nil {
		return err
	}
	e.includeUsage = at
	var set bool
	return takeBool(includeUsageName, p.b[at.start:at.end], &e.IncludeUsage, &set)
}

func (p *envelopeParser) takeMetaSession(exact bool, at span) *Error {
	err := onlyOnce("metadata.session_id", exact, p.e.metaSession != span{})
	p.e.metaSession = at
	return err
}
