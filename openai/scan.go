package openai

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth is how deep arrays and objects may nest. No request of the API comes near it; without a limit a few
// megabytes of '[' cost a decoder hundreds.
const maxDepth = 64

// fault is why a scan failed. The zero value means that it did not.
type fault uint8

const (
	faultNone fault = iota
	faultSyntax
	faultEnd
	faultDepth
	faultName
	faultPrototype
)

// scanner walks one JSON text (RFC 8259) without decoding it. Its methods take the offset where something begins and
// return the offset after it, or -1 after having noted what is wrong and where. It checks the grammar exactly, but not
// that strings hold valid UTF-8: requests are checked for that as a whole.
type scanner struct {
	b       []byte
	at      int   // offset of the fault
	fault   fault // faultNone while all is well
	escaped bool  // the string scanned last holds an escape
	names   bool  // names of members must be Unicode without U+0000, once their escapes are decoded
}

func (s *scanner) fail(f fault, at int) int {
	s.fault, s.at = f, at
	return -1
}

// unexpected notes the byte at i, or the end of the text, as the fault.
func (s *scanner) unexpected(i int) int {
	if i >= len(s.b) {
		return s.fail(faultEnd, len(s.b))
	}
	return s.fail(faultSyntax, i)
}

// space skips white space.
func (s *scanner) space(i int) int {
	b := s.b
	for i < len(b) && b[i] <= ' ' && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// value skips the value that begins at i; depth is the number of arrays and objects around it.
func (s *scanner) value(i, depth int) int {
	if i >= len(s.b) {
		return s.unexpected(i)
	}
	switch c := s.b[i]; {
	case c == '"':
		return s.str(i)
	case c == '{':
		return s.object(i, depth+1)
	case c == '[':
		return s.array(i, depth+1)
	case c == '-' || c-'0' <= 9:
		return s.number(i)
	case c == 't':
		return s.word(i, "true")
	case c == 'f':
		return s.word(i, "false")
	case c == 'n':
		return s.word(i, "null")
	}
	return s.unexpected(i)
}

func (s *scanner) word(i int, w string) int {
	for k := range len(w) {
		if i+k >= len(s.b) || s.b[i+k] != w[k] {
			return s.unexpected(i + k)
		}
	}
	return i + len(w)
}

func (s *scanner) object(i, depth int) int {
	if depth > maxDepth {
		return s.fail(faultDepth, i)
	}
	i = s.space(i + 1)
	if i < len(s.b) && s.b[i] == '}' {
		return i + 1
	}
	for {
		if _, i = s.key(i); i < 0 {
			return -1
		}
		if i = s.value(i, depth); i < 0 {
			return -1
		}
		var done bool
		if i, done = s.next(i, '}'); done || i < 0 {
			return i
		}
	}
}

func (s *scanner) array(i, depth int) int {
	if depth > maxDepth {
		return s.fail(faultDepth, i)
	}
	i = s.space(i + 1)
	if i < len(s.b) && s.b[i] == ']' {
		return i + 1
	}
	for {
		if i = s.value(i, depth); i < 0 {
			return -1
		}
		var done bool
		if i, done = s.next(i, ']'); done || i < 0 {
			return i
		}
	}
}

// key scans a member's name and the colon after it. end is the offset after the name's closing quote, i the offset of
// the value.
func (s *scanner) key(at int) (end, i int) {
	if at >= len(s.b) || s.b[at] != '"' {
		return -1, s.unexpected(at)
	}
	if end = s.str(at); end < 0 {
		return -1, -1
	}
	if s.escaped && s.names && !soundName(s.b[at+1:end-1]) {
		return -1, s.fail(faultName, at)
	}
	i = end
	if i >= len(s.b) || s.b[i] != ':' { // the usual form has no space here
		if i = s.space(i); i >= len(s.b) || s.b[i] != ':' {
			return -1, s.unexpected(i)
		}
	}
	return end, s.space(i + 1)
}

// soundName reports whether a name with escapes means the same to all decoders. Of half a surrogate pair some make U+FFFD,
// some keep it and some drop it, and at U+0000 a string of C ends.
func soundName(raw []byte) bool {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return true
		}
		if raw[i+1] != 'u' {
			raw = raw[i+2:]
			continue
		}
		r := hex4(raw[i+2:])
		raw = raw[i+6:]
		switch {
		case r == 0:
			return false
		case !utf16.IsSurrogate(r):
		case len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' || utf16.DecodeRune(r, hex4(raw[2:])) == utf8.RuneError:
			return false
		default:
			raw = raw[6:]
		}
	}
}

