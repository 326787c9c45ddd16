package openai

// ModelRenamer puts one name in the place of every model that an answer names: the value of the top-level member
// "model", of "response.model" and of "message.model", wherever that is a string. All other bytes come out as they
// went in, whatever they are. It reads the answer as it passes and keeps nothing of it: what matters is where in the
// JSON a byte stands, and that is a few numbers.
//
// Member names are compared as they are written; a provider has no reason to escape one. Of text that is no JSON
// nothing is changed but what looks like such a member.
//
// A renamer is for one answer and one goroutine. The zero value is not usable.
type ModelRenamer struct {
	// Static after NewModelRenamer.
	name   []byte // the new name as a JSON string
	sse    bool   // lines of an event stream: only data is JSON
	ndjson bool   // each line is a JSON text

	// Where in an event stream the next byte stands.
	line    linePlace
	matched int  // bytes of the line's beginning that are those of dataField
	mark    int  // bytes of a byte order mark that were seen; -1: it can't come any more
	cr      bool // the last byte was a CR that ended a line

	at  jsonPlace
	out []byte // of the present push, if it is not a piece of what was pushed
}

// linePlace is where in its line a byte stands.
type linePlace uint8

const (
	lineBegin linePlace = iota // in what may become dataField
	lineData                   // in the value of data
	lineOther                  // in a line that is not data
)

const dataField = "data:"

// tokenPlace is where in its token a byte of JSON stands.
type tokenPlace uint8

const (
	between    tokenPlace = iota // in no string
	inString                     // in one that passes
	inEscape                     // behind a backslash of it
	inOld                        // in a name that is replaced: it is dropped
	inOldSlash                   // behind a backslash of it
)

// memberKind is what the present member of the object is to a renamer.
type memberKind uint8

const (
	plainMember memberKind = iota
	modelMember            // its value is replaced
	outerMember            // its value, if an object, has a model of its own
)

// jsonPlace is where in a JSON text the next byte stands.
type jsonPlace struct {
	token tokenPlace
	depth int // arrays and objects around it
	// object says that the outermost of them is an object, inner that the second is one whose model counts.
	object, inner bool
	member        memberKind
	expectKey     bool // the next string is a member's name
	colon         bool // the next value is the member's
	inKey         bool // the present string is a member's name
	key           [len("response")]byte
	keyLen        int // of key; beyond its length: no name that matters
}

// NewModelRenamer returns a renamer for one answer: a stream of that kind or, with StreamNone, one JSON text.
func NewModelRenamer(kind StreamKind, name string) *ModelRenamer {
	return &ModelRenamer{
		name: appendString(nil, name), ndjson: kind == StreamOllama, sse: kind != StreamNone && kind != StreamOllama,
	}
}

// Push takes the next bytes of the answer and returns what takes their place: p itself, a piece of it, or memory of
// the renamer that is valid until the next call. There is nothing to flush.
func (r *ModelRenamer) Push(p []byte) []byte {
	r.out = r.out[:0]
	if cap(r.out) > 2*keepCapacity {
		r.out = nil
	}
	w := renamed{p: p}
	if r.at.token >= inOld {
		w.from = len(p)
	}
	for i := 0; i < len(p); {
		switch {
		case !r.sse:
			i = r.text(&w, i)
		case r.line == lineData:
			if i = r.text(&w, i); i < len(p) {
				i = r.endLine(p, i)
			}
		case r.line == lineOther:
			k := lineBreak(p[i:])
			if k < 0 {
				i = len(p)
				break
			}
			i = r.endLine(p, i+k)
		default:
			i = r.beginLine(p, i)
		}
	}
	return w.rest(r)
}

// endLine goes over the line end at i.
func (r *ModelRenamer) endLine(p []byte, i int) int {
	r.line, r.matched, r.cr = lineBegin, 0, p[i] == '\r'
	return i + 1
}

// beginLine looks at one byte of what may be a field's name.
func (r *ModelRenamer) beginLine(p []byte, i int) int {
	c := p[i]
	if c == '\n' && r.cr {
		r.cr = false
		return i + 1
	}
	r.cr = false
	if r.mark >= 0 && r.mark < len(byteOrderMark) && c == byteOrderMark[r.mark] {
		r.mark++
		return i + 1
	}
	r.mark = -1
	switch {
	case r.matched == 0 && (c == '\n' || c == '\r'): // a blank line: the event is over
		r.at = jsonPlace{}
		return r.endLine(p, i)
	case c != dataField[r.matched]:
		r.line = lineOther
		return i
	}
	if r.matched++; r.matched == len(dataField) {
		r.line = lineData
	}
	return i + 1
}

