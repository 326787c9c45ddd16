package gateway_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"iop/execution"
	"iop/gateway"
	"iop/gateway/admin"
	"iop/state"
	"iop/tunnel"
)

// withRoutes starts an Edge with a file of routes, and returns the file's path.
func withRoutes(t *testing.T, text string) (*edge, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "iop.yaml")
	writeRoutes(t, path, text)
	return newEdge(t, func(c *gateway.Config) { c.Config = path }), path
}

func writeRoutes(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// routes describes the routes in a line each: name, then each group's targets.
func (e *edge) routes() string {
	e.t.Helper()
	var list struct{ Data []admin.Route }
	e.adminGet("/admin/v1/routes", &list)
	var lines []string
	for _, r := range list.Data {
		line := r.Name
		for _, g := range r.Groups {
			line += " " + g.When + "["
			for i, t := range g.Targets {
				if i > 0 {
					line += " "
				}
				line += fmt.Sprintf("%s/%s:%s %v %s %d/%d x%d", t.Node, t.Provider, t.Model, t.InService, t.Breaker, t.InFlight, t.Capacity, t.Weight)
			}
			line += "]"
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func (e *edge) wantRoutes(want string) {
	e.t.Helper()
	if got := e.routes(); got != strings.Trim(want, "\n") {
		e.t.Errorf("the routes are\n%s\nwant\n%s", got, want)
	}
}

func TestAdminShowsRoutes(t *testing.T) {
	e, _ := withRoutes(t, `
advertised_models: serve
routes:
  - model: chat
    aliases: [gpt]
    groups:
      - targets:
          - {node: gpu-*, model: big, weight: 3}
          - {model: big}
      - when: down
        targets: [{node: cloud, model: huge}]
  - model: small
`)
	e.addNode("gpu-1", 4, answerJSON(200, `{}`), "big", "small")
	e.addNode("lab", 2, answerJSON(200, `{}`), "big", "own")
	e.wantRoutes(`
chat full[gpu-1/p:big true closed 0/4 x3 lab/p:big true closed 0/2 x1] down[]
small full[gpu-1/p:small true closed 0/4 x1]
big full[gpu-1/p:big true closed 0/4 x1 lab/p:big true closed 0/2 x1]
own full[lab/p:own true closed 0/2 x1]`)
	if status, body := e.operate("POST", "/admin/v1/nodes/lab/drain", ""); status != 200 {
		t.Fatalf("drain: %d %s", status, body)
	}
	e.wantRoutes(`
chat full[gpu-1/p:big true closed 0/4 x3 lab/p:big false closed 0/2 x1] down[]
small full[gpu-1/p:small true closed 0/4 x1]
big full[gpu-1/p:big true closed 0/4 x1 lab/p:big false closed 0/2 x1]
own full[lab/p:own false closed 0/2 x1]`)
	var status admin.Status
	e.adminGet("/admin/v1/status", &status)
	if got := strings.Join(status.Models, " "); got != "big chat small" {
		t.Errorf("models that can be had: %q", got)
	}
}

// TestAdminShowsTheQueue: who waits, for what, and what the run is on.
func TestAdminShowsTheQueue(t *testing.T) {
	e, _ := withRoutes(t, "routes:\n  - model: chat\n    queue_limit: 7\n    targets: [{model: m}]\n")
	codes := make(chan execution.Code, 3)
	started := make(chan string, 3)
	e.addNode("n1", 1, waiting(codes, func(run *tunnel.NodeRun) { started <- run.Open().RunId }), "m")
	_, secret, err := e.store.CreateKey(t.Context(), state.KeySpec{Name: "b", Owner: "team-b", Weight: 5, RPM: 60})
	if err != nil {
		t.Fatal(err)
	}
	answers := make(chan int, 3)
	ask := func(key string) {
		r := e.request(http.MethodPost, chat, `{"model":"chat"}`)
		r.Header.Set("Authorization", "Bearer "+key)
		go func() {
			resp, err := e.client.Do(r)
			if err != nil {
				answers <- 0
				return
			}
			resp.Body.Close()
			answers <- resp.StatusCode
		}()
	}
	ask(e.key)
	<-started
	e.wantRoutes("chat full[n1/p:m true closed 1/1 x1]")
	ask(secret.Reveal())
	ask(secret.Reveal())
	var queue struct{ Data []admin.Queue }
	e.eventually("two wait", func() bool {
		e.adminGet("/admin/v1/queue", &queue)
		return len(queue.Data) == 1 && queue.Data[0].Waiting == 2
	})
	q := queue.Data[0]
	if q.Route != "chat" || q.Limit != 7 || len(q.Principals) != 1 || q.Principals[0] != (admin.QueuedPrincipal{Principal: "team-b", Name: "team-b", Waiting: 2, Weight: 5}) {
		t.Errorf("queue %+v", q)
	}
	var status admin.Status
	e.adminGet("/admin/v1/status", &status)
	if status.Queued != 2 || status.WaitingRoutes != 1 {
		t.Errorf("status %+v", status)
	}
	var keys struct{ Data []admin.Key }
	e.adminGet("/admin/v1/keys", &keys)
	if use := keys.Data[0].Use; use.Running != 1 || use.Requests != nil {
		t.Errorf("the first key's use %+v", use)
	}
	if use := keys.Data[1].Use; use.Running != 2 || use.Requests == nil || use.Requests.Limit != 60 || use.Requests.Remaining != 58 {
		t.Errorf("the second key's use %+v, %+v", use, use.Requests)
	}
	var runs struct{ Data []admin.Run }
	e.adminGet("/admin/v1/runs?route=chat&state=queued", &runs)
	if len(runs.Data) != 2 || runs.Data[0].Principal != "team-b" {
		t.Errorf("queued runs %+v", runs.Data)
	}
	e.adminGet("/admin/v1/runs", &runs)
	for _, run := range runs.Data {
		if status, body := e.operate("POST", "/admin/v1/runs/"+string(run.ID)+"/cancel", ""); status != 200 {
			t.Errorf("cancel: %d %s", status, body)
		}
	}
	for range 3 {
		<-answers
	}
	e.idle()
}

// TestAdminCountsUsageAtOnce: a run that has ended is in the sums that are asked for next.
func TestAdminCountsUsageAtOnce(t *testing.T) {
	e := newEdge(t, nil)
	e.addNode("n1", 4, answerSSE(chunk("a"), doneEvent), "m")
	for range 3 {
		if status, _, body := e.post(chat, `{"model":"m","stream":true}`); status != 200 {
			t.Fatalf("%d %s", status, body)
		}
	}
	e.idle()
	var usage admin.Usage
	e.adminGet("/admin/v1/usage?by=route,node,provider,model,outcome", &usage)
	if len(usage.Data) != 1 {
		t.Fatalf("usage %+v", usage)
	}
	got := usage.Data[0]
	if got.Route != "m" || got.Node != "n1" || got.Provider != "p" || got.Model != "m" || got.Outcome != "completed" || got.Runs != 3 || got.Input != 9 || got.Output != 6 {
		t.Errorf("usage %+v", got)
	}
	_, records := e.operate("GET", "/admin/v1/usage/records?format=csv", "")
	if strings.Count(records, "\r\n") != 4 {
		t.Errorf("records:\n%s", records)
	}
}

// TestAdminReloads: a file with a fault changes nothing and is told of; a right one counts at once.
func TestAdminReloads(t *testing.T) {
	e, path := withRoutes(t, "routes:\n  - model: one\n    targets: [{model: m}]\n")
	e.addNode("n1", 4, answerJSON(200, `{}`), "m")
	if status, _, body := e.post(chat, `{"model":"one"}`); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	writeRoutes(t, path, "routes:\n  - model: two\n    policy: fastest\n")
	if status, body := e.operate("POST", "/admin/v1/config/reload", ""); status != 422 || !strings.Contains(body, `"line":3`) {
		t.Errorf("a fault: %d %s", status, body)
	}
	if status, _, body := e.post(chat, `{"model":"one"}`); status != 200 {
		t.Errorf("after the fault: %d %s", status, body)
	}
	var c admin.Configuration
	e.adminGet("/admin/v1/config", &c)
	if c.Fault == nil || len(c.Fault.Faults) != 1 || len(c.Table) != 1 || c.Table[0].Name != "one" || c.Path != path || time.Since(*c.Loaded) > time.Hour {
		t.Errorf("config %+v", c)
	}
	writeRoutes(t, path, "routes:\n  - model: two\n    targets: [{model: m}]\n")
	if status, body := e.operate("POST", "/admin/v1/config/reload", ""); status != 200 || !strings.Contains(body, `"two"`) || !strings.Contains(body, `"fault":null`) {
		t.Errorf("a right file: %d %s", status, body)
	}
	if status, _, body := e.post(chat, `{"model":"two"}`); status != 200 {
		t.Errorf("after the reload: %d %s", status, body)
	}
	if status, _, _ := e.post(chat, `{"model":"one"}`); status != 404 {
		t.Errorf("a route that is gone: %d", status)
	}
	if status, body := newEdge(t, nil).operate("POST", "/admin/v1/config/reload", ""); status != 409 || !strings.Contains(body, "no_config_file") {
		t.Errorf("without a file: %d %s", status, body)
	}
}

// TestAdminShowsWhatIsWrongWithATarget: one that has no room rests, one that fails is cut off by its breaker.
func TestAdminShowsWhatIsWrongWithATarget(t *testing.T) {
	e := newEdge(t, nil)
	e.addNode("full", 4, endsWith(execution.Terminal{Outcome: execution.Rejected, Code: execution.CodeCapacity}), "a")
	e.addNode("broken", 4, answerJSON(502, `{"error":{"message":"no"}}`), "b")
	target := func(name string) admin.Target {
		var list struct{ Data []admin.Route }
		e.adminGet("/admin/v1/routes", &list)
		for _, r := range list.Data {
			if r.Name == name {
				return r.Groups[0].Targets[0]
			}
		}
		t.Fatalf("no route %s", name)
		return admin.Target{}
	}
	if got := target("a"); got.Resting || got.Breaker != "closed" || got.RestingUntil != nil {
		t.Errorf("at first %+v", got)
	}
	// The request waits for a target that always says that it has no room.
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	r := e.request(http.MethodPost, chat, `{"model":"a"}`).WithContext(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if resp, err := e.client.Do(r); err == nil {
			resp.Body.Close()
		}
	}()
	e.eventually("it rests", func() bool { return target("a").Resting })
	stop()
	<-ended
	for range 10 {
		if target("b").Breaker == "open" {
			break
		}
		e.post(chat, `{"model":"b"}`)
		e.idle()
	}
	if got := target("b"); got.Breaker != "open" || got.RestingUntil == nil || !got.RestingUntil.After(time.Now()) {
		t.Errorf("after many failures %+v", got)
	}
	e.idle()
}

// A target in Ollama's other spelling is the offered model everywhere: in its requests, in the list, and in what is not routed.
func TestTargetInTheOtherSpelling(t *testing.T) {
	e, _ := withRoutes(t, `
advertised_models: serve
routes:
  - {model: chat, parameters: {caps: {max_tokens: 5}}, targets: [{model: llama3.2}]}
  - {model: plain, targets: [{model: "gpt:latest"}]}
  - {model: wrong, targets: [{model: LLAMA3.2}]}
  - {model: "own", policy: weighted}
`)
	sent := make(chan sentRun, 1)
	e.addNode("n1", 4, capturing(sent, answerJSON(200, `{}`)), "llama3.2:latest", "gpt", "own:latest", "free")
	for model, want := range map[string]string{"chat": `{"model":"llama3.2:latest","max_tokens":5}`, "plain": `{"model":"gpt","max_tokens":9}`, "own": `{"model":"own:latest","max_tokens":9}`} {
		status, _, answer := e.post(chat, `{"model":"`+model+`","max_tokens":9}`)
		if status != http.StatusOK {
			t.Fatalf("%s: %d %s", model, status, answer)
		}
		if got := <-sent; got.body != want {
			t.Errorf("%s: the provider gets %s", model, got.body)
		}
	}
	var c admin.Configuration
	e.adminGet("/admin/v1/config", &c)
	if got := fmt.Sprint(c.Coverage.Missing, c.Coverage.Unrouted); got != "[wrong: LLAMA3.2, but llama3.2:latest] [free]" {
		t.Errorf("the comparison says %s", got)
	}
	if got := e.routes(); !strings.Contains(got, "chat full[n1/p:llama3.2:latest true closed 0/4 x1]") {
		t.Errorf("the routes are\n%s", got)
	}
	e.idle()
}
