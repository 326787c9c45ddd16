package nodeagent

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"iop/execution"
	"iop/lease"
	"iop/openai"
	"iop/tunnel"
	"iop/tunnel/wire"
)

// provider is one inference endpoint at run time: its connections, its places and what the probe last learned.
type provider struct {
	// Static after construction.
	spec      ProviderSpec
	base      *url.URL
	dialer    *dialer
	transport http.RoundTripper
	// oneShot has no pool: a request whose body can't be sent twice must not meet a connection that was just closed.
	oneShot   http.RoundTripper
	closeIdle func()
	// lease is the address as leases name it; set where the provider has slots.
	lease   lease.Target
	targets []*target // by openai.OpID; nil where there is no such operation

	// Places: how many runs may be and are under way.
	capacity atomic.Int64
	inUse    atomic.Int64
	// ollamaCalls are the operator's calls of the Ollama API under way, which take no place.
	ollamaCalls atomic.Int32

	// key is what the provider wants to see, nil if nothing. It is replaced when its file changes.
	key atomic.Pointer[credential]

	// activity counts reads that brought bytes of a run: while it moves, the provider is not hung.
	activity atomic.Uint64
	// wake asks the probe to look at once; holds one token, never closed.
	wake chan struct{}

	mu    sync.Mutex
	state providerState // guarded by mu
	// served are the models of state, for ServeRun; nil if the provider's list is unknown.
	served atomic.Pointer[map[string]struct{}]
}

// providerState is what the probe knows. Models is replaced, never changed.
type providerState struct {
	engine   Engine
	health   wire.Health
	models   []openai.Model // by ID
	known    bool           // the list of models is known, if only to be empty
	loaded   loadedModels
	details  modelDetails
	version  string // of the engine, as it tells; or empty
	matrix   matrix
	goneFrom time.Time // since when it can't be reached; zero if it can
}

// target is one operation of one provider, ready to be called.
type target struct {
	op  openai.Operation
	url *url.URL
	// request is the template that every run copies: what is the same for all of them is made once.
	request *http.Request
}

func newProvider(spec ProviderSpec) (*provider, error) {
	if err := spec.validate(); err != nil {
		return nil, fmt.Errorf("provider %q: %w", spec.ID, err)
	}
	base, err := parseBase(spec.URL)
	if err != nil {
		return nil, fmt.Errorf("provider %q: %w", spec.ID, err)
	}
	roots, err := readRoots(spec.CAFile)
	if err != nil {
		return nil, fmt.Errorf("provider %q: %w", spec.ID, err)
	}
	dialer := newDialer(base, roots)
	dialer.leased = len(spec.Slots) > 0
	transport := newTransport(dialer)
	p := &provider{
		spec:      spec,
		base:      base,
		dialer:    dialer,
		transport: transport,
		oneShot:   newOneShot(dialer),
		closeIdle: transport.CloseIdleConnections,
		wake:      make(chan struct{}, 1),
	}
	if err := p.prepareSlots(); err != nil {
		return nil, fmt.Errorf("provider %q: %w", spec.ID, err)
	}
	if spec.KeyFile != "" {
		key, err := readKeyFile(spec.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("provider %q: %w", spec.ID, err)
		}
		p.key.Store(newCredential(spec.Engine, key))
	}
	p.makeTargets()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = providerState{engine: p.spec.Engine, health: wire.Health_HEALTH_UNSPECIFIED}
	p.setModelsLocked(nil, false)
	p.setEngineLocked(p.spec.Engine, 0)
	return p, nil
}

func (p *provider) makeTargets() {
	for _, op := range openai.Operations() {
		for len(p.targets) <= int(op.ID) {
			p.targets = append(p.targets, nil)
		}
		u := p.endpoint(op.UpstreamPath)
		p.targets[op.ID] = &target{op: op, url: u, request: &http.Request{
			Method: op.Method, URL: u, Host: u.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		}}
	}
}

// endpoint returns the URL of a constant path below the provider's base.
func (p *provider) endpoint(path string) *url.URL {
	u := *p.base
	u.Path += path
	return &u
}

