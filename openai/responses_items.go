package openai

import (
	"encoding/json"
	"strconv"
	"strings"

	"iop/execution"
)

// The states of a finished item.
const (
	itemCompleted  = "completed"
	itemIncomplete = "incomplete"
)

// itemSize is what an item costs besides its text, and partSize a part of one, for the bound of what is remembered.
const (
	itemSize = 512
	partSize = execution.PieceSize
)

// partKind is which part of a message is open.
type partKind uint8

const (
	partNone partKind = iota
	partText
	partRefusal
)

// messageItem is a message that grows. Its text is kept as it stands in JSON: it was escaped for the event anyway.
type messageItem struct {
	index int
	id    string
	parts []byte // the finished ones, with commas between them
	count int    // of parts

	kind        partKind
	where       []byte // the members that say where the open part is
	text        []byte // of the open part, escaped
	logprobs    []byte // elements
	annotations []byte // elements
	annotated   int
}

// thoughtItem is a thought that grows.
type thoughtItem struct {
	index     int
	id        string
	where     []byte // the members that say where its summary is
	text      []byte // escaped
	told      bool   // it has a summary
	signature []byte
}

// callItem is a call that grows.
type callItem struct {
	index     int
	id        string
	where     []byte // the members that say where it is
	callID    string
	name      string
	arguments []byte
	nesting   Nesting // of the arguments
	closed    bool
}

// item takes the next output_index and makes the item's id.
func (r *responsesRenderer) item(prefix string) (index int, id string) {
	index = len(r.items)
	r.items = append(r.items, nil)
	r.size += itemSize
	return index, prefix + r.spec.ID + "_" + strconv.Itoa(index)
}

// itemEvent appends an event that has an item in it, up to the item.
func (r *responsesRenderer) itemEvent(dst []byte, name string, index int) []byte {
	dst = append(r.open(dst, name), `,"output_index":`...)
	dst = strconv.AppendInt(dst, int64(index), 10)
	return append(dst, `,"item":`...)
}

// done appends the end of an item, and keeps the item for the response.
func (r *responsesRenderer) done(dst []byte, index int, item []byte) []byte {
	r.items[index] = item
	dst = append(r.itemEvent(dst, "response.output_item.done", index), item...)
	return append(dst, "}\n\n"...)
}

// where makes the members that say which part of an item an event is of.
func where(id string, index int, counter string, at int) []byte {
	b := appendString([]byte(`,"item_id":`), id)
	b = append(b, `,"output_index":`...)
	b = strconv.AppendInt(b, int64(index), 10)
	if counter != "" {
		b = append(append(append(b, `,"`...), counter...), `":`...)
		b = strconv.AppendInt(b, int64(at), 10)
	}
	return b
}

// openMessage returns the message that grows, with a part of this kind open.
func (r *responsesRenderer) openMessage(dst []byte, kind partKind) []byte {
	dst = r.closeThought(dst)
	dst = r.closeCompleteCalls(dst)
	if r.message == nil {
		m := &messageItem{}
		m.index, m.id = r.item("msg_")
		r.message = m
		dst = r.itemEvent(dst, "response.output_item.added", m.index)
		dst = append(appendMessage(dst, m, "in_progress"), "}\n\n"...)
	}
	m := r.message
	if m.kind == kind {
		return dst
	}
	dst = r.closePart(dst)
	r.size += partSize
	m.kind, m.where = kind, where(m.id, m.index, "content_index", m.count)
	dst = append(r.open(dst, "response.content_part.added"), m.where...)
	return append(appendPart(append(dst, `,"part":`...), m), "}\n\n"...)
}

func (r *responsesRenderer) textPart(dst []byte) []byte { return r.openMessage(dst, partText) }

func (r *responsesRenderer) text(dst []byte, e *execution.Event) []byte {
	if r.message == nil || r.message.kind != partText {
		dst = r.textPart(dst)
	}
	m := r.message
	dst = append(r.open(dst, "response.output_text.delta"), m.where...)
	dst = append(dst, `,"delta":"`...)
	from := len(dst)
	dst = appendEscaped(dst, e.Text)
	m.text = append(m.text, dst[from:]...)
	r.size += len(dst) - from
	dst = append(dst, `","logprobs":[`...)
	if e.Logprobs != nil {
		dst = r.addLogprobs(dst, m, e.Logprobs)
	}
	return append(dst, "]}\n\n"...)
}

// addLogprobs appends the elements of a piece's logprobs, and keeps them for the part's end.
func (r *responsesRenderer) addLogprobs(dst []byte, m *messageItem, logprobs json.RawMessage) []byte {
	piece := joinArray([]byte{'['}, logprobs)[1:]
	if len(piece) > 0 && len(m.logprobs) > 0 {
		m.logprobs = append(m.logprobs, ',')
	}
	m.logprobs = append(m.logprobs, piece...)
	r.size += len(piece)
	return append(dst, piece...)
}

