package gateway_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"iop/execution"
	"iop/gateway"
	"iop/tunnel"
)

func TestCountTokensNeverWaits(t *testing.T) {
	e := newEdge(t, func(c *gateway.Config) { c.QueueTimeout = time.Minute })
	const body = `{"model":"m","messages":[{"role":"user","content":"one two three four five six"}]}`
	e.addProvider("n1", runsOn("openai"), answerEvents(completed, started, hello, stop), "m")
	status, h, answer := e.post("/v1/messages/count_tokens?beta=true", body)
	if status != 200 || h.Get("X-Iop-Token-Count") != "estimated" || !strings.HasPrefix(answer, `{"input_tokens":`) || h.Get("Request-Id") == "" {
		t.Errorf("%d %v %s", status, h, answer)
	}
	codes := make(chan execution.Code, 1)
	release := make(chan struct{})
	busy := tunnel.ProviderInfo{Adapter: "anthropic", Capacity: 1, OperationsKnown: true, Operations: []string{"messages", "messages.count_tokens"}}
	e.addProvider("n2", busy, func(_ context.Context, run *tunnel.NodeRun) {
		if run.Open().GetProviderTunnel().GetOperation() == "messages" {
			<-release
		}
		answerJSON(200, `{"input_tokens":6}`)(context.Background(), run)
	}, "raw")
	raw := strings.Replace(body, `"m"`, `"raw"`, 1)
	if status, h, answer := e.post("/v1/messages/count_tokens", raw); status != 200 || answer != `{"input_tokens":6}` || h.Get("X-Iop-Token-Count") != "" {
		t.Errorf("%d %v %s", status, h, answer)
	}
	go func() {
		status, _, _ := e.post("/v1/messages", strings.Replace(raw, `{`, `{"max_tokens":5,`, 1))
		if status != 200 {
			t.Errorf("%d", status)
		}
		codes <- 0
	}()
	e.eventually("the one place is taken", func() bool { return e.lastRun().State == "active" })
	if status, h, answer := e.post("/v1/messages/count_tokens", raw); status != 200 || h.Get("X-Iop-Token-Count") != "estimated" {
		t.Errorf("%d %v %s", status, h, answer)
	}
	close(release)
	<-codes
	e.idle()
}
