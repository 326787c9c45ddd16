package ollama

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

const png = "iVBORw0KGgo="

// chatting is a chat with each member that can be carried.
const chatting = `{
	"model": "m", "stream": true, "format": {"type": "object"}, "think": "high", "keep_alive": "5m", "logprobs": true, "top_logprobs": 2,
	"truncate": false, "shift": true, "_debug_render_only": false, "session_id": "s",
	"options": {"num_predict": 100, "temperature": 0.5, "top_k": 40, "top_p": 0.9, "min_p": 0.05, "seed": 7, "stop": ["END"],
		"repeat_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.2, "num_ctx": 8192, "use_mmap": true, "mirostat": null},
	"tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {}}}, "strict": true}},
		{"type": "function", "function": {"name": "g"}}],
	"messages": [
		{"role": "System", "content": "S"},
		{"role": "user", "content": "look", "images": ["` + png + `", "/9j/4AAQ"]},
		{"role": "assistant", "content": "", "thinking": "T", "tool_calls": [
			{"function": {"name": "f", "arguments": {"a": 1}, "index": 0}}, {"id": "own", "type": "function", "function": {"name": "g", "arguments": {}}},
			{"function": {"name": "f", "arguments": {"a": 2}}}]},
		{"role": "tool", "content": "of g", "tool_name": "g"},
		{"role": "tool", "content": "of f", "tool_name": "f"},
		{"role": "tool", "content": "of the other f"},
		{"role": "assistant", "content": "done", "tool_calls": [{"id": "c9", "function": {"name": "f", "arguments": {}}}]},
		{"role": "tool", "content": "", "tool_call_id": "c9", "images": ["` + png + `"]},
		{"role": "user", "content": ""}
	]
}`

// generating is a generation with each member that can be carried, and with nothing where clients send nothing.
const generating = `{"model": "m", "prompt": "P", "system": "S", "images": ["` + png + `"], "suffix": "", "template": "", "context": [], "raw": false,
	"format": "json", "think": false, "options": {"num_predict": -1, "seed": -1}, "keep_alive": -1, "width": 0}`

func TestParseEverything(t *testing.T) {
	chat, e := ParseChat([]byte(chatting))
	if e != nil {
		t.Fatal(e)
	}
	generate, e := ParseGenerate([]byte(generating))
	if e != nil {
		t.Fatal(e)
	}
	for file, in := range map[string]*execution.Input{"chat.json": chat.Input, "generate.json": generate.Input} {
		data, err := execution.AppendInput(nil, in)
		if err != nil {
			t.Fatal(err)
		}
		var pretty bytes.Buffer
		if err := json.Indent(&pretty, data, "", "\t"); err != nil {
			t.Fatal(err)
		}
		golden(t, file, pretty.Bytes())
		if _, err := execution.ParseInput(data); err != nil {
			t.Error(err)
		}
	}
	for param, want := range map[execution.Param]string{
		execution.ParamMaxTokens: "options.num_predict", execution.ParamStop: "options.stop", execution.ParamTopK: "options.top_k",
		execution.ParamResponseFormat: "format", execution.ParamReasoningEffort: "think", execution.ParamTools: "tools", "options.num_ctx": "options.num_ctx",
		execution.ParamMessages: "messages", execution.ParamPart(1, 0): "messages[1].content", execution.ParamPart(1, 2): "messages[1].images[1]",
		execution.ParamPart(2, 0): "messages[2].thinking", execution.ParamPart(7, 0): "messages[7].images[0]", execution.ParamPart(7, 9): "messages[7]",
		execution.ParamPart(99, 0): "messages[99].content[0]",
	} {
		if got := chat.Param(param); got != want {
			t.Errorf("%s: named %q, want %q", param, got, want)
		}
	}
	for param, want := range map[execution.Param]string{
		execution.ParamMessages: "prompt", execution.ParamPart(0, 0): "system", execution.ParamPart(1, 0): "prompt", execution.ParamPart(1, 1): "images[0]",
	} {
		if got := generate.Param(param); got != want {
			t.Errorf("%s of generate: named %q, want %q", param, got, want)
		}
	}
}

const hello = `"messages":[{"role":"user","content":"hello"}]`

