package tunnel

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/tunnel/wire"
)

// inventory is a Node's offer that a test changes.
type inventory struct {
	mu   sync.Mutex
	info *NodeInfo
}

func (i *inventory) describe() *NodeInfo {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.info
}

func (i *inventory) set(info *NodeInfo) {
	i.mu.Lock()
	i.info = info
	i.mu.Unlock()
}

func models(n int, id func(int) string) *NodeInfo {
	info := &NodeInfo{Providers: []ProviderInfo{{ID: "p", Adapter: "openai", Capacity: 1}}}
	for i := range n {
		info.Models = append(info.Models, ModelInfo{Provider: "p", ID: id(i), Created: int64(i), OwnedBy: "o", Loaded: i%2 == 1})
	}
	return info
}

// The largest inventory arrives whole, in pages that fit, before the session is online; then again when it changes.
func TestLargestInventory(t *testing.T) {
	long := strings.Repeat("m", maxNameBytes-6)
	for name, n := range map[string]int{"a short one": 100, "the largest": maxModels} {
		id := func(i int) string { return fmt.Sprintf("%s%06d", long, i) }
		var inv inventory
		inv.set(models(n, id))
		r := newRigWith(t, echo, rigOptions{supervisor: func(cfg *SupervisorConfig) { cfg.Describe = inv.describe }})
		s := r.session()
		info := s.Info()
		if len(info.Models) != n || info.Models[n-1].ID != id(n-1) || info.Models[7].Created != 7 || !info.Models[7].Loaded || info.Models[8].Loaded || len(info.Providers) != 1 {
			t.Errorf("%s: %d models, %d providers", name, len(info.Models), len(info.Providers))
		}
		inv.set(models(2, id))
		r.sup.Refresh()
		<-r.dir.refresh
		if n := len(s.Info().Models); n != 2 || s.Info() == info {
			t.Errorf("%s: %d models after the refresh", name, n)
		}
		if _, _, end := collect(t, open(t, s, nil)); end.Outcome != execution.Completed {
			t.Errorf("%s: end %+v", name, end)
		}
		r.close()
		r.checkEmpty()
	}
}

// One odd name does not keep a Node offline: it is left out, and so is what is too much.
func TestOddNamesAreLeftOut(t *testing.T) {
	var inv inventory
	info := models(3, func(i int) string { return fmt.Sprint("m", i) })
	info.Models = append(info.Models,
		ModelInfo{Provider: "p", ID: strings.Repeat("x", maxNameBytes+1)}, ModelInfo{Provider: "p", ID: "not\xffutf8"},
		ModelInfo{Provider: "p", ID: "two\nlines"}, ModelInfo{Provider: "p", ID: "\u202eback"}, ModelInfo{Provider: "p\x1b[2J", ID: "m"},
		ModelInfo{Provider: "p"}, ModelInfo{ID: "no provider"}, ModelInfo{Provider: "p", ID: "last", OwnedBy: strings.Repeat("ü", 400) + "\xff\n"})
	info.Providers = append(info.Providers, ProviderInfo{ID: ""}, ProviderInfo{ID: "huge", Capacity: 1 << 40}, ProviderInfo{ID: "none", Adapter: "\xff"})
	for i := range maxProviders {
		info.Providers = append(info.Providers, ProviderInfo{ID: execution.ProviderID(fmt.Sprint("p", i)), Capacity: 1})
	}
	inv.set(info)
	r := newRigWith(t, echo, rigOptions{supervisor: func(cfg *SupervisorConfig) { cfg.Describe = inv.describe }})
	got := r.session().Info()
	if len(got.Models) != 4 || got.Models[3].ID != "last" || len(got.Models[3].OwnedBy) > maxNameBytes {
		t.Errorf("models %+v", got.Models)
	}
	if len(got.Providers) != maxProviders || got.Providers[1].Capacity != maxCapacity || got.Providers[2].Capacity != 1 || got.Providers[2].Adapter != "\uFFFD" {
		t.Errorf("%d providers, %+v", len(got.Providers), got.Providers[:3])
	}
	r.close()
	r.checkEmpty()
}

