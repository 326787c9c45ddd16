package e2e

import (
	"net/http"
	"testing"
)

// TestManaged (a leased chat streams; what may not have a credential gets none, and nothing else is tried instead).
func TestManaged(t *testing.T) {
	t.Parallel()
	m := newManaged(t, managedRoutes())
	m.join("gpu-1", "openai")
	t.Run("leased", m.leased)
	t.Run("disabled", m.disabled)
}

// leased has a run stream, and looks at what became of its lease.
func (m *managed) leased(t *testing.T) {
	for _, stream := range []bool{false, true} {
		a := m.chatNow(t, "chat", "tokens=12", stream)
		a.ok(t, "a leased chat")
		entries := m.auditOf(a.header.Get("X-Iop-Run-Id"))
		if len(entries) != 1 || entries[0].Node != "gpu-1" || entries[0].Lease == "" || entries[0].Target != m.sim.url {
			t.Errorf("the audit of a leased run: %+v", entries)
		}
	}
	// The simulator itself checks the header: without the credential it answers 401.
	if res, _ := m.sim.direct(t, "/v1/chat/completions", chat("sim-small", "", false)); res.StatusCode != http.StatusUnauthorized {
		t.Errorf("the provider serves without a key: %s", res.Status)
	}
}

// disabled switches the slot off and on again.
func (m *managed) disabled(t *testing.T) {
	before := m.calls()
	m.change("POST", "/slots/openai/disable", nil, nil)
	for _, stream := range []bool{false, true} {
		m.refusedRun(t, m.chatNow(t, "chat", "", stream), "a disabled slot")
	}
	if n := m.calls() - before; n != 0 {
		t.Errorf("%d calls of the provider without a credential", n)
	}
	m.change("POST", "/slots/openai/enable", nil, nil)
	m.chatNow(t, "chat", "", true).ok(t, "an enabled slot")
}
