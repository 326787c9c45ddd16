package sim

import (
	"encoding/json"
	"strconv"
)

type messagesRequest struct {
	order
	Model      string          `json:"model"`
	Messages   []chatMessage   `json:"messages"`
	System     *words          `json:"system"`
	MaxTokens  *int            `json:"max_tokens"`
	Stream     bool            `json:"stream"`
	ToolChoice json.RawMessage `json:"tool_choice"`
	Tools      []struct {
		Name        string          `json:"name"`
		InputSchema json.RawMessage `json:"input_schema"`
	} `json:"tools"`
	Thinking *struct {
		Type string `json:"type"`
	} `json:"thinking"`
	OutputFormat *struct {
		Schema json.RawMessage `json:"schema"`
	} `json:"output_format"`
	OutputConfig *struct {
		Format struct {
			Schema json.RawMessage `json:"schema"`
		} `json:"format"`
	} `json:"output_config"`
}

// decodeMessages reads POST /v1/messages.
func decodeMessages(_ *exchange, body []byte) (*ask, error) {
	in, a, err := readMessages(body)
	if err != nil {
		return nil, err
	}
	if in.MaxTokens == nil {
		return nil, &requestError{"max_tokens", "max_tokens: Field required"}
	}
	a.serve = func(x *exchange, a *ask) error {
		if in.Thinking != nil && in.Thinking.Type != "disabled" && x.k.reasoning == unset {
			x.k.reasoning = reasonTokens
		}
		return serveMessages(x, a)
	}
	return a, nil
}

func readMessages(body []byte) (*messagesRequest, *ask, error) {
	var in messagesRequest
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, nil, err
	}
	if len(in.Messages) == 0 {
		return nil, nil, &requestError{"messages", "messages: Field required"}
	}
	a := &ask{model: in.Model, stream: in.Stream, orders: in.list(), limit: limitOf(in.MaxTokens), n: 1}
	a.takeMessages(in.Messages)
	a.answered = in.Messages[len(in.Messages)-1].Content.toolResult
	if in.System != nil {
		a.input += countTokens(in.System.size)
	}
	for _, t := range in.Tools {
		a.tools = append(a.tools, tool{t.Name, t.InputSchema})
	}
	a.toolChoice(in.ToolChoice)
	switch {
	case in.OutputConfig != nil:
		a.schema = in.OutputConfig.Format.Schema
	case in.OutputFormat != nil:
		a.schema = in.OutputFormat.Schema
	}
	return &in, a, nil
}

// decodeCountTokens reads POST /v1/messages/count_tokens.
func decodeCountTokens(_ *exchange, body []byte) (*ask, error) {
	_, a, err := readMessages(body)
	if err != nil {
		return nil, err
	}
	a.serve = func(x *exchange, a *ask) error {
		if err := x.turn(); err != nil {
			return err
		}
		return x.deliver("application/json", marshal(map[string]int{"input_tokens": a.input}))
	}
	return a, nil
}

func (p *plan) stopReason() string {
	switch p.finish {
	case "length":
		return "max_tokens"
	case "tool_calls":
		return "tool_use"
	}
	return "end_turn"
}

// messages renders the usage of Messages, with output tokens as given.
func (u usage) messages(output int) map[string]any {
	return map[string]any{
		"input_tokens": u.input - u.cached, "cache_read_input_tokens": u.cached, "cache_creation_input_tokens": 0, "output_tokens": output,
	}
}

