package gateway_test

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"iop/execution"
	"iop/gateway"
	"iop/tunnel"
)

// What is gathered counts against the body budget, and is given back.
func TestNormalizedAnswerIsPaidFor(t *testing.T) {
	e := newEdge(t, func(c *gateway.Config) { c.MaxBodyBytes, c.BodyBudget = 1<<20, 4<<20 })
	e.addProvider("n1", runsOn("openai"), func(ctx context.Context, run *tunnel.NodeRun) {
		piece := tunnel.AppendRunEvent(nil, &execution.Event{Kind: execution.EventText, Text: strings.Repeat("x", 64<<10)})
		for run.Events(piece) == nil && ctx.Err() == nil {
		}
		<-ctx.Done()
		run.End(failed(execution.CodeInternal, execution.PhaseStreaming))
	}, "m")
	for range 2 {
		status, h, answer := families["messages"].ask(e, false)
		if status != http.StatusServiceUnavailable || h.Get("Retry-After") == "" {
			t.Errorf("%d: %s", status, answer)
		}
		e.idle()
	}
}

// What a stream's protocol repeats at its end counts against the body budget while it grows. Where there is no room the
// stream ends with the family's own error, and the run at its provider.
func TestResponsesStreamIsPaidFor(t *testing.T) {
	e := newEdge(t, func(c *gateway.Config) { c.MaxBodyBytes, c.BodyBudget = 1<<20, 4<<20 })
	end := execution.Terminal{Outcome: execution.Cancelled, Code: execution.CodeInternal, Phase: execution.PhaseStreaming, Usage: used}
	e.addProvider("n1", runsOn("openai"), func(ctx context.Context, run *tunnel.NodeRun) {
		_, _ = io.Copy(io.Discard, run)
		piece := tunnel.AppendRunEvent(nil, &execution.Event{Kind: execution.EventText, Text: strings.Repeat("x", 32<<10)})
		for ctx.Err() == nil && run.Events(piece) == nil {
		}
		<-ctx.Done()
		run.End(end)
	}, "m")
	f := families["responses"]
	for range 2 {
		status, _, answer := f.ask(e, true)
		if status != http.StatusOK || strings.Count(answer, f.broken) != 1 || strings.Count(answer, `"type":"response.failed"`) != 1 || strings.Contains(answer, f.done) {
			t.Errorf("%d: %.300s ... %s", status, answer, answer[max(0, len(answer)-900):])
		}
		if !strings.Contains(answer, `"code":"overloaded"`) || !strings.Contains(answer, "xxxx") {
			t.Errorf("it says %s", answer[max(0, len(answer)-900):])
		}
		if run := e.lastRun(); run.Outcome != "failed" || run.Code != "internal" || run.Usage == nil || *run.Usage != used {
			t.Errorf("%+v", run)
		}
		e.idle()
	}
}

// A stream in a protocol that repeats nothing is not held, however long it is, and one that is whole costs nothing after its end.
func TestStreamsThatFit(t *testing.T) {
	e := newEdge(t, func(c *gateway.Config) { c.MaxBodyBytes, c.BodyBudget = 1<<20, 4<<20 })
	pieces := map[string]int{"chat": 300, "messages": 300, "ollama chat": 300, "responses": 12}
	for name, n := range pieces {
		piece := &execution.Event{Kind: execution.EventText, Text: strings.Repeat("x", 32<<10)}
		events := append(slices.Repeat([]*execution.Event{piece}, n), stop)
		e.addProvider(strings.ReplaceAll(name, " ", "-"), runsOn("openai"), answerEvents(completed, events...), name)
		f := families[name]
		body := strings.Replace(f.with(true), `"model":"m"`, `"model":"`+name+`"`, 1)
		if status, _, answer := e.post(f.path, body); status != http.StatusOK || !strings.Contains(answer, f.done) || len(answer) < n*32<<10 {
			t.Errorf("%s: %d, %d bytes, %s", name, status, len(answer), answer[max(0, len(answer)-200):])
		}
		e.idle()
	}
}

// An answer that the client's protocol can't carry on ends at once: nothing more is generated for nobody.
func TestNormalizedEndsWhereTheProtocolDoes(t *testing.T) {
	e := newEdge(t, nil)
	call := func(index int, id, arguments string) []byte {
		return tunnel.AppendRunEvent(nil, &execution.Event{Kind: execution.EventToolCall,
			Call: execution.ToolCallDelta{Index: index, ID: id, Name: id, Arguments: arguments}})
	}
	e.addProvider("n1", runsOn("openai"), func(ctx context.Context, run *tunnel.NodeRun) {
		for _, ev := range [][]byte{call(0, "a", `{}`), call(1, "b", `{}`), call(0, "", `{"more":1}`)} {
			_ = run.Events(ev)
		}
		select { // the provider goes on for as long as it is let
		case <-ctx.Done():
		case <-time.After(30 * time.Second):
			t.Error("the run goes on")
		}
		run.End(failed(execution.CodeProviderError, execution.PhaseStreaming))
	}, "m")
	for _, name := range []string{"messages", "responses"} {
		f := families[name]
		if _, _, answer := f.ask(e, true); strings.Count(answer, f.broken) != 1 || strings.Contains(answer, f.done) || !strings.Contains(answer, `"name":"b"`) {
			t.Errorf("%s: %s", name, answer)
		}
		if run := e.lastRun(); run.Outcome != "failed" || run.Code != "provider_error" {
			t.Errorf("%s: %+v", name, run)
		}
		e.idle()
	}
}

