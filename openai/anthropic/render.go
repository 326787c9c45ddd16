package anthropic

import (
	"strconv"

	"iop/execution"
	"iop/openai"
)

// maxArguments bounds one call's arguments in bytes: they are kept to see whether they are JSON.
const maxArguments = 8 << 20

// maxSignature bounds a thought's signature in bytes: clients take it in one piece only.
const maxSignature = 1 << 20

// blockKind says which content block of a stream is open.
type blockKind uint8

const (
	noBlock blockKind = iota
	textBlock
	thinkingBlock
	toolBlock
)

// renderer writes one answer. A content block is open from the first event of its kind until one of another kind, and
// blocks have their indexes in the order in which they were opened. Blocks do not overlap: what comes while a call is
// not whole waits for it (waiting.go).
//
// A protocol's client can't be told afterwards that a call has changed: a piece of a call whose block is closed, or
// arguments that are no JSON object, are a fault, and the stream ends with an error instead of its message_stop.
type renderer struct {
	spec    openai.RenderSpec
	omitted bool // thoughts are not shown, only their signatures

	started   bool
	blocks    int // opened so far
	open      blockKind
	call      int // the call of the open toolBlock
	calls     int // begun so far, also those that wait
	refused   bool
	finish    execution.Finish
	fault     *openai.Error  // or nil
	signature []byte         // of the open thinkingBlock
	arguments []byte         // of the open toolBlock
	nesting   openai.Nesting // of arguments
	waiting   waiting
}

func newRenderer(spec openai.RenderSpec, omitted bool) *renderer {
	return &renderer{spec: spec, omitted: omitted, call: -1}
}

// Event implements [openai.Renderer].
func (r *renderer) Event(dst []byte, e *execution.Event) []byte {
	switch e.Kind {
	case execution.EventStarted:
		return r.start(dst, e.Started.Usage)
	case execution.EventUsage, execution.EventFailure, execution.EventAnnotation:
		return dst
	}
	if e.Choice != 0 || r.fault != nil || r.finish.Reason != "" {
		return dst
	}
	switch e.Kind {
	case execution.EventRefusal:
		r.refused = r.refused || e.Text != ""
	case execution.EventToolCall:
		if !r.expects(&e.Call) {
			return dst
		}
	case execution.EventFinish:
		r.finish = e.Finish
		if dst = r.catchUp(dst); r.fault != nil {
			return dst
		}
		return r.close(dst)
	}
	if r.mustWait(e) {
		r.wait(e)
		return dst
	}
	dst = r.show(dst, e)
	if len(r.waiting.blocks) > 0 && r.nesting.Whole() {
		dst = r.catchUp(dst)
	}
	return dst
}

// show writes a piece of a block, and what must come before it.
func (r *renderer) show(dst []byte, e *execution.Event) []byte {
	switch e.Kind {
	case execution.EventText, execution.EventRefusal:
		return r.text(dst, e.Text)
	case execution.EventReasoning:
		return r.think(dst, e)
	}
	return r.toolCall(dst, &e.Call)
}

// start writes message_start, once.
func (r *renderer) start(dst []byte, usage execution.Usage) []byte {
	if r.started {
		return dst
	}
	r.started = true
	dst = append(dst, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":"...)
	dst = r.head(dst)
	dst = append(dst, `,"content":[],"stop_reason":null,"stop_sequence":null,"usage":`...)
	usage.Output, usage.Reasoning = 0, 0
	dst = appendUsage(dst, usage)
	return append(dst, "}}\n\n"...)
}

// head appends the message object up to its content.
func (r *renderer) head(dst []byte) []byte {
	dst = append(dst, `{"id":`...)
	dst = openai.AppendString(dst, "msg_"+r.spec.ID)
	dst = append(dst, `,"type":"message","role":"assistant","model":`...)
	return openai.AppendString(dst, r.spec.Model)
}

