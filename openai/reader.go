package openai

import (
	"fmt"
	"slices"
	"strconv"
)

// Path says where in a request a value stands. nil is the request itself. A Path is made while a request is read and
// written out only where there is something to complain of.
type Path struct {
	up    *Path
	name  string // or empty: an element
	index int
}

// Member returns the path of an object's member.
func (p *Path) Member(name string) *Path { return &Path{up: p, name: name} }

// Element returns the path of an array's element.
func (p *Path) Element(i int) *Path { return &Path{up: p, index: i} }

// append writes the path: messages[0].content, or with dots messages.0.content.
func (p *Path) append(dst []byte, dots bool) []byte {
	if p == nil {
		return dst
	}
	dst = p.up.append(dst, dots)
	if p.name == "" && !dots {
		return append(strconv.AppendInt(append(dst, '['), int64(p.index), 10), ']')
	}
	if p.up != nil {
		dst = append(dst, '.')
	}
	if p.name == "" {
		return strconv.AppendInt(dst, int64(p.index), 10)
	}
	return append(dst, excerpt(p.name)...)
}

// RequestReader reads a request's members for a family's parser. It keeps the first fault; what is read after that means
// nothing, so that a parser looks once, at its end. The zero value is ready.
type RequestReader struct {
	// Err is the first fault, nil if there was none.
	Err *Error
	// Dots is set where the family writes messages.0.content and not messages[0].content.
	Dots bool
}

// maxMembers bounds the members of an object that has names of its own: no family comes near it. Objects with the
// client's own names (schemas, arguments) are not walked.
const maxMembers = 64

// Write returns the path as the family writes it.
func (r *RequestReader) Write(p *Path) string { return string(p.append(nil, r.Dots)) }

// Fail keeps the fault that the value at p has. The message begins with the path: two families have no other place
// for it.
func (r *RequestReader) Fail(p *Path, format string, args ...any) {
	if r.Err != nil {
		return
	}
	at := r.Write(p)
	message := fmt.Sprintf(format, args...)
	if at != "" {
		message = at + ": " + message
	}
	r.Err = InvalidRequest(at, message)
}

// Object calls take for each member of the object at p that is not null. take returns false for a name that the object
// does not have here. A name that stands there twice is a fault: readers differ in which of two they take.
func (r *RequestReader) Object(p *Path, v Value, take func(name string, v Value) bool) {
	if !v.Is('{') {
		r.Fail(p, "must be an object")
		return
	}
	var seen []string
	for name, val := range v.Members() {
		switch {
		case r.Err != nil:
			return
		case slices.Contains(seen, name):
			r.Fail(p.Member(name), "appears more than once")
		case len(seen) == maxMembers:
			r.Fail(p, "has more than %d members", maxMembers)
		case !val.Absent() && !take(name, val):
			r.Fail(p.Member(name), "is not supported here")
		}
		seen = append(seen, name)
	}
}

// Array calls take for each element of the array at p. More than limit elements are a fault.
func (r *RequestReader) Array(p *Path, v Value, limit int, take func(p *Path, v Value)) {
	if !v.Is('[') {
		r.Fail(p, "must be an array")
		return
	}
	for i, val := range v.Elements() {
		if i == limit {
			r.Fail(p, "has more than %d elements", limit)
		}
		if r.Err != nil {
			return
		}
		take(p.Element(i), val)
	}
}

// String reads the string that is the member name of the object at p.
func (r *RequestReader) String(p *Path, name string, v Value) string {
	if !v.Is('"') {
		r.Fail(p.Member(name), "must be a string")
	}
	return v.Text()
}

// Bool reads a boolean member.
func (r *RequestReader) Bool(p *Path, name string, v Value) bool {
	b, ok := v.Bool()
	if !ok {
		r.Fail(p.Member(name), "must be true or false")
	}
	return b
}

// Int reads an integer member.
func (r *RequestReader) Int(p *Path, name string, v Value) int64 {
	n, ok := v.Int()
	if !ok {
		r.Fail(p.Member(name), "must be an integer")
	}
	return n
}

// Float reads a member that is a number.
func (r *RequestReader) Float(p *Path, name string, v Value) float64 {
	f, ok := v.Float()
	if !ok {
		r.Fail(p.Member(name), "must be a number")
	}
	return f
}

// Raw reads a member that is an object of the client's own names, as it stands. The bytes are a copy.
func (r *RequestReader) Raw(p *Path, name string, v Value) []byte {
	if !v.Is('{') {
		r.Fail(p.Member(name), "must be an object")
	}
	return slices.Clone([]byte(v))
}

// Strings reads a member that is an array of strings, at most limit.
func (r *RequestReader) Strings(p *Path, name string, v Value, limit int) (list []string) {
	r.Array(p.Member(name), v, limit, func(p *Path, v Value) {
		if !v.Is('"') {
			r.Fail(p, "must be a string")
		}
		list = append(list, v.Text())
	})
	return list
}
