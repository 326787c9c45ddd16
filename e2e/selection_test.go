package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// selectionFile has routes that see each other's failures only by way of their targets.
const selectionFile = `
routes:
  - model: chat
    targets: [{model: sim-small}]
  - model: hurried
    targets: [{model: sim-small}]
    timeouts: {first_byte: 500ms}
  - model: soonest
    policy: lowest_wait
    targets: [{model: sim-small}]
`

// twoNodes are node-bad, which is about to be that, and node-good, of equal capacity.
func twoNodes(t *testing.T, capacity int, badArgs ...string) (s *routed, bad, good *simulator) {
	t.Helper()
	s = newRouted(t, selectionFile)
	bad = s.startSim(append([]string{"--slots", "32"}, badArgs...)...)
	good = s.startSim("--slots", "32")
	for name, sim := range map[string]*simulator{"node-bad": bad, "node-good": good} {
		s.launchNode(name, "--provider", fmt.Sprintf("sim=%s,capacity=%d", sim.url, capacity))
		s.serving(name, "sim-small")
	}
	return s, bad, good
}

// startedRuns is how many inference requests have reached the simulator.
func (s *simulator) startedRuns(t *testing.T) int64 {
	t.Helper()
	return s.stats(t).Started
}

// TestFailingFast: FAULTS 15. A Node whose provider fails at once is always idle, and must not get all for that, also
// where the healthy Node has more to do than it can. When a good provider stands there, it gets its share again.
func TestFailingFast(t *testing.T) {
	t.Parallel()
	s, bad, good := twoNodes(t, 4, "--fail-rate", "1")
	failed := 0
	for i, a := range s.crowd(400, 12, "chat", "ttft=20ms,tokens=1") {
		if a.end(t, patience); a.status == http.StatusBadGateway {
			failed++
		} else {
			a.ok(t, fmt.Sprint(i))
		}
	}
	sick := bad.inferences(t)
	if len(sick) < 5 || failed != len(sick) {
		t.Fatalf("%d requests failed, and %d have reached the failing provider: the test shows nothing", failed, len(sick))
	}
	healthy := 0
	for _, r := range good.inferences(t) {
		if r.Started.After(sick[4].Started) {
			healthy++
		}
	}
	after := len(sick) - 5
	t.Logf("after five errors %d went to the failing Node and %d to the healthy one", after, healthy)
	if share := float64(healthy) / float64(healthy+after); share < 0.95 {
		t.Errorf("after five errors %.1f %% went to the healthy Node", 100*share)
	}
	s.breakerIs(t, "chat", "node-bad", "open", "half_open")

	address := strings.TrimPrefix(bad.url, "http://")
	bad.kill()
	mended := s.startSim("--slots", "32", "--listen", address)
	eventually(t, patience, "the good provider in the bad one's place gets its share", func() bool {
		before := mended.startedRuns(t)
		for _, a := range s.crowd(100, 12, "chat", "ttft=20ms,tokens=1") {
			a.end(t, patience)
		}
		return mended.startedRuns(t)-before > 40
	})
	s.breakerIs(t, "chat", "node-bad", "closed")
	s.many(t, 100, 12, "chat", "tokens=1")
	s.quiet()
}

// breakerIs fails unless the operator sees one of these states of the Node's breaker.
func (s *stack) breakerIs(t *testing.T, model, node string, want ...string) {
	t.Helper()
	var routes struct {
		Data []struct {
			Name   string
			Groups []struct {
				Targets []struct{ Node, Breaker string }
			}
		}
	}
	s.operator("/routes", &routes)
	for _, r := range routes.Data {
		for _, g := range r.Groups {
			for _, target := range g.Targets {
				if r.Name != model || target.Node != node {
					continue
				}
				for _, state := range want {
					if target.Breaker == state {
						return
					}
				}
				t.Errorf("the breaker of %s is %s, not %q", node, target.Breaker, want)
				return
			}
		}
	}
	t.Errorf("the operator sees no target %s of %s", node, model)
}

