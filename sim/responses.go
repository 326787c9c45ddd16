package sim

import (
	"encoding/json"
	"maps"
	"strconv"
)

// responseItem is an item of a Responses input: a message, or the result of a function call.
type responseItem struct {
	Type    string `json:"type"`
	Role    string `json:"role"`
	Content words  `json:"content"`
	Output  words  `json:"output"`
}

type responseTool struct {
	Type       string          `json:"type"`
	Name       string          `json:"name"`
	Parameters json.RawMessage `json:"parameters"`
}

// responsesRequest holds what is answered to, and as it came what the response object repeats.
type responsesRequest struct {
	order
	Model           string          `json:"model"`
	Input           json.RawMessage `json:"input"`
	Instructions    *words          `json:"instructions"`
	Stream          bool            `json:"stream"`
	MaxOutputTokens *int            `json:"max_output_tokens"`
	Tools           json.RawMessage `json:"tools"`
	ToolChoice      json.RawMessage `json:"tool_choice"`
	Text            json.RawMessage `json:"text"`
	Temperature     *float64        `json:"temperature"`
	TopP            *float64        `json:"top_p"`
	ParallelTools   *bool           `json:"parallel_tool_calls"`
	Previous        *string         `json:"previous_response_id"`
	Store           *bool           `json:"store"`
}

// decodeResponses reads POST /v1/responses.
func decodeResponses(_ *exchange, body []byte) (*ask, error) {
	var in responsesRequest
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	a := &ask{model: in.Model, stream: in.Stream, orders: in.list(), limit: limitOf(in.MaxOutputTokens), n: 1}
	if err := a.takeInput(in.Input); err != nil {
		return nil, err
	}
	in.Input = nil // it may be large, and in outlives it
	if in.Instructions != nil {
		a.input += countTokens(in.Instructions.size)
	}
	var tools []responseTool
	if len(in.Tools) > 0 {
		if err := json.Unmarshal(in.Tools, &tools); err != nil {
			return nil, err
		}
	}
	for _, t := range tools {
		if t.Type == "function" {
			a.tools = append(a.tools, tool{t.Name, t.Parameters})
		}
	}
	a.toolChoice(in.ToolChoice)
	var text struct {
		Format struct {
			Type   string          `json:"type"`
			Schema json.RawMessage `json:"schema"`
		} `json:"format"`
	}
	if len(in.Text) > 0 {
		if err := json.Unmarshal(in.Text, &text); err != nil {
			return nil, err
		}
		a.schema, a.jsonObject = text.Format.Schema, text.Format.Type == "json_object"
	}
	a.serve = func(x *exchange, a *ask) error { return serveResponses(x, a, &in) }
	return a, nil
}

// takeInput reads a Responses input: a string or a list of items.
func (a *ask) takeInput(raw json.RawMessage) error {
	if len(raw) == 0 {
		return &requestError{"input", "Missing required parameter: 'input'."}
	}
	if json.Unmarshal(raw, &a.text) == nil {
		a.input = countTokens(len(a.text))
		return nil
	}
	var items []responseItem
	if err := json.Unmarshal(raw, &items); err != nil {
		return err
	}
	size := 0
	for _, it := range items {
		size += it.Content.size + it.Output.size
		if it.Role == "user" {
			a.text = it.Content.text
		}
	}
	a.input = countTokens(size)
	if n := len(items); n > 0 {
		a.answered = items[n-1].Type == "function_call_output"
	}
	return nil
}

func serveResponses(x *exchange, a *ask, in *responsesRequest) error {
	p := x.planFor(a)
	d := &responseStream{x: x, p: &p, id: x.id("resp_"), object: in.object(unixNow()), items: []any{}}
	d.object["id"] = d.id
	if a.stream {
		return x.speak(&p, d, sseType)
	}
	if err := x.compute(&p); err != nil {
		return err
	}
	if p.reasoning > 0 {
		d.items = append(d.items, d.reasoningItem(p.reasoningText()))
	}
	if len(p.calls) == 0 {
		d.items = append(d.items, d.messageItem(x.fullText(&p), p.itemStatus()))
	}
	for _, c := range p.calls {
		d.items = append(d.items, d.callItem(c, c.arguments, "completed"))
	}
	return x.deliver("application/json", marshal(d.finalObject()))
}

