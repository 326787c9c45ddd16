package ollama

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"iop/execution"
	"iop/openai"
)

// Bounds of one request.
const (
	maxMessages = 10_000
	maxTools    = 1_024
	maxCalls    = execution.MaxToolCalls // of one message
	maxImages   = 1_024                  // of one message
	maxStops    = 1_024
)

// extension is the name under which what only an Ollama understands travels. An option is a member of its own in it,
// with the name by which clients know it: options.num_ctx.
const extension = "ollama"

// root is the path of the request itself.
var root *openai.Path

// parser reads one request.
type parser struct {
	r     openai.RequestReader
	in    *execution.Input
	calls []pending // of the last assistant's message that are not answered yet
}

// pending is a call that waits for its result.
type pending struct{ id, name string }

func newParser(body []byte) (*parser, *openai.Error) {
	if _, err := openai.ParseEnvelope(body); err != nil {
		return nil, asError(err)
	}
	return &parser{in: &execution.Input{Version: execution.InputVersion}}, nil
}

func asError(err error) *openai.Error {
	if e, ok := err.(*openai.Error); ok {
		return e
	}
	return openai.InvalidRequest("", err.Error())
}

// ParseChat reads the body of POST /api/chat. The Request keeps nothing of it. An error has status 400 and names the
// member as the client wrote it.
func ParseChat(body []byte) (*openai.Request, *openai.Error) {
	p, err := newParser(body)
	if err != nil {
		return nil, err
	}
	p.r.Object(root, body, p.chatMember)
	if len(p.in.Messages) == 0 {
		p.r.Fail(root.Member("messages"), "must not be empty; only Ollama itself can load or unload a model this way")
	}
	return p.request(false)
}

// ParseGenerate reads the body of POST /api/generate, as ParseChat does.
func ParseGenerate(body []byte) (*openai.Request, *openai.Error) {
	p, err := newParser(body)
	if err != nil {
		return nil, err
	}
	g := generation{p: p}
	p.r.Object(root, body, g.member)
	if g.prompt == "" {
		p.r.Fail(root.Member("prompt"), "must not be empty; only Ollama itself can load or unload a model this way")
	}
	if g.system != "" {
		p.in.Messages = append(p.in.Messages, execution.Message{Role: execution.RoleSystem, Parts: []execution.Part{text(g.system)}})
	}
	p.in.Messages = append(p.in.Messages, execution.Message{Role: execution.RoleUser, Parts: append([]execution.Part{text(g.prompt)}, g.images...)})
	return p.request(true)
}

func text(s string) execution.Part { return execution.Part{Kind: execution.PartText, Text: s} }

// request makes the Request of what was read.
func (p *parser) request(generate bool) (*openai.Request, *openai.Error) {
	if p.r.Err != nil {
		return nil, p.r.Err
	}
	names := names{generate: generate, messages: p.in.Messages}
	return &openai.Request{
		Input: p.in, Param: names.param,
		Render: func(spec openai.RenderSpec) openai.Renderer { return newRenderer(spec, generate) },
	}, nil
}

func (p *parser) chatMember(name string, v openai.Value) bool {
	switch name {
	case "messages":
		p.r.Array(root.Member(name), v, maxMessages, p.message)
	case "tools":
		p.r.Array(root.Member(name), v, maxTools, p.tool)
	default:
		return p.common(name, v)
	}
	return true
}

// generation is what a request to generate has and a chat has not.
type generation struct {
	p              *parser
	prompt, system string
	images         []execution.Part
}

func (g *generation) member(name string, v openai.Value) bool {
	r := &g.p.r
	switch name {
	case "prompt":
		g.prompt = r.String(root, name, v)
	case "system":
		g.system = r.String(root, name, v)
	case "images":
		g.images = g.p.images(root.Member(name), v)
	case "suffix", "template", "context", "raw", "width", "height", "steps": // what clients send for "nothing" is nothing
		return v.Empty()
	default:
		return g.p.common(name, v)
	}
	return true
}

// common reads what both requests have.
func (p *parser) common(name string, v openai.Value) bool {
	s := &p.in.Sampling
	switch name {
	case "model", "stream", "session_id": // of the envelope; the last is the gateway's own
	case "format":
		p.format(v)
	case "think":
		p.think(v)
	case "options":
		at := root.Member(name)
		p.r.Object(at, v, func(name string, v openai.Value) bool { return p.option(at, name, v) })
	case "keep_alive":
		p.keepAlive(name, v)
	case "logprobs":
		s.Logprobs = p.r.Bool(root, name, v)
	case "top_logprobs":
		if n := p.r.Int(root, name, v); n != 0 {
			s.TopLogprobs = &n
		}
		if n := s.TopLogprobs; n != nil && (*n < 0 || *n > 20) {
			p.r.Fail(root.Member(name), "must be 0 to 20")
		}
	case "truncate", "shift": // true is what no word means
		if !p.r.Bool(root, name, v) {
			p.extend(name, v)
		}
	case "_debug_render_only":
		return v.Empty()
	default:
		return false
	}
	return true
}

// extend keeps what only an Ollama understands.
func (p *parser) extend(name string, v openai.Value) {
	if p.in.Extensions == nil {
		p.in.Extensions = map[string]execution.Extension{extension: {}}
	}
	p.in.Extensions[extension][name] = slices.Clone([]byte(v))
}

