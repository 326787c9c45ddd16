package tunnel

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/tunnel/wire"
)

// flood answers with size bytes of body, as fast as they go.
func flood(size int) handlerFunc {
	return func(_ context.Context, run *NodeRun) {
		run.Phase(execution.PhaseProviderCalled)
		if run.Head(&wire.Head{Status: 200}) != nil {
			return
		}
		chunk := bytes.Repeat([]byte{'x'}, 4096)
		for left := size; left > 0; left -= len(chunk) {
			if run.Write(chunk[:min(left, len(chunk))], false) != nil {
				return
			}
		}
		run.End(execution.Terminal{Outcome: execution.Completed})
	}
}

// byProvider gives each run to the handler that its request names.
func byProvider(handlers map[string]handlerFunc) handlerFunc {
	return func(ctx context.Context, run *NodeRun) { handlers[run.Open().GetProviderTunnel().Provider](ctx, run) }
}

func openFor(t testing.TB, s *NodeSession, provider string, body []byte) *Run {
	t.Helper()
	spec := tunnelOpen()
	spec.GetProviderTunnel().Provider = provider
	run, err := s.Open(OpenSpec{Open: spec, Body: body})
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// awaitBytes takes until n bytes of the run have arrived.
func awaitBytes(t testing.TB, run *Run, n int) {
	t.Helper()
	for n > 0 {
		b, ok := run.Take()
		if !ok {
			<-run.Ready()
			continue
		}
		if b.End != nil {
			t.Fatalf("the run ended: %+v", b.End)
		}
		n -= len(b.Data)
	}
}

// Stalled clients hold their own window's worth of memory and nobody else's time: a live run beside them makes the
// pace that it makes alone.
func TestStalledClients(t *testing.T) {
	const chunks = 200
	live := func(ctx context.Context, run *NodeRun) {
		_ = run.Head(&wire.Head{Status: 200})
		for range chunks {
			time.Sleep(10 * time.Millisecond) // the provider's pace
			if run.Write(bytes.Repeat([]byte{'t'}, 220), true) != nil {
				return
			}
		}
		run.End(execution.Terminal{Outcome: execution.Completed})
	}
	// The wire takes 4 MB a second; time is synthetic, so that the comparison is exact.
	pace := func(t *testing.T, stalled int) (worst time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			var link *fakeLink
			r := newRigWith(t, byProvider(map[string]handlerFunc{"live": live, "flood": flood(64 << 20)}), rigOptions{
				wrap: func(c net.Conn) net.Conn { link = newFakeLink(c, 256<<10, 4<<20); return link },
			})
			s := r.session()
			for range stalled {
				openFor(t, s, "flood", nil)
			}
			time.Sleep(time.Minute) // until every one of them has filled its window
			run := openFor(t, s, "live", nil)
			last := time.Now()
			for got := 0; ; {
				b, ok := run.Take()
				if !ok {
					<-run.Ready()
					continue
				}
				if got += len(b.Data); len(b.Data) > 0 {
					worst = max(worst, time.Since(last))
					last = time.Now()
				}
				if b.End != nil {
					if b.End.Outcome != execution.Completed || got != chunks*220 {
						t.Errorf("%d bytes, %+v", got, b.End)
					}
					break
				}
			}
			if n := s.OpenRuns(); n != stalled {
				t.Errorf("%d runs are open, want %d", n, stalled)
			}
			r.close()
			r.checkEmpty()
		})
		return worst
	}
	alone := pace(t, 0)
	for _, stalled := range []int{1, 100} {
		if worst := pace(t, stalled); worst > 3*alone {
			t.Errorf("beside %d stalled clients the worst gap is %v, alone it is %v", stalled, worst, alone)
		}
	}
}

// Both ends flood each other through the smallest buffers while nobody consumes; then all consume.
func TestBackPressureBothWays(t *testing.T) {
	const runs, size = 8, 192 << 10
	for _, buffer := range []int{0, 4096} {
		synctest.Test(t, func(t *testing.T) {
			gate := make(chan struct{})
			o := rigOptions{}
			if buffer > 0 {
				o.wrap = func(c net.Conn) net.Conn { return newFakeLink(c, buffer, 0) }
			}
			r := newRigWith(t, floodBothWays(size, gate), o)
			s := r.session()
			body := bytes.Repeat([]byte{'u'}, size)
			var list []*Run
			for range runs {
				list = append(list, open(t, s, body))
			}
			synctest.Wait() // both directions have come to a stand
			if e, n := r.acc.Metrics().CreditStalls.Load(), r.sup.cfg.Metrics.CreditStalls.Load(); e < runs || n < runs {
				t.Errorf("%d and %d streams are out of credit, want %d", e, n, runs)
			}
			close(gate)
			var wg sync.WaitGroup
			for _, run := range list {
				wg.Go(func() {
					if _, got, end := collect(t, run); len(got) != size || end.Outcome != execution.Completed {
						t.Errorf("%d bytes, %+v", len(got), end)
					}
				})
			}
			wg.Wait()
			r.close()
			r.checkEmpty()
		})
	}
}

// floodBothWays writes size bytes and, once gate is closed, reads as many.
func floodBothWays(size int, gate chan struct{}) handlerFunc {
	return func(_ context.Context, run *NodeRun) {
		_ = run.Head(&wire.Head{Status: 200})
		written := make(chan error, 1)
		go func() {
			chunk := bytes.Repeat([]byte{'d'}, 8192)
			var err error
			for n := 0; n < size && err == nil; n += len(chunk) {
				err = run.Write(chunk, false)
			}
			written <- err
		}()
		<-gate
		n, err := io.Copy(io.Discard, run)
		if werr := <-written; err != nil || werr != nil || n != int64(size) {
			run.End(execution.Terminal{Outcome: execution.Failed, Detail: fmt.Sprintf("read %d: %v, wrote: %v", n, err, werr)})
			return
		}
		run.End(execution.Terminal{Outcome: execution.Completed})
	}
}

