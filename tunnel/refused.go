package tunnel

import (
	"cmp"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"iop/execution"
	"iop/execution/safetext"
	"iop/tunnel/wire"
)

// RefusedNode is a Node that asks in vain, for the operator. What a Node without a join token or certificate says of itself is a
// claim of a stranger's.
type RefusedNode struct {
	Node        execution.NodeID // as it calls itself; empty: it did not say
	Source      string           // the address that it comes from, without a port
	Code        string           // of the Refusal
	Message     string           // of the last one; safe to print
	Proven      bool             // it had a join token or certificate that is good
	First, Last time.Time
	Count       int
}

// Bounds of the list. Strangers have a part of their own, so that they take no place of a Node with a join token.
const (
	refusedLife     = time.Hour
	maxRefused      = 32 // in each of the two parts
	maxRefusedGroup = 8  // of one source or, with proof, of one join token or certificate
	maxRefusedText  = 300
)

// refusals are the Nodes that were refused lately. The zero value is empty.
type refusals struct {
	mu                sync.Mutex
	strangers, proven []*refusedEntry
}

type refusedEntry struct {
	RefusedNode
	group string // whose entries are bounded together
}

// note adds a refusal to the list.
func (l *refusals) note(n RefusedNode, account string) {
	if n.Node.Validate() != nil {
		n.Node = "" // the message says what is wrong with it
	}
	n.Node = execution.NodeID(safetext.MaskKeys(string(n.Node)))
	n.Code, n.Message = truncate(n.Code, maxCodeBytes), truncate(safetext.MaskKeys(n.Message), maxRefusedText)
	group := account
	n.Source, n.Proven = addressOf(n.Source), account != ""
	if !n.Proven {
		group = networkOf(n.Source)
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	part := &l.strangers
	if n.Proven {
		part = &l.proven
	}
	*part = slices.DeleteFunc(*part, func(e *refusedEntry) bool { return now.Sub(e.Last) >= refusedLife })
	for _, e := range *part {
		if e.Node == n.Node && e.Source == n.Source && e.Code == n.Code && e.group == group {
			e.Message, e.Last = n.Message, now
			e.Count++
			return
		}
	}
	n.First, n.Last, n.Count = now, now, 1
	makeRoom(part, group)
	*part = append(*part, &refusedEntry{n, group})
}

// makeRoom drops an entry of the group, if that has as many as it may, else one of all, if need be. A Node asks again and again:
// of those that came least often, as strangers with ever new names do, the oldest goes.
func makeRoom(part *[]*refusedEntry, group string) {
	count := 0
	for _, e := range *part {
		if e.group == group {
			count++
		}
	}
	full := count >= maxRefusedGroup
	if !full && len(*part) < maxRefused {
		return
	}
	var least *refusedEntry
	for _, e := range *part {
		if (!full || e.group == group) && (least == nil || e.Count < least.Count || e.Count == least.Count && e.Last.Before(least.Last)) {
			least = e
		}
	}
	*part = slices.DeleteFunc(*part, func(e *refusedEntry) bool { return e == least })
}

// settle drops what was noted of a Node that has come in from there.
func (l *refusals) settle(node execution.NodeID, remote string) {
	source := addressOf(remote)
	settled := func(e *refusedEntry) bool { return e.Node == node && e.Source == source }
	l.mu.Lock()
	defer l.mu.Unlock()
	l.strangers, l.proven = slices.DeleteFunc(l.strangers, settled), slices.DeleteFunc(l.proven, settled)
}

// list returns those of the last hour, the last first.
func (l *refusals) list() (all []RefusedNode) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, e := range slices.Concat(l.proven, l.strangers) {
		if now.Sub(e.Last) < refusedLife {
			all = append(all, e.RefusedNode)
		}
	}
	slices.SortStableFunc(all, func(a, b RefusedNode) int {
		return cmp.Or(b.Last.Compare(a.Last), cmp.Compare(a.Node, b.Node))
	})
	return all
}

// addressOf is an address without its port.
func addressOf(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return truncate(remote, maxNameBytes)
	}
	return host
}

// networkOf is what one stranger has at least: an address, or the /64 that it is in.
func networkOf(address string) string {
	ip, err := netip.ParseAddr(address)
	if err != nil || ip.Unmap().Is4() {
		return address
	}
	network, err := ip.WithZone("").Prefix(64)
	if err != nil {
		return address
	}
	return network.String()
}

// Refused returns the Nodes that were refused in the last hour and have not been let in since, the last refused first: at most
// 64. They are kept in memory.
func (a *Acceptor) Refused() []RefusedNode { return a.refusals.list() }

// NoteRefused adds a Node that never came as far as the Acceptor, as for its certificate, to those that Refused returns. The
// name is what it claims, or empty.
func (a *Acceptor) NoteRefused(node execution.NodeID, remote string, r *Refusal) {
	a.refusals.note(RefusedNode{Node: node, Source: remote, Code: r.Code, Message: r.Message}, "")
}

// noteRequest adds a Node that was refused before the upgrade. What is no Node, such as a scanner or a trial, is none.
func (a *Acceptor) noteRequest(r *http.Request, account string, refusal *Refusal) {
	if offersSubprotocol(r) && len(r.Header.Values(wire.HeaderTrial)) == 0 {
		a.refusals.note(RefusedNode{Node: execution.NodeID(r.Header.Get(wire.HeaderNode)), Source: r.RemoteAddr, Code: refusal.Code, Message: refusal.Message}, account)
	}
}

// noteRefused adds a Node whose session was refused.
func (s *NodeSession) noteRefused(code, message string) {
	if code == "unavailable" || code == "draining" {
		return // the Edge's fault, and it passes
	}
	s.acceptor.refusals.note(RefusedNode{Node: s.node, Source: s.remote, Code: code, Message: message}, s.identity.account())
}

// account is whose budgets what this identity does counts against; never empty.
func (id *Identity) account() string {
	if id.Allowance != nil && id.Allowance.Account != "" {
		return id.Allowance.Account
	}
	return "token " + id.TokenID + id.Peer
}