// object is the response before anything was generated.
func (in *responsesRequest) object(created int64) map[string]any {
	or := func(raw json.RawMessage, otherwise string) json.RawMessage {
		if len(raw) == 0 || string(raw) == "null" {
			return json.RawMessage(otherwise)
		}
		return raw
	}
	o := map[string]any{
		"object": "response", "created_at": created, "status": "in_progress", "error": nil, "incomplete_details": nil,
		"instructions": nil, "max_output_tokens": in.MaxOutputTokens, "model": in.Model, "output": []any{},
		"parallel_tool_calls": true, "previous_response_id": in.Previous,
		"reasoning": map[string]any{"effort": nil, "summary": nil}, "store": true, "temperature": 1.0, "top_p": 1.0,
		"text":       or(in.Text, `{"format":{"type":"text"}}`),
		"tools":      toolsTold(or(in.Tools, `[]`)),
		"metadata":   or(in.Metadata, `{}`),
		"truncation": "disabled", "usage": nil, "user": or(in.User, "null"),
		"tool_choice": or(in.ToolChoice, `"auto"`),
		"background":  false, "completed_at": nil, "frequency_penalty": 0.0, "max_tool_calls": nil, "presence_penalty": 0.0,
		"prompt_cache_key": nil, "safety_identifier": or(in.SafetyID, "null"), "service_tier": "default", "top_logprobs": 0,
	}
	if in.Instructions != nil {
		o["instructions"] = in.Instructions.text
	}
	if in.Temperature != nil {
		o["temperature"] = *in.Temperature
	}
	if in.TopP != nil {
		o["top_p"] = *in.TopP
	}
	if in.ParallelTools != nil {
		o["parallel_tool_calls"] = *in.ParallelTools
	}
	if in.Store != nil {
		o["store"] = *in.Store
	}
	return o
}

// toolsTold repeats the tools with what the client left to the server.
func toolsTold(tools json.RawMessage) any {
	var list []map[string]any
	if json.Unmarshal(tools, &list) != nil {
		return tools
	}
	for _, t := range list {
		if _, given := t["strict"]; t["type"] == "function" && !given {
			t["strict"] = true
		}
	}
	return list
}

func (p *plan) itemStatus() string {
	if p.finish == "length" {
		return "incomplete"
	}
	return "completed"
}

// responses renders the usage of Responses.
func (u usage) responses() map[string]any {
	return map[string]any{
		"input_tokens": u.input, "input_tokens_details": map[string]int{"cached_tokens": u.cached},
		"output_tokens": u.output, "output_tokens_details": map[string]int{"reasoning_tokens": u.reasoning},
		"total_tokens": u.input + u.output,
	}
}

// responseStream is the dialect of streamed Responses.
type responseStream struct {
	x      *exchange
	p      *plan
	id     string
	object map[string]any // without output, status and usage
	items  []any          // the items that are complete

	seq    int    // of the next event
	kind   string // of the item that is open: "", reasoning, message
	itemID string
	buf    []byte // the text of the open item
}

func (d *responseStream) reasoningItem(text string) map[string]any {
	if d.itemID == "" {
		d.itemID = d.x.id("rs_")
	}
	return map[string]any{"id": d.itemID, "type": "reasoning", "summary": []any{summaryPart(text)}}
}

func summaryPart(text string) map[string]any {
	return map[string]any{"type": "summary_text", "text": text}
}

func textPart(text string) map[string]any {
	return map[string]any{"type": "output_text", "text": text, "annotations": []any{}, "logprobs": []any{}}
}

func (d *responseStream) messageItem(text, status string) map[string]any {
	if d.kind != "message" {
		d.itemID = d.x.id("msg_")
	}
	return map[string]any{"id": d.itemID, "type": "message", "status": status, "role": "assistant", "content": []any{textPart(text)}}
}

func (d *responseStream) callItem(c toolCall, arguments, status string) map[string]any {
	return map[string]any{
		"id": "fc_" + c.id, "type": "function_call", "status": status, "call_id": c.id, "name": c.name, "arguments": arguments,
	}
}

// finalObject is the response at its end.
func (d *responseStream) finalObject() map[string]any {
	o := maps.Clone(d.object)
	o["status"], o["output"], o["completed_at"] = "completed", d.items, unixNow()
	if d.p.finish == "length" {
		o["status"], o["incomplete_details"] = "incomplete", map[string]string{"reason": "max_output_tokens"}
		o["completed_at"] = nil
	}
	if d.x.k.usage != "never" {
		o["usage"] = d.p.usage.responses()
	}
	return o
}

// send writes one event; sequence_number and type are added.
func (d *responseStream) send(kind string, fields map[string]any) error {
	fields["type"], fields["sequence_number"] = kind, d.seq
	d.seq++
	return d.x.event(kind, marshal(fields))
}

// delta writes an event whose one part is text, at the pace of tokens: without maps.
func (d *responseStream) delta(kind, index string, text []byte, rest string) error {
	b := appendString(append(d.x.data[:0], `{"type":`...), kind)
	b = strconv.AppendInt(append(b, `,"sequence_number":`...), int64(d.seq), 10)
	b = appendString(append(b, `,"item_id":`...), d.itemID)
	b = strconv.AppendInt(append(b, `,"output_index":`...), int64(len(d.items)), 10)
	b = append(b, index...)
	b = append(append(appendString(append(b, `,"delta":`...), text), rest...), '}')
	d.x.data = b
	d.seq++
	return d.x.event(kind, b)
}

