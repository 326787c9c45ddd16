package anthropic

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	"iop/execution"
	"iop/nodeagent/adapter"
	"iop/openai"
)

type message struct {
	Role    string  `json:"role"`
	Content []block `json:"content"`
}

// block is a content block of any type.
type block struct {
	Type         string          `json:"type"`
	Text         string          `json:"text,omitempty"`
	Source       *source         `json:"source,omitempty"`      // of images and documents
	Title        string          `json:"title,omitempty"`       // of documents
	ID           string          `json:"id,omitempty"`          // of tool_use
	Name         string          `json:"name,omitempty"`        // of tool_use
	Input        json.RawMessage `json:"input,omitempty"`       // of tool_use
	ToolUseID    string          `json:"tool_use_id,omitempty"` // of tool_result
	Content      []block         `json:"content,omitempty"`     // of tool_result
	IsError      bool            `json:"is_error,omitempty"`    // of tool_result
	Thinking     *string         `json:"thinking,omitempty"`    // of thinking: it may be empty
	Signature    string          `json:"signature,omitempty"`   // of thinking
	Data         string          `json:"data,omitempty"`        // of redacted_thinking
	CacheControl json.RawMessage `json:"cache_control,omitempty"`
}

type source struct {
	Type      string `json:"type"`
	MediaType string `json:"media_type,omitempty"`
	Data      string `json:"data,omitempty"`
	URL       string `json:"url,omitempty"`
	FileID    string `json:"file_id,omitempty"`
}

// messages says the conversation. Instructions stand before it in this protocol: those in its middle are put there, too,
// in their order, as Anthropic's own service does for clients of Chat Completions. Neighbours of one role become one
// message, because all the results of a turn's tool calls must stand in the message that follows it.
func (r *request) messages(list []execution.Message) *execution.UnsupportedError {
	for i := range list {
		m := &list[i]
		blocks, refusal := blocksOf(i, m)
		switch {
		case refusal != nil:
			return refusal
		case m.Role == execution.RoleSystem || m.Role == execution.RoleDeveloper:
			r.System = append(r.System, blocks...)
			continue
		}
		role := "user"
		if m.Role == execution.RoleAssistant {
			role = "assistant"
		}
		switch last := len(r.Messages) - 1; {
		case len(blocks) == 0: // nothing was said, and the protocol takes no empty message
		case last >= 0 && r.Messages[last].Role == role:
			r.Messages[last].Content = append(r.Messages[last].Content, blocks...)
		default:
			r.Messages = append(r.Messages, message{role, blocks})
		}
	}
	if len(r.Messages) == 0 {
		return adapter.Refuse(execution.ParamMessages, "Anthropic's Messages API needs a message that is not an instruction.")
	}
	return nil
}

func paramOf(message int) execution.Param {
	return execution.Param(fmt.Sprintf("%s[%d]", execution.ParamMessages, message))
}

func blocksOf(at int, m *execution.Message) (blocks []block, refusal *execution.UnsupportedError) {
	if m.Name != "" && m.Role != execution.RoleTool {
		return nil, adapter.Refuse(paramOf(at)+".name", "Anthropic's Messages API does not support names on messages.")
	}
	instructs := m.Role == execution.RoleSystem || m.Role == execution.RoleDeveloper
	for i := range m.Parts {
		p := &m.Parts[i]
		b, refusal := newBlock(at, i, p)
		switch {
		case refusal != nil:
			return nil, refusal
		case b.Type == "":
			continue
		case instructs && b.Type != "text":
			return nil, adapter.Refuse(execution.ParamPart(at, i), "Anthropic's Messages API takes instructions only as text.")
		}
		b.CacheControl = p.Cache
		blocks = append(blocks, b)
	}
	if m.Role == execution.RoleTool {
		return []block{{Type: "tool_result", ToolUseID: m.ToolCallID, Content: blocks, IsError: m.ToolFailed}}, nil
	}
	for _, c := range m.ToolCalls {
		input := json.RawMessage(strings.TrimSpace(c.Arguments))
		if len(input) == 0 {
			input = json.RawMessage("{}")
		}
		if !openai.WellFormed(input) || input[0] != '{' {
			return nil, adapter.Refuse(paramOf(at)+".tool_calls", "Anthropic's Messages API takes a tool call's arguments only as a JSON object.")
		}
		blocks = append(blocks, block{Type: "tool_use", ID: c.ID, Name: c.Name, Input: input})
	}
	return blocks, nil
}

// newBlock makes a block of a part. It has no type where there is nothing to say: the protocol takes no empty text, and no
// thought that it did not sign.
func newBlock(message, part int, p *execution.Part) (b block, refusal *execution.UnsupportedError) {
	refuse := func(detail string) (block, *execution.UnsupportedError) {
		return block{}, adapter.Refuse(execution.ParamPart(message, part), detail)
	}
	switch p.Kind {
	case execution.PartText, execution.PartRefusal:
		if p.Text != "" {
			b = block{Type: "text", Text: p.Text}
		}
	case execution.PartReasoning:
		switch {
		case p.Redacted != "":
			b = block{Type: "redacted_thinking", Data: p.Redacted}
		case p.Signature != "":
			b = block{Type: "thinking", Thinking: &p.Text, Signature: p.Signature}
		}
	case execution.PartImage:
		if p.Data != "" && p.MediaType == "" {
			return refuse("Anthropic's Messages API needs an image's media type.")
		}
		b = block{Type: "image", Source: sourceOf(p)}
	case execution.PartAudio:
		return refuse("Anthropic's Messages API does not take audio.")
	default:
		source, detail := document(p)
		if detail != "" {
			return refuse(detail)
		}
		b = block{Type: "document", Source: source, Title: p.Name}
	}
	return b, nil
}

func sourceOf(p *execution.Part) *source {
	switch {
	case p.URL != "":
		return &source{Type: "url", URL: p.URL}
	case p.FileID != "":
		return &source{Type: "file", FileID: p.FileID}
	}
	return &source{Type: "base64", MediaType: p.MediaType, Data: p.Data}
}

// document says a file: PDF and plain text are what the protocol takes.
func document(p *execution.Part) (s *source, detail string) {
	if p.Data == "" {
		return sourceOf(p), ""
	}
	t, _, _ := strings.Cut(p.MediaType, ";")
	if t == "" && strings.HasSuffix(strings.ToLower(p.Name), ".pdf") {
		t = "application/pdf"
	}
	switch t {
	case "application/pdf":
		return &source{Type: "base64", MediaType: t, Data: p.Data}, ""
	case "text/plain":
		plain, err := base64.StdEncoding.DecodeString(p.Data)
		if err != nil {
			return nil, "The file's data is not valid base64."
		}
		return &source{Type: "text", MediaType: t, Data: string(plain)}, ""
	}
	return nil, "Anthropic's Messages API takes only PDF and plain text files."
}
