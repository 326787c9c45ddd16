package tunnel

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/tunnel/wire"
)

// nodeFuzz is one execution of FuzzNodeSession: an Edge that a fuzzer plays, for a real Supervisor.
type nodeFuzz struct {
	t        *testing.T
	sup      *Supervisor
	peer     *rawPeer
	nextID   uint32
	started  atomic.Int32
	finished atomic.Int32
	keepers  keepers
}

// FuzzNodeSession lets an Edge say anything, in any order, to a Node whose handlers do anything.
func FuzzNodeSession(f *testing.F) {
	for _, seed := range nodeSeeds() {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 2048 {
			return
		}
		stop := watchdog()
		defer stop()
		synctest.Test(t, func(t *testing.T) { fuzzNode(t, data) })
	})
}

func fuzzNode(t *testing.T, data []byte) {
	z := &nodeFuzz{t: t, nextID: 1}
	dialed := make(chan net.Conn, 1)
	first := true
	sup, err := NewSupervisor(SupervisorConfig{
		URL: "ws://edge.test", Node: "node", Logger: testLogger(), Handler: handlerFunc(z.serve),
		Describe: func() *NodeInfo { return models(3, func(i int) string { return "m" }) },
		Keeper:   z.keepers.next,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			if !first {
				return nil, errors.New("connection refused")
			}
			first = false
			near, far := net.Pipe()
			dialed <- far
			return near, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	z.sup = sup
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan struct{})
	go func() { defer close(ran); _ = sup.Run(ctx) }()
	z.peer = rawAccept(t, <-dialed)
	s := &script{data: data}
	for s.more() && !t.Failed() {
		z.step(s)
	}
	z.peer.gather = false
	z.peer.flush()
	z.peer.pause(false)
	synctest.Wait()
	z.lives()
	cancel()
	<-ran
	z.peer.close()
	if n := sup.cfg.Metrics.Streams.Load(); n != 0 {
		t.Errorf("%d streams left", n)
	}
	if n := sup.cfg.Metrics.Sessions.Load(); n != 0 {
		t.Errorf("%d sessions left", n)
	}
	if n := sup.budget.left.Load(); n != windowBudget {
		t.Errorf("the window budget is short of %d bytes", windowBudget-n)
	}
	for i, k := range z.keepers.made {
		if k.ended != 1 {
			t.Errorf("key %d was dropped %d times", i, k.ended)
		}
	}
	if a, b := z.started.Load(), z.finished.Load(); a != b {
		t.Errorf("%d handlers began, %d ended", a, b)
	}
}

// lives asks a session that is online for a sign of life.
func (z *nodeFuzz) lives() {
	for _, n := range z.sup.list() {
		n.link.mu.Lock()
		alive := n.link.end == nil && n.online
		n.link.mu.Unlock()
		acks := z.peer.ackCount()
		if !alive {
			continue
		}
		z.peer.send(wire.TypeHeartbeat, 0, &wire.Heartbeat{Id: 1})
		synctest.Wait()
		if z.peer.ackCount() == acks {
			z.t.Error("the session lives and does not answer")
		}
	}
}

// serve does what the run's provider is called.
func (z *nodeFuzz) serve(ctx context.Context, run *NodeRun) {
	z.started.Add(1)
	defer z.finished.Add(1)
	if ctx != run.ctx {
		z.t.Error("a run with another's context")
	}
	if kind := run.Open().GetRun(); kind != nil {
		z.serveEvents(ctx, run)
		return
	}
	switch run.Open().GetProviderTunnel().GetProvider() {
	case "echo":
		echo(ctx, run)
	case "flood":
		flood(300<<10)(ctx, run)
	case "reject":
		run.End(execution.Terminal{Outcome: execution.Rejected, Code: execution.CodeCapacity})
		_, _ = io.Copy(io.Discard, run)
	case "panic":
		_ = run.Head(&wire.Head{Status: 200})
		panic("fuzz")
	case "wait":
		run.Phase(execution.PhaseAdmitted)
		<-ctx.Done()
	case "lease":
		token, err := run.Lease(ctx)
		if (err == nil) != (len(token) > 0) || len(token) > wire.MaxLease || err == nil && !run.ExpectsLease() {
			z.t.Errorf("a lease of %d bytes, %v", len(token), err)
		}
		if err == nil {
			_, _ = io.Copy(io.Discard, run)
			run.End(execution.Terminal{Outcome: execution.Completed})
		}
	case "whole":
		time.Sleep(time.Second)
		body, ok := run.Body()
		if ok && uint64(len(body)) != run.Open().BodyLength {
			z.t.Errorf("a body of %d bytes, %d were announced", len(body), run.Open().BodyLength)
		}
		_ = run.Head(&wire.Head{Status: 200})
		run.Phase(execution.PhaseProviderDone)
		run.End(execution.Terminal{Outcome: execution.Completed})
	}
}

// serveEvents answers a normalized run with more than its credit, or with nothing.
func (z *nodeFuzz) serveEvents(ctx context.Context, run *NodeRun) {
	if run.Head(&wire.Head{Status: 200}) == nil || run.Write([]byte("x"), true) == nil {
		z.t.Error("a normalized run with a head or a body")
	}
	event := AppendRunEvent(nil, &execution.Event{Kind: execution.EventText, Text: string(make([]byte, 3000))})
	for range run.Open().BodyLength % 100 {
		if run.Events(event) != nil {
			return
		}
	}
	if run.Open().GetRun().Stream {
		<-ctx.Done()
	}
	run.End(execution.Terminal{Outcome: execution.Completed})
}

func (z *nodeFuzz) step(s *script) {
	p := z.peer
	switch op := s.byte() % 32; op {
	case 0:
		answer := &wire.RegisterResponse{Generation: uint64(s.byte()), MaxStreams: uint32(s.pick(16)), ProtocolVersion: uint32(s.pick(8) / 7), EdgeId: "e"}
		if s.byte() >= 200 {
			answer.Refusal = &wire.Refusal{Code: [...]string{"draining", "flapping", ""}[s.pick(3)], RetryAfterMs: uint32(s.byte())}
		}
		p.send(wire.TypeRegistered, 0, answer)
	case 1:
		p.frame(wire.TypeReadyAck, 0, 0, s.skew(), nil)
	case 2: // the usual beginning
		p.send(wire.TypeRegistered, 0, &wire.RegisterResponse{Generation: 1, MaxStreams: 8, ProtocolVersion: 1, EdgeId: "e"})
		p.flush()
		synctest.Wait()
		p.send(wire.TypeReadyAck, 0, &wire.NodeReadyResponse{})
	case 3, 4, 5, 6:
		z.open(s)
	case 7, 8, 9, 10, 11, 12:
		z.runFrame(s, uint32(1+s.pick(10)))
	case 13:
		p.send(wire.TypeHeartbeat, 0, &wire.Heartbeat{Id: uint64(s.byte())})
	case 14:
		ack := &wire.HeartbeatAck{Id: p.lastBeat()}
		if b := s.byte(); b >= 200 {
			ack.Id += uint64(b - 200)
		}
		for range s.pick(4) {
			ack.UnknownStreams = append(ack.UnknownStreams, uint32(s.pick(12)))
		}
		p.send(wire.TypeHeartbeatAck, 0, ack)
	case 15:
		z.sessionFrame(s)
	case 16:
		p.send(wire.TypeGoodbye, 0, &wire.Goodbye{Code: [...]string{"shutdown", "token_revoked", "drained"}[s.pick(3)]})
	case 17:
		p.frame(wire.TypeWindow, 0, 0, 0, wire.AppendWindow(nil, uint32(s.size())))
	case 18: // any frame at all
		p.frame(wire.Type(s.byte()), wire.Flags(s.byte()), uint32(s.pick(12)), s.skew(), s.bytes())
	case 19: // no frame at all
		p.flush()
		p.message(2, s.bytes())
	case 20:
		p.flush()
		p.message([...]byte{1, 8, 9, 10, 0, 11}[s.pick(6)], s.bytes()[:0])
	case 21:
		p.gather = !p.gather
		if !p.gather {
			p.flush()
		}
	case 22:
		p.pause(s.byte()&1 == 0)
	case 23:
		p.flush()
		time.Sleep([...]time.Duration{time.Millisecond, time.Second, 6 * time.Second, 31 * time.Second, 46 * time.Second}[s.pick(5)])
	case 24:
		z.sup.Refresh()
	case 25:
		if s.byte() >= 220 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(s.byte())*time.Second)
			defer cancel()
			p.flush()
			_ = z.sup.Drain(ctx)
		}
	case 28:
		z.sup.Rotate()
	case 27: // a lease that is in order
		p.send(wire.TypeOpen, z.nextID, func() *wire.Open { o := leasedOpen(1); o.GetProviderTunnel().Provider = "lease"; return o }())
		p.frame(wire.TypeBody, 0, z.nextID, 0, []byte("b"))
		p.frame(wire.TypeLease, 0, z.nextID, s.skew(), make([]byte, s.pick(16)*600))
		z.nextID++
	default:
		p.flush()
		synctest.Wait()
	}
	z.check()
}

