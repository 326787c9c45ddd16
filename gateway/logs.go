package gateway

import (
	"io"
	"strconv"
	"sync"
	"time"
)

// Limits of a LogWriter.
const (
	logFlushBytes = 64 << 10               // written out at once when this much waits
	logDelay      = 100 * time.Millisecond // the longest that a line waits
	logMaxBytes   = 4 << 20                // beyond it lines are dropped, and counted
)

// LogWriter is an io.Writer for log lines that never makes its caller wait for the disk, terminal or pipe behind it:
// it collects lines and writes many at once. When the reader can't keep up it drops lines, and says how many. What a
// process that is killed has written in the last 100 ms is lost.
type LogWriter struct {
	out    io.Writer
	wake   chan struct{} // has room for one; never closed
	stop   chan struct{} // closed by Close
	done   chan struct{} // closed by the writing goroutine
	closed sync.Once

	mu      sync.Mutex
	buf     []byte // lines that wait
	spare   []byte // the other buffer, while it is not being written
	waiting bool   // the timer runs
	timer   *time.Timer
	dropped int
	ended   bool
}

// NewLogWriter returns a LogWriter in front of out. Close ends its goroutine; out stays open.
func NewLogWriter(out io.Writer) *LogWriter {
	l := &LogWriter{out: out, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	l.timer = time.AfterFunc(time.Hour, l.poke)
	l.timer.Stop()
	go l.run()
	return l
}

// Write takes one line (or several whole ones). It never fails and never waits for out.
func (l *LogWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return l.out.Write(p)
	}
	if len(l.buf)+len(p) > logMaxBytes {
		l.dropped++
		return len(p), nil
	}
	l.buf = append(l.buf, p...)
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
	if len(buf) > 0 {
		_, _ = l.out.Write(buf) // nowhere to report it
	}
	if dropped > 0 {
		line := `{"level":"WARN","msg":"log lines were dropped: their reader is too slow","dropped":` + strconv.Itoa(dropped) + "}\n"
		_, _ = io.WriteString(l.out, line)
	}
	l.mu.Lock()
	if cap(buf) <= 4*logFlushBytes {
		l.spare = buf[:0]
	}
	l.mu.Unlock()
}

// Close writes what waits, and returns nil. Later lines go straight to out. It may be called more than once.
func (l *LogWriter) Close() error {
	l.closed.Do(func() {
		close(l.stop)
		<-l.done
		l.mu.Lock()
		l.ended = true
		l.timer.Stop()
		rest := l.buf
		l.buf = nil
		if len(rest) > 0 {
			_, _ = l.out.Write(rest)
		}
		l.mu.Unlock()
	})
	return nil
}
