package anthropic

import (
	"encoding/base64"
	"slices"

	"iop/execution"
	"iop/openai"
)

// message reads one message. A user's message with results of tools becomes several messages of the input, in the order
// of its blocks.
func (p *parser) message(at *openai.Path, v openai.Value) {
	var role string
	var content openai.Value
	p.r.Object(at, v, func(name string, v openai.Value) bool {
		switch name {
		case "role":
			role = p.r.String(at, name, v)
		case "content":
			content = v
		default:
			return false
		}
		return true
	})
	m := turn{p: p, content: at.Member("content")}
	switch role {
	case "user", "assistant", "system":
		m.message.Role = execution.Role(role)
	default:
		p.r.Fail(at.Member("role"), "must be user, assistant or system")
	}
	switch {
	case content == nil:
		p.r.Fail(m.content, "Field required")
	case content.Is('"'):
		m.message.Parts = []execution.Part{{Kind: execution.PartText, Text: content.Text()}}
	default:
		p.r.Array(m.content, content, maxParts, m.block)
	}
	m.flush(m.results == 0)
}

// turn is one message of the client as it is read.
type turn struct {
	p       *parser
	content *openai.Path
	message execution.Message // what is gathered
	blocks  []int             // of its parts
	results int               // of tools, so far
	index   int               // of the block
}

// flush ends the message that was gathered, if there is something in it or it must be.
func (m *turn) flush(must bool) {
	if must || len(m.message.Parts) > 0 || len(m.message.ToolCalls) > 0 {
		m.p.add(m.message, source{m.content, m.blocks})
	}
	m.message = execution.Message{Role: m.message.Role}
	m.blocks = nil
}

// add takes a message into the input.
func (p *parser) add(message execution.Message, from source) {
	if len(p.in.Messages) >= maxMessages {
		p.r.Fail(root.Member("messages"), "there are more than %d messages and results of tools", maxMessages)
		return
	}
	p.in.Messages = append(p.in.Messages, message)
	p.sources = append(p.sources, from)
}

// block reads one block of a message.
func (m *turn) block(at *openai.Path, v openai.Value) {
	i := m.index
	m.index++
	b := m.p.readBlock(at, v)
	switch {
	case b.kind == "tool_use" && m.message.Role == execution.RoleAssistant:
		m.message.ToolCalls = append(m.message.ToolCalls, b.call)
	case b.kind == "tool_result" && m.message.Role == execution.RoleUser:
		m.flush(false)
		m.results++
		m.p.add(b.result, b.from)
	case b.part.Kind != "" && allowed(m.message.Role, b.kind):
		m.message.Parts = append(m.message.Parts, b.part)
		m.blocks = append(m.blocks, i)
	default:
		m.p.r.Fail(at.Member("type"), "a block of type %q is not supported in a message with the role %s", b.kind, m.message.Role)
	}
}

// allowed reports whether a message of that role may hold such a block.
func allowed(role execution.Role, kind string) bool {
	switch kind {
	case "text":
		return true
	case "thinking", "redacted_thinking":
		return role == execution.RoleAssistant
	}
	return role == execution.RoleUser
}

// readSystem reads the request's instructions: a string or blocks of text.
func (p *parser) readSystem(v openai.Value) {
	at := root.Member("system")
	p.systemSource = source{content: at}
	if v.Is('"') {
		p.system = []execution.Part{{Kind: execution.PartText, Text: v.Text()}}
		return
	}
	p.system, p.systemSource.blocks = p.textAndMedia(at, v, "text")
	if len(p.system) == 0 {
		p.system = nil
	}
}

// textAndMedia reads an array of blocks of the kinds that are named.
func (p *parser) textAndMedia(at *openai.Path, v openai.Value, kinds ...string) (parts []execution.Part, blocks []int) {
	p.r.Array(at, v, maxParts, func(at *openai.Path, v openai.Value) {
		b := p.readBlock(at, v)
		if !slices.Contains(kinds, b.kind) {
			p.r.Fail(at.Member("type"), "a block of type %q is not allowed here", b.kind)
		}
		blocks = append(blocks, len(parts))
		parts = append(parts, b.part)
	})
	return parts, blocks
}

