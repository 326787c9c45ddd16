package tunnel

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"iop/execution"
	"iop/tunnel/wire"
)

// The Edge keeps what Nodes say of themselves, so what they may say has a bound: for all sessions together, for those of
// one join token or identity, and in time.
const (
	// DefaultInventoryBytes bounds the memory that all inventories of an Edge take, DefaultAccountBytes that of the
	// sessions of one account, where its Allowance says nothing. The largest honest inventories take a few MiB.
	DefaultInventoryBytes = 256 << 20
	DefaultAccountBytes   = 64 << 20

	// Inventories and HEARTBEATs that a Node may send at once, and how long one more takes to come free. An honest Node
	// sends a HEARTBEAT every 30 s and few to probe; its inventories wait for the acknowledgement.
	inventoryBurst, inventoryPace = 8, time.Second
	heartbeatBurst, heartbeatPace = 64, time.Second
	// modelsAPace more models count as one more inventory: admission takes 4 us for each model that is new, holding a lock.
	modelsAPace = 2048
	// What the sessions of an account may offer together, in models: so much at once, as when all its Nodes come back, and then
	// a model each accountPace. One that ends its sessions and opens new ones gains nothing by it.
	accountModels, accountPace = 32 * maxModels, time.Second / 8192

	// What a session, a provider and a model take beside their texts: here, in the registry and in admission (a place, a
	// line for each model, their maps). Measured by TestInventoriesStayWithinTheirBudget in gateway.
	sessionBytes, providerBytes, modelBytes = 4 << 10, 4 << 10, 512
	servedBytes                             = 3 * modelBytes // of a model, besides, once its inventory counts
	textBytes                               = 16             // of a text, beside its letters
)

// Allowance is what a session's Node may say of itself. Static.
type Allowance struct {
	Account        string               // whose sessions share InventoryBytes; empty: the session has a budget of its own
	InventoryBytes int64                // memory of the inventories of all sessions of the account; 0: DefaultAccountBytes
	Joining        int                  // connections of the account at once whose registration was not answered yet; 0: any number
	Models         int                  // in one inventory: more are ignored; 0: as many as the contract allows
	Model          func(id string) bool // whether it may offer the model: others are ignored; nil: any
}

// codeModelsIgnored is the NOTICE that some models of an inventory are not offered.
const codeModelsIgnored = "models_ignored"

// inventoryBudget is what inventories may take. Any goroutine may use it.
type inventoryBudget struct {
	limit int64 // of all; static

	mu       sync.Mutex
	used     int64            // guarded by mu
	accounts map[string]int64 // guarded by mu; without those that use nothing
	paces    map[string]*pace // guarded by mu; of models, by account: as many as there are join tokens and identities
}

// offers spends so many models of what an account may offer. False: it has offered too much of late.
func (b *inventoryBudget) offers(of *Allowance, now time.Time, models int) bool {
	if of == nil || of.Account == "" {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.paces[of.Account]
	if p == nil {
		p = &pace{}
		b.paces[of.Account] = p
	}
	if p.wait(now, accountModels, accountPace) > 0 {
		return false
	}
	p.spent += float64(models)
	return true
}

// take charges n bytes to an account. The error says whose budget is used up.
func (b *inventoryBudget) take(account string, limit, n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.accounts[account]+n > limit:
		return &EndError{Code: "token_limit", Message: fmt.Sprintf("the inventories of this join token's or identity's Nodes take more than %d bytes of memory: offer fewer models, or make a token with a higher --max-inventory-bytes", limit)}
	case b.used+n > b.limit:
		return &EndError{Code: "edge_limit", Message: fmt.Sprintf("the inventories of all Nodes take more than the %d bytes of memory that this Edge reserves for them", b.limit)}
	}
	b.used += n
	b.accounts[account] += n
	return nil
}

// give returns n bytes.
func (b *inventoryBudget) give(account string, n int64) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	if b.accounts[account] -= n; b.accounts[account] <= 0 {
		delete(b.accounts, account)
	}
}

// InventoryBytes returns the memory that the inventories of all sessions take, as it is charged.
func (a *Acceptor) InventoryBytes() int64 {
	a.inventories.mu.Lock()
	defer a.inventories.mu.Unlock()
	return a.inventories.used
}

// pace is a token bucket. The zero value is full.
type pace struct {
	spent float64
	at    time.Time
}

// take spends one of burst that come back one each interval, if there is one.
func (p *pace) take(now time.Time, burst int, interval time.Duration) bool {
	if p.wait(now, burst, interval) > 0 {
		return false
	}
	p.spent++
	return true
}

