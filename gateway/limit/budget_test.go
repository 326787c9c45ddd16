package limit_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"iop/gateway/limit"
	"iop/state"
)

// ledger stands for the state's sums.
type ledger struct {
	mu     sync.Mutex
	months map[time.Time]int64
	asked  int
	err    error
}

func (s *ledger) spent(_ context.Context, _ state.KeyID, month time.Time) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	return s.months[month], s.err
}

func (s *ledger) set(month time.Time, tokens int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.months == nil {
		s.months = map[time.Time]int64{}
	}
	s.months[month] = tokens
}

var january = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // when a bubble's time begins

func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s ledger
		s.set(january, 400)
		l, key := limit.New(limit.Config{Spent: s.spent}), &state.Key{ID: "k", MonthlyTokens: 1000}
		run := take(t, l, key, 600)
		if e := refused(t, l, key, 1, limit.Budget); e.NoRetry || e.RetryAfter != time.Second {
			t.Errorf("what runs may use less: %+v", e)
		}
		run.Settle(599)
		end := january.AddDate(0, 1, 0)
		e := refused(t, l, key, 2, limit.Budget)
		if !e.NoRetry || e.RetryAfter != time.Minute || !e.Frees.Equal(end) || e.Limit != 1000 || e.Left != 1 || e.Needed != 2 {
			t.Errorf("%+v", e)
		}
		run = take(t, l, key, 1) // the last one
		run.Settle(5)            // it ran over
		if e := refused(t, l, key, 1, limit.Budget); !e.NoRetry {
			t.Errorf("%+v", e)
		}
		if s.asked != 1 {
			t.Errorf("the state was asked %d times", s.asked)
		}
		time.Sleep(time.Until(end) - 1)
		if e := refused(t, l, key, 1, limit.Budget); e.RetryAfter != 1 {
			t.Errorf("a nanosecond before the end: %+v", e)
		}
		time.Sleep(time.Nanosecond)
		take(t, l, key, 1000)
		refused(t, l, key, 1, limit.Budget)
	})
}

// A run counts for the month in which it began.
func TestRunAcrossMonths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s ledger
		l, key := limit.New(limit.Config{Spent: s.spent}), &state.Key{ID: "k", MonthlyTokens: 1000}
		run := take(t, l, key, 700)
		time.Sleep(31 * 24 * time.Hour)
		next := take(t, l, key, 900)
		run.Settle(700)
		next.Settle(900)
		refused(t, l, key, 101, limit.Budget)
		take(t, l, key, 100)
	})
}

// What other Edges use counts within a minute, and what the state does not know yet is not forgotten.
func TestSeveralEdges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s ledger
		l, key := limit.New(limit.Config{Spent: s.spent}), &state.Key{ID: "k", MonthlyTokens: 1000}
		run := take(t, l, key, 300)
		run.Settle(300)
		s.set(january, 500) // by others; ours is not in it yet
		time.Sleep(time.Minute - 1)
		run = take(t, l, key, 700)
		run.Release()
		time.Sleep(time.Nanosecond)
		refused(t, l, key, 501, limit.Budget)
		s.set(january, 100) // a state that was restored knows less than we do
		time.Sleep(time.Minute)
		refused(t, l, key, 501, limit.Budget)
		take(t, l, key, 500)
		if s.asked != 3 {
			t.Errorf("asked %d times", s.asked)
		}
	})
}

func TestStateFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := ledger{err: errDown}
		l, key := limit.New(limit.Config{Spent: s.spent}), &state.Key{ID: "k", RPM: 1, MonthlyTokens: 1000}
		for range 3 {
			if _, e, err := ask(t.Context(), l, key, 1); err == nil || e != nil {
				t.Fatalf("%+v, %v", e, err)
			}
		}
		s.err = nil
		take(t, l, key, 1) // the failures took nothing
		if _, e, err := ask(t.Context(), l, &state.Key{ID: "other", RPM: 1}, 1); e != nil || err != nil {
			t.Errorf("a key without a budget: %+v, %v", e, err)
		}
		s.err = errDown
		if _, e, err := ask(t.Context(), l, key, 1); e == nil || err != nil {
			t.Errorf("within the minute: %+v, %v", e, err)
		}
		time.Sleep(time.Minute)
		if _, e, err := ask(t.Context(), l, key, 1); err == nil {
			t.Errorf("after it: %+v, %v", e, err)
		}
	})
}

// Many requests of a key make one question, whose answer does not hang on the first one's client; others need not wait
// longer than theirs.
func TestOneQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		answer := make(chan struct{})
		l := limit.New(limit.Config{Spent: func(ctx context.Context, _ state.KeyID, _ time.Time) (int64, error) {
			asked.Add(1)
			select {
			case <-answer:
				return 10, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		}})
		key := &state.Key{ID: "k", MonthlyTokens: 1000}
		first, gone := context.WithCancel(t.Context())
		var passed atomic.Int64
		var wg sync.WaitGroup
		ask := func(ctx context.Context) {
			wg.Go(func() {
				if _, e, err := ask(ctx, l, key, 1); e == nil && err == nil {
					passed.Add(1)
				}
			})
			synctest.Wait()
		}
		ask(first)
		gone()
		for range 50 {
			ask(t.Context())
		}
		ask(first) // its client is gone: it waits for nobody
		close(answer)
		wg.Wait()
		if asked.Load() != 1 || passed.Load() != 51 {
			t.Errorf("asked %d times, %d passed", asked.Load(), passed.Load())
		}
	})
}

// A state that hangs costs a bounded time, one that panics blocks nobody.
func TestStateHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := true
		l := limit.New(limit.Config{Spent: func(ctx context.Context, key state.KeyID, _ time.Time) (int64, error) {
			if !broken {
				return 0, nil
			}
			if key == "panics" {
				panic("broken")
			}
			<-ctx.Done()
			return 0, ctx.Err()
		}})
		start := time.Now()
		if _, _, err := ask(t.Context(), l, &state.Key{ID: "k", MonthlyTokens: 1}, 1); err == nil || time.Since(start) > 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		panics := &state.Key{ID: "panics", MonthlyTokens: 1}
		func() {
			defer func() { recover() }()
			ask(t.Context(), l, panics, 1)
			t.Error("the panic is swallowed")
		}()
		broken = false
		take(t, l, panics, 1)
	})
}
