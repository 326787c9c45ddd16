package tunnel

import (
	"iop/tunnel/wire"
)

// stream is what both ends keep of one run: what is queued to be sent and what has arrived. Run and NodeRun are built
// on it.
type stream struct {
	// Static after construction.
	link *link
	id   uint32
	// ready receives when there is something to take; space when a blocked Write may look again. Both hold one
	// token, neither is ever closed; space is nil where nobody writes.
	ready chan struct{}
	space chan struct{}

	// The rest is guarded by link.mu.

	tx struct {
		queue   []sendItem // in order of the stream
		seq     uint32
		credit  int  // bytes of data that the peer will take
		queued  int  // bytes of data in queue
		inCtl   bool // in link.ctl
		inBody  bool // in link.body
		stalled bool // has data and no credit
		started bool // a frame of this stream was handed to the socket
		dead    bool // nothing more is sent, but END
		awaits  bool // a lease is to follow what is queued: it is sealed once that was written
		leased  bool // LEASE was handed to the socket
		spare   []byte
	}
	rx struct {
		seq    uint32
		allow  int // bytes that the peer may still send
		window int // the present size of its window
		taken  int // consumed, credit not yet given back
		since  int // bytes taken since the window last grew
		grant  int // credit to be given back by the next WINDOW
		inWin  bool
		buf    []byte // arrived, not yet taken
		spare  []byte // the buffer of the last take, to be used again
		border bool   // the last byte that arrived ends an event
	}
	over bool // removed from the link; frames for it are dropped
}

// sendItem is one message of a stream, which may take several frames. BODY and EVENT are its data: they cost credit and
// take turns.
type sendItem struct {
	typ    wire.Type
	flags  wire.Flags // of the last frame
	data   []byte
	off    int  // of data, already sent
	shared bool // data belongs to the caller: never appended to, never used again
}

func (i *sendItem) left() int { return len(i.data) - i.off }

func (i *sendItem) isData() bool { return i.typ == wire.TypeBody || i.typ == wire.TypeEvent }

// initStream prepares s.
func initStream(s *stream, l *link, id uint32) {
	s.link, s.id = l, id
	s.ready = make(chan struct{}, 1)
	s.tx.credit = streamWindowMin
	s.rx.allow, s.rx.window = streamWindowMin, streamWindowMin
}

func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// pushLocked queues an item behind what the stream has queued.
func (s *stream) pushLocked(item sendItem) {
	s.tx.queue = append(s.tx.queue, item)
	if item.isData() {
		s.tx.queued += len(item.data)
	}
	s.scheduleLocked()
}

// dataFlags are those of data of a type that ends at a border or not.
func dataFlags(typ wire.Type, border bool) wire.Flags {
	switch {
	case typ == wire.TypeBody && border:
		return wire.FlagBorder
	case typ == wire.TypeEvent && !border:
		return wire.FlagContinued
	}
	return 0
}

// appendDataLocked queues a copy of p, in the last item if that is data still to be sent. A stream has data of one type
// in one direction.
func (s *stream) appendDataLocked(typ wire.Type, p []byte, border bool) {
	flags := dataFlags(typ, border)
	if n := len(s.tx.queue); n > 0 {
		if last := &s.tx.queue[n-1]; last.typ == typ && !last.shared {
			if last.off > 0 && len(last.data)+len(p) > cap(last.data) {
				// Drop what is out already: a stream that is never idle must not keep its whole past.
				last.data = last.data[:copy(last.data, last.data[last.off:])]
				last.off = 0
			}
			last.data = append(last.data, p...)
			last.flags = flags
			s.tx.queued += len(p)
			s.scheduleLocked()
			return
		}
	}
	buf := s.tx.spare
	s.tx.spare = nil
	s.pushLocked(sendItem{typ: typ, flags: flags, data: append(buf[:0], p...)})
}

// dropUnsentLocked forgets every queued item but END: after a cancel nobody wants it. It reports whether there was any.
func (s *stream) dropUnsentLocked() bool {
	before := len(s.tx.queue)
	kept := s.tx.queue[:0]
	for _, item := range s.tx.queue {
		if item.typ == wire.TypeEnd {
			kept = append(kept, item)
		}
	}
	clear(s.tx.queue[len(kept):])
	s.tx.queue = kept
	s.tx.queued = 0
	s.tx.stalled = false
	if s.space != nil {
		poke(s.space)
	}
	s.scheduleLocked()
	return len(s.tx.queue) < before
}