// wait is how long it takes until there is one.
func (p *pace) wait(now time.Time, burst int, interval time.Duration) time.Duration {
	p.spent = max(0, p.spent-now.Sub(p.at).Seconds()/interval.Seconds())
	p.at = now
	return time.Duration(max(0, p.spent-float64(burst-1)) * float64(interval))
}

func tooFast(what string) error {
	return &EndError{Code: goodbyeTooFast, Message: what, Run: execution.CodeSessionLost}
}

// inventoryState is how far an inventory has come. Guarded by link.mu.
type inventoryState struct {
	pending     *NodeInfo   // or nil: none is under way
	pendingCost int64       // what is charged for it
	cost        int64       // what is charged for Info
	pace        pace        // of inventories begun
	held        *time.Timer // not nil while the last page's acknowledgement is held back
	acked       uint64      // where the last page's acknowledgement stood in what the link has queued
	told        int         // models ignored, when the Node was last told
}

// beginInventoryLocked takes the first page of an inventory.
func (s *NodeSession) beginInventoryLocked() error {
	v := &s.inventory
	if v.held != nil || s.link.urgentTaken < v.acked {
		return tooFast("an inventory arrived before the previous one was acknowledged")
	}
	if !v.pace.take(s.link.now(), inventoryBurst, inventoryPace) {
		return tooFast(fmt.Sprintf("inventories arrive more often than every %s", inventoryPace))
	}
	s.acceptor.inventories.give(s.account(), v.pendingCost)
	v.pendingCost = 0
	v.pending = &NodeInfo{Labels: s.register.Labels, Version: truncate(s.register.SoftwareVersion, maxNameBytes)}
	return nil
}

// account is whose budget the session's inventory is charged to.
func (s *NodeSession) account() string {
	if a := s.identity.Allowance; a != nil && a.Account != "" {
		return a.Account
	}
	return fmt.Sprintf("session %s %d", s.node, s.generation)
}

// chargeLocked charges what an inventory under way takes.
func (s *NodeSession) chargeLocked(n int64) error {
	limit := int64(DefaultAccountBytes)
	if a := s.identity.Allowance; a != nil && a.InventoryBytes != 0 {
		limit = a.InventoryBytes
	}
	if err := s.acceptor.inventories.take(s.account(), limit, n); err != nil {
		end := err.(*EndError)
		s.link.metrics.refused(end.Code)
		s.noteRefused(end.Code, end.Message)
		return err
	}
	s.inventory.pendingCost += n
	return nil
}

// pageLocked takes one page of the Node's inventory.
func (s *NodeSession) pageLocked(id uint64, page *wire.NodeRefresh) error {
	if !s.asked.IsZero() {
		// A Node answers at once, with what it has ready: as good as a heartbeat.
		s.link.beat.rtt, s.asked = s.link.now().Sub(s.asked), time.Time{}
	}
	v := &s.inventory
	if page.First {
		if err := s.beginInventoryLocked(); err != nil {
			return err
		}
	}
	if v.pending == nil {
		return protocolError("REFRESH: a page without a first page")
	}
	cost, err := appendPage(v.pending, page, s.identity.Allowance)
	if err != nil {
		return protocolError("REFRESH: %w", err)
	}
	if page.First {
		cost += sessionBytes + 2*int64(proto.Size(s.register))
	}
	if err := s.chargeLocked(cost); err != nil {
		return err
	}
	ack := &wire.Refresh{Id: id, Kind: &wire.Refresh_Ack{Ack: &wire.RefreshAck{}}}
	if !page.Last {
		return s.link.answerLocked(wire.TypeRefresh, ack)
	}
	if err := s.applyInventoryLocked(); err != nil {
		return err
	}
	return s.acknowledgeLocked(ack)
}

// applyInventoryLocked makes the inventory under way the Node's, in the place of the one before.
func (s *NodeSession) applyInventoryLocked() error {
	v := &s.inventory
	if !s.acceptor.inventories.offers(s.identity.Allowance, s.link.now(), len(v.pending.Models)) {
		return tooFast("the Nodes of this join token or identity offer models faster than the Edge accepts them")
	}
	s.acceptor.inventories.give(s.account(), v.cost)
	v.cost = 0
	if err := s.chargeLocked(servedBytes * int64(len(v.pending.Models))); err != nil {
		return err
	}
	v.pending.Providers, v.pending.Models = slices.Clone(v.pending.Providers), slices.Clone(v.pending.Models) // without room to grow
	s.info.Store(v.pending)
	v.pace.spent += float64(len(v.pending.Models) / modelsAPace)
	v.cost, v.pendingCost = v.pendingCost, 0
	ignored, names := v.pending.Ignored, v.pending.IgnoredModels
	v.pending = nil
	if ignored > 0 && ignored != v.told {
		s.noticeLocked(codeModelsIgnored, fmt.Sprintf("%d models are not offered, because the join token does not allow them or allows fewer: %q and others", ignored, names))
	}
	v.told = ignored
	if s.online {
		s.hookLocked(s.acceptor.cfg.Directory.Refreshed)
	}
	return nil
}

