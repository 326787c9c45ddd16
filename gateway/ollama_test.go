package gateway_test

import (
	"encoding/json"
	"math"
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
