package execution

import (
	"encoding/json"
	"fmt"
)

// InputVersion is the version of the run input's contract. A Node refuses an input of a version that it does not know,
// and one with a field that it does not know: nothing is dropped in silence.
const InputVersion = 1

// Input is what a normalized run is asked to do, in no protocol's words: the client's protocol was read by the Edge, and
// an adapter of the Node says it in the provider's. The model is not part of it; the run's target names it.
//
// A field's zero value means that the client said nothing. What an adapter can't carry it refuses (see
// [UnsupportedError]), unless the field's comment says that it is a hint.
type Input struct {
	Version  int       `json:"version"`
	Messages []Message `json:"messages"`

	Tools             []Tool      `json:"tools,omitempty"`
	ToolChoice        *ToolChoice `json:"tool_choice,omitempty"`
	ParallelToolCalls *bool       `json:"parallel_tool_calls,omitempty"`
	Format            *Format     `json:"format,omitempty"`
	Sampling          Sampling    `json:"sampling,omitzero"`
	Reasoning         *Reasoning  `json:"reasoning,omitempty"`

	// Metadata is the client's, for the provider's records. A hint: a provider that keeps none does not get it.
	Metadata map[string]string `json:"metadata,omitempty"`
	User     string            `json:"user,omitempty"` // a hint: the client's name for its end user

	// Extensions are members of the client's request that mean something to one adapter alone, by that adapter's name:
	// {"ollama": {"keep_alive": ...}}. An adapter takes its own and refuses those of others and members that it does not know.
	Extensions map[string]Extension `json:"extensions,omitempty"`
}

// Extension is members of a request by name, each a JSON value.
type Extension map[string]json.RawMessage

// Role says who speaks in a message.
type Role string

// The roles. RoleSystem and RoleDeveloper are instructions; a protocol that knows one of them takes both for it.
const (
	RoleSystem    Role = "system"
	RoleDeveloper Role = "developer"
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
	RoleTool      Role = "tool" // the result of one tool call, named by ToolCallID
)

// Message is one turn of the conversation so far.
type Message struct {
	Role  Role   `json:"role"`
	Name  string `json:"name,omitempty"`
	Parts []Part `json:"parts,omitempty"`

	// Of the assistant.
	ToolCalls []ToolCall `json:"tool_calls,omitempty"`

	// Of a tool's result.
	ToolCallID string `json:"tool_call_id,omitempty"`
	ToolFailed bool   `json:"tool_failed,omitempty"` // the tool says that it failed
}

// PartKind says what a part of a message is.
type PartKind string

// The kinds of parts.
const (
	PartText      PartKind = "text"
	PartImage     PartKind = "image"
	PartAudio     PartKind = "audio"
	PartFile      PartKind = "file"
	PartRefusal   PartKind = "refusal"   // of the assistant: Text says why it would not
	PartReasoning PartKind = "reasoning" // of the assistant: what it thought, with the provider's Signature of it
)

// Part is one piece of a message's content. Data and URL exclude each other; Data is base64 as in RFC 4648, section 4.
type Part struct {
	Kind      PartKind `json:"kind"`
	Text      string   `json:"text,omitempty"`
	Data      string   `json:"data,omitempty"`
	URL       string   `json:"url,omitempty"`        // of an image or a file; the provider fetches it, IOP never does
	MediaType string   `json:"media_type,omitempty"` // with Data: RFC 6838, such as image/png
	Format    string   `json:"format,omitempty"`     // of audio: wav, mp3
	Detail    string   `json:"detail,omitempty"`     // of an image: auto, low, high. A hint
	FileID    string   `json:"file_id,omitempty"`    // of a file or an image that the provider keeps
	Name      string   `json:"name,omitempty"`       // of a file
	Signature string   `json:"signature,omitempty"`  // of reasoning: opaque, goes back to the provider that gave it
	Redacted  string   `json:"redacted,omitempty"`   // of reasoning: opaque, in place of Text
	// Cache is what the client says of caching up to this part: a JSON object of the Anthropic protocol. A hint.
	Cache json.RawMessage `json:"cache,omitempty"`
}

// ToolCall is a call that the assistant made in a former turn.
type ToolCall struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"` // JSON text as the model wrote it, perhaps malformed
}

// Tool is a function that the model may call.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters,omitempty"` // JSON Schema; absent: no parameters
	Strict      *bool           `json:"strict,omitempty"`
	Cache       json.RawMessage `json:"cache,omitempty"` // as of Part
}

