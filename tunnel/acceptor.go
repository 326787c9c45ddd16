package tunnel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"
	"google.golang.org/protobuf/proto"

	"iop/execution"
	"iop/tunnel/wire"
)

const (
	// registerTime is how long a Node may take from the upgrade to REGISTER.
	registerTime = 10 * time.Second
	// admitTime is how long Directory.Register may take: a state that is slow, an incumbent that is probed.
	admitTime = 15 * time.Second
	// readyTime is how long a Node may take from REGISTERED to READY.
	readyTime = 30 * time.Second
)

// Directory is what an Acceptor asks of the Edge. Register, Ready, Online, Refreshed, Draining and Gone are called in
// order for one session, never two at once. All but Authenticate and Register must return at once.
type Directory interface {
	// Authenticate is asked before the upgrade. A *Refusal is told to the caller with status 401; any other error
	// becomes 503.
	Authenticate(r *http.Request) (Identity, error)
	// Register is asked once REGISTER has arrived: the session's Node, BootID, Identity, HighestSeen and Replaces
	// are set, its models not yet known. It returns the session's generation or a *Refusal. It may take until ctx ends.
	Register(ctx context.Context, s *NodeSession) (execution.Generation, error)
	// Ready is called when READY has arrived, before READY_ACK is sent; s.Info is complete. A *Refusal ends the
	// session. If it returns nil the session is the Node's current one from now on; Open works when Online is called.
	Ready(s *NodeSession) error
	// Online is called right after READY_ACK was queued: runs may be opened.
	Online(s *NodeSession)
	// Refreshed is called when s.Info changed.
	Refreshed(s *NodeSession)
	// Draining is called when the Node said that it takes no new runs.
	Draining(s *NodeSession)
	// Gone is called exactly once for each session that Register accepted, after the last run of it has its
	// terminal. cause is an *EndError.
	Gone(s *NodeSession, cause error)
}

// AcceptorConfig configures an Acceptor.
type AcceptorConfig struct {
	EdgeID    string    // required; told to Nodes
	Directory Directory // required
	// Optional.
	MaxStreams int // runs at once in one session; default and most wire.MaxStreams
	// Managed mode. VerificationKeys returns the public keys (JWK, JSON) of the leases that are good now; Config what the
	// Node works by, of the slots that concern it. Both are asked at registration and by NodeSession.Refresh, must return
	// at once and not call the session. Or nil. What they return must not change any more.
	VerificationKeys func() [][]byte
	Config           func(node execution.NodeID) *wire.EdgeConfig
	// Try reports whether a Node of this identity would be accepted with that name and those labels, changing nothing: nil or a
	// *Refusal; any other error becomes 503. Nil: trials are not answered.
	Try            func(ctx context.Context, id Identity, t Trial) error
	InventoryBytes int64        // memory that the inventories of all sessions may take; default DefaultInventoryBytes
	Logger         *slog.Logger // default slog.Default()
	Metrics        *Metrics     // default a fresh one
}

// Acceptor is the Edge's end of all tunnels: an http.Handler for GET /tunnel/v1.
type Acceptor struct {
	// Static after construction.
	cfg         AcceptorConfig
	budget      *budget
	inventories *inventoryBudget
	ctx         context.Context // ends at Close
	cancel      context.CancelFunc
	wg          sync.WaitGroup // every goroutine of every session
	refusals    refusals       // guards itself

	mu       sync.Mutex
	sessions map[*NodeSession]bool // guarded by mu; registered and not ended
	joining  map[string]int        // guarded by mu; connections by account whose registration was not answered yet; without zeros
	draining bool                  // guarded by mu
	closed   bool                  // guarded by mu
}

