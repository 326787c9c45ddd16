package meter_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"iop/execution"
	"iop/gateway/meter"
	"iop/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run is the record of the n-th run.
func run(n int) state.UsageRecord {
	return state.UsageRecord{Run: execution.RunID(fmt.Sprint("run_", n)), Key: "k", Started: time.Now(),
		Outcome: execution.Completed, Usage: execution.Usage{Input: 1, Known: true}}
}

// store is a state that can fail and hang.
type store struct {
	mu      sync.Mutex
	runs    []execution.RunID
	calls   int
	biggest int
	prunes  []time.Time

	add   func(ctx context.Context) error // or nil: it works
	prune func() (int64, error)           // or nil
}

func (s *store) AddUsage(ctx context.Context, records []state.UsageRecord) error {
	s.mu.Lock()
	s.calls++
	s.biggest = max(s.biggest, len(records))
	add := s.add
	s.mu.Unlock()
	if add != nil {
		if err := add(ctx); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range records {
		s.runs = append(s.runs, r.Run)
	}
	return nil
}

func (s *store) PruneUsage(_ context.Context, before time.Time) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prunes = append(s.prunes, before)
	if s.prune != nil {
		return s.prune()
	}
	return 0, nil
}

// set changes how AddUsage behaves.
func (s *store) set(add func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add = add
}

// want checks that exactly the runs 0 to n-1 are there, each once and in order.
func (s *store) want(t *testing.T, n int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.runs) != n {
		t.Errorf("%d runs are written, want %d", len(s.runs), n)
	}
	for i, id := range s.runs {
		if id != run(i).Run {
			t.Fatalf("run %d is %s", i, id)
		}
	}
}

// start runs a Meter; stop ends it, waits and returns how long that took.
func start(t *testing.T, cfg meter.Config) (m *meter.Meter, log *bytes.Buffer, stop func() time.Duration) {
	log = new(bytes.Buffer)
	cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	m = meter.New(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { m.Run(ctx) })
	stop = func() time.Duration {
		began := time.Now()
		cancel()
		wg.Wait()
		return time.Since(began)
	}
	t.Cleanup(func() { stop() })
	return m, log, stop
}

var errFull = errors.New("disk full")

func fail(context.Context) error { return errFull }

func hang(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// A record is written within the Interval, together with what came beside it.
func TestWrittenWithinInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		m, log, _ := start(t, meter.Config{Store: s})
		time.Sleep(time.Hour) // idle, it asks nothing of the store
		for i := range 2500 {
			m.Record(run(i))
		}
		time.Sleep(500*time.Millisecond - 1)
		s.want(t, 0)
		time.Sleep(1 + time.Nanosecond)
		synctest.Wait()
		s.want(t, 2500)
		if s.calls != 3 || s.biggest != 1000 {
			t.Errorf("%d calls of up to %d", s.calls, s.biggest)
		}
		m.Record(run(2500))
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		s.want(t, 2501)
		if got := m.Stats(); got != (meter.Stats{Written: 2501}) || log.Len() > 0 {
			t.Errorf("%+v, log %s", got, log)
		}
	})
}

func TestNothingLostAtStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		m, _, stop := start(t, meter.Config{Store: s, Interval: time.Hour})
		for i := range 1500 {
			m.Record(run(i))
		}
		if took := stop(); took != 0 {
			t.Errorf("the stop took %v", took)
		}
		s.want(t, 1500)
	})
}

// The stop meets a write that hangs, and then one that fails.
func TestStopInAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{add: hang}
		m, log, stop := start(t, meter.Config{Store: s})
		m.Record(run(0))
		time.Sleep(time.Second)
		m.Record(run(1))
		failures := 2
		s.set(func(context.Context) error {
			if failures--; failures >= 0 {
				return errFull
			}
			return nil
		})
		if took := stop(); took > time.Second {
			t.Errorf("the stop took %v", took)
		}
		s.want(t, 2)
		if strings.Contains(log.String(), "lost") || strings.Contains(log.String(), "canceled") {
			t.Errorf("%s", log)
		}
	})
}

func TestStopIsBounded(t *testing.T) {
	for name, broken := range map[string]func(context.Context) error{"hangs": hang, "fails": fail} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, log, stop := start(t, meter.Config{Store: &store{add: broken}})
				m.Record(run(0))
				if took := stop(); took > 5*time.Second {
					t.Errorf("the stop took %v", took)
				}
				if !strings.Contains(log.String(), "usage was lost") || !strings.Contains(log.String(), "runs=1") {
					t.Errorf("nobody is told: %s", log)
				}
			})
		})
	}
}

// A state that fails for an hour: the oldest records are kept and written once, the newest are dropped, and the log has
// a line for each change.
func TestStateFails(t *testing.T) {
	for name, broken := range map[string]func(context.Context) error{"hangs": hang, "fails": fail} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const buffer = 2000
				s := &store{add: broken}
				m, log, _ := start(t, meter.Config{Store: s, Buffer: buffer})
				for i := range 3600 {
					m.Record(run(i))
					time.Sleep(time.Second)
				}
				got := m.Stats()
				if got.Pending != buffer || got.Dropped != 3600-buffer || got.Written != 0 || got.Failures < 100 || got.Failures > 800 {
					t.Errorf("%+v", got)
				}
				s.set(nil)
				time.Sleep(30 * time.Second)
				s.want(t, buffer)
				if got := m.Stats(); got.Pending != 0 || got.Written != buffer {
					t.Errorf("%+v", got)
				}
				lines := strings.Split(strings.TrimSpace(log.String()), "\n")
				want := []string{"could not be written", "being lost", "written again", "no more usage is lost"}
				if len(lines) != len(want) {
					t.Fatalf("%d lines:\n%s", len(lines), log)
				}
				for i := range want {
					if !strings.Contains(lines[i], want[i]) {
						t.Errorf("line %d: %s, want %q", i, lines[i], want[i])
					}
				}
				if !strings.Contains(lines[3], fmt.Sprint("dropped=", 3600-buffer)) {
					t.Error(lines[3])
				}
			})
		})
	}
}

