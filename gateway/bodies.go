package gateway

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// firstBuffer is what a body of unknown length gets before its first byte. Bodies up to it pass those that wait where
	// there is room for them, and their buffers are not counted until they are collected.
	firstBuffer = 64 << 10
	// bodyPatience bounds the wait for room in the budget, with the queue's own timeout: room comes when a run that
	// holds a large body has begun to answer.
	bodyPatience = 5 * time.Minute
	// bodyTurn is how long smaller bodies may pass one that does not fit yet.
	bodyTurn = 5 * time.Second
	// What may wait at once. A waiting request holds a connection and no body.
	maxBodyWaiters     = 512
	maxBodyWaitersEach = 64
	// collectPause is between two collections that somebody waits for, doubled while they free nothing.
	collectPause    = 10 * time.Millisecond
	maxCollectPause = 640 * time.Millisecond
)

// budget bounds the request bodies that the process holds at once. The last part of it is for principals that hold little,
// so that nobody's uploads keep all others out. A body of more than firstBuffer bytes waits until it fits as a whole,
// holding nothing meanwhile (one that grows: what came of it so far).
type budget struct {
	// Static after newBudget.
	limit    int64
	reserve  int64 // what is left for principals that hold no more than this
	patience time.Duration
	wake     chan struct{} // holds one token: somebody waits for memory that is not collected yet

	used     atomic.Int64
	large    atomic.Int64 // bytes of large buffers, until the collector has freed them
	waiting  atomic.Int32 // len(line)
	sharesOf sync.Map     // principal to *keyShare; one entry for each that has ever called

	mu       sync.Mutex
	line     []*bodyWaiter // in order of arrival
	behind   int64         // what those in line hold: growing bodies of unknown length
	closed   bool          // nobody may wait any more
	uncaught bool          // the first in line waits for the collector alone
}

// bodyWaiter is a request that waits for room. Guarded by budget.mu.
type bodyWaiter struct {
	share   *keyShare
	size    int64 // what it asks for
	holds   int64 // what it has already, for a body that turned out to be larger
	since   time.Time
	done    chan struct{} // closed when it was granted, or will never be
	granted bool
}

func newBudget(limit, greatest int64, patience time.Duration) budget {
	return budget{
		limit: limit, reserve: min(limit/4, limit-greatest), patience: min(patience, bodyPatience), wake: make(chan struct{}, 1),
	}
}

// keyShare is what one principal's requests hold.
type keyShare struct {
	used    atomic.Int64
	waiting int // in line; guarded by budget.mu
}

// contested reports whether requests wait for room.
func (b *budget) contested() bool { return b.waiting.Load() > 0 }

// share returns the share of a principal.
func (b *budget) share(principal string) *keyShare {
	if v, ok := b.sharesOf.Load(principal); ok {
		return v.(*keyShare)
	}
	v, _ := b.sharesOf.LoadOrStore(principal, new(keyShare))
	return v.(*keyShare)
}

// take takes room for n bytes at once, or none.
func (b *budget) take(share *keyShare, n int64) bool { return b.takeBeside(share, n, 0) }

// takeBeside is take where some of what is used does not count.
func (b *budget) takeBeside(share *keyShare, n, beside int64) bool {
	mine, all := share.used.Add(n), b.used.Add(n)-beside
	if all <= b.limit-b.reserve || all <= b.limit && mine <= b.reserve {
		return true
	}
	share.used.Add(-n)
	b.used.Add(-n)
	return false
}

// give gives back what was taken.
func (b *budget) give(share *keyShare, n int64) {
	if n == 0 {
		return
	}
	share.used.Add(-n)
	b.used.Add(-n)
	if b.waiting.Load() > 0 {
		b.grant()
	}
}

