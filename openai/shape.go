package openai

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// shape remembers what the last uneventful chunks of a stream looked like. An engine's chunks differ in the text of
// one or two strings and in nothing else, so that most of them are told by comparing what is around those strings, at
// a fraction of the cost of searching them for every key that matters.
//
// It only ever says "the same members as one that was looked at": between the holes all bytes are equal, a hole is the
// inside of a member's string value, and what stands in it now cannot have ended that string early.
type shape struct {
	last   []byte             // the last uneventful payload that was looked at
	parts  [maxHoles + 1]span // of last: what is around the holes
	n      int                // how many parts; 0 while no shape is known
	misses int                // in a row
	text   int                // length of the first hole of what matched last; 0 where no shape was needed
}

const (
	maxHoles = 3
	// maxShape is the longest payload that is remembered: memory per stream.
	maxShape = 1 << 10
	// maxMisses ends the learning on streams whose chunks differ in other ways.
	maxMisses = 8
)

// match reports whether data looks like those that were learned.
func (s *shape) match(data []byte) bool {
	s.text = 0
	if s.n == 0 {
		return len(data) > 0 && string(data) == string(s.last)
	}
	rest := data
	for i := range s.n {
		part := s.last[s.parts[i].start:s.parts[i].end]
		if len(rest) < len(part) || string(rest[:len(part)]) != string(part) {
			return false
		}
		rest = rest[len(part):]
		if i == s.n-1 {
			break
		}
		q := bytes.IndexByte(rest, '"')
		if q < 0 || (q > 0 && rest[q-1] == '\\') {
			return false
		}
		if i == 0 {
			s.text = q
		}
		rest = rest[q:]
	}
	if len(rest) > 0 {
		return false
	}
	s.misses = 0
	return true
}

// tokens is TokensIn for a payload that matched.
func (s *shape) tokens(data []byte) int {
	if s.n == 0 {
		return chunkTokens(data)
	}
	return TokensIn(s.text)
}

// learn takes a payload that was looked at and has nothing of interest in it.
func (s *shape) learn(data []byte) {
	if s.misses >= maxMisses || len(data) > maxShape {
		return
	}
	s.misses++
	s.n = 0
	if !s.compare(data) {
		s.n = 0
	}
	s.last = append(s.last[:0], data...)
}

// compare finds the strings in which data differs from last, and returns false if it differs in anything else.
func (s *shape) compare(data []byte) bool {
	a, b := scanner{b: s.last}, scanner{b: data}
	from, fromA := 0, 0 // the next part
	for {
		n := commonPrefix(a.b[fromA:], b.b[from:])
		if from+n == len(data) && fromA+n == len(s.last) {
			s.parts[s.n] = span{from, len(data)}
			s.n++
			return s.n > 1
		}
		open := openQuote(&b, from, from+n)
		if open < 0 || s.n == maxHoles {
			return false
		}
		s.parts[s.n] = span{from, open + 1}
		s.n++
		openA := fromA + open - from
		if from, fromA = b.str(open)-1, a.str(openA)-1; from < 0 || fromA < 0 {
			return false
		}
	}
}

// openQuote returns the offset of the quote that opens the member's string value in which the offset at lies, -1 if
// there is none. from is 0 or the offset of a closing quote.
func openQuote(s *scanner, from, at int) int {
	i := from
	if i > 0 {
		i++
	}
	for {
		q := bytes.IndexByte(s.b[min(i, len(s.b)):], '"')
		if q < 0 || i+q >= at {
			return -1
		}
		open := i + q
		if i = s.str(open); i < 0 {
			return -1
		}
		if i > at {
			if !bytes.HasSuffix(bytes.TrimRight(s.b[:open], " "), []byte(":")) {
				return -1
			}
			return open
		}
	}
}

func commonPrefix(a, b []byte) int {
	n := min(len(a), len(b))
	i := 0
	for ; i+8 <= n; i += 8 {
		if x := binary.LittleEndian.Uint64(a[i:]) ^ binary.LittleEndian.Uint64(b[i:]); x != 0 {
			return i + bits.TrailingZeros64(x)>>3
		}
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}
