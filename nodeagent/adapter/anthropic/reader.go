package anthropic

import (
	"net/http"
	"strconv"

	"iop/execution"
	"iop/nodeagent/adapter"
	"iop/openai"
)

// Reader implements adapter.Adapter.
func (protocol) Reader(adapter.Spec) adapter.Reader {
	r := &reader{block: block0}
	r.Begin(&r.events, r.take, nil)
	return r
}

// reader reads the events of Messages.
type reader struct {
	adapter.Frame[*adapter.ServerEvent]
	events    adapter.EventSplitter
	usual     adapter.Template
	usualAs   execution.Event // what an event like the learned one is, but for its text
	usualJSON bool            // its text is a piece of a call's arguments
	block     openBlock
	calls     int
	started   bool
	finished  bool
}

// openBlock is the content block that is being written.
type openBlock struct {
	number int    // the provider's; -1 for none
	kind   string // its type
	call   int    // of tool_use: the index among the calls
	input  []byte // of tool_use: what its start had of arguments
	begun  bool   // of tool_use: a piece of its arguments was given
}

var block0 = openBlock{number: -1}

func (r *reader) take(e *adapter.ServerEvent) (stop bool, err error) {
	if piece, ok := r.usual.Match(e.Data); ok {
		r.Meter.Produced(len(piece))
		if r.usualJSON {
			r.usualAs.Call.Arguments = piece
		} else {
			r.usualAs.Text = piece
		}
		return false, r.Emit(&r.usualAs)
	}
	if len(e.Data) == 0 {
		return false, nil
	}
	if e.Data[0] != '{' || !openai.WellFormed(e.Data) {
		return false, adapter.Malformed("an event of the provider's stream is not a JSON object")
	}
	kind := adapter.Text(openai.Member(e.Data, "type"))
	if kind == "" {
		kind = string(e.Name)
	}
	return r.typed(kind, e.Data)
}

func (r *reader) typed(kind string, data []byte) (stop bool, err error) {
	switch kind {
	case "message_start":
		return false, r.start(openai.Member(data, "message"))
	case "content_block_start":
		return false, r.open(data)
	case "content_block_delta":
		return false, r.delta(data)
	case "content_block_stop":
		return false, r.close()
	case "message_delta":
		return false, r.finish(data)
	case "message_stop":
		if !r.finished {
			return false, adapter.Malformed("the provider's message ended without a reason")
		}
		r.Over = true
		return true, nil
	case "error":
		r.Over = true
		return true, r.Give(execution.Event{Kind: execution.EventFailure, Failure: failureOf(data)})
	}
	return false, nil // ping, and what the protocol may add: its own rule is to leave unknown events out
}

// failureOf reads an error event. Its types stand for statuses.
func failureOf(data []byte) *execution.Failure {
	f := openai.ReadFailure(0, data)
	if e := openai.Member(data, "error"); openai.IsError(e) {
		f = openai.ReadFailure(0, e)
	}
	switch f.Type {
	case "overloaded_error":
		f.Status = 529
	case "request_too_large":
		f.Status = http.StatusRequestEntityTooLarge
	case "timeout_error":
		f.Status = http.StatusGatewayTimeout
	case "api_error":
		f.Status = http.StatusInternalServerError
	}
	return f
}

func (r *reader) start(message []byte) error {
	if r.started {
		return nil
	}
	r.started = true
	s := &execution.Started{ID: adapter.Text(openai.Member(message, "id")), Model: adapter.Text(openai.Member(message, "model"))}
	if u := openai.Member(message, "usage"); len(u) > 0 && u[0] == '{' {
		s.Usage = openai.MergeUsage(execution.Usage{}, u)
		r.Meter.Report(s.Usage)
	}
	return r.Give(execution.Event{Kind: execution.EventStarted, Started: s})
}

