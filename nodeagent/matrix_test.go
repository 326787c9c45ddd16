package nodeagent

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"iop/openai"
	"iop/sim"
	"iop/tunnel"
)

// exactEngine is a simulated engine that has its own paths alone, but for edits.
func exactEngine(t *testing.T, flavour sim.Flavour, edits ...func(*sim.Config)) (*sim.Server, ProviderSpec) {
	t.Helper()
	c := sim.DefaultConfig()
	c.Flavour, c.Exact = flavour, true
	for _, edit := range edits {
		edit(&c)
	}
	s, err := sim.New(c)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s.Handler())
	t.Cleanup(server.Close)
	return s, ProviderSpec{ID: "p", URL: server.URL}
}

func told(p *provider) tunnel.ProviderInfo {
	info, _ := p.describe()
	return info
}

// TestMatrix: what each engine has is found out, by asking and not by its name, and asking costs no run.
func TestMatrix(t *testing.T) {
	for flavour, want := range map[sim.Flavour]struct {
		has, lacks []string
		runs       bool
		version    string
	}{
		sim.OpenAI:    {[]string{"chat.completions", "responses", "audio.transcriptions", "images.edits"}, []string{"ollama.chat"}, true, ""},
		sim.VLLM:      {[]string{"chat.completions", "responses", "tokenize", "rerank.v2"}, []string{"messages", "moderations", "ollama.chat"}, true, "0.11.0"},
		sim.LlamaCPP:  {[]string{"chat.completions", "embeddings", "rerank"}, []string{"responses", "messages", "messages.count_tokens"}, true, "b6500-sim"},
		sim.Ollama:    {[]string{"chat.completions", "ollama.chat", "ollama.generate", "ollama.embed"}, []string{"responses", "messages", "rerank"}, true, "0.12.6"},
		sim.SGLang:    {[]string{"chat.completions", "completions"}, []string{"responses", "messages"}, true, "0.5.3"},
		sim.Anthropic: {[]string{"messages", "messages.count_tokens"}, []string{"chat.completions", "responses"}, true, ""},
	} {
		t.Run(string(flavour), func(t *testing.T) {
			s, spec := exactEngine(t, flavour)
			p, _ := looked(t, spec)
			info := told(p)
			if !info.OperationsKnown || info.Runs != want.runs || info.EngineVersion != want.version {
				t.Errorf("told is %+v", info)
			}
			for _, op := range want.has {
				if !slices.Contains(info.Operations, op) {
					t.Errorf("%s is not found, of %v", op, info.Operations)
				}
			}
			for _, op := range want.lacks {
				if slices.Contains(info.Operations, op) {
					t.Errorf("%s is found", op)
				}
			}
			if st := s.Stats(); st.Started != 0 || st.Prompt != 0 || len(s.Loaded()) != 0 && flavour == sim.Ollama {
				t.Errorf("asking cost the engine %+v", st)
			}
		})
	}
}

// TestMatrixUntold: where nothing can be told by asking, the engine's table counts, and where there is none nothing is
// claimed.
func TestMatrixUntold(t *testing.T) {
	for name, tt := range map[string]struct {
		flavour sim.Flavour
		edit    func(*sim.Config)
		key     bool
		known   bool
		has     string
		lacks   string
	}{
		"200 to everything":                 {flavour: sim.LMStudio, known: true, has: "responses", lacks: "messages"},
		"401 to everything, a known engine": {flavour: sim.Anthropic, edit: func(c *sim.Config) { c.APIKey = canary }, known: false},
		"401 to everything, an unknown one": {flavour: sim.OpenAI, edit: func(c *sim.Config) { c.APIKey = canary }, known: false},
		"a key that opens":                  {flavour: sim.VLLM, edit: func(c *sim.Config) { c.APIKey = canary }, key: true, known: true, has: "responses", lacks: "messages"},
	} {
		t.Run(name, func(t *testing.T) {
			var edits []func(*sim.Config)
			if tt.edit != nil {
				edits = append(edits, tt.edit)
			}
			_, spec := exactEngine(t, tt.flavour, edits...)
			if tt.key {
				spec.KeyFile = keyFile(t, canary)
			}
			p, _ := looked(t, spec)
			info := told(p)
			if info.OperationsKnown != tt.known || !info.Runs {
				t.Fatalf("told is %+v", info)
			}
			if tt.has != "" && !slices.Contains(info.Operations, tt.has) || tt.lacks != "" && slices.Contains(info.Operations, tt.lacks) {
				t.Errorf("operations are %v", info.Operations)
			}
		})
	}
	t.Run("managed, without a key", func(t *testing.T) {
		for engine, known := range map[Engine]bool{AnthropicEngine: true, OpenAIEngine: false, VLLMEngine: true} {
			s, spec := exactEngine(t, sim.OpenAI)
			spec.Engine, spec.Slots, spec.Models = engine, []string{"slot-*"}, []string{"m"}
			p, _ := looked(t, spec)
			if info := told(p); info.OperationsKnown != known || !info.Runs {
				t.Errorf("%s: told is %+v", engine, info)
			}
			for _, r := range s.Requests(100) {
				if r.Method == http.MethodPost {
					t.Errorf("%s: asked for %s", engine, r.Path)
				}
			}
		}
	})
}

