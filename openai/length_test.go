package openai

import (
	"errors"
	"strings"
	"testing"
)

func TestLength(t *testing.T) {
	cap100, cap1 := []ParameterCap{{"max_tokens", 100}}, []ParameterCap{{"temperature", 1}}
	fifty := []ParameterDefault{{"max_completion_tokens", "50"}}
	for _, c := range []struct {
		body     string
		op       OpID
		defaults []ParameterDefault
		caps     []ParameterCap
		want     Length
	}{
		{`{}`, OpChatCompletions, nil, nil, Length{}},
		{`{"max_tokens":10}`, OpChatCompletions, nil, nil, Length{Tokens: 10, Bounded: true}},
		{`{"max_tokens":1e1}`, OpChatCompletions, nil, nil, Length{Tokens: 10, Bounded: true}},
		{`{"max_tokens":null}`, OpChatCompletions, nil, nil, Length{}},
		{`{"max_completion_tokens":20,"max_tokens":10}`, OpChatCompletions, nil, nil, Length{Tokens: 20, Bounded: true}},
		{`{"max_tokens":1e400}`, OpChatCompletions, nil, nil, Length{Tokens: maxCount, Bounded: true}},
		{`{"max_tokens":99999999999999999999999999}`, OpChatCompletions, nil, nil, Length{Tokens: maxCount, Bounded: true}},
		// What bounds nothing, for some provider.
		{`{"max_tokens":0}`, OpChatCompletions, nil, nil, Length{}},
		{`{"max_tokens":0.5}`, OpChatCompletions, nil, nil, Length{}},
		{`{"max_tokens":-1,"max_completion_tokens":7}`, OpChatCompletions, nil, nil, Length{Tokens: 7, Bounded: false}},
		{`{"max_tokens":5,"n_predict":-1}`, OpChatCompletions, nil, nil, Length{Tokens: 5, Bounded: false}},
		{`{"max_tokens":5,"n_predict":500}`, OpChatCompletions, nil, nil, Length{Tokens: 500, Bounded: true}},
		{`{"n_predict":5}`, OpChatCompletions, nil, nil, Length{Tokens: 5, Bounded: false}},
		{`{"max_completion_tokens":5}`, OpCompletions, nil, nil, Length{Tokens: 5, Bounded: false}},
		{`{"max_tokens":5}`, OpResponses, nil, nil, Length{Tokens: 5, Bounded: false}},
		{`{"max_tokens":5,"options":{"num_predict":900}}`, OpOllamaChat, nil, nil, Length{Tokens: 900, Bounded: true}},
		{`{"max_tokens":5}`, OpOllamaChat, nil, nil, Length{Tokens: 5, Bounded: false}},
		{`{"n_predict":-1,"options":{"num_predict":9}}`, OpOllamaChat, nil, nil, Length{Tokens: 9, Bounded: false}},
		{`{"max_tokens":5,"options":{"num_predict":9}}`, OpChatCompletions, nil, nil, Length{Tokens: 9, Bounded: true}},
		{`{"max_tokens":500,"options":{"num_predict":9}}`, OpOllamaChat, nil, cap100, Length{Tokens: 100, Bounded: true}},
		{`{"options":{"num_predict":0}}`, OpOllamaGenerate, nil, nil, Length{}},
		{`{"options":{"num_predict":-2}}`, OpOllamaGenerate, nil, nil, Length{}},
		// With a route's parameters.
		{`{}`, OpChatCompletions, nil, cap100, Length{Tokens: 100, Bounded: true}},
		{`{}`, OpChatCompletions, nil, cap1, Length{}},
		{`{"max_tokens":5,"n_predict":-1}`, OpChatCompletions, nil, cap100, Length{Tokens: 100, Bounded: true}},
		{`{"max_tokens":5,"n_predict":30}`, OpChatCompletions, nil, cap100, Length{Tokens: 30, Bounded: true}},
		{`{"max_tokens":500}`, OpChatCompletions, nil, cap100, Length{Tokens: 100, Bounded: true}},
		{`{}`, OpChatCompletions, fifty, cap100, Length{Tokens: 50, Bounded: true}},
		{`{}`, OpChatCompletions, fifty, nil, Length{Tokens: 50, Bounded: true}},
		{`{"max_tokens":70}`, OpChatCompletions, fifty, cap100, Length{Tokens: 70, Bounded: true}},
		{`{"max_tokens":0}`, OpChatCompletions, fifty, cap100, Length{Tokens: 100, Bounded: true}},
		{`{"options":{}}`, OpOllamaChat, fifty, cap100, Length{Tokens: 50, Bounded: true}},
		{`{"options":{"num_predict":0}}`, OpOllamaChat, nil, cap100, Length{Tokens: 100, Bounded: true}},
		{`{}`, OpEmbeddings, fifty, cap100, Length{}},
		{`{"n":5,"best_of":9}`, OpChatCompletions, nil, []ParameterCap{{"n", 3}}, Length{Choices: 3}},
		{`{"n":5}`, OpChatCompletions, nil, []ParameterCap{{"n", 1e300}}, Length{Choices: 5}},
		{`{}`, OpChatCompletions, []ParameterDefault{{"n", "4"}}, []ParameterCap{{"n", 3}}, Length{Choices: 3}},
		{`{"n":2}`, OpChatCompletions, []ParameterDefault{{"n", "4"}}, nil, Length{Choices: 2}},
	} {
		e, err := ParseEnvelope([]byte(c.body))
		if err != nil {
			t.Errorf("%s: %v", c.body, err)
			continue
		}
		if c.want.Choices == 0 {
			c.want.Choices = 1
		}
		if got := e.Length(c.op, c.defaults, c.caps); got != c.want {
			t.Errorf("%s for %s with %v, %v: %+v, want %+v", c.body, c.op, c.defaults, c.caps, got, c.want)
		}
	}
}

