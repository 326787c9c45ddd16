package tunnel

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/tunnel/wire"
)

// superseding is a Directory's Ready that does what an Edge does: the former session of the Node drains.
func superseding(d *testDirectory) {
	var former atomic.Pointer[NodeSession]
	d.ready = func(s *NodeSession) error {
		old := former.Swap(s)
		switch {
		case old == nil:
		case old.BootID() == s.BootID() && s.Replaces() == old.Generation():
			old.Supersede(30 * time.Minute)
		default:
			old.Fence(execution.CodeSessionSuperseded, "a newer session")
		}
		return nil
	}
}

// Rotate opens a session with another key beside the present one, whose runs finish there; nothing is cut, and runs
// that it has still get their leases.
func TestRotate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ks keepers
		gate := make(chan struct{})
		r := newRigWith(t, func(ctx context.Context, run *NodeRun) {
			if run.ExpectsLease() {
				withLease(ctx, run)
				return
			}
			untilGate(gate)(ctx, run)
		}, rigOptions{supervisor: ks.config, directory: superseding})
		old := r.session()
		streaming := open(t, old, nil)
		sl := newSealing()
		waiting := leased(t, old, []byte("body"), sl.lease)
		<-sl.began
		synctest.Wait()
		r.sup.Rotate()
		s := r.session()
		if s.Replaces() != old.Generation() || s.BootID() != old.BootID() || string(s.Recipient()) != "key2" || string(old.Recipient()) != "key1" {
			t.Errorf("generation %d replaces %d, keys %q and %q", s.Generation(), s.Replaces(), old.Recipient(), s.Recipient())
		}
		synctest.Wait()
		if st := r.sup.Status(); st.State != StateOnline || st.Generation != s.Generation() {
			t.Errorf("status %+v", st)
		}
		if _, err := old.Open(OpenSpec{Open: tunnelOpen()}); !errors.Is(err, ErrDraining) {
			t.Errorf("a new run on the old session: %v", err)
		}
		if _, body, end := collect(t, leased(t, s, []byte("new"), token("l2"))); string(body) != "l2new" || end.Outcome != execution.Completed {
			t.Errorf("on the new session: %q, %+v", body, end)
		}
		time.Sleep(9 * time.Second)
		close(sl.goOn)
		if _, body, end := collect(t, waiting); string(body) != "sealedbody" || end.Outcome != execution.Completed {
			t.Errorf("what waited: %q, %+v", body, end)
		}
		if ks.get(0).endings() != 0 {
			t.Error("the old key was dropped too soon")
		}
		time.Sleep(10 * time.Minute)
		close(gate)
		if _, body, end := collect(t, streaming); string(body) != "done" || end.Outcome != execution.Completed {
			t.Errorf("what streamed: %q, %+v", body, end)
		}
		<-old.Done()
		if code := goneCode(t, <-r.dir.gone); code != "drained" {
			t.Errorf("gone: %s", code)
		}
		synctest.Wait()
		if ks.get(0).endings() != 1 || ks.get(1).endings() != 0 || r.sup.cfg.Metrics.Rotations.Load() != 1 {
			t.Error("the old key was not dropped, or the new one was")
		}
		r.close()
		r.checkEmpty()
	})
}

// While the new session fails the old one works on, at the pace of any reconnect; what ends it meanwhile is seen.
func TestRotateThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ks keepers
		n := newNodeRig(t, echo, ks.config)
		p := n.online(1)
		synctest.Wait()
		n.sup.Rotate()
		refused := 0
		for range 3 {
			q := <-n.peers
			var req wire.RegisterRequest
			q.expect(wire.TypeRegister, &req)
			if req.ReplacesGeneration != 1 {
				t.Errorf("REGISTER %v", &req)
			}
			q.send(wire.TypeRegistered, 0, &wire.RegisterResponse{Refusal: &wire.Refusal{Code: "wrong_node", Message: "no"}})
			<-q.done
			q.close()
			refused++
			synctest.Wait()
			if st := n.sup.Status(); st.State != StateOnline || st.Generation != 1 || ks.get(refused).endings() != 1 {
				t.Errorf("status %+v after %d refusals", st, refused)
			}
			p.send(wire.TypeOpen, uint32(refused), tunnelOpen())
			var end wire.End
			if p.expect(wire.TypeEnd, &end); end.Outcome != uint32(execution.Completed) {
				t.Errorf("%v", &end)
			}
		}
		n.sup.Rotate() // again: no need to wait for the pause to end
		asked := time.Now()
		q := n.online(5)
		if time.Since(asked) > time.Second {
			t.Errorf("after %v", time.Since(asked))
		}
		synctest.Wait()
		if st := n.sup.Status(); st.State != StateOnline || st.Generation != 5 {
			t.Errorf("status %+v", st)
		}
		p.send(wire.TypeOpen, 9, tunnelOpen()) // it was on its way
		p.expect(wire.TypeEnd, nil)
		began := time.Now()
		<-p.done // an Edge that forgets to end it
		if d := time.Since(began); d < 59*time.Minute || d > 61*time.Minute {
			t.Errorf("the old session ended after %v", d)
		}
		p.close()
		n.sup.Rotate()
		z := <-n.peers // no answer
		z.expect(wire.TypeRegister, nil)
		q.close() // while the new one is being opened
		z.close()
		n.online(7).close()
		n.close()
	})
}

// The Edge's DRAIN and the Node's own end come through while a rotation fails.
func TestRotateMeetsDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeRig(t, echo, nil)
		p := n.online(1)
		synctest.Wait()
		refuse := func() {
			q := <-n.peers
			q.expect(wire.TypeRegister, nil)
			q.send(wire.TypeRegistered, 0, &wire.RegisterResponse{Refusal: &wire.Refusal{Code: "bad_request", Message: "no"}})
			<-q.done
			q.close()
			synctest.Wait()
		}
		n.sup.Rotate()
		refuse()
		p.send(wire.TypeDrain, 0, &wire.Drain{})
		asked := time.Now()
		q := n.online(2)
		if d := time.Since(asked); d > 2*time.Second {
			t.Errorf("DRAIN was followed after %v", d)
		}
		p.close()
		synctest.Wait()
		n.sup.Rotate()
		refuse()
		q.close() // the session that was to be replaced
		lost := time.Now()
		q = n.online(3)
		if d := time.Since(lost); d > 2*time.Second {
			t.Errorf("the loss was seen after %v", d)
		}
		synctest.Wait()
		n.sup.Rotate()
		refuse()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := n.sup.Drain(ctx); err != nil {
			t.Error(err)
		}
		<-n.ran
		if n.runErr != nil {
			t.Error(n.runErr)
		}
		q.close()
		n.close()
	})
}

// Rotate where nothing is connected ends the pause, and asks for nothing more than that attempt brings.
func TestRotateWithoutSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeRig(t, echo, nil)
		p := <-n.peers
		p.expect(wire.TypeRegister, nil)
		p.send(wire.TypeRegistered, 0, &wire.RegisterResponse{Refusal: &wire.Refusal{Code: "identity_expired", Message: "no"}})
		<-p.done
		p.close()
		synctest.Wait()
		for range 5 {
			n.sup.Rotate()
		}
		asked := time.Now()
		p = n.online(1)
		if d := time.Since(asked); d > time.Second {
			t.Errorf("after %v", d)
		}
		time.Sleep(10 * time.Second)
		select {
		case <-n.peers:
			t.Error("one session too many")
		default:
		}
		p.close()
		n.close()
	})
}