// ToolChoiceMode says whether tools are to be called.
type ToolChoiceMode string

// The modes of a tool choice.
const (
	ToolsAuto     ToolChoiceMode = "auto"
	ToolsNone     ToolChoiceMode = "none"
	ToolsRequired ToolChoiceMode = "required"
	ToolsNamed    ToolChoiceMode = "named" // the one in Name
)

// ToolChoice says which tools are to be called.
type ToolChoice struct {
	Mode ToolChoiceMode `json:"mode"`
	Name string         `json:"name,omitempty"`
}

// FormatKind is the form that the answer's text must have.
type FormatKind string

// The forms.
const (
	FormatText       FormatKind = "text"
	FormatJSON       FormatKind = "json"        // any JSON object
	FormatJSONSchema FormatKind = "json_schema" // one that Schema describes
)

// Format asks for an answer of some form.
type Format struct {
	Kind        FormatKind      `json:"kind"`
	Name        string          `json:"name,omitempty"`
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"schema,omitempty"`
	Strict      *bool           `json:"strict,omitempty"`
}

// Sampling says how tokens are chosen, and how many.
type Sampling struct {
	MaxTokens        *int64             `json:"max_tokens,omitempty"` // of the answer, with its reasoning
	Temperature      *float64           `json:"temperature,omitempty"`
	TopP             *float64           `json:"top_p,omitempty"`
	TopK             *int64             `json:"top_k,omitempty"`
	MinP             *float64           `json:"min_p,omitempty"`
	Seed             *int64             `json:"seed,omitempty"`
	Stop             []string           `json:"stop,omitempty"`
	FrequencyPenalty *float64           `json:"frequency_penalty,omitempty"`
	PresencePenalty  *float64           `json:"presence_penalty,omitempty"`
	RepeatPenalty    *float64           `json:"repeat_penalty,omitempty"`
	Choices          int                `json:"choices,omitempty"` // n; 0 is 1
	Logprobs         bool               `json:"logprobs,omitempty"`
	TopLogprobs      *int64             `json:"top_logprobs,omitempty"`
	LogitBias        map[string]float64 `json:"logit_bias,omitempty"` // by token id, in decimal
}

// Reasoning says how much the model is to think before it answers.
type Reasoning struct {
	Enabled *bool  `json:"enabled,omitempty"`
	Effort  string `json:"effort,omitempty"`  // none, minimal, low, medium, high, xhigh, max
	Budget  *int64 `json:"budget,omitempty"`  // tokens
	Summary string `json:"summary,omitempty"` // auto, concise, detailed. A hint
}

// Param names a part of the input in errors. The values are those of Chat Completions where it has the parameter; a
// client's protocol maps them to its own names. A part of a message is "messages[3].content[0]".
type Param string

// The parameters that some adapter can't carry.
const (
	ParamTools             Param = "tools"
	ParamToolChoice        Param = "tool_choice"
	ParamParallelToolCalls Param = "parallel_tool_calls"
	ParamResponseFormat    Param = "response_format"
	ParamMaxTokens         Param = "max_tokens"
	ParamTemperature       Param = "temperature"
	ParamTopP              Param = "top_p"
	ParamTopK              Param = "top_k"
	ParamMinP              Param = "min_p"
	ParamSeed              Param = "seed"
	ParamStop              Param = "stop"
	ParamFrequencyPenalty  Param = "frequency_penalty"
	ParamPresencePenalty   Param = "presence_penalty"
	ParamRepeatPenalty     Param = "repeat_penalty"
	ParamChoices           Param = "n"
	ParamLogprobs          Param = "logprobs"
	ParamTopLogprobs       Param = "top_logprobs"
	ParamLogitBias         Param = "logit_bias"
	ParamReasoningEffort   Param = "reasoning_effort"
	ParamReasoningBudget   Param = "reasoning_budget"
	ParamMessages          Param = "messages"
)

// ParamPart names a part of a message. Both count from 0.
func ParamPart(message, part int) Param {
	return Param(fmt.Sprintf("messages[%d].content[%d]", message, part))
}

// UnsupportedError says that an adapter can't carry a part of the input. The provider was not called.
type UnsupportedError struct {
	Param  Param
	Detail string // one sentence for the client: what is not supported, and by which protocol
}

// Error implements error.
func (e *UnsupportedError) Error() string { return string(e.Param) + ": " + e.Detail }
