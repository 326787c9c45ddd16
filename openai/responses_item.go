package openai

import (
	"encoding/json"
	"fmt"
	"strings"

	"iop/execution"
)

// redactedPrefix marks, in an encrypted_content of ours, a thought that the provider keeps to itself. Without it the
// content is the signature of what stands beside it.
const redactedPrefix = "redacted:"

// inputBuilder makes messages of a Responses request's items. What the assistant did in one turn is several items there
// and one message here: what it thought, what it said, what it called.
type inputBuilder struct {
	in    *execution.Input
	names *paramNames
	at    string // the item that is read
}

// last is the message that grows, nil if there is none.
func (b *inputBuilder) last() *execution.Message {
	if n := len(b.in.Messages); n > 0 {
		return &b.in.Messages[n-1]
	}
	return nil
}

// add begins a message that stands at this place.
func (b *inputBuilder) add(m execution.Message, place string) {
	b.in.Messages = append(b.in.Messages, m)
	b.names.messages = append(b.names.messages, messagePlace{at: place})
}

// part adds to the message that grows.
func (b *inputBuilder) part(p execution.Part, place string) {
	m := b.last()
	m.Parts = append(m.Parts, p)
	at := &b.names.messages[len(b.names.messages)-1]
	at.parts = append(at.parts, place)
}

// turn returns to a message of the assistant: the one that grows, or another if that has come to its end. One with calls
// goes on until their results come; else nothing comes after what was said.
func (b *inputBuilder) turn() {
	m := b.last()
	if m != nil && m.Role == execution.RoleAssistant {
		if len(m.ToolCalls) > 0 || !speaks(m) {
			return
		}
	}
	b.add(execution.Message{Role: execution.RoleAssistant}, b.at)
}

// speaks reports whether a message has something that was said in it.
func speaks(m *execution.Message) bool {
	for _, p := range m.Parts {
		if p.Kind != execution.PartReasoning {
			return true
		}
	}
	return false
}

// itemStatus are members that items have when they are given back as they came.
type itemStatus struct {
	Type   string          `json:"type"`
	ID     json.RawMessage `json:"id" hint:"no item is stored here"`
	Status json.RawMessage `json:"status" hint:"an item that is given back is as it is"`
}

func (b *inputBuilder) item(raw []byte) *Error {
	kind, err := typeOf(raw)
	if err != nil {
		return err
	}
	if kind == "" && member(raw, "role") != nil {
		kind = "message"
	}
	switch kind {
	case "message":
		return b.message(raw)
	case "function_call":
		return b.call(raw)
	case "function_call_output":
		return b.output(raw)
	case "reasoning":
		return b.reasoning(raw)
	case "item_reference", "":
		if kind == "" && member(raw, "id") == nil {
			return missing("type")
		}
		return unsupported("", "item references need stored items, and items are not stored")
	}
	return unsupported("type", fmt.Sprintf("items of type %q are not supported", excerpt(kind)))
}

func (b *inputBuilder) message(raw []byte) *Error {
	var m struct {
		itemStatus
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
		Phase   json.RawMessage `json:"phase" hint:"only models of OpenAI's own tell a comment from an answer"`
	}
	if err := decode(raw, &m); err != nil {
		return err
	}
	role := execution.Role(m.Role)
	switch role {
	case execution.RoleAssistant:
		b.turn()
	case execution.RoleSystem, execution.RoleDeveloper, execution.RoleUser:
		b.add(execution.Message{Role: role}, b.at)
	case "":
		return missing("role")
	default:
		return InvalidRequest("role", "must be one of developer, system, user, assistant")
	}
	if len(m.Content) == 0 {
		return missing("content")
	}
	return within("content", b.content(m.Content, role, ".content"))
}

