package tunnel

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"iop/execution"
	"iop/tunnel/wire"
)

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func unmarshal(t testing.TB, payload []byte, m proto.Message) {
	t.Helper()
	if err := proto.Unmarshal(payload, m); err != nil {
		t.Fatal(err)
	}
}

// A frame that breaks the contract of its run costs that run, and no other: the Edge cancels it and makes the terminal.
func TestStreamFaultsAtTheEdge(t *testing.T) {
	head := marshal(t, &wire.Head{Status: 200})
	e := newEdgeRig(t, nil)
	defer e.close()
	p, s := e.node("n")
	defer p.close()
	witness := open(t, s, nil)
	id := uint32(1)
	for _, c := range []struct {
		name   string
		frames func(id uint32) [][]byte
		want   string // in the detail
	}{
		{"a gap", func(id uint32) [][]byte {
			return [][]byte{wire.AppendFrame(nil, wire.FrameHeader{Type: wire.TypeHead, Stream: id, Seq: 1}, head)}
		}, "seq 1, want 0"},
		{"a repeated number", func(id uint32) [][]byte {
			return [][]byte{p.frame(wire.TypeHead, 0, id, head), wire.AppendFrame(nil, wire.FrameHeader{Type: wire.TypeBody, Stream: id, Seq: 0}, nil)}
		}, "seq 0, want 1"},
		{"an unknown type", func(id uint32) [][]byte { return [][]byte{p.frame(200, 0, id, nil)} }, "unknown mandatory frame type 200"},
		{"a gap in what may be ignored", func(id uint32) [][]byte {
			return [][]byte{wire.AppendFrame(nil, wire.FrameHeader{Type: 200, Flags: wire.FlagIgnorable, Stream: id, Seq: 3}, nil)}
		}, "seq 3"},
		{"oversized", func(id uint32) [][]byte {
			return [][]byte{p.frame(wire.TypeHead, 0, id, head), p.frame(wire.TypeBody, 0, id, make([]byte, wire.MaxPayload+1))}
		}, "over 32768"},
		{"BODY before HEAD", func(id uint32) [][]byte { return [][]byte{p.frame(wire.TypeBody, 0, id, []byte("x"))} }, "before HEAD"},
		{"HEAD twice", func(id uint32) [][]byte {
			return [][]byte{p.frame(wire.TypeHead, 0, id, head), p.frame(wire.TypeHead, 0, id, head)}
		}, "twice"},
		{"a large HEAD", func(id uint32) [][]byte {
			return [][]byte{p.frame(wire.TypeHead, 0, id, make([]byte, wire.MaxHead+1))}
		}, "over 24576"},
		{"status 99", func(id uint32) [][]byte {
			return [][]byte{p.frame(wire.TypeHead, 0, id, marshal(t, &wire.Head{Status: 99}))}
		}, "status 99"},
		{"status 101", func(id uint32) [][]byte {
			return [][]byte{p.frame(wire.TypeHead, 0, id, marshal(t, &wire.Head{Status: 101}))}
		}, "status 101"},
		{"torn HEAD", func(id uint32) [][]byte { return [][]byte{p.frame(wire.TypeHead, 0, id, []byte{0xff})} }, "HEAD"},
		{"PHASE of two bytes", func(id uint32) [][]byte { return [][]byte{p.frame(wire.TypePhase, 0, id, []byte{1, 2})} }, "malformed"},
		{"PHASE beyond", func(id uint32) [][]byte { return [][]byte{p.frame(wire.TypePhase, 0, id, []byte{99})} }, "malformed"},
		{"WINDOW of nothing", func(id uint32) [][]byte { return [][]byte{p.frame(wire.TypeWindow, 0, id, []byte{0, 0, 0, 0})} }, "out of range"},
		{"EVENT of a raw run", func(id uint32) [][]byte { return [][]byte{p.frame(wire.TypeEvent, 0, id, nil)} }, "EVENT"},
		{"OPEN from a Node", func(id uint32) [][]byte { return [][]byte{p.frame(wire.TypeOpen, 0, id, nil)} }, "not a frame from a Node"},
		{"CANCEL from a Node", func(id uint32) [][]byte { return [][]byte{p.frame(wire.TypeCancel, 0, id, nil)} }, "not a frame from a Node"},
	} {
		released := make(chan struct{})
		run, err := s.Open(OpenSpec{Open: tunnelOpen(), Released: func() { close(released) }})
		if err != nil {
			t.Fatal(err)
		}
		id++
		for f := p.expect(wire.TypeOpen, nil); f.Stream != id; f = p.expect(wire.TypeOpen, nil) {
		}
		p.raw(bytes.Join(c.frames(id), nil))
		_, _, end := collect(t, run)
		if end.Outcome != execution.Failed || end.Code != execution.CodeProtocol || !strings.Contains(end.Detail, c.want) {
			t.Errorf("%s: %+v", c.name, end)
		}
		if f := p.expect(wire.TypeCancel, nil); f.Stream != id {
			t.Errorf("%s: CANCEL of stream %d, want %d", c.name, f.Stream, id)
		}
		// The place is taken until the Node's END, whatever number that bears.
		select {
		case <-released:
			t.Errorf("%s: released before END", c.name)
		default:
		}
		p.send(wire.TypeEnd, id, &wire.End{Outcome: 2})
		<-released
	}
	if n := e.acc.Metrics().ProtocolErrors.Load(); n != 0 {
		t.Errorf("%d sessions ended", n)
	}
	p.send(wire.TypeEnd, 1, &wire.End{Outcome: 1})
	if _, _, end := collect(t, witness); end.Outcome != execution.Completed {
		t.Errorf("the witness: %+v", end)
	}
}

