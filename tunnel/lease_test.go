package tunnel

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/tunnel/wire"
)

// testKeeper remembers what it was told.
type testKeeper struct {
	key []byte

	mu     sync.Mutex
	reg    Registration
	times  []time.Duration // the Edge's time less that of its arrival
	spans  []time.Duration // what each answer took
	config []*wire.EdgeConfig
	keys   [][][]byte
	gone   []*wire.Revoke
	ended  int
	fail   error // of the next thing that it is to take
}

func (k *testKeeper) Recipient() []byte { return k.key }

func (k *testKeeper) Registered(r Registration) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reg = r
	return k.fail
}

func (k *testKeeper) EdgeTime(edge, sent, received time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.times = append(k.times, edge.Sub(received))
	k.spans = append(k.spans, received.Sub(sent))
}

func (k *testKeeper) Refreshed(config *wire.EdgeConfig, keys [][]byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.config, k.keys = append(k.config, config), append(k.keys, keys)
	return k.fail
}

func (k *testKeeper) Revoked(r *wire.Revoke) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.gone = append(k.gone, r)
	return k.fail
}

func (k *testKeeper) Ended() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended++
}

func (k *testKeeper) endings() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ended
}

// keepers makes the Keepers of a Supervisor, each with a key of its own.
type keepers struct {
	mu   sync.Mutex
	made []*testKeeper
	fail error // of each Keeper's next taking
}

func (ks *keepers) next() (Keeper, error) {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	k := &testKeeper{key: []byte{'k', 'e', 'y', byte('1' + len(ks.made))}, fail: ks.fail}
	ks.made = append(ks.made, k)
	return k, nil
}

func (ks *keepers) get(i int) *testKeeper {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	if i < 0 {
		i += len(ks.made)
	}
	return ks.made[i]
}

func (ks *keepers) config(cfg *SupervisorConfig) { cfg.Keeper = ks.next }

// leased opens a run that must open, with a lease.
func leased(t testing.TB, s *NodeSession, body []byte, lease func(context.Context) ([]byte, error)) *Run {
	t.Helper()
	spec := OpenSpec{Open: tunnelOpen(), Body: body, Lease: lease}
	spec.Open.Lease = &wire.LeaseBinding{Principal: "alice", Slot: "s"}
	run, err := s.Open(spec)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

func token(text string) func(context.Context) ([]byte, error) {
	return func(context.Context) ([]byte, error) { return []byte(text), nil }
}

// withLease answers with the lease and the request's body.
func withLease(ctx context.Context, run *NodeRun) {
	body, err := io.ReadAll(run)
	if err != nil {
		return
	}
	lease, err := run.Lease(ctx)
	if err != nil {
		return
	}
	run.Phase(execution.PhaseProviderCalled)
	_ = run.Head(&wire.Head{Status: 200})
	_ = run.Write(lease, false)
	_ = run.Write(body, true)
	run.End(execution.Terminal{Outcome: execution.Completed})
}

// A lease follows the body, whatever its size; both ends know what it is bound to and whose it is.
func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ks keepers
		var mu sync.Mutex
		var bindings []*wire.LeaseBinding
		r := newRigWith(t, func(ctx context.Context, run *NodeRun) {
			mu.Lock()
			bindings = append(bindings, run.Binding())
			mu.Unlock()
			if !run.ExpectsLease() || run.Keeper() != ks.get(0) {
				t.Errorf("lease %v, keeper %v", run.ExpectsLease(), run.Keeper())
			}
			withLease(ctx, run)
			if _, err := run.Lease(ctx); err == nil {
				t.Error("a lease was given away twice")
			}
		}, rigOptions{supervisor: ks.config})
		s := r.session()
		if string(s.Recipient()) != "key1" {
			t.Errorf("recipient %q", s.Recipient())
		}
		for _, size := range []int{0, 1, 100 << 10, 1 << 20} {
			body := bytes.Repeat([]byte{'b'}, size)
			sealed := 0
			var run *Run
			opened := make(chan struct{})
			run = leased(t, s, body, func(ctx context.Context) ([]byte, error) {
				<-opened
				sealed++
				if d, ok := ctx.Deadline(); !ok || time.Until(d) > 10*time.Second {
					t.Error("sealing has no end")
				}
				if run.LeaseSent() || run.RequestWritten() {
					t.Error("sent before it was sealed")
				}
				return bytes.Repeat([]byte{'l'}, wire.MaxLease), nil
			})
			close(opened)
			_, got, end := collect(t, run)
			if want := append(bytes.Repeat([]byte{'l'}, wire.MaxLease), body...); !bytes.Equal(got, want) || end.Outcome != execution.Completed {
				t.Errorf("%d bytes of %d, %+v", len(got), len(want), end)
			}
			if sealed != 1 || !run.LeaseSent() || !run.RequestWritten() {
				t.Errorf("sealed %d times, sent %v, all %v", sealed, run.LeaseSent(), run.RequestWritten())
			}
		}
		if len(bindings) != 4 || bindings[0].GetPrincipal() != "alice" || bindings[0].GetSlot() != "s" {
			t.Errorf("bindings %v", bindings)
		}
		if n := r.acc.Metrics().LeasesSent.Load(); n != 4 {
			t.Errorf("%d leases sent", n)
		}
		r.close()
		r.checkEmpty()
		if n := ks.get(0).endings(); n != 1 {
			t.Errorf("the key was dropped %d times", n)
		}
	})
}

