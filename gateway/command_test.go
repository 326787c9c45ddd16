package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"iop/execution"
	"iop/tunnel"
)

// command sends one of an operator's commands.
func (e *edge) command(ctx context.Context, method, path, body string) *http.Response {
	e.t.Helper()
	var r io.Reader = http.NoBody
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+e.server.AdminAddr().String()+"/admin/v1"+path, r)
	if err != nil {
		e.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+e.admin)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	return e.do(req)
}

// commanded is command for an answer that is read whole.
func (e *edge) commanded(method, path, body string) (int, string) {
	e.t.Helper()
	resp := e.command(e.t.Context(), method, path, body)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		e.t.Error(err)
	}
	return resp.StatusCode, string(data)
}

// ollamaNode connects a Node whose one provider is an Ollama.
func (e *edge) ollamaNode(h handler) *node {
	return e.addProvider("n1", tunnel.ProviderInfo{
		Adapter: "ollama", Engine: "ollama", EngineVersion: "0.12.6", Capacity: 1, InFlight: 1, Runs: true,
		OperationsKnown: true, Operations: []string{"chat.completions", "ollama.chat"},
	}, h, "m")
}

// A Node says what it has and how its session fares, drained too, and gives back who asked.
func TestCommandsOfANode(t *testing.T) {
	e := newEdge(t, nil)
	e.ollamaNode(answerJSON(200, "{}"))
	if status, body := e.commanded("POST", "/nodes/n1/drain", ""); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	status, body := e.commanded("GET", "/nodes/n1/capabilities?session_id=corr", "")
	for _, want := range []string{`"session_id":"corr"`, `"engine_version":"0.12.6"`, `"operations":["chat.completions","ollama.chat"]`, `"in_flight":1`, `"normalized":true`, `"id":"m"`} {
		if status != 200 || !strings.Contains(body, want) {
			t.Errorf("no %s in %d %s", want, status, body)
		}
	}
	var tr struct {
		SessionID string `json:"session_id"`
		Edge      struct {
			Generation uint64
			Frames     uint64 `json:"frames_received"`
			Reconnects *uint64
		} `json:"edge_view"`
		Node struct {
			Generation uint64
			Window     int `json:"session_window"`
			Reconnects *uint64
		} `json:"node_view"`
	}
	e.adminGet("/admin/v1/nodes/n1/transport?session_id=corr", &tr)
	if tr.SessionID != "corr" || tr.Edge.Generation == 0 || tr.Edge.Generation != tr.Node.Generation || tr.Edge.Frames == 0 || tr.Node.Window == 0 {
		t.Errorf("%+v", tr)
	}
	if tr.Edge.Reconnects != nil || tr.Node.Reconnects == nil || *tr.Node.Reconnects != 0 {
		t.Errorf("%+v", tr)
	}
	for _, path := range []string{"/nodes/n2/capabilities", "/nodes/n2/transport"} {
		if status, body := e.commanded("GET", path, ""); status != 404 || !strings.Contains(body, "node_not_found") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

// A pull passes as it comes, beyond every window, and no run is counted for it.
func TestOllamaCallPasses(t *testing.T) {
	e := newEdge(t, nil)
	step := make(chan struct{})
	line := `{"status":"` + strings.Repeat("p", 10_000) + `"}` + "\n"
	e.ollamaNode(func(_ context.Context, run *tunnel.NodeRun) {
		call := run.Open().GetOllama()
		body, err := io.ReadAll(run)
		if err != nil || string(body) != `{"model":"m"}` || call.GetOperation() != "pull" || call.GetProvider() != "p" || run.Open().SessionId != "corr" || run.Open().TimeoutMs == 0 {
			t.Errorf("%s of %v, %v", body, run.Open(), err)
		}
		_ = run.Head(head(200, "application/x-ndjson"))
		_ = run.Write([]byte("{}\n"), true)
		<-step
		for range 100 {
			_ = run.Write([]byte(line), true)
		}
		run.End(execution.Terminal{Outcome: execution.Completed, Phase: execution.PhaseProviderDone})
	})
	resp := e.command(t.Context(), "POST", "/nodes/n1/ollama/pull?session_id=corr", `{"model":"m"}`)
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	if first, err := r.ReadString('\n'); err != nil || first != "{}\n" || resp.Header.Get("X-Session-Id") != "corr" {
		t.Errorf("%q, %v, %v", first, err, resp.Header)
	}
	close(step)
	rest, err := io.ReadAll(r)
	if err != nil || string(rest) != strings.Repeat(line, 100) {
		t.Errorf("%d bytes, %v", len(rest), err)
	}
	e.idle()
	var runs struct{ Data []json.RawMessage }
	e.adminGet("/admin/v1/runs", &runs)
	if len(runs.Data) != 0 {
		t.Errorf("%s", runs.Data)
	}
}

// An operator who goes ends the call at the Node; a Node that goes ends the answer with an error in its last line.
func TestOllamaCallEnds(t *testing.T) {
	e := newEdge(t, nil)
	ended := make(chan error, 1)
	n := e.ollamaNode(func(ctx context.Context, run *tunnel.NodeRun) {
		_ = run.Head(head(200, "application/x-ndjson"))
		_ = run.Write([]byte(`{"status":"pulling"}`+"\n"), true)
		<-ctx.Done()
		ended <- context.Cause(ctx)
	})
	ctx, cancel := context.WithCancel(t.Context())
	resp := e.command(ctx, "POST", "/nodes/n1/ollama/pull", `{"model":"m"}`)
	if _, err := bufio.NewReader(resp.Body).ReadString('\n'); err != nil {
		t.Error(err)
	}
	cancel()
	resp.Body.Close()
	cause := <-ended
	if c, ok := errors.AsType[*tunnel.CancelError](cause); !ok || c.Code != execution.CodeCancelledByOperator {
		t.Errorf("%v", cause)
	}
	resp = e.command(t.Context(), "POST", "/nodes/n1/ollama/pull", `{"model":"m"}`)
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	if _, err := r.ReadString('\n'); err != nil {
		t.Error(err)
	}
	go n.stop()
	last, err := io.ReadAll(r)
	if err != nil || !strings.HasPrefix(string(last), `{"error":"`) || strings.Count(string(last), "\n") != 1 {
		t.Errorf("%q, %v", last, err)
	}
	<-ended
	n.stop()
}

// Each way in which a call can come to nothing is an answer of its own.
func TestOllamaCallFailures(t *testing.T) {
	e := newEdge(t, nil)
	var end execution.Terminal
	e.ollamaNode(func(_ context.Context, run *tunnel.NodeRun) { run.End(end) })
	for code, want := range map[execution.Code]struct {
		outcome execution.Outcome
		status  int
		code    string
	}{
		execution.CodeCapacity:            {execution.Rejected, 429, "too_many_calls"},
		execution.CodeUnsupported:         {execution.Rejected, 409, "not_ollama"},
		execution.CodeUnknownProvider:     {execution.Rejected, 404, "provider_not_found"},
		execution.CodeBadRequest:          {execution.Rejected, 400, "invalid_request"},
		execution.CodeProviderUnreachable: {execution.Failed, 502, "node_failed"},
		execution.CodeProviderTimeout:     {execution.Failed, 504, "node_timeout"},
		execution.CodeNone:                {execution.Completed, 502, "node_failed"}, // without an answer
	} {
		end = execution.Terminal{Outcome: want.outcome, Code: code, Detail: "because"}
		for _, operation := range []string{"/nodes/n1/ollama/show", "/nodes/n1/ollama/pull"} {
			if status, body := e.commanded("POST", operation, `{"model":"m"}`); status != want.status || !strings.Contains(body, `"code":"`+want.code+`"`) {
				t.Errorf("%s: %d %s", code, status, body)
			}
		}
	}
	for path, want := range map[string]string{
		"/nodes/n1/ollama/tags?provider=q": "provider_not_found", "/nodes/n2/ollama/tags": "node_not_found",
	} {
		if status, body := e.commanded("POST", path, ""); status != 404 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	e.addProvider("n3", tunnel.ProviderInfo{Adapter: "openai", Engine: "vllm", Capacity: 1}, answerJSON(200, "{}"))
	for _, path := range []string{"/nodes/n3/ollama/tags", "/nodes/n3/ollama/tags?provider=p"} {
		if status, body := e.commanded("POST", path, ""); status != 409 || !strings.Contains(body, "not_ollama") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}