// NewAcceptor returns an Acceptor, whose owner must call Close. The error names what is wrong in cfg.
func NewAcceptor(cfg AcceptorConfig) (*Acceptor, error) {
	switch {
	case cfg.EdgeID == "":
		return nil, errors.New("tunnel: EdgeID is required")
	case cfg.Directory == nil:
		return nil, errors.New("tunnel: Directory is required")
	case cfg.MaxStreams < 0 || cfg.MaxStreams > wire.MaxStreams:
		return nil, fmt.Errorf("tunnel: MaxStreams %d is not in 1 to %d", cfg.MaxStreams, wire.MaxStreams)
	}
	if cfg.MaxStreams == 0 {
		cfg.MaxStreams = wire.MaxStreams
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Metrics == nil {
		cfg.Metrics = &Metrics{}
	}
	if cfg.InventoryBytes == 0 {
		cfg.InventoryBytes = DefaultInventoryBytes
	}
	a := &Acceptor{cfg: cfg, budget: newBudget(), inventories: &inventoryBudget{limit: cfg.InventoryBytes, accounts: map[string]int64{}, paces: map[string]*pace{}}, sessions: make(map[*NodeSession]bool), joining: make(map[string]int)}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	return a, nil
}

// Metrics returns the counters of all sessions.
func (a *Acceptor) Metrics() *Metrics { return a.cfg.Metrics }

// ServeHTTP upgrades the request and hands the session to goroutines of the Acceptor's own; it returns at once, so
// that an idle Node holds none of the server's buffers.
func (a *Acceptor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !a.enter() {
		w.Header().Set("Retry-After", "1")
		a.refuse(w, http.StatusServiceUnavailable, &Refusal{Code: "draining", Message: "this Edge is stopping; connect again in a moment"})
		return
	}
	identity, err := a.cfg.Directory.Authenticate(r)
	if err != nil {
		a.wg.Done()
		a.refuseRequest(w, r, err)
		return
	}
	if !offersSubprotocol(r) {
		a.wg.Done()
		a.refuse(w, http.StatusBadRequest, &Refusal{Code: "bad_request", Message: "the subprotocol " + wire.Subprotocol + " is required"})
		return
	}
	if !a.beginJoin(identity.Allowance) {
		a.wg.Done()
		refusal := &Refusal{
			Code: "token_limit", RetryAfter: registerTime,
			Message: "this join token or identity already has the maximum number of connections waiting for registration",
		}
		a.noteRequest(r, identity.account(), refusal)
		a.refuse(w, http.StatusTooManyRequests, refusal)
		return
	}
	if err := a.try(w, r, &identity); err != nil {
		a.endJoin(identity.Allowance)
		a.wg.Done()
		a.refuseTrial(w, r, err)
		return
	}
	conn, err := acceptConn(w, r)
	if err != nil {
		a.endJoin(identity.Allowance)
		a.wg.Done()
		a.cfg.Logger.Info("tunnel: upgrade refused", "remote", r.RemoteAddr, "err", err)
		return
	}
	s := &NodeSession{acceptor: a, identity: identity, remote: r.RemoteAddr}
	go func() {
		joined := s.join(conn)
		a.endJoin(identity.Allowance)
		if !joined {
			conn.kill()
			a.wg.Done()
			return
		}
		// On a goroutine of its own: joining went through the state, and an idle Node must not hold so deep a stack.
		go func() {
			defer a.wg.Done()
			defer conn.kill()
			a.run(s)
		}()
	}()
}

// enter counts a session's goroutine in, unless the Acceptor is ending.
func (a *Acceptor) enter() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.draining || a.closed {
		return false
	}
	a.wg.Add(1)
	return true
}

