package ollama

import (
	"strconv"
	"strings"

	"iop/execution"
	"iop/openai"
)

// spoken is a message as the client wrote it.
type spoken struct {
	role, content, thinking string
	toolName, toolCallID    string
	images                  []execution.Part
	calls                   []execution.ToolCall
}

// message reads one message of a chat.
func (p *parser) message(at *openai.Path, v openai.Value) {
	s := spoken{}
	p.r.Object(at, v, func(name string, v openai.Value) bool {
		switch name {
		case "role":
			s.role = strings.ToLower(p.r.String(at, name, v))
		case "content":
			s.content = p.r.String(at, name, v)
		case "thinking":
			s.thinking = p.r.String(at, name, v)
		case "images":
			s.images = p.images(at.Member(name), v)
		case "tool_calls":
			s.calls = p.toolCalls(at.Member(name), v)
		case "tool_name":
			s.toolName = p.r.String(at, name, v)
		case "tool_call_id":
			s.toolCallID = p.r.String(at, name, v)
		default:
			return false
		}
		return true
	})
	p.addMessage(at, &s)
}

// addMessage checks a message as a whole and takes it into the input.
func (p *parser) addMessage(at *openai.Path, s *spoken) {
	m := execution.Message{Role: execution.Role(s.role)}
	switch m.Role {
	case execution.RoleSystem, execution.RoleUser, execution.RoleAssistant:
	case execution.RoleTool:
		m.Name = s.toolName
		m.ToolCallID = p.answer(at, s)
	default:
		p.r.Fail(at.Member("role"), "must be system, user, assistant or tool")
	}
	if m.Role != execution.RoleAssistant {
		p.only(at, "thinking", s.thinking != "", "assistant")
		p.only(at, "tool_calls", len(s.calls) > 0, "assistant")
	}
	if m.Role != execution.RoleTool {
		p.only(at, "tool_name", s.toolName != "", "tool")
		p.only(at, "tool_call_id", s.toolCallID != "", "tool")
	}
	if s.thinking != "" {
		m.Parts = append(m.Parts, execution.Part{Kind: execution.PartReasoning, Text: s.thinking})
	}
	if s.content != "" || len(s.images)+len(s.calls)+len(m.Parts) == 0 {
		m.Parts = append(m.Parts, text(s.content))
	}
	m.Parts = append(m.Parts, s.images...)
	if m.Role == execution.RoleAssistant {
		m.ToolCalls = s.calls
		p.expect(s.calls)
	}
	p.in.Messages = append(p.in.Messages, m)
}

// only refuses a member in a message of another role than the one that may have it.
func (p *parser) only(at *openai.Path, name string, has bool, role string) {
	if has {
		p.r.Fail(at.Member(name), "is only allowed in a message with the role %s", role)
	}
}

// expect gives a name to each call that has none, as Ollama's own have none in older versions and other protocols need
// one, and remembers which are to be answered.
func (p *parser) expect(calls []execution.ToolCall) {
	p.calls = p.calls[:0]
	for i := range calls {
		if calls[i].ID == "" {
			calls[i].ID = "call_" + strconv.Itoa(len(p.in.Messages)) + "_" + strconv.Itoa(i)
		}
		p.calls = append(p.calls, pending{calls[i].ID, calls[i].Name})
	}
}

// answer finds the call that a tool's result answers: the one that it names, else the first of the tool's name, else the
// first.
func (p *parser) answer(at *openai.Path, s *spoken) string {
	found := -1
	for i := len(p.calls) - 1; i >= 0; i-- {
		switch c := p.calls[i]; {
		case s.toolCallID != "":
			if c.id == s.toolCallID {
				found = i
			}
		case s.toolName == "" || c.name == s.toolName:
			found = i
		}
	}
	if found < 0 {
		p.r.Fail(at, "does not answer a tool call of the preceding assistant message")
		return ""
	}
	id := p.calls[found].id
	p.calls = append(p.calls[:found], p.calls[found+1:]...)
	return id
}

// imageStarts are what images in base64 begin with.
var imageStarts = [...]struct{ start, mediaType string }{
	{"/9j/", "image/jpeg"}, {"iVBORw0KGg", "image/png"}, {"R0lGOD", "image/gif"}, {"UklGR", "image/webp"},
}

// images reads images in base64. Other protocols want to know what an image is, so each is looked at.
func (p *parser) images(at *openai.Path, v openai.Value) (parts []execution.Part) {
	p.r.Array(at, v, maxImages, func(at *openai.Path, v openai.Value) {
		data := v.Text()
		for _, known := range imageStarts {
			if strings.HasPrefix(data, known.start) {
				parts = append(parts, execution.Part{Kind: execution.PartImage, Data: data, MediaType: known.mediaType})
				return
			}
		}
		p.r.Fail(at, "must be a JPEG, PNG, GIF or WebP image in base64")
	})
	return parts
}

func (p *parser) toolCalls(at *openai.Path, v openai.Value) (calls []execution.ToolCall) {
	p.r.Array(at, v, maxCalls, func(at *openai.Path, v openai.Value) {
		c := execution.ToolCall{}
		p.r.Object(at, v, func(name string, v openai.Value) bool {
			switch name {
			case "id":
				c.ID = p.r.String(at, name, v)
			case "type":
				return v.Text() == "function"
			case "function":
				p.calledFunction(at.Member(name), v, &c)
			default:
				return false
			}
			return true
		})
		if c.Name == "" {
			p.r.Fail(at.Member("function").Member("name"), "is missing")
		}
		calls = append(calls, c)
	})
	return calls
}

func (p *parser) calledFunction(at *openai.Path, v openai.Value, c *execution.ToolCall) {
	c.Arguments = "{}"
	p.r.Object(at, v, func(name string, v openai.Value) bool {
		switch name {
		case "name":
			c.Name = p.r.String(at, name, v)
		case "arguments":
			c.Arguments = string(p.r.Raw(at, name, v))
		case "index": // their order says it
			p.r.Int(at, name, v)
		case "description": // some clients repeat it; it says nothing of the call
			p.r.String(at, name, v)
		default:
			return false
		}
		return true
	})
}

// tool reads one tool.
func (p *parser) tool(at *openai.Path, v openai.Value) {
	t := execution.Tool{}
	p.r.Object(at, v, func(name string, v openai.Value) bool {
		switch name {
		case "type":
			return v.Text() == "function"
		case "function":
			p.function(at.Member(name), v, &t)
		default:
			return false
		}
		return true
	})
	if t.Name == "" {
		p.r.Fail(at.Member("function").Member("name"), "is missing")
	}
	p.in.Tools = append(p.in.Tools, t)
}

func (p *parser) function(at *openai.Path, v openai.Value, t *execution.Tool) {
	p.r.Object(at, v, func(name string, v openai.Value) bool {
		switch name {
		case "name":
			t.Name = p.r.String(at, name, v)
		case "description":
			t.Description = p.r.String(at, name, v)
		case "parameters":
			t.Parameters = p.r.Raw(at, name, v)
		case "strict":
			t.Strict = new(p.r.Bool(at, name, v))
		default:
			return false
		}
		return true
	})
}
