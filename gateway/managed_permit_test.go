package gateway_test

import (
	"context"
	"net/http"
	"sync"
	"testing"

	"iop/execution"
	"iop/lease"
	"iop/state"
	"iop/tunnel"
)

// permit changes what a Node may have, as the operator's API does.
func (m *managed) permit(node execution.NodeID, slots ...string) {
	m.t.Helper()
	m.list(node, slots...)
	_, err := m.server.Operator().NodesChanged(m.t.Context())
	must(m.t, err)
}

// list changes what a Node may have, of which the Edge learns later by itself.
func (m *managed) list(node execution.NodeID, slots ...string) {
	m.t.Helper()
	_, err := m.store.AllowNode(m.t.Context(), state.NodeAllow{Node: node, Profiles: []string{"*"}, Slots: slots}, "test")
	must(m.t, err)
}

// asks sends that many requests at once, and returns how many were answered with 200 when all are.
func (m *managed) asks(n int) func() int {
	var all sync.WaitGroup
	statuses := make([]int, n)
	for i := range n {
		all.Go(func() { statuses[i], _, _ = m.post(chat, ask) })
	}
	return func() (good int) {
		all.Wait()
		for _, status := range statuses {
			if status == http.StatusOK {
				good++
			} else {
				m.t.Errorf("a run ended with %d", status)
			}
		}
		return good
	}
}

// Of two Nodes only one may have the slot: it gets all runs, more of them than it can take at once, and the other one,
// which idles, none. Who is permitted while runs wait gets them at once; nobody waits when no Node is permitted any more.
//
// Seen to fail with Offer.Slots not set by the registry, with PermittedTo always true (runs that went to n1 were refused), and
// with no offer made in Verify (those that waited stayed).
func TestSelectionAsksTheNodeList(t *testing.T) {
	m := newManaged(t, slotFile)
	m.permit("n1", "other")
	one := m.join(&leasedNode{}, "n1")
	released := make(chan struct{})
	release := sync.OnceFunc(func() { close(released) })
	defer release()
	two := m.join(&leasedNode{answer: func(ctx context.Context, run *tunnel.NodeRun, _ *lease.Opened) {
		<-released
		answerJSON(200, `{}`)(ctx, run)
	}}, "n2")
	finish := m.asks(12)
	m.eventually("n2 has as many as it takes", func() bool { return len(two.got()) == 4 })
	m.eventually("the others wait", func() bool { return m.metric("iop_queued 8") })
	m.permit("n1", "o*")
	m.eventually("who waited has run", func() bool { return len(one.got()) == 8 })
	m.permit("n1", "other")
	release()
	if good := finish() + m.asks(8)(); good != 20 || len(one.got()) != 8 || len(two.got()) != 12 {
		t.Errorf("%d runs were answered, n1 was lent %d credentials and n2 %d", good, len(one.got()), len(two.got()))
	}
	m.permit("n2")
	served := two.served()
	m.wantRejected()
	m.audited(state.AuditLeaseRefused, "not_permitted")
	if one.served() != 8 || two.served() != served {
		t.Error("a Node without permission got a run")
	}
	m.idle()
}

// Who waits for a Node is refused once no Node may have the slot.
//
// Seen to fail with settleLocked not asking notPermitted: it waited on.
func TestQueuedRunIsRefusedWhenNobodyIsPermitted(t *testing.T) {
	m := newManaged(t, slotFile)
	m.permit("n1")
	m.join(&leasedNode{}, "n1")
	done := make(chan struct{})
	go func() { defer close(done); m.wantRejected() }() // n2 may have it, and is away
	m.eventually("it waits", func() bool { return m.metric("iop_queued 1") })
	m.permit("n2")
	m.eventually("it does not wait any more", func() bool { return m.metric("iop_queued 0") })
	<-done
	if row := m.audited(state.AuditLeaseRefused, "not_permitted"); row.Node != "n1" || row.Slot != "openai" || row.Profile != "bearer" || row.Route != "m" {
		t.Errorf("the audit says %+v", row)
	}
	m.idle()
}
