package tunnel

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/protobuf/proto"

	"iop/tunnel/wire"
)

// fakePeer is one end of a tunnel that a test plays by hand, rules or no rules.
type fakePeer struct {
	t      testing.TB
	ws     *websocket.Conn
	socket net.Conn       // or nil
	frames chan fakeFrame // closed when the connection is gone
	done   chan struct{}  // closed with frames
	// closed is why, valid when done is closed.
	closed error

	mu    sync.Mutex
	seq   map[uint32]uint32 // guarded by mu: the next of each stream
	quiet bool              // guarded by mu: answers no HEARTBEAT
}

type fakeFrame struct {
	wire.FrameHeader
	payload []byte
}

func newFakePeer(t testing.TB, ws *websocket.Conn) *fakePeer {
	ws.SetReadLimit(wire.MaxMessage)
	p := &fakePeer{t: t, ws: ws, frames: make(chan fakeFrame, 1<<16), done: make(chan struct{}), seq: make(map[uint32]uint32)}
	go p.read()
	return p
}

func (p *fakePeer) read() {
	defer close(p.frames)
	defer close(p.done)
	for {
		_, message, err := p.ws.Read(context.Background())
		if err != nil {
			p.closed = err
			return
		}
		for len(message) > 0 {
			h, payload, rest, err := wire.Next(message)
			if err != nil {
				p.closed = err
				return
			}
			message = rest
			if h.Type == wire.TypeHeartbeat {
				p.answerHeartbeat(payload)
			}
			select {
			case p.frames <- fakeFrame{h, payload}:
			default: // nobody looks at so many
			}
		}
	}
}

func (p *fakePeer) answerHeartbeat(payload []byte) {
	p.mu.Lock()
	quiet := p.quiet
	p.mu.Unlock()
	var hb wire.Heartbeat
	if !quiet && proto.Unmarshal(payload, &hb) == nil {
		p.send(wire.TypeHeartbeatAck, 0, &wire.HeartbeatAck{Id: hb.Id})
	}
}

// hush stops answering HEARTBEATs.
func (p *fakePeer) hush() {
	p.mu.Lock()
	p.quiet = true
	p.mu.Unlock()
}

// frame builds one frame with the stream's next number.
func (p *fakePeer) frame(typ wire.Type, flags wire.Flags, stream uint32, payload []byte) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	seq := p.seq[stream]
	p.seq[stream] = seq + 1
	return wire.AppendFrame(nil, wire.FrameHeader{Type: typ, Flags: flags, Stream: stream, Seq: seq}, payload)
}

// raw sends a message as it is. Whether it arrives is the other end's matter.
func (p *fakePeer) raw(message []byte) {
	_ = p.ws.Write(context.Background(), websocket.MessageBinary, message)
}

func (p *fakePeer) send(typ wire.Type, stream uint32, m proto.Message) {
	payload, err := proto.Marshal(m)
	if err != nil {
		p.t.Error(err)
		return
	}
	p.raw(p.frame(typ, 0, stream, payload))
}

func (p *fakePeer) sendBytes(typ wire.Type, stream uint32, payload []byte) {
	p.raw(p.frame(typ, 0, stream, payload))
}

// expect returns the next frame of that type, passing over others, and decodes it into m unless m is nil.
func (p *fakePeer) expect(typ wire.Type, m proto.Message) fakeFrame {
	p.t.Helper()
	late := time.After(10 * time.Minute)
	for {
		select {
		case f, ok := <-p.frames:
			if !ok {
				p.t.Fatalf("the connection ended before %s came: %v", typ, p.closed)
			}
			if f.Type != typ {
				continue
			}
			if m != nil {
				if err := proto.Unmarshal(f.payload, m); err != nil {
					p.t.Fatal(err)
				}
			}
			return f
		case <-late:
			p.t.Fatalf("%s never came", typ)
		}
	}
}

// goodbye returns the other end's last word, and waits until the connection is closed.
func (p *fakePeer) goodbye() *wire.Goodbye {
	p.t.Helper()
	var bye wire.Goodbye
	p.expect(wire.TypeGoodbye, &bye)
	<-p.done
	return &bye
}

// close cuts the connection and waits for the reader.
func (p *fakePeer) close() {
	if p.socket != nil {
		_ = p.socket.Close()
	}
	_ = p.ws.CloseNow()
	<-p.done
}

