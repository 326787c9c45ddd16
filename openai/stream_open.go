package openai

import "bytes"

// This file keeps the event that one push leaves open for the next, and puts the output together.

// open begins to keep the event that p leaves open. lineStart is where its last line begins.
func (f *StreamFilter) open(p []byte, start, lineStart int) {
	if lineStart == start && p[start] == ':' && f.kind != StreamOllama {
		f.comment = true
		f.emit(p, start, len(p))
		return
	}
	f.lineStart = lineStart - start
	f.extend(p, p[start:])
	if f.mustHold() {
		f.held = len(f.buf)
		return
	}
	f.emit(p, start, len(p))
	f.partial = true
}

// close forgets the open event.
func (f *StreamFilter) close() {
	f.buf = f.buf[:0]
	if cap(f.buf) > keepCapacity {
		f.buf = nil
	}
	f.size, f.lineStart, f.held, f.searched = 0, 0, 0, 0
	f.cut, f.partial = false, false
}

// resume goes on with the event, comment or CRLF that the last push left open, and returns how much of p that took.
func (f *StreamFilter) resume(p []byte) (i int) {
	if f.cr {
		f.cr = false
		if p[0] == '\n' {
			i = f.halfCRLF(p)
		} else {
			f.lone = true
		}
	}
	hasCR := f.kind != StreamOllama && bytes.IndexByte(p[i:], '\r') >= 0
	switch {
	case f.comment:
		return f.resumeComment(p, i, hasCR)
	case len(f.buf) > 0:
		return f.resumeEvent(p, i, hasCR)
	}
	return i
}

// halfCRLF takes the LF whose CR ended the last push.
func (f *StreamFilter) halfCRLF(p []byte) int {
	switch {
	case len(f.buf) > 0:
		f.extend(p, p[:1])
		f.lineStart = len(f.buf)
	case !f.crDrops:
		f.emit(p, 0, 1)
	}
	f.crDrops = false
	return 1
}

func (f *StreamFilter) resumeComment(p []byte, i int, hasCR bool) int {
	end, next := f.lineEnd(p, i, hasCR)
	if end < 0 {
		next = len(p)
	}
	f.comment = end < 0
	f.emit(p, i, next)
	f.noteCR(p, next, hasCR && end >= 0, false)
	return next
}

// resumeEvent goes on with the open event, whose bytes in p begin at 0 and were taken up to i.
func (f *StreamFilter) resumeEvent(p []byte, i int, hasCR bool) int {
	for i < len(p) {
		end, next := f.lineEnd(p, i, hasCR)
		if end < 0 {
			f.extend(p, p[i:])
			break
		}
		f.extend(p, p[i:end])
		fresh := f.lineStart == 0 && !f.cut
		v := f.take(f.buf, f.buf[f.lineStart:], nil, fresh, f.size)
		switch v {
		case more:
			f.extend(p, p[end:next])
			f.lineStart = len(f.buf)
			i = next
			continue
		case pass:
			f.release(p, next)
		case stop, last:
			f.release(p, end)
			f.close()
			f.seal(p, end, v)
			return len(p)
		}
		f.close()
		f.noteCR(p, next, hasCR, v == drop)
		return next
	}
	f.noteCR(p, len(p), hasCR && f.lineStart == len(f.buf), false)
	if f.mustHold() {
		f.held = len(f.buf)
	} else {
		f.release(p, len(p))
		f.partial = true
	}
	return len(p)
}

// extend adds x, a part of p, to the open event.
func (f *StreamFilter) extend(p, x []byte) {
	f.size += len(x)
	if f.size > maxHeld {
		f.releaseHeld(p)
	}
	if len(f.buf)+len(x) <= maxEvent {
		f.buf = append(f.buf, x...)
		return
	}
	if !f.cut {
		f.head = append(append(f.head[:0], f.buf[:min(len(f.buf), headSize)]...), x[:min(len(x), headSize)]...)
		f.cut = true
	}
	f.keepTail(x)
}

// keepTail makes buf the last bytes of buf and x.
func (f *StreamFilter) keepTail(x []byte) {
	lost := 0
	if len(x) >= tailSize {
		lost = len(f.buf) + len(x) - tailSize
		f.buf = append(f.buf[:0], x[len(x)-tailSize:]...)
	} else {
		lost = max(0, len(f.buf)+len(x)-tailSize)
		f.buf = append(f.buf[:copy(f.buf, f.buf[lost:])], x...)
	}
	f.lineStart = max(0, f.lineStart-lost)
}

// choicesBegin are the ways in which a chunk with choices begins them. Chunks that hold one are not withheld, whatever
// else they hold: that makes the decision the same for every way of cutting the stream.
var choicesBegin = [...][]byte{[]byte(`"choices":[{`), []byte(`"choices": [{`)}

