package admin_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"iop/execution"
	"iop/gateway/admin"
	"iop/gateway/credential"
	"iop/gateway/route"
	"iop/identity"
	"iop/lease"
	"iop/state"
)

var began = time.Date(2026, 3, 31, 12, 0, 0, 0, time.UTC)

// fakeEdge is an Edge with one Node, a route of each kind, a queue and three runs.
type fakeEdge struct {
	file   string      // what ReloadConfig reads; empty: no file
	k1, k2 state.KeyID // whose runs it has

	mu       sync.Mutex
	table    *route.Table
	fault    *admin.ConfigFault
	unread   error // what ReloadConfig meets
	flushed  int
	flushErr error
	ended    chan admin.Run // what Follow passes on

	calls []admin.OllamaCall // what Ollama was asked
	body  *fakeBody          // what it answers; nil: as ollamaSays has it

	token      bool                  // the Edge runs in token mode
	withdrawal credential.Withdrawal // what every withdrawal comes to
	told       []string              // what it was told of changes
	pending    time.Time             // when the signing key is changed; zero: it is
	toldErr    error                 // what it answers
}

func newFakeEdge() *fakeEdge {
	return &fakeEdge{k1: "k1", k2: "k2", table: route.Advertised(), ended: make(chan admin.Run, 1)}
}

func (e *fakeEdge) configStatus() admin.ConfigStatus {
	c := admin.ConfigStatus{Digest: e.table.Digest(), Routes: len(e.table.Routes()), Fault: e.fault}
	if e.file != "" {
		c.Path, c.Loaded = "iop.yaml", &began
	}
	return c
}

func (e *fakeEdge) Status() admin.Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	return admin.Status{
		EdgeID: "edge-1", Version: "v1", Started: began, Listen: "127.0.0.1:1", Flapping: []string{}, Refused: []admin.RefusedNode{{Node: "n9", Source: "192.0.2.9", Code: "unauthorized", Message: "unknown join token", First: began, Last: began, Count: 2}}, Models: []string{"m"},
		Queued: 2, OldestWaitMS: 1500, WaitingRoutes: 1, Config: e.configStatus(), StateFault: &admin.StateFault{Fault: "pepper", Message: "lost"},
	}
}

func (e *fakeEdge) Nodes() []admin.Node {
	return []admin.Node{{
		Node: "n1", State: "online", LastSeen: began, LastCause: "replaced",
		Sessions: []admin.Session{{
			Generation: 7, Current: true, State: "online", Remote: "192.0.2.1:1", JoinToken: "t", BootID: "b", Version: "v",
			Labels: map[string]string{"site": "lab"}, Since: began, RTTMS: 1.5, OpenRuns: 1,
			Peer: "spiffe://iop.example.org/node/n1", Serial: "0a", NotAfter: &began,
			Providers: []admin.Provider{{ID: "p", Adapter: "openai", Health: "ok", Capacity: 4, InFlight: 1, Models: []string{"m"}}},
		}},
		History: []admin.EndedSession{{Generation: 6, Remote: "192.0.2.1:1", Since: began, Until: began, Cause: "replaced"}},
	}, {Node: "n2", State: "offline", LastSeen: began, Sessions: []admin.Session{}, History: []admin.EndedSession{}}}
}

func (e *fakeEdge) Routes() []admin.Route {
	resting := began.Add(time.Second)
	target := admin.Target{
		Node: "n1", Generation: 7, Provider: "p", Model: "big", InService: true, Breaker: "half_open", Resting: true, RestingUntil: &resting,
		InFlight: 1, Capacity: 4, Weight: 3, Loaded: true,
	}
	return []admin.Route{{
		Name: "chat", Aliases: []string{"gpt"}, Policy: "weighted", Principals: []string{"team-*"}, Waiting: 2,
		Groups: []admin.Group{{
			When:    "full",
			Selects: []admin.TargetSpec{{Node: "n*", Labels: map[string]string{"site": "lab"}, Provider: "p", Model: "big", Weight: 3}},
			Targets: []admin.Target{target},
		}},
	}, {Name: "m", Aliases: []string{}, Advertised: true, Policy: "least_busy", Principals: []string{}, Groups: []admin.Group{}}}
}

func (e *fakeEdge) Queues() []admin.Queue {
	return []admin.Queue{{
		Route: "chat", Waiting: 2, Limit: 1024, OldestMS: 1500, IntervalMS: 200,
		Principals: []admin.QueuedPrincipal{{Principal: "team-a", Waiting: 2, Weight: 3}, {Principal: "key:" + string(e.k2), Waiting: 1, Weight: 1}},
	}}
}

func (e *fakeEdge) Runs() []admin.Run {
	base := admin.Run{Key: e.k1, KeyName: "k1", Principal: "team-a", Route: "chat", Operation: "chat.completions", Model: "gpt", Started: began, Phase: "queued"}
	queued, active, ended := base, base, base
	queued.ID, queued.State, queued.Key = "run_queued", "queued", e.k2
	active.ID, active.State, active.Phase, active.Node, active.Generation, active.Provider, active.Reason =
		"run_active", "active", "streaming", "n1", 7, "p", "weighted 1/4 of 2"
	ended.ID, ended.State, ended.Phase, ended.Node, ended.Outcome, ended.Code, ended.Detail, ended.Status, ended.TTFBMS =
		"run_ended", "ended", "streaming", "n1", "failed", "provider_error", "it broke", 502, 2.5
	ended.Usage = &execution.Usage{Input: 3, Output: 4, Cached: 1, Reasoning: 2, Known: true, Estimated: true}
	return []admin.Run{queued, active, ended}
}

