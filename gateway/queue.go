package gateway

import (
	"strconv"
	"strings"
	"time"

	"iop/gateway/admission"
)

const (
	// queueUpdates is the request header by which a client asks to be told of its place in the queue while it waits.
	queueUpdates = "X-Iop-Queue-Updates"
	// newsInterval is how often a place in the queue is told at most, and newsPerPlace how much less often for each
	// place: finding one out takes as long as the queue is, while admission waits. Thousands that ask each second
	// would leave no time for anything else.
	newsInterval = time.Second
	newsPerPlace = 10 * time.Millisecond
)

// queueNews is what a client is told while it waits: comment lines of its event stream.
type queueNews struct {
	wanted   bool
	next     time.Time
	told     int // the place that was told last
	position int // when the request began to wait; 0: it did not
	estimate time.Duration
}

// wantsNews reports whether the client asks for its place in the queue. It has to be an event stream; the head of the
// answer is then sent before a Node was found, so failures come in-band.
func (x *exchange) wantsNews() bool {
	v := x.r.Header[queueUpdates]
	return x.events && len(v) == 1 && (v[0] == "1" || strings.EqualFold(v[0], "true"))
}

// queue waits for the waiter, as long as the request may.
func (x *exchange) queue(waiter *admission.Waiter) event {
	began := time.Now()
	x.queueEnd = began.Add(x.queueTimeout())
	x.waiter = waiter
	x.reply.opaque = false // a former target's answer is not passed on
	if x.news.position == 0 {
		x.news.position, x.news.estimate = waiter.Place()
	}
	x.news.next = began
	ev := eventGone
	if !x.newsDue(began) || x.tellPlace(began) {
		x.rearm(began)
		ev = x.wait(waiter.Ready())
	}
	x.queueEnd, x.waiter = time.Time{}, nil
	waited := time.Since(began)
	x.rec.waited(waited)
	x.s.metrics.queued.Observe(waited.Seconds())
	return ev
}

func (x *exchange) queueTimeout() time.Duration {
	if d := x.route.Timeouts.Queue; d > 0 {
		return d
	}
	return x.s.cfg.QueueTimeout
}

// newsDue reports whether the client should hear of its place now.
func (x *exchange) newsDue(now time.Time) bool {
	return x.waiter != nil && x.news.wanted && x.keepsAlive() && !now.Before(x.news.next)
}

// tellPlace writes the place in the queue as a comment, where it has changed. False: the client is gone.
func (x *exchange) tellPlace(now time.Time) bool {
	position, estimate := x.waiter.Place()
	x.news.next = now.Add(newsInterval + time.Duration(position)*newsPerPlace)
	if position == 0 || position == x.news.told { // 0: it is its turn
		return true
	}
	x.news.told = position
	if x.reply.status == 0 {
		x.commit(nil, now)
	}
	line := append(make([]byte, 0, 64), ": queue position="...)
	line = strconv.AppendInt(line, int64(position), 10)
	if estimate > 0 {
		line = append(line, " estimate_ms="...)
		line = strconv.AppendInt(line, estimate.Milliseconds(), 10)
	}
	return x.write(append(line, '\n'), now, true)
}
