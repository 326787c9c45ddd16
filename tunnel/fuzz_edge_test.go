package tunnel

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/tunnel/wire"
)

// edgeFuzz is one execution of FuzzEdgeSession: a Node that a fuzzer plays, before a real Acceptor.
type edgeFuzz struct {
	t    *testing.T
	rig  *edgeRig
	peer *rawPeer
	s    *NodeSession // or nil: not online yet
	runs []*fuzzRun
	keys edgeKeys
}

type fuzzRun struct {
	*Run
	released atomic.Int32
	ends     int
	sealed   atomic.Int32
	reader   EventReader // of a normalized run
	broken   bool        // its events are none
}

// FuzzEdgeSession lets a Node say anything, in any order, between anything that an Edge may do with its session. The
// session ends or lives on in order; each run has one terminal and one release; nothing is left; memory is bounded.
func FuzzEdgeSession(f *testing.F) {
	for _, seed := range edgeSeeds() {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 2048 {
			return
		}
		stop := watchdog()
		defer stop()
		synctest.Test(t, func(t *testing.T) {
			z := &edgeFuzz{t: t}
			z.keys.set(1, map[string]uint64{"s": 1}, "key")
			z.rig = newEdgeRig(t, func(cfg *AcceptorConfig) {
				cfg.MaxStreams = 8
				z.keys.configure(cfg)
			})
			z.peer = rawDial(t, z.rig.net)
			s := &script{data: data}
			for s.more() && !t.Failed() {
				z.step(s)
			}
			z.finish()
		})
	})
}

// step does one thing.
func (z *edgeFuzz) step(s *script) {
	p := z.peer
	switch op := s.byte() % 32; op {
	case 0:
		p.send(wire.TypeRegister, 0, &wire.RegisterRequest{
			ProtocolVersions: []uint32{uint32(1 + s.pick(8)/7)}, NodeName: "node", BootId: "boot", HighestGenerationSeen: uint64(s.byte()),
			ReplacesGeneration: uint64(s.byte()), Labels: map[string]string{"a": "b"}, RecipientPublicKey: make([]byte, s.pick(3)*600),
		})
	case 1:
		p.frame(wire.TypeReady, 0, 0, s.skew(), nil)
	case 2: // the usual beginning
		p.send(wire.TypeRegister, 0, &wire.RegisterRequest{ProtocolVersions: []uint32{1}, NodeName: "node", BootId: "boot", RecipientPublicKey: []byte("key")})
		p.send(wire.TypeReady, 0, &wire.NodeReadyRequest{})
		p.flush()
		synctest.Wait()
	case 3, 4, 5:
		z.open(s)
	case 6, 7, 8, 9, 10, 11:
		z.runFrame(s, uint32(1+s.pick(10)))
	case 12:
		hb := &wire.Heartbeat{Id: uint64(s.byte()), HighestOpen: uint32(s.pick(9))}
		for range s.pick(8) {
			hb.OpenStreams = append(hb.OpenStreams, uint32(s.pick(12)))
		}
		p.send(wire.TypeHeartbeat, 0, hb)
	case 13:
		id := p.lastBeat()
		if s.byte() >= 240 {
			id += uint64(s.pick(3))
		}
		p.send(wire.TypeHeartbeatAck, 0, &wire.HeartbeatAck{Id: id})
	case 14:
		z.page(s)
	case 15:
		p.send(wire.TypeDrain, 0, &wire.Drain{})
	case 16:
		p.send(wire.TypeGoodbye, 0, &wire.Goodbye{Code: "any", Message: "thing"})
	case 17:
		z.answer(s)
	case 18:
		p.frame(wire.TypeWindow, 0, 0, 0, wire.AppendWindow(nil, uint32(s.size())))
	case 19: // any frame at all
		p.frame(wire.Type(s.byte()), wire.Flags(s.byte()), uint32(s.pick(12)), s.skew(), s.bytes())
	case 20: // no frame at all
		p.flush()
		p.message(2, s.bytes())
	case 21:
		p.flush()
		p.message([...]byte{1, 8, 9, 10, 0, 11}[s.pick(6)], s.bytes()[:0])
	case 22:
		p.gather = !p.gather
		if !p.gather {
			p.flush()
		}
	case 23:
		p.pause(s.byte()&1 == 0)
	case 24:
		p.flush()
		time.Sleep([...]time.Duration{time.Millisecond, time.Second, 11 * time.Second, 31 * time.Second, 46 * time.Second}[s.pick(5)])
	default:
		z.edgeDoes(s, op)
	}
	z.check()
}

