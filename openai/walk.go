package openai

import (
	"bytes"
	"net/http"

	"iop/execution"
)

// This file lets other packages walk JSON that is not worth a decoder: streams of small documents of a known shape.

// Object walks the members of one JSON object, in order, without decoding them. Names are compared as they are written:
// one with an escape in it is not recognised, which is right for what providers send and wrong for what clients send.
type Object struct{ m members }

// Members starts a walk over an object, white space before it allowed. On anything else it is empty.
func Members(object []byte) Object { return Object{objectMembers(object)} }

// Next goes to the next member. It returns false at the end of the object and at a fault alike: where it matters, look at
// [WellFormed] first.
func (o *Object) Next() bool { return o.m.next() }

// Key returns the member's name as it is written, without its quotes.
func (o *Object) Key() []byte { return o.m.key }

// Value returns the member's value as it is written. It is a part of the object's bytes.
func (o *Object) Value() []byte { return o.m.val }

// Array walks the elements of one JSON array as [Object] does members.
type Array struct{ e elements }

// Elements starts a walk over an array. On anything else it is empty.
func Elements(array []byte) Array { return Array{arrayElements(array)} }

// Next goes to the next element.
func (a *Array) Next() bool { return a.e.next() }

// Value returns the element as it is written.
func (a *Array) Value() []byte { return a.e.val }

// Member returns the value of an object's first member of this name, nil if there is none.
func Member(object []byte, name string) []byte { return member(object, name) }

// WellFormed reports whether b is exactly one JSON value (RFC 8259) with nothing but white space around it.
func WellFormed(b []byte) bool { return wellFormed(b) }

// Text returns what a JSON string means, empty if the value is none. The value must have come from a walk.
func Text(value []byte) string { return text(value) }

// AppendText appends what the inside of a JSON string, the text between its quotes, means.
func AppendText(dst, inside []byte) []byte { return appendUnescaped(dst, inside) }

// StringEnd returns the offset after the closing quote of the JSON string whose opening quote is b[i], and whether there
// is an escape in it; -1 if that is no whole string.
func StringEnd(b []byte, i int) (end int, escaped bool) {
	s := scanner{b: b}
	end = s.str(i)
	return end, s.escaped
}

// MergeUsage updates u with what a usage object of any family says.
func MergeUsage(u execution.Usage, object []byte) execution.Usage { return mergeUsage(u, object) }

// IsError tells the value of an `error` member from null, false and the like.
func IsError(value []byte) bool { return isError(value) }

// ReadFailure reads a provider's error in whichever of the families' shapes it is: an answer's body with its status, or the error
// of a stream with 0, where the status is what the error itself says, if it does. Beside the status it holds the provider's own words
// and none of ours, but for a message where there was none, and the code context_length_exceeded, in whichever words the provider
// said that.
func ReadFailure(status int, body []byte) *execution.Failure {
	said := status
	body = bytes.TrimSpace(body)
	if said == 0 {
		said = statusOf(body)
	}
	e := &Error{Status: said}
	if wellFormed(body) {
		e.read(body)
	} else if plainText(body) {
		e.Message = string(body)
	}
	if e.Message == "" {
		e.Message = providerError(orStatus(said), nil).Message
	}
	if e.isOverflow() {
		e.Code = codeContextLength
	}
	return &execution.Failure{Status: said, Type: cut(e.Type), Code: cut(e.Code), Message: cut(e.Message)}
}

func orStatus(status int) int {
	if status == 0 {
		return http.StatusBadGateway
	}
	return status
}
