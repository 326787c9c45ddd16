package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// dialects are the requests that stream in event streams.
var dialects = []struct {
	path string
	body func(knobs string, stream bool) map[string]any
	// failed says what is wrong with a stream that should have ended in this dialect's error.
	failed func(*answer) error
}{
	{"/v1/chat/completions", func(k string, s bool) map[string]any { return chat("sim-small", k, s) }, (*answer).broken},
	{"/v1/completions", func(k string, s bool) map[string]any {
		return map[string]any{"model": "sim-small", "stream": s, "user": "sim:" + k, "prompt": "hello"}
	}, (*answer).broken},
	{"/v1/responses", func(k string, s bool) map[string]any {
		return map[string]any{"model": "sim-small", "stream": s, "user": "sim:" + k, "input": "hello"}
	}, (*answer).brokenResponse},
}

// brokenResponse is broken for the Responses dialect.
func (a *answer) brokenResponse() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := len(a.events)
	if a.err != nil || a.status != http.StatusOK || n < 2 {
		return fmt.Errorf("status %d, %d events, %v: %s", a.status, n, a.err, tail(a.body.String(), 300))
	}
	types := make([]string, n)
	for i, e := range a.events {
		var event struct {
			Type     string
			Message  string
			Error    *struct{ Message string }
			Response struct {
				Status string
				Error  *struct{ Message string }
			}
		}
		if err := json.Unmarshal([]byte(e), &event); err != nil {
			return fmt.Errorf("%q: %w", e, err)
		}
		if types[i] = event.Type; event.Type == "error" && event.Message == "" && (event.Error == nil || event.Error.Message == "") {
			return fmt.Errorf("an error without a message: %s", e)
		}
	}
	if slices.Contains(types, "response.completed") || slices.Contains(types, "response.incomplete") || !slices.Contains(types, "error") || types[n-1] != "response.failed" {
		return fmt.Errorf("events %q", types)
	}
	return nil
}

// newFailingStack is a stack of one provider, and returns the name of another of its n models at each call: a model that
// fails too often is left alone for a while, and what fails on purpose must not stand in the way of the next.
func newFailingStack(t *testing.T, n int) (s *stack, model func() string) {
	t.Helper()
	models := []string{"sim-small"}
	for i := range n {
		models = append(models, fmt.Sprintf("failing-%d", i))
	}
	s = newStack(t, stackConfig{simArgs: []string{"--models", strings.Join(models, ",")}})
	return s, func() string {
		if len(models) == 1 {
			t.Fatalf("there are more than %d models to fail", n)
		}
		last := models[len(models)-1]
		models = models[:len(models)-1]
		return last
	}
}

// TestBrokenStream breaks streams in each way after their first tokens. The client is told, and nothing is made up.
func TestBrokenStream(t *testing.T) {
	t.Parallel()
	s, model := newFailingStack(t, 15)
	for _, fault := range []string{"midclose", "midreset", "midabort", "error_event_mid", "llamacpp_error"} {
		for _, d := range dialects {
			if fault == "llamacpp_error" && d.path == "/v1/responses" {
				continue // it has no such field there
			}
			t.Run(fault+d.path, func(t *testing.T) {
				before := s.outcomes()
				body := d.body("tokens=20,itl=5ms,"+fault+"=4", true)
				body["model"] = model()
				a := s.ask(context.Background(), http.DefaultClient, d.path, body)
				if err := d.failed(a.end(t, patience)); err != nil {
					t.Error(err)
				}
				if text := a.body.String(); strings.Contains(text, "127.0.0.1") || strings.Contains(text, "node-1") {
					t.Errorf("it tells where it came from: %s", text)
				}
				s.quiet()
				if after := s.outcomes(); after["failed"] != before["failed"]+1 || after["completed"] != before["completed"] {
					t.Errorf("counted as %v, before %v", after, before)
				}
			})
		}
	}
	s.healthy(t)
}

