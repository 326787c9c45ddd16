package tunnel

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"iop/execution"
	"iop/tunnel/wire"
)

// HEARTBEATs go out every 30 s, and a session whose last answer is 45 s old ends then, to the moment; the peer is told.
func TestHeartbeatTimesAtTheEdge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdgeRig(t, nil)
		p, s := e.node("n")
		p.hush()
		ready := time.Now()
		run := open(t, s, nil)
		p.expect(wire.TypeHeartbeat, nil)
		if d := time.Since(ready); d != 30*time.Second {
			t.Errorf("the first HEARTBEAT came after %v", d)
		}
		if bye := p.goodbye(); bye.Code != "heartbeat_timeout" {
			t.Errorf("goodbye %v", bye)
		}
		if d := time.Since(ready); d < 45*time.Second || d > 46*time.Second {
			t.Errorf("the session ended after %v", d)
		}
		if _, _, end := collect(t, run); end.Code != execution.CodeSessionLost || end.Outcome != execution.Failed {
			t.Errorf("end %+v", end)
		}
		var ce websocket.CloseError
		if !errors.As(p.closed, &ce) || ce.Reason != "heartbeat_timeout" {
			t.Errorf("closed: %v", p.closed)
		}
		if n := e.acc.Metrics().HeartbeatTimeouts.Load(); n != 1 {
			t.Errorf("%d timeouts counted", n)
		}
		p.close()
		e.close()
	})
}

func TestHeartbeatTimesAtTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeRig(t, echo, nil)
		p := n.online(1)
		ready := time.Now()
		for i := 1; i <= 3; i++ { // answered
			var hb wire.Heartbeat
			p.expect(wire.TypeHeartbeat, &hb)
			if d := time.Since(ready); d != time.Duration(i)*30*time.Second || hb.Id != uint64(i) {
				t.Errorf("HEARTBEAT %d came after %v", hb.Id, d)
			}
		}
		synctest.Wait()
		p.hush()
		answered := time.Now()
		p.expect(wire.TypeHeartbeat, nil)
		if bye := p.goodbye(); bye.Code != "heartbeat_timeout" {
			t.Errorf("goodbye %v", bye)
		}
		if d := time.Since(answered); d < 45*time.Second || d > 46*time.Second {
			t.Errorf("the session ended %v after the last answer", d)
		}
		p.close()
		next := n.online(2) // the supervisor is back
		next.close()
		n.close()
	})
}

// An answer late by less than the wait saves the session, and the wait counts from it.
func TestLateAnswerSavesTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdgeRig(t, nil)
		p, s := e.node("n")
		p.hush()
		ready := time.Now()
		var hb wire.Heartbeat
		p.expect(wire.TypeHeartbeat, &hb)
		time.Sleep(14900 * time.Millisecond)
		p.send(wire.TypeHeartbeatAck, 0, &wire.HeartbeatAck{Id: hb.Id}) // at 44.9 s
		synctest.Wait()
		if d := s.RTT(); d != 14900*time.Millisecond {
			t.Errorf("round trip %v", d)
		}
		p.goodbye()
		if d := time.Since(ready); d < 89900*time.Millisecond || d > 91*time.Second {
			t.Errorf("the session ended after %v", d)
		}
		p.close()
		e.close()
	})
}

// WebSocket pings carry no liveness: none is answered, none is sent.
func TestPingsAreNotAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdgeRig(t, nil)
		p, s := e.node("n")
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		ponged := make(chan error, 1)
		go func() { ponged <- p.ws.Ping(ctx) }()
		time.Sleep(10 * time.Second)
		select {
		case err := <-ponged:
			t.Errorf("the ping was answered: %v", err)
		default:
		}
		if err := s.Probe(ctx); err != nil {
			t.Errorf("the session does not live beside pings: %v", err)
		}
		e.acc.Close()
		<-ponged
		p.close()
		e.close()
	})
}

func TestProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdgeRig(t, nil)
		p, s := e.node("n")
		if err := s.Probe(context.Background()); err != nil {
			t.Errorf("a living Node: %v", err)
		}
		p.hush()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := s.Probe(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a dumb Node: %v", err)
		}
		if n := len(s.link.beat.waiters); n != 0 {
			t.Errorf("%d probes are left", n)
		}
		_ = p.ws.CloseNow()
		if err := s.Probe(context.Background()); !errors.Is(err, ErrSessionClosed) {
			t.Errorf("a Node that is gone: %v", err)
		}
		p.close()
		e.close()
	})
}

// The clock that jumped against the monotonic one: the Node redials at once.
func TestClockJumpRedials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var jump atomic.Int64
		n := newNodeRigBefore(t, echo, nil, func(n *nodeRig) {
			n.sup.wall = func() time.Time { return time.Now().Round(0).Add(time.Duration(jump.Load())) }
		})
		p := n.online(1)
		time.Sleep(time.Minute)
		synctest.Wait()
		jump.Add(int64(9 * time.Second)) // less than what counts
		time.Sleep(10 * time.Second)
		synctest.Wait()
		select {
		case <-p.done:
			t.Fatal("a small jump ended the session")
		default:
		}
		jump.Add(int64(75 * time.Second))
		slept := time.Now()
		if bye := p.goodbye(); bye.Code != "clock_jump" {
			t.Errorf("goodbye %v", bye)
		}
		next := n.online(2)
		if d := time.Since(slept); d > 5*time.Second {
			t.Errorf("online again after %v", d)
		}
		// Backwards too.
		jump.Add(-int64(time.Hour))
		if bye := next.goodbye(); bye.Code != "clock_jump" {
			t.Errorf("goodbye %v", bye)
		}
		p.close()
		next.close()
		last := n.online(3)
		last.close()
		n.close()
	})
}