// acknowledgeLocked acknowledges an inventory, once the Node may send another one.
func (s *NodeSession) acknowledgeLocked(ack *wire.Refresh) error {
	v := &s.inventory
	wait := v.pace.wait(s.link.now(), inventoryBurst, inventoryPace)
	if wait == 0 {
		err := s.link.answerLocked(wire.TypeRefresh, ack)
		v.acked = s.link.urgentQueued
		return err
	}
	v.held = time.AfterFunc(wait, func() {
		s.link.mu.Lock()
		defer s.link.mu.Unlock()
		if s.link.end == nil {
			s.link.urgentLocked(wire.TypeRefresh, nil, ack)
			v.held, v.acked = nil, s.link.urgentQueued
		}
	})
	return nil
}

// dropInventoryLocked gives back what the session's inventory takes: the session has ended.
func (s *NodeSession) dropInventoryLocked() {
	v := &s.inventory
	if v.held != nil {
		v.held.Stop()
	}
	s.acceptor.inventories.give(s.account(), v.cost+v.pendingCost)
	v.cost, v.pendingCost, v.pending = 0, 0, nil
}

// appendPage adds a page to an inventory and returns the memory that it takes. What the allowance (or nil) does not cover is
// counted and left out.
func appendPage(info *NodeInfo, page *wire.NodeRefresh, allowed *Allowance) (cost int64, err error) {
	for _, p := range page.Providers {
		provider, err := parseProvider(p)
		if err != nil {
			return 0, err
		}
		if slices.ContainsFunc(info.Providers, func(have ProviderInfo) bool { return have.ID == provider.ID }) {
			return 0, fmt.Errorf("provider %q twice", provider.ID) // each time would offer all of its models again
		}
		if len(info.Providers) == maxProviders {
			return 0, fmt.Errorf("over %d providers", maxProviders)
		}
		info.Providers = append(info.Providers, provider)
		cost += provider.cost()
	}
	for _, m := range page.Models {
		if m.Id == "" || max(len(m.Id), len(m.Provider), len(m.OwnedBy)) > maxNameBytes {
			return 0, fmt.Errorf("a model without a usable id")
		}
		if !plain(m.Id) || !plain(m.Provider) || !plain(m.OwnedBy) {
			continue // the provider's fault, not the Node's
		}
		if len(info.Models)+info.Ignored >= maxModels {
			return 0, fmt.Errorf("over %d models", maxModels)
		}
		if !allowed.model(m.Id, len(info.Models)) {
			info.ignore(m.Id)
			continue
		}
		model := ModelInfo{
			Provider: execution.ProviderID(m.Provider), ID: m.Id, Created: m.Created, OwnedBy: m.OwnedBy, Loaded: m.Loaded,
			Details: parseDetails(m),
		}
		cost += model.cost()
		info.Models = append(info.Models, model)
	}
	return cost, nil
}

// model reports whether an inventory that has so many models may have this one too.
func (a *Allowance) model(id string, have int) bool {
	return a == nil || (a.Models == 0 || have < a.Models) && (a.Model == nil || a.Model(id))
}

// maxIgnoredNames is how many models that are not offered are remembered by name.
const maxIgnoredNames = 3

func (info *NodeInfo) ignore(id string) {
	info.Ignored++
	if len(info.IgnoredModels) < maxIgnoredNames {
		info.IgnoredModels = append(info.IgnoredModels, id)
	}
}

// cost is the memory that the provider takes.
func (p *ProviderInfo) cost() int64 {
	n := providerBytes + len(p.ID) + len(p.Adapter) + len(p.Engine) + len(p.EngineVersion)
	for _, op := range p.Operations {
		n += 2*textBytes + len(op)
	}
	return int64(n)
}

// cost is the memory that the model takes.
func (m *ModelInfo) cost() int64 {
	n := modelBytes + len(m.Provider) + len(m.ID) + len(m.OwnedBy)
	if d := m.Details; d != nil {
		n += len(d.Digest) + len(d.Family) + len(d.ParameterSize) + len(d.Quantization)
		for _, c := range d.Capabilities {
			n += 2*textBytes + len(c)
		}
	}
	return int64(n)
}
