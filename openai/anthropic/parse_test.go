package anthropic

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"iop/execution"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares with a file of testdata, or writes it with -update.
func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	file = filepath.Join("testdata", file)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: got\n%s\nwant\n%s", file, got, want)
	}
}

// everything is a request with each parameter that can be carried.
const everything = `{
	"model": "m", "max_tokens": 1000, "stream": true, "temperature": 0.5, "top_p": 0.9, "top_k": 40.0,
	"stop_sequences": ["END"], "metadata": {"user_id": "u", "session_id": "s"}, "betas": ["b"], "service_tier": "auto",
	"cache_control": {"type": "ephemeral"}, "container": null, "session_id": "s", "speed": "standard",
	"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
	"thinking": {"type": "enabled", "budget_tokens": 2000, "display": "summarized"},
	"output_config": {"effort": "max", "format": {"type": "json_schema", "schema": {"type": "object"}}},
	"tools": [
		{"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {"a": {}}}, "cache_control": {"type": "ephemeral"}},
		{"type": "custom", "name": "g", "input_schema": {}, "strict": true, "eager_input_streaming": true, "defer_loading": false, "allowed_callers": ["direct"]}
	],
	"tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": true},
	"system": [{"type": "text", "text": "S1", "cache_control": {"type": "ephemeral", "ttl": "1h"}}, {"type": "text", "text": "S2"}],
	"messages": [
		{"role": "user", "content": "hello \ud83d\ude00"},
		{"role": "assistant", "content": [
			{"type": "thinking", "thinking": "T", "signature": "SIG"}, {"type": "redacted_thinking", "data": "R"},
			{"type": "text", "text": "I call", "citations": null},
			{"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}, "caller": {"type": "direct"}},
			{"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}}]},
		{"role": "user", "content": [
			{"type": "tool_result", "tool_use_id": "toolu_1", "content": "42", "cache_control": {"type": "ephemeral"}},
			{"type": "tool_result", "tool_use_id": "toolu_2", "is_error": true, "content": [
				{"type": "text", "text": "broken"}, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}]},
			{"type": "text", "text": "look"},
			{"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
			{"type": "image", "source": {"type": "file", "file_id": "file_1"}, "transformations": {}},
			{"type": "document", "title": "doc", "citations": {"enabled": false}, "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}},
			{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "plain"}},
			{"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}}]},
		{"role": "system", "content": "from now on"},
		{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_9"}]},
		{"role": "assistant", "content": "The answer is ("}
	]
}`

func TestParseEverything(t *testing.T) {
	req, e := ParseMessages([]byte(everything))
	if e != nil {
		t.Fatal(e)
	}
	data, err := execution.AppendInput(nil, req.Input)
	if err != nil {
		t.Fatal(err)
	}
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, data, "", "\t"); err != nil {
		t.Fatal(err)
	}
	golden(t, "input.json", pretty.Bytes())
	if _, err := execution.ParseInput(data); err != nil {
		t.Error(err)
	}
	for param, want := range map[execution.Param]string{
		execution.ParamStop: "stop_sequences", execution.ParamParallelToolCalls: "tool_choice.disable_parallel_tool_use",
		execution.ParamResponseFormat: "output_config.format", execution.ParamReasoningBudget: "thinking.budget_tokens",
		execution.ParamReasoningEffort: "output_config.effort", execution.ParamTopK: "top_k", execution.ParamMessages: "messages",
		execution.ParamPart(0, 1): "system.1", execution.ParamPart(1, 0): "messages.0.content", execution.ParamPart(2, 2): "messages.1.content.2",
		execution.ParamPart(3, 0): "messages.2.content.0.content", execution.ParamPart(4, 1): "messages.2.content.1.content.1",
		execution.ParamPart(5, 1): "messages.2.content.3", "messages[5]": "messages.2.content", "messages[99].content[0]": "messages[99].content[0]",
		"messages[-1]": "messages[-1]",
	} {
		if got := req.Param(param); got != want {
			t.Errorf("%s: named %q, want %q", param, got, want)
		}
	}
}

// ask puts members into a request that has what it must have.
func ask(members string) []byte {
	return []byte(`{"model":"m","max_tokens":1,` + members + `}`)
}

