package registry

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"iop/execution"
	"iop/gateway/admission"
	"iop/gateway/route"
	"iop/state"
	"iop/tunnel"
	"iop/tunnel/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeSession is a session without a tunnel.
type fakeSession struct {
	node     execution.NodeID
	boot     string
	token    string
	bound    execution.NodeID // the name that the token is bound to
	proof    *state.JoinToken // the token; nil: one made of the above
	replaces execution.Generation
	alive    bool // answers probes
	runs     int
	info     *tunnel.NodeInfo

	gen        execution.Generation
	openErr    error
	fenced     execution.Code
	superseded bool
	yielded    bool
	notices    []string
	refused    string
}

func (f *fakeSession) Node() execution.NodeID           { return f.node }
func (f *fakeSession) Generation() execution.Generation { return f.gen }
func (f *fakeSession) BootID() string                   { return f.boot }
func (f *fakeSession) Identity() tunnel.Identity {
	proof := f.proof
	if proof == nil {
		proof = &state.JoinToken{ID: state.JoinTokenID(f.token), Node: f.bound}
	}
	return tunnel.Identity{TokenID: f.token, Proof: proof}
}
func (f *fakeSession) HighestSeen() execution.Generation     { return 0 }
func (f *fakeSession) Replaces() execution.Generation        { return f.replaces }
func (f *fakeSession) RemoteAddr() string                    { return "192.0.2.1:1" }
func (f *fakeSession) Since() time.Time                      { return time.Now() }
func (f *fakeSession) Info() *tunnel.NodeInfo                { return f.info }
func (f *fakeSession) RTT() time.Duration                    { return 0 }
func (f *fakeSession) OpenRuns() int                         { return f.runs }
func (f *fakeSession) Yield(time.Duration, string)           { f.yielded = true }
func (f *fakeSession) Notify(code, _ string)                 { f.notices = append(f.notices, code) }
func (f *fakeSession) Open(tunnel.OpenSpec) (Run, error)     { return nil, f.openErr }
func (f *fakeSession) Supersede(time.Duration)               { f.superseded = true }
func (f *fakeSession) Fence(code execution.Code, _ string)   { f.fenced = code }
func (f *fakeSession) Refuse(r *tunnel.Refusal)              { f.refused = r.Code }
func (f *fakeSession) Recipient() []byte                     { return nil }
func (f *fakeSession) Refresh(context.Context) error         { return nil }
func (f *fakeSession) EndAt(time.Time, *tunnel.Refusal)      {}
func (f *fakeSession) Drain(_ string, _, _, _ time.Duration) {}
func (f *fakeSession) Revoke(context.Context, *wire.Revoke) error {
	return nil
}
func (f *fakeSession) Probe(ctx context.Context) error {
	if f.alive {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

// fakeStore gives generations and knows one token for each fault.
type fakeStore struct {
	mu     sync.Mutex
	gen    map[execution.NodeID]execution.Generation
	nodes  map[execution.NodeID]state.NodeMemory
	writes int
	broken bool
}

func (s *fakeStore) RememberNodes(_ context.Context, nodes []state.NodeMemory) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	if s.broken {
		return errors.New("disk")
	}
	if s.nodes == nil {
		s.nodes = map[execution.NodeID]state.NodeMemory{}
	}
	for _, n := range nodes {
		if n.Models == nil {
			n.Models = s.nodes[n.Node].Models
		}
		s.nodes[n.Node] = n
	}
	return nil
}

// written is how often it was written; noted what is known of a Node.
func (s *fakeStore) written() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes
}

func (s *fakeStore) noted(node execution.NodeID) state.NodeMemory {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nodes[node]
}

func (s *fakeStore) ForgetNode(_ context.Context, node execution.NodeID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.nodes, node)
	return nil
}

func (s *fakeStore) RememberedNodes(context.Context) ([]state.NodeMemory, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.nodes)), nil
}

func (s *fakeStore) VerifyJoinToken(_ context.Context, presented string) (*state.JoinToken, error) {
	switch presented {
	case "good":
		return &state.JoinToken{ID: "t1"}, nil
	case "expired":
		return nil, state.ErrTokenExpired
	case "revoked":
		return nil, state.ErrTokenRevoked
	case "broken":
		return nil, errors.New("disk")
	}
	return nil, state.ErrTokenUnknown
}

