package sim

import (
	"net/http"
	"time"
)

// modelsCreated is when every model was made: 2025-01-01.
var modelsCreated = time.Date(2025, time.January, 1, 0, 0, 0, 0, time.UTC)

// contextLength is what every model is said to take.
const contextLength = 131072

func serveModels(x *exchange) error {
	models := x.s.Models()
	data := make([]any, len(models))
	for i, m := range models {
		data[i] = x.s.modelObject(m)
	}
	out := map[string]any{"object": "list", "data": data}
	if x.s.config.Flavour == Anthropic {
		out = map[string]any{"data": data, "has_more": false, "first_id": nil, "last_id": nil}
		if len(models) > 0 {
			out["first_id"], out["last_id"] = models[0], models[len(models)-1]
		}
	}
	return x.deliver("application/json", marshal(out))
}

func serveModel(x *exchange) error {
	id := x.r.PathValue("id")
	if !x.s.knows(id) {
		return x.refuse(apiError{
			status: http.StatusNotFound, kind: "invalid_request_error", code: "model_not_found", param: "model",
			message: "The model '" + id + "' does not exist.",
		})
	}
	return x.deliver("application/json", marshal(x.s.modelObject(id)))
}

// modelObject describes one model as the flavour does.
func (s *Server) modelObject(id string) map[string]any {
	o := map[string]any{"id": id, "object": "model", "created": modelsCreated.Unix(), "owned_by": "sim"}
	switch s.config.Flavour {
	case VLLM:
		o["owned_by"], o["root"], o["parent"], o["max_model_len"] = "vllm", id, nil, contextLength
	case LlamaCPP:
		o["owned_by"] = "llamacpp"
		o["meta"] = map[string]any{"vocab_type": 2, "n_vocab": 128256, "n_ctx_train": contextLength, "n_embd": 4096, "n_params": 8030261248, "size": 4912898304}
	case Ollama:
		o["owned_by"] = "library"
	case LMStudio:
		o["owned_by"] = "organization_owner"
	case SGLang:
		o["owned_by"], o["root"], o["max_model_len"] = "sglang", id, contextLength
	case Anthropic:
		return map[string]any{"type": "model", "id": id, "display_name": id, "created_at": modelsCreated.Format(time.RFC3339)}
	}
	return o
}
