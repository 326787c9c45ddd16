package anthropic

import (
	"encoding/json"
	"strings"

	"iop/execution"
	"iop/nodeagent/adapter"
)

// version is the protocol's, which must be named in each request.
const version = "2023-06-01"

// The bounds of an answer whose client gave none. The protocol demands one, and refuses a greater one than the model has; an
// answer that reaches it ends with the reason length, as at any other bound.
const (
	defaultMaxTokens = 32_000 // the least that models since Claude 4 can do
	formerMaxTokens  = 8_192  // the least of those before
)

// leastThinking is the least budget that the protocol takes.
const leastThinking = 1024

// request is the body of POST /v1/messages.
type request struct {
	Model         string        `json:"model"`
	MaxTokens     int64         `json:"max_tokens"`
	System        []block       `json:"system,omitempty"`
	Messages      []message     `json:"messages"`
	Stream        bool          `json:"stream"`
	Tools         []tool        `json:"tools,omitempty"`
	ToolChoice    *toolChoice   `json:"tool_choice,omitempty"`
	Thinking      *thinking     `json:"thinking,omitempty"`
	OutputConfig  *outputConfig `json:"output_config,omitempty"`
	StopSequences []string      `json:"stop_sequences,omitempty"`
	Temperature   *float64      `json:"temperature,omitempty"`
	TopP          *float64      `json:"top_p,omitempty"`
	TopK          *int64        `json:"top_k,omitempty"`
	Metadata      *metadata     `json:"metadata,omitempty"`

	ServiceTier       json.RawMessage `json:"service_tier,omitempty"`
	ContextManagement json.RawMessage `json:"context_management,omitempty"`
	CacheControl      json.RawMessage `json:"cache_control,omitempty"`
}

type tool struct {
	Name         string          `json:"name"`
	Description  string          `json:"description,omitempty"`
	InputSchema  json.RawMessage `json:"input_schema"`
	Strict       *bool           `json:"strict,omitempty"`
	CacheControl json.RawMessage `json:"cache_control,omitempty"`
}

// noParameters is the schema of a function without any: the protocol demands one.
var noParameters = json.RawMessage(`{"type":"object"}`)

type toolChoice struct {
	Type            string `json:"type"`
	Name            string `json:"name,omitempty"`
	DisableParallel bool   `json:"disable_parallel_tool_use,omitempty"`
}

type thinking struct {
	Type   string `json:"type"`
	Budget int64  `json:"budget_tokens,omitempty"`
}

type outputConfig struct {
	Format outputFormat `json:"format"`
}

type outputFormat struct {
	Type   string          `json:"type"`
	Schema json.RawMessage `json:"schema"`
}

type metadata struct {
	UserID string `json:"user_id"`
}

func knownMember(name string) bool {
	switch name {
	case "service_tier", "context_management", "cache_control":
		return true
	}
	return false
}

// Request implements adapter.Adapter.
func (protocol) Request(in *execution.Input, spec adapter.Spec) (*adapter.Request, error) {
	extension, refusal := adapter.Extension(in, Name, knownMember)
	if refusal != nil {
		return nil, refusal
	}
	r := &request{
		Model: spec.Model, Stream: true,
		ServiceTier: extension["service_tier"], ContextManagement: extension["context_management"], CacheControl: extension["cache_control"],
	}
	if in.User != "" {
		r.Metadata = &metadata{in.User}
	} else if id := in.Metadata["user_id"]; id != "" {
		r.Metadata = &metadata{id}
	}
	for _, step := range []func() *execution.UnsupportedError{
		func() *execution.UnsupportedError { return r.sampling(&in.Sampling) },
		func() *execution.UnsupportedError { return r.think(in) },
		func() *execution.UnsupportedError { return r.format(in.Format) },
		func() *execution.UnsupportedError { return r.messages(in.Messages) },
	} {
		if refusal := step(); refusal != nil {
			return nil, refusal
		}
	}
	r.tools(in)
	body, refusal := adapter.Encode(r)
	if refusal != nil {
		return nil, refusal
	}
	return &adapter.Request{Operation: "messages", Body: body, Header: [][2]string{{"Anthropic-Version", version}}}, nil
}