func (s *fakeStore) ClaimNode(_ context.Context, token state.JoinTokenID, _ execution.NodeID) error {
	switch token {
	case "taken":
		return state.ErrNodeTaken
	case "wrong":
		return state.ErrWrongNode
	case "full":
		return state.ErrTooManyNodes
	case "unbound":
		return state.ErrNodeReserved
	}
	return nil
}

func (s *fakeStore) TryNode(ctx context.Context, token state.JoinTokenID, node execution.NodeID) error {
	return s.ClaimNode(ctx, token, node)
}

func (s *fakeStore) NodeAllows(context.Context) ([]state.NodeAllow, error) { return nil, nil }
func (s *fakeStore) Denials(context.Context) ([]state.Denial, error)       { return nil, nil }

func (s *fakeStore) NodeAllowed(context.Context, execution.NodeID, state.CertificateSerial) (state.NodeAllow, error) {
	return state.NodeAllow{}, state.ErrNodeNotAllowed
}

func (s *fakeStore) NextGeneration(_ context.Context, node execution.NodeID, _ execution.Generation) (execution.Generation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gen == nil {
		s.gen = map[execution.NodeID]execution.Generation{}
	}
	s.gen[node]++
	return s.gen[node], nil
}

func newRegistry(t *testing.T) *Registry {
	t.Helper()
	r, err := New(Config{Store: &fakeStore{}, Admission: admission.New(admission.Config{Settle: -1}), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func newSession(boot string) *fakeSession {
	return &fakeSession{node: "n", boot: boot, token: "t1", alive: true, info: &tunnel.NodeInfo{
		Providers: []tunnel.ProviderInfo{{ID: "p", Capacity: 2, Health: wire.Health_HEALTH_OK}},
		Models:    []tunnel.ModelInfo{{Provider: "p", ID: "m"}},
	}}
}

func register(t *testing.T, r *Registry, s *fakeSession) {
	t.Helper()
	gen, err := r.register(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	s.gen = gen
}

// connect takes a session all the way to online.
func connect(t *testing.T, r *Registry, s *fakeSession) {
	t.Helper()
	register(t, r, s)
	if err := r.readied(s.node, s.gen); err != nil {
		t.Fatal(err)
	}
	r.online(s.node, s.gen)
}

// target is where the next run goes; its place is given back. 0: it waits.
func (r *Registry) target(t *testing.T) execution.Generation {
	t.Helper()
	ticket, w, _ := r.adm.Acquire(admission.Request{Route: &route.Route{Name: "m", Advertised: true}})
	if w != nil {
		w.Leave()
		return 0
	}
	if ticket == nil {
		return 0
	}
	defer ticket.Release()
	return ticket.Target.Generation
}

func code(err error) string {
	if r, ok := errors.AsType[*tunnel.Refusal](err); ok {
		return r.Code
	}
	return ""
}

func TestAuthenticate(t *testing.T) {
	r := newRegistry(t)
	tests := map[string]struct {
		headers []string
		code    string
	}{
		"good":     {[]string{"Bearer good"}, ""},
		"any case": {[]string{"bearer good"}, ""},
		"none":     {nil, "unauthorized"},
		"two":      {[]string{"Bearer good", "Bearer good"}, "unauthorized"},
		"basic":    {[]string{"Basic good"}, "unauthorized"},
		"spaces":   {[]string{"Bearer good good"}, "unauthorized"},
		"wrong":    {[]string{"Bearer other"}, "unauthorized"},
		"expired":  {[]string{"Bearer expired"}, "token_expired"},
		"revoked":  {[]string{"Bearer revoked"}, "token_revoked"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			req := &http.Request{Header: http.Header{}}
			if test.headers != nil {
				req.Header["Authorization"] = test.headers
			}
			id, err := r.Authenticate(req)
			if code(err) != test.code || (err == nil) != (test.code == "") {
				t.Errorf("got %v", err)
			}
			if err == nil && id.TokenID != "t1" {
				t.Errorf("identity %v", id)
			}
		})
	}
	_, err := r.Authenticate(&http.Request{Header: http.Header{"Authorization": {"Bearer broken"}}})
	if err == nil || code(err) != "" {
		t.Errorf("a fault of the state is told as a refusal: %v", err)
	}
}

func TestRegisterRefusals(t *testing.T) {
	r := newRegistry(t)
	for token, want := range map[string]string{"taken": "node_taken", "wrong": "wrong_node", "unbound": "node_reserved"} {
		s := newSession("a")
		s.token = token
		if _, err := r.register(t.Context(), s); code(err) != want {
			t.Errorf("%s: %v", token, err)
		}
	}
	s := newSession("a")
	s.token, s.bound = "wrong", "gpu-3"
	if _, err := r.register(t.Context(), s); err == nil || !strings.Contains(err.Error(), `for node "gpu-3", not "`+string(s.node)+`"`) {
		t.Errorf("a bearer of a bound token is not told both names: %v", err)
	}
	s = newSession("a")
	s.node = "not a name"
	if _, err := r.register(t.Context(), s); code(err) != "bad_request" {
		t.Errorf("bad name: %v", err)
	}
}

func TestOnlyReadySessionsGetRuns(t *testing.T) {
	r := newRegistry(t)
	s := newSession("a")
	register(t, r, s)
	if r.target(t) != 0 || len(r.Models()) != 0 {
		t.Error("a run before READY")
	}
	if err := r.readied("n", s.gen); err != nil {
		t.Fatal(err)
	}
	if r.target(t) != 0 {
		t.Error("a run before READY_ACK")
	}
	r.online("n", s.gen)
	if r.target(t) != s.gen || len(r.Models()) != 1 {
		t.Error("no run after READY_ACK")
	}
	r.gone("n", s.gen, nil)
	if r.target(t) != 0 || len(r.Models()) != 0 {
		t.Error("a run after the end")
	}
}

// TestOnlineNodesGetRuns: whoever sees that a Node is online can have a run on it at once.
//
// Seen to fail, once in some hundred sessions, with a session that was online first and known to admission after that.
func TestOnlineNodesGetRuns(t *testing.T) {
	r := newRegistry(t)
	stop := make(chan struct{})
	var watchers sync.WaitGroup
	for range 4 { // so many that the lock is handed over at each chance
		watchers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					r.Nodes()
				}
			}
		})
	}
	defer func() { close(stop); watchers.Wait() }()
	for range 500 {
		s := newSession("a")
		register(t, r, s)
		if err := r.readied(s.node, s.gen); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() { defer close(done); r.online(s.node, s.gen) }()
		for r.Nodes()[0].Sessions[0].State != "online" {
			runtime.Gosched()
		}
		if r.target(t) != s.gen {
			t.Fatalf("the Node is online with generation %d and gets no run", s.gen)
		}
		<-done
		r.gone(s.node, s.gen, nil)
	}
}

