package tunnel

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/tunnel/wire"
)

// A hundred sessions die while their streams wait for credit, in both directions: every goroutine returns. (A bubble
// that is left with one fails the test.)
func TestKilledSessionsLeaveNoGoroutine(t *testing.T) {
	stuck := func(_ context.Context, run *NodeRun) {
		_ = run.Head(&wire.Head{Status: 200})
		for run.Write(make([]byte, 8192), false) == nil {
		}
	}
	body := make([]byte, 70<<10)
	synctest.Test(t, func(t *testing.T) {
		var rigs []*rig
		for range 100 {
			r := newRig(t, false, stuck)
			s := r.session()
			for range 2 {
				open(t, s, body)
			}
			rigs = append(rigs, r)
		}
		synctest.Wait()
		for _, r := range rigs {
			if e, n := r.acc.Metrics().CreditStalls.Load(), r.sup.cfg.Metrics.CreditStalls.Load(); e < 2 || n < 2 {
				t.Fatalf("%d and %d streams wait for credit", e, n)
			}
			for _, s := range r.acc.all() {
				s.link.conn.kill()
			}
		}
		for _, r := range rigs {
			r.close()
			r.checkEmpty()
		}
	})
}

// The run's deadline passes at the very moment of its completion: one terminal at each end, nothing left.
func TestDeadlineAtCompletion(t *testing.T) {
	for _, early := range []time.Duration{-time.Millisecond, 0, time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			const deadline = 100 * time.Millisecond
			r := newRig(t, false, func(_ context.Context, run *NodeRun) {
				_ = run.Head(&wire.Head{Status: 200})
				time.Sleep(deadline - early)
				_ = run.Write([]byte("done"), true)
				run.End(execution.Terminal{Outcome: execution.Completed})
				run.End(execution.Terminal{Outcome: execution.Failed})
			})
			s := r.session()
			for range 20 {
				spec := tunnelOpen()
				spec.TimeoutMs = uint32(deadline.Milliseconds())
				var released atomic.Int32
				run, err := s.Open(OpenSpec{Open: spec, Released: func() { released.Add(1) }})
				if err != nil {
					t.Fatal(err)
				}
				_, body, end := collect(t, run)
				switch {
				case end.Outcome == execution.Completed && string(body) == "done":
				case end.Outcome == execution.Cancelled && end.Code == execution.CodeDeadline && early <= 0:
				default:
					t.Errorf("%v early: %q, %+v", early, body, end)
				}
				synctest.Wait()
				if b, ok := run.Take(); ok {
					t.Errorf("after the end: %+v", b)
				}
				if n := released.Load(); n != 1 {
					t.Errorf("released %d times", n)
				}
			}
			if n := s.OpenRuns(); n != 0 {
				t.Errorf("%d runs are open", n)
			}
			r.close()
			r.checkEmpty()
		})
	}
}

// A Node that has stopped, its connection up, is offline within 46 seconds; each of its runs gets one terminal.
func TestDeadPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var link *fakeLink
		r := newRigWith(t, func(ctx context.Context, _ *NodeRun) { <-ctx.Done() }, rigOptions{
			wrap: func(c net.Conn) net.Conn { link = newFakeLink(c, 1<<20, 0); return link },
		})
		s := r.session()
		var runs []*Run
		var released atomic.Int32
		for range 10 {
			run, err := s.Open(OpenSpec{Open: tunnelOpen(), Released: func() { released.Add(1) }})
			if err != nil {
				t.Fatal(err)
			}
			runs = append(runs, run)
		}
		time.Sleep(17 * time.Second)
		link.stall()
		stalled := time.Now()
		<-s.Done()
		if gone := time.Since(stalled); gone > 46*time.Second {
			t.Errorf("offline after %v", gone)
		}
		for _, run := range runs {
			if _, _, end := collect(t, run); end.Outcome != execution.Failed || end.Code != execution.CodeSessionLost {
				t.Errorf("end %+v", end)
			}
			if b, ok := run.Take(); ok {
				t.Errorf("after the end: %+v", b)
			}
		}
		if n := released.Load(); n != 10 {
			t.Errorf("%d places released, want 10", n)
		}
		var end *EndError
		if err := <-r.dir.gone; !errors.As(err, &end) || end.Code != "heartbeat_timeout" || end.Remote {
			t.Errorf("gone: %v", err)
		}
		if r.session().Generation() <= s.Generation() { // the Node saw it too, and came back
			t.Error("the new session has no greater generation")
		}
		r.close()
		r.checkEmpty()
	})
}

