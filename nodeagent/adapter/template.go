package adapter

import (
	"strings"
	"unicode/utf8"

	"iop/openai"
)

// Template tells the usual chunk of a stream from the others at a fraction of a parse. A provider's chunks differ in one or two strings
// and in nothing else: once one was parsed and those strings were found, the next is told by comparing what is around
// them. The bytes around are equal and each string still ends where it must, so a match has the same members.
//
// The zero value matches nothing. It is for one goroutine.
type Template struct {
	last  []byte // the chunk that was learned
	parts [maxHoles + 1]part
	n     int // how many parts; 0 while there is nothing
	piece int // which hole holds the piece that is wanted
	text  []byte
}

// part is a piece of the learned chunk: what is between two holes, quotes included.
type part struct{ begin, end int }

const (
	maxHoles = 3
	// maxTemplate is the longest chunk that is remembered: memory per stream.
	maxTemplate = 4 << 10
)

// Learn takes a chunk that was parsed. piece and others are values in it, JSON strings with their quotes, in any order;
// others may differ from chunk to chunk and do not matter. They must be parts of data's memory.
func (t *Template) Learn(data, piece []byte, others ...[]byte) {
	t.n = 0
	if len(data) > maxTemplate || len(others) >= maxHoles {
		return
	}
	holes := append(make([][]byte, 0, maxHoles), others...)
	holes = append(holes, piece)
	sortByPlace(holes)
	t.last = append(t.last[:0], data...)
	from := 0
	for i, hole := range holes {
		at := place(data, hole)
		if at < from || at+len(hole) > len(data) || len(hole) < 2 {
			return
		}
		if place(data, piece) == at {
			t.piece = i
		}
		t.parts[i] = part{from, at + 1} // with the opening quote
		from = at + len(hole) - 1       // from the closing one
	}
	t.parts[len(holes)] = part{from, len(data)}
	t.n = len(holes) + 1
}

// Forget unlearns: nothing matches any more.
func (t *Template) Forget() { t.n = 0 }

// place returns where in data a part of it begins. Both end at the same end of the same memory.
func place(data, value []byte) int { return cap(data) - cap(value) }

func sortByPlace(holes [][]byte) {
	for i := 1; i < len(holes); i++ {
		for j := i; j > 0 && cap(holes[j]) > cap(holes[j-1]); j-- {
			holes[j], holes[j-1] = holes[j-1], holes[j]
		}
	}
}

// Match reports whether data is like the chunk that was learned, and returns its piece: what the string means. It is not
// looked at whether that is UTF-8: whoever writes the event does.
func (t *Template) Match(data []byte) (piece string, ok bool) {
	if t.n == 0 {
		return "", false
	}
	at, begin, end, escaped := 0, 0, 0, false
	for i := range t.n {
		p := t.last[t.parts[i].begin:t.parts[i].end]
		if len(data)-at < len(p) || string(data[at:at+len(p)]) != string(p) {
			return "", false
		}
		at += len(p)
		if i == t.n-1 {
			break
		}
		after, esc := openai.StringEnd(data, at-1)
		if after < 0 {
			return "", false
		}
		if i == t.piece {
			begin, end, escaped = at, after-1, esc
		}
		at = after - 1
	}
	if at != len(data) {
		return "", false
	}
	return t.mean(data[begin:end], escaped), true
}

func (t *Template) mean(inside []byte, escaped bool) string {
	if escaped {
		t.text = openai.AppendText(t.text[:0], inside)
		inside = t.text
	}
	return string(inside)
}

// valid returns s as UTF-8.
func valid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// Text returns what a JSON string means, as valid UTF-8; empty if the value is none.
func Text(value []byte) string { return valid(openai.Text(value)) }
