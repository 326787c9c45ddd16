package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestParseEnvelope(t *testing.T) {
	for _, c := range []struct {
		body string
		want Envelope // its exported fields
	}{
		{`{}`, Envelope{}},
		{` {"model" : "gpt-4o" } `, Envelope{Model: "gpt-4o"}},
		{`{"messages":[{"model":"no"}],"model":"a/b:c","stream":true}`, Envelope{Model: "a/b:c", Stream: true, StreamSet: true}},
		{`{"model":"m","stream":false}`, Envelope{Model: "m", StreamSet: true}},
		{`{"model":"m","stream":null,"stream_options":null}`, Envelope{Model: "m"}},
		{`{"model":"m","stream_options":{}}`, Envelope{Model: "m"}},
		{`{"model":"m","stream_options":{"include_obfuscation":false,"include_usage":true}}`, Envelope{Model: "m", IncludeUsage: true}},
		{`{"model":"m","stream_options":{"include_usage":null}}`, Envelope{Model: "m"}},
		{`{"model":"a\/b\u0041\u00e9\ud83d\ude00"}`, Envelope{Model: "a/bAé😀"}},
		{`{"user":"u","session_id":"s","prompt_cache_key":"k","model":"m"}`,
			Envelope{Model: "m", User: "u", SessionID: "s", PromptCacheKey: "k"}},
		{`{"user":"u\n2","session_id":null,"model":"m"}`, Envelope{Model: "m", User: "u\n2"}},
		{`{"user":"` + strings.Repeat("u", MaxHintLength) + `"}`, Envelope{User: strings.Repeat("u", MaxHintLength)}},
		{`{"user":"` + strings.Repeat("u", MaxHintLength+1) + `"}`, Envelope{}},
		{`{"mode":"y","models":["z"],"model":"m","streams":1,"stream_option":2,"sessionId":"s"}`, Envelope{Model: "m"}},
		{`{"model":"m","\u0061":1,"metadata":{"é\ud83d\ude00":1},"messages":[{"content":"half an emoji: \ud83d"}]}`, Envelope{Model: "m"}},
		{`{"model":"` + strings.Repeat("m", MaxModelLength) + `"}`, Envelope{Model: strings.Repeat("m", MaxModelLength)}},
		{`{"input":[1,-0,2.5e-3,1E+9,true,false,null,[],{}],"model":"m"}`, Envelope{Model: "m"}},
		{strings.Repeat("\n", 1<<20) + `{"model":"m"}`, Envelope{Model: "m"}},
	} {
		e, err := ParseEnvelope([]byte(c.body))
		if err != nil {
			t.Errorf("%.80s: %v", c.body, err)
			continue
		}
		if got := exported(e); got != c.want {
			t.Errorf("%.80s: %+v, want %+v", c.body, got, c.want)
		}
	}
}

// exported keeps only what callers see.
func exported(e Envelope) Envelope {
	return Envelope{Model: e.Model, Stream: e.Stream, StreamSet: e.StreamSet, IncludeUsage: e.IncludeUsage,
		SessionID: e.SessionID, PromptCacheKey: e.PromptCacheKey, User: e.User}
}

func TestParseEnvelopeFindsModelBehindImage(t *testing.T) {
	body := []byte(`{"messages":[{"content":"` + strings.Repeat("QUJD", 30<<18) + `"}],"model":"vision","stream":true}`)
	e, err := ParseEnvelope(body)
	if err != nil || e.Model != "vision" || !e.Stream {
		t.Fatalf("%+v %v", exported(e), err)
	}
	if n := allocated(func() { _, _ = ParseEnvelope(body) }); n > 64<<10 {
		t.Errorf("%d bytes allocated for a large body", n)
	}
}

