package registry

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"iop/execution"
	"iop/gateway/admission"
	"iop/identity"
	"iop/openai"
	"iop/state"
	"iop/tunnel"
	"iop/tunnel/wire"
)

// Store is what the registry needs of state.
type Store interface {
	VerifyJoinToken(ctx context.Context, presented string) (*state.JoinToken, error)
	ClaimNode(ctx context.Context, token state.JoinTokenID, node execution.NodeID) error
	TryNode(ctx context.Context, token state.JoinTokenID, node execution.NodeID) error
	NodeAllowed(ctx context.Context, node execution.NodeID, serial state.CertificateSerial) (state.NodeAllow, error)
	NodeAllows(ctx context.Context) ([]state.NodeAllow, error)
	Denials(ctx context.Context) ([]state.Denial, error)
	NextGeneration(ctx context.Context, node execution.NodeID, seen execution.Generation) (execution.Generation, error)
	RememberNodes(ctx context.Context, nodes []state.NodeMemory) error
	RememberedNodes(ctx context.Context) ([]state.NodeMemory, error)
	ForgetNode(ctx context.Context, node execution.NodeID) error
}

// Session is what the registry and the relay need of a tunnel session. *tunnel.NodeSession is one, but for Open.
type Session interface {
	Node() execution.NodeID
	Generation() execution.Generation
	BootID() string
	Identity() tunnel.Identity
	HighestSeen() execution.Generation
	Replaces() execution.Generation
	RemoteAddr() string
	Since() time.Time
	Info() *tunnel.NodeInfo
	RTT() time.Duration
	OpenRuns() int
	Open(spec tunnel.OpenSpec) (Run, error)
	Probe(ctx context.Context) error
	Supersede(deadline time.Duration)
	Yield(deadline time.Duration, message string)
	Notify(code, message string)
	Fence(code execution.Code, message string)
	Refuse(refusal *tunnel.Refusal)
	// Managed mode.
	Recipient() []byte
	Refresh(ctx context.Context) error
	Revoke(ctx context.Context, what *wire.Revoke) error
	EndAt(at time.Time, refusal *tunnel.Refusal)
	Drain(reason string, reconnectAfter, tryFor, deadline time.Duration)
}

// Run is one run on a session: *tunnel.Run.
type Run interface {
	Ready() <-chan struct{}
	Take() (tunnel.Batch, bool)
	TakeData() (data []byte, atBorder, ok bool)
	Direct(take func() (taken bool))
	Backlog() tunnel.Backlog
	Phase() execution.Phase
	OpenWritten() bool
	RequestWritten() bool
	LeaseSent() bool
	Cancel(code execution.Code, reason string)
	Abandon(code execution.Code, reason string)
}

// local is a session whose socket is in this process.
type local struct{ *tunnel.NodeSession }

// Open begins a run.
func (s local) Open(spec tunnel.OpenSpec) (Run, error) {
	run, err := s.NodeSession.Open(spec)
	if err != nil {
		return nil, err // a nil *tunnel.Run must not become a Run
	}
	return run, nil
}

// Constants of the contract (section 3 of the wire contract, two processes of one name).
const (
	probeWait        = 5 * time.Second  // for the incumbent's answer
	flapWindow       = time.Minute      // how long a fight lasts after each sign of it; Nodes ask again sooner
	flapRetryAfter   = 5 * time.Second  // soon: the incumbent may end at any time
	replacedDeadline = 30 * time.Minute // for the runs of a session that another one replaced
	maxOfflineNodes  = 4096             // remembered for the operator
	maxModelsListed  = 100_000          // over all Nodes
	maxModelIDLength = 512
	maxEndedSessions = 20 // remembered of one Node
)

// Config configures a Registry.
type Config struct {
	Store     Store                 // required
	Admission *admission.Controller // required
	Logger    *slog.Logger          // default slog.Default()
	// Identity is who this Edge is, in managed mode: Nodes then show certificates in place of join tokens. Or nil.
	Identity identity.Source
}

// Registry holds the sessions of all Nodes. It implements tunnel.Directory.
type Registry struct {
	store    Store
	adm      *admission.Controller
	log      *slog.Logger
	identity identity.Source // nil: token mode

	models  atomic.Pointer[[]tunnel.ModelInfo] // what Models returned last; nil when something changed since
	flapped atomic.Int64                       // newcomers refused for flapping

	// lists is held while the lists of Nodes are read and while what they say takes effect, so that an older reading never
	// follows a newer one. It is taken before mu.
	lists sync.Mutex

	// saving is held while what is remembered is written, so that an older reading never follows a newer one. It is taken
	// before mu.
	saving    sync.Mutex
	unwritten bool          // the last write failed; guarded by saving
	wake      chan struct{} // holds a value when something is unsaved; never closed

	mu      sync.Mutex
	nodes   map[execution.NodeID]*node
	unsaved map[execution.NodeID][]string // Nodes to be written, with their models; nil: those of before
}

