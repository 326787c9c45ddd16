package e2e

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestTwoNodesOfOneName: a second process of a Node's name, under load, cuts no run, and both processes log it.
// When the first is killed the second has the name within seconds.
//
// Before, each took the name from the other up to six times a minute, and the runs were cut.
func TestTwoNodesOfOneName(t *testing.T) {
	t.Parallel()
	s := newEdge(t)
	sim := s.startSim()
	first := s.startNode("gpu-1", "--provider", "sim="+sim.url)
	generation := s.online("gpu-1", patience)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var load sync.WaitGroup
	var mu sync.Mutex
	runs, cut := 0, 0
	for range 8 {
		load.Go(func() {
			for ctx.Err() == nil {
				a := s.ask(t.Context(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=20,itl=20ms", true))
				err := a.end(t, patience).whole()
				mu.Lock()
				runs++
				if err != nil {
					cut++
					t.Error("a run was cut:", err)
				}
				mu.Unlock()
			}
		})
	}
	eventually(t, patience, "runs are under way", func() bool { return s.metric("iop_streams") > 4 })
	second := s.launchNode("gpu-1", "--provider", "sim="+sim.url)
	if line := second.line(`"flapping"`, patience); !strings.Contains(line, "another process") || !strings.Contains(line, "retry_in") {
		t.Errorf("the second process says %s", line)
	}
	if line := first.line("name_contested", patience); !strings.Contains(line, "another process") {
		t.Errorf("the first process says %s", line)
	}
	eventually(t, patience, "the second process has asked again", func() bool { return s.metric("iop_node_flaps_total") >= 2 })
	if out := iop(t, s.env, "nodes"); !strings.Contains(out, "flapping") {
		t.Errorf("iop nodes prints\n%s", out)
	}
	if out := iop(t, s.env, "nodes", "show", "gpu-1"); !strings.Contains(out, "another process uses this name at 127.0.0.1:") {
		t.Errorf("iop nodes show prints\n%s", out)
	}
	stop()
	load.Wait()
	if runs == 0 || cut > 0 || s.online("gpu-1", patience) != generation || s.metric("iop_node_supersessions_total") != 0 {
		t.Errorf("%d of %d runs were cut; generation %d was %d", cut, runs, s.online("gpu-1", patience), generation)
	}
	t.Logf("%d runs, %d cut", runs, cut)

	first.kill()
	killed := time.Now()
	eventually(t, patience, "the second process has the name", func() bool {
		n := s.node("gpu-1")
		return n.State == "online" && n.generation() > generation
	})
	t.Logf("the second process had the name after %s", time.Since(killed).Round(time.Millisecond))
	s.healthy(t)
}