// beginJoin counts a connection that is about to register: who only opens connections, each of which holds a tunnel's place for
// registerTime, must not take the places of all. False: its account has as many as it may.
func (a *Acceptor) beginJoin(of *Allowance) bool {
	if of == nil || of.Joining == 0 {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.joining[of.Account] >= of.Joining {
		return false
	}
	a.joining[of.Account]++
	return true
}

// endJoin ends what beginJoin began.
func (a *Acceptor) endJoin(of *Allowance) {
	if of == nil || of.Joining == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.joining[of.Account]--; a.joining[of.Account] == 0 {
		delete(a.joining, of.Account)
	}
}

func (a *Acceptor) refuseRequest(w http.ResponseWriter, r *http.Request, err error) {
	refusal, ok := errors.AsType[*Refusal](err)
	if !ok {
		a.cfg.Logger.Error("tunnel: could not authenticate a Node", "remote", r.RemoteAddr, "err", err)
		a.refuse(w, http.StatusServiceUnavailable, &Refusal{Code: "unavailable", Message: "the Edge can't check join tokens right now"})
		return
	}
	a.cfg.Logger.Warn("tunnel: Node refused", "remote", r.RemoteAddr, "code", refusal.Code, "message", refusal.Message)
	a.noteRequest(r, "", refusal)
	w.Header().Set("WWW-Authenticate", `Bearer realm="iop tunnel"`)
	a.refuse(w, http.StatusUnauthorized, refusal)
}

// refuse answers a request that is not upgraded, and counts it.
func (a *Acceptor) refuse(w http.ResponseWriter, status int, r *Refusal) {
	a.cfg.Metrics.refused(r.Code)
	writeRefusal(w, status, r)
}

// refusalType tells a refusal of an Edge's from an error of another server that speaks OpenAI's forms.
const refusalType = "tunnel_error"

func writeRefusal(w http.ResponseWriter, status int, r *Refusal) {
	w.Header().Set("Content-Type", "application/json")
	if r.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(r.RetryAfter.Seconds()+0.999)))
	}
	w.WriteHeader(status)
	// The client may be gone; there is nobody to tell.
	_ = json.NewEncoder(w).Encode(map[string]any{
		"error": map[string]any{"message": r.Message, "type": refusalType, "param": nil, "code": r.Code},
	})
}

// join reads REGISTER and answers it, unless the answer is yes, which is for run to say. It reports whether it is.
func (s *NodeSession) join(conn messageConn) bool {
	a := s.acceptor
	late := time.AfterFunc(registerTime, conn.kill)
	stop := context.AfterFunc(a.ctx, conn.kill)
	defer stop()
	if err := s.readRegister(conn); err != nil {
		late.Stop()
		a.cfg.Logger.Log(a.ctx, unregisteredLevel(err), "tunnel: no registration", "remote", s.remote, "err", err)
		return false
	}
	late.Stop()
	log := a.cfg.Logger.With("node", string(s.node))
	s.link.init(conn, s, log, a.cfg.Metrics, a.budget)
	s.link.rxSeq = 1
	if err := s.admit(); err != nil {
		refusal := asRefusal(err)
		a.cfg.Metrics.refused(refusal.Code)
		s.noteRefused(refusal.Code, refusal.Message)
		log.Warn("tunnel: registration refused", "remote", s.remote, "code", refusal.Code, "message", refusal.Message, "err", err)
		s.answerRefused(conn, refusal)
		return false
	}
	return true
}

