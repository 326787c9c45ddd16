package lease

import (
	"sync"
	"time"
)

// DefaultReplayBound is how many leases one generation remembers: 800 a second, each for as long as it is kept, in a few MiB.
const DefaultReplayBound = 65536

// The memory is a ring of buckets. Each takes in what comes during bucketSpan and is dropped whole when the
// last of it has been kept for keepFor; there is no timer and no work per entry.
const (
	bucketSpan  = 16 * time.Second
	bucketCount = 1 + int((keepFor+bucketSpan-1)/bucketSpan)
)

// replayCache remembers which leases of one generation were opened. It is bounded and fails closed: what it can't
// remember is refused, and nothing that may still be alive is forgotten for the sake of something new.
type replayCache struct {
	bound int

	mu      sync.Mutex
	buckets [bucketCount]bucket // the newest first
	size    int                 // of all buckets
	// forgotten is the latest expiry of what was dropped. A lease that expires no later may have been opened before. Only
	// an Edge whose clock went back by most of a minute can still issue such leases.
	forgotten time.Time
}

type bucket struct {
	opened map[[16]byte]struct{} // or nil
	since  time.Time             // when it began to take in, by the local monotonic clock
	last   time.Time             // when the last lease came in
	latest time.Time             // the latest expiry of a lease in it
}

func newReplayCache(bound int) *replayCache { return &replayCache{bound: bound} }

// insert remembers a lease that expires at expires, and says why it must not be opened: replay, forgotten, or no room.
// Of any number of callers with the same id exactly one gets 0.
func (c *replayCache) insert(id [16]byte, expires time.Time) Reason {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turnLocked(now)
	for i := range c.buckets {
		if _, seen := c.buckets[i].opened[id]; seen {
			return ReasonReplay
		}
	}
	if !expires.After(c.forgotten) {
		return ReasonForgotten
	}
	if c.size >= c.bound {
		return ReasonReplayCacheFull
	}
	newest := &c.buckets[0]
	if newest.opened == nil {
		newest.opened = map[[16]byte]struct{}{}
	}
	newest.opened[id], newest.last = struct{}{}, now
	c.size++
	if expires.After(newest.latest) {
		newest.latest = expires
	}
	return 0
}

// turnLocked begins a new bucket when the newest has taken in for bucketSpan, and drops those whose last lease has been kept
// for keepFor. That of the bucket that leaves the ring always has: four spans went by since then.
func (c *replayCache) turnLocked(now time.Time) {
	if now.Sub(c.buckets[0].since) < bucketSpan {
		return
	}
	c.dropLocked(&c.buckets[bucketCount-1])
	copy(c.buckets[1:], c.buckets[:bucketCount-1])
	c.buckets[0] = bucket{since: now}
	for i := 1; i < bucketCount; i++ {
		if now.Sub(c.buckets[i].last) >= keepFor {
			c.dropLocked(&c.buckets[i])
		}
	}
}

func (c *replayCache) dropLocked(b *bucket) {
	c.size -= len(b.opened)
	if b.latest.After(c.forgotten) {
		c.forgotten = b.latest
	}
	b.opened, b.latest = nil, time.Time{}
}

// count returns how many leases are remembered.
func (c *replayCache) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.size
}