// An END that says nothing sensible is still the run's end.
func TestMalformedEnd(t *testing.T) {
	e := newEdgeRig(t, nil)
	defer e.close()
	p, s := e.node("n")
	defer p.close()
	for i, payload := range [][]byte{{0xff}, nil, marshal(t, &wire.End{Outcome: 9}), make([]byte, wire.MaxPayload+1)} {
		run := open(t, s, nil)
		p.expect(wire.TypeOpen, nil)
		p.raw(p.frame(wire.TypeEnd, 0, uint32(i+1), payload))
		if _, _, end := collect(t, run); end.Outcome != execution.Failed || end.Code != execution.CodeProtocol {
			t.Errorf("END % x: %+v", payload[:min(len(payload), 8)], end)
		}
		if s.OpenRuns() != 0 {
			t.Errorf("%d runs are open", s.OpenRuns())
		}
	}
}

// Faults that are the session's: each ends it with a reason.
func TestSessionFaultsAtTheEdge(t *testing.T) {
	e := newEdgeRig(t, nil)
	defer e.close()
	for name, c := range map[string]struct {
		message func(p *fakePeer) []byte
		want    string
	}{
		"a gap": {func(*fakePeer) []byte {
			return wire.AppendFrame(nil, wire.FrameHeader{Type: wire.TypeHeartbeat, Seq: 9}, nil)
		}, "seq 9"},
		"an unknown type": {func(p *fakePeer) []byte { return p.frame(200, 0, 0, nil) }, "unknown mandatory"},
		"oversized":       {func(p *fakePeer) []byte { return p.frame(wire.TypeRefresh, 0, 0, make([]byte, wire.MaxPayload+1)) }, "over 32768"},
		"oversized and torn": {func(*fakePeer) []byte {
			return wire.AppendHeader(nil, wire.FrameHeader{Type: wire.TypeBody, Stream: 1, Length: wire.MaxPayload + 1})
		}, "inside a frame"},
		"reserved bytes":         {func(p *fakePeer) []byte { f := p.frame(wire.TypeHeartbeat, 0, 0, nil); f[2] = 1; return f }, "reserved"},
		"a stream never opened":  {func(p *fakePeer) []byte { return p.frame(wire.TypeEnd, 0, 77, nil) }, "never opened"},
		"the same, ignorable":    {func(p *fakePeer) []byte { return p.frame(200, wire.FlagIgnorable, 77, nil) }, "never opened"},
		"BODY on the session":    {func(p *fakePeer) []byte { return p.frame(wire.TypeBody, 0, 0, nil) }, "wrong kind"},
		"REGISTER twice":         {func(p *fakePeer) []byte { return p.frame(wire.TypeRegister, 0, 0, nil) }, "REGISTER"},
		"READY twice":            {func(p *fakePeer) []byte { return p.frame(wire.TypeReady, 0, 0, nil) }, "READY"},
		"COMMAND from a Node":    {func(p *fakePeer) []byte { return p.frame(wire.TypeCommand, 0, 0, nil) }, "COMMAND"},
		"an ACK never asked for": {func(p *fakePeer) []byte { return p.frame(wire.TypeHeartbeatAck, 0, 0, []byte{8, 99}) }, "never requested"},
		"an ACK of nothing":      {func(p *fakePeer) []byte { return p.frame(wire.TypeHeartbeatAck, 0, 0, nil) }, "never requested"},
		"a torn HEARTBEAT":       {func(p *fakePeer) []byte { return p.frame(wire.TypeHeartbeat, 0, 0, []byte{0xff}) }, "HEARTBEAT"},
		"a HEARTBEAT from ahead": {func(p *fakePeer) []byte { return p.frame(wire.TypeHeartbeat, 0, 0, []byte{0x18, 5}) }, "never opened"},
		"too many streams": {func(p *fakePeer) []byte {
			return p.frame(wire.TypeHeartbeat, 0, 0, marshal(t, &wire.Heartbeat{OpenStreams: make([]uint32, 5000)}))
		}, "over 4096"},
	} {
		p, _ := e.node("n")
		p.raw(c.message(p))
		if bye := p.goodbye(); bye.Code != "protocol_error" || !strings.Contains(bye.Message, c.want) {
			t.Errorf("%s: goodbye %v", name, bye)
		}
		p.close()
	}
}

