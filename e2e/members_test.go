package e2e

import (
	"context"
	"strings"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/shared"
)

// TestUnknownMembersWithLimits: a member that the Edge does not know gets through neither with a limited key nor on a limited
// route, until the operator allows it. The official SDK works with both.
func TestUnknownMembersWithLimits(t *testing.T) {
	t.Parallel()
	const capped = "routes:\n  - model: capped\n    parameters:\n      caps: {max_tokens: 50}\n      refuse: [num_gpu]\n    targets: [{model: sim-small}]\n"
	s := newRouted(t, capped)
	sim := s.startSim("--models", "sim-small,sim-large", "--flavour", "ollama")
	s.launchNode("node-1", "--provider", "sim:ollama="+sim.url)
	s.serving("node-1", "sim-large")
	free, listed := s.newKey("free"), s.newKey("listed", "--routes", "sim-*")
	ask := func(key, path, body string) (int, string) {
		t.Helper()
		a := s.askAs(context.Background(), key, path, body, nil)
		<-a.done
		if a.err != nil {
			t.Fatal(a.err)
		}
		return a.status, a.body.String()
	}
	const unknown = `{"model":"MODEL","messages":[{"role":"user","content":"x"}],"stream":false,"brand_new":1}`
	inNamed := func(model string) string { return strings.Replace(unknown, "MODEL", model, 1) }
	for _, test := range []struct{ key, path, body, refused string }{
		{listed, "/v1/chat/completions", inNamed("sim-large"), "brand_new"}, {free, "/v1/chat/completions", inNamed("capped"), "brand_new"},
		{listed, "/v1/messages", inNamed("sim-large"), "brand_new"}, {free, "/api/chat", inNamed("capped"), "brand_new"},
		{free, "/api/chat", strings.Replace(inNamed("capped"), `"brand_new":1`, `"options":{"num_gpu":0}`, 1), "options.num_gpu"},
		{free, "/api/chat", strings.Replace(inNamed("capped"), `"brand_new":1`, `"options":{"Num_GPU":0}`, 1), "options.Num_GPU"},
	} {
		status, body := ask(test.key, test.path, test.body)
		if status != 400 || !strings.Contains(body, test.refused+" is not forwarded") {
			t.Errorf("%s %s: %d %s", test.path, test.body, status, body)
		}
	}
	if n := len(sim.inferences(t)); n != 0 {
		t.Fatalf("the provider got %d requests", n)
	}
	if status, body := ask(free, "/v1/chat/completions", inNamed("sim-large")); status != 200 {
		t.Errorf("without limits: %d %s", status, body)
	}
	before := s.config().Digest
	writeRoutes(t, s.file, strings.Replace(capped, "refuse: [num_gpu]", "allow: [brand_new]", 1))
	s.configBecomes("it allows the member", func(c configState) bool { return c.Digest != before })
	s.edge.line("capped: now allows the members: brand_new", patience)
	if status, body := ask(free, "/api/chat", inNamed("capped")); status != 200 {
		t.Errorf("allowed: %d %s", status, body)
	}
	if got := sim.inferences(t); len(got) != 2 || !strings.Contains(got[1].Body, `"brand_new":1`) {
		t.Errorf("the provider got %+v", got)
	}
	for key, model := range map[string]string{free: "capped", listed: "sim-large"} {
		client := goClient(s.url+"/v1", key)
		p := goChatFor(model, "hello", "tokens=3")
		p.Temperature, p.TopP, p.Seed, p.MaxCompletionTokens = openai.Float(1), openai.Float(1), openai.Int(1), openai.Int(20)
		p.ReasoningEffort, p.Metadata, p.Store = shared.ReasoningEffortLow, shared.Metadata{"a": "b"}, openai.Bool(false)
		if a, err := client.Chat.Completions.New(t.Context(), p); err != nil || len(a.Choices) != 1 {
			t.Errorf("%s: %v", model, err)
		}
	}
}