// numberOf returns a block's number, -1 if there is none.
func numberOf(data []byte) int {
	n, err := strconv.Atoi(string(openai.Member(data, "index")))
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// open begins a block. Some servers say all that is in it at once.
func (r *reader) open(data []byte) error {
	if err := r.close(); err != nil {
		return err
	}
	b := openai.Member(data, "content_block")
	r.block = openBlock{number: numberOf(data), kind: adapter.Text(openai.Member(b, "type"))}
	switch r.block.kind {
	case "text":
		return r.text(execution.EventText, openai.Member(b, "text"))
	case "thinking":
		if err := r.text(execution.EventReasoning, openai.Member(b, "thinking")); err != nil {
			return err
		}
		return r.signature(openai.Member(b, "signature"))
	case "redacted_thinking":
		return r.Give(execution.Event{Kind: execution.EventReasoning, Redacted: adapter.Text(openai.Member(b, "data"))})
	case "tool_use":
		return r.openCall(b)
	}
	return nil
}

func (r *reader) openCall(b []byte) error {
	c := execution.ToolCallDelta{Index: r.calls, ID: adapter.Text(openai.Member(b, "id")), Name: adapter.Text(openai.Member(b, "name"))}
	switch {
	case r.calls >= execution.MaxToolCalls:
		return adapter.Malformed("the provider's answer has too many tool calls")
	case c.Name == "":
		return adapter.Malformed("the provider's tool call has no name")
	case c.ID == "":
		c.ID = adapter.NewCallID()
	}
	r.block.call = r.calls
	r.block.input = append(r.block.input, openai.Member(b, "input")...)
	r.calls++
	r.Meter.Produced(len(r.block.input))
	return r.Give(execution.Event{Kind: execution.EventToolCall, Call: c})
}

// close ends the open block. A call of which no piece of arguments came has those of its start.
func (r *reader) close() error {
	b := r.block
	r.block = block0
	r.usual.Forget()
	if b.kind != "tool_use" || b.begun {
		return nil
	}
	if len(b.input) == 0 || b.input[0] != '{' {
		b.input = []byte("{}")
	}
	return r.Give(execution.Event{Kind: execution.EventToolCall, Call: execution.ToolCallDelta{Index: b.call, Arguments: string(b.input)}})
}

// text gives a piece of text, and nothing where there is none.
func (r *reader) text(kind execution.EventKind, value []byte) error {
	if len(value) <= 2 || value[0] != '"' {
		return nil
	}
	r.Meter.Produced(len(value))
	return r.Give(execution.Event{Kind: kind, Text: adapter.Text(value)})
}

func (r *reader) signature(value []byte) error {
	if len(value) <= 2 || value[0] != '"' {
		return nil
	}
	return r.Give(execution.Event{Kind: execution.EventReasoning, Signature: adapter.Text(value)})
}

// delta gives a piece of the open block.
func (r *reader) delta(data []byte) error {
	if n := numberOf(data); r.block.number != n || n < 0 {
		return adapter.Malformed("the provider's stream has a delta of a block that is not open")
	}
	d := openai.Member(data, "delta")
	switch adapter.Text(openai.Member(d, "type")) {
	case "text_delta":
		return r.piece(data, openai.Member(d, "text"), execution.Event{Kind: execution.EventText})
	case "thinking_delta":
		return r.piece(data, openai.Member(d, "thinking"), execution.Event{Kind: execution.EventReasoning})
	case "input_json_delta":
		if r.block.kind != "tool_use" {
			return nil // of a tool that the provider runs itself
		}
		return r.piece(data, openai.Member(d, "partial_json"), execution.Event{Kind: execution.EventToolCall, Call: execution.ToolCallDelta{Index: r.block.call}})
	case "signature_delta":
		return r.signature(openai.Member(d, "signature"))
	case "citations_delta":
		return r.citation(openai.Member(d, "citation"))
	}
	return nil
}

// piece gives a piece of text or arguments, and remembers what it looked like.
func (r *reader) piece(data, value []byte, as execution.Event) error {
	if len(value) < 2 || value[0] != '"' {
		return adapter.Malformed("a delta of the provider's stream is not text")
	}
	if len(value) == 2 {
		return nil
	}
	r.usual.Learn(data, value)
	r.usualAs, r.usualJSON = as, as.Kind == execution.EventToolCall
	if r.usualJSON {
		r.block.begun = true
		as.Call.Arguments = adapter.Text(value)
	} else {
		as.Text = adapter.Text(value)
	}
	r.Meter.Produced(len(value))
	return r.Give(as)
}

// citation gives a citation: that of a web page as Chat Completions has it, others as they are.
func (r *reader) citation(value []byte) error {
	if len(value) == 0 || value[0] != '{' {
		return nil
	}
	var a []byte
	if url := openai.Member(value, "url"); url != nil {
		title := openai.Member(value, "title")
		if title == nil {
			title = []byte(`""`)
		}
		a = append(append(append(append(a, `{"type":"url_citation","url_citation":{"url":`...), url...), `,"title":`...), title...)
		a = append(a, "}}"...)
	} else {
		a = append(append(append(a, `{"type":"citation","citation":`...), value...), '}')
	}
	return r.Give(execution.Event{Kind: execution.EventAnnotation, Annotation: a})
}

// finish reads message_delta: why the message ended, and its usage.
func (r *reader) finish(data []byte) error {
	if err := r.close(); err != nil {
		return err
	}
	if u := openai.Member(data, "usage"); len(u) > 0 && u[0] == '{' {
		r.Meter.Report(openai.MergeUsage(r.Meter.Reported(), u))
	}
	d := openai.Member(data, "delta")
	reason := adapter.Text(openai.Member(d, "stop_reason"))
	if reason == "" || r.finished {
		return nil
	}
	r.finished = true
	f := execution.Finish{Reason: finishReason(reason), StopWord: adapter.Text(openai.Member(d, "stop_sequence"))}
	if err := r.Give(execution.Event{Kind: execution.EventFinish, Finish: f}); err != nil {
		return err
	}
	u := r.Meter.Reported()
	if !u.Known {
		return nil
	}
	return r.Give(execution.Event{Kind: execution.EventUsage, Usage: &u})
}

func finishReason(reason string) execution.FinishReason {
	switch reason {
	case "stop_sequence":
		return execution.FinishStopWord
	case "max_tokens", "model_context_window_exceeded":
		return execution.FinishLength
	case "tool_use":
		return execution.FinishToolCalls
	case "refusal":
		return execution.FinishFilter
	case "pause_turn":
		return execution.FinishPause
	}
	return execution.FinishStop
}
