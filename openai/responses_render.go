package openai

import (
	"net/http"
	"strconv"
	"time"

	"iop/execution"
)

// maxResponsesText is how much of an answer a Responses renderer remembers, in bytes: the protocol repeats the whole text
// in the events that end it. No model's answer comes near it.
const maxResponsesText = 8 << 20

// responsesTimes is how often a text is in memory when the answer ends: as it is remembered, and in the events that end its
// part (two of them), its item and the response.
const responsesTimes = 5

// responsesRenderer writes Responses events, and the whole object. What the model thinks, says and calls are items, each
// with events for its begin, its pieces and its end; text and thoughts come one item at a time, calls may overlap.
type responsesRenderer struct {
	spec RenderSpec
	id   string
	echo []byte // what the object repeats of the request: members with a comma before each
	now  func() time.Time

	seq     int64
	begun   bool
	reason  execution.FinishReason // empty: not ended
	failure *Error                 // why the answer can't be whole, or nil

	items   [][]byte // the finished ones as JSON by output_index, nil while one is open
	message *messageItem
	thought *thoughtItem
	calls   []*callItem // by the index of the call
	size    int         // bytes that are remembered
}

func newResponsesRenderer(spec RenderSpec, echo []byte) *responsesRenderer {
	return &responsesRenderer{spec: spec, id: "resp_" + spec.ID, echo: echo, now: time.Now}
}

// Event implements Renderer.
func (r *responsesRenderer) Event(dst []byte, e *execution.Event) []byte {
	if e.Choice != 0 || r.reason != "" || r.failure != nil || r.saysNothing(e) {
		return dst
	}
	if r.size > maxResponsesText {
		r.failure = ProviderFailed("The answer is too long for a response.")
		return dst
	}
	dst = r.begin(dst)
	switch e.Kind {
	case execution.EventText:
		return r.text(dst, e)
	case execution.EventRefusal:
		return r.refusal(dst, e)
	case execution.EventReasoning:
		return r.think(dst, e)
	case execution.EventToolCall:
		return r.call(dst, &e.Call)
	case execution.EventAnnotation:
		return r.annotate(dst, e.Annotation)
	case execution.EventFinish:
		return r.finish(dst, e.Finish.Reason)
	}
	return dst
}

func (r *responsesRenderer) saysNothing(e *execution.Event) bool {
	if e.Kind == execution.EventReasoning {
		return e.Text == "" && e.Signature == "" && e.Redacted == ""
	}
	return saysNothing(e)
}

// begin appends the first two events, once.
func (r *responsesRenderer) begin(dst []byte) []byte {
	if r.begun {
		return dst
	}
	r.begun = true
	for _, name := range [...]string{"response.created", "response.in_progress"} {
		dst = append(r.open(dst, name), `,"response":`...)
		dst = r.response(dst, responseEnd{status: "in_progress"})
		dst = append(dst, "}\n\n"...)
	}
	return dst
}

// open appends an event up to its own members.
func (r *responsesRenderer) open(dst []byte, name string) []byte {
	dst = append(dst, "event: "...)
	dst = append(dst, name...)
	dst = append(dst, "\ndata: {\"type\":\""...)
	dst = append(dst, name...)
	dst = append(dst, `","sequence_number":`...)
	dst = strconv.AppendInt(dst, r.seq, 10)
	r.seq++
	return dst
}

// finish closes what is open. An answer of nothing has an empty message: clients look for one.
func (r *responsesRenderer) finish(dst []byte, reason execution.FinishReason) []byte {
	r.reason = reason
	if len(r.items) == 0 {
		dst = r.textPart(dst)
	}
	status := itemCompleted
	if incompleteReason(reason) != "" {
		status = itemIncomplete
	}
	dst = r.closeThought(dst)
	dst = r.closeMessage(dst, status)
	for _, c := range r.calls {
		if !c.closed {
			dst = r.closeCall(dst, c, status)
		}
	}
	return dst
}

// incompleteReason is why a response is incomplete, empty if it is whole.
func incompleteReason(reason execution.FinishReason) string {
	switch reason {
	case execution.FinishLength, execution.FinishPause:
		return "max_output_tokens"
	case execution.FinishFilter:
		return "content_filter"
	}
	return ""
}

// Fault implements Renderer.
func (r *responsesRenderer) Fault() *Error { return r.failure }

// Held implements Renderer.
func (r *responsesRenderer) Held() int { return responsesTimes * r.size }

// Complete implements Renderer.
func (r *responsesRenderer) Complete(dst []byte, usage execution.Usage) ([]byte, *Error) {
	if r.failure != nil {
		return dst, r.failure
	}
	if r.reason == "" {
		return dst, ProviderTruncated()
	}
	end := r.end(usage)
	dst = append(r.open(dst, "response."+end.status), `,"response":`...)
	return append(r.response(dst, end), "}\n\n"...), nil
}

