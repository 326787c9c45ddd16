package limit

import (
	"context"
	"errors"
	"hash/maphash"
	"sync"
	"time"

	"iop/state"
)

const (
	shards = 16 // a power of two

	// sweepInterval is how often a shard looks for entries to drop, when a new one comes.
	sweepInterval = time.Minute

	// keepIdle is how long an entry with a budget stays after its last use: what was settled is in the state by then.
	keepIdle = 2 * time.Minute
)

// errNoAnswer stands for a Config.Spent that did not return.
var errNoAnswer = errors.New("limit: the state did not respond")

// Config is what a Limiter needs.
type Config struct {
	// Spent returns how many tokens a key has used in the month that begins then (in UTC). It is asked once a minute and
	// key, for keys with a monthly budget. Required.
	Spent func(ctx context.Context, key state.KeyID, month time.Time) (int64, error)
}

// Limiter counts requests against the limits of their keys. Its methods may be called from any goroutine.
type Limiter struct {
	// Static after New.
	spent func(ctx context.Context, key state.KeyID, month time.Time) (int64, error) // never nil
	began time.Time                                                                  // what the buckets' times count from
	seed  maphash.Seed

	shards [shards]shard
}

// shard is a part of the entries. Its mutex may be held when an entry's is taken, never the other way round.
type shard struct {
	mu      sync.RWMutex
	entries map[state.KeyID]*entry
	swept   time.Time
}

// entry is what is known of a key.
type entry struct {
	mu       sync.Mutex
	gone     bool // dropped from its shard: look again
	inFlight int64
	requests bucket
	tokens   bucket
	budget   budget
	used     time.Time // last
}

// New returns a Limiter that knows of no use yet.
func New(cfg Config) *Limiter {
	l := &Limiter{spent: cfg.Spent, began: time.Now(), seed: maphash.MakeSeed()}
	if l.spent == nil {
		l.spent = func(context.Context, state.KeyID, time.Time) (int64, error) {
			return 0, errors.New("limit: Config.Spent is missing")
		}
	}
	return l
}

// Arrive counts a request against its key's requests a minute, before anything of it but the key was read; *Exceeded
// says that none is left. It is called once for each request. Take follows it, or Withdraw where the request was
// refused through no fault of the caller; a request that the caller got wrong stays counted.
func (l *Limiter) Arrive(key *state.Key) *Exceeded {
	if key.RPM <= 0 {
		return nil
	}
	e, now := l.lockEntry(key.ID)
	defer e.mu.Unlock()
	e.updateLocked(key, now, int64(now.Sub(l.began)))
	wait := time.Duration(e.requests.wait(1))
	if wait <= 0 {
		e.requests.add(-1)
		return nil
	}
	worst := &Exceeded{Kind: Requests, Limit: e.requests.limit, RetryAfter: wait, Frees: now.Add(wait)}
	if other := e.exceededLocked(key, 1, 1, now); other != nil && (other.NoRetry || other.Frees.After(worst.Frees)) {
		worst = other
	}
	return worst
}

// Withdraw takes an Arrive back.
func (l *Limiter) Withdraw(key *state.Key) {
	if key.RPM <= 0 {
		return
	}
	e, now := l.lockEntry(key.ID)
	defer e.mu.Unlock()
	e.updateLocked(key, now, int64(now.Sub(l.began)))
	e.requests.add(1)
}

// Take takes a request's place in all limits of its key but the requests a minute, which Arrive has counted, or in none
// of them when one is exceeded: then *Exceeded says which. tokens is an estimate of what the run will use. An error
// means that it could not be decided: the state did not say what the month's use is, or ctx ended meanwhile. The Hold
// must be settled or released.
func (l *Limiter) Take(ctx context.Context, key *state.Key, tokens int64) (Hold, *Exceeded, error) {
	if !limited(key) {
		return Hold{}, nil, nil
	}
	tokens = min(max(tokens, 1), state.MaxRunTokens)
	for {
		e, now := l.lockEntry(key.ID)
		if key.MonthlyTokens > 0 {
			e.budget.turn(now)
			if !e.budget.fresh(now) {
				if err := l.askSpent(ctx, e, key.ID); err != nil {
					return Hold{}, nil, err
				}
				continue
			}
		}
		hold, exceeded := e.takeLocked(key, tokens, now, int64(now.Sub(l.began)))
		e.mu.Unlock()
		hold.limiter = l
		return hold, exceeded, nil
	}
}

// lockEntry returns a key's entry, locked, and the time since when it is.
func (l *Limiter) lockEntry(id state.KeyID) (*entry, time.Time) {
	for {
		e := l.entry(id)
		e.mu.Lock()
		if !e.gone {
			return e, time.Now()
		}
		e.mu.Unlock()
	}
}

func limited(key *state.Key) bool {
	return key.RPM > 0 || key.TPM > 0 || key.Concurrency > 0 || key.MonthlyTokens > 0
}

// takeLocked decides. at is now as the buckets count it.
func (e *entry) takeLocked(key *state.Key, tokens int64, now time.Time, at int64) (Hold, *Exceeded) {
	e.updateLocked(key, now, at)
	charged := min(tokens, e.tokens.limit)
	if exceeded := e.exceededLocked(key, tokens, charged, now); exceeded != nil {
		return Hold{}, exceeded
	}
	hold := Hold{entry: e, charged: charged}
	e.inFlight++
	e.tokens.add(-charged)
	if key.MonthlyTokens > 0 {
		e.budget.reserved += tokens
		hold.reserved, hold.month = tokens, e.budget.begin.Unix()
	}
	return hold, nil
}