// next goes on after a value: over a comma to the next one, or over the closing byte (done).
func (s *scanner) next(at int, closing byte) (i int, done bool) {
	i = s.space(at)
	if i < len(s.b) {
		switch s.b[i] {
		case ',':
			return s.space(i + 1), false
		case closing:
			return i + 1, true
		}
	}
	return s.unexpected(i), false
}

// str skips the string whose opening quote is at i.
func (s *scanner) str(i int) int {
	s.escaped = false
	for i++; ; {
		if i = plain(s.b, i); i >= len(s.b) {
			return s.unexpected(i)
		}
		switch s.b[i] {
		case '"':
			return i + 1
		case '\\':
			s.escaped = true
			if i = s.escape(i); i < 0 {
				return -1
			}
		default: // a bare control character
			return s.unexpected(i)
		}
	}
}

func (s *scanner) escape(i int) int {
	if i+1 >= len(s.b) {
		return s.unexpected(i + 1)
	}
	switch s.b[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2
	case 'u':
		for k := i + 2; k < i+6; k++ {
			if k >= len(s.b) || unhex(s.b[k]) > 15 {
				return s.unexpected(k)
			}
		}
		return i + 6
	}
	return s.unexpected(i + 1)
}

// plain returns the offset of the first byte at or after i that is not plain inside a string: a quote, a backslash
// or a control character. Eight bytes at a time: request bodies are mostly long strings (images in base64).
func plain(b []byte, i int) int {
	const (
		ones  = 0x0101010101010101
		highs = 0x8080808080808080
	)
	for ; i+8 <= len(b); i += 8 {
		x := binary.LittleEndian.Uint64(b[i:])
		quote, slash := x^('"'*ones), x^('\\'*ones)
		// Each term has a high bit where its byte matches. A borrow can make a false match only above a true one, so
		// the lowest is exact.
		if m := ((quote-ones)&^quote | (slash-ones)&^slash | (x-' '*ones)&^x) & highs; m != 0 {
			return i + bits.TrailingZeros64(m)>>3
		}
	}
	for i < len(b) && b[i] != '"' && b[i] != '\\' && b[i] >= ' ' {
		i++
	}
	return i
}

// number skips a number: -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?
func (s *scanner) number(i int) int {
	b := s.b
	if b[i] == '-' {
		i++
	}
	switch {
	case i < len(b) && b[i] == '0':
		i++
	case i < len(b) && b[i]-'1' <= 8:
		i = digits(b, i)
	default:
		return s.unexpected(i)
	}
	if i < len(b) && b[i] == '.' {
		j := digits(b, i+1)
		if j == i+1 {
			return s.unexpected(j)
		}
		i = j
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		j := digits(b, i)
		if j == i {
			return s.unexpected(j)
		}
		i = j
	}
	return i
}

func digits(b []byte, i int) int {
	for i < len(b) && b[i]-'0' <= 9 {
		i++
	}
	return i
}

// unhex returns the value of a hexadecimal digit, 255 for any other byte.
func unhex(c byte) byte {
	switch {
	case c-'0' <= 9:
		return c - '0'
	case c-'a' <= 5:
		return c - 'a' + 10
	case c-'A' <= 5:
		return c - 'A' + 10
	}
	return 255
}

// appendUnescaped appends what the inside of a scanned string means. Half a surrogate pair becomes U+FFFD, as it does
// in encoding/json.
func appendUnescaped(dst, raw []byte) []byte {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			return append(dst, raw...)
		}
		dst = append(dst, raw[:i]...)
		c := raw[i+1]
		raw = raw[i+2:]
		switch c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r := hex4(raw)
			raw = raw[4:]
			if utf16.IsSurrogate(r) {
				low := rune(-1)
				if len(raw) >= 6 && raw[0] == '\\' && raw[1] == 'u' {
					low = hex4(raw[2:])
				}
				if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
					raw = raw[6:]
				}
			}
			dst = utf8.AppendRune(dst, r)
		default: // a quote, a slash or a backslash stands for itself
			dst = append(dst, c)
		}
	}
}

func hex4(b []byte) rune {
	return rune(unhex(b[0]))<<12 | rune(unhex(b[1]))<<8 | rune(unhex(b[2]))<<4 | rune(unhex(b[3]))
}

// unquote returns what a scanned string value means. raw includes its quotes.
func unquote(raw []byte) string {
	inside := raw[1 : len(raw)-1]
	if bytes.IndexByte(inside, '\\') < 0 {
		return string(inside)
	}
	return string(appendUnescaped(make([]byte, 0, len(inside)), inside))
}

// wellFormed reports whether b is exactly one JSON value with nothing but white space around it.
func wellFormed(b []byte) bool {
	s := scanner{b: b}
	i := s.value(s.space(0), 0)
	return i >= 0 && s.space(i) == len(b)
}

