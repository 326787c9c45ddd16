package nodeagent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"iop/execution"
	"iop/identity"
	"iop/tunnel"
)

// defaultDrainTimeout is how long the open runs may take to finish when the Node stops.
const defaultDrainTimeout = 30 * time.Second

// firstLook is how long the Node waits for its providers' first answer before it registers: with it, the models are
// there from the Edge's first sight of the Node.
const firstLook = 2 * time.Second

// Config configures an Agent.
type Config struct {
	Edge string           // required: ws, wss, http or https URL; without a path /tunnel/v1 is meant
	Name execution.NodeID // required

	// Optional.

	// JoinToken returns the join token; it is asked at each dial, so that a file may change. Or nil.
	JoinToken func() (string, error)
	// Identity selects managed mode, or is nil: the Node shows this certificate instead of a join token, follows its
	// changes, and opens leases. It must be a Node's, JoinToken and TLS must be nil, Edge wss, and Name the identity's or
	// empty. The caller closes it after Run has returned.
	Identity identity.Source
	// EdgeID is the one Edge that is spoken to; required with Identity.
	EdgeID identity.ID
	// Providers are what the Node offers. If empty, the Node looks for local engines, and keeps looking.
	Providers []ProviderSpec
	Labels    map[string]string
	// TLS is for the connection to the Edge; nil is the system's trust.
	TLS *tls.Config
	// Roots is the file of the authorities in TLS, for messages; or empty.
	Roots  string
	Logger *slog.Logger // default slog.Default()
	// Skip are addresses (host:port) of this process's own listeners: never taken for an engine.
	Skip []string
	// DrainTimeout is how long open runs may take when Run's context ends; default 30 s.
	DrainTimeout time.Duration
	Version      string // of the software, told to the Edge
	Metrics      *tunnel.Metrics
	// DialContext replaces the network on the way to the Edge and to the providers of Providers, for tests: what is checked
	// of an address that is dialed is not checked then. Or nil.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
}

// Agent is one Node.
type Agent struct {
	// Static after construction.
	cfg        Config
	log        *slog.Logger
	supervisor *tunnel.Supervisor
	refresh    func()                  // tells the Edge that describe's answer changed; returns at once
	stop       context.CancelCauseFunc // ends everything
	stopping   context.Context
	leases     LeaseCounters

	// providers is replaced as a whole under mu, read without.
	providers atomic.Pointer[map[execution.ProviderID]*provider]
	mu        sync.Mutex
	probes    sync.WaitGroup
	watchers  sync.WaitGroup // of identities; none begins once the supervisor has ended
}

// errClosed is the cause of an Agent that Close ended.
var errClosed = errors.New("the Node was closed")

// New checks cfg and returns an Agent that does nothing before Run. A key-file is read here.
func New(cfg Config) (*Agent, error) {
	a := &Agent{cfg: cfg, log: cfg.Logger}
	if a.log == nil {
		a.log = slog.Default()
	}
	if err := a.cfg.checkMode(); err != nil {
		return nil, err
	}
	if strings.Contains(os.Getenv("GODEBUG"), "http2debug") {
		return nil, errors.New("GODEBUG must not hold http2debug: it prints join tokens and providers' keys")
	}
	if err := a.cfg.Name.Validate(); err != nil {
		return nil, err
	}
	edge, err := EdgeURL(cfg.Edge)
	if err != nil {
		return nil, err
	}
	if a.managed() && !strings.HasPrefix(edge, "wss:") {
		return nil, errors.New("managed mode: the Edge's URL must begin with wss://")
	}
	if cfg.DrainTimeout == 0 {
		a.cfg.DrainTimeout = defaultDrainTimeout
	}
	if err := validateLabels(cfg.Labels); err != nil {
		return nil, err
	}
	a.cfg.Labels = maps.Clone(cfg.Labels)
	providers, err := makeProviders(cfg.Providers)
	if err != nil {
		return nil, err
	}
	for _, p := range providers {
		p.dialer.replaced = cfg.DialContext
	}
	a.providers.Store(&providers)
	a.stopping, a.stop = context.WithCancelCause(context.Background())
	sc := tunnel.SupervisorConfig{
		URL:      edge,
		Node:     a.cfg.Name,
		Handler:  a,
		Describe: a.describe,
		Token:    cfg.JoinToken,
		TLS:      cfg.TLS,
		Roots:    cfg.Roots,
		Logger:   a.log,
		Metrics:  cfg.Metrics,
		OnStatus: a.onStatus,

		DialContext: cfg.DialContext,
	}
	if a.managed() {
		sc.TLS, sc.Keeper = identity.ClientConfig(cfg.Identity, cfg.EdgeID), a.newKeeper
	}
	if a.supervisor, err = tunnel.NewSupervisor(sc); err != nil {
		return nil, err
	}
	a.refresh = a.supervisor.Refresh
	return a, nil
}

