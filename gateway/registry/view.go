package registry

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"iop/execution"
	"iop/state"
	"iop/tunnel"
)

// changed makes the next Models look again.
func (r *Registry) changed() { r.models.Store(nil) }

// Models returns the models that can be run now, each once, ordered by id: those of healthy providers of Nodes that are
// ready and not draining. The slice is shared; don't change it.
func (r *Registry) Models() []tunnel.ModelInfo {
	if list := r.models.Load(); list != nil {
		return *list
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := map[string]tunnel.ModelInfo{}
	for _, n := range r.nodes {
		e := n.current
		if e == nil || !e.online || e.draining || n.drained != "" {
			continue
		}
		collect(seen, e.s.Info())
	}
	list := make([]tunnel.ModelInfo, 0, len(seen))
	for _, m := range seen {
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b tunnel.ModelInfo) int { return cmp.Compare(a.ID, b.ID) })
	r.models.Store(&list)
	return list
}

// collect adds a Node's models. Of two Nodes with one model the older date and the lesser owner stand, and the details
// of the one that knows more, whoever is asked first.
func collect(seen map[string]tunnel.ModelInfo, info *tunnel.NodeInfo) {
	up := make(map[execution.ProviderID]bool, len(info.Providers))
	for _, p := range info.Providers {
		up[p.ID] = healthy(p.Health)
	}
	for _, m := range info.Models {
		if !up[m.Provider] || len(m.ID) > maxModelIDLength {
			continue
		}
		other, ok := seen[m.ID]
		if !ok {
			if len(seen) >= maxModelsListed {
				return
			}
			seen[m.ID] = m
			continue
		}
		if other.Created == 0 || m.Created != 0 && m.Created < other.Created {
			other.Created = m.Created
		}
		other.OwnedBy = min(other.OwnedBy, m.OwnedBy)
		other.Loaded = other.Loaded || m.Loaded
		other.Details = betterKnown(other.Details, m.Details)
		seen[m.ID] = other
	}
}

// betterKnown returns one of two descriptions of one name: they may be of different files, so they are not mixed. One that
// is there goes before none, one with capabilities before one without; beyond that the choice only has to be the same
// each time, because clients take another digest for another model.
func betterKnown(a, b *tunnel.ModelDetails) *tunnel.ModelDetails {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	if cmp.Or(
		cmp.Compare(min(len(b.Capabilities), 1), min(len(a.Capabilities), 1)), cmp.Compare(a.Digest, b.Digest),
		cmp.Compare(a.Modified, b.Modified), cmp.Compare(a.Size, b.Size), slices.Compare(a.Capabilities, b.Capabilities),
	) <= 0 {
		return a
	}
	return b
}

// NodeView is one Node as an operator sees it.
type NodeView struct {
	Node      execution.NodeID
	Drained   bool   // by the operator
	Flapping  bool   // a second process of the same name was refused in the last minute
	Contender string // its address; empty if there is none
	LastSeen  time.Time
	LastCause string         // why the last session ended
	Sessions  []SessionView  // the current one first
	Ended     []EndedSession // the latest first; the last 20 of this process
}

// EndedSession is a session that is over.
type EndedSession struct {
	Generation   execution.Generation
	Remote       string
	Since, Until time.Time
	Cause        string // or empty: nobody said
}

// SessionView is one session as an operator sees it.
type SessionView struct {
	Generation execution.Generation
	BootID     string
	TokenID    string
	Peer       string    // managed mode: the SPIFFE ID that the Node's certificate proves
	Serial     string    // of that certificate
	NotAfter   time.Time // when it ends, and the session with it; zero in token mode
	State      string    // "registered", "online", "draining"
	Current    bool
	Remote     string
	Since      time.Time
	RTT        time.Duration
	OpenRuns   int
	Info       *tunnel.NodeInfo // immutable; or nil
}

