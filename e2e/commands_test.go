package e2e

import (
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// ollamaStack is an Edge with a Node whose one provider is an Ollama that takes so long for a pull.
func ollamaStack(t *testing.T, pull string) *stack {
	s := newEdge(t)
	sim := s.startSim("--flavour", "ollama", "--models", "first", "--pull", pull)
	s.startNode("gpu-1", "--provider", "ollama="+sim.url)
	return s
}

// TestOllamaPull: a model is pulled through the Edge with its progress, can be asked for then, is shown, and is gone once
// deleted.
func TestOllamaPull(t *testing.T) {
	t.Parallel()
	s := ollamaStack(t, "500ms")
	out := iop(t, s.env, "ollama", "pull", "gpu-1", "second")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) < 6 || lines[0] != "pulling manifest" || lines[len(lines)-1] != "second is on gpu-1" || !strings.Contains(out, " 50% of 4.7 GB\n") || !strings.Contains(out, " 100% of 4.7 GB\n") {
		t.Errorf("progress:\n%s", out)
	}
	s.lists(t, grace, "first", "second")
	if res, body := s.post("/v1/chat/completions", chat("second", "tokens=2", false)); res.StatusCode != http.StatusOK {
		t.Errorf("the model that was pulled: %s %s", res.Status, body)
	}
	if out := iop(t, s.env, "ollama", "list", "gpu-1"); !strings.Contains(out, "second") || !strings.Contains(out, "4.9 GB") {
		t.Errorf("list:\n%s", out)
	}
	if out := iop(t, s.env, "ollama", "ps", "gpu-1"); !strings.Contains(out, "second") {
		t.Errorf("ps, after a run:\n%s", out)
	}
	if out := iop(t, s.env, "ollama", "show", "gpu-1", "second"); !strings.Contains(out, "gguf") {
		t.Errorf("show:\n%s", out)
	}
	iop(t, s.env, "ollama", "rm", "gpu-1", "second")
	s.lists(t, grace, "first")
	for _, args := range [][]string{{"show", "gpu-1", "second"}, {"rm", "gpu-1", "second"}, {"pull", "gpu-1", "missing"}} {
		if _, stderr, err := tryIOP(t, s.env, append([]string{"ollama"}, args...)...); err == nil || stderr == "" {
			t.Errorf("iop ollama %q: %v, %s", args, err, stderr)
		}
	}
	for node, want := range map[string]string{"gpu-2": "did you mean gpu-1?", "elsewhere": "iop nodes"} {
		if _, stderr, err := tryIOP(t, s.env, "ollama", "list", node); err == nil || !strings.Contains(stderr, want) {
			t.Errorf("%s, which is not there: %v, %s", node, err, stderr)
		}
	}
}

// TestOllamaPullEndsWithCtrlC: who waits for a pull and goes ends it, at the Ollama; the session and its runs go on.
func TestOllamaPullEndsWithCtrlC(t *testing.T) {
	t.Parallel()
	s := ollamaStack(t, "1h")
	pull := start(t, "pull", s.env, "ollama", "pull", "gpu-1", "second")
	pull.line("pulling manifest", patience)
	pull.signal(syscall.SIGINT)
	select {
	case <-pull.done:
	case <-time.After(patience):
		t.Fatal("the command does not end")
	}
	if text := pull.text(); !strings.Contains(text, "the pull on gpu-1 was cancelled") {
		t.Errorf("it says %q", text)
	}
	eventually(t, patience, "the Ollama ends the pull", func() bool {
		var requests []struct{ Path, State string }
		s.sims[0].control(t, "GET", "/sim/requests", nil, &requests)
		return slices.ContainsFunc(requests, func(r struct{ Path, State string }) bool { return r.Path == "/api/pull" && r.State == "cancelled" })
	})
	if res, body := s.post("/v1/chat/completions", chat("first", "tokens=2", false)); res.StatusCode != http.StatusOK {
		t.Errorf("a run after it: %s %s", res.Status, body)
	}
	s.lists(t, grace, "first")
}

// TestNodesShow: an operator sees what a Node has and how its session fares, from both ends; after it is gone, that it is.
func TestNodesShow(t *testing.T) {
	t.Parallel()
	s := ollamaStack(t, "0s")
	var shown struct {
		Capabilities struct {
			Generation uint64
			Providers  []struct {
				ID, Engine, Health string
				Capacity           int
				Models             []struct{ ID string }
			}
		}
		Transport struct {
			Edge struct{ Generation, FramesReceived uint64 } `json:"edge_view"`
			Node struct {
				Generation, Reconnects uint64
				Window                 int `json:"session_window"`
			} `json:"node_view"`
		}
	}
	s.json(&shown, "nodes", "show", "gpu-1", "--json")
	c, tr := shown.Capabilities, shown.Transport
	if c.Generation == 0 || len(c.Providers) != 1 || c.Providers[0].Health != "ok" || c.Providers[0].Capacity != 1 || len(c.Providers[0].Models) != 1 {
		t.Errorf("%+v", c)
	}
	if tr.Edge.Generation != c.Generation || tr.Node.Generation != c.Generation || tr.Node.Window < 64<<10 {
		t.Errorf("%+v", tr)
	}
	if out := iop(t, s.env, "nodes", "show", "gpu-1"); !strings.Contains(out, "TRANSPORT") || !strings.Contains(out, "heartbeat") {
		t.Errorf("%s", out)
	}
	var status struct {
		SessionID string `json:"session_id"`
	}
	s.operator("/nodes/gpu-1/transport?session_id=corr-7", &status)
	if status.SessionID != "corr-7" {
		t.Errorf("session_id %q", status.SessionID)
	}
	if err := s.nodes[0].stop(patience); err != nil {
		t.Error(err)
	}
	eventually(t, patience, "the Node is shown as gone", func() bool {
		out, _, err := tryIOP(t, s.env, "nodes", "show", "gpu-1")
		return err == nil && strings.Contains(out, "offline, last seen")
	})
}