// healthy fails unless requests are served as if nothing had been.
func (s *stack) healthy(t *testing.T) {
	t.Helper()
	for range 3 {
		a := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=5", true))
		if err := a.end(t, patience).whole(); err != nil {
			t.Error("afterwards:", err)
		}
	}
	s.quiet()
}

// TestEngineDies has each engine's own way to die in mid-stream.
func TestEngineDies(t *testing.T) {
	t.Parallel()
	for _, flavour := range []string{"openai", "vllm", "llamacpp", "ollama", "lmstudio", "sglang"} {
		t.Run(flavour, func(t *testing.T) {
			s := newStack(t, stackConfig{simArgs: []string{"--flavour", flavour}})
			a := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=20,itl=5ms,die=4", true))
			a.end(t, patience)
			if err := a.broken(); err != nil {
				t.Error(err)
			}
			s.healthy(t)
		})
	}
}

// TestErrorBeforeFirstByte has providers that fail before anything was passed on: there is still a status to tell it by.
func TestErrorBeforeFirstByte(t *testing.T) {
	t.Parallel()
	s, model := newFailingStack(t, 30)
	cases := []struct {
		knobs      string
		streams    []bool
		status     []int
		code       string // where ours to choose
		message    string
		retryAfter string
	}{
		{knobs: "fault=error_event_first", streams: []bool{true}, status: []int{500, 502}, message: "The simulated engine died."},
		{knobs: "fault=empty200", streams: []bool{true, false}, status: []int{502}, code: "provider_error"},
		{knobs: "fault=close", streams: []bool{true, false}, status: []int{502}, code: "provider_error"},
		{knobs: "fault=reset", streams: []bool{true, false}, status: []int{502}, code: "provider_error"},
		{knobs: "fault=midclose,after=0", streams: []bool{true}, status: []int{200, 502}},
		{knobs: "redirect", streams: []bool{true, false}, status: []int{502}, code: "provider_error"},
		{knobs: "status=500", streams: []bool{true, false}, status: []int{502}, code: "provider_error", message: "The simulator was told"},
		{knobs: "status=503,retry_after=7", streams: []bool{true, false}, status: []int{502, 503}, message: "The simulator was told"},
		{knobs: "status=429,retry_after=7", streams: []bool{true, false}, status: []int{429}, code: "rate_limit_exceeded", retryAfter: "7"},
		{knobs: "status=429,retry_after=86400", streams: []bool{true}, status: []int{429}, retryAfter: "60"},
		{knobs: "status=422,error_shape=detail", streams: []bool{true, false}, status: []int{422}, message: "The simulator was told"},
		{knobs: "status=500,error_shape=html", streams: []bool{true, false}, status: []int{502}, code: "provider_error"},
		{knobs: "status=401", streams: []bool{true, false}, status: []int{502}, code: "provider_error"},
		{knobs: "midreset", streams: []bool{false}, status: []int{502}},
		{knobs: "midabort", streams: []bool{false}, status: []int{502}},
	}
	for _, c := range cases {
		for _, stream := range c.streams {
			t.Run(fmt.Sprintf("%s/stream=%v", c.knobs, stream), func(t *testing.T) {
				s, model := s, model
				if strings.Contains(c.knobs, "retry_after") { // the whole provider is left alone for so long
					s, model = newFailingStack(t, 1)
				}
				a := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat(model(), c.knobs, stream)).end(t, patience)
				if !slices.Contains(c.status, a.status) || a.err != nil {
					t.Fatalf("not %v: %s", c.status, a)
				}
				if a.status == http.StatusOK {
					if err := a.broken(); err != nil {
						t.Error(err)
					}
					return
				}
				var e errorObject
				if err := json.Unmarshal([]byte(a.body.String()), &e); err != nil || e.Error == nil || e.Error.Message == "" || e.Error.Type == "" {
					t.Fatalf("no error object: %s", a)
				}
				if c.code != "" && e.Error.Code != c.code || !strings.Contains(e.Error.Message, c.message) || c.retryAfter != "" && a.header.Get("Retry-After") != c.retryAfter {
					t.Errorf("code %v, message %q, Retry-After %q", e.Error.Code, e.Error.Message, a.header.Get("Retry-After"))
				}
				if strings.Contains(a.body.String(), "127.0.0.1") {
					t.Errorf("it tells where it came from: %s", a)
				}
			})
		}
	}
	for _, r := range s.sims[0].requests(t) {
		if strings.HasPrefix(r.Path, "/redirected") {
			t.Errorf("a redirect was followed: %+v", r)
		}
	}
	s.healthy(t)
}

