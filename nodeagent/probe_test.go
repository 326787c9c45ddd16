package nodeagent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/sim"
	"iop/tunnel"
	"iop/tunnel/wire"
)

// engineServer is a simulated engine.
func engineServer(t *testing.T, flavour sim.Flavour, slots int) *httptest.Server {
	t.Helper()
	c := sim.DefaultConfig()
	c.Flavour, c.Slots = flavour, slots
	s, err := sim.New(c)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s.Handler())
	t.Cleanup(server.Close)
	return server
}

// looked is a provider that the probe has looked at once.
func looked(t *testing.T, spec ProviderSpec) (*provider, *prober) {
	t.Helper()
	p := testAgent(t, spec).only()
	b := &prober{p: p, log: slog.New(slog.DiscardHandler), changed: func() {}}
	b.look(context.Background())
	return p, b
}

// TestIdentify: each engine says what it is, how much it can do where it tells, and what it serves.
func TestIdentify(t *testing.T) {
	tests := []struct {
		flavour  sim.Flavour
		engine   Engine
		adapter  string
		capacity int
	}{
		{sim.OpenAI, OpenAIEngine, "openai", 32},
		{sim.VLLM, VLLMEngine, "openai", 128},
		{sim.LlamaCPP, LlamaCPPEngine, "openai", 7},
		{sim.Ollama, OllamaEngine, "ollama", 1},
		{sim.LMStudio, LMStudioEngine, "openai", 4},
		{sim.SGLang, SGLangEngine, "openai", 7},
		{sim.Anthropic, AnthropicEngine, "anthropic", 32},
	}
	for _, tt := range tests {
		t.Run(string(tt.flavour), func(t *testing.T) {
			p, _ := looked(t, ProviderSpec{ID: "p", URL: engineServer(t, tt.flavour, 7).URL})
			info, models := p.describe()
			if p.engine() != tt.engine || info.Adapter != tt.adapter || info.Capacity != tt.capacity || info.Health != wire.Health_HEALTH_OK {
				t.Errorf("%s: %+v, want %s, %s, capacity %d", p.engine(), info, tt.engine, tt.adapter, tt.capacity)
			}
			if !slices.ContainsFunc(models, func(m tunnel.ModelInfo) bool { return m.ID == "sim-small" && m.Provider == "p" }) {
				t.Errorf("models are %v", models)
			}
			if p.serves("nothing") || !p.serves("sim-small") {
				t.Error("the list of models does not bind")
			}
		})
	}
}

func TestIdentifyByAnswers(t *testing.T) {
	tests := []struct {
		name     string
		answers  map[string]string
		other    string // the body of a 200 to everything else; empty is 404
		engine   Engine
		capacity int
	}{
		{"vLLM that tells its limit", map[string]string{"/version": `{"version":"0.11.0"}`, "/server_info": `{"vllm_config":{"scheduler_config":{"max_num_seqs":48}}}`}, "", VLLMEngine, 48},
		{"vLLM that tells it as text", map[string]string{"/version": `{"version":"0.8.0"}`, "/server_info": `{"server_info":"SchedulerConfig(max_num_seqs=24, x=1)"}`}, "", VLLMEngine, 24},
		{"vLLM with an absurd limit", map[string]string{"/version": `{"version":"0.8.0"}`, "/server_info": `max_num_seqs: 999999`}, "", VLLMEngine, maxCapacity},
		{"LM Studio, which answers 200 to any path", map[string]string{"/api/v0/models": `{"object":"list","data":[]}`}, `{"error":"Unexpected endpoint or method."}`, LMStudioEngine, 4},
		{"a web page for every path", nil, `<html>`, OpenAIEngine, 32},
		{"an empty object for every path", nil, `{}`, OpenAIEngine, 32},
		{"nothing but 404", nil, "", OpenAIEngine, 32},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			spec := httpProvider(t, func(w http.ResponseWriter, r *http.Request) {
				body, ok := tt.answers[r.URL.Path]
				if !ok && tt.other == "" {
					http.NotFound(w, r)
					return
				}
				if !ok {
					body = tt.other
				}
				io.WriteString(w, body)
			})
			spec.Capacity = 0
			p, _ := looked(t, spec)
			if p.engine() != tt.engine || p.capacity.Load() != int64(tt.capacity) {
				t.Errorf("%s with capacity %d, want %s with %d", p.engine(), p.capacity.Load(), tt.engine, tt.capacity)
			}
			if info, _ := p.describe(); info.Health != wire.Health_HEALTH_OK {
				t.Errorf("health %s, though it answers", info.Health)
			}
		})
	}
}