// The Node's old connection lives on at the Edge while the Node has a new one. What still comes from the old one, its
// error above all, does not touch the new one.
func TestOldConnectionHalfLives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var links []*fakeLink
		r := newRigWith(t, echo, rigOptions{
			wrap: func(c net.Conn) net.Conn {
				l := newFakeLink(c, 1<<20, 0)
				links = append(links, l)
				return l
			},
		})
		old := r.session()
		stuck := open(t, old, nil)
		collect(t, stuck)
		// The old connection goes dumb; only the Node notices, because its machine slept.
		links[0].stall()
		r.sup.endAll(&EndError{Code: goodbyeClock, Message: "test"})
		poke(r.sup.kick)
		s := r.session()
		if s.Generation() <= old.Generation() {
			t.Fatalf("generation %d after %d", s.Generation(), old.Generation())
		}
		if _, got, end := collect(t, open(t, s, []byte("hello"))); string(got) != "hello" || end.Outcome != execution.Completed {
			t.Errorf("%q, %+v", got, end)
		}
		// Now the old one's late errors arrive.
		links[0].resume()
		_ = links[0].Close()
		<-old.Done()
		old.Fence(execution.CodeSessionSuperseded, "late")
		if _, err := old.Open(OpenSpec{Open: tunnelOpen()}); !errors.Is(err, ErrSessionClosed) {
			t.Errorf("open on the old session: %v", err)
		}
		time.Sleep(2 * time.Minute)
		if _, got, end := collect(t, open(t, s, []byte("still"))); string(got) != "still" || end.Outcome != execution.Completed {
			t.Errorf("%q, %+v", got, end)
		}
		if st := r.sup.Status(); st.State != StateOnline || st.Generation != s.Generation() {
			t.Errorf("status %+v", st)
		}
		r.close()
		r.checkEmpty()
	})
}

// A fenced session gives each run its terminal before Fence returns, and drops what still arrives.
func TestFence(t *testing.T) {
	e := newEdgeRig(t, nil)
	p, s := e.node("n")
	var runs []*Run
	for range 3 {
		runs = append(runs, open(t, s, nil))
		p.expect(wire.TypeOpen, nil)
	}
	s.Fence(execution.CodeSessionSuperseded, "a newer session took over")
	for _, run := range runs {
		b, ok := run.Take()
		if !ok || b.End == nil || b.End.Outcome != execution.Failed || b.End.Code != execution.CodeSessionSuperseded {
			t.Errorf("right after Fence: %+v", b)
		}
	}
	p.send(wire.TypeHead, 1, &wire.Head{Status: 200})
	p.send(wire.TypeEnd, 1, &wire.End{Outcome: 1})
	if bye := p.goodbye(); bye.Code != "session_superseded" || bye.Message != "a newer session took over" {
		t.Errorf("goodbye %v", bye)
	}
	for _, run := range runs {
		if b, ok := run.Take(); ok {
			t.Errorf("after the end: %+v", b)
		}
	}
	p.close()
	e.close()
}

