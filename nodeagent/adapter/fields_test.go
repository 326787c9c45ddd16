package adapter_test

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"iop/execution"
	"iop/nodeagent/adapter"
	"iop/nodeagent/adapter/anthropic"
	"iop/nodeagent/adapter/ollama"
	"iop/nodeagent/adapter/openai"
)

// protocols are the columns of the table.
var protocols = []struct {
	name    string
	adapter adapter.Adapter
}{{openai.Name, openai.New()}, {ollama.Name, ollama.New()}, {anthropic.Name, anthropic.New()}}

// field is one thing that a client may ask for: With is Base with that and nothing else besides. The first words of its
// name are the fields of the input that it stands for, the rest is for readers.
type field struct {
	name       string
	base, with func(in *execution.Input)
}

func ptr[T any](v T) *T { return &v }

func said(role execution.Role, parts ...execution.Part) execution.Message {
	return execution.Message{Role: role, Parts: parts}
}

func plain(s string) execution.Part { return execution.Part{Kind: execution.PartText, Text: s} }

func add(m execution.Message) func(*execution.Input) {
	return func(in *execution.Input) { in.Messages = append(in.Messages, m) }
}

func part(role execution.Role, p execution.Part) func(*execution.Input) {
	return add(said(role, plain("before"), p))
}

func before(role execution.Role) func(*execution.Input) { return add(said(role, plain("before"))) }

// withTools is a function, on which much else depends; called is a call of it, and answered its result.
func withTools(in *execution.Input) {
	in.Tools = []execution.Tool{{Name: "look", Parameters: json.RawMessage(`{"type":"object"}`)}}
}

func called(in *execution.Input) {
	withTools(in)
	in.Messages = append(in.Messages, execution.Message{Role: execution.RoleAssistant, ToolCalls: []execution.ToolCall{{ID: "c1", Name: "look", Arguments: "{}"}}})
}

func answered(in *execution.Input) {
	called(in)
	in.Messages = append(in.Messages, execution.Message{Role: execution.RoleTool, ToolCallID: "c1", Parts: []execution.Part{plain("found")}})
}

func last(in *execution.Input) *execution.Message { return &in.Messages[len(in.Messages)-1] }

func sampling(set func(s *execution.Sampling)) func(*execution.Input) {
	return func(in *execution.Input) { set(&in.Sampling) }
}

func reasoning(r execution.Reasoning) func(*execution.Input) {
	return func(in *execution.Input) { in.Reasoning = &r }
}

func format(f execution.Format) func(*execution.Input) {
	return func(in *execution.Input) { in.Format = &f }
}

func both(a, b func(*execution.Input)) func(*execution.Input) {
	return func(in *execution.Input) { a(in); b(in) }
}

func nothing(*execution.Input) {}

var schema = json.RawMessage(`{"type":"object","properties":{"a":{"type":"string"}}}`)

var fields = append(append(messageFields, toolFields...), append(samplingFields, otherFields...)...)