// node is what is known of one Node. Guarded by Registry.mu.
type node struct {
	id        execution.NodeID
	current   *session // the one that gets runs, or nil
	sessions  map[execution.Generation]*session
	ready     execution.Generation // the greatest that ever was READY
	drained   string               // the boot id that the operator drained; empty for none
	contested time.Time            // two living processes ask for the name: until then whoever has it keeps it; zero if never
	flapping  time.Time            // until then it shows that a newcomer was refused; zero if never
	contender string               // the address of the last newcomer that was refused
	notified  time.Time            // when the incumbent was last told
	lastSeen  time.Time
	lastCause string
	models    uint64         // a digest of the models that were last noted
	ended     []EndedSession // the latest last; at most maxEndedSessions
}

// session is one session and what the registry decided about it. Guarded by Registry.mu, but for s.
type session struct {
	s        Session
	gen      execution.Generation
	dead     *session // of another process: it had the name and did not answer when this one registered; or nil
	online   bool
	draining bool
	managed  *credentials // nil in token mode
}

// New returns an empty Registry.
func New(cfg Config) (*Registry, error) {
	if cfg.Store == nil || cfg.Admission == nil {
		return nil, errors.New("registry: Store and Admission are required")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Registry{
		store: cfg.Store, adm: cfg.Admission, log: cfg.Logger, identity: cfg.Identity,
		wake: make(chan struct{}, 1), nodes: map[execution.NodeID]*node{}, unsaved: map[execution.NodeID][]string{},
	}, nil
}

// Open begins a run on the session that t names. ErrGone if this generation takes no run any more; the session is then
// withdrawn from admission, so that asking again finds another one. tunnel.ErrTooManyStreams passes through.
func (r *Registry) Open(t admission.Target, spec tunnel.OpenSpec) (Run, error) {
	s := r.session(t.Node, t.Generation)
	if s == nil {
		r.adm.Withdraw(t.Node, t.Generation)
		return nil, ErrGone
	}
	run, err := s.Open(spec)
	if errors.Is(err, tunnel.ErrSessionClosed) || errors.Is(err, tunnel.ErrDraining) {
		r.adm.Withdraw(t.Node, t.Generation)
		r.changed()
		return nil, ErrGone
	}
	return run, err
}

// ErrGone says that a session takes no new runs.
var ErrGone = errors.New("this node session accepts no new runs")

// Owner returns what the session of a target proved itself with: its join token's id, or its certificate's SPIFFE ID. False:
// there is no such session any more. What Nodes of one owner say counts as one voice.
func (r *Registry) Owner(t admission.Target) (owner string, ok bool) {
	s := r.session(t.Node, t.Generation)
	if s == nil {
		return "", false
	}
	id := s.Identity()
	return id.TokenID + id.Peer, true
}

// Suspect says that a run on t found the session lost or draining: it gets no more, even before the tunnel says so.
func (r *Registry) Suspect(t admission.Target) { r.adm.Withdraw(t.Node, t.Generation) }

func (r *Registry) session(id execution.NodeID, gen execution.Generation) Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.nodes[id]; n != nil {
		if s := n.sessions[gen]; s != nil {
			return s.s
		}
	}
	return nil
}

// offers is what a session's Info means for admission, where its Node may have slots of these patterns.
func offers(info *tunnel.NodeInfo, drained bool, slots []string) []admission.Offer {
	models := map[execution.ProviderID][]admission.Model{}
	for _, m := range info.Models {
		if len(m.ID) <= maxModelIDLength {
			models[m.Provider] = append(models[m.Provider], admission.Model{ID: m.ID, Loaded: m.Loaded})
		}
	}
	out := make([]admission.Offer, 0, len(info.Providers))
	for _, p := range info.Providers {
		o := admission.Offer{Provider: p.ID, Capacity: p.Capacity, Selectable: !drained && healthy(p.Health), Drained: drained, Raw: relays(&p), Slots: slots, Models: models[p.ID]}
		if p.Runs {
			o.Runs = admission.KindOf(p.Adapter)
		}
		out = append(out, o)
	}
	return out
}

// relays is which operations are relayed to a provider as they are.
func relays(p *tunnel.ProviderInfo) (set openai.OpSet) {
	if !p.OperationsKnown {
		return surmised(p.Adapter)
	}
	for _, name := range p.Operations {
		if id, ok := openai.ParseOp(name); ok { // one that this Edge does not know nobody asks it for
			set = set.With(id)
		}
	}
	return set
}

// surmised is what a provider of which nothing is known is asked for: all but what its adapter's kind surely has not.
func surmised(adapter string) (set openai.OpSet) {
	kind := admission.KindOf(adapter)
	for _, op := range openai.Operations() {
		ollama := op.ID >= openai.OpOllamaChat && op.ID <= openai.OpOllamaEmbeddings
		messages := op.ID == openai.OpMessages || op.ID == openai.OpCountTokens
		switch {
		case ollama && kind != admission.KindOllama:
		case kind == admission.KindAnthropic && !messages && op.ID != openai.OpChatCompletions:
		default:
			set = set.With(op.ID)
		}
	}
	return set
}

// healthy: what was not probed yet may be tried.
func healthy(h wire.Health) bool {
	return h == wire.Health_HEALTH_OK || h == wire.Health_HEALTH_UNSPECIFIED
}