// TestModels: what the provider lists, what the operator lists, and what is not known.
func TestModels(t *testing.T) {
	list := func(body string, status int) ProviderSpec {
		return httpProvider(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/v1/models" {
				http.NotFound(w, r)
				return
			}
			w.WriteHeader(status)
			io.WriteString(w, body)
		})
	}
	t.Run("the operator's list wins", func(t *testing.T) {
		spec := list(`{"data":[{"id":"a","owned_by":"x"},{"id":"b"}]}`, 200)
		spec.Models = []string{"z", "a"}
		p, _ := looked(t, spec)
		_, models := p.describe()
		if fmt.Sprint(models) != "[{p a 0 x true <nil>} {p z 0  true <nil>}]" {
			t.Errorf("models are %v", models)
		}
		if p.serves("b") || !p.serves("z") {
			t.Error("the operator's list does not bind")
		}
	})
	t.Run("no list", func(t *testing.T) {
		p, _ := looked(t, list("{}", 404))
		if !p.serves("anything") {
			t.Error("without a list a model is refused")
		}
	})
	t.Run("an empty list", func(t *testing.T) {
		p, _ := looked(t, list(`{"data":[]}`, 200))
		if p.serves("anything") {
			t.Error("a model is served that is not in the empty list")
		}
	})
	t.Run("names that can't be offered", func(t *testing.T) {
		p, _ := looked(t, list(`{"data":[{"id":"b"},{"id":"a\nb"},{"id":""},{"id":"b"},{"id":"<img onerror=x>"}]}`, 200))
		_, models := p.describe()
		for _, m := range models {
			if strings.ContainsAny(m.ID, "\n") || m.ID == "" {
				t.Errorf("offers %q", m.ID)
			}
		}
	})
}

// TestChangesAreTold: a model that comes is told once; a list that only claims to be newer is not.
func TestChangesAreTold(t *testing.T) {
	var body atomic.Value
	body.Store(`{"data":[{"id":"a","created":1}]}`)
	spec := httpProvider(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, body.Load().(string)) })
	p := testAgent(t, spec).only()
	changes := 0
	b := &prober{p: p, log: slog.New(slog.DiscardHandler), changed: func() { changes++ }}
	step := func(list string, want int) {
		t.Helper()
		body.Store(list)
		b.look(context.Background())
		if changes != want {
			t.Errorf("after %s: %d changes told, want %d", list, changes, want)
		}
	}
	step(`{"data":[{"id":"a","created":1}]}`, 1)
	step(`{"data":[{"id":"a","created":2}]}`, 1)
	step(`{"data":[{"id":"b","created":3},{"id":"a","created":3}]}`, 2)
	step(`{"data":[{"id":"a","created":4},{"id":"b","created":4}]}`, 2)
	step(`{"data":[]}`, 3)
	step(`gibberish`, 3) // no list is no news
}

// timedProvider is a provider at the other end of net.Pipe whose state a test turns; for time that is not real.
type timedProvider struct {
	*provider
	state atomic.Value // "ok", "hung", "gone"
}

func newTimedProvider(t *testing.T) *timedProvider {
	p := &timedProvider{provider: testAgent(t, ProviderSpec{ID: "p", Engine: OpenAIEngine, URL: "http://127.0.0.1:1", Capacity: 4}).only()}
	p.state.Store("ok")
	p.transport.(*http.Transport).DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		if p.state.Load() == "gone" {
			return nil, &dialError{fmt.Errorf("connection refused")}
		}
		ours, theirs := net.Pipe()
		go serveConn(theirs, func(c net.Conn, _ *http.Request) {
			if p.state.Load() == "hung" {
				io.Copy(io.Discard, c)
				return
			}
			list := models("a")
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(list), list)
		})
		return ours, nil
	}
	return p
}

func (p *timedProvider) health() wire.Health {
	info, _ := p.describe()
	return info.Health
}

