package ollama

import (
	"encoding/json"
	"fmt"
	"strings"

	"iop/execution"
	"iop/nodeagent/adapter"
	"iop/openai"
)

type message struct {
	Role       string     `json:"role"`
	Content    string     `json:"content"`
	Thinking   string     `json:"thinking,omitempty"`
	Images     []string   `json:"images,omitempty"`
	ToolCalls  []toolCall `json:"tool_calls,omitempty"`
	ToolName   string     `json:"tool_name,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
}

type toolCall struct {
	ID       string       `json:"id,omitempty"`
	Function calledByName `json:"function"`
}

type calledByName struct {
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

func (r *request) messages(list []execution.Message) *execution.UnsupportedError {
	names := map[string]string{} // of tools, by the id of the call
	r.Messages = make([]message, 0, len(list))
	for i := range list {
		m, refusal := newMessage(i, &list[i], names)
		if refusal != nil {
			return refusal
		}
		r.Messages = append(r.Messages, m)
	}
	return nil
}

func paramOf(message int) execution.Param {
	return execution.Param(fmt.Sprintf("%s[%d]", execution.ParamMessages, message))
}

func newMessage(at int, in *execution.Message, names map[string]string) (m message, refusal *execution.UnsupportedError) {
	m.Role = string(in.Role)
	switch in.Role {
	case execution.RoleDeveloper:
		m.Role = string(execution.RoleSystem)
	case execution.RoleTool:
		if m.ToolName, m.ToolCallID = names[in.ToolCallID], in.ToolCallID; m.ToolName == "" {
			m.ToolName = in.Name
		}
	}
	if in.Name != "" && in.Role != execution.RoleTool {
		return m, adapter.Refuse(paramOf(at)+".name", "Ollama does not support names on messages.")
	}
	for _, c := range in.ToolCalls {
		names[c.ID] = c.Name
		arguments := json.RawMessage(strings.TrimSpace(c.Arguments))
		if len(arguments) == 0 {
			arguments = json.RawMessage("{}")
		}
		if !openai.WellFormed(arguments) || arguments[0] != '{' {
			return m, adapter.Refuse(paramOf(at)+".tool_calls", "Ollama takes a tool call's arguments only as a JSON object.")
		}
		m.ToolCalls = append(m.ToolCalls, toolCall{c.ID, calledByName{c.Name, arguments}})
	}
	for i := range in.Parts {
		if refusal := m.add(&in.Parts[i], at, i); refusal != nil {
			return m, refusal
		}
	}
	return m, nil
}

// add puts a part into a message, which has one text and its images beside it. Several texts become lines of it.
func (m *message) add(p *execution.Part, message, part int) *execution.UnsupportedError {
	refuse := func(detail string) *execution.UnsupportedError {
		return adapter.Refuse(execution.ParamPart(message, part), detail)
	}
	switch p.Kind {
	case execution.PartText, execution.PartRefusal:
		if m.Content != "" {
			m.Content += "\n"
		}
		m.Content += p.Text
	case execution.PartReasoning:
		m.Thinking += p.Text
	case execution.PartImage:
		if p.Data == "" {
			return refuse("Ollama takes images only in the request, as base64: it does not fetch URLs or store files.")
		}
		m.Images = append(m.Images, p.Data)
	case execution.PartAudio:
		return refuse("Ollama does not take audio.")
	default:
		return refuse("Ollama does not take files.")
	}
	return nil
}