func (e *fakeEdge) Follow(ctx context.Context, begin func([]admin.Run) error, each func(admin.Run) error) error {
	if err := begin(e.Runs()); err != nil {
		return err
	}
	for {
		select {
		case run, ok := <-e.ended:
			if !ok {
				return nil
			}
			if err := each(run); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (e *fakeEdge) CancelRun(id execution.RunID) admin.Cancelled {
	switch id {
	case "run_active", "run_queued":
		return admin.RunCancelled
	case "run_ended":
		return admin.RunEnded
	}
	return admin.NoSuchRun
}

func (e *fakeEdge) DrainNode(node execution.NodeID) error  { return e.onNode(node) }
func (e *fakeEdge) ResumeNode(node execution.NodeID) error { return e.onNode(node) }

func (e *fakeEdge) ForgetNode(_ context.Context, node execution.NodeID) error { return e.onNode(node) }

func (e *fakeEdge) onNode(node execution.NodeID) error {
	if node != "n1" {
		return errors.New("there is no such Node")
	}
	return nil
}

func (e *fakeEdge) CloseToken(state.JoinTokenID) int { return 1 }

func (e *fakeEdge) KeyUse(keys []state.Key) []admin.KeyUse {
	uses := make([]admin.KeyUse, len(keys))
	for i := range keys {
		uses[i].Running = 1
		if limit := keys[i].RPM; limit > 0 {
			uses[i].Requests = &admin.Window{Limit: limit, Remaining: limit - 1, ResetMS: 500}
		}
	}
	return uses
}

func (e *fakeEdge) Unmatched(patterns []string) (list []admin.UnmatchedModel) {
	for _, p := range patterns {
		if p == "mistyped" {
			list = append(list, admin.UnmatchedModel{Pattern: p, Similar: "typed"})
		}
	}
	return list
}

func (e *fakeEdge) FlushUsage(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.flushed++
	return e.flushErr
}

func (e *fakeEdge) Coverage(*route.Table) admin.Coverage {
	return admin.Coverage{
		Unrouted: []string{"m"}, Reserved: []admin.ReservedModel{{Model: "n", Route: "chat", Limits: []string{"caps"}}},
		Missing: []admin.MissingTarget{{Route: "chat", TargetSpec: admin.TargetSpec{Model: "n", Weight: 1}}},
		Unknown: []admin.UnknownParameter{{Route: "chat", Path: "parameters.caps.max_token", Similar: "max_tokens"}},
	}
}

func (e *fakeEdge) Configuration() (admin.ConfigStatus, *route.Table) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.configStatus(), e.table
}

func (e *fakeEdge) ReloadConfig() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.file == "" {
		return admin.ErrNoConfig
	}
	if e.unread != nil {
		return e.unread
	}
	table, err := route.Parse("iop.yaml", []byte(e.file), route.Managed(!e.token))
	if err != nil {
		fault := admin.FaultOf(err)
		fault.At = began
		e.fault = &fault
		return err
	}
	e.table, e.fault = table, nil
	return nil
}

func (e *fakeEdge) Managed() bool { return !e.token }

func (e *fakeEdge) tell(what string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.told = append(e.told, what)
	return e.toldErr
}

func (e *fakeEdge) SlotChanged(_ context.Context, slot execution.SlotName) (credential.Withdrawal, error) {
	return e.withdrawal, e.tell("slot " + string(slot))
}

func (e *fakeEdge) ProfilesChanged(context.Context) error { return e.tell("profiles") }

func (e *fakeEdge) KeyRevoked(_ context.Context, key state.KeyID) (credential.Withdrawal, error) {
	return e.withdrawal, e.tell("key " + string(key))
}

func (e *fakeEdge) NodesChanged(context.Context) (int, error) { return 1, e.tell("nodes") }

func (e *fakeEdge) RotateSigningKey(context.Context) (time.Time, error) {
	return e.pending, e.tell("signing key")
}

func (e *fakeEdge) RevokeSigningKey(_ context.Context, id lease.Thumbprint) (bool, error) {
	keys, _ := e.SigningKeys()
	found := slices.ContainsFunc(keys, func(k lease.KeyStatus) bool { return k.ID == id })
	return found, e.tell("signing key " + string(id))
}

func (e *fakeEdge) SigningKeys() ([]lease.KeyStatus, time.Time) {
	return []lease.KeyStatus{
		{ID: "k1", Role: lease.KeyCurrent, Announced: began}, {ID: "k2", Role: lease.KeyNext, Announced: began, UsableFrom: began.Add(lease.PublishAhead)},
		{ID: "k0", Role: lease.KeyFormer, Announced: began, VerifiesUntil: began.Add(time.Minute)},
	}, began.Add(24 * time.Hour)
}

func (e *fakeEdge) Identity() (identity.Status, bool) {
	if e.token {
		return identity.Status{}, false
	}
	return identity.Status{
		ID: "spiffe://iop.example.org/edge/main", Serial: "0a", NotBefore: began, NotAfter: began.Add(24 * time.Hour), Roots: 1,
		Changed: began, Loads: 1, Refused: 1, Fault: "it has expired", FaultAt: began,
	}, true
}
