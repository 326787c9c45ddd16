package admin

import (
	"context"
	"errors"
	"time"

	"iop/execution"
	"iop/gateway/credential"
	"iop/gateway/route"
	"iop/identity"
	"iop/lease"
	"iop/state"
)

// Edge is what the operator's API needs of the Edge. Its methods may be called from any goroutine.
type Edge interface {
	Commands
	Status() Status
	Nodes() []Node
	// Routes returns the routes of the file in its order, then those of models that Nodes advertise, by name.
	Routes() []Route
	// Queues returns the routes that requests wait for, by name.
	Queues() []Queue
	// Runs returns the live runs and the recent ones, the newest first.
	Runs() []Run
	// Follow calls begin with what Runs returns, then each for every run that has ended since, until ctx ends or one of
	// them fails. A slow one misses some.
	Follow(ctx context.Context, begin func([]Run) error, each func(Run) error) error
	// CancelRun ends a run. One that has ended stays as it is.
	CancelRun(id execution.RunID) Cancelled
	// DrainNode gives the Node no new runs until ResumeNode or until its process is started anew.
	DrainNode(node execution.NodeID) error
	ResumeNode(node execution.NodeID) error
	// ForgetNode forgets a Node that is not connected. Its error may be a *CommandError.
	ForgetNode(ctx context.Context, node execution.NodeID) error
	// CloseToken ends the sessions that a join token opened, and returns how many there were.
	CloseToken(token state.JoinTokenID) int
	// KeyUse says what of each key's limits is taken now, but for MonthTokens.
	KeyUse(keys []state.Key) []KeyUse
	// Unmatched returns those of the patterns of a key's models that no route and no model of a connected Node matches. Without
	// any of these it returns none.
	Unmatched(patterns []string) []UnmatchedModel
	// FlushUsage writes down the records of the runs that have ended, so that who asks for usage next finds them.
	FlushUsage(ctx context.Context) error
	// Configuration returns the configuration of the routes, and the table that it makes.
	Configuration() (ConfigStatus, *route.Table)
	// Coverage compares a table with what Nodes offer now. It leaves Absent and Slots empty.
	Coverage(table *route.Table) Coverage
	// ReloadConfig reads the file again and applies it if it is right. Its error is a *route.ConfigError, ErrNoConfig,
	// or says why the file can't be read.
	ReloadConfig() error

	// Managed reports whether Nodes show certificates and are leased credentials. In token mode the methods below have
	// nothing to do; the slots may be kept all the same.
	Managed() bool
	// SlotChanged is told of each change of a slot, after the state has it: it withdraws what leases of before must not
	// outlive, within about two seconds, and says what is left.
	SlotChanged(ctx context.Context, slot execution.SlotName) (credential.Withdrawal, error)
	// ProfilesChanged is told of each change of a profile.
	ProfilesChanged(ctx context.Context) error
	// KeyRevoked is told of each API key that was revoked: it withdraws the leases of its runs.
	KeyRevoked(ctx context.Context, key state.KeyID) (credential.Withdrawal, error)
	// NodesChanged is told of each change of the allow-list and the deny-list: it ends the sessions that may not go on.
	NodesChanged(ctx context.Context) (ended int, err error)
	// SigningKeys returns the keys that leases are signed with, and when the next one takes its place by itself or by an
	// order.
	SigningKeys() (keys []lease.KeyStatus, next time.Time)
	// RotateSigningKey signs leases with the next key from now on, or, if that has not been announced long enough, from
	// the time on that it returns; else that is zero.
	RotateSigningKey(ctx context.Context) (pending time.Time, err error)
	// RevokeSigningKey drops one of those keys at once, whatever Nodes know, and tells them; false if there is no such key.
	RevokeSigningKey(ctx context.Context, id lease.Thumbprint) (found bool, err error)
	// Identity says how the Edge's own identity fares; false in token mode.
	Identity() (identity.Status, bool)
}

// ErrNoConfig says that the Edge was started without a file of routes.
var ErrNoConfig = errors.New("the Edge was started without a configuration file")

// Cancelled is what became of an order to cancel a run.
type Cancelled int

// What can become of it.
const (
	NoSuchRun Cancelled = iota // or it ended long ago
	RunEnded                   // before the order came
	RunCancelled
)

