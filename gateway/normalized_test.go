package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"iop/execution"
	"iop/gateway"
	"iop/tunnel"
)

// runsOn is a provider that has none of the operations itself: its adapter of that kind runs all.
func runsOn(adapter string, operations ...string) tunnel.ProviderInfo {
	return tunnel.ProviderInfo{Adapter: adapter, Capacity: 8, OperationsKnown: true, Operations: operations, Runs: true}
}

// The events of a small answer.
var (
	started = &execution.Event{Kind: execution.EventStarted, Started: &execution.Started{ID: "x", Model: "theirs", Created: time.Unix(1, 0)}}
	hello   = &execution.Event{Kind: execution.EventText, Text: "Hel"}
	world   = &execution.Event{Kind: execution.EventText, Text: "lo"}
	stop    = &execution.Event{Kind: execution.EventFinish, Finish: execution.Finish{Reason: execution.FinishStop}}
)

func failure(f execution.Failure) *execution.Event {
	return &execution.Event{Kind: execution.EventFailure, Failure: &f}
}

var (
	used      = execution.Usage{Input: 7, Output: 2, Known: true}
	completed = execution.Terminal{Outcome: execution.Completed, Phase: execution.PhaseProviderDone, Usage: used}
)

func failed(code execution.Code, phase execution.Phase) execution.Terminal {
	return execution.Terminal{Outcome: execution.Failed, Code: code, Phase: phase}
}

// answerEvents is a Node's adapter that answers with the events, each in a frame of its own, and the end.
func answerEvents(end execution.Terminal, events ...*execution.Event) handler {
	return func(_ context.Context, run *tunnel.NodeRun) {
		_, _ = io.Copy(io.Discard, run)
		for _, ev := range events {
			_ = run.Events(tunnel.AppendRunEvent(nil, ev))
		}
		run.End(end)
	}
}

// family is how a client of one protocol asks, and what it is told.
type family struct {
	path, body, stream string // the member that asks for a stream, or for none
	// What stands in the whole answer, at the end of a stream, and in a stream that failed.
	whole, done, broken string
	// What stands in an answer with an error status.
	refused string
}

var families = map[string]family{
	"chat": {
		path: "/v1/chat/completions", body: `{"model":"m","messages":[{"role":"user","content":"hi"}]%s}`, stream: `,"stream":true`,
		whole: `"content":"Hello"`, done: "data: [DONE]\n\n", broken: `data: {"error":{"message":`, refused: `{"error":{"message":`,
	},
	"responses": {
		path: "/v1/responses", body: `{"model":"m","input":"hi"%s}`, stream: `,"stream":true`,
		whole: `"text":"Hello"`, done: `"type":"response.completed"`, broken: "event: error\ndata: ", refused: `{"error":{"message":`,
	},
	"messages": {
		path: "/v1/messages", body: `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]%s}`, stream: `,"stream":true`,
		whole: `"text":"Hello"`, done: "event: message_stop\n", broken: "event: error\ndata: {\"type\":\"error\"", refused: `{"type":"error","error":{"type":`,
	},
	"ollama chat": {
		path: "/api/chat", body: `{"model":"m","messages":[{"role":"user","content":"hi"}]%s}`,
		whole: `"content":"Hello"`, done: `"done":true`, broken: `{"error":"`, refused: `{"error":"`,
	},
	"ollama generate": {
		path: "/api/generate", body: `{"model":"m","prompt":"hi"%s}`,
		whole: `"response":"Hello"`, done: `"done":true`, broken: `{"error":"`, refused: `{"error":"`,
	},
}

// ask sends the family's request, and returns the whole answer.
func (f family) ask(e *edge, stream bool) (status int, h http.Header, answer string) {
	e.t.Helper()
	return e.post(f.path, f.with(stream))
}

func (f family) with(stream bool) string {
	more := ""
	switch {
	case stream:
		more = f.stream
	case f.stream == "":
		more = `,"stream":false`
	}
	return fmt.Sprintf(f.body, more)
}

// eachFamily runs a test for each family of clients, with and without a stream.
func eachFamily(t *testing.T, test func(t *testing.T, f family, stream bool)) {
	for name, f := range families {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/stream=%v", name, stream), func(t *testing.T) { test(t, f, stream) })
		}
	}
}

