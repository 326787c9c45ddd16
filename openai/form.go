package openai

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"strings"
	"unicode/utf8"
)

const (
	// maxParts is how many parts a form may have. The API's largest forms (16 images, some fields) have a few dozen.
	maxParts = 256
	// maxPartHeader is the longest header of a part, in bytes. What clients write has 200, and a long file name.
	maxPartHeader = 4 << 10
)

// Form is a multipart form (RFC 7578) as the Edge read it. A provider is sent what Write makes of it, and nothing else of
// the client's: a boundary that the client can't know, headers that are written anew, and the parts' contents. It keeps
// the body that it was parsed from, and is for one goroutine.
//
// Readers of forms differ in what they make of anything unusual: which of two names counts, where a parameter ends,
// whether a part is a file, where the form begins. What is read here must not be read otherwise behind the Edge, or one
// model passes the policy and another one runs. So a form is either plain enough for every reader, or refused.
type Form struct {
	Model  string // of the field model; empty if there is none
	Stream bool   // of the field stream

	boundary string // that of Write
	parts    []formPart
	names    map[string]*formName // by foldName of the name before its brackets
}

// formPart is one part.
type formPart struct {
	name     string
	file     bool
	fileName string // of a file, never empty there
	media    string // of a file, never empty there
	ascii    bool   // a plain field that declares a charset of which only ASCII is UTF-8 too
	content  []byte // a span of the body, or what was put in its place
}

// ParseForm reads a form that the boundary divides; see [RequestBodyType]. Any error is an *Error with status 400 that
// names the part and its fault.
//
// Contents are stepped over, not copied, so that a file costs nothing.
func ParseForm(boundary string, body []byte) (*Form, error) {
	p := formParser{delimiter: []byte("--" + boundary), rest: body, form: &Form{
		boundary: "iop-" + rand.Text(), names: map[string]*formName{},
	}}
	if e := p.parse(); e != nil {
		return nil, e
	}
	return p.form, nil
}

type formParser struct {
	form      *Form
	delimiter []byte // "--" and the boundary
	rest      []byte // what was not read yet
}

// parse reads the form: a delimiter, then parts that each end in one. Before the first and behind the last nothing may
// stand: some readers find parts there.
func (p *formParser) parse() *Error {
	first, ok := bytes.CutPrefix(p.rest, p.delimiter)
	if !ok {
		return formFault("it must begin with its boundary")
	}
	p.rest = first
	for last := false; ; {
		var e *Error
		if last, e = p.lineEnd(); e != nil || last {
			return e
		}
		if len(p.form.parts) == maxParts {
			return formFault(fmt.Sprintf("it has more than %d parts", maxParts))
		}
		if e := p.part(); e != nil {
			return e
		}
	}
}

// lineEnd reads what stands behind a delimiter. last: it was the one that ends the form.
func (p *formParser) lineEnd() (last bool, e *Error) {
	if after, ok := bytes.CutPrefix(p.rest, []byte("\r\n")); ok {
		p.rest = after
		return false, nil
	}
	after, ok := bytes.CutPrefix(p.rest, []byte("--"))
	switch {
	case !ok:
		return false, formFault("a boundary must be on its own line, which ends in CRLF")
	case len(after) > 0 && string(after) != "\r\n":
		return false, formFault("nothing may follow its last boundary")
	case len(p.form.parts) == 0:
		return false, formFault("it has no parts")
	}
	return true, nil
}

// part reads one part, up to behind the delimiter that ends it.
func (p *formParser) part() *Error {
	ordinal := len(p.form.parts) + 1
	header, _, ok := bytes.Cut(p.rest[:min(len(p.rest), maxPartHeader)], []byte("\r\n\r\n"))
	if !ok {
		return partFault(ordinal, "", fmt.Sprintf("its header has no end, or more than %d bytes", maxPartHeader))
	}
	part, fault := parsePartHeader(string(header))
	if fault != "" {
		return partFault(ordinal, part.name, fault)
	}
	content := p.rest[len(header)+4:]
	end := bytes.Index(content, p.delimiter)
	switch {
	case end < 0:
		return formFault(fmt.Sprintf("it ends too early, in part %d", ordinal))
	case end < 2 || content[end-2] != '\r' || content[end-1] != '\n': // some readers take it for the end, others don't
		return partFault(ordinal, part.name, "its content holds the boundary")
	}
	end -= 2
	part.content, p.rest = content[:end], content[end+2+len(p.delimiter):]
	if fault = part.textFault(); fault == "" {
		fault = p.form.name(&part)
	}
	if fault != "" {
		return partFault(ordinal, part.name, fault)
	}
	if e := p.form.take(&part); e != nil {
		return e
	}
	p.form.parts = append(p.form.parts, part)
	return nil
}

// textFault says why the value of a plain field is no text that every reader decodes alike.
func (part *formPart) textFault() string {
	switch {
	case part.file:
		return ""
	case part.ascii && bytes.ContainsFunc(part.content, func(r rune) bool { return r >= utf8.RuneSelf }):
		return "its value must be UTF-8, and its Content-Type can't declare another charset"
	case !utf8.Valid(part.content), bytes.IndexByte(part.content, 0) >= 0:
		return "its value is not UTF-8 text"
	}
	return ""
}

// take notes the fields that decide something here. The provider is sent them in the one spelling of what was read.
func (f *Form) take(part *formPart) *Error {
	switch part.name {
	case "model":
		if len(part.content) > MaxModelLength {
			return InvalidRequest("model", modelLengthFault)
		}
		f.Model = string(part.content)
		return checkModel(f.Model)
	case "stream":
		value, ok := formBool(part.content)
		if !ok {
			return InvalidRequest("stream", "stream must be true or false")
		}
		f.Stream, part.content = value, []byte("false")
		if value {
			part.content = []byte("true")
		}
	}
	return nil
}

// formBool reads a boolean as the form parsers of common engines do.
func formBool(value []byte) (v, ok bool) {
	if len(value) > len("false") {
		return false, false
	}
	switch strings.ToLower(string(value)) {
	case "true", "1", "t", "yes", "y", "on":
		return true, true
	case "false", "0", "f", "no", "n", "off", "":
		return false, true
	}
	return false, false
}

// formFault is a fault of the form as a whole.
func formFault(fault string) *Error {
	return InvalidRequest("", "The multipart form is malformed: "+fault+".")
}

// partFault is a fault of one part, of which name is empty where it could not be read.
func partFault(ordinal int, name, fault string) *Error {
	which, param := "", name
	if name != "" {
		which = fmt.Sprintf(" (%q)", name)
	}
	if base, _ := cutIndices(name); routes(foldName(base)) {
		param = foldName(base)
	}
	return InvalidRequest(param, fmt.Sprintf("Part %d%s of the multipart form is refused: %s.", ordinal, which, fault))
}
