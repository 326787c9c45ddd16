package tunnel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/protobuf/proto"

	"iop/execution"
	"iop/tunnel/wire"
)

// connect dials, registers and becomes ready.
func (s *Supervisor) connect(ctx context.Context) (*nodeSession, error) {
	s.setStatus(SupervisorStatus{State: StateConnecting})
	s.cfg.Metrics.Dials.Add(1)
	// A Node that stops does not wait for an Edge that does not answer.
	registering, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.draining, cancel)()
	conn, err := s.dial(registering)
	if err != nil {
		return nil, err
	}
	session := &nodeSession{
		sup: s, readyAck: make(chan struct{}), drainAsked: make(chan struct{}),
		work: make(chan *NodeRun), runs: make(map[uint32]*NodeRun), started: time.Now(),
	}
	session.link.init(conn, session, s.cfg.Logger, s.cfg.Metrics, s.budget)
	// Until the session is ready, the clock may cut it off.
	late := time.AfterFunc(registeredTime, conn.kill)
	defer late.Stop()
	stop := context.AfterFunc(registering, conn.kill)
	err = session.registerNode()
	stop()
	if err != nil {
		conn.kill()
		return nil, err
	}
	return session, session.becomeReady(ctx)
}

func (s *Supervisor) dial(ctx context.Context) (messageConn, error) {
	header := http.Header{}
	if s.cfg.Token != nil {
		token, err := s.cfg.Token()
		if err != nil {
			return messageConn{}, fmt.Errorf("join token: %w", err)
		}
		if token != "" {
			header.Set("Authorization", "Bearer "+token)
		}
	}
	var cork *corkedConn
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := s.cfg.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			tuneSocket(c)
			cork = newCorkedConn(c)
			return cork, nil
		},
		TLSClientConfig:        s.cfg.TLS,
		TLSHandshakeTimeout:    dialTime,
		DisableKeepAlives:      true,
		MaxResponseHeaderBytes: 64 << 10,
	}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return errors.New("the Edge answered with a redirect, which is not followed")
	}}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	ws, resp, err := websocket.Dial(ctx, s.cfg.URL, &websocket.DialOptions{
		HTTPClient:     client,
		HTTPHeader:     header,
		Subprotocols:   []string{wire.Subprotocol},
		OnPingReceived: ignorePing,
	})
	if err != nil {
		return messageConn{}, dialError(resp, err)
	}
	ws.SetReadLimit(wire.MaxMessage)
	conn := messageConn{ws: ws, cork: cork}
	if ws.Subprotocol() != wire.Subprotocol {
		conn.kill()
		return messageConn{}, errors.New("what answers at the Edge's URL does not speak " + wire.Subprotocol)
	}
	return conn, nil
}

// dialError makes a Refusal of the Edge's JSON answer, if it is one.
func dialError(resp *http.Response, err error) error {
	if resp == nil || resp.Body == nil {
		return err
	}
	body, readErr := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if readErr != nil {
		return err
	}
	var answer struct {
		Error struct{ Message, Code string }
	}
	if json.Unmarshal(body, &answer) != nil || answer.Error.Code == "" {
		return fmt.Errorf("the Edge's URL answered %s: %w", resp.Status, err)
	}
	r := &Refusal{Code: truncate(answer.Error.Code, maxCodeBytes), Message: truncate(answer.Error.Message, maxMessageBytes)}
	if d, perr := time.ParseDuration(resp.Header.Get("Retry-After") + "s"); perr == nil {
		r.RetryAfter = min(d, backoffMax)
	}
	return r
}