// A run without a lease is what it was, in a session with a key too; a session without a key takes no leases.
func TestWithoutLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, false, func(ctx context.Context, run *NodeRun) {
			if _, err := run.Lease(ctx); err == nil || run.ExpectsLease() || run.Binding() != nil || run.Keeper() != nil {
				t.Errorf("a lease from nowhere: %v", err)
			}
			echo(ctx, run)
		})
		s := r.session()
		if s.Recipient() != nil {
			t.Errorf("recipient %q", s.Recipient())
		}
		if _, err := s.Open(OpenSpec{Open: tunnelOpen(), Lease: token("x")}); !errors.Is(err, ErrNoRecipient) {
			t.Errorf("open: %v", err)
		}
		run := open(t, s, []byte("plain"))
		if _, body, end := collect(t, run); string(body) != "plain" || end.Outcome != execution.Completed || run.LeaseSent() {
			t.Errorf("%q, %+v", body, end)
		}
		r.close()
		r.checkEmpty()
	})
}

// leasedPeer is an Edge whose Node a test plays, with a key.
func leasedPeer(e *edgeRig) (*fakePeer, *NodeSession) {
	e.t.Helper()
	p := fakeDial(e.t, e.net)
	p.send(wire.TypeRegister, 0, &wire.RegisterRequest{
		ProtocolVersions: []uint32{wire.ProtocolVersion}, NodeName: "n", BootId: "b", RecipientPublicKey: []byte("key"),
	})
	p.expect(wire.TypeRegistered, nil)
	p.send(wire.TypeReady, 0, &wire.NodeReadyRequest{})
	p.expect(wire.TypeReadyAck, nil)
	return p, <-e.dir.online
}

// On the wire LEASE comes right behind the last BODY and is the last; it is sealed when that was written and not while
// the upload waits for credit.
func TestLeaseOnTheWire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdgeRig(t, nil)
		p, s := leasedPeer(e)
		var sealedAt time.Time
		run := leased(t, s, make([]byte, 100<<10), func(context.Context) ([]byte, error) {
			sealedAt = time.Now()
			return []byte("sealed"), nil
		})
		var open wire.Open
		if f := p.expect(wire.TypeOpen, &open); f.Flags != 0 || !open.ExpectsLease || open.Lease.GetPrincipal() != "alice" {
			t.Errorf("OPEN %v, %v", f.FrameHeader, &open)
		}
		time.Sleep(time.Minute) // no credit for the rest of the body
		synctest.Wait()
		if !sealedAt.IsZero() || run.LeaseSent() {
			t.Error("sealed before the body was written")
		}
		p.sendBytes(wire.TypeWindow, 1, wire.AppendWindow(nil, 100<<10))
		granted := time.Now()
		left := 100 << 10
		var last fakeFrame
		for f := range p.frames {
			if f.Stream != 1 {
				continue
			}
			if f.Type == wire.TypeLease {
				last = f
				break
			}
			if f.Flags&wire.FlagLast != 0 {
				t.Error("BODY is the last where a lease follows")
			}
			left -= len(f.payload)
		}
		if left != 0 || string(last.payload) != "sealed" || last.Flags != wire.FlagLast || !sealedAt.Equal(granted) {
			t.Errorf("%d bytes missing, LEASE %v %q, sealed %v after", left, last.FrameHeader, last.payload, sealedAt.Sub(granted))
		}
		p.send(wire.TypeEnd, 1, &wire.End{Outcome: 1})
		if _, _, end := collect(t, run); end.Outcome != execution.Completed {
			t.Errorf("%+v", end)
		}
		p.close()
		e.close()
	})
}

