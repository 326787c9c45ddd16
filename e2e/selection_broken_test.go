package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestNothingButABrokenTarget: where there is no other, a target that fails is used all the same. Its error reaches each
// client at once, nobody waits for a breaker, and what is mended serves the next request.
func TestNothingButABrokenTarget(t *testing.T) {
	t.Parallel()
	s := newRouted(t, "{advertised_models: refuse, routes: [{model: chat, targets: [{model: sim-small}]}]}")
	sim := s.startSim("--fail-rate", "1")
	s.launchNode("node-1", "--provider", "sim="+sim.url+",capacity=4")
	s.serving("node-1", "sim-small")
	s.lists(t, grace, "chat")
	const requests = 14
	fail := func() {
		t.Helper()
		for i := range requests {
			a := s.chatNow(t, "chat", "tokens=1", i%2 == 0)
			if a.status != http.StatusBadGateway || a.err != nil {
				t.Fatalf("request %d: %s", i, a)
			}
		}
		s.breakerIs(t, "chat", "node-1", "open", "half_open")
	}
	began := time.Now()
	fail()
	if took := time.Since(began); took > 30*time.Second { // one wait for a breaker's trial is as long
		t.Errorf("%d errors took %s", requests, took)
	}
	if n := len(sim.inferences(t)); n != requests {
		t.Errorf("%d of %d requests have reached the provider", n, requests)
	}
	s.lists(t, grace, "chat")

	sim.kill()
	mended := s.startSim("--listen", strings.TrimPrefix(sim.url, "http://"))
	s.lists(t, patience, "chat")
	s.serving("node-1", "sim-small")
	s.chatNow(t, "chat", "tokens=1", false).ok(t, "the first request to what is mended")
	s.breakerIs(t, "chat", "node-1", "closed")
	if n := len(mended.inferences(t)); n != 1 {
		t.Errorf("%d requests have reached the mended provider", n)
	}

	// One that is mended without a restart: its Node sees nothing of that, and the breaker is still open.
	mended.control(t, "POST", "/sim/config", map[string]any{"status": "500"}, nil)
	fail()
	mended.control(t, "DELETE", "/sim/config", nil, nil)
	s.chatNow(t, "chat", "tokens=1", true).ok(t, "the first request to what works again")
	s.breakerIs(t, "chat", "node-1", "closed")
	s.quiet()
}