func (z *nodeFuzz) open(s *script) {
	spec := tunnelOpen()
	spec.GetProviderTunnel().Provider = [...]string{"echo", "flood", "reject", "panic", "wait", "whole", "forget", "lease"}[s.pick(8)]
	spec.BodyLength = uint64(s.size() * s.pick(4))
	if b := s.byte(); b >= 200 {
		spec.TimeoutMs = uint32(b-199) * 100
	} else if b >= 100 {
		spec.ExpectsLease, spec.Lease = true, &wire.LeaseBinding{Slot: "s"}
	} else if b >= 75 {
		spec.Kind = ollamaOpen().Kind
	} else if b >= 50 {
		spec.Kind = &wire.Open_Run{Run: &wire.RunRequest{Stream: b%2 == 0}}
	}
	id := z.nextID
	if s.byte() >= 250 {
		id = uint32(s.pick(12))
	}
	z.nextID = id + 1
	z.peer.send(wire.TypeOpen, id, spec)
}

// runFrame sends a frame of a run, mostly one that an Edge may send.
func (z *nodeFuzz) runFrame(s *script, stream uint32) {
	p := z.peer
	switch s.pick(8) {
	case 0, 1, 2:
		p.frame(wire.TypeBody, 0, stream, s.skew(), make([]byte, s.size()))
	case 3, 4:
		p.frame(wire.TypeWindow, 0, stream, s.skew(), wire.AppendWindow(nil, uint32(s.size()*s.pick(5))))
	case 5:
		p.send(wire.TypeCancel, stream, &wire.Cancel{Code: uint32(s.byte()), Reason: "fuzz"})
	case 6:
		p.frame(wire.TypeLease, 0, stream, s.skew(), s.bytes())
	default:
		p.frame(wire.Type(14+s.pick(9)), wire.Flags(s.byte()), stream, s.skew(), s.bytes())
	}
}

