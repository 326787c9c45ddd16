package limit_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"iop/gateway/limit"
	"iop/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// noSpent is the state of a key that has used nothing.
func noSpent(context.Context, state.KeyID, time.Time) (int64, error) { return 0, nil }

func newLimiter() *limit.Limiter { return limit.New(limit.Config{Spent: noSpent}) }

// ask is what a caller does with a request that is well-formed: it arrives, takes its place, and is taken back where a limit
// or the state refused it.
func ask(ctx context.Context, l *limit.Limiter, key *state.Key, tokens int64) (limit.Hold, *limit.Exceeded, error) {
	if exceeded := l.Arrive(key); exceeded != nil {
		return limit.Hold{}, exceeded, nil
	}
	hold, exceeded, err := l.Take(ctx, key, tokens)
	if exceeded != nil || err != nil {
		l.Withdraw(key)
	}
	return hold, exceeded, err
}

// take asks for a place that must be there.
func take(t testing.TB, l *limit.Limiter, key *state.Key, tokens int64) limit.Hold {
	t.Helper()
	hold, exceeded, err := ask(context.Background(), l, key, tokens)
	if err != nil || exceeded != nil {
		t.Fatalf("refused: %+v, %v", exceeded, err)
	}
	return hold
}

// refused asks for a place that must not be there.
func refused(t testing.TB, l *limit.Limiter, key *state.Key, tokens int64, kind limit.Kind) *limit.Exceeded {
	t.Helper()
	hold, exceeded, err := ask(context.Background(), l, key, tokens)
	if err != nil || exceeded == nil {
		t.Fatalf("not refused by %v: %+v, %v", kind, exceeded, err)
	}
	hold.Settle(1000) // does nothing
	if exceeded.Kind != kind {
		t.Fatalf("refused by %v (%+v), want %v", exceeded.Kind, exceeded, kind)
	}
	// In a bubble they are the same; outside, time goes by.
	if late := exceeded.RetryAfter - time.Until(exceeded.Frees); kind != limit.Budget && (late < 0 || late > time.Second) {
		t.Errorf("%v: is to be tried again in %v, which is %v late", kind, exceeded.RetryAfter, late)
	}
	return exceeded
}

// The N-th request passes, the next one is refused, and passes exactly when it was told to come again.
func TestEdgeOfRequests(t *testing.T) {
	for _, rpm := range []int64{1, 3, 7, 59, 60, 61, 600, 999} {
		synctest.Test(t, func(t *testing.T) {
			l, key := newLimiter(), &state.Key{ID: "k", RPM: rpm}
			for range rpm {
				hold := take(t, l, key, 1)
				hold.Settle(1)
			}
			for range 200 {
				e := refused(t, l, key, 1, limit.Requests)
				if e.Limit != rpm || e.RetryAfter <= 0 || e.RetryAfter > time.Minute/time.Duration(rpm)+1 || e.NoRetry {
					t.Fatalf("%+v", e)
				}
				time.Sleep(e.RetryAfter - 1)
				if again := refused(t, l, key, 1, limit.Requests); again.RetryAfter != 1 {
					t.Fatalf("%d a minute: a nanosecond too early it is told to wait %v", rpm, again.RetryAfter)
				}
				time.Sleep(time.Nanosecond)
				hold := take(t, l, key, 1)
				hold.Settle(1)
			}
		})
	}
}

// Over a long time of requests as early as they may come, not one too many and not one too few passes.
func TestNoDrift(t *testing.T) {
	for _, rpm := range []int64{7, 1001, 7919} {
		synctest.Test(t, func(t *testing.T) {
			l, key := newLimiter(), &state.Key{ID: "k", RPM: rpm}
			start, passed := time.Now(), int64(0)
			for passed < 20*rpm {
				hold, e, _ := ask(t.Context(), l, key, 1)
				if e != nil {
					time.Sleep(e.RetryAfter)
					continue
				}
				hold.Settle(1)
				passed++
			}
			// The last one came when 19 minutes' worth had been refilled.
			if took := time.Since(start); took < 19*time.Minute || took > 19*time.Minute+1 {
				t.Errorf("%d requests at %d a minute took %v", passed, rpm, took)
			}
		})
	}
}

