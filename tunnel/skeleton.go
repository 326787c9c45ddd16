package tunnel

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"time"

	"iop/execution"
	"iop/tunnel/wire"
)

// Refusal is an error that the peer is told: a code of the closed set in wire.Refusal and one clear sentence.
type Refusal struct {
	Code       string
	Message    string
	RetryAfter time.Duration
}

func (r *Refusal) Error() string { return r.Code + ": " + r.Message }

// Identity is who opened a session, as Directory.Authenticate found.
type Identity struct {
	TokenID string // token mode: the join token's id (never the token)
}

// ModelInfo is one model that a provider of a Node serves.
type ModelInfo struct {
	Provider execution.ProviderID
	ID       string
	Created  int64 // Unix seconds, 0 if unknown
	OwnedBy  string
}

// ProviderInfo is one provider of a Node, as the Node describes it.
type ProviderInfo struct {
	ID       execution.ProviderID
	Adapter  string
	Capacity int // runs at once, at least 1
	Health   wire.Health
}

// NodeInfo is what a Node says of itself. It is immutable once given away.
type NodeInfo struct {
	Labels    map[string]string
	Providers []ProviderInfo
	Models    []ModelInfo
	Version   string
}

// ---------------------------------------------------------------- the Edge's end

// Directory is what an Acceptor asks of the Edge. Register, Ready, Refreshed, Draining and Gone are called in order
// for one session, never two at once. All but Authenticate and Register must return at once.
type Directory interface {
	// Authenticate is asked before the upgrade. A *Refusal is told to the caller with status 401; any other error
	// becomes 503.
	Authenticate(r *http.Request) (Identity, error)
	// Register is asked once REGISTER has arrived: s.Node, s.BootID, s.Identity, s.HighestSeen and s.Replaces are
	// set, s.Info not yet complete. It returns the session's generation or a *Refusal. It may take until ctx ends.
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
	// Gone is called exactly once for each session that Register accepted, after the last run of it has its terminal.
	Gone(s *NodeSession, cause error)
}

// AcceptorConfig configures an Acceptor.
type AcceptorConfig struct {
	EdgeID    string    // required; told to Nodes
	Directory Directory // required
	// Optional.
	MaxStreams int          // runs at once in one session; default 4096, which is also the most
	Logger     *slog.Logger // default slog.Default()
	Metrics    *Metrics     // default a fresh one
}

// Acceptor is the Edge's end of all tunnels: an http.Handler for GET /tunnel/v1.
type Acceptor struct{}

// NewAcceptor checks cfg and returns an Acceptor.
func NewAcceptor(cfg AcceptorConfig) (*Acceptor, error) { panic("soon") }

// ServeHTTP upgrades the request and hands the session to goroutines of the Acceptor's own; it returns at once.
func (a *Acceptor) ServeHTTP(w http.ResponseWriter, r *http.Request) { panic("soon") }

// Drain refuses new sessions, tells every Node to reconnect elsewhere (or here again, to the next process) and waits
// until all runs have ended or ctx ends; then it says GOODBYE and closes every session.
func (a *Acceptor) Drain(ctx context.Context) error { panic("soon") }

// Close ends every session at once (code shutdown) and waits for their goroutines.
func (a *Acceptor) Close() { panic("soon") }

// NodeSession is one session of one Node, seen from the Edge.
type NodeSession struct{}

func (s *NodeSession) Node() execution.NodeID            { panic("soon") }
func (s *NodeSession) Generation() execution.Generation  { panic("soon") }
func (s *NodeSession) BootID() string                    { panic("soon") }
func (s *NodeSession) Identity() Identity                { panic("soon") }
func (s *NodeSession) HighestSeen() execution.Generation { panic("soon") }
func (s *NodeSession) Replaces() execution.Generation    { panic("soon") }
func (s *NodeSession) RemoteAddr() string                { panic("soon") }
func (s *NodeSession) Since() time.Time                  { panic("soon") }
func (s *NodeSession) Info() *NodeInfo                   { panic("soon") }
func (s *NodeSession) RTT() time.Duration                { panic("soon") }
func (s *NodeSession) OpenRuns() int                     { panic("soon") }
func (s *NodeSession) Done() <-chan struct{}             { panic("soon") }

// Open begins a run. It never blocks: OPEN and body are queued for the writer. body is kept (not copied) and must not
// change until the run has ended. Errors: ErrSessionClosed, ErrDraining, ErrTooManyStreams: nothing was sent.
func (s *NodeSession) Open(spec OpenSpec) (*Run, error) { panic("soon") }

// Probe sends a HEARTBEAT and waits for its answer.
func (s *NodeSession) Probe(ctx context.Context) error { panic("soon") }

// Drain asks the Node to open another session; this one ends when its runs have ended, or after deadline.
func (s *NodeSession) Drain(reason string, reconnectAfter, tryFor, deadline time.Duration) {
	panic("soon")
}

// Fence ends the session now: every run of it gets its terminal (failed, code) before Fence returns, and nothing that
// still arrives reaches a run. The Node is told code and message in GOODBYE.
func (s *NodeSession) Fence(code execution.Code, message string) { panic("soon") }

// OpenSpec is what Open needs.
type OpenSpec struct {
	Open *wire.Open // required; BodyLength is set by Open
	Body []byte     // may be nil
	// Released is called exactly once, when the run's capacity place on the Node is free again: at provider_done, at
	// END, or when the session ends; not when only the Edge gave the run up. It is called without locks held, from
	// any goroutine, and must return at once. Or nil.
	Released func()
}

