package tunnel

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/tunnel/wire"
)

// Over a thousand random interleavings of events, credit, cancels, deadlines and lost sessions: what has come is a
// beginning of what was sent, in order and without a gap; each run has one end, after which there is nothing; complete
// means all of it; each place is released once.
func TestEventInterleavings(t *testing.T) {
	const rounds = 50
	outcomes := map[execution.Outcome]int{}
	for seed := range uint64(rounds) {
		synctest.Test(t, func(t *testing.T) {
			z := &interleaving{t: t, rng: rand.New(rand.NewPCG(seed, 11)), outcomes: outcomes}
			z.run(25)
		})
	}
	for _, o := range []execution.Outcome{execution.Completed, execution.Failed, execution.Cancelled} {
		if outcomes[o] < 20 {
			t.Errorf("%d runs were %s", outcomes[o], o)
		}
	}
}

// interleaving is one session in which runs are treated at random.
type interleaving struct {
	t        *testing.T
	rng      *rand.Rand
	mu       sync.Mutex
	outcomes map[execution.Outcome]int // guarded by mu
}

// nthEvent is the event that stands at i of every run: of any kind and size, and it says where it stands.
func nthEvent(i int) execution.Event {
	e := execution.Event{Kind: execution.EventText, Text: fmt.Sprintf("%d:", i)}
	switch i % 7 {
	case 1:
		e.Kind = execution.EventReasoning
	case 2:
		e = execution.Event{Kind: execution.EventToolCall, Call: execution.ToolCallDelta{Index: i % 5, Arguments: fmt.Sprint(i)}}
	case 3:
		e.Text += strings.Repeat("z", i*37%9000)
	case 4:
		e = execution.Event{Kind: execution.EventUsage, Usage: &execution.Usage{Input: int64(i), Known: true}}
	}
	return e
}

// serve sends as many events as the run's model says, in groups, with pauses.
func (z *interleaving) serve(ctx context.Context, run *NodeRun) {
	var count, group, pause int
	if _, err := fmt.Sscan(run.Open().GetRun().GetModel(), &count, &group, &pause); err != nil {
		z.t.Error(err)
	}
	run.Phase(execution.PhaseProviderCalled)
	var buf []byte
	for i := 0; i < count; {
		buf = buf[:0]
		for range group {
			if i < count {
				e := nthEvent(i)
				buf = AppendRunEvent(buf, &e)
				i++
			}
		}
		if run.Events(buf) != nil {
			return // cancelled, or the session is over: the tunnel says so
		}
		if pause > 0 {
			select {
			case <-time.After(time.Duration(pause) * time.Millisecond):
			case <-ctx.Done():
				return
			}
		}
	}
	run.Phase(execution.PhaseProviderDone)
	run.End(execution.Terminal{Outcome: execution.Completed})
}

func (z *interleaving) run(runs int) {
	t := z.t
	r := newRig(t, false, z.serve)
	defer func() {
		r.close()
		r.checkEmpty()
	}()
	s := r.session()
	var left sync.WaitGroup
	for range runs {
		count := z.rng.IntN(60)
		spec := normalizedOpen()
		spec.GetRun().Model = fmt.Sprint(count, 1+z.rng.IntN(9), z.rng.IntN(4)*z.rng.IntN(5))
		if z.rng.IntN(5) == 0 {
			spec.TimeoutMs = uint32(1 + z.rng.IntN(60))
		}
		w := &watched{z: z, t: t, count: count, cancelAt: -1, every: time.Duration(z.rng.IntN(4)) * time.Millisecond, direct: z.rng.IntN(4) == 0}
		if z.rng.IntN(3) == 0 {
			w.cancelAt = z.rng.IntN(40)
		}
		w.abandon = w.cancelAt >= 0 && z.rng.IntN(4) == 0
		left.Go(func() { w.follow(s, spec) })
		if z.rng.IntN(2) == 0 {
			time.Sleep(time.Duration(z.rng.IntN(5)) * time.Millisecond)
		}
	}
	if z.rng.IntN(2) == 0 {
		time.Sleep(time.Duration(z.rng.IntN(80)) * time.Millisecond)
		switch z.rng.IntN(3) {
		case 0:
			s.link.conn.kill()
		case 1:
			s.Fence(execution.CodeSessionSuperseded, "chance")
		case 2:
			s.Drain("chance", time.Hour, 0, time.Duration(z.rng.IntN(50))*time.Millisecond)
		}
	}
	left.Wait()
}

// watched is one run, and what its client does.
type watched struct {
	z        *interleaving
	t        *testing.T
	count    int           // events that the Node has
	cancelAt int           // after so many events; -1: never
	abandon  bool          // nothing is taken after the cancel
	every    time.Duration // between two looks: a slow client
	direct   bool          // the reader may pass on what it has

	released atomic.Int32
	mu       sync.Mutex
	reader   EventReader // guarded by mu
	got      int         // guarded by mu
}

// push checks that what has come is what comes next.
func (w *watched) push(data []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.reader.Push(data, func(e *execution.Event) error {
		if want := nthEvent(w.got); !reflect.DeepEqual(*e, want) {
			return fmt.Errorf("event %d is %+v", w.got, *e)
		}
		w.got++
		return nil
	})
	if err != nil {
		w.t.Error(err)
	}
}

func (w *watched) taken() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.got
}

func (w *watched) follow(s *NodeSession, spec *wire.Open) {
	run, err := s.Open(OpenSpec{Open: spec, Released: func() { w.released.Add(1) }})
	if err != nil {
		return // the session has ended, or drains
	}
	if w.direct {
		run.Direct(func() bool {
			data, _, ok := run.TakeData()
			w.push(data)
			return ok
		})
	}
	cancelled := false
	for {
		if w.cancelAt >= 0 && w.taken() >= w.cancelAt && !cancelled {
			cancelled = true
			if w.abandon {
				run.Abandon(execution.CodeClientGone, "chance")
				w.place(run)
				return
			}
			run.Cancel(execution.CodeClientGone, "chance")
		}
		b, ok := run.Take()
		if !ok {
			<-run.Ready()
			continue
		}
		w.push(b.Data)
		if b.End != nil {
			w.end(run, b.End)
			return
		}
		if w.every > 0 {
			time.Sleep(w.every)
		}
	}
}

func (w *watched) end(run *Run, end *execution.Terminal) {
	if again, ok := run.Take(); ok {
		w.t.Errorf("after the end: %+v", again)
	}
	if end.Outcome == execution.Completed && (w.taken() != w.count || len(w.reader.held) != 0) {
		w.t.Errorf("complete with %d events of %d", w.taken(), w.count)
	}
	if end.Code == execution.CodeProtocol || end.Code == execution.CodeInternal || end.Code == execution.CodeFlowControl {
		w.t.Errorf("between two good ends: %+v", end)
	}
	w.z.mu.Lock()
	w.z.outcomes[end.Outcome]++
	w.z.mu.Unlock()
	w.place(run)
}

// place waits until the run's place is free, which is once.
func (w *watched) place(run *Run) {
	for range 60_000 {
		if w.released.Load() > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if n := w.released.Load(); n != 1 {
		w.t.Errorf("stream %d: its place was released %d times", run.id, n)
	}
}