// Events that are none may come together with the run's end, which is not waited for again: its usage counts.
func TestMalformedEventsAtTheEnd(t *testing.T) {
	e := newEdge(t, nil)
	e.addProvider("n1", runsOn("openai"), func(_ context.Context, run *tunnel.NodeRun) {
		_, _ = io.Copy(io.Discard, run)
		_ = run.Events(append(tunnel.AppendRunEvent(nil, hello), 3, 0xff, 0xff, 0xff))
		run.End(completed)
	}, "m")
	for range 5 {
		if status, _, answer := families["chat"].ask(e, false); status != http.StatusBadGateway {
			t.Errorf("%d: %s", status, answer)
		}
		if run := e.lastRun(); run.Code != "protocol" || run.Outcome != "failed" || run.Usage == nil || *run.Usage != used {
			t.Errorf("%+v", run)
		}
		e.idle()
	}
}

// A default of the route is no word of the client's: where its protocol or the provider's has none for it, the run goes
// without. What the client asked for itself is still refused.
func TestDefaultsThatCantBeCarried(t *testing.T) {
	path := filepath.Join(t.TempDir(), "iop.yaml")
	writeRoutes(t, path, "routes:\n  - model: m\n    parameters:\n      defaults: {seed: 7, top_k: 4, logit_bias: {}, template: x}\n      caps: {max_tokens: 5}\n")
	e := newEdge(t, func(c *gateway.Config) { c.Config = path })
	got := make(chan *execution.Input, 8)
	e.addProvider("n1", runsOn("anthropic"), func(ctx context.Context, run *tunnel.NodeRun) {
		body, _ := io.ReadAll(run)
		in, err := execution.ParseInput(body)
		if err != nil {
			t.Error(err)
		}
		if in.Sampling.Seed != nil {
			refusal := failure(execution.Failure{Status: 400, Unsupported: true, Param: execution.ParamSeed, Message: "no seed"})
			answerEvents(execution.Terminal{Outcome: execution.Rejected, Code: execution.CodeBadRequest, Phase: execution.PhaseAdmitted}, refusal)(ctx, run)
			return
		}
		got <- in
		answerEvents(completed, started, hello, stop)(ctx, run)
	}, "m")
	for name, f := range families {
		if status, _, answer := f.ask(e, false); status != http.StatusOK {
			t.Errorf("%s: %d %s", name, status, answer)
			continue
		}
		if s := (<-got).Sampling; s.MaxTokens == nil || *s.MaxTokens != 5 {
			t.Errorf("%s: %+v", name, s)
		}
		e.idle()
	}
	if status, _, answer := e.post("/v1/chat/completions", `{"model":"m","seed":1,"messages":[{"role":"user","content":"hi"}]}`); status != http.StatusBadRequest || !strings.Contains(answer, `"param":"seed"`) {
		t.Errorf("the client's own: %d %s", status, answer)
	}
	e.idle()
}

// Of the client's headers a normalized run has what is no matter of the client's protocol: by which gateways the request
// came, its trace, and what the Node's adapter may want.
func TestNormalizedHeaders(t *testing.T) {
	e := newEdge(t, nil)
	got := make(chan map[string]string, 1)
	e.addProvider("n1", runsOn("anthropic"), func(ctx context.Context, run *tunnel.NodeRun) {
		names := map[string]string{}
		for _, h := range run.Open().GetRun().GetHeaders() {
			names[h.GetName()] = h.GetValue()
		}
		got <- names
		answerEvents(completed, started, hello, stop)(ctx, run)
	}, "m")
	req := e.request(http.MethodPost, "/v1/chat/completions", families["chat"].with(false))
	for name, value := range map[string]string{
		"Anthropic-Beta": "b", "Traceparent": "t", "Tracestate": "s", "User-Agent": "u", "X-Api-Key": "sk-1", "Cookie": "c", "Openai-Beta": "o",
	} {
		req.Header.Set(name, value)
	}
	e.do(req).Body.Close()
	names := <-got
	if names["anthropic-beta"] != "b" || names["traceparent"] != "t" || names["tracestate"] != "s" || names["via"] == "" || len(names) != 4 {
		t.Errorf("%v", names)
	}
	e.idle()
}

// An answer that is gathered is bounded, and so is one event.
func TestNormalizedAnswerIsBounded(t *testing.T) {
	e := newEdge(t, nil)
	cancelled := make(chan struct{})
	e.addProvider("n1", runsOn("openai"), func(ctx context.Context, run *tunnel.NodeRun) {
		big := tunnel.AppendRunEvent(nil, &execution.Event{Kind: execution.EventText, Text: strings.Repeat("x", 512<<10)})
		for run.Events(big) == nil && ctx.Err() == nil {
		}
		<-ctx.Done()
		run.End(failed(execution.CodeResponseTooLarge, execution.PhaseStreaming))
		close(cancelled)
	}, "m")
	status, _, answer := families["chat"].ask(e, false)
	if status != 502 {
		t.Errorf("%d: %s", status, answer)
	}
	<-cancelled
	if run := e.lastRun(); run.Code != "response_too_large" {
		t.Errorf("%+v", run)
	}
	e.idle()
}