// updateLocked refills the buckets, and takes changed limits of the key over.
func (e *entry) updateLocked(key *state.Key, now time.Time, at int64) {
	e.used = now
	e.requests.update(key.RPM, at)
	e.tokens.update(key.TPM, at)
}

// exceededLocked returns the limit that refuses the request and frees last, nil if none does; it does not look at the
// requests a minute.
func (e *entry) exceededLocked(key *state.Key, tokens, charged int64, now time.Time) *Exceeded {
	var worst *Exceeded
	if wait := e.tokens.wait(charged); wait > 0 {
		worst = &Exceeded{Kind: Tokens, Limit: e.tokens.limit, RetryAfter: time.Duration(wait), Frees: now.Add(time.Duration(wait))}
	}
	if key.Concurrency > 0 && e.inFlight >= key.Concurrency {
		worst = worse(worst, &Exceeded{Kind: Concurrency, Limit: key.Concurrency, RetryAfter: shortRetry, Frees: now.Add(shortRetry)})
	}
	if key.MonthlyTokens > 0 && e.budget.fresh(now) && now.Before(e.budget.end) {
		exceeded := e.budget.exceeded(key.MonthlyTokens, tokens, now)
		if exceeded != nil && exceeded.NoRetry {
			return exceeded // whatever else is exceeded: waiting for that would be in vain
		}
		worst = worse(worst, exceeded)
	}
	return worst
}

// Hold is a request's place in the limits of its key. The zero value is of a key without limits and does nothing. It is
// its holder's alone: a copy must not be settled too.
type Hold struct {
	limiter  *Limiter
	entry    *entry // or nil: nothing to settle, or settled already
	charged  int64  // tokens taken from the bucket
	reserved int64  // tokens taken from the month's budget
	month    int64  // when that month began, in Unix seconds; 0: no budget
}

// Settle gives the concurrency place back and replaces the estimate by what the run used, input and output together. A
// negative used stands for unknown: the estimate stands. Only the first call of Settle or Release counts.
func (h *Hold) Settle(used int64) {
	e := h.entry
	if e == nil {
		return
	}
	h.entry = nil
	used = min(used, 2*state.MaxRunTokens)
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.used = now
	e.inFlight--
	if h.charged > 0 && used >= 0 {
		e.tokens.refill(int64(now.Sub(h.limiter.began)))
		e.tokens.add(h.charged - used)
	}
	if h.month != 0 && h.month == e.budget.begin.Unix() {
		e.budget.reserved -= h.reserved
		if used < 0 {
			used = h.reserved
		}
		e.budget.spent += used
	}
}

// Release is Settle(0), for a request that never ran.
func (h *Hold) Release() { h.Settle(0) }

// Snapshot returns how a key's limits per minute stand; false if it has none.
func (l *Limiter) Snapshot(key *state.Key) (Snapshot, bool) {
	if key.RPM <= 0 && key.TPM <= 0 {
		return Snapshot{}, false
	}
	at := int64(time.Since(l.began))
	var requests, tokens bucket // copies: looking changes nothing
	if e := l.find(key.ID); e != nil {
		e.mu.Lock()
		requests, tokens = e.requests, e.tokens
		e.mu.Unlock()
	}
	requests.update(key.RPM, at)
	tokens.update(key.TPM, at)
	return Snapshot{Requests: requests.window(), Tokens: tokens.window()}, true
}

func (l *Limiter) shard(id state.KeyID) *shard {
	return &l.shards[maphash.String(l.seed, string(id))%shards]
}

// find returns a key's entry, nil if there is none.
func (l *Limiter) find(id state.KeyID) *entry {
	s := l.shard(id)
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.entries[id]
}

// entry returns a key's entry, and makes it when there is none.
func (l *Limiter) entry(id state.KeyID) *entry {
	if e := l.find(id); e != nil {
		return e
	}
	s := l.shard(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[id]; e != nil {
		return e
	}
	now := time.Now()
	s.sweepLocked(now, int64(now.Sub(l.began)))
	e := &entry{used: now}
	if s.entries == nil {
		s.entries = make(map[state.KeyID]*entry)
	}
	s.entries[id] = e
	return e
}

// sweepLocked drops what a new entry would be no different from.
func (s *shard) sweepLocked(now time.Time, at int64) {
	if now.Sub(s.swept) < sweepInterval {
		return
	}
	s.swept = now
	for id, e := range s.entries {
		e.mu.Lock()
		if e.idleLocked(now, at) {
			e.gone = true
			delete(s.entries, id)
		}
		e.mu.Unlock()
	}
}

func (e *entry) idleLocked(now time.Time, at int64) bool {
	if e.inFlight > 0 || e.budget.question != nil {
		return false
	}
	if !e.budget.begin.IsZero() && now.Sub(e.used) < keepIdle {
		return false
	}
	e.requests.refill(at)
	e.tokens.refill(at)
	return e.requests.whole == e.requests.limit && e.tokens.whole == e.tokens.limit
}
