package tunnel

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"iop/execution"
	"iop/tunnel/wire"
)

// chaosRun opens one run, treats it badly, and watches over what it may rely on: one terminal, one release.
func chaosRun(t *testing.T, s *NodeSession, rng *rand.Rand) execution.Outcome {
	providers := [...]string{"echo", "flood", "reject", "forget", "wait"}
	spec := tunnelOpen()
	spec.GetProviderTunnel().Provider = providers[rng.IntN(len(providers))]
	if rng.IntN(4) == 0 {
		spec.TimeoutMs = uint32(1 + rng.IntN(30))
	}
	var released atomic.Int32
	run, err := s.Open(OpenSpec{Open: spec, Body: make([]byte, rng.IntN(3)*rng.IntN(100<<10)), Released: func() { released.Add(1) }})
	if err != nil {
		if !errors.Is(err, ErrSessionClosed) && !errors.Is(err, ErrDraining) {
			t.Errorf("open: %v", err)
		}
		return execution.Rejected
	}
	impatience := time.NewTimer(time.Duration(rng.IntN(40)) * time.Millisecond)
	defer impatience.Stop()
	slow := rng.IntN(3) == 0
	for {
		b, ok := run.Take()
		if b.End != nil {
			if again, ok := run.Take(); ok {
				t.Errorf("after the end: %+v", again)
			}
			eventually(t, "the place is released", func() bool { return released.Load() == 1 })
			return b.End.Outcome
		}
		if ok && !slow {
			continue
		}
		select {
		case <-run.Ready():
		case <-impatience.C:
			run.Cancel(execution.CodeClientGone, "impatient")
		}
	}
}

// Everything at once, in real time: runs of every kind, cancels, deadlines, and connections cut under them. Every run
// has its one end, every place is released, every gauge returns to 0.
func TestChaos(t *testing.T) {
	h := byProvider(map[string]handlerFunc{
		"echo": echo, "flood": flood(300 << 10), "forget": func(context.Context, *NodeRun) {},
		"wait": func(ctx context.Context, run *NodeRun) { run.Phase(execution.PhaseAdmitted); <-ctx.Done() },
		"reject": func(_ context.Context, run *NodeRun) {
			run.End(execution.Terminal{Outcome: execution.Rejected, Code: execution.CodeCapacity})
		},
	})
	r := newRigWith(t, h, rigOptions{tcp: true})
	var current atomic.Pointer[NodeSession]
	current.Store(r.session())
	stop := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			select {
			case s := <-r.dir.online:
				current.Store(s)
			case <-stop:
				return
			}
		}
	})
	var outcomes [8]atomic.Int64
	var opened atomic.Int64
	var wg sync.WaitGroup
	for worker := range uint64(40) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(worker, 7))
			for range 40 {
				outcomes[chaosRun(t, current.Load(), rng)].Add(1)
				// Every now and then the session is lost, or drained.
				switch n := opened.Add(1); {
				case n%200 == 0:
					current.Load().link.conn.kill()
				case n%330 == 0:
					current.Load().Drain("chaos", 0, time.Second, 50*time.Millisecond)
				case n%470 == 0:
					current.Load().Fence(execution.CodeSessionSuperseded, "chaos")
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	watch.Wait()
	for _, o := range []execution.Outcome{execution.Completed, execution.Failed, execution.Cancelled, execution.Rejected} {
		if outcomes[o].Load() == 0 {
			t.Errorf("no run was %s", o)
		}
	}
	if n := r.acc.Metrics().ProtocolErrors.Load() + r.acc.Metrics().StreamErrors.Load() + r.sup.cfg.Metrics.ProtocolErrors.Load() + r.sup.cfg.Metrics.StreamErrors.Load(); n != 0 {
		t.Errorf("%d faults between two good ends", n)
	}
	r.close()
	r.checkEmpty()
}

// The writer and those who write in its place never send a frame out of order, nor half of one.
func TestManyWritersOneOrder(t *testing.T) {
	r := newRig(t, true, func(_ context.Context, run *NodeRun) {
		_ = run.Head(&wire.Head{Status: 200})
		for i := range 300 {
			if run.Write([]byte{byte(i), byte(i >> 8)}, true) != nil {
				return
			}
			if i%50 == 0 {
				run.Phase(execution.Phase(2 + i/100))
			}
		}
		run.End(execution.Terminal{Outcome: execution.Completed})
	})
	s := r.session()
	var wg sync.WaitGroup
	for range 30 {
		run := open(t, s, nil)
		wg.Go(func() {
			_, body, end := collect(t, run)
			if end.Outcome != execution.Completed || len(body) != 600 {
				t.Errorf("%d bytes, %+v", len(body), end)
				return
			}
			for i := range 300 {
				if int(body[2*i])|int(body[2*i+1])<<8 != i {
					t.Errorf("byte %d is out of order", 2*i)
					return
				}
			}
		})
	}
	wg.Wait()
	r.close()
	r.checkEmpty()
}
