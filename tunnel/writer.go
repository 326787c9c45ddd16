package tunnel

import (
	"runtime"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"iop/tunnel/wire"
)

// quantum is how many bytes of data a stream sends before the next one has its turn.
const quantum = 16 << 10

// urgentFrame is a frame of the first class: of the session, or of a stream that it may overtake.
type urgentFrame struct {
	typ     wire.Type
	flags   wire.Flags
	stream  *stream // or nil: the session
	payload []byte
	answer  bool // counts against answersLimit
}

// answersLimit bounds the answers that wait to be written to a peer which asks and does not read. What both ends say
// of their own accord is bounded where it is made; this is not.
const (
	answersLimit   = 4 << 20
	answerOverhead = 64 // bytes of memory for each, beside its payload
)

var messageBuffers = sync.Pool{New: func() any { b := make([]byte, 0, wire.MaxMessage); return &b }}

// writeLoop is the session's writer, whoever else may write in its place when nothing is going on. It ends when the
// link has ended and GOODBYE is out, or when a write fails.
func (l *link) writeLoop() {
	for {
		select {
		case <-l.wake:
		case <-l.done:
			l.farewell()
			return
		}
		for {
			// Whoever is about to queue something may do so first: it goes out in the same message. Nothing waits
			// for it, neither a timer nor an idle processor.
			runtime.Gosched()
			sent, err := l.writeMessage()
			if err != nil {
				l.writeFailed(err)
				return
			}
			if !sent {
				break
			}
		}
	}
}

// writeMessage sends one message of what is ready; sent is false if nothing was.
func (l *link) writeMessage() (sent bool, err error) {
	l.writing <- struct{}{}
	defer func() { <-l.writing }()
	return l.writeHolding()
}

// writeHolding is writeMessage with l.writing held.
func (l *link) writeHolding() (sent bool, err error) {
	buf := messageBuffers.Get().(*[]byte)
	defer messageBuffers.Put(buf)
	l.mu.Lock()
	if l.end != nil {
		l.mu.Unlock()
		return false, nil // the rest is farewell's
	}
	message, frames := l.fillLocked((*buf)[:0])
	l.lastWrite = l.now()
	l.traffic.framesSent += uint64(frames)
	l.traffic.bytesSent += uint64(len(message))
	l.mu.Unlock()
	if len(message) == 0 {
		return false, nil
	}
	l.metrics.MessagesSent.Add(1)
	l.metrics.FramesSent.Add(uint64(frames))
	l.metrics.BytesSent.Add(uint64(len(message)))
	if err := l.conn.write(message); err != nil {
		return true, err
	}
	for _, s := range l.written {
		l.peer.requestSent(s)
	}
	l.written = dropFirst(l.written, len(l.written))
	return true, nil
}

// busyGap is how long after a write began the link counts as busy. A busy link gathers what many runs have; a calm one
// has one piece at a time, for which waking another goroutine costs more than the write.
const busyGap = 100 * time.Microsecond

// writeNow sends what is ready on the caller's goroutine if the link is calm, else wakes the writer. It blocks as the
// socket does, so it is only for a goroutine that would otherwise wait for the socket too.
func (l *link) writeNow() {
	l.mu.Lock()
	calm := l.end == nil && l.now().Sub(l.lastWrite) > busyGap
	l.mu.Unlock()
	if !calm {
		l.wakeWriter()
		return
	}
	select {
	case l.writing <- struct{}{}:
	default: // somebody writes: what is queued may miss that message
		l.wakeWriter()
		return
	}
	_, err := l.writeHolding()
	<-l.writing
	if err != nil {
		l.writeFailed(err)
		return
	}
	l.mu.Lock()
	more := len(l.urgent) > 0 || l.ctl.n > 0 || l.body.n > 0
	l.mu.Unlock()
	if more {
		l.wakeWriter()
	}
}

func (l *link) writeFailed(err error) {
	l.fail(&EndError{Code: goodbyeLost, Message: "the connection broke while writing", Err: err})
	l.conn.kill()
}

// fill is a message in the making.
type fill struct {
	buf    []byte
	frames int
}

func (f *fill) room() int { return wire.MaxMessage - len(f.buf) - wire.HeaderSize }

func (f *fill) add(h wire.FrameHeader, payload []byte) {
	f.buf = wire.AppendFrame(f.buf, h, payload)
	f.frames++
}

// fillLocked serialises what is ready: first class, then control frames of runs, then bodies in turns.
func (l *link) fillLocked(buf []byte) ([]byte, int) {
	f := fill{buf: buf}
	if l.fillUrgentLocked(&f) && l.fillCtlLocked(&f) {
		l.fillBodyLocked(&f)
	}
	return f.buf, f.frames
}

// fillUrgentLocked reports whether all of the first class went in.
func (l *link) fillUrgentLocked(f *fill) bool {
	sent := 0
	for _, u := range l.urgent {
		if f.room() < len(u.payload) {
			break
		}
		sent++
		if u.answer {
			l.answers -= len(u.payload) + answerOverhead
		}
		if u.stream == nil {
			f.add(wire.FrameHeader{Type: u.typ, Flags: u.flags, Seq: l.txSeq}, u.payload)
			l.txSeq++
		} else if !u.stream.over {
			f.add(wire.FrameHeader{Type: u.typ, Flags: u.flags, Stream: u.stream.id, Seq: u.stream.tx.seq}, u.payload)
			u.stream.tx.seq++
		}
	}
	l.urgent = dropFirst(l.urgent, sent)
	l.urgentTaken += uint64(sent)
	if len(l.urgent) > 0 {
		return false
	}
	return l.fillWindowsLocked(f)
}

