package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"iop/execution"
	"iop/gateway/admin"
	"iop/tunnel"
)

// operate asks the admin API and returns the status and the answer.
func (e *edge) operate(method, path, body string, change ...func(*http.Request)) (int, string) {
	e.t.Helper()
	req, err := http.NewRequestWithContext(e.t.Context(), method, "http://"+e.server.AdminAddr().String()+path, strings.NewReader(body))
	if err != nil {
		e.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+e.admin)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, f := range change {
		f(req)
	}
	resp := e.do(req)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		e.t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

func TestAdminIsGuarded(t *testing.T) {
	e := newEdge(t, nil)
	noToken := func(r *http.Request) { r.Header.Del("Authorization") }
	apiKey := func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+e.key) }
	twice := func(r *http.Request) { r.Header.Add("Authorization", "Bearer "+e.admin) }
	for _, path := range []string{"/admin/v1/status", "/admin/v1/keys", "/admin/v1/nothing", "/debug/pprof/", "/debug/pprof/heap", "/"} {
		for name, change := range map[string]func(*http.Request){"no token": noToken, "an API key": apiKey, "two": twice} {
			if status, body := e.operate("GET", path, "", change); status != 401 {
				t.Errorf("%s with %s: %d %s", path, name, status, body)
			}
		}
	}
	if status, _ := e.operate("GET", "/metrics", "", noToken); status != 200 {
		t.Errorf("metrics: %d", status)
	}
	if status, _ := e.operate("GET", "/debug/pprof/heap", ""); status != 200 {
		t.Errorf("pprof: %d", status)
	}
	crossSite := func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }
	if status, _ := e.operate("POST", "/admin/v1/keys", `{"name":"x"}`, crossSite); status != 403 {
		t.Errorf("a page elsewhere makes keys: %d", status)
	}
	// Nothing changes by a GET.
	for _, path := range []string{"/admin/v1/runs/x/cancel", "/admin/v1/nodes/x/drain", "/admin/v1/keys/x/revoke"} {
		if status, body := e.operate("GET", path, ""); status != 404 && status != 405 {
			t.Errorf("GET %s: %d %s", path, status, body)
		}
	}
	// The public listener has none of it.
	for _, path := range []string{"/admin/v1/status", "/metrics", "/debug/pprof/"} {
		req := e.request(http.MethodGet, path, "")
		req.Header.Set("Authorization", "Bearer "+e.admin)
		resp := e.do(req)
		resp.Body.Close()
		if resp.StatusCode != 404 {
			t.Errorf("public %s: %d", path, resp.StatusCode)
		}
	}
}

func TestAdminKeys(t *testing.T) {
	e := newEdge(t, nil)
	e.addNode("n1", 4, answerJSON(200, `{}`), "m")
	status, body := e.operate("POST", "/admin/v1/keys", `{"name":"ci","routes":["m"]}`)
	var made struct{ ID, Key, Name string }
	if err := json.Unmarshal([]byte(body), &made); err != nil || status != 200 || made.Key == "" || made.Name != "ci" {
		t.Fatalf("%d %s", status, body)
	}
	e.key = made.Key
	if status, _, body := e.post(chat, `{"model":"m"}`); status != 200 {
		t.Errorf("the new key: %d %s", status, body)
	}
	if _, list := e.operate("GET", "/admin/v1/keys", ""); strings.Contains(list, made.Key) || !strings.Contains(list, made.ID) {
		t.Errorf("the list: %s", list)
	}
	if status, _ := e.operate("POST", "/admin/v1/keys/"+made.ID+"/revoke", ""); status != 200 {
		t.Errorf("revoke: %d", status)
	}
	if status, _, _ := e.post(chat, `{"model":"m"}`); status != 401 {
		t.Errorf("the revoked key: %d", status)
	}
	for _, bad := range []string{`{"name":""}`, `{"name":"x","unknown":1}`, `{`, `{"name":"x","rpm":-1}`} {
		if status, body := e.operate("POST", "/admin/v1/keys", bad); status != 400 {
			t.Errorf("%s: %d %s", bad, status, body)
		}
	}
	if status, _ := e.operate("POST", "/admin/v1/keys/nothere/revoke", ""); status != 404 {
		t.Errorf("revoke of nothing: %d", status)
	}
}

