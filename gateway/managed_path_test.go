package gateway_test

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"iop/execution"
	"iop/gateway"
	"iop/identity"
	"iop/lease"
	"iop/state"
	"iop/tunnel"
)

func TestManagedConfigIsChecked(t *testing.T) {
	store, err := state.Open(t.Context(), "sqlite::memory:")
	must(t, err)
	defer store.Close()
	ca := newAuthority(t)
	edge, node := ca.source(identity.RoleEdge, "edge-1"), ca.source(identity.RoleNode, "n1")
	empty, err := identity.NewMemory(edge.ID())
	must(t, err)
	good := gateway.Config{
		Store: store, Listen: "127.0.0.1:0", AdminListen: "127.0.0.1:0", Mode: gateway.ModeManaged, TunnelListen: "127.0.0.1:0", Identity: edge,
	}
	configsAreRefused(t, good, map[string]badConfig{
		"unknown mode":         {func(c *gateway.Config) { c.Mode = "both" }, "Mode"},
		"no tunnel":            {func(c *gateway.Config) { c.TunnelListen = "" }, "TunnelListen"},
		"no identity":          {func(c *gateway.Config) { c.Identity = nil }, "Identity"},
		"a Node's identity":    {func(c *gateway.Config) { c.Identity = node }, "not an Edge's"},
		"no certificate":       {func(c *gateway.Config) { c.Identity = empty }, "identity"},
		"another name":         {func(c *gateway.Config) { c.EdgeID = "edge-2" }, "edge-1"},
		"keys too short-lived": {func(c *gateway.Config) { c.SigningKeyLife = time.Minute }, "SigningKeyLife"},
		"bad address":          {func(c *gateway.Config) { c.TunnelListen = "nowhere" }, "tunnel"},
		"an identity in token": {func(c *gateway.Config) { c.Mode = "" }, "managed mode"},
		"a tunnel in token":    {func(c *gateway.Config) { c.Mode, c.Identity = gateway.ModeToken, nil }, "managed mode"},
		"slots in token mode":  {func(c *gateway.Config) { c.Mode, c.Identity, c.TunnelListen, c.Config = "", nil, "", slotsOnDisk(t) }, "requires managed mode"},
	})
	s, err := gateway.New(good)
	must(t, err)
	s.Close() // never run
}

// A refused credential is the end, whatever the policy says and whoever else could serve.
func TestOneNodeRefusesNobodyElseIsAsked(t *testing.T) {
	m := newManaged(t, "routes: [{model: m, retry: {attempts: 5}, groups: [{targets: [{node: n1, slot: openai}]}, {targets: [{node: n2, slot: openai}]}]}]")
	first := m.join(&leasedNode{body: func(b []byte) []byte { return append(b, ' ') }}, "n1")
	second := m.join(&leasedNode{}, "n2")
	m.wantRejected()
	if first.served() != 1 || second.served() != 0 {
		t.Errorf("n1 was asked %d times, n2 %d", first.served(), second.served())
	}
	m.idle()
}

// A slot that does not exist is refused before a Node is bothered.
func TestUnknownSlot(t *testing.T) {
	m := newManaged(t, "routes: [{model: m, targets: [{slot: nothing}]}]")
	n := m.join(&leasedNode{}, "n1")
	m.wantRejected()
	if n.served() != 0 {
		t.Error("the Node was asked")
	}
	m.audited(state.AuditLeaseRefused, "unknown_slot")
	m.idle()
}

// A key in managed mode without a recipient key, or with a broken one, is no Node.
func TestNodeWithoutRecipientKey(t *testing.T) {
	m := newManaged(t, slotFile)
	n := &leasedNode{noRecipient: true}
	m.dial(n, "n1")
	m.refusedWith(n, "a key that leases are sealed to")
}

// The Edge's certificate is renewed under a running stream: the Node comes back on a new session, the stream goes on,
// and no run fails meanwhile.
func TestEdgeCertificateRenewed(t *testing.T) {
	m := newManaged(t, slotFile)
	finish := make(chan struct{})
	n := m.join(&leasedNode{answer: func(ctx context.Context, run *tunnel.NodeRun, _ *lease.Opened) {
		if !run.Open().GetProviderTunnel().Stream {
			answerJSON(200, `{}`)(ctx, run)
			return
		}
		_ = run.Head(head(200, "text/event-stream"))
		_ = run.Write([]byte(chunk("a")), true)
		<-finish
		_ = run.Write([]byte(doneEvent), true)
		run.End(execution.Terminal{Outcome: execution.Completed, Phase: execution.PhaseProviderDone})
	}}, "n1")
	resp := m.do(m.request(http.MethodPost, chat, `{"model":"m","stream":true}`))
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, len(chunk("a")))); err != nil {
		t.Fatal(err)
	}
	before := n.node.supervisor.Status().Generation
	m.ca.renew(m.src)
	m.eventually("a new session", func() bool {
		status, _, body := m.post(chat, ask)
		if status != 200 {
			t.Fatalf("a run failed: %d %s", status, body)
		}
		st := n.node.supervisor.Status()
		return st.State == tunnel.StateOnline && st.Generation > before
	})
	close(finish)
	if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != doneEvent {
		t.Errorf("the stream ended with %q, %v", rest, err)
	}
	m.idle()
}