// block is what one content block says.
type block struct {
	kind   string
	part   execution.Part     // of text, thinking, images and documents
	call   execution.ToolCall // of tool_use
	result execution.Message  // of tool_result
	from   source             // of result
}

// readBlock reads any content block that a run can carry. Whose block it may be the caller looks at.
func (p *parser) readBlock(at *openai.Path, v openai.Value) (b block) {
	if p.parts++; p.parts > maxParts {
		p.r.Fail(root.Member("messages"), "there are more than %d blocks", maxParts)
		return b
	}
	for name, v := range v.Members() {
		if name == "type" {
			b.kind = v.Text()
		}
	}
	take := p.blockReader(at, &b)
	if take == nil {
		switch {
		case !v.Is('{'):
			p.r.Fail(at, "must be an object")
		case b.kind == "":
			p.r.Fail(at.Member("type"), "Field required")
		default:
			p.r.Fail(at.Member("type"), "a block of type %q is not supported here", cut(b.kind))
		}
		return b
	}
	p.r.Object(at, v, func(name string, v openai.Value) bool {
		switch name {
		case "type":
			return true
		case "cache_control":
			b.part.Cache = p.r.Raw(at, name, v)
			return true
		}
		return take(name, v)
	})
	p.checkBlock(at, &b)
	return b
}

// cut bounds what of the client's own words stands in an error.
func cut(s string) string {
	const most = 64
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}

// blockReader returns what reads the members of a block of that kind, nil for a kind that can't be carried.
func (p *parser) blockReader(at *openai.Path, b *block) func(name string, v openai.Value) bool {
	switch b.kind {
	case "text":
		b.part.Kind = execution.PartText
		return func(name string, v openai.Value) bool { return p.textMember(at, b, name, v) }
	case "thinking", "redacted_thinking":
		b.part.Kind = execution.PartReasoning
		return func(name string, v openai.Value) bool { return p.thoughtMember(at, b, name, v) }
	case "image":
		b.part.Kind = execution.PartImage
		return func(name string, v openai.Value) bool { return p.imageMember(at, b, name, v) }
	case "document":
		b.part.Kind = execution.PartFile
		return func(name string, v openai.Value) bool { return p.documentMember(at, b, name, v) }
	case "tool_use":
		return func(name string, v openai.Value) bool { return p.callMember(at, b, name, v) }
	case "tool_result":
		b.result.Role, b.from.content = execution.RoleTool, at
		return func(name string, v openai.Value) bool { return p.resultMember(at, b, name, v) }
	}
	return nil
}

// checkBlock looks at what a block of its kind must have.
func (p *parser) checkBlock(at *openai.Path, b *block) {
	part := &b.part
	switch b.kind {
	case "redacted_thinking":
		if part.Redacted == "" {
			p.r.Fail(at.Member("data"), "Field required")
		}
	case "image", "document":
		if part.Data == "" && part.URL == "" && part.FileID == "" {
			p.r.Fail(at.Member("source"), "Field required")
		}
	case "tool_use":
		switch {
		case b.call.ID == "":
			p.r.Fail(at.Member("id"), "Field required")
		case b.call.Name == "":
			p.r.Fail(at.Member("name"), "Field required")
		case b.call.Arguments == "":
			p.r.Fail(at.Member("input"), "Field required")
		}
	case "tool_result":
		if b.result.ToolCallID == "" {
			p.r.Fail(at.Member("tool_use_id"), "Field required")
		}
		if parts := b.result.Parts; part.Cache != nil && len(parts) > 0 {
			parts[len(parts)-1].Cache = part.Cache
		}
	}
}

func (p *parser) textMember(at *openai.Path, b *block, name string, v openai.Value) bool {
	switch name {
	case "text":
		b.part.Text = p.r.String(at, name, v)
	case "citations": // of a former answer; none was asked for here
		return v.Empty()
	default:
		return false
	}
	return true
}

