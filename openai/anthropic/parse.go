package anthropic

import (
	"slices"

	"iop/execution"
	"iop/openai"
)

// Bounds of one request. A run's input has as many messages at most, and a part costs some hundred bytes beside its
// content, however little that is.
const (
	maxMessages = 10_000
	maxParts    = 100_000
	maxTools    = 1_024
	maxStops    = 1_024
	maxFlags    = 1_024
)

// notCarried are parameters of Messages that a normalized run can't carry, with the reason. What nobody knows is refused
// too, in fewer words.
var notCarried = map[string]string{
	"billing_policy":        "it concerns the account at the provider",
	"compaction":            "the client must shorten the conversation itself",
	"container":             "containers are not available",
	"context_management":    "the client must shorten the conversation itself",
	"diagnostics":           "the provider manages its own prompt cache",
	"fallback_credit_token": "it concerns the account at the provider",
	"fallbacks":             "the gateway's routes decide on fallbacks",
	"inference_geo":         "the gateway's routes decide where a request goes",
	"mcp_servers":           "tools run on the client",
	"user_profile_id":       "profiles are not available",
	"workspace_id":          "it concerns the account at the provider",
}

// ParseMessages reads the body of POST /v1/messages. The Request keeps nothing of it. An error has status 400 and names
// the parameter as the client wrote it.
func ParseMessages(body []byte) (*openai.Request, *openai.Error) {
	p, err := parse(body)
	if err != nil {
		return nil, err
	}
	switch n := p.in.Sampling.MaxTokens; {
	case n == nil:
		return nil, openai.InvalidRequest("max_tokens", "max_tokens: Field required")
	case *n < 1:
		return nil, openai.InvalidRequest("max_tokens", "max_tokens: must be at least 1")
	}
	return p.request(), nil
}

// ParseCountTokens reads the body of POST /v1/messages/count_tokens: as ParseMessages, but max_tokens may be missing.
func ParseCountTokens(body []byte) (*openai.Request, *openai.Error) {
	p, err := parse(body)
	if err != nil {
		return nil, err
	}
	return p.request(), nil
}

// root is the path of the request itself.
var root *openai.Path

// parser reads one request.
type parser struct {
	r  openai.RequestReader
	in *execution.Input

	system       []execution.Part
	systemSource source
	cache        []byte   // the request's own cache_control, or nil
	format       string   // the parameter that asked for a format, or empty
	omitted      bool     // thoughts are not to be shown
	sources      []source // of the input's messages
	parts        int
}

// source says where in the client's request a message of the input stood.
type source struct {
	content *openai.Path
	blocks  []int // which block of the content each part was; nil: the content was a string
}

func parse(body []byte) (*parser, *openai.Error) {
	if _, err := openai.ParseEnvelope(body); err != nil {
		return nil, asError(err)
	}
	p := &parser{in: &execution.Input{Version: execution.InputVersion}}
	p.r.Dots = true
	p.r.Object(root, body, p.member)
	if p.r.Err == nil {
		p.finish()
	}
	return p, p.r.Err
}

func asError(err error) *openai.Error {
	if e, ok := err.(*openai.Error); ok {
		return e
	}
	return openai.InvalidRequest("", err.Error())
}

// member reads one member of the request.
func (p *parser) member(name string, v openai.Value) bool {
	s := &p.in.Sampling
	switch name {
	case "model", "stream": // of the envelope
	case "max_tokens":
		s.MaxTokens = new(p.r.Int(root, name, v))
	case "messages":
		p.r.Array(root.Member(name), v, maxMessages, p.message)
	case "system":
		p.readSystem(v)
	case "temperature":
		s.Temperature = new(p.r.Float(root, name, v))
	case "top_p":
		s.TopP = new(p.r.Float(root, name, v))
	case "top_k":
		s.TopK = new(p.r.Int(root, name, v))
	case "stop_sequences":
		s.Stop = p.r.Strings(root, name, v, maxStops)
	case "metadata":
		p.metadata(root.Member(name), v)
	case "cache_control":
		p.cache = p.r.Raw(root, name, v)
	case "tools":
		p.r.Array(root.Member(name), v, maxTools, p.tool)
	case "tool_choice":
		p.toolChoice(root.Member(name), v)
	case "thinking":
		p.thinking(root.Member(name), v)
	case "output_config":
		p.outputConfig(root.Member(name), v)
	case "output_format":
		p.outputFormat(root.Member(name), v)
	default:
		return p.passOver(name, v)
	}
	return true
}

// passOver takes the parameters that have no effect on the answer, each for its own reason, and refuses the others.
func (p *parser) passOver(name string, v openai.Value) bool {
	switch name {
	case "session_id": // the gateway's own: a correlation, which the envelope has
		return true
	case "betas", "anthropic_beta": // flags that allow other parameters, which are looked at themselves
		p.r.Strings(root, name, v, maxFlags)
		return true
	case "service_tier": // "auto" is what no word means
		if p.r.String(root, name, v) != "auto" {
			p.r.Fail(root.Member(name), `only "auto" is supported here`)
		}
		return true
	case "speed":
		if p.r.String(root, name, v) != "standard" {
			p.r.Fail(root.Member(name), `only "standard" is supported here`)
		}
		return true
	case "thread":
		if p.r.Err == nil {
			p.r.Err = openai.ThreadUnsupported()
		}
		return true
	case "context_management":
		if keepsAll(v) {
			return true
		}
	}
	if why := notCarried[name]; why != "" {
		p.r.Fail(root.Member(name), "is not supported here: %s", why)
		return true
	}
	return false
}