// A new root is brought in beside the old one, then the old one leaves: nobody whose certificate was renewed in between
// notices.
func TestAuthorityRotated(t *testing.T) {
	m := newManaged(t, slotFile)
	n := m.join(&leasedNode{}, "n1")
	old, fresh := m.ca, newAuthority(t)
	both, err := identity.NewBundle(append(old.bundle.Roots(), fresh.bundle.Roots()...))
	must(t, err)
	set := func(src identity.Memory, from *authority, bundle *identity.Bundle) {
		t.Helper()
		chain, key := from.issue(src.ID().Role(), src.ID().Name(), time.Hour)
		must(t, src.Set(chain, key, bundle))
	}
	set(m.src, old, both)
	set(n.src, old, both)
	set(n.src, fresh, both)
	set(m.src, fresh, both)
	n.node.supervisor.Rotate()
	m.eventually("a session by the new root", func() bool { return m.shows(n) })
	set(m.src, fresh, fresh.bundle)
	set(n.src, fresh, fresh.bundle)
	m.eventually("it is verified by the new one alone", func() bool {
		status, _, _ := m.post(chat, ask)
		return status == 200 && m.nodeState("n1") == "online"
	})
}

// shows reports whether the Node's current session was opened with the certificate that a source has now.
func (m *managed) shows(n *leasedNode) bool {
	m.t.Helper()
	var nodes struct {
		Data []struct {
			Node     string
			Sessions []struct {
				Current bool
				Serial  string
			}
		}
	}
	m.adminGet("/admin/v1/nodes", &nodes)
	cert, err := n.src.Certificate()
	must(m.t, err)
	for _, node := range nodes.Data {
		for _, s := range node.Sessions {
			if node.Node == n.name && s.Current && s.Serial == string(state.SerialOf(cert.Leaf.SerialNumber)) {
				return true
			}
		}
	}
	return false
}

// A slot is rotated under load: no run fails, and the new value is used from then on.
func TestSlotRotatedUnderLoad(t *testing.T) {
	m := newManaged(t, slotFile)
	n := m.join(&leasedNode{}, "n1")
	stop, done := make(chan struct{}), make(chan struct{})
	for range 2 {
		go func() {
			defer func() { done <- struct{}{} }()
			for {
				select {
				case <-stop:
					return
				default:
				}
				if status, _, body := m.post(chat, ask); status != 200 {
					t.Errorf("a run failed: %d %s", status, body)
					return
				}
			}
		}()
	}
	for i := range 5 {
		_, err := m.store.RotateSlot(t.Context(), "openai", state.NewSecret("sk-value-"+string(rune('a'+i))), "test")
		must(t, err)
		w, err := m.server.Operator().SlotChanged(t.Context(), "openai")
		must(t, err)
		if w.Runs > 0 {
			t.Errorf("the rotation cancelled %d runs", w.Runs)
		}
	}
	close(stop)
	<-done
	<-done
	if status, _, body := m.post(chat, ask); status != 200 {
		t.Fatalf("got %d %s", status, body)
	}
	got := n.got()
	if last := got[len(got)-1].Get("Authorization"); last != "Bearer sk-value-e" {
		t.Errorf("the provider got %q", last)
	}
	m.idle()
}

// The Edge is ready only while it can show who it is.
func TestReadyNeedsIdentity(t *testing.T) {
	m := newManaged(t, slotFile)
	if got := m.get("/readyz"); got != "ready\n" {
		t.Fatalf("it says %q", got)
	}
	must(t, m.src.Close())
	if got := m.get("/readyz"); !strings.Contains(got, "no valid identity") {
		t.Errorf("it says %q", got)
	}
}

func slotsOnDisk(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "iop.yaml")
	must(t, os.WriteFile(path, []byte(slotFile), 0o600))
	return path
}
