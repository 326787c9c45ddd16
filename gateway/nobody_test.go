package gateway_test

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"iop/execution"
	"iop/gateway"
	"iop/state"
	"iop/tunnel"
)

// noNode is what the message begins with; how long the request waited follows.
const noNode = "No provider of the model 'm' is connected right now; this request waited "

// nobodyTold is what each family's client gets after the grace, as a status and in a stream whose head it has.
var nobodyTold = []struct{ name, path, body, status, stream string }{
	{"chat", chat, `{"model":"m","messages":[]}`,
		`{"error":{"message":"` + noNode, `data: {"error":{"message":"` + noNode},
	{"responses", "/v1/responses", `{"model":"m","input":"x"}`,
		`{"error":{"message":"` + noNode, "event: error\n"},
	{"messages", "/v1/messages", `{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"x"}]}`,
		`{"type":"error","error":{"type":"api_error","message":"` + noNode,
		"event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"" + noNode},
	{"ollama", "/api/chat", `{"model":"m","messages":[]}`, `{"error":"` + noNode, ""},
}

// TestNobodyIsConnected: where no Node serves a model there is no queue. After the grace each family's client is told,
// with a status, or in the stream that has begun.
func TestNobodyIsConnected(t *testing.T) {
	e := newEdge(t, func(c *gateway.Config) { c.NoNodeTimeout = 100 * time.Millisecond })
	wantStatus := func(t *testing.T, path, body, want string) {
		t.Helper()
		began := time.Now()
		status, h, answer := e.post(path, body)
		if took := time.Since(began); status != 503 || h.Get("Retry-After") != "10" || !strings.HasPrefix(answer, want) || took < 100*time.Millisecond {
			t.Errorf("after %v: %d, Retry-After %q: %s", took, status, h.Get("Retry-After"), answer)
		}
		// An SDK that tried again would wait as long again.
		if retry := h.Get("X-Should-Retry"); retry != "false" || path == chat && !strings.Contains(answer, `"type":"server_error","param":null,"code":"no_node_available"`) {
			t.Errorf("X-Should-Retry %q: %s", retry, answer)
		}
		list := "GET /v1/models lists"
		if path == "/api/chat" {
			list = "GET /api/tags lists"
		}
		if !strings.Contains(answer, list) {
			t.Errorf("it does not say where models are listed: %s", answer)
		}
	}
	for when, before := range map[string]func(){
		"the Edge has just started": func() {},
		"the Node has left": func() {
			e.addNode("n1", 1, answerJSON(200, `{}`), "m").stop()
			e.eventually("the Node is gone", func() bool { return e.nodeState("n1") == "offline" })
		},
	} {
		before()
		for _, f := range nobodyTold {
			t.Run(when+"/"+f.name, func(t *testing.T) {
				wantStatus(t, f.path, f.body, f.status)
				streamed := strings.Replace(f.body, "{", `{"stream":true,`, 1)
				wantStatus(t, f.path, streamed, f.status)
				if f.stream == "" {
					return
				}
				req := e.request(http.MethodPost, f.path, streamed)
				req.Header.Set("X-IOP-Queue-Updates", "1") // so the head is there at once
				resp := e.do(req)
				defer resp.Body.Close()
				body, err := io.ReadAll(resp.Body)
				_, events, _ := strings.Cut(string(body), "\n")
				if err != nil || resp.StatusCode != 200 || !strings.HasPrefix(string(body), ": queued position=1\n") || !strings.HasPrefix(events, f.stream) {
					t.Errorf("%d %q, %v", resp.StatusCode, body, err)
				}
			})
		}
	}
	e.idle()
}

// TestModelAway: a model whose Node left is not there to be asked about, but it is not called unknown either: requests wait
// for it.
func TestModelAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "iop.yaml")
	writeRoutes(t, path, "routes:\n  - model: filed\n    timeouts: {no_node: 50ms}\n    targets: [{model: there}]\nadvertised_models: serve\n")
	e := newEdge(t, func(c *gateway.Config) { c.Config, c.NoNodeTimeout = path, 50*time.Millisecond })
	e.addNode("n1", 1, answerJSON(200, `{}`), "m").stop()
	e.eventually("the Node is gone", func() bool { return e.nodeState("n1") == "offline" })
	narrow := e.newKey(state.KeySpec{Routes: []string{"other"}})
	for _, model := range []string{"m", "filed"} {
		want := "No provider of the model '" + model + "' is connected right now"
		if answer := e.get("/v1/models/" + model); !strings.Contains(answer, want) || !strings.Contains(answer, `"model_not_found"`) {
			t.Errorf("%s: %s", model, answer)
		}
		if status, _, answer := e.post("/api/show", `{"model":"`+model+`"}`); status != 404 || !strings.Contains(answer, want) {
			t.Errorf("%s: %d %s", model, status, answer)
		}
		if status, _, answer := e.post(chat, `{"model":"`+model+`"}`); status != 503 || !strings.Contains(answer, want) {
			t.Errorf("%s: %d %s", model, status, answer)
		}
		req := e.request(http.MethodGet, "/v1/models/"+model, "")
		req.Header.Set("Authorization", "Bearer "+narrow)
		if resp, answer := e.read(req); resp.StatusCode != 403 || strings.Contains(answer, "connected") {
			t.Errorf("a key that may not use %s learns %s", model, answer)
		}
	}
	if answer := e.get("/v1/models/unknown"); !strings.Contains(answer, "does not exist here") {
		t.Errorf("%s", answer)
	}
}

