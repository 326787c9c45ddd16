package e2e

import (
	"fmt"
	"testing"
)

// leasesOf are the sealed leases, whole, that a process has had lately: they are taken from its memory.
func leasesOf(t *testing.T, p *process) []string {
	t.Helper()
	return p.leasesInMemory(t)
}

// TestManagedNodeMemory: when the runs with a credential are over, nothing that the Node still holds has it. The Node's
// collector overwrites what it frees (GODEBUG=clobberfree=1) and runs often, so that what is found is what is held; without
// that, copies that nobody holds any more lie about until something else is written there.
//
// Seen to fail with a loan.finish that kept the loan's credential in a variable instead of wiping it.
func TestManagedNodeMemory(t *testing.T) {
	t.Parallel()
	const next = "sk-provider-two-Xe41TnVb7hJ2pQ9sLm"
	k := newKeyed(t, firstValue, next)
	m := newManaged(t, managedRoutes())
	m.change("PUT", "/profiles/keyed", map[string]any{"header": "authorization-bearer", "base_urls": []string{k.URL}}, nil)
	m.change("PUT", "/slots/openai", map[string]string{"profile": "keyed", "value": firstValue}, nil)
	m.allow("gpu-1", "openai")
	m.issue(m.ca, "node", "gpu-1")
	node := start(t, "gpu-1", []string{"GODEBUG=clobberfree=1", "GOGC=5"},
		append(m.nodeFlags("gpu-1"), "--provider", fmt.Sprintf("k:openai=%s,capacity=64,models=sim-small,slots=openai", k.URL))...)
	m.nodes = append(m.nodes, node)
	eventually(t, patience, "gpu-1 is online", func() bool { return m.node("gpu-1").State == "online" })

	var c canaries
	c.plant("the first key", firstValue)
	forms := c.forms["the first key"]
	for range 5 {
		m.chatNow(t, "chat", "", true).ok(t, "a run with the first key")
	}
	during, _ := node.findInMemory(t, forms)
	if during == 0 {
		t.Fatal("a key that was just in use is not found: the search finds nothing")
	}
	m.change("POST", "/slots/openai/rotate", map[string]string{"value": next}, nil)
	var left int
	var around []string
	for range 40 {
		for range 5 { // which makes the collector run
			m.chatNow(t, "chat", "", true).ok(t, "a run with the next key")
		}
		if left, around = node.findInMemory(t, forms); left == 0 {
			t.Logf("found %d times while it was in use, and not once after that", during)
			return
		}
	}
	t.Errorf("the Node holds the first key %d times, long after its last run: %q", left, around)
}