func (l *link) fillWindowsLocked(f *fill) bool {
	var payload [4]byte
	if l.sessionGrant >= sessionGrantStep && f.room() >= 4 {
		f.add(wire.FrameHeader{Type: wire.TypeWindow, Seq: l.txSeq}, wire.AppendWindow(payload[:0], uint32(l.sessionGrant)))
		l.txSeq++
		l.sessionGrant = 0
	}
	sent := 0
	for _, s := range l.windows {
		if f.room() < 4 {
			break
		}
		sent++
		s.rx.inWin = false
		if s.over || s.tx.dead {
			continue
		}
		f.add(wire.FrameHeader{Type: wire.TypeWindow, Stream: s.id, Seq: s.tx.seq}, wire.AppendWindow(payload[:0], uint32(s.rx.grant)))
		s.tx.seq++
		s.rx.grant = 0
	}
	l.windows = dropFirst(l.windows, sent)
	return len(l.windows) == 0
}

// dropFirst removes the first n elements in place and keeps no pointer to them.
func dropFirst[T any](list []T, n int) []T {
	left := copy(list, list[n:])
	clear(list[left:])
	return list[:left]
}

// fillCtlLocked reports whether every control frame that is at the head of its stream went in. A frame that doesn't
// fit stops the class: OPENs stay in order.
func (l *link) fillCtlLocked(f *fill) bool {
	for l.ctl.n > 0 {
		s := l.ctl.pop()
		s.tx.inCtl = false
		if s.over {
			continue
		}
		if !l.fillHeadsLocked(f, s) {
			s.tx.inCtl = true
			l.ctl.pushFront(s)
			return false
		}
		s.scheduleLocked()
	}
	return true
}

// fillHeadsLocked sends the items of s up to its next data, and reports whether all of them fitted.
func (l *link) fillHeadsLocked(f *fill, s *stream) bool {
	for len(s.tx.queue) > 0 {
		item := &s.tx.queue[0]
		if item.isData() {
			return true
		}
		if f.room() < len(item.data) {
			return false
		}
		f.add(wire.FrameHeader{Type: item.typ, Flags: item.flags, Stream: s.id, Seq: s.tx.seq}, item.data)
		s.tx.seq++
		s.tx.started = true
		typ := item.typ
		s.popLocked()
		if typ == wire.TypeEnd {
			l.peer.endSentLocked(s)
			return true
		}
	}
	return true
}

// fillBodyLocked gives each stream a turn until the message, the link's credit or the bodies are used up.
func (l *link) fillBodyLocked(f *fill) {
	most := l.credit.message()
	for l.body.n > 0 && f.room() > 0 && len(f.buf) < most {
		if l.credit.room() <= 0 {
			l.metrics.SessionStalls.Add(1)
			return
		}
		s := l.body.pop()
		s.tx.inBody = false
		if s.over || len(s.tx.queue) == 0 || !s.tx.queue[0].isData() {
			s.scheduleLocked()
			continue
		}
		l.fillTurnLocked(f, s)
		if s.over {
			continue
		}
		if s.space != nil && s.tx.queued < sendBufferLimit/2 {
			poke(s.space)
		}
		// A control frame behind the body belongs to a higher class: at once, if it fits.
		if !l.fillHeadsLocked(f, s) && !s.tx.inCtl {
			s.tx.inCtl = true
			l.ctl.push(s)
			continue
		}
		s.scheduleLocked()
	}
}

// fillTurnLocked sends one turn of the stream's first item, which is data.
func (l *link) fillTurnLocked(f *fill, s *stream) {
	item := &s.tx.queue[0]
	n := min(item.left(), quantum, s.tx.credit, l.credit.room(), f.room())
	if n <= 0 && item.left() > 0 {
		return
	}
	flags := dataFlags(item.typ, false)
	if n == item.left() {
		flags = item.flags
	}
	f.add(wire.FrameHeader{Type: item.typ, Flags: flags, Stream: s.id, Seq: s.tx.seq}, item.data[item.off:item.off+n])
	s.tx.seq++
	item.off += n
	s.tx.queued -= n
	s.tx.credit -= n
	l.credit.sent(n, l.now)
	if item.left() == 0 {
		s.popLocked()
	}
}

// answerLocked queues the answer to a frame of the peer's.
func (l *link) answerLocked(typ wire.Type, m proto.Message) error {
	before := len(l.urgent)
	l.urgentLocked(typ, nil, m)
	if len(l.urgent) == before {
		return nil // it can't be sent, and the log says so
	}
	u := &l.urgent[before]
	u.answer = true
	if l.answers += len(u.payload) + answerOverhead; l.answers > answersLimit {
		return protocolError("the peer sends requests and does not read the answers: %d bytes are waiting", l.answers)
	}
	return nil
}

// urgentLocked queues a frame of the first class.
func (l *link) urgentLocked(typ wire.Type, s *stream, m proto.Message) {
	payload, err := proto.Marshal(m)
	if err != nil || len(payload) > wire.MaxPayload {
		// Every message of this class is bounded where it is made.
		l.log.Error("tunnel: could not send a control message", "type", typ.String(), "bytes", len(payload), "err", err)
		return
	}
	l.urgentPayloadLocked(typ, s, payload)
}

// ignorableLocked is urgentLocked for a session frame that an older peer may ignore.
func (l *link) ignorableLocked(typ wire.Type, m proto.Message) {
	before := len(l.urgent)
	l.urgentLocked(typ, nil, m)
	if len(l.urgent) > before {
		l.urgent[before].flags = wire.FlagIgnorable
	}
}

func (l *link) urgentPayloadLocked(typ wire.Type, s *stream, payload []byte) {
	l.urgentQueued++
	l.urgent = append(l.urgent, urgentFrame{typ: typ, stream: s, payload: payload})
	l.wakeWriter()
}

func (l *link) wakeWriter() { poke(l.wake) }
