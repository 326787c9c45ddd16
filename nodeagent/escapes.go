package nodeagent

import (
	"bytes"
	"html"
	"slices"
	"strings"
)

// This file finds a credential that a provider echoes with some or all of its characters escaped: as JSON and programming
// languages do (\u002D, \x2d, \u{2d}, \U0000002d, \055, \/), as Markdown does (\_), as URLs do (%2d) and as HTML does (&#45; &#x2d; &amp;). The ways
// may be mixed, and one may be inside another: JSON in JSON, a URL in JSON. Each level of escapes is taken away in turn,
// and the needles are looked for in what is left.

// maxLevels is how many escapes may be inside each other. Two is what programs make by themselves.
const maxLevels = 2

// maxEntity bounds a character reference of HTML, both ends included. The longest of ASCII is &VerticalLine;.
const maxEntity = 16

// maxEscaped bounds what one byte of a needle may have become.
const maxEscaped = maxEntity * maxEntity

// look is one search for needles, and its scratch memory.
type look struct {
	hits  []span // in the text that was searched; in no order
	views [maxLevels]view
}

// view is a text without one level of escapes.
type view struct {
	text []byte
	at   []int32 // where each byte of text begins in the text that was searched, and where the last one ends
}

// search finds the needles in p, and returns how many bytes at p's end may be the beginning of one.
func (l *look) search(n *needleSet, p []byte) (keep int) {
	l.hits = n.find(l.hits[:0], p)
	keep = n.overlap(p)
	src, at := p, []int32(nil)
	for level := range l.views {
		if !n.escaped(src) {
			break
		}
		v := &l.views[level]
		v.unescape(src, at)
		known := len(l.hits)
		l.hits = n.find(l.hits, v.text)
		for i, hit := range l.hits[known:] {
			l.hits[known+i] = span{int(v.at[hit.begin]), int(v.at[hit.end])}
		}
		keep = max(keep, len(p)-int(v.at[len(v.text)-n.overlap(v.text)]))
		if level == 0 {
			keep = len(p) - v.borderBefore(len(p)-keep)
		}
		src, at = v.text, v.at
	}
	return keep
}

// borderBefore is the last place up to i that is inside no escape: what waits is read from there again.
func (v *view) borderBefore(i int) int {
	at, found := slices.BinarySearch(v.at, int32(i))
	if !found {
		at--
	}
	return int(v.at[at])
}

// wipe overwrites what may hold a credential.
func (l *look) wipe() {
	for i := range l.views {
		clear(l.views[i].text[:cap(l.views[i].text)])
	}
}

// escaped reports whether p has escapes that may be a part of a needle, or what may be one's beginning at its end.
func (n *needleSet) escaped(p []byte) bool {
	for _, mark := range [...]byte{'\\', '%', '&'} {
		for i := 0; ; {
			next := bytes.IndexByte(p[i:], mark)
			if next < 0 {
				break
			}
			i += next
			c, size := escapeAt(p[i:])
			if size < 0 || size > 0 && (n.in[c] || isMark(c)) {
				return true
			}
			i += max(size, 1)
		}
	}
	return false
}

func isMark(c byte) bool { return c == '\\' || c == '%' || c == '&' }

// unescape makes v the text that src is without its escapes. What may be the beginning of one at its end is left out. at says
// where the bytes of src begin in the text that is searched; nil if src is that text.
func (v *view) unescape(src []byte, at []int32) {
	v.text, v.at = v.text[:0], v.at[:0]
	place := func(i int) int32 {
		if at == nil {
			return int32(i)
		}
		return at[i]
	}
	i := 0
	for i < len(src) {
		c, size := src[i], 1
		if isMark(c) {
			decoded, taken := escapeAt(src[i:])
			if taken < 0 {
				break
			}
			if taken > 0 {
				c, size = decoded, taken
			}
		}
		v.text = append(v.text, c)
		v.at = append(v.at, place(i))
		i += size
	}
	v.at = append(v.at, place(i))
}

// escapeAt reads the escape with which p begins: the character and the escape's length; a length of 0: it is none; -1: it
// may become one when the text goes on.
func escapeAt(p []byte) (c byte, size int) {
	if len(p) < 2 {
		return 0, -1
	}
	switch {
	case p[0] == '%':
		return hexEscape(p, 1)
	case p[0] == '&':
		return entity(p)
	case p[1] == 'x':
		return hexEscape(p, 2)
	case p[1] == '0' || p[1] == '1':
		return octalEscape(p)
	case p[1] == 'U':
		const zeros = `\U000000`
		if rest := p[:min(len(p), len(zeros))]; !strings.HasPrefix(zeros, string(rest)) {
			return 0, 0
		}
		return hexEscape(p, len(zeros))
	case p[1] == 'u' && len(p) > 2 && p[2] == '{':
		return bracedEscape(p)
	case p[1] == 'u':
		const zeros = `\u00`
		if rest := p[:min(len(p), len(zeros))]; !strings.HasPrefix(zeros, string(rest)) {
			return 0, 0
		}
		return hexEscape(p, len(zeros))
	case isPunctuation(p[1]):
		return p[1], 2
	}
	return 0, 0
}

// hexEscape reads two digits after so many bytes of p. Beyond ASCII they are none of a credential.
func hexEscape(p []byte, after int) (c byte, size int) {
	for i := after; i < after+2; i++ {
		if i >= len(p) {
			return 0, -1
		}
		digit, ok := hexDigit(p[i])
		if !ok {
			return 0, 0
		}
		c = c<<4 | digit
	}
	if c >= 0x80 {
		return 0, 0
	}
	return c, after + 2
}

// octalEscape reads three digits after the backslash.
func octalEscape(p []byte) (c byte, size int) {
	for size = 1; size < 4; size++ {
		if size >= len(p) {
			return 0, -1
		}
		if p[size] < '0' || p[size] > '7' || size == 1 && p[size] > '1' {
			return 0, 0
		}
		c = c<<3 | (p[size] - '0')
	}
	return c, size
}

// bracedEscape reads \u{2d}, of up to six digits.
func bracedEscape(p []byte) (c byte, size int) {
	const before, most = len(`\u{`), 6
	value := 0
	for i := before; i <= before+most; i++ {
		if i >= len(p) {
			return 0, -1
		}
		if p[i] == '}' && i > before && value < 0x80 {
			return byte(value), i + 1
		}
		digit, ok := hexDigit(p[i])
		if !ok {
			return 0, 0
		}
		value = value<<4 | int(digit)
	}
	return 0, 0
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		return c | 0x20 - 'a' + 10, true
	}
	return 0, false
}

// entity reads a character reference of HTML.
func entity(p []byte) (c byte, size int) {
	for i := 1; i < maxEntity; i++ {
		switch {
		case i >= len(p):
			return 0, -1
		case p[i] == ';':
			plain := html.UnescapeString(string(p[:i+1]))
			if len(plain) == 1 {
				return plain[0], i + 1
			}
			return 0, 0
		case p[i] != '#' && !isAlphanumeric(p[i]):
			return 0, 0
		}
	}
	return 0, 0
}

func isAlphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}

func isPunctuation(c byte) bool { return c > ' ' && c < 0x7f && !isAlphanumeric(c) }
