package nodeagent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"iop/execution"
	"iop/sim"
	"iop/tunnel"
	"iop/tunnel/wire"
)

// edge is the Edge's end of a tunnel: it lets a Node in, or refuses it.
type edge struct {
	url      string
	refuse   error
	sessions chan *tunnel.NodeSession // online
	changed  chan *tunnel.NodeSession
	gone     chan error
}

func newEdge(t *testing.T, refuse error) *edge {
	t.Helper()
	e := &edge{refuse: refuse, sessions: make(chan *tunnel.NodeSession, 16), changed: make(chan *tunnel.NodeSession, 256), gone: make(chan error, 16)}
	acceptor, err := tunnel.NewAcceptor(tunnel.AcceptorConfig{EdgeID: "edge", Directory: e, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(acceptor)
	t.Cleanup(server.Close)
	t.Cleanup(acceptor.Close)
	e.url = server.URL
	return e
}

func (e *edge) Authenticate(r *http.Request) (tunnel.Identity, error) {
	if e.refuse != nil {
		return tunnel.Identity{}, e.refuse
	}
	if r.Header.Get("Authorization") != "Bearer njt-test" {
		return tunnel.Identity{}, &tunnel.Refusal{Code: "unauthorized", Message: "no such token"}
	}
	return tunnel.Identity{TokenID: "t"}, nil
}

func (e *edge) Register(_ context.Context, s *tunnel.NodeSession) (execution.Generation, error) {
	return s.HighestSeen() + 1, nil
}
func (e *edge) Ready(*tunnel.NodeSession) error         { return nil }
func (e *edge) Online(s *tunnel.NodeSession)            { e.sessions <- s }
func (e *edge) Refreshed(s *tunnel.NodeSession)         { e.changed <- s }
func (e *edge) Draining(*tunnel.NodeSession)            {}
func (e *edge) Gone(_ *tunnel.NodeSession, cause error) { e.gone <- cause }

// node is a running Agent.
type node struct {
	*Agent
	logs *safeBuffer
	stop context.CancelFunc
	done chan struct{}
	err  error // once done is closed
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func startNode(t *testing.T, cfg Config) *node {
	t.Helper()
	n := &node{logs: &safeBuffer{}, done: make(chan struct{})}
	cfg.Name = "node-1"
	cfg.Logger = slog.New(slog.NewTextHandler(n.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if cfg.JoinToken == nil && cfg.Identity == nil {
		cfg.JoinToken = func() (string, error) { return "njt-test", nil }
	}
	var err error
	if n.Agent, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	var ctx context.Context
	ctx, n.stop = context.WithCancel(context.Background())
	go func() {
		defer close(n.done)
		n.err = n.Run(ctx)
	}()
	t.Cleanup(func() {
		n.Close()
		n.stop()
		await(t, "Run to return", n.done)
	})
	return n
}

func (e *edge) session(t *testing.T) *tunnel.NodeSession {
	t.Helper()
	select {
	case s := <-e.sessions:
		return s
	case <-time.After(patience):
		t.Fatal("no Node came online")
		return nil
	}
}

// finish takes what a run answers until its end.
func finish(t *testing.T, run *tunnel.Run) (*wire.Head, string, execution.Terminal) {
	t.Helper()
	var head *wire.Head
	var body strings.Builder
	for timeout := time.After(patience); ; {
		select {
		case <-run.Ready():
		case <-timeout:
			t.Fatal("the run does not end")
		}
		for b, ok := run.Take(); ok; b, ok = run.Take() {
			if b.Head != nil {
				head = b.Head
			}
			body.Write(b.Data)
			if b.End != nil {
				return head, body.String(), *b.End
			}
		}
	}
}

func openSpec(provider, model, op, body string) tunnel.OpenSpec {
	return tunnel.OpenSpec{Body: []byte(body), Open: &wire.Open{
		RunId: string(execution.NewRunID()),
		Kind: &wire.Open_ProviderTunnel{ProviderTunnel: &wire.ProviderTunnelRequest{
			Provider: provider, Model: model, Operation: op, Stream: strings.Contains(body, `"stream":true`),
			Headers: []*wire.Header{hdr("content-type", "application/json")},
		}},
	}}
}

// TestNodeServesThroughTheTunnel is the whole way: registration with the models, a unary run, a stream, a large body,
// a change of models, a drain.
func TestNodeServesThroughTheTunnel(t *testing.T) {
	c := sim.DefaultConfig()
	engine, err := sim.New(c)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(engine.Handler())
	t.Cleanup(server.Close)
	e := newEdge(t, nil)
	hash := httpProvider(t, func(w http.ResponseWriter, r *http.Request) {
		sum := sha256.New()
		n, _ := io.Copy(sum, r.Body)
		fmt.Fprintf(w, "%d %x", n, sum.Sum(nil))
	})
	hash.Models, hash.Engine = []string{"hash"}, OpenAIEngine
	n := startNode(t, Config{
		Edge: e.url, Providers: []ProviderSpec{{ID: "sim", URL: server.URL}, hash}, Labels: map[string]string{"site": "lab"}, Version: "v1",
	})
	s := e.session(t)
	info := s.Info()
	if s.Node() != "node-1" || info.Labels["site"] != "lab" || info.Version != "v1" || len(info.Providers) != 2 || len(info.Models) != len(c.Models)+1 {
		t.Fatalf("the Edge knows %+v", info)
	}
	if p := info.Providers[1]; p.ID != "sim" || p.Adapter != "openai" || p.Capacity != 32 || p.Health != wire.Health_HEALTH_OK {
		t.Errorf("provider is %+v", p)
	}

	t.Run("unary", func(t *testing.T) {
		run, err := s.Open(openSpec("sim", "sim-small", "chat.completions", `{"model":"sim-small","messages":[{"role":"user","content":"hi"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		head, body, end := finish(t, run)
		if end.Outcome != execution.Completed || head.GetStatus() != 200 || !strings.Contains(body, `"chat.completion"`) || !end.Usage.Known {
			t.Errorf("%+v, %v, %s", end, head, body)
		}
	})
	t.Run("stream", func(t *testing.T) {
		run, err := s.Open(openSpec("sim", "sim-small", "chat.completions", `{"model":"sim-small","stream":true,"messages":[{"role":"user","content":"hi"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		_, body, end := finish(t, run)
		if end.Outcome != execution.Completed || !strings.HasSuffix(body, doneEvent) {
			t.Errorf("%+v, %s", end, body)
		}
	})
	t.Run("a body of 3 MB", func(t *testing.T) {
		text := strings.Repeat("0123456789abcdef", 3<<16)
		run, err := s.Open(openSpec("p", "hash", "embeddings", text))
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("%d %x", len(text), sha256.Sum256([]byte(text)))
		if _, body, end := finish(t, run); end.Outcome != execution.Completed || body != want {
			t.Errorf("%+v, the provider got %s, want %s", end, body, want)
		}
	})
	t.Run("a new model", func(t *testing.T) {
		req, _ := http.NewRequest(http.MethodPut, server.URL+"/sim/models", strings.NewReader(`{"models":["sim-small","fresh"]}`))
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		http.DefaultClient.CloseIdleConnections()
		for timeout := time.After(patience); len(s.Info().Models) != 3; {
			select {
			case <-e.changed:
			case <-timeout:
				t.Fatalf("the Edge knows %v", s.Info().Models)
			}
		}
	})
	t.Run("drain", func(t *testing.T) {
		n.stop()
		await(t, "Run to return", n.done)
		if n.err != nil {
			t.Errorf("Run returned %v", n.err)
		}
		if cause := <-e.gone; cause == nil {
			t.Error("the session ended without a cause")
		}
	})
	if !strings.Contains(n.logs.String(), "msg=online") {
		t.Errorf("no line says that the Node is online:\n%s", n.logs)
	}
}

// TestDrainLetsRunsFinish: the context ends while a run is under way; the run completes, then Run returns.
func TestDrainLetsRunsFinish(t *testing.T) {
	called, answer := make(chan struct{}), make(chan struct{})
	spec := httpProvider(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			io.WriteString(w, models("m"))
			return
		}
		close(called)
		<-answer
		io.WriteString(w, unaryAnswer)
	})
	e := newEdge(t, nil)
	n := startNode(t, Config{Edge: e.url, Providers: []ProviderSpec{spec}})
	s := e.session(t)
	run, err := s.Open(openSpec("p", "m", "chat.completions", "{}"))
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the call", called)
	n.stop()
	select {
	case <-n.done:
		t.Fatal("Run returned while a run was open")
	case <-s.Done():
		t.Fatal("the session ended while a run was open")
	case <-time.After(50 * time.Millisecond): // nothing to wait for: it must not happen
	}
	close(answer)
	if _, _, end := finish(t, run); end.Outcome != execution.Completed {
		t.Errorf("%+v", end)
	}
	await(t, "Run to return", n.done)
}

// TestCloseEndsAtOnce: with a run under way that would never end.
func TestCloseEndsAtOnce(t *testing.T) {
	called, gone := make(chan struct{}), make(chan struct{})
	spec := httpProvider(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			io.WriteString(w, models("m"))
			return
		}
		io.Copy(io.Discard, r.Body)
		close(called)
		<-r.Context().Done()
		close(gone)
	})
	e := newEdge(t, nil)
	n := startNode(t, Config{Edge: e.url, Providers: []ProviderSpec{spec}})
	s := e.session(t)
	run, err := s.Open(openSpec("p", "m", "chat.completions", "{}"))
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the call", called)
	n.Close()
	await(t, "Run to return", n.done)
	await(t, "the provider's request to end", gone)
	if _, _, end := finish(t, run); end.Outcome == execution.Completed {
		t.Errorf("%+v", end)
	}
}

// TestEdgeGoneCancelsRuns: the session ends in the middle; the provider's request ends with it.
func TestEdgeGoneCancelsRuns(t *testing.T) {
	called, gone := make(chan struct{}), make(chan struct{})
	spec := httpProvider(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			io.WriteString(w, models("m"))
			return
		}
		io.Copy(io.Discard, r.Body)
		close(called)
		<-r.Context().Done()
		close(gone)
	})
	e := newEdge(t, nil)
	n := startNode(t, Config{Edge: e.url, Providers: []ProviderSpec{spec}})
	s := e.session(t)
	if _, err := s.Open(openSpec("p", "m", "chat.completions", "{}")); err != nil {
		t.Fatal(err)
	}
	await(t, "the call", called)
	s.Fence(execution.CodeSessionSuperseded, "by the test")
	await(t, "the provider's request to end", gone)
	eventually(t, "the place to be free", func() bool { return n.only().inUse.Load() == 0 })
}

// TestRefusedToken: the log says what the Edge said, and not the token.
func TestRefusedToken(t *testing.T) {
	e := newEdge(t, &tunnel.Refusal{Code: "token_revoked", Message: "this join token was revoked"})
	n := startNode(t, Config{Edge: e.url, Providers: []ProviderSpec{{ID: "p", URL: "http://127.0.0.1:1"}}, JoinToken: func() (string, error) { return canary, nil }})
	eventually(t, "the refusal in the log", func() bool { return strings.Contains(n.logs.String(), "this join token was revoked") })
	if s := n.logs.String(); !strings.Contains(s, "level=ERROR") || strings.Contains(s, canary) {
		t.Errorf("the log is\n%s", s)
	}
	eventually(t, "the status to say so", func() bool { return n.Status().State == tunnel.StateRefused })
}

// TestLogsHoldNoSecret runs into every failure with a key, and looks for it.
func TestLogsHoldNoSecret(t *testing.T) {
	spec := httpProvider(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w.WriteHeader(401)
		}
		fmt.Fprintf(w, `{"error":"key %s is wrong"}`, r.Header.Get("Authorization"))
	})
	spec.KeyFile = keyFile(t, canary)
	e := newEdge(t, nil)
	n := startNode(t, Config{Edge: e.url, Providers: []ProviderSpec{spec}})
	run, err := e.session(t).Open(openSpec("p", "m", "chat.completions", "{}"))
	if err != nil {
		t.Fatal(err)
	}
	head, body, end := finish(t, run)
	if all := fmt.Sprint(n.logs, head, body, end); strings.Contains(all, canary) {
		t.Errorf("the key came out:\n%s", all)
	}
	if !strings.Contains(n.logs.String(), "status 401") {
		t.Errorf("the log does not say that the provider refuses the key:\n%s", n.logs)
	}
}

// TestStopWithoutEdge: the Node is still looking for its Edge when it is to stop.
func TestStopWithoutEdge(t *testing.T) {
	n := startNode(t, Config{Edge: "ws://127.0.0.1:1", Providers: []ProviderSpec{{ID: "p", URL: "http://127.0.0.1:1"}}})
	eventually(t, "a failed attempt", func() bool { return n.Status().State == tunnel.StateWaiting })
	n.stop()
	await(t, "Run to return", n.done)
	if n.err != nil {
		t.Errorf("Run returned %v", n.err)
	}
}

func TestNewFaults(t *testing.T) {
	good := Config{Edge: "ws://h", Name: "n", Providers: []ProviderSpec{{ID: "p", URL: "http://h"}}}
	tests := []struct {
		name string
		edit func(*Config)
		want string
	}{
		{"no name", func(c *Config) { c.Name = "" }, "node name"},
		{"no Edge", func(c *Config) { c.Edge = "" }, "Edge's URL"},
		{"provider twice", func(c *Config) { c.Providers = append(c.Providers, c.Providers[0]) }, "twice"},
		{"bad provider", func(c *Config) { c.Providers = []ProviderSpec{{ID: "p", URL: "h"}} }, "URL must begin"},
		{"bad capacity", func(c *Config) { c.Providers = []ProviderSpec{{ID: "p", URL: "http://h", Capacity: -1}} }, "capacity"},
		{"bad label", func(c *Config) { c.Labels = map[string]string{"a b": ""} }, "labels"},
		{"no key file", func(c *Config) { c.Providers = []ProviderSpec{{ID: "p", URL: "http://h", KeyFile: "/none"}} }, "key-file"},
	}
	for _, tt := range tests {
		c := good
		tt.edit(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want one with %q", tt.name, err, tt.want)
		}
	}
	a, err := New(good)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := a.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Run with an ended context: %v", err)
	}
}