// scheduleLocked puts the stream where the writer will look for it.
func (s *stream) scheduleLocked() {
	if s.over || len(s.tx.queue) == 0 {
		return
	}
	l := s.link
	if !s.tx.queue[0].isData() {
		if !s.tx.inCtl {
			s.tx.inCtl = true
			l.ctl.push(s)
		}
		return
	}
	if s.tx.inBody {
		return
	}
	if s.tx.credit <= 0 && s.tx.queue[0].left() > 0 {
		if !s.tx.stalled {
			s.tx.stalled = true
			l.metrics.CreditStalls.Add(1)
		}
		return
	}
	s.tx.stalled = false
	s.tx.inBody = true
	l.body.push(s)
}

// popLocked removes the first item, keeping its buffer for the next body.
func (s *stream) popLocked() {
	switch item := &s.tx.queue[0]; {
	case item.isData() && !item.shared && cap(item.data) <= 2*sendBufferLimit:
		s.tx.spare = item.data[:0]
	case item.typ == wire.TypeLease:
		s.tx.leased = true
		s.link.metrics.LeasesSent.Add(1)
	}
	copy(s.tx.queue, s.tx.queue[1:])
	last := len(s.tx.queue) - 1
	s.tx.queue[last] = sendItem{}
	s.tx.queue = s.tx.queue[:last]
	if last == 0 && s.tx.awaits {
		s.tx.awaits = false
		s.link.written = append(s.link.written, s)
	}
}

// receiveLocked takes data that has arrived; whoever waits for it is still to be told. It reports whether the peer had
// the credit.
func (s *stream) receiveLocked(payload []byte, border bool) bool {
	if len(payload) > s.rx.allow {
		return false
	}
	s.rx.allow -= len(payload)
	s.rx.buf = append(s.rx.buf, payload...)
	s.rx.border = border
	return true
}

// takeLocked gives away what has arrived and takes back the buffer of the last take.
func (s *stream) takeLocked() []byte {
	data := s.rx.buf
	s.rx.buf = s.rx.spare[:0]
	s.rx.spare = data
	return data
}

// consumedLocked returns credit for n bytes that the consumer took, in quarter windows, and lets the window of a
// consumer that keeps up grow from the process's budget.
func (s *stream) consumedLocked(n int) {
	if s.over || n == 0 {
		return
	}
	s.rx.taken += n
	s.rx.since += n
	if s.rx.taken < s.rx.window/4 {
		return
	}
	grant := s.rx.taken
	s.rx.taken = 0
	if s.rx.since >= 2*s.rx.window && s.rx.window < streamWindowMax && s.link.budget.take(streamWindowStep) {
		s.rx.since = 0
		s.rx.window += streamWindowStep
		grant += streamWindowStep
	}
	s.rx.allow += grant
	s.rx.grant += grant
	if !s.rx.inWin {
		s.rx.inWin = true
		s.link.windows = append(s.link.windows, s)
	}
	s.link.wakeWriter()
}

// endLocked takes the stream off the link and returns its share of the budget.
func (s *stream) endLocked() {
	if s.over {
		return
	}
	s.over = true
	s.tx.queue, s.tx.spare = nil, nil
	if s.rx.window > streamWindowMin {
		s.link.budget.give(int64(s.rx.window - streamWindowMin))
	}
	s.link.metrics.Streams.Add(-1)
	if s.space != nil {
		poke(s.space)
	}
}

// ring is a queue of streams. Its zero value is ready.
type ring struct {
	buf  []*stream
	head int
	n    int
}

func (r *ring) push(s *stream) {
	if r.n == len(r.buf) {
		grown := make([]*stream, max(8, 2*len(r.buf)))
		for i := range r.n {
			grown[i] = r.buf[(r.head+i)%len(r.buf)]
		}
		r.buf, r.head = grown, 0
	}
	r.buf[(r.head+r.n)%len(r.buf)] = s
	r.n++
}

func (r *ring) pop() *stream {
	s := r.buf[r.head]
	r.buf[r.head] = nil
	r.head = (r.head + 1) % len(r.buf)
	r.n--
	return s
}

// pushFront puts s back where it was popped from.
func (r *ring) pushFront(s *stream) {
	r.push(s)
	// Rotate the one at the end to the front.
	last := (r.head + r.n - 1) % len(r.buf)
	front := (r.head - 1 + len(r.buf)) % len(r.buf)
	if r.n == len(r.buf) {
		front = last
	} else {
		r.buf[front], r.buf[last] = r.buf[last], nil
	}
	r.head = front
}

// waiters are told once that something has come about. Its zero value is ready; it is guarded by the link's mutex.
type waiters []chan struct{}

// wait returns a channel that is closed by the next tell, or already if it has come about.
func (w *waiters) wait(already bool) <-chan struct{} {
	ch := make(chan struct{})
	if already {
		close(ch)
	} else {
		*w = append(*w, ch)
	}
	return ch
}

func (w *waiters) tell() {
	for _, ch := range *w {
		close(ch)
	}
	*w = nil
}
