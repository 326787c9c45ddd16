package openai

import "unicode/utf8"

// field is a member of a request's root object that decides something at the Edge, or could decide something at a
// provider that only the Edge may decide.
type field uint8

// The fields that the Edge reads. Those from fieldSteering on are in steeringNames.
const (
	fieldNone field = iota
	fieldModel
	fieldStream
	fieldStreamOptions
	fieldOptions
	// What a provider reads before it answers. The first three may hold the prompt, the one that counts most first.
	fieldMessages
	fieldPrompt
	fieldInput
	fieldSystem
	fieldInstructions
	fieldTools
	// The hints. They decide where a request runs, not what may run: other spellings of them are the provider's business.
	fieldSessionID
	fieldPromptCacheKey
	fieldUser
	fieldMetadata
	// Counts: each of them multiplies the answer.
	fieldChoices
	fieldBestOf
	fieldEngineChoices
	fieldSequences
	// Lengths of the answer in tokens, in the order of lengthNames.
	fieldMaxTokens

	fieldLengthEnd = fieldMaxTokens + field(len(lengthNames))
	// fieldSteering is the first of steeringNames.
	fieldSteering field = 64
)

// fieldNames are the names of the fields up to the lengths.
var fieldNames = [fieldMaxTokens]string{
	fieldModel: "model", fieldStream: "stream", fieldStreamOptions: "stream_options",
	fieldMessages: "messages", fieldPrompt: "prompt", fieldInput: "input", fieldOptions: optionsMember,
	fieldSystem: "system", fieldInstructions: "instructions", fieldTools: "tools",
	fieldSessionID: "session_id", fieldPromptCacheKey: "prompt_cache_key", fieldUser: "user", fieldMetadata: "metadata",
	fieldChoices: "n", fieldBestOf: "best_of", fieldEngineChoices: "n_cmpl", fieldSequences: "num_return_sequences",
}

func (f field) String() string {
	switch {
	case f < fieldMaxTokens:
		return fieldNames[f]
	case f < fieldLengthEnd:
		return lengthNames[f-fieldMaxTokens]
	case f >= fieldSteering:
		return steeringNames[f-fieldSteering]
	}
	return ""
}

func (f field) isCount() bool { return f >= fieldChoices && f <= fieldSequences }

func (f field) isLength() bool { return f >= fieldMaxTokens && f < fieldLengthEnd }

func (f field) isText() bool { return f >= fieldMessages && f <= fieldTools }

func (f field) isHint() bool { return f >= fieldSessionID && f <= fieldMetadata }

// maxFieldName is the longest name of a field, in bytes.
const maxFieldName = 32

// exactNames and looseNames are the fields by the length of their names: as they are, and without underscores. They are
// filled once at start-up and only read afterwards.
var exactNames, looseNames [maxFieldName + 1][]namedField

type namedField struct {
	name  string
	field field
}

func init() {
	add := func(f field) {
		name := f.String()
		exactNames[len(name)] = append(exactNames[len(name)], namedField{name, f})
		var room [maxFieldName]byte
		loose := string(withoutDelimiters(room[:0], []byte(name)))
		looseNames[len(loose)] = append(looseNames[len(loose)], namedField{loose, f})
	}
	for f := fieldNone + 1; f < fieldLengthEnd; f++ {
		add(f)
	}
	for i := range steeringNames {
		add(fieldSteering + field(i))
	}
}

// fieldOf returns which field a root member's name is, and whether it is spelled exactly so. raw is the name as it is
// written. A name that some reader could take for the field's is one: in another case, under the folding of the laxest
// decoders, with an escape in it, and but for the hints also without underscores or with hyphens, as in maxTokens.
func fieldOf(raw []byte, escaped bool) (f field, exact bool) {
	if !escaped && len(raw) <= maxFieldName {
		for _, n := range exactNames[len(raw)] {
			if string(raw) == n.name {
				return n.field, true
			}
		}
	}
	return looseField(raw, escaped)
}

func looseField(raw []byte, escaped bool) (f field, exact bool) {
	var decoded, folded, loose [maxFieldName]byte
	if escaped {
		if len(raw) > 6*maxFieldName { // \u0073 is six bytes for one
			return fieldNone, false
		}
		raw = appendUnescaped(decoded[:0], raw)
	}
	name, whole := appendFolded(folded[:0], raw)
	if f := steeringPrefix(name); f != fieldNone {
		return f, false
	}
	if !whole {
		return fieldNone, false
	}
	bare := withoutDelimiters(loose[:0], name)
	for _, n := range looseNames[len(bare)] {
		if string(bare) == n.name && (!n.field.isHint() || string(name) == n.field.String()) {
			return n.field, false
		}
	}
	return fieldNone, false
}

// isASCII reports whether a name has ASCII characters only. No member of the root has others, and there are readers that make
// some of them ASCII: full case folding, compatibility forms, and what drops all it can't encode.
func isASCII(raw []byte, escaped bool) bool {
	if escaped {
		raw = appendUnescaped(nil, raw)
	}
	for _, c := range raw {
		if c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// appendFolded appends a name in lower case, as far as there is room in dst. What is no letter of English for any reader
// ends it. whole: that was all of the name.
func appendFolded(dst, name []byte) (folded []byte, whole bool) {
	for i := 0; i < len(name); {
		if len(dst) == cap(dst) {
			return dst, false
		}
		c := name[i]
		if c < utf8.RuneSelf {
			if c-'A' <= 25 {
				c |= 0x20
			}
			dst = append(dst, c)
			i++
			continue
		}
		r, size := utf8.DecodeRune(name[i:])
		switch r { // Unicode's simple folding, and what upper and lower case make of the Turkish letters
		case 'ſ':
			c = 's'
		case '\u212a': // the Kelvin sign
			c = 'k'
		case 'İ', 'ı':
			c = 'i'
		default:
			return dst, false
		}
		dst = append(dst, c)
		i += size
	}
	return dst, true
}

func withoutDelimiters(dst, name []byte) []byte {
	for _, c := range name {
		if c != '_' && c != '-' {
			dst = append(dst, c)
		}
	}
	return dst
}

// matches compares a member's name, as it is written, with an ASCII name of at most maxParameterName bytes as fieldOf
// does, but for underscores. A name with an escape is decoded first and never exact: nobody honest writes one there.
func matches(raw []byte, escaped bool, name string) (exact, match bool) {
	if len(raw) < len(name) || len(raw) > 6*len(name) {
		return false, false
	}
	var decoded, folded [maxParameterName]byte
	if escaped {
		raw = appendUnescaped(decoded[:0], raw)
	} else if string(raw) == name {
		return true, true
	} else if c := raw[0]; c < utf8.RuneSelf && c|0x20 != name[0]|0x20 {
		return false, false
	}
	lower, whole := appendFolded(folded[:0], raw)
	if !whole || len(lower) != len(name) {
		return false, false
	}
	for i := range lower {
		if c := name[i]; lower[i] != c && (c-'A' > 25 || lower[i] != c|0x20) {
			return false, false
		}
	}
	return false, true
}
