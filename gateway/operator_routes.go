package gateway

import (
	"context"
	"slices"
	"time"

	"iop/execution"
	"iop/gateway/admin"
	"iop/gateway/admission"
	"iop/gateway/limit"
	"iop/gateway/registry"
	"iop/gateway/route"
	"iop/state"
	"iop/tunnel"
)

// Routes implements admin.Edge.
func (o operator) Routes() []admin.Route {
	table := o.s.routing.table.Load()
	stats := o.s.adm.Stats()
	places := newPlaces(o.s.reg.Nodes(), stats.Places)
	waiting := map[string]int{}
	for _, q := range stats.Queues {
		waiting[q.Route] = q.Waiting
	}
	views := []admin.Route{}
	for _, r := range table.Routes() {
		views = append(views, routeView(r, places, waiting[r.Name]))
	}
	for _, name := range places.names(waiting) {
		if r := table.Resolve(name); r != nil && r.Advertised {
			views = append(views, routeView(r, places, waiting[name]))
		}
	}
	return views
}

func routeView(r *route.Route, places *places, waiting int) admin.Route {
	v := admin.Route{
		Name: r.Name, Aliases: slices.Concat([]string{}, r.Aliases), Advertised: r.Advertised, Policy: r.Policy.String(),
		Principals: slices.Concat([]string{}, r.Principals), Waiting: waiting, Groups: []admin.Group{},
	}
	groups := r.Groups
	if r.Advertised {
		groups = []route.Group{{Targets: []route.Target{{Model: r.Name, Weight: 1}}}}
	}
	for i := range groups {
		g := &groups[i]
		v.Groups = append(v.Groups, admin.Group{When: admin.WhenName(g.When), Selects: admin.TargetSpecs(g), Targets: places.of(g)})
	}
	return v
}

// places are the providers of the current sessions, as a moment found them.
type places struct {
	now  time.Time
	list []servicePlace
}

// servicePlace is one provider of a Node's current session.
type servicePlace struct {
	target    admission.Target
	labels    map[string]string
	models    []tunnel.ModelInfo
	inService bool
	load      admission.PlaceStats
}

func newPlaces(nodes []registry.NodeView, stats []admission.PlaceStats) *places {
	loads := make(map[admission.Target]admission.PlaceStats, len(stats))
	for _, p := range stats {
		loads[p.Target] = p
	}
	ps := &places{now: time.Now().UTC()}
	for i := range nodes {
		for j := range nodes[i].Sessions {
			if s := &nodes[i].Sessions[j]; s.Current && s.Info != nil {
				ps.add(nodes[i].Node, s, loads)
			}
		}
	}
	return ps
}

func (ps *places) add(node execution.NodeID, s *registry.SessionView, loads map[admission.Target]admission.PlaceStats) {
	for _, p := range s.Info.Providers {
		place := servicePlace{target: admission.Target{Node: node, Generation: s.Generation, Provider: p.ID}, labels: s.Info.Labels}
		for _, m := range s.Info.Models {
			if m.Provider == p.ID {
				place.models = append(place.models, m)
			}
		}
		load, offered := loads[place.target]
		place.load, place.inService = load, offered && load.Selectable && !load.Retired
		if !offered {
			place.load.Capacity = p.Capacity
		}
		ps.list = append(ps.list, place)
	}
}

