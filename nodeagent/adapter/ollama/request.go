package ollama

import (
	"encoding/json"
	"strings"

	"iop/execution"
	"iop/nodeagent/adapter"
)

// request is the body of POST /api/chat.
type request struct {
	Model       string                     `json:"model"`
	Messages    []message                  `json:"messages"`
	Tools       []tool                     `json:"tools,omitempty"`
	Stream      bool                       `json:"stream"`
	Format      json.RawMessage            `json:"format,omitempty"`
	Think       json.RawMessage            `json:"think,omitempty"`
	Options     map[string]json.RawMessage `json:"options,omitempty"`
	KeepAlive   json.RawMessage            `json:"keep_alive,omitempty"`
	Truncate    json.RawMessage            `json:"truncate,omitempty"`
	Shift       json.RawMessage            `json:"shift,omitempty"`
	Logprobs    bool                       `json:"logprobs,omitempty"`
	TopLogprobs *int64                     `json:"top_logprobs,omitempty"`
}

type tool struct {
	Type     string   `json:"type"`
	Function function `json:"function"`
}

type function struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters"`
}

// noParameters is the schema of a function without any: Ollama's templates want one.
var noParameters = json.RawMessage(`{"type":"object","properties":{}}`)

// optionPrefix stands before an option that is a member of the extension by itself.
const optionPrefix = "options."

func knownMember(name string) bool {
	switch name {
	case "keep_alive", "options", "think", "truncate", "shift":
		return true
	}
	return len(name) > len(optionPrefix) && strings.HasPrefix(name, optionPrefix)
}

// Request implements adapter.Adapter.
func (protocol) Request(in *execution.Input, spec adapter.Spec) (*adapter.Request, error) {
	extension, refusal := adapter.Extension(in, Name, knownMember)
	if refusal != nil {
		return nil, refusal
	}
	r := &request{Model: spec.Model, Stream: true, Options: map[string]json.RawMessage{}}
	r.KeepAlive, r.Truncate, r.Shift = extension["keep_alive"], extension["truncate"], extension["shift"]
	for _, step := range []func() *execution.UnsupportedError{
		func() *execution.UnsupportedError { return r.extension(extension) },
		func() *execution.UnsupportedError { return r.sampling(&in.Sampling) },
		func() *execution.UnsupportedError { return r.tools(in) },
		func() *execution.UnsupportedError { return r.think(in.Reasoning, extension["think"], spec.Model) },
		func() *execution.UnsupportedError { return r.messages(in.Messages) },
	} {
		if refusal := step(); refusal != nil {
			return nil, refusal
		}
	}
	r.format(in.Format)
	body, refusal := adapter.Encode(r)
	if refusal != nil {
		return nil, refusal
	}
	return &adapter.Request{Operation: "ollama.chat", Body: body}, nil
}

// extension takes the options of the client's: any, because Ollama's are the engine's and change with it. It says itself
// which it does not know.
func (r *request) extension(e execution.Extension) *execution.UnsupportedError {
	if options := e["options"]; len(options) > 0 {
		if json.Unmarshal(options, &r.Options) != nil {
			return adapter.Refuse("options", "The options must be an object.")
		}
		if r.Options == nil { // null
			r.Options = map[string]json.RawMessage{}
		}
	}
	for name, value := range e {
		if option, ok := strings.CutPrefix(name, optionPrefix); ok {
			r.Options[option] = value
		}
	}
	return nil
}

func (r *request) sampling(s *execution.Sampling) *execution.UnsupportedError {
	switch {
	case s.Choices > 1:
		return adapter.Refuse(execution.ParamChoices, "Ollama gives only one answer per request.")
	case len(s.LogitBias) > 0:
		return adapter.Refuse(execution.ParamLogitBias, "Ollama does not have this parameter.")
	}
	r.Logprobs, r.TopLogprobs = s.Logprobs, s.TopLogprobs
	for _, o := range []struct {
		name  string
		value any
		given bool
	}{
		{"num_predict", s.MaxTokens, s.MaxTokens != nil},
		{"temperature", s.Temperature, s.Temperature != nil},
		{"top_p", s.TopP, s.TopP != nil},
		{"top_k", s.TopK, s.TopK != nil},
		{"min_p", s.MinP, s.MinP != nil},
		{"seed", s.Seed, s.Seed != nil},
		{"stop", s.Stop, len(s.Stop) > 0},
		{"frequency_penalty", s.FrequencyPenalty, s.FrequencyPenalty != nil},
		{"presence_penalty", s.PresencePenalty, s.PresencePenalty != nil},
		{"repeat_penalty", s.RepeatPenalty, s.RepeatPenalty != nil},
	} {
		if !o.given {
			continue
		}
		value, err := json.Marshal(o.value)
		if err != nil {
			return adapter.Refuse(execution.Param(o.name), "The value can't be written as JSON.")
		}
		r.Options[o.name] = value
	}
	return nil
}

// tools offers the tools. Whether one is called is up to the model: Ollama has no way to demand or to forbid that, but for
// offering none.
func (r *request) tools(in *execution.Input) *execution.UnsupportedError {
	if c := in.ToolChoice; c != nil {
		switch c.Mode {
		case execution.ToolsAuto:
		case execution.ToolsNone:
			return nil
		default:
			return adapter.Refuse(execution.ParamToolChoice, "Ollama lets the model decide whether to call a tool: only auto and none are supported.")
		}
	}
	if p := in.ParallelToolCalls; p != nil && !*p && len(in.Tools) > 0 {
		return adapter.Refuse(execution.ParamParallelToolCalls, "Ollama can't keep the model from calling several tools.")
	}
	for _, t := range in.Tools {
		f := function{t.Name, t.Description, t.Parameters}
		if len(f.Parameters) == 0 {
			f.Parameters = noParameters
		}
		r.Tools = append(r.Tools, tool{"function", f})
	}
	return nil
}

// think says how much the model is to think. Most models can only be told whether; those of the gpt-oss family know three
// levels, and other models refuse these.
func (r *request) think(in *execution.Reasoning, own json.RawMessage, model string) *execution.UnsupportedError {
	effort := adapter.EffortOf(in)
	if effort == "" {
		r.Think = own
		return nil
	}
	if _, ok := adapter.BudgetOf(effort); !ok {
		return adapter.Refuse(execution.ParamReasoningEffort, "The effort must be none, minimal, low, medium, high or xhigh.")
	}
	switch {
	case effort == "none":
		r.Think = json.RawMessage("false")
	case !strings.Contains(strings.ToLower(model), "gpt-oss"):
		r.Think = json.RawMessage("true")
	case effort == "minimal":
		r.Think = json.RawMessage(`"low"`)
	case effort == "xhigh":
		r.Think = json.RawMessage(`"high"`)
	default:
		r.Think = json.RawMessage(`"` + effort + `"`)
	}
	return nil
}

func (r *request) format(f *execution.Format) {
	switch {
	case f == nil || f.Kind == execution.FormatText:
	case f.Kind == execution.FormatJSONSchema && len(f.Schema) > 0:
		r.Format = f.Schema
	default:
		r.Format = json.RawMessage(`"json"`)
	}
}
