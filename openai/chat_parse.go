package openai

import (
	"encoding/json"
	"fmt"

	"iop/execution"
)

// chatRequest is the body of a Chat Completions request.
type chatRequest struct {
	commonParams
	samplingParams

	Messages            []chatMessage      `json:"messages"`
	MaxTokens           *int64             `json:"max_tokens"`
	MaxCompletionTokens *int64             `json:"max_completion_tokens"`
	N                   *int64             `json:"n"`
	Logprobs            bool               `json:"logprobs"`
	ResponseFormat      json.RawMessage    `json:"response_format"`
	ReasoningEffort     string             `json:"reasoning_effort"`
	Reasoning           *chatReasoning     `json:"reasoning"` // as OpenRouter and Ollama take it
	Verbosity           string             `json:"verbosity"`
	Modalities          []string           `json:"modalities"`
	StreamOptions       *chatStreamOptions `json:"stream_options"`

	Functions        json.RawMessage `json:"functions" refuse:"functions are deprecated; use tools"`
	FunctionCall     json.RawMessage `json:"function_call" refuse:"functions are deprecated; use tool_choice"`
	Prediction       json.RawMessage `json:"prediction" refuse:"this model's provider has no predicted outputs"`
	Audio            json.RawMessage `json:"audio" refuse:"only text output is available"`
	WebSearchOptions json.RawMessage `json:"web_search_options" refuse:"web search is not available"`
}

type chatReasoning struct {
	Effort    string `json:"effort"`
	MaxTokens *int64 `json:"max_tokens"`
	Enabled   *bool  `json:"enabled"`
}

type chatStreamOptions struct {
	IncludeUsage       json.RawMessage `json:"include_usage" hint:"the Edge has read it"`
	IncludeObfuscation bool            `json:"include_obfuscation"`
}

// ParseChat reads the body of a Chat Completions request. Each parameter is carried, or known to have no effect on the
// answer, or refused: the error has status 400 and names the parameter as the client wrote it.
func ParseChat(body []byte) (*Request, *Error) {
	body, err := prepare(body)
	if err != nil {
		return nil, err
	}
	var r chatRequest
	if err := decode(body, &r); err != nil {
		return nil, explain(err)
	}
	in := &execution.Input{Version: execution.InputVersion}
	names := &paramNames{names: map[execution.Param]string{}}
	if err := r.apply(in, names); err != nil {
		return nil, explain(err)
	}
	choices := max(1, in.Sampling.Choices)
	return &Request{Input: in, Param: names.param, Render: func(spec RenderSpec) Renderer { return newChatRenderer(spec, choices) }}, nil
}

func (r *chatRequest) apply(in *execution.Input, names *paramNames) *Error {
	if err := r.applyMessages(in, names); err != nil {
		return err
	}
	if err := r.commonParams.apply(in); err != nil {
		return err
	}
	if err := r.applyTools(in, chatTools); err != nil {
		return err
	}
	if err := r.samplingParams.apply(in, names.names); err != nil {
		return err
	}
	if err := r.applyLength(in, names.names); err != nil {
		return err
	}
	if err := r.applyReasoning(in, names.names); err != nil {
		return err
	}
	if err := within("response_format", r.applyFormat(in)); err != nil {
		return err
	}
	if err := applyVerbosity(in, r.Verbosity); err != nil {
		return err
	}
	return r.check()
}

// check refuses what is asked for in members that also have harmless values.
func (r *chatRequest) check() *Error {
	for i, m := range r.Modalities {
		if m != "text" {
			return within("modalities", withinIndex(i, InvalidRequest("", "is not supported: only text output is available")))
		}
	}
	if o := r.StreamOptions; o != nil && o.IncludeObfuscation {
		return within("stream_options", unsupported("include_obfuscation", "streams are not padded"))
	}
	return nil
}

