package nodeagent

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"slices"
	"strings"
)

// needleSet is what is looked for in a provider's answer: a credential, and the forms in which one that is echoed may
// come. It is looked for in the answer as it is, and in what the answer's escapes stand for (escapes.go). No needle holds
// the end of a line, so none reaches over the end of an event.
//
// The search is that of Wu and Manber: a window as long as the shortest needle moves over the text, and its last two bytes
// say how far it may move on. Most texts have few pairs of bytes that a credential has, so most bytes are never read.
type needleSet struct {
	all      [][]byte // the credential itself first
	longest  int
	shortest int              // no more than maxWindow
	shift    [shiftSize]uint8 // by pairIndex; 0: a needle may begin where the window does
	in       [256]bool        // the bytes that occur in a needle
	first    [256]bool        // the bytes with which one begins
	blank    byte             // what hides a hit; in no needle, so that hiding one never makes another
	telling  int              // how many bytes of a needle's beginning tell nothing worth hiding
}

// A text may end with the first letters of a credential by chance: "s" as of "sk-". That many of a credential's bytes, and
// at most this part of it, may be told.
const (
	maxTelling  = 3
	tellingPart = 8
)

const (
	shiftSize = 1 << 12
	maxWindow = 256 // so that a shift is a byte
)

// pairIndex is the place of two bytes in needleSet.shift. Different pairs may share one, which makes shifts shorter.
func pairIndex(a, b byte) int { return (int(a)<<4 ^ int(b)) & (shiftSize - 1) }

// minEncoded is the length from which an encoded form is looked for. A shorter one stands in any text by chance.
const minEncoded = 8

func newNeedleSet(credential []byte) *needleSet {
	n := &needleSet{blank: '*', telling: min(maxTelling, len(credential)/tellingPart)}
	n.add(credential)
	for _, form := range encodedForms(credential) {
		if len(form) < minEncoded || !n.add(form) {
			clear(form) // nothing else would
		}
	}
	if n.in['*'] {
		n.blank = ' '
	}
	n.prepare()
	return n
}

// prepare fills the table of shifts.
func (n *needleSet) prepare() {
	n.shortest = maxWindow
	for _, needle := range n.all {
		n.shortest = min(n.shortest, len(needle))
	}
	for i := range n.shift {
		n.shift[i] = uint8(max(n.shortest-1, 1))
	}
	for _, needle := range n.all {
		for last := 1; last < n.shortest; last++ {
			at := &n.shift[pairIndex(needle[last-1], needle[last])]
			*at = min(*at, uint8(n.shortest-1-last))
		}
	}
}

// add reports whether the needle is new: then it is the set's own.
func (n *needleSet) add(needle []byte) bool {
	if slices.ContainsFunc(n.all, func(known []byte) bool { return bytes.Equal(known, needle) }) {
		return false
	}
	n.all = append(n.all, needle)
	n.longest = max(n.longest, len(needle))
	for _, c := range needle {
		n.in[c] = true
	}
	n.first[needle[0]] = true
	return true
}

// Making a Replacer costs far more than using it, and a lease brings a credential of its own.
var (
	unescapeMarks = strings.NewReplacer("%21", "!", "%27", "'", "%28", "(", "%29", ")", "%2A", "*")
	quote         = strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	htmlQuote     = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "<", `\u003c`, ">", `\u003e`, "&", `\u0026`)
)

// encodedForms are the credential in hex, in UTF-16, in base64, as a part of a URL and as a part of a JSON string. The
// last two are found by their escapes, too, but for a credential that holds what reads as an escape itself. Forms that are
// equal to each other come more than once.
func encodedForms(credential []byte) [][]byte {
	lower := hex.AppendEncode(nil, credential)
	forms := [][]byte{lower, bytes.ToUpper(lower), wide(credential)}
	for before := range 3 {
		forms = append(forms, base64Core(base64.RawStdEncoding, credential, before), base64Core(base64.RawURLEncoding, credential, before))
	}
	plain := string(credential)
	component := unescapeMarks.Replace(url.QueryEscape(plain))
	for _, escaped := range []string{url.QueryEscape(plain), url.PathEscape(plain), component} {
		forms = append(forms, []byte(escaped), lowerEscapes(escaped))
	}
	for _, s := range []string{quote.Replace(plain), htmlQuote.Replace(plain)} {
		forms = append(forms, []byte(s), []byte(strings.ReplaceAll(s, "/", `\/`)))
	}
	return forms
}

// wide is what is the same in UTF-16 of either byte order.
func wide(credential []byte) []byte {
	b := make([]byte, 2*len(credential)-1)
	for i, c := range credential {
		b[2*i] = c
	}
	return b
}

// base64Core is what is the same in every base64 text in which the credential begins after before bytes, modulo 3:
// the digits at both ends also depend on what stands beside it.
func base64Core(encoding *base64.Encoding, credential []byte, before int) []byte {
	padded := append(make([]byte, before, before+len(credential)), credential...)
	digits := encoding.AppendEncode(nil, padded)
	clear(padded)
	first := []int{0, 2, 3}[before]
	last := (before + len(credential)) * 8 / 6
	first = min(first, last)
	clear(digits[:first]) // which hold some bits of the credential, too
	clear(digits[last:])
	return digits[first:last]
}

// lowerEscapes writes the escapes of a URL in lower case: both are right.
func lowerEscapes(s string) []byte {
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i+1:], bytes.ToLower(b[i+1:i+3]))
		}
	}
	return b
}