// registerNode sends REGISTER and takes REGISTERED.
func (n *nodeSession) registerNode() error {
	s := n.sup
	info := s.describe()
	s.mu.Lock()
	req := &wire.RegisterRequest{
		ProtocolVersions:      []uint32{wire.ProtocolVersion},
		NodeName:              string(s.cfg.Node),
		BootId:                s.bootID,
		HighestGenerationSeen: uint64(s.seen),
		Labels:                info.Labels,
		Providers:             firstPage(wireProviders(info.Providers), nil).Providers,
		SoftwareVersion:       truncate(info.Version, maxNameBytes),
	}
	if s.current != nil {
		req.ReplacesGeneration = uint64(s.current.generation)
	}
	s.mu.Unlock()
	payload, err := proto.Marshal(req)
	if err != nil {
		return fmt.Errorf("encode REGISTER: %w", err)
	}
	if len(payload) > wire.MaxPayload {
		return fmt.Errorf("REGISTER has %d bytes, over %d: too many or too long labels", len(payload), wire.MaxPayload)
	}
	if err := n.link.conn.write(wire.AppendFrame(nil, wire.FrameHeader{Type: wire.TypeRegister}, payload)); err != nil {
		return fmt.Errorf("register: %w", err)
	}
	n.link.txSeq = 1
	return n.readRegistered()
}

func (n *nodeSession) readRegistered() error {
	if err := n.link.conn.receive(n.takeRegistered); err != nil {
		return fmt.Errorf("register: %w", err)
	}
	return nil
}

func (n *nodeSession) takeRegistered(message []byte) error {
	h, payload, rest, err := wire.Next(message)
	if err != nil {
		return err
	}
	if h.Type != wire.TypeRegistered || h.Seq != 0 || len(rest) > 0 {
		return protocolError("%s where REGISTERED is due", h.Type)
	}
	var answer wire.RegisterResponse
	if err := proto.Unmarshal(payload, &answer); err != nil {
		return protocolError("REGISTERED: %w", err)
	}
	if r := answer.Refusal; r != nil {
		return &Refusal{Code: truncate(r.Code, maxCodeBytes), Message: truncate(r.Message, maxMessageBytes), RetryAfter: time.Duration(r.RetryAfterMs) * time.Millisecond}
	}
	if answer.Generation == 0 || answer.MaxStreams == 0 || answer.ProtocolVersion != wire.ProtocolVersion {
		return protocolError("REGISTERED without generation, max_streams or a version that this Node speaks")
	}
	n.link.rxSeq = 1
	n.generation = execution.Generation(answer.Generation)
	n.maxStreams = int(min(answer.MaxStreams, wire.MaxStreams))
	n.link.log = n.sup.cfg.Logger.With("generation", answer.Generation)
	return nil
}

// becomeReady starts the session's goroutines, sends the inventory and READY, and waits for READY_ACK.
func (n *nodeSession) becomeReady(ctx context.Context) error {
	s := n.sup
	s.mu.Lock()
	s.seen = max(s.seen, n.generation)
	s.sessions[n] = true
	s.mu.Unlock()
	n.link.metrics.Sessions.Add(1)
	s.wg.Go(func() {
		n.link.wg.Go(n.link.writeLoop)
		n.link.readLoop()
		n.link.wg.Wait()
		n.link.metrics.Sessions.Add(-1)
	})
	n.link.mu.Lock()
	n.announceLocked()
	n.link.urgentLocked(wire.TypeReady, nil, &wire.NodeReadyRequest{})
	n.link.mu.Unlock()
	select {
	case <-n.readyAck:
	case <-s.draining.Done(): // runs may be on their way already: the session drains as any other
	case <-n.link.done:
		select {
		case <-n.readyAck: // it was ready for a moment: how it ended is for hold to see
		default:
			s.forget(n)
			return s.sessionError(n)
		}
	case <-ctx.Done():
		n.link.fail(&EndError{Code: goodbyeShutdown, Message: "the Node is stopping"})
		s.forget(n)
		return ctx.Err()
	}
	s.mu.Lock()
	s.current = n
	s.mu.Unlock()
	s.setStatus(SupervisorStatus{State: StateOnline, Generation: n.generation})
	return nil
}
