package admin_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"iop/execution"
	"iop/gateway/admin"
)

// fakeBody is an answer of the Ollama API.
type fakeBody struct {
	io.Reader
	status int
	fault  error // after what Reader has
	closed chan struct{}
}

func (b *fakeBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if errors.Is(err, io.EOF) && b.fault != nil {
		err = b.fault
	}
	return n, err
}

func (b *fakeBody) Close() error { close(b.closed); return nil }

func newFakeBody(status int, text string, fault error) *fakeBody {
	return &fakeBody{Reader: strings.NewReader(text), status: status, fault: fault, closed: make(chan struct{})}
}

func (e *fakeEdge) hasNode(node execution.NodeID) error {
	if node == "n1" {
		return nil
	}
	return &admin.CommandError{Status: 404, Code: "node_not_found", Param: "node", Message: "no such node is connected"}
}

func (e *fakeEdge) Capabilities(_ context.Context, node execution.NodeID, session execution.SessionID) (*admin.NodeCapabilities, error) {
	if err := e.hasNode(node); err != nil {
		return nil, err
	}
	return &admin.NodeCapabilities{
		Node: node, Generation: 7, SessionID: session, Version: "v", Labels: map[string]string{"site": "lab"},
		Providers: []admin.Capability{{
			ID: "p", Adapter: "ollama", Engine: "ollama", EngineVersion: "0.12.6", Health: "ok", Capacity: 4, InFlight: 1,
			Operations: []string{"chat.completions"}, OperationsKnown: true, Normalized: true, Models: []admin.CapabilityModel{{ID: "m", Loaded: true}},
		}, {ID: "q", Adapter: "openai", Health: "unknown", Capacity: 1, Operations: []string{}, Models: []admin.CapabilityModel{}}},
	}, nil
}

func (e *fakeEdge) Transport(_ context.Context, node execution.NodeID, session execution.SessionID) (*admin.NodeTransport, error) {
	if err := e.hasNode(node); err != nil {
		return nil, err
	}
	reconnects, uptime := uint64(0), int64(5)
	return &admin.NodeTransport{
		Node: node, SessionID: session, Edge: admin.Transport{Generation: 7, HeartbeatRTTMS: 1.5, SessionWindow: 1 << 18},
		AtNode: admin.Transport{Generation: 7, Reconnects: &reconnects, ProcessUptimeMS: &uptime},
	}, nil
}

func (e *fakeEdge) Ollama(_ context.Context, call admin.OllamaCall) (*admin.OllamaAnswer, error) {
	if err := e.hasNode(call.Node); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls = append(e.calls, call)
	body := e.body
	if body == nil {
		body = newFakeBody(200, map[admin.OllamaOperation]string{
			admin.OllamaTags: `{"models":[]}`, admin.OllamaPull: `{"status":"pulling manifest"}` + "\n" + `{"status":"success"}` + "\n",
		}[call.Operation], nil)
	}
	return &admin.OllamaAnswer{Provider: "p", Status: body.status, Body: body}, nil
}

// commands asks for each command, and one thing of each more.
func (d *desk) commands() {
	d.t.Helper()
	const n1 = "/admin/v1/nodes/n1"
	session := func(r *http.Request) { r.Header.Set("X-Session-Id", "corr-1") }
	var c admin.NodeCapabilities
	d.must(&c, "GET", n1+"/capabilities?session_id=corr-1", "")
	var tr admin.NodeTransport
	d.must(&tr, "GET", n1+"/transport", "", session)
	var tags admin.OllamaResult
	d.must(&tags, "POST", n1+"/ollama/tags?provider=p", "", session)
	if c.SessionID != "corr-1" || tr.SessionID != "corr-1" || tags.SessionID != "corr-1" || string(tags.Result) != `{"models":[]}` {
		d.t.Errorf("%+v\n%+v\n%+v", c, tr, tags)
	}
	for _, path := range []string{"/ollama/ps", "/ollama/version"} {
		d.must(nil, "POST", n1+path, "")
	}
	for _, path := range []string{"/ollama/show", "/ollama/delete"} {
		d.must(nil, "POST", n1+path, `{"model":"m"}`)
	}
	pull := d.ask("POST", n1+"/ollama/pull", `{"model":"m", "insecure":false}`, session)
	if pull.status != 200 || pull.header.Get("X-Session-Id") != "corr-1" || strings.Count(pull.body, "\n") != 2 {
		d.t.Errorf("%+v", pull)
	}
	last := d.edge.calls[len(d.edge.calls)-1]
	if last.Operation != admin.OllamaPull || string(last.Body) != `{"model":"m", "insecure":false}` || last.Session != "corr-1" || d.edge.calls[0].Provider != "p" {
		d.t.Errorf("%+v", d.edge.calls)
	}
}

