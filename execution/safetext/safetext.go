// Package safetext makes text of strangers (clients, Nodes, providers) fit to be repeated: in an answer, a line of a log, an export,
// a terminal. Every boundary at which such text leaves uses it, so that none of them has rules of its own. Nothing here knows a
// secret: a key is found by its shape.
package safetext

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Unfit reports whether a character must not be repeated as it is: controls (C0, DEL, C1) forge lines and move cursors, format
// characters (Cf: bidirectional ones, the byte order mark) hide what is beside them, and two more end lines for some readers.
func Unfit(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029'
}

// Escape returns text with each unfit character and each byte that is not UTF-8 as \uXXXX. It returns the text itself where there is
// none.
func Escape(text string) string {
	if plain(text) {
		return text
	}
	return string(appendEscaped(nil, text, ""))
}

// AppendEscaped appends a piece of JSON or of a log: as Escape does, but line ends and tabs stay. JSON stays the same JSON, as such
// characters occur in its strings alone.
func AppendEscaped(dst, line []byte) []byte {
	if isASCII(line) {
		return append(dst, line...)
	}
	return appendEscaped(dst, string(line), "\n\t")
}

// AppendLine appends a piece of a log or of JSON as AppendEscaped does, with what is shaped like a key masked.
func AppendLine(dst, line []byte) []byte {
	from, marked := len(dst), false
	for i, c := range line { // nearly every line ends this loop: it is all that they cost
		switch lineClass[c] {
		case rare:
			dst = AppendEscaped(dst, line)
			maskIn(dst[from:])
			return dst
		case markEnd:
			marked = marked || i > 0 && beforeEnd[line[i-1]]
		}
	}
	dst = append(dst, line...)
	if marked {
		maskIn(dst[from:])
	}
	return dst
}

// MaskKeys returns text in which asterisks hide what is shaped like a key: of ours, or of a provider. It returns the text itself where
// there is none.
func MaskKeys(text string) string {
	if !strings.ContainsAny(text, "-_") {
		return text
	}
	b := []byte(text)
	if !maskIn(b) {
		return text
	}
	return string(b)
}

// Classes of bytes in a line.
const (
	usual   = iota
	rare    // perhaps to be escaped
	markEnd // a mark may end with it
)

var lineClass = func() (class [256]uint8) {
	for c := range class {
		switch {
		case c == '-' || c == '_':
			class[c] = markEnd
		case c > '~' || c < ' ' && c != '\n' && c != '\t':
			class[c] = rare
		}
	}
	return class
}()

// plain reports whether Escape changes nothing.
func plain(text string) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' {
			return utf8.ValidString(text) && !strings.ContainsFunc(text, Unfit)
		}
	}
	return true
}

// isASCII reports whether a line has nothing to be escaped and nothing that must be looked at.
func isASCII(line []byte) bool {
	for _, c := range line {
		if c > '~' || c < ' ' && c != '\n' && c != '\t' {
			return false
		}
	}
	return true
}

// appendEscaped appends text, escaped but for the characters of kept.
func appendEscaped(dst []byte, text, kept string) []byte {
	for i, r := range text {
		_, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			dst = append(dst, `\ufffd`...)
		case !Unfit(r) || strings.ContainsRune(kept, r):
			dst = utf8.AppendRune(dst, r)
		case r > 0xffff: // as JSON writes it
			r -= 0x10000
			dst = fmt.Appendf(dst, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			dst = fmt.Appendf(dst, `\u%04x`, r)
		}
	}
	return dst
}

// mark is how a kind of key begins, in lower case, and how many characters of a key must follow at least: names that begin alike
// are shorter.
type mark struct {
	text string
	most int  // of what follows, that is no key
	word bool // nothing of a word may be before it
}

// marks end with a hyphen or an underscore each. The first is that of our tokens, whose public id may be shown behind it.
var marks = []mark{
	{"-iop_", 11, false},
	{"sk-", 15, true}, {"sk_", 15, true}, {"gsk_", 15, true}, {"hf_", 15, true}, {"xai-", 15, true}, {"ghp_", 15, true}, {"nvapi-", 15, true}, {"pplx-", 15, true},
}

// beforeEnd are the characters that come before the last one of a mark: log lines have many hyphens and underscores.
var beforeEnd = func() (set [256]bool) {
	for _, m := range marks {
		c := m.text[len(m.text)-2]
		set[c], set[c&^0x20] = true, true
	}
	return set
}()

// maskIn hides what follows a mark, and reports whether there was any.
func maskIn(b []byte) (found bool) {
	for i := 1; i < len(b); i++ {
		if b[i] != '-' && b[i] != '_' || !beforeEnd[b[i-1]] {
			continue
		}
		for m := range marks {
			m, end := &marks[m], i+1
			if !m.endsAt(b, end) || m.word && end+4 <= len(b) && strings.EqualFold(string(b[end:end+4]), "iop_") {
				continue // of ours, which end later
			}
			for end < len(b) && inKey(b[end]) {
				end++
			}
			if end-i-1 <= m.most {
				continue
			}
			for j := i + 1; j < end; j++ {
				b[j] = '*'
			}
			found, i = true, end
			break
		}
	}
	return found
}

// endsAt reports whether the mark is in b and ends there.
func (m *mark) endsAt(b []byte, end int) bool {
	begin := end - len(m.text)
	if begin < 0 || b[end-1] != m.text[len(m.text)-1] {
		return false
	}
	for i := range len(m.text) {
		if c := b[begin+i]; c != m.text[i] && (c < 'A' || c > 'Z' || c|0x20 != m.text[i]) {
			return false
		}
	}
	return !m.word || begin == 0 || !isAlphanumeric(b[begin-1])
}

func isAlphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z'
}

func inKey(c byte) bool { return isAlphanumeric(c) || c == '-' || c == '_' }