func (p *provider) targetOf(operation string) *target {
	id, ok := openai.ParseOp(operation)
	if !ok || int(id) >= len(p.targets) {
		return nil
	}
	return p.targets[id]
}

// acquire takes a place if one is free. Whoever got true calls release once.
func (p *provider) acquire() bool {
	for {
		n := p.inUse.Load()
		if n >= p.capacity.Load() {
			return false
		}
		if p.inUse.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// engine returns what the provider is, empty if nobody knows yet.
func (p *provider) engine() Engine {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.engine
}

func (p *provider) release() { p.inUse.Add(-1) }

// serves reports whether a run may ask for this model. A provider that never told its models may be asked for any.
func (p *provider) serves(model string) bool {
	served := p.served.Load()
	if served == nil {
		return true
	}
	_, ok := (*served)[model]
	return ok
}

// look asks the probe to look at the provider at once.
func (p *provider) look() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// setEngineLocked takes what the provider is and how much it told that it can do; empty and 0 if unknown.
func (p *provider) setEngineLocked(engine Engine, told int) {
	p.state.engine = engine
	p.setCapacityLocked(told)
	if c := p.key.Load(); c != nil {
		p.key.Store(newCredential(engine, c.key))
	}
}

// setCapacityLocked sets the number of places: the operator's word, else what the provider told, else the engine's
// default.
func (p *provider) setCapacityLocked(told int) {
	n := p.spec.Capacity
	if n == 0 {
		n = min(told, maxCapacity)
	}
	if n <= 0 {
		engine := p.state.engine
		if engine == "" {
			engine = OpenAIEngine
		}
		n = engine.traits().capacity
	}
	p.capacity.Store(int64(n))
}

// capacityFrom says in the log where the number of places comes from, if the provider told that it has so many; 0: it did not.
func (p *provider) capacityFrom(told int) string {
	switch {
	case p.spec.Capacity > 0:
		return "setting"
	case told > 0:
		return "engine"
	}
	return "default"
}

// setModelsLocked takes the provider's list of models; the operator's own list wins over it.
func (p *provider) setModelsLocked(models []openai.Model, known bool) {
	if len(p.spec.Models) > 0 {
		models, known = fixedModels(p.spec.Models, models), true
	}
	p.state.models, p.state.known = models, known
	if !known {
		p.served.Store(nil)
		return
	}
	served := make(map[string]struct{}, len(models))
	for _, m := range models {
		served[m.ID] = struct{}{}
	}
	p.served.Store(&served)
}

// fixedModels is the operator's list, with what the provider says of those models.
func fixedModels(names []string, told []openai.Model) []openai.Model {
	models := make([]openai.Model, 0, len(names))
	for _, name := range names {
		i := slices.IndexFunc(told, func(m openai.Model) bool { return m.ID == name })
		if i < 0 {
			models = append(models, openai.Model{ID: name})
			continue
		}
		models = append(models, told[i])
	}
	return sortModels(models)
}

// describe returns what the Edge is told of the provider.
func (p *provider) describe() (tunnel.ProviderInfo, []tunnel.ModelInfo) {
	p.mu.Lock()
	defer p.mu.Unlock()
	engine := p.state.engine
	if engine == "" {
		engine = OpenAIEngine
	}
	info := tunnel.ProviderInfo{
		ID:       p.spec.ID,
		Adapter:  engine.traits().adapter,
		Capacity: int(p.capacity.Load()),
		InFlight: int(p.inUse.Load()),
		Health:   p.state.health,

		Operations: p.state.matrix.names(), OperationsKnown: p.state.matrix.known, Runs: p.state.matrix.runs(engine.traits().adapter),
		Engine: string(p.state.engine), EngineVersion: p.state.version,
	}
	models := make([]tunnel.ModelInfo, len(p.state.models))
	for i, m := range p.state.models {
		models[i] = tunnel.ModelInfo{
			Provider: execution.ProviderID(p.spec.ID), ID: m.ID, Created: m.Created, OwnedBy: m.OwnedBy,
			Loaded: p.state.loaded.has(m.ID), Details: p.state.details[m.ID],
		}
	}
	return info, models
}
