package openai

import (
	"bytes"
	"encoding/json"

	"iop/execution"
)

// adapterOpenAI is the name of the adapter that takes the extensions of this family.
const adapterOpenAI = "openai"

// commonParams are the members that Chat Completions and Responses share.
type commonParams struct {
	Model          json.RawMessage `json:"model" hint:"the Edge has routed by it"`
	Stream         json.RawMessage `json:"stream" hint:"the Edge has read it"`
	SessionID      json.RawMessage `json:"session_id" hint:"the Edge's own: correlation and affinity"`
	PromptCacheKey string          `json:"prompt_cache_key"` // a hint of affinity, which the Edge has read
	// How long a provider keeps a cached prompt decides what the next request costs, not what this one answers.
	PromptCacheRetention json.RawMessage     `json:"prompt_cache_retention" hint:"a cache's lifetime"`
	PromptCacheOptions   *promptCacheOptions `json:"prompt_cache_options"`

	Tools             []json.RawMessage `json:"tools"`
	ToolChoice        json.RawMessage   `json:"tool_choice"`
	ParallelToolCalls *bool             `json:"parallel_tool_calls"`

	Metadata         map[string]string `json:"metadata"`
	User             string            `json:"user"`
	SafetyIdentifier string            `json:"safety_identifier"`
	ServiceTier      string            `json:"service_tier"`
	Store            bool              `json:"store"`

	ChatTemplateKwargs json.RawMessage `json:"chat_template_kwargs"` // of vLLM and SGLang

	Moderation json.RawMessage `json:"moderation" refuse:"provider moderation is not available"`
}

type promptCacheOptions struct {
	Mode       json.RawMessage `json:"mode" hint:"what is cached decides what the next request costs"`
	TTL        json.RawMessage `json:"ttl" hint:"a cache's lifetime"`
	Comparison json.RawMessage `json:"comparison_response_id" refuse:"responses are not stored"`
	Prewarm    bool            `json:"prewarm"`
}

// samplingParams are the members that say how tokens are chosen, with those that engines take besides OpenAI's. An
// operator's defaults come here too, whatever the endpoint.
type samplingParams struct {
	Temperature       *float64           `json:"temperature"`
	TopP              *float64           `json:"top_p"`
	TopLogprobs       *int64             `json:"top_logprobs"`
	TopK              *int64             `json:"top_k"`
	MinP              *float64           `json:"min_p"`
	RepetitionPenalty *float64           `json:"repetition_penalty"` // vLLM, SGLang
	RepeatPenalty     *float64           `json:"repeat_penalty"`     // llama.cpp
	FrequencyPenalty  *float64           `json:"frequency_penalty"`
	PresencePenalty   *float64           `json:"presence_penalty"`
	Seed              *int64             `json:"seed"`
	Stop              json.RawMessage    `json:"stop"`
	LogitBias         map[string]float64 `json:"logit_bias"`
}

// prepare checks what every parser relies on: one well-formed object in UTF-8.
func prepare(body []byte) ([]byte, *Error) {
	if !wellFormed(body) {
		return nil, InvalidRequest("", "the request body must be one JSON object")
	}
	if at := invalidUTF8(body); at >= 0 {
		return nil, notUTF8(at)
	}
	body = bytes.TrimLeft(body, " \t\r\n")
	if body[0] != '{' {
		return nil, InvalidRequest("", "the request body must be a JSON object")
	}
	return body, nil
}

// apply puts the common members into the input, but for those of tools.
func (c *commonParams) apply(in *execution.Input) *Error {
	if c.Store {
		return unsupported("store", "responses are not stored; omit it or set it to false")
	}
	if o := c.PromptCacheOptions; o != nil && o.Prewarm {
		return within("prompt_cache_options", unsupported("prewarm", "every request generates an answer"))
	}
	in.Metadata = c.Metadata
	in.User = c.User
	if in.User == "" {
		in.User = c.SafetyIdentifier // the member's new name
	}
	if kwargs := c.ChatTemplateKwargs; len(kwargs) > 0 {
		if !is(kwargs, '{') {
			return InvalidRequest("chat_template_kwargs", "must be an object")
		}
		extend(in, "chat_template_kwargs", kwargs)
	}
	return c.applyTier(in)
}

