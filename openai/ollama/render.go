package ollama

import (
	"strconv"
	"strings"
	"time"

	"iop/execution"
	"iop/openai"
)

// maxHeld bounds an answer's calls in bytes: the protocol has calls whole, so they are kept until the
// answer's end.
const maxHeld = 8 << 20

// renderer writes one answer, a line for each piece. Calls stand in one line after all text.
//
// Durations are measured here: the prompt's from the run's start to its first piece, the answer's from there to its end.
// load_duration is 0: nobody knows of loading.
type renderer struct {
	spec     openai.RenderSpec
	generate bool
	begin    []byte // `{"model":"...","created_at":"`, the same in each line

	first  time.Time // of the first piece, zero before it
	calls  []held
	held   int // bytes that calls hold
	finish execution.Finish
	fault  *openai.Error // or nil
}

// held is a call that grows.
type held struct {
	id, name  string
	arguments []byte
}

func newRenderer(spec openai.RenderSpec, generate bool) *renderer {
	begin := openai.AppendString([]byte(`{"model":`), spec.Model)
	return &renderer{spec: spec, generate: generate, begin: append(begin, `,"created_at":"`...)}
}

// Event implements [openai.Renderer].
func (r *renderer) Event(dst []byte, e *execution.Event) []byte {
	if e.Choice != 0 || r.fault != nil || r.finish.Reason != "" {
		return dst
	}
	switch e.Kind {
	case execution.EventText, execution.EventRefusal:
		if e.Text == "" && e.Logprobs == nil {
			return dst
		}
		dst = r.open(dst)
		dst = r.message(dst, e.Text, "")
		return r.shut(dst, e)
	case execution.EventReasoning:
		if e.Text == "" {
			return dst
		}
		dst = r.open(dst)
		dst = r.message(dst, "", e.Text)
		return r.shut(dst, e)
	case execution.EventToolCall:
		r.touch()
		r.fault = r.call(&e.Call)
	case execution.EventFinish:
		r.touch()
		r.finish = e.Finish
		return r.callsLine(dst)
	}
	return dst
}

// touch notes when the answer began.
func (r *renderer) touch() {
	if r.first.IsZero() {
		r.first = time.Now()
	}
}

// open begins a line.
func (r *renderer) open(dst []byte) []byte {
	now := time.Now()
	if r.first.IsZero() {
		r.first = now
	}
	dst = append(dst, r.begin...)
	return append(now.UTC().AppendFormat(dst, time.RFC3339Nano), '"', ',')
}

// message appends the answer's text and thoughts, without the end of the object that they stand in.
func (r *renderer) message(dst []byte, content, thinking string) []byte {
	if r.generate {
		dst = append(dst, `"response":`...)
	} else {
		dst = append(dst, `"message":{"role":"assistant","content":`...)
	}
	dst = openai.AppendString(dst, content)
	if thinking != "" {
		dst = append(dst, `,"thinking":`...)
		dst = openai.AppendString(dst, thinking)
	}
	return dst
}

// shut ends the message and a line that is not the last.
func (r *renderer) shut(dst []byte, e *execution.Event) []byte {
	dst = r.endMessage(dst)
	if e.Logprobs != nil {
		dst = appendRaw(append(dst, `,"logprobs":`...), e.Logprobs)
	}
	return append(dst, ",\"done\":false}\n"...)
}

func (r *renderer) endMessage(dst []byte) []byte {
	if r.generate {
		return dst
	}
	return append(dst, '}')
}

// call keeps a piece of a call.
func (r *renderer) call(d *execution.ToolCallDelta) *openai.Error {
	if r.generate {
		return openai.ProviderFailed("The model called a tool, but none was offered.")
	}
	if d.Index < 0 || d.Index > len(r.calls) || d.Index >= maxCalls {
		return openai.ProviderFailed("The provider counted its tool calls wrongly.")
	}
	if d.Index == len(r.calls) {
		r.calls = append(r.calls, held{})
		r.held += execution.PieceSize
	}
	c := &r.calls[d.Index]
	if d.ID != "" {
		c.id = d.ID
	}
	if d.Name != "" {
		c.name = d.Name
	}
	if r.held += len(d.ID) + len(d.Name) + len(d.Arguments); r.held > maxHeld {
		return openai.ProviderFailed("The model called tools with arguments that are too long.")
	}
	c.arguments = append(c.arguments, d.Arguments...)
	return nil
}

// callsLine writes the line of the calls, if there are some.
func (r *renderer) callsLine(dst []byte) []byte {
	if len(r.calls) == 0 {
		return dst
	}
	from := len(dst)
	dst = r.message(r.open(dst), "", "")
	for i := range r.calls {
		c := &r.calls[i]
		if dst, r.fault = r.appendCall(dst, i, c.id, c.name, c.arguments); r.fault != nil {
			return dst[:from]
		}
	}
	return append(r.endMessage(append(dst, ']')), ",\"done\":false}\n"...)
}

