package tunnel

import (
	"bytes"
	"context"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/tunnel/wire"
)

// rxWindow is the present size of a run's window at the Edge.
func rxWindow(r *Run) int {
	r.link.mu.Lock()
	defer r.link.mu.Unlock()
	return r.rx.window
}

// The window of a consumer that keeps up grows to 256 KiB; what it took is returned to the process's budget.
func TestWindowGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, false, flood(8<<20))
		s := r.session()
		run := open(t, s, nil)
		awaitBytes(t, run, 4<<20)
		if n := rxWindow(run); n != 256<<10 {
			t.Errorf("the window is %d", n)
		}
		if n := windowBudget - r.acc.budget.left.Load(); n != 192<<10 {
			t.Errorf("%d bytes of the budget are out", n)
		}
		if _, _, end := collect(t, run); end.Outcome != execution.Completed {
			t.Errorf("end %+v", end)
		}
		if n := r.acc.budget.left.Load(); n != windowBudget {
			t.Errorf("%d bytes of the budget are left", n)
		}
		// So does the Node's, for request bodies.
		r.close()
		r.checkEmpty()
	})
}

// Without budget every stream still has its guaranteed window, and whoever ends makes room for others.
func TestWindowBudgetIsSpent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, false, flood(2<<20))
		s := r.session()
		r.acc.budget.left.Store(64 << 10)
		first, second := open(t, s, nil), open(t, s, nil)
		awaitBytes(t, first, 1<<20)
		awaitBytes(t, second, 1<<20)
		if a, b := rxWindow(first), rxWindow(second); a+b != 3*64<<10 {
			t.Errorf("windows of %d and %d", a, b)
		}
		for _, run := range []*Run{first, second} {
			if _, _, end := collect(t, run); end.Outcome != execution.Completed {
				t.Errorf("end %+v", end)
			}
		}
		if n := r.acc.budget.left.Load(); n != 64<<10 {
			t.Errorf("%d bytes of the budget are left", n)
		}
		r.acc.budget.left.Store(windowBudget)
		r.close()
		r.checkEmpty()
	})
}

// A consumer that takes nothing has at most its window in memory, and the sender at most its queue.
func TestStalledConsumerHoldsAWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, false, flood(16<<20))
		s := r.session()
		run := open(t, s, nil)
		synctest.Wait()
		run.link.mu.Lock()
		got := len(run.rx.buf)
		run.link.mu.Unlock()
		if got != streamWindowMin {
			t.Errorf("%d bytes wait for the consumer", got)
		}
		sent := r.sup.cfg.Metrics.BytesSent.Load()
		time.Sleep(10 * time.Second)
		if more := r.sup.cfg.Metrics.BytesSent.Load() - sent; more > 1000 {
			t.Errorf("%d bytes more were sent to a consumer that takes none", more)
		}
		r.close()
		r.checkEmpty()
	})
}

// A Node that sends more than its credit loses that stream, and nothing else.
func TestOverrunByTheNode(t *testing.T) {
	e := newEdgeRig(t, nil)
	p, s := e.node("n")
	bad, good := open(t, s, nil), open(t, s, nil)
	for range 2 {
		p.expect(wire.TypeOpen, nil)
	}
	for id := range uint32(2) {
		p.send(wire.TypeHead, id+1, &wire.Head{Status: 200})
	}
	for range 3 {
		p.sendBytes(wire.TypeBody, 1, make([]byte, wire.MaxPayload))
	}
	var c wire.Cancel
	if f := p.expect(wire.TypeCancel, &c); f.Stream != 1 || c.Code != uint32(execution.CodeFlowControl) {
		t.Errorf("CANCEL %v on stream %d", &c, f.Stream)
	}
	if _, body, end := collect(t, bad); end.Outcome != execution.Failed || end.Code != execution.CodeFlowControl || len(body) > streamWindowMin {
		t.Errorf("%d bytes, %+v", len(body), end)
	}
	if s.OpenRuns() != 2 {
		t.Error("the capacity place was released before END")
	}
	p.sendBytes(wire.TypeBody, 1, make([]byte, wire.MaxPayload)) // it goes on, and is dropped
	p.send(wire.TypeEnd, 1, &wire.End{Outcome: 3})
	p.sendBytes(wire.TypeBody, 2, []byte("fine"))
	p.send(wire.TypeEnd, 2, &wire.End{Outcome: 1})
	if _, body, end := collect(t, good); string(body) != "fine" || end.Outcome != execution.Completed {
		t.Errorf("the other run: %q, %+v", body, end)
	}
	if s.OpenRuns() != 0 {
		t.Errorf("%d runs are open", s.OpenRuns())
	}
	p.close()
	e.close()
}

