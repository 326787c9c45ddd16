package tunnel

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/protobuf/proto"

	"iop/execution"
	"iop/tunnel/reach"
	"iop/tunnel/wire"
)

// connect dials, registers and becomes ready.
func (s *Supervisor) connect(ctx context.Context) (*nodeSession, error) {
	select {
	case <-s.rotate: // what was asked for until now is what this attempt brings
	default:
	}
	s.cfg.Metrics.Dials.Add(1)
	// A Node that stops does not wait for an Edge that does not answer.
	registering, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.draining, cancel)()
	conn, state, err := s.dial(registering)
	if err != nil {
		return nil, err
	}
	session, err := s.newSession()
	if err != nil {
		conn.kill()
		return nil, err
	}
	session.link.init(conn, session, s.cfg.Logger, s.cfg.Metrics, s.budget)
	// Until the session is ready, the clock may cut it off.
	late := time.AfterFunc(registeredTime, conn.kill)
	defer late.Stop()
	stop := context.AfterFunc(registering, conn.kill)
	err = session.registerNode(state)
	stop()
	if err != nil {
		session.endKeeper()
		conn.kill()
		return nil, err
	}
	return session, session.becomeReady(ctx)
}

// newSession returns a session that is not connected, with a Keeper of its own.
func (s *Supervisor) newSession() (*nodeSession, error) {
	n := &nodeSession{
		sup: s, readyAck: make(chan struct{}), drainAsked: make(chan struct{}), endKeeper: func() {},
		work: make(chan *NodeRun), runs: make(map[uint32]*NodeRun), started: time.Now(),
	}
	if s.cfg.Keeper == nil {
		return n, nil
	}
	keeper, err := s.cfg.Keeper()
	if err != nil {
		return nil, fmt.Errorf("a session's key: %w", err)
	}
	n.keeper, n.endKeeper = keeper, sync.OnceFunc(keeper.Ended)
	return n, nil
}

// dial connects to the Edge. The state is the connection's; nil without TLS.
func (s *Supervisor) dial(ctx context.Context) (messageConn, *tls.ConnectionState, error) {
	header := http.Header{wire.HeaderNode: {string(s.cfg.Node)}}
	if s.cfg.Token != nil {
		token, err := s.cfg.Token()
		if err != nil {
			return messageConn{}, nil, fmt.Errorf("join token: %w", err)
		}
		if token != "" {
			header.Set("Authorization", "Bearer "+token)
		}
	}
	attempt := &reach.Attempt{URL: dialedURL(s.cfg.URL), Peer: reach.Edge, Roots: s.cfg.Roots}
	var cork *corkedConn
	transport := &http.Transport{
		Proxy:                  attempt.Through(http.ProxyFromEnvironment),
		OnProxyConnectResponse: reach.ProxyAnswered,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := s.cfg.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			tuneSocket(c)
			cork = newCorkedConn(attempt.Listen(c))
			return cork, nil
		},
		TLSClientConfig:        s.cfg.TLS,
		TLSHandshakeTimeout:    dialTime,
		DisableKeepAlives:      true,
		MaxResponseHeaderBytes: 64 << 10,
	}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // a redirect would carry the token elsewhere
	}}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	defer s.watchSlow(attempt)()
	ws, resp, err := websocket.Dial(attempt.Watch(ctx), s.cfg.URL, &websocket.DialOptions{
		HTTPClient:     client,
		HTTPHeader:     header,
		Subprotocols:   []string{wire.Subprotocol},
		OnPingReceived: ignorePing,
	})
	if err != nil {
		return messageConn{}, nil, failedDial(attempt, resp, err)
	}
	ws.SetReadLimit(wire.MaxMessage)
	conn := messageConn{ws: ws, cork: cork}
	if ws.Subprotocol() != wire.Subprotocol {
		conn.kill()
		return messageConn{}, nil, &dialError{attempt.Answered(resp, nil), errors.New("the server does not speak " + wire.Subprotocol)}
	}
	return conn, resp.TLS, nil
}

// watchSlow has a line logged if the dial takes long. What it returns ends that; it must be called.
func (s *Supervisor) watchSlow(attempt *reach.Attempt) (stop func()) {
	var watch sync.WaitGroup
	done := make(chan struct{})
	watch.Go(func() {
		timer := time.NewTimer(slowDial)
		defer timer.Stop()
		select {
		case <-timer.C:
			s.saySlow(attempt.Silent())
		case <-done:
		}
	})
	return func() {
		close(done)
		watch.Wait()
	}
}

