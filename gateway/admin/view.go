package admin

import (
	"context"
	"time"

	"iop/execution"
	"iop/state"
)

// Edge is what the operator's API needs of the Edge. Its methods may be called from any goroutine.
type Edge interface {
	Status() Status
	Nodes() []Node
	// Runs returns the live runs and the recent ones, the newest first.
	Runs() []Run
	// Follow calls begin with what Runs returns, then each for every run that has ended since, until ctx ends or one of
	// them fails. A slow one misses some.
	Follow(ctx context.Context, begin func([]Run) error, each func(Run) error) error
	// CancelRun reports whether there was such a run. One that has ended stays as it is.
	CancelRun(id execution.RunID) bool
	// DrainNode gives the Node no new runs until ResumeNode or until its process is started anew.
	DrainNode(node execution.NodeID) error
	ResumeNode(node execution.NodeID) error
	// CloseToken ends the sessions that a join token opened, and returns how many there were.
	CloseToken(token state.JoinTokenID) int
}

// Status is the answer to GET /admin/v1/status.
type Status struct {
	EdgeID        string    `json:"edge_id"`
	Version       string    `json:"version"`
	Started       time.Time `json:"started"`
	UptimeSeconds int64     `json:"uptime_seconds"`
	Draining      bool      `json:"draining"`
	Listen        string    `json:"listen"`
	NodesOnline   int       `json:"nodes_online"`
	Sessions      int       `json:"sessions"`
	Streams       int       `json:"streams"`        // runs open in Node sessions
	RunsInFlight  int       `json:"runs_in_flight"` // of clients, queued ones too
	Queued        int       `json:"queued"`
	PlacesTaken   int       `json:"places_taken"`
	BodyBytes     int64     `json:"body_budget_bytes"`
	Flapping      []string  `json:"flapping"` // Nodes whose name two processes use
	Models        []string  `json:"models"`
}

// Node is an element of GET /admin/v1/nodes.
type Node struct {
	Node      execution.NodeID `json:"node"`
	State     string           `json:"state"` // "online", "draining", "drained", "offline"
	Flapping  bool             `json:"flapping"`
	LastSeen  time.Time        `json:"last_seen"`
	LastCause string           `json:"last_cause,omitempty"` // why the last session ended
	Sessions  []Session        `json:"sessions"`             // the current one first
}

// Session is one session of a Node.
type Session struct {
	Generation execution.Generation `json:"generation"`
	Current    bool                 `json:"current"`
	State      string               `json:"state"` // "registered", "online", "draining"
	Remote     string               `json:"remote"`
	JoinToken  string               `json:"join_token"` // its id
	BootID     string               `json:"boot_id"`
	Version    string               `json:"version"`
	Labels     map[string]string    `json:"labels"`
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
	Operation  string               `json:"operation"`
	Model      string               `json:"model"`
	Stream     bool                 `json:"stream"`
	State      string               `json:"state"` // "queued", "active", "ended"
	Phase      string               `json:"phase"`
	Outcome    string               `json:"outcome,omitempty"`
	Code       string               `json:"code,omitempty"`
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

// Key is an API key without its secret; with it (Key) in the answer to its creation only.
type Key struct {
	ID          state.KeyID `json:"id"`
	Key         string      `json:"key,omitempty"`
	Name        string      `json:"name"`
	Principal   string      `json:"principal"`
	Routes      []string    `json:"routes"`
	RPM         int64       `json:"rpm"`
	TPM         int64       `json:"tpm"`
	Concurrency int64       `json:"concurrency"`
	Created     time.Time   `json:"created"`
	Expires     *time.Time  `json:"expires"`
	Revoked     *time.Time  `json:"revoked"`
	LastUsed    *time.Time  `json:"last_used"`
}

// NewKey is the body of POST /admin/v1/keys.
type NewKey struct {
	Name        string     `json:"name"`
	Owner       string     `json:"owner"`
	Routes      []string   `json:"routes"`
	RPM         int64      `json:"rpm"`
	TPM         int64      `json:"tpm"`
	Concurrency int64      `json:"concurrency"`
	Expires     *time.Time `json:"expires"`
}

// JoinToken is a join token without its secret; with it (Token) in the answer to its creation only.
type JoinToken struct {
	ID      state.JoinTokenID `json:"id"`
	Token   string            `json:"token,omitempty"`
	Node    execution.NodeID  `json:"node,omitempty"` // the one name it is for; absent: any
	Created time.Time         `json:"created"`
	Expires *time.Time        `json:"expires"`
	Revoked *time.Time        `json:"revoked"`
}

// NewJoinToken is the body of POST /admin/v1/join-tokens.
type NewJoinToken struct {
	Node       execution.NodeID `json:"node"`
	TTLSeconds int64            `json:"ttl_seconds"` // 0: no end
}

// optional is t, or nil for never.
func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func keyView(k *state.Key) Key {
	return Key{
		ID: k.ID, Name: k.Name, Principal: k.Principal(), Routes: append([]string{}, k.Routes...),
		RPM: k.RPM, TPM: k.TPM, Concurrency: k.Concurrency, Created: k.Created,
		Expires: optional(k.Expires), Revoked: optional(k.RevokedAt), LastUsed: optional(k.LastUsed),
	}
}

func joinTokenView(t *state.JoinToken) JoinToken {
	return JoinToken{ID: t.ID, Node: t.Node, Created: t.Created, Expires: optional(t.Expires), Revoked: optional(t.RevokedAt)}
}