func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTimedProvider(t)
		ctx, cancel := context.WithCancel(t.Context())
		b := &prober{p: p.provider, log: slog.New(slog.DiscardHandler), changed: func() {}, first: make(chan struct{})}
		done := make(chan struct{})
		go func() {
			defer close(done)
			b.watch(ctx)
		}()
		within := func(what string, d time.Duration, want wire.Health) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if got := p.health(); got != want {
				t.Errorf("%s, after %s: health is %s, want %s", what, d, got, want)
			}
		}
		within("at first", 0, wire.Health_HEALTH_OK)

		p.state.Store("gone")
		within("gone", 2*time.Second, wire.Health_HEALTH_GONE)
		if _, models := p.describe(); len(models) != 1 {
			t.Error("a provider that is gone lost its models")
		}
		p.state.Store("ok")
		within("back", 2*time.Second, wire.Health_HEALTH_OK)

		p.state.Store("hung")
		within("hung and idle: not at once", 6*time.Second, wire.Health_HEALTH_OK)
		within("hung and idle", 10*time.Second, wire.Health_HEALTH_HUNG)
		p.state.Store("ok")
		within("answers again", 8*time.Second, wire.Health_HEALTH_OK)

		p.inUse.Store(1)
		p.state.Store("hung")
		within("silent with a run: not yet", 35*time.Second, wire.Health_HEALTH_OK)
		within("silent with a run", 20*time.Second, wire.Health_HEALTH_HUNG)
		p.state.Store("ok")
		within("answers again", 8*time.Second, wire.Health_HEALTH_OK)

		p.state.Store("hung")
		flow := time.NewTicker(time.Second)
		flowing, stop := context.WithCancel(ctx)
		go func() {
			for flowing.Err() == nil {
				<-flow.C
				p.activity.Add(1)
			}
		}()
		within("busy: bytes of a run arrive", 5*time.Minute, wire.Health_HEALTH_OK)
		stop()
		within("no longer", 2*time.Minute, wire.Health_HEALTH_HUNG)

		// A failed run makes the probe look at once.
		p.state.Store("ok")
		within("answers again", 8*time.Second, wire.Health_HEALTH_OK)
		time.Sleep(time.Second)
		p.state.Store("gone")
		p.look()
		within("after a failed run", 0, wire.Health_HEALTH_GONE)

		cancel()
		<-done
		p.closeIdle()
	})
}

// TestOwnListeners: addresses of the process itself are not taken for engines.
func TestOwnListeners(t *testing.T) {
	skip := []string{"127.0.0.1:8000", ":8080", "0.0.0.0:1234", "[::1]:30000", "192.0.2.1:11434", "rubbish"}
	for port, want := range map[string]bool{"8000": true, "8080": true, "1234": true, "30000": true, "11434": false, "9999": false} {
		if got := ownListener(port, skip); got != want {
			t.Errorf("%s: %v, want %v", port, got, want)
		}
	}
	a := testAgent(t)
	a.cfg.Skip = skip
	if d := newDiscovery(a); len(d.ports) != 1 || d.ports[0].number != "11434" {
		t.Errorf("searches %v", d.ports)
	}
}

// TestDiscovery: engines are found on their ports, what is none is not, and what is gone for long is forgotten.
func TestDiscovery(t *testing.T) {
	ollama, vllm := engineServer(t, sim.Ollama, 1), engineServer(t, sim.VLLM, 1)
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") }))
	t.Cleanup(page.Close)
	portOf := func(s *httptest.Server) string {
		_, number, _ := net.SplitHostPort(s.Listener.Addr().String())
		return number
	}
	a := testAgent(t)
	var refreshed atomic.Int64
	a.refresh = func() { refreshed.Add(1) }
	d := newDiscovery(a)
	d.ports = []port{{portOf(ollama), VLLMEngine}, {portOf(vllm), VLLMEngine}, {portOf(page), OllamaEngine}, {"1", OllamaEngine}}
	ctx, cancel := context.WithCancel(context.Background())
	defer a.probes.Wait()
	defer cancel()

	d.search(ctx)
	want := []string{"ollama-" + portOf(ollama), "vllm-" + portOf(vllm)}
	info := a.describe()
	var got []string
	for _, p := range info.Providers {
		got = append(got, string(p.ID))
		if p.Health != wire.Health_HEALTH_OK {
			t.Errorf("%s is %s", p.ID, p.Health)
		}
	}
	if !slices.Equal(got, want) || len(info.Models) == 0 || refreshed.Load() == 0 {
		t.Fatalf("found %v with %d models, %d times told; want %v", got, len(info.Models), refreshed.Load(), want)
	}

	ollama.Close()
	f := d.found[portOf(ollama)]
	f.p.look()
	eventually(t, "the engine to be gone", func() bool {
		info, _ := f.p.describe()
		return info.Health == wire.Health_HEALTH_GONE
	})
	d.search(ctx)
	if len(*a.providers.Load()) != 2 {
		t.Error("forgotten at once")
	}
	f.p.mu.Lock()
	f.p.state.goneFrom = time.Now().Add(-2 * forgetAfter)
	f.p.mu.Unlock()
	d.search(ctx)
	if p := *a.providers.Load(); len(p) != 1 || p[execution.ProviderID(want[1])] == nil {
		t.Errorf("left are %v", p)
	}
}
