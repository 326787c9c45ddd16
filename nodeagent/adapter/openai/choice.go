package openai

import (
	"bytes"
	"encoding/json"
	"strconv"

	"iop/execution"
	"iop/nodeagent/adapter"
	"iop/openai"
)

// chunkChoice reads one choice of one chunk. It is for that alone.
type chunkChoice struct {
	r        *reader
	index    int
	delta    []byte
	logprobs []byte
	finish   []byte
	stopWord string

	// What a template can be made of: one piece of text and nothing else.
	alone bool
	kind  execution.EventKind
	piece []byte
	given int
}

func (c *chunkChoice) read(data []byte) error {
	for m := openai.Members(data); m.Next(); {
		v := m.Value()
		switch string(m.Key()) {
		case "index":
			n, err := strconv.Atoi(string(v))
			if err != nil {
				return adapter.Malformed("a choice of the provider's stream has a malformed index")
			}
			c.index = n
		case "delta":
			c.delta = v
		case "logprobs":
			c.logprobs = v
		case "finish_reason":
			c.finish = v
		case "stop_reason", "matched_stop": // vLLM's and SGLang's: the stop string, or a token's number
			c.stopWord = adapter.Text(v)
		case "usage": // some engines report it in here
			if v[0] == '{' {
				c.r.Meter.Report(openai.MergeUsage(c.r.Meter.Reported(), v))
			}
		case "error":
			if openai.IsError(v) {
				return c.r.fail(v)
			}
		}
	}
	return c.tell()
}

// tell gives the choice's events.
func (c *chunkChoice) tell() error {
	state, err := c.r.choiceOf(c.index)
	if err != nil {
		return err
	}
	if state.finished {
		return nil // some engines repeat the end
	}
	if err := c.readDelta(); err != nil || c.r.Over {
		return err
	}
	reason := adapter.Text(c.finish)
	if reason == "" {
		c.alone = c.given == 1 && c.piece != nil
		return nil
	}
	if reason == "error" || reason == "abort" {
		return c.r.fail([]byte(`{"message":"The engine aborted the answer."}`))
	}
	return c.r.finish(c.index, execution.Finish{Reason: finishReason(reason, c.stopWord), StopWord: c.stopWord})
}

func finishReason(reason, stopWord string) execution.FinishReason {
	switch reason {
	case "length", "max_tokens", "model_length":
		return execution.FinishLength
	case "tool_calls", "function_call", "tool_use":
		return execution.FinishToolCalls
	case "content_filter":
		return execution.FinishFilter
	}
	if stopWord != "" {
		return execution.FinishStopWord
	}
	return execution.FinishStop // whatever else engines call the model's own end
}

// readDelta reads what is new. Thoughts come before the text that they are for.
func (c *chunkChoice) readDelta() error {
	var text, refusal, thought, calls, annotations []byte
	for m := openai.Members(c.delta); m.Next(); {
		v := m.Value()
		switch string(m.Key()) {
		case "content":
			text = v
		case "refusal":
			refusal = v
		case "reasoning_content", "reasoning": // the same thing by two names, of some engines both
			if len(v) > 2 && v[0] == '"' {
				thought = v
			}
		case "tool_calls":
			calls = v
		case "annotations":
			annotations = v
		}
	}
	content, refused := c.readLogprobs()
	if err := c.text(execution.EventReasoning, thought, nil); err != nil {
		return err
	}
	if err := c.content(text, content); err != nil {
		return err
	}
	if err := c.text(execution.EventRefusal, refusal, refused); err != nil {
		return err
	}
	for el := openai.Elements(calls); el.Next(); {
		if err := c.call(el.Value()); err != nil {
			return err
		}
	}
	for el := openai.Elements(annotations); el.Next(); {
		if el.Value()[0] != '{' {
			continue // none
		}
		if err := c.give(execution.Event{Kind: execution.EventAnnotation, Annotation: clone(el.Value())}); err != nil {
			return err
		}
	}
	return nil
}

// readLogprobs returns the arrays of the text and of the refusal; nil if there are none.
func (c *chunkChoice) readLogprobs() (content, refusal json.RawMessage) {
	if len(c.logprobs) == 0 || c.logprobs[0] != '{' {
		return nil, nil
	}
	list := func(name string) json.RawMessage {
		if v := openai.Member(c.logprobs, name); len(v) > 0 && v[0] == '[' && len(bytes.TrimSpace(v[1:])) > 1 {
			return clone(v)
		}
		return nil
	}
	return list("content"), list("refusal")
}

func clone(b []byte) json.RawMessage { return append(json.RawMessage(nil), b...) }

// content is a text, or a list of parts as Mistral writes it.
func (c *chunkChoice) content(value []byte, logprobs json.RawMessage) error {
	if len(value) == 0 || value[0] != '[' {
		return c.text(execution.EventText, value, logprobs)
	}
	for el := openai.Elements(value); el.Next(); {
		part := el.Value()
		if thinking := openai.Member(part, "thinking"); thinking != nil {
			for t := openai.Elements(thinking); t.Next(); {
				if err := c.text(execution.EventReasoning, openai.Member(t.Value(), "text"), nil); err != nil {
					return err
				}
			}
			continue
		}
		if err := c.text(execution.EventText, openai.Member(part, "text"), logprobs); err != nil {
			return err
		}
		logprobs = nil
		c.piece = nil // no shape to remember
	}
	return nil
}

// text gives a piece of text; without one, and without logprobs, it gives nothing.
func (c *chunkChoice) text(kind execution.EventKind, value []byte, logprobs json.RawMessage) error {
	isText := len(value) > 2 && value[0] == '"'
	if !isText && logprobs == nil {
		return nil
	}
	if isText && logprobs == nil {
		c.kind, c.piece = kind, value
	}
	c.r.Meter.Produced(len(value))
	return c.give(execution.Event{Kind: kind, Text: adapter.Text(value), Logprobs: logprobs})
}

func (c *chunkChoice) give(e execution.Event) error {
	c.given++
	e.Choice = c.index
	return c.r.Give(e)
}