// However often the inventory changes, one is under way at a time, and the last word arrives.
func TestRefreshesCoalesce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var inv inventory
		inv.set(models(1, func(int) string { return "m0" }))
		n := newNodeRig(t, echo, func(cfg *SupervisorConfig) { cfg.Describe = inv.describe })
		p, _ := n.registered(1)
		next := func() (*wire.Refresh, string) {
			var m wire.Refresh
			p.expect(wire.TypeRefresh, &m)
			if page := m.GetNode(); !page.First || !page.Last || len(page.Models) != 1 {
				t.Fatalf("page %v", &m)
			}
			return &m, m.GetNode().Models[0].Id
		}
		ack := func(m *wire.Refresh) {
			p.send(wire.TypeRefresh, 0, &wire.Refresh{Id: m.Id, Kind: &wire.Refresh_Ack{Ack: &wire.RefreshAck{}}})
		}
		first, id := next()
		if id != "m0" {
			t.Errorf("the first inventory has %s", id)
		}
		p.expect(wire.TypeReady, nil)
		p.send(wire.TypeReadyAck, 0, &wire.NodeReadyResponse{})
		for i := range 1000 {
			inv.set(models(1, func(int) string { return fmt.Sprint("m", i+1) }))
			n.sup.Refresh()
		}
		synctest.Wait()
		if k := len(p.frames); k != 0 {
			t.Errorf("%d frames before the first was acknowledged", k)
		}
		ack(&wire.Refresh{Id: 77}) // of none
		synctest.Wait()
		if k := len(p.frames); k != 0 {
			t.Errorf("%d frames after a stray acknowledgement", k)
		}
		ack(first)
		second, id := next()
		if id != "m1000" || second.Id <= first.Id {
			t.Errorf("the second inventory has %s, id %d after %d", id, second.Id, first.Id)
		}
		ack(second)
		synctest.Wait()
		if k := len(p.frames); k != 0 {
			t.Errorf("%d frames when nothing changed", k)
		}
		p.close()
		n.close()
	})
}

// Pages that are none end the session; an inventory that is not finished changes nothing.
func TestPagesFromANode(t *testing.T) {
	e := newEdgeRig(t, nil)
	defer e.close()
	page := func(n *wire.NodeRefresh) *wire.Refresh {
		return &wire.Refresh{Id: 1, Kind: &wire.Refresh_Node{Node: n}}
	}
	p, s := e.node("n")
	p.send(wire.TypeRefresh, 0, page(&wire.NodeRefresh{First: true, Models: []*wire.Model{{Provider: "p", Id: "a"}}}))
	p.expect(wire.TypeRefresh, nil)
	if n := len(s.Info().Models); n != 0 {
		t.Errorf("%d models of an unfinished inventory", n)
	}
	p.send(wire.TypeRefresh, 0, page(&wire.NodeRefresh{First: true, Models: []*wire.Model{{Provider: "p", Id: "b"}}}))
	p.send(wire.TypeRefresh, 0, page(&wire.NodeRefresh{Last: true, Models: []*wire.Model{{Provider: "p", Id: "c"}}}))
	<-e.dir.refresh
	if m := s.Info().Models; len(m) != 2 || m[0].ID != "b" || m[1].ID != "c" {
		t.Errorf("models %+v", m)
	}
	p.close()
	many := make([]*wire.Provider, maxProviders+1)
	for i := range many {
		many[i] = &wire.Provider{Id: fmt.Sprint("p", i), Capacity: 1}
	}
	for name, bad := range map[string]*wire.NodeRefresh{
		"no first":           {Last: true},
		"a nameless model":   {First: true, Models: []*wire.Model{{Provider: "p"}}},
		"a long provider":    {First: true, Models: []*wire.Model{{Provider: strings.Repeat("p", 300), Id: "m"}}},
		"no capacity":        {First: true, Providers: []*wire.Provider{{Id: "p"}}},
		"too many providers": {First: true, Providers: many},
		"a provider twice":   {First: true, Providers: []*wire.Provider{many[0], many[1], many[0]}},
	} {
		p, _ := e.node("n")
		p.send(wire.TypeRefresh, 0, page(bad))
		if bye := p.goodbye(); bye.Code != "protocol_error" {
			t.Errorf("%s: goodbye %v", name, bye)
		}
		p.close()
	}
}

