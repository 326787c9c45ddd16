package tunnel

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/tunnel/wire"
)

// untilGate answers when gate is closed, or as cancelled.
func untilGate(gate <-chan struct{}) handlerFunc {
	return func(ctx context.Context, run *NodeRun) {
		_ = run.Head(&wire.Head{Status: 200})
		select {
		case <-gate:
			_ = run.Write([]byte("done"), true)
			run.End(execution.Terminal{Outcome: execution.Completed})
		case <-ctx.Done():
		}
	}
}

func goneCode(t *testing.T, err error) string {
	t.Helper()
	var end *EndError
	if !errors.As(err, &end) {
		t.Fatalf("gone: %v", err)
	}
	return end.Code
}

// The Edge drains: the Node opens the replacement while the old runs finish, then the old session ends.
func TestEdgeDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		r := newRig(t, false, untilGate(gate))
		old := r.session()
		run := open(t, old, nil)
		synctest.Wait()
		old.Drain("a test", 3*time.Second, 30*time.Second, time.Minute)
		drained := time.Now()
		if _, err := old.Open(OpenSpec{Open: tunnelOpen()}); !errors.Is(err, ErrDraining) {
			t.Errorf("open on a draining session: %v", err)
		}
		s := r.session()
		if d := time.Since(drained); d != 3*time.Second {
			t.Errorf("the replacement came after %v", d)
		}
		if s.Replaces() != old.Generation() || s.Generation() <= old.Generation() {
			t.Errorf("generation %d replaces %d, want %d", s.Generation(), s.Replaces(), old.Generation())
		}
		time.Sleep(20 * time.Second)
		if !old.Draining() || old.OpenRuns() != 1 {
			t.Error("the old session does not live on")
		}
		close(gate)
		if _, body, end := collect(t, run); string(body) != "done" || end.Outcome != execution.Completed {
			t.Errorf("%q, %+v", body, end)
		}
		<-old.Done()
		if code := goneCode(t, <-r.dir.gone); code != "drained" {
			t.Errorf("gone: %s", code)
		}
		if _, _, end := collect(t, open(t, s, nil)); end.Outcome != execution.Completed {
			t.Errorf("on the new session: %+v", end)
		}
		if st := r.sup.Status(); st.State != StateOnline || st.Generation != s.Generation() {
			t.Errorf("status %+v", st)
		}
		r.close()
		r.checkEmpty()
	})
}

// What has not ended by the drain's deadline ends then.
func TestEdgeDrainDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, false, untilGate(nil))
		old := r.session()
		run := open(t, old, nil)
		old.Drain("a test", 0, 0, 20*time.Second)
		began := time.Now()
		_, _, end := collect(t, run)
		if d := time.Since(began); end.Outcome != execution.Cancelled || end.Code != execution.CodeDrainDeadline || d != 20*time.Second {
			t.Errorf("after %v: %+v", d, end)
		}
		if code := goneCode(t, <-r.dir.gone); code != "drain_deadline" {
			t.Errorf("gone: %s", code)
		}
		r.session() // the replacement
		r.close()
		r.checkEmpty()
	})
}

// An idle session ends at once, and the Node still heeds the hint that came with the end.
func TestEdgeDrainsAnIdleSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, false, echo)
		for range 20 { // whichever of the two the Node sees first
			old := r.session()
			began := time.Now()
			old.Drain("a test", 5*time.Second, 30*time.Second, time.Minute)
			<-old.Done()
			if d := time.Since(began); d != 0 {
				t.Errorf("it ended after %v", d)
			}
			synctest.Wait()
			s := r.session()
			if d := time.Since(began); d != 5*time.Second {
				t.Errorf("the replacement came after %v", d)
			}
			r.dir.online <- s
		}
		r.close()
		r.checkEmpty()
	})
}

// Runs that were opened before DRAIN, but are still in the Edge's queue behind it, run.
func TestDrainOvertakesNoRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var links []*fakeLink
		r := newRigWith(t, echo, rigOptions{wrap: func(c net.Conn) net.Conn {
			l := newFakeLink(c, 4096, 0)
			links = append(links, l)
			return l
		}})
		s := r.session()
		links[0].stall()
		body := bytes.Repeat([]byte{'b'}, 20<<10)
		var runs []*Run
		for range 50 {
			runs = append(runs, open(t, s, body))
		}
		s.Drain("a test", 0, time.Minute, time.Minute)
		synctest.Wait()
		links[0].resume()
		for i, run := range runs {
			if _, got, end := collect(t, run); !bytes.Equal(got, body) || end.Outcome != execution.Completed {
				t.Errorf("run %d: %d bytes, %+v", i, len(got), end)
			}
		}
		<-s.Done()
		r.session()
		r.close()
		r.checkEmpty()
	})
}