func (z *nodeFuzz) sessionFrame(s *script) {
	p := z.peer
	switch s.pick(7) {
	case 6: // a command of a kind that nobody has
		p.frame(wire.TypeCommand, 0, 0, s.skew(), s.bytes())
	case 0:
		p.send(wire.TypeRefresh, 0, &wire.Refresh{Id: uint64(s.pick(4)), Kind: &wire.Refresh_Ack{Ack: &wire.RefreshAck{}}})
	case 1:
		msg := &wire.Refresh{Id: uint64(s.pick(4)), Kind: &wire.Refresh_Edge{Edge: &wire.EdgeConfig{MinimumRevisions: map[string]uint64{"s": 1}}}}
		for range s.pick(20) {
			msg.LeaseVerificationKeys = append(msg.LeaseVerificationKeys, []byte("key"))
		}
		p.send(wire.TypeRefresh, 0, msg)
	case 2:
		p.send(wire.TypeCommand, 0, &wire.CommandRequest{Id: uint64(s.byte()), Kind: &wire.CommandRequest_Capabilities{}})
	case 3:
		p.send(wire.TypeCommand, 0, &wire.CommandRequest{Id: uint64(s.byte()), Kind: &wire.CommandRequest_TransportStatus{}})
	case 4:
		p.send(wire.TypeRevoke, 0, &wire.Revoke{Id: uint64(s.byte())})
	default:
		p.send(wire.TypeDrain, 0, &wire.Drain{ReconnectAfterMs: uint32(s.byte()), TryForMs: uint32(s.byte()), DeadlineMs: uint32(s.byte()) * 100})
	}
}