// A Node that opens no leases acknowledges what concerns them.
// inventoryPage is an inventory of one page, with one model.
func inventoryPage(id uint64, models ...string) *wire.Refresh {
	page := &wire.NodeRefresh{First: true, Last: true, Providers: []*wire.Provider{{Id: "p", Adapter: "openai", Capacity: 1}}}
	for _, m := range models {
		page.Models = append(page.Models, &wire.Model{Provider: "p", Id: m})
	}
	return &wire.Refresh{Id: id, Kind: &wire.Refresh_Node{Node: page}}
}

// TestInventoriesWaitForTheAcknowledgement: the Edge holds it back from a Node whose inventories change too often, and a
// Node that does not wait loses its session.
func TestInventoriesWaitForTheAcknowledgement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdgeRig(t, nil)
		p, s := e.node("n")
		began := time.Now()
		const inventories = inventoryBurst + 5
		for i := range inventories { // a Node that waits, and whose models change all the time
			p.send(wire.TypeRefresh, 0, inventoryPage(uint64(i+1), fmt.Sprint("m", i)))
			var answer wire.Refresh
			if p.expect(wire.TypeRefresh, &answer); answer.GetAck() == nil || answer.Id != uint64(i+1) {
				t.Fatalf("answer %v", &answer)
			}
		}
		if took := time.Since(began); took < 5*inventoryPace || took > 7*inventoryPace {
			t.Errorf("%d inventories took %v", inventories, took)
		}
		if info := s.Info(); len(info.Models) != 1 || info.Models[0].ID != fmt.Sprint("m", inventories-1) {
			t.Errorf("the last inventory does not count: %+v", info)
		}
		// The next one's acknowledgement is held back; the one after does not wait for it.
		p.send(wire.TypeRefresh, 0, inventoryPage(100, "a"))
		p.send(wire.TypeRefresh, 0, inventoryPage(101, "b"))
		if bye := p.goodbye(); bye.Code != "too_fast" || !strings.Contains(bye.Message, "acknowledged") {
			t.Errorf("goodbye %v", bye)
		}
		p.close()

		// Two in one message: no acknowledgement can have gone out between them.
		p, _ = e.node("n2")
		var both []byte
		for i := range 2 {
			both = append(both, p.frame(wire.TypeRefresh, 0, 0, marshal(t, inventoryPage(uint64(i+1), "m")))...)
		}
		p.raw(both)
		if bye := p.goodbye(); bye.Code != "too_fast" {
			t.Errorf("goodbye %v", bye)
		}
		p.close()

		// Inventories that begin anew and never end.
		p, _ = e.node("n3")
		for i := range inventoryBurst + 1 {
			page := inventoryPage(uint64(i+1), "m")
			page.GetNode().Last = false
			p.send(wire.TypeRefresh, 0, page)
		}
		if bye := p.goodbye(); bye.Code != "too_fast" || !strings.Contains(bye.Message, "more often") {
			t.Errorf("goodbye %v", bye)
		}
		p.close()
		if n := e.acc.InventoryBytes(); n != 0 {
			t.Errorf("%d bytes are charged to nobody", n)
		}
		e.close()
	})
}

