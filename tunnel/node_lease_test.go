package tunnel

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/tunnel/wire"
)

// leasedOpen announces a body and a lease.
func leasedOpen(body int) *wire.Open {
	o := tunnelOpen()
	o.BodyLength, o.ExpectsLease, o.Lease = uint64(body), true, &wire.LeaseBinding{Slot: "s"}
	return o
}

// awaitLease is a handler that waits for its lease and tells how that went.
func awaitLease(results chan<- error) handlerFunc {
	return func(ctx context.Context, run *NodeRun) {
		run.Phase(execution.PhaseAdmitted)
		_, _ = io.Copy(io.Discard, run)
		_, err := run.Lease(ctx)
		results <- err
		if err == nil {
			run.Phase(execution.PhaseProviderCalled)
			run.End(execution.Terminal{Outcome: execution.Completed})
		}
	}
}

// A LEASE that breaks the contract costs its run, and no other.
func TestLeaseFaultsAtTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ks keepers
		results := make(chan error, 64)
		n := newNodeRig(t, awaitLease(results), ks.config)
		p := n.online(1)
		id := uint32(0)
		for _, c := range []struct {
			name   string
			open   *wire.Open
			leases []int // sizes
			want   string
		}{
			{"before the body", leasedOpen(3), []int{5}, "before the last 3 bytes"},
			{"empty", leasedOpen(0), []int{0}, "0 bytes"},
			{"too long", leasedOpen(0), []int{wire.MaxLease + 1}, "8193 bytes"},
			{"not announced", tunnelOpen(), []int{5}, "not announced"},
			{"twice", func() *wire.Open { o := leasedOpen(0); o.RunId = "twice"; return o }(), []int{5, 5}, "twice"},
		} {
			id++
			message := p.frame(wire.TypeOpen, 0, id, marshal(t, c.open))
			for _, size := range c.leases {
				message = append(message, p.frame(wire.TypeLease, 0, id, make([]byte, size))...)
			}
			p.raw(message)
			var end wire.End
			if f := p.expect(wire.TypeEnd, &end); f.Stream != id {
				t.Fatalf("%s: END of stream %d", c.name, f.Stream)
			}
			if end.Outcome != uint32(execution.Failed) || end.Code != uint32(execution.CodeProtocol) || !strings.Contains(end.Detail, c.want) {
				t.Errorf("%s: %v", c.name, &end)
			}
			if err := <-results; err == nil {
				t.Errorf("%s: the lease was given away", c.name)
			}
		}
		p.send(wire.TypeOpen, id+1, leasedOpen(2))
		p.sendBytes(wire.TypeBody, id+1, []byte("ok"))
		p.sendBytes(wire.TypeLease, id+1, make([]byte, wire.MaxLease))
		var end wire.End
		p.expect(wire.TypeEnd, &end)
		if err := <-results; err != nil || end.Outcome != uint32(execution.Completed) {
			t.Errorf("the witness: %v, %v", err, &end)
		}
		p.close()
		n.close()
	})
}

// A run that waits for its lease is cancelled as any other: one END, in the phase that it has reached.
func TestCancelledWhileItWaitsForTheLease(t *testing.T) {
	for _, c := range []struct {
		name   string
		cause  func(n *nodeRig, p *fakePeer)
		code   execution.Code
		silent bool // no END can come
	}{
		{"CANCEL", func(_ *nodeRig, p *fakePeer) {
			p.send(wire.TypeCancel, 1, &wire.Cancel{Code: uint32(execution.CodeClientGone)})
		}, execution.CodeClientGone, false},
		{"the deadline", func(*nodeRig, *fakePeer) { time.Sleep(time.Minute) }, execution.CodeDeadline, false},
		{"the Node's drain", func(n *nodeRig, _ *fakePeer) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = n.sup.Drain(ctx)
		}, execution.CodeDrainDeadline, false},
		{"the session's end", func(_ *nodeRig, p *fakePeer) { p.close() }, execution.CodeSessionLost, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			var ks keepers
			results := make(chan error, 1)
			n := newNodeRig(t, awaitLease(results), ks.config)
			p := n.online(1)
			open := leasedOpen(2)
			open.TimeoutMs = 60_000
			p.send(wire.TypeOpen, 1, open)
			p.sendBytes(wire.TypeBody, 1, []byte("ok"))
			synctest.Wait()
			select {
			case err := <-results:
				t.Errorf("%s: no wait: %v", c.name, err)
			default:
			}
			c.cause(n, p)
			var cancelled *CancelError
			if err := <-results; !errors.As(err, &cancelled) || cancelled.Code != c.code {
				t.Errorf("%s: %v", c.name, err)
			}
			if !c.silent {
				var end wire.End
				p.expect(wire.TypeEnd, &end)
				if end.Outcome != uint32(execution.Cancelled) || end.Code != uint32(c.code) || end.Phase != uint32(execution.PhaseAdmitted) {
					t.Errorf("%s: %v", c.name, &end)
				}
				p.sendBytes(wire.TypeLease, 1, []byte("late")) // dropped
			}
			synctest.Wait()
			p.close()
			n.close()
		})
	}
}

// The handler may wait for less than the run's time. A lease for a run that was rejected is dropped.
func TestLeaseThatNobodyWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ks keepers
		n := newNodeRig(t, func(ctx context.Context, run *NodeRun) {
			short, cancel := context.WithTimeout(ctx, 15*time.Second)
			defer cancel()
			if _, err := run.Lease(short); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
			run.End(execution.Terminal{Outcome: execution.Failed, Code: execution.CodeCredentialRejected})
			_, _ = io.Copy(io.Discard, run)
		}, ks.config)
		p := n.online(1)
		began := time.Now()
		p.send(wire.TypeOpen, 1, leasedOpen(1))
		var end wire.End
		p.expect(wire.TypeEnd, &end)
		if end.Code != uint32(execution.CodeCredentialRejected) || time.Since(began) != 15*time.Second {
			t.Errorf("after %v: %v", time.Since(began), &end)
		}
		p.sendBytes(wire.TypeBody, 1, []byte("b"))
		p.sendBytes(wire.TypeLease, 1, []byte("late"))
		p.send(wire.TypeHeartbeat, 0, &wire.Heartbeat{Id: 1})
		p.expect(wire.TypeHeartbeatAck, nil)
		p.close()
		n.close()
	})
}

// The END of a run whose lease the Node refused is the run's terminal at the Edge, and the lease was sent: nothing else
// is tried.
func TestRefusedLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ks keepers
		r := newRigWith(t, func(ctx context.Context, run *NodeRun) {
			run.Phase(execution.PhaseAdmitted)
			if _, err := run.Lease(ctx); err != nil {
				t.Error(err)
			}
			run.End(execution.Terminal{Outcome: execution.Failed, Code: execution.CodeCredentialRejected})
		}, rigOptions{supervisor: ks.config})
		run := leased(t, r.session(), nil, token("bad"))
		_, _, end := collect(t, run)
		if end.Outcome != execution.Failed || end.Code != execution.CodeCredentialRejected || end.Phase != execution.PhaseAdmitted || !run.LeaseSent() {
			t.Errorf("%+v", end)
		}
		r.close()
		r.checkEmpty()
	})
}
