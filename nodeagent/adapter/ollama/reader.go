package ollama

import (
	"bytes"
	"encoding/json"
	"time"

	"iop/execution"
	"iop/nodeagent/adapter"
	"iop/openai"
)

// Reader implements adapter.Adapter.
func (protocol) Reader(adapter.Spec) adapter.Reader {
	r := &reader{}
	r.Begin(&r.lines, r.take, nil)
	return r
}

// reader reads the lines of a chat.
type reader struct {
	adapter.Frame[[]byte]
	lines   adapter.LineSplitter
	usual   adapter.Template
	usualAs execution.Event // what a line like the learned one is, but for its text
	started bool
	calls   int
}

// line is what is looked at in one line.
type line struct {
	message, logprobs, created, model, reason []byte
	failure                                   []byte
	done                                      bool
}

func readLine(data []byte) (l line) {
	for m := openai.Members(data); m.Next(); {
		v := m.Value()
		switch string(m.Key()) {
		case "message":
			l.message = v
		case "logprobs":
			l.logprobs = v
		case "created_at":
			l.created = v
		case "model":
			l.model = v
		case "done":
			l.done = v[0] == 't'
		case "done_reason":
			l.reason = v
		case "error":
			if openai.IsError(v) {
				l.failure = v
			}
		}
	}
	return l
}

func (r *reader) take(data []byte) (stop bool, err error) {
	if piece, ok := r.usual.Match(data); ok {
		r.Meter.Produced(len(piece))
		r.usualAs.Text = piece
		return false, r.Emit(&r.usualAs)
	}
	if data[0] != '{' || !openai.WellFormed(data) {
		return false, adapter.Malformed("a line of the provider's stream is not a JSON object")
	}
	l := readLine(data)
	if l.failure != nil {
		r.Over = true
		return true, r.Give(execution.Event{Kind: execution.EventFailure, Failure: openai.ReadFailure(0, l.failure)})
	}
	if err := r.start(&l); err != nil {
		return false, err
	}
	if err := r.message(data, &l); err != nil {
		return false, err
	}
	if l.done {
		r.Over = true
		return true, r.finish(data, &l)
	}
	return false, nil
}

func (r *reader) start(l *line) error {
	if r.started {
		return nil
	}
	r.started = true
	created, err := time.Parse(time.RFC3339Nano, adapter.Text(l.created))
	if err != nil {
		created = time.Time{} // it is shown to nobody then
	}
	return r.Give(execution.Event{Kind: execution.EventStarted, Started: &execution.Started{Model: adapter.Text(l.model), Created: created}})
}

// message gives what a line's message holds. Thoughts come before the text that they are for.
func (r *reader) message(data []byte, l *line) error {
	var text, thought, calls []byte
	for m := openai.Members(l.message); m.Next(); {
		v := m.Value()
		switch string(m.Key()) {
		case "content":
			text = v
		case "thinking":
			thought = v
		case "tool_calls":
			calls = v
		}
	}
	logprobs := logprobsOf(l.logprobs)
	if err := r.text(execution.EventReasoning, thought, nil); err != nil {
		return err
	}
	if err := r.text(execution.EventText, text, logprobs); err != nil {
		return err
	}
	told := 0
	for el := openai.Elements(calls); el.Next(); told++ {
		if err := r.call(el.Value()); err != nil {
			return err
		}
	}
	if told == 0 && logprobs == nil && !l.done && len(l.created) > 0 {
		r.learn(data, text, thought, l.created)
	}
	return nil
}

// learn remembers a line that has one text. Its date is another in each.
func (r *reader) learn(data, text, thought, created []byte) {
	switch hasText, hasThought := len(text) > 2, len(thought) > 2; {
	case hasText && !hasThought && text[0] == '"':
		r.usualAs = execution.Event{Kind: execution.EventText}
		r.usual.Learn(data, text, created)
	case hasThought && !hasText && thought[0] == '"':
		r.usualAs = execution.Event{Kind: execution.EventReasoning}
		r.usual.Learn(data, thought, created)
	}
}

// logprobsOf returns the list, which has the shape of Chat Completions already; nil without one.
func logprobsOf(value []byte) json.RawMessage {
	if len(value) == 0 || value[0] != '[' || len(bytes.TrimSpace(value[1:])) < 2 {
		return nil
	}
	return append(json.RawMessage(nil), value...)
}

func (r *reader) text(kind execution.EventKind, value []byte, logprobs json.RawMessage) error {
	if (len(value) <= 2 || value[0] != '"') && logprobs == nil {
		return nil
	}
	r.Meter.Produced(len(value))
	return r.Give(execution.Event{Kind: kind, Text: adapter.Text(value), Logprobs: logprobs})
}

// call gives a tool call, which comes whole. Older versions give it no id.
func (r *reader) call(data []byte) error {
	if r.calls >= execution.MaxToolCalls {
		return adapter.Malformed("the provider's answer has too many tool calls")
	}
	f := openai.Member(data, "function")
	c := execution.ToolCallDelta{
		Index: r.calls, ID: adapter.Text(openai.Member(data, "id")), Name: adapter.Text(openai.Member(f, "name")),
		Arguments: string(openai.Member(f, "arguments")),
	}
	if v := openai.Member(f, "arguments"); len(v) > 0 && v[0] == '"' { // their text, as other protocols have it
		c.Arguments = adapter.Text(v)
	}
	if c.Name == "" {
		return adapter.Malformed("the provider's tool call has no name")
	}
	if c.ID == "" {
		c.ID = adapter.NewCallID()
	}
	if c.Arguments == "" || c.Arguments == "null" {
		c.Arguments = "{}"
	}
	r.calls++
	r.Meter.Produced(len(c.Arguments))
	return r.Give(execution.Event{Kind: execution.EventToolCall, Call: c})
}

func (r *reader) finish(data []byte, l *line) error {
	reason := execution.FinishStop // also that of a request that only loads the model
	switch adapter.Text(l.reason) {
	case "length":
		reason = execution.FinishLength
	case "stop", "":
		if r.calls > 0 {
			reason = execution.FinishToolCalls
		}
	}
	if err := r.Give(execution.Event{Kind: execution.EventFinish, Finish: execution.Finish{Reason: reason}}); err != nil {
		return err
	}
	u := openai.MergeUsage(execution.Usage{}, data)
	if !u.Known {
		return nil
	}
	r.Meter.Report(u)
	return r.Give(execution.Event{Kind: execution.EventUsage, Usage: &u})
}
