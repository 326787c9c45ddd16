package admin

import (
	"encoding/json"
	"time"

	"iop/execution"
	"iop/gateway/route"
)

// Route is an element of GET /admin/v1/routes: what clients can ask for, and what serves it now.
type Route struct {
	Name       string   `json:"name"`
	Aliases    []string `json:"aliases"`
	Advertised bool     `json:"advertised"` // it stands in no file: Nodes offer a model of this name
	Policy     string   `json:"policy"`
	Principals []string `json:"principals"` // globs; empty: everyone
	Waiting    int      `json:"waiting"`
	Groups     []Group  `json:"groups"` // in the order in which they are tried
}

// Group is a set of targets of equal rank.
type Group struct {
	When    string       `json:"when"`    // "full", "down": what of the groups before lets it be used
	Selects []TargetSpec `json:"selects"` // what the file says
	Targets []Target     `json:"targets"` // the providers that match now
}

// TargetSpec selects providers of Nodes.
type TargetSpec struct {
	Node     string            `json:"node,omitempty"`     // glob; absent: any
	Labels   map[string]string `json:"labels,omitempty"`   // all of which the Node has
	Provider string            `json:"provider,omitempty"` // glob; absent: any
	Model    string            `json:"model"`
	Weight   int               `json:"weight"`

	// In managed mode, where a run brings a credential.
	Slot    execution.SlotName    `json:"slot,omitempty"`
	Profile execution.ProfileName `json:"profile,omitempty"`  // absent: the slot's own
	BaseURL string                `json:"base_url,omitempty"` // absent: the profile's only one
}

// Target is a provider that a route can use.
type Target struct {
	Node         execution.NodeID     `json:"node"`
	Generation   execution.Generation `json:"generation"`
	Provider     execution.ProviderID `json:"provider"`
	Model        string               `json:"model"`         // the provider's name for it
	InService    bool                 `json:"in_service"`    // its Node is online and not drained, and its provider well
	Breaker      string               `json:"breaker"`       // "closed", "open", "half_open"
	Resting      bool                 `json:"resting"`       // it refused a run for want of room, and is left alone for a while
	RestingUntil *time.Time           `json:"resting_until"` // when it is tried again, as far as that is known
	InFlight     int                  `json:"in_flight"`
	Capacity     int                  `json:"capacity"`
	Weight       int                  `json:"weight"`
	Loaded       bool                 `json:"loaded"` // the provider has the model in memory
}

// Queue is an element of GET /admin/v1/queue: a route that requests wait for.
type Queue struct {
	Route      string            `json:"route"`
	Waiting    int               `json:"waiting"`
	Limit      int               `json:"limit"`
	OldestMS   int64             `json:"oldest_ms"`   // how long the one that waits longest has waited
	IntervalMS int64             `json:"interval_ms"` // mean time between two that get a place; 0: unknown
	Principals []QueuedPrincipal `json:"principals"`
}

// QueuedPrincipal is whose requests wait.
type QueuedPrincipal struct {
	Principal string `json:"principal"`
	Name      string `json:"principal_name"` // what people call it: the owner, or "key:" and the key's name
	Waiting   int    `json:"waiting"`
	Weight    int    `json:"weight"`
}

// ConfigStatus is where the routes come from.
type ConfigStatus struct {
	Path   string       `json:"path"`   // empty: the Edge was started without a file
	Digest string       `json:"digest"` // of the file whose routes are in force
	Loaded *time.Time   `json:"loaded"`
	Routes int          `json:"routes"` // in the file
	Fault  *ConfigFault `json:"fault"`  // of the file as it is now; the routes of before stay in force
}

// ConfigFault says why the file was refused.
type ConfigFault struct {
	At      time.Time   `json:"at"`
	Message string      `json:"message"` // a line for each fault
	Faults  []FileFault `json:"faults"`  // empty where the file could not be read
}

// FileFault is one fault in a file of routes.
type FileFault struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Path    string `json:"path"` // e.g. "routes[1].policy"
	Message string `json:"message"`
}

// Configuration is the answer to GET /admin/v1/config.
type Configuration struct {
	ConfigStatus
	AdvertisedModels string        `json:"advertised_models"` // "serve", "refuse"
	Table            []RouteConfig `json:"table"`             // with the defaults filled in
	Coverage         Coverage      `json:"coverage"`
}

// ConfigCheck is the answer to POST /admin/v1/config/check.
type ConfigCheck struct {
	Configuration
	Changes []ConfigChange `json:"changes"` // what the file would change of the routes in force
}

// ConfigChange is one difference between the routes in force and those of a file.
type ConfigChange struct {
	Route  string           `json:"route"` // empty: the whole file's
	Kind   route.ChangeKind `json:"kind"`
	Detail string           `json:"detail"`
	Opens  bool             `json:"opens"` // the change grants access, or raises or removes a limit
}