func makeProviders(specs []ProviderSpec) (map[execution.ProviderID]*provider, error) {
	providers := make(map[execution.ProviderID]*provider, len(specs))
	for _, spec := range specs {
		p, err := newProvider(spec)
		if err != nil {
			return nil, err
		}
		if providers[spec.ID] != nil {
			return nil, fmt.Errorf("provider %q is given twice", spec.ID)
		}
		providers[spec.ID] = p
	}
	return providers, nil
}

// EdgeURL brings the Edge's URL into the form that the tunnel dials. Its errors are for the operator who wrote it.
func EdgeURL(s string) (string, error) {
	if s != "" && !strings.Contains(s, "://") {
		return "", errors.New("the Edge's URL has no wss:// at its beginning, want e.g. wss://edge.example.com")
	}
	u, err := url.Parse(s)
	if err != nil || u.Host == "" {
		return "", errors.New("the Edge's URL can't be read, for example wss://edge.example.com/tunnel/v1")
	}
	switch u.Scheme {
	case "ws", "wss":
	case "http":
		u.Scheme = "ws"
	case "https":
		u.Scheme = "wss"
	default:
		return "", errors.New("the Edge's URL must begin with wss:// or ws://")
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", errors.New("the Edge's URL must not hold a user, a query or a fragment")
	}
	switch strings.TrimSuffix(u.Path, "/") {
	case "":
		u.Path = "/tunnel/v1"
	case "/v1":
		return "", errors.New("the Edge's URL ends with /v1, which is the clients' base URL; leave the path out")
	}
	return u.String(), nil
}

// Run connects the Node and keeps it connected. When ctx ends it takes no new runs, lets the open ones finish for at
// most DrainTimeout, and returns nil. It may be called once.
func (a *Agent) Run(ctx context.Context) error {
	defer a.closeIdle()
	defer a.probes.Wait()
	defer a.watchers.Wait()
	defer a.stop(nil) // before the wait: probes end with it

	a.startProbes(ctx)
	if ctx.Err() != nil {
		return nil
	}
	if a.managed() {
		shown := a.cfg.Identity.Status().Serial // before the first dial
		a.watchers.Go(func() { a.followIdentity(a.stopping, shown) })
		a.watchers.Go(func() { a.reportLeases(a.stopping) })
	}
	result := make(chan error, 1)
	go func() { result <- a.supervisor.Run(a.stopping) }()
	select {
	case err := <-result:
		return a.result(err)
	case <-ctx.Done():
	}
	defer a.logDrain()()
	drain, cancel := context.WithTimeout(a.stopping, a.cfg.DrainTimeout)
	defer cancel()
	if err := a.supervisor.Drain(drain); err != nil && a.stopping.Err() == nil {
		a.log.Warn("runs were interrupted at the end of the drain", "error", err)
	}
	a.stop(nil)
	return a.result(<-result)
}

// result turns the end of the supervisor into Run's: an end that was asked for is none.
func (a *Agent) result(err error) error {
	if a.stopping.Err() != nil {
		return nil
	}
	return err
}