func (r *responsesRenderer) refusal(dst []byte, e *execution.Event) []byte {
	dst = r.openMessage(dst, partRefusal)
	m := r.message
	dst = append(r.open(dst, "response.refusal.delta"), m.where...)
	dst = append(dst, `,"delta":"`...)
	from := len(dst)
	dst = appendEscaped(dst, e.Text)
	m.text = append(m.text, dst[from:]...)
	r.size += len(dst) - from
	return append(dst, "\"}\n\n"...)
}

func (r *responsesRenderer) annotate(dst []byte, annotation json.RawMessage) []byte {
	dst = r.textPart(dst)
	m := r.message
	flat := flatAnnotation(annotation)
	dst = append(r.open(dst, "response.output_text.annotation.added"), m.where...)
	dst = append(dst, `,"annotation_index":`...)
	dst = strconv.AppendInt(dst, int64(m.annotated), 10)
	dst = append(append(dst, `,"annotation":`...), flat...)
	if m.annotated > 0 {
		m.annotations = append(m.annotations, ',')
	}
	m.annotations = append(m.annotations, flat...)
	m.annotated++
	r.size += len(flat) + 1
	return append(dst, "}\n\n"...)
}

// flatAnnotation makes an annotation of Responses of one of Chat Completions, which puts a citation into an object of its
// own. What is neither stays as it is.
func flatAnnotation(annotation json.RawMessage) []byte {
	var a struct {
		Type string `json:"type"`
		URL  *struct {
			StartIndex int64  `json:"start_index"`
			EndIndex   int64  `json:"end_index"`
			URL        string `json:"url"`
			Title      string `json:"title"`
		} `json:"url_citation"`
	}
	if json.Unmarshal(annotation, &a) != nil || a.Type != "url_citation" || a.URL == nil {
		return appendValue(nil, annotation)
	}
	b := strconv.AppendInt([]byte(`{"type":"url_citation","start_index":`), a.URL.StartIndex, 10)
	b = strconv.AppendInt(append(b, `,"end_index":`...), a.URL.EndIndex, 10)
	b = appendString(append(b, `,"url":`...), a.URL.URL)
	b = appendString(append(b, `,"title":`...), a.URL.Title)
	return append(b, '}')
}

// closePart ends the open part of the message, if one is.
func (r *responsesRenderer) closePart(dst []byte) []byte {
	m := r.message
	switch m.kind {
	case partNone:
		return dst
	case partText:
		dst = append(r.open(dst, "response.output_text.done"), m.where...)
		dst = append(append(dst, `,"text":"`...), m.text...)
		dst = append(append(append(dst, `","logprobs":[`...), m.logprobs...), "]}\n\n"...)
	case partRefusal:
		dst = append(r.open(dst, "response.refusal.done"), m.where...)
		dst = append(append(append(dst, `,"refusal":"`...), m.text...), "\"}\n\n"...)
	}
	dst = append(append(r.open(dst, "response.content_part.done"), m.where...), `,"part":`...)
	dst = append(appendPart(dst, m), "}\n\n"...)
	if m.count > 0 {
		m.parts = append(m.parts, ',')
	}
	m.parts = appendPart(m.parts, m)
	m.count++
	m.kind, m.text, m.logprobs, m.annotations, m.annotated = partNone, nil, nil, nil, 0
	return dst
}

// appendPart appends the open part.
func appendPart(dst []byte, m *messageItem) []byte {
	if m.kind == partRefusal {
		return append(append(append(dst, `{"type":"refusal","refusal":"`...), m.text...), `"}`...)
	}
	dst = append(append(dst, `{"type":"output_text","text":"`...), m.text...)
	dst = append(append(dst, `","annotations":[`...), m.annotations...)
	return append(append(append(dst, `],"logprobs":[`...), m.logprobs...), `]}`...)
}

func appendMessage(dst []byte, m *messageItem, status string) []byte {
	dst = appendString(append(dst, `{"id":`...), m.id)
	dst = append(append(dst, `,"type":"message","status":"`...), status...)
	return append(append(append(dst, `","role":"assistant","content":[`...), m.parts...), `]}`...)
}

func (r *responsesRenderer) closeMessage(dst []byte, status string) []byte {
	m := r.message
	if m == nil {
		return dst
	}
	dst = r.closePart(dst)
	r.message = nil
	return r.done(dst, m.index, appendMessage(nil, m, status))
}

func (r *responsesRenderer) think(dst []byte, e *execution.Event) []byte {
	dst = r.closeMessage(dst, itemCompleted)
	dst = r.closeCompleteCalls(dst)
	if e.Redacted != "" {
		dst = r.openThought(r.closeThought(dst))
		r.thought.signature = append([]byte(redactedPrefix), e.Redacted...)
		r.size += len(e.Redacted)
		return r.closeThought(dst)
	}
	if t := r.thought; t != nil && e.Text != "" && len(t.signature) > 0 {
		dst = r.closeThought(dst) // a signature ends a thought
	}
	dst = r.openThought(dst)
	t := r.thought
	t.signature = append(t.signature, e.Signature...)
	r.size += len(e.Signature)
	if e.Text == "" {
		return dst
	}
	if !t.told {
		t.told = true
		dst = append(r.open(dst, "response.reasoning_summary_part.added"), t.where...)
		dst = append(dst, ",\"part\":{\"type\":\"summary_text\",\"text\":\"\"}}\n\n"...)
	}
	dst = append(r.open(dst, "response.reasoning_summary_text.delta"), t.where...)
	dst = append(dst, `,"delta":"`...)
	from := len(dst)
	dst = appendEscaped(dst, e.Text)
	t.text = append(t.text, dst[from:]...)
	r.size += len(dst) - from
	return append(dst, "\"}\n\n"...)
}

