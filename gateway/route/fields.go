package route

import (
	"go.yaml.in/yaml/v3"

	"iop/execution"
	"iop/lease"
)

// table reads the file's root.
func (r *reader) table(root *yaml.Node) *Table {
	t := Advertised()
	r.names = make(map[string]*yaml.Node)
	t.byName = make(map[string]*Route)
	var routes *yaml.Node
	base := t.base
	r.object(root, "", []field{
		{name: "advertised_models", read: func(n *yaml.Node, path string) { t.advertised = r.oneOf(n, path, []string{"serve", "refuse"}) == 0 }},
		{name: "defaults", read: func(n *yaml.Node, path string) { r.object(n, path, r.settings(&base)) }},
		{name: "routes", read: func(n *yaml.Node, _ string) { routes = n }},
	})
	if routes == nil {
		r.fault(root, "routes", "it is missing; write \"routes: []\" for no routes")
	} else { // after the defaults, wherever these stand
		base.Advertised = false
		for i, n := range r.list(routes, "routes", "") {
			t.add(r.route(n, element("routes", i), base))
		}
		base.Advertised = true
	}
	t.base = base
	t.reserve()
	return t
}

// add takes a route in.
func (t *Table) add(route *Route) {
	t.routes = append(t.routes, route)
	t.byName[route.Name] = route
	for _, alias := range route.Aliases {
		t.byName[alias] = route
	}
}

// maxQueueLimit and maxAttempts bound what a typing error could make of a route.
const (
	maxQueueLimit = 1_000_000
	maxAttempts   = 10
	maxWeight     = 1000
)

// settings are the fields that a route and the defaults have in common. Each sets its part of to and leaves the rest.
func (r *reader) settings(to *Route) []field {
	return []field{
		{name: "policy", read: func(n *yaml.Node, path string) { to.Policy = Policy(r.oneOf(n, path, policyNames[:])) }},
		{name: "retry", read: func(n *yaml.Node, path string) { r.retry(n, path, &to.Retry) }},
		{name: "timeouts", read: func(n *yaml.Node, path string) { r.timeouts(n, path, &to.Timeouts) }},
		{name: "queue_limit", read: func(n *yaml.Node, path string) { to.QueueLimit = r.integer(n, path, 1, maxQueueLimit) }},
	}
}

// retryNames are the kinds of failure, in the order of their bits.
var retryNames = []string{"unreachable", "overloaded", "gateway", "lost", "server_error"}

func (r *reader) retry(n *yaml.Node, path string, to *Retry) {
	r.object(n, path, []field{
		{name: "attempts", read: func(n *yaml.Node, path string) { to.Attempts = r.integer(n, path, 0, maxAttempts) }},
		{name: "on", read: func(n *yaml.Node, path string) {
			to.On = 0
			for i, kind := range r.list(n, path, "write attempts: 0 for no retries") {
				to.On |= 1 << r.oneOf(kind, element(path, i), retryNames)
			}
		}},
	})
}

func (r *reader) timeouts(n *yaml.Node, path string, to *Timeouts) {
	r.object(n, path, []field{
		{name: "queue", read: func(n *yaml.Node, path string) { to.Queue = r.duration(n, path) }},
		{name: "no_node", read: func(n *yaml.Node, path string) { to.NoNode = r.duration(n, path) }},
		{name: "first_byte", read: func(n *yaml.Node, path string) { to.FirstByte = r.duration(n, path) }},
		{name: "between_chunks", read: func(n *yaml.Node, path string) { to.BetweenChunks = r.duration(n, path) }},
		{name: "total", read: func(n *yaml.Node, path string) { to.Total = r.duration(n, path) }},
	})
}

// route reads one of the routes; base is what the defaults make of it.
func (r *reader) route(n *yaml.Node, path string, base Route) *Route {
	to := &base
	named, grouped := false, ""
	once := func(n *yaml.Node, at, field string) bool {
		if grouped != "" {
			r.fault(n, at, "the route already has %s; targets is the short form of a single group", grouped)
			return false
		}
		grouped = field
		return true
	}
	r.object(n, path, append([]field{
		{name: "model", read: func(n *yaml.Node, path string) { named, to.Name = true, r.claim(n, path) }},
		{name: "aliases", read: func(n *yaml.Node, path string) {
			for i, alias := range r.list(n, path, "remove the line") {
				to.Aliases = append(to.Aliases, r.claim(alias, element(path, i)))
			}
		}},
		{name: "principals", read: func(n *yaml.Node, path string) {
			for i, pattern := range r.list(n, path, "remove the line to let everyone use the route") {
				to.Principals = append(to.Principals, r.glob(pattern, element(path, i)))
			}
		}},
		{name: "rename_model", read: func(n *yaml.Node, path string) { to.RenameModel = r.boolean(n, path) }},
		{name: "parameters", read: func(n *yaml.Node, path string) { to.Parameters = r.parameters(n, path) }},
		{name: "groups", read: func(n *yaml.Node, path string) {
			if once(n, path, "groups") {
				to.Groups = r.groups(n, path)
			}
		}},
		{name: "targets", read: func(n *yaml.Node, path string) {
			if once(n, path, "targets") {
				to.Groups = []Group{{Targets: r.targets(n, path)}}
			}
		}},
	}, append(r.settings(to), r.misplaced()...)...))
	if !named {
		r.fault(n, path, "the route has no model, the name that clients use")
	}
	if grouped == "" {
		to.Groups = []Group{{Targets: []Target{{Weight: 1}}}}
	}
	for _, g := range to.Groups {
		for i := range g.Targets {
			if g.Targets[i].Model == "" {
				g.Targets[i].Model = to.Name
			}
		}
	}
	return to
}