func TestChoicesAndPrompts(t *testing.T) {
	for _, c := range []struct {
		body                     string
		choices, prompts, tokens int64
		prompt                   string
	}{
		{`{}`, 1, 1, 0, ""},
		{`{"n":3,"messages":[{"role":"user"}]}`, 3, 1, 0, `[{"role":"user"}]`},
		{`{"n":null,"best_of":0}`, 1, 1, 0, ""},
		{`{"n":2,"best_of":5,"n_cmpl":4}`, 5, 1, 0, ""},
		{`{"n":1e3}`, 1000, 1, 0, ""},
		{`{"n":99999999999999999999999999}`, maxChoices, 1, 0, ""},
		{`{"input": "a" ,"prompt" : "bc" }`, 1, 1, 0, `"bc"`},
		{`{"prompt":["a","b","c"]}`, 1, 3, 0, `["a","b","c"]`},
		{`{"prompt":[1,2,3,4]}`, 1, 1, 4, `[1,2,3,4]`},
		{`{"prompt":[[1,2],[3]]}`, 1, 2, 3, `[[1,2],[3]]`},
		{`{"input":["a"]}`, 1, 1, 0, `["a"]`},
		{`{"input":[{"role":"user"},{"role":"user"}]}`, 1, 1, 0, `[{"role":"user"},{"role":"user"}]`},
		{`{"prompt":[]}`, 1, 1, 0, `[]`},
		{`{"prompt":[{"prompt_string":"a"},{"prompt_string":"b"}]}`, 1, 2, 0, `[{"prompt_string":"a"},{"prompt_string":"b"}]`},
		{`{"prompt":"bc","messages":[],"input":"a"}`, 1, 1, 0, `[]`},
		{`{"messages":[],"prompt":["a","b"],"input":[1,2]}`, 1, 2, 2, `[]`},
		{`{"prompt":null,"input":[1,2]}`, 1, 1, 2, `[1,2]`},
	} {
		e, err := ParseEnvelope([]byte(c.body))
		if err != nil {
			t.Errorf("%s: %v", c.body, err)
			continue
		}
		prompts, tokens := e.Prompts([]byte(c.body))
		if prompt := string(e.Prompt([]byte(c.body))); e.Choices != c.choices || prompts != c.prompts || tokens != c.tokens || prompt != c.prompt {
			t.Errorf("%s: %d choices, %d prompts of %d tokens: %s", c.body, e.Choices, prompts, tokens, prompt)
		}
	}
	if EstimateTokens(0) != 1 || EstimateTokens(3) != 1 || EstimateTokens(4000) != 1000 {
		t.Error("a token is about four bytes, and there is one at least")
	}
}