// openThought begins a thought if none is open.
func (r *responsesRenderer) openThought(dst []byte) []byte {
	if r.thought != nil {
		return dst
	}
	t := &thoughtItem{}
	t.index, t.id = r.item("rs_")
	t.where = where(t.id, t.index, "summary_index", 0)
	r.thought = t
	dst = r.itemEvent(dst, "response.output_item.added", t.index)
	return append(appendThought(dst, t), "}\n\n"...)
}

func (r *responsesRenderer) closeThought(dst []byte) []byte {
	t := r.thought
	if t == nil {
		return dst
	}
	r.thought = nil
	if t.told {
		dst = append(r.open(dst, "response.reasoning_summary_text.done"), t.where...)
		dst = append(append(append(dst, `,"text":"`...), t.text...), "\"}\n\n"...)
		dst = append(r.open(dst, "response.reasoning_summary_part.done"), t.where...)
		dst = append(append(append(dst, `,"part":{"type":"summary_text","text":"`...), t.text...), "\"}}\n\n"...)
	}
	return r.done(dst, t.index, appendThought(nil, t))
}

func appendThought(dst []byte, t *thoughtItem) []byte {
	dst = appendString(append(dst, `{"id":`...), t.id)
	dst = append(dst, `,"type":"reasoning","summary":[`...)
	if t.told {
		dst = append(append(append(dst, `{"type":"summary_text","text":"`...), t.text...), `"}`...)
	}
	dst = append(dst, ']')
	if len(t.signature) > 0 {
		dst = appendString(append(dst, `,"encrypted_content":`...), string(t.signature))
	}
	return append(dst, '}')
}

func (r *responsesRenderer) call(dst []byte, d *execution.ToolCallDelta) []byte {
	if d.Index < 0 || d.Index > len(r.calls) || d.Index >= execution.MaxToolCalls {
		r.failure = ProviderFailed("The model's provider numbered its tool calls wrongly.")
		return dst
	}
	dst = r.closeThought(dst)
	dst = r.closeMessage(dst, itemCompleted)
	if d.Index == len(r.calls) {
		dst = r.openCall(r.closeCompleteCalls(dst), d)
	}
	c := r.calls[d.Index]
	if c.closed {
		if strings.TrimSpace(d.Arguments) != "" {
			r.failure = ProviderFailed("The model's provider continued a tool call that was already complete.")
		}
		return dst
	}
	if d.Arguments == "" {
		return dst
	}
	c.arguments = append(c.arguments, d.Arguments...)
	c.nesting.Add(d.Arguments)
	r.size += len(d.Arguments)
	dst = append(r.open(dst, "response.function_call_arguments.delta"), c.where...)
	dst = appendString(append(dst, `,"delta":`...), d.Arguments)
	return append(dst, "}\n\n"...)
}

func (r *responsesRenderer) openCall(dst []byte, d *execution.ToolCallDelta) []byte {
	c := &callItem{callID: callID(r.spec.ID, 0, d), name: d.Name}
	r.size += len(c.callID) + len(c.name)
	c.index, c.id = r.item("fc_")
	c.where = where(c.id, c.index, "", 0)
	r.calls = append(r.calls, c)
	dst = r.itemEvent(dst, "response.output_item.added", c.index)
	return append(appendCall(dst, c, "in_progress"), "}\n\n"...)
}

// closeCompleteCalls ends the calls that can't go on. Another stays open until the answer's end: some provider may
// write several at the same time.
func (r *responsesRenderer) closeCompleteCalls(dst []byte) []byte {
	for _, c := range r.calls {
		if !c.closed && c.nesting.Whole() {
			dst = r.closeCall(dst, c, itemCompleted)
		}
	}
	return dst
}

func (r *responsesRenderer) closeCall(dst []byte, c *callItem, status string) []byte {
	c.closed = true
	if c.nesting.Whole() {
		status = itemCompleted
	}
	dst = append(r.open(dst, "response.function_call_arguments.done"), c.where...)
	dst = appendString(append(dst, `,"name":`...), c.name)
	dst = appendString(append(dst, `,"arguments":`...), string(c.arguments))
	dst = append(dst, "}\n\n"...)
	return r.done(dst, c.index, appendCall(nil, c, status))
}

func appendCall(dst []byte, c *callItem, status string) []byte {
	dst = appendString(append(dst, `{"id":`...), c.id)
	dst = append(append(dst, `,"type":"function_call","status":"`...), status...)
	dst = appendString(append(dst, `","call_id":`...), c.callID)
	dst = appendString(append(dst, `,"name":`...), c.name)
	return append(appendString(append(dst, `,"arguments":`...), string(c.arguments)), '}')
}
