package openai

import (
	"encoding/json"
	"fmt"

	"iop/execution"
)

// chatMessage is one message of a Chat Completions request, of any role.
type chatMessage struct {
	Role    string          `json:"role"`
	Name    string          `json:"name"`
	Content json.RawMessage `json:"content"`

	// Of the assistant. A client gives back what it got, the members that say nothing included.
	Refusal          string          `json:"refusal"`
	ReasoningContent string          `json:"reasoning_content"`
	Reasoning        string          `json:"reasoning"` // another name of reasoning_content
	ToolCalls        []chatToolCall  `json:"tool_calls"`
	Annotations      json.RawMessage `json:"annotations" hint:"citations of an answer's text are for people"`
	Parsed           json.RawMessage `json:"parsed" hint:"the client's own reading of content"`
	Audio            json.RawMessage `json:"audio" refuse:"audio is not stored"`
	FunctionCall     json.RawMessage `json:"function_call" refuse:"functions are deprecated; use tool_calls"`

	// Of a tool.
	ToolCallID string `json:"tool_call_id"`
}

type chatToolCall struct {
	Index    json.RawMessage `json:"index" hint:"the order says it; a streamed call that a client gives back may hold it"`
	ID       string          `json:"id"`
	Type     string          `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
		// OpenAI's own clients add it to what they were told, and give it back.
		ParsedArguments json.RawMessage `json:"parsed_arguments" hint:"the client's own reading of arguments"`
	} `json:"function"`
	Custom json.RawMessage `json:"custom" refuse:"custom tools are not available"`
}

func (r *chatRequest) applyMessages(in *execution.Input, names *paramNames) *Error {
	if len(r.Messages) == 0 {
		return InvalidRequest("messages", "must hold at least one message")
	}
	for i := range r.Messages {
		place := messagePlace{at: fmt.Sprintf("messages[%d]", i)}
		message, err := r.Messages[i].message(&place)
		if err != nil {
			return within("messages", withinIndex(i, err))
		}
		in.Messages = append(in.Messages, message)
		names.messages = append(names.messages, place)
	}
	return nil
}

// message makes a message of the input, and notes where its parts stand.
func (m *chatMessage) message(place *messagePlace) (execution.Message, *Error) {
	out := execution.Message{Role: execution.Role(m.Role), Name: m.Name}
	switch out.Role {
	case execution.RoleSystem, execution.RoleDeveloper, execution.RoleUser:
	case execution.RoleAssistant:
	case execution.RoleTool:
		if m.ToolCallID == "" {
			return out, missing("tool_call_id")
		}
		out.ToolCallID = m.ToolCallID
	case "":
		return out, missing("role")
	case "function":
		return out, unsupported("role", "functions are deprecated; use the role tool")
	default:
		return out, InvalidRequest("role", "must be one of developer, system, user, assistant, tool")
	}
	if err := m.checkRole(out.Role); err != nil {
		return out, err
	}
	m.addReasoning(&out, place)
	if err := within("content", m.addContent(&out, place)); err != nil {
		return out, err
	}
	if m.Refusal != "" {
		out.Parts = append(out.Parts, execution.Part{Kind: execution.PartRefusal, Text: m.Refusal})
		place.parts = append(place.parts, place.at+".refusal")
	}
	return out, within("tool_calls", m.addCalls(&out))
}

// checkRole refuses what only another role has.
func (m *chatMessage) checkRole(role execution.Role) *Error {
	if role != execution.RoleAssistant {
		switch {
		case m.Refusal != "":
			return InvalidRequest("refusal", "is only allowed in assistant messages")
		case m.ReasoningContent != "":
			return InvalidRequest("reasoning_content", "is only allowed in assistant messages")
		case m.Reasoning != "":
			return InvalidRequest("reasoning", "is only allowed in assistant messages")
		case len(m.ToolCalls) > 0:
			return InvalidRequest("tool_calls", "is only allowed in assistant messages")
		}
	}
	if role != execution.RoleTool && m.ToolCallID != "" {
		return InvalidRequest("tool_call_id", "is only allowed in tool messages")
	}
	speaks := role == execution.RoleAssistant && (m.Refusal+m.ReasoningContent+m.Reasoning != "" || len(m.ToolCalls) > 0)
	if len(m.Content) == 0 && !speaks {
		return missing("content")
	}
	return nil
}

// addReasoning adds what the assistant thought, which stands before what it said.
func (m *chatMessage) addReasoning(out *execution.Message, place *messagePlace) {
	text, name := m.ReasoningContent, ".reasoning_content"
	if text == "" {
		text, name = m.Reasoning, ".reasoning"
	}
	if text != "" {
		out.Parts = append(out.Parts, execution.Part{Kind: execution.PartReasoning, Text: text})
		place.parts = append(place.parts, place.at+name)
	}
}

func (m *chatMessage) addContent(out *execution.Message, place *messagePlace) *Error {
	switch {
	case len(m.Content) == 0:
		return nil
	case is(m.Content, '"'):
		text := unquote(m.Content)
		if text == "" && len(m.ToolCalls) > 0 {
			return nil // an answer that was nothing but calls
		}
		out.Parts = append(out.Parts, execution.Part{Kind: execution.PartText, Text: text})
		place.parts = append(place.parts, place.at+".content")
		return nil
	case !is(m.Content, '['):
		return InvalidRequest("", "must be a string or an array of parts")
	}
	var parts []json.RawMessage
	if err := decode(m.Content, &parts); err != nil {
		return err
	}
	if len(parts) == 0 && out.Role != execution.RoleAssistant {
		return InvalidRequest("", "must hold at least one part")
	}
	for i, raw := range parts {
		part, err := chatPart(raw, out.Role)
		if err != nil {
			return withinIndex(i, err)
		}
		out.Parts = append(out.Parts, part)
		place.parts = append(place.parts, fmt.Sprintf("%s.content[%d]", place.at, i))
	}
	return nil
}

// chatPart reads one part of a message's content.
func chatPart(raw []byte, role execution.Role) (execution.Part, *Error) {
	kind, err := typeOf(raw)
	if err != nil {
		return execution.Part{}, err
	}
	var read func([]byte) (execution.Part, *Error)
	roles := []execution.Role{execution.RoleUser, execution.RoleTool}
	switch kind {
	case "text":
		read, roles = chatText, []execution.Role{role}
	case "refusal":
		read, roles = readRefusal, []execution.Role{execution.RoleAssistant}
	case "image_url":
		read = chatImage
	case "input_audio":
		read = readAudio
	case "file":
		read = chatFile
	case "":
		return execution.Part{}, missing("type")
	default:
		return execution.Part{}, InvalidRequest("type", "must be one of text, image_url, input_audio, file, refusal")
	}
	for _, r := range roles {
		if r == role {
			return read(raw)
		}
	}
	return execution.Part{}, InvalidRequest("type", fmt.Sprintf("must not be %s in a message of the role %s", kind, role))
}

// cacheBreakpoint is a member of every part: where a provider's cache of the prompt may end.
type cacheBreakpoint struct {
	Breakpoint json.RawMessage `json:"prompt_cache_breakpoint" hint:"what is cached decides what the next request costs"`
}

func chatText(raw []byte) (execution.Part, *Error) {
	var p struct {
		Type string  `json:"type"`
		Text *string `json:"text"`
		cacheBreakpoint
	}
	if err := decode(raw, &p); err != nil {
		return execution.Part{}, err
	}
	if p.Text == nil {
		return execution.Part{}, missing("text")
	}
	return execution.Part{Kind: execution.PartText, Text: *p.Text}, nil
}

// readRefusal reads a part of the assistant's that says why it would not. Responses has the same.
func readRefusal(raw []byte) (execution.Part, *Error) {
	var p struct {
		Type    string  `json:"type"`
		Refusal *string `json:"refusal"`
	}
	if err := decode(raw, &p); err != nil {
		return execution.Part{}, err
	}
	if p.Refusal == nil {
		return execution.Part{}, missing("refusal")
	}
	return execution.Part{Kind: execution.PartRefusal, Text: *p.Refusal}, nil
}

func chatImage(raw []byte) (execution.Part, *Error) {
	var p struct {
		Type     string          `json:"type"`
		ImageURL json.RawMessage `json:"image_url"`
		cacheBreakpoint
	}
	if err := decode(raw, &p); err != nil {
		return execution.Part{}, err
	}
	out := execution.Part{Kind: execution.PartImage}
	switch {
	case len(p.ImageURL) == 0:
		return out, missing("image_url")
	case is(p.ImageURL, '"'): // what some engines take as well
		return out, within("image_url", setSource(&out, unquote(p.ImageURL)))
	}
	var image struct {
		URL    string `json:"url"`
		Detail string `json:"detail"`
	}
	if err := decode(p.ImageURL, &image); err != nil {
		return out, within("image_url", err)
	}
	if image.URL == "" {
		return out, within("image_url", missing("url"))
	}
	out.Detail = image.Detail
	if err := oneOf("detail", image.Detail, "auto", "low", "high", "original"); err != nil {
		return out, within("image_url", err)
	}
	return out, within("image_url", within("url", setSource(&out, image.URL)))
}

// readAudio reads a part with sound in it. Responses has the same.
func readAudio(raw []byte) (execution.Part, *Error) {
	var p struct {
		Type       string `json:"type"`
		InputAudio *struct {
			Data   string `json:"data"`
			Format string `json:"format"`
		} `json:"input_audio"`
		cacheBreakpoint
	}
	if err := decode(raw, &p); err != nil {
		return execution.Part{}, err
	}
	out := execution.Part{Kind: execution.PartAudio}
	if p.InputAudio == nil {
		return out, missing("input_audio")
	}
	if p.InputAudio.Format == "" {
		return out, within("input_audio", missing("format"))
	}
	out.Format = p.InputAudio.Format
	if err := oneOf("format", out.Format, "wav", "mp3"); err != nil {
		return out, within("input_audio", err)
	}
	return out, within("input_audio", within("data", setData(&out, p.InputAudio.Data)))
}

func chatFile(raw []byte) (execution.Part, *Error) {
	var p struct {
		Type string `json:"type"`
		File *struct {
			FileData string `json:"file_data"`
			FileID   string `json:"file_id"`
			Filename string `json:"filename"`
		} `json:"file"`
		cacheBreakpoint
	}
	if err := decode(raw, &p); err != nil {
		return execution.Part{}, err
	}
	if p.File == nil {
		return execution.Part{}, missing("file")
	}
	out, err := fileOf(p.File.FileData, "", p.File.FileID, p.File.Filename)
	return out, within("file", err)
}

// fileOf makes a file of one of its sources.
func fileOf(data, url, id, name string) (execution.Part, *Error) {
	out := execution.Part{Kind: execution.PartFile, Name: name, FileID: id}
	sources := 0
	for _, s := range []string{data, url, id} {
		if s != "" {
			sources++
		}
	}
	switch {
	case sources == 0:
		return out, missing("file_data")
	case sources > 1:
		return out, InvalidRequest("", "must have exactly one of file_data, file_url and file_id")
	case url != "":
		return out, within("file_url", setSource(&out, url))
	case data == "":
		return out, nil
	case len(data) > 5 && data[:5] == "data:":
		return out, within("file_data", setSource(&out, data))
	}
	return out, within("file_data", setData(&out, data))
}

func (m *chatMessage) addCalls(out *execution.Message) *Error {
	for i := range m.ToolCalls {
		c := &m.ToolCalls[i]
		var err *Error
		switch {
		case c.Type != "" && c.Type != "function":
			err = unsupported("type", "only function calls are supported")
		case c.ID == "":
			err = missing("id")
		case c.Function.Name == "":
			err = within("function", missing("name"))
		}
		if err != nil {
			return withinIndex(i, err)
		}
		out.ToolCalls = append(out.ToolCalls, execution.ToolCall{ID: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments})
	}
	return nil
}