// TestOneReadingOnly: what two decoders could read differently is refused, by the name of the member.
func TestOneReadingOnly(t *testing.T) {
	for body, param := range map[string]string{
		// Numbers that some take from strings and booleans.
		`{"n":"2"}`: "n", `{"n":true}`: "n", `{"n":[2]}`: "n", `{"n":2.5}`: "n", `{"n":-1}`: "n", `{"n":{}}`: "n",
		`{"best_of":"9"}`: "best_of", `{"n_cmpl":"9"}`: "n_cmpl", `{"num_return_sequences":0.5}`: "num_return_sequences",
		`{"max_tokens":"5"}`: "max_tokens", `{"max_tokens":true}`: "max_tokens", `{"max_tokens":[5]}`: "max_tokens", `{"max_completion_tokens":"1e2"}`: "max_completion_tokens",
		`{"n_predict":false}`: "n_predict", `{"max_output_tokens":{}}`: "max_output_tokens", `{"max_tokens":` + strings.Repeat("1", 65) + `}`: "max_tokens",
		`{"options":{"num_predict":"5"}}`: "options.num_predict", `{"stream":"true"}`: "stream", `{"stream":0}`: "stream",
		// Two of a name.
		`{"max_tokens":1,"max_tokens":1}`: "max_tokens", `{"n":1,"n":2}`: "n", `{"messages":[],"messages":[]}`: "messages", `{"prompt":"","prompt":""}`: "prompt",
		`{"user":"a","user":"b"}`: "user", `{"options":{},"options":{}}`: "options", `{"tools":[],"tools":[]}`: "tools", `{"system":"","system":""}`: "system",
		`{"options":{"num_predict":1,"num_predict":2}}`: "options.num_predict", `{"options":{"Num_Predict":1}}`: "options.num_predict",
		`{"options":{"num_predi\u0063t":1}}`: "options.num_predict", `{"options":{},"options":null}`: "options",
		`{"metadata":{"session_id":"a","session_id":"b"}}`: "metadata.session_id", `{"metadata":{"Session_Id":"a"}}`: "metadata.session_id",
		`{"metadata":{"session\u005fid":"a"}}`: "metadata.session_id", `{"metadata":{},"metadata":{}}`: "metadata",
		// Other spellings.
		`{"Max_Tokens":1}`: "max_tokens", `{"MAX_COMPLETION_TOKENS":1}`: "max_completion_tokens", `{"max_to\u212aens":1}`: "max_tokens", "{\"max_to\u212aens\":1}": "max_tokens",
		`{"maxTokens":1}`: "max_tokens", `{"max-tokens":1}`: "max_tokens", `{"maxtokens":1}`: "max_tokens", `{"maxOutputTokens":1}`: "max_output_tokens",
		`{"N":1}`: "n", `{"_n":1}`: "n", `{"\u006e":1}`: "n", `{"bestOf":1}`: "best_of", `{"nPredict":1}`: "n_predict", `{"numPredict":1}`: "num_predict",
		`{"OPTIONS":{}}`: "options", `{"opt\u0131ons":{}}`: "options", `{"OPT\u0130ONS":{}}`: "options", `{"optıons":{}}`: "options", `{"optionſ":{}}`: "options",
		`{"Messages":[]}`: "messages", `{"Prompt":""}`: "prompt", `{"INPUT":""}`: "input", `{"User":"x"}`: "user", `{"Session_ID":"x"}`: "session_id",
		`{"streamOptions":{}}`: "stream_options", `{"mOdel":"x"}`: "model", `{"stre-am":true}`: "stream",
		// Half a surrogate pair.
		`{"user":"a\ud800"}`: "user", `{"session_id":"\udc00"}`: "session_id", `{"prompt_cache_key":"\ud800\ud800"}`: "prompt_cache_key",
		`{"mod\ud800el":"x"}`: "", `{"x":{"mod\udc00el":"x"}}`: "", `{"tools":[{"\ud800x":1}]}`: "", `{"\ud83d\u0041":1}`: "", `{"\ud83d\\ude00":1}`: "",
		`{"moßel":"x"}`: "", `{"\ufb05ream":true}`: "", `{"ｍodel":"x"}`: "", `{"mo\ud83d\ude00del":"x"}`: "", `{"тext":1}`: "",
		`{"model\u0000":"x"}`: "", `{"options":{"num_predict\u0000":1}}`: "",
		// No UTF-8.
		"{\"mo\xffdel\":\"x\"}": "", "{\"x\":\"\xc0\xaf\"}": "", "{\"x\":[{\"\xed\xa0\x80\":1}]}": "", "{\"x\":\"\xf4\x90\x80\x80\"}": "", "{\"x\":1}\xff": "",
	} {
		_, err := ParseEnvelope([]byte(body))
		if e, ok := errors.AsType[*Error](err); !ok || e.Status != 400 || e.Param != param || !e.NoRetry {
			t.Errorf("%q: %v, want param %q", body, err, param)
		}
	}
	_, err := ParseEnvelope([]byte("{\"model\":\"m\",\"x\":\"\u00e9\xe9\"}"))
	if err == nil || !strings.Contains(err.Error(), "not valid UTF-8 at byte 20") {
		t.Errorf("%v", err)
	}
}

