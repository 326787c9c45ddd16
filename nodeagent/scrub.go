package nodeagent

import "bytes"

// scrubber masks a provider's key where the provider echoes it in an answer. It writes as many asterisks as the key has
// bytes, so that lengths and event borders stay. A piece of a key at the end of a chunk waits for the next chunk.
type scrubber struct {
	needles [][]byte
	held    []byte // the end of what was pushed, while it may be the beginning of a key
	buf     []byte
}

// push returns what may go on of what has arrived: p itself or a buffer that is valid until the next call.
func (s *scrubber) push(p []byte) []byte {
	if len(s.held) > 0 {
		s.buf = append(append(s.buf[:0], s.held...), p...)
		p = s.buf
		s.held = s.held[:0]
	}
	for _, needle := range s.needles {
		mask(p, needle)
	}
	keep := 0
	for _, needle := range s.needles {
		keep = max(keep, overlap(p, needle))
	}
	s.held = append(s.held, p[len(p)-keep:]...)
	return p[:len(p)-keep]
}

// finish returns what was held back: the answer is over, so it is no key.
func (s *scrubber) finish() []byte {
	held := s.held
	s.held = nil
	return held
}

func mask(p, needle []byte) {
	for {
		i := bytes.Index(p, needle)
		if i < 0 {
			return
		}
		for k := range needle {
			p[i+k] = '*'
		}
		p = p[i+len(needle):]
	}
}

// overlap returns the length of the longest end of p that is a beginning of needle and not all of it.
func overlap(p, needle []byte) int {
	for n := min(len(p), len(needle)-1); n > 0; n-- {
		if p[len(p)-n] == needle[0] && bytes.HasPrefix(needle, p[len(p)-n:]) {
			return n
		}
	}
	return 0
}
