package tunnel

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"iop/execution"
	"iop/tunnel/wire"
)

// Limits of what a Node may say of itself.
const (
	maxLabels    = 64
	maxProviders = 256
	maxModels    = 16384
	maxNameBytes = 256
	maxCapacity  = 1 << 20
	// maxOperations bounds those of one provider: more than there will ever be.
	maxOperations = 256
)

// Identity is who opened a session, as Directory.Authenticate found.
type Identity struct {
	TokenID string // token mode: the join token's id (never the token)
	// Managed mode: what the Node's certificate proved. Peer is its SPIFFE ID, Serial the certificate's number. At
	// NotAfter the session ends (see EndAt); zero for never.
	Peer, Serial string
	NotAfter     time.Time
	// Allowance is what the Node may say of itself; nil: what the contract allows.
	Allowance *Allowance
	// Proof is what Authenticate wants to find again, or nil. The tunnel does not look at it.
	Proof any
}

// ModelInfo is one model that a provider of a Node serves.
type ModelInfo struct {
	Provider execution.ProviderID
	ID       string
	Created  int64 // Unix seconds, 0 if unknown
	OwnedBy  string
	Loaded   bool // it is in memory: a run of it need not wait for a load
	// Details are what the provider says of the model's file, or nil.
	Details *ModelDetails
}

// ProviderInfo is one provider of a Node, as the Node describes it.
type ProviderInfo struct {
	ID       execution.ProviderID
	Adapter  string
	Capacity int // runs at once, at least 1
	Health   wire.Health
	// Operations are the names of the operations (openai.Operation) whose path it was found to have; with OperationsKnown
	// unset nothing is known of them.
	Operations      []string
	OperationsKnown bool
	// Runs: the Node has an adapter that runs normalized runs on it.
	Runs bool
	// Engine is what the engine calls itself, EngineVersion its version; empty where it does not tell.
	Engine, EngineVersion string
	// InFlight is how many runs it works on now; known in the answer to Capabilities alone.
	InFlight int
}

// NodeInfo is what a Node says of itself. It is immutable once given away.
type NodeInfo struct {
	Labels    map[string]string // the operator's, for routes to choose by
	Providers []ProviderInfo
	Models    []ModelInfo
	Version   string // of its binary
	// Ignored is how many models are left out because the session's Allowance does not cover them, IgnoredModels the first
	// three.
	Ignored       int
	IgnoredModels []string
}

// NodeSession is one session of one Node, seen from the Edge. Its methods are for any goroutine.
type NodeSession struct {
	link link

	// Static after registration.
	acceptor   *Acceptor
	node       execution.NodeID
	generation execution.Generation
	register   *wire.RegisterRequest
	identity   Identity
	remote     string
	since      time.Time
	maxStreams int

	// asked is the goroutine's that reads: when REGISTERED was sent; zero once the inventory began to come.
	asked time.Time

	info atomic.Pointer[NodeInfo]
	// hooks keeps the Directory's calls for this session in order. Held by whoever calls.
	hooks chan struct{}

	// Guarded by link.mu.
	runs        map[uint32]*Run
	lastID      uint32
	readied     bool // READY has arrived
	online      bool // Directory.Ready was content
	draining    bool // no Open
	inventory   inventoryState
	beats       pace      // of the Node's HEARTBEATs
	leaving     bool      // this end drains: the session ends with its last run
	lastWord    *EndError // how it ends then, or nil: as drained
	drainTimer  *time.Timer
	commands    map[uint64]chan *wire.CommandResult
	lastCommand uint64
	config      configSender
	revokes     map[uint64]chan struct{} // not acknowledged, by id; each closed by its acknowledgement
	lastRevoke  uint64
	endTimer    *time.Timer // or nil: no end is set
	idle        waiters     // closed when no run is left
	arrived     []*Run      // body came for them in the message that is being read
}

// Node returns the Node's name.
func (s *NodeSession) Node() execution.NodeID { return s.node }

// Generation returns the session's generation.
func (s *NodeSession) Generation() execution.Generation { return s.generation }

// BootID returns what tells this start of the Node's process from others.
func (s *NodeSession) BootID() string { return s.register.GetBootId() }

// Identity returns what Directory.Authenticate found.
func (s *NodeSession) Identity() Identity { return s.identity }