// The same the other way: the Node answers END, and its session lives.
func TestOverrunByTheEdge(t *testing.T) {
	blocked := make(chan error, 1)
	n := newNodeRig(t, byProvider(map[string]handlerFunc{
		"stuck": func(ctx context.Context, _ *NodeRun) { <-ctx.Done(); blocked <- context.Cause(ctx) },
		"echo":  echo,
	}), nil)
	p := n.online(1)
	stuck := tunnelOpen()
	stuck.GetProviderTunnel().Provider = "stuck"
	stuck.BodyLength = 1 << 20
	p.send(wire.TypeOpen, 1, stuck)
	for range 3 {
		p.sendBytes(wire.TypeBody, 1, make([]byte, wire.MaxPayload))
	}
	var end wire.End
	if f := p.expect(wire.TypeEnd, &end); f.Stream != 1 || end.Outcome != uint32(execution.Failed) || end.Code != uint32(execution.CodeFlowControl) {
		t.Errorf("END %v on stream %d", &end, f.Stream)
	}
	if err := <-blocked; !strings.Contains(err.Error(), "flow_control") {
		t.Errorf("cause %v", err)
	}
	fine := tunnelOpen()
	fine.GetProviderTunnel().Provider = "echo"
	fine.BodyLength = 4
	p.send(wire.TypeOpen, 2, fine)
	p.sendBytes(wire.TypeBody, 2, []byte("fine"))
	if f := p.expect(wire.TypeBody, nil); string(f.payload) != "fine" {
		t.Errorf("body %q", f.payload)
	}
	p.close()
	n.close()
}

// Credit that can't be: of a stream it costs the stream, of the session the session.
func TestCreditOutOfRange(t *testing.T) {
	e := newEdgeRig(t, nil)
	defer e.close()
	p, s := e.node("n")
	run := open(t, s, nil)
	p.expect(wire.TypeOpen, nil)
	p.sendBytes(wire.TypeWindow, 1, wire.AppendWindow(nil, streamWindowMax))
	if _, _, end := collect(t, run); end.Outcome != execution.Failed || end.Code != execution.CodeProtocol {
		t.Errorf("end %+v", end)
	}
	for name, payload := range map[string][]byte{
		"zero": {0, 0, 0, 0}, "short": {1}, "not in flight": wire.AppendWindow(nil, 1),
	} {
		p.sendBytes(wire.TypeWindow, 0, payload)
		if bye := p.goodbye(); bye.Code != "protocol_error" {
			t.Errorf("%s: goodbye %v", name, bye)
		}
		p.close()
		p, _ = e.node("n")
	}
	p.close()
}

// Credit of the session comes back for every byte of BODY that was read, whatever became of it.
func TestSessionCreditForDroppedFrames(t *testing.T) {
	e := newEdgeRig(t, nil)
	p, s := e.node("n")
	run := open(t, s, nil)
	p.expect(wire.TypeOpen, nil)
	p.send(wire.TypeEnd, 1, &wire.End{Outcome: 1})
	collect(t, run)
	for range 8 { // for a run that has ended
		p.sendBytes(wire.TypeBody, 1, make([]byte, 20<<10))
	}
	for got := 0; got < 8*20<<10-sessionGrantStep; {
		f := p.expect(wire.TypeWindow, nil)
		n, err := wire.ParseWindow(f.payload)
		if err != nil || f.Stream != 0 {
			t.Fatalf("WINDOW on %d: %v", f.Stream, err)
		}
		got += int(n)
	}
	if n := e.acc.Metrics().FramesDropped.Load(); n != 8 {
		t.Errorf("%d frames dropped", n)
	}
	p.close()
	e.close()
}