// eachStream is eachFamily for what concerns streams alone.
func eachStream(t *testing.T, test func(t *testing.T, f family)) {
	for name, f := range families {
		t.Run(name, func(t *testing.T) { test(t, f) })
	}
}

func TestNormalizedAnswer(t *testing.T) {
	eachFamily(t, func(t *testing.T, f family, stream bool) {
		e := newEdge(t, nil)
		e.addProvider("n1", runsOn("anthropic"), answerEvents(completed, started, hello, world, stop), "m")
		status, h, answer := f.ask(e, stream)
		if status != http.StatusOK || h.Get("X-Iop-Execution") != "normalized" {
			t.Fatalf("%d, execution %q: %s", status, h.Get("X-Iop-Execution"), answer)
		}
		want := f.whole
		if stream {
			want = f.done
		}
		if strings.Count(answer, want) != 1 || strings.Contains(answer, "theirs") || !strings.Contains(answer, `"model":"m"`) {
			t.Errorf("want %q once, and the model's name as the client has it: %s", want, answer)
		}
		if !stream && !json.Valid([]byte(answer)) {
			t.Errorf("no JSON: %s", answer)
		}
		if run := e.lastRun(); run.Outcome != "completed" || run.Usage == nil || *run.Usage != used {
			t.Errorf("the run: %+v", run)
		}
		e.idle()
	})
}

func TestRawIsSaidToBeRaw(t *testing.T) {
	e := newEdge(t, nil)
	e.addProvider("n1", runsOn("openai", "chat.completions"), answerJSON(200, `{}`), "m")
	if status, h, answer := e.post("/v1/chat/completions", `{"model":"m","messages":[]}`); status != 200 || h.Get("X-Iop-Execution") != "raw" {
		t.Errorf("%d, execution %q: %s", status, h.Get("X-Iop-Execution"), answer)
	}
	e.idle()
}

// fault is one way in which a provider fails a normalized run.
type fault struct {
	name   string
	events []*execution.Event
	end    execution.Terminal
	// What the client is told where nothing of the answer was sent.
	status int
	told   string
	retry  string // X-Should-Retry
}

var overflow = failure(execution.Failure{Status: 400, Type: "invalid_request_error", Code: "context_length_exceeded", Message: "the prompt is too long"})

var faults = []fault{
	{name: "the engine refuses", events: []*execution.Event{overflow}, end: failed(execution.CodeProviderError, execution.PhaseProviderCalled),
		status: 400, told: "the prompt is too long", retry: "false"},
	{name: "the operator's access", events: []*execution.Event{failure(execution.Failure{Status: 401, Message: "bad key sk-1"})},
		end: failed(execution.CodeProviderError, execution.PhaseProviderCalled), status: 502, told: "refused the operator's access", retry: "false"},
	{name: "overloaded", events: []*execution.Event{failure(execution.Failure{Status: 529, Message: "come later", RetryAfter: 3 * time.Second})},
		end: failed(execution.CodeProviderError, execution.PhaseProviderCalled), status: 503, told: "come later"},
	{name: "an error first in the stream", events: []*execution.Event{started, failure(execution.Failure{Message: "out of memory"})},
		end: failed(execution.CodeProviderError, execution.PhaseStreaming), status: 502, told: "out of memory"},
	{name: "it dies before its answer", end: failed(execution.CodeProviderError, execution.PhaseProviderCalled), status: 502, told: "failed to answer"},
	{name: "no terminal", events: []*execution.Event{started}, end: failed(execution.CodeProviderTruncated, execution.PhaseStreaming),
		status: 502, told: "before it was complete"},
	{name: "completed without a finish", events: []*execution.Event{started}, end: completed, status: 502, told: ""},
	{name: "the adapter refuses", events: []*execution.Event{failure(execution.Failure{Status: 400, Unsupported: true, Param: execution.ParamMaxTokens, Message: "not there"})},
		end: execution.Terminal{Outcome: execution.Rejected, Code: execution.CodeBadRequest, Phase: execution.PhaseAdmitted}, status: 400, told: "not there", retry: "false"},
}

