package gateway_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"iop/execution"
	"iop/gateway"
	"iop/state"
	"iop/tunnel"
	"iop/tunnel/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// edge is a whole Edge on ports of its own, with a state in memory, and a client of it.
type edge struct {
	t      testing.TB
	store  *state.Store
	server *gateway.Server
	key    string
	admin  string
	join   string
	logs   *logBuffer
	client *http.Client
	stop   context.CancelFunc
	done   chan error
}

// logBuffer collects log lines.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func newEdge(t testing.TB, change func(*gateway.Config)) *edge {
	t.Helper()
	return newEdgeOn(t, "sqlite::memory:", change)
}

// newEdgeOn is an Edge with the state of that address.
func newEdgeOn(t testing.TB, address string, change func(*gateway.Config)) *edge {
	t.Helper()
	ctx := t.Context()
	store, err := state.Open(ctx, address)
	if err != nil {
		t.Fatal(err)
	}
	e := &edge{t: t, store: store, logs: &logBuffer{}, done: make(chan error, 1)}
	secret, _, err := store.AdminToken(ctx)
	if err != nil {
		t.Fatal(err)
	}
	e.admin = secret.Reveal()
	_, secret, err = store.CreateKey(ctx, state.KeySpec{Name: "test"})
	if err != nil {
		t.Fatal(err)
	}
	e.key = secret.Reveal()
	_, secret, err = store.CreateJoinToken(ctx, state.JoinTokenSpec{})
	if err != nil {
		t.Fatal(err)
	}
	e.join = secret.Reveal()
	cfg := gateway.Config{
		Store: store, Listen: "127.0.0.1:0", AdminListen: "127.0.0.1:0", DrainTimeout: time.Second,
		Logger: slog.New(gateway.NewLogHandler(e.logs, slog.LevelInfo)),
	}
	if change != nil {
		change(&cfg)
	}
	if e.server, err = gateway.New(cfg); err != nil {
		t.Fatal(err)
	}
	run, stop := context.WithCancel(context.Background())
	e.stop = stop
	go func() { e.done <- e.server.Run(run) }()
	transport := &http.Transport{DisableCompression: true}
	e.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		e.server.Close()
		stop()
		if err := <-e.done; err != nil {
			t.Errorf("Run: %v", err)
		}
		transport.CloseIdleConnections()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// handler is a Node's whole behaviour in a test.
type handler func(ctx context.Context, run *tunnel.NodeRun)

func (h handler) ServeRun(ctx context.Context, run *tunnel.NodeRun) { h(ctx, run) }

// node is a Node with one provider.
type node struct {
	supervisor *tunnel.Supervisor
	stop       func()
}

// addNode connects a Node and waits until it gets runs.
func (e *edge) addNode(name string, capacity int, h handler, models ...string) *node {
	e.t.Helper()
	return e.addProvider(name, tunnel.ProviderInfo{Adapter: "openai", Capacity: capacity}, h, models...)
}

// addProvider connects a Node with that provider, and waits until it gets runs.
func (e *edge) addProvider(name string, p tunnel.ProviderInfo, h handler, models ...string) *node {
	e.t.Helper()
	p.ID, p.Health = "p", wire.Health_HEALTH_OK
	info := &tunnel.NodeInfo{Version: "test", Providers: []tunnel.ProviderInfo{p}}
	for _, m := range models {
		info.Models = append(info.Models, tunnel.ModelInfo{Provider: "p", ID: m, OwnedBy: "test"})
	}
	return e.addInventory(name, info, h)
}

// addInventory connects a Node that says this of itself, and waits until it gets runs.
func (e *edge) addInventory(name string, info *tunnel.NodeInfo, h handler) *node {
	e.t.Helper()
	sup, err := tunnel.NewSupervisor(tunnel.SupervisorConfig{
		URL: "ws://" + e.server.Addr().String() + "/tunnel/v1", Node: execution.NodeID(name), Handler: h,
		Describe: func() *tunnel.NodeInfo { return info },
		Token:    func() (string, error) { return e.join, nil },
		Logger:   slog.New(slog.DiscardHandler),
	})
	if err != nil {
		e.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = sup.Run(ctx)
	}()
	n := &node{supervisor: sup, stop: sync.OnceFunc(func() { cancel(); <-done })}
	e.t.Cleanup(n.stop)
	e.eventually("node "+name+" is online", func() bool { return e.nodeState(name) == "online" })
	return n
}

// nodeState is a Node's state as the operator sees it.
func (e *edge) nodeState(name string) string {
	e.t.Helper()
	var nodes struct {
		Data []struct{ Node, State string }
	}
	e.adminGet("/admin/v1/nodes", &nodes)
	for _, n := range nodes.Data {
		if n.Node == name {
			return n.State
		}
	}
	return ""
}

// patience is for what comes within milliseconds on an idle machine, or else minutes later or never: long enough for
// any machine, however busy.
const patience = time.Minute

// eventually waits for a condition that other goroutines bring about.
func (e *edge) eventually(what string, ok func() bool) {
	e.t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			e.t.Fatalf("not within %s: %s", patience, what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (e *edge) url(path string) string { return "http://" + e.server.Addr().String() + path }

func (e *edge) get(path string) string {
	e.t.Helper()
	resp := e.do(e.request(http.MethodGet, path, ""))
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		e.t.Fatal(err)
	}
	return string(body)
}

func (e *edge) request(method, path, body string) *http.Request {
	e.t.Helper()
	req, err := http.NewRequestWithContext(e.t.Context(), method, e.url(path), strings.NewReader(body))
	if err != nil {
		e.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+e.key)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	return req
}

func (e *edge) do(req *http.Request) *http.Response {
	e.t.Helper()
	resp, err := e.client.Do(req)
	if err != nil {
		e.t.Fatal(err)
	}
	return resp
}

// post sends a chat request and returns the whole answer.
func (e *edge) post(path, body string) (status int, header http.Header, answer string) {
	e.t.Helper()
	resp := e.do(e.request(http.MethodPost, path, body))
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		e.t.Fatalf("read answer: %v (so far %q)", err, data)
	}
	return resp.StatusCode, resp.Header, string(data)
}

// adminGet asks the admin API.
func (e *edge) adminGet(path string, v any) {
	e.t.Helper()
	req, err := http.NewRequestWithContext(e.t.Context(), http.MethodGet, "http://"+e.server.AdminAddr().String()+path, nil)
	if err != nil {
		e.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+e.admin)
	resp := e.do(req)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		e.t.Fatalf("GET %s: %s", path, resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(v); err != nil {
		e.t.Fatal(err)
	}
}

// idle waits until every gauge is back to 0.
func (e *edge) idle() {
	e.t.Helper()
	type gauges struct {
		Streams      int   `json:"streams"`
		RunsInFlight int   `json:"runs_in_flight"`
		Queued       int   `json:"queued"`
		PlacesTaken  int   `json:"places_taken"`
		Body         int64 `json:"body_budget_bytes"`
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		var now gauges
		e.adminGet("/admin/v1/status", &now)
		if now == (gauges{}) {
			return
		}
		if time.Now().After(deadline) {
			e.t.Fatalf("not at 0 within %s: %+v", patience, now)
		}
	}
}

// answerJSON is a provider that answers with one JSON document.
func answerJSON(status int, body string) handler {
	return func(_ context.Context, run *tunnel.NodeRun) {
		_ = run.Head(head(status, "application/json"))
		_ = run.Write([]byte(body), false)
		run.End(execution.Terminal{Outcome: execution.Completed, Phase: execution.PhaseProviderDone})
	}
}

func head(status int, contentType string, more ...string) *wire.Head {
	h := &wire.Head{Status: uint32(status)}
	if contentType != "" {
		h.Headers = append(h.Headers, &wire.Header{Name: "content-type", Value: contentType})
	}
	for i := 0; i+1 < len(more); i += 2 {
		h.Headers = append(h.Headers, &wire.Header{Name: more[i], Value: more[i+1]})
	}
	return h
}

// answerSSE is a provider that streams the events.
func answerSSE(events ...string) handler {
	return func(_ context.Context, run *tunnel.NodeRun) {
		_ = run.Head(head(200, "text/event-stream; charset=utf-8"))
		for _, ev := range events {
			_ = run.Write([]byte(ev), true)
		}
		run.End(execution.Terminal{Outcome: execution.Completed, Phase: execution.PhaseProviderDone,
			Usage: execution.Usage{Input: 3, Output: 2, Known: true}})
	}
}

func chunk(text string) string {
	return fmt.Sprintf("data: {\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":%q}}]}\n\n", text)
}

