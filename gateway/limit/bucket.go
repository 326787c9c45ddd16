package limit

import (
	"math/bits"
	"time"

	"iop/state"
)

const (
	// minute is what a bucket refills in, in nanoseconds: limits are per minute.
	minute = int64(time.Minute)

	// maxDebt keeps a bucket's arithmetic within 64 bits: a thousand million runs of the most that one may count.
	maxDebt = int64(1e18)

	// forever is the longest wait that is told, 146 years. It keeps a time.Duration from overflowing.
	forever = int64(1 << 62)
)

// bucket is a token bucket of one minute's worth. It holds whole + part/minute tokens, exactly. Times are nanoseconds
// since the Limiter began. The zero value is of no limit.
type bucket struct {
	limit int64  // tokens a minute, and the most that it holds; 0: no limit
	whole int64  // from limit down to -maxDebt
	part  uint64 // below minute; 0 in a full bucket
	at    int64  // up to when it is refilled
}

// refill adds what has come since the last call.
func (b *bucket) refill(now int64) {
	elapsed := now - b.at
	if elapsed <= 0 {
		return
	}
	b.at = now
	high, low := bits.Mul64(uint64(b.limit), uint64(elapsed))
	low, carry := bits.Add64(low, b.part, 0)
	high += carry
	if high >= uint64(minute) { // more than 64 bits of tokens
		b.fill()
		return
	}
	came, part := bits.Div64(high, low, uint64(minute))
	if came >= uint64(b.limit-b.whole) {
		b.fill()
		return
	}
	b.whole += int64(came)
	b.part = part
}

func (b *bucket) fill() { b.whole, b.part = b.limit, 0 }

// update refills, and takes a changed limit over. The bucket stays as full as it was, in proportion; a debt stays what
// it is, and a limit that is new begins full.
func (b *bucket) update(limit, now int64) {
	if limit > state.MaxLimit {
		limit = state.MaxLimit
	}
	b.refill(now)
	if limit == b.limit {
		return
	}
	old := b.limit
	b.limit, b.at = limit, now
	switch {
	case old == 0 || limit == 0:
		b.fill()
	case b.whole > 0:
		high, low := bits.Mul64(uint64(b.whole), uint64(limit))
		whole, _ := bits.Div64(high, low, uint64(old)) // whole is at most old, so the quotient is at most limit
		b.whole, b.part = int64(whole), 0
	}
}

// wait returns how long it takes from the last refill until n tokens are there, 0 if they are; n is at most limit.
func (b *bucket) wait(n int64) int64 {
	if b.limit == 0 || b.whole >= n {
		return 0
	}
	// ceil(((n - whole) * minute - part) / limit)
	high, low := bits.Mul64(uint64(n-b.whole), uint64(minute))
	low, borrow := bits.Sub64(low, b.part, 0)
	high -= borrow
	low, carry := bits.Add64(low, uint64(b.limit-1), 0)
	high += carry
	if high >= uint64(b.limit) {
		return forever
	}
	wait, _ := bits.Div64(high, low, uint64(b.limit))
	return int64(min(wait, uint64(forever)))
}

// add puts n tokens in, or takes them where n is negative, down to a debt; the bucket is refilled up to now.
func (b *bucket) add(n int64) {
	if b.limit == 0 {
		return // it may have had one when a run began
	}
	b.whole = max(b.whole+n, -maxDebt)
	if b.whole >= b.limit {
		b.fill()
	}
}

// window is what the bucket looks like from outside.
func (b *bucket) window() Window {
	return Window{Limit: b.limit, Remaining: max(b.whole, 0), Reset: time.Duration(b.wait(b.limit))}
}
