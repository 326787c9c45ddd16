package nodeagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"iop/openai"
)

// The constant paths that the Node asks a provider by, besides those of operations.
const (
	pathModels          = "/v1/models"
	pathOllamaVersion   = "/api/version"
	pathOllamaTags      = "/api/tags"
	pathOllamaLoaded    = "/api/ps"
	pathVLLMVersion     = "/version"
	pathVLLMServerInfo  = "/server_info?config_format=json"
	pathLlamaProps      = "/props"
	pathLMStudioModels  = "/api/v0/models"
	pathSGLangInfo      = "/get_server_info"
	anthropicAPIVersion = "2023-06-01"
)

// maxAskBytes bounds an answer about a provider: the longest model list of a hosted API is below 1 MiB.
const maxAskBytes = 4 << 20

// maxListed bounds the models of one provider.
const maxListed = 4096

// answer is what a provider said about itself.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// ask makes one GET of a constant path.
func (p *provider) ask(ctx context.Context, path string) (answer, error) {
	path, query, _ := strings.Cut(path, "?")
	u := p.endpoint(path)
	u.RawQuery = query
	req := (&http.Request{
		Method: http.MethodGet, URL: u, Host: u.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Accept": jsonType, "Accept-Encoding": plainCoding, "User-Agent": userAgent},
	}).WithContext(ctx)
	if p.engine() == AnthropicEngine || path == pathModels && p.isAnthropicHost() {
		req.Header["Anthropic-Version"] = []string{anthropicAPIVersion}
	}
	p.key.Load().authorize(req.Header)
	resp, err := p.transport.RoundTrip(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAskBytes+1))
	if err != nil {
		return answer{}, err
	}
	if len(body) > maxAskBytes {
		return answer{}, fmt.Errorf("the answer to GET %s exceeds %d bytes", path, maxAskBytes)
	}
	if key := p.key.Load(); key != nil { // what a model is called goes to the Edge
		body = []byte(key.mask(string(body)))
	}
	return answer{resp.StatusCode, resp.Header, body}, nil
}

func (p *provider) isAnthropicHost() bool {
	host := p.base.Hostname()
	return host == "anthropic.com" || strings.HasSuffix(host, ".anthropic.com")
}

// into decodes a successful answer that is a JSON object.
func (a answer) into(v any) bool {
	return a.status == http.StatusOK && len(a.body) > 0 && json.Unmarshal(a.body, v) == nil
}

// nature is what a provider turned out to be.
type nature struct {
	engine   Engine
	capacity int    // as it told; 0 if it did not
	how      string // how an Ollama's capacity is known, or why not
	version  string // as it told; empty if it did not
}

// maxVersion bounds a version: it is shown.
const maxVersion = 64

// plainVersion is a version as it may be shown, empty if it is none.
func plainVersion(v string) string {
	if len(v) > maxVersion || !validModel(v) {
		return ""
	}
	return v
}

// identify asks the provider what it is, likely first. An error means that it gave no answer at all. A server that
// answers but is none that the Node knows is OpenAIEngine.
func (p *provider) identify(ctx context.Context, likely Engine) (nature, error) {
	questions := []struct {
		engine Engine
		ask    func(context.Context) (nature, bool, error)
	}{
		{LlamaCPPEngine, p.askLlamaCPP},
		{SGLangEngine, p.askSGLang},
		{OllamaEngine, p.askOllama},
		{LMStudioEngine, p.askLMStudio},
		{VLLMEngine, p.askVLLM},
	}
	if p.isAnthropicHost() {
		return nature{engine: AnthropicEngine}, nil
	}
	for i, q := range questions {
		if q.engine == likely {
			questions[0], questions[i] = questions[i], questions[0]
		}
	}
	for _, q := range questions {
		id, ok, err := q.ask(ctx)
		if err != nil {
			return nature{}, err
		}
		if ok {
			return id, nil
		}
	}
	a, err := p.ask(ctx, pathModels)
	if err != nil {
		return nature{}, err
	}
	if isAnthropicList(a) {
		return nature{engine: AnthropicEngine}, nil
	}
	return nature{engine: OpenAIEngine}, nil
}