// text reads JSON from i on, to the line's end in an event stream.
func (r *ModelRenamer) text(w *renamed, i int) int {
	a := &r.at
	for i < len(w.p) {
		if a.token == between {
			if i = a.skip(w.p, i); i == len(w.p) {
				return i
			}
		}
		c := w.p[i]
		if c == '\n' || c == '\r' && r.sse {
			if a.token >= inOld { // no JSON: the rest of the line stays
				a.token, w.from = between, i
			}
			switch {
			case r.sse:
				return i
			case r.ndjson:
				*a = jsonPlace{}
			}
			i++
			continue
		}
		switch a.token {
		case inString:
			i = a.string(w.p, i)
		case inOld:
			i = a.old(w, i)
		case inEscape, inOldSlash:
			a.token--
			i++
		default:
			if c == '"' && a.member == modelMember && a.colon && a.matters() {
				r.replace(w, i)
			} else {
				a.take(c)
			}
			i++
		}
	}
	return i
}

// replace puts the new name before the old one, whose first quote is at i.
func (r *ModelRenamer) replace(w *renamed, i int) {
	r.out = append(append(r.out, w.p[w.from:i]...), r.name...)
	r.at.token, r.at.member = inOld, plainMember
	w.from, w.copied = len(w.p), true
}

// old goes on in the old name, from i to its end.
func (a *jsonPlace) old(w *renamed, i int) int {
	w.from = len(w.p)
	k := plain(w.p, i)
	if k == len(w.p) {
		return k
	}
	switch w.p[k] {
	case '"':
		a.token, w.from = between, k+1
	case '\\':
		a.token = inOldSlash
	case '\n', '\r':
		if k > i {
			return k // for text to see
		}
	}
	return k + 1
}

// string goes on in a string, from i to its end.
func (a *jsonPlace) string(p []byte, i int) int {
	k := plain(p, i)
	a.spell(p[i:k])
	if k == len(p) {
		return k
	}
	switch p[k] {
	case '"':
		a.endString()
	case '\\':
		a.token = inEscape
		a.keyLen = len(a.key) + 1
	case '\n', '\r':
		if k > i {
			return k // for text to see
		}
	}
	return k + 1
}

// spell takes a piece of a member's name.
func (a *jsonPlace) spell(piece []byte) {
	if !a.inKey || len(piece) == 0 {
		return
	}
	if a.keyLen+len(piece) > len(a.key) {
		a.keyLen = len(a.key) + 1
		return
	}
	a.keyLen += copy(a.key[a.keyLen:], piece)
}

// endString goes over the end of a string; if that was a member's name, it is known now what the member is.
func (a *jsonPlace) endString() {
	a.token = between
	if !a.inKey {
		return
	}
	a.inKey, a.member = false, plainMember
	if a.keyLen > len(a.key) {
		return
	}
	switch string(a.key[:a.keyLen]) {
	case "model":
		a.member = modelMember
	case "response", "message":
		if a.depth == 1 {
			a.member = outerMember
		}
	}
}

// matters reports whether the present object may name a model.
func (a *jsonPlace) matters() bool { return a.depth == 1 && a.object || a.depth == 2 && a.inner }

// Bytes outside of strings that say where in the JSON one is: of them all and, where no member matters, of those that
// lead there.
var tokens, nesting = byteSet("\"{}[]:,\n\r"), byteSet("\"{}[]\n\r")

func byteSet(members string) (set [256]bool) {
	for i := range len(members) {
		set[members[i]] = true
	}
	return set
}

// skip goes over what says nothing, from i on.
func (a *jsonPlace) skip(p []byte, i int) int {
	set := &nesting
	if a.matters() {
		set = &tokens
	}
	for i < len(p) && !set[p[i]] {
		i++
	}
	return i
}

// take looks at one byte that is in no string.
func (a *jsonPlace) take(c byte) {
	switch c {
	case '"':
		a.token = inString
		a.inKey, a.keyLen = a.expectKey && a.matters(), 0
		a.expectKey, a.colon = false, false
	case ':':
		a.colon = true
	case ',':
		a.member, a.colon, a.expectKey = plainMember, false, a.matters()
	case '{', '[':
		a.open(c == '{')
	case '}', ']':
		a.depth = max(0, a.depth-1)
		a.member, a.colon, a.expectKey = plainMember, false, false
	}
}

// open goes into an array or object.
func (a *jsonPlace) open(object bool) {
	a.depth++
	switch a.depth {
	case 1:
		a.object = object
	case 2:
		a.inner = object && a.object && a.member == outerMember && a.colon
	}
	a.member, a.colon, a.expectKey = plainMember, false, object && a.matters()
}

// renamed is the output of one push.
type renamed struct {
	p      []byte
	from   int  // p[from:] is not put out yet
	copied bool // what is put out stands in the renamer's memory
}

// rest puts out what is left, and returns all of it.
func (w *renamed) rest(r *ModelRenamer) []byte {
	if !w.copied {
		return w.p[w.from:]
	}
	r.out = append(r.out, w.p[w.from:]...)
	return r.out
}