// requests are those that the simulator remembers.
func (s *simulator) requests(t *testing.T) (list []struct{ Method, Path, Body string }) {
	t.Helper()
	s.control(t, "GET", "/sim/requests", nil, &list)
	return list
}

// TestOtherTarget has one Node whose provider fails and one whose provider works: no client sees the first, and no
// request goes on for ever.
func TestOtherTarget(t *testing.T) {
	t.Parallel()
	s := newEdge(t)
	bad, good := s.startSim(), s.startSim()
	s.startNode("node-bad", "--provider", "sim="+bad.url)
	s.startNode("node-good", "--provider", "sim="+good.url)
	s.online("node-bad", patience)
	s.online("node-good", patience)
	for _, fault := range []map[string]any{
		{"status": "503", "retry_after": "3"}, {"status": "429", "retry_after": "3"}, {"status": "502"}, {"status": "504"},
	} {
		bad.control(t, "POST", "/sim/config", fault, nil)
		for i := range 10 {
			a := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=3", i%2 == 0)).end(t, patience)
			if a.status != http.StatusOK {
				t.Errorf("%v: %s", fault, a)
			}
		}
		good.control(t, "POST", "/sim/config", fault, nil) // now there is no other
		startedBad, startedGood := bad.stats(t).Started, good.stats(t).Started
		a := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "", true)).end(t, patience)
		if limited := fault["status"] == "429"; limited && (a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") != "3") || !limited && a.status < 500 {
			t.Errorf("%v on both: %s, %v", fault, a, a.header)
		}
		if n := bad.stats(t).Started - startedBad + good.stats(t).Started - startedGood; n != 2 {
			t.Errorf("%v on both: it was tried %d times", fault, n)
		}
		for _, sim := range []*simulator{bad, good} {
			sim.control(t, "DELETE", "/sim/config", nil, nil)
		}
	}
	if bad.stats(t).Rejected == 0 {
		t.Error("the failing Node was never tried: the test shows nothing")
	}
	s.quiet()
}

// TestProviderKilled kills the provider's process in mid-stream, and while a request waits for its first token.
func TestProviderKilled(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackConfig{})
	mid := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=100000,itl=20ms", true))
	mid.reaches(t, 3, patience)
	early := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "ttft=60s", true))
	unary := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "ttft=60s", false))
	s.sims[0].active(t, 3)
	s.sims[0].kill()
	if err := mid.end(t, patience).broken(); err != nil {
		t.Error(err)
	}
	for _, a := range []*answer{early, unary} {
		if a.end(t, patience); a.status != http.StatusBadGateway {
			t.Error(a)
		}
	}
	s.quiet()
	s.calm(t, s.metric("go_goroutines"), s.nodes[0])
}