// Status is the answer to GET /admin/v1/status.
type Status struct {
	EdgeID        string    `json:"edge_id"`
	Version       string    `json:"version"`
	Started       time.Time `json:"started"`
	UptimeSeconds int64     `json:"uptime_seconds"`
	Draining      bool      `json:"draining"`
	Listen        string    `json:"listen"`
	NodesOnline   int       `json:"nodes_online"`
	NodesDrained  int       `json:"nodes_drained"` // of those, by an operator
	Sessions      int       `json:"sessions"`
	Streams       int       `json:"streams"`        // runs open in Node sessions
	RunsInFlight  int       `json:"runs_in_flight"` // of clients, queued ones too
	Queued        int       `json:"queued"`
	PlacesTaken   int       `json:"places_taken"`
	BodyBytes     int64     `json:"body_budget_bytes"`
	Flapping      []string  `json:"flapping"` // Nodes whose name two processes use
	// Refused are Nodes that were refused in the last hour and have not been let in since, the last refused first.
	Refused       []RefusedNode `json:"refused_nodes"`
	Models        []string      `json:"models"`
	OldestWaitMS  int64         `json:"oldest_wait_ms"` // of the queued requests
	WaitingRoutes int           `json:"waiting_routes"` // that requests wait for
	Config        ConfigStatus  `json:"config"`
	Certificate   *Certificate  `json:"certificate"` // null where the public listener has no TLS
	StateFault    *StateFault   `json:"state_fault"` // null while the state's files are as the Edge opened them
}

// StateFault is what is wrong with the files of the Edge's state.
type StateFault struct {
	Fault    string `json:"fault"`    // one of state.Fault
	Message  string `json:"message"`  // what happened, and what to do
	Refusing bool   `json:"refusing"` // requests are refused until it is repaired; false: a restart would fail
}

// RefusedNode is a Node that asks in vain. Its name is a claim; without proof it may be anybody's.
type RefusedNode struct {
	Node    execution.NodeID `json:"node"`   // empty: it gave none
	Source  string           `json:"source"` // the address that it comes from
	Code    string           `json:"code"`
	Message string           `json:"message"`
	Remedy  string           `json:"remedy,omitempty"` // what to do, where the message does not say it
	Proven  bool             `json:"proven"`           // its join token or certificate is good
	First   time.Time        `json:"first"`
	Last    time.Time        `json:"last"`
	Count   int              `json:"count"`
}

// Why is why it is refused, and what to do.
func (n *RefusedNode) Why() string {
	if n.Remedy == "" {
		return n.Message
	}
	return n.Message + "; " + n.Remedy
}

// Certificate is what the public listener shows its clients.
type Certificate struct {
	File     string    `json:"file"`
	Names    []string  `json:"names"` // domain names and addresses that it is for
	NotAfter time.Time `json:"not_after"`
	Loaded   time.Time `json:"loaded"` // when it took effect
	Fault    string    `json:"fault"`  // why the files as they are now are not in force; empty: they are
}

// EndsSoon reports whether the renewal is late: less than a week is left.
func (c *Certificate) EndsSoon() bool { return time.Until(c.NotAfter) < 7*24*time.Hour }

// Node is an element of GET /admin/v1/nodes.
type Node struct {
	Node      execution.NodeID `json:"node"`
	State     string           `json:"state"`     // "online", "draining", "drained" (no run is left), "offline"
	Drain     bool             `json:"drain"`     // an operator drains it
	OpenRuns  int              `json:"open_runs"` // of all its sessions
	Flapping  bool             `json:"flapping"`
	Contender string           `json:"contender,omitempty"` // address of the other process that asks for the name
	LastSeen  time.Time        `json:"last_seen"`
	LastCause string           `json:"last_cause,omitempty"` // why the last session ended
	Sessions  []Session        `json:"sessions"`             // the current one first
	History   []EndedSession   `json:"history"`              // the last sessions that ended, the latest first
}

// EndedSession is a session of a Node that is over. They are remembered until the Edge ends, 20 of each Node.
type EndedSession struct {
	Generation execution.Generation `json:"generation"`
	Remote     string               `json:"remote"`
	Since      time.Time            `json:"since"`
	Until      time.Time            `json:"until"`
	Cause      string               `json:"cause,omitempty"`
}

// Session is one session of a Node.
type Session struct {
	Generation execution.Generation `json:"generation"`
	Current    bool                 `json:"current"`
	State      string               `json:"state"` // "registered", "online", "draining"
	Remote     string               `json:"remote"`
	JoinToken  string               `json:"join_token"`          // its id; empty in managed mode
	Peer       string               `json:"peer,omitempty"`      // the SPIFFE ID in its certificate; managed mode only, as the next two
	Serial     string               `json:"serial,omitempty"`    // of its certificate
	NotAfter   *time.Time           `json:"not_after,omitempty"` // when it ends by itself, unless the Node has come anew before
	BootID     string               `json:"boot_id"`
	Version    string               `json:"version"`
	Labels     map[string]string    `json:"labels"`
	Ignored    int                  `json:"models_ignored"` // models that are not offered: the join token does not allow them
	Since      time.Time            `json:"since"`
	RTTMS      float64              `json:"rtt_ms"`
	OpenRuns   int                  `json:"open_runs"`
	Providers  []Provider           `json:"providers"`
}