// What is unknown and may be ignored is ignored and counted, on the session and on a run.
func TestIgnorableFrames(t *testing.T) {
	e := newEdgeRig(t, nil)
	defer e.close()
	p, s := e.node("n")
	defer p.close()
	run := open(t, s, nil)
	p.expect(wire.TypeOpen, nil)
	p.raw(p.frame(200, wire.FlagIgnorable, 0, []byte("new")))
	p.raw(p.frame(255, wire.FlagIgnorable, 1, []byte("new")))
	p.send(wire.TypeHead, 1, &wire.Head{Status: 200})
	p.raw(p.frame(199, wire.FlagIgnorable, 1, nil))
	p.sendBytes(wire.TypeBody, 1, []byte("old"))
	p.send(wire.TypeEnd, 1, &wire.End{Outcome: 1})
	if _, body, end := collect(t, run); string(body) != "old" || end.Outcome != execution.Completed {
		t.Errorf("%q, %+v", body, end)
	}
	// What comes for a run that has ended is dropped too, a second END above all.
	p.send(wire.TypeEnd, 1, &wire.End{Outcome: 2})
	p.raw(p.frame(200, 0, 1, nil))
	if err := s.Probe(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n := e.acc.Metrics().FramesDropped.Load(); n != 5 {
		t.Errorf("%d frames dropped, want 5", n)
	}
	if b, ok := run.Take(); ok {
		t.Errorf("after the end: %+v", b)
	}
}

// Faults at the Node, of a run: END says so, the session lives.
func TestStreamFaultsAtTheNode(t *testing.T) {
	n := newNodeRig(t, func(ctx context.Context, _ *NodeRun) { <-ctx.Done() }, nil)
	defer n.close()
	p := n.online(1)
	defer p.close()
	id := uint32(0)
	for _, c := range []struct {
		name  string
		frame func(id uint32) []byte
		want  string
	}{
		{"a gap", func(id uint32) []byte {
			return wire.AppendFrame(nil, wire.FrameHeader{Type: wire.TypeBody, Stream: id, Seq: 2}, nil)
		}, "seq 2, want 1"},
		{"an unknown type", func(id uint32) []byte { return p.frame(99, 0, id, nil) }, "unknown mandatory"},
		{"oversized", func(id uint32) []byte { return p.frame(wire.TypeBody, 0, id, make([]byte, wire.MaxPayload+1)) }, "over 32768"},
		{"more body than announced", func(id uint32) []byte { return p.frame(wire.TypeBody, 0, id, make([]byte, 11)) }, "1 bytes more"},
		{"LEASE", func(id uint32) []byte { return p.frame(wire.TypeLease, 0, id, []byte("sealed")) }, "LEASE"},
		{"HEAD from an Edge", func(id uint32) []byte { return p.frame(wire.TypeHead, 0, id, nil) }, "not a frame from an Edge"},
		{"OPEN twice", func(id uint32) []byte { return p.frame(wire.TypeOpen, 0, id, nil) }, "not a frame from an Edge"},
		{"a torn CANCEL", func(id uint32) []byte { return p.frame(wire.TypeCancel, 0, id, []byte{0xff}) }, "CANCEL"},
	} {
		id++
		spec := tunnelOpen()
		spec.BodyLength = 10
		p.send(wire.TypeOpen, id, spec)
		p.raw(c.frame(id))
		var end wire.End
		f := p.expect(wire.TypeEnd, &end)
		if f.Stream != id || end.Outcome != uint32(execution.Failed) || end.Code != uint32(execution.CodeProtocol) || !strings.Contains(end.Detail, c.want) {
			t.Errorf("%s: END %v on stream %d", c.name, &end, f.Stream)
		}
	}
	// After END a frame is dropped, whatever it is.
	p.raw(p.frame(99, 0, 1, nil))
	p.send(wire.TypeCancel, 1, &wire.Cancel{})
	p.send(wire.TypeHeartbeat, 0, &wire.Heartbeat{Id: 7})
	p.expect(wire.TypeHeartbeatAck, nil)
}

// Faults at the Node, of the session.
func TestSessionFaultsAtTheNode(t *testing.T) {
	open := marshal(t, tunnelOpen())
	for name, c := range map[string]struct {
		message func(p *fakePeer) []byte
		want    string
	}{
		"ids that fall": {func(p *fakePeer) []byte {
			return append(p.frame(wire.TypeOpen, 0, 5, open), p.frame(wire.TypeOpen, 0, 4, open)...)
		}, "stream 4 after 5"},
		"OPEN with seq 1": {func(*fakePeer) []byte {
			return wire.AppendFrame(nil, wire.FrameHeader{Type: wire.TypeOpen, Stream: 1, Seq: 1}, open)
		}, "seq 1"},
		"a torn OPEN":           {func(p *fakePeer) []byte { return p.frame(wire.TypeOpen, 0, 1, []byte{0xff}) }, "OPEN"},
		"an oversized OPEN":     {func(p *fakePeer) []byte { return p.frame(wire.TypeOpen, 0, 1, make([]byte, wire.MaxPayload+1)) }, "over 32768"},
		"a stream never opened": {func(p *fakePeer) []byte { return p.frame(wire.TypeBody, 0, 3, nil) }, "never opened"},
		"too many runs": {func(p *fakePeer) []byte {
			var message []byte
			for id := range uint32(65) {
				message = append(message, p.frame(wire.TypeOpen, 0, id+1, open)...)
			}
			return message
		}, "beyond 64"},
		"READY_ACK twice":  {func(p *fakePeer) []byte { return p.frame(wire.TypeReadyAck, 0, 0, nil) }, "READY_ACK"},
		"REGISTERED twice": {func(p *fakePeer) []byte { return p.frame(wire.TypeRegistered, 0, 0, nil) }, "REGISTERED"},
		"a torn COMMAND":   {func(p *fakePeer) []byte { return p.frame(wire.TypeCommand, 0, 0, []byte{0xff}) }, "COMMAND"},
		"a torn DRAIN":     {func(p *fakePeer) []byte { return p.frame(wire.TypeDrain, 0, 0, []byte{0xff}) }, "DRAIN"},
		"a torn REVOKE":    {func(p *fakePeer) []byte { return p.frame(wire.TypeRevoke, 0, 0, []byte{0xff}) }, "REVOKE"},
		"a torn REFRESH":   {func(p *fakePeer) []byte { return p.frame(wire.TypeRefresh, 0, 0, []byte{0xff}) }, "REFRESH"},
		"an unknown type":  {func(p *fakePeer) []byte { return p.frame(99, 0, 0, nil) }, "unknown mandatory"},
	} {
		n := newNodeRig(t, func(ctx context.Context, _ *NodeRun) { <-ctx.Done() }, nil)
		p := n.online(1)
		p.raw(c.message(p))
		if bye := p.goodbye(); bye.Code != "protocol_error" || !strings.Contains(bye.Message, c.want) {
			t.Errorf("%s: goodbye %v", name, bye)
		}
		p.close()
		n.close()
	}
	n := newNodeRig(t, echo, nil)
	p, _ := n.registered(1)
	p.expect(wire.TypeReady, nil)
	p.raw(p.frame(wire.TypeOpen, 0, 1, open))
	if bye := p.goodbye(); bye.Code != "protocol_error" || !strings.Contains(bye.Message, "before READY_ACK") {
		t.Errorf("an early OPEN: goodbye %v", bye)
	}
	p.close()
	n.close()
}

// Ids ascend; what an Edge may have open at once is bounded by what it announced.
func TestIdsAscendAndAreBounded(t *testing.T) {
	e := newEdgeRig(t, func(cfg *AcceptorConfig) { cfg.MaxStreams = 3 })
	defer e.close()
	p, s := e.node("n")
	defer p.close()
	var runs []*Run
	for id := range uint32(3) {
		runs = append(runs, open(t, s, nil))
		if f := p.expect(wire.TypeOpen, nil); f.Stream != id+1 || f.Seq != 0 {
			t.Errorf("OPEN on stream %d, seq %d", f.Stream, f.Seq)
		}
	}
	if _, err := s.Open(OpenSpec{Open: tunnelOpen()}); !errors.Is(err, ErrTooManyStreams) {
		t.Errorf("the fourth: %v", err)
	}
	p.send(wire.TypeEnd, 2, &wire.End{Outcome: 1})
	collect(t, runs[1])
	open(t, s, nil)
	if f := p.expect(wire.TypeOpen, nil); f.Stream != 4 {
		t.Errorf("an id was used again: %d", f.Stream)
	}
	big := tunnelOpen()
	big.SessionId = strings.Repeat("s", wire.MaxPayload)
	if _, err := s.Open(OpenSpec{Open: big}); err == nil || !strings.Contains(err.Error(), "over 32768") {
		t.Errorf("an OPEN that is too large: %v", err)
	}
}

// OPEN and END overtake the BODY of other streams; PHASE overtakes BODY of its own.
func TestWhatOvertakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var link *fakeLink
		gate := make(chan struct{})
		r := newRigWith(t, func(_ context.Context, run *NodeRun) {
			_ = run.Head(&wire.Head{Status: 200})
			_ = run.Write(make([]byte, 40<<10), false)
			<-gate
			_ = run.Write(make([]byte, 60<<10), false)
			run.Phase(execution.PhaseProviderDone)
			run.End(execution.Terminal{Outcome: execution.Completed})
		}, rigOptions{wrap: func(c net.Conn) net.Conn { link = newFakeLink(c, 1<<10, 0); return link }})
		s := r.session()
		synctest.Wait()
		// Towards the Node: the second run is opened behind the first's body, and is there before the body is.
		link.setRate(10 << 10)
		open(t, s, make([]byte, 60<<10))
		time.Sleep(time.Second)
		second := open(t, s, nil)
		began := time.Now()
		for b, _ := second.Take(); b.Head == nil; b, _ = second.Take() {
			<-second.Ready()
		}
		if d := time.Since(began); d > 7*time.Second { // the bodies alone take 6 s one way and 8 s the other
			t.Errorf("HEAD of the second run came after %v", d)
		}
		time.Sleep(20 * time.Second)
		// Towards the Edge: nobody takes the body, and the place is free nevertheless.
		link.setRate(0)
		released := make(chan struct{})
		third, err := s.Open(OpenSpec{Open: tunnelOpen(), Released: func() { close(released) }})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		close(gate)
		<-released
		if p := third.Phase(); p != execution.PhaseProviderDone {
			t.Errorf("phase %s", p)
		}
		if s.OpenRuns() == 0 {
			t.Error("the run has ended")
		}
		if _, body, end := collect(t, third); len(body) != 100<<10 || end.Outcome != execution.Completed {
			t.Errorf("%d bytes, %+v", len(body), end)
		}
		r.close()
		r.checkEmpty()
	})
}