var messageFields = []field{
	{"Message.Role: system", nothing, add(said(execution.RoleSystem, plain("canary")))},
	{"Message.Role: developer", nothing, add(said(execution.RoleDeveloper, plain("canary")))},
	{"Message.Role Part.Text: user", nothing, add(said(execution.RoleUser, plain("canary")))},
	{"Message.Role: assistant", nothing, add(said(execution.RoleAssistant, plain("canary")))},
	{"Message.Role: tool", called, answered},
	{"Message.Name: of a user", nothing, func(in *execution.Input) { in.Messages[0].Name = "canary" }},
	{"Message.Name: of a tool's result", answered, both(answered, func(in *execution.Input) { last(in).Name = "canary" })},
	{"Message.Parts Part.Kind: several texts", before(execution.RoleUser), part(execution.RoleUser, plain("canary"))},
	{"Message.ToolCalls ToolCall.ID ToolCall.Name ToolCall.Arguments", withTools, called},
	{"ToolCall.Arguments: malformed", called, both(called, func(in *execution.Input) { last(in).ToolCalls[0].Arguments = `{"a` })},
	{"Message.ToolCallID", called, answered},
	{"Message.ToolFailed", answered, both(answered, func(in *execution.Input) { last(in).ToolFailed = true })},
	{"Part.Data Part.MediaType: image", before(execution.RoleUser), part(execution.RoleUser, execution.Part{Kind: execution.PartImage, Data: "aGk=", MediaType: "image/png"})},
	{"Part.URL: image", before(execution.RoleUser), part(execution.RoleUser, execution.Part{Kind: execution.PartImage, URL: "https://a.example/i.png"})},
	{"Part.FileID: image", before(execution.RoleUser), part(execution.RoleUser, execution.Part{Kind: execution.PartImage, FileID: "file-1"})},
	{"Part.Detail", part(execution.RoleUser, execution.Part{Kind: execution.PartImage, Data: "aGk=", MediaType: "image/png"}),
		part(execution.RoleUser, execution.Part{Kind: execution.PartImage, Data: "aGk=", MediaType: "image/png", Detail: "low"})},
	{"Part.Data Part.Format: audio", before(execution.RoleUser), part(execution.RoleUser, execution.Part{Kind: execution.PartAudio, Data: "aGk=", Format: "wav"})},
	{"Part.Data Part.MediaType: PDF", before(execution.RoleUser), part(execution.RoleUser, execution.Part{Kind: execution.PartFile, Data: "aGk=", MediaType: "application/pdf"})},
	{"Part.Data Part.MediaType: a text file", before(execution.RoleUser), part(execution.RoleUser, execution.Part{Kind: execution.PartFile, Data: "aGk=", MediaType: "text/plain"})},
	{"Part.Data Part.MediaType: another file", before(execution.RoleUser), part(execution.RoleUser, execution.Part{Kind: execution.PartFile, Data: "aGk=", MediaType: "application/zip"})},
	{"Part.Name", part(execution.RoleUser, execution.Part{Kind: execution.PartFile, Data: "aGk=", MediaType: "application/pdf"}),
		part(execution.RoleUser, execution.Part{Kind: execution.PartFile, Data: "aGk=", MediaType: "application/pdf", Name: "canary"})},
	{"Part.URL: file", before(execution.RoleUser), part(execution.RoleUser, execution.Part{Kind: execution.PartFile, URL: "https://a.example/f.pdf"})},
	{"Part.FileID: file", before(execution.RoleUser), part(execution.RoleUser, execution.Part{Kind: execution.PartFile, FileID: "file-1"})},
	{"Part.Text: refusal", before(execution.RoleAssistant), part(execution.RoleAssistant, execution.Part{Kind: execution.PartRefusal, Text: "canary"})},
	{"Part.Text: unsigned thought", before(execution.RoleAssistant), part(execution.RoleAssistant, execution.Part{Kind: execution.PartReasoning, Text: "canary"})},
	{"Part.Signature: signed thought", part(execution.RoleAssistant, execution.Part{Kind: execution.PartReasoning, Text: "hm"}),
		part(execution.RoleAssistant, execution.Part{Kind: execution.PartReasoning, Text: "hm", Signature: "c2ln"})},
	{"Part.Redacted", before(execution.RoleAssistant), part(execution.RoleAssistant, execution.Part{Kind: execution.PartReasoning, Redacted: "b3BhcXVl"})},
	{"Part.Cache", nothing, func(in *execution.Input) { in.Messages[0].Parts[0].Cache = json.RawMessage(`{"type":"ephemeral"}`) }},
}

var toolFields = []field{
	{"Input.Tools Tool.Name Tool.Parameters", nothing, withTools},
	{"Tool.Description", withTools, both(withTools, func(in *execution.Input) { in.Tools[0].Description = "canary" })},
	{"Tool.Strict", withTools, both(withTools, func(in *execution.Input) { in.Tools[0].Strict = ptr(true) })},
	{"Tool.Cache", withTools, both(withTools, func(in *execution.Input) { in.Tools[0].Cache = json.RawMessage(`{"type":"ephemeral"}`) })},
	{"Input.ToolChoice ToolChoice.Mode: auto", withTools, both(withTools, func(in *execution.Input) { in.ToolChoice = &execution.ToolChoice{Mode: execution.ToolsAuto} })},
	{"ToolChoice.Mode: none", withTools, both(withTools, func(in *execution.Input) { in.ToolChoice = &execution.ToolChoice{Mode: execution.ToolsNone} })},
	{"ToolChoice.Mode: required", withTools, both(withTools, func(in *execution.Input) { in.ToolChoice = &execution.ToolChoice{Mode: execution.ToolsRequired} })},
	{"ToolChoice.Name", withTools, both(withTools, func(in *execution.Input) {
		in.ToolChoice = &execution.ToolChoice{Mode: execution.ToolsNamed, Name: "look"}
	})},
	{"Input.ParallelToolCalls: false", withTools, both(withTools, func(in *execution.Input) { in.ParallelToolCalls = ptr(false) })},
	{"Input.Format Format.Kind: JSON", nothing, format(execution.Format{Kind: execution.FormatJSON})},
	{"Format.Kind Format.Schema: JSON by a schema", nothing, format(execution.Format{Kind: execution.FormatJSONSchema, Schema: schema})},
	{"Format.Name", format(execution.Format{Kind: execution.FormatJSONSchema, Schema: schema}), format(execution.Format{Kind: execution.FormatJSONSchema, Schema: schema, Name: "canary"})},
	{"Format.Description", format(execution.Format{Kind: execution.FormatJSONSchema, Schema: schema}), format(execution.Format{Kind: execution.FormatJSONSchema, Schema: schema, Description: "canary"})},
	{"Format.Strict", format(execution.Format{Kind: execution.FormatJSONSchema, Schema: schema}), format(execution.Format{Kind: execution.FormatJSONSchema, Schema: schema, Strict: ptr(true)})},
}