func TestEdgeOfTokens(t *testing.T) {
	for _, tpm := range []int64{1, 999, 1_000_000, state.MaxLimit} {
		synctest.Test(t, func(t *testing.T) {
			l, key := newLimiter(), &state.Key{ID: "k", TPM: tpm}
			for left := tpm; left > 0; {
				n := min(left, max(tpm/7, 1), state.MaxRunTokens)
				take(t, l, key, n) // and its place is never settled: the estimate stands
				left -= n
			}
			for range 100 {
				e := refused(t, l, key, 1, limit.Tokens)
				if s, ok := l.Snapshot(key); e.Limit != tpm || !ok || s.Tokens.Remaining != 0 || s.Tokens.Limit != tpm {
					t.Fatalf("%+v", e)
				}
				time.Sleep(e.RetryAfter - 1)
				if e.RetryAfter > 1 {
					refused(t, l, key, 1, limit.Tokens)
				}
				time.Sleep(time.Nanosecond)
				for taken := int64(0); ; taken++ { // a nanosecond may bring several
					if _, e, _ := ask(t.Context(), l, key, 1); e != nil {
						if taken == 0 {
							t.Fatalf("refused when it should be free: %+v", e)
						}
						break
					}
				}
			}
		})
	}
}

func TestSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, key := newLimiter(), &state.Key{ID: "k", TPM: 600} // ten a second
		remaining := func(want int64) {
			t.Helper()
			if s, ok := l.Snapshot(key); !ok || s.Tokens.Remaining != want {
				t.Errorf("%d remain, want %d", s.Tokens.Remaining, want)
			}
		}
		less, exact, unknown, more := take(t, l, key, 100), take(t, l, key, 100), take(t, l, key, 100), take(t, l, key, 100)
		remaining(200)
		less.Settle(30)
		less.Settle(0)
		less.Release() // only the first counts
		remaining(270)
		exact.Settle(100)
		unknown.Settle(-1)
		remaining(270)
		more.Settle(1100) // a debt
		remaining(0)
		if e := refused(t, l, key, 1, limit.Tokens); e.RetryAfter != (1000-270+1)*100*time.Millisecond {
			t.Errorf("the debt is over in %v", e.RetryAfter)
		}
		time.Sleep(73*time.Second + time.Minute)
		remaining(600)
		run := take(t, l, key, 500)
		run.Release()
		remaining(600)

		full := take(t, l, key, 1_000_000) // above the whole limit: a full bucket is enough
		remaining(0)
		e := refused(t, l, key, 1_000_000, limit.Tokens)
		if e.RetryAfter != time.Minute {
			t.Errorf("a full bucket is there in %v", e.RetryAfter)
		}
		full.Settle(700)
		time.Sleep(10 * time.Second)
		remaining(0)
		time.Sleep(time.Second)
		remaining(10)

		time.Sleep(time.Hour)
		liar := take(t, l, key, 1)
		liar.Settle(1 << 62) // what no run uses
		if e := refused(t, l, key, 1, limit.Tokens); e.RetryAfter > 10*365*24*time.Hour {
			t.Errorf("a lie of a provider blocks the key for %v", e.RetryAfter)
		}
	})
}

func TestConcurrency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, key := newLimiter(), &state.Key{ID: "k", Concurrency: 2}
		a, b := take(t, l, key, 1), take(t, l, key, 1)
		time.Sleep(time.Hour) // time alone frees nothing
		if e := refused(t, l, key, 1, limit.Concurrency); e.RetryAfter != time.Second || e.Limit != 2 {
			t.Errorf("%+v", e)
		}
		a.Settle(-1)
		c := take(t, l, key, 1)
		refused(t, l, key, 1, limit.Concurrency)
		b.Release()
		c.Release()
		other := take(t, l, &state.Key{ID: "other", Concurrency: 1}, 1)
		other.Release()
		take(t, l, key, 1)
		take(t, l, key, 1)
	})
}

// A request that one limit refuses takes nothing from the others, and is told of the one that frees last.
func TestAllOrNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, key := newLimiter(), &state.Key{ID: "k", RPM: 60, TPM: 600, Concurrency: 1, MonthlyTokens: 10_000}
		run := take(t, l, key, 600)
		for range 100 {
			refused(t, l, key, 100, limit.Tokens) // concurrency refuses too, but a second is no use
		}
		run.Settle(0)
		if s, _ := l.Snapshot(key); s.Requests.Remaining != 59 || s.Tokens.Remaining != 600 {
			t.Errorf("%+v", s)
		}
		time.Sleep(time.Minute)
		for range 100 {
			refused(t, l, key, 10_001, limit.Budget)
		}
		run = take(t, l, key, 10_000) // all of the budget is there
		if s, _ := l.Snapshot(key); s.Requests.Remaining != 59 {
			t.Errorf("%+v", s)
		}
		for range 100 {
			refused(t, l, key, 1, limit.Concurrency)
		}
		run.Settle(1)
		time.Sleep(100 * time.Millisecond) // an estimate above the whole limit needs a full bucket
		take(t, l, key, 9999)
	})
}

func TestChangedLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter()
		at := func(rpm, concurrency int64) *state.Key {
			return &state.Key{ID: "k", RPM: rpm, Concurrency: concurrency}
		}
		for range 2 {
			take(t, l, at(2, 0), 1)
		}
		refused(t, l, at(2, 0), 1, limit.Requests)
		refused(t, l, at(2, 2), 1, limit.Requests)
		refused(t, l, at(0, 2), 1, limit.Concurrency) // the two that run are counted though there was no such limit
		take(t, l, at(0, 0), 1)
		take(t, l, at(0, 3), 1)
		refused(t, l, at(0, 3), 1, limit.Concurrency)
		time.Sleep(time.Hour)
		for range 100 {
			take(t, l, at(100, 0), 1)
		}
		if e := refused(t, l, at(100, 0), 1, limit.Requests); e.Limit != 100 || e.RetryAfter != 600*time.Millisecond {
			t.Errorf("%+v", e)
		}
	})
}

func TestKeysWithoutLimits(t *testing.T) {
	l := limit.New(limit.Config{})
	for range 1000 {
		hold := take(t, l, &state.Key{ID: "k"}, 1<<50)
		hold.Settle(1 << 50)
	}
	var zero limit.Hold
	zero.Settle(5)
	zero.Release()
	if _, ok := l.Snapshot(&state.Key{ID: "k", Concurrency: 1}); ok || l.Entries() != 0 {
		t.Errorf("%d entries", l.Entries())
	}
	if _, _, err := ask(t.Context(), l, &state.Key{ID: "k", MonthlyTokens: 1}, 1); err == nil {
		t.Error("a budget that nobody knows the use of was taken for free")
	}
}

func TestMemoryOfIdleKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter()
		running := take(t, l, &state.Key{ID: "runs", Concurrency: 1}, 1)
		for i := range 10_000 {
			hold := take(t, l, &state.Key{ID: state.KeyID(fmt.Sprint(i)), RPM: 1, MonthlyTokens: 10}, 1)
			hold.Settle(1)
		}
		if n := l.Entries(); n != 10_001 {
			t.Fatalf("%d entries", n)
		}
		time.Sleep(10 * time.Minute)
		for i := range 1000 { // new keys make room
			take(t, l, &state.Key{ID: state.KeyID(fmt.Sprint("new", i)), RPM: 1}, 1)
		}
		if n := l.Entries(); n != 1001 {
			t.Errorf("%d entries, want those of new keys and the one that runs", n)
		}
		refused(t, l, &state.Key{ID: "runs", Concurrency: 1}, 1, limit.Concurrency)
		running.Release()
		take(t, l, &state.Key{ID: "runs", Concurrency: 1}, 1)
	})
}

// Many goroutines at one key: never more than the limit run, and all comes back.
func TestHammer(t *testing.T) {
	const places = 7
	l := newLimiter()
	key := &state.Key{ID: "k", Concurrency: places, TPM: state.MaxLimit, RPM: state.MaxLimit, MonthlyTokens: state.MaxLimit}
	var running, most, passed atomic.Int64
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			for range 300 {
				hold, exceeded, err := ask(context.Background(), l, key, 10)
				if err != nil {
					t.Error(err)
				}
				if exceeded != nil {
					continue
				}
				n := running.Add(1)
				for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
				}
				passed.Add(1)
				l.Snapshot(key)
				running.Add(-1)
				hold.Settle(5)
			}
		})
	}
	wg.Wait()
	if most.Load() > places || passed.Load() == 0 {
		t.Errorf("%d ran at once, %d in all", most.Load(), passed.Load())
	}
	for range places {
		take(t, l, key, 1)
	}
	refused(t, l, key, 1, limit.Concurrency)
}

// After any sequence of takes and ends, all is full again.
func TestRandomEndsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(3, 4))
		l := newLimiter()
		key := &state.Key{ID: "k", RPM: 6000, TPM: 100_000, Concurrency: 20, MonthlyTokens: state.MaxLimit}
		var open []limit.Hold
		used := int64(0)
		for range 100_000 {
			switch rng.IntN(3) {
			case 0:
				if hold, e, err := ask(t.Context(), l, key, rng.Int64N(3000)); err != nil {
					t.Fatal(err)
				} else if e == nil {
					open = append(open, hold)
				}
			case 1:
				if len(open) > 0 {
					n := rng.Int64N(3000)
					used += n
					open[0].Settle(n)
					open = open[1:]
				}
			case 2:
				if len(open) > 0 {
					open[len(open)-1].Release()
					open = open[:len(open)-1]
				}
				time.Sleep(time.Duration(rng.Int64N(int64(100 * time.Millisecond))))
			}
			if len(open) > 20 {
				t.Fatalf("%d run", len(open))
			}
		}
		for i := range open {
			open[i].Release()
		}
		time.Sleep(time.Hour)
		want := limit.Snapshot{Requests: limit.Window{Limit: 6000, Remaining: 6000}, Tokens: limit.Window{Limit: 100_000, Remaining: 100_000}}
		if got, ok := l.Snapshot(key); !ok || got != want {
			t.Errorf("%+v", got)
		}
		for range 20 {
			hold := take(t, l, key, 1)
			defer hold.Release()
		}
		refused(t, l, key, 1, limit.Concurrency)
		// The month's use is exact: one token more than what is left is refused, what is left passes.
		exact := &state.Key{ID: "k", MonthlyTokens: used + 20 + 1000}
		refused(t, l, exact, 1001, limit.Budget)
		take(t, l, exact, 1000)
	})
}

func TestHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, key := newLimiter(), &state.Key{ID: "k", RPM: 10, TPM: 7}
		header := func() string {
			s, ok := l.Snapshot(key)
			if !ok {
				t.Fatal("no snapshot")
			}
			h := http.Header{"X-Ratelimit-Limit-Tokens": {"a provider's"}}
			s.Headers(h)
			var text []string
			for _, kind := range []string{"requests", "tokens"} {
				for _, what := range []string{"limit", "remaining", "reset"} {
					text = append(text, strings.Join(h.Values("x-ratelimit-"+what+"-"+kind), ","))
				}
			}
			return strings.Join(text, " ")
		}
		for _, want := range []string{"10 10 0s 7 7 0s", "10 9 6s 7 6 8.572s", "10 8 12s 7 5 17.143s"} {
			if got := header(); got != want {
				t.Errorf("%q, want %q", got, want)
			}
			take(t, l, key, 1)
		}
		time.Sleep(5880 * time.Millisecond)
		key = &state.Key{ID: "k", RPM: 10}
		if got, want := header(), "10 7 12.12s a provider's  "; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		key = &state.Key{ID: "k", TPM: 7}
		time.Sleep(12 * time.Second)
		if got := header(); !strings.HasPrefix(got, "   7 ") {
			t.Errorf("%q", got)
		}
	})
}

func TestMessages(t *testing.T) {
	end := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	for want, e := range map[string]limit.Exceeded{
		"60 requests per minute. Try again in 1.001s.":      {Kind: limit.Requests, Limit: 60, RetryAfter: time.Second + 1},
		"9000 tokens per minute. Try again in 6m0s.":        {Kind: limit.Tokens, Limit: 9000, RetryAfter: 6 * time.Minute},
		"4 concurrent requests.":                            {Kind: limit.Concurrency, Limit: 4, RetryAfter: time.Second},
		"limited to 1 concurrent request. ":                 {Kind: limit.Concurrency, Limit: 1, RetryAfter: time.Second},
		"limited to 1 request per minute. ":                 {Kind: limit.Requests, Limit: 1, RetryAfter: time.Second},
		"5000 tokens per month":                             {Kind: limit.Budget, Limit: 5000, Frees: end, NoRetry: true},
		"next month begins at 2026-12-01T00:00:00Z.":        {Kind: limit.Budget, Limit: 5000, Frees: end, NoRetry: true},
		"reserved by requests in progress. Try again in 1s": {Kind: limit.Budget, Limit: 5000, RetryAfter: time.Second},
	} {
		if got := e.Message(); !strings.Contains(got, want) {
			t.Errorf("%v: %q lacks %q", e.Kind, got, want)
		}
	}
	if limit.Kind(9).String() != "unknown_9" || limit.Budget.String() != "budget" {
		t.Error("names of kinds")
	}
}

var errDown = errors.New("down")

func BenchmarkTakeSettle(b *testing.B) {
	for name, key := range map[string]*state.Key{
		"none":   {ID: "k"},
		"minute": {ID: "k", RPM: state.MaxLimit, TPM: state.MaxLimit, Concurrency: 1000},
		"all":    {ID: "k", RPM: state.MaxLimit, TPM: state.MaxLimit, Concurrency: 1000, MonthlyTokens: state.MaxLimit},
	} {
		l := newLimiter()
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				hold, _, _ := ask(context.Background(), l, key, 100)
				hold.Settle(90)
			}
		})
		b.Run(name+"-parallel", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					hold, _, _ := ask(context.Background(), l, key, 100)
					hold.Settle(90)
				}
			})
		})
	}
}

func TestAllocations(t *testing.T) {
	l := newLimiter()
	key := &state.Key{ID: "k", RPM: state.MaxLimit, TPM: state.MaxLimit, Concurrency: 1, MonthlyTokens: state.MaxLimit}
	if n := testing.AllocsPerRun(1000, func() {
		hold, _, _ := ask(context.Background(), l, key, 100)
		hold.Settle(90)
	}); n > 0 {
		t.Errorf("%v allocations for a request", n)
	}
}