// appendUsage appends a usage object. The protocol counts tokens of the cache beside the input, a run counts them in it.
func appendUsage(dst []byte, u execution.Usage) []byte {
	dst = append(dst, `{"input_tokens":`...)
	dst = strconv.AppendInt(dst, max(0, u.Input-u.Cached), 10)
	dst = append(dst, `,"cache_creation_input_tokens":0,"cache_read_input_tokens":`...)
	dst = strconv.AppendInt(dst, u.Cached, 10)
	dst = append(dst, `,"output_tokens":`...)
	dst = strconv.AppendInt(dst, u.Output, 10)
	if u.Reasoning > 0 {
		dst = append(dst, `,"output_tokens_details":{"thinking_tokens":`...)
		dst = strconv.AppendInt(dst, u.Reasoning, 10)
		dst = append(dst, '}')
	}
	return append(dst, '}')
}

// begin opens a block and writes its content_block_start up to the members of the block after its type. ok is false if
// the block before it is at fault.
func (r *renderer) begin(dst []byte, kind blockKind, name string) (_ []byte, ok bool) {
	if dst = r.close(r.start(dst, execution.Usage{})); r.fault != nil {
		return dst, false
	}
	r.open = kind
	r.blocks++
	dst = append(dst, "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":"...)
	dst = strconv.AppendInt(dst, int64(r.blocks-1), 10)
	dst = append(dst, `,"content_block":{"type":"`...)
	return append(append(dst, name...), '"'), true
}

// delta writes a content_block_delta of the open block.
func (r *renderer) delta(dst []byte, kind, member, text string) []byte {
	dst = append(dst, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":"...)
	dst = strconv.AppendInt(dst, int64(r.blocks-1), 10)
	dst = append(dst, `,"delta":{"type":"`...)
	dst = append(dst, kind...)
	dst = append(dst, `","`...)
	dst = append(dst, member...)
	dst = append(dst, `":`...)
	dst = openai.AppendString(dst, text)
	return append(dst, "}}\n\n"...)
}

// close ends the open block, if there is one.
func (r *renderer) close(dst []byte) []byte {
	switch r.open {
	case noBlock:
		return dst
	case thinkingBlock:
		if len(r.signature) > 0 {
			dst = r.delta(dst, "signature_delta", "signature", string(r.signature))
		}
	case toolBlock:
		if r.fault = r.checkArguments(); r.fault != nil {
			return dst
		}
	}
	r.open, r.call = noBlock, -1
	return r.stop(dst)
}

func (r *renderer) stop(dst []byte) []byte {
	dst = append(dst, "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":"...)
	dst = strconv.AppendInt(dst, int64(r.blocks-1), 10)
	return append(dst, "}\n\n"...)
}

// checkArguments looks at the arguments of the call that ends. No word at all is a call without arguments; those of a
// call at which the answer's bound was reached may be cut, as the protocol's own server leaves them.
func (r *renderer) checkArguments() *openai.Error {
	if len(r.arguments) == 0 || openai.IsObject(r.arguments) || r.finish.Reason == execution.FinishLength {
		return nil
	}
	return badArguments()
}

func badArguments() *openai.Error {
	return openai.ProviderFailed("The model called a tool with arguments that are not a JSON object.")
}

func (r *renderer) text(dst []byte, text string) []byte {
	if text == "" {
		return dst
	}
	if r.open != textBlock {
		var ok bool
		if dst, ok = r.begin(dst, textBlock, "text"); !ok {
			return dst
		}
		dst = append(dst, ",\"text\":\"\"}}\n\n"...)
	}
	return r.delta(dst, "text_delta", "text", text)
}

// think writes a piece of a thought. Text after a signature begins another thought.
func (r *renderer) think(dst []byte, e *execution.Event) []byte {
	if e.Redacted != "" {
		return r.redacted(dst, e.Redacted)
	}
	if e.Text == "" && e.Signature == "" {
		return dst
	}
	if r.open != thinkingBlock || e.Text != "" && len(r.signature) > 0 {
		var ok bool
		if dst, ok = r.begin(dst, thinkingBlock, "thinking"); !ok {
			return dst
		}
		dst = append(dst, ",\"thinking\":\"\",\"signature\":\"\"}}\n\n"...)
		r.signature = r.signature[:0]
	}
	if len(r.signature)+len(e.Signature) > maxSignature {
		r.fault = openai.ProviderFailed("The provider's signature of a thinking block is too long.")
		return dst
	}
	r.signature = append(r.signature, e.Signature...)
	if e.Text == "" || r.omitted {
		return dst
	}
	return r.delta(dst, "thinking_delta", "thinking", e.Text)
}

// redacted writes a thought that the provider keeps to itself: a block without deltas.
func (r *renderer) redacted(dst []byte, data string) []byte {
	dst, ok := r.begin(dst, noBlock, "redacted_thinking")
	if !ok {
		return dst
	}
	dst = append(openai.AppendString(append(dst, `,"data":`...), data), "}}\n\n"...)
	return r.stop(dst)
}

// toolCall writes a piece of the open call, or begins another.
func (r *renderer) toolCall(dst []byte, c *execution.ToolCallDelta) []byte {
	if c.Index != r.call {
		var ok bool
		if dst, ok = r.beginCall(dst, c); !ok {
			return dst
		}
	}
	if c.Arguments == "" {
		return dst
	}
	if len(r.arguments)+len(c.Arguments) > maxArguments {
		r.fault = openai.ProviderFailed("The model called a tool with arguments that are too long.")
		return dst
	}
	r.arguments = append(r.arguments, c.Arguments...)
	r.nesting.Add(c.Arguments)
	return r.delta(dst, "input_json_delta", "partial_json", c.Arguments)
}

func (r *renderer) beginCall(dst []byte, c *execution.ToolCallDelta) (_ []byte, ok bool) {
	if dst, ok = r.begin(dst, toolBlock, "tool_use"); !ok {
		return dst, false
	}
	r.call = c.Index
	r.arguments, r.nesting = r.arguments[:0], openai.Nesting{}
	dst = r.appendCall(dst, r.call, c.ID, c.Name)
	return append(dst, "{}}}\n\n"...), true
}

// appendCall appends the members of a tool_use block up to the value of its input.
func (r *renderer) appendCall(dst []byte, index int, id, name string) []byte {
	if id == "" { // a provider without ids; the client must have one to answer to
		id = "toolu_" + r.spec.ID + "_" + strconv.Itoa(index)
	}
	dst = append(dst, `,"id":`...)
	dst = openai.AppendString(dst, id)
	dst = append(dst, `,"name":`...)
	dst = openai.AppendString(dst, name)
	return append(dst, `,"input":`...)
}

// Fault implements [openai.Renderer].
func (r *renderer) Fault() *openai.Error { return r.fault }

// Held implements [openai.Renderer]: what of the open block is kept until it ends, and what waits for that, which is written
// at once then.
func (r *renderer) Held() int { return len(r.signature) + len(r.arguments) + 2*r.waiting.size }

// Complete implements [openai.Renderer].
func (r *renderer) Complete(dst []byte, usage execution.Usage) ([]byte, *openai.Error) {
	switch {
	case r.fault != nil:
		return dst, r.fault
	case r.finish.Reason == "":
		return dst, openai.ProviderTruncated()
	}
	dst = r.start(dst, usage)
	dst = append(dst, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{"...)
	dst = appendStop(dst, r.finish, r.refused, r.calls > 0)
	dst = append(dst, `},"usage":`...)
	dst = appendUsage(dst, usage)
	return append(dst, "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"...), nil
}

// appendStop appends stop_reason and stop_sequence.
func appendStop(dst []byte, f execution.Finish, refused, called bool) []byte {
	dst = append(dst, `"stop_reason":"`...)
	dst = append(dst, stopReason(f.Reason, refused, called)...)
	dst = append(dst, `","stop_sequence":`...)
	if f.Reason == execution.FinishStopWord && f.StopWord != "" {
		return openai.AppendString(dst, f.StopWord)
	}
	return append(dst, "null"...)
}

// stopReason is the protocol's word. Some providers say "stop" where calls are to be answered; clients go by the word.
func stopReason(reason execution.FinishReason, refused, called bool) string {
	switch reason {
	case execution.FinishLength:
		return "max_tokens"
	case execution.FinishStopWord:
		return "stop_sequence"
	case execution.FinishToolCalls:
		return "tool_use"
	case execution.FinishPause:
		return "pause_turn"
	case execution.FinishFilter:
		return "refusal"
	}
	switch {
	case called:
		return "tool_use"
	case refused:
		return "refusal"
	}
	return "end_turn"
}

// Fail implements [openai.Renderer].
func (r *renderer) Fail(dst []byte, e *openai.Error) []byte {
	return openai.AppendInBandError(dst, openai.StreamMessages, e)
}

// Whole implements [openai.Renderer].
func (r *renderer) Whole(dst []byte, result *execution.Result) ([]byte, *openai.Error) {
	if len(result.Choices) == 0 || result.Choices[0].Finish.Reason == "" {
		return dst, openai.ProviderTruncated()
	}
	c := &result.Choices[0]
	from := len(dst)
	dst = append(r.head(dst), `,"content":[`...)
	empty := len(dst)
	for _, e := range c.Events() {
		var fault *openai.Error
		if dst, fault = r.appendBlock(dst, &e, c.Finish.Reason); fault != nil {
			return dst[:from], fault
		}
	}
	if len(dst) > empty {
		dst = dst[:len(dst)-1]
	}
	dst = append(dst, `],`...)
	dst = appendStop(dst, c.Finish, c.Refusal != "", len(c.ToolCalls) > 0)
	dst = append(dst, `,"usage":`...)
	return append(appendUsage(dst, result.Usage), '}'), nil
}

// appendBlock appends a block of a whole answer, with a comma behind it.
func (r *renderer) appendBlock(dst []byte, e *execution.Event, reason execution.FinishReason) ([]byte, *openai.Error) {
	switch e.Kind {
	case execution.EventReasoning:
		return r.appendThought(dst, e), nil
	case execution.EventText, execution.EventRefusal:
		if e.Text != "" {
			dst = openai.AppendString(append(dst, `{"type":"text","text":`...), e.Text)
			dst = append(dst, "},"...)
		}
	case execution.EventToolCall:
		arguments := e.Call.Arguments
		if arguments == "" {
			arguments = "{}"
		}
		if !openai.IsObject(arguments) {
			return dst, wholeArguments(reason)
		}
		dst = r.appendCall(append(dst, `{"type":"tool_use"`...), e.Call.Index, e.Call.ID, e.Call.Name)
		dst = append(append(dst, arguments...), "},"...)
	}
	return dst, nil
}

// wholeArguments is the error of a call in a whole answer, whose input must be an object.
func wholeArguments(reason execution.FinishReason) *openai.Error {
	e := badArguments()
	if reason == execution.FinishLength {
		e = openai.ProviderFailed("The answer reached max_tokens inside the arguments of a tool call.")
		e.NoRetry = true
	}
	return e
}

func (r *renderer) appendThought(dst []byte, p *execution.Event) []byte {
	if p.Redacted != "" {
		dst = openai.AppendString(append(dst, `{"type":"redacted_thinking","data":`...), p.Redacted)
		return append(dst, "},"...)
	}
	text := p.Text
	if text == "" && p.Signature == "" {
		return dst
	}
	if r.omitted {
		text = ""
	}
	dst = openai.AppendString(append(dst, `{"type":"thinking","thinking":`...), text)
	dst = openai.AppendString(append(dst, `,"signature":`...), p.Signature)
	return append(dst, "},"...)
}