// Run is the Edge's end of one run. Take and Ready are for one goroutine; the rest for any.
type Run struct{}

// Batch is what has arrived since the last Take.
type Batch struct {
	Head *wire.Head // at most once, before any Data
	// Data is body bytes, valid until the next Take, which also gives their credit back to the Node.
	Data []byte
	// AtBorder: the last byte that arrived (in this batch or before) ends an SSE event.
	AtBorder bool
	// Events of a normalized run.
	Events []*wire.RunEvent
	// End is set exactly once, in the last batch.
	End *execution.Terminal
}

// Ready receives when Take has something to return. It is never closed.
func (r *Run) Ready() <-chan struct{} { panic("soon") }

// Take returns what has arrived; ok is false if nothing has. After a batch with End nothing follows.
func (r *Run) Take() (b Batch, ok bool) { panic("soon") }

// Phase returns the highest phase known.
func (r *Run) Phase() execution.Phase { panic("soon") }

// OpenWritten reports whether the OPEN frame was handed to the socket: if not, no Node has seen the run.
func (r *Run) OpenWritten() bool { panic("soon") }

// Cancel asks the Node to end the run. The terminal follows in a batch: the Node's own, or after 10 s the Edge's
// (cancelled, code). If OPEN was not written yet the terminal is there at once. Idempotent.
func (r *Run) Cancel(code execution.Code, reason string) { panic("soon") }

// Abandon is Cancel for a caller that won't Take any more: what arrives is dropped.
func (r *Run) Abandon(code execution.Code, reason string) { panic("soon") }

// ---------------------------------------------------------------- the Node's end

// Handler runs runs.
type Handler interface {
	// ServeRun executes one run on a goroutine of its own. ctx ends when the run is cancelled, its deadline passes or
	// the session ends; context.Cause tells which (*CancelError). A run that ServeRun leaves without End ends as failed, internal.
	ServeRun(ctx context.Context, run *NodeRun)
}

// CancelError is the cause of a NodeRun's context.
type CancelError struct {
	Code   execution.Code
	Reason string
}

func (e *CancelError) Error() string { return e.Code.String() + ": " + e.Reason }

// NodeRun is the Node's end of one run. Its methods are for ServeRun's goroutine and those it waits for; Read may be
// called beside the others.
type NodeRun struct{}

// Open returns what the Edge asked for.
func (r *NodeRun) Open() *wire.Open { panic("soon") }

// Body returns the whole request body if all of it has arrived, without waiting.
func (r *NodeRun) Body() (body []byte, ok bool) { panic("soon") }

// Read reads the request body as it arrives (io.Reader). It gives credit back as it goes.
func (r *NodeRun) Read(p []byte) (int, error) { panic("soon") }

// Phase tells the Edge how far the run is. Lower than before: ignored.
func (r *NodeRun) Phase(p execution.Phase) { panic("soon") }

// Head sends the answer's head. It must come once, before Write.
func (r *NodeRun) Head(h *wire.Head) error { panic("soon") }

// Write queues body bytes (copied), and blocks while the stream's send buffer is full for want of credit. border: p
// ends an SSE event. It fails when the run was cancelled or the session ended.
func (r *NodeRun) Write(p []byte, border bool) error { panic("soon") }

// End sends the terminal. Only the first call counts. It never blocks.
func (r *NodeRun) End(t execution.Terminal) { panic("soon") }

// SupervisorConfig configures a Supervisor.
type SupervisorConfig struct {
	URL     string           // required: ws:// or wss://
	Node    execution.NodeID // required
	Handler Handler          // required
	// Describe returns what the Node offers now; called at registration and after Refresh. Required.
	Describe func() *NodeInfo
	// Optional.
	Token   func() (string, error) // join token, asked at each dial so that a file may change
	TLS     *tls.Config
	Logger  *slog.Logger
	Metrics *Metrics
	// OnStatus is told of each change of state; must return at once. Or nil.
	OnStatus func(SupervisorStatus)
}

// SupervisorStatus is what a Supervisor is doing.
type SupervisorStatus struct {
	State      string // "connecting", "online", "draining", "waiting", "refused", "stopped"
	Generation execution.Generation
	Detail     string
	RetryIn    time.Duration
}

// Supervisor keeps one Node connected to its Edge until its context ends.
type Supervisor struct{}

// NewSupervisor checks cfg and returns a Supervisor.
func NewSupervisor(cfg SupervisorConfig) (*Supervisor, error) { panic("soon") }

// Run dials, registers and redials until ctx ends (at once: runs are cancelled) or Drain has finished.
func (s *Supervisor) Run(ctx context.Context) error { panic("soon") }

// Refresh tells the Edge that Describe's answer changed. It never blocks.
func (s *Supervisor) Refresh() { panic("soon") }

// Drain says DRAIN, lets open runs finish until ctx ends, says GOODBYE; then Run returns.
func (s *Supervisor) Drain(ctx context.Context) error { panic("soon") }

// Status returns the current status.
func (s *Supervisor) Status() SupervisorStatus { panic("soon") }

// Metrics counts what sessions do. All fields are atomics; see the gateway's and the Node's /metrics.
type Metrics struct{}