// TestLargeInventoriesCountForMore: what an inventory costs the Edge goes with its models, so the next one waits accordingly.
func TestLargeInventoriesCountForMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdgeRig(t, nil)
		p, _ := e.node("n")
		began := time.Now()
		const inventories = 4
		for range inventories {
			for first := 0; first < maxModels; first += modelsAPace / 4 {
				page := &wire.NodeRefresh{First: first == 0, Last: first+modelsAPace/4 == maxModels}
				for i := range modelsAPace / 4 {
					page.Models = append(page.Models, &wire.Model{Provider: "p", Id: fmt.Sprint("m", first+i)})
				}
				p.send(wire.TypeRefresh, 0, &wire.Refresh{Id: 1, Kind: &wire.Refresh_Node{Node: page}})
				p.expect(wire.TypeRefresh, nil)
			}
		}
		const each = 1 + maxModels/modelsAPace
		if took := time.Since(began); took < (inventories*each-inventoryBurst)*inventoryPace {
			t.Errorf("%d inventories took %v", inventories, took)
		}
		p.close()
		e.close()
	})
}

// TestNewSessionsHaveNoNewPace: a Node that offers many models, leaves and comes back does not have the Edge take them in without
// an end. Another account is not kept waiting.
func TestNewSessionsHaveNoNewPace(t *testing.T) {
	budget := &inventoryBudget{paces: map[string]*pace{}}
	now, a, b := time.Now(), &Allowance{Account: "a"}, &Allowance{Account: "b"}
	for i := range accountModels / maxModels {
		if !budget.offers(a, now, maxModels) {
			t.Fatalf("inventory %d was refused", i)
		}
	}
	if budget.offers(a, now, 1) || !budget.offers(b, now, 1) || !budget.offers(nil, now, 1) {
		t.Error("not the account's own bound")
	}
	now = now.Add(2 * accountPace)
	if !budget.offers(a, now, 1) || budget.offers(a, now, maxModels) && budget.offers(a, now, 1) {
		t.Error("not one model each accountPace")
	}
	synctest.Test(t, func(t *testing.T) {
		e := newEdgeRig(t, nil)
		e.dir.identity = Identity{Allowance: a}
		e.acc.inventories.offers(a, time.Now(), accountModels)
		p, _ := e.node("n")
		p.send(wire.TypeRefresh, 0, inventoryPage(1, "m"))
		if bye := p.goodbye(); bye.Code != "too_fast" || !strings.Contains(bye.Message, "join token") {
			t.Errorf("goodbye %v", bye)
		}
		p.close()
		e.close()
	})
}

func TestHeartbeatsHaveAPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdgeRig(t, nil)
		p, _ := e.node("n")
		beat := func(n int) {
			for i := range n {
				p.send(wire.TypeHeartbeat, 0, &wire.Heartbeat{Id: uint64(i + 1)})
				p.expect(wire.TypeHeartbeatAck, nil)
			}
		}
		for range 3 {
			beat(heartbeatBurst)
			time.Sleep(heartbeatBurst * heartbeatPace)
		}
		beat(heartbeatBurst)
		p.send(wire.TypeHeartbeat, 0, &wire.Heartbeat{Id: 1})
		if bye := p.goodbye(); bye.Code != "too_fast" || !strings.Contains(bye.Message, "HEARTBEAT") {
			t.Errorf("goodbye %v", bye)
		}
		p.close()
		e.close()
	})
}

