package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// behind makes another Edge's public API the provider of a Node of this one.
func (s *stack) behind(node, model string, to *stack) *process {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(to.key), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return s.launchNode(node, "--provider", "next:openai="+to.url+",models="+model+",key-file="+file)
}

// TestEdgesInARow: an Edge may be the provider of another one's Node, whatever both are called.
func TestEdgesInARow(t *testing.T) {
	t.Parallel()
	for _, names := range [][2]string{{"e10", "e1"}, {"main", "main"}, {"", ""}} {
		t.Run(strings.Join(names[:], "-"), func(t *testing.T) {
			t.Parallel()
			first, second := newEdge(t, idArgs(names[0])...), newEdge(t, idArgs(names[1])...)
			sim := second.startSim()
			second.startNode("node-2", "--provider", "sim="+sim.url)
			first.behind("node-1", "sim-small", second)
			first.serving("node-1", "sim-small")
			if res, body := first.post("/v1/chat/completions", chat("sim-small", "tokens=2", false)); res.StatusCode != 200 {
				t.Fatalf("%d %s", res.StatusCode, body)
			}
			if via := sim.inferences(t)[0].Headers["Via"]; len(via) != 1 || strings.Count(via[0], "1.1 iop-") != 2 {
				t.Errorf("the provider got Via: %q", via)
			}
		})
	}
}

func idArgs(name string) []string {
	if name == "" {
		return nil
	}
	return []string{"--id", name}
}

// TestLoopIsRefused: a request that comes back to an Edge, at once or by way of another one, is refused there, and the
// client is told why.
func TestLoopIsRefused(t *testing.T) {
	t.Parallel()
	a, b := newEdge(t, "--id", "a", "--total-timeout", "20s"), newEdge(t, "--id", "b", "--total-timeout", "20s")
	a.behind("node-self", "self", a)
	a.behind("node-a", "ring", b)
	b.behind("node-b", "ring", a)
	a.serving("node-self", "self")
	a.serving("node-a", "ring")
	b.serving("node-b", "ring")
	for _, model := range []string{"self", "ring"} {
		res, body := a.post("/v1/chat/completions", chat(model, "", false))
		if res.StatusCode != 400 || !bytes.Contains(body, []byte(`"request_loop"`)) {
			t.Errorf("%s: %d %s", model, res.StatusCode, body)
		}
	}
}