// TestEndedSessionsAreRemembered: the operator sees why sessions ended, the latest first, and no more than the last 20.
func TestEndedSessionsAreRemembered(t *testing.T) {
	r := newRegistry(t)
	ended := func() []EndedSession { return r.Nodes()[0].Ended }
	first := newSession("a")
	connect(t, r, first)
	if got := ended(); len(got) != 0 {
		t.Fatalf("a session that is open has ended: %+v", got)
	}
	r.gone("n", first.gen, errors.New("heartbeat_timeout"))
	r.gone("n", first.gen, errors.New("told twice"))
	got := ended()
	if len(got) != 1 || got[0].Generation != first.gen || got[0].Cause != "heartbeat_timeout" || got[0].Until.IsZero() || got[0].Remote != first.RemoteAddr() {
		t.Fatalf("%+v", got)
	}
	var last execution.Generation
	for range maxEndedSessions + 5 {
		s := newSession("a")
		connect(t, r, s)
		r.gone("n", s.gen, nil)
		last = s.gen
	}
	got = ended()
	if len(got) != maxEndedSessions || got[0].Generation != last || got[0].Cause != "" {
		t.Fatalf("%d remembered, the latest %+v", len(got), got[0])
	}
	for i, e := range got[1:] {
		if e.Generation >= got[i].Generation {
			t.Fatalf("generation %d before %d", got[i].Generation, e.Generation)
		}
	}
	connect(t, r, newSession("b"))
	if len(ended()) != maxEndedSessions {
		t.Error("a new session makes the Edge forget the former ones")
	}
}

