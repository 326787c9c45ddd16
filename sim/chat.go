package sim

import (
	"encoding/json"
	"strconv"
)

type chatMessage struct {
	Role    string `json:"role"`
	Content words  `json:"content"`
}

type chatTool struct {
	Function struct {
		Name       string          `json:"name"`
		Parameters json.RawMessage `json:"parameters"`
	} `json:"function"`
}

type chatRequest struct {
	order
	Model         string         `json:"model"`
	Messages      *[]chatMessage `json:"messages"`
	Stream        bool           `json:"stream"`
	StreamOptions *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	N                   *int            `json:"n"`
	MaxTokens           *int            `json:"max_tokens"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	Tools               []chatTool      `json:"tools"`
	ToolChoice          json.RawMessage `json:"tool_choice"`
	ResponseFormat      *struct {
		Type       string `json:"type"`
		JSONSchema struct {
			Schema json.RawMessage `json:"schema"`
		} `json:"json_schema"`
	} `json:"response_format"`
}

// decodeChat reads POST /v1/chat/completions.
func decodeChat(x *exchange, body []byte) (*ask, error) {
	var in chatRequest
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	if in.Messages == nil {
		return nil, &requestError{"messages", "Missing required parameter: 'messages'."}
	}
	a := &ask{
		serve: serveChat, model: in.Model, stream: in.Stream, orders: in.list(),
		limit: limitOf(in.MaxCompletionTokens, in.MaxTokens), n: 1,
	}
	if in.N != nil && x.s.config.Flavour != Ollama { // Ollama ignores it
		if *in.N < 1 || *in.N > 128 {
			return nil, &requestError{"n", "Invalid 'n': must be 1 to 128."}
		}
		a.n = *in.N
	}
	if o := in.StreamOptions; o != nil {
		a.streamOptions, a.includeUsage = true, o.IncludeUsage
	}
	a.takeMessages(*in.Messages)
	for _, t := range in.Tools {
		a.tools = append(a.tools, tool{t.Function.Name, t.Function.Parameters})
	}
	a.toolChoice(in.ToolChoice)
	if f := in.ResponseFormat; f != nil {
		a.schema, a.jsonObject = f.JSONSchema.Schema, f.Type == "json_object"
	}
	return a, nil
}

// takeMessages counts all messages and remembers the last user's.
func (a *ask) takeMessages(messages []chatMessage) {
	size := 0
	for _, m := range messages {
		size += m.Content.size
		if m.Role == "user" {
			a.text = m.Content.text
		}
	}
	a.input = countTokens(size)
	if n := len(messages); n > 0 {
		a.answered = messages[n-1].Role == "tool"
	}
}

func serveChat(x *exchange, a *ask) error {
	p := x.planFor(a)
	id, created := x.chatID(), unixNow()
	if a.stream {
		return x.speak(&p, newChunkStream(x, a, &p, id, created, false), sseType)
	}
	if err := x.compute(&p); err != nil {
		return err
	}
	message := map[string]any{"role": "assistant", "content": nil, "refusal": nil}
	if len(p.calls) > 0 {
		message["tool_calls"] = chatCalls(p.calls)
	} else {
		message["content"] = x.fullText(&p)
	}
	if p.reasoning > 0 {
		message["reasoning_content"] = p.reasoningText()
	}
	choices := make([]any, a.n)
	for i := range choices {
		choices[i] = map[string]any{"index": i, "message": message, "logprobs": nil, "finish_reason": p.finish}
	}
	out := map[string]any{
		"id": id, "object": "chat.completion", "created": created, "model": a.model,
		"choices": choices, "system_fingerprint": "fp_sim",
	}
	if x.k.usage != "never" {
		out["usage"] = p.usage.chat()
	}
	return x.deliver("application/json", marshal(out))
}

func (x *exchange) chatID() string {
	if x.s.config.Flavour == Ollama {
		return "chatcmpl-" + strconv.FormatInt(x.rec.ID%1000, 10)
	}
	return x.id("chatcmpl-")
}

func chatCalls(calls []toolCall) []any {
	out := make([]any, len(calls))
	for i, c := range calls {
		out[i] = map[string]any{"id": c.id, "type": "function", "function": map[string]string{"name": c.name, "arguments": c.arguments}}
	}
	return out
}

// chat renders the usage of Chat Completions.
func (u usage) chat() map[string]any {
	return map[string]any{
		"prompt_tokens": u.input, "completion_tokens": u.output, "total_tokens": u.input + u.output,
		"prompt_tokens_details":     map[string]int{"cached_tokens": u.cached},
		"completion_tokens_details": map[string]int{"reasoning_tokens": u.reasoning},
	}
}