var samplingFields = []field{
	{"Sampling.MaxTokens", nothing, sampling(func(s *execution.Sampling) { s.MaxTokens = ptr(int64(77)) })},
	{"Sampling.Temperature", nothing, sampling(func(s *execution.Sampling) { s.Temperature = ptr(0.25) })},
	{"Sampling.TopP", nothing, sampling(func(s *execution.Sampling) { s.TopP = ptr(0.25) })},
	{"Sampling.TopK", nothing, sampling(func(s *execution.Sampling) { s.TopK = ptr(int64(7)) })},
	{"Sampling.MinP", nothing, sampling(func(s *execution.Sampling) { s.MinP = ptr(0.25) })},
	{"Sampling.Seed", nothing, sampling(func(s *execution.Sampling) { s.Seed = ptr(int64(7)) })},
	{"Sampling.Stop", nothing, sampling(func(s *execution.Sampling) { s.Stop = []string{"canary"} })},
	{"Sampling.FrequencyPenalty", nothing, sampling(func(s *execution.Sampling) { s.FrequencyPenalty = ptr(0.25) })},
	{"Sampling.PresencePenalty", nothing, sampling(func(s *execution.Sampling) { s.PresencePenalty = ptr(0.25) })},
	{"Sampling.RepeatPenalty", nothing, sampling(func(s *execution.Sampling) { s.RepeatPenalty = ptr(1.25) })},
	{"Sampling.Choices: more than one", nothing, sampling(func(s *execution.Sampling) { s.Choices = 2 })},
	{"Sampling.Logprobs", nothing, sampling(func(s *execution.Sampling) { s.Logprobs = true })},
	{"Sampling.TopLogprobs", nothing, sampling(func(s *execution.Sampling) { s.TopLogprobs = ptr(int64(3)) })},
	{"Sampling.LogitBias", nothing, sampling(func(s *execution.Sampling) { s.LogitBias = map[string]float64{"7": 1} })},
}

var otherFields = []field{
	{"Input.Reasoning Reasoning.Enabled: on", nothing, reasoning(execution.Reasoning{Enabled: ptr(true)})},
	{"Reasoning.Enabled: off", nothing, reasoning(execution.Reasoning{Enabled: ptr(false)})},
	{"Reasoning.Effort", nothing, reasoning(execution.Reasoning{Effort: "low"})},
	{"Reasoning.Budget", nothing, reasoning(execution.Reasoning{Budget: ptr(int64(2000))})},
	{"Reasoning.Summary", reasoning(execution.Reasoning{Effort: "low"}), reasoning(execution.Reasoning{Effort: "low", Summary: "auto"})},
	{"Input.Metadata", nothing, func(in *execution.Input) { in.Metadata = map[string]string{"a": "canary"} }},
	{"Input.User", nothing, func(in *execution.Input) { in.User = "canary" }},
	{"Input.Extensions: of the provider's own protocol", nothing, nil},
	{"Input.Extensions: of another protocol", nothing, nil},
}

// own is a member of each adapter's extension.
var own = map[string]execution.Extension{
	openai.Name: {"service_tier": json.RawMessage(`"flex"`), "verbosity": json.RawMessage(`"low"`), "prediction": json.RawMessage("{}"),
		"prompt_cache_key": json.RawMessage(`"k"`), "safety_identifier": json.RawMessage(`"s"`), "chat_template_kwargs": json.RawMessage("{}")},
	ollama.Name: {"options": json.RawMessage(`{"num_ctx":4096}`), "keep_alive": json.RawMessage(`"5m"`), "options.num_gpu": json.RawMessage("1"),
		"think": json.RawMessage("true"), "truncate": json.RawMessage("false"), "shift": json.RawMessage("false")},
	anthropic.Name: {"service_tier": json.RawMessage(`"auto"`), "context_management": json.RawMessage("{}"), "cache_control": json.RawMessage("{}")},
}

func input(sets ...func(*execution.Input)) *execution.Input {
	in := &execution.Input{Version: execution.InputVersion, Messages: []execution.Message{said(execution.RoleUser, plain("hello"))}}
	for _, set := range sets {
		set(in)
	}
	return in
}

// What becomes of a field, as the table says it.
const (
	carried = "yes"
	refused = "no"
	leftOut = "-"
)

