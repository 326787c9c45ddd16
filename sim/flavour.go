package sim

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// flavourHeaders sets the headers that the engine is known by. A gateway has to decide on each of them.
func (x *exchange) flavourHeaders(h http.Header) {
	switch x.s.config.Flavour {
	case OpenAI:
		h.Set("Server", "cloudflare")
		h.Set("X-Request-Id", "req_sim"+strconv.FormatInt(x.rec.ID, 36))
		h.Set("Openai-Organization", "org-sim")
		h.Set("Openai-Processing-Ms", strconv.FormatInt(time.Since(x.rec.Started).Milliseconds(), 10))
		h.Set("X-Ratelimit-Limit-Requests", "10000")
		h.Set("X-Ratelimit-Remaining-Requests", "9999")
	case Anthropic:
		h.Set("Server", "cloudflare")
	case VLLM, SGLang:
		h.Set("Server", "uvicorn")
	case LlamaCPP:
		h.Set("Server", "llama.cpp")
		h.Set("Access-Control-Allow-Origin", "") // it repeats the Origin that was not sent
	}
}

// The paths that the versions imitated here do not have. The flavour openai stands for whatever speaks the protocol, and
// has all.
var (
	mediaPaths  = []string{"/v1/moderations", "/v1/images/generations", "/v1/images/edits", "/v1/audio/speech", "/v1/audio/transcriptions", "/v1/audio/translations"}
	rerankPaths = []string{"/v1/rerank", "/rerank", "/v2/rerank"}
	tokenPaths  = []string{"/tokenize", "/detokenize"}
	claudePaths = []string{"/v1/messages", "/v1/messages/count_tokens"}

	lackedPaths = map[Flavour][]string{
		VLLM:     slices.Concat([]string{"/v1/moderations"}, claudePaths),
		LlamaCPP: slices.Concat(mediaPaths, claudePaths, []string{"/v1/responses", "/v2/rerank"}),
		Ollama:   slices.Concat(mediaPaths, rerankPaths, tokenPaths, claudePaths, []string{"/v1/responses"}),
		LMStudio: slices.Concat(mediaPaths, rerankPaths, tokenPaths, claudePaths),
		SGLang:   slices.Concat(mediaPaths, claudePaths, []string{"/v1/responses", "/rerank", "/v2/rerank"}),
		Anthropic: slices.Concat(mediaPaths, rerankPaths, tokenPaths,
			[]string{"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"}),
	}
)

// lacks reports whether the engine does not have the path.
func (f Flavour) lacks(path string) bool { return slices.Contains(lackedPaths[f], path) }

// flavourRoutes adds the paths by which an engine is told from another.
func (s *Server) flavourRoutes(m *http.ServeMux) {
	empty := s.plain(func(x *exchange) error { return x.whole(http.StatusOK, "", nil) })
	switch s.config.Flavour {
	case VLLM:
		m.Handle("GET /health", empty)
		m.Handle("GET /ping", empty)
		m.Handle("GET /version", s.fixed(func() any { return map[string]string{"version": "0.11.0"} }))
		m.Handle("GET /load", s.fixed(func() any { return map[string]int64{"server_load": s.Stats().Active} }))
		m.Handle("GET /metrics", s.plain(serveVLLMMetrics))
	case LlamaCPP:
		health := s.fixed(func() any { return map[string]string{"status": "ok"} })
		m.Handle("GET /health", health)
		m.Handle("GET /v1/health", health)
		m.Handle("GET /props", s.fixed(s.llamaProps))
		m.Handle("GET /slots", s.fixed(s.llamaSlots))
		m.Handle("GET /models", s.plain(serveModels))
		m.Handle("POST /chat/completions", s.infer(decodeChat))
	case Ollama:
		s.ollamaRoutes(m)
	case LMStudio:
		m.Handle("GET /api/v0/models", s.fixed(s.lmStudioModels))
	case SGLang:
		m.Handle("GET /health", empty)
		m.Handle("GET /health_generate", empty)
		info := s.fixed(s.sglangInfo)
		m.Handle("GET /get_server_info", info)
		m.Handle("GET /server_info", info)
		model := s.fixed(s.sglangModel)
		m.Handle("GET /get_model_info", model)
		m.Handle("GET /model_info", model)
	}
}

// fixed serves a JSON document that takes no input.
func (s *Server) fixed(document func() any) http.Handler {
	return s.plain(func(x *exchange) error { return x.deliver("application/json", marshal(document())) })
}

// firstModel is the model of an engine that serves one.
func (s *Server) firstModel() string {
	if m := s.Models(); len(m) > 0 {
		return m[0]
	}
	return ""
}

func serveVLLMMetrics(x *exchange) error {
	st := x.s.Stats()
	var b strings.Builder
	for _, g := range []struct {
		name, help string
		value      int64
	}{
		{"vllm:num_requests_running", "Number of requests in model execution batches.", st.Active},
		{"vllm:num_requests_waiting", "Number of requests waiting to be processed.", st.Queued},
	} {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s gauge\n%s{engine=\"0\",model_name=%q} %d.0\n", g.name, g.help, g.name, g.name, x.s.firstModel(), g.value)
	}
	return x.deliver("text/plain; version=0.0.4; charset=utf-8", []byte(b.String()))
}

func (s *Server) llamaProps() any {
	return map[string]any{
		"default_generation_settings": map[string]any{"id": 0, "n_ctx": contextLength, "is_processing": false, "params": map[string]any{}},
		"total_slots":                 s.Stats().Slots, "model_path": "models/" + s.firstModel() + ".gguf", "model_alias": s.firstModel(),
		"chat_template": "", "modalities": map[string]bool{"vision": false, "audio": false}, "build_info": "b6500-sim",
	}
}

func (s *Server) llamaSlots() any {
	st := s.Stats()
	list := make([]any, st.Slots)
	for i := range list {
		list[i] = map[string]any{"id": i, "n_ctx": contextLength, "is_processing": i < st.Busy}
	}
	return list
}

func (s *Server) lmStudioModels() any {
	data := []any{}
	now := time.Now()
	for _, m := range s.Models() {
		state, kind := "not-loaded", "llm"
		if s.memory.holds(m, now) {
			state = "loaded"
		}
		if strings.Contains(m, "embed") {
			kind = "embeddings"
		}
		data = append(data, map[string]any{
			"id": m, "object": "model", "type": kind, "publisher": "sim", "arch": "sim", "compatibility_type": "gguf",
			"quantization": "Q4_K_M", "state": state, "max_context_length": contextLength, "loaded_context_length": contextLength,
		})
	}
	return map[string]any{"object": "list", "data": data}
}

func (s *Server) sglangInfo() any {
	st := s.Stats()
	return map[string]any{
		"model_path": s.firstModel(), "served_model_name": s.firstModel(), "version": "0.5.3", "tp_size": 1, "dp_size": 1,
		"max_running_requests": st.Slots, "max_total_num_tokens": contextLength, "context_length": contextLength,
		"internal_states": []any{map[string]any{"effective_max_running_requests_per_dp": st.Slots, "last_gen_throughput": 0.0}},
	}
}

func (s *Server) sglangModel() any {
	return map[string]any{"model_path": s.firstModel(), "tokenizer_path": s.firstModel(), "is_generation": true, "preferred_sampling_params": nil}
}