// What is not in the set has no path, and what is no request of an operation goes to no Node.
func TestCommandsAreClosed(t *testing.T) {
	d := newDesk(t)
	const n1 = "/admin/v1/nodes/n1"
	for _, path := range []string{"/ollama/push", "/ollama/create", "/ollama/chat", "/ollama/", "/ollama", "/ollama/tags/x", "/shell", "/ollama/..%2fversion"} {
		d.refused(404, "unknown_path", "", "POST", n1+path, "")
	}
	d.refused(405, "method_not_allowed", "", "GET", n1+"/ollama/pull", "")
	d.refused(400, "invalid_request", "", "POST", n1+"/ollama/tags", `{}`)
	d.refused(415, "unsupported_media_type", "", "POST", n1+"/ollama/pull", "")
	for _, body := range []string{`[]`, `"m"`, `{} {}`, `{`} {
		d.refused(400, "invalid_request", "", "POST", n1+"/ollama/pull", body)
	}
	d.refused(413, "body_too_large", "", "POST", n1+"/ollama/pull", `{"model":"`+strings.Repeat("m", 64<<10)+`"}`)
	d.refused(400, "invalid_request", "session_id", "GET", n1+"/transport?session_id="+strings.Repeat("s", 257), "")
	d.refused(400, "invalid_request", "session_id", "GET", n1+"/transport?session_id=a%0ab", "")
	d.refused(400, "invalid_request", "session_id", "GET", n1+"/capabilities?session_id=a", "", func(r *http.Request) { r.Header.Set("X-Session-Id", "b") })
	d.refused(400, "unknown_parameter", "provider", "GET", n1+"/capabilities?provider=p", "")
	d.refused(401, "invalid_admin_token", "", "POST", n1+"/ollama/tags", "", func(r *http.Request) { r.Header.Set("Authorization", "Bearer x") })
	if len(d.edge.calls) != 0 {
		t.Errorf("%+v", d.edge.calls)
	}
	for _, path := range []string{"/capabilities", "/transport"} {
		d.refused(404, "node_not_found", "node", "GET", "/admin/v1/nodes/n9"+path, "")
	}
	d.refused(404, "node_not_found", "node", "POST", "/admin/v1/nodes/n9/ollama/pull", `{"model":"m"}`)
}

// An Ollama that refuses, and one whose answer breaks off, are told as what they are; each answer is closed.
func TestOllamaAnswersThatFail(t *testing.T) {
	d := newDesk(t)
	const n1 = "/admin/v1/nodes/n1/ollama/"
	says := func(status int, text string, fault error) *fakeBody {
		d.edge.body = newFakeBody(status, text, fault)
		return d.edge.body
	}
	closed := func(b *fakeBody) {
		t.Helper()
		select {
		case <-b.closed:
		default:
			t.Error("the answer was left open")
		}
	}
	b := says(404, `{"error":"model 'x' not found"}`, nil)
	if e := d.refused(404, "provider_error", "", "POST", n1+"show", `{"model":"x"}`); !strings.Contains(e.Message, "model 'x' not found") {
		t.Errorf("%+v", e)
	}
	closed(b)
	b = says(500, `<html>`, nil)
	d.refused(502, "provider_error", "", "POST", n1+"pull", `{"model":"x"}`)
	closed(b)
	b = says(200, `{"models":`, nil)
	d.refused(502, "provider_error", "", "POST", n1+"tags", "")
	closed(b)
	cut := &admin.CommandError{Status: 502, Code: "node_failed", Message: "the call ended as failed (session_lost)"}
	b = says(200, `{"mod`, cut)
	d.refused(502, "node_failed", "", "POST", n1+"tags", "")
	closed(b)
	b = says(200, `{"status":"pulling"}`+"\n"+`{"sta`, cut)
	a := d.server.Client()
	r, err := http.NewRequestWithContext(t.Context(), "POST", d.server.URL+n1+"pull", strings.NewReader(`{"model":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+d.token)
	r.Header.Set("Content-Type", "application/json")
	resp, err := a.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if rows := strings.Split(strings.TrimSpace(string(text)), "\n"); len(rows) != 3 || rows[2] != `{"error":"the call ended as failed (session_lost)"}` {
		t.Errorf("%q", text)
	}
	<-b.closed
}
