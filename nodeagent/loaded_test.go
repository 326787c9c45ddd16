package nodeagent

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"iop/sim"
)

// loadedOf are the models that the Edge is told to be in memory.
func loadedOf(p *provider) string {
	_, models := p.describe()
	var names []string
	for _, m := range models {
		if m.Loaded {
			names = append(names, m.ID)
		}
	}
	return strings.Join(names, " ")
}

// TestLoaded: what each engine says that it holds in memory.
func TestLoaded(t *testing.T) {
	list := `{"data":[{"id":"a:1b"},{"id":"b"},{"id":"c"}]}`
	for _, tt := range []struct {
		name    string
		engine  Engine
		answers map[string]string
		want    string
	}{
		{"Ollama", OllamaEngine, map[string]string{"/api/ps": `{"models":[{"name":"a:1b","model":"a:1b"},{"name":"gone"}]}`}, "a:1b"},
		{"Ollama with nothing loaded", OllamaEngine, map[string]string{"/api/ps": `{"models":[]}`}, ""},
		{"Ollama that cannot say", OllamaEngine, nil, ""},
		{"LM Studio", LMStudioEngine, map[string]string{"/api/v0/models": `{"object":"list","data":[{"id":"a:1b","state":"not-loaded"},{"id":"c","state":"loaded"},{"id":"b","state":"loaded"}]}`}, "b c"},
		{"vLLM", VLLMEngine, nil, "a:1b b c"},
		{"llama.cpp", LlamaCPPEngine, nil, "a:1b b c"},
		{"llama.cpp's router", LlamaCPPEngine, map[string]string{pathModels: `{"data":[{"id":"a:1b","status":{"value":"unloaded"}},{"id":"b","status":{"value":"loaded","args":["x"]}},{"id":"c","status":{"value":"loading"}}]}`}, "b"},
		{"a status that means something else", OpenAIEngine, map[string]string{pathModels: `{"data":[{"id":"a:1b","status":"active"},{"id":"b","status":7}]}`}, "a:1b b"},
		{"SGLang", SGLangEngine, nil, "a:1b b c"},
		{"who cannot unload", OpenAIEngine, nil, "a:1b b c"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := httpProvider(t, func(w http.ResponseWriter, r *http.Request) {
				body, ok := tt.answers[r.URL.Path]
				switch {
				case ok:
				case r.URL.Path == pathModels:
					body = list
				default:
					http.NotFound(w, r)
					return
				}
				io.WriteString(w, body)
			})
			spec.Engine = tt.engine
			p, _ := looked(t, spec)
			if got := loadedOf(p); got != tt.want {
				t.Errorf("loaded are %q, want %q", got, tt.want)
			}
		})
	}
}

// TestLoadedChangesAreTold: a load is told once, and not more often than the Edge should hear of it; an answer that says
// nothing changes nothing.
func TestLoadedChangesAreTold(t *testing.T) {
	var loaded atomic.Value
	var asked atomic.Int64
	spec := httpProvider(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case pathModels:
			io.WriteString(w, models("a", "b"))
		case pathOllamaLoaded:
			asked.Add(1)
			io.WriteString(w, loaded.Load().(string))
		}
	})
	spec.Engine = OllamaEngine
	p := testAgent(t, spec).only()
	changes := 0
	b := &prober{p: p, log: slog.New(slog.DiscardHandler), changed: func() { changes++ }}
	step := func(answer, want string, wantChanges int) {
		t.Helper()
		loaded.Store(answer)
		b.look(context.Background())
		if got := loadedOf(p); got != want || changes != wantChanges {
			t.Errorf("after %s: loaded are %q, %d changes told; want %q, %d", answer, got, changes, want, wantChanges)
		}
	}
	step(`{"models":[{"name":"a"}]}`, "a", 1)
	step(`{"models":[{"name":"b"}]}`, "a", 1) // too soon to ask
	b.weighed = b.weighed.Add(-loadedAgain)
	step(`{"models":[{"name":"b"}]}`, "b", 2)
	b.weighed = b.weighed.Add(-loadedAgain)
	step(`{"models":[{"name":"b"}]}`, "b", 2)
	b.weighed = b.weighed.Add(-loadedAgain)
	step(`gibberish`, "b", 2)
	if asked.Load() != 4 {
		t.Errorf("asked %d times", asked.Load())
	}
}

// TestLoadedAfterARun: an engine that loads on demand holds a model once it was used.
func TestLoadedAfterARun(t *testing.T) {
	p, b := looked(t, ProviderSpec{ID: "p", URL: engineServer(t, sim.Ollama, 1).URL, Capacity: 1})
	if got := loadedOf(p); got != "" {
		t.Errorf("before any run %q are loaded", got)
	}
	resp, err := http.Post(p.endpoint("/v1/chat/completions").String(), "application/json", strings.NewReader(`{"model":"sim-small","messages":[{"role":"user","content":"x"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	b.weighed = b.weighed.Add(-loadedAgain)
	b.look(context.Background())
	if got := loadedOf(p); got != "sim-small" {
		t.Errorf("after a run %q are loaded", got)
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestLoadedFollowsTheEngine: another program behind the same address is asked at once.
func TestLoadedFollowsTheEngine(t *testing.T) {
	p := testAgent(t, ProviderSpec{ID: "p", URL: "http://127.0.0.1:1"}).only()
	b := &prober{p: p, weighed: time.Now()}
	p.mu.Lock()
	p.setEngineLocked(VLLMEngine, 0)
	p.mu.Unlock()
	said := learned{id: nature{engine: VLLMEngine}, list: modelList{loaded: loadedModels{all: true}}}
	if l, ok := b.weigh(context.Background(), said); !ok || !l.all {
		t.Errorf("%+v, %t", l, ok)
	}
	if _, ok := b.weigh(context.Background(), learned{}); ok {
		t.Error("asked again at once")
	}
	if l := (loadedModels{names: slices.Repeat([]string{"x"}, 2)}); l.has("y") || !l.has("x") {
		t.Error("has")
	}
}