// failedDial makes a Refusal of the Edge's JSON answer, if it is one, and else says what is in the way.
func failedDial(attempt *reach.Attempt, resp *http.Response, err error) error {
	if resp == nil || resp.Body == nil {
		return &dialError{attempt.Failed(err), err}
	}
	body, readErr := io.ReadAll(io.LimitReader(resp.Body, reach.MaxBody))
	if readErr != nil {
		return &dialError{attempt.Answered(resp, nil), err}
	}
	var answer struct {
		Error struct{ Message, Code, Type string }
	}
	if json.Unmarshal(body, &answer) != nil || answer.Error.Type != refusalType || answer.Error.Code == "" {
		return &dialError{attempt.Answered(resp, body), err}
	}
	r := &Refusal{Code: truncate(answer.Error.Code, maxCodeBytes), Message: truncate(answer.Error.Message, maxMessageBytes)}
	if d, perr := time.ParseDuration(resp.Header.Get("Retry-After") + "s"); perr == nil {
		r.RetryAfter = min(d, backoffMax)
	}
	return r
}

// registerNode sends REGISTER and takes REGISTERED.
func (n *nodeSession) registerNode(state *tls.ConnectionState) error {
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
	if n.keeper != nil {
		req.RecipientPublicKey = n.keeper.Recipient()
	}
	payload, err := proto.Marshal(req)
	if err != nil {
		return fmt.Errorf("encode REGISTER: %w", err)
	}
	if len(payload) > wire.MaxPayload {
		return fmt.Errorf("REGISTER has %d bytes, over %d: too many or too long labels", len(payload), wire.MaxPayload)
	}
	r := Registration{TLS: state, Sent: time.Now()}
	if err := n.link.conn.write(wire.AppendFrame(nil, wire.FrameHeader{Type: wire.TypeRegister}, payload)); err != nil {
		return fmt.Errorf("register: %w", err)
	}
	n.link.txSeq = 1
	if err := n.link.conn.receive(func(message []byte) error { return n.takeRegistered(message, &r) }); err != nil {
		return fmt.Errorf("register: %w", err)
	}
	return n.introduce(r)
}

// takeRegistered checks REGISTERED and notes what it says in the session and in r.
func (n *nodeSession) takeRegistered(message []byte, r *Registration) error {
	h, payload, rest, err := wire.Next(message)
	if err != nil {
		return err
	}
	if h.Type != wire.TypeRegistered || h.Seq != 0 || len(rest) > 0 {
		return protocolError("got %s, want REGISTERED", h.Type)
	}
	var answer wire.RegisterResponse
	if err := proto.Unmarshal(payload, &answer); err != nil {
		return protocolError("REGISTERED: %w", err)
	}
	if no := answer.Refusal; no != nil {
		return &Refusal{Code: truncate(no.Code, maxCodeBytes), Message: truncate(no.Message, maxMessageBytes), RetryAfter: time.Duration(no.RetryAfterMs) * time.Millisecond}
	}
	if answer.Generation == 0 || answer.MaxStreams == 0 || answer.ProtocolVersion != wire.ProtocolVersion {
		return protocolError("REGISTERED lacks a generation, max_streams or a version that this Node speaks")
	}
	n.link.rxSeq = 1
	n.generation = execution.Generation(answer.Generation)
	n.maxStreams = int(min(answer.MaxStreams, wire.MaxStreams))
	n.link.log = n.sup.cfg.Logger.With("generation", answer.Generation)
	r.Generation, r.EdgeID, r.Received = n.generation, truncate(answer.EdgeId, maxNameBytes), time.Now()
	r.Keys, r.Config = answer.LeaseVerificationKeys, answer.Config
	if answer.EdgeTimeUnixMs != 0 {
		r.EdgeTime = time.UnixMilli(answer.EdgeTimeUnixMs)
	}
	if r.Config == nil {
		r.Config = &wire.EdgeConfig{}
	}
	n.configRevision = r.Config.Revision
	if err := checkKeys(r.Keys); err != nil {
		return protocolError("REGISTERED: %w", err)
	}
	return nil
}

// sayGoodbye writes GOODBYE in a session whose writer does not run yet. Whether it arrives does not matter: the
// connection is cut in any case.
func (n *nodeSession) sayGoodbye(code, message string) {
	payload, err := proto.Marshal(&wire.Goodbye{Code: code, Message: truncate(message, maxMessageBytes)})
	if err != nil {
		return
	}
	_ = n.link.conn.write(wire.AppendFrame(nil, wire.FrameHeader{Type: wire.TypeGoodbye, Seq: n.link.txSeq}, payload))
}

// becomeReady starts the session's goroutines, sends the inventory and READY, and waits for READY_ACK.
func (n *nodeSession) becomeReady(ctx context.Context) error {
	s := n.sup
	s.mu.Lock()
	s.seen = max(s.seen, n.generation)
	former := s.readied
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
	n.readyAt, n.former = time.Now(), former
	n.link.urgentLocked(wire.TypeReady, nil, &wire.NodeReadyRequest{ConfigRevision: n.configRevision})
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
	s.readied++
	s.mu.Unlock()
	s.setStatus(SupervisorStatus{State: StateOnline, Generation: n.generation})
	return nil
}
