package sim

import (
	"encoding/json"
	"strconv"
)

// chatFamily is POST /v1/chat/completions.
var chatFamily = family{decode: decodeChat, serve: serveChat}

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

func decodeChat(x *exchange, body []byte) (*ask, error) {
	var in chatRequest
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	if in.Messages == nil {
		return nil, &requestError{"messages", "Missing required parameter: 'messages'."}
	}
	a := &ask{
		model: in.Model, stream: in.Stream, orders: in.list(),
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
		return x.speak(&p, newChatStream(x, a, &p, id, created), sseType)
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

// chatStream is the dialect of streamed Chat Completions.
type chatStream struct {
	x        *exchange
	a        *ask
	head     []byte   // of every chunk, up to the choices
	tail     []byte   // of every chunk, after them
	openings [][]byte // of the delta of content, by choice
}

func newChatStream(x *exchange, a *ask, p *plan, id string, created int64) *chatStream {
	c := &chatStream{x: x, a: a}
	c.head = appendString([]byte(`{"id":`), id)
	c.head = strconv.AppendInt(append(c.head, `,"object":"chat.completion.chunk","created":`...), created, 10)
	c.head = appendString(append(c.head, `,"model":`...), a.model)
	c.head = append(c.head, `,"system_fingerprint":"fp_sim","choices":[`...)
	switch x.k.usage {
	case "always":
		c.tail = append(append([]byte(`],"usage":`), marshal(p.usage.chat())...), '}')
	case "", "finish":
		c.tail = []byte(`]}`)
		if a.includeUsage && x.k.usage == "" {
			c.tail = []byte(`],"usage":null}`)
		}
	default:
		c.tail = []byte(`]}`)
	}
	role := ""
	if x.s.config.Flavour == Ollama {
		role = `"role":"assistant",`
	}
	for i := range a.n {
		c.openings = append(c.openings, []byte(`{"index":`+strconv.Itoa(i)+`,"delta":{`+role))
	}
	return c
}

// chunk writes one chunk for every choice. delta appends the members of its delta.
func (c *chatStream) chunk(delta func(b []byte) []byte, finish string) error {
	for i := range c.a.n {
		b := append(append(c.x.data[:0], c.head...), c.openings[i]...)
		b = append(delta(b), `},"logprobs":null,"finish_reason":`...)
		if finish == "" {
			b = append(b, "null}"...)
		} else {
			b = append(appendString(b, finish), '}')
		}
		b = append(b, c.tail...)
		c.x.data = b
		if err := c.x.event("", b); err != nil {
			return err
		}
	}
	return nil
}

func (c *chatStream) begin() error {
	switch c.x.s.config.Flavour {
	case Ollama, LlamaCPP: // neither announces the role
		return nil
	}
	return c.chunk(func(b []byte) []byte { return append(b, `"role":"assistant","content":"","refusal":null`...) }, "")
}

func (c *chatStream) think(text []byte) error {
	return c.chunk(func(b []byte) []byte { return appendString(append(b, `"reasoning_content":`...), text) }, "")
}

func (c *chatStream) text(text []byte) error {
	return c.chunk(func(b []byte) []byte { return appendString(append(b, `"content":`...), text) }, "")
}

func (c *chatStream) callStart(i int, call toolCall) error {
	return c.chunk(func(b []byte) []byte {
		b = strconv.AppendInt(append(b, `"tool_calls":[{"index":`...), int64(i), 10)
		b = appendString(append(b, `,"id":`...), call.id)
		b = appendString(append(b, `,"type":"function","function":{"name":`...), call.name)
		return append(b, `,"arguments":""}}]`...)
	}, "")
}

func (c *chatStream) callPart(i int, part string) error {
	return c.chunk(func(b []byte) []byte {
		b = strconv.AppendInt(append(b, `"tool_calls":[{"index":`...), int64(i), 10)
		b = appendString(append(b, `,"function":{"arguments":`...), part)
		return append(b, `}}]`...)
	}, "")
}

func (c *chatStream) callEnd(int, toolCall) error { return nil }

func (c *chatStream) end(p *plan) error {
	withUsage := append(append([]byte(`],"usage":`), marshal(p.usage.chat())...), '}')
	inFinish := c.x.k.usage == "finish" || c.x.s.config.Flavour == LlamaCPP && c.x.k.usage == ""
	if inFinish {
		c.tail = withUsage
	}
	if err := c.chunk(func(b []byte) []byte { return b }, p.finish); err != nil {
		return err
	}
	if !inFinish && c.x.k.usage != "never" && (c.a.includeUsage || c.x.k.usage == "always") {
		if err := c.x.event("", append(append(c.x.data[:0], c.head...), withUsage...)); err != nil {
			return err
		}
	}
	if err := c.x.done(); err != nil {
		return err
	}
	if c.x.k.trailing {
		return c.text([]byte(" after the end"))
	}
	return nil
}

func (c *chatStream) fail(e apiError) error {
	if err := c.x.event("", marshal(map[string]any{"error": e.object(c.x.s.config.Flavour)})); err != nil {
		return err
	}
	if c.x.s.config.Flavour == VLLM {
		return c.x.done()
	}
	return nil
}