// keepsAll reports whether context_management changes nothing: it has no edits but one that keeps all thoughts, which is
// what agents send.
func keepsAll(v openai.Value) bool {
	for name, edits := range v.Members() {
		if name != "edits" {
			return false
		}
		for _, edit := range edits.Elements() {
			var kind, keep string
			for name, v := range edit.Members() {
				switch name {
				case "type":
					kind = v.Text()
				case "keep":
					keep = v.Text()
				}
			}
			if kind != "clear_thinking_20251015" || keep != "all" {
				return false
			}
		}
	}
	return v.Is('{')
}

// metadata takes user_id, and what else is a string as the run's own metadata.
func (p *parser) metadata(at *openai.Path, v openai.Value) {
	p.r.Object(at, v, func(name string, v openai.Value) bool {
		s := p.r.String(at, name, v)
		if name == "user_id" {
			p.in.User = s
			return true
		}
		if p.in.Metadata == nil {
			p.in.Metadata = map[string]string{}
		}
		p.in.Metadata[name] = s
		return true
	})
}

// thinking reads how much the model is to think.
func (p *parser) thinking(at *openai.Path, v openai.Value) {
	var kind, display string
	var budget *int64
	p.r.Object(at, v, func(name string, v openai.Value) bool {
		switch name {
		case "type":
			kind = p.r.String(at, name, v)
		case "budget_tokens":
			budget = new(p.r.Int(at, name, v))
		case "display":
			display = p.r.String(at, name, v)
		default:
			return false
		}
		return true
	})
	reasoning := p.reasoning()
	switch kind {
	case "enabled":
		if budget == nil {
			p.r.Fail(at.Member("budget_tokens"), "Field required")
		}
		reasoning.Enabled, reasoning.Budget = new(true), budget
	case "adaptive":
		reasoning.Enabled = new(true)
	case "disabled":
		reasoning.Enabled = new(false)
	default:
		p.r.Fail(at.Member("type"), "must be enabled, adaptive or disabled")
	}
	if budget != nil && (kind != "enabled" || *budget < 1) {
		p.r.Fail(at.Member("budget_tokens"), "must be a positive number with the type enabled")
	}
	switch display {
	case "":
	case "summarized":
		reasoning.Summary = "auto"
	case "omitted":
		p.omitted = true
	default:
		p.r.Fail(at.Member("display"), "must be summarized or omitted")
	}
}

func (p *parser) reasoning() *execution.Reasoning {
	if p.in.Reasoning == nil {
		p.in.Reasoning = &execution.Reasoning{}
	}
	return p.in.Reasoning
}

func (p *parser) outputConfig(at *openai.Path, v openai.Value) {
	p.r.Object(at, v, func(name string, v openai.Value) bool {
		switch name {
		case "effort":
			p.effort(at, name, v)
		case "format":
			p.outputFormat(at.Member(name), v)
		default:
			return false
		}
		return true
	})
}

// effort reads output_config.effort. Its "max" is the most there is, which a run calls xhigh.
func (p *parser) effort(at *openai.Path, name string, v openai.Value) {
	effort := p.r.String(at, name, v)
	switch effort {
	case "low", "medium", "high", "xhigh":
	case "max":
		effort = "xhigh"
	default:
		p.r.Fail(at.Member(name), "must be low, medium, high, xhigh or max")
	}
	p.reasoning().Effort = effort
}

// outputFormat reads the form of the answer, which has an older and a newer place.
func (p *parser) outputFormat(at *openai.Path, v openai.Value) {
	if p.format != "" {
		p.r.Fail(at, "%s already sets a format", p.format)
	}
	p.format = p.r.Write(at)
	f := &execution.Format{Kind: execution.FormatJSONSchema}
	var kind string
	p.r.Object(at, v, func(name string, v openai.Value) bool {
		switch name {
		case "type":
			kind = p.r.String(at, name, v)
		case "schema":
			f.Schema = p.r.Raw(at, name, v)
		default:
			return false
		}
		return true
	})
	switch {
	case kind != "json_schema":
		p.r.Fail(at.Member("type"), "must be json_schema")
	case f.Schema == nil:
		p.r.Fail(at.Member("schema"), "Field required")
	}
	p.in.Format = f
}

// finish puts the input together and looks at what only the whole tells.
func (p *parser) finish() {
	in := p.in
	if len(in.Messages) == 0 {
		p.r.Fail(root.Member("messages"), "at least one message is required")
		return
	}
	if p.system != nil {
		in.Messages = slices.Insert(in.Messages, 0, execution.Message{Role: execution.RoleSystem, Parts: p.system})
		p.sources = slices.Insert(p.sources, 0, p.systemSource)
	}
	if c := in.ToolChoice; c != nil && c.Mode == execution.ToolsNamed {
		if !slices.ContainsFunc(in.Tools, func(t execution.Tool) bool { return t.Name == c.Name }) {
			p.r.Fail(root.Member("tool_choice").Member("name"), "no tool has this name")
		}
	}
	if parts := in.Messages[len(in.Messages)-1].Parts; p.cache != nil && len(parts) > 0 {
		if last := &parts[len(parts)-1]; last.Cache == nil {
			last.Cache = p.cache
		}
	}
}

// request makes the Request of what was read.
func (p *parser) request() *openai.Request {
	names := names{format: p.format, sources: p.sources}
	omitted := p.omitted
	return &openai.Request{
		Input: p.in, Param: names.param,
		Render: func(spec openai.RenderSpec) openai.Renderer { return newRenderer(spec, omitted) },
	}
}
