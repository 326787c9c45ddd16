package openai

import (
	"encoding/json"

	"iop/execution"
	"iop/nodeagent/adapter"
)

// request is the body of POST /v1/chat/completions.
type request struct {
	Model               string             `json:"model"`
	Messages            []message          `json:"messages"`
	Stream              bool               `json:"stream"`
	StreamOptions       *streamOptions     `json:"stream_options,omitempty"`
	Tools               []tool             `json:"tools,omitempty"`
	ToolChoice          any                `json:"tool_choice,omitempty"`
	ParallelToolCalls   *bool              `json:"parallel_tool_calls,omitempty"`
	ResponseFormat      *responseFormat    `json:"response_format,omitempty"`
	MaxTokens           *int64             `json:"max_tokens,omitempty"`
	MaxCompletionTokens *int64             `json:"max_completion_tokens,omitempty"`
	Temperature         *float64           `json:"temperature,omitempty"`
	TopP                *float64           `json:"top_p,omitempty"`
	TopK                *int64             `json:"top_k,omitempty"`
	MinP                *float64           `json:"min_p,omitempty"`
	Seed                *int64             `json:"seed,omitempty"`
	Stop                []string           `json:"stop,omitempty"`
	FrequencyPenalty    *float64           `json:"frequency_penalty,omitempty"`
	PresencePenalty     *float64           `json:"presence_penalty,omitempty"`
	RepeatPenalty       *float64           `json:"repeat_penalty,omitempty"`     // llama.cpp's name
	RepetitionPenalty   *float64           `json:"repetition_penalty,omitempty"` // vLLM's and SGLang's
	N                   int                `json:"n,omitempty"`
	Logprobs            bool               `json:"logprobs,omitempty"`
	TopLogprobs         *int64             `json:"top_logprobs,omitempty"`
	LogitBias           map[string]float64 `json:"logit_bias,omitempty"`
	ReasoningEffort     string             `json:"reasoning_effort,omitempty"`
	Metadata            map[string]string  `json:"metadata,omitempty"`
	User                string             `json:"user,omitempty"`

	ServiceTier        json.RawMessage `json:"service_tier,omitempty"`
	Verbosity          json.RawMessage `json:"verbosity,omitempty"`
	Prediction         json.RawMessage `json:"prediction,omitempty"`
	PromptCacheKey     json.RawMessage `json:"prompt_cache_key,omitempty"`
	SafetyIdentifier   json.RawMessage `json:"safety_identifier,omitempty"`
	ChatTemplateKwargs json.RawMessage `json:"chat_template_kwargs,omitempty"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

type tool struct {
	Type     string   `json:"type"`
	Function function `json:"function"`
}

type function struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"`
	Strict      *bool           `json:"strict,omitempty"`
}

type responseFormat struct {
	Type   string      `json:"type"`
	Schema *jsonSchema `json:"json_schema,omitempty"`
}

type jsonSchema struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"schema,omitempty"`
	Strict      *bool           `json:"strict,omitempty"`
}

// extension puts the members of the input's extension where they belong. What is not here is refused.
func (r *request) extension(e execution.Extension) {
	r.ServiceTier, r.Verbosity, r.Prediction = e["service_tier"], e["verbosity"], e["prediction"]
	r.PromptCacheKey, r.SafetyIdentifier = e["prompt_cache_key"], e["safety_identifier"]
	r.ChatTemplateKwargs = e["chat_template_kwargs"]
}

func knownMember(name string) bool {
	switch name {
	case "service_tier", "verbosity", "prediction", "prompt_cache_key", "safety_identifier", "chat_template_kwargs":
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
		Model: spec.Model, Stream: true, ParallelToolCalls: in.ParallelToolCalls, User: in.User,
		ReasoningEffort: adapter.EffortOf(in.Reasoning),
	}
	if !spec.WithoutUsage {
		r.StreamOptions = &streamOptions{IncludeUsage: true}
	}
	if !spec.Hosted { // OpenAI keeps metadata with stored answers only, and refuses it otherwise: nothing is stored here
		r.Metadata = in.Metadata
	}
	r.extension(extension)
	if refusal := r.sampling(&in.Sampling, spec); refusal != nil {
		return nil, refusal
	}
	r.tools(in)
	r.format(in.Format)
	if refusal := r.messages(in.Messages, spec); refusal != nil {
		return nil, refusal
	}
	body, refusal := adapter.Encode(r)
	if refusal != nil {
		return nil, refusal
	}
	return &adapter.Request{Operation: "chat.completions", Body: body}, nil
}

// sampling says how tokens are chosen. The bound of tokens is max_tokens: every engine knows it, old ones know nothing
// else and would write on without a bound. OpenAI's own service replaced it by max_completion_tokens, which its newer
// models demand. What engines have added is left to them.
func (r *request) sampling(s *execution.Sampling, spec adapter.Spec) *execution.UnsupportedError {
	if spec.Hosted {
		switch {
		case s.TopK != nil:
			return unknownToOpenAI(execution.ParamTopK)
		case adapter.Asks(s.MinP, 0):
			return unknownToOpenAI(execution.ParamMinP)
		case adapter.Asks(s.RepeatPenalty, 1):
			return unknownToOpenAI(execution.ParamRepeatPenalty)
		}
		r.MaxCompletionTokens = s.MaxTokens
	} else {
		r.MaxTokens, r.TopK, r.MinP = s.MaxTokens, s.TopK, s.MinP
		r.RepeatPenalty, r.RepetitionPenalty = s.RepeatPenalty, s.RepeatPenalty
	}
	r.Temperature, r.TopP, r.Seed, r.Stop = s.Temperature, s.TopP, s.Seed, s.Stop
	r.FrequencyPenalty, r.PresencePenalty = s.FrequencyPenalty, s.PresencePenalty
	if s.Choices > 1 {
		r.N = s.Choices
	}
	r.Logprobs, r.TopLogprobs, r.LogitBias = s.Logprobs, s.TopLogprobs, s.LogitBias
	return nil
}

func unknownToOpenAI(p execution.Param) *execution.UnsupportedError {
	return adapter.Refuse(p, "OpenAI's API does not have this parameter.")
}

func (r *request) tools(in *execution.Input) {
	for _, t := range in.Tools {
		r.Tools = append(r.Tools, tool{"function", function{t.Name, t.Description, t.Parameters, t.Strict}})
	}
	switch c := in.ToolChoice; {
	case c == nil:
	case c.Mode == execution.ToolsNamed:
		r.ToolChoice = map[string]any{"type": "function", "function": map[string]string{"name": c.Name}}
	default:
		r.ToolChoice = string(c.Mode)
	}
}

func (r *request) format(f *execution.Format) {
	switch {
	case f == nil:
	case f.Kind == execution.FormatText:
		r.ResponseFormat = &responseFormat{Type: "text"}
	case f.Kind == execution.FormatJSON:
		r.ResponseFormat = &responseFormat{Type: "json_object"}
	default:
		name := f.Name
		if name == "" {
			name = "answer" // the protocol demands one
		}
		r.ResponseFormat = &responseFormat{"json_schema", &jsonSchema{name, f.Description, f.Schema, f.Strict}}
	}
}