const hello = `"messages":[{"role":"user","content":"hello"}]`

func TestParseRefuses(t *testing.T) {
	block := func(b string) string { return `"messages":[{"role":"user","content":[` + b + `]}]` }
	said := func(b string) string { return `"messages":[{"role":"assistant","content":[` + b + `]}]` }
	tests := []struct{ members, param string }{
		{`"messages":[]`, "messages"}, {`"system":"s"`, "messages"}, {`"messages":"hello"`, "messages"},
		{`"messages":[1]`, "messages.0"}, {`"messages":[{"role":"tool","content":"a"}]`, "messages.0.role"},
		{`"messages":[{"role":"user"}]`, "messages.0.content"}, {`"messages":[{"role":"user","content":1}]`, "messages.0.content"},
		{`"messages":[{"role":"user","content":"a","name":"n"}]`, "messages.0.name"},
		{block(`1`), "messages.0.content.0"}, {block(`{"text":"a"}`), "messages.0.content.0.type"},
		{block(`{"type":"text","text":1}`), "messages.0.content.0.text"},
		{block(`{"type":"text","text":"a","citations":[{}]}`), "messages.0.content.0.citations"},
		{block(`{"type":"text","text":"a"},{"type":"search_result"}`), "messages.0.content.1.type"},
		{block(`{"type":"container_upload","file_id":"f"}`), "messages.0.content.0.type"},
		{block(`{"type":"tool_use","id":"a","name":"b","input":{}}`), "messages.0.content.0.type"},
		{block(`{"type":"thinking","thinking":"a","signature":"b"}`), "messages.0.content.0.type"},
		{block(`{"type":"image"}`), "messages.0.content.0.source"},
		{block(`{"type":"image","source":{"type":"base64","data":"aaaa"}}`), "messages.0.content.0.source.media_type"},
		{block(`{"type":"image","source":{"type":"text","media_type":"text/plain","data":"a"}}`), "messages.0.content.0.source"},
		{block(`{"type":"image","source":{"type":"url","url":"u","data":"a"}}`), "messages.0.content.0.source"},
		{block(`{"type":"image","source":{"type":"url","url":"u"},"transformations":{"oversized_image":"error"}}`), "messages.0.content.0.transformations"},
		{block(`{"type":"document","source":{"type":"content","content":"a"}}`), "messages.0.content.0.source.content"},
		{block(`{"type":"document","context":"c","source":{"type":"url","url":"u"}}`), "messages.0.content.0.context"},
		{block(`{"type":"document","citations":{"enabled":true},"source":{"type":"url","url":"u"}}`), "messages.0.content.0.citations"},
		{block(`{"type":"tool_result","content":"a"}`), "messages.0.content.0.tool_use_id"},
		{block(`{"type":"tool_result","tool_use_id":"a","content":[{"type":"tool_reference","tool_name":"x"}]}`), "messages.0.content.0.content.0.type"},
		{block(`{"type":"tool_result","tool_use_id":"a","content":[{"type":"thinking","thinking":"x"}]}`), "messages.0.content.0.content.0.type"},
		{said(`{"type":"server_tool_use","id":"a","name":"web_search","input":{}}`), "messages.0.content.0.type"},
		{said(`{"type":"image","source":{"type":"url","url":"u"}}`), "messages.0.content.0.type"},
		{said(`{"type":"tool_use","name":"b","input":{}}`), "messages.0.content.0.id"},
		{said(`{"type":"tool_use","id":"a","input":{}}`), "messages.0.content.0.name"},
		{said(`{"type":"tool_use","id":"a","name":"b"}`), "messages.0.content.0.input"},
		{said(`{"type":"tool_use","id":"a","name":"b","input":"{}"}`), "messages.0.content.0.input"},
		{said(`{"type":"tool_use","id":"a","name":"b","input":{},"caller":{"type":"code_execution_20250825","tool_id":"t"}}`), "messages.0.content.0.caller"},
		{said(`{"type":"redacted_thinking"}`), "messages.0.content.0.data"},
		{`"system":[{"type":"image","source":{"type":"url","url":"u"}}],` + hello, "system.0.type"},
		{`"temperature":"1",` + hello, "temperature"}, {`"top_p":"1",` + hello, "top_p"}, {`"top_k":1.5,` + hello, "top_k"},
		{`"stop_sequences":"a",` + hello, "stop_sequences"}, {`"stop_sequences":[1],` + hello, "stop_sequences.0"},
		{`"metadata":{"user_id":1},` + hello, "metadata.user_id"}, {`"metadata":"u",` + hello, "metadata"},
		{`"thinking":{"type":"enabled"},` + hello, "thinking.budget_tokens"}, {`"thinking":{"type":"adaptive","budget_tokens":5},` + hello, "thinking.budget_tokens"},
		{`"thinking":{"type":"between_tools"},` + hello, "thinking.type"}, {`"thinking":{"type":"adaptive","display":"x"},` + hello, "thinking.display"},
		{`"output_config":{"effort":"huge"},` + hello, "output_config.effort"}, {`"output_config":{"task_budget":{}},` + hello, "output_config.task_budget"},
		{`"output_config":{"format":{"type":"json_schema"}},` + hello, "output_config.format.schema"},
		{`"output_config":{"format":{"type":"grammar","schema":{}}},` + hello, "output_config.format.type"},
		{`"output_config":{"format":{"type":"json_schema","schema":{}}},"output_format":{"type":"json_schema","schema":{}},` + hello, "output_format"},
		{`"tools":[{"type":"web_search_20250305","name":"web_search"}],` + hello, "tools.0.type"},
		{`"tools":[{"type":"bash_20250124","name":"bash"}],` + hello, "tools.0.type"},
		{`"tools":[{"name":"f"}],` + hello, "tools.0.input_schema"}, {`"tools":[{"input_schema":{}}],` + hello, "tools.0.name"},
		{`"tools":[{"name":"f","input_schema":{},"defer_loading":true}],` + hello, "tools.0.defer_loading"},
		{`"tools":[{"name":"f","input_schema":{},"input_examples":[{}]}],` + hello, "tools.0.input_examples"},
		{`"tools":[{"name":"f","input_schema":{},"allowed_callers":["code_execution_20250825"]}],` + hello, "tools.0.allowed_callers"},
		{`"tool_choice":{"type":"tool"},` + hello, "tool_choice.name"}, {`"tool_choice":{"type":"tool","name":"x"},` + hello, "tool_choice.name"},
		{`"tool_choice":"auto",` + hello, "tool_choice"}, {`"tool_choice":{"type":"required"},` + hello, "tool_choice.type"},
		{`"tool_choice":{"type":"auto","name":"x"},` + hello, "tool_choice.name"},
		{`"service_tier":"standard_only",` + hello, "service_tier"}, {`"speed":"fast",` + hello, "speed"},
		{`"container":"c",` + hello, "container"}, {`"mcp_servers":[],` + hello, "mcp_servers"},
		{`"context_management":{"edits":[{"type":"clear_tool_uses_20250919"}]},` + hello, "context_management"},
		{`"context_management":{"edits":[{"type":"clear_thinking_20251015","keep":{"type":"thinking_turns","value":1}}]},` + hello, "context_management"},
		{`"thread":{"type":"create"},` + hello, "thread"}, {`"frequency_penalty":1,` + hello, "frequency_penalty"}, {`"betas":"b",` + hello, "betas"},
		{`"messages":[{"role":"user","content":"a","content":"b"}]`, "messages.0.content"},
	}
	for _, tt := range tests {
		_, e := ParseMessages(ask(tt.members))
		if e == nil {
			t.Errorf("%s passed", tt.members)
			continue
		}
		if e.Status != 400 || e.Param != tt.param || !strings.HasPrefix(e.Message, tt.param+":") {
			t.Errorf("%s: %v, want the param %s", tt.members, e, tt.param)
		}
	}
}

