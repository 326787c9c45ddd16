package openai

import (
	"bytes"
	"strconv"
	"time"

	"iop/execution"
	"iop/nodeagent/adapter"
	"iop/openai"
)

// Reader implements adapter.Adapter.
func (protocol) Reader(adapter.Spec) adapter.Reader {
	r := &reader{}
	r.Begin(&r.events, r.take, r.ended)
	return r
}

// reader reads the chunks of a chat stream.
type reader struct {
	adapter.Frame[*adapter.ServerEvent]
	events   adapter.EventSplitter
	usual    adapter.Template
	usualAs  execution.Event // what a chunk like the learned one is, but for its text
	choices  []choice        // by index; of those that have come
	id       string
	model    string
	created  time.Time
	started  bool
	usageOut bool // the usage event was given
}

// choice is what is known of one of several answers.
type choice struct {
	begun    bool
	finished bool
	calls    []call
	told     int // of calls, how many were given
}

// ended is called where the stream ends without [DONE]: it is whole where each choice has said why it ended.
func (r *reader) ended() error {
	if !r.whole() {
		return adapter.Truncated()
	}
	return r.finishUsage()
}

func (r *reader) whole() bool {
	whole := false
	for i := range r.choices {
		if r.choices[i].begun && !r.choices[i].finished {
			return false
		}
		whole = whole || r.choices[i].begun
	}
	return whole
}

// take reads one event of the stream.
func (r *reader) take(e *adapter.ServerEvent) (stop bool, err error) {
	if piece, ok := r.usual.Match(e.Data); ok && e.Name == nil && e.Err == nil {
		r.Meter.Produced(len(piece))
		r.usualAs.Text = piece
		return false, r.Emit(&r.usualAs)
	}
	switch {
	case e.Err != nil: // llama.cpp once wrote `error: {...}` as a field of its own
		return true, r.fail(e.Err)
	case string(bytes.TrimSpace(e.Data)) == "[DONE]":
		return true, r.done()
	case len(e.Data) == 0:
		return false, nil
	case !openai.WellFormed(e.Data) || e.Data[0] != '{':
		return false, adapter.Malformed("a chunk of the provider's stream is not a JSON object")
	}
	return r.chunk(e.Data, string(e.Name) == "error")
}

// fail reports the provider's own error, and the run is over.
func (r *reader) fail(value []byte) error {
	r.Over = true
	return r.Give(execution.Event{Kind: execution.EventFailure, Failure: openai.ReadFailure(0, value)})
}

// done is [DONE]. A choice whose provider did not say why it ended was done, then: that much [DONE] says.
func (r *reader) done() error {
	for i := range r.choices {
		if c := &r.choices[i]; c.begun && !c.finished {
			if err := r.finish(i, execution.Finish{Reason: execution.FinishStop}); err != nil {
				return err
			}
		}
	}
	if !r.whole() {
		return adapter.Malformed("the provider's stream ended without an answer in it")
	}
	r.Over = true
	return r.finishUsage()
}

// finishUsage gives what the provider reported, once.
func (r *reader) finishUsage() error {
	u := r.Meter.Reported()
	if r.usageOut || !u.Known {
		return nil
	}
	r.usageOut = true
	return r.Give(execution.Event{Kind: execution.EventUsage, Usage: &u})
}

// chunk reads a whole chunk. failed says that the event's name is error, whatever is in it.
func (r *reader) chunk(data []byte, failed bool) (stop bool, err error) {
	var choices, usage []byte
	volatile := make([][]byte, 0, 1)
	plain := true
	for m := openai.Members(data); m.Next(); {
		v := m.Value()
		switch string(m.Key()) {
		case "id":
			r.name(&r.id, v)
		case "model":
			r.name(&r.model, v)
		case "created":
			if n, err := strconv.ParseInt(string(v), 10, 64); err == nil && !r.started {
				r.created = time.Unix(n, 0)
			}
		case "choices":
			choices = v
		case "usage":
			if v[0] == '{' {
				usage, plain = v, false
			}
		case "obfuscation": // OpenAI's padding, another with each chunk
			volatile = append(volatile, v)
		case "error":
			if openai.IsError(v) {
				return true, r.fail(v)
			}
		}
	}
	if failed {
		return true, r.fail(data)
	}
	if usage != nil {
		r.Meter.Report(openai.MergeUsage(r.Meter.Reported(), usage))
	}
	return r.readChoices(data, choices, volatile, plain)
}

// name notes what the provider calls itself or its answer: the first that is no empty text.
func (r *reader) name(dst *string, value []byte) {
	if !r.started && *dst == "" {
		*dst = adapter.Text(value)
	}
}

func (r *reader) readChoices(data, choices []byte, volatile [][]byte, plain bool) (stop bool, err error) {
	n := 0
	var c chunkChoice
	for el := openai.Elements(choices); el.Next(); n++ {
		if err := r.start(); err != nil {
			return false, err
		}
		c = chunkChoice{r: r}
		if err := c.read(el.Value()); err != nil || r.Over {
			return true, err
		}
	}
	if n == 1 && plain && c.alone && len(volatile) <= 1 {
		r.usualAs = execution.Event{Kind: c.kind, Choice: c.index}
		r.usual.Learn(data, c.piece, volatile...)
	}
	return false, nil
}

func (r *reader) start() error {
	if r.started {
		return nil
	}
	r.started = true
	return r.Give(execution.Event{Kind: execution.EventStarted, Started: &execution.Started{ID: r.id, Model: r.model, Created: r.created}})
}

// choiceOf returns what is known of a choice, which has come with that.
func (r *reader) choiceOf(index int) (*choice, error) {
	if index < 0 || index >= execution.MaxChoices {
		return nil, adapter.Malformed("a chunk of the provider's stream is of choice " + strconv.Itoa(index))
	}
	for len(r.choices) <= index {
		r.choices = append(r.choices, choice{})
	}
	c := &r.choices[index]
	c.begun = true
	return c, nil
}

func (r *reader) finish(index int, f execution.Finish) error {
	c := &r.choices[index]
	if c.finished {
		return nil
	}
	for i := range c.calls {
		if !c.calls[i].told {
			return adapter.Malformed("the provider's tool call has no name")
		}
	}
	c.finished = true
	r.usual.Forget() // what it would match may be of this choice
	if f.Reason == execution.FinishStop && len(c.calls) > 0 {
		f.Reason = execution.FinishToolCalls
	}
	return r.Give(execution.Event{Kind: execution.EventFinish, Choice: index, Finish: f})
}
