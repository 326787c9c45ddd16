package openai

import (
	"strconv"

	"iop/execution"
)

// chatRenderer writes Chat Completions chunks, and the whole object. Each chunk is one of a few forms with the prebuilt
// head before it: an event costs copying, and no allocation.
type chatRenderer struct {
	spec RenderSpec
	id   string
	head []byte // data: {"id":...,"choices":[{"index":
	tail string // what closes a chunk behind its choices
	// What stands around a piece of text of the first choice, which nearly all events are.
	textHead, textTail string
	choices            []chatChoice
}

// chatChoice is how far a choice has come.
type chatChoice struct {
	begun, ended bool
	calls        int
}

func newChatRenderer(spec RenderSpec, choices int) *chatRenderer {
	r := &chatRenderer{spec: spec, id: "chatcmpl-" + spec.ID, tail: "]}\n\n"}
	if spec.IncludeUsage {
		r.tail = "],\"usage\":null}\n\n"
	}
	r.head = append(r.chunk(nil), `{"index":`...)
	r.textHead = string(append(r.delta(nil, 0), `"content":"`...))
	r.textTail = `"},"logprobs":null,"finish_reason":null}` + r.tail
	r.choices = make([]chatChoice, 0, min(choices, execution.MaxChoices))
	return r
}

// chunk appends a chunk up to what its choices hold.
func (r *chatRenderer) chunk(dst []byte) []byte {
	return append(r.identity(append(dst, `data: {`...), "chat.completion.chunk"), `,"choices":[`...)
}

// identity appends the members that every object has.
func (r *chatRenderer) identity(dst []byte, object string) []byte {
	dst = append(dst, `"id":`...)
	dst = appendString(dst, r.id)
	dst = append(dst, `,"object":"`...)
	dst = append(dst, object...)
	dst = append(dst, `","created":`...)
	dst = strconv.AppendInt(dst, r.spec.Created.Unix(), 10)
	dst = append(dst, `,"model":`...)
	return appendString(dst, r.spec.Model)
}

// Event implements Renderer.
func (r *chatRenderer) Event(dst []byte, e *execution.Event) []byte {
	if saysNothing(e) {
		return dst
	}
	c := r.choice(e.Choice)
	if c == nil || c.ended {
		return dst
	}
	if !c.begun {
		c.begun = true
		dst = r.role(dst, e)
	}
	switch e.Kind {
	case execution.EventText:
		if e.Choice == 0 && e.Logprobs == nil {
			return append(appendEscaped(append(dst, r.textHead...), e.Text), r.textTail...)
		}
		dst = r.delta(dst, e.Choice)
		dst = append(dst, `"content":"`...)
		dst = appendEscaped(dst, e.Text)
		dst = append(dst, `"},"logprobs":`...)
		dst = appendChatLogprobs(dst, e.Logprobs, false)
	case execution.EventRefusal:
		dst = r.delta(dst, e.Choice)
		dst = append(dst, `"refusal":"`...)
		dst = appendEscaped(dst, e.Text)
		dst = append(dst, `"},"logprobs":`...)
		dst = appendChatLogprobs(dst, e.Logprobs, true)
	case execution.EventReasoning:
		dst = r.delta(dst, e.Choice)
		dst = append(dst, `"reasoning_content":"`...)
		dst = appendEscaped(dst, e.Text)
		dst = append(dst, `"},"logprobs":null`...)
	case execution.EventToolCall:
		dst = r.call(r.delta(dst, e.Choice), c, e)
	case execution.EventAnnotation:
		dst = append(r.delta(dst, e.Choice), `"annotations":[`...)
		dst = appendValue(dst, e.Annotation)
		dst = append(dst, `]},"logprobs":null`...)
	case execution.EventFinish:
		c.ended = true
		return r.finish(dst, e)
	}
	dst = append(dst, `,"finish_reason":null}`...)
	return append(dst, r.tail...)
}

// saysNothing reports whether the protocol has no word for the event: the run's own events, a signature of a thought, an
// empty piece, what breaks the contract.
func saysNothing(e *execution.Event) bool {
	switch e.Kind {
	case execution.EventText, execution.EventRefusal:
		return e.Text == "" && e.Logprobs == nil
	case execution.EventReasoning:
		return e.Text == ""
	case execution.EventAnnotation:
		return !wellFormed(e.Annotation)
	case execution.EventToolCall:
		return e.Call.Index < 0 || e.Call.Index >= execution.MaxToolCalls
	case execution.EventFinish:
		return e.Finish.Reason == ""
	}
	return true
}

// choice returns the state of a choice, nil for one that can't be.
func (r *chatRenderer) choice(i int) *chatChoice {
	if i < 0 || i >= execution.MaxChoices {
		return nil
	}
	for len(r.choices) <= i {
		r.choices = append(r.choices, chatChoice{})
	}
	return &r.choices[i]
}