// TestHarmlessMembers: what common clients send passes, null values too.
func TestHarmlessMembers(t *testing.T) {
	for _, body := range []string{
		`{"model":"m","max_tokens":null,"n":null,"stream":null,"stop":null,"user":null,"metadata":null,"tools":null,"best_of":null,"models":null,"provider":null}`,
		`{"model":"m","n":1,"best_of":1,"max_tokens":-1,"top_p":1,"logit_bias":{},"suffix":null,"echo":false}`,
		`{"model":"m","options":{"num_predict":-1,"num_ctx":4096,"stop":["a"]},"keep_alive":"5m","format":"json","truncate":true}`,
		`{"model":"m","metadata":{"user_id":"u","session_id":5},"system":[{"type":"text"}],"thinking":{"type":"enabled","budget_tokens":1024}}`,
		`{"model":"m","options":["a"],"metadata":"x"}`,
		`{"model":"m","sessionId":"s","promptCacheKey":"k","userId":"u","chat_id":"c","parallel_tool_calls":true,"service_tier":"auto"}`,
		`{"model":"m","tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{"model":{},"Model":{},"n":{},"\ud83d\ude00":{}}}}}]}`,
		`{"model":"m","tools":[{"type":"function","name":"f","parameters":{"properties":{"model":{"type":"string"}},"model":{"type":"string"}}}]}`,
		`{"model":"m","messages":[{"content":"\ud83d","content":"\u0000"}]}`,
	} {
		e, err := ParseEnvelope([]byte(body))
		if err == nil {
			err = e.CheckSteering(OpChatCompletions, nil)
		}
		if err != nil {
			t.Errorf("%s: %v", body, err)
		}
	}
}

