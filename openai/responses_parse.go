package openai

import (
	"encoding/json"
	"fmt"
	"slices"

	"iop/execution"
)

// responsesRequest is the body of a Responses request.
type responsesRequest struct {
	commonParams
	samplingParams

	Input           json.RawMessage         `json:"input"`
	Instructions    string                  `json:"instructions"`
	MaxOutputTokens *int64                  `json:"max_output_tokens"`
	MaxToolCalls    *int64                  `json:"max_tool_calls"` // of the provider's own tools, of which there are none
	Include         []string                `json:"include"`
	Reasoning       *responsesReasoning     `json:"reasoning"`
	Text            *responsesText          `json:"text"`
	Truncation      string                  `json:"truncation"`
	Background      bool                    `json:"background"`
	StreamOptions   *responsesStreamOptions `json:"stream_options"`
	ClientMetadata  json.RawMessage         `json:"client_metadata" hint:"of a client's telemetry"`

	PreviousResponseID json.RawMessage `json:"previous_response_id" refuse:"responses are not stored; send the whole conversation as input"`
	Conversation       json.RawMessage `json:"conversation" refuse:"conversations are not stored; send the conversation as input"`
	Prompt             json.RawMessage `json:"prompt" refuse:"prompt templates are not available"`
	BackgroundOptions  json.RawMessage `json:"background_options" refuse:"background runs are not available"`
	ContextManagement  json.RawMessage `json:"context_management" refuse:"context compaction is not available"`
	Image              json.RawMessage `json:"image" refuse:"image compression is not available"`
	AccessPrograms     json.RawMessage `json:"access_programs" refuse:"only OpenAI offers them"`
}

type responsesReasoning struct {
	Effort          string `json:"effort"`
	Summary         string `json:"summary"`
	GenerateSummary string `json:"generate_summary"` // the older name of summary
	Context         string `json:"context"`
	Mode            string `json:"mode"`
}

type responsesText struct {
	Format    json.RawMessage `json:"format"`
	Verbosity string          `json:"verbosity"`
}

type responsesStreamOptions struct {
	IncludeObfuscation bool `json:"include_obfuscation"`
}

// What a client may want to have in its answer besides the usual. Those that tell of hosted tools ask for nothing, as
// there are no such tools.
const (
	includeEncrypted = "reasoning.encrypted_content" // always there where the provider gives one
	includeLogprobs  = "message.output_text.logprobs"
)

var includes = []string{
	includeEncrypted, includeLogprobs, "message.input_image.image_url", "file_search_call.results", "web_search_call.results",
	"web_search_call.action.sources", "computer_call_output.output.image_url", "code_interpreter_call.outputs",
}

// ParseResponses reads the body of a Responses request, as [ParseChat] does one of Chat Completions. Nothing is stored:
// what needs a former response is refused.
func ParseResponses(body []byte) (*Request, *Error) {
	body, err := prepare(body)
	if err != nil {
		return nil, err
	}
	var r responsesRequest
	if err := decode(body, &r); err != nil {
		return nil, explain(err)
	}
	in := &execution.Input{Version: execution.InputVersion}
	names := &paramNames{names: responsesNames()}
	if err := r.apply(in, names); err != nil {
		return nil, explain(err)
	}
	echo := r.echo(in)
	return &Request{Input: in, Param: names.param, Render: func(spec RenderSpec) Renderer { return newResponsesRenderer(spec, echo) }}, nil
}

// responsesNames are the parameters that have another name in Responses.
func responsesNames() map[execution.Param]string {
	return map[execution.Param]string{
		execution.ParamMaxTokens:       "max_output_tokens",
		execution.ParamResponseFormat:  "text.format",
		execution.ParamReasoningEffort: "reasoning.effort",
		execution.ParamReasoningBudget: "reasoning",
		execution.ParamLogprobs:        "include",
		execution.ParamMessages:        "input",
		"verbosity":                    "text.verbosity",
	}
}

func (r *responsesRequest) apply(in *execution.Input, names *paramNames) *Error {
	if err := r.check(); err != nil {
		return err
	}
	if err := r.applyInput(in, names); err != nil {
		return err
	}
	if err := r.commonParams.apply(in); err != nil {
		return err
	}
	if err := r.applyTools(in, responsesTools); err != nil {
		return err
	}
	if err := r.samplingParams.apply(in, names.names); err != nil {
		return err
	}
	r.MaxOutputTokens = unbounded(r.MaxOutputTokens)
	in.Sampling.MaxTokens = r.MaxOutputTokens
	if err := atLeastOne("max_output_tokens", r.MaxOutputTokens); err != nil {
		return err
	}
	if err := within("include", r.applyInclude(in)); err != nil {
		return err
	}
	if err := within("reasoning", r.applyReasoning(in)); err != nil {
		return err
	}
	return within("text", r.applyText(in))
}

// check refuses what is asked for in members that also have harmless values.
func (r *responsesRequest) check() *Error {
	if r.Background {
		return unsupported("background", "background runs are not available")
	}
	if err := oneOf("truncation", r.Truncation, "auto", "disabled"); err != nil {
		return err
	}
	if r.Truncation == "auto" {
		return unsupported("truncation", "input is never truncated; use disabled")
	}
	if o := r.StreamOptions; o != nil && o.IncludeObfuscation {
		return within("stream_options", unsupported("include_obfuscation", "streams are not padded"))
	}
	return nil
}