// check holds each session to its bounds.
func (z *nodeFuzz) check() {
	for _, n := range z.sup.list() {
		l := &n.link
		l.mu.Lock()
		if len(n.runs) > n.maxStreams {
			z.t.Errorf("%d runs are open, %d may be", len(n.runs), n.maxStreams)
		}
		if l.answers < 0 || l.answers > answersLimit+wire.MaxPayload || len(l.urgent) > 1<<17 {
			z.t.Errorf("%d bytes of answers wait", l.answers)
		}
		if l.credit.inFlight < 0 || l.credit.limit < sessionWindowMin || l.credit.limit > sessionWindowMax {
			z.t.Errorf("%d in flight, limit %d", l.credit.inFlight, l.credit.limit)
		}
		for id, r := range n.runs {
			if len(r.rx.buf) > streamWindowMax || r.tx.credit < 0 || r.tx.credit > streamWindowMax || r.tx.queued < 0 || r.tx.queued > sendBufferLimit {
				z.t.Errorf("run %d: %d bytes wait, credit %d, queued %d", id, len(r.rx.buf), r.tx.credit, r.tx.queued)
			}
		}
		l.mu.Unlock()
	}
}

func nodeSeeds() [][]byte {
	run := func(ops ...byte) []byte { return append([]byte{2}, ops...) }
	return [][]byte{
		{2},
		run(3, 0, 3, 1, 0, 0, 7, 0, 0, 3, 0, 26, 7, 0, 3, 3, 1, 0, 23, 1),              // echo of a body
		run(3, 1, 0, 0, 0, 0, 26, 7, 0, 3, 10, 1, 0, 7, 0, 5, 9, 26),                   // flood, credit, cancel
		run(3, 4, 10, 3, 0, 0, 7, 0, 0, 10, 0, 7, 0, 0, 10, 0, 7, 0, 0, 10, 0),         // overrun
		run(3, 4, 0, 0, 210, 0, 23, 2),                                                 // the deadline
		run(3, 3, 0, 0, 0, 0, 3, 6, 0, 0, 0, 0, 26, 3, 2, 10, 1, 0, 0, 7, 2, 0, 10, 0), // a panic, an oversight, a rejection
		run(3, 4, 0, 0, 0, 0, 23, 3, 14, 0, 1, 1, 26),                                  // unknown to the Edge
		run(3, 4, 0, 0, 0, 0, 25, 255, 5, 26),                                          // the Node drains
		run(3, 4, 0, 0, 0, 0, 15, 5, 1, 1, 9, 23, 3),                                   // the Edge drains
		run(15, 2, 1, 15, 3, 1, 15, 4, 1, 24, 24, 15, 0, 1, 26),                        // commands and refreshes
		run(27, 0, 2, 26, 27, 0, 15, 26, 27, 251, 1),                                   // leases, one too long, a gap
		run(3, 7, 0, 150, 0, 7, 6, 0, 0, 3, 97, 98, 99, 26),                            // a lease of its own
		run(3, 7, 0, 150, 0, 23, 1, 10, 5, 0, 26), run(28, 23, 1, 28, 15, 4, 7, 26),    // cancelled, rotated
		run(3, 0, 3, 1, 51, 0, 7, 0, 3, 10, 1, 0, 7, 0, 3, 10, 1, 0, 26),    // a normalized run, with credit
		run(3, 0, 4, 1, 52, 0, 23, 1, 7, 0, 5, 9, 26, 3, 0, 0, 0, 80, 0),    // cancelled; an Ollama call
		run(15, 1, 2, 2, 15, 1, 2, 18, 26),                                  // keys, too many of them
		run(22, 0, 3, 1, 0, 0, 0, 0, 3, 0, 3, 1, 0, 0, 13, 1, 13, 2, 23, 4), // a deaf Edge
		run(7, 0, 6, 3, 97, 98, 99), run(18, 200, 1, 0, 0, 0), run(16, 1), run(1, 0), run(23, 4),
		run(3, 5, 3, 1, 0, 0, 7, 0, 0, 3, 0, 23, 1), {0, 1, 8, 7, 1, 0}, {19, 1}, {20, 0}, {0, 1, 1, 1, 255, 1, 9}, // refused
	}
}