// HighestSeen returns the greatest generation that the Node says it was given.
func (s *NodeSession) HighestSeen() execution.Generation {
	return execution.Generation(s.register.GetHighestGenerationSeen())
}

// Replaces returns the generation that the Node says this session replaces; 0 if none.
func (s *NodeSession) Replaces() execution.Generation {
	return execution.Generation(s.register.GetReplacesGeneration())
}

// RemoteAddr returns the address that the session came from.
func (s *NodeSession) RemoteAddr() string { return s.remote }

// Since returns when the session was registered.
func (s *NodeSession) Since() time.Time { return s.since }

// Info returns what the Node last said of itself. Never nil.
func (s *NodeSession) Info() *NodeInfo { return s.info.Load() }

// RTT returns the round trip of the last heartbeat. Before the first it is how long the Node took from REGISTERED to the
// first page of its inventory, which it sends at once; 0 before that.
func (s *NodeSession) RTT() time.Duration {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	return s.link.beat.rtt
}

// OpenRuns returns the number of runs that the Node may still be working on.
func (s *NodeSession) OpenRuns() int {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	return len(s.runs)
}

// Done is closed when the session has ended; by then every run has its terminal.
func (s *NodeSession) Done() <-chan struct{} { return s.link.done }

// Draining reports whether the session takes no new runs, because either end said DRAIN.
func (s *NodeSession) Draining() bool {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	return s.draining
}

// Open begins a run. It never blocks: OPEN and body are queued for the writer. The body is kept (not copied) and must
// not change until the run has ended. Errors: ErrSessionClosed, ErrDraining, ErrTooManyStreams, ErrNoRecipient, or an OPEN
// that is over the limit of a frame: in each case nothing was sent.
func (s *NodeSession) Open(spec OpenSpec) (*Run, error) {
	spec.Open.BodyLength = uint64(len(spec.Body))
	for _, piece := range spec.More {
		spec.Open.BodyLength += uint64(len(piece))
	}
	spec.Open.ExpectsLease = spec.Lease != nil
	if spec.Lease != nil && s.Recipient() == nil {
		return nil, ErrNoRecipient
	}
	payload, err := encode(spec.Open)
	if err != nil {
		return nil, fmt.Errorf("encode OPEN: %w", err)
	}
	if len(payload) > wire.MaxPayload {
		return nil, fmt.Errorf("OPEN has %d bytes, over %d: the request's headers are too large", len(payload), wire.MaxPayload)
	}
	r := &Run{runID: execution.RunID(spec.Open.RunId), phase: execution.PhaseDispatched, released: spec.Released, events: spec.Open.GetRun() != nil}
	if spec.Lease != nil {
		r.seal = &seal{lease: spec.Lease}
	}
	l := &s.link
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.end != nil:
		return nil, ErrSessionClosed
	case s.draining || !s.online:
		return nil, ErrDraining
	case len(s.runs) >= s.maxStreams, s.lastID == 1<<32-1:
		return nil, ErrTooManyStreams
	}
	s.lastID++
	initStream(&r.stream, l, s.lastID)
	r.rx.border = r.events // no event has begun
	s.runs[r.id] = r
	l.metrics.Streams.Add(1)
	r.requestLocked(payload, &spec)
	l.wakeWriter()
	return r, nil
}

// requestLocked queues OPEN and the body. The last of the request has the flag; a lease, if there is one, comes behind.
func (r *Run) requestLocked(open []byte, spec *OpenSpec) {
	r.pushLocked(sendItem{typ: wire.TypeOpen, data: open})
	r.pushBodyLocked(spec.Body)
	for _, piece := range spec.More {
		r.pushBodyLocked(piece)
	}
	if r.seal != nil {
		r.tx.awaits = true
		return
	}
	r.tx.queue[len(r.tx.queue)-1].flags = wire.FlagLast
}

// pushBodyLocked queues a piece of the body, if there is something in it.
func (r *Run) pushBodyLocked(piece []byte) {
	if len(piece) > 0 {
		r.pushLocked(sendItem{typ: wire.TypeBody, data: piece, shared: true})
	}
}