func (r *responsesRequest) applyInclude(in *execution.Input) *Error {
	for i, what := range r.Include {
		if !slices.Contains(includes, what) {
			return withinIndex(i, InvalidRequest("", "is not a known field"))
		}
	}
	in.Sampling.TopLogprobs = r.TopLogprobs
	in.Sampling.Logprobs = slices.Contains(r.Include, includeLogprobs) || r.TopLogprobs != nil && *r.TopLogprobs > 0
	if !in.Sampling.Logprobs {
		in.Sampling.TopLogprobs = nil
	}
	return nil
}

func (r *responsesRequest) applyReasoning(in *execution.Input) *Error {
	o := r.Reasoning
	if o == nil {
		return nil
	}
	if o.Summary == "" {
		o.Summary = o.GenerateSummary
	}
	if err := checkEffort("effort", o.Effort); err != nil {
		return err
	}
	if err := oneOf("summary", o.Summary, "auto", "concise", "detailed"); err != nil {
		return err
	}
	if o.Context != "" && o.Context != "auto" {
		return unsupported("context", "only auto is")
	}
	if o.Mode != "" && o.Mode != "standard" {
		return unsupported("mode", "only standard is")
	}
	if o.Effort != "" || o.Summary != "" {
		in.Reasoning = &execution.Reasoning{Effort: o.Effort, Summary: o.Summary}
	}
	return nil
}

func (r *responsesRequest) applyText(in *execution.Input) *Error {
	if r.Text == nil {
		return nil
	}
	if err := applyVerbosity(in, r.Text.Verbosity); err != nil {
		return err
	}
	return within("format", r.Text.applyFormat(in))
}

func (t *responsesText) applyFormat(in *execution.Input) *Error {
	if len(t.Format) == 0 {
		return nil
	}
	var format struct {
		Type string `json:"type"`
		schemaFormat
	}
	if err := decode(t.Format, &format); err != nil {
		return err
	}
	if format.Type != "json_schema" && (format.Name != "" || len(format.Schema) > 0) {
		return InvalidRequest("type", "must be json_schema if there is a schema")
	}
	var err *Error
	switch format.Type {
	case "text": // what is anyway
	case "json_object":
		in.Format = &execution.Format{Kind: execution.FormatJSON}
	case "json_schema":
		if len(format.Schema) == 0 {
			return missing("schema")
		}
		in.Format, err = format.format()
	case "":
		err = missing("type")
	default:
		err = InvalidRequest("type", "must be one of text, json_object, json_schema")
	}
	return err
}

// responsesTools is how Responses writes tools.
var responsesTools = toolShape{
	tool: func(raw []byte) (execution.Tool, *Error) {
		var f struct {
			Type string `json:"type"`
			chatFunction
			AllowedCallers []string        `json:"allowed_callers"`
			Async          bool            `json:"async"`
			DeferLoading   bool            `json:"defer_loading"`
			OutputSchema   json.RawMessage `json:"output_schema" refuse:"models are not told the result schema of functions"`
		}
		if err := decode(raw, &f); err != nil {
			return execution.Tool{}, err
		}
		for i, caller := range f.AllowedCallers {
			if caller != "direct" {
				return execution.Tool{}, within("allowed_callers", withinIndex(i, InvalidRequest("", "is not supported: only direct is")))
			}
		}
		if f.Async {
			return execution.Tool{}, unsupported("async", "the model always waits for the result of a call")
		}
		if f.DeferLoading {
			return execution.Tool{}, unsupported("defer_loading", "tool search is not available")
		}
		return checkTool(execution.Tool{Name: f.Name, Description: f.Description, Parameters: f.Parameters, Strict: f.Strict})
	},
	name: func(raw []byte) (string, *Error) {
		var c struct {
			Type string `json:"type"`
			Name string `json:"name"`
		}
		if err := decode(raw, &c); err != nil {
			return "", err
		}
		if c.Name == "" {
			return "", missing("name")
		}
		return c.Name, nil
	},
	allowed: func(raw []byte) (allowedTools, *Error) {
		var c struct {
			Type string `json:"type"`
			allowedTools
		}
		err := decode(raw, &c)
		return c.allowedTools, err
	},
}

func (r *responsesRequest) applyInput(in *execution.Input, names *paramNames) *Error {
	b := inputBuilder{in: in, names: names}
	if r.Instructions != "" {
		b.add(execution.Message{Role: execution.RoleSystem}, "instructions")
		b.part(execution.Part{Kind: execution.PartText, Text: r.Instructions}, "instructions")
	}
	switch {
	case len(r.Input) == 0:
		return missing("input")
	case is(r.Input, '"'):
		b.add(execution.Message{Role: execution.RoleUser}, "input")
		b.part(execution.Part{Kind: execution.PartText, Text: unquote(r.Input)}, "input")
		return nil
	case !is(r.Input, '['):
		return InvalidRequest("input", "must be a string or an array of items")
	}
	var items []json.RawMessage
	if err := decode(r.Input, &items); err != nil {
		return within("input", err)
	}
	if len(items) == 0 {
		return InvalidRequest("input", "must hold at least one item")
	}
	for i, raw := range items {
		b.at = fmt.Sprintf("input[%d]", i)
		if err := b.item(raw); err != nil {
			return within("input", withinIndex(i, err))
		}
	}
	if len(in.Messages) == 0 {
		return InvalidRequest("input", "must hold an item with content")
	}
	return nil
}
