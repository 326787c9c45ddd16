package openai

import (
	"reflect"
	"testing"

	"iop/execution"
)

func mustResponses(t *testing.T, body string) *Request {
	t.Helper()
	r, err := ParseResponses([]byte(body))
	if err != nil {
		t.Fatalf("%s\n%v", body, err)
	}
	checkInput(t, r.Input)
	return r
}

func TestParseResponsesCarries(t *testing.T) {
	const hi = `"messages":[{"role":"user","parts":[{"kind":"text","text":"hi"}]}]`
	for name, c := range map[string]struct{ body, want string }{
		"sampling": {
			`"temperature":0.5,"top_p":1,"max_output_tokens":9,"top_logprobs":3,"include":["message.output_text.logprobs","reasoning.encrypted_content"],"top_k":5,"seed":1`,
			`,"sampling":{"max_tokens":9,"temperature":0.5,"top_p":1,"top_k":5,"seed":1,"logprobs":true,"top_logprobs":3}`,
		},
		"no logprobs": {`"top_logprobs":0,"include":[]`, ``},
		"nulls and hints": {
			`"previous_response_id":null,"conversation":null,"prompt":null,"background":false,"store":false,"truncation":"disabled","stream":true,` +
				`"max_tool_calls":3,"client_metadata":{"a":1},"text":{"format":{"type":"text"},"verbosity":"medium"},"reasoning":null,"tools":[],"tool_choice":"auto"`, ``,
		},
		"reasoning": {`"reasoning":{"effort":"low","generate_summary":"auto","context":"auto"}`, `,"reasoning":{"effort":"low","summary":"auto"}`},
		"text": {
			`"text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object"},"strict":true},"verbosity":"high"}`,
			`,"format":{"kind":"json_schema","name":"n","schema":{"type":"object"},"strict":true},"extensions":{"openai":{"verbosity":"high"}}`,
		},
		"json":  {`"text":{"format":{"type":"json_object"}}`, `,"format":{"kind":"json"}`},
		"tools": {`"tools":[{"type":"function","name":"f","description":null,"parameters":{},"strict":null,"allowed_callers":["direct"]}],"tool_choice":{"type":"function","name":"f"}`, `,"tools":[{"name":"f","parameters":{}}],"tool_choice":{"mode":"named","name":"f"}`},
		"allowed tools": {
			`"tools":[{"type":"function","name":"f"},{"type":"function","name":"g"}],"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"f"}]}`,
			`,"tools":[{"name":"f"}],"tool_choice":{"mode":"auto"}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := mustResponses(t, `{"input":"hi",`+c.body+"}")
			if got, want := asJSON(t, r.Input), "{"+hi+c.want+"}"; got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func TestParseResponsesItems(t *testing.T) {
	r := mustResponses(t, `{"instructions":"be brief","input":[
		{"role":"user","content":"look"},
		{"type":"message","role":"user","id":"msg_1","status":"completed","content":[
			{"type":"input_text","text":"at"},
			{"type":"input_image","image_url":"data:image/png;base64,aGk=","detail":"auto"},
			{"type":"input_image","file_id":"file_1"},
			{"type":"input_file","filename":"a.pdf","file_data":"aGk="},
			{"type":"input_file","file_url":"https://example.com/a.pdf"}]},
		{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"one"},{"type":"summary_text","text":"two"}],"encrypted_content":"sig"},
		{"type":"reasoning","id":"rs_2","summary":[],"content":[{"type":"reasoning_text","text":"three"}],"encrypted_content":null},
		{"type":"reasoning","id":"rs_3","summary":[],"encrypted_content":"redacted:xyz"},
		{"type":"message","role":"assistant","phase":"commentary","content":[{"type":"output_text","text":"let me see","annotations":[],"logprobs":[],"parsed":null}]},
		{"type":"function_call","parsed_arguments":{},"call_id":"c1","name":"f","arguments":"{}","id":"fc_1","status":"completed","caller":{"type":"direct"}},
		{"type":"reasoning","id":"rs_4","summary":[{"type":"summary_text","text":"also"}]},
		{"type":"function_call","call_id":"c2","name":"g","arguments":""},
		{"type":"function_call_output","call_id":"c1","output":"42"},
		{"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"see"},{"type":"input_image","image_url":"https://example.com/a.png"}]},
		{"type":"message","role":"assistant","content":[{"type":"refusal","refusal":"no"}]},
		{"type":"message","role":"assistant","content":"more"}]}`)
	text := func(s string) execution.Part { return execution.Part{Kind: execution.PartText, Text: s} }
	want := []execution.Message{
		{Role: execution.RoleSystem, Parts: []execution.Part{text("be brief")}},
		{Role: execution.RoleUser, Parts: []execution.Part{text("look")}},
		{Role: execution.RoleUser, Parts: []execution.Part{
			text("at"),
			{Kind: execution.PartImage, MediaType: "image/png", Data: "aGk=", Detail: "auto"},
			{Kind: execution.PartImage, FileID: "file_1"},
			{Kind: execution.PartFile, Name: "a.pdf", Data: "aGk="},
			{Kind: execution.PartFile, URL: "https://example.com/a.pdf"},
		}},
		{
			Role: execution.RoleAssistant,
			Parts: []execution.Part{
				{Kind: execution.PartReasoning, Text: "one\n\ntwo", Signature: "sig"}, {Kind: execution.PartReasoning, Text: "three"},
				{Kind: execution.PartReasoning, Redacted: "xyz"}, text("let me see"), {Kind: execution.PartReasoning, Text: "also"},
			},
			ToolCalls: []execution.ToolCall{{ID: "c1", Name: "f", Arguments: "{}"}, {ID: "c2", Name: "g"}},
		},
		{Role: execution.RoleTool, ToolCallID: "c1", Parts: []execution.Part{text("42")}},
		{Role: execution.RoleTool, ToolCallID: "c2", Parts: []execution.Part{text("see"), {Kind: execution.PartImage, URL: "https://example.com/a.png"}}},
		{Role: execution.RoleAssistant, Parts: []execution.Part{{Kind: execution.PartRefusal, Text: "no"}}},
		{Role: execution.RoleAssistant, Parts: []execution.Part{text("more")}},
	}
	if len(r.Input.Messages) != len(want) {
		t.Fatalf("%d messages, want %d", len(r.Input.Messages), len(want))
	}
	for i := range want {
		if !reflect.DeepEqual(r.Input.Messages[i], want[i]) {
			t.Errorf("message %d:\ngot  %+v\nwant %+v", i, r.Input.Messages[i], want[i])
		}
	}
	for param, want := range map[execution.Param]string{
		execution.ParamPart(0, 0):      "instructions",
		execution.ParamPart(1, 0):      "input[0].content",
		execution.ParamPart(2, 1):      "input[1].content[1]",
		execution.ParamPart(3, 0):      "input[2]",
		execution.ParamPart(3, 3):      "input[5].content[0]",
		execution.ParamPart(5, 1):      "input[10].output[1]",
		execution.ParamMessages:        "input",
		execution.ParamMaxTokens:       "max_output_tokens",
		execution.ParamResponseFormat:  "text.format",
		execution.ParamReasoningEffort: "reasoning.effort",
		execution.ParamTemperature:     "temperature",
	} {
		if got := r.Param(param); got != want {
			t.Errorf("%s is called %s, want %s", param, got, want)
		}
	}
}

var responsesRefusals = []struct{ body, param string }{
	{`"input":"hi","foo":1`, "foo"},
	{`"input":"hi","previous_response_id":"resp_1"`, "previous_response_id"},
	{`"input":"hi","conversation":"conv_1"`, "conversation"},
	{`"input":"hi","conversation":{"id":"conv_1"}`, "conversation"},
	{`"input":"hi","background":true`, "background"},
	{`"input":"hi","prompt":{"id":"p"}`, "prompt"},
	{`"input":"hi","store":true`, "store"},
	{`"input":"hi","truncation":"auto"`, "truncation"},
	{`"input":"hi","truncation":"some"`, "truncation"},
	{`"input":"hi","context_management":[]`, "context_management"},
	{`"input":"hi","access_programs":{}`, "access_programs"},
	{`"input":"hi","stream_options":{"include_obfuscation":true}`, "stream_options.include_obfuscation"},
	{`"input":"hi","include":["secrets"]`, "include[0]"},
	{`"input":"hi","max_output_tokens":0`, "max_output_tokens"},
	{`"input":"hi","max_tokens":5`, "max_tokens"},
	{`"input":"hi","reasoning":{"effort":"most"}`, "reasoning.effort"},
	{`"input":"hi","reasoning":{"summary":"long"}`, "reasoning.summary"},
	{`"input":"hi","reasoning":{"context":"all_turns"}`, "reasoning.context"},
	{`"input":"hi","reasoning":{"mode":"pro"}`, "reasoning.mode"},
	{`"input":"hi","text":{"format":{"type":"grammar"}}`, "text.format.type"},
	{`"input":"hi","text":{"format":{"type":"json_schema","name":"n"}}`, "text.format.schema"},
	{`"input":"hi","text":{"format":{"type":"json_schema","schema":{}}}`, "text.format.name"},
	{`"input":"hi","text":{"verbosity":"loud"}`, "text.verbosity"},
	{`"input":"hi","tools":[{"type":"web_search"}]`, "tools[0].type"},
	{`"input":"hi","tools":[{"type":"function","name":"f"},{"type":"mcp","server_label":"x"}]`, "tools[1].type"},
	{`"input":"hi","tools":[{"type":"function"}]`, "tools[0].name"},
	{`"input":"hi","tools":[{"type":"function","name":"f","allowed_callers":["programmatic"]}]`, "tools[0].allowed_callers[0]"},
	{`"input":"hi","tools":[{"type":"function","name":"f","async":true}]`, "tools[0].async"},
	{`"input":"hi","tools":[{"type":"function","name":"f","output_schema":{}}]`, "tools[0].output_schema"},
	{`"input":"hi","tool_choice":{"type":"web_search_preview"}`, "tool_choice.type"},
	{`"input":"hi","tool_choice":{"type":"function","name":"f"}`, "tool_choice"},
	{`"instructions":"x"`, "input"},
	{`"input":5`, "input"},
	{`"input":[]`, "input"},
	{`"input":["x"]`, "input[0]"},
	{`"input":[{"type":"reasoning","summary":[]}]`, "input"},
	{`"input":[{"type":"item_reference","id":"msg_1"}]`, "input[0]"},
	{`"input":[{"id":"msg_1"}]`, "input[0]"},
	{`"input":[{}]`, "input[0].type"},
	{`"input":[{"type":"computer_call"}]`, "input[0].type"},
	{`"input":[{"role":"tool","content":"x"}]`, "input[0].role"},
	{`"input":[{"role":"user"}]`, "input[0].content"},
	{`"input":[{"role":"user","content":"x"},{"role":"user","content":[{"type":"input_image","image_url":"ftp://x/"}]}]`, "input[1].content[0].image_url"},
	{`"input":[{"role":"user","content":[]}]`, "input[0].content"},
	{`"input":[{"role":"user","content":[{"type":"input_image"}]}]`, "input[0].content[0].image_url"},
	{`"input":[{"role":"user","content":[{"type":"output_text","text":"x"}]}]`, "input[0].content[0].type"},
	{`"input":[{"role":"user","content":[{"type":"text","text":"x"}]}]`, "input[0].content[0].type"},
	{`"input":[{"role":"assistant","content":[{"type":"input_image","image_url":"https://x/"}]}]`, "input[0].content[0].type"},
	{`"input":[{"type":"function_call","name":"f","arguments":""}]`, "input[0].call_id"},
	{`"input":[{"type":"function_call","call_id":"c","name":"f","arguments":{}}]`, "input[0].arguments"},
	{`"input":[{"type":"function_call","call_id":"c","name":"f","arguments":"","namespace":"n"}]`, "input[0].namespace"},
	{`"input":[{"type":"function_call_output","call_id":"c"}]`, "input[0].output"},
	{`"input":[{"type":"function_call_output","output":"c"}]`, "input[0].call_id"},
	{`"input":[{"type":"function_call_output","call_id":"c","output":[{"type":"input_text"}]}]`, "input[0].output[0].text"},
	{`"input":[{"type":"function_call_output","call_id":"c","output":"","caller":{"type":"program","caller_id":"x"}}]`, "input[0].caller.type"},
	{`"input":[{"type":"reasoning","summary":[{"type":"text","text":"x"}]}]`, "input[0].summary[0].type"},
}

func TestParseResponsesRefuses(t *testing.T) {
	for _, c := range responsesRefusals {
		r, err := ParseResponses([]byte("{" + c.body + "}"))
		checkRefusal(t, c.body, c.param, r, err)
	}
}

// FuzzParseChat: no input makes the parser panic, and what it takes a Node takes.
func FuzzParseChat(f *testing.F) {
	for _, c := range chatRefusals {
		f.Add([]byte("{" + c.body + "}"))
	}
	f.Add(chatBody)
	f.Fuzz(func(t *testing.T, body []byte) { fuzzParse(t, body, ParseChat) })
}

// FuzzParseResponses is FuzzParseChat for Responses.
func FuzzParseResponses(f *testing.F) {
	for _, c := range responsesRefusals {
		f.Add([]byte("{" + c.body + "}"))
	}
	f.Add([]byte(`{"input":[{"role":"user","content":"x"},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c","output":""}]}`))
	f.Fuzz(func(t *testing.T, body []byte) { fuzzParse(t, body, ParseResponses) })
}

func fuzzParse(t *testing.T, body []byte, parse func([]byte) (*Request, *Error)) {
	r, err := parse(body)
	if err != nil {
		if err.Status != 400 || err.Message == "" || len(err.Param) > 300 {
			t.Errorf("%+v", err)
		}
		return
	}
	checkInput(t, r.Input)
	for i, m := range r.Input.Messages {
		for k := range m.Parts {
			if name := r.Param(execution.ParamPart(i, k)); name == "" {
				t.Errorf("part %d of message %d has no name", k, i)
			}
		}
	}
	out := r.Render(RenderSpec{ID: "x", Model: "m"}).Event(nil, &execution.Event{Kind: execution.EventText, Text: "x"})
	splitStream(t, out)
}