func TestParseRefuses(t *testing.T) {
	called := `{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f","arguments":{}}}]}`
	chats := map[string]string{
		`"messages":[]`: "messages", `"options":{}`: "messages", `"messages":"hello"`: "messages", `"messages":[1]`: "messages[0]",
		`"messages":[{"role":"developer","content":"a"}]`:                                             "messages[0].role",
		`"messages":[{"role":"user","content":[]}]`:                                                   "messages[0].content",
		`"messages":[{"role":"user","content":"a","name":"n"}]`:                                       "messages[0].name",
		`"messages":[{"role":"user","content":"a","images":["AAAA"]}]`:                                "messages[0].images[0]",
		`"messages":[{"role":"user","content":"a","images":[1]}]`:                                     "messages[0].images[0]",
		`"messages":[{"role":"user","content":"a","thinking":"b"}]`:                                   "messages[0].thinking",
		`"messages":[{"role":"user","content":"a","tool_name":"b"}]`:                                  "messages[0].tool_name",
		`"messages":[{"role":"user","content":"a","tool_call_id":"b"}]`:                               "messages[0].tool_call_id",
		`"messages":[{"role":"user","tool_calls":[{"function":{"name":"f"}}]}]`:                       "messages[0].tool_calls",
		`"messages":[{"role":"tool","content":"a","tool_name":"f"}]`:                                  "messages[0]",
		`"messages":[` + called + `,{"role":"tool","content":"a","tool_name":"g"}]`:                   "messages[1]",
		`"messages":[` + called + `,{"role":"tool","content":"a","tool_call_id":"b"}]`:                "messages[1]",
		`"messages":[` + called + `,{"role":"tool","content":"a"},{"role":"tool","content":"b"}]`:     "messages[2]",
		`"messages":[{"role":"assistant","tool_calls":[{"function":{"arguments":{}}}]}]`:              "messages[0].tool_calls[0].function.name",
		`"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}]`: "messages[0].tool_calls[0].function.arguments",
		`"messages":[{"role":"assistant","tool_calls":[{"type":"x","function":{"name":"f"}}]}]`:       "messages[0].tool_calls[0].type",
		`"tools":[{"type":"web_search"}],` + hello:                                                    "tools[0].type",
		`"tools":[{"function":{}}],` + hello:                                                          "tools[0].function.name",
		`"tools":[{"function":{"name":"f","parameters":[]}}],` + hello:                                "tools[0].function.parameters",
		`"tools":[{"items":1,"function":{"name":"f"}}],` + hello:                                      "tools[0].items",
		`"format":"yaml",` + hello:                                                                    "format",
		`"format":true,` + hello:                                                                      "format",
		`"think":"huge",` + hello:                                                                     "think",
		`"think":1,` + hello:                                                                          "think",
		`"keep_alive":"soon",` + hello:                                                                "keep_alive",
		`"keep_alive":true,` + hello:                                                                  "keep_alive",
		`"logprobs":1,` + hello:                                                                       "logprobs",
		`"top_logprobs":21,` + hello:                                                                  "top_logprobs",
		`"top_logprobs":-1,` + hello:                                                                  "top_logprobs",
		`"truncate":1,` + hello:                                                                       "truncate",
		`"_debug_render_only":true,` + hello:                                                          "_debug_render_only",
		`"options":[],` + hello:                                                                       "options",
		`"options":{"temperature":"1"},` + hello:                                                      "options.temperature",
		`"options":{"top_k":1.5},` + hello:                                                            "options.top_k",
		`"options":{"stop":"a"},` + hello:                                                             "options.stop",
		`"options":{"numctx":1},` + hello:                                                             "options.numctx",
		`"options":{"seed":1,"seed":2},` + hello:                                                      "options.seed",
		`"max_tokens":1,` + hello:                                                                     "max_tokens",
		`"prompt":"a",` + hello:                                                                       "prompt",
		`"messages":[{"role":"user","content":"a","images":["` + strings.Repeat(png+`","`, maxImages) + png + `"]}]`: "messages[0].images",
	}
	for members, param := range chats {
		_, e := ParseChat([]byte(`{"model":"m",` + members + `}`))
		if e == nil || e.Status != 400 || e.Param != param || !strings.HasPrefix(e.Message, param+":") {
			t.Errorf("%.200s: %v, want the param %s", members, e, param)
		}
	}
	for members, param := range map[string]string{
		`"prompt":""`: "prompt", `"system":"s"`: "prompt", `"prompt":1`: "prompt", `"prompt":"a","suffix":"b"`: "suffix", `"prompt":"a","template":"b"`: "template",
		`"prompt":"a","context":[1]`: "context", `"prompt":"a","raw":true`: "raw", `"prompt":"a","width":512`: "width", `"prompt":"a","steps":4`: "steps",
		`"prompt":"a","images":["x"]`: "images[0]", `"prompt":"a","tools":[]`: "tools", `"prompt":"a","messages":[]`: "messages",
	} {
		_, e := ParseGenerate([]byte(`{"model":"m",` + members + `}`))
		if e == nil || e.Status != 400 || e.Param != param {
			t.Errorf("%s: %v, want the param %s", members, e, param)
		}
	}
}