// TestRetryAfterRest: a provider that says 429 or 503 with Retry-After is full, not broken: nobody's request fails by it,
// it gets nothing for that long, and then it does again.
func TestRetryAfterRest(t *testing.T) {
	t.Parallel()
	for _, status := range []string{"429", "503"} {
		t.Run(status, func(t *testing.T) {
			t.Parallel()
			s, bad, _ := twoNodes(t, 32)
			bad.control(t, "POST", "/sim/config", map[string]any{"status": status, "retry_after": "3"}, nil)
			began := time.Now()
			for i := range 20 { // the first or the second
				if s.chatNow(t, "chat", "tokens=1", i%2 == 0).ok(t, "beside a full provider"); bad.startedRuns(t) > 0 {
					break
				}
			}
			at := bad.inferences(t)
			if len(at) != 1 {
				t.Fatalf("%d requests have reached the full provider", len(at))
			}
			bad.control(t, "DELETE", "/sim/config", nil, nil)
			eventually(t, patience, "it gets runs again", func() bool {
				s.chatNow(t, "chat", "tokens=1", false).ok(t, "afterwards")
				return bad.startedRuns(t) > 1
			})
			if rest := bad.inferences(t)[1].Started.Sub(at[0].Started); rest < 2900*time.Millisecond || rest > 15*time.Second {
				t.Errorf("it got its next run after %s, not three seconds", rest)
			}
			t.Logf("after %s", time.Since(began))
			s.breakerIs(t, "chat", "node-bad", "closed")
			s.quiet()
		})
	}
}

// TestFirstByteTimeout: FAULTS 11. A provider that takes a request and is silent costs the route's time for the first
// byte, and then the request is elsewhere, or is answered with what it was.
func TestFirstByteTimeout(t *testing.T) {
	t.Parallel()
	s, bad, good := twoNodes(t, 32)
	bad.control(t, "POST", "/sim/config", map[string]any{"fault": "hang"}, nil)
	for i := range 10 {
		s.chatNow(t, "hurried", "tokens=1", i%2 == 0).ok(t, "beside a hung provider")
	}
	if bad.startedRuns(t) == 0 {
		t.Error("the hung provider was never tried: the test shows nothing")
	}
	if n := bad.startedRuns(t); n > 6 {
		t.Errorf("of ten %d were sent to the hung provider", n)
	}
	bad.active(t, 0) // and it is told that nobody waits any more
	good.control(t, "POST", "/sim/config", map[string]any{"fault": "hang"}, nil)
	for _, stream := range []bool{false, true} {
		began := time.Now()
		a := s.chatNow(t, "hurried", "tokens=1", stream)
		a.refused(t, "with nothing but hung providers", http.StatusGatewayTimeout, "provider_timeout")
		if took := time.Since(began); took < 500*time.Millisecond || took > 20*time.Second {
			t.Errorf("it took %s", took)
		}
	}
	s.quiet()
}

// TestHungProvider: a provider that answers nothing at all is found out by its Node, whatever the route's times are.
// New requests go elsewhere, and what is with it may come yet.
func TestHungProvider(t *testing.T) {
	t.Parallel()
	s, bad, good := twoNodes(t, 32)
	bad.control(t, "POST", "/sim/config", map[string]any{"fault": "hang", "path": "*"}, nil)
	eventually(t, patience, "the probe says hung", func() bool {
		n := s.node("node-bad")
		return len(n.Sessions) > 0 && len(n.Sessions[0].Providers) > 0 && n.Sessions[0].Providers[0].Health == "hung"
	})
	before := good.startedRuns(t)
	s.many(t, 30, 4, "chat", "tokens=1")
	if n := good.startedRuns(t) - before; n != 30 {
		t.Errorf("of 30 requests %d went to the healthy Node", n)
	}
	if n := s.node("node-bad"); n.State != "online" {
		t.Errorf("the Node of the hung provider is %+v", n)
	}
	bad.control(t, "POST", "/sim/config", map[string]any{"fault": nil, "path": nil}, nil)
	eventually(t, patience, "it gets runs again", func() bool {
		s.chatNow(t, "chat", "tokens=1", false).ok(t, "afterwards")
		return bad.stats(t).Finished > 0
	})
	s.quiet()
}

