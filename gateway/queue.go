package gateway

import (
	"strconv"
	"strings"
	"time"

	"iop/gateway/admission"
	"iop/openai"
)

const (
	// queueUpdates is the request header by which a client chooses whether it is told its place in the queue: 1 at once, 0
	// never. Without it, after newsDelay.
	queueUpdates = "X-Iop-Queue-Updates"
	// newsDelay is how long a stream waits before its head is sent for the sake of its place in the queue. From then on
	// failures come in-band, which SDKs do not retry: a short wait should not cost that.
	newsDelay = 500 * time.Millisecond
	// newsInterval is how often a place in the queue is told at most, and newsPerPlace how much less often for each
	// place: finding one out takes as long as the queue is, while admission waits. Thousands that ask each second
	// would leave no time for anything else.
	newsInterval = time.Second
	newsPerPlace = 10 * time.Millisecond
	// heldHead is how long a head is held back at most, see holdsHead, so that the refusal after the default grace of a route
	// without a connected target is still a status. It is a little more than that grace, and not much: see keepAlive.
	heldHead = admission.DefaultGrace + time.Second
)

// newsTime says when a client is told its place in the queue. The zero value is newsNever.
type newsTime uint8

const (
	newsNever newsTime = iota
	newsSoon           // after newsDelay
	newsNow
)

// queueNews is what a client is told while it waits: comment lines of its event stream.
type queueNews struct {
	when     newsTime
	began    time.Time // the last wait
	next     time.Time
	told     int       // the place that was told last; 0: none since it last began to wait
	until    time.Time // when what was told of the time is over; zero: nothing was
	position int       // for the answer's head; 0: the request did not wait
	estimate time.Duration
}

// whenNews says whether the client is told its place in the queue, which takes an event stream. Streams of media are told
// only if the client asks: their providers may answer with something else than an event stream, which the head rules out.
func (x *exchange) whenNews() newsTime {
	if !x.events {
		return newsNever
	}
	if v := x.r.Header[queueUpdates]; len(v) == 1 {
		switch strings.ToLower(v[0]) {
		case "1", "true":
			return newsNow
		case "0", "false":
			return newsNever
		}
	}
	if x.op.Stream == openai.StreamMedia {
		return newsNever
	}
	return newsSoon
}

// queue waits for the waiter, as long as the request may.
func (x *exchange) queue(waiter *admission.Waiter) event {
	began := time.Now()
	x.rec.waits(began)
	x.queueEnd = began.Add(x.queueTimeout())
	x.waiter = waiter
	x.reply.opaque = false // a former target's answer is not passed on
	if x.news.position == 0 {
		x.news.position, x.news.estimate = place(waiter)
	}
	x.news.began, x.news.next = began, began
	if x.news.when == newsSoon && x.reply.status == 0 {
		x.news.next = began.Add(newsDelay)
	}
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

// holdsHead reports whether the head is held back: what the request waits for may end with a refusal, which SDKs retry only as
// a status. So it is while no target is connected, while each one rests, after one has failed, and once admission has answered.
func (x *exchange) holdsHead() bool {
	return x.waiter != nil && x.reply.status == 0 && x.news.when != newsNow && time.Since(x.news.began) < heldHead &&
		(len(x.avoid) > 0 || x.waiter.Absent() || x.waiter.Resting() || x.admitted())
}

// admitted reports whether admission has answered the request. The end of the grace and a ping can be due at the same moment:
// a head that was sent then would make an error in the stream of what is a status.
func (x *exchange) admitted() bool {
	select {
	case <-x.waiter.Ready():
		return true
	default:
		return false
	}
}

// newsDue reports whether the client should hear of its place now.
func (x *exchange) newsDue(now time.Time) bool {
	return x.waiter != nil && x.news.when != newsNever && x.keepsAlive() && !now.Before(x.news.next)
}

// tellPlace writes the place in the queue as a comment: where it has changed, or where it takes longer than was told. False:
// the client is gone.
func (x *exchange) tellPlace(now time.Time) bool {
	position, estimate := place(x.waiter)
	x.news.next = now.Add(newsInterval + time.Duration(position)*newsPerPlace)
	old := position == x.news.told && (estimate == 0 || now.Before(x.news.until))
	if position == 0 || old || x.holdsHead() { // 0: it is its turn
		return true
	}
	x.news.told, x.news.until = position, time.Time{}
	if x.reply.status == 0 {
		x.news.position, x.news.estimate = position, estimate // so that the head says the same as the line below it
		x.commit(nil, now)
	}
	line := append(make([]byte, 0, 64), ": queued position="...)
	line = strconv.AppendInt(line, int64(position), 10)
	if estimate > 0 {
		x.news.until = now.Add(estimate)
		line = append(line, " estimate="...)
		line = strconv.AppendInt(line, int64((estimate+time.Second-1)/time.Second), 10)
		line = append(line, 's')
	}
	return x.write(append(line, '\n'), now, true)
}

// place is a waiter's place and estimate as clients read them, in whole milliseconds: less than one is not none.
func place(w *admission.Waiter) (position int, estimate time.Duration) {
	position, estimate = w.Place()
	return position, (estimate + time.Millisecond - 1).Truncate(time.Millisecond)
}

// tellDispatched tells a client that heard of its place, and has a head that could not say it, how long it waited. False: the
// client is gone.
func (x *exchange) tellDispatched() bool {
	if x.news.told == 0 {
		return true
	}
	x.news.told, x.news.until = 0, time.Time{}
	line := append(make([]byte, 0, 40), ": dispatched after="...)
	line = strconv.AppendFloat(line, x.rec.queuedFor().Seconds(), 'f', 1, 64)
	return x.write(append(line, "s\n"...), time.Now(), true)
}