func (d *responseStream) begin() error {
	if err := d.send("response.created", map[string]any{"response": d.object}); err != nil {
		return err
	}
	return d.send("response.in_progress", map[string]any{"response": d.object})
}

func (d *responseStream) think(text []byte) error {
	if d.kind == "" {
		d.kind, d.itemID, d.buf = "reasoning", d.x.id("rs_"), d.buf[:0]
		item := map[string]any{"id": d.itemID, "type": "reasoning", "summary": []any{}}
		if err := d.send("response.output_item.added", map[string]any{"output_index": len(d.items), "item": item}); err != nil {
			return err
		}
		if err := d.send("response.reasoning_summary_part.added", d.at("summary_index", map[string]any{"part": summaryPart("")})); err != nil {
			return err
		}
	}
	d.buf = append(d.buf, text...)
	return d.delta("response.reasoning_summary_text.delta", `,"summary_index":0`, text, "")
}

// at adds to fields where in the output they belong.
func (d *responseStream) at(index string, fields map[string]any) map[string]any {
	fields["item_id"], fields["output_index"] = d.itemID, len(d.items)
	if index != "" {
		fields[index] = 0
	}
	return fields
}

func (d *responseStream) text(text []byte) error {
	if err := d.openMessage(); err != nil {
		return err
	}
	d.buf = append(d.buf, text...)
	return d.delta("response.output_text.delta", `,"content_index":0`, text, `,"logprobs":[]`)
}

func (d *responseStream) openMessage() error {
	if d.kind == "message" {
		return nil
	}
	if err := d.closeItem(); err != nil {
		return err
	}
	item := d.messageItem("", "in_progress")
	item["content"] = []any{}
	d.kind, d.buf = "message", d.buf[:0]
	if err := d.send("response.output_item.added", map[string]any{"output_index": len(d.items), "item": item}); err != nil {
		return err
	}
	return d.send("response.content_part.added", d.at("content_index", map[string]any{"part": textPart("")}))
}

// closeItem ends the item that is open, if any.
func (d *responseStream) closeItem() error {
	text := string(d.buf)
	var item map[string]any
	var events []error
	switch d.kind {
	case "":
		return nil
	case "reasoning":
		item = d.reasoningItem(text)
		events = append(events,
			d.send("response.reasoning_summary_text.done", d.at("summary_index", map[string]any{"text": text})),
			d.send("response.reasoning_summary_part.done", d.at("summary_index", map[string]any{"part": summaryPart(text)})))
	case "message":
		item = d.messageItem(text, d.p.itemStatus())
		events = append(events,
			d.send("response.output_text.done", d.at("content_index", map[string]any{"text": text, "logprobs": []any{}})),
			d.send("response.content_part.done", d.at("content_index", map[string]any{"part": textPart(text)})))
	}
	for _, err := range events {
		if err != nil {
			return err
		}
	}
	d.kind = ""
	return d.closeWith(item)
}

func (d *responseStream) closeWith(item map[string]any) error {
	err := d.send("response.output_item.done", map[string]any{"output_index": len(d.items), "item": item})
	d.items = append(d.items, item)
	return err
}

func (d *responseStream) callStart(_ int, c toolCall) error {
	if err := d.closeItem(); err != nil {
		return err
	}
	item := d.callItem(c, "", "in_progress")
	d.itemID = "fc_" + c.id
	return d.send("response.output_item.added", map[string]any{"output_index": len(d.items), "item": item})
}

func (d *responseStream) callPart(_ int, part string) error {
	return d.delta("response.function_call_arguments.delta", "", []byte(part), "")
}

func (d *responseStream) callEnd(_ int, c toolCall) error {
	fields := d.at("", map[string]any{"name": c.name, "arguments": c.arguments})
	if err := d.send("response.function_call_arguments.done", fields); err != nil {
		return err
	}
	return d.closeWith(d.callItem(c, c.arguments, "completed"))
}

func (d *responseStream) end(p *plan) error {
	if len(p.calls) == 0 { // also where the text is empty
		if err := d.openMessage(); err != nil {
			return err
		}
	}
	if err := d.closeItem(); err != nil {
		return err
	}
	kind := "response.completed"
	if p.finish == "length" {
		kind = "response.incomplete"
	}
	if err := d.send(kind, map[string]any{"response": d.finalObject()}); err != nil {
		return err
	}
	if d.x.k.trailing {
		return d.send("response.output_text.delta", d.at("content_index", map[string]any{"delta": " after the end", "logprobs": []any{}}))
	}
	return nil
}

func (d *responseStream) fail(e apiError) error {
	if err := d.send("error", map[string]any{"error": e.object(OpenAI)}); err != nil {
		return err
	}
	o := maps.Clone(d.object)
	o["status"], o["error"], o["output"] = "failed", map[string]string{"code": "server_error", "message": e.message}, d.items
	return d.send("response.failed", map[string]any{"response": o})
}