// The session's window follows the link: down to seconds of a slow one, up again when it is fast.
func TestSessionCreditFollowsTheLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var link *fakeLink
		r := newRigWith(t, flood(1<<30), rigOptions{wrap: func(c net.Conn) net.Conn { link = newFakeLink(c, 16<<10, 100<<10); return link }})
		s := r.session()
		for range 8 {
			run := open(t, s, nil)
			go func() {
				for {
					b, ok := run.Take()
					if !ok {
						<-run.Ready()
					}
					if b.End != nil {
						return
					}
				}
			}()
		}
		limit := func() int {
			session := r.sup.list()[0]
			session.link.mu.Lock()
			defer session.link.mu.Unlock()
			return session.link.credit.limit
		}
		time.Sleep(20 * time.Second)
		if n := limit(); n < 400<<10 || n > 600<<10 {
			t.Errorf("at 100 KiB/s the window is %d", n)
		}
		link.setRate(20 << 10)
		time.Sleep(60 * time.Second)
		if n := limit(); n < 64<<10 || n > 192<<10 { // messages of 64 KiB make the measure coarse
			t.Errorf("at 20 KiB/s the window is %d", n)
		}
		link.setRate(300 << 10)
		time.Sleep(30 * time.Second)
		if n := limit(); n < 1200<<10 || n > 1800<<10 {
			t.Errorf("at 300 KiB/s the window is %d", n)
		}
		if n := r.acc.Metrics().HeartbeatTimeouts.Load(); n != 0 {
			t.Errorf("%d heartbeat timeouts", n)
		}
		r.close()
		r.checkEmpty()
	})
}

func TestSessionCreditArithmetic(t *testing.T) {
	now := time.Unix(0, 0)
	clock := func() time.Time { return now }
	c := sessionCredit{limit: sessionWindowFirst}
	if c.acked(1, clock) {
		t.Error("credit for bytes that were not in flight")
	}
	// Below the grant's step the link is idle, and nothing is measured.
	for range 100 {
		c.sent(10_000, clock)
		now = now.Add(time.Second)
		if !c.acked(10_000, clock) {
			t.Fatal("credit refused")
		}
	}
	if c.limit != sessionWindowStart || c.measured {
		t.Errorf("limit %d, measured %v", c.limit, c.measured)
	}
	// Busy for a second at 200 kB/s.
	c.sent(400_000, clock)
	for range 10 {
		now = now.Add(100 * time.Millisecond)
		c.acked(20_000, clock)
	}
	if c.limit != 1_000_000 || c.room() != 800_000 {
		t.Errorf("limit %d, room %d", c.limit, c.room())
	}
	// Fast enough for the most that it may be.
	for range 50 {
		c.sent(400_000, clock)
		now = now.Add(100 * time.Millisecond)
		c.acked(400_000, clock)
	}
	if c.limit != sessionWindowMax {
		t.Errorf("limit %d", c.limit)
	}
	// A stall longer than the horizon leaves nothing of the past.
	now = now.Add(30 * time.Second)
	c.acked(10_000, clock)
	if c.limit != sessionWindowMin {
		t.Errorf("limit %d after a stall", c.limit)
	}
	if c.room() >= 0 {
		t.Errorf("room %d with %d in flight", c.room(), c.inFlight)
	}
}

func TestRing(t *testing.T) {
	var r ring
	s := make([]*stream, 40)
	for i := range s {
		s[i] = &stream{id: uint32(i)}
	}
	for i := range 20 {
		r.push(s[i])
	}
	for i := range 10 {
		if got := r.pop(); got.id != uint32(i) {
			t.Fatalf("got %d, want %d", got.id, i)
		}
	}
	for i := 20; i < 40; i++ {
		r.push(s[i])
	}
	r.pushFront(s[9])
	r.pushFront(s[8])
	for i := 8; i < 40; i++ {
		if got := r.pop(); got.id != uint32(i) {
			t.Fatalf("got %d, want %d", got.id, i)
		}
	}
	// When it is full.
	for i := range 8 {
		r = ring{}
		for j := range i {
			r.push(s[j+1])
		}
		r.pushFront(s[0])
		for j := range i + 1 {
			if got := r.pop(); got.id != uint32(j) {
				t.Fatalf("%d elements: got %d, want %d", i, got.id, j)
			}
		}
	}
}

// Streams take turns: none waits for a whole body of another's.
func TestStreamsTakeTurns(t *testing.T) {
	e := newEdgeRig(t, nil)
	p, s := e.node("n")
	big := bytes.Repeat([]byte{'b'}, 64<<10)
	for range 4 {
		open(t, s, big)
	}
	last := make(map[uint32]int)
	for range 4 * 4 {
		f := p.expect(wire.TypeBody, nil)
		if f.Length > quantum {
			t.Errorf("a turn of %d bytes", f.Length)
		}
		last[f.Stream]++
		for id := range uint32(4) {
			// The first stream may have had a turn or two before the last was opened.
			if gap := last[f.Stream] - last[id+1]; gap > 4 {
				t.Errorf("stream %d is %d turns ahead of %d", f.Stream, gap, id+1)
			}
		}
	}
	p.close()
	e.close()
}