// RouteConfig is a route as the file and its defaults make it. A time or limit of 0 is the Edge's default.
type RouteConfig struct {
	Name        string        `json:"name"`
	Aliases     []string      `json:"aliases"`
	Principals  []string      `json:"principals"`
	Policy      string        `json:"policy"`
	RenameModel bool          `json:"rename_model"`
	QueueLimit  int           `json:"queue_limit"`
	Advertised  bool          `json:"advertised"` // it has no groups: every provider that advertises its name
	Retry       RetryConfig   `json:"retry"`
	Timeouts    Timeouts      `json:"timeouts"`
	Parameters  Parameters    `json:"parameters"`
	Groups      []GroupConfig `json:"groups"`
}

// RetryConfig says which failures another target answers.
type RetryConfig struct {
	Attempts int      `json:"attempts"`
	On       []string `json:"on"`
}

// Timeouts are in milliseconds.
type Timeouts struct {
	QueueMS         int64 `json:"queue_ms"`
	NoNodeMS        int64 `json:"no_node_ms"`
	FirstByteMS     int64 `json:"first_byte_ms"`
	BetweenChunksMS int64 `json:"between_chunks_ms"`
	TotalMS         int64 `json:"total_ms"`
}

// Parameters are what a route does to the parameters of a request.
type Parameters struct {
	Defaults map[string]json.RawMessage `json:"defaults"`
	Caps     map[string]float64         `json:"caps"`
	Allow    []string                   `json:"allow"`
	Refuse   []string                   `json:"refuse"`
}

// GroupConfig is a group as the file says it.
type GroupConfig struct {
	When    string       `json:"when"`
	Targets []TargetSpec `json:"targets"`
}

// RouteConfigs are the routes of a table.
func RouteConfigs(t *route.Table) []RouteConfig {
	views := []RouteConfig{}
	for _, r := range t.Routes() {
		v := RouteConfig{
			Name: r.Name, Aliases: names(r.Aliases), Principals: names(r.Principals), Policy: r.Policy.String(),
			RenameModel: r.RenameModel, QueueLimit: r.QueueLimit, Advertised: r.Advertised,
			Retry: RetryConfig{Attempts: r.Retry.Attempts, On: kindsOf(r.Retry.On)},
			Timeouts: Timeouts{
				QueueMS: r.Timeouts.Queue.Milliseconds(), NoNodeMS: r.Timeouts.NoNode.Milliseconds(), FirstByteMS: r.Timeouts.FirstByte.Milliseconds(),
				BetweenChunksMS: r.Timeouts.BetweenChunks.Milliseconds(), TotalMS: r.Timeouts.Total.Milliseconds(),
			},
			Parameters: parametersOf(&r.Parameters), Groups: []GroupConfig{},
		}
		for i := range r.Groups {
			g := &r.Groups[i]
			v.Groups = append(v.Groups, GroupConfig{When: WhenName(g.When), Targets: TargetSpecs(g)})
		}
		views = append(views, v)
	}
	return views
}

// TargetSpecs are the selections of a group.
func TargetSpecs(g *route.Group) []TargetSpec {
	specs := []TargetSpec{}
	for i := range g.Targets {
		t := &g.Targets[i]
		specs = append(specs, TargetSpec{
			Node: t.Node, Labels: t.Labels, Provider: t.Provider, Model: t.Model, Weight: t.Weight,
			Slot: t.Slot, Profile: t.Profile, BaseURL: string(t.BaseURL),
		})
	}
	return specs
}

// WhenName is how a file says when a group is used.
func WhenName(w route.When) string {
	if w == route.WhenDown {
		return "down"
	}
	return "full"
}

func kindsOf(on route.RetryOn) []string {
	kinds := []string{}
	for _, kind := range []struct {
		bit  route.RetryOn
		name string
	}{
		{route.RetryUnreachable, "unreachable"}, {route.RetryOverloaded, "overloaded"}, {route.RetryGateway, "gateway"},
		{route.RetryLost, "lost"}, {route.RetryServerError, "server_error"},
	} {
		if on&kind.bit != 0 {
			kinds = append(kinds, kind.name)
		}
	}
	return kinds
}

func parametersOf(p *route.Parameters) Parameters {
	v := Parameters{Defaults: map[string]json.RawMessage{}, Caps: map[string]float64{}, Allow: names(p.Allow), Refuse: names(p.Refuse)}
	for _, d := range p.Defaults {
		v.Defaults[d.Name] = json.RawMessage(d.Value)
	}
	for _, c := range p.Caps {
		v.Caps[c.Name] = c.Max
	}
	return v
}

// names is s, and never null in JSON.
func names(s []string) []string { return append([]string{}, s...) }