func (p *parser) thoughtMember(at *openai.Path, b *block, name string, v openai.Value) bool {
	s := p.r.String(at, name, v)
	switch {
	case name == "data" && b.kind == "redacted_thinking":
		b.part.Redacted = s
	case name == "thinking" && b.kind == "thinking":
		b.part.Text = s
	case name == "signature" && b.kind == "thinking":
		b.part.Signature = s
	default:
		return false
	}
	return true
}

func (p *parser) imageMember(at *openai.Path, b *block, name string, v openai.Value) bool {
	switch name {
	case "source":
		p.source(at.Member(name), v, &b.part)
	case "transformations": // {} is what no word means
		return v.Empty()
	default:
		return false
	}
	return true
}

func (p *parser) documentMember(at *openai.Path, b *block, name string, v openai.Value) bool {
	switch name {
	case "source":
		p.source(at.Member(name), v, &b.part)
	case "title":
		b.part.Name = p.r.String(at, name, v)
	case "citations": // off is what no word means
		for _, v := range v.Members() {
			if !v.Empty() {
				return false
			}
		}
	default: // context among them
		return false
	}
	return true
}

// source reads where an image or a document is.
func (p *parser) source(at *openai.Path, v openai.Value, part *execution.Part) {
	var kind, data string
	p.r.Object(at, v, func(name string, v openai.Value) bool {
		s := p.r.String(at, name, v)
		switch name {
		case "type":
			kind = s
		case "data":
			data = s
		case "media_type":
			part.MediaType = s
		case "url":
			part.URL = s
		case "file_id":
			part.FileID = s
		default:
			return false
		}
		return true
	})
	need := func(member string, has bool) {
		if !has {
			p.r.Fail(at.Member(member), "Field required")
		}
	}
	switch kind {
	case "base64":
		need("data", data != "")
		need("media_type", part.MediaType != "")
		part.Data = data
	case "text":
		need("data", data != "")
		need("media_type", part.MediaType != "")
		part.Data = base64.StdEncoding.EncodeToString([]byte(data))
	case "url":
		need("url", part.URL != "")
	case "file":
		need("file_id", part.FileID != "")
	default:
		p.r.Fail(at.Member("type"), "a source of type %q is not supported here", cut(kind))
		return
	}
	if one := count(data != "", part.URL != "", part.FileID != ""); one != 1 || kind == "text" && part.Kind != execution.PartFile {
		p.r.Fail(at, "does not fit the type %q", kind)
	}
}

func count(these ...bool) (n int) {
	for _, b := range these {
		if b {
			n++
		}
	}
	return n
}

func (p *parser) callMember(at *openai.Path, b *block, name string, v openai.Value) bool {
	switch name {
	case "id":
		b.call.ID = p.r.String(at, name, v)
	case "name":
		b.call.Name = p.r.String(at, name, v)
	case "input":
		b.call.Arguments = string(p.r.Raw(at, name, v))
	case "caller": // the model itself, as every answer says
		return isDirect(v)
	default:
		return false
	}
	return true
}

// isDirect reports whether a caller is the model and not a tool of the provider's.
func isDirect(v openai.Value) bool {
	n := 0
	for name, v := range v.Members() {
		if name != "type" || v.Text() != "direct" {
			return false
		}
		n++
	}
	return n == 1
}

func (p *parser) resultMember(at *openai.Path, b *block, name string, v openai.Value) bool {
	switch name {
	case "tool_use_id":
		b.result.ToolCallID = p.r.String(at, name, v)
	case "is_error":
		b.result.ToolFailed = p.r.Bool(at, name, v)
	case "content":
		b.from.content = at.Member(name)
		if v.Is('"') {
			b.result.Parts = []execution.Part{{Kind: execution.PartText, Text: v.Text()}}
			return true
		}
		b.result.Parts, b.from.blocks = p.textAndMedia(b.from.content, v, "text", "image", "document")
	default:
		return false
	}
	return true
}