// fakeDial opens a connection to an Edge on n, without registering.
func fakeDial(t testing.TB, n *pipeNet) *fakePeer {
	t.Helper()
	p, status := tryDial(t, n)
	if p == nil {
		t.Fatalf("the upgrade was refused: %d", status)
	}
	return p
}

// tryDial is fakeDial for an upgrade that may be refused: then it returns the status.
func tryDial(t testing.TB, n *pipeNet) (*fakePeer, int) {
	t.Helper()
	var socket net.Conn
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := n.dial(ctx, network, addr)
		socket = c
		return c, err
	}}
	ws, resp, err := websocket.Dial(context.Background(), "ws://edge.test"+wire.Path, &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: transport}, Subprotocols: []string{wire.Subprotocol},
	})
	if err != nil && resp != nil {
		return nil, resp.StatusCode
	}
	if err != nil {
		t.Fatal(err)
	}
	p := newFakePeer(t, ws)
	p.socket = socket
	return p, resp.StatusCode
}

// register registers as name and returns the generation.
func (p *fakePeer) register(name string) uint64 {
	p.t.Helper()
	p.send(wire.TypeRegister, 0, &wire.RegisterRequest{ProtocolVersions: []uint32{wire.ProtocolVersion}, NodeName: name, BootId: "boot-" + name})
	var answer wire.RegisterResponse
	p.expect(wire.TypeRegistered, &answer)
	if answer.Refusal != nil {
		p.t.Fatalf("refused: %v", answer.Refusal)
	}
	return answer.Generation
}

// ready registers and becomes ready.
func (p *fakePeer) ready(name string) {
	p.t.Helper()
	p.register(name)
	p.send(wire.TypeReady, 0, &wire.NodeReadyRequest{})
	p.expect(wire.TypeReadyAck, nil)
}

// edgeRig is a real Edge without a Node.
type edgeRig struct {
	t   testing.TB
	net *pipeNet
	dir *testDirectory
	acc *Acceptor
	srv *http.Server
	wg  sync.WaitGroup
	mu  sync.Mutex // guards net where an Edge is restarted
}

func newEdgeRig(t testing.TB, change func(*AcceptorConfig)) *edgeRig {
	e := &edgeRig{t: t, net: newPipeNet(), dir: newTestDirectory()}
	cfg := AcceptorConfig{EdgeID: "edge", Directory: e.dir, Logger: testLogger()}
	if change != nil {
		change(&cfg)
	}
	var err error
	if e.acc, err = NewAcceptor(cfg); err != nil {
		t.Fatal(err)
	}
	e.srv = &http.Server{Handler: e.acc}
	e.wg.Go(func() { _ = e.srv.Serve(e.net) })
	return e
}

// node connects a fake Node that is ready, and returns both ends of its session.
func (e *edgeRig) node(name string) (*fakePeer, *NodeSession) {
	e.t.Helper()
	p := fakeDial(e.t, e.net)
	p.ready(name)
	return p, <-e.dir.online
}

func (e *edgeRig) close() {
	e.acc.Close()
	_ = e.srv.Close()
	_ = e.net.Close()
	e.wg.Wait()
	if n := e.acc.Metrics().Streams.Load(); n != 0 {
		e.t.Errorf("%d streams left", n)
	}
	if n := e.acc.Metrics().Sessions.Load(); n != 0 {
		e.t.Errorf("%d sessions left", n)
	}
	if n := e.acc.budget.left.Load(); n != windowBudget {
		e.t.Errorf("the window budget is short of %d bytes", windowBudget-n)
	}
}

// nodeRig is a real Node whose Edge a test plays.
type nodeRig struct {
	t     testing.TB
	net   *pipeNet
	peers chan *fakePeer
	sup   *Supervisor
	srv   *http.Server
	stop  context.CancelFunc
	wg    sync.WaitGroup
	// runErr is what Run returned, once it has.
	runErr error
	ran    chan struct{}
	seen   func(*http.Request) // or nil: looks at each upgrade
}

func newNodeRig(t testing.TB, h handlerFunc, change func(*SupervisorConfig)) *nodeRig {
	return newNodeRigBefore(t, h, change, func(*nodeRig) {})
}