// names are the models that are offered or waited for, ordered.
func (ps *places) names(waiting map[string]int) []string {
	var names []string
	for i := range ps.list {
		for _, m := range ps.list[i].models {
			names = append(names, m.ID)
		}
	}
	for name, n := range waiting {
		if n > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// of returns the targets of a group, each once.
func (ps *places) of(g *route.Group) []admin.Target {
	targets := []admin.Target{}
	for i := range ps.list {
		p := &ps.list[i]
		for j := range g.Targets {
			spec := &g.Targets[j]
			if !spec.Matches(p.target.Node, p.labels, p.target.Provider) {
				continue
			}
			if m := p.modelOf(spec); m != nil {
				targets = append(targets, ps.view(p, spec, m))
				break
			}
		}
	}
	return targets
}

// modelOf is the model that the target means there, or nil.
func (p *servicePlace) modelOf(spec *route.Target) *tunnel.ModelInfo {
	at := func(name string) int {
		return slices.IndexFunc(p.models, func(m tunnel.ModelInfo) bool { return m.ID == name })
	}
	name, ok := spec.ModelAt(func(name string) bool { return at(name) >= 0 })
	if !ok {
		return nil
	}
	return &p.models[at(name)]
}

func (ps *places) view(p *servicePlace, spec *route.Target, m *tunnel.ModelInfo) admin.Target {
	v := admin.Target{
		Node: p.target.Node, Generation: p.target.Generation, Provider: p.target.Provider, Model: m.ID,
		InService: p.inService, Breaker: "closed", InFlight: p.load.InFlight, Capacity: p.load.Capacity,
		Weight: spec.Weight, Loaded: m.Loaded, Resting: p.load.BackingOff,
	}
	rest := p.load.Rests
	for _, b := range p.load.Breakers {
		if b.Model == m.ID {
			v.Breaker, rest = b.State, max(rest, b.Opens)
		}
	}
	if rest > 0 {
		until := ps.now.Add(rest)
		v.RestingUntil = &until
	}
	return v
}

// Queues implements admin.Edge.
func (o operator) Queues() []admin.Queue {
	queues := []admin.Queue{}
	for _, q := range o.s.adm.Stats().Queues {
		if q.Waiting == 0 {
			continue
		}
		v := admin.Queue{
			Route: q.Route, Waiting: q.Waiting, Limit: q.Limit, OldestMS: q.Oldest.Milliseconds(), IntervalMS: q.Interval.Milliseconds(),
			Principals: []admin.QueuedPrincipal{},
		}
		for _, p := range q.Principals {
			v.Principals = append(v.Principals, admin.QueuedPrincipal{Principal: p.ID, Waiting: p.Waiting, Weight: p.Weight})
		}
		queues = append(queues, v)
	}
	return queues
}

// KeyUse implements admin.Edge.
func (o operator) KeyUse(keys []state.Key) []admin.KeyUse {
	running := map[state.KeyID]int{}
	for _, rec := range o.s.runs.list() {
		if !rec.ended() {
			running[rec.key]++
		}
	}
	uses := make([]admin.KeyUse, len(keys))
	for i := range keys {
		uses[i].Running = running[keys[i].ID]
		if snapshot, ok := o.s.limits.Snapshot(&keys[i]); ok {
			uses[i].Requests, uses[i].Tokens = windowView(snapshot.Requests), windowView(snapshot.Tokens)
		}
	}
	return uses
}

func windowView(w limit.Window) *admin.Window {
	if w.Limit == 0 {
		return nil
	}
	return &admin.Window{Limit: w.Limit, Remaining: w.Remaining, ResetMS: w.Reset.Milliseconds()}
}

// ended reports whether the run is over.
func (rec *record) ended() bool {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return rec.state == runEnded
}

// FlushUsage implements admin.Edge.
func (o operator) FlushUsage(ctx context.Context) error { return o.s.meter.Flush(ctx) }

// Configuration implements admin.Edge.
func (o operator) Configuration() (admin.ConfigStatus, *route.Table) {
	table := o.s.routing.table.Load()
	return o.configStatus(table), table
}

func (o operator) configStatus(table *route.Table) admin.ConfigStatus {
	c := admin.ConfigStatus{Path: o.s.cfg.Config, Digest: table.Digest(), Routes: len(table.Routes())}
	if o.s.routing.watcher == nil {
		return c
	}
	status := o.s.routing.watcher.Status()
	loaded := status.Loaded.UTC()
	c.Loaded = &loaded
	if status.Fault == "" {
		return c
	}
	c.Fault = &admin.ConfigFault{At: status.FaultAt.UTC(), Message: status.Fault, Faults: []admin.FileFault{}}
	// The watcher tells the text; where the file has not changed since, its faults are these.
	if _, err := route.Load(o.s.cfg.Config, route.Managed(o.s.managed())); err != nil && err.Error() == status.Fault {
		c.Fault.Faults = admin.FaultOf(err).Faults
	}
	return c
}

// ReloadConfig implements admin.Edge.
func (o operator) ReloadConfig() error {
	if o.s.cfg.Config == "" {
		return admin.ErrNoConfig
	}
	return o.s.Reload()
}
