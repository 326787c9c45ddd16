package route

import (
	"fmt"
	"slices"
	"time"

	"iop/execution"
	"iop/lease"
	"iop/openai"
	"iop/state"
)

// Policy is how a target is picked among those of a group that have room. The zero value is LeastBusy.
type Policy uint8

// The policies.
const (
	LeastBusy      Policy = iota // the greatest share of free capacity
	Weighted                     // in proportion to the targets' weights
	LowestWait                   // the least expected time to the answer, from what each target took lately
	WarmFirst                    // a target that has the model loaded, then the least busy
	PrefixAffinity               // where the same conversation or prompt prefix ran before, then the least busy
)

var policyNames = [...]string{"least_busy", "weighted", "lowest_wait", "warm_first", "prefix_affinity"}

// String returns the policy's name as it stands in iop.yaml, logs and metrics.
func (p Policy) String() string {
	if int(p) < len(policyNames) {
		return policyNames[p]
	}
	return "unknown"
}

// Route is what a model name means. It is immutable.
type Route struct {
	// Name is the model name that clients use, and what logs, metrics and usage call the route.
	Name    string
	Aliases []string
	// Advertised: the route stands in no file. Whatever provider of whatever Node offers a model of this name is a
	// target, and there are no Groups.
	Advertised bool
	// Groups are tried in order: a later one is used when no target of the earlier ones can take the run.
	Groups []Group
	Policy Policy
	// Principals are globs of who may use the route; none: everyone.
	Principals []string
	Retry      Retry
	Timeouts   Timeouts
	QueueLimit int // requests that wait for the route; 0: the Edge's default
	Parameters Parameters
	// RenameModel: answers carry the model name that the client used in place of the provider's.
	RenameModel bool

	limited bool // see Limited; set with the Table
}

// Limited reports whether the route keeps something from its callers: it has any of the settings that [Table.Limits] names.
func (r *Route) Limited() bool { return r.limited }

// Allows reports whether a principal may use the route.
func (r *Route) Allows(principal string) bool {
	if len(r.Principals) == 0 {
		return true
	}
	for _, pattern := range r.Principals {
		if state.MatchGlob(pattern, principal) {
			return true
		}
	}
	return false
}

// When says what lets a group be used. The zero value is WhenFull.
type When uint8

// When a later group is used.
const (
	WhenFull When = iota // no target of the earlier groups has room now
	WhenDown             // no target of the earlier groups is in service: offline, drained, unhealthy or cut off by its breaker
)

// Group is a set of targets of equal rank.
type Group struct {
	When    When // of no meaning for the first group
	Targets []Target
}

// Target selects providers of Nodes, and says what the model is called there.
type Target struct {
	Node     string            // glob of the Node's name; empty: any
	Labels   map[string]string // all of which the Node must have
	Provider string            // glob of the provider's id; empty: any
	Model    string            // the name that the provider knows, or Ollama's other spelling of it: see ModelAt; never empty
	Weight   int               // at least 1

	// What a lease is made of, in managed mode. Without a Slot the run has none.
	Slot    execution.SlotName    // whose credential the provider is called with
	Profile execution.ProfileName // empty: the slot's own
	BaseURL lease.Target          // which of the profile's addresses the provider has; empty: the only one
}

// Matches reports whether a provider of a Node is selected. Whether it serves the model is another question.
func (t *Target) Matches(node execution.NodeID, labels map[string]string, provider execution.ProviderID) bool {
	if t.Node != "" && !state.MatchGlob(t.Node, string(node)) {
		return false
	}
	if t.Provider != "" && !state.MatchGlob(t.Provider, string(provider)) {
		return false
	}
	for name, value := range t.Labels {
		if got, ok := labels[name]; !ok || got != value {
			return false
		}
	}
	return true
}

// PermittedTo reports whether a Node that may have the slots of these patterns may have the target's. What has no slot is
// for every Node.
func (t *Target) PermittedTo(slots []string) bool {
	return t.Slot == "" || slices.ContainsFunc(slots, func(pattern string) bool { return state.MatchGlob(pattern, string(t.Slot)) })
}

// Retry says which failures of a provider are answered by another target, as long as no byte of an answer has reached
// the client. What never reached a provider is dispatched again whatever this says.
type Retry struct {
	Attempts int // further targets to try; 0: none
	On       RetryOn
}

// RetryOn is a set of kinds of failure.
type RetryOn uint8

// The kinds of failure.
const (
	RetryUnreachable RetryOn = 1 << iota // the provider could not be reached
	RetryOverloaded                      // it answered 429 or 503
	RetryGateway                         // it answered 502 or 504
	RetryLost                            // the session to the Node was lost
	RetryServerError                     // it answered 500
)

// DefaultRetry is once more, on another target, for whatever says that the provider did not do the work.
var DefaultRetry = Retry{Attempts: 1, On: RetryUnreachable | RetryOverloaded | RetryGateway | RetryLost}

// Timeouts are how long the phases of a request may take; 0: the Edge's default, or no limit where it has none.
type Timeouts struct {
	Queue         time.Duration // waiting for a place
	NoNode        time.Duration // waiting while no target is connected
	FirstByte     time.Duration // from the provider's call to the first byte of its answer's body
	BetweenChunks time.Duration // silence in an answer
	Total         time.Duration // from the request's arrival to its end
}

// Parameters are what a route does to the parameters of a request.
type Parameters = openai.Parameters

// Default is a parameter's value where the client gave none.
type Default = openai.ParameterDefault

// Cap is the greatest value of a numeric parameter.
type Cap = openai.ParameterCap

// Table is a set of routes. It is immutable and for any goroutine.
type Table struct {
	routes     []*Route
	byName     map[string]*Route // names and aliases
	advertised bool              // models that no route names are routes of their own, unless they are reserved
	base       Route             // what such a route is, but for its name
	selected   map[string]bool   // the models of all routes' targets
	owned      map[string]*Route // by the name that the file lacks, see OwnedBy
	reserved   map[string]*Route // by sameModel: models of targets of routes with limits, see reserve
	digest     string
}

// Advertised returns the Table of an Edge without a file: every model that a Node advertises is a route.
func Advertised() *Table {
	return &Table{advertised: true, base: Route{Advertised: true, Retry: DefaultRetry}}
}

// Resolve returns the route of a model name, nil if it can't be one: advertised models are refused, or this one is
// reserved for a route with limits. For a model that no route names the Table can't know whether a Node advertises it:
// admission does.
func (t *Table) Resolve(model string) *Route {
	if r := t.byName[model]; r != nil {
		return r
	}
	if t.servesAdvertised(model) {
		r := t.base
		r.Name = model
		return &r
	}
	return nil
}

// Routes returns the routes of the file, in its order.
func (t *Table) Routes() []*Route { return t.routes }

// String says in a few words what the Table holds, for logs and for who checks a file.
func (t *Table) String() string {
	others := "refused"
	if t.advertised {
		others = "served"
	}
	return fmt.Sprintf("%d routes with %d names; models that no route names are %s", len(t.routes), len(t.byName), others)
}

// ServesAdvertised reports whether models that no route names are routes of their own. Those that ReservedFor knows are
// not.
func (t *Table) ServesAdvertised() bool { return t.advertised }

// Digest tells one file's content from another's, in short hexadecimal; empty for a Table that is of no file.
func (t *Table) Digest() string { return t.digest }