// members walks the members of one object, in order. Names are compared as they are written: an escaped name is not
// recognised, which is right for what providers send and wrong for what clients send.
type members struct {
	s          scanner
	i          int
	key        []byte // the name's inside
	val        []byte // the value with its quotes or brackets
	first, end bool
}

// objectMembers starts a walk over the object in b, white space before it allowed. On anything else it is empty.
func objectMembers(b []byte) members {
	m := members{s: scanner{b: b}, first: true}
	m.i = m.s.space(0)
	m.end = m.i >= len(b) || b[m.i] != '{'
	return m
}

// next moves to the next member. It returns false at the end of the object and at a fault alike: where it matters, look
// at wellFormed.
func (m *members) next() bool {
	if m.end {
		return false
	}
	s := &m.s
	if m.first {
		m.first = false
		m.i = s.space(m.i + 1)
		if m.i < len(s.b) && s.b[m.i] == '}' {
			m.end = true
			return false
		}
	} else if m.i, m.end = s.next(m.i, '}'); m.end || m.i < 0 {
		m.end = true
		return false
	}
	start := m.i
	end, val := s.key(start)
	if val < 0 {
		m.end = true
		return false
	}
	if m.i = s.value(val, 1); m.i < 0 {
		m.end = true
		return false
	}
	m.key, m.val = s.b[start+1:end-1], s.b[val:m.i]
	return true
}

// elements walks the elements of one array.
type elements struct {
	s          scanner
	i          int
	val        []byte
	first, end bool
}

// arrayElements starts a walk over the array in b. On anything else it is empty.
func arrayElements(b []byte) elements {
	e := elements{s: scanner{b: b}, first: true}
	e.i = e.s.space(0)
	e.end = e.i >= len(b) || b[e.i] != '['
	return e
}

func (e *elements) next() bool {
	if e.end {
		return false
	}
	s := &e.s
	if e.first {
		e.first = false
		e.i = s.space(e.i + 1)
		if e.i < len(s.b) && s.b[e.i] == ']' {
			e.end = true
			return false
		}
	} else if e.i, e.end = s.next(e.i, ']'); e.end || e.i < 0 {
		e.end = true
		return false
	}
	start := e.i
	if e.i = s.value(start, 1); e.i < 0 {
		e.end = true
		return false
	}
	e.val = s.b[start:e.i]
	return true
}

// member returns the value of the first member of this name, nil if there is none.
func member(obj []byte, name string) []byte {
	m := objectMembers(obj)
	for m.next() {
		if string(m.key) == name {
			return m.val
		}
	}
	return nil
}

// is reports whether a scanned value begins as this kind does: '{', '[', '"', 't', 'f', 'n'.
func is(val []byte, kind byte) bool { return len(val) > 0 && val[0] == kind }

// text returns what a scanned string value means, empty if it is none.
func text(val []byte) string {
	if !is(val, '"') {
		return ""
	}
	return unquote(val)
}

// appendString appends s as a JSON string. Invalid UTF-8 becomes U+FFFD. U+0085, U+2028 and U+2029, which JSON allows, are
// escaped: clients that cut a stream into lines by Unicode's rules (Ollama's for Python) would cut the string.
func appendString(dst []byte, s string) []byte {
	return append(appendEscaped(append(dst, '"'), s), '"')
}

// appendEscaped appends the inside of s as a JSON string. It copies runs: most text has nothing to escape.
func appendEscaped(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c < 0x7f && c != '"' && c != '\\' {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				dst = append(append(dst, s[from:i]...), "\uFFFD"...)
				from = i + 1
			}
			if r == '\u0085' || r == '\u2028' || r == '\u2029' {
				dst = append(append(dst, s[from:i]...), '\\', 'u', hex[r>>12], hex[r>>8&15], hex[r>>4&15], hex[r&15])
				from = i + size
			}
			i += size
			continue
		}
		dst = append(dst, s[from:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\t':
			dst = append(dst, '\\', 't')
		case '\r':
			dst = append(dst, '\\', 'r')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		i++
		from = i
	}
	return append(dst, s[from:]...)
}

// appendValue appends a JSON value on one line, so that it can stand in an event stream; null for what is none.
func appendValue(dst, raw []byte) []byte {
	if !wellFormed(raw) {
		return append(dst, "null"...)
	}
	if bytes.IndexByte(raw, '\n') < 0 && bytes.IndexByte(raw, '\r') < 0 {
		return append(dst, raw...)
	}
	var line bytes.Buffer
	if json.Compact(&line, raw) != nil {
		return append(dst, "null"...)
	}
	return append(dst, line.Bytes()...)
}