// The whole Edge drains: new sessions are refused, Nodes are told, runs finish, then every session ends.
func TestAcceptorDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		r := newRig(t, false, untilGate(gate))
		run := open(t, r.session(), nil)
		idle := fakeDial(t, r.net)
		idle.ready("idle")
		<-r.dir.online
		drained := make(chan error, 1)
		go func() { drained <- r.acc.Drain(context.Background()) }()
		var d wire.Drain
		idle.expect(wire.TypeDrain, &d)
		if d.TryForMs == 0 || d.DeadlineMs == 0 {
			t.Errorf("DRAIN %v", &d)
		}
		idle.goodbye()
		synctest.Wait()
		if resp, body := upgrade(t, r.net, nil); resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("a newcomer: %s %s", resp.Status, body)
		}
		time.Sleep(10 * time.Second)
		select {
		case err := <-drained:
			t.Errorf("drained with a run open: %v", err)
		default:
		}
		close(gate)
		if _, _, end := collect(t, run); end.Outcome != execution.Completed {
			t.Errorf("end %+v", end)
		}
		if err := <-drained; err != nil {
			t.Error(err)
		}
		idle.close()
		r.close()
		r.checkEmpty()
	})
}

func TestAcceptorDrainGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, false, untilGate(nil))
		s := r.session()
		run := open(t, s, nil)
		ctx, cancel := context.WithTimeout(context.Background(), 7*time.Second)
		defer cancel()
		if err := r.acc.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Drain: %v", err)
		}
		if b, ok := run.Take(); !ok || b.End == nil && b.Head == nil {
			t.Errorf("batch %+v", b)
		} else if b.End == nil || b.End.Outcome != execution.Cancelled || b.End.Code != execution.CodeShutdown {
			t.Errorf("end %+v", b.End)
		}
		r.close()
		r.checkEmpty()
	})
}

// The Node drains: it takes no new run, its runs finish, it says GOODBYE and Run returns.
func TestNodeDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		r := newRig(t, false, untilGate(gate))
		s := r.session()
		run := open(t, s, nil)
		synctest.Wait()
		drained := make(chan error, 1)
		go func() { drained <- r.sup.Drain(context.Background()) }()
		synctest.Wait()
		if st := r.sup.Status(); st.State != StateDraining || st.Generation != s.Generation() {
			t.Errorf("status %+v", st)
		}
		if _, err := s.Open(OpenSpec{Open: tunnelOpen()}); !errors.Is(err, ErrDraining) {
			t.Errorf("open at a draining Node: %v", err)
		}
		time.Sleep(40 * time.Second)
		close(gate)
		if _, body, end := collect(t, run); string(body) != "done" || end.Outcome != execution.Completed {
			t.Errorf("%q, %+v", body, end)
		}
		if err := <-drained; err != nil {
			t.Error(err)
		}
		if code := goneCode(t, <-r.dir.gone); code != "drained" {
			t.Errorf("gone: %s", code)
		}
		r.close()
		if r.runErr != nil {
			t.Errorf("Run: %v", r.runErr)
		}
		r.checkEmpty()
	})
}

// At the Node's deadline each run still gets its END: the Edge learns that it was the drain, not a lost session.
func TestNodeDrainDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, false, func(ctx context.Context, run *NodeRun) {
			_ = run.Head(&wire.Head{Status: 200})
			for run.Write(make([]byte, 8192), false) == nil { // and more than the client takes
			}
			if c := context.Cause(ctx).(*CancelError); c.Code != execution.CodeDrainDeadline {
				t.Errorf("cause %v", c)
			}
		})
		s := r.session()
		run := open(t, s, nil)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		began := time.Now()
		if err := r.sup.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Drain: %v", err)
		}
		if d := time.Since(began); d < 10*time.Second || d > 12*time.Second {
			t.Errorf("Drain took %v", d)
		}
		if _, _, end := collect(t, run); end.Outcome != execution.Cancelled || end.Code != execution.CodeDrainDeadline {
			t.Errorf("end %+v", end)
		}
		if code := goneCode(t, <-r.dir.gone); code != "drain_deadline" {
			t.Errorf("gone: %s", code)
		}
		r.close()
		r.checkEmpty()
	})
}

// A second signal ends at once.
func TestNodeDrainIsCutShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, false, untilGate(nil))
		s := r.session()
		run := open(t, s, nil)
		synctest.Wait()
		drained := make(chan error, 1)
		go func() { drained <- r.sup.Drain(context.Background()) }()
		time.Sleep(time.Second)
		began := time.Now()
		r.stop()
		if err := <-drained; err != nil || time.Since(began) > time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if _, _, end := collect(t, run); end.Outcome != execution.Failed || end.Code != execution.CodeSessionLost {
			t.Errorf("end %+v", end)
		}
		r.close()
		r.checkEmpty()
	})
}