// The link stands still for 12 seconds, in which neither end learns anything: every run goes on after it.
func TestLinkStallsTwelveSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var link *fakeLink
		r := newRigWith(t, echo, rigOptions{wrap: func(c net.Conn) net.Conn { link = newFakeLink(c, 64<<10, 1<<20); return link }})
		s := r.session()
		body := bytes.Repeat([]byte{'e'}, 300<<10)
		var wg sync.WaitGroup
		for range 8 {
			run := open(t, s, body)
			wg.Go(func() {
				if _, got, end := collect(t, run); !bytes.Equal(got, body) || end.Outcome != execution.Completed {
					t.Errorf("%d bytes, %+v", len(got), end)
				}
			})
		}
		time.Sleep(2 * time.Second)
		link.stall()
		time.Sleep(12 * time.Second)
		link.resume()
		wg.Wait()
		if n := r.acc.Metrics().HeartbeatTimeouts.Load(); n != 0 || s.Generation() != r.sup.Status().Generation {
			t.Errorf("%d heartbeat timeouts, generation %d", n, r.sup.Status().Generation)
		}
		r.close()
		r.checkEmpty()
	})
}

// A response of 1 MB over a link of 30 KB/s, ten more streams beside it, four megabytes of buffers in front of the
// wire, and the flood begun at the worst moment: right before a heartbeat is due.
func TestSlowLink(t *testing.T) {
	for _, start := range []time.Duration{0, 29900 * time.Millisecond} {
		t.Run(start.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := byProvider(map[string]handlerFunc{"big": flood(1 << 20), "small": flood(150 << 10)})
				r := newRigWith(t, h, rigOptions{wrap: func(c net.Conn) net.Conn { return newFakeLink(c, 4<<20, 30<<10) }})
				s := r.session()
				time.Sleep(start)
				var wg sync.WaitGroup
				for i := range 11 {
					provider, size := "small", 150<<10
					if i == 0 {
						provider, size = "big", 1<<20
					}
					run := openFor(t, s, provider, nil)
					wg.Go(func() {
						if _, got, end := collect(t, run); len(got) != size || end.Outcome != execution.Completed {
							t.Errorf("%d bytes, %+v", len(got), end)
						}
					})
				}
				wg.Wait()
				if n := r.acc.Metrics().HeartbeatTimeouts.Load() + r.sup.cfg.Metrics.HeartbeatTimeouts.Load(); n != 0 {
					t.Errorf("%d heartbeat timeouts", n)
				}
				r.close()
				r.checkEmpty()
			})
		})
	}
}

// The same towards the Node: a large upload beside others.
func TestSlowLinkUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRigWith(t, echo, rigOptions{wrap: func(c net.Conn) net.Conn { return newFakeLink(c, 4<<20, 30<<10) }})
		s := r.session()
		time.Sleep(29900 * time.Millisecond)
		body := bytes.Repeat([]byte{'u'}, 256<<10)
		var wg sync.WaitGroup
		for range 8 {
			run := open(t, s, body)
			wg.Go(func() {
				if _, got, end := collect(t, run); len(got) != len(body) || end.Outcome != execution.Completed {
					t.Errorf("%d bytes, %+v", len(got), end)
				}
			})
		}
		wg.Wait()
		if n := r.acc.Metrics().HeartbeatTimeouts.Load() + r.sup.cfg.Metrics.HeartbeatTimeouts.Load(); n != 0 {
			t.Errorf("%d heartbeat timeouts", n)
		}
		r.close()
		r.checkEmpty()
	})
}

// One of 32 runs is cancelled while the writer is blocked in the middle of a message: the others finish.
func TestCancelInABlockedWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var link *fakeLink
		r := newRigWith(t, flood(100<<10), rigOptions{wrap: func(c net.Conn) net.Conn { link = newFakeLink(c, 8<<10, 0); return link }})
		s := r.session()
		link.stall()
		var list []*Run
		for range 32 {
			list = append(list, open(t, s, bytes.Repeat([]byte{'u'}, 32<<10)))
		}
		synctest.Wait() // the Edge's writer is blocked by now
		list[7].Cancel(execution.CodeClientGone, "the client left")
		link.resume()
		for i, run := range list {
			_, got, end := collect(t, run)
			if i == 7 {
				if end.Outcome != execution.Cancelled || end.Code != execution.CodeClientGone {
					t.Errorf("the cancelled run ended as %+v", end)
				}
			} else if end.Outcome != execution.Completed || len(got) != 100<<10 {
				t.Errorf("run %d: %d bytes, %+v", i, len(got), end)
			}
		}
		r.close()
		r.checkEmpty()
	})
}

// What a run that never catches up holds at the Node is its queue, not its past.
func TestABusyStreamKeepsNoPast(t *testing.T) {
	var l link
	l.metrics = &Metrics{}
	var s stream
	initStream(&s, &l, 1)
	s.tx.credit = 1 << 30
	l.credit.limit = 1 << 30
	l.now = time.Now
	chunk := make([]byte, 1000)
	for range 1000 {
		for s.tx.queued+len(chunk) <= sendBufferLimit {
			s.appendDataLocked(wire.TypeBody, chunk, false)
		}
		f := fill{buf: make([]byte, 0, wire.MaxMessage)}
		for range 2 {
			l.fillTurnLocked(&f, &s)
		}
		if n := cap(s.tx.queue[0].data); n > 4*sendBufferLimit {
			t.Fatalf("the queue holds %d bytes of memory for %d bytes to send", n, s.tx.queued)
		}
	}
}