// claim reads a name of a route that no other has.
func (r *reader) claim(n *yaml.Node, path string) string {
	name, ok := r.modelName(n, path)
	if !ok {
		return ""
	}
	if other := r.names[name]; other != nil {
		r.fault(n, path, "%s is already a route's name or alias, in line %d", excerpt(name), other.Line)
		return ""
	}
	r.names[name] = n
	return name
}

// whenNames are the values of when, in their order.
var whenNames = []string{"full", "down"}

func (r *reader) groups(n *yaml.Node, path string) (groups []Group) {
	for i, n := range r.list(n, path, "remove the line to use any provider that serves the model under the same name") {
		at, g, filled := element(path, i), Group{}, false
		r.object(n, at, []field{
			{name: "when", read: func(n *yaml.Node, path string) {
				if g.When = When(r.oneOf(n, path, whenNames)); i == 0 {
					r.fault(n, path, "the first group is always tried first; when is for later groups")
				}
			}},
			{name: "targets", read: func(n *yaml.Node, path string) { filled, g.Targets = true, r.targets(n, path) }},
		})
		if !filled && n.Kind == yaml.MappingNode {
			r.fault(n, at, "the group has no targets")
		}
		groups = append(groups, g)
	}
	return groups
}

func (r *reader) targets(n *yaml.Node, path string) (targets []Target) {
	for i, n := range r.list(n, path, "remove the line to use any provider that serves the model under the same name") {
		to := Target{Weight: 1}
		r.object(n, element(path, i), append([]field{
			{name: "node", read: func(n *yaml.Node, path string) { to.Node = r.glob(n, path) }},
			{name: "labels", read: func(n *yaml.Node, path string) { to.Labels = r.labels(n, path) }},
			{name: "provider", read: func(n *yaml.Node, path string) { to.Provider = r.glob(n, path) }},
			{name: "model", read: func(n *yaml.Node, path string) { to.Model, _ = r.modelName(n, path) }},
			{name: "weight", read: func(n *yaml.Node, path string) { to.Weight = r.integer(n, path, 1, maxWeight) }},
		}, r.credential(&to)...))
		if to.Slot == "" && (to.Profile != "" || to.BaseURL != "") {
			r.fault(n, element(path, i), "profile and base_url set how a slot's credential is used, but the target has no slot")
		}
		targets = append(targets, to)
	}
	return targets
}

func (r *reader) labels(n *yaml.Node, path string) map[string]string {
	labels := make(map[string]string)
	for _, m := range r.members(n, path) {
		if m.name == "" {
			r.fault(m.key, path, "a label's name must not be empty")
		}
		if value, ok := r.text(m.value, join(path, m.name)); ok {
			labels[m.name] = value
		}
	}
	if n.Kind == yaml.MappingNode && len(n.Content) == 0 {
		r.fault(n, path, "the map is empty; remove the line")
	}
	return labels
}

// noSlots is what a token mode Edge says of whatever would put a credential of its own on a request: only one in managed
// mode issues leases of them.
const noSlots = "a credential slot requires managed mode; in token mode, give the provider's key to its Node (key-file)"

// credential are the fields of a target that say whose credential its provider is called with.
func (r *reader) credential(to *Target) []field {
	fields := []field{
		{name: "slot", read: func(n *yaml.Node, path string) { to.Slot = named[execution.SlotName](r, n, path) }},
		{name: "profile", read: func(n *yaml.Node, path string) { to.Profile = named[execution.ProfileName](r, n, path) }},
		{name: "base_url", read: func(n *yaml.Node, path string) { to.BaseURL = r.address(n, path) }},
	}
	if r.managed {
		return fields
	}
	return r.refused(fields, noSlots)
}

// misplaced refuses a target's fields where a route's stand.
func (r *reader) misplaced() []field {
	fault := noSlots
	if r.managed {
		fault = "this belongs to a target, for example targets: [{slot: NAME}]"
	}
	return r.refused([]field{{name: "slot"}, {name: "profile"}, {name: "base_url"}}, fault)
}

// refused makes fields known only to be refused.
func (r *reader) refused(fields []field, fault string) []field {
	for i := range fields {
		fields[i].hidden = true
		fields[i].read = func(n *yaml.Node, path string) { r.fault(n, path, "%s", fault) }
	}
	return fields
}

// named reads the name of a slot or a profile.
func named[T interface {
	~string
	Validate() error
}](r *reader, n *yaml.Node, path string) T {
	text, ok := r.text(n, path)
	if ok {
		if err := T(text).Validate(); err != nil {
			r.fault(n, path, "%v", err)
		}
	}
	return T(text)
}

// address reads the base URL of a provider.
func (r *reader) address(n *yaml.Node, path string) lease.Target {
	text, ok := r.text(n, path)
	if !ok {
		return ""
	}
	target, err := lease.ParseTarget(text)
	if err != nil {
		r.fault(n, path, "%v", err)
	}
	return target
}
