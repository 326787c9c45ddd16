package e2e

import (
	"net/http"
	"strings"
	"testing"
)

// TestNodeAwayWhileEdgeRestarts restarts the Edge while the only Node of a model is away: requests wait for it, as they would
// without the restart, and `iop nodes` lists it.
func TestNodeAwayWhileEdgeRestarts(t *testing.T) {
	t.Parallel()
	args := []string{"--no-node-timeout", "2s"}
	s := newEdge(t, args...)
	there, away := s.startSim("--models", "there"), s.startSim("--models", "away")
	s.launchNode("node-there", "--provider", "sim="+there.url)
	s.launchNode("node-away", "--provider", "sim="+away.url)
	s.serving("node-there", "there")
	s.serving("node-away", "away")
	s.nodes[1].kill()
	if err := s.edge.stop(patience); err != nil {
		t.Fatal(err)
	}
	s.startEdge(args...)
	s.serving("node-there", "there")
	ask := func(model string) *answer {
		return s.askAs(t.Context(), s.key, "/v1/chat/completions", chat(model, "tokens=2", false), noUpdates)
	}
	eventually(t, patience, "Nodes have had their time to come back", func() bool {
		code, _ := ask("never").end(t, patience).problem(t)
		return code == "model_not_found"
	})
	ask("away").end(t, patience).refused(t, "its Node is away", http.StatusServiceUnavailable, "no_node_available")
	out := iop(t, s.env, "nodes")
	if row := lineWith(out, "node-away"); !strings.Contains(row, "offline") {
		t.Errorf("iop nodes does not list the Node that is away:\n%s", out)
	}
	if out := iop(t, s.env, "nodes", "show", "node-away"); !strings.Contains(out, "offline, last seen") {
		t.Errorf("iop nodes show: %s", out)
	}
	waits := ask("away")
	s.queued(1)
	s.launchNode("node-away", "--provider", "sim="+away.url)
	waits.end(t, patience).ok(t, "its Node came back in time")
	s.quiet()

	if _, stderr, err := tryIOP(t, s.env, "nodes", "forget", "node-away"); err == nil || !strings.Contains(stderr, "is connected") {
		t.Errorf("a connected Node was forgotten: %v %s", err, stderr)
	}
	s.nodes[2].kill()
	eventually(t, patience, "node-away is offline", func() bool { return s.node("node-away").State == "offline" })
	iop(t, s.env, "nodes", "forget", "node-away")
	if out := iop(t, s.env, "nodes"); strings.Contains(out, "node-away") {
		t.Errorf("it is listed:\n%s", out)
	}
	ask("away").end(t, patience).refused(t, "its only Node is forgotten", http.StatusNotFound, "model_not_found")
}

// TestDrainOutlivesEdge crashes the Edge right after a drain. The Node stays drained until an operator resumes it, or its process
// is started anew.
func TestDrainOutlivesEdge(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackConfig{nodeArgs: []string{"--drain-timeout", "1s"}})
	state := func(want string) {
		t.Helper()
		eventually(t, patience, "the Node is "+want, func() bool { return s.node("node-1").State == want })
	}
	crash := func() {
		s.edge.kill()
		s.startEdge()
	}
	iop(t, s.env, "drain", "node-1")
	crash()
	state("drained")
	if out := iop(t, s.env, "status"); !strings.Contains(out, "1 online (1 drained)") {
		t.Errorf("iop status does not count it:\n%s", out)
	}
	iop(t, s.env, "drain", "node-1", "--resume")
	crash()
	state("online")
	iop(t, s.env, "drain", "node-1")
	s.nodes[0].kill()
	crash()
	if n := s.node("node-1"); n.State != "offline" {
		t.Errorf("it is %s", n.State)
	}
	if out := iop(t, s.env, "nodes"); !strings.Contains(lineWith(out, "node-1"), "offline, drained") {
		t.Errorf("iop nodes:\n%s", out)
	}
	s.launchNode("node-1", "--provider", "sim="+s.sims[0].url)
	s.serving("node-1", "sim-small")
}

// lineWith is the line of text that has word in it; empty if there is none.
func lineWith(text, word string) string {
	for line := range strings.Lines(text) {
		if strings.Contains(line, word) {
			return strings.TrimSuffix(line, "\n")
		}
	}
	return ""
}

// TestRefusedNodesAreShown: an operator sees which Nodes ask in vain, from where, why, and what to do, until they are let in.
func TestRefusedNodesAreShown(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackConfig{})
	token := s.token
	shown := func(name string, words ...string) {
		t.Helper()
		var out string
		eventually(t, patience, name+" is listed as refused", func() bool {
			out = iop(t, s.env, "nodes")
			_, refused, _ := strings.Cut(out, "refused in the last hour")
			row := lineWith(refused, name)
			for _, word := range words {
				if !strings.Contains(row, word) {
					return false
				}
			}
			return true
		})
	}
	s.token = token[:len(token)-4] + "0000"
	s.launchNode("wrong-token", "--provider", "sim="+s.sims[0].url)
	var other struct{ ID, Token string }
	s.json(&other, "join-token", "create", "--json")
	s.token = other.Token
	s.launchNode("node-1", "--provider", "sim="+s.sims[0].url)
	s.json(&other, "join-token", "create", "--json", "--node", "bound")
	s.token = other.Token
	s.launchNode("elsewhere", "--provider", "sim="+s.sims[0].url)
	shown("wrong-token?", "127.0.0.1", "unauthorized", "iop join-token create")
	shown("node-1 ", "127.0.0.1", "node_taken", "choose another name")
	shown("elsewhere ", "127.0.0.1", "wrong_node", "--name")
	if out := iop(t, s.env, "status"); !strings.Contains(out, "refused  3 nodes in the last hour") {
		t.Errorf("iop status:\n%s", out)
	}
	if n := s.node("node-1"); n.State != "online" {
		t.Errorf("node-1 is %s", n.State)
	}

	s.token = token
	s.nodes[1].kill()
	s.launchNode("wrong-token", "--provider", "sim="+s.sims[0].url)
	s.serving("wrong-token", "sim-small")
	if _, refused, _ := strings.Cut(iop(t, s.env, "nodes"), "refused in the last hour"); strings.Contains(refused, "wrong-token") || !strings.Contains(refused, "elsewhere") {
		t.Errorf("after one was let in: %s", refused)
	}
}