func (p *provider) askOllama(ctx context.Context) (nature, bool, error) {
	a, err := p.ask(ctx, pathOllamaVersion)
	var v struct{ Version string }
	if !a.into(&v) || v.Version == "" {
		return nature{}, false, err
	}
	id := nature{engine: OllamaEngine, version: plainVersion(v.Version)}
	if p.spec.Capacity == 0 {
		id.capacity, id.how = p.ollamaCapacity()
	}
	return id, true, err
}

func (p *provider) askLlamaCPP(ctx context.Context) (nature, bool, error) {
	a, err := p.ask(ctx, pathLlamaProps)
	var v struct {
		TotalSlots int             `json:"total_slots"`
		Settings   json.RawMessage `json:"default_generation_settings"`
		Build      string          `json:"build_info"`
	}
	ok := a.into(&v) && (v.TotalSlots > 0 || v.Settings != nil)
	return nature{engine: LlamaCPPEngine, capacity: v.TotalSlots, version: plainVersion(v.Build)}, ok, err
}

func (p *provider) askSGLang(ctx context.Context) (nature, bool, error) {
	a, err := p.ask(ctx, pathSGLangInfo)
	var v struct {
		Model      string          `json:"model_path"`
		MaxRunning int             `json:"max_running_requests"`
		States     json.RawMessage `json:"internal_states"`
		Version    string          `json:"version"`
	}
	ok := a.into(&v) && (v.Model != "" || v.States != nil)
	return nature{engine: SGLangEngine, capacity: v.MaxRunning, version: plainVersion(v.Version)}, ok, err
}

func (p *provider) askLMStudio(ctx context.Context) (nature, bool, error) {
	a, err := p.ask(ctx, pathLMStudioModels)
	var v struct {
		Object string          `json:"object"`
		Data   json.RawMessage `json:"data"`
	}
	return nature{engine: LMStudioEngine}, a.into(&v) && v.Object == "list" && len(v.Data) > 0 && v.Data[0] == '[', err
}

// maxNumSeqs finds vLLM's limit in its development-mode server info, which is JSON or the text of a Python object.
var maxNumSeqs = regexp.MustCompile(`max_num_seqs["']?\s*[:=]\s*(\d{1,6})\b`)

func (p *provider) askVLLM(ctx context.Context) (nature, bool, error) {
	a, err := p.ask(ctx, pathVLLMVersion)
	var v struct{ Version string }
	if err != nil || !a.into(&v) || v.Version == "" {
		return nature{}, false, err
	}
	id := nature{engine: VLLMEngine, version: plainVersion(v.Version)}
	info, err := p.ask(ctx, pathVLLMServerInfo)
	if err == nil && info.status == http.StatusOK {
		if m := maxNumSeqs.FindSubmatch(info.body); m != nil {
			id.capacity, _ = strconv.Atoi(string(m[1]))
		}
	}
	return id, true, nil
}

// isAnthropicList tells Anthropic's list of models from OpenAI's.
func isAnthropicList(a answer) bool {
	var v struct {
		Object string `json:"object"`
		Data   []struct {
			Type string `json:"type"`
		} `json:"data"`
	}
	return a.into(&v) && v.Object == "" && len(v.Data) > 0 && v.Data[0].Type == "model"
}

// errNoList is the answer of a provider that lives but lists no models.
var errNoList = errors.New("the provider does not list its models")

// noList is an errNoList with the answer that is no list.
type noList struct {
	answer answer
	fault  string
}

func (e *noList) Error() string { return errNoList.Error() + ": " + e.fault }
func (e *noList) Unwrap() error { return errNoList }

// modelList is a provider's list of its models.
type modelList struct {
	models []openai.Model
	loaded loadedModels // as far as the list itself says it
}

// askModels asks for the models that the provider serves. errNoList (wrapped) means that it answered and has no list.
func (p *provider) askModels(ctx context.Context) (modelList, error) {
	a, err := p.ask(ctx, pathModels)
	if err == nil && a.status != http.StatusOK && p.engine() == OllamaEngine {
		a, err = p.ask(ctx, pathOllamaTags)
	}
	if err != nil {
		return modelList{}, err
	}
	if a.status != http.StatusOK {
		return modelList{}, &noList{a, fmt.Sprintf("status %d", a.status)}
	}
	models, err := openai.ParseModelList(a.body)
	if err != nil {
		return modelList{}, &noList{a, err.Error()}
	}
	return modelList{models, a.loaded()}, nil
}