// TestInventoriesHaveABudget: of an account over all its sessions, and of the Edge; what a session took comes back.
func TestInventoriesHaveABudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const perModel = modelBytes + servedBytes + 64
		allowed := &Allowance{Account: "a", InventoryBytes: 4*(sessionBytes+providerBytes+256) + 20*perModel}
		e := newEdgeRig(t, func(c *AcceptorConfig) { c.InventoryBytes = 6 * allowed.InventoryBytes / 5 })
		e.dir.mu.Lock()
		e.dir.identity = Identity{Allowance: allowed}
		e.dir.mu.Unlock()
		names := func(n int) (list []string) {
			for i := range n {
				list = append(list, fmt.Sprint("m", i))
			}
			return list
		}
		say := func(p *fakePeer, n int) {
			p.send(wire.TypeRefresh, 0, inventoryPage(1, names(n)...))
			p.expect(wire.TypeRefresh, nil)
		}
		first, _ := e.node("n1")
		say(first, 15)
		second, _ := e.node("n2")
		second.send(wire.TypeRefresh, 0, inventoryPage(1, names(15)...))
		if bye := second.goodbye(); bye.Code != "token_limit" || !strings.Contains(bye.Message, "memory") {
			t.Errorf("goodbye %v", bye)
		}
		second.close()
		before := e.acc.InventoryBytes()
		say(first, 3)
		if now := e.acc.InventoryBytes(); now >= before || now == 0 {
			t.Errorf("a smaller inventory takes %d bytes, the one before took %d", now, before)
		}
		third, _ := e.node("n3")
		say(third, 13)
		e.dir.mu.Lock()
		e.dir.identity = Identity{Allowance: &Allowance{Account: "b", InventoryBytes: allowed.InventoryBytes}}
		e.dir.mu.Unlock()
		other, _ := e.node("n4")
		other.send(wire.TypeRefresh, 0, inventoryPage(1, names(19)...))
		if bye := other.goodbye(); bye.Code != "edge_limit" {
			t.Errorf("goodbye %v", bye)
		}
		other.close()
		third.close()
		first.close()
		synctest.Wait()
		time.Sleep(time.Minute)
		if n := e.acc.InventoryBytes(); n != 0 {
			t.Errorf("%d bytes are charged to nobody", n)
		}
		if n := refusalsOf(e.acc.Metrics()); !strings.Contains(n, "token_limit 1") || !strings.Contains(n, "edge_limit 1") {
			t.Errorf("refusals %s", n)
		}
		e.close()
	})
}

// TestModelsOutsideTheAllowance are left out, and the Node is told, once for each number of them.
func TestModelsOutsideTheAllowance(t *testing.T) {
	e := newEdgeRig(t, nil)
	e.dir.mu.Lock()
	e.dir.identity = Identity{Allowance: &Allowance{Models: 2, Model: func(id string) bool { return strings.HasPrefix(id, "llama") }}}
	e.dir.mu.Unlock()
	p, s := e.node("n")
	p.send(wire.TypeRefresh, 0, inventoryPage(1, "gpt", "llama1", "llama2", "llama3"))
	var notice wire.Notice
	if p.expect(wire.TypeNotice, &notice); notice.Code != "models_ignored" || !strings.Contains(notice.Message, `"gpt" "llama3"`) {
		t.Errorf("notice %v", &notice)
	}
	p.expect(wire.TypeRefresh, nil)
	info := s.Info()
	if len(info.Models) != 2 || info.Models[1].ID != "llama2" || info.Ignored != 2 || !slices.Equal(info.IgnoredModels, []string{"gpt", "llama3"}) {
		t.Errorf("%+v", info)
	}
	p.send(wire.TypeRefresh, 0, inventoryPage(2, "gpt", "llama1", "llama2", "llama3"))
	for f := range p.frames {
		if f.Type == wire.TypeNotice {
			t.Error("it is told again")
		}
		if f.Type == wire.TypeRefresh {
			break
		}
	}
	p.close()
	e.close()
}

func TestRevokeAndConfigAreAcknowledged(t *testing.T) {
	n := newNodeRig(t, echo, nil)
	p := n.online(1)
	p.send(wire.TypeRevoke, 0, &wire.Revoke{Id: 5, Slot: "s"})
	var ack wire.RevokeAck
	p.expect(wire.TypeRevokeAck, &ack)
	p.send(wire.TypeRefresh, 0, &wire.Refresh{Id: 6, Kind: &wire.Refresh_Edge{Edge: &wire.EdgeConfig{Revision: 2}}})
	var refresh wire.Refresh
	for refresh.GetAck() == nil {
		p.expect(wire.TypeRefresh, &refresh)
	}
	if ack.Id != 5 || refresh.Id != 6 {
		t.Errorf("%v, %v", &ack, &refresh)
	}
	p.close()
	n.close()
}