// Before anything of the answer was sent a failure is a status, with the family's own error.
func TestNormalizedFailsBeforeItsAnswer(t *testing.T) {
	e := newEdge(t, nil) // one of all, as each fault has a Node of its own
	n := 0
	for _, ft := range faults {
		t.Run(ft.name, func(t *testing.T) {
			eachFamily(t, func(t *testing.T, f family, stream bool) {
				n++
				name := fmt.Sprint("n", n)
				defer e.addProvider(name, runsOn("openai"), answerEvents(ft.end, ft.events...), "m").leave(e, name)
				status, h, answer := f.ask(e, stream)
				if status != ft.status || !strings.HasPrefix(answer, f.refused) || !strings.Contains(answer, ft.told) || strings.Contains(answer, "sk-1") {
					t.Errorf("%d, want %d: %s", status, ft.status, answer)
				}
				if !json.Valid([]byte(answer)) || h.Get("Content-Type") != "application/json" || h.Get("X-Should-Retry") != ft.retry {
					t.Errorf("%v: %s", h, answer)
				}
				e.idle()
			})
		})
	}
}

// leave ends the Node, and waits until the Edge knows.
func (n *node) leave(e *edge, name string) {
	n.stop()
	e.eventually("node "+name+" is offline", func() bool { return e.nodeState(name) != "online" })
}

// After it, it is the family's own error in the stream, once, with nothing behind it and no terminal beside it.
func TestNormalizedFailsInItsAnswer(t *testing.T) {
	for _, ft := range faults[3:7] {
		t.Run(ft.name, func(t *testing.T) {
			eachStream(t, func(t *testing.T, f family) {
				e := newEdge(t, nil)
				events := append([]*execution.Event{started, hello}, ft.events...)
				if len(ft.events) > 0 && ft.events[0] == started {
					events = append([]*execution.Event{started, hello}, ft.events[1:]...)
				}
				e.addProvider("n1", runsOn("openai"), answerEvents(ft.end, events...), "m")
				status, _, answer := f.ask(e, true)
				if status != http.StatusOK || strings.Count(answer, f.broken) != 1 || strings.Contains(answer, f.done) || !strings.Contains(answer, "Hel") {
					t.Errorf("%d: %s", status, answer)
				}
				if !strings.Contains(answer, ft.told) {
					t.Errorf("want %q: %s", ft.told, answer)
				}
				if run := e.lastRun(); run.Outcome != "failed" {
					t.Errorf("the run: %+v", run)
				}
				e.idle()
			})
		})
	}
}

// What one adapter can't carry another one may; a target of the same kind is not asked.
func TestUnsupportedGoesToAnotherKind(t *testing.T) {
	e := newEdge(t, nil)
	asked := make(chan string, 8)
	refuses := func(name string) handler {
		return func(ctx context.Context, run *tunnel.NodeRun) {
			asked <- name
			answerEvents(faults[7].end, faults[7].events...)(ctx, run)
		}
	}
	e.addProvider("a1", runsOn("anthropic"), refuses("a1"), "m")
	e.addProvider("a2", runsOn("anthropic"), refuses("a2"), "m")
	status, _, answer := families["responses"].ask(e, false)
	if status != 400 || !strings.Contains(answer, `"param":"max_output_tokens"`) || !strings.Contains(answer, `"code":"unsupported_parameter"`) {
		t.Errorf("%d: %s", status, answer)
	}
	if len(asked) != 1 {
		t.Errorf("%d targets of one kind were asked", len(asked))
	}
	e.addProvider("o1", runsOn("openai"), answerEvents(completed, started, hello, world, stop), "m")
	for range 4 {
		if status, _, answer := families["responses"].ask(e, false); status != 200 {
			t.Errorf("%d: %s", status, answer)
		}
	}
	e.idle()
}