// What the Edge had sent before it read DRAIN is refused, not lost; what it had not is refused at the Edge.
func TestNodeDrainMeetsOpens(t *testing.T) {
	n := newNodeRig(t, echo, nil)
	p := n.online(1)
	p.hush()
	drained := make(chan error, 1)
	go func() { drained <- n.sup.Drain(context.Background()) }()
	p.expect(wire.TypeDrain, nil)
	var hb wire.Heartbeat
	p.expect(wire.TypeHeartbeat, &hb)
	p.send(wire.TypeOpen, 1, tunnelOpen())
	var end wire.End
	p.expect(wire.TypeEnd, &end)
	if end.Outcome != uint32(execution.Rejected) || end.Code != uint32(execution.CodeDraining) {
		t.Errorf("END %v", &end)
	}
	select {
	case err := <-drained:
		t.Errorf("drained before the Edge had read DRAIN: %v", err)
	default:
	}
	p.send(wire.TypeHeartbeatAck, 0, &wire.HeartbeatAck{Id: hb.Id})
	if bye := p.goodbye(); bye.Code != "drained" {
		t.Errorf("goodbye %v", bye)
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
	p.close()
	n.close()
}

func TestNodeDrainMeetsUnsentOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var link *fakeLink
		r := newRigWith(t, echo, rigOptions{wrap: func(c net.Conn) net.Conn { link = newFakeLink(c, 4096, 0); return link }})
		s := r.session()
		synctest.Wait()
		link.down.setStalled(true)
		body := bytes.Repeat([]byte{'b'}, 60<<10)
		sent := open(t, s, body)
		synctest.Wait() // its OPEN is with the socket, which takes no more
		released := make(chan struct{})
		unsent, err := s.Open(OpenSpec{Open: tunnelOpen(), Released: func() { close(released) }})
		if err != nil {
			t.Fatal(err)
		}
		drained := make(chan error, 1)
		go func() { drained <- r.sup.Drain(context.Background()) }()
		if _, _, end := collect(t, unsent); end.Outcome != execution.Rejected || end.Code != execution.CodeDraining || unsent.OpenWritten() {
			t.Errorf("the unsent run ended as %+v", end)
		}
		<-released
		link.down.setStalled(false)
		// The sent one may have met the Node's refusal, or have been there before it: never a lost session.
		if _, _, end := collect(t, sent); end.Code == execution.CodeSessionLost {
			t.Errorf("the sent run ended as %+v", end)
		}
		if err := <-drained; err != nil {
			t.Error(err)
		}
		r.close()
		r.checkEmpty()
	})
}

// The Node stops while an Edge drains one of its sessions: the runs of both finish.
func TestNodeDrainsAllItsSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		r := newRig(t, false, untilGate(gate))
		old := r.session()
		first := open(t, old, nil)
		old.Drain("a test", 0, time.Minute, time.Hour)
		s := r.session()
		second := open(t, s, nil)
		synctest.Wait()
		drained := make(chan error, 1)
		go func() { drained <- r.sup.Drain(context.Background()) }()
		time.Sleep(30 * time.Second)
		close(gate)
		for _, run := range []*Run{first, second} {
			if _, body, end := collect(t, run); string(body) != "done" || end.Outcome != execution.Completed {
				t.Errorf("%q, %+v", body, end)
			}
		}
		if err := <-drained; err != nil {
			t.Error(err)
		}
		r.close()
		r.checkEmpty()
	})
}

// An Edge that never ends the session that it drains is helped out of it.
func TestEdgeForgetsToEndADrainedSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeRig(t, echo, nil)
		old := n.online(1)
		old.send(wire.TypeDrain, 0, &wire.Drain{DeadlineMs: 20_000})
		began := time.Now()
		next := n.online(2)
		if bye := old.goodbye(); bye.Code != "drain_deadline" || time.Since(began) != 20*time.Second+drainSlack {
			t.Errorf("after %v: %v", time.Since(began), bye)
		}
		old.close()
		next.close()
		n.close()
	})
}

// The replacement is refused for as long as the Edge asked to keep trying; then ordinary backoff begins.
func TestDrainTriesForAsLongAsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeRig(t, echo, nil)
		p := n.online(1)
		_ = n.net.Close() // nobody listens any more
		p.send(wire.TypeDrain, 0, &wire.Drain{TryForMs: 20_000, DeadlineMs: 3_600_000})
		time.Sleep(19 * time.Second)
		dials := n.sup.cfg.Metrics.Dials.Load()
		if dials < 15 { // a second apart at most, half of it in the mean
			t.Errorf("%d dials in 19 s", dials)
		}
		time.Sleep(10 * time.Minute)
		if more := n.sup.cfg.Metrics.Dials.Load() - dials; more > 100 {
			t.Errorf("%d more dials in 10 minutes", more)
		}
		select {
		case <-p.done:
			t.Error("the old session ended")
		default:
		}
		p.close()
		n.close()
	})
}

