package credential

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"iop/execution"
	"iop/gateway/registry"
	"iop/identity"
	"iop/lease"
	"iop/state"
	"iop/tunnel/wire"
)

// Store is what the Issuer needs of state.
type Store interface {
	Moment(ctx context.Context) state.Moment
	OpenCredentialAt(ctx context.Context, m state.Moment, slot execution.SlotName) (state.Credential, error)
	NodeAllowedAt(ctx context.Context, m state.Moment, node execution.NodeID, serial state.CertificateSerial) (state.NodeAllow, error)
	KeyAt(ctx context.Context, m state.Moment, id state.KeyID) (state.Key, error)
	Slots(ctx context.Context) ([]state.Slot, error)
	Profiles(ctx context.Context) ([]state.Profile, error)
	SlotRevisions(ctx context.Context) (map[execution.SlotName]execution.Revision, error)
	AuditLease(entry state.AuditEntry) error
}

// Sessions is what the Issuer needs of the registry.
type Sessions interface {
	Holder(node execution.NodeID, gen execution.Generation) (registry.Holder, error)
	Permits(node execution.NodeID) (state.NodeAllow, bool)
	Revoke(ctx context.Context, node execution.NodeID, gen execution.Generation, what *wire.Revoke) error
	Refresh(ctx context.Context)
}

// Config is what an Issuer needs. Everything but Life is required.
type Config struct {
	Store    Store
	Sessions Sessions
	Identity identity.Source
	Keys     *lease.SigningKeys
	Logger   *slog.Logger
	Life     time.Duration // of a lease; 0: lease.DefaultLife
}

// Issuer issues and withdraws leases. Its methods are for any goroutine.
type Issuer struct {
	// Static.
	cfg    Config
	sealer *lease.Sealer
	edge   string // its SPIFFE ID, the issuer of leases and who the audit names

	counts counters
	table  atomic.Pointer[table] // never nil after New
	wake   chan struct{}         // has room for one: something is due sooner

	// syncing is held while the state is read and while what it says takes effect. It guards outcomes.
	syncing  sync.Mutex
	outcomes map[execution.SlotName]outcome // of each slot's last change

	mu    sync.Mutex // guards what follows
	epoch uint64     // withdrawals and changes so far: what was asked before one must be asked again
	live  map[*Grant]struct{}
	last  map[execution.SlotName]map[holderKey]time.Time // when a session's last lease of a slot ends, while it has not
	// minimums are the least revisions that Nodes are told, version counts their changes, rising are those that wait for
	// the former revision's last lease to end.
	minimums map[execution.SlotName]execution.Revision
	version  uint64
	rising   map[execution.SlotName]rise
	untold   bool // a least revision has risen since Nodes were told
}

// rise is a least revision that takes effect later.
type rise struct {
	to execution.Revision
	at time.Time
}

// outcome is what a slot's change to a revision led to.
type outcome struct {
	revision execution.Revision
	Withdrawal
}

// counters count leases.
type counters struct {
	issued  atomic.Int64
	refused [reasonCount]atomic.Int64
}

// Issued returns how many leases were issued.
func (i *Issuer) Issued() int64 { return i.counts.issued.Load() }

// Refused returns how many runs got no lease, or had it refused by their Node, for this reason.
func (i *Issuer) Refused(r Reason) int64 { return i.counts.refused[r].Load() }

// New reads the slots and returns an Issuer, which is to be Run.
func New(ctx context.Context, cfg Config) (*Issuer, error) {
	if cfg.Store == nil || cfg.Sessions == nil || cfg.Identity == nil || cfg.Keys == nil || cfg.Logger == nil {
		return nil, errors.New("credential: Store, Sessions, Identity, Keys and Logger are required")
	}
	if cfg.Life == 0 {
		cfg.Life = lease.DefaultLife
	}
	i := &Issuer{
		cfg: cfg, edge: cfg.Identity.ID().String(), wake: make(chan struct{}, 1),
		live: map[*Grant]struct{}{}, last: map[execution.SlotName]map[holderKey]time.Time{},
		outcomes: map[execution.SlotName]outcome{},
		minimums: map[execution.SlotName]execution.Revision{}, rising: map[execution.SlotName]rise{},
	}
	var err error
	i.sealer, err = lease.NewSealer(lease.SealerConfig{Issuer: lease.Issuer(i.edge), Keys: cfg.Keys, Life: cfg.Life})
	if err != nil {
		return nil, err
	}
	i.table.Store(&table{})
	return i, i.Sync(ctx)
}

// Minimums returns what a Node works by: the least revisions of the slots that it may have. It is tunnel's
// AcceptorConfig.Config.
func (i *Issuer) Minimums(node execution.NodeID) *wire.EdgeConfig {
	allow, ok := i.cfg.Sessions.Permits(node)
	i.mu.Lock()
	defer i.mu.Unlock()
	config := &wire.EdgeConfig{Revision: i.version, MinimumRevisions: map[string]uint64{}}
	if !ok {
		return config
	}
	for slot, revision := range i.minimums {
		for _, pattern := range allow.Slots {
			if state.MatchGlob(pattern, string(slot)) {
				config.MinimumRevisions[string(slot)] = uint64(revision)
				break
			}
		}
	}
	return config
}
