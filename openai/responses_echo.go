package openai

import (
	"encoding/json"
	"slices"
	"strconv"

	"iop/execution"
)

// echo makes the members of a response object that repeat the request, or say what is the same for all: the response is
// not stored and did not run in the background. Where the client left a number to the provider, OpenAI's default stands,
// as the object must have one.
func (r *responsesRequest) echo(in *execution.Input) []byte {
	var w echoWriter
	w.raw("background", "false")
	w.raw("store", "false")
	w.raw("previous_response_id", "null")
	w.raw("truncation", `"disabled"`)
	w.raw("access_programs", "null") // OpenAI's own, but its schema wants the member
	w.text("instructions", r.Instructions)
	w.integer("max_output_tokens", r.MaxOutputTokens, "null")
	w.integer("max_tool_calls", r.MaxToolCalls, "null")
	w.number("temperature", r.Temperature, "1")
	w.number("top_p", r.TopP, "1")
	w.number("frequency_penalty", r.FrequencyPenalty, "0")
	w.number("presence_penalty", r.PresencePenalty, "0")
	w.integer("top_logprobs", r.TopLogprobs, "0")
	w.raw("parallel_tool_calls", strconv.FormatBool(r.ParallelToolCalls == nil || *r.ParallelToolCalls))
	w.value("tool_choice", r.ToolChoice, `"auto"`)
	w.name("tools")
	w.b = r.echoTools(w.b)
	w.name("text")
	w.b = r.echoText(w.b, in.Format)
	w.name("reasoning")
	w.b = r.echoReasoning(w.b)
	w.name("metadata")
	w.b = echoMetadata(w.b, r.Metadata)
	w.text("user", r.User)
	w.text("safety_identifier", r.SafetyIdentifier)
	w.text("prompt_cache_key", r.PromptCacheKey)
	tier := r.ServiceTier
	if tier == "" || tier == "auto" {
		tier = "default"
	}
	w.text("service_tier", tier)
	return w.b
}

// echoWriter writes members of an object, each with a comma before it.
type echoWriter struct{ b []byte }

func (w *echoWriter) name(name string) { w.b = append(appendString(append(w.b, ','), name), ':') }

func (w *echoWriter) raw(name, value string) {
	w.name(name)
	w.b = append(w.b, value...)
}

func (w *echoWriter) text(name, value string) {
	w.name(name)
	w.b = appendStringOrNull(w.b, value)
}

func (w *echoWriter) value(name string, value json.RawMessage, absent string) {
	if len(value) == 0 {
		w.raw(name, absent)
		return
	}
	w.name(name)
	w.b = appendValue(w.b, value)
}

func (w *echoWriter) integer(name string, n *int64, absent string) {
	if n != nil {
		absent = strconv.FormatInt(*n, 10)
	}
	w.raw(name, absent)
}

func (w *echoWriter) number(name string, x *float64, absent string) {
	if x != nil {
		absent = string(appendNumber(nil, *x))
	}
	w.raw(name, absent)
}

// echoTools repeats all tools, those among them that may not be called as well.
func (r *responsesRequest) echoTools(dst []byte) []byte {
	dst = append(dst, '[')
	for i, raw := range r.Tools {
		tool, err := responsesTools.tool(raw)
		if err != nil {
			continue // can't be: they were read before
		}
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(append(dst, `{"type":"function","name":`...), tool.Name)
		dst = appendStringOrNull(append(dst, `,"description":`...), tool.Description)
		dst = appendValue(append(dst, `,"parameters":`...), tool.Parameters)
		dst = append(appendBoolOrNull(append(dst, `,"strict":`...), tool.Strict), '}')
	}
	return append(dst, ']')
}

func (r *responsesRequest) echoText(dst []byte, f *execution.Format) []byte {
	dst = append(dst, `{"format":`...)
	switch {
	case f == nil:
		dst = append(dst, `{"type":"text"}`...)
	case f.Kind == execution.FormatJSON:
		dst = append(dst, `{"type":"json_object"}`...)
	default:
		dst = appendString(append(dst, `{"type":"json_schema","name":`...), f.Name)
		dst = appendStringOrNull(append(dst, `,"description":`...), f.Description)
		dst = appendValue(append(dst, `,"schema":`...), f.Schema)
		strict := f.Strict != nil && *f.Strict
		dst = strconv.AppendBool(append(dst, `,"strict":`...), strict)
		dst = append(dst, '}')
	}
	verbosity := "medium"
	if r.Text != nil && r.Text.Verbosity != "" {
		verbosity = r.Text.Verbosity
	}
	return append(appendString(append(dst, `,"verbosity":`...), verbosity), '}')
}

func (r *responsesRequest) echoReasoning(dst []byte) []byte {
	var o responsesReasoning
	if r.Reasoning != nil {
		o = *r.Reasoning
	}
	dst = appendStringOrNull(append(dst, `{"effort":`...), o.Effort)
	return append(appendStringOrNull(append(dst, `,"summary":`...), o.Summary), '}')
}

func echoMetadata(dst []byte, metadata map[string]string) []byte {
	keys := make([]string, 0, len(metadata))
	for k := range metadata {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	dst = append(dst, '{')
	for i, k := range keys {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendString(dst, k), ':')
		dst = appendString(dst, metadata[k])
	}
	return append(dst, '}')
}

func appendBoolOrNull(dst []byte, b *bool) []byte {
	if b == nil {
		return append(dst, `null`...)
	}
	return strconv.AppendBool(dst, *b)
}