// unregisteredLevel is how loud a connection without REGISTER is logged: one that its peer just closed, as iop doctor node does, is
// no fault.
func unregisteredLevel(err error) slog.Level {
	if errors.Is(err, io.EOF) || websocket.CloseStatus(err) == websocket.StatusNormalClosure {
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

func asRefusal(err error) *Refusal {
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r
	}
	return &Refusal{Code: "unavailable", Message: "the Edge can't register Nodes right now"}
}

// readRegister reads the one frame that a stranger may send.
func (s *NodeSession) readRegister(conn messageConn) error {
	return conn.receive(s.takeRegister)
}

func (s *NodeSession) takeRegister(message []byte) error {
	h, payload, rest, err := wire.Next(message)
	if err != nil {
		return err
	}
	if h.Type != wire.TypeRegister || h.Seq != 0 || len(rest) > 0 {
		return protocolError("got %s, want REGISTER", h.Type)
	}
	s.register = &wire.RegisterRequest{}
	if err := proto.Unmarshal(payload, s.register); err != nil {
		return protocolError("REGISTER: %w", err)
	}
	s.register.Providers = nil // for information; the inventory is what counts, and is charged
	s.register.ProtoReflect().SetUnknown(nil)
	s.node = execution.NodeID(s.register.NodeName)
	s.info.Store(&NodeInfo{Labels: s.register.Labels, Version: truncate(s.register.SoftwareVersion, maxNameBytes)})
	return nil
}

// admit checks REGISTER, asks the Directory for a generation and answers REGISTERED.
func (s *NodeSession) admit() error {
	if err := checkRegister(s.register); err != nil {
		return &Refusal{Code: "bad_request", Message: err.Error()}
	}
	a := s.acceptor
	s.hooks = make(chan struct{}, 1)
	s.runs = make(map[uint32]*Run)
	s.commands = make(map[uint64]chan *wire.CommandResult)
	s.maxStreams = a.cfg.MaxStreams
	s.since = time.Now()
	ctx, cancel := context.WithTimeout(a.ctx, admitTime)
	defer cancel()
	generation, err := a.cfg.Directory.Register(ctx, s)
	if err != nil {
		return err
	}
	s.generation = generation
	s.link.log = s.link.log.With("generation", uint64(generation))
	if !a.add(s) {
		a.cfg.Directory.Gone(s, &EndError{Code: goodbyeShutdown, Message: "the Edge is stopping"})
		return &Refusal{Code: "draining", Message: "this Edge is stopping; connect again in a moment"}
	}
	return nil
}

func checkRegister(r *wire.RegisterRequest) error {
	if err := checkName(r.NodeName); err != nil {
		return err
	}
	spoken := false
	for _, v := range r.ProtocolVersions {
		spoken = spoken || v == wire.ProtocolVersion
	}
	switch {
	case !spoken:
		return fmt.Errorf("protocol_versions: %v, but this Edge speaks %d", r.ProtocolVersions, wire.ProtocolVersion)
	case r.BootId == "" || len(r.BootId) > maxNameBytes || !plain(r.BootId):
		return fmt.Errorf("boot_id: missing, over %d bytes or unprintable", maxNameBytes)
	}
	if n := len(r.RecipientPublicKey); n > wire.MaxKey {
		return fmt.Errorf("recipient_public_key: %d bytes, over %d", n, wire.MaxKey)
	}
	return checkLabels(r.Labels)
}

func checkName(name string) error {
	if err := execution.NodeID(name).Validate(); err != nil {
		return fmt.Errorf("node_name: %w", err)
	}
	return nil
}

func checkLabels(labels map[string]string) error {
	if len(labels) > maxLabels {
		return fmt.Errorf("labels: %d, over %d", len(labels), maxLabels)
	}
	for k, v := range labels {
		if k == "" || max(len(k), len(v)) > maxNameBytes || !plain(k) || !plain(v) {
			return fmt.Errorf("labels: a name is empty, or a name or value is over %d bytes or unprintable", maxNameBytes)
		}
	}
	return nil
}

// answerRefused says why in REGISTERED, then closes.
func (s *NodeSession) answerRefused(conn messageConn, r *Refusal) {
	timer := time.AfterFunc(farewellTime, conn.kill)
	defer timer.Stop()
	if s.writeRegistered(&wire.RegisterResponse{Refusal: &wire.Refusal{
		Code: truncate(r.Code, maxCodeBytes), Message: truncate(r.Message, maxMessageBytes), RetryAfterMs: millis(r.RetryAfter),
	}}) == nil {
		conn.close(websocket.StatusPolicyViolation, truncate(r.Code, 64))
	}
}

func (s *NodeSession) writeRegistered(m *wire.RegisterResponse) error {
	m.EdgeId = s.acceptor.cfg.EdgeID
	m.EdgeTimeUnixMs = time.Now().UnixMilli()
	m.ProtocolVersion = wire.ProtocolVersion
	payload, err := proto.Marshal(m)
	if err != nil {
		return err
	}
	seq := s.link.txSeq
	s.link.txSeq++
	return s.link.conn.write(wire.AppendFrame(nil, wire.FrameHeader{Type: wire.TypeRegistered, Seq: seq}, payload))
}

// run drives a registered session until its socket is closed.
func (a *Acceptor) run(s *NodeSession) {
	l := &s.link
	l.metrics.Sessions.Add(1)
	l.metrics.registered(s.HighestSeen(), s.Replaces())
	s.asked = l.now()
	// From here on, so that a Node which does not even read REGISTERED is not waited for either.
	unready := time.AfterFunc(readyTime, func() {
		l.mu.Lock()
		online := s.online
		l.mu.Unlock()
		if !online {
			l.fail(&EndError{Code: goodbyeProtocol, Message: "READY was not sent within 30 s"})
		}
	})
	defer unready.Stop()
	s.answerRegistered()
	s.EndAt(s.identity.NotAfter, expired())
	l.log.Info("tunnel: registered", "remote", s.remote, "boot_id", s.register.BootId)
	l.wg.Go(l.writeLoop)
	l.readLoop()
	l.wg.Wait()
	a.remove(s)
}

// answerRegistered writes REGISTERED. What the Edge's config has beyond its first page follows in REFRESH.
func (s *NodeSession) answerRegistered() {
	pages, keys, err := s.readConfig()
	if err != nil {
		s.link.fail(&EndError{Code: "unavailable", Message: "the Edge can't register Nodes right now", Err: err})
		return
	}
	err = s.writeRegistered(&wire.RegisterResponse{
		Generation:            uint64(s.generation),
		LeaseVerificationKeys: keys,
		Config:                pages[0],
		MaxStreams:            uint32(s.maxStreams),
	})
	if err != nil {
		s.link.fail(&EndError{Code: goodbyeLost, Message: "the connection broke during registration", Err: err})
		return
	}
	if len(pages) > 1 {
		s.tellMore()
	}
}

func (a *Acceptor) add(s *NodeSession) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.draining || a.closed {
		return false
	}
	a.sessions[s] = true
	return true
}