// content adds a string or an array of parts to the message that grows.
func (b *inputBuilder) content(raw []byte, role execution.Role, name string) *Error {
	if is(raw, '"') {
		b.part(execution.Part{Kind: execution.PartText, Text: unquote(raw)}, b.at+name)
		return nil
	}
	if !is(raw, '[') {
		return InvalidRequest("", "must be a string or an array of parts")
	}
	var parts []json.RawMessage
	if err := decode(raw, &parts); err != nil {
		return err
	}
	if len(parts) == 0 && role != execution.RoleAssistant {
		return InvalidRequest("", "must hold at least one part")
	}
	for i, raw := range parts {
		part, err := responsesPart(raw, role)
		if err != nil {
			return withinIndex(i, err)
		}
		b.part(part, fmt.Sprintf("%s%s[%d]", b.at, name, i))
	}
	return nil
}

// responsesPart reads one part of an item's content.
func responsesPart(raw []byte, role execution.Role) (execution.Part, *Error) {
	kind, err := typeOf(raw)
	if err != nil {
		return execution.Part{}, err
	}
	assistant := role == execution.RoleAssistant
	takesMedia := role == execution.RoleUser || role == execution.RoleTool
	var read func([]byte) (execution.Part, *Error)
	fits := takesMedia
	switch kind {
	case "input_text":
		read, fits = chatText, true
	case "output_text":
		read, fits = outputText, assistant
	case "refusal":
		read, fits = readRefusal, assistant
	case "input_image":
		read = inputImage
	case "input_file":
		read = inputFile
	case "input_audio":
		read = readAudio
	case "":
		return execution.Part{}, missing("type")
	default:
		return execution.Part{}, InvalidRequest("type", "must be one of input_text, input_image, input_file, input_audio, output_text, refusal")
	}
	if !fits {
		return execution.Part{}, InvalidRequest("type", fmt.Sprintf("must not be %s here, of the role %s", kind, role))
	}
	return read(raw)
}

func outputText(raw []byte) (execution.Part, *Error) {
	var p struct {
		Type        string          `json:"type"`
		Text        *string         `json:"text"`
		Annotations json.RawMessage `json:"annotations" hint:"citations of an answer's text are for people"`
		Logprobs    json.RawMessage `json:"logprobs" hint:"how likely a former answer was changes nothing"`
		Parsed      json.RawMessage `json:"parsed" hint:"the client's own reading of text"`
	}
	if err := decode(raw, &p); err != nil {
		return execution.Part{}, err
	}
	if p.Text == nil {
		return execution.Part{}, missing("text")
	}
	return execution.Part{Kind: execution.PartText, Text: *p.Text}, nil
}

func inputImage(raw []byte) (execution.Part, *Error) {
	var p struct {
		Type     string `json:"type"`
		Detail   string `json:"detail"`
		FileID   string `json:"file_id"`
		ImageURL string `json:"image_url"`
		cacheBreakpoint
	}
	if err := decode(raw, &p); err != nil {
		return execution.Part{}, err
	}
	out := execution.Part{Kind: execution.PartImage, Detail: p.Detail, FileID: p.FileID}
	if err := oneOf("detail", p.Detail, "auto", "low", "high", "original"); err != nil {
		return out, err
	}
	switch {
	case p.ImageURL == "" && p.FileID == "":
		return out, missing("image_url")
	case p.ImageURL == "":
		return out, nil
	case p.FileID != "":
		return out, InvalidRequest("", "must have one of image_url and file_id only")
	}
	return out, within("image_url", setSource(&out, p.ImageURL))
}

func inputFile(raw []byte) (execution.Part, *Error) {
	var p struct {
		Type     string          `json:"type"`
		Detail   json.RawMessage `json:"detail" hint:"how finely pages are drawn"`
		FileData string          `json:"file_data"`
		FileID   string          `json:"file_id"`
		FileURL  string          `json:"file_url"`
		Filename string          `json:"filename"`
		cacheBreakpoint
	}
	if err := decode(raw, &p); err != nil {
		return execution.Part{}, err
	}
	return fileOf(p.FileData, p.FileURL, p.FileID, p.Filename)
}

