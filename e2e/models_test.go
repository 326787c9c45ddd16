package e2e

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// grace is how long a list of models may be stale. The promises are two seconds for what comes and a few for what goes;
// a loaded machine gets more, but not the half a minute in which everything is asked again.
const grace = 15 * time.Second

// lists waits until /v1/models says exactly this, and returns how long that took.
func (s *stack) lists(t *testing.T, within time.Duration, want ...string) time.Duration {
	t.Helper()
	began := time.Now()
	eventually(t, within, "/v1/models lists "+strings.Join(want, ", "), func() bool { return slices.Equal(s.models(), want) })
	return time.Since(began)
}

// TestModelsFollowNodes shows that /v1/models is what could be used now.
func TestModelsFollowNodes(t *testing.T) {
	t.Parallel()
	s := newEdge(t)
	s.lists(t, patience)
	alpha, beta := s.startSim("--models", "alpha,shared"), s.startSim("--models", "beta,shared")

	one := s.launchNode("node-1", "--provider", "a="+alpha.url)
	one.line("online", patience)
	fresh(t, "a Node that joins", s.lists(t, grace, "alpha", "shared"))
	two := s.launchNode("node-2", "--provider", "b="+beta.url)
	two.line("online", patience)
	fresh(t, "a second Node", s.lists(t, grace, "alpha", "beta", "shared"))

	beta.control(t, "PUT", "/sim/models", map[string]any{"models": []string{"beta", "gamma"}}, nil)
	s.lists(t, grace, "alpha", "beta", "gamma", "shared")

	beta.kill()
	s.lists(t, grace, "alpha", "shared")
	if res, body := s.post("/v1/chat/completions", chat("shared", "tokens=2", false)); res.StatusCode != http.StatusOK {
		t.Errorf("a model that another Node still has: %s %s", res.Status, body)
	}
	again := start(t, "sim-again", nil, "sim", "--listen", strings.TrimPrefix(beta.url, "http://"), "--models", "beta")
	s.lists(t, grace, "alpha", "beta", "shared")
	again.freeze() // hung, not gone: told from busy by its silence
	s.lists(t, patience, "alpha", "shared")
	again.thaw()
	s.lists(t, grace, "alpha", "beta", "shared")

	one.kill()
	s.lists(t, grace, "beta")
	if err := two.stop(patience); err != nil {
		t.Errorf("a Node that is told to stop: %v", err)
	}
	s.lists(t, grace)
}

// fresh fails where a list took longer than its promise of two seconds, with an allowance for a machine that is busy.
func fresh(t *testing.T, what string, took time.Duration) {
	t.Helper()
	if took > 8*time.Second {
		t.Errorf("the models of %s were visible %s after READY", what, took)
	}
}

// TestModelsOfKey shows that a key lists and finds what it may use, and nothing else.
func TestModelsOfKey(t *testing.T) {
	t.Parallel()
	s := newEdge(t)
	sim := s.startSim("--models", "llama3:8b,llama3:70b,qwen3,org/gpt-oss")
	s.startNode("node-1", "--provider", "sim="+sim.url)
	s.lists(t, grace, "llama3:70b", "llama3:8b", "org/gpt-oss", "qwen3")
	all := s.key
	for routes, want := range map[string][]string{
		"llama*":         {"llama3:70b", "llama3:8b"},
		"qwen3,org/*":    {"org/gpt-oss", "qwen3"},
		"*:8b":           {"llama3:8b"},
		"something-else": nil,
	} {
		s.key = s.newKey("narrow to "+routes, "--routes", routes)
		s.lists(t, patience, want...)
		for _, model := range []string{"llama3:70b", "llama3:8b", "org/gpt-oss", "qwen3"} {
			mayUse := slices.Contains(want, model)
			res, body := s.get("/v1/models/" + strings.ReplaceAll(model, "/", "%2F"))
			if (res.StatusCode == http.StatusOK) != mayUse {
				t.Errorf("routes %s, /v1/models/%s: %s %s", routes, model, res.Status, body)
			}
			res, body = s.post("/v1/chat/completions", chat(model, "tokens=1", false))
			if mayUse && res.StatusCode != http.StatusOK || !mayUse && res.StatusCode != http.StatusForbidden {
				t.Errorf("routes %s, a chat with %s: %s %s", routes, model, res.Status, body)
			}
		}
	}
	s.key = all
	s.lists(t, patience, "llama3:70b", "llama3:8b", "org/gpt-oss", "qwen3")
}

// TestOperatorsView reads what is going on with the commands, while it goes on.
func TestOperatorsView(t *testing.T) {
	t.Parallel()
	s := newEdge(t)
	sim := s.startSim()
	s.startNode("gpu-1", "--provider", "main="+sim.url+",capacity=2", "--labels", "site=lab")
	var running []*answer
	for range 3 {
		a := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=100000,itl=20ms", true))
		running = append(running, a)
	}
	eventually(t, patience, "two run and one waits", func() bool { return s.metric("iop_queued") == 1 && sim.stats(t).Active == 2 })

	has := func(command string, want ...string) {
		t.Helper()
		out := iop(t, s.env, strings.Fields(command)...)
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("iop %s does not say %q:\n%s", command, w, out)
			}
		}
	}
	has("nodes", "gpu-1", "online", "main", "openai", "ok", "2/2", "sim-small")
	has("status", "1 online", "3 in flight, 1 of them queued", "sim-small")
	has("runs", "streaming", "queued", "sim-small", "gpu-1", "main")

	var list struct{ Data []runState }
	s.json(&list, "runs", "--json")
	for _, r := range list.Data {
		out := iop(t, s.env, "cancel", r.ID)
		if !strings.Contains(out, r.ID) {
			t.Errorf("iop cancel says %q", out)
		}
	}
	for _, a := range running {
		a.end(t, patience)
	}
	s.quiet()
	has("runs", "cancelled: run_cancelled (cancelled_by_operator)")
	has("nodes", "0/2")
	s.nodes[0].kill()
	eventually(t, grace, "the Node is offline", func() bool { return s.node("gpu-1").State == "offline" })
	has("nodes", "gpu-1", "offline")
	has("status", "0 online", "models   none")
}