// A cancel drops an OPEN that is unsent: the Node never hears of the run, and nothing is amiss after it.
func TestCancelDropsAnUnsentOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var link *fakeLink
		r := newRigWith(t, echo, rigOptions{wrap: func(c net.Conn) net.Conn { link = newFakeLink(c, 1<<10, 0); return link }})
		s := r.session()
		synctest.Wait()
		link.stall()
		body := bytes.Repeat([]byte{'b'}, 60<<10)
		first := open(t, s, body)
		synctest.Wait()
		released := 0
		second, err := s.Open(OpenSpec{Open: tunnelOpen(), Body: body, Released: func() { released++ }})
		if err != nil {
			t.Fatal(err)
		}
		third := open(t, s, body)
		second.Cancel(execution.CodeClientGone, "gone")
		b, ok := second.Take()
		if !ok || b.End == nil || b.End.Outcome != execution.Cancelled || b.End.Code != execution.CodeClientGone || b.End.Phase != execution.PhaseDispatched {
			t.Errorf("right after the cancel: %+v", b)
		}
		if second.OpenWritten() || released != 1 || !first.OpenWritten() {
			t.Errorf("written %v, released %d", second.OpenWritten(), released)
		}
		link.resume()
		for _, run := range []*Run{first, third} {
			if _, got, end := collect(t, run); !bytes.Equal(got, body) || end.Outcome != execution.Completed {
				t.Errorf("%d bytes, %+v", len(got), end)
			}
		}
		time.Sleep(2 * time.Minute) // and HEARTBEATs find both ends of one mind
		if n := r.acc.Metrics().LostRuns.Load() + r.acc.Metrics().ProtocolErrors.Load(); n != 0 || s.OpenRuns() != 0 {
			t.Errorf("%d faults, %d open", n, s.OpenRuns())
		}
		r.close()
		r.checkEmpty()
	})
}