func TestCheckSteering(t *testing.T) {
	for _, c := range []struct{ body, param string }{
		{`{"models":["a"]}`, "models"}, {`{"fallbacks":[]}`, "fallbacks"}, {`{"route":"fallback"}`, "route"}, {`{"api_base":"http://x"}`, "api_base"},
		{`{"Models":["a"]}`, "models"}, {`{"m\u006fdels":["a"]}`, "models"}, {`{"apiBase":"x"}`, "api_base"}, {`{"providerOptions":{}}`, "provider_options"},
		{`{"aws_region_name":"x"}`, "aws_*"}, {`{"AWS_x":1}`, "aws_*"}, {`{"\u0061ws_x":1}`, "aws_*"}, {`{"vertex_` + strings.Repeat("x", 90) + `":1}`, "vertex_*"},
		{`{"tensorzero::variant_name":"x"}`, "tensorzero::*"}, {`{"extra_body":{"models":[]}}`, "extra_body"},
		{`{"models":null,"fallbacks":null}`, ""}, {`{"mode":1,"model_x":2,"aws":3,"x_models":4}`, ""},
	} {
		e, err := ParseEnvelope([]byte(c.body))
		if err != nil {
			t.Errorf("%s: %v", c.body, err)
			continue
		}
		refused, _ := errors.AsType[*Error](e.CheckSteering(OpChatCompletions, []string{"headers"}))
		switch {
		case c.param == "" && refused != nil, c.param != "" && (refused == nil || refused.Param != c.param || refused.Status != 400):
			t.Errorf("%s: %v", c.body, refused)
		case c.param != "" && e.CheckSteering(OpChatCompletions, []string{"headers", c.param}) != nil:
			t.Errorf("%s: refused although allowed", c.body)
		}
	}
	for _, name := range SteeringMembers() {
		if f, exact := fieldOf([]byte(name), false); f < fieldSteering || f.String() != name || !exact && name[len(name)-1] != '*' {
			t.Errorf("%s: %v %v", name, f, exact)
		}
	}
}

// TestFieldNames: no two fields are one under any reader's folding, and each bit is one field's.
func TestFieldNames(t *testing.T) {
	seen := map[string]field{}
	for f := fieldNone + 1; f < fieldSteering+field(len(steeringNames)); f++ {
		if f >= fieldLengthEnd && f < fieldSteering {
			continue
		}
		name := f.String()
		var room [maxFieldName]byte
		loose := string(withoutDelimiters(room[:0], []byte(name)))
		if other, taken := seen[loose]; taken || name == "" || len(name) > maxFieldName {
			t.Errorf("%d %s: the same as %s", f, name, other)
		}
		seen[loose] = f
	}
	if fieldLengthEnd > 64 || len(steeringNames) > 128 {
		t.Error("a bit for each does not fit")
	}
	for i, name := range steeringNames {
		if (name[len(name)-1] == '*') != (i >= len(steeringNames)-steeringPrefixes) {
			t.Errorf("%s is in the wrong place", name)
		}
	}
}

func TestCheckSteeringOfForms(t *testing.T) {
	for field, want := range map[string]string{
		plainField("api_base", "http://x"): "api_base", plainField("apiBase", "x"): "api_base", plainField("extra_body[model]", "x"): "extra_body",
		plainField("fallbacks[]", "x"): "fallbacks", plainField("AWS_region", "x"): "aws_*", fileNamed("models", "a", "x"): "models",
		plainField("api.base", "x"): "api_base", plainField("models", ""): "", plainField("prompt", "x"): "", plainField("headers", "x"): "",
	} {
		f, err := ParseForm(testBoundary, formOf(plainField("model", "m"), field))
		if err != nil {
			t.Errorf("%q: %v", field, err)
			continue
		}
		refused, _ := errors.AsType[*Error](f.CheckSteering(OpAudioTranscriptions, []string{"headers"}))
		if want == "" && refused != nil || want != "" && (refused == nil || refused.Param != want) {
			t.Errorf("%q: %v", field, refused)
		}
	}
	f, err := ParseForm(testBoundary, formOf(plainField("model", "m"), plainField("n", "9")))
	if err == nil {
		err = f.Plan(nil, []ParameterCap{{"n", 2}})
	}
	if err != nil || string(f.parts[1].content) != "2" {
		t.Errorf("%v %q", err, f.parts[1].content)
	}
}