// role appends the first chunk of a choice. One that begins with a call has no content so far, as OpenAI says it.
func (r *chatRenderer) role(dst []byte, e *execution.Event) []byte {
	dst = append(r.delta(dst, e.Choice), `"role":"assistant","content":`...)
	if e.Kind == execution.EventToolCall {
		dst = append(dst, `null`...)
	} else {
		dst = append(dst, `""`...)
	}
	dst = append(dst, `,"refusal":null},"logprobs":null,"finish_reason":null}`...)
	return append(dst, r.tail...)
}

// delta appends a chunk up to the members of its delta.
func (r *chatRenderer) delta(dst []byte, choice int) []byte {
	dst = append(dst, r.head...)
	dst = strconv.AppendInt(dst, int64(choice), 10)
	return append(dst, `,"delta":{`...)
}

func (r *chatRenderer) call(dst []byte, c *chatChoice, e *execution.Event) []byte {
	d := &e.Call
	dst = append(dst, `"tool_calls":[{"index":`...)
	dst = strconv.AppendInt(dst, int64(d.Index), 10)
	if d.Index >= c.calls {
		c.calls = d.Index + 1
		dst = append(dst, `,"id":`...)
		dst = appendString(dst, callID(r.spec.ID, e.Choice, d))
		dst = append(dst, `,"type":"function","function":{"name":`...)
		dst = appendString(dst, d.Name)
		dst = append(dst, `,"arguments":"`...)
	} else {
		dst = append(dst, `,"function":{"arguments":"`...)
	}
	dst = appendEscaped(dst, d.Arguments)
	return append(dst, `"}}]},"logprobs":null`...)
}

// callID is the provider's id of a call, or one of ours where it gave none.
func callID(run string, choice int, d *execution.ToolCallDelta) string {
	if d.ID != "" {
		return d.ID
	}
	return "call_" + run + "_" + strconv.Itoa(choice) + "_" + strconv.Itoa(d.Index)
}

func (r *chatRenderer) finish(dst []byte, e *execution.Event) []byte {
	dst = append(r.delta(dst, e.Choice), `},"logprobs":null,"finish_reason":"`...)
	dst = append(dst, chatReason(e.Finish.Reason)...)
	dst = append(dst, `"}`...)
	return append(dst, r.tail...)
}

// chatReason is OpenAI's word for why a choice ended. A provider that pauses has not said all: of OpenAI's words only
// length means that.
func chatReason(reason execution.FinishReason) string {
	switch reason {
	case execution.FinishLength, execution.FinishPause:
		return "length"
	case execution.FinishToolCalls:
		return "tool_calls"
	case execution.FinishFilter:
		return "content_filter"
	}
	return "stop"
}

// appendChatLogprobs appends the logprobs of one piece of text, or of a refusal's.
func appendChatLogprobs(dst, logprobs []byte, refusal bool) []byte {
	switch {
	case logprobs == nil:
		return append(dst, `null`...)
	case refusal:
		dst = append(dst, `{"content":null,"refusal":`...)
		return append(appendValue(dst, logprobs), '}')
	}
	dst = append(dst, `{"content":`...)
	return append(appendValue(dst, logprobs), `,"refusal":null}`...)
}

// Fault implements Renderer: chunks can say whatever comes.
func (r *chatRenderer) Fault() *Error { return nil }

// Held implements Renderer: nothing is said twice.
func (r *chatRenderer) Held() int { return 0 }

// Complete implements Renderer.
func (r *chatRenderer) Complete(dst []byte, usage execution.Usage) ([]byte, *Error) {
	if len(r.choices) == 0 {
		return dst, ProviderTruncated()
	}
	for _, c := range r.choices {
		if !c.ended {
			return dst, ProviderTruncated()
		}
	}
	if r.spec.IncludeUsage && usage.Known {
		dst = append(r.chunk(dst), `],"usage":`...)
		dst = append(appendChatUsage(dst, usage), "}\n\n"...)
	}
	return append(dst, "data: [DONE]\n\n"...), nil
}

// Fail implements Renderer.
func (r *chatRenderer) Fail(dst []byte, e *Error) []byte {
	return AppendInBandError(dst, StreamChat, e)
}

func appendChatUsage(dst []byte, u execution.Usage) []byte {
	dst = append(dst, `{"prompt_tokens":`...)
	dst = strconv.AppendInt(dst, u.Input, 10)
	dst = append(dst, `,"completion_tokens":`...)
	dst = strconv.AppendInt(dst, u.Output, 10)
	dst = append(dst, `,"total_tokens":`...)
	dst = strconv.AppendInt(dst, addCounts(u.Input, u.Output), 10)
	dst = append(dst, `,"prompt_tokens_details":{"cached_tokens":`...)
	dst = strconv.AppendInt(dst, u.Cached, 10)
	dst = append(dst, `},"completion_tokens_details":{"reasoning_tokens":`...)
	dst = strconv.AppendInt(dst, u.Reasoning, 10)
	return append(dst, `}}`...)
}
