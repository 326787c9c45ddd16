package gateway

import (
	"context"
	"slices"
	"time"

	"iop/execution"
	"iop/gateway/admin"
	"iop/gateway/admission"
	"iop/gateway/registry"
	"iop/state"
	"iop/tunnel"
)

// operator is the Edge as the admin API sees it.
type operator struct{ s *Server }

// Status implements admin.Edge.
func (o operator) Status() admin.Status {
	s := o.s
	counts := s.reg.Counts()
	places, queued := s.adm.Counts()
	st := admin.Status{
		EdgeID: s.cfg.EdgeID, Version: s.cfg.Version, Started: s.started.UTC(), UptimeSeconds: int64(time.Since(s.started).Seconds()),
		Draining: s.draining.Load(), Listen: s.Addr().String(),
		NodesOnline: counts.Online, NodesDrained: counts.Drained, Sessions: counts.Sessions, Streams: counts.Streams,
		RunsInFlight: int(s.runs.live.Load()), Queued: queued, PlacesTaken: places, BodyBytes: s.bodies.used.Load(),
		Flapping: []string{}, Models: o.models(), Refused: o.refusedNodes(),
	}
	st.Config, _ = o.Configuration()
	st.Certificate = s.pair.view()
	if f := s.cfg.Store.Fault(); f != nil {
		st.StateFault = &admin.StateFault{Fault: f.Fault.String(), Message: f.Error(), Refusing: f.Fault != state.FaultPepper}
	}
	for _, q := range s.adm.Stats().Queues {
		if q.Waiting > 0 {
			st.WaitingRoutes++
			st.OldestWaitMS = max(st.OldestWaitMS, q.Oldest.Milliseconds())
		}
	}
	for _, n := range s.reg.Nodes() {
		if n.Flapping {
			st.Flapping = append(st.Flapping, string(n.Node))
		}
	}
	return st
}