func TestMaxTokensIsRequired(t *testing.T) {
	for _, body := range []string{`{"model":"m",` + hello + `}`, `{"model":"m","max_tokens":0,` + hello + `}`, `{"model":"m","max_tokens":null,` + hello + `}`} {
		if _, e := ParseMessages([]byte(body)); e == nil || e.Param != "max_tokens" {
			t.Errorf("%s: %v", body, e)
		}
	}
	if _, e := ParseCountTokens([]byte(`{"model":"m",` + hello + `}`)); e != nil {
		t.Errorf("counting needs no max_tokens: %v", e)
	}
}

// TestBounds: a request's size in memory is no multiple of its size on the wire that the client chooses.
func TestBounds(t *testing.T) {
	many := func(n int, s string) string { return strings.TrimSuffix(strings.Repeat(s+",", n), ",") }
	tests := []struct{ members, param string }{
		{`"messages":[` + many(maxMessages+1, `{"role":"user","content":""}`) + `]`, "messages"},
		{`"messages":[{"role":"user","content":[` + many(maxMessages+1, `{"type":"tool_result","tool_use_id":"a"}`) + `]}]`, "messages"},
		{`"messages":[` + many(11, `{"role":"user","content":[`+many(maxParts/10, `{"type":"text","text":""}`)+`]}`) + `]`, "messages"},
		{`"tools":[` + many(maxTools+1, `{"name":"f","input_schema":{}}`) + `],` + hello, "tools"},
		{`"stop_sequences":[` + many(maxStops+1, `"a"`) + `],` + hello, "stop_sequences"},
	}
	for _, tt := range tests {
		if _, e := ParseMessages(ask(tt.members)); e == nil || e.Param != tt.param {
			t.Errorf("%.60s: %v, want the param %s", tt.members, e, tt.param)
		}
	}
}

