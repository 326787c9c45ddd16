package e2e

import (
	"os"
	"strings"
	"syscall"
	"testing"
)

// TestManagedEdgeCrashes kills the Edge under a leased stream. Nothing is run a second time by itself, and the next Edge,
// with keys of its own, leases at once.
func TestManagedEdgeCrashes(t *testing.T) {
	t.Parallel()
	m := newManaged(t, managedRoutes())
	m.join("gpu-1", "openai")
	for range 2 {
		a := m.ask(t.Context(), crowdClient, "/v1/chat/completions", chat("chat", "tokens=10000,itl=10ms", true))
		a.reaches(t, 3, patience)
		calls, before := m.calls(), m.node("gpu-1").generation()
		m.edge.kill()
		if a.end(t, patience); finished(a.events) {
			t.Errorf("it claims to be whole: %s", a)
		}
		m.sim.active(t, 0)
		m.startManagedEdge()
		eventually(t, patience, "gpu-1 is back", func() bool { return m.node("gpu-1").State == "online" })
		if now := m.node("gpu-1").generation(); now <= before {
			t.Errorf("generation %d, then %d", before, now)
		}
		if n := m.calls() - calls; n != 0 {
			t.Errorf("%d calls of the provider that nobody asked for", n)
		}
		m.chatNow(t, "chat", "", true).ok(t, "a run at the next Edge")
	}
}

// TestManagedWithoutMasterKey: an Edge that can't open its slots leases nothing, says so, and serves what needs none.
func TestManagedWithoutMasterKey(t *testing.T) {
	t.Parallel()
	m := newManaged(t, managedRoutes()+"  - model: free\n    targets: [{model: sim-large}]\n")
	other := m.startSim("--models", "sim-large")
	m.allow("gpu-1", "openai")
	m.launch("gpu-1", "--provider", m.spec("openai"), "--provider", "free="+other.url)
	eventually(t, patience, "gpu-1 is online", func() bool { return m.node("gpu-1").State == "online" })
	m.chatNow(t, "chat", "", true).ok(t, "a leased run")
	m.edge.stop(patience)
	if err := os.Remove(m.path("master-key")); err != nil {
		t.Fatal(err)
	}
	iop(t, nil, "master-key", "create", m.path("master-key")) // another one
	m.startManagedEdge()
	m.edge.line("slots can't be opened", patience)
	eventually(t, patience, "gpu-1 is back", func() bool { return m.node("gpu-1").State == "online" })
	calls := m.calls()
	m.refusedRun(t, m.chatNow(t, "chat", "", true), "a slot under another master key")
	if n := m.calls() - calls; n != 0 {
		t.Errorf("%d calls of the provider", n)
	}
	m.chatNow(t, "free", "", true).ok(t, "a run that needs no credential")
}

// TestManagedFilesWithFaults: files that are wrong change nothing, and the log says what is wrong.
func TestManagedFilesWithFaults(t *testing.T) {
	t.Parallel()
	m := newManaged(t, managedRoutes())
	node := m.join("gpu-1", "openai")
	generation := m.node("gpu-1").generation()
	bundle, key, master := unchanged(t, m.path("bundle.pem")), unchanged(t, m.path("edge-main.key")), unchanged(t, m.path("master-key"))
	for _, fault := range []struct {
		file, text, former string
		of                 *process
		says               string
	}{
		{"bundle.pem", "no bundle", bundle, m.edge, "SIGHUP: the previous identity stays in force"},
		{"bundle.pem", "no bundle", bundle, node, "SIGHUP: the previous identity stays in force"},
		{"edge-main.key", unchanged(t, m.path("node-gpu-1.key")), key, m.edge, "SIGHUP: the previous identity stays in force"},
		{"master-key", "no key", master, m.edge, "SIGHUP: the previous master keys stay in force"},
	} {
		writeRoutes(t, m.path(fault.file), fault.text)
		lines := strings.Count(fault.of.text(), "stay")
		fault.of.signal(syscall.SIGHUP)
		eventually(t, patience, fault.of.name+" speaks of "+fault.file, func() bool { return strings.Count(fault.of.text(), "stay") > lines })
		if !strings.Contains(fault.of.text(), fault.says) {
			t.Errorf("%s of %s: %s", fault.of.name, fault.file, tail(fault.of.text(), 600))
		}
		m.chatNow(t, "chat", "", true).ok(t, "a run beside a fault in "+fault.file)
		writeRoutes(t, m.path(fault.file), fault.former)
	}
	if now := m.node("gpu-1").generation(); now != generation {
		t.Errorf("generation %d, then %d", generation, now)
	}
}