// A thousand cancels in a second: heartbeats and another run go on, each run has its one terminal.
func TestThousandCancelsASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRigWith(t, func(ctx context.Context, run *NodeRun) {
			_ = run.Head(&wire.Head{Status: 200})
			for run.Write(make([]byte, 500), true) == nil {
				time.Sleep(10 * time.Millisecond)
			}
		}, rigOptions{wrap: func(c net.Conn) net.Conn { return newFakeLink(c, 64<<10, 8<<20) }})
		s := r.session()
		steady := open(t, s, nil)
		var steadyBytes atomic.Int64
		steadyDone := make(chan struct{})
		go func() {
			defer close(steadyDone)
			for {
				b, ok := steady.Take()
				if !ok {
					<-steady.Ready()
					continue
				}
				steadyBytes.Add(int64(len(b.Data)))
				if b.End != nil {
					return
				}
			}
		}()
		const cancels = 1000
		var wg sync.WaitGroup
		for i := range cancels {
			run := open(t, s, nil)
			wg.Go(func() {
				time.Sleep(time.Duration(i%7) * 3 * time.Millisecond)
				run.Cancel(execution.CodeClientGone, "gone")
				run.Cancel(execution.CodeClientGone, "gone again")
				if _, _, end := collect(t, run); end.Outcome != execution.Cancelled {
					t.Errorf("end %+v", end)
				}
			})
			time.Sleep(time.Millisecond)
		}
		wg.Wait()
		time.Sleep(time.Minute)
		if n := r.acc.Metrics().HeartbeatTimeouts.Load() + r.acc.Metrics().ProtocolErrors.Load() + r.acc.Metrics().StreamErrors.Load() + r.acc.Metrics().CancelTimeouts.Load(); n != 0 {
			t.Errorf("%d faults", n)
		}
		if steadyBytes.Load() < 60*45_000 {
			t.Errorf("the steady run had %d bytes", steadyBytes.Load())
		}
		if s.OpenRuns() != 1 {
			t.Errorf("%d runs are open", s.OpenRuns())
		}
		steady.Cancel(execution.CodeClientGone, "enough")
		<-steadyDone
		r.close()
		r.checkEmpty()
	})
}

// The Edge restarts under a thousand Nodes: all are back in seconds, and not in one wave.
func TestReconnectStorm(t *testing.T) {
	nodes := 1000
	if raceDetector {
		nodes = 150
	}
	synctest.Test(t, func(t *testing.T) {
		e := newEdgeRig(t, nil)
		ctx, stop := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		for range nodes {
			sup, err := NewSupervisor(SupervisorConfig{
				URL: "ws://edge.test", Node: "n", Handler: handlerFunc(echo), Logger: testLogger(),
				DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
					return e.current().dial(ctx, network, addr)
				},
				Describe: func() *NodeInfo { return &NodeInfo{} },
			})
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() { _ = sup.Run(ctx) })
		}
		for range nodes {
			<-e.dir.online
		}
		e.restart(2 * time.Second) // for so long every dial is refused
		back := time.Now()
		waves := make(map[int]int)
		for range nodes {
			<-e.dir.online
			waves[int(time.Since(back)/(100*time.Millisecond))]++
		}
		if d := time.Since(back); d > 5*time.Second {
			t.Errorf("all are back after %v", d)
		}
		for tenth, n := range waves {
			if n > nodes/5 {
				t.Errorf("%d of %d came within the same tenth of a second, %d00 ms after the restart", n, nodes, tenth)
			}
		}
		stop()
		wg.Wait()
		e.close()
	})
}

// current is the network that the Edge listens on now.
func (e *edgeRig) current() *pipeNet {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.net
}

// restart ends the Edge as if it were killed, and starts another one after a pause.
func (e *edgeRig) restart(pause time.Duration) {
	_ = e.current().Close()
	for _, s := range e.acc.all() {
		s.link.conn.kill()
	}
	e.acc.Close()
	_ = e.srv.Close()
	e.wg.Wait()
	time.Sleep(pause)
	var err error
	if e.acc, err = NewAcceptor(e.acc.cfg); err != nil {
		e.t.Fatal(err)
	}
	e.srv = &http.Server{Handler: e.acc}
	n := newPipeNet()
	e.wg.Go(func() { _ = e.srv.Serve(n) })
	e.mu.Lock()
	e.net = n
	e.mu.Unlock()
}

// What arrives is what was sent, whatever the sizes and the pace of both sides.
func TestRandomSizesArriveWhole(t *testing.T) {
	r := newRig(t, true, echo)
	s := r.session()
	var wg sync.WaitGroup
	for seed := range uint64(20) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 1))
			body := make([]byte, rng.IntN(200<<10))
			for i := range body {
				body[i] = byte(rng.Uint32())
			}
			if _, got, end := collect(t, open(t, s, body)); !bytes.Equal(got, body) || end.Outcome != execution.Completed {
				t.Errorf("seed %d: %d of %d bytes, %+v", seed, len(got), len(body), end)
			}
		})
	}
	wg.Wait()
	r.close()
	r.checkEmpty()
}