// TestNodeKilled kills a Node in mid-stream, beside another that has the same model.
func TestNodeKilled(t *testing.T) {
	t.Parallel()
	s := newEdge(t)
	one, two := s.startSim("--slots", "32"), s.startSim("--slots", "32")
	s.startNode("node-1", "--provider", "sim="+one.url)
	generation := s.online("node-1", patience)
	// All of these are with node-1: there is no other yet.
	begun := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=100000,itl=20ms", true))
	begun.reaches(t, 3, patience)
	var silent []*answer
	for i := range 4 {
		silent = append(silent, s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "ttft=3s,tokens=5", i%2 == 0)))
	}
	one.active(t, 5)
	s.startNode("node-2", "--provider", "sim="+two.url)
	s.online("node-2", patience)
	s.nodes[0].kill()
	if err := begun.end(t, patience).broken(); err != nil {
		t.Error("the stream that had begun:", err)
	}
	for i, a := range silent {
		a.end(t, patience)
		if i%2 == 0 && a.whole() != nil || a.status != http.StatusOK {
			t.Error("a request without a byte was not tried again:", a)
		}
		if r := s.run(a.header.Get("X-Iop-Run-Id")); r.Node != "node-2" || r.Attempts != 2 {
			t.Errorf("it ran as %+v", r)
		}
	}
	one.active(t, 0) // a Node's death is the end of its requests
	s.quiet()
	s.startNode("node-1", "--provider", "sim="+one.url)
	if again := s.online("node-1", patience); again <= generation {
		t.Errorf("generation %d after %d", again, generation)
	}
	s.nodes[1].kill() // node-1 is alone again
	s.healthy(t)
}

// TestNodeWithoutPower loses a Node in the way that no RST tells of: its packets are gone. Others do not feel it; what
// waited there without a byte goes elsewhere.
func TestNodeWithoutPower(t *testing.T) {
	t.Parallel()
	s := newEdge(t)
	lost, kept := s.startSim("--slots", "64"), s.startSim("--slots", "64")
	link := newRelay(t, s.edgeAddr(), 0)
	s.nodeVia(link.addr, "node-lost", "--provider", "sim="+lost.url)
	s.online("node-lost", patience)
	begun := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=100000,itl=20ms", true))
	begun.reaches(t, 3, patience)
	var waiting []*answer
	for i := range 4 {
		waiting = append(waiting, s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "ttft=2s,tokens=5", i%2 == 0)))
	}
	lost.active(t, 5)
	s.startNode("node-kept", "--provider", "sim="+kept.url)
	s.online("node-kept", patience)
	other := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=1500,itl=20ms", true))
	other.reaches(t, 3, patience)
	if kept.stats(t).Active != 1 {
		t.Fatal("the stream is not on the idle Node")
	}
	usual := s.unaryTime(t, 5)

	began := time.Now()
	link.silence()
	if hurt := s.unaryTime(t, 20); hurt > 3*usual+500*time.Millisecond {
		t.Errorf("requests took %s beside the silent Node, %s before", hurt, usual)
	}
	for i, a := range waiting {
		a.end(t, 90*time.Second)
		if i%2 == 0 && a.whole() != nil || a.status != http.StatusOK {
			t.Error("a request without a byte was not tried again:", a)
		}
	}
	if err := begun.end(t, patience).broken(); err != nil {
		t.Error("the stream that had begun:", err)
	}
	if took := time.Since(began); took > 60*time.Second {
		t.Errorf("that took %s", took)
	}
	if err := other.end(t, 90*time.Second).whole(); err != nil {
		t.Error("the stream on the other Node:", err)
	}
	if gap := other.longestGap(); gap > 20*time.Second {
		t.Errorf("the stream on the other Node stood still for %s", gap)
	}
	if n := s.node("node-lost"); n.State != "offline" {
		t.Errorf("the silent Node is %+v", n)
	}
	link.resume()
	s.online("node-lost", 60*time.Second)
	s.quiet()
}

// unaryTime is the median time of n requests, one after the other.
func (s *stack) unaryTime(t *testing.T, n int) time.Duration {
	t.Helper()
	times := make([]time.Duration, n)
	for i := range times {
		began := time.Now()
		if res, body := s.post("/v1/chat/completions", chat("sim-small", "tokens=3", false)); res.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", res.Status, body)
		}
		times[i] = time.Since(began)
	}
	slices.Sort(times)
	return times[n/2]
}

// longestGap is the longest time between two events.
func (a *answer) longestGap() (longest time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := 1; i < len(a.arrived); i++ {
		longest = max(longest, a.arrived[i].Sub(a.arrived[i-1]))
	}
	return longest
}
