package sim

import "net/http"

// server is the flavour's Server header, or "" where it sends none.
func (f Flavour) server() string {
	switch f {
	case VLLM, SGLang:
		return "uvicorn"
	case LlamaCPP:
		return "llama.cpp"
	case OpenAI, Anthropic:
		return "cloudflare"
	}
	return ""
}

// flavourRoutes adds the paths by which an engine is told from another.
func (s *Server) flavourRoutes(m *http.ServeMux) {
	m.Handle("GET /health", s.plain(func(x *exchange) error { return x.deliver("application/json", []byte(`{"status":"ok"}`)) }))
}