// applyTier carries a tier that costs or waits otherwise than usual; the usual one needs no words.
func (c *commonParams) applyTier(in *execution.Input) *Error {
	err := oneOf("service_tier", c.ServiceTier, "auto", "default", "flex", "scale", "priority", "fast")
	if err == nil && c.ServiceTier != "" && c.ServiceTier != "auto" && c.ServiceTier != "default" {
		extend(in, "service_tier", appendString(nil, c.ServiceTier))
	}
	return err
}

// applyVerbosity carries how wordy an answer is to be, where that is not the usual.
func applyVerbosity(in *execution.Input, verbosity string) *Error {
	err := oneOf("verbosity", verbosity, "low", "medium", "high")
	if err == nil && verbosity != "" && verbosity != "medium" {
		extend(in, "verbosity", appendString(nil, verbosity))
	}
	return err
}

// extend adds a member that only the adapter of this family understands.
func extend(in *execution.Input, name string, value json.RawMessage) {
	if in.Extensions == nil {
		in.Extensions = map[string]execution.Extension{adapterOpenAI: {}}
	}
	in.Extensions[adapterOpenAI][name] = value
}

// apply puts the sampling parameters into the input, and notes what the client calls the penalty of repetition.
func (s *samplingParams) apply(in *execution.Input, names map[execution.Param]string) *Error {
	to := &in.Sampling
	to.Temperature, to.TopP, to.TopK, to.MinP = s.Temperature, s.TopP, s.TopK, s.MinP
	to.FrequencyPenalty, to.PresencePenalty = s.FrequencyPenalty, s.PresencePenalty
	to.Seed, to.LogitBias = s.Seed, s.LogitBias
	to.RepeatPenalty = s.RepeatPenalty
	if s.RepetitionPenalty != nil {
		if s.RepeatPenalty != nil && *s.RepeatPenalty != *s.RepetitionPenalty {
			return InvalidRequest("repeat_penalty", "is another name for repetition_penalty, which has a different value")
		}
		to.RepeatPenalty = s.RepetitionPenalty
		names[execution.ParamRepeatPenalty] = "repetition_penalty"
	}
	if n := s.TopLogprobs; n != nil && (*n < 0 || *n > 20) {
		return InvalidRequest("top_logprobs", "must be between 0 and 20")
	}
	return within("stop", s.applyStop(to))
}

func (s *samplingParams) applyStop(to *execution.Sampling) *Error {
	switch {
	case len(s.Stop) == 0:
		return nil
	case is(s.Stop, '"'):
		to.Stop = []string{unquote(s.Stop)}
	default:
		if !is(s.Stop, '[') {
			return InvalidRequest("", "must be a string or an array of strings")
		}
		if err := decode(s.Stop, &to.Stop); err != nil {
			return err
		}
	}
	if len(to.Stop) > maxStops {
		return InvalidRequest("", "has too many strings")
	}
	for i, word := range to.Stop {
		if word == "" {
			return withinIndex(i, InvalidRequest("", "must not be empty"))
		}
	}
	return nil
}

// atLeastOne checks a bound of tokens.
func atLeastOne(name string, n *int64) *Error {
	if n != nil && *n < 1 {
		return InvalidRequest(name, "must be at least 1")
	}
	return nil
}

// unbounded takes a negative bound of the answer's length for none, as engines do.
func unbounded(n *int64) *int64 {
	if n != nil && *n < 0 {
		return nil
	}
	return n
}

// checkEffort checks how much a model is to think.
func checkEffort(name, effort string) *Error {
	return oneOf(name, effort, "none", "minimal", "low", "medium", "high", "xhigh", "max")
}

// schemaFormat makes a Format of what both protocols say of a JSON Schema.
type schemaFormat struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"schema"`
	Strict      *bool           `json:"strict"`
}

func (s *schemaFormat) format() (*execution.Format, *Error) {
	if s.Name == "" {
		return nil, missing("name")
	}
	if len(s.Schema) > 0 && !is(s.Schema, '{') {
		return nil, InvalidRequest("schema", "must be an object")
	}
	return &execution.Format{Kind: execution.FormatJSONSchema, Name: s.Name, Description: s.Description,
		Schema: s.Schema, Strict: s.Strict}, nil
}