// Drain asks the Node to open another session; this one takes no new runs and ends when its runs have ended, or after
// deadline, when they end as cancelled, drain_deadline.
func (s *NodeSession) Drain(reason string, reconnectAfter, tryFor, deadline time.Duration) {
	l := &s.link
	l.mu.Lock()
	defer l.unlock()
	if l.end != nil {
		return
	}
	s.draining = true
	l.urgentLocked(wire.TypeDrain, nil, &wire.Drain{
		Reason:           truncate(reason, 256),
		ReconnectAfterMs: millis(reconnectAfter),
		TryForMs:         millis(tryFor),
		DeadlineMs:       millis(deadline),
	})
	s.endAfterLocked(deadline)
}

// Supersede lets the session's runs finish while the Node's next session takes the new ones: as Drain, but the Node
// knows already.
func (s *NodeSession) Supersede(deadline time.Duration) {
	s.link.mu.Lock()
	defer s.link.unlock()
	if s.link.end == nil {
		s.draining = true
		s.endAfterLocked(deadline)
	}
}

// Yield is Supersede for a session whose Node's name another process has got: the Node is told so when the session ends.
func (s *NodeSession) Yield(deadline time.Duration, message string) {
	s.link.mu.Lock()
	s.lastWord = &EndError{Code: goodbyeSuperseded, Message: message, Run: execution.CodeSessionSuperseded}
	s.link.mu.Unlock()
	s.Supersede(deadline)
}

// Notify tells the Node something that its operator should know: a code of the closed set in wire.Notice and a sentence.
// It never blocks. An older Node does not hear it.
func (s *NodeSession) Notify(code, message string) {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	if s.link.end == nil && s.online {
		s.noticeLocked(code, message)
	}
}

func (s *NodeSession) noticeLocked(code, message string) {
	s.link.ignorableLocked(wire.TypeNotice, &wire.Notice{Code: truncate(code, maxCodeBytes), Message: truncate(message, maxMessageBytes)})
}

// endAfterLocked ends the session with its last run, now if there is none, or at the deadline. Only the Edge can do
// that: it alone knows whether an OPEN is still on its way.
func (s *NodeSession) endAfterLocked(deadline time.Duration) {
	s.leaving = true
	if s.drainTimer != nil {
		s.drainTimer.Stop()
	}
	s.drainTimer = time.AfterFunc(deadline, func() {
		s.link.fail(&EndError{Code: goodbyeDeadline, Message: "the drain's deadline passed", Run: execution.CodeDrainDeadline})
	})
	s.idleLocked()
}

func millis(d time.Duration) uint32 { return uint32(min(max(d.Milliseconds(), 0), 1<<31)) }

// Fence ends the session now: every run of it gets its terminal (failed, code) before Fence returns, and nothing that
// still arrives reaches a run. The Node is told the code's name and message in GOODBYE.
func (s *NodeSession) Fence(code execution.Code, message string) {
	s.link.fail(&EndError{Code: code.String(), Message: message, Run: code})
}

// Refuse ends the session and tells the Node why, as if it had been refused at registration.
func (s *NodeSession) Refuse(r *Refusal) {
	s.link.metrics.refused(r.Code)
	s.link.fail(&EndError{Code: r.Code, Message: r.Message, Run: execution.CodeSessionLost})
}

// ---- peerEnd

func (s *NodeSession) endSentLocked(*stream) {}

// arrivedLocked notes that body came for r.
func (s *NodeSession) arrivedLocked(r *Run) {
	if n := len(s.arrived); n == 0 || s.arrived[n-1] != r {
		s.arrived = append(s.arrived, r)
	}
}

// messageReadLocked tells the runs that body came for. One alone may be served right here, by the reader.
func (s *NodeSession) messageReadLocked() {
	list := s.arrived
	s.arrived = list[:0]
	if len(list) == 1 && list[0].direct != nil && list[0].terminal == nil {
		r := list[0]
		s.link.after = append(s.link.after, func() {
			if !r.direct() {
				poke(r.ready)
			}
		})
		return
	}
	for _, r := range list {
		poke(r.ready)
	}
}

func (s *NodeSession) heartbeatLocked(*wire.Heartbeat) {}

func (s *NodeSession) runFrameLocked(h wire.FrameHeader, payload []byte) error {
	r := s.runs[h.Stream]
	if r != nil && r.tx.started {
		r.frameLocked(h, payload)
		return nil
	}
	if r != nil || h.Stream > s.lastID {
		return protocolError("%s for stream %d, which was never opened", h.Type, h.Stream)
	}
	s.link.metrics.FramesDropped.Add(1)
	return nil
}