func (r *chatRequest) applyLength(in *execution.Input, names map[execution.Param]string) *Error {
	s := &in.Sampling
	r.MaxTokens, r.MaxCompletionTokens = unbounded(r.MaxTokens), unbounded(r.MaxCompletionTokens)
	s.MaxTokens = r.MaxTokens
	if n := r.MaxCompletionTokens; n != nil {
		names[execution.ParamMaxTokens] = "max_completion_tokens"
		if s.MaxTokens == nil || *n < *s.MaxTokens {
			s.MaxTokens = n // the lesser bound holds both
		}
	}
	if err := atLeastOne("max_tokens", r.MaxTokens); err != nil {
		return err
	}
	if err := atLeastOne("max_completion_tokens", r.MaxCompletionTokens); err != nil {
		return err
	}
	if n := r.N; n != nil {
		if *n < 1 || *n > execution.MaxChoices {
			return InvalidRequest("n", fmt.Sprintf("must be between 1 and %d", execution.MaxChoices))
		}
		s.Choices = int(*n)
	}
	s.Logprobs, s.TopLogprobs = r.Logprobs, r.TopLogprobs
	if n := r.TopLogprobs; n != nil && !r.Logprobs {
		if *n > 0 {
			return InvalidRequest("top_logprobs", "needs logprobs to be true")
		}
		s.TopLogprobs = nil
	}
	return nil
}

func (r *chatRequest) applyReasoning(in *execution.Input, names map[execution.Param]string) *Error {
	if err := checkEffort("reasoning_effort", r.ReasoningEffort); err != nil {
		return err
	}
	effort := r.ReasoningEffort
	var budget *int64
	var enabled *bool
	if o := r.Reasoning; o != nil {
		if err := within("reasoning", checkEffort("effort", o.Effort)); err != nil {
			return err
		}
		if err := within("reasoning", atLeastOne("max_tokens", o.MaxTokens)); err != nil {
			return err
		}
		if effort == "" && o.Effort != "" {
			effort, names[execution.ParamReasoningEffort] = o.Effort, "reasoning.effort"
		}
		if o.Effort != "" && o.Effort != effort {
			return InvalidRequest("reasoning.effort", "differs from reasoning_effort")
		}
		budget, enabled = o.MaxTokens, o.Enabled
		names[execution.ParamReasoningBudget] = "reasoning.max_tokens"
	}
	if effort != "" || budget != nil || enabled != nil {
		in.Reasoning = &execution.Reasoning{Effort: effort, Budget: budget, Enabled: enabled}
	}
	return nil
}

func (r *chatRequest) applyFormat(in *execution.Input) *Error {
	if len(r.ResponseFormat) == 0 {
		return nil
	}
	kind, err := typeOf(r.ResponseFormat)
	if err != nil {
		return err
	}
	var format struct {
		Type       string        `json:"type"`
		JSONSchema *schemaFormat `json:"json_schema"`
	}
	if err := decode(r.ResponseFormat, &format); err != nil {
		return err
	}
	if kind != "json_schema" && format.JSONSchema != nil {
		return InvalidRequest("json_schema", "needs the type json_schema")
	}
	switch kind {
	case "text":
		return nil // what is anyway
	case "json_object":
		in.Format = &execution.Format{Kind: execution.FormatJSON}
		return nil
	case "json_schema":
		if format.JSONSchema == nil {
			return missing("json_schema")
		}
		in.Format, err = format.JSONSchema.format()
		return within("json_schema", err)
	case "":
		return missing("type")
	}
	return InvalidRequest("type", "must be one of text, json_object, json_schema")
}

// chatTools is how Chat Completions writes tools.
var chatTools = toolShape{
	tool: func(raw []byte) (execution.Tool, *Error) {
		var t struct {
			Type     string        `json:"type"`
			Function *chatFunction `json:"function"`
		}
		if err := decode(raw, &t); err != nil {
			return execution.Tool{}, err
		}
		f := t.Function
		if f == nil {
			return execution.Tool{}, missing("function")
		}
		tool, err := checkTool(execution.Tool{Name: f.Name, Description: f.Description, Parameters: f.Parameters, Strict: f.Strict})
		return tool, within("function", err)
	},
	name: func(raw []byte) (string, *Error) {
		var c struct {
			Type     string `json:"type"`
			Function struct {
				Name string `json:"name"`
			} `json:"function"`
		}
		if err := decode(raw, &c); err != nil {
			return "", err
		}
		if c.Function.Name == "" {
			return "", within("function", missing("name"))
		}
		return c.Function.Name, nil
	},
	allowed: func(raw []byte) (allowedTools, *Error) {
		var c struct {
			Type    string       `json:"type"`
			Allowed allowedTools `json:"allowed_tools"`
		}
		err := decode(raw, &c)
		return c.Allowed, err
	},
}

type chatFunction struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
	Strict      *bool           `json:"strict"`
}