// A peer that asks and never reads is not answered for ever.
func TestAsksAndDoesNotRead(t *testing.T) {
	e := newEdgeRig(t, nil)
	near, far := net.Pipe()
	go func() { e.net.conns <- far }()
	p := &deafPeer{t: t, conn: near}
	p.upgrade()
	s := func() *NodeSession {
		p.send(wire.TypeRegister, marshal(t, &wire.RegisterRequest{ProtocolVersions: []uint32{1}, NodeName: "deaf", BootId: "b"}))
		p.readMessage()
		p.send(wire.TypeReady, nil)
		p.readMessage()
		return <-e.dir.online
	}()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		page := func(first bool) []byte { // of an inventory that never ends
			return marshal(t, &wire.Refresh{Id: 1 << 60, Kind: &wire.Refresh_Node{Node: &wire.NodeRefresh{First: first}}})
		}
		_ = p.send(wire.TypeRefresh, page(true))
		for payload := page(false); p.send(wire.TypeRefresh, payload) == nil; {
		}
	}()
	<-s.Done()
	var end *EndError
	if err := <-e.dir.gone; !errors.As(err, &end) || end.Code != "protocol_error" || !strings.Contains(end.Message, "does not read") {
		t.Errorf("gone: %v", err)
	}
	if n := e.acc.Metrics().FramesReceived.Load(); n > answersLimit/answerOverhead {
		t.Errorf("%d questions were taken", n)
	}
	<-sent
	_ = near.Close()
	e.close()
}