func TestReplacementDrainsTheFormer(t *testing.T) {
	r := newRegistry(t)
	a, b := newSession("boot"), newSession("boot")
	connect(t, r, a)
	b.replaces = a.gen
	connect(t, r, b)
	if !a.superseded || a.fenced != 0 {
		t.Error("the former does not drain")
	}
	if r.target(t) != b.gen {
		t.Error("the newest gets no runs")
	}
	// The late end of the former changes nothing.
	r.gone("n", a.gen, errors.New("late"))
	if r.target(t) != b.gen || len(r.Models()) != 1 {
		t.Error("the end of the former tore down the newest")
	}
}

func TestTheSameProcessFencesItsFormerSession(t *testing.T) {
	r := newRegistry(t)
	first, second := newSession("a"), newSession("a") // it replaces nothing: to the Node the first is lost
	first.runs = 1
	connect(t, r, first)
	connect(t, r, second)
	if first.fenced != execution.CodeSessionSuperseded || first.superseded || first.yielded {
		t.Errorf("fenced with %v", first.fenced)
	}
	if r.target(t) != second.gen || r.Nodes()[0].Flapping {
		t.Error("the newest gets no runs, or it counts as a fight")
	}
}

// TestBoundTokenTakesItsName: who has the token that is bound to a name gets it at once from a living session of a token
// that is bound to none, in the same process too, and the reverse never happens.
func TestBoundTokenTakesItsName(t *testing.T) {
	for _, boot := range []string{"b", "a"} {
		r := newRegistry(t)
		squatter, owner := newSession("a"), newSession(boot)
		owner.token, owner.bound = "t2", "n"
		connect(t, r, squatter)
		connect(t, r, owner)
		if squatter.refused != "node_reserved" || r.target(t) != owner.gen {
			t.Errorf("boot id %s: the former session was told %q, runs go to %d", boot, squatter.refused, r.target(t))
		}
		if r.Nodes()[0].Flapping {
			t.Errorf("boot id %s: it counts as a fight", boot)
		}
	}
}

func TestReadyBelowTheCurrentIsRefused(t *testing.T) {
	r := newRegistry(t)
	slow, quick := newSession("a"), newSession("b")
	register(t, r, slow)
	connect(t, r, quick)
	if err := r.readied("n", slow.gen); code(err) != "stale_generation" {
		t.Errorf("got %v", err)
	}
	if r.target(t) != quick.gen || quick.fenced != 0 {
		t.Error("the current session was disturbed")
	}
}

func TestHealthAndRefresh(t *testing.T) {
	r := newRegistry(t)
	s := newSession("a")
	connect(t, r, s)
	info := *s.info
	info.Providers = slices.Clone(info.Providers)
	info.Providers[0].Health = wire.Health_HEALTH_HUNG
	s.info = &info
	r.offer("n", s.gen)
	if r.target(t) != 0 || len(r.Models()) != 0 {
		t.Error("a hung provider is offered")
	}
	again := info
	again.Providers = slices.Clone(info.Providers)
	again.Providers[0].Health = wire.Health_HEALTH_OK
	again.Models = append(slices.Clone(info.Models), tunnel.ModelInfo{Provider: "p", ID: "m2"})
	s.info = &again
	r.offer("n", s.gen)
	if r.target(t) != s.gen || len(r.Models()) != 2 {
		t.Error("a refresh is not seen")
	}
}

func TestOperatorDrain(t *testing.T) {
	r := newRegistry(t)
	if err := r.DrainNode("n"); !errors.Is(err, ErrUnknownNode) {
		t.Errorf("got %v", err)
	}
	s := newSession("a")
	connect(t, r, s)
	if err := r.DrainNode("n"); err != nil {
		t.Fatal(err)
	}
	if r.target(t) != 0 || len(r.Models()) != 0 || !r.Nodes()[0].Drained {
		t.Error("it still gets runs")
	}
	again := newSession("a") // the same process reconnects
	connect(t, r, again)
	if r.target(t) != 0 {
		t.Error("a reconnect ended the drain")
	}
	if err := r.ResumeNode("n"); err != nil || r.target(t) != again.gen {
		t.Error("resume does not resume")
	}
	if err := r.DrainNode("n"); err != nil {
		t.Fatal(err)
	}
	fresh := newSession("b") // it was started anew
	connect(t, r, fresh)
	if r.target(t) != fresh.gen {
		t.Error("a new process is still drained")
	}
}