// TestMatrixAnswers: which answers mean that there is a path.
func TestMatrixAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		answer func(w http.ResponseWriter, path string)
		known  bool
		has    bool // chat completions
	}{
		"500, as llama.cpp says of a malformed body": {func(w http.ResponseWriter, _ string) { w.WriteHeader(500) }, true, true},
		"404 of a model":  {func(w http.ResponseWriter, _ string) { http.Error(w, `{"error":"model '' not found"}`, 404) }, true, true},
		"404":             {func(w http.ResponseWriter, p string) { http.NotFound(w, nil) }, true, false},
		"405":             {func(w http.ResponseWriter, _ string) { w.WriteHeader(405) }, true, false},
		"501":             {func(w http.ResponseWriter, _ string) { w.WriteHeader(501) }, true, false},
		"redirect":        {func(w http.ResponseWriter, _ string) { w.Header().Set("Location", "/"); w.WriteHeader(301) }, true, false},
		"401":             {func(w http.ResponseWriter, _ string) { w.WriteHeader(401) }, true, true},
		"busy":            {func(w http.ResponseWriter, _ string) { w.WriteHeader(429) }, false, false},
		"a proxy's fault": {func(w http.ResponseWriter, _ string) { w.WriteHeader(502) }, false, false},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			switch {
			case r.URL.Path == "/v1/models":
				io.WriteString(w, models("m"))
			case r.URL.Path != "/v1/chat/completions" || string(body) != probeBody:
				http.NotFound(w, r)
			default:
				tt.answer(w, r.URL.Path)
			}
		}))
		p, _ := looked(t, ProviderSpec{ID: "p", URL: server.URL})
		info := told(p)
		if info.OperationsKnown != tt.known || slices.Contains(info.Operations, "chat.completions") != tt.has || info.Runs != (tt.has || !tt.known) {
			t.Errorf("%s: told is %+v", name, info)
		}
		server.Close()
	}
}

// TestMatrixChanges: paths are asked for at first and when the provider comes back or has another version, not with each
// look, and a change is told.
func TestMatrixChanges(t *testing.T) {
	var mu sync.Mutex
	asked, version, down := 0, "0.11.0", false
	has := "/v1/chat/completions"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case down:
			panic(http.ErrAbortHandler)
		case r.URL.Path == "/v1/models":
			io.WriteString(w, models("m"))
		case r.URL.Path == "/version":
			io.WriteString(w, `{"version":"`+version+`"}`)
		case r.Method == http.MethodPost && r.URL.Path == pathNowhere:
			asked++
			http.NotFound(w, r)
		case r.Method == http.MethodPost && strings.Contains(has, r.URL.Path):
			w.WriteHeader(http.StatusBadRequest)
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	changes := 0
	p := testAgent(t, ProviderSpec{ID: "p", URL: server.URL, Engine: VLLMEngine}).only()
	b := &prober{p: p, log: slog.New(slog.DiscardHandler), changed: func() { changes++ }}
	step := func(what string, set func(), wantAsked, wantChanges int) {
		t.Helper()
		mu.Lock()
		set()
		mu.Unlock()
		b.look(context.Background())
		if asked != wantAsked || changes != wantChanges {
			t.Errorf("%s: asked %d times, told %d changes; want %d, %d", what, asked, changes, wantAsked, wantChanges)
		}
	}
	step("first", func() {}, 1, 1)
	step("again", func() {}, 1, 1)
	step("another version, but nobody asked yet", func() { version, has = "0.12.0", has+" /v1/responses" }, 1, 1)
	step("another version", func() { b.identified = b.identified.Add(-askAgain) }, 2, 2)
	if info := told(p); !slices.Contains(info.Operations, openai.OpResponses.Name()) || info.EngineVersion != "0.12.0" {
		t.Errorf("told is %+v", info)
	}
	step("hung once", func() { down = true }, 2, 2)
	step("hung", func() {}, 2, 3)
	step("back", func() { down = false }, 3, 4)
}
