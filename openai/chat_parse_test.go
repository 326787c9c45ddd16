package openai

import (
	"reflect"
	"strings"
	"testing"

	"iop/execution"
)

// userTurn is a request's messages where they do not matter.
const userTurn = `"messages":[{"role":"user","content":"hi"}]`

func mustChat(t *testing.T, body string) *Request {
	t.Helper()
	r, err := ParseChat([]byte(body))
	if err != nil {
		t.Fatalf("%s\n%v", body, err)
	}
	checkInput(t, r.Input)
	return r
}

// checkInput sends the input over the wire and back.
func checkInput(t *testing.T, in *execution.Input) {
	t.Helper()
	data, err := execution.AppendInput(nil, in)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := execution.ParseInput(data); err != nil {
		t.Fatalf("%v\n%s", err, data)
	}
}

// asJSON is how an input travels, without its version.
func asJSON(t *testing.T, in *execution.Input) string {
	t.Helper()
	data, err := execution.AppendInput(nil, in)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(strings.Replace(string(data), `"version":1,`, "", 1))
}

func TestParseChatCarries(t *testing.T) {
	const hi = `"messages":[{"role":"user","parts":[{"kind":"text","text":"hi"}]}]`
	for name, c := range map[string]struct{ body, want string }{
		"sampling": {
			`"temperature":0.5,"top_p":1,"top_k":40,"min_p":0.05,"seed":7,"stop":["a","b"],"frequency_penalty":-1,"presence_penalty":1.5,` +
				`"repetition_penalty":1.1,"repeat_penalty":1.1,"n":2,"logprobs":true,"top_logprobs":3,"logit_bias":{"50256":-100},"max_completion_tokens":9,"max_tokens":10`,
			`,"sampling":{"max_tokens":9,"temperature":0.5,"top_p":1,"top_k":40,"min_p":0.05,"seed":7,"stop":["a","b"],"frequency_penalty":-1,` +
				`"presence_penalty":1.5,"repeat_penalty":1.1,"choices":2,"logprobs":true,"top_logprobs":3,"logit_bias":{"50256":-100}}`,
		},
		"one stop, a float that is whole": {`"stop":"x","max_tokens":100.0`, `,"sampling":{"max_tokens":100,"stop":["x"]}`},
		"no bound":                        {`"max_tokens":-1,"max_completion_tokens":-1`, ``},
		"nulls are absent": {
			`"stop":null,"temperature":null,"tools":null,"tool_choice":null,"response_format":null,"store":null,"audio":null,"functions":null,"stream":null,"metadata":null`, ``,
		},
		"hints": {
			`"model":"m","stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false},"session_id":"s","prompt_cache_key":"k",` +
				`"prompt_cache_retention":"24h","prompt_cache_options":{"mode":"implicit"},"service_tier":"auto","store":false,"modalities":["text"],` +
				`"verbosity":"medium","response_format":{"type":"text"},"parallel_tool_calls":true,"tool_choice":"auto"`, ``,
		},
		"who asks":     {`"user":"u","safety_identifier":"s","metadata":{"a":"b"}`, `,"metadata":{"a":"b"},"user":"u"`},
		"new name":     {`"safety_identifier":"s"`, `,"user":"s"`},
		"extensions":   {`"service_tier":"flex","verbosity":"low","chat_template_kwargs":{"a":1}`, `,"extensions":{"openai":{"chat_template_kwargs":{"a":1},"service_tier":"flex","verbosity":"low"}}`},
		"effort":       {`"reasoning_effort":"high"`, `,"reasoning":{"effort":"high"}`},
		"other effort": {`"reasoning":{"effort":"low","max_tokens":64,"enabled":true}`, `,"reasoning":{"enabled":true,"effort":"low","budget":64}`},
		"json":         {`"response_format":{"type":"json_object"}`, `,"format":{"kind":"json"}`},
		"schema": {
			`"response_format":{"type":"json_schema","json_schema":{"name":"n","description":"d","schema":{"type":"object"},"strict":true}}`,
			`,"format":{"kind":"json_schema","name":"n","description":"d","schema":{"type":"object"},"strict":true}`,
		},
		"tools": {
			`"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"},"strict":false}}],"tool_choice":"required","parallel_tool_calls":false`,
			`,"tools":[{"name":"f","description":"d","parameters":{"type":"object"},"strict":false}],"tool_choice":{"mode":"required"},"parallel_tool_calls":false`,
		},
		"a named tool": {
			`"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"f"}}`,
			`,"tools":[{"name":"f"}],"tool_choice":{"mode":"named","name":"f"}`,
		},
		"allowed tools": {
			`"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}],` +
				`"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":[{"type":"function","function":{"name":"g"}}]}}`,
			`,"tools":[{"name":"g"}],"tool_choice":{"mode":"required"}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := mustChat(t, "{"+userTurn+","+c.body+"}")
			if got, want := asJSON(t, r.Input), "{"+hi+c.want+"}"; got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func TestParseChatMessages(t *testing.T) {
	r := mustChat(t, `{"messages":[
		{"role":"developer","content":"be brief","name":"boss"},
		{"role":"system","content":[{"type":"text","text":"and kind","prompt_cache_breakpoint":{"mode":"explicit"}}]},
		{"role":"user","content":[
			{"type":"text","text":"look"},
			{"type":"image_url","image_url":{"url":"data:image/PNG;base64,aGk","detail":"low"}},
			{"type":"image_url","image_url":{"url":"https://example.com/a.png"}},
			{"type":"image_url","image_url":"http://example.com/b.png"},
			{"type":"input_audio","input_audio":{"data":"aGk=","format":"wav"}},
			{"type":"file","file":{"filename":"a.pdf","file_data":"data:application/pdf;base64,aGk="}},
			{"type":"file","file":{"file_id":"file_1"}}]},
		{"role":"assistant","content":null,"refusal":null,"annotations":[],"parsed":{"a":1},"audio":null,"function_call":null,"reasoning_content":"hm",
			"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":"{}","parsed_arguments":{}}}]},
		{"role":"tool","tool_call_id":"c1","content":"42"},
		{"role":"assistant","content":[{"type":"text","text":"no: "},{"type":"refusal","refusal":"can't"}],"reasoning":"why"},
		{"role":"assistant","content":"","refusal":"won't"}]}`)
	text := func(s string) execution.Part { return execution.Part{Kind: execution.PartText, Text: s} }
	want := []execution.Message{
		{Role: execution.RoleDeveloper, Name: "boss", Parts: []execution.Part{text("be brief")}},
		{Role: execution.RoleSystem, Parts: []execution.Part{text("and kind")}},
		{Role: execution.RoleUser, Parts: []execution.Part{
			text("look"),
			{Kind: execution.PartImage, MediaType: "image/png", Data: "aGk=", Detail: "low"},
			{Kind: execution.PartImage, URL: "https://example.com/a.png"},
			{Kind: execution.PartImage, URL: "http://example.com/b.png"},
			{Kind: execution.PartAudio, Data: "aGk=", Format: "wav"},
			{Kind: execution.PartFile, Name: "a.pdf", MediaType: "application/pdf", Data: "aGk="},
			{Kind: execution.PartFile, FileID: "file_1"},
		}},
		{
			Role: execution.RoleAssistant, Parts: []execution.Part{{Kind: execution.PartReasoning, Text: "hm"}},
			ToolCalls: []execution.ToolCall{{ID: "c1", Name: "f", Arguments: "{}"}},
		},
		{Role: execution.RoleTool, ToolCallID: "c1", Parts: []execution.Part{text("42")}},
		{Role: execution.RoleAssistant, Parts: []execution.Part{
			{Kind: execution.PartReasoning, Text: "why"}, text("no: "), {Kind: execution.PartRefusal, Text: "can't"},
		}},
		{Role: execution.RoleAssistant, Parts: []execution.Part{text(""), {Kind: execution.PartRefusal, Text: "won't"}}},
	}
	for i := range want {
		if !reflect.DeepEqual(r.Input.Messages[i], want[i]) {
			t.Errorf("message %d: got %+v, want %+v", i, r.Input.Messages[i], want[i])
		}
	}
	for param, want := range map[execution.Param]string{
		execution.ParamPart(2, 3):      "messages[2].content[3]",
		execution.ParamPart(0, 0):      "messages[0].content",
		execution.ParamPart(3, 0):      "messages[3].reasoning_content",
		execution.ParamPart(6, 1):      "messages[6].refusal",
		execution.ParamPart(6, 9):      "messages[6]",
		execution.ParamPart(60, 1):     "messages",
		"messages[4]":                  "messages[4]",
		"messages[x":                   "messages",
		execution.ParamMaxTokens:       "max_tokens",
		execution.ParamReasoningEffort: "reasoning_effort",
	} {
		if got := r.Param(param); got != want {
			t.Errorf("%s is called %s, want %s", param, got, want)
		}
	}
}

func TestParseChatNamesAsTheClientDid(t *testing.T) {
	r := mustChat(t, `{`+userTurn+`,"max_completion_tokens":5,"repetition_penalty":1,"reasoning":{"effort":"low","max_tokens":5}}`)
	for param, want := range map[execution.Param]string{
		execution.ParamMaxTokens:       "max_completion_tokens",
		execution.ParamRepeatPenalty:   "repetition_penalty",
		execution.ParamReasoningEffort: "reasoning.effort",
		execution.ParamReasoningBudget: "reasoning.max_tokens",
	} {
		if got := r.Param(param); got != want {
			t.Errorf("%s is called %s, want %s", param, got, want)
		}
	}
}

// chatRefusals are members of a request that are refused, and the parameter that the error must name.
var chatRefusals = []struct{ body, param string }{
	{userTurn + `,"temprature":1`, "temprature"},
	{userTurn + `,"Temperature":1`, "Temperature"},
	{userTurn + `,"temperature":1,"temperature":2`, "temperature"},
	{userTurn + `,"temperature":"hot"`, "temperature"},
	{userTurn + `,"temperature":1e999`, "temperature"},
	{userTurn + `,"max_tokens":1.5`, "max_tokens"},
	{userTurn + `,"max_tokens":0`, "max_tokens"},
	{userTurn + `,"n":0`, "n"},
	{userTurn + `,"n":129`, "n"},
	{userTurn + `,"logprobs":"yes"`, "logprobs"},
	{userTurn + `,"top_logprobs":2`, "top_logprobs"},
	{userTurn + `,"logprobs":true,"top_logprobs":21`, "top_logprobs"},
	{userTurn + `,"stop":["a",1]`, "stop[1]"},
	{userTurn + `,"stop":[""]`, "stop[0]"},
	{userTurn + `,"stop":{}`, "stop"},
	{userTurn + `,"logit_bias":{"5":"x"}`, "logit_bias.5"},
	{userTurn + `,"metadata":{"a":1}`, "metadata.a"},
	{userTurn + `,"user":5`, "user"},
	{userTurn + `,"store":true`, "store"},
	{userTurn + `,"chat_template_kwargs":[]`, "chat_template_kwargs"},
	{userTurn + `,"functions":[]`, "functions"},
	{userTurn + `,"function_call":"auto"`, "function_call"},
	{userTurn + `,"prediction":{}`, "prediction"},
	{userTurn + `,"audio":{}`, "audio"},
	{userTurn + `,"modalities":["text","audio"]`, "modalities[1]"},
	{userTurn + `,"web_search_options":{}`, "web_search_options"},
	{userTurn + `,"moderation":{"model":"m"}`, "moderation"},
	{userTurn + `,"prompt_cache_options":{"prewarm":true}`, "prompt_cache_options.prewarm"},
	{userTurn + `,"service_tier":"gold"`, "service_tier"},
	{userTurn + `,"verbosity":"chatty"`, "verbosity"},
	{userTurn + `,"reasoning_effort":"extreme"`, "reasoning_effort"},
	{userTurn + `,"reasoning":{"exclude":true}`, "reasoning.exclude"},
	{userTurn + `,"reasoning_effort":"low","reasoning":{"effort":"high"}`, "reasoning.effort"},
	{userTurn + `,"repeat_penalty":1,"repetition_penalty":1.5`, "repeat_penalty"},
	{userTurn + `,"stream_options":{"include_obfuscation":true}`, "stream_options.include_obfuscation"},
	{userTurn + `,"stream_options":{"x":true}`, "stream_options.x"},
	{userTurn + `,"response_format":{"type":"grammar"}`, "response_format.type"},
	{userTurn + `,"response_format":{}`, "response_format.type"},
	{userTurn + `,"response_format":{"type":"json_schema"}`, "response_format.json_schema"},
	{userTurn + `,"response_format":{"type":"json_schema","json_schema":{}}`, "response_format.json_schema.name"},
	{userTurn + `,"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":[]}}`, "response_format.json_schema.schema"},
	{userTurn + `,"response_format":{"type":"text","json_schema":{"name":"n"}}`, "response_format.json_schema"},
	{userTurn + `,"tools":[{"type":"web_search"}]`, "tools[0].type"},
	{userTurn + `,"tools":[{"function":{"name":"f"}}]`, "tools[0].type"},
	{userTurn + `,"tools":[{"type":"function"}]`, "tools[0].function"},
	{userTurn + `,"tools":[{"type":"function","function":{}}]`, "tools[0].function.name"},
	{userTurn + `,"tools":[{"type":"function","function":{"name":"f","parameters":"x"}}]`, "tools[0].function.parameters"},
	{userTurn + `,"tools":[{"type":"function","function":{"name":"f","x":1}}]`, "tools[0].function.x"},
	{userTurn + `,"tools":[null]`, "tools[0]"},
	{userTurn + `,"tool_choice":"required"`, "tool_choice"},
	{userTurn + `,"tool_choice":"any"`, "tool_choice"},
	{userTurn + `,"tool_choice":{"type":"function","function":{"name":"f"}}`, "tool_choice"},
	{userTurn + `,"tool_choice":{"type":"custom","custom":{"name":"f"}}`, "tool_choice.type"},
	{userTurn + `,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"all","tools":[]}}`, "tool_choice.mode"},
	{`"messages":[]`, "messages"},
	{`"model":"m"`, "messages"},
	{`"messages":"hi"`, "messages"},
	{`"messages":[{"content":"hi"}]`, "messages[0].role"},
	{`"messages":[{"role":"function","name":"f","content":"1"}]`, "messages[0].role"},
	{`"messages":[{"role":"robot","content":"1"}]`, "messages[0].role"},
	{`"messages":[{"role":"user"}]`, "messages[0].content"},
	{`"messages":[{"role":"user","content":[]}]`, "messages[0].content"},
	{`"messages":[{"role":"user","content":5}]`, "messages[0].content"},
	{`"messages":[{"role":"user","content":"x","tool_call_id":"c"}]`, "messages[0].tool_call_id"},
	{`"messages":[{"role":"user","content":"x","refusal":"c"}]`, "messages[0].refusal"},
	{`"messages":[{"role":"user","content":"x","cache_control":{}}]`, "messages[0].cache_control"},
	{`"messages":[{"role":"tool","content":"x"}]`, "messages[0].tool_call_id"},
	{`"messages":[{"role":"user","content":"x"},{"role":"user","content":[{"type":"text","text":"x"},{"type":"video"}]}]`, "messages[1].content[1].type"},
	{`"messages":[{"role":"user","content":[{"text":"x"}]}]`, "messages[0].content[0].type"},
	{`"messages":[{"role":"user","content":[{"type":"text"}]}]`, "messages[0].content[0].text"},
	{`"messages":[{"role":"user","content":["x"]}]`, "messages[0].content[0]"},
	{`"messages":[{"role":"user","content":[{"type":"refusal","refusal":"x"}]}]`, "messages[0].content[0].type"},
	{`"messages":[{"role":"system","content":[{"type":"image_url","image_url":{"url":"https://x/"}}]}]`, "messages[0].content[0].type"},
	{`"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"file:///etc/passwd"}}]}]`, "messages[0].content[0].image_url.url"},
	{`"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png,x"}}]}]`, "messages[0].content[0].image_url.url"},
	{`"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,*"}}]}]`, "messages[0].content[0].image_url.url"},
	{`"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://x/","detail":"max"}}]}]`, "messages[0].content[0].image_url.detail"},
	{`"messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"aGk=","format":"ogg"}}]}]`, "messages[0].content[0].input_audio.format"},
	{`"messages":[{"role":"user","content":[{"type":"file","file":{}}]}]`, "messages[0].content[0].file.file_data"},
	{`"messages":[{"role":"user","content":[{"type":"file","file":{"file_id":"a","file_data":"aGk="}}]}]`, "messages[0].content[0].file"},
	{`"messages":[{"role":"assistant","function_call":{"name":"f","arguments":""}}]`, "messages[0].function_call"},
	{`"messages":[{"role":"assistant","audio":{"id":"a"}}]`, "messages[0].audio"},
	{`"messages":[{"role":"assistant","tool_calls":[{"id":"c","type":"custom","custom":{}}]}]`, "messages[0].tool_calls[0].custom"},
	{`"messages":[{"role":"assistant","tool_calls":[{"id":"c","type":"custom"}]}]`, "messages[0].tool_calls[0].type"},
	{`"messages":[{"role":"assistant","tool_calls":[{"type":"function","function":{"name":"f","arguments":"{}"}}]}]`, "messages[0].tool_calls[0].id"},
}