// sealing is a Lease that waits until it is told to go on, or its context ends.
type sealing struct {
	began, goOn chan struct{}
	result      error
	stopped     error // why it gave up
}

func newSealing() *sealing {
	return &sealing{began: make(chan struct{}), goOn: make(chan struct{})}
}

func (s *sealing) lease(ctx context.Context) ([]byte, error) {
	close(s.began)
	select {
	case <-s.goOn:
		return []byte("sealed"), s.result
	case <-ctx.Done():
		s.stopped = ctx.Err()
		return nil, ctx.Err()
	}
}

// What ends a run while its lease is being sealed: the run has one terminal, the place is free in time, and it is known
// that no lease was sent.
func TestEndsBeforeTheLease(t *testing.T) {
	for _, c := range []struct {
		name    string
		cause   func(p *fakePeer, s *NodeSession, run *Run, sl *sealing)
		outcome execution.Outcome
		code    execution.Code
		// cancel is what CANCEL must say; CodeNone: none may come.
		cancel  execution.Code
		stopped bool // the sealing was told
	}{
		{"the session is fenced", func(_ *fakePeer, s *NodeSession, _ *Run, _ *sealing) {
			s.Fence(execution.CodeSessionSuperseded, "a newer one")
		}, execution.Failed, execution.CodeSessionSuperseded, execution.CodeNone, true},
		{"the connection breaks", func(p *fakePeer, _ *NodeSession, _ *Run, _ *sealing) { p.close() },
			execution.Failed, execution.CodeSessionLost, execution.CodeNone, true},
		{"the client leaves", func(_ *fakePeer, _ *NodeSession, run *Run, _ *sealing) { run.Cancel(execution.CodeClientGone, "gone") },
			execution.Cancelled, execution.CodeClientGone, execution.CodeClientGone, true},
		{"the Node has no place", func(p *fakePeer, _ *NodeSession, _ *Run, _ *sealing) {
			p.send(wire.TypeEnd, 1, &wire.End{Outcome: uint32(execution.Rejected), Code: uint32(execution.CodeCapacity)})
		}, execution.Rejected, execution.CodeCapacity, execution.CodeNone, true},
		{"no lease is to be had", func(_ *fakePeer, _ *NodeSession, _ *Run, sl *sealing) {
			sl.result = errors.New("the slot is revoked")
			close(sl.goOn)
		}, execution.Failed, execution.CodeCredentialRejected, execution.CodeCredentialRejected, false},
		{"the generation is not current", func(_ *fakePeer, _ *NodeSession, _ *Run, sl *sealing) {
			sl.result = errors.Join(errors.New("state"), ErrSuperseded)
			close(sl.goOn)
		}, execution.Failed, execution.CodeSessionSuperseded, execution.CodeSessionSuperseded, false},
		{"the state does not answer", func(*fakePeer, *NodeSession, *Run, *sealing) { time.Sleep(11 * time.Second) },
			execution.Failed, execution.CodeCredentialRejected, execution.CodeCredentialRejected, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := newEdgeRig(t, nil)
			p, s := leasedPeer(e)
			sl := newSealing()
			run := leased(t, s, []byte("body"), sl.lease)
			p.expect(wire.TypeBody, nil)
			<-sl.began
			p.sendBytes(wire.TypePhase, 1, []byte{byte(execution.PhaseAdmitted)})
			synctest.Wait()
			c.cause(p, s, run, sl)
			if c.cancel != execution.CodeNone {
				var cancel wire.Cancel
				p.expect(wire.TypeCancel, &cancel)
				if cancel.Code != uint32(c.cancel) || strings.Contains(cancel.Reason, "revoked") {
					t.Errorf("%s: CANCEL %v", c.name, &cancel)
				}
				synctest.Wait()
				if c.stopped && sl.stopped == nil {
					t.Errorf("%s: the sealing goes on until END", c.name)
				}
				if c.outcome == execution.Cancelled {
					p.send(wire.TypeEnd, 1, &wire.End{Outcome: uint32(c.outcome), Code: uint32(c.code)})
				}
			}
			_, _, end := collect(t, run)
			if end.Outcome != c.outcome || end.Code != c.code || end.Phase != execution.PhaseAdmitted {
				t.Errorf("%s: %+v", c.name, end)
			}
			if run.LeaseSent() || !run.OpenWritten() {
				t.Errorf("%s: lease sent %v", c.name, run.LeaseSent())
			}
			synctest.Wait()
			if (sl.stopped != nil) != c.stopped {
				t.Errorf("%s: sealing stopped by %v", c.name, sl.stopped)
			}
			select {
			case f := <-p.frames:
				if f.Type == wire.TypeLease {
					t.Errorf("%s: a lease for a run that has ended", c.name)
				}
			default:
			}
			if c.code == execution.CodeCredentialRejected {
				p.send(wire.TypeEnd, 1, &wire.End{Outcome: 3})
				synctest.Wait()
				if s.OpenRuns() != 0 {
					t.Errorf("%s: the place is still taken", c.name)
				}
			}
			p.close()
			e.close()
		})
	}
}