// What can't be read as a normalized run goes where it is relayed raw, and is refused where that is nowhere.
func TestUnreadableGoesRaw(t *testing.T) {
	e := newEdge(t, nil)
	e.addProvider("n1", runsOn("anthropic"), answerEvents(completed, started, hello, stop), "m")
	const odd = `{"model":"m","messages":[{"role":"user","content":"hi"}],"no_such_parameter":1}`
	if status, _, answer := e.post("/v1/chat/completions", odd); status != 400 || !strings.Contains(answer, `"param":"no_such_parameter"`) {
		t.Errorf("%d: %s", status, answer)
	}
	e.addProvider("n2", runsOn("openai", "chat.completions"), answerJSON(200, `{"ok":1}`), "m")
	for range 4 {
		if status, h, answer := e.post("/v1/chat/completions", odd); status != 200 || answer != `{"ok":1}` || h.Get("X-Iop-Execution") != "raw" {
			t.Errorf("%d: %s", status, answer)
		}
	}
	e.idle()
}

func TestUnsupportedOperationIsRefusedAtOnce(t *testing.T) {
	e := newEdge(t, nil)
	e.addProvider("n1", tunnel.ProviderInfo{Adapter: "openai", Capacity: 1, OperationsKnown: true, Operations: []string{"embeddings"}}, answerJSON(200, `{}`), "m")
	for path, shape := range map[string]string{
		"/v1/chat/completions": `"code":"unsupported_operation"`,
		"/v1/messages":         `{"type":"error","error":{"type":"not_found_error"`,
		"/api/chat":            `{"error":"The providers of this model do not have /api/chat."}`,
	} {
		if status, h, answer := e.post(path, `{"model":"m","messages":[]}`); status != 404 || !strings.Contains(answer, shape) || h.Get("X-Should-Retry") != "false" {
			t.Errorf("%s: %d %s", path, status, answer)
		}
	}
	if status, _, answer := e.post("/v1/embeddings", `{"model":"m","input":"x"}`); status != 200 {
		t.Errorf("%d: %s", status, answer)
	}
	e.idle()
}

// A provider that refuses to be asked for usage is asked once more, without.
func TestNormalizedWithoutUsage(t *testing.T) {
	e := newEdge(t, nil)
	asked := make(chan bool, 8)
	e.addProvider("n1", runsOn("openai"), func(ctx context.Context, run *tunnel.NodeRun) {
		without := run.Open().GetRun().GetWithoutUsage()
		asked <- without
		if without {
			answerEvents(completed, started, hello, world, stop)(ctx, run)
			return
		}
		answerEvents(failed(execution.CodeProviderError, execution.PhaseProviderCalled),
			failure(execution.Failure{Status: 400, Message: "stream_options is not a parameter"}))(ctx, run)
	}, "m")
	for range 2 {
		if status, _, answer := families["messages"].ask(e, true); status != 200 || !strings.Contains(answer, families["messages"].done) {
			t.Fatalf("%d: %s", status, answer)
		}
	}
	close(asked)
	var got []bool
	for without := range asked {
		got = append(got, without)
	}
	if fmt.Sprint(got) != "[false true true]" {
		t.Errorf("it was asked without usage: %v", got)
	}
	e.idle()
}