// Nodes returns all Nodes that are connected or were, ordered by name.
func (r *Registry) Nodes() []NodeView {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	views := make([]NodeView, 0, len(r.nodes))
	for _, n := range r.nodes {
		v := NodeView{
			Node: n.id, Drained: n.drained != "", Flapping: now.Before(n.flapping),
			LastSeen: n.lastSeen, LastCause: n.lastCause, Ended: slices.Clone(n.ended),
		}
		slices.Reverse(v.Ended)
		if v.Flapping {
			v.Contender = n.contender
		}
		for _, e := range n.sessions {
			v.Sessions = append(v.Sessions, e.view(n.current == e))
			v.LastSeen = now
		}
		slices.SortFunc(v.Sessions, func(a, b SessionView) int { return -cmp.Compare(a.Generation, b.Generation) })
		views = append(views, v)
	}
	slices.SortFunc(views, func(a, b NodeView) int { return cmp.Compare(a.Node, b.Node) })
	return views
}

func (e *session) view(current bool) SessionView {
	v := SessionView{
		Generation: e.gen, BootID: e.s.BootID(), TokenID: e.s.Identity().TokenID, State: "registered", Current: current,
		Remote: e.s.RemoteAddr(), Since: e.s.Since(), RTT: e.s.RTT(), OpenRuns: e.s.OpenRuns(), Info: e.s.Info(),
	}
	if e.managed != nil {
		v.Peer, v.Serial, v.NotAfter = e.managed.peer.ID.String(), string(e.managed.serial), e.managed.peer.NotAfter()
	}
	switch {
	case e.draining:
		v.State = "draining"
	case e.online:
		v.State = "online"
	}
	return v
}

// Counts are the registry's gauges.
type Counts struct {
	Sessions int
	Online   int // Nodes that take runs, or would if no operator had drained them
	Drained  int // of these, by an operator
	Streams  int // runs that sessions know
	Flapped  int // newcomers refused so far because two processes fought for a name
}

// Counts returns the gauges.
func (r *Registry) Counts() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := Counts{Flapped: int(r.flapped.Load())}
	for _, n := range r.nodes {
		c.Sessions += len(n.sessions)
		for _, e := range n.sessions {
			c.Streams += e.s.OpenRuns()
		}
		if n.current != nil && n.current.online && !n.current.draining {
			c.Online++
			if n.drained != "" {
				c.Drained++
			}
		}
	}
	return c
}

// ErrUnknownNode says that no such Node is connected.
var ErrUnknownNode = errors.New("no such node is connected")

// DrainNode gives the Node no new runs until ResumeNode, or until its process was started anew, whatever becomes of the Edge's
// own process. Its runs finish. ErrUnknownNode if it is not connected.
func (r *Registry) DrainNode(id execution.NodeID) error { return r.setDrained(id, true) }

// ResumeNode ends DrainNode. The Node may be away. ErrUnknownNode if it is not known.
func (r *Registry) ResumeNode(id execution.NodeID) error { return r.setDrained(id, false) }

func (r *Registry) setDrained(id execution.NodeID, drained bool) error {
	if !r.markDrained(id, drained) {
		return ErrUnknownNode
	}
	r.save() // before the operator hears that it is so
	return nil
}

// markDrained reports whether the Node is one that can be.
func (r *Registry) markDrained(id execution.NodeID, drained bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.nodes[id]
	if n == nil || n.current == nil && (drained || n.drained == "") {
		return false
	}
	n.drained = ""
	if drained {
		n.drained = n.current.s.BootID()
	}
	r.noteLocked(n)
	if n.current != nil {
		r.offerLocked(id, n.current.gen)
	}
	return true
}

// CloseToken ends every session that the join token opened, and returns how many there were.
func (r *Registry) CloseToken(token state.JoinTokenID) int {
	r.mu.Lock()
	var ended []Session
	for _, n := range r.nodes {
		for _, e := range n.sessions {
			if e.s.Identity().TokenID == string(token) {
				e.draining = true
				ended = append(ended, e.s)
			}
		}
	}
	r.mu.Unlock()
	for _, s := range ended {
		r.adm.Withdraw(s.Node(), s.Generation())
		s.Refuse(refuse("token_revoked", "an operator revoked the join token"))
	}
	r.changed()
	return len(ended)
}