// A lease that does not fit its frame is none.
func TestLeaseOfTheWrongSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdgeRig(t, nil)
		p, s := leasedPeer(e)
		for _, size := range []int{0, wire.MaxLease + 1} {
			run := leased(t, s, nil, func(context.Context) ([]byte, error) { return make([]byte, size), nil })
			if _, _, end := collect(t, run); end.Code != execution.CodeCredentialRejected || run.LeaseSent() {
				t.Errorf("%d bytes: %+v", size, end)
			}
		}
		if n := e.acc.Metrics().LeasesFailed.Load(); n != 2 {
			t.Errorf("%d failed", n)
		}
		p.close()
		e.close()
	})
}

// A run that is cancelled before its OPEN was written is never sealed for; nor is one whose body is unsent.
func TestNothingIsSealedForACancelledRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdgeRig(t, nil)
		p, s := leasedPeer(e)
		run := leased(t, s, make([]byte, 300<<10), func(context.Context) ([]byte, error) {
			t.Error("sealed")
			return nil, nil
		})
		p.expect(wire.TypeBody, nil)
		run.Cancel(execution.CodeClientGone, "gone")
		p.expect(wire.TypeCancel, nil)
		p.sendBytes(wire.TypeWindow, 1, wire.AppendWindow(nil, 190<<10))
		p.send(wire.TypeEnd, 1, &wire.End{Outcome: 3, Code: uint32(execution.CodeClientGone)})
		if _, _, end := collect(t, run); end.Outcome != execution.Cancelled || run.LeaseSent() {
			t.Errorf("%+v", end)
		}
		p.close()
		e.close()
	})
}

// Nor is one sealed for a run that is cancelled while the last of its request is being written.
func TestNothingIsSealedOnceCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdgeRig(t, nil)
		p := rawDial(t, e.net)
		p.send(wire.TypeRegister, 0, &wire.RegisterRequest{ProtocolVersions: []uint32{1}, NodeName: "n", BootId: "b", RecipientPublicKey: []byte("key")})
		p.send(wire.TypeReady, 0, &wire.NodeReadyRequest{})
		s := <-e.dir.online
		synctest.Wait()
		p.pause(true) // takes one more message
		open(t, s, nil)
		synctest.Wait()
		run := leased(t, s, []byte("body"), func(context.Context) ([]byte, error) {
			t.Error("sealed")
			return nil, nil
		})
		synctest.Wait()
		if !run.OpenWritten() {
			t.Fatal("the request is not being written")
		}
		run.Cancel(execution.CodeClientGone, "gone")
		p.pause(false)
		synctest.Wait()
		p.close()
		e.close()
	})
}

// A session that drains, or that another one replaced, still gets the leases of the runs that it has.
func TestADrainingSessionGetsItsLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdgeRig(t, nil)
		p, s := leasedPeer(e)
		sl := newSealing()
		run := leased(t, s, nil, sl.lease)
		<-sl.began
		s.Supersede(time.Minute)
		close(sl.goOn)
		p.expect(wire.TypeLease, nil)
		p.send(wire.TypeEnd, 1, &wire.End{Outcome: 1})
		if _, _, end := collect(t, run); end.Outcome != execution.Completed || !run.LeaseSent() {
			t.Errorf("%+v", end)
		}
		p.close()
		e.close()
	})
}
