package tunnel

import (
	"google.golang.org/protobuf/proto"

	"iop/tunnel/wire"
)

// pageBytes is what one page of an inventory may take: well under a frame's limit, so that the rest of its message
// always fits beside it.
const pageBytes = 24 << 10

// announce tells the Edge what the Node offers now.
func (s *nodeSession) announce() {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	if s.link.end != nil {
		return
	}
	if s.unacked != 0 {
		s.dirty = true
		return
	}
	s.announceLocked()
}

// announceLocked queues the inventory in pages: one inventory at a time is under way, however often it changes.
func (s *nodeSession) announceLocked() {
	s.dirty = false
	info := s.sup.describe()
	providers, models := wireProviders(info.Providers), wireModels(info.Models)
	if left := len(info.Providers) + len(info.Models) - len(providers) - len(models); left > 0 {
		s.link.log.Warn("tunnel: providers or models are too many or have names that can't be used", "left_out", left)
	}
	for first := true; first || len(providers) > 0 || len(models) > 0; first = false {
		page := firstPage(providers, models)
		providers, models = providers[len(page.Providers):], models[len(page.Models):]
		page.First = first
		page.Last = len(providers) == 0 && len(models) == 0
		s.refreshID++
		s.link.urgentLocked(wire.TypeRefresh, nil, &wire.Refresh{Id: s.refreshID, Kind: &wire.Refresh_Node{Node: page}})
	}
	s.unacked = s.refreshID
}

// firstPage returns a page with as many providers, then models, as fit.
func firstPage(providers []*wire.Provider, models []*wire.Model) *wire.NodeRefresh {
	left := pageBytes
	page := &wire.NodeRefresh{Providers: firstThatFit(providers, &left)}
	if len(page.Providers) == len(providers) {
		page.Models = firstThatFit(models, &left)
	}
	return page
}

// firstThatFit returns the head of list that fits into left bytes, and takes them off.
func firstThatFit[M proto.Message](list []M, left *int) []M {
	for i, m := range list {
		// A tag and a length of at most two bytes stand before each.
		if *left -= proto.Size(m) + 3; *left < 0 {
			return list[:i]
		}
	}
	return list
}

// wireProviders leaves out what an Edge would end the session for: one odd name must not keep a Node offline.
func wireProviders(list []ProviderInfo) []*wire.Provider {
	out := make([]*wire.Provider, 0, len(list))
	for _, p := range list {
		if usableName(string(p.ID)) && len(out) < maxProviders {
			out = append(out, &wire.Provider{
				Id: string(p.ID), Adapter: truncate(p.Adapter, maxNameBytes), Capacity: uint32(min(max(p.Capacity, 1), maxCapacity)), Health: p.Health,
				Operations: p.Operations, OperationsKnown: p.OperationsKnown, Runs: p.Runs,
				Engine: truncate(p.Engine, maxNameBytes), EngineVersion: truncate(p.EngineVersion, maxNameBytes),
			})
		}
	}
	return out
}

// wireModels is wireProviders for models.
func wireModels(list []ModelInfo) []*wire.Model {
	out := make([]*wire.Model, 0, len(list))
	for _, m := range list {
		if usableName(m.ID) && usableName(string(m.Provider)) && len(out) < maxModels {
			model := &wire.Model{Provider: string(m.Provider), Id: m.ID, Created: m.Created, OwnedBy: truncate(m.OwnedBy, maxNameBytes), Loaded: m.Loaded}
			m.Details.describe(model)
			out = append(out, model)
		}
	}
	return out
}

func usableName(s string) bool { return s != "" && len(s) <= maxNameBytes && plain(s) }
