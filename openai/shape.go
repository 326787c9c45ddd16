package openai

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// shape remembers what the last uneventful chunks of a stream looked like. An engine's chunks differ in the text of
// one string and in nothing else, so that most of them are told by comparing what is around that string, at a fraction
// of the cost of searching them for every key that matters.
//
// It only ever says "the same members as one that was looked at": around the hole all bytes are equal, the hole is the
// inside of a member's string value, and what stands in it now cannot end that string.
type shape struct {
	last      []byte // the last uneventful payload that was looked at
	pre, post int    // the hole is last[pre:len(last)-post]; post is 0 while there is none
	misses    int    // in a row
}

const (
	// maxShape is the longest payload that is remembered: memory per stream.
	maxShape = 1 << 10
	// maxMisses ends the learning on streams whose chunks differ in more than one place.
	maxMisses = 8
)

// match reports whether data looks like those that were learned.
func (s *shape) match(data []byte) bool {
	if s.post == 0 || len(data) < s.pre+s.post {
		return false
	}
	end := len(data) - s.post
	if string(data[:s.pre]) != string(s.last[:s.pre]) || string(data[end:]) != string(s.last[len(s.last)-s.post:]) {
		return false
	}
	if hole := data[s.pre:end]; len(hole) > 0 && (hole[len(hole)-1] == '\\' || bytes.IndexByte(hole, '"') >= 0) {
		return false
	}
	s.misses = 0
	return true
}

// learn takes a payload that was looked at and has nothing of interest in it.
func (s *shape) learn(data []byte) {
	if s.misses >= maxMisses || len(data) > maxShape {
		return
	}
	s.misses++
	s.pre, s.post = 0, 0
	if at := commonPrefix(s.last, data); at > 0 {
		s.pre, s.post = hole(data, at)
	}
	s.last = append(s.last[:0], data...)
}

// hole returns how many bytes stand before and after the inside of the member's string value that holds offset at; 0
// and 0 if none does.
func hole(data []byte, at int) (pre, post int) {
	s := scanner{b: data}
	for i := 0; ; {
		q := bytes.IndexByte(data[i:], '"')
		if q < 0 || i+q >= at {
			return 0, 0
		}
		open := i + q
		if i = s.str(open); i < 0 {
			return 0, 0
		}
		if i > at {
			if before := bytes.TrimRight(data[:open], " "); !bytes.HasSuffix(before, []byte(":")) {
				return 0, 0
			}
			return open + 1, len(data) - (i - 1)
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