func TestAdminRevokesJoinToken(t *testing.T) {
	e := newEdge(t, nil)
	status, body := e.operate("POST", "/admin/v1/join-tokens", `{"ttl_seconds":3600}`)
	var made struct{ ID, Token string }
	if err := json.Unmarshal([]byte(body), &made); err != nil || status != 200 || made.Token == "" {
		t.Fatalf("%d %s", status, body)
	}
	e.join = made.Token
	n := e.addNode("n1", 4, answerJSON(200, `{}`), "m")
	status, body = e.operate("POST", "/admin/v1/join-tokens/"+made.ID+"/revoke", "")
	if status != 200 || !strings.Contains(body, `"sessions_closed":1`) {
		t.Errorf("%d %s", status, body)
	}
	e.eventually("the Node is told", func() bool { return n.supervisor.Status().State == tunnel.StateRefused })
	e.eventually("it is offline", func() bool { return e.nodeState("n1") == "offline" })
	if _, list := e.operate("GET", "/admin/v1/join-tokens", ""); strings.Contains(list, made.Token) {
		t.Errorf("the list: %s", list)
	}
}

func TestAdminDrainsNode(t *testing.T) {
	e := newEdge(t, nil)
	e.addNode("n1", 4, answerJSON(200, `{}`), "m")
	if status, _ := e.operate("POST", "/admin/v1/nodes/n1/drain", ""); status != 200 || e.nodeState("n1") != "drained" {
		t.Errorf("drain: %d, %s", status, e.nodeState("n1"))
	}
	got := make(chan int, 1)
	go func() { status, _, _ := e.post(chat, `{"model":"m"}`); got <- status }()
	e.eventually("it waits", func() bool { return e.lastRun().State == "queued" })
	if status, _ := e.operate("POST", "/admin/v1/nodes/n1/resume", ""); status != 200 {
		t.Errorf("resume: %d", status)
	}
	if status := <-got; status != 200 {
		t.Errorf("after resume: %d", status)
	}
	if status, _ := e.operate("POST", "/admin/v1/nodes/other/drain", ""); status != 404 {
		t.Errorf("drain of nothing: %d", status)
	}
}

// A Node that has runs is not drained before the last of them has ended: whoever stops it then cuts nothing.
func TestAdminShowsOpenRunsOfADrain(t *testing.T) {
	e := newEdge(t, nil)
	release := make(chan struct{})
	e.addNode("n1", 4, func(ctx context.Context, run *tunnel.NodeRun) {
		<-release
		answerJSON(200, `{}`)(ctx, run)
	}, "m")
	got := make(chan int, 2)
	for range 2 {
		go func() { status, _, _ := e.post(chat, `{"model":"m"}`); got <- status }()
	}
	e.eventually("both run", func() bool { return e.adminNode("n1").OpenRuns == 2 })
	e.operate("POST", "/admin/v1/nodes/n1/drain", "")
	if n := e.adminNode("n1"); n.State != "draining" || !n.Drain || n.OpenRuns != 2 {
		t.Errorf("with two runs: %+v", n)
	}
	release <- struct{}{}
	<-got
	e.eventually("one has ended", func() bool { return e.adminNode("n1").OpenRuns == 1 })
	if n := e.adminNode("n1"); n.State != "draining" {
		t.Errorf("with one run: %+v", n)
	}
	release <- struct{}{}
	<-got
	e.eventually("it is drained", func() bool { n := e.adminNode("n1"); return n.State == "drained" && n.OpenRuns == 0 })
	e.operate("POST", "/admin/v1/nodes/n1/resume", "")
	if n := e.adminNode("n1"); n.State != "online" || n.Drain {
		t.Errorf("resumed: %+v", n)
	}
}

func (e *edge) adminNode(name string) (node admin.Node) {
	e.t.Helper()
	e.adminGet("/admin/v1/nodes/"+name, &node)
	return node
}