func (s *NodeSession) sessionFrameLocked(h wire.FrameHeader, payload []byte) error {
	switch h.Type {
	case wire.TypeHeartbeat:
		return s.beatLocked(payload)
	case wire.TypeRefresh:
		return s.refreshLocked(payload)
	case wire.TypeReady:
		return s.readyLocked(payload)
	case wire.TypeDrain:
		return s.drainFrameLocked(payload)
	case wire.TypeCommandResult:
		return s.resultLocked(payload)
	case wire.TypeRevokeAck:
		return s.revokeAckLocked(payload)
	default:
		return protocolError("%s is not a frame from a registered Node", h.Type)
	}
}

// drainFrameLocked follows the Node's DRAIN. What it was not sent yet it need not refuse: those runs end here.
func (s *NodeSession) drainFrameLocked(payload []byte) error {
	var d wire.Drain
	if err := proto.Unmarshal(payload, &d); err != nil {
		return protocolError("DRAIN: %w", err)
	}
	for _, r := range s.runs {
		if !r.tx.started {
			r.finishLocked(&execution.Terminal{Outcome: execution.Rejected, Code: execution.CodeDraining, Detail: "the Node is draining"})
			r.forgetLocked()
		}
	}
	if !s.draining {
		s.draining = true
		s.hookLocked(s.acceptor.cfg.Directory.Draining)
	}
	return nil
}

// hookLocked calls one of the Directory's methods once the lock is released.
func (s *NodeSession) hookLocked(f func(*NodeSession)) {
	s.link.after = append(s.link.after, func() {
		s.hooks <- struct{}{}
		defer func() { <-s.hooks }()
		select {
		case <-s.link.done:
		default:
			f(s)
		}
	})
}

// beatLocked answers a HEARTBEAT and compares what both ends hold open (reconciliation).
func (s *NodeSession) beatLocked(payload []byte) error {
	if !s.beats.take(s.link.now(), heartbeatBurst, heartbeatPace) {
		return tooFast(fmt.Sprintf("HEARTBEATs arrive more often than every %s", heartbeatPace))
	}
	var hb wire.Heartbeat
	if err := proto.Unmarshal(payload, &hb); err != nil {
		return protocolError("HEARTBEAT: %w", err)
	}
	if hb.HighestOpen > s.lastID {
		return protocolError("HEARTBEAT names stream %d, which was never opened", hb.HighestOpen)
	}
	if len(hb.OpenStreams) > wire.MaxStreams {
		return protocolError("HEARTBEAT names %d streams, over %d", len(hb.OpenStreams), wire.MaxStreams)
	}
	ack := &wire.HeartbeatAck{Id: hb.Id, EdgeTimeUnixMs: time.Now().UnixMilli()}
	known := make(map[uint32]bool, len(hb.OpenStreams))
	for _, id := range hb.OpenStreams {
		known[id] = true
		if s.runs[id] == nil {
			ack.UnknownStreams = append(ack.UnknownStreams, id)
		}
	}
	for id, r := range s.runs {
		if id > hb.HighestOpen || known[id] {
			r.missed = 0
			continue
		}
		if r.missed++; r.missed >= 2 {
			s.link.metrics.LostRuns.Add(1)
			r.finishLocked(&execution.Terminal{Outcome: execution.Failed, Code: execution.CodeLostByNode, Detail: "the Node does not know the run"})
			r.forgetLocked()
		}
	}
	return s.link.answerLocked(wire.TypeHeartbeatAck, ack)
}

// refreshLocked takes one page of the Node's inventory.
func (s *NodeSession) refreshLocked(payload []byte) error {
	var msg wire.Refresh
	if err := proto.Unmarshal(payload, &msg); err != nil {
		return protocolError("REFRESH: %w", err)
	}
	page := msg.GetNode()
	if page == nil {
		if msg.GetAck() != nil {
			s.configAckLocked(msg.Id)
		}
		return nil
	}
	return s.pageLocked(msg.Id, page)
}