// open opens a run, if there is a session by now.
func (z *edgeFuzz) open(s *script) {
	z.peer.flush()
	synctest.Wait()
	if z.s == nil {
		select {
		case z.s = <-z.rig.dir.online:
		default:
			return
		}
	}
	r := &fuzzRun{}
	sizes := [...]int{0, 0, 1, 5000, 70_000, 300_000}
	b := int(s.byte())
	spec := OpenSpec{Open: fuzzOpen(b / len(sizes) / 6), Body: make([]byte, sizes[b%len(sizes)]), Released: func() { r.released.Add(1) }}
	switch b / len(sizes) % 6 {
	case 3:
		spec.Lease = z.lease(r, 0, nil)
	case 4:
		spec.Lease = z.lease(r, time.Duration(s.pick(20))*time.Second, nil)
	case 5:
		spec.Lease = z.lease(r, time.Second, [...]error{ErrSuperseded, errors.New("fuzz")}[s.pick(2)])
	}
	run, err := z.s.Open(spec)
	if err == nil {
		r.Run = run
		z.runs = append(z.runs, r)
	}
}

// fuzzOpen is a run of one of the three kinds.
func fuzzOpen(kind int) *wire.Open {
	return [...]func() *wire.Open{tunnelOpen, normalizedOpen, ollamaOpen}[kind%3]()
}

