package gateway

import (
	"bytes"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"iop/execution/safetext"
)

// Limits of a LogWriter.
const (
	logFlushBytes = 64 << 10               // written out at once when this much waits
	logDelay      = 100 * time.Millisecond // the longest that a line waits
	logMaxBytes   = 4 << 20                // beyond it lines are dropped, and counted
	logPiece      = 64 << 10               // the most of one write: what a pipe holds, so that progress shows
	// logStall is how long Close waits for a reader that takes nothing, and logCloseMax for one that takes little.
	logStall    = time.Second
	logCloseMax = 5 * time.Second
)

// LogWriter is an io.Writer for log lines that never makes its caller wait for the disk, terminal or pipe behind it:
// it collects lines and writes many at once. When the reader can't keep up, or can't be written to, it drops lines, and
// says how many as soon as it can write again. What a process that is killed has written in the last 100 ms is lost.
type LogWriter struct {
	out     io.Writer
	wake    chan struct{} // has room for one; never closed
	stop    chan struct{} // closed by Close
	done    chan struct{} // closed by the writing goroutine
	closed  sync.Once
	written atomic.Int64 // pieces that out has taken or refused

	refused int // lines that out did not take, not reported yet; of the writing goroutine

	mu      sync.Mutex
	buf     []byte // lines that wait
	spare   []byte // the other buffer, while it is not being written
	waiting bool   // the timer runs
	timer   *time.Timer
	dropped int // lines that came after those in buf
	ended   bool

	late  sync.Mutex // guards stuck, and is held while a line is written after Close
	stuck bool       // out took nothing for logStall: nothing more is written
}

// NewLogWriter returns a LogWriter in front of out. Close ends its goroutine; out stays open.
func NewLogWriter(out io.Writer) *LogWriter {
	l := &LogWriter{out: out, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	l.timer = time.AfterFunc(time.Hour, l.poke)
	l.timer.Stop()
	go l.run()
	return l
}

// Write takes one line (or several whole ones). It never fails, and until Close it never waits for out.
func (l *LogWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		l.writeLate(p)
		return len(p), nil
	}
	defer l.mu.Unlock()
	if len(l.buf)+len(p) > logMaxBytes {
		l.dropped++
		return len(p), nil
	}
	l.buf = safetext.AppendLine(l.buf, p)
	switch {
	case len(l.buf) >= logFlushBytes:
		l.poke()
	case !l.waiting:
		l.waiting = true
		l.timer.Reset(logDelay)
	}
	return len(p), nil
}

func (l *LogWriter) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *LogWriter) run() {
	defer close(l.done)
	for {
		select {
		case <-l.wake:
			l.flush()
		case <-l.stop:
			l.flush()
			l.last()
			return
		}
	}
}

// flush writes what waits. Only run's goroutine calls it.
func (l *LogWriter) flush() {
	l.mu.Lock()
	buf := l.buf
	l.buf, l.spare = l.spare[:0], nil
	l.waiting = false
	l.timer.Stop()
	dropped := l.dropped
	l.dropped = 0
	l.mu.Unlock()
	l.putAll(buf, dropped)
	l.mu.Lock()
	if cap(buf) <= 4*logFlushBytes {
		l.spare = buf[:0]
	}
	l.mu.Unlock()
}

// last writes what came during the last flush. From then on nobody collects lines.
func (l *LogWriter) last() {
	l.mu.Lock()
	l.ended = true
	rest, dropped := l.buf, l.dropped
	l.buf = nil
	l.timer.Stop()
	l.mu.Unlock()
	l.putAll(rest, dropped)
}

// putAll writes lines, and before and after them how many are missing there.
func (l *LogWriter) putAll(lines []byte, dropped int) {
	l.refused = l.report(l.refused)
	l.refused += l.put(lines)
	l.refused += l.report(dropped)
}

// put writes whole lines and returns how many of them out refused: a pipe without a reader, a disk without room.
func (l *LogWriter) put(lines []byte) (lost int) {
	for len(lines) > 0 {
		piece := lines
		if len(piece) > logPiece {
			piece = piece[:logPiece]
		}
		n, err := l.out.Write(piece)
		l.written.Add(1)
		if err != nil {
			return bytes.Count(lines[min(max(n, 0), len(lines)):], []byte{'\n'})
		}
		lines = lines[len(piece):]
	}
	return 0
}

// report says that lines are missing, and returns how many nobody could be told of.
func (l *LogWriter) report(dropped int) (untold int) {
	if dropped == 0 {
		return 0
	}
	line := time.Now().AppendFormat([]byte(`{"time":"`), "2006-01-02T15:04:05.000Z07:00")
	line = append(line, `","level":"WARN","msg":"log lines were dropped: their reader is too slow or gone","dropped":`...)
	line = append(strconv.AppendInt(line, int64(dropped), 10), "}\n"...)
	if l.put(line) > 0 {
		return dropped
	}
	return 0
}

// Close writes what waits, and returns nil. It gives up on a reader that takes nothing for a second, or is not done after
// five: a process must be able to end while nobody reads its log. Then the writing goroutine is left behind. Later lines go
// straight to out, within the same bound. It may be called more than once.
func (l *LogWriter) Close() error {
	l.closed.Do(func() {
		close(l.stop)
		if l.flushed() {
			return
		}
		l.late.Lock()
		l.stuck = true
		l.late.Unlock()
		l.mu.Lock()
		l.ended = true
		l.mu.Unlock()
	})
	return nil
}

// flushed waits for the writing goroutine as long as it gets on.
func (l *LogWriter) flushed() bool {
	patience := time.NewTimer(logCloseMax)
	defer patience.Stop()
	for before := l.written.Load(); ; {
		stall := time.NewTimer(logStall)
		select {
		case <-l.done:
			stall.Stop()
			return true
		case <-patience.C:
			stall.Stop()
			return false
		case <-stall.C:
		}
		now := l.written.Load()
		if now == before {
			return false
		}
		before = now
	}
}

// writeLate writes a line that comes after Close.
func (l *LogWriter) writeLate(p []byte) {
	l.late.Lock()
	defer l.late.Unlock()
	if l.stuck {
		return
	}
	line, done := safetext.AppendLine(nil, p), make(chan struct{})
	go func() {
		defer close(done)
		_, _ = l.out.Write(line) // nowhere to report it
	}()
	stall := time.NewTimer(logStall)
	defer stall.Stop()
	select {
	case <-done:
	case <-stall.C:
		l.stuck = true
	}
}