func TestParseChatRefuses(t *testing.T) {
	for _, c := range chatRefusals {
		r, err := ParseChat([]byte("{" + c.body + "}"))
		checkRefusal(t, c.body, c.param, r, err)
	}
}

func checkRefusal(t *testing.T, body, param string, r *Request, err *Error) {
	t.Helper()
	switch {
	case err == nil:
		t.Errorf("%s: taken: %s", body, asJSON(t, r.Input))
	case err.Status != 400 || err.Param != param || !strings.HasPrefix(err.Message, param) || !err.NoRetry:
		t.Errorf("%s: got %v, want param %s", body, err, param)
	}
}

// TestParseKnowsTheSchema: each member of OpenAI's published schema is known, whatever is done with it.
func TestParseKnowsTheSchema(t *testing.T) {
	for _, c := range []struct {
		known  *structFields
		schema string
	}{
		{fieldsOf(reflect.TypeFor[chatRequest]()), `messages model audio frequency_penalty function_call functions logit_bias logprobs
			max_completion_tokens max_tokens metadata modalities moderation n parallel_tool_calls prediction presence_penalty
			prompt_cache_key prompt_cache_options prompt_cache_retention reasoning_effort response_format safety_identifier seed
			service_tier stop store stream stream_options temperature tool_choice tools top_logprobs top_p user verbosity web_search_options`},
		{fieldsOf(reflect.TypeFor[responsesRequest]()), `access_programs background background_options context_management conversation
			image include input instructions max_output_tokens max_tool_calls metadata model moderation parallel_tool_calls
			previous_response_id prompt prompt_cache_key prompt_cache_options prompt_cache_retention reasoning safety_identifier
			service_tier store stream stream_options temperature text tool_choice tools top_logprobs top_p truncation user`},
	} {
		for _, name := range strings.Fields(c.schema) {
			if _, ok := c.known.byName[name]; !ok {
				t.Errorf("%s is not known", name)
			}
		}
	}
}

func TestParseChatBounds(t *testing.T) {
	messages := strings.TrimSuffix(strings.Repeat(`{"role":"user","content":"x"},`, maxElements+1), ",")
	r, err := ParseChat([]byte(`{"messages":[` + messages + `]}`))
	checkRefusal(t, "many messages", "messages", r, err)
	tools := strings.TrimSuffix(strings.Repeat(`{"type":"function","function":{"name":"f"}},`, maxTools+1), ",")
	r, err = ParseChat([]byte(`{` + userTurn + `,"tools":[` + tools + `]}`))
	checkRefusal(t, "many tools", "tools", r, err)
	for _, body := range []string{``, `[]`, `{`, `null`, `{"messages":` + strings.Repeat("[", 100)} {
		if _, err := ParseChat([]byte(body)); err == nil || err.Status != 400 {
			t.Errorf("%q: %v", body, err)
		}
	}
}

func TestParseRefusesInvalidUTF8(t *testing.T) {
	_, err := ParseChat([]byte("{\"messages\":[{\"role\":\"user\",\"content\":\"a\xff\"}]}"))
	if err == nil || err.Status != 400 || !strings.Contains(err.Message, "not valid UTF-8 at byte 40") {
		t.Errorf("%v", err)
	}
}