func (r *request) sampling(s *execution.Sampling) *execution.UnsupportedError {
	for _, p := range []struct {
		param execution.Param
		asked bool
	}{
		{execution.ParamMinP, adapter.Asks(s.MinP, 0)},
		{execution.ParamSeed, s.Seed != nil},
		{execution.ParamFrequencyPenalty, adapter.Asks(s.FrequencyPenalty, 0)},
		{execution.ParamPresencePenalty, adapter.Asks(s.PresencePenalty, 0)},
		{execution.ParamRepeatPenalty, adapter.Asks(s.RepeatPenalty, 1)},
		{execution.ParamChoices, s.Choices > 1},
		{execution.ParamLogprobs, s.Logprobs},
		{execution.ParamTopLogprobs, s.TopLogprobs != nil && *s.TopLogprobs > 0},
		{execution.ParamLogitBias, len(s.LogitBias) > 0},
	} {
		if p.asked {
			return adapter.Refuse(p.param, "Anthropic's Messages API does not have this parameter.")
		}
	}
	r.StopSequences, r.Temperature, r.TopP, r.TopK = s.Stop, s.Temperature, s.TopP, s.TopK
	r.MaxTokens = maxTokens(s.MaxTokens, r.Model)
	return nil
}

func maxTokens(given *int64, model string) int64 {
	switch {
	case given != nil:
		return *given
	case strings.Contains(model, "claude-3"), strings.Contains(model, "claude-2"):
		return formerMaxTokens
	}
	return defaultMaxTokens
}

// think says how much the model may think. The protocol knows tokens: an effort becomes a budget that leaves a quarter of
// the answer's bound for the answer itself. A budget of the client's own goes on as it is.
func (r *request) think(in *execution.Input) *execution.UnsupportedError {
	effort := adapter.EffortOf(in.Reasoning)
	switch {
	case effort == "":
		return nil
	case effort == "none":
		r.Thinking = &thinking{Type: "disabled"}
		return nil
	case in.Reasoning.Budget != nil:
		r.Thinking = &thinking{"enabled", *in.Reasoning.Budget}
		if in.Sampling.MaxTokens == nil { // the bound is ours, and counts the thoughts, too
			r.MaxTokens = max(r.MaxTokens, *in.Reasoning.Budget+formerMaxTokens)
		}
		return nil
	}
	budget, ok := adapter.BudgetOf(effort)
	if !ok {
		return adapter.Refuse(execution.ParamReasoningEffort, "The effort must be none, minimal, low, medium, high or xhigh.")
	}
	if budget = min(budget, r.MaxTokens/4*3); budget < leastThinking {
		return adapter.Refuse(execution.ParamReasoningEffort, "The limit of output tokens leaves no room for the 1,024 that Anthropic's models need for thinking.")
	}
	r.Thinking = &thinking{"enabled", budget}
	return nil
}

func (r *request) format(f *execution.Format) *execution.UnsupportedError {
	switch {
	case f == nil || f.Kind == execution.FormatText:
		return nil
	case f.Kind == execution.FormatJSONSchema && len(f.Schema) > 0:
		r.OutputConfig = &outputConfig{outputFormat{"json_schema", f.Schema}}
		return nil
	}
	return adapter.Refuse(execution.ParamResponseFormat, "Anthropic's Messages API answers in JSON only with a schema.")
}

func (r *request) tools(in *execution.Input) {
	for _, t := range in.Tools {
		schema := t.Parameters
		if len(schema) == 0 {
			schema = noParameters
		}
		r.Tools = append(r.Tools, tool{t.Name, t.Description, schema, t.Strict, t.Cache})
	}
	c := in.ToolChoice
	single := in.ParallelToolCalls != nil && !*in.ParallelToolCalls && len(in.Tools) > 0
	switch {
	case c == nil && single, c != nil && c.Mode == execution.ToolsAuto:
		r.ToolChoice = &toolChoice{Type: "auto", DisableParallel: single}
	case c == nil:
	case c.Mode == execution.ToolsNone:
		r.ToolChoice = &toolChoice{Type: "none"}
	case c.Mode == execution.ToolsRequired:
		r.ToolChoice = &toolChoice{Type: "any", DisableParallel: single}
	default:
		r.ToolChoice = &toolChoice{"tool", c.Name, single}
	}
}
