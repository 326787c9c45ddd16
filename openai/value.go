package openai

import (
	"iter"
	"math"
	"strconv"
)

// Value is one JSON value of a body that [ParseEnvelope] has found well-formed; it is a part of that body and nothing
// checks it again. nil is a member that is not there.
type Value []byte

// Absent reports whether the member is not there or null: requests mean the same by both.
func (v Value) Absent() bool { return len(v) == 0 || v[0] == 'n' }

// Is reports whether the value begins as this kind does: '{', '[', '"', 't', 'f'.
func (v Value) Is(kind byte) bool { return is(v, kind) }

// Text returns what a string means, empty for any other value.
func (v Value) Text() string { return text(v) }

// Bool returns a boolean; ok is false for any other value.
func (v Value) Bool() (b, ok bool) { return v.Is('t'), v.Is('t') || v.Is('f') }

// Float returns a number that a float64 can hold; ok is false for any other value.
func (v Value) Float() (f float64, ok bool) {
	if len(v) == 0 || v[0] != '-' && v[0]-'0' > 9 {
		return 0, false
	}
	f, err := strconv.ParseFloat(string(v), 64)
	return f, err == nil
}

// Int returns an integer, also one that is written with a fraction of zeros or an exponent, as some encoders do; ok is
// false for any other value and for a number that an int64 can't hold exactly.
func (v Value) Int() (n int64, ok bool) {
	if n, err := strconv.ParseInt(string(v), 10, 64); err == nil {
		return n, true
	}
	const exact = 1 << 53 // beyond it a float64 has no odd numbers
	f, ok := v.Float()
	if !ok || math.Trunc(f) != f || math.Abs(f) > exact {
		return 0, false
	}
	return int64(f), true
}

// Members walks an object's members in order, with their names decoded; of any other value it is empty.
func (v Value) Members() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		for m := objectMembers(v); m.next(); {
			if !yield(string(appendUnescaped(nil, m.key)), m.val) {
				return
			}
		}
	}
}

// Elements walks an array's elements with their indexes; of any other value it is empty.
func (v Value) Elements() iter.Seq2[int, Value] {
	return func(yield func(int, Value) bool) {
		i := 0
		for e := arrayElements(v); e.next(); i++ {
			if !yield(i, e.val) {
				return
			}
		}
	}
}

// Empty reports whether the value is absent or says nothing: "", [], {}, 0 or false.
func (v Value) Empty() bool {
	switch {
	case v.Absent(), v.Is('f'), string(v) == `""`:
		return true
	case v.Is('['):
		for range v.Elements() {
			return false
		}
		return true
	case v.Is('{'):
		for range v.Members() {
			return false
		}
		return true
	}
	f, ok := v.Float()
	return ok && f == 0
}

// AppendString appends s as a JSON string. Invalid UTF-8 becomes U+FFFD, and the ends of lines of Unicode are
// escaped.
func AppendString(dst []byte, s string) []byte { return appendString(dst, s) }

// IsObject reports whether b is exactly one well-formed JSON object, with white space around it at most.
func IsObject[T ~string | ~[]byte](b T) bool {
	data := []byte(b)
	for i := range data {
		switch data[i] {
		case ' ', '\t', '\r', '\n':
			continue
		}
		return data[i] == '{' && wellFormed(data)
	}
	return false
}