// verdict is what becomes of a field: carried, refused, or left out.
func verdict(t *testing.T, name string, a adapter.Adapter, f field) string {
	t.Helper()
	base, with := input(f.base), input(f.base)
	switch {
	case f.with != nil:
		with = input(f.with)
	case strings.HasSuffix(f.name, "own protocol"):
		with.Extensions = map[string]execution.Extension{name: own[name]}
	default:
		other := map[string]string{openai.Name: ollama.Name, ollama.Name: anthropic.Name, anthropic.Name: openai.Name}[name]
		with.Extensions = map[string]execution.Extension{other: own[other]}
	}
	before, err := a.Request(base, adapter.Spec{Model: "m"})
	if _, ok := err.(*execution.UnsupportedError); ok {
		return refused // with what it belongs to
	}
	if err != nil {
		t.Fatalf("%s, %s: %v", name, f.name, err)
	}
	after, err := a.Request(with, adapter.Spec{Model: "m"})
	if refusal, ok := err.(*execution.UnsupportedError); ok {
		if refusal.Param == "" || refusal.Detail == "" {
			t.Errorf("%s, %s: the refusal names nothing: %+v", name, f.name, refusal)
		}
		return refused
	}
	switch {
	case err != nil:
		t.Fatalf("%s, %s: %v", name, f.name, err)
	case !json.Valid(after.Body):
		t.Fatalf("%s, %s: the request is no JSON: %s", name, f.name, after.Body)
	case string(after.Body) == string(before.Body):
		return leftOut
	case asks(with, "canary") && !strings.Contains(string(after.Body), "canary"):
		return leftOut
	}
	return carried
}

func asks(in *execution.Input, text string) bool {
	b, err := json.Marshal(in)
	return err == nil && strings.Contains(string(b), text)
}

// TestEveryFieldIsKnown: what the contract gets is looked at here, and so by every adapter.
func TestEveryFieldIsKnown(t *testing.T) {
	named := map[string]bool{"Input.Version": true, "Input.Messages": true, "Input.Sampling": true}
	for _, f := range fields {
		for word := range strings.FieldsSeq(f.name) {
			named[strings.TrimSuffix(word, ":")] = true
			if strings.HasSuffix(word, ":") {
				break
			}
		}
	}
	for _, v := range []any{execution.Input{}, execution.Message{}, execution.Part{}, execution.ToolCall{}, execution.Tool{}, execution.ToolChoice{}, execution.Format{}, execution.Sampling{}, execution.Reasoning{}} {
		typ := reflect.TypeOf(v)
		for i := range typ.NumField() {
			if name := typ.Name() + "." + typ.Field(i).Name; !named[name] {
				t.Errorf("no case of fields sets %s", name)
			}
		}
	}
}

// TestNothingIsDroppedInSilence: each field is carried, refused, or left out as docs/providers.md says. The table there
// is the one that this test makes; it leaves out what every adapter carries.
func TestNothingIsDroppedInSilence(t *testing.T) {
	var table strings.Builder
	table.WriteString("| part of the request | openai | ollama | anthropic |\n| --- | --- | --- | --- |\n")
	for _, f := range fields {
		var verdicts []string
		for _, p := range protocols {
			verdicts = append(verdicts, verdict(t, p.name, p.adapter, f))
		}
		if everywhere := slices.Repeat([]string{carried}, len(protocols)); !slices.Equal(verdicts, everywhere) {
			fmt.Fprintf(&table, "| %s | %s |\n", f.name, strings.Join(verdicts, " | "))
		}
	}
	doc, err := os.ReadFile("../../docs/providers.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(doc), table.String()) {
		t.Errorf("docs/providers.md does not have the table\n%s", table.String())
	}
}

// TestExtensionMembers: each member of an adapter's extension reaches its provider, and one that it does not know is
// refused by its name.
func TestExtensionMembers(t *testing.T) {
	for _, p := range protocols {
		spec := adapter.Spec{Model: "m"}
		before, err := p.adapter.Request(input(), spec)
		if err != nil {
			t.Fatal(err)
		}
		for member, value := range own[p.name] {
			in := input()
			in.Extensions = map[string]execution.Extension{p.name: {member: value}}
			after, err := p.adapter.Request(in, spec)
			if err != nil || string(after.Body) == string(before.Body) {
				t.Errorf("%s: %s is not carried: %v", p.name, member, err)
			}
		}
		in := input()
		in.Extensions = map[string]execution.Extension{p.name: {"newfangled": json.RawMessage("1")}}
		_, err = p.adapter.Request(in, spec)
		if refusal, ok := err.(*execution.UnsupportedError); !ok || refusal.Param != "newfangled" {
			t.Errorf("%s: an unknown member: %v", p.name, err)
		}
	}
}