// Retry-After of a provider that is full keeps runs away from it, and another one is tried.
func TestNormalizedRetriesElsewhere(t *testing.T) {
	e := newEdge(t, nil)
	full := failure(execution.Failure{Status: 429, Message: "too many", RetryAfter: 30 * time.Second})
	n := make(chan struct{}, 16)
	e.addProvider("full", runsOn("anthropic"), func(ctx context.Context, run *tunnel.NodeRun) {
		n <- struct{}{}
		answerEvents(failed(execution.CodeProviderError, execution.PhaseProviderCalled), full)(ctx, run)
	}, "m")
	e.addProvider("free", runsOn("anthropic"), answerEvents(completed, started, hello, world, stop), "m")
	for range 6 {
		if status, _, answer := families["chat"].ask(e, true); status != 200 || !strings.Contains(answer, "[DONE]") {
			t.Fatalf("%d: %s", status, answer)
		}
	}
	if len(n) > 1 {
		t.Errorf("the full one was asked %d times", len(n))
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

// A Node whose events are none ends that run alone, with the family's error.
func TestMalformedEvents(t *testing.T) {
	e := newEdge(t, nil)
	e.addProvider("n1", runsOn("openai"), func(ctx context.Context, run *tunnel.NodeRun) {
		_ = run.Events(tunnel.AppendRunEvent(nil, hello))
		_ = run.Events([]byte{3, 0xff, 0xff, 0xff})
		<-ctx.Done()
		run.End(failed(execution.CodeProtocol, execution.PhaseStreaming))
	}, "m")
	_, _, answer := families["chat"].ask(e, true)
	if strings.Count(answer, families["chat"].broken) != 1 || strings.Contains(answer, "[DONE]") {
		t.Errorf("%s", answer)
	}
	if run := e.lastRun(); run.Code != "protocol" || run.Outcome != "failed" {
		t.Errorf("%+v", run)
	}
	e.idle()
}

func TestSessionsAreIndependent(t *testing.T) {
	e := newEdge(t, nil)
	codes := make(chan execution.Code, 2)
	seen := make(chan string, 2)
	e.addNode("n1", 4, waiting(codes, func(run *tunnel.NodeRun) {
		seen <- run.Open().GetSessionId()
		startStream(run)
	}), "m")
	type answer struct {
		resp *http.Response
		err  error
	}
	ask := func(header, body string) answer {
		req := e.request(http.MethodPost, "/v1/chat/completions", body)
		if header != "" {
			req.Header.Set("X-Session-Id", header)
		}
		resp, err := e.client.Do(req)
		return answer{resp, err}
	}
	one := ask("s1", `{"model":"m","stream":true,"session_id":"other"}`)
	two := ask("", `{"model":"m","stream":true,"metadata":{"session_id":"s1"}}`)
	for _, a := range []answer{one, two} {
		if a.err != nil {
			t.Fatal(a.err)
		}
		defer a.resp.Body.Close()
		if got := a.resp.Header.Get("X-Iop-Session-Id"); got != "s1" || <-seen != "s1" {
			t.Errorf("session %q", got)
		}
	}
	id := one.resp.Header.Get("X-Iop-Run-Id")
	if status, _, body := e.post("/iop/v1/runs/"+id+"/cancel", ""); status != 200 || !strings.Contains(body, `"session_id":"s1"`) {
		t.Fatalf("%d %s", status, body)
	}
	if code := <-codes; code != execution.CodeCancelledByCaller {
		t.Errorf("cancelled with %v", code)
	}
	if rest, err := io.ReadAll(one.resp.Body); err != nil || !strings.Contains(string(rest), "run_cancelled") {
		t.Errorf("%q, %v", rest, err)
	}
	if body := e.get("/iop/v1/runs/" + two.resp.Header.Get("X-Iop-Run-Id")); !strings.Contains(body, `"state":"active"`) {
		t.Errorf("the other run of the session: %s", body)
	}
	two.resp.Body.Close()
	<-codes
	e.idle()
}

// A key in a path opens the Ollama paths and no others, and is seen nowhere.
func TestKeyInThePath(t *testing.T) {
	e := newEdge(t, nil)
	e.addProvider("n1", runsOn("ollama", "ollama.chat"), answerJSON(200, `{"done":true}`), "m:latest")
	keyed := func(method, path, body string) (int, string) {
		req := e.request(method, "/k/"+e.key+path, body)
		req.Header.Del("Authorization")
		resp := e.do(req)
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(data)
	}
	for _, tt := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"POST", "/api/chat", `{"model":"m","messages":[]}`, 200, `"done":true`},
		{"POST", "/api/chat", `{"model":"nobody","messages":[]}`, 404, `{"error":"`},
		{"GET", "/api/chat", "", 405, `{"error":"/api/chat takes POST only."}`},
		{"GET", "/api/tags", "", 200, `"name":"m:latest"`},
		{"GET", "/api/version", "", 200, `"version":`},
		{"POST", "/api/show", `{"model":"m"}`, 200, `"capabilities":`},
		{"POST", "/api/show", `{"model":"none"}`, 404, `{"error":"`},
		{"GET", "/", "", 200, "Ollama is running"},
		{"HEAD", "/", "", 200, ""},
		{"GET", "/v1/models", "", 404, `{"error":"There is nothing at /v1/models."}`},
		{"POST", "/api/pull", "{}", 404, `{"error":"There is nothing at /api/pull."}`},
	} {
		if status, answer := keyed(tt.method, tt.path, tt.body); status != tt.status || !strings.Contains(answer, tt.want) || strings.Contains(answer, e.key) {
			t.Errorf("%s %s: %d %s", tt.method, tt.path, status, answer)
		}
	}
	misspelt := e.do(e.request(http.MethodGet, "//k/"+e.key+"/api/tags", ""))
	if answer, err := io.ReadAll(misspelt.Body); err != nil || misspelt.StatusCode != http.StatusNotFound || strings.Contains(string(answer), e.key) {
		t.Errorf("a path that is misspelt: %s, %v", answer, err)
	}
	misspelt.Body.Close()
	req := e.request(http.MethodPost, "/k/"+e.key+"/api/chat", `{"model":"m","messages":[]}`)
	if resp := e.do(req); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("a key in the path and one in the header: %d", resp.StatusCode)
	} else {
		resp.Body.Close()
	}
	e.idle()
	var metrics strings.Builder
	mreq, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+e.server.AdminAddr().String()+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	mreq.Header.Set("Authorization", "Bearer "+e.admin)
	resp := e.do(mreq)
	defer resp.Body.Close()
	if _, err := io.Copy(&metrics, resp.Body); err != nil {
		t.Fatal(err)
	}
	secret := e.key[strings.LastIndexByte(e.key, '_')+1:]
	if strings.Contains(e.logs.String(), secret) || strings.Contains(metrics.String(), secret) {
		t.Error("the key is in the log or the metrics")
	}
	if !strings.Contains(e.logs.String(), `"op":"ollama.chat"`) {
		t.Error("the run is not in the log")
	}
}

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