func TestRevokedTokenClosesItsSessions(t *testing.T) {
	r := newRegistry(t)
	s, other := newSession("a"), newSession("b")
	other.node, other.token = "n2", "t2"
	connect(t, r, s)
	connect(t, r, other)
	if n := r.CloseToken("t1"); n != 1 || s.refused != "token_revoked" || other.refused != "" {
		t.Errorf("closed %d; %q, %q", n, s.refused, other.refused)
	}
	if ticket, _, _ := r.adm.Acquire(admission.Request{Route: &route.Route{Name: "m", Advertised: true}}); ticket == nil || ticket.Target.Node != "n2" {
		t.Errorf("got %v", ticket)
	}
}

// A session that turns out to be gone gets nothing more, even before the tunnel says so.
func TestOpenOnADyingSession(t *testing.T) {
	for _, err := range []error{tunnel.ErrSessionClosed, tunnel.ErrDraining} {
		r := newRegistry(t)
		s := newSession("a")
		connect(t, r, s)
		s.openErr = err
		target := admission.Target{Node: "n", Generation: s.gen, Provider: "p"}
		if _, err := r.Open(target, tunnel.OpenSpec{}); !errors.Is(err, ErrGone) {
			t.Errorf("got %v", err)
		}
		if r.target(t) != 0 {
			t.Error("it is offered again")
		}
	}
	r := newRegistry(t)
	if _, err := r.Open(admission.Target{Node: "x", Generation: 1}, tunnel.OpenSpec{}); !errors.Is(err, ErrGone) {
		t.Errorf("got %v", err)
	}
}

func TestModelsOfSeveralNodes(t *testing.T) {
	r := newRegistry(t)
	a, b := newSession("a"), newSession("b")
	b.node = "n2"
	a.info = &tunnel.NodeInfo{Providers: a.info.Providers, Models: []tunnel.ModelInfo{{Provider: "p", ID: "z", Created: 20, OwnedBy: "x"}, {Provider: "none", ID: "stray"}}}
	b.info = &tunnel.NodeInfo{Providers: b.info.Providers, Models: []tunnel.ModelInfo{{Provider: "p", ID: "z", Created: 10, OwnedBy: "y"}, {Provider: "p", ID: "a"}}}
	connect(t, r, a)
	connect(t, r, b)
	want := []tunnel.ModelInfo{{Provider: "p", ID: "a"}, {Provider: "p", ID: "z", Created: 10, OwnedBy: "x"}}
	if got := r.Models(); !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

// Of several Nodes with a model the details are those of one that knows, and the same whatever the order.
func TestDetailsOfSeveralNodes(t *testing.T) {
	of := func(digest string, capabilities ...string) *tunnel.ModelDetails {
		return &tunnel.ModelDetails{Digest: digest, Capabilities: capabilities}
	}
	first, second, knows := of("aa"), of("bb"), of("cc", "completion")
	for _, tt := range []struct {
		of   []*tunnel.ModelDetails
		want *tunnel.ModelDetails
	}{
		{[]*tunnel.ModelDetails{nil, nil}, nil},
		{[]*tunnel.ModelDetails{nil, second}, second},
		{[]*tunnel.ModelDetails{first, second, nil}, first},
		{[]*tunnel.ModelDetails{first, knows, second}, knows},
	} {
		for _, backwards := range []bool{false, true} {
			seen := map[string]tunnel.ModelInfo{}
			for i := range tt.of {
				if backwards {
					i = len(tt.of) - 1 - i
				}
				collect(seen, &tunnel.NodeInfo{Providers: newSession("n").info.Providers, Models: []tunnel.ModelInfo{{Provider: "p", ID: "m", Details: tt.of[i]}}})
			}
			if len(seen) != 1 || seen["m"].Details != tt.want {
				t.Errorf("of %v, backwards %t: %v", tt.of, backwards, seen["m"].Details)
			}
		}
	}
}
