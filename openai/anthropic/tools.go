package anthropic

import (
	"iop/execution"
	"iop/openai"
)

// tool reads one tool. Only those that run at the client can be carried.
func (p *parser) tool(at *openai.Path, v openai.Value) {
	t := execution.Tool{}
	for name, v := range v.Members() {
		if kind := v.Text(); name == "type" && kind != "custom" && !v.Absent() {
			p.r.Fail(at.Member(name), "a tool of type %q is not supported, only tools that the client defines", cut(kind))
			return
		}
	}
	p.r.Object(at, v, func(name string, v openai.Value) bool {
		switch name {
		case "type":
		case "name":
			t.Name = p.r.String(at, name, v)
		case "description":
			t.Description = p.r.String(at, name, v)
		case "input_schema":
			t.Parameters = p.r.Raw(at, name, v)
		case "strict":
			t.Strict = new(p.r.Bool(at, name, v))
		case "cache_control":
			t.Cache = p.r.Raw(at, name, v)
		case "eager_input_streaming": // how finely a call is streamed, not what is in it
			p.r.Bool(at, name, v)
		case "defer_loading", "input_examples":
			return v.Empty()
		case "allowed_callers":
			return onlyDirect(v)
		default:
			return false
		}
		return true
	})
	switch {
	case t.Name == "":
		p.r.Fail(at.Member("name"), "Field required")
	case t.Parameters == nil:
		p.r.Fail(at.Member("input_schema"), "Field required")
	}
	p.in.Tools = append(p.in.Tools, t)
}

// onlyDirect reports whether allowed_callers names the model and nobody else, which is what no word means.
func onlyDirect(v openai.Value) bool {
	for _, caller := range v.Elements() {
		if caller.Text() != "direct" {
			return false
		}
	}
	return v.Is('[')
}

// toolChoice reads whether and which tools are to be called.
func (p *parser) toolChoice(at *openai.Path, v openai.Value) {
	c := &execution.ToolChoice{}
	var kind string
	p.r.Object(at, v, func(name string, v openai.Value) bool {
		switch name {
		case "type":
			kind = p.r.String(at, name, v)
		case "name":
			c.Name = p.r.String(at, name, v)
		case "disable_parallel_tool_use":
			if p.r.Bool(at, name, v) { // false is what no word means
				p.in.ParallelToolCalls = new(false)
			}
		default:
			return false
		}
		return true
	})
	switch kind {
	case "auto":
		c.Mode = execution.ToolsAuto
	case "any":
		c.Mode = execution.ToolsRequired
	case "none":
		c.Mode = execution.ToolsNone
	case "tool":
		c.Mode = execution.ToolsNamed
	default:
		p.r.Fail(at.Member("type"), "must be auto, any, tool or none")
	}
	if (kind == "tool") != (c.Name != "") {
		p.r.Fail(at.Member("name"), "is required with the type tool, and only allowed there")
	}
	p.in.ToolChoice = c
}