const longestChoicesBegin = len(`"choices": [{`)

// mustHold reports whether the open event may still turn out to be one that is not simply forwarded.
func (f *StreamFilter) mustHold() bool {
	if f.partial || f.size > maxHeld || (f.events > 0 && !f.withhold) {
		return false
	}
	if f.kind != StreamChat {
		return true
	}
	fresh := f.buf[max(0, f.searched-longestChoicesBegin):]
	f.searched = len(f.buf)
	return !hasChoices(fresh)
}

func hasChoices(b []byte) bool {
	return bytes.Contains(b, choicesBegin[0]) || bytes.Contains(b, choicesBegin[1])
}

// release emits the open event: what is held of it, then p up to n.
func (f *StreamFilter) release(p []byte, n int) {
	f.releaseHeld(p)
	f.emit(p, 0, n)
}

func (f *StreamFilter) releaseHeld(p []byte) {
	if f.held > 0 {
		f.copy(p, f.buf[:f.held])
		f.held, f.partial = 0, true
	}
}

// seal ends the output after the line that ends at p[end] with its line end, and for [DONE] with a blank line: as they
// stand in p, or made up from the first byte of the line end so that the output does not depend on where p was cut.
func (f *StreamFilter) seal(p []byte, end int, v verdict) {
	want := "\n\n"
	if p[end] == '\r' {
		want = "\r\n\r\n"
	}
	if v == last { // the line was the blank one
		want = want[:len(want)/2]
	}
	if len(p)-end >= len(want) && string(p[end:end+len(want)]) == want {
		f.emit(p, end, end+len(want))
	} else {
		f.copy(p, []byte(want))
	}
	f.finish(v)
}

func (f *StreamFilter) finish(v verdict) {
	f.ended = true
	if v == stop {
		f.taken++
		f.done = true
		f.complete = f.complete || f.kind == StreamChat || f.kind == StreamMedia
	}
}

// begin empties the output.
func (f *StreamFilter) begin() {
	f.lo, f.hi, f.copied = 0, 0, false
	f.out = f.out[:0]
	if cap(f.out) > 2*keepCapacity {
		f.out = nil
	}
}

// emit adds p[lo:hi] to the output, without copying as long as the output is one range of p.
func (f *StreamFilter) emit(p []byte, lo, hi int) {
	switch {
	case lo >= hi:
	case f.copied:
		f.out = append(f.out, p[lo:hi]...)
	case f.lo == f.hi:
		f.lo, f.hi = lo, hi
	case f.hi == lo:
		f.hi = hi
	default:
		f.copy(p, p[lo:hi])
	}
}

// copy adds b, which is not the next range of p, to the output.
func (f *StreamFilter) copy(p, b []byte) {
	if !f.copied {
		f.copied = true
		f.out = append(f.out, p[f.lo:f.hi]...)
	}
	f.out = append(f.out, b...)
}

// Finish takes the stream's end. It returns what was held, and the blank line if the last event is whole but for it;
// the unread rest of an event is forwarded as it is, and AtBorder tells. out is valid until the filter is called again.
func (f *StreamFilter) Finish() (out []byte) {
	f.begin()
	if f.ended {
		return nil
	}
	f.ended = true
	f.cr = false
	if f.comment {
		f.midway = true
		return nil
	}
	if len(f.buf) == 0 {
		return nil
	}
	v, whole := f.finishEvent()
	if v != drop {
		f.releaseHeld(nil)
		if whole {
			f.copy(nil, f.missingEnd())
		} else {
			f.midway = true
		}
	}
	f.close()
	return f.out
}

// finishEvent looks at an event that the stream's end left open, and reports whether it is whole.
func (f *StreamFilter) finishEvent() (v verdict, whole bool) {
	if f.cut {
		return pass, false
	}
	line := f.buf[f.lineStart:]
	if f.kind == StreamOllama {
		if whole = wellFormed(line); whole {
			f.ollama(line)
		}
		return pass, whole
	}
	if isDone(line) {
		f.finish(stop)
		return stop, true
	}
	if data, _, oldError := f.fields(f.buf); !wellFormed(data) && !wellFormed(oldError) {
		return pass, false
	}
	return f.event(f.buf, nil, f.size), true
}

// missingEnd is what the open event lacks to its end.
func (f *StreamFilter) missingEnd() []byte {
	switch {
	case f.kind == StreamOllama, f.buf[len(f.buf)-1] == '\n':
		return []byte("\n")
	case f.buf[len(f.buf)-1] == '\r':
		return []byte("\n\r\n")
	}
	return []byte("\n\n")
}