func TestAdminFollowsAndCancelsRuns(t *testing.T) {
	e := newEdge(t, nil)
	codes := make(chan execution.Code, 1)
	started := make(chan string, 1)
	e.addNode("n1", 4, waiting(codes, func(run *tunnel.NodeRun) { started <- run.Open().RunId }), "m")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+e.server.AdminAddr().String()+"/admin/v1/runs?follow", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+e.admin)
	follow := e.do(req)
	defer follow.Body.Close()

	answer := make(chan int, 1)
	go func() { status, _, _ := e.post(chat, `{"model":"m"}`); answer <- status }()
	id := <-started
	if status, _ := e.operate("POST", "/admin/v1/runs/"+id+"/cancel", ""); status != 200 {
		t.Errorf("cancel: %d", status)
	}
	if code := <-codes; code != execution.CodeCancelledByOperator {
		t.Errorf("the Node was told %v", code)
	}
	if status := <-answer; status != 499 {
		t.Errorf("the client got %d", status)
	}
	line, err := bufio.NewReader(follow.Body).ReadString('\n')
	if err != nil || !strings.Contains(line, id) || !strings.Contains(line, `"code":"cancelled_by_operator"`) || !strings.Contains(line, `"node":"n1"`) {
		t.Errorf("followed: %q, %v", line, err)
	}
	if status, body := e.operate("GET", "/admin/v1/runs/"+id, ""); status != 200 || !strings.Contains(body, id) {
		t.Errorf("one run: %d %s", status, body)
	}
	e.idle()
	if status, body := e.operate("POST", "/admin/v1/runs/"+id+"/cancel", ""); status != 409 || !strings.Contains(body, `"run_ended"`) {
		t.Errorf("cancel of an ended run: %d %s", status, body)
	}
	if status, _ := e.operate("POST", "/admin/v1/runs/run_none/cancel", ""); status != 404 {
		t.Errorf("cancel of nothing: %d", status)
	}
}

func TestAdminShowsNodesAndMetrics(t *testing.T) {
	e := newEdge(t, nil)
	e.addNode("n1", 4, answerJSON(200, `{}`), "m")
	e.post(chat, `{"model":"m"}`)
	var nodes struct {
		Data []struct {
			Node     string
			Sessions []struct {
				Generation int
				Current    bool
				State      string
				Providers  []struct {
					ID, Health string
					Capacity   int
					Models     []string
				}
			}
		}
	}
	e.adminGet("/admin/v1/nodes", &nodes)
	want := `[{n1 [{1 true online [{p ok 4 [m]}]}]}]`
	if got := fmt.Sprint(nodes.Data); got != want {
		t.Errorf("nodes are %s, want %s", got, want)
	}
	e.idle()
	_, metrics := e.operate("GET", "/metrics", "")
	for _, line := range []string{
		`iop_requests_total{gen_ai_operation_name="chat.completions",outcome="completed",route="m"} 1`,
		`iop_capacity{node="n1",provider="p"} 4`, `iop_capacity_in_use{node="n1",provider="p"} 0`,
		`iop_sessions 1`, `iop_nodes_online 1`, `iop_runs_in_flight 0`, `iop_queued 0`, `iop_streams 0`, `iop_body_budget_bytes 0`,
	} {
		if !strings.Contains(metrics, "\n"+line+"\n") {
			t.Errorf("no %s", line)
		}
	}
}

// brokenWriter panics where a handler first touches it.
type brokenWriter struct{ http.ResponseWriter }

func (brokenWriter) Header() http.Header { panic("broken") }

func TestPanicEndsOneRequestOnly(t *testing.T) {
	e := newEdge(t, nil)
	func() {
		defer func() {
			if p := recover(); p != http.ErrAbortHandler {
				t.Errorf("net/http is told %v", p)
			}
		}()
		e.server.Public().ServeHTTP(brokenWriter{}, httptest.NewRequest(http.MethodPost, chat, strings.NewReader(`{"model":"m"}`)))
	}()
	if n := e.metric("iop_panics_total"); n != 1 {
		t.Errorf("%d panics counted", n)
	}
	if !strings.Contains(e.logs.String(), "panic while serving a request") {
		t.Error("nothing in the log")
	}
	e.idle()
}

// TestLiveRunsTellHowFarTheyAre: the operator sees of a run that streams when its first byte went out, and how many did.
func TestLiveRunsTellHowFarTheyAre(t *testing.T) {
	e := newEdge(t, nil)
	codes := make(chan execution.Code, 1)
	e.addNode("n1", 4, waiting(codes, startStream), "m")
	ended := make(chan struct{})
	go func() { defer close(ended); e.post(chat, `{"model":"m","stream":true}`) }()
	var list struct{ Data []admin.Run }
	e.eventually("its first bytes are counted", func() bool {
		e.adminGet("/admin/v1/runs?limit=1", &list)
		return len(list.Data) == 1 && list.Data[0].Bytes >= int64(len(chunk("a")))
	})
	run := list.Data[0]
	if run.State != "active" || run.TTFBMS <= 0 || run.TTFBMS > run.DurationMS {
		t.Errorf("%+v", run)
	}
	if status, _ := e.operate("POST", "/admin/v1/runs/"+string(run.ID)+"/cancel", ""); status != 200 {
		t.Errorf("cancel: %d", status)
	}
	<-codes
	<-ended
}