// newNodeRigBefore calls before with the rig whose Supervisor is about to run.
func newNodeRigBefore(t testing.TB, h handlerFunc, change func(*SupervisorConfig), before func(*nodeRig)) *nodeRig {
	n := &nodeRig{t: t, net: newPipeNet(), peers: make(chan *fakePeer, 4096), ran: make(chan struct{})}
	cfg := SupervisorConfig{
		URL: "ws://edge.test", Node: "node", Handler: h, Logger: testLogger(), DialContext: n.net.dial,
		Describe: func() *NodeInfo { return &NodeInfo{} },
	}
	if change != nil {
		change(&cfg)
	}
	var err error
	if n.sup, err = NewSupervisor(cfg); err != nil {
		t.Fatal(err)
	}
	before(n)
	n.srv = &http.Server{Handler: http.HandlerFunc(n.accept)}
	n.wg.Go(func() { _ = n.srv.Serve(n.net) })
	ctx, cancel := context.WithCancel(context.Background())
	n.stop = cancel
	n.wg.Go(func() {
		n.runErr = n.sup.Run(ctx)
		close(n.ran)
	})
	return n
}

func (n *nodeRig) accept(w http.ResponseWriter, r *http.Request) {
	if n.seen != nil {
		n.seen(r)
	}
	cw := &corkingWriter{ResponseWriter: w}
	ws, err := websocket.Accept(cw, r, &websocket.AcceptOptions{Subprotocols: []string{wire.Subprotocol}})
	if err != nil {
		return
	}
	p := newFakePeer(n.t, ws)
	p.socket = cw.cork
	n.peers <- p
}

// registered takes the next connection's REGISTER and answers it.
func (n *nodeRig) registered(generation uint64) (*fakePeer, *wire.RegisterRequest) {
	n.t.Helper()
	p := <-n.peers
	req := &wire.RegisterRequest{}
	p.expect(wire.TypeRegister, req)
	p.send(wire.TypeRegistered, 0, &wire.RegisterResponse{
		Generation: generation, EdgeId: "fake", MaxStreams: 64, ProtocolVersion: wire.ProtocolVersion, Config: &wire.EdgeConfig{},
	})
	return p, req
}

// online takes the next connection until READY_ACK.
func (n *nodeRig) online(generation uint64) *fakePeer {
	n.t.Helper()
	p, _ := n.registered(generation)
	p.expect(wire.TypeReady, nil)
	p.send(wire.TypeReadyAck, 0, &wire.NodeReadyResponse{})
	return p
}

func (n *nodeRig) close() {
	n.stop()
	<-n.ran
	_ = n.srv.Close()
	_ = n.net.Close()
	n.wg.Wait()
	for {
		select {
		case p := <-n.peers:
			p.close()
			continue
		default:
		}
		break
	}
	if s := n.sup.cfg.Metrics.Streams.Load(); s != 0 {
		n.t.Errorf("%d streams left", s)
	}
	if s := n.sup.cfg.Metrics.Sessions.Load(); s != 0 {
		n.t.Errorf("%d sessions left", s)
	}
	if b := n.sup.budget.left.Load(); b != windowBudget {
		n.t.Errorf("the window budget is short of %d bytes", windowBudget-b)
	}
}

// deafPeer is a Node that writes what it likes and reads only when told to, on a bare connection.
type deafPeer struct {
	t    testing.TB
	conn net.Conn
	br   *bufio.Reader
	seq  uint32
}

func (p *deafPeer) upgrade() {
	p.t.Helper()
	_, err := io.WriteString(p.conn, "GET "+wire.Path+" HTTP/1.1\r\nHost: edge.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: "+wire.Subprotocol+"\r\n\r\n")
	if err != nil {
		p.t.Fatal(err)
	}
	p.br = bufio.NewReader(p.conn)
	resp, err := http.ReadResponse(p.br, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		p.t.Fatalf("upgrade: %v, %v", resp, err)
	}
}

// send writes one session frame as a masked WebSocket message; the mask is 0.
func (p *deafPeer) send(typ wire.Type, payload []byte) error {
	frame := wire.AppendFrame(nil, wire.FrameHeader{Type: typ, Seq: p.seq}, payload)
	p.seq++
	message := []byte{0x82, 0xfe, byte(len(frame) >> 8), byte(len(frame)), 0, 0, 0, 0}
	if len(frame) < 126 {
		message = []byte{0x82, 0x80 | byte(len(frame)), 0, 0, 0, 0}
	}
	_, err := p.conn.Write(append(message, frame...))
	return err
}

// readMessage reads one short message and forgets it.
func (p *deafPeer) readMessage() {
	p.t.Helper()
	var header [2]byte
	if _, err := io.ReadFull(p.br, header[:]); err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.br.Discard(int(header[1])); err != nil || header[1] > 125 {
		p.t.Fatalf("a message of %d: %v", header[1], err)
	}
}