// appendCall appends the element i of tool_calls, and before the first the member's name. The protocol has arguments as
// an object: what is none can't be written.
func (r *renderer) appendCall(dst []byte, i int, id, name string, arguments []byte) ([]byte, *openai.Error) {
	if len(arguments) == 0 {
		arguments = []byte("{}")
	}
	if !openai.IsObject(arguments) {
		return dst, openai.ProviderFailed("The model called a tool with arguments that are not a JSON object.")
	}
	if i == 0 {
		dst = append(dst, `,"tool_calls":[{`...)
	} else {
		dst = append(dst, `,{`...)
	}
	if id != "" {
		dst = append(openai.AppendString(append(dst, `"id":`...), id), ',')
	}
	dst = strconv.AppendInt(append(dst, `"function":{"index":`...), int64(i), 10)
	dst = openai.AppendString(append(dst, `,"name":`...), name)
	dst = append(dst, `,"arguments":`...)
	return append(appendRaw(dst, arguments), '}', '}'), nil
}

// appendRaw appends a JSON document without the line breaks between its signs, which would end the line; within strings
// there are none.
func appendRaw(dst, document []byte) []byte {
	for _, c := range document {
		if c != '\n' && c != '\r' {
			dst = append(dst, c)
		}
	}
	return dst
}

// Fault implements [openai.Renderer].
func (r *renderer) Fault() *openai.Error { return r.fault }

// Held implements [openai.Renderer]: the calls, and the line in which they stand at the end.
func (r *renderer) Held() int { return 2 * r.held }

// Complete implements [openai.Renderer].
func (r *renderer) Complete(dst []byte, usage execution.Usage) ([]byte, *openai.Error) {
	switch {
	case r.fault != nil:
		return dst, r.fault
	case r.finish.Reason == "":
		return dst, openai.ProviderTruncated()
	}
	dst = r.endMessage(r.message(r.open(dst), "", ""))
	return append(r.end(dst, r.finish.Reason, usage), '\n'), nil
}

// end appends the members of the last line, and its end.
func (r *renderer) end(dst []byte, reason execution.FinishReason, usage execution.Usage) []byte {
	now := time.Now()
	first := r.first
	if first.IsZero() {
		first = now
	}
	dst = append(append(dst, `,"done":true,"done_reason":"`...), doneReason(reason)...)
	for _, member := range [...]struct {
		name string
		n    int64
	}{
		{`","total_duration":`, int64(now.Sub(r.spec.Created))}, {`,"load_duration":`, 0},
		{`,"prompt_eval_count":`, usage.Input}, {`,"prompt_eval_duration":`, int64(first.Sub(r.spec.Created))},
		{`,"eval_count":`, usage.Output}, {`,"eval_duration":`, int64(now.Sub(first))},
	} {
		dst = strconv.AppendInt(append(dst, member.name...), max(0, member.n), 10)
	}
	return append(dst, '}')
}

// doneReason is the protocol's word. Ollama says "stop" of calls and of stop strings too; for the others it has none.
func doneReason(reason execution.FinishReason) string {
	switch reason {
	case execution.FinishStop, execution.FinishStopWord, execution.FinishToolCalls:
		return "stop"
	}
	return string(reason)
}

// Fail implements [openai.Renderer].
func (r *renderer) Fail(dst []byte, e *openai.Error) []byte {
	return openai.AppendInBandError(dst, openai.StreamOllama, e)
}

// Whole implements [openai.Renderer]. All of the time counts as the prompt's: when the answer began is not known.
func (r *renderer) Whole(dst []byte, result *execution.Result) ([]byte, *openai.Error) {
	if len(result.Choices) == 0 || result.Choices[0].Finish.Reason == "" {
		return dst, openai.ProviderTruncated()
	}
	c := &result.Choices[0]
	if r.generate && len(c.ToolCalls) > 0 {
		return dst, openai.ProviderFailed("The model called a tool, but none was offered.")
	}
	from := len(dst)
	dst = append(dst, r.begin...)
	dst = append(time.Now().UTC().AppendFormat(dst, time.RFC3339Nano), '"', ',')
	dst = r.message(dst, c.Text+c.Refusal, thinking(c.Reasoning))
	for i := range c.ToolCalls {
		call := &c.ToolCalls[i]
		var fault *openai.Error
		if dst, fault = r.appendCall(dst, i, call.ID, call.Name, []byte(call.Arguments)); fault != nil {
			return dst[:from], fault
		}
	}
	if len(c.ToolCalls) > 0 {
		dst = append(dst, ']')
	}
	dst = r.endMessage(dst)
	dst = appendLogprobs(dst, c.Logprobs)
	return r.end(dst, c.Finish.Reason, result.Usage), nil
}

func thinking(parts []execution.Part) string {
	var b strings.Builder
	for i := range parts {
		b.WriteString(parts[i].Text)
	}
	return b.String()
}

// appendLogprobs joins the arrays of the answer's pieces.
func appendLogprobs[T ~[]byte](dst []byte, arrays []T) []byte {
	n := 0
	for _, array := range arrays {
		for _, v := range openai.Value(array).Elements() {
			if n == 0 {
				dst = append(dst, `,"logprobs":[`...)
			} else {
				dst = append(dst, ',')
			}
			dst = append(dst, v...)
			n++
		}
	}
	if n > 0 {
		dst = append(dst, ']')
	}
	return dst
}