// Provider is one provider of a session.
type Provider struct {
	ID       execution.ProviderID `json:"id"`
	Adapter  string               `json:"adapter"`
	Health   string               `json:"health"` // "ok", "hung", "gone", "unknown"
	Capacity int                  `json:"capacity"`
	InFlight int                  `json:"in_flight"`
	Models   []string             `json:"models"`
}

// Run is an element of GET /admin/v1/runs.
type Run struct {
	ID         execution.RunID      `json:"id"`
	RequestID  string               `json:"request_id"`
	Key        state.KeyID          `json:"key"`
	KeyName    string               `json:"key_name,omitempty"` // when the run began
	Principal  string               `json:"principal,omitempty"`
	Route      string               `json:"route,omitempty"`
	Operation  string               `json:"operation"`
	Model      string               `json:"model"`
	Stream     bool                 `json:"stream"`
	SessionID  string               `json:"session_id,omitempty"` // the client's
	Execution  string               `json:"execution,omitempty"`  // "raw", "normalized"; none before the first attempt
	State      string               `json:"state"`                // "queued", "active", "ended"
	Phase      string               `json:"phase"`
	Outcome    string               `json:"outcome,omitempty"`
	Code       string               `json:"code,omitempty"`
	ClientCode string               `json:"client_code,omitempty"` // of the error that the client got
	Detail     string               `json:"detail,omitempty"`
	Status     int                  `json:"status,omitempty"`
	Started    time.Time            `json:"started"`
	QueueMS    int64                `json:"queue_ms"`
	TTFBMS     float64              `json:"ttfb_ms,omitempty"`
	DurationMS float64              `json:"duration_ms"`
	Bytes      int64                `json:"bytes"`
	Node       execution.NodeID     `json:"node,omitempty"`
	Generation execution.Generation `json:"generation,omitempty"`
	Provider   execution.ProviderID `json:"provider,omitempty"`
	Reason     string               `json:"reason,omitempty"` // of the selection
	Attempts   int                  `json:"attempts"`
	Usage      *execution.Usage     `json:"usage,omitempty"`
}

// Codes is why the run did not complete: the code that the client got, then the run's own in brackets where that is another.
func (r Run) Codes() string {
	switch {
	case r.ClientCode == "" || r.ClientCode == r.Code:
		return r.Code
	case r.Code == "":
		return r.ClientCode
	}
	return r.ClientCode + " (" + r.Code + ")"
}

// JoinToken is a join token without its secret; with it (Token) in the answer to its creation only.
type JoinToken struct {
	ID    state.JoinTokenID `json:"id"`
	Token string            `json:"token,omitempty"`
	Node  execution.NodeID  `json:"node,omitempty"` // the one name it is for; absent: any
	TokenClaims
	Created time.Time  `json:"created"`
	Expires *time.Time `json:"expires"`
	Revoked *time.Time `json:"revoked"`
}

// NewJoinToken is the body of POST /admin/v1/join-tokens.
type NewJoinToken struct {
	Node       execution.NodeID `json:"node"`
	TTLSeconds int64            `json:"ttl_seconds"` // 0: no end
	TokenClaims
}

// TokenClaims are what the Nodes of a join token may claim. In NewJoinToken 0 is the default.
type TokenClaims struct {
	Labels            []string `json:"labels"` // key=glob; none: any
	Models            []string `json:"models"` // globs; none: any
	MaxNodes          int64    `json:"max_nodes"`
	MaxSessions       int64    `json:"max_sessions"`
	MaxModels         int64    `json:"max_models"`
	MaxInventoryBytes int64    `json:"max_inventory_bytes"`
}

// JoinTokenSpec is what the body asks for.
func (n *NewJoinToken) JoinTokenSpec() state.JoinTokenSpec {
	return state.JoinTokenSpec{
		Node: n.Node, TTL: time.Duration(n.TTLSeconds) * time.Second, Labels: n.Labels, Models: n.Models,
		JoinTokenBounds: state.JoinTokenBounds{MaxNodes: n.MaxNodes, MaxSessions: n.MaxSessions, MaxModels: n.MaxModels, MaxInventoryBytes: n.MaxInventoryBytes},
	}
}

// optional is t, or nil for never.
func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// JoinTokenView is a join token as this API shows it, without its secret.
func JoinTokenView(t *state.JoinToken) JoinToken {
	return JoinToken{
		ID: t.ID, Node: t.Node, Created: t.Created, Expires: optional(t.Expires), Revoked: optional(t.RevokedAt),
		TokenClaims: TokenClaims{
			Labels: append([]string{}, t.Labels...), Models: append([]string{}, t.Models...),
			MaxNodes: t.MaxNodes, MaxSessions: t.MaxSessions, MaxModels: t.MaxModels, MaxInventoryBytes: t.MaxInventoryBytes,
		},
	}
}