// Under a load that the state can't take in, the log has a line and not one a batch.
func TestOverload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{add: func(context.Context) error { time.Sleep(100 * time.Millisecond); return nil }}
		m, log, _ := start(t, meter.Config{Store: s, Buffer: 4000})
		for i := range 200_000 { // twice what it writes
			m.Record(run(i))
			if i%20 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		time.Sleep(time.Minute)
		got := m.Stats()
		if got.Dropped == 0 || got.Written+got.Dropped != 200_000 || got.Pending != 0 || got.Failures != 0 {
			t.Errorf("%+v", got)
		}
		if n := strings.Count(log.String(), "\n"); n != 2 {
			t.Errorf("%d lines:\n%s", n, log)
		}
	})
}

// A burst is written before the Interval is over, so that it need not all wait in memory.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		m, _, _ := start(t, meter.Config{Store: s, Interval: time.Hour, Buffer: 100})
		for i := range 1000 {
			m.Record(run(i))
			if i%25 == 0 {
				synctest.Wait()
			}
		}
		synctest.Wait()
		if got := m.Stats(); got.Dropped != 0 || got.Written < 900 {
			t.Errorf("%+v", got)
		}
	})
}

func TestRecordWithoutRun(t *testing.T) {
	m := meter.New(meter.Config{Store: &store{}})
	m.Record(state.UsageRecord{Key: "k"})
	if got := m.Stats(); got != (meter.Stats{Dropped: 1}) {
		t.Errorf("%+v", got)
	}
}

func TestPruning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{prune: func() (int64, error) { return 3, nil }}
		began := time.Now()
		_, log, stop := start(t, meter.Config{Store: s, Retention: 24 * time.Hour})
		time.Sleep(10 * time.Hour)
		stop()
		if n := len(s.prunes); n < 8 || n > 11 {
			t.Errorf("%d prunings in ten hours", n)
		}
		if first := s.prunes[0].Add(24 * time.Hour).Sub(began); first < time.Minute || first > 75*time.Second {
			t.Errorf("the first came after %v", first)
		}
		if n := strings.Count(log.String(), "runs=3"); n != len(s.prunes) {
			t.Errorf("%s", log)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := &store{}
		_, _, stop := start(t, meter.Config{Store: s})
		time.Sleep(10 * time.Hour)
		stop()
		if len(s.prunes) > 0 {
			t.Error("what is to be kept for ever was pruned")
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := &store{prune: func() (int64, error) { return 0, errFull }}
		_, log, stop := start(t, meter.Config{Store: s, Retention: time.Hour})
		time.Sleep(10 * time.Hour)
		stop()
		if n := strings.Count(log.String(), "\n"); n != 1 || len(s.prunes) < 8 {
			t.Errorf("%d lines of %d failures", n, len(s.prunes))
		}
	})
}

// Many goroutines record while others flush, into a real state: each run is there once.
func TestConcurrently(t *testing.T) {
	const goroutines, each = 8, 250
	s, err := state.Open(t.Context(), "sqlite::memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	m, _, stop := start(t, meter.Config{Store: s, Interval: time.Millisecond})
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range each {
				m.Record(run(g*each + i))
				if i%50 == 0 {
					if err := m.Flush(t.Context()); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	if err := m.Flush(t.Context()); err != nil {
		t.Error(err)
	}
	rows, err := s.UsageSummary(t.Context(), state.UsageQuery{})
	if err != nil || rows[0].Runs != goroutines*each || m.Stats().Pending != 0 {
		t.Errorf("%+v, %v", rows, err)
	}
	stop()
	if tokens, err := s.MonthTokens(t.Context(), "k", time.Now()); err != nil || tokens != goroutines*each {
		t.Errorf("%d tokens, %v", tokens, err)
	}
}

// Flush waits for who writes, but no longer than its context.
func TestFlushWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{add: hang}
		m, _, _ := start(t, meter.Config{Store: s})
		m.Record(run(0))
		time.Sleep(time.Second) // Run hangs in the write
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := m.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		began := time.Now()
		m.Record(run(1)) // waits for nobody
		if time.Since(began) != 0 {
			t.Error("Record waited")
		}
	})
}

func TestRecordAllocations(t *testing.T) {
	m := meter.New(meter.Config{Store: &store{}})
	record := run(0)
	for range 2 { // both buffers have grown
		for range 1024 {
			m.Record(record)
		}
		if err := m.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(1000, func() { m.Record(record) }); n > 0 {
		t.Errorf("%v allocations a record", n)
	}
}

// nowhere is a state that costs nothing.
type nowhere struct{}

func (nowhere) AddUsage(context.Context, []state.UsageRecord) error  { return nil }
func (nowhere) PruneUsage(context.Context, time.Time) (int64, error) { return 0, nil }

func BenchmarkRecord(b *testing.B) {
	m := meter.New(meter.Config{Store: nowhere{}})
	record := run(0)
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		n := 0
		for b.Loop() {
			m.Record(record)
			if n++; n%2000 == 0 {
				m.Flush(b.Context())
			}
		}
	})
	b.Run("parallel", func(b *testing.B) {
		ctx, cancel := context.WithCancel(b.Context())
		var wg sync.WaitGroup
		wg.Go(func() { m.Run(ctx) })
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				m.Record(record)
			}
		})
		cancel()
		wg.Wait()
	})
}