// TestNodeComesBackInTime: who waits goes on in its place, be it after the last Node's end or before the first one's start.
func TestNodeComesBackInTime(t *testing.T) {
	e := newEdge(t, nil)
	codes := make(chan execution.Code, 1)
	started := make(chan struct{})
	n := e.addNode("n1", 1, waiting(codes, func(*tunnel.NodeRun) { close(started) }), "m")
	running := make(chan struct{})
	go func() { defer close(running); e.post(chat, `{"model":"m","user":"running"}`) }()
	<-started
	all := make(chan string, 2)
	for i, name := range []string{"first", "second"} {
		req := e.request(http.MethodPost, chat, `{"model":"m","stream":true,"user":"`+name+`"}`)
		go func() {
			resp, err := e.client.Do(req)
			if err != nil {
				all <- err.Error()
				return
			}
			defer resp.Body.Close()
			body, _ := io.ReadAll(resp.Body)
			all <- resp.Status + " " + string(body)
		}()
		e.waits(i + 1)
	}
	n.stop()
	<-running
	e.eventually("the Node is gone", func() bool { return e.nodeState("n1") == "offline" })
	e.waits(2)
	order := make(chan string, 2)
	e.addNode("n1", 1, func(ctx context.Context, run *tunnel.NodeRun) {
		body, _ := run.Body()
		order <- string(body)
		answerSSE(chunk("x"), doneEvent)(ctx, run)
	}, "m")
	for range 2 {
		if got := <-all; !strings.HasPrefix(got, "200 OK") || !strings.HasSuffix(got, chunk("x")+doneEvent) {
			t.Errorf("got %q", got)
		}
	}
	if first, second := <-order, <-order; !strings.Contains(first, "first") || !strings.Contains(second, "second") {
		t.Errorf("they ran as %s, %s", first, second)
	}
	e.idle()
}

// TestQueueEndsWithNobodyConnected: a route whose requests wait for less than the grace. It was no queue all the same.
func TestQueueEndsWithNobodyConnected(t *testing.T) {
	e := newEdge(t, func(c *gateway.Config) { c.QueueTimeout = 50 * time.Millisecond })
	status, h, body := e.post(chat, `{"model":"m"}`)
	if code, _ := errorOf(t, body); status != 503 || code != "no_node_available" || h.Get("Retry-After") != "10" {
		t.Errorf("%d %v %s", status, h, body)
	}
	e.idle()
	if r := e.records()[0]; r.Code != execution.CodeNoNodeAvailable { // as the client was told
		t.Errorf("the record has %s", r.Code)
	}
}
