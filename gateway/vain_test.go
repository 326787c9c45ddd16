package gateway_test

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"iop/gateway"
	"iop/gateway/admin"
	"iop/tunnel"
)

// TestWaitedInVain: a request that found no target has its route and model in the books where the Edge knows them, and nothing of
// what a client made up; the operator sees the code that the client got.
func TestWaitedInVain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "iop.yaml")
	writeRoutes(t, path, "routes:\n  - {model: filed, targets: [{model: there}, {model: there, node: x}]}\n  - {model: two, targets: [{model: there}, {model: here}]}\nadvertised_models: serve\n")
	e := newEdge(t, func(c *gateway.Config) { c.Config, c.NoNodeTimeout = path, 20*time.Millisecond })
	e.addNode("n1", 1, answerJSON(200, `{}`), "m").stop()
	e.eventually("the Node is gone", func() bool { return e.nodeState("n1") == "offline" })
	want := map[string][2]string{ // route and model in the books, by the name that the client asks for
		"m": {"m", "m"}, "filed": {"filed", "there"}, "two": {"two", ""}, "made-up": {"", ""},
	}
	for model := range want {
		e.post(chat, `{"model":"`+model+`"}`)
	}
	e.idle()
	records := e.records()
	if len(records) != len(want) {
		t.Fatalf("%d records", len(records))
	}
	var runs struct{ Data []admin.Run }
	e.adminGet("/admin/v1/runs", &runs)
	for _, run := range runs.Data {
		w := want[run.Model]
		for _, r := range records {
			if r.Run == run.ID && (r.Route != w[0] || r.Model != w[1]) {
				t.Errorf("%s: the books have route %q, model %q", run.Model, r.Route, r.Model)
			}
		}
		if run.ClientCode != "no_node_available" || run.Codes() != "no_node_available" {
			t.Errorf("%s: the operator sees %q", run.Model, run.Codes())
		}
	}
	_, metrics := e.operate(http.MethodGet, "/metrics", "")
	if !strings.Contains(metrics, `route="filed"`) || !strings.Contains(metrics, `route="m"`) || strings.Contains(metrics, "made-up") {
		t.Error("the metrics lack a route, or have a client's word")
	}
}

// TestClientsCode: the code that the client got is shown beside the run's own code, for the operator, for the caller and in the log,
// whether it came as a status or in the stream.
func TestClientsCode(t *testing.T) {
	e := newEdge(t, func(c *gateway.Config) { c.QueueTimeout = 20 * time.Millisecond })
	release := make(chan struct{})
	e.addNode("n1", 1, func(ctx context.Context, run *tunnel.NodeRun) {
		<-release
		answerJSON(200, `{}`)(ctx, run)
	}, "m")
	first := make(chan struct{})
	go func() {
		defer close(first)
		e.post(chat, `{"model":"m"}`)
	}()
	e.eventually("the place is taken", func() bool { return e.lastRun().State == "active" })
	for body, updates := range map[string]string{`{"model":"m"}`: "0", `{"model":"m","stream":true}`: "1"} {
		req := e.request(http.MethodPost, chat, body)
		req.Header.Set("X-IOP-Queue-Updates", updates)
		if resp, answer := e.read(req); !strings.Contains(answer, `"code":"queue_timeout"`) {
			t.Errorf("%d %s", resp.StatusCode, answer)
		}
	}
	close(release)
	<-first
	e.idle()
	var runs struct{ Data []admin.Run }
	e.adminGet("/admin/v1/runs", &runs)
	if len(runs.Data) != 3 {
		t.Fatalf("%d runs", len(runs.Data))
	}
	for _, run := range runs.Data[:2] {
		if run.Codes() != "queue_timeout (deadline)" {
			t.Errorf("the operator sees %q", run.Codes())
		}
		if answer := e.get("/iop/v1/runs/" + string(run.ID)); !strings.Contains(answer, `"code":"deadline","client_code":"queue_timeout"`) {
			t.Errorf("the caller sees %s", answer)
		}
	}
	if run := runs.Data[2]; run.Codes() != "" {
		t.Errorf("a run that completed has %q", run.Codes())
	}
	if n := strings.Count(e.logs.String(), `"client_code":"queue_timeout"`); n != 2 {
		t.Errorf("%d lines of the log have the client's code", n)
	}
}