func parseProvider(p *wire.Provider) (ProviderInfo, error) {
	if p.Id == "" || max(len(p.Id), len(p.Adapter)) > maxNameBytes || !plain(p.Id) || !plain(p.Adapter) {
		return ProviderInfo{}, fmt.Errorf("a provider without a usable id")
	}
	if p.Capacity == 0 || p.Capacity > maxCapacity {
		return ProviderInfo{}, fmt.Errorf("provider %q: capacity %d", p.Id, p.Capacity)
	}
	info := ProviderInfo{
		ID: execution.ProviderID(p.Id), Adapter: p.Adapter, Capacity: int(p.Capacity), Health: p.Health,
		OperationsKnown: p.OperationsKnown, Runs: p.Runs,
		Engine: truncate(p.Engine, maxNameBytes), EngineVersion: truncate(p.EngineVersion, maxNameBytes),
		InFlight: int(min(p.InFlight, maxCapacity)),
	}
	for _, name := range p.Operations[:min(len(p.Operations), maxOperations)] {
		if usableName(name) { // a newer Node may have others, whatever they are called
			info.Operations = append(info.Operations, name)
		}
	}
	return info, nil
}

func (s *NodeSession) readyLocked(payload []byte) error {
	var ready wire.NodeReadyRequest
	if err := proto.Unmarshal(payload, &ready); err != nil {
		return protocolError("READY: %w", err)
	}
	if s.readied {
		return protocolError("READY twice")
	}
	s.readied = true
	s.hookLocked(func(s *NodeSession) {
		if err := s.acceptor.cfg.Directory.Ready(s); err != nil {
			end := refusalEnd(err)
			s.link.metrics.refused(end.Code)
			s.noteRefused(end.Code, end.Message)
			s.link.fail(end)
			return
		}
		s.link.mu.Lock()
		s.online = true
		s.link.urgentLocked(wire.TypeReadyAck, nil, &wire.NodeReadyResponse{EdgeTimeUnixMs: time.Now().UnixMilli()})
		s.link.startHeartbeatsLocked()
		s.link.mu.Unlock()
		s.acceptor.refusals.settle(s.node, s.remote)
		s.acceptor.cfg.Directory.Online(s)
	})
	return nil
}

func refusalEnd(err error) *EndError {
	if r, ok := err.(*Refusal); ok {
		return &EndError{Code: r.Code, Message: r.Message}
	}
	return &EndError{Code: "unavailable", Message: "the Edge can't accept the Node right now", Err: err}
}

func (s *NodeSession) resultLocked(payload []byte) error {
	result := &wire.CommandResult{}
	if err := proto.Unmarshal(payload, result); err != nil {
		return protocolError("COMMAND_RESULT: %w", err)
	}
	if ch, ok := s.commands[result.Id]; ok {
		delete(s.commands, result.Id)
		ch <- result
	}
	return nil
}

// idleLocked is called when a run left the session.
func (s *NodeSession) idleLocked() {
	if len(s.runs) > 0 {
		return
	}
	s.idle.tell()
	if s.leaving && s.link.end == nil {
		end := s.lastWord
		if end == nil {
			end = &EndError{Code: goodbyeDrained, Message: "every run of the drained session has ended"}
		}
		s.link.after = append(s.link.after, func() { s.link.fail(end) })
	}
}

// whenIdle returns a channel that is closed when no run is left.
func (s *NodeSession) whenIdle() <-chan struct{} {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	return s.idle.wait(len(s.runs) == 0)
}

func (s *NodeSession) endedLocked(end *EndError) {
	if s.drainTimer != nil {
		s.drainTimer.Stop()
	}
	if s.endTimer != nil {
		s.endTimer.Stop()
	}
	s.dropInventoryLocked()
	outcome := execution.Failed
	switch end.Run {
	case execution.CodeDrainDeadline, execution.CodeShutdown:
		outcome = execution.Cancelled
	}
	for _, r := range s.runs {
		r.finishLocked(&execution.Terminal{Outcome: outcome, Code: end.Run, Detail: end.Error()})
		r.forgetLocked()
	}
}

func (s *NodeSession) ended(end *EndError) {
	level := slog.LevelInfo
	if end.Code == goodbyeHeartbeat || end.Code == goodbyeProtocol || end.Code == goodbyeTooFast {
		level = slog.LevelWarn
	}
	if end.Run == execution.CodeSessionSuperseded {
		s.link.metrics.Supersessions.Add(1)
	}
	s.link.log.Log(context.Background(), level, "tunnel: session ended", "reason", end.Code, "detail", end.Error(), "remote", end.Remote)
	s.acceptor.sessionEnded(s, end)
}