// Close ends the Node at once; open runs are cancelled. Run returns soon after. It may be called at any time.
func (a *Agent) Close() { a.stop(errClosed) }

func (a *Agent) closeIdle() {
	for _, p := range *a.providers.Load() {
		p.closeIdle()
	}
}

// startProbes begins to look after the providers, or to look for some, and waits for the first answers.
func (a *Agent) startProbes(ctx context.Context) {
	var first []<-chan struct{}
	for _, p := range *a.providers.Load() {
		first = append(first, a.probe(a.stopping, p))
	}
	if len(first) == 0 {
		d := newDiscovery(a)
		a.probes.Go(func() { d.run(a.stopping) })
		first = append(first, d.first)
	}
	patience := time.NewTimer(firstLook)
	defer patience.Stop()
	for _, looked := range first {
		select {
		case <-looked:
		case <-patience.C:
			return
		case <-ctx.Done():
			return
		case <-a.stopping.Done():
			return
		}
	}
}

// probe looks after p until ctx ends. The channel is closed after the first look.
func (a *Agent) probe(ctx context.Context, p *provider) <-chan struct{} {
	b := &prober{p: p, log: a.log, changed: a.refresh, first: make(chan struct{})}
	a.probes.Go(func() { b.watch(ctx) })
	return b.first
}

// describe is what the Edge is told of this Node.
func (a *Agent) describe() *tunnel.NodeInfo {
	info := &tunnel.NodeInfo{Labels: a.cfg.Labels, Version: a.cfg.Version}
	providers := *a.providers.Load()
	for _, id := range slices.Sorted(maps.Keys(providers)) {
		p, models := providers[id].describe()
		info.Providers = append(info.Providers, p)
		info.Models = append(info.Models, models...)
	}
	return info
}

// onStatus says when the Node is there. What goes wrong on the way there is logged by the tunnel itself.
func (a *Agent) onStatus(s tunnel.SupervisorStatus) {
	if s.State != tunnel.StateOnline {
		a.log.Debug("tunnel", "state", string(s.State), "detail", s.Detail)
		return
	}
	info := a.describe()
	a.log.Info("online", "node", string(a.cfg.Name), "generation", uint64(s.Generation), "providers", len(info.Providers), "models", len(info.Models))
}

// Status is what the Node's tunnel is doing.
func (a *Agent) Status() tunnel.SupervisorStatus { return a.supervisor.Status() }

// Limits of labels: they are shown and matched, not stored.
const (
	maxLabels     = 64
	maxLabelBytes = 128
)

// ParseLabels reads labels as the operator writes them: gpu=h100,site=lab. Empty is none.
func ParseLabels(s string) (map[string]string, error) {
	labels := map[string]string{}
	if strings.TrimSpace(s) == "" {
		return labels, nil
	}
	for pair := range strings.SplitSeq(s, ",") {
		key, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok {
			return nil, errors.New("labels: want key=value pairs, e.g. gpu=h100,site=lab")
		}
		if _, twice := labels[key]; twice {
			return nil, fmt.Errorf("labels: %q is given twice", key)
		}
		labels[key] = value
	}
	return labels, validateLabels(labels)
}

func validateLabels(labels map[string]string) error {
	if len(labels) > maxLabels {
		return fmt.Errorf("labels: more than %d", maxLabels)
	}
	for key, value := range labels {
		if !plainLabel(key) || key == "" {
			return fmt.Errorf("labels: the name %q must have 1 to %d letters, digits, '.', '_', '/' or '-'", key, maxLabelBytes)
		}
		if !plainLabel(value) {
			return fmt.Errorf("labels: the value of %q must have at most %d letters, digits, '.', '_', '/' or '-'", key, maxLabelBytes)
		}
	}
	return nil
}

func plainLabel(s string) bool {
	if len(s) > maxLabelBytes {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-/", r)
	})
}