// What asks Ollama to load a model is answered where whoever serves it loads what it needs.
func TestLoadingAsksNoNode(t *testing.T) {
	e := newEdge(t, nil)
	e.addProvider("n1", runsOn("openai"), answerEvents(completed, started, hello, stop), "m")
	for _, path := range []string{"/api/generate", "/api/chat"} {
		status, h, answer := e.post(path, `{"model":"m"}`)
		if status != 200 || !strings.Contains(answer, `"done_reason":"load"`) || h.Get("Content-Type") != "application/x-ndjson" || h.Get("X-Iop-Execution") != "" {
			t.Errorf("%s: %d %v %s", path, status, h, answer)
		}
	}
	e.idle()
}

// Ollama's names have a tag, others' have none: on Ollama's paths both find the model, and the answer bears the name that
// was asked for.
func TestTagsOfModels(t *testing.T) {
	e := newEdge(t, nil)
	asked := make(chan string, 8)
	relay := func(ctx context.Context, run *tunnel.NodeRun) {
		p := run.Open().GetProviderTunnel()
		asked <- p.GetModel() + " as " + p.GetAnswerModel()
		answerJSON(200, `{"done":true}`)(ctx, run)
	}
	e.addProvider("n1", runsOn("ollama", "ollama.chat", "chat.completions"), relay, "tagged:latest", "sized:7b", "org/plain")
	for _, tt := range []struct{ path, model, want string }{
		{"/api/chat", "tagged", "tagged:latest as tagged"},
		{"/api/chat", "tagged:latest", "tagged:latest as "},
		{"/api/chat", "org/plain:latest", "org/plain as org/plain:latest"},
		{"/api/chat", "sized:7b", "sized:7b as "},
		{"/api/chat", "sized", ""},
		{"/v1/chat/completions", "tagged", ""},
	} {
		status, _, answer := e.post(tt.path, `{"model":"`+tt.model+`","messages":[]}`)
		if tt.want == "" {
			if status != http.StatusNotFound {
				t.Errorf("%s: %d %s", tt.model, status, answer)
			}
			continue
		}
		if status != http.StatusOK {
			t.Errorf("%s: %d %s", tt.model, status, answer)
		} else if got := <-asked; got != tt.want {
			t.Errorf("%s: the provider was asked for %q", tt.model, got)
		}
	}
	for _, name := range []string{`"name":"tagged:latest"`, `"name":"org/plain:latest"`, `"name":"sized:7b"`} {
		if tags := e.get("/api/tags"); !strings.Contains(tags, name) {
			t.Errorf("no %s: %s", name, tags)
		}
	}
	e.idle()
}