// TestLowestWait: of a fast provider and a slow one the fast gets nearly all, as long as it has room.
func TestLowestWait(t *testing.T) {
	t.Parallel()
	s, slow, fast := twoNodes(t, 32)
	slow.control(t, "POST", "/sim/config", map[string]any{"ttft": "300ms"}, nil)
	fast.control(t, "POST", "/sim/config", map[string]any{"ttft": "10ms"}, nil)
	s.many(t, 100, 4, "soonest", "tokens=3")
	f, n := fast.startedRuns(t), slow.startedRuns(t)
	t.Logf("%d to the fast, %d to the slow", f, n)
	if f < 85 || n == 0 {
		t.Errorf("%d went to the fast provider, %d to the slow one", f, n)
	}
	s.quiet()
}

// warmFile has models that only one of two engines holds in memory.
const warmFile = `
defaults: {policy: warm_first}
routes:
  - model: a
    targets: [{model: "alpha:1b"}]
  - model: b
    targets: [{model: "beta:1b"}]
`

// TestWarmFirst: of two engines that swap models each keeps what it has in memory.
func TestWarmFirst(t *testing.T) {
	t.Parallel()
	s := newRouted(t, warmFile)
	engine := func(node, loaded string) *simulator {
		sim := s.startSim("--flavour", "ollama", "--models", "alpha:1b,beta:1b", "--loaded", loaded, "--max-loaded", "1", "--load", "2s", "--slots", "8")
		s.launchNode(node, "--provider", "ollama:ollama="+sim.url+",capacity=8")
		s.serving(node, "alpha:1b")
		return sim
	}
	one, two := engine("node-1", "alpha:1b"), engine("node-2", "beta:1b")
	s.loaded(t, "a", "node-1")
	s.loaded(t, "b", "node-2")
	var all []*answer
	for i := range 24 {
		model := []string{"a", "b"}[i%2]
		all = append(all, s.askAs(context.Background(), s.key, "/v1/chat/completions", chat(model, "ttft=100ms,tokens=2", i%3 == 0), nil))
		if i%6 == 5 {
			for _, a := range all {
				a.end(t, patience)
			}
		}
	}
	for i, a := range all {
		a.end(t, patience).ok(t, fmt.Sprint(i))
		line := s.logLine(a.header.Get("X-Iop-Run-Id"))
		if reason, _ := line["reason"].(string); !strings.HasPrefix(reason, "warm ") {
			t.Errorf("the log gives the reason %v", line)
		}
	}
	for sim, model := range map[*simulator]string{one: "alpha:1b", two: "beta:1b"} {
		for _, r := range sim.inferences(t) {
			if r.Model != model {
				t.Errorf("an engine that holds %s was asked for %s", model, r.Model)
			}
		}
		if n := len(sim.inferences(t)); n != 12 {
			t.Errorf("the engine that holds %s had %d requests", model, n)
		}
	}
	s.quiet()
}

// loaded waits until the operator sees that of the route's targets this Node's has the model in memory, and no other.
func (s *stack) loaded(t *testing.T, route, node string) {
	t.Helper()
	eventually(t, patience, node+" has the model of "+route+" loaded", func() bool {
		var routes struct {
			Data []struct {
				Name   string
				Groups []struct {
					Targets []struct {
						Node   string
						Loaded bool
					}
				}
			}
		}
		s.operator("/routes", &routes)
		right := false
		for _, r := range routes.Data {
			for _, g := range r.Groups {
				for _, target := range g.Targets {
					if r.Name != route {
						continue
					}
					if target.Loaded != (target.Node == node) {
						return false
					}
					right = true
				}
			}
		}
		return right
	})
}