// lease seals after a while, or fails.
func (z *edgeFuzz) lease(r *fuzzRun, after time.Duration, err error) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) {
		if r.sealed.Add(1) > 1 {
			z.t.Error("sealed twice")
		}
		select {
		case <-time.After(after):
			return []byte("sealed"), err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// answer sends one of the answers to what the Edge asks, asked or not.
func (z *edgeFuzz) answer(s *script) {
	switch b := s.byte(); (b >> 2) % 4 {
	case 0:
		z.peer.send(wire.TypeCommandResult, 0, &wire.CommandResult{Id: uint64(b % 4)})
	case 1:
		z.peer.send(wire.TypeRevokeAck, 0, &wire.RevokeAck{Id: uint64(b % 4)})
	default:
		z.peer.send(wire.TypeRefresh, 0, &wire.Refresh{Id: uint64(b % 4), Kind: &wire.Refresh_Ack{Ack: &wire.RefreshAck{}}})
	}
}

// runFrame sends a frame of a run, mostly one that a Node may send.
func (z *edgeFuzz) runFrame(s *script, stream uint32) {
	p := z.peer
	flags := wire.Flags(0)
	if s.byte() >= 200 {
		flags = wire.Flags(s.byte())
	}
	switch s.pick(12) {
	case 9:
		p.frame(wire.TypeEvent, flags, stream, s.skew(), make([]byte, s.size()))
	case 10, 11:
		e := sampleEvents()[s.pick(13)]
		p.frame(wire.TypeEvent, flags&^wire.FlagContinued, stream, s.skew(), AppendRunEvent(nil, &e))
	case 0:
		p.frame(wire.TypePhase, flags, stream, s.skew(), []byte{byte(s.pick(8))})
	case 1, 2:
		p.send(wire.TypeHead, stream, &wire.Head{Status: uint32(200 + 50*s.pick(9)), Headers: []*wire.Header{{Name: "x", Value: "y"}}})
	case 3, 4:
		p.frame(wire.TypeBody, flags, stream, s.skew(), make([]byte, s.size()))
	case 5:
		p.frame(wire.TypeWindow, flags, stream, s.skew(), wire.AppendWindow(nil, uint32(s.size()*s.pick(5))))
	case 6, 7:
		p.send(wire.TypeEnd, stream, &wire.End{Outcome: uint32(s.pick(6)), Code: uint32(s.byte()), Phase: uint32(s.byte())})
	default:
		p.frame(wire.Type(14+s.pick(9)), flags, stream, s.skew(), s.bytes())
	}
}

func (z *edgeFuzz) page(s *script) {
	page := &wire.NodeRefresh{First: s.byte()&1 == 0, Last: s.byte()&1 == 0}
	for range s.pick(4) {
		page.Models = append(page.Models, &wire.Model{Provider: "p", Id: "m"[:s.pick(2)], Size: int64(s.pick(3)) - 1, Digest: strings.Repeat("d", s.pick(3)*100)})
		page.Providers = append(page.Providers, &wire.Provider{Id: "p", Capacity: uint32(s.pick(3))})
	}
	z.peer.send(wire.TypeRefresh, 0, &wire.Refresh{Id: uint64(s.byte()), Kind: &wire.Refresh_Node{Node: page}})
}

// edgeDoes does what the Edge's other rooms might do with the session and its runs.
func (z *edgeFuzz) edgeDoes(s *script, op byte) {
	z.peer.flush()
	synctest.Wait()
	if z.s == nil {
		return
	}
	switch {
	case op == 25 && s.byte() >= 200:
		switch s.pick(5) {
		case 4:
			z.s.EndAt(time.Now().Add(time.Duration(s.byte())*time.Second), &Refusal{Code: "identity_expired", Message: "fuzz"})
		case 0:
			z.s.Drain("fuzz", 0, 0, time.Duration(s.byte())*time.Second)
		case 1:
			z.s.Supersede(time.Duration(s.byte()) * time.Second)
		case 2:
			z.s.Fence(execution.CodeSessionSuperseded, "fuzz")
		case 3:
			z.s.Refuse(&Refusal{Code: "token_revoked", Message: "fuzz"})
		}
	case op == 26:
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_ = z.s.Probe(ctx)
		_, _ = z.s.Command(ctx, &wire.CommandRequest{})
		cancel()
		// Not waited for: the answers may come later in the script.
		now, cancel := context.WithCancel(context.Background())
		cancel()
		_ = z.s.Revoke(now, &wire.Revoke{Slot: "s"})
		_ = z.s.Refresh(now)
	case len(z.runs) == 0:
	default:
		r := z.runs[s.pick(len(z.runs))]
		switch op {
		case 27:
			r.Cancel(execution.CodeClientGone, "fuzz")
		case 28:
			r.Abandon(execution.CodeClientGone, "fuzz")
		case 31:
			r.Direct(func() bool {
				_, _, ok := r.TakeData()
				return ok
			})
		default:
			z.take(r)
		}
	}
}

// take takes once, and watches over the order of what a run gives.
func (z *edgeFuzz) take(r *fuzzRun) bool {
	b, ok := r.Take()
	if ok && r.ends > 0 {
		z.t.Errorf("after the end: %+v", b)
	}
	z.events(r, b)
	if b.End != nil {
		r.ends++
		if b.End.Outcome < execution.Completed || b.End.Outcome > execution.Rejected {
			z.t.Errorf("outcome %d", b.End.Outcome)
		}
	}
	return ok
}

// events reads what a normalized run brought, which may be anything.
func (z *edgeFuzz) events(r *fuzzRun, b Batch) {
	if !r.Run.events || r.broken {
		return
	}
	if b.Head != nil {
		z.t.Error("a normalized run with a head")
	}
	r.broken = r.reader.Push(b.Data, func(*execution.Event) error { return nil }) != nil
	if len(r.reader.held) > MaxEvent+8 {
		z.t.Errorf("%d bytes of events are held", len(r.reader.held))
	}
}

// check holds the session to its bounds.
func (z *edgeFuzz) check() {
	if z.s == nil {
		return
	}
	l := &z.s.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(z.s.revokes) > maxRevocations || z.s.config.busy && z.s.config.unacked == 0 {
		z.t.Errorf("%d revocations wait, config %+v", len(z.s.revokes), z.s.config)
	}
	if len(z.s.runs) > 8 {
		z.t.Errorf("%d runs are open", len(z.s.runs))
	}
	if l.answers < 0 || l.answers > answersLimit+wire.MaxPayload || l.end == nil && l.sessionGrant > 1<<20 {
		z.t.Errorf("%d bytes of answers wait, %d of credit", l.answers, l.sessionGrant)
	}
	if l.credit.inFlight < 0 || l.credit.limit < sessionWindowMin || l.credit.limit > sessionWindowMax {
		z.t.Errorf("%d in flight, limit %d", l.credit.inFlight, l.credit.limit)
	}
	for id, r := range z.s.runs {
		if len(r.rx.buf) > streamWindowMax || r.rx.window > streamWindowMax || r.tx.credit > streamWindowMax || r.tx.credit < 0 || r.tx.queued < 0 {
			z.t.Errorf("run %d: %d bytes wait, window %d, credit %d, queued %d", id, len(r.rx.buf), r.rx.window, r.tx.credit, r.tx.queued)
		}
		if id > z.s.lastID || r.over {
			z.t.Errorf("run %d is open, over %v", id, r.over)
		}
	}
}

// finish asks a session that lives for a sign of it, then ends all and looks at what is left.
func (z *edgeFuzz) finish() {
	p := z.peer
	p.gather = false
	p.flush()
	p.pause(false)
	synctest.Wait()
	if z.s != nil {
		z.s.link.mu.Lock()
		alive := z.s.link.end == nil
		z.s.link.mu.Unlock()
		acks := p.ackCount()
		if alive {
			p.send(wire.TypeHeartbeat, 0, &wire.Heartbeat{Id: 1})
			synctest.Wait()
			if p.ackCount() == acks {
				z.t.Error("the session lives and does not answer")
			}
		}
	}
	p.close()
	z.rig.close()
	for i, r := range z.runs {
		for z.take(r) {
		}
		if n := r.released.Load(); n != 1 {
			z.t.Errorf("run %d was released %d times", i, n)
		}
		if r.LeaseSent() && r.sealed.Load() != 1 {
			z.t.Errorf("run %d has a lease from nowhere", i)
		}
		if !r.dropping && r.ends != 1 {
			z.t.Errorf("run %d ended %d times", i, r.ends)
		}
	}
}

// edgeSeeds are scripts that reach deep: a session that does its work, and the faults that matter most.
func edgeSeeds() [][]byte {
	begin := []byte{2}
	run := func(ops ...byte) []byte { return append(append([]byte{}, begin...), ops...) }
	return [][]byte{
		begin,
		run(3, 0, 6, 0, 0, 0, 0, 3, 0, 6, 0, 0, 1, 0, 6, 0, 0, 3, 3, 0, 29, 0, 6, 0, 0, 6, 1, 0, 0, 29, 0),  // a whole run
		run(3, 5, 24, 0, 27, 0, 24, 2, 6, 0, 0, 6, 3, 9, 1),                                                 // cancel unanswered, then END
		run(3, 0, 6, 0, 0, 1, 0, 6, 0, 0, 3, 10, 0, 6, 0, 0, 3, 10, 0, 6, 0, 0, 3, 10, 0),                   // overrun
		run(3, 5, 23, 0, 3, 5, 3, 5, 28, 1, 27, 2, 23, 1, 24, 1),                                            // cancels before a deaf peer
		run(3, 0, 12, 1, 1, 0, 12, 2, 1, 0, 29, 0),                                                          // lost by the Node
		run(3, 0, 15, 3, 0, 6, 0, 0, 6, 1, 0, 0),                                                            // the Node drains
		run(3, 0, 25, 255, 0, 5, 6, 0, 0, 6, 1, 0, 0, 24, 2),                                                // the Edge drains
		run(3, 18, 6, 0, 0, 0, 0, 2, 0, 6, 0, 0, 1, 0, 6, 0, 0, 3, 3, 0, 29, 0, 6, 0, 0, 6, 1, 0, 0, 29, 0), // a run with a lease
		run(3, 21, 24, 1, 6, 0, 0, 5, 10, 4, 24, 1, 29, 0),                                                  // a long body and a lease
		run(3, 24, 15, 24, 2, 29, 0), run(3, 24, 5, 27, 0, 24, 1), run(3, 30, 0, 24, 1, 29, 0),              // late, cancelled, superseded
		run(26, 17, 5, 17, 9, 17, 10, 26, 17, 6), run(25, 255, 4, 3, 24, 2), // revocations, configs, an end that is set
		run(24, 4), // no heartbeat
		run(3, 36, 6, 0, 0, 10, 4, 0, 6, 0, 0, 11, 5, 0, 30, 0, 6, 0, 0, 6, 1, 0, 0, 29, 0),              // a normalized run
		run(3, 36, 6, 0, 200, 8, 9, 0, 3, 24, 0, 6, 0, 0, 6, 1, 0, 0, 29, 0),                             // an event without its end
		run(3, 36, 6, 0, 0, 3, 0, 3, 3, 0, 3, 72, 6, 1, 0, 1, 0, 6, 2, 0, 10, 0, 0, 29, 0, 29, 1, 29, 2), // BODY for EVENT, and the other way round
		run(3, 36, 6, 0, 0, 9, 0, 10, 6, 0, 0, 9, 0, 10, 6, 0, 0, 9, 0, 10, 27, 0, 24, 1),                // overrun by events
		run(14, 0, 1, 2, 1, 1, 1, 1, 1, 14, 1, 0, 0, 5, 26),                                              // pages
		run(22, 3, 0, 6, 0, 0, 0, 0, 2, 0, 6, 0, 0, 1, 0, 22),                                            // many frames in one message
		run(3, 0, 19, 200, 1, 1, 0, 0, 0, 19, 201, 0, 1, 0, 0, 0),                                        // unknown types
		{0, 7, 1, 1, 1, 0}, {20, 1}, {21, 0}, {1, 0}, run(16), run(1, 0), run(18, 3),
	}
}