func serveMessages(x *exchange, a *ask) error {
	p := x.planFor(a)
	id := x.id("msg_")
	x.w.Header().Set("Request-Id", x.id("req_"))
	message := map[string]any{
		"id": id, "type": "message", "role": "assistant", "model": a.model, "content": []any{},
		"stop_reason": nil, "stop_sequence": nil, "usage": p.usage.messages(0),
	}
	if a.stream {
		return x.speak(&p, &messageStream{x: x, p: &p, message: message, open: unset}, sseType)
	}
	if err := x.compute(&p); err != nil {
		return err
	}
	content := []any{}
	if p.reasoning > 0 {
		content = append(content, map[string]any{"type": "thinking", "thinking": p.reasoningText(), "signature": signature})
	}
	if len(p.calls) == 0 {
		content = append(content, map[string]any{"type": "text", "text": x.fullText(&p)})
	}
	for _, c := range p.calls {
		content = append(content, map[string]any{"type": "tool_use", "id": c.id, "name": c.name, "input": json.RawMessage(c.arguments)})
	}
	message["content"], message["stop_reason"] = content, p.stopReason()
	message["usage"] = p.usage.messages(p.usage.output)
	return x.deliver("application/json", marshal(message))
}

// signature stands under every thinking block.
const signature = "c2ltdWxhdGVk"

// messageStream is the dialect of streamed Messages.
type messageStream struct {
	x       *exchange
	p       *plan
	message map[string]any

	blocks int    // begun so far
	open   int    // the index of the block that is open, or unset
	kind   string // of that block
}

func (d *messageStream) send(kind string, fields map[string]any) error {
	fields["type"] = kind
	return d.x.event(kind, marshal(fields))
}

// delta writes a content_block_delta whose one part is text, at the pace of tokens: without maps.
func (d *messageStream) delta(kind, field string, text []byte) error {
	b := strconv.AppendInt(append(d.x.data[:0], `{"type":"content_block_delta","index":`...), int64(d.open), 10)
	b = append(append(append(b, `,"delta":{"type":"`...), kind...), `","`...)
	b = append(appendString(append(append(b, field...), `":`...), text), "}}"...)
	d.x.data = b
	return d.x.event("content_block_delta", b)
}

func (d *messageStream) begin() error {
	if err := d.send("message_start", map[string]any{"message": d.message}); err != nil {
		return err
	}
	return d.send("ping", map[string]any{})
}

// block makes sure that a block of that kind is open.
func (d *messageStream) block(kind string, start map[string]any) error {
	if d.open != unset && d.kind == kind && kind != "tool_use" {
		return nil
	}
	if err := d.closeBlock(); err != nil {
		return err
	}
	d.open, d.kind = d.blocks, kind
	d.blocks++
	start["type"] = kind
	return d.send("content_block_start", map[string]any{"index": d.open, "content_block": start})
}

func (d *messageStream) closeBlock() error {
	if d.open == unset {
		return nil
	}
	if d.kind == "thinking" {
		if err := d.delta("signature_delta", "signature", []byte(signature)); err != nil {
			return err
		}
	}
	i := d.open
	d.open = unset
	return d.send("content_block_stop", map[string]any{"index": i})
}

func (d *messageStream) think(text []byte) error {
	if err := d.block("thinking", map[string]any{"thinking": "", "signature": ""}); err != nil {
		return err
	}
	return d.delta("thinking_delta", "thinking", text)
}

func (d *messageStream) text(text []byte) error {
	if err := d.block("text", map[string]any{"text": ""}); err != nil {
		return err
	}
	return d.delta("text_delta", "text", text)
}

func (d *messageStream) callStart(_ int, c toolCall) error {
	return d.block("tool_use", map[string]any{"id": c.id, "name": c.name, "input": map[string]any{}})
}

func (d *messageStream) callPart(_ int, part string) error {
	return d.delta("input_json_delta", "partial_json", []byte(part))
}

func (d *messageStream) callEnd(int, toolCall) error { return d.closeBlock() }

func (d *messageStream) end(p *plan) error {
	if err := d.closeBlock(); err != nil {
		return err
	}
	err := d.send("message_delta", map[string]any{
		"delta": map[string]any{"stop_reason": p.stopReason(), "stop_sequence": nil}, "usage": p.usage.messages(p.usage.output),
	})
	if err != nil {
		return err
	}
	return d.send("message_stop", map[string]any{})
}

func (d *messageStream) fail(e apiError) error {
	return d.send("error", map[string]any{"error": map[string]string{"type": "api_error", "message": e.message}})
}
