package nodeagent

import (
	"errors"
	"sync/atomic"
	"time"
)

// The causes with which a watch ends an exchange.
var (
	errFirstByte = errors.New("the provider sent no byte of its answer within the route's limit")
	errIdle      = errors.New("the provider sent nothing for longer than the route's limit")
)

// watch ends an exchange whose provider is silent for too long. Only the waits for the provider count: a client that
// takes its time is not the provider's fault. With both limits at zero it does nothing and costs nothing.
type watch struct {
	idle   time.Duration
	start  time.Time
	cancel func(error)
	timer  *time.Timer // nil without limits
	// waiting is when the present wait for the provider began, in nanoseconds since start, plus one; 0 while there is
	// none; watchOver at the end.
	waiting atomic.Int64
	silent  time.Duration // of waits since the last byte of the answer that ended with comments; the reader's alone
	first   atomic.Bool   // the first byte has arrived
}

const watchOver = -1

// never is a timer that waits for a Reset.
const never = time.Duration(1 << 62)

// begin starts the watch with the call of the provider.
func (w *watch) begin(firstByte, idle time.Duration, cancel func(error)) {
	w.idle, w.cancel = idle, cancel
	if firstByte == 0 && idle == 0 {
		return
	}
	w.start = time.Now()
	if firstByte == 0 {
		firstByte = never
	}
	w.timer = time.AfterFunc(firstByte, w.fire)
}

// wait is called before each read of the answer; got after each that brought some of it, heard after each that brought
// comments alone.
func (w *watch) wait() {
	if w.idle > 0 {
		w.waiting.Store(int64(time.Since(w.start)-w.silent) + 1)
	}
}

// heard lets the wait stand still: the provider has still not answered, but what is now done with the comments is not
// its time.
func (w *watch) heard() {
	if since := w.waiting.Load(); since > 0 {
		w.silent = time.Since(w.start) - time.Duration(since-1)
		w.waiting.Store(0)
	}
}

func (w *watch) got() {
	if w.timer == nil {
		return
	}
	w.waiting.Store(0)
	w.silent = 0
	if w.first.Load() {
		return
	}
	w.first.Store(true)
	if w.idle > 0 {
		w.timer.Reset(w.idle)
	} else {
		w.timer.Stop()
	}
}

// end stops the watch.
func (w *watch) end() {
	w.waiting.Store(watchOver)
	if w.timer != nil {
		w.timer.Stop()
	}
}

// fire runs when the timer does. The timer isn't touched for each chunk: it looks back when it fires.
func (w *watch) fire() {
	if !w.first.Load() {
		if w.waiting.Load() != watchOver {
			w.cancel(errFirstByte)
		}
		return
	}
	next := w.idle
	switch since := w.waiting.Load(); {
	case since == watchOver:
		return
	case since > 0:
		silent := time.Since(w.start) - time.Duration(since-1)
		if silent >= w.idle {
			w.cancel(errIdle)
			return
		}
		next = w.idle - silent
	}
	w.timer.Reset(next)
}