// wipe overwrites the needles. The set is of no use after it.
func (n *needleSet) wipe() {
	for _, needle := range n.all {
		clear(needle)
	}
	n.all = nil
	clear(n.shift[:])
	clear(n.in[:])
	clear(n.first[:])
}

// overlap returns the length of the longest end of p that is a beginning of a needle and not all of it.
func (n *needleSet) overlap(p []byte) int {
	start := max(0, len(p)-n.longest+1)
	for i := len(p) - 1; i >= start; i-- {
		if !n.in[p[i]] {
			start = i + 1
			break
		}
	}
	for ; start < len(p); start++ {
		if tail := p[start:]; n.first[tail[0]] && n.begins(tail) {
			return len(tail)
		}
	}
	return 0
}

// begins reports whether a needle begins with tail and goes on.
func (n *needleSet) begins(tail []byte) bool {
	for _, needle := range n.all {
		if needle[0] == tail[0] && len(tail) < len(needle) && bytes.HasPrefix(needle, tail) {
			return true
		}
	}
	return false
}

// span is a part of a text.
type span struct{ begin, end int }

// find appends where needles are in p, in order, those that touch each other as one.
func (n *needleSet) find(spans []span, p []byte) []span {
	known := len(spans)
	window := n.shortest
	if window < 2 { // a credential of one byte
		window = 1
	}
	for end := window; end <= len(p); {
		if window > 1 {
			if shift := n.shift[pairIndex(p[end-2], p[end-1])]; shift > 0 {
				end += int(shift)
				continue
			}
		}
		begin := end - window
		if size := n.at(p[begin:]); size > 0 {
			if last := len(spans) - 1; last >= known && begin <= spans[last].end {
				spans[last].end = max(spans[last].end, begin+size)
			} else {
				spans = append(spans, span{begin, begin + size})
			}
		}
		end++
	}
	return spans
}

// at returns the length of the longest needle with which p begins, 0 if there is none.
func (n *needleSet) at(p []byte) (size int) {
	for _, needle := range n.all {
		if needle[0] == p[0] && len(needle) > size && bytes.HasPrefix(p, needle) {
			size = len(needle)
		}
	}
	return size
}

// mask returns text with every needle hidden.
func (n *needleSet) mask(text string) string {
	var l look
	b := []byte(text)
	l.search(n, b)
	defer l.wipe()
	if len(l.hits) == 0 {
		return text
	}
	for _, hit := range l.hits {
		n.hide(b[hit.begin:hit.end])
	}
	return string(b)
}

func (n *needleSet) hide(p []byte) {
	for i := range p {
		p[i] = n.blank
	}
}

// scrubber hides a credential where a provider echoes it in an answer. It writes as many asterisks as it hides bytes,
// so that lengths and event borders stay. What may be the beginning of a needle at the end of a chunk waits for the
// next chunk; that is never the end of an event, and less than the longest needle with all of it escaped (maxEscaped).
type scrubber struct {
	needles *needleSet
	tail
	buf  []byte
	look look
}

// tail is the end of a text that goes on, as far as a needle may have begun in it.
type tail struct {
	held    []byte // as it came
	covered int    // how much of held, from its start, belongs to a needle that began before it
	given   int    // how much of held, from its start, has gone on already
}

// push returns what may go on of what has arrived: p itself, which is changed, or a buffer that is valid until the next
// call.
func (s *scrubber) push(p []byte) []byte {
	if len(s.held) > 0 {
		s.buf = append(append(s.buf[:0], s.held...), p...)
		p = s.buf
	}
	keep := s.look.search(s.needles, p)
	if len(s.look.hits) == 0 && keep == 0 && len(s.held) == 0 {
		return p
	}
	return s.split(p, len(p)-keep)
}

// split hides what was found, holds p from the border on, and returns what is before it and has not gone on.
func (s *scrubber) split(p []byte, border int) []byte {
	s.held = append(s.held[:0], p[border:]...)
	covered := s.covered
	for _, hit := range s.look.hits {
		if hit.begin < border { // those behind it will be found again
			s.needles.hide(p[hit.begin:min(hit.end, border)])
			covered = max(covered, hit.end)
		}
	}
	s.needles.hide(p[:min(s.covered, border)])
	s.covered = max(0, covered-border)
	clear(p[border:])
	given := min(s.given, border)
	s.given -= given
	return p[given:border]
}

// finish returns what was held back: the answer is over, so what began there is no needle.
func (s *scrubber) finish() []byte {
	s.buf = append(s.buf[:0], s.held...)
	s.look.search(s.needles, s.buf)
	return s.split(s.buf, len(s.buf))
}

// release returns what was held back, which is remembered nevertheless: if it was the beginning of a needle, the rest of
// that will be hidden. It returns nothing if that would tell more of a needle than may be told.
func (s *scrubber) release() []byte {
	if len(s.held) > s.needles.telling || s.given == len(s.held) {
		return nil
	}
	s.buf = append(s.buf[:0], s.held...)
	s.needles.hide(s.buf[:s.covered])
	given := s.given
	s.given = len(s.held)
	return s.buf[given:]
}

// wipe overwrites what is held of an answer.
func (s *scrubber) wipe() {
	s.tail.wipe()
	s.look.wipe()
	clear(s.buf[:cap(s.buf)])
}

func (t *tail) wipe() { clear(t.held[:cap(t.held)]) }