func TestBounds(t *testing.T) {
	many := func(n int, s string) string { return strings.TrimSuffix(strings.Repeat(s+",", n), ",") }
	for members, param := range map[string]string{
		`"messages":[` + many(maxMessages+1, `{"role":"user"}`) + `]`:                                            "messages",
		`"tools":[` + many(maxTools+1, `{"function":{"name":"f"}}`) + `],` + hello:                               "tools",
		`"messages":[{"role":"assistant","tool_calls":[` + many(maxCalls+1, `{"function":{"name":"f"}}`) + `]}]`: "messages[0].tool_calls",
		`"options":{"stop":[` + many(maxStops+1, `"a"`) + `]},` + hello:                                          "options.stop",
	} {
		if _, e := ParseChat([]byte(`{"model":"m",` + members + `}`)); e == nil || e.Param != param {
			t.Errorf("%.60s: %v, want the param %s", members, e, param)
		}
	}
}

func TestParseLoad(t *testing.T) {
	tests := []struct {
		body                 string
		generate, unload, ok bool
	}{
		{`{"model":"m"}`, false, false, true}, {`{"model":"m","messages":[]}`, false, false, true}, {`{"model":"m","messages":null,"keep_alive":0}`, false, true, true},
		{`{"model":"m","keep_alive":"0s"}`, false, true, true}, {`{"model":"m","keep_alive":"5m"}`, false, false, true}, {`{"model":"m","keep_alive":-1}`, false, false, true},
		{`{"model":"m",` + hello + `}`, false, false, false}, {`{"model":"m",` + hello + `,"keep_alive":0}`, false, false, false},
		{`{"model":"m","prompt":""}`, true, false, true}, {`{"model":"m","prompt":"","keep_alive":0.0}`, true, true, true}, {`{"model":"m","prompt":"a"}`, true, false, false},
		{`[]`, false, false, false},
	}
	for _, tt := range tests {
		if unload, ok := ParseLoad([]byte(tt.body), tt.generate); unload != tt.unload || ok != tt.ok {
			t.Errorf("%s: unload %t, ok %t", tt.body, unload, ok)
		}
	}
}

func fuzz(f *testing.F, parse func([]byte) (*execution.Input, func(execution.Param) string, bool)) {
	f.Add([]byte(chatting))
	f.Add([]byte(generating))
	f.Add([]byte(`{"model":"m",` + hello + `}`))
	f.Add([]byte(`{"model":"m","prompt":"\ud800","options":{"temperature":1e400}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		in, name, ok := parse(body)
		if !ok {
			return
		}
		data, err := execution.AppendInput(nil, in)
		if err != nil {
			t.Fatalf("the input can't travel: %v", err)
		}
		in, err = execution.ParseInput(data)
		if err != nil {
			t.Fatalf("the Node refuses %s: %v", data, err)
		}
		again, err := execution.AppendInput(nil, in)
		if err != nil || !bytes.Equal(again, data) {
			t.Fatalf("%s became %s (%v)", data, again, err)
		}
		for i, m := range in.Messages {
			for j := range m.Parts {
				if s := name(execution.ParamPart(i, j)); s == "" || strings.Contains(s, "content[") {
					t.Fatalf("part %d of message %d has no name of the client's: %q", j, i, s)
				}
			}
		}
	})
}

func FuzzParseChat(f *testing.F) {
	fuzz(f, func(body []byte) (*execution.Input, func(execution.Param) string, bool) {
		req, e := ParseChat(body)
		if e != nil {
			return nil, nil, false
		}
		return req.Input, req.Param, true
	})
}

func FuzzParseGenerate(f *testing.F) {
	fuzz(f, func(body []byte) (*execution.Input, func(execution.Param) string, bool) {
		req, e := ParseGenerate(body)
		if e != nil {
			return nil, nil, false
		}
		return req.Input, req.Param, true
	})
}