// acquire takes room for n bytes of a body beside what it holds already, and waits for it as long as others are
// waited for. False: there is none in time, or the caller is gone.
func (b *budget) acquire(ctx context.Context, share *keyShare, n, holds int64) bool {
	if n+holds <= firstBuffer && b.take(share, n) {
		return true
	}
	w := &bodyWaiter{share: share, size: n, holds: holds, since: time.Now(), done: make(chan struct{})}
	if !b.enter(w) {
		return false
	}
	timer := time.NewTimer(b.patience)
	defer timer.Stop()
	select {
	case <-w.done:
	case <-timer.C:
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !w.granted {
		b.leaveLocked(w)
	}
	return w.granted
}

// acquireNow is acquire without a wait.
func (b *budget) acquireNow(share *keyShare, n int64) bool {
	if n <= firstBuffer {
		return b.take(share, n)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.line) == 0 && b.fitsLocked(&bodyWaiter{share: share, size: n})
}

// enter puts w into the line, and grants what there is room for: most often w itself. False: the line is too long.
func (b *budget) enter(w *bodyWaiter) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed, len(b.line) == maxBodyWaiters, w.share.waiting == maxBodyWaitersEach:
		return false
	case b.behind+w.holds > b.limit/8, w.size+w.holds > b.limit:
		return false
	}
	b.line = append(b.line, w)
	b.waiting.Store(int32(len(b.line)))
	b.behind += w.holds
	w.share.waiting++
	b.grantLocked(w.since)
	return true
}

func (b *budget) leaveLocked(w *bodyWaiter) {
	i := slices.Index(b.line, w)
	if i < 0 {
		return
	}
	b.line = slices.Delete(b.line, i, i+1)
	b.waiting.Store(int32(len(b.line)))
	b.behind -= w.holds
	w.share.waiting--
	if w.granted {
		close(w.done)
		return
	}
	b.grantLocked(time.Now()) // it may have been in the way
}

func (b *budget) grant() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.grantLocked(time.Now())
}

// grantLocked lets in whoever fits, in turns: first who holds least, then who came first. One that does not fit may be
// passed by smaller ones for bodyTurn, and by nobody after that.
func (b *budget) grantLocked(now time.Time) {
	b.uncaught = false
	for len(b.line) > 0 {
		next := slices.MinFunc(b.line, byTurn)
		if !b.fitsLocked(next) {
			if now.Sub(next.since) >= bodyTurn {
				return
			}
			i := slices.IndexFunc(b.line, func(w *bodyWaiter) bool { return w.size < next.size && b.fitsLocked(w) })
			if i < 0 {
				return
			}
			next = b.line[i]
		}
		next.granted = true
		b.leaveLocked(next)
	}
}

// byTurn orders those in line. The line itself is in order of arrival.
func byTurn(a, b *bodyWaiter) int {
	return int(min(max(a.share.used.Load()-a.holds-(b.share.used.Load()-b.holds), -1), 1))
}

// fitsLocked takes room for w if there is. Memory that a former body had counts until it was collected.
func (b *budget) fitsLocked(w *bodyWaiter) bool {
	if !b.takeBeside(w.share, w.size, b.behind) {
		return false
	}
	size := w.size + w.holds // the buffer is made anew
	if size <= firstBuffer || b.large.Add(size) <= b.limit+b.behind {
		return true
	}
	b.large.Add(-size)
	w.share.used.Add(-w.size)
	b.used.Add(-w.size)
	if !b.uncaught {
		b.uncaught = true
		select {
		case b.wake <- struct{}{}:
		default:
		}
	}
	return false
}

// buffer makes a buffer whose room acquire has taken. It counts until the collector has freed it, whoever had it.
func (b *budget) buffer(n int64) []byte {
	buf := make([]byte, n)
	if n > firstBuffer {
		runtime.AddCleanup(&buf[0], func(n int64) { b.large.Add(-n) }, n)
	}
	return buf
}

// collect frees the memory of former bodies when somebody waits for it, until ctx ends: the collector itself would come
// when the heap has doubled.
func (b *budget) collect(ctx context.Context) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-b.wake:
		case <-ctx.Done():
			return
		}
		for wait := collectPause; b.lacksCollection(); wait = min(2*wait, maxCollectPause) {
			runtime.GC()
			pause.Reset(wait) // for the cleanups, which have a goroutine of their own
			select {
			case <-pause.C:
			case <-ctx.Done():
				return
			}
			b.grant()
		}
	}
}

func (b *budget) lacksCollection() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.uncaught
}

// close refuses all who wait.
func (b *budget) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, w := range b.line {
		close(w.done)
		w.share.waiting--
	}
	b.line, b.behind = nil, 0
	b.waiting.Store(0)
}