// An Edge that says DRAIN in every session it accepts does not make the Node spin.
func TestDrainInALoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeRig(t, echo, nil)
		began := time.Now()
		var peers []*fakePeer
		for g := range uint64(20) {
			p := n.online(g + 1)
			p.send(wire.TypeDrain, 0, &wire.Drain{})
			p.send(wire.TypeGoodbye, 0, &wire.Goodbye{Code: "drained"})
			peers = append(peers, p)
		}
		if d := time.Since(began); d < 2*time.Second {
			t.Errorf("20 sessions in %v", d)
		}
		n.stop()
		for _, p := range peers {
			p.close()
		}
		n.close()
	})
}

// Superseded: the runs finish, the session ends with the last of them.
func TestSupersede(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdgeRig(t, nil)
		p, s := e.node("n")
		run := open(t, s, nil)
		p.expect(wire.TypeOpen, nil)
		s.Supersede(time.Minute)
		if _, err := s.Open(OpenSpec{Open: tunnelOpen()}); !errors.Is(err, ErrDraining) {
			t.Errorf("open: %v", err)
		}
		time.Sleep(30 * time.Second)
		p.send(wire.TypeEnd, 1, &wire.End{Outcome: 1})
		if _, _, end := collect(t, run); end.Outcome != execution.Completed {
			t.Errorf("end %+v", end)
		}
		if bye := p.goodbye(); bye.Code != "drained" {
			t.Errorf("goodbye %v", bye)
		}
		p.close()
		e.close()
	})
}

// TestYield: the runs of a Node whose name another process has got finish, then it is told what happened.
func TestYield(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdgeRig(t, nil)
		p, s := e.node("n")
		run := open(t, s, nil)
		p.expect(wire.TypeOpen, nil)
		s.Yield(time.Minute, "another process took over")
		if _, err := s.Open(OpenSpec{Open: tunnelOpen()}); !errors.Is(err, ErrDraining) {
			t.Errorf("open: %v", err)
		}
		time.Sleep(30 * time.Second)
		p.send(wire.TypeEnd, 1, &wire.End{Outcome: 1})
		if _, _, end := collect(t, run); end.Outcome != execution.Completed {
			t.Errorf("end %+v", end)
		}
		if bye := p.goodbye(); bye.Code != "session_superseded" || bye.Message != "another process took over" {
			t.Errorf("goodbye %v", bye)
		}
		if n := e.acc.Metrics().Supersessions.Load(); n != 1 {
			t.Errorf("%d supersessions are counted", n)
		}
		p.close()
		e.close()
	})
}

// TestNotice: the Node logs what the Edge wants its operator to know, and the session goes on.
func TestNotice(t *testing.T) {
	e := newEdgeRig(t, nil)
	p, s := e.node("n")
	s.Notify("name_contested", "two\u202e processes")
	var n wire.Notice
	if f := p.expect(wire.TypeNotice, &n); f.Flags != wire.FlagIgnorable || n.Code != "name_contested" || n.Message != "two\uFFFD processes" {
		t.Errorf("%+v %v", f, &n)
	}
	p.close()
	e.close()

	var log bytes.Buffer // read once the Node has stopped
	node := newNodeRig(t, func(context.Context, *NodeRun) {}, func(c *SupervisorConfig) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	q := node.online(1)
	q.raw(q.frame(wire.TypeNotice, wire.FlagIgnorable, 0, []byte("\x0a\x03odd\x12\x05a\nb c")))
	q.send(wire.TypeHeartbeat, 0, &wire.Heartbeat{Id: 1})
	q.expect(wire.TypeHeartbeatAck, nil)
	q.close()
	node.close()
	if text := log.String(); !strings.Contains(text, "code=odd") || strings.Contains(text, "a\nb") || !strings.Contains(text, "level=WARN") {
		t.Errorf("the log has %q", text)
	}
}

// A body that was not read is no obstacle to a drain.
func TestReadAfterTheEnd(t *testing.T) {
	read := make(chan error, 1)
	r := newRig(t, false, func(_ context.Context, run *NodeRun) {
		run.End(execution.Terminal{Outcome: execution.Rejected, Code: execution.CodeCapacity})
		_, err := io.Copy(io.Discard, run)
		read <- err
	})
	s := r.session()
	run := open(t, s, make([]byte, 1<<20))
	if _, _, end := collect(t, run); end.Outcome != execution.Rejected || end.Code != execution.CodeCapacity {
		t.Errorf("end %+v", end)
	}
	if err := <-read; err == nil {
		t.Error("a body that was cut off was read to its end")
	}
	r.close()
	r.checkEmpty()
}