// end is how a response that came to its end has ended.
func (r *responsesRenderer) end(usage execution.Usage) responseEnd {
	end := responseEnd{status: "completed", usage: usage, incomplete: incompleteReason(r.reason)}
	if end.incomplete != "" {
		end.status = "incomplete"
	}
	return end
}

// Fail implements Renderer.
func (r *responsesRenderer) Fail(dst []byte, e *Error) []byte {
	dst = r.begin(dst)
	dst = appendErrorEvent(dst, r.seq, e)
	r.seq++
	dst = append(r.open(dst, "response.failed"), `,"response":`...)
	return append(r.response(dst, responseEnd{status: "failed", err: e}), "}\n\n"...)
}

// responseEnd is what a response object says of its end.
type responseEnd struct {
	status     string
	incomplete string // why it is incomplete, or empty
	err        *Error
	usage      execution.Usage
}

// response appends the response object with the items that are finished.
func (r *responsesRenderer) response(dst []byte, end responseEnd) []byte {
	dst = append(dst, `{"id":`...)
	dst = appendString(dst, r.id)
	dst = append(dst, `,"object":"response","created_at":`...)
	dst = strconv.AppendInt(dst, r.spec.Created.Unix(), 10)
	dst = append(dst, `,"status":"`...)
	dst = append(dst, end.status...)
	dst = append(dst, `","completed_at":`...)
	if end.status == "completed" {
		dst = strconv.AppendInt(dst, max(r.now().Unix(), r.spec.Created.Unix()), 10)
	} else {
		dst = append(dst, `null`...)
	}
	dst = append(dst, `,"error":`...)
	if end.err != nil {
		dst = appendString(append(dst, `{"code":`...), responseErrorCode(end.err))
		dst = appendString(append(dst, `,"message":`...), end.err.Message)
		dst = append(dst, '}')
	} else {
		dst = append(dst, `null`...)
	}
	dst = append(dst, `,"incomplete_details":`...)
	if end.incomplete != "" {
		dst = append(append(append(dst, `{"reason":"`...), end.incomplete...), `"}`...)
	} else {
		dst = append(dst, `null`...)
	}
	dst = appendString(append(dst, `,"model":`...), r.spec.Model)
	dst = append(r.appendItems(append(dst, `,"output":[`...)), ']')
	dst = appendResponsesUsage(append(dst, `,"usage":`...), end.usage)
	return append(append(dst, r.echo...), '}')
}

// responseErrorCode is one of the closed set of codes that a response object may have; the error event before it has the
// exact one.
func responseErrorCode(e *Error) string {
	switch e.Status {
	case http.StatusTooManyRequests:
		return "rate_limit_exceeded"
	case http.StatusBadRequest:
		return "invalid_prompt"
	}
	return "server_error"
}

func (r *responsesRenderer) appendItems(dst []byte) []byte {
	first := true
	for _, item := range r.items {
		if item == nil {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		dst, first = append(dst, item...), false
	}
	return dst
}

// appendResponsesUsage appends what was used, null where nobody knows. What a provider wrote into its cache is not known
// here, but the object must have the member.
func appendResponsesUsage(dst []byte, u execution.Usage) []byte {
	if !u.Known {
		return append(dst, `null`...)
	}
	dst = append(dst, `{"input_tokens":`...)
	dst = strconv.AppendInt(dst, u.Input, 10)
	dst = append(dst, `,"input_tokens_details":{"cached_tokens":`...)
	dst = strconv.AppendInt(dst, u.Cached, 10)
	dst = append(dst, `,"cache_write_tokens":0},"output_tokens":`...)
	dst = strconv.AppendInt(dst, u.Output, 10)
	dst = append(dst, `,"output_tokens_details":{"reasoning_tokens":`...)
	dst = strconv.AppendInt(dst, u.Reasoning, 10)
	dst = append(dst, `},"total_tokens":`...)
	dst = strconv.AppendInt(dst, addCounts(u.Input, u.Output), 10)
	return append(dst, '}')
}

// Whole implements Renderer: the object is what the events of such an answer would have led to.
func (r *responsesRenderer) Whole(dst []byte, result *execution.Result) ([]byte, *Error) {
	if err := checkWhole(result); err != nil {
		return dst, err
	}
	r.begun = true // no events are wanted
	choice := &result.Choices[0]
	var events []byte
	add := func(e execution.Event) { events = r.Event(events[:0], &e) }
	for _, e := range choice.Events() {
		add(e)
	}
	add(execution.Event{Kind: execution.EventFinish, Finish: choice.Finish})
	if r.failure != nil {
		return dst, r.failure
	}
	return r.response(dst, r.end(result.Usage)), nil
}