// models are the names that clients can ask for with success now, without the aliases.
func (o operator) models() []string {
	table := o.s.routing.table.Load()
	names := []string{}
	for _, r := range table.Routes() {
		if o.s.adm.Serves(r) {
			names = append(names, r.Name)
		}
	}
	if table.ServesAdvertised() {
		for _, m := range o.s.reg.Models() {
			if r := table.Resolve(m.ID); r != nil && r.Advertised {
				names = append(names, m.ID)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Nodes implements admin.Edge.
func (o operator) Nodes() []admin.Node {
	load := map[admission.Target]int{}
	for _, p := range o.s.adm.Stats().Places {
		load[p.Target] = p.InFlight
	}
	views := o.s.reg.Nodes()
	nodes := make([]admin.Node, 0, len(views))
	for i := range views {
		nodes = append(nodes, nodeView(&views[i], load))
	}
	return nodes
}

func nodeView(v *registry.NodeView, load map[admission.Target]int) admin.Node {
	n := admin.Node{
		Node: v.Node, State: "offline", Drain: v.Drained, Flapping: v.Flapping, Contender: v.Contender, LastSeen: v.LastSeen.UTC(), LastCause: v.LastCause,
		Sessions: make([]admin.Session, 0, len(v.Sessions)), History: make([]admin.EndedSession, 0, len(v.Ended)),
	}
	for _, e := range v.Ended {
		n.History = append(n.History, admin.EndedSession{
			Generation: e.Generation, Remote: e.Remote, Since: e.Since.UTC(), Until: e.Until.UTC(), Cause: e.Cause,
		})
	}
	for i := range v.Sessions {
		s := &v.Sessions[i]
		n.Sessions = append(n.Sessions, sessionView(v.Node, s, load))
		if s.Current && s.State != "registered" {
			n.State = s.State
		}
	}
	n.OpenRuns = openRuns(&n)
	if v.Drained && n.State == "online" {
		n.State = "drained"
		if n.OpenRuns > 0 {
			n.State = "draining"
		}
	}
	return n
}

// openRuns counts what a Node still has to do: the runs of its sessions, and those that hold a place there and are about to be
// opened.
func openRuns(n *admin.Node) (count int) {
	for i := range n.Sessions {
		held := 0
		for j := range n.Sessions[i].Providers {
			held += n.Sessions[i].Providers[j].InFlight
		}
		count += max(n.Sessions[i].OpenRuns, held)
	}
	return count
}

func sessionView(node execution.NodeID, v *registry.SessionView, load map[admission.Target]int) admin.Session {
	s := admin.Session{
		Generation: v.Generation, Current: v.Current, State: v.State, Remote: v.Remote, JoinToken: v.TokenID,
		BootID: v.BootID, Since: v.Since.UTC(), RTTMS: millis(v.RTT), OpenRuns: v.OpenRuns,
		Labels: map[string]string{}, Providers: []admin.Provider{}, Peer: v.Peer, Serial: v.Serial,
	}
	if !v.NotAfter.IsZero() {
		end := v.NotAfter.UTC()
		s.NotAfter = &end
	}
	if v.Info == nil {
		return s
	}
	s.Version = v.Info.Version
	s.Ignored = v.Info.Ignored
	if v.Info.Labels != nil {
		s.Labels = v.Info.Labels
	}
	for _, p := range v.Info.Providers {
		s.Providers = append(s.Providers, admin.Provider{
			ID: p.ID, Adapter: p.Adapter, Health: tunnel.HealthName(p.Health), Capacity: p.Capacity,
			InFlight: load[admission.Target{Node: node, Generation: v.Generation, Provider: p.ID}],
			Models:   modelsOf(v.Info, p.ID),
		})
	}
	return s
}

func modelsOf(info *tunnel.NodeInfo, id execution.ProviderID) []string {
	names := []string{}
	for _, m := range info.Models {
		if m.Provider == id {
			names = append(names, m.ID)
		}
	}
	return names
}

// Runs implements admin.Edge.
func (o operator) Runs() []admin.Run {
	records := o.s.runs.list()
	slices.SortFunc(records, func(a, b *record) int { return b.started.Compare(a.started) })
	views := make([]admin.Run, len(records))
	for i, rec := range records {
		views[i] = rec.operatorView()
	}
	return views
}

func (rec *record) operatorView() admin.Run {
	phase := rec.phase()
	rec.mu.Lock()
	defer rec.mu.Unlock()
	v := admin.Run{
		ID: rec.id, RequestID: rec.requestID, Key: rec.key, KeyName: rec.keyName, Principal: rec.principal, Route: rec.route, Operation: rec.op, Model: rec.model, Stream: rec.stream,
		SessionID: rec.session, Execution: rec.howLocked(),
		State: stateNames[rec.state], Phase: phase.String(), Started: rec.started.UTC(), QueueMS: rec.queuedLocked().Milliseconds(),
		DurationMS: millis(time.Since(rec.started)), TTFBMS: millis(time.Duration(rec.firstByte.Load())), Bytes: rec.bytes.Load(),
		Node: rec.target.Node, Generation: rec.target.Generation, Provider: rec.target.Provider,
		Reason: rec.reason.String(), Attempts: rec.attempts,
	}
	if rec.state == runEnded {
		t := &rec.end.terminal
		v.Outcome, v.Code, v.Detail, v.Status = t.Outcome.String(), t.Code.String(), t.Detail, rec.end.status
		v.ClientCode = rec.end.told
		v.TTFBMS, v.DurationMS, v.Bytes = millis(rec.end.firstByte), millis(rec.end.total), rec.end.bytes
		if u := t.Usage; u.Known {
			v.Usage = &u
		}
	}
	return v
}

// Follow implements admin.Edge.
func (o operator) Follow(ctx context.Context, begin func([]admin.Run) error, each func(admin.Run) error) error {
	w := o.s.runs.watch() // first, so that none ends unseen in between
	defer o.s.runs.unwatch(w)
	if err := begin(o.Runs()); err != nil {
		return err
	}
	for {
		select {
		case rec := <-w.ended:
			if err := each(rec.operatorView()); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-o.s.ended:
			return nil
		}
	}
}

// CancelRun implements admin.Edge.
func (o operator) CancelRun(id execution.RunID) admin.Cancelled {
	rec := o.s.runs.find(id)
	if rec == nil {
		return admin.NoSuchRun
	}
	rec.mu.Lock()
	ended := rec.state == runEnded
	rec.mu.Unlock()
	if ended {
		return admin.RunEnded
	}
	rec.cancel(execution.CodeCancelledByOperator)
	return admin.RunCancelled
}

// DrainNode implements admin.Edge.
func (o operator) DrainNode(node execution.NodeID) error { return o.s.reg.DrainNode(node) }

// ResumeNode implements admin.Edge.
func (o operator) ResumeNode(node execution.NodeID) error { return o.s.reg.ResumeNode(node) }

// CloseToken implements admin.Edge.
func (o operator) CloseToken(token state.JoinTokenID) int { return o.s.reg.CloseToken(token) }