func TestCountTokens(t *testing.T) {
	count := func(members string) int64 {
		t.Helper()
		req, e := ParseCountTokens(ask(members))
		if e != nil {
			t.Fatal(e)
		}
		return CountTokens(req.Input)
	}
	text := func(n int) string {
		return `"messages":[{"role":"user","content":"` + strings.Repeat("word", n) + `"}]`
	}
	small, large := count(text(10)), count(text(1000))
	if small != 10+overhead || large != 1000+overhead {
		t.Errorf("10 words are %d, 1000 are %d", small, large)
	}
	picture := count(`"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + strings.Repeat("A", 1<<20) + `"}}]}]`)
	if picture < 1000 || picture > 1100 {
		t.Errorf("a picture of a MiB is %d tokens", picture)
	}
	if with := count(`"tools":[{"name":"f","description":"` + strings.Repeat("word", 100) + `","input_schema":{}}],` + text(10)); with < small+100 {
		t.Errorf("a tool's description is not counted: %d, without it %d", with, small)
	}
	if got := string(AppendCount(nil, 12)); got != `{"input_tokens":12}` {
		t.Errorf("the answer is %s", got)
	}
}

func FuzzParseMessages(f *testing.F) {
	f.Add([]byte(everything))
	f.Add(ask(hello))
	f.Add(ask(`"output_format":{"type":"json_schema","schema":{"a":[1e999]}},` + hello))
	f.Add(ask(`"thinking":{"type":"disabled"},"system":"\ud800\u0000",` + hello))
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, body []byte) {
		req, e := ParseMessages(body)
		if e != nil {
			if e.Status != 400 || e.Message == "" {
				t.Fatalf("refused with %v", e)
			}
			return
		}
		data, err := execution.AppendInput(nil, req.Input)
		if err != nil {
			t.Fatalf("the input can't travel: %v", err)
		}
		in, err := execution.ParseInput(data)
		if err != nil {
			t.Fatalf("the Node refuses %s: %v", data, err)
		}
		again, err := execution.AppendInput(nil, in)
		if err != nil || !bytes.Equal(again, data) {
			t.Fatalf("%s became %s (%v)", data, again, err)
		}
		if CountTokens(in) < 1 {
			t.Fatal("a prompt without a token")
		}
		for i := range in.Messages {
			if name := req.Param(execution.ParamPart(i, 0)); name == "" || strings.HasPrefix(name, "messages[") {
				t.Fatalf("message %d has no name of the client's: %q", i, name)
			}
		}
	})
}

func BenchmarkParseMessages(b *testing.B) {
	body := ask(`"messages":[{"role":"user","content":[{"type":"text","text":"What is this?"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` +
		strings.Repeat("A", 1<<20) + `"}}]}]`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, e := ParseMessages(body); e != nil {
			b.Fatal(e)
		}
	}
}