// format reads the form of the answer: "json", or a JSON Schema.
func (p *parser) format(v openai.Value) {
	switch {
	case v.Is('{'):
		p.in.Format = &execution.Format{Kind: execution.FormatJSONSchema, Schema: slices.Clone([]byte(v))}
	case v.Is('"') && v.Text() == "json":
		p.in.Format = &execution.Format{Kind: execution.FormatJSON}
	case v.Is('"') && v.Text() == "":
	default:
		p.r.Fail(root.Member("format"), `must be "json" or a JSON Schema`)
	}
}

func (p *parser) think(v openai.Value) {
	if on, ok := v.Bool(); ok {
		p.in.Reasoning = &execution.Reasoning{Enabled: &on}
		return
	}
	switch level := v.Text(); level {
	case "low", "medium", "high":
		p.in.Reasoning = &execution.Reasoning{Effort: level}
	default:
		p.r.Fail(root.Member("think"), "must be true, false, low, medium or high")
	}
}

// keepAlive reads how long the model is to stay in memory: seconds, or a duration such as 5m.
func (p *parser) keepAlive(name string, v openai.Value) {
	if _, ok := v.Float(); !ok {
		if _, err := time.ParseDuration(v.Text()); err != nil {
			p.r.Fail(root.Member(name), "must be a number of seconds, or a duration such as 5m")
		}
	}
	p.extend(name, v)
}

// enginesOptions are the options that only an Ollama understands: how it loads the model and how it runs it, among them
// those of former versions.
var enginesOptions = []string{
	"embedding_only", "f16_kv", "logits_all", "low_vram", "main_gpu", "mirostat", "mirostat_eta", "mirostat_tau", "num_batch",
	"num_ctx", "num_gpu", "num_keep", "num_thread", "numa", "penalize_newline", "repeat_last_n", "tfs_z", "typical_p",
	"use_mlock", "use_mmap", "vocab_only",
}

// option reads one option.
func (p *parser) option(at *openai.Path, name string, v openai.Value) bool {
	s := &p.in.Sampling
	number := func() *float64 { return new(p.r.Float(at, name, v)) }
	switch name {
	case "num_predict":
		if n := p.r.Int(at, name, v); n > 0 { // others mean no bound but the context
			s.MaxTokens = &n
		}
	case "temperature":
		s.Temperature = number()
	case "top_k":
		s.TopK = new(p.r.Int(at, name, v))
	case "top_p":
		s.TopP = number()
	case "min_p":
		s.MinP = number()
	case "seed":
		if n := p.r.Int(at, name, v); n != -1 { // -1 means any
			s.Seed = &n
		}
	case "stop":
		s.Stop = p.r.Strings(at, name, v, maxStops)
	case "repeat_penalty":
		s.RepeatPenalty = number()
	case "presence_penalty":
		s.PresencePenalty = number()
	case "frequency_penalty":
		s.FrequencyPenalty = number()
	default:
		if !slices.Contains(enginesOptions, name) {
			return false
		}
		p.extend("options."+name, v)
	}
	return true
}

// ParseLoad reports whether the body of a request to chat or to generate asks for no answer but for the model to be
// loaded, or unloaded. It looks at nothing else: of a body that is no such request ok is false.
func ParseLoad(body []byte, generate bool) (unload, ok bool) {
	wanted := "messages"
	if generate {
		wanted = "prompt"
	}
	for name, v := range openai.Value(body).Members() {
		switch name {
		case wanted:
			if !v.Empty() {
				return false, false
			}
		case "keep_alive":
			d, err := time.ParseDuration(v.Text())
			f, number := v.Float()
			unload = number && f == 0 || err == nil && d == 0
		}
	}
	return unload, openai.Value(body).Is('{')
}

// names says in the client's words what an error of a run is about.
type names struct {
	generate bool
	messages []execution.Message // of the input, which are the client's one to one in a chat
}

func (n names) param(param execution.Param) string {
	switch param {
	case execution.ParamMaxTokens:
		return "options.num_predict"
	case execution.ParamTemperature, execution.ParamTopP, execution.ParamTopK, execution.ParamMinP, execution.ParamSeed, execution.ParamStop,
		execution.ParamFrequencyPenalty, execution.ParamPresencePenalty, execution.ParamRepeatPenalty:
		return "options." + string(param)
	case execution.ParamResponseFormat:
		return "format"
	case execution.ParamReasoningEffort, execution.ParamReasoningBudget:
		return "think"
	case execution.ParamMessages:
		if n.generate {
			return "prompt"
		}
	}
	message, part := 0, 0
	if read, _ := fmt.Sscanf(string(param), "messages[%d].content[%d]", &message, &part); read < 2 || message < 0 || message >= len(n.messages) {
		return string(param)
	}
	return n.part(message, part)
}

// part names a part of a message: its text, its thoughts or one of its images.
func (n names) part(message, part int) string {
	m := &n.messages[message]
	if part < 0 || part >= len(m.Parts) {
		return fmt.Sprintf("messages[%d]", message)
	}
	images := 0
	for _, p := range m.Parts[:part] {
		if p.Kind == execution.PartImage {
			images++
		}
	}
	name := "content"
	switch m.Parts[part].Kind {
	case execution.PartImage:
		name = fmt.Sprintf("images[%d]", images)
	case execution.PartReasoning:
		name = "thinking"
	}
	switch {
	case !n.generate:
		return fmt.Sprintf("messages[%d].%s", message, name)
	case m.Role == execution.RoleSystem:
		return "system"
	}
	return strings.Replace(name, "content", "prompt", 1)
}
