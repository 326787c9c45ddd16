package gateway_test

import (
	"context"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"iop/tunnel"
	"iop/tunnel/wire"
)

// listedModel is one model of /api/tags and /api/ps, as clients read it.
type listedModel struct {
	Name, Digest string
	Size         int64
	ModifiedAt   time.Time `json:"modified_at"`
	ExpiresAt    time.Time `json:"expires_at"`
	Details      modelFile
	Capabilities []string
}

type modelFile struct {
	Family            string
	Families          []string
	ParameterSize     string `json:"parameter_size"`
	QuantizationLevel string `json:"quantization_level"`
}

// shownModel is the answer of /api/show, as clients read it.
type shownModel struct {
	Details      modelFile
	ModelInfo    map[string]any `json:"model_info"`
	Capabilities []string
	ModifiedAt   time.Time `json:"modified_at"`
}

func (e *edge) listed(path string) map[string]listedModel {
	e.t.Helper()
	var list struct{ Models []listedModel }
	if err := json.Unmarshal([]byte(e.get(path)), &list); err != nil {
		e.t.Fatalf("%s: %v", path, err)
	}
	models := map[string]listedModel{}
	for _, m := range list.Models {
		models[m.Name] = m
	}
	return models
}

func (e *edge) shown(model string) (v shownModel) {
	e.t.Helper()
	if _, _, body := e.post("/api/show", `{"model":"`+model+`"}`); json.Unmarshal([]byte(body), &v) != nil {
		e.t.Fatalf("show %s: %s", model, body)
	}
	return v
}

// addFiles connects a Node that knows one model's file and of another nothing.
func (e *edge) addFiles() {
	details := &tunnel.ModelDetails{
		Size: 4912898304, Digest: strings.Repeat("ab", 32), Modified: 1764406800, Family: "qwen3", ParameterSize: "8.2B",
		Quantization: "Q4_K_M", Capabilities: []string{"completion", "tools"}, ContextLength: 40960,
	}
	p := runsOn("ollama", "ollama.chat")
	p.ID, p.Health, p.Capacity = "p", wire.Health_HEALTH_OK, 1
	e.addInventory("n1", &tunnel.NodeInfo{Providers: []tunnel.ProviderInfo{p}, Models: []tunnel.ModelInfo{
		{Provider: "p", ID: "known:8b", Created: 17, Loaded: true, Details: details},
		{Provider: "p", ID: "other", Created: math.MaxInt64, Loaded: true},
	}}, answerJSON(200, `{"done":true}`))
}

// What a Node's Ollama says of its models' files is what Ollama's clients are told, and of others that it is unknown.
func TestOllamaDocumentsAreTrue(t *testing.T) {
	e := newEdge(t, nil)
	e.addFiles()
	for _, path := range []string{"/api/tags", "/api/ps"} {
		models := e.listed(path)
		m, other := models["known:8b"], models["other:latest"]
		if m.Size != 4912898304 || m.Digest != strings.Repeat("ab", 32) || m.Details.Family != "qwen3" || !slices.Equal(m.Details.Families, []string{"qwen3"}) ||
			m.Details.ParameterSize != "8.2B" || m.Details.QuantizationLevel != "Q4_K_M" {
			t.Errorf("%s: %+v", path, m)
		}
		if len(models) != 2 || other.Size != 0 || len(other.Digest) != 64 || other.Details.Family != "" || other.Capabilities != nil {
			t.Errorf("%s: of an unknown file: %+v", path, other)
		}
		if path == "/api/tags" && (m.ModifiedAt.Unix() != 1764406800 || !other.ModifiedAt.IsZero() || !slices.Equal(m.Capabilities, []string{"completion", "tools"})) {
			t.Errorf("%s: modified at %v and %v, capabilities %q", path, m.ModifiedAt, other.ModifiedAt, m.Capabilities)
		}
	}
	show := e.shown("known:8b")
	if show.Details.QuantizationLevel != "Q4_K_M" || !slices.Equal(show.Capabilities, []string{"completion", "tools"}) ||
		show.ModelInfo["general.architecture"] != "qwen3" || show.ModelInfo["qwen3.context_length"] != 40960.0 || show.ModifiedAt.Unix() != 1764406800 {
		t.Errorf("shown is %+v", show)
	}
	if show := e.shown("other"); len(show.Capabilities) != 4 || show.ModelInfo["general.architecture"] != "unknown" {
		t.Errorf("of an unknown file is shown %+v", show)
	}
	e.idle()
}

// A route that is the model of its name tells of the file; one that stands for another model does not.
func TestOllamaDocumentsOfRoutes(t *testing.T) {
	e, _ := withRoutes(t, `
advertised_models: refuse
routes:
  - {model: "known:8b", aliases: [short]}
  - {model: secret, targets: [{model: "known:8b"}]}
  - {model: other, targets: [{node: "n*"}]}
`)
	e.addFiles()
	models := e.listed("/api/tags")
	if len(models) != 4 || models["known:8b"].Size == 0 || models["short:latest"].Digest != models["known:8b"].Digest {
		t.Errorf("%+v", models)
	}
	if m := models["secret:latest"]; m.Size != 0 || m.Digest == models["known:8b"].Digest || m.Details.Family != "" || len(e.shown("secret").Capabilities) != 4 {
		t.Errorf("what is behind a route is told: %+v", m)
	}
	e.idle()
}

