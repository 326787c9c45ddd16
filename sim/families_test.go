package sim

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

// family is one protocol in which an answer may be asked for: where, and how a request for a stream looks.
type family struct {
	name, path, body string // of body %ORDER% is where the knobs go
	terminal         string // what only a complete stream has
	failure          string // what a stream has that reports an error
	overflow         string // the body of a prompt that does not fit
}

var families = []family{
	{"chat", "/v1/chat/completions", `{"model":"sim-small","stream":true,"messages":[{"role":"user","content":"sim:%ORDER% hi"}]}`,
		`"finish_reason":"stop"`, `data: {"error":{`, `"code":"context_length_exceeded"`},
	{"responses", "/v1/responses", `{"model":"sim-small","stream":true,"input":"sim:%ORDER% hi"}`,
		`"type":"response.completed"`, `"type":"error"`, `"code":"context_length_exceeded"`},
	{"messages", "/v1/messages", `{"model":"sim-small","stream":true,"max_tokens":100,"messages":[{"role":"user","content":"sim:%ORDER% hi"}]}`,
		`"type":"message_stop"`, "event: error\n", `"type":"invalid_request_error"`},
	{"ollama chat", "/api/chat", `{"model":"sim-small","messages":[{"role":"user","content":"sim:%ORDER% hi"}]}`,
		`"done":true`, `{"error":"`, `{"error":"the input length exceeds the context length"}`},
	{"ollama generate", "/api/generate", `{"model":"sim-small","prompt":"sim:%ORDER% hi"}`,
		`"done":true`, `{"error":"`, `{"error":"the input length exceeds the context length"}`},
}

func (f family) ask(order string) string { return strings.Replace(f.body, "%ORDER%", order, 1) }

// TestFaultsInEveryFamily: each protocol can be asked for each way in which an answer goes wrong.
func TestFaultsInEveryFamily(t *testing.T) {
	for _, f := range families {
		r := start(t, func(c *Config) {
			if c.Flavour = OpenAI; strings.HasPrefix(f.path, "/api/") {
				c.Flavour = Ollama
			}
		})
		whole := r.post(f.path, f.ask("tokens=5"))
		if whole.StatusCode != 200 || !strings.Contains(whole.body, f.terminal) || strings.Contains(whole.body, f.failure) {
			t.Errorf("%s: a good answer is %d %s", f.name, whole.StatusCode, whole.body)
		}
		for _, fault := range []string{"midclose", "error_event_first", "error_event_mid", "malformed"} {
			a := r.post(f.path, f.ask("tokens=5,"+fault))
			if a.StatusCode != 200 || strings.Contains(a.body, f.terminal) {
				t.Errorf("%s %s: %d %s", f.name, fault, a.StatusCode, a.body)
			}
			if strings.Contains(a.body, f.failure) != strings.HasPrefix(fault, "error") {
				t.Errorf("%s %s: %s", f.name, fault, a.body)
			}
			if bad := badPiece(a.body); bad != (fault == "malformed") {
				t.Errorf("%s %s: a piece that is no JSON is %t in %s", f.name, fault, bad, a.body)
			}
		}
		if a := r.post(f.path, f.ask("overflow")); a.StatusCode != 400 || !strings.Contains(a.body, f.overflow) {
			t.Errorf("%s overflow: %d %s", f.name, a.StatusCode, a.body)
		}
		unary := strings.Replace(strings.Replace(f.ask("malformed"), `"stream":true,`, "", 1), `{"model"`, `{"stream":false,"model"`, 1)
		if a := r.post(f.path, unary); a.StatusCode != 200 || json.Valid([]byte(a.body)) {
			t.Errorf("%s malformed: a whole answer is %d %s", f.name, a.StatusCode, a.body)
		}
	}
}

// badPiece reports whether an event or a line of the stream is no JSON.
func badPiece(stream string) bool {
	for line := range strings.SplitSeq(stream, "\n") {
		data, sse := strings.CutPrefix(line, "data: ")
		if (sse || strings.HasPrefix(line, "{")) && data != "[DONE]" && !json.Valid([]byte(data)) {
			return true
		}
	}
	return false
}

// changing is what differs between two runs of the same request.
var changing = regexp.MustCompile(`"(created_at|(?:total|load|prompt_eval|eval)_duration)":(?:"[^"]*"|\d+)`)

// TestGoldenFamilies: what the simulator says in the protocols of Anthropic and Ollama, to the letter: a thought and
// calls, then the turn after them; structured output; and the object of each.
func TestGoldenFamilies(t *testing.T) {
	r := start(t, func(c *Config) { c.Flavour = Ollama })
	const (
		schema   = `{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"}},"required":["city"]}`
		image    = `iVBORw0KGgo=`
		messages = `{"model":"sim-small","max_tokens":100,"stream":STREAM,"thinking":{"type":"enabled","budget_tokens":2000},
			"tools":[{"name":"weather","input_schema":` + schema + `},{"name":"time","input_schema":{"type":"object"}}],"messages":[
			{"role":"user","content":[{"type":"text","text":"sim:tools=2 hi"},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"` + image + `"}}]}`
		answered = `,{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"s"},{"type":"tool_use","id":"a","name":"weather","input":{}}]},
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":[{"type":"text","text":"sunny"}]}]}`
		chat = `{"model":"sim-small","stream":STREAM,"think":true,"options":{"num_ctx":8192},"keep_alive":"5m",
			"tools":[{"type":"function","function":{"name":"weather","parameters":` + schema + `}},{"type":"function","function":{"name":"time","parameters":{}}}],"messages":[
			{"role":"user","content":"the weather and the time","images":["` + image + `"]}`
		told = `,{"role":"assistant","content":"","thinking":"t","tool_calls":[{"function":{"name":"weather","arguments":{}}}]},{"role":"tool","tool_name":"weather","content":"sunny"}`
	)
	for _, c := range []struct{ file, path, body string }{
		{"messages_calls", "/v1/messages", messages + `]}`},
		{"messages_answered", "/v1/messages", messages + answered + `]}`},
		{"messages_schema", "/v1/messages", `{"model":"sim-small","max_tokens":100,"stream":STREAM,"output_config":{"format":{"type":"json_schema","schema":` + schema + `}},"messages":[{"role":"user","content":"hi"}]}`},
		{"ollama_calls", "/api/chat", chat + `]}`},
		{"ollama_answered", "/api/chat", chat + told + `]}`},
		{"ollama_schema", "/api/chat", `{"model":"sim-small","stream":STREAM,"format":` + schema + `,"messages":[{"role":"user","content":"hi"}]}`},
		{"ollama_generate", "/api/generate", `{"model":"sim-small","stream":STREAM,"think":true,"prompt":"hi","system":"s","options":{"num_predict":2}}`},
		{"ollama_load", "/api/chat", `{"model":"sim-small","stream":STREAM,"messages":[]}`},
		{"ollama_unload", "/api/generate", `{"model":"sim-small","stream":STREAM,"keep_alive":0}`},
	} {
		for _, stream := range []string{"true", "false"} {
			a := r.post(c.path, strings.Replace(c.body, "STREAM", stream, 1))
			if a.StatusCode != 200 {
				t.Errorf("%s: %d %s", c.file, a.StatusCode, a.body)
			}
			suffix := map[string]string{"true": ".stream", "false": ".json"}[stream]
			goldenFile(t, c.file+suffix, changing.ReplaceAllString(a.body, `"$1":0`))
		}
	}
}

func goldenFile(t *testing.T, file, got string) {
	t.Helper()
	file = filepath.Join("testdata", "families", file)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", file, got, want)
	}
}