func (a *Acceptor) remove(s *NodeSession) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.sessions, s)
}

// sessionEnded tells the Directory, in order with the session's other calls. On a goroutine of its own: the caller
// may be the Directory itself, holding what Gone needs.
func (a *Acceptor) sessionEnded(s *NodeSession, end *EndError) {
	a.cfg.Metrics.Sessions.Add(-1)
	go func() {
		defer s.link.wg.Done()
		s.hooks <- struct{}{}
		defer func() { <-s.hooks }()
		a.cfg.Directory.Gone(s, end)
	}()
}

func (a *Acceptor) all() []*NodeSession {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := make([]*NodeSession, 0, len(a.sessions))
	for s := range a.sessions {
		list = append(list, s)
	}
	return list
}

// Drain refuses new sessions, tells every Node to reconnect elsewhere (or here again, to the next process) and waits
// until all runs have ended or ctx ends; then every session ends, its remaining runs as cancelled, shutdown.
func (a *Acceptor) Drain(ctx context.Context) error {
	a.mu.Lock()
	a.draining = true
	a.mu.Unlock()
	sessions := a.all()
	// A deadline of its own, beyond the caller's: whoever drains the process ends what is left.
	for _, s := range sessions {
		s.Drain("the Edge is stopping", 0, 30*time.Second, time.Hour)
	}
	var err error
	for _, s := range sessions {
		select {
		case <-s.whenIdle():
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	for _, s := range sessions {
		s.link.fail(&EndError{Code: goodbyeShutdown, Message: "the Edge is stopping", Run: execution.CodeShutdown})
	}
	return err
}

// Close ends every session at once (its runs as cancelled, shutdown) and waits for their goroutines.
func (a *Acceptor) Close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	for _, s := range a.all() {
		s.link.fail(&EndError{Code: goodbyeShutdown, Message: "the Edge is stopping", Run: execution.CodeShutdown})
	}
	a.cancel()
	a.wg.Wait()
}