// A key in a path opens the Ollama paths and no others, and is seen nowhere.
func TestKeyInThePath(t *testing.T) {
	e := newEdge(t, nil)
	e.addProvider("n1", runsOn("ollama", "ollama.chat"), answerJSON(200, `{"done":true}`), "m:latest")
	keyed := func(method, path, body string) (int, string) {
		req := e.request(method, "/k/"+e.key+path, body)
		req.Header.Del("Authorization")
		resp := e.do(req)
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(data)
	}
	for _, tt := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"POST", "/api/chat", `{"model":"m","messages":[]}`, 200, `"done":true`},
		{"POST", "/api/chat", `{"model":"nobody","messages":[]}`, 404, `{"error":"`},
		{"GET", "/api/chat", "", 405, `{"error":"/api/chat only allows POST. If`},
		{"GET", "/api/tags", "", 200, `"name":"m:latest"`},
		{"GET", "/api/version", "", 200, `"version":`},
		{"POST", "/api/show", `{"model":"m"}`, 200, `"capabilities":`},
		{"POST", "/api/show", `{"model":"none"}`, 404, `{"error":"`},
		{"GET", "/", "", 200, "Ollama is running"},
		{"HEAD", "/", "", 200, ""},
		{"GET", "/v1/models", "", 404, `{"error":"There is nothing at /v1/models. A key in the path is for Ollama's paths only;`},
		{"POST", "/api/pull", "{}", 404, `{"error":"There is nothing at /api/pull. The operator`},
	} {
		if status, answer := keyed(tt.method, tt.path, tt.body); status != tt.status || !strings.Contains(answer, tt.want) || strings.Contains(answer, e.key) {
			t.Errorf("%s %s: %d %s", tt.method, tt.path, status, answer)
		}
	}
	misspelt := e.do(e.request(http.MethodGet, "//k/"+e.key+"/api/tags", ""))
	if answer, err := io.ReadAll(misspelt.Body); err != nil || misspelt.StatusCode != http.StatusNotFound || strings.Contains(string(answer), e.key) {
		t.Errorf("a path that is misspelt: %s, %v", answer, err)
	}
	misspelt.Body.Close()
	req := e.request(http.MethodPost, "/k/"+e.key+"/api/chat", `{"model":"m","messages":[]}`)
	if resp := e.do(req); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("a key in the path and one in the header: %d", resp.StatusCode)
	} else {
		resp.Body.Close()
	}
	e.idle()
	var metrics strings.Builder
	mreq, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+e.server.AdminAddr().String()+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	mreq.Header.Set("Authorization", "Bearer "+e.admin)
	resp := e.do(mreq)
	defer resp.Body.Close()
	if _, err := io.Copy(&metrics, resp.Body); err != nil {
		t.Fatal(err)
	}
	secret := e.key[strings.LastIndexByte(e.key, '_')+1:]
	if strings.Contains(e.logs.String(), secret) || strings.Contains(metrics.String(), secret) {
		t.Error("the key is in the log or the metrics")
	}
	if !strings.Contains(e.logs.String(), `"op":"ollama.chat"`) {
		t.Error("the run is not in the log")
	}
}

// What asks Ollama to load a model is answered where whoever serves it loads what it needs.
func TestLoadingAsksNoNode(t *testing.T) {
	e := newEdge(t, nil)
	e.addProvider("n1", runsOn("openai"), answerEvents(completed, started, hello, stop), "m")
	for _, path := range []string{"/api/generate", "/api/chat"} {
		status, h, answer := e.post(path, `{"model":"m"}`)
		if status != 200 || !strings.Contains(answer, `"done_reason":"load"`) || h.Get("Content-Type") != "application/x-ndjson" || h.Get("X-Iop-Execution") != "" {
			t.Errorf("%s: %d %v %s", path, status, h, answer)
		}
	}
	e.idle()
}

// Ollama's names have a tag, others' have none: on Ollama's paths both find the model, and the answer bears the name that
// was asked for.
func TestTagsOfModels(t *testing.T) {
	e := newEdge(t, nil)
	asked := make(chan string, 8)
	relay := func(ctx context.Context, run *tunnel.NodeRun) {
		p := run.Open().GetProviderTunnel()
		asked <- p.GetModel() + " as " + p.GetAnswerModel()
		answerJSON(200, `{"done":true}`)(ctx, run)
	}
	e.addProvider("n1", runsOn("ollama", "ollama.chat", "chat.completions"), relay, "tagged:latest", "sized:7b", "org/plain")
	for _, tt := range []struct{ path, model, want string }{
		{"/api/chat", "tagged", "tagged:latest as tagged"},
		{"/api/chat", "tagged:latest", "tagged:latest as "},
		{"/api/chat", "org/plain:latest", "org/plain as org/plain:latest"},
		{"/api/chat", "sized:7b", "sized:7b as "},
		{"/api/chat", "sized", ""},
		{"/v1/chat/completions", "tagged", "tagged:latest as tagged"},
	} {
		status, _, answer := e.post(tt.path, `{"model":"`+tt.model+`","messages":[]}`)
		if tt.want == "" {
			if status != http.StatusNotFound {
				t.Errorf("%s: %d %s", tt.model, status, answer)
			}
			continue
		}
		if status != http.StatusOK {
			t.Errorf("%s: %d %s", tt.model, status, answer)
		} else if got := <-asked; got != tt.want {
			t.Errorf("%s: the provider was asked for %q", tt.model, got)
		}
	}
	for _, name := range []string{`"name":"tagged:latest"`, `"name":"org/plain:latest"`, `"name":"sized:7b"`} {
		if tags := e.get("/api/tags"); !strings.Contains(tags, name) {
			t.Errorf("no %s: %s", name, tags)
		}
	}
	e.idle()
}