func TestParseEnvelopeRefuses(t *testing.T) {
	deep := func(n int) string {
		return `{"model":"m","x":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}`
	}
	if _, err := ParseEnvelope([]byte(deep(maxDepth - 1))); err != nil {
		t.Errorf("depth %d: %v", maxDepth, err)
	}
	for body, param := range map[string]string{
		"": "", "  ": "", "null": "", `"x"`: "", "[]": "", "{": "", "}": "", `{"model":"m"`: "", `{"model":"m"}}`: "", `{"model":"m"} x`: "",
		`{"model":"m",}`: "", `{,"model":"m"}`: "", `{"model" "m"}`: "", `{model:"m"}`: "", `{'model':'m'}`: "", `{"a":01}`: "", `{"a":1.}`: "",
		`{"a":.5}`: "", `{"a":+1}`: "", `{"a":1e}`: "", `{"a":-}`: "", `{"a":NaN}`: "", `{"a":tru}`: "", `{"a":"` + "\n" + `"}`: "", `{"a":"\x"}`: "",
		`{"a":"\u12g4"}`: "", `{"a":"\`: "", "\ufeff{}": "", `{"a":[1,]}`: "", `{"a":[1 2]}`: "", `{"a":{"b"}}`: "", "{\"a\":1\x00}": "",
		`{"model":"m"}{"model":"n"}`: "",
		deep(maxDepth):               "", deep(100_000): "",
		`{"stream_options":{"a":1,}}`: "", `{"stream_options":{`: "", `{"stream_options":`: "", `{"stream_options":{"include_usage"}}`: "",

		`{"model":1}`: "model", `{"model":null}`: "model", `{"model":["m"]}`: "model", `{"model":{}}`: "model", `{"model":""}`: "model",
		`{"model":"` + strings.Repeat("m", MaxModelLength+1) + `"}`: "model",
		`{"model":"` + strings.Repeat("m", 1<<20) + `"}`:            "model",
		`{"model":"a\nb"}`: "model", `{"model":"a\u0000"}`: "model", `{"model":"a\u007f"}`: "model", `{"model":"a\u0085"}`: "model",
		`{"model":"a\ud800"}`: "model", "{\"model\":\"a\xff\"}": "", `{"model":"a\ufffd"}`: "model",
		`{"model":"a","model":"b"}`: "model", `{"model":"a","model":"a"}`: "model", `{"model":"a","MODEL":"b"}`: "model", `{"Model":"a"}`: "model",
		`{"model":"a","m\u006fdel":"b"}`: "model", `{"\u006d\u006f\u0064\u0065\u006c":"b"}`: "model", `{"m\u004fdel":"b"}`: "model",

		`{"stream":"true"}`: "stream", `{"stream":1}`: "stream", `{"stream":[]}`: "stream", `{"stream":true,"stream":false}`: "stream",
		`{"STREAM":true}`: "stream", `{"ſtream":true}`: "stream", `{"\u017ftream":true}`: "stream", `{"s\u0074ream":true}`: "stream",

		`{"stream_options":1}`: "stream_options", `{"stream_options":[]}`: "stream_options", `{"stream_options":{},"stream_options":{}}`: "stream_options",
		`{"Stream_Options":{}}`: "stream_options", `{"ſtream_optionſ":{}}`: "stream_options",
		`{"stream_options":{"include_usage":1}}`:                           "stream_options.include_usage",
		`{"stream_options":{"include_usage":true,"include_usage":false}}`:  "stream_options.include_usage",
		`{"stream_options":{"Include_Usage":true}}`:                        "stream_options.include_usage",
		`{"stream_options":{"include_u\u0073age":true}}`:                   "stream_options.include_usage",
		`{"stream_options":{"include_u\u017fage":true,"include_usage":1}}`: "stream_options.include_usage",

		`{"__proto__":{}}`: "", `{"\u005f_proto__":1}`: "", `{"stream_options":{"__proto__":{}}}`: "", `{"options":{"a":1,"__proto__":{}}}`: "",
		`{"metadata":{"__proto__":1}}`: "", `{"x":[{"y":{"__proto__":1}}]}`: "", `{"tools":[{"__proto__":{"model":1}}]}`: "",
		`{"messages":[{"__proto__":{"tools":[]}}]}`: "", `{"input":[{"content":[{"_\u005fproto__":{}}]}]}`: "",

		`{"user":1}`: "user", `{"session_id":{}}`: "session_id", `{"prompt_cache_key":true}`: "prompt_cache_key",
	} {
		_, err := ParseEnvelope([]byte(body))
		e, ok := errors.AsType[*Error](err)
		if !ok {
			t.Errorf("%.80q passed (%v)", body, err)
			continue
		}
		if e.Status != 400 || e.Type != "invalid_request_error" || e.Param != param || e.Message == "" || !e.NoRetry {
			t.Errorf("%.80q: %+v, want param %q", body, e, param)
		}
		if len(e.Message) > 300 {
			t.Errorf("%.80q: the message repeats the request: %.100s", body, e.Message)
		}
	}
}

func TestRewrite(t *testing.T) {
	for _, c := range []struct {
		body  string
		model string
		usage bool
		want  string
	}{
		{`{"model":"a","stream":true}`, "", false, `{"model":"a","stream":true}`},
		{`{"model":"a","stream":true}`, "a", false, `{"model":"a","stream":true}`},
		{`{ "stream" : true , "model" : "a" }`, "b/c:1", false, `{ "stream" : true , "model" : "b/c:1" }`},
		{`{"model":"\u0061"}`, "a", false, `{"model":"a"}`},
		{`{"model":"a"}`, "say \"hi\"\\", false, `{"model":"say \"hi\"\\"}`},
		{`{}`, "b", false, `{"model":"b"}`},
		{`{"x":1}`, "b", false, `{"model":"b","x":1}`},
		{`{"model":"a"}`, "", true, `{"model":"a"}`},
		{`{"model":"a","stream":true}`, "", true, `{"stream_options":{"include_usage":true},"model":"a","stream":true}`},
		{`{"model":"a","stream":true,"stream_options":null}`, "b", true, `{"model":"b","stream":true,"stream_options":{"include_usage":true}}`},
		{`{"stream_options":{ },"model":"a","stream":true}`, "b", true, `{"stream_options":{"include_usage":true },"model":"b","stream":true}`},
		{`{"model":"a","stream":true,"stream_options":{"x":[1]}}`, "", true, `{"model":"a","stream":true,"stream_options":{"include_usage":true,"x":[1]}}`},
		{`{"model":"a","stream":true,"stream_options":{"include_usage":false}}`, "", true, `{"model":"a","stream":true,"stream_options":{"include_usage":true}}`},
		{`{"model":"a","stream":true,"stream_options":{"include_usage":null,"x":1}}`, "", true, `{"model":"a","stream":true,"stream_options":{"include_usage":true,"x":1}}`},
		{`{"model":"a","stream":true,"stream_options":{"include_usage":true}}`, "a", true, `{"model":"a","stream":true,"stream_options":{"include_usage":true}}`},
		{`{"stream":true}`, "b", true, `{"model":"b","stream_options":{"include_usage":true},"stream":true}`},
	} {
		body := []byte(c.body)
		e, err := ParseEnvelope(body)
		if err != nil {
			t.Fatalf("%s: %v", c.body, err)
		}
		got := e.Rewrite(body, RewriteSpec{Model: c.model, IncludeUsage: c.usage})
		if string(got) != c.want {
			t.Errorf("%s with %q, usage %t:\n%s, want\n%s", c.body, c.model, c.usage, got, c.want)
		}
		parts := e.RewriteParts(body, RewriteSpec{Model: c.model, IncludeUsage: c.usage})
		if joined := string(bytes.Join(parts, nil)); joined != c.want || string(body) != c.body {
			t.Errorf("%s in parts: %s, want %s", c.body, joined, c.want)
		}
		if c.body == c.want && &got[0] != &body[0] {
			t.Errorf("%s: copied although nothing changed", c.body)
		}
		if string(body) != c.body {
			t.Errorf("%s: the client's body was changed", c.body)
		}
	}
}

func TestRewriteOfNoEnvelope(t *testing.T) {
	if got := (Envelope{Model: "a", Stream: true}).Rewrite([]byte("--form"), RewriteSpec{Model: "b", IncludeUsage: true}); string(got) != "--form" {
		t.Errorf("%s", got)
	}
}

// oracle is the request as encoding/json reads it.
type oracle struct {
	valid   bool // one object, and nothing else
	fields  map[string]json.RawMessage
	special bool // a name occurs twice, or is a variant of a routed one
}

func readOracle(body []byte) (o oracle) {
	o.valid = json.Valid(body) && len(bytes.TrimLeft(body, " \t\r\n")) > 0 && bytes.TrimLeft(body, " \t\r\n")[0] == '{'
	if !o.valid {
		return o
	}
	if err := json.Unmarshal(body, &o.fields); err != nil {
		return oracle{}
	}
	o.special = oddNames(body, decidingNames...) || oddNested(o.fields, "stream_options", "include_usage") ||
		oddNested(o.fields, "options", "num_predict") || oddNested(o.fields, "metadata", "session_id")
	return o
}

// decidingNames are the root members that must have one reading. They stand here once more, as the test of the table.
var decidingNames = []string{
	"model", "stream", "stream_options", "messages", "prompt", "input", "options", "system", "instructions", "tools", "session_id",
	"prompt_cache_key", "user", "metadata", "n", "best_of", "n_cmpl", "num_return_sequences", "max_tokens", "max_completion_tokens",
	"max_output_tokens", "n_predict", "num_predict", "max_new_tokens", "max_tokens_to_sample", "max_gen_len", "max_length", "tokens_to_generate",
}

func oddNested(fields map[string]json.RawMessage, name, inside string) bool {
	raw := fields[name]
	return len(raw) > 0 && raw[0] == '{' && oddNames(raw, inside)
}

// oddNames reports whether an object's members have one of the names more than once or in another spelling.
func oddNames(obj []byte, names ...string) bool {
	d := json.NewDecoder(bytes.NewReader(obj))
	seen := map[string]int{}
	if _, err := d.Token(); err != nil {
		return true
	}
	for d.More() {
		k, err := d.Token()
		if err != nil {
			return true
		}
		for _, n := range names {
			if strings.EqualFold(k.(string), n) {
				if seen[n]++; k != n || seen[n] > 1 {
					return true
				}
			}
		}
		var skip json.RawMessage
		if d.Decode(&skip) != nil {
			return true
		}
	}
	return false
}

// FuzzEnvelope compares with encoding/json: the same documents are valid, and the model that the Edge checks is the
// one that a decoder runs, before and after a rewrite.
func FuzzEnvelope(f *testing.F) {
	for _, s := range []string{
		string(chatBody), `{"model":"a","MODEL":"b"}`, `{"stream":true,"stream_options":{"include_usage":false,"x":1}}`, `{"a":[1,-2.5e3,"\u00e9\\",{"b":null}]}`,
		`{"m\u006fdel":"x"}`, `{"model":"\ud83d\ude00"}`, `[]`, `{"user":"u","session_id":"s"}`, `{"stream_options":null,"stream":true}`, `{"ſtream":1}`, `{}`,
		`{"max_tokens":-1,"temperature":9,"top_k":null,"n":3}`, `{"max_completion_tokens":1e999,"max_tokens":null,"stream":true}`, `{"ſeed":1}`,
		`{"n_predict":5,"max_output_tokens":9999,"prompt":"x"}`, `{"temperature":"1"}`, `{"Top_K":1}`,
		"{\"mo\xffdel\":1}", `{"mod\ud800el":1}`, `{"n":"2"}`, `{"n":2.0,"best_of":1e1}`, `{"max_tokens":0.5,"max_completion_tokens":-0.0}`,
		`{"options":{"num_predict":1,"num_predict":2}}`, `{"metadata":{"session_id":"a"}}`, `{"models":["x"],"Models":null}`, `{"aws_x":1}`,
		`{"moderation":{"model":"x","a":[[]]}}`, `{"messages":[{"content":[{"tools":[{"type":"x","m\u006fdel":"y"}]},1]},2]}`, `{"tools":{"properties":{"model":{}}},"options":{"a":{"b":[1]}}}`,
		`{"max_tokens":null,"max_completion_tokens":7}`, `{"maxTokens":1}`, `{"prompt":[[1,2],["a"]]}`, `{"user":"\ud800"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := ParseEnvelope(body)
		o := readOracle(body)
		if err != nil {
			fault := err.(*Error)
			if o.valid && utf8.Valid(body) && fault.Param == "" && !strings.Contains(fault.Message, "deeper") && !strings.Contains(fault.Message, "a member name") {
				t.Fatalf("encoding/json takes what was refused: %v", err)
			}
			return
		}
		if !o.valid {
			t.Fatal("passed, but encoding/json refuses it")
		}
		if o.special || !utf8.Valid(body) {
			t.Fatal("a field that is there twice or in another spelling passed, or what is no UTF-8")
		}
		checkNumbers(t, e, o.fields)
		checkDecoded(t, e, o.fields)
		prompts, tokens := e.Prompts(body)
		if prompt := e.Prompt(body); prompt != nil && !json.Valid(prompt) || prompts < 1 || tokens < 0 || e.Choices < 1 {
			t.Fatalf("prompt %q, %d prompts, %d tokens, %d choices", prompt, prompts, tokens, e.Choices)
		}
		if checkModel("m/é\"1") != nil {
			t.Fatal("bad test")
		}
		out := e.Rewrite(body, RewriteSpec{Model: "m/é\"1", IncludeUsage: true})
		after := readOracle(out)
		if !after.valid || after.special {
			t.Fatalf("the rewritten body is broken: %q", out)
		}
		e2, err := ParseEnvelope(out)
		if err != nil || e2.Model != "m/é\"1" || (e.Stream && !e2.IncludeUsage) {
			t.Fatalf("the rewritten body reads as %+v, %v", e2, err)
		}
		checkPlanned(t, body, e)
		delete(o.fields, "model")
		delete(after.fields, "model")
		if e.Stream {
			delete(o.fields, "stream_options")
			delete(after.fields, "stream_options")
		}
		if !reflect.DeepEqual(o.fields, after.fields) {
			t.Fatalf("the rewrite changed something else: %q became %q", body, out)
		}
	})
}

func checkDecoded(t *testing.T, e Envelope, fields map[string]json.RawMessage) {
	t.Helper()
	for name, got := range map[string]string{"model": e.Model, "user": e.User, "session_id": e.SessionID, "prompt_cache_key": e.PromptCacheKey} {
		var want string
		if raw, ok := fields[name]; ok && json.Unmarshal(raw, &want) != nil {
			t.Fatalf("%s is no string for encoding/json", name)
		}
		if got != want && len(fields[name]) <= MaxHintLength {
			t.Fatalf("%s is %q here and %q for encoding/json", name, got, want)
		}
	}
	var stream bool
	if raw, ok := fields["stream"]; ok && json.Unmarshal(raw, &stream) != nil || stream != e.Stream {
		t.Fatalf("stream is %t here and %s for encoding/json", e.Stream, raw)
	}
	var options struct {
		IncludeUsage bool `json:"include_usage"`
	}
	if raw, ok := fields["stream_options"]; ok {
		if err := json.Unmarshal(raw, &options); err != nil || options.IncludeUsage != e.IncludeUsage {
			t.Fatalf("include_usage is %t here and in %s for encoding/json (%v)", e.IncludeUsage, raw, err)
		}
	}
}

// checkNumbers: counts and lengths are the numbers that encoding/json reads, and nothing else passes for one.
func checkNumbers(t *testing.T, e Envelope, fields map[string]json.RawMessage) {
	t.Helper()
	choices, most := 1.0, 0.0
	for _, name := range decidingNames[slices.Index(decidingNames, "n"):] {
		raw, ok := fields[name]
		var v *float64
		if err := json.Unmarshal(raw, &v); ok && err != nil && !strings.Contains(err.Error(), "number") {
			t.Fatalf("%s is no number for encoding/json: %v", name, err)
		}
		switch {
		case v == nil:
		case !slices.Contains(lengthNames[:], name):
			if *v < 0 || *v != math.Trunc(*v) {
				t.Fatalf("%s is no count", name)
			}
			choices = max(choices, min(*v, maxChoices))
		case *v >= 1 && *v == math.Trunc(*v):
			most = max(most, min(*v, maxCount))
		}
	}
	if got := e.Length(OpChatCompletions, nil, nil); got.Tokens < maxCount && float64(got.Tokens) != most || e.Choices < maxChoices && float64(e.Choices) != choices {
		t.Fatalf("%d tokens and %d choices, %v and %v for encoding/json", got.Tokens, e.Choices, most, choices)
	}
}

// TestThreat52DeepAndBroadBodies: neither depth nor breadth of a body costs more than a look at each byte.
//
// Seen to fail with maxDepth at ten thousand.
func TestThreat52DeepAndBroadBodies(t *testing.T) {
	deep := []byte(`{"model":"m","x":` + strings.Repeat("[", 1<<20) + strings.Repeat("]", 1<<20) + `}`)
	broad := []byte(`{"model":"m","x":[` + strings.Repeat("[],", 1<<20) + `[]]}`)
	var deepErr, broadErr error
	n := allocated(func() {
		_, deepErr = ParseEnvelope(deep)
		_, broadErr = ParseEnvelope(broad)
	})
	if deepErr == nil || !strings.Contains(deepErr.Error(), "deeper than 64") || broadErr != nil || n > 64<<10 {
		t.Errorf("deep: %v; broad: %v; %d bytes allocated", deepErr, broadErr, n)
	}
}
