package e2e

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"
)

// TestNobodyHome kills the only Node of a model with requests waiting, and restarts the Edge without it. In both cases
// clients get 503 once the grace is over, and not before.
func TestNobodyHome(t *testing.T) {
	t.Parallel()
	const noNode = 2 * time.Second
	args := []string{"--no-node-timeout", noNode.String()}
	s := newEdge(t, args...)
	s.launchNode("node-1", "--provider", "sim="+s.startSim("--slots", "8").url+",capacity=1")
	s.serving("node-1", "sim-small")
	running := s.askAs(t.Context(), s.key, "/v1/chat/completions", chat("sim-small", "tokens=100000,itl=20ms", true), nil)
	running.reaches(t, 2, patience)
	all := s.forNobody(t, 3)
	s.queued(3)
	killed := time.Now() // before kill, which waits for the process's end
	s.nodes[0].kill()
	if err := running.end(t, patience).broken(); err != nil {
		t.Error("what ran:", err)
	}
	wantNobody(t, "waiting when the Node was killed", all)
	if took := time.Since(killed); took < noNode {
		t.Errorf("they were told after %s", took)
	}
	wantNobody(t, "after the Node was killed", s.forNobody(t, 3))

	s.edge.kill()
	s.startEdge(args...)
	all = s.forNobody(t, 3)
	s.queued(3)
	wantNobody(t, "after a restart of the Edge", all)
	late := s.askAs(t.Context(), s.key, "/v1/chat/completions", chat("sim-small", "tokens=2", true), nil)
	s.queued(1)
	s.launchNode("node-1", "--provider", "sim="+s.sims[0].url)
	late.end(t, patience).ok(t, "a Node came in time")
	s.quiet()
}

// forNobody sends n requests, some of them streams.
func (s *stack) forNobody(t *testing.T, n int) (all []*answer) {
	t.Helper()
	for i := range n {
		all = append(all, s.askAs(context.Background(), s.key, "/v1/chat/completions", chat("sim-small", "tokens=2", i%2 == 0), noUpdates))
	}
	return all
}

func wantNobody(t *testing.T, when string, all []*answer) {
	t.Helper()
	for i, a := range all {
		a.end(t, patience).refused(t, fmt.Sprintf("%s, %d", when, i), http.StatusServiceUnavailable, "no_node_available")
		if got := a.header.Get("Retry-After"); got != "10" {
			t.Errorf("%s: Retry-After %q", when, got)
		}
	}
}