// callOrigin are members that say who made a call.
type callOrigin struct {
	Namespace string          `json:"namespace"`
	Caller    json.RawMessage `json:"caller"`
}

func (c *callOrigin) check() *Error {
	if c.Namespace != "" {
		return unsupported("namespace", "function namespaces are not available")
	}
	if len(c.Caller) > 0 {
		kind, err := typeOf(c.Caller)
		if err != nil {
			return within("caller", err)
		}
		if kind != "direct" {
			return within("caller", unsupported("type", "only direct is"))
		}
	}
	return nil
}

func (b *inputBuilder) call(raw []byte) *Error {
	var c struct {
		itemStatus
		callOrigin
		CallID    string `json:"call_id"`
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
		Async     bool   `json:"async"`

		ParsedArguments json.RawMessage `json:"parsed_arguments" hint:"the client's own reading of arguments"`
	}
	if err := decode(raw, &c); err != nil {
		return err
	}
	switch {
	case c.CallID == "":
		return missing("call_id")
	case c.Name == "":
		return missing("name")
	case c.Async:
		return unsupported("async", "the model always waits for the result of a call")
	}
	if err := c.check(); err != nil {
		return err
	}
	m := b.last()
	if m == nil || m.Role != execution.RoleAssistant {
		b.add(execution.Message{Role: execution.RoleAssistant}, b.at)
		m = b.last()
	}
	m.ToolCalls = append(m.ToolCalls, execution.ToolCall{ID: c.CallID, Name: c.Name, Arguments: c.Arguments})
	return nil
}

func (b *inputBuilder) output(raw []byte) *Error {
	var o struct {
		itemStatus
		callOrigin
		CallID    string          `json:"call_id"`
		Name      json.RawMessage `json:"name" hint:"the call has it"`
		CreatedBy json.RawMessage `json:"created_by" hint:"no item is stored here"`
		Output    json.RawMessage `json:"output"`
	}
	if err := decode(raw, &o); err != nil {
		return err
	}
	if o.CallID == "" {
		return missing("call_id")
	}
	if len(o.Output) == 0 {
		return missing("output")
	}
	if err := o.check(); err != nil {
		return err
	}
	b.add(execution.Message{Role: execution.RoleTool, ToolCallID: o.CallID}, b.at)
	return within("output", b.content(o.Output, execution.RoleTool, ".output"))
}

// reasoning adds a thought to the assistant's turn. Text is what it thought, or if that is not there the summary.
func (b *inputBuilder) reasoning(raw []byte) *Error {
	var r struct {
		itemStatus
		Summary   []reasoningText `json:"summary"`
		Content   []reasoningText `json:"content"`
		Encrypted string          `json:"encrypted_content"`
	}
	if err := decode(raw, &r); err != nil {
		return err
	}
	text, err := joinReasoning("content", "reasoning_text", r.Content)
	if err != nil {
		return err
	}
	summary, err := joinReasoning("summary", "summary_text", r.Summary)
	if err != nil {
		return err
	}
	if text == "" {
		text = summary
	}
	part := execution.Part{Kind: execution.PartReasoning, Text: text}
	if redacted, ok := strings.CutPrefix(r.Encrypted, redactedPrefix); ok {
		part.Text, part.Redacted = "", redacted
	} else {
		part.Signature = r.Encrypted
	}
	if part.Text == "" && part.Redacted == "" && part.Signature == "" {
		return nil // nothing was told of it
	}
	b.turn()
	b.part(part, b.at)
	return nil
}

type reasoningText struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

func joinReasoning(name, kind string, parts []reasoningText) (string, *Error) {
	var texts []string
	for i, p := range parts {
		if p.Type != kind {
			return "", within(name, withinIndex(i, InvalidRequest("type", "must be "+kind)))
		}
		texts = append(texts, p.Text)
	}
	return strings.Join(texts, "\n\n"), nil
}
