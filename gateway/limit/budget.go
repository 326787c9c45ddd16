package limit

import (
	"context"
	"fmt"
	"time"

	"iop/state"
)

const (
	// budgetRefresh is how old the state's word on a month's use may be: how late an Edge sees the others' use.
	budgetRefresh = time.Minute

	// spentTimeout bounds a question to the state; it is nobody's request that it belongs to.
	spentTimeout = 5 * time.Second
)

// budget is a key's use in one month.
type budget struct {
	begin, end time.Time // of the month, in UTC; zero: none yet
	spent      int64     // known to be used
	reserved   int64     // estimates of what runs
	asked      time.Time // when the state was last asked with success; zero: never in this month
	question   *question // or nil: the state is not being asked
}

// question is one call of Config.Spent that all who need the answer wait for.
type question struct {
	done chan struct{} // closed by who asks
	err  error         // to be read after done
}

// turn begins a new month when it is one. What runs since the last month counts for that one.
func (b *budget) turn(now time.Time) {
	if !now.Before(b.begin) && now.Before(b.end) {
		return
	}
	year, month, _ := now.UTC().Date()
	b.begin = time.Date(year, month, 1, 0, 0, 0, 0, time.UTC)
	b.end = b.begin.AddDate(0, 1, 0)
	b.spent, b.reserved, b.asked = 0, 0, time.Time{}
}

func (b *budget) fresh(now time.Time) bool {
	return !b.asked.IsZero() && now.Sub(b.asked) < budgetRefresh
}

// exceeded returns nil if tokens fit into what is left of limit.
func (b *budget) exceeded(limit, tokens int64, now time.Time) *Exceeded {
	switch {
	case b.spent+tokens > limit:
		return &Exceeded{Kind: Budget, Limit: limit, RetryAfter: min(b.end.Sub(now), longestRetry), Frees: b.end, NoRetry: true,
			Left: max(limit-b.spent, 0), Needed: tokens}
	case b.spent+b.reserved+tokens > limit:
		return &Exceeded{Kind: Budget, Limit: limit, RetryAfter: shortRetry, Frees: now.Add(shortRetry)}
	}
	return nil
}

// askSpent asks the state what was used in the entry's month, or waits for who is asking already. The entry is locked
// when it is called and unlocked when it returns.
func (l *Limiter) askSpent(ctx context.Context, e *entry, id state.KeyID) error {
	if q := e.budget.question; q != nil {
		e.mu.Unlock()
		select {
		case <-q.done:
			return q.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	q := &question{done: make(chan struct{}), err: errNoAnswer}
	e.budget.question = q
	month := e.budget.begin
	e.mu.Unlock()
	asked := time.Now()
	var spent int64
	defer func() { // also when Spent panics: the others must not wait for ever
		e.mu.Lock()
		e.budget.question = nil
		if q.err == nil && e.budget.begin.Equal(month) {
			// The state may lag behind what was settled here, and knows what other Edges used.
			e.budget.spent = max(e.budget.spent, spent)
			e.budget.asked = asked
		}
		e.mu.Unlock()
		close(q.done)
	}()
	// Others wait for the answer too: this one's client going away is not their end.
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), spentTimeout)
	defer cancel()
	spent, err := l.spent(asking, id, month)
	if err != nil {
		err = fmt.Errorf("limit: tokens used this month: %w", err)
	}
	q.err = err
	return err
}