const doneEvent = "data: [DONE]\n\n"

func TestUnaryAnswerPassesUnchanged(t *testing.T) {
	e := newEdge(t, nil)
	const want = `{"object":"chat.completion","choices":[{"message":{"content":"hi"}}],"unknown_field":[1,2]}`
	e.addNode("n1", 4, answerJSON(200, want), "m")
	status, h, got := e.post("/v1/chat/completions", `{"model":"m","messages":[]}`)
	if status != 200 || got != want {
		t.Fatalf("got %d %q", status, got)
	}
	for _, name := range []string{"X-Request-Id", "X-Iop-Run-Id", "X-Iop-Queue-Ms", "Openai-Processing-Ms"} {
		if h.Get(name) == "" {
			t.Errorf("no %s", name)
		}
	}
	if h.Get("Content-Length") != fmt.Sprint(len(want)) {
		t.Errorf("Content-Length %q", h.Get("Content-Length"))
	}
	e.idle()
}

func TestStreamPassesUnchanged(t *testing.T) {
	e := newEdge(t, nil)
	e.addNode("n1", 4, answerSSE(chunk("a"), chunk("日本"), doneEvent), "m")
	status, h, got := e.post("/v1/chat/completions", `{"model":"m","stream":true}`)
	if want := chunk("a") + chunk("日本") + doneEvent; status != 200 || got != want {
		t.Fatalf("got %d %q", status, got)
	}
	for name, want := range map[string]string{
		"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no",
	} {
		if h.Get(name) != want {
			t.Errorf("%s is %q", name, h.Get(name))
		}
	}
	e.idle()
}

func stateKey(name string) state.KeySpec { return state.KeySpec{Name: name} }
