package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// planned returns the body that a route with such parameters sends.
func planned(t *testing.T, body string, op OpID, defaults []ParameterDefault, caps []ParameterCap, spec RewriteSpec) (string, error) {
	t.Helper()
	b := []byte(body)
	e, err := ParseEnvelope(b)
	if err != nil {
		return "", err
	}
	if spec.Edits, err = e.Plan(b, op, defaults, caps); err != nil {
		return "", err
	}
	out := e.Rewrite(b, spec)
	if parts := bytes.Join(e.RewriteParts(b, spec), nil); !bytes.Equal(parts, out) {
		t.Errorf("%s: in parts it is %s, in one %s", body, parts, out)
	}
	if string(b) != body {
		t.Errorf("%s: the client's body was changed", body)
	}
	if !json.Valid(out) {
		t.Errorf("%s became %s", body, out)
	}
	if grown := len(out) - len(body); spec.Model == "" && !spec.IncludeUsage && grown > spec.Edits.Grows() {
		t.Errorf("%s grew by %d, more than %d", body, grown, spec.Edits.Grows())
	}
	return string(out), nil
}

func TestPlan(t *testing.T) {
	none, cap100 := []ParameterDefault(nil), []ParameterCap{{"max_tokens", 100}}
	none2, warm := []ParameterCap(nil), []ParameterDefault{{"temperature", "0.2"}}
	both := []ParameterCap{{"temperature", 1}, {"max_tokens", 100}}
	for _, c := range []struct {
		body     string
		op       OpID
		defaults []ParameterDefault
		caps     []ParameterCap
		want     string // empty: unchanged
	}{
		// Defaults.
		{`{}`, OpChatCompletions, warm, nil, `{"temperature":0.2}`},
		{`{ }`, OpChatCompletions, []ParameterDefault{{"a", "1"}, {"b", `{"c":[]}`}}, nil, `{"a":1,"b":{"c":[]} }`},
		{`{"x":1}`, OpEmbeddings, []ParameterDefault{{"a", "1"}, {"b", `"é"`}}, nil, `{"a":1,"b":"é","x":1}`},
		{`{"temperature":null,"x":1}`, OpChatCompletions, warm, nil, `{"temperature":0.2,"x":1}`},
		{`{"temperature":0}`, OpChatCompletions, warm, nil, ""},
		{`{"temperature":"hot"}`, OpChatCompletions, warm, nil, ""},
		{`{"x":{"temperature":1}}`, OpChatCompletions, warm, nil, `{"temperature":0.2,"x":{"temperature":1}}`},
		// Caps.
		{`{"temperature":2,"max_tokens":99}`, OpChatCompletions, none, both, `{"temperature":1,"max_tokens":99}`},
		{`{"temperature":1.0,"max_tokens":100.0}`, OpChatCompletions, none, both, `{"temperature":1.0,"max_tokens":100}`},
		{`{"temperature":-3,"max_tokens":1e2}`, OpChatCompletions, none, both, `{"temperature":-3,"max_tokens":100}`},
		{`{"top_k":0,"keep_alive":-1}`, OpChatCompletions, none, []ParameterCap{{"top_k", 40}, {"keep_alive", 300}}, `{"top_k":40,"keep_alive":300}`},
		{`{"keep_alive":0,"top_k":-1}`, OpChatCompletions, none, []ParameterCap{{"top_k", 40}, {"keep_alive", 300}}, `{"keep_alive":0,"top_k":40}`},
		{`{"n":3,"best_of":9,"n_cmpl":4,"num_return_sequences":2.0}`, OpCompletions, none, []ParameterCap{{"n", 2}}, `{"n":2,"best_of":2,"n_cmpl":2,"num_return_sequences":2}`},
		{`{"n":1,"best_of":9}`, OpCompletions, none, []ParameterCap{{"best_of", 3}, {"n", 5}}, `{"n":1,"best_of":3}`},
		{`{"temperature":null,"max_tokens":1}`, OpChatCompletions, none, both, ""},
		{`{"top_p":5}`, OpChatCompletions, none, []ParameterCap{{"top_p", 0.95}}, `{"top_p":0.95}`},
		{`{"max_tokens":1e999}`, OpChatCompletions, none, cap100, `{"max_tokens":100}`},
		{`{"a":5,"b":7}`, OpChatCompletions, []ParameterDefault{{"b", "3"}}, []ParameterCap{{"a", 1e300}, {"b", 2}}, `{"a":5,"b":2}`},
		// Ollama's options.
		{`{"x":1}`, OpOllamaChat, none, cap100, `{"max_tokens":100,"options":{"num_predict":100},"x":1}`},
		{`{ }`, OpOllamaGenerate, warm, cap100, `{"max_tokens":100,"options":{"temperature":0.2,"num_predict":100} }`},
		{`{"options":null}`, OpOllamaChat, warm, none2, `{"options":{"temperature":0.2}}`},
		{`{"options":{ },"x":1}`, OpOllamaChat, warm, cap100, `{"max_tokens":100,"options":{"temperature":0.2,"num_predict":100 },"x":1}`},
		{`{"options":{"num_predict":900,"num_ctx":5}}`, OpOllamaChat, none, cap100, `{"max_tokens":100,"options":{"num_predict":100,"num_ctx":5}}`},
		{`{"options":{"num_predict":-1}}`, OpOllamaChat, none, cap100, `{"max_tokens":100,"options":{"num_predict":100}}`},
		{`{"options":{"num_predict":5,"temperature":2}}`, OpOllamaGenerate, none, both, `{"max_tokens":5,"options":{"num_predict":5,"temperature":1}}`},
		{`{"options":{"num_ctx":5},"k":1}`, OpOllamaChat, []ParameterDefault{{"max_tokens", "7"}, {"keep_alive", `"5m"`}}, cap100,
			`{"keep_alive":"5m","max_tokens":7,"options":{"num_predict":7,"num_ctx":5},"k":1}`},
		{`{"options":{"num_predict":0}}`, OpOllamaChat, none, cap100, `{"max_tokens":100,"options":{"num_predict":100}}`},
		{`{"options":{"num_predict":-2.0}}`, OpOllamaChat, none, cap100, `{"max_tokens":100,"options":{"num_predict":100}}`},
		{`{"num_predict":5,"max_tokens":5}`, OpOllamaChat, none, cap100, `{"options":{"num_predict":100},"num_predict":5,"max_tokens":5}`},
		// llama.cpp has OpenAI's parameters on Ollama's path.
		{`{"num_predict":500,"max_tokens":-1,"n_predict":9e9}`, OpOllamaChat, none, cap100, `{"options":{"num_predict":100},"num_predict":100,"max_tokens":100,"n_predict":100}`},
		{`{"max_tokens":null,"options":{"num_predict":7}}`, OpOllamaGenerate, none, cap100, `{"max_tokens":7,"options":{"num_predict":7}}`},
		// And others may have options on OpenAI's.
		{`{"max_tokens":5,"options":{"num_predict":0,"a":1}}`, OpChatCompletions, none, cap100, `{"max_tokens":5,"options":{"num_predict":100,"a":1}}`},
		{`{"max_output_tokens":5,"options":{"num_predict":null}}`, OpResponses, none, cap100, `{"max_output_tokens":5,"options":{"num_predict":null}}`},
		{`{"max_tokens":5,"max_length":500,"tokens_to_generate":1e3}`, OpChatCompletions, none, cap100, `{"max_tokens":5,"max_length":100,"tokens_to_generate":100}`},
		{`{"options":{"num_ctx":5000}}`, OpOllamaChat, []ParameterDefault{{"num_gpu", "9"}}, []ParameterCap{{"num_ctx", 4096}}, `{"options":{"num_gpu":9,"num_ctx":4096}}`},
		{`{"options":{"temperature":1}}`, OpOllamaEmbed, warm, cap100, ""},
		{`{"options":{"num_ctx":100000},"input":"x"}`, OpOllamaEmbed, none, []ParameterCap{{"num_ctx", 4096}, {"max_tokens", 5}}, `{"options":{"num_ctx":4096},"input":"x"}`},
		{`{"options":{"num_ctx":-1}}`, OpOllamaEmbeddings, []ParameterDefault{{"max_tokens", "5"}}, []ParameterCap{{"num_ctx", 4096}}, `{"options":{"num_ctx":4096}}`},
		{`{"input":"x"}`, OpOllamaEmbed, []ParameterDefault{{"num_ctx", "9000"}, {"keep_alive", `"5m"`}}, []ParameterCap{{"num_ctx", 4096}}, `{"keep_alive":"5m","options":{"num_ctx":4096},"input":"x"}`},
		// The answer's length.
		{`{"x":1}`, OpChatCompletions, none, cap100, `{"max_tokens":100,"x":1}`},
		{`{"x":1}`, OpCompletions, none, cap100, `{"max_tokens":100,"x":1}`},
		{`{"x":1}`, OpResponses, none, cap100, `{"max_output_tokens":100,"x":1}`},
		{`{"max_tokens":900}`, OpEmbeddings, none, cap100, ""},
		{`{"x":1}`, OpEmbeddings, []ParameterDefault{{"max_tokens", "5"}}, nil, ""},
		// Ollama, LM Studio and others know max_tokens only: it leaves under that name, unless the route has the other.
		{`{"max_completion_tokens":900}`, OpChatCompletions, none, cap100, `{"max_tokens":100}`},
		{`{"max_completion_tokens" : 50,"x":1}`, OpChatCompletions, none, cap100, `{"max_tokens" : 50,"x":1}`},
		{`{"max_completion_tokens":-1}`, OpChatCompletions, none, cap100, `{"max_tokens":100}`},
		{`{"max_tokens":null,"max_completion_tokens":50}`, OpChatCompletions, none, cap100, `{"max_tokens":50,"max_completion_tokens":null}`},
		{`{"max_tokens":null,"max_completion_tokens":500}`, OpChatCompletions, none, cap100, `{"max_tokens":100,"max_completion_tokens":null}`},
		{`{"max_tokens":50}`, OpChatCompletions, []ParameterDefault{{"max_completion_tokens", "20"}}, cap100, `{"max_completion_tokens":50}`},
		{`{"max_completion_tokens":900,"max_tokens":50}`, OpChatCompletions, none, cap100, `{"max_completion_tokens":100,"max_tokens":50}`},
		{`{"max_tokens":-1}`, OpChatCompletions, none, cap100, `{"max_tokens":100}`}, // "no limit" for some engines
		{`{"max_tokens":0}`, OpChatCompletions, none, cap100, `{"max_tokens":100}`},  // or for some others
		{`{"max_tokens":0.5}`, OpChatCompletions, none, cap100, `{"max_tokens":100}`},
		{`{"max_tokens":1e-9}`, OpResponses, none, cap100, `{"max_output_tokens":100,"max_tokens":100}`},
		{`{"max_tokens":-0.0}`, OpMessages, none, cap100, `{"max_tokens":100}`},
		{`{"max_tokens":1e400}`, OpMessages, none, cap100, `{"max_tokens":100}`},
		{`{"max_tokens":1.5}`, OpMessages, none, cap100, `{"max_tokens":100}`},
		{`{"max_tokens":0}`, OpMessages, none, []ParameterCap{{"temperature", 1}}, ""},
		{`{"max_new_tokens":5000,"max_tokens_to_sample":1,"num_predict":-1}`, OpChatCompletions, none, cap100,
			`{"max_tokens":100,"max_new_tokens":100,"max_tokens_to_sample":1,"num_predict":100}`},
		{`{"max_tokens":null,"x":1}`, OpChatCompletions, none, cap100, `{"max_tokens":100,"x":1}`},
		{`{"max_completion_tokens":null}`, OpChatCompletions, none, cap100, `{"max_tokens":100,"max_completion_tokens":null}`},
		{`{"max_tokens":null,"max_completion_tokens":null}`, OpChatCompletions, none, cap100, `{"max_tokens":100,"max_completion_tokens":null}`},
		// A name that the operation does not know bounds nothing there, but may for an engine.
		{`{"max_output_tokens":5}`, OpChatCompletions, none, cap100, `{"max_tokens":100,"max_output_tokens":5}`},
		{`{"max_completion_tokens":500}`, OpCompletions, none, cap100, `{"max_tokens":100,"max_completion_tokens":100}`},
		{`{"n_predict":-1,"max_tokens":5}`, OpChatCompletions, none, cap100, `{"n_predict":100,"max_tokens":5}`},
		{`{"max_tokens":null}`, OpResponses, none, cap100, `{"max_output_tokens":100,"max_tokens":null}`},
		{`{"max_output_tokens":null}`, OpResponses, none, cap100, `{"max_output_tokens":100}`},
		// Its default.
		{`{"x":1}`, OpChatCompletions, []ParameterDefault{{"max_tokens", "50"}}, cap100, `{"max_tokens":50,"x":1}`},
		{`{"x":1}`, OpChatCompletions, []ParameterDefault{{"max_tokens", "500"}}, cap100, `{"max_tokens":100,"x":1}`},
		{`{"x":1}`, OpChatCompletions, []ParameterDefault{{"max_completion_tokens", "50"}}, cap100, `{"max_completion_tokens":50,"x":1}`},
		{`{"x":1}`, OpResponses, []ParameterDefault{{"max_completion_tokens", "50"}}, cap100, `{"max_output_tokens":50,"x":1}`},
		{`{"max_completion_tokens":7}`, OpChatCompletions, []ParameterDefault{{"max_tokens", "50"}}, nil, ""},
		{`{"max_completion_tokens":-1}`, OpChatCompletions, []ParameterDefault{{"max_tokens", "50"}}, nil, ""},
		{`{"max_tokens":null}`, OpChatCompletions, []ParameterDefault{{"max_completion_tokens", "50"}}, nil, `{"max_completion_tokens":50,"max_tokens":null}`},
	} {
		got, err := planned(t, c.body, c.op, c.defaults, c.caps, RewriteSpec{})
		want := c.want
		if want == "" {
			want = c.body
		}
		if err != nil || got != want {
			t.Errorf("%s for %s with %v, %v:\n%s (%v), want\n%s", c.body, c.op, c.defaults, c.caps, got, err, want)
		}
	}
}

func TestRewriteWithEverything(t *testing.T) {
	defaults := []ParameterDefault{{"top_p", "0.9"}, {"seed", "7"}}
	caps := []ParameterCap{{"temperature", 1}, {"max_tokens", 100}}
	spec := RewriteSpec{Model: "b", IncludeUsage: true}
	for body, want := range map[string]string{
		`{"stream":true,"temperature":3,"messages":[ ],"model":"a","seed":null}`: `{"stream_options":{"include_usage":true},"top_p":0.9,"max_tokens":100,` +
			`"stream":true,"temperature":1,"messages":[ ],"model":"b","seed":7}`,
		`{"stream":true,"stream_options":{},"max_tokens":200}`: `{"model":"b","top_p":0.9,"seed":7,"stream":true,"stream_options":{"include_usage":true},"max_tokens":100}`,
		`{}`: `{"model":"b","top_p":0.9,"seed":7,"max_tokens":100}`,
	} {
		if got, err := planned(t, body, OpChatCompletions, defaults, caps, spec); err != nil || got != want {
			t.Errorf("%s:\n%s (%v), want\n%s", body, got, err, want)
		}
	}
}

// A budget of thoughts is less than the cap of the length.
func TestPlanThoughts(t *testing.T) {
	caps := []ParameterCap{{"max_tokens", 100}}
	for _, c := range []struct {
		op         OpID
		body, want string // want is empty for a refusal
	}{
		{OpChatCompletions, `{"max_tokens":5,"reasoning":{"max_tokens":100000}}`, `{"max_tokens":5,"reasoning":{"max_tokens":99}}`},
		{OpChatCompletions, `{"reasoning":{"effort":"high","max_tokens":-1,"x":[{"max_tokens":5e3}]}}`, `{"max_tokens":100,"reasoning":{"effort":"high","max_tokens":99,"x":[{"max_tokens":5e3}]}}`},
		{OpMessages, `{"max_tokens":500,"thinking":{"type":"enabled","budget_tokens":1e300}}`, `{"max_tokens":100,"thinking":{"type":"enabled","budget_tokens":99}}`},
		{OpResponses, `{"max_output_tokens":5,"reasoning":{ "budget_tokens" : 100 } , "thinking":{}}`, `{"max_output_tokens":5,"reasoning":{ "budget_tokens" : 99 } , "thinking":{}}`},
		{OpMessages, `{"max_tokens":5,"thinking":{"budget_tokens":0},"reasoning":null}`, `{"max_tokens":5,"thinking":{"budget_tokens":0},"reasoning":null}`},
		{OpCompletions, `{"max_tokens":5,"thinking":{"budget_tokens":null,"max_tokens":99},"reasoning":"high"}`, `{"max_tokens":5,"thinking":{"budget_tokens":null,"max_tokens":99},"reasoning":"high"}`},
		{OpChatCompletions, `{"max_tokens":5,"reasoning":{"max_tokens":"100000"}}`, ""}, {OpChatCompletions, `{"max_tokens":5,"reasoning":{"max_tokens":1,"max_tokens":2}}`, ""},
		{OpChatCompletions, `{"max_tokens":5,"reasoning":{"Max_Tokens":100000}}`, ""}, {OpChatCompletions, `{"max_tokens":5,"reasoning":{"max_token\u0073":100000}}`, ""},
		{OpChatCompletions, `{"max_tokens":5,"reasoning":{},"reasoning":{"max_tokens":100000}}`, ""}, {OpChatCompletions, `{"max_tokens":5,"Reasoning":{"max_tokens":100000}}`, ""},
	} {
		got, err := planned(t, c.body, c.op, nil, caps, RewriteSpec{})
		if e, ok := errors.AsType[*Error](err); got != c.want || c.want == "" && (!ok || e.Status != 400 || !strings.HasPrefix(e.Param, "reasoning")) {
			t.Errorf("%s became %s, %v", c.body, got, err)
		}
	}
	body := `{"max_tokens":5,"reasoning":{"max_tokens":100000}}`
	if got, err := planned(t, body, OpChatCompletions, nil, []ParameterCap{{"top_k", 5}}, RewriteSpec{}); err != nil || got != body {
		t.Errorf("without a cap of the length: %s, %v", got, err)
	}
}

func TestPlanRefuses(t *testing.T) {
	defaults := []ParameterDefault{{"seed", "1"}}
	caps := []ParameterCap{{"max_tokens", 100}, {"top_k", 50}}
	for body, param := range map[string]string{
		`{"seed":1,"seed":1}`:                        "seed",
		`{"Seed":1}`:                                 "seed",
		`{"ſeed":1}`:                                 "",
		`{"\u0073eed":1}`:                            "seed",
		`{"seed":1,"SEED":null}`:                     "seed",
		`{"max_tokens":1,"max_tokens":2}`:            "max_tokens",
		`{"MAX_TOKENS":1}`:                           "max_tokens",
		`{"max_to\u212aens":1}`:                      "max_tokens", // the Kelvin sign
		"{\"max_to\u212aens\":1}":                    "max_tokens",
		"{\"top_\u212a\":1}":                         "",
		`{"max_tokens":"1"}`:                         "max_tokens",
		`{"max_completion_tokens":[]}`:               "max_completion_tokens",
		`{"max_tokens":true}`:                        "max_tokens",
		`{"top_k":{}}`:                               "top_k",
		`{"top_k":` + strings.Repeat("1", 100) + `}`: "top_k",
		`{"n_Predict":1}`:                            "n_predict",
	} {
		got, err := planned(t, body, OpChatCompletions, defaults, caps, RewriteSpec{})
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Status != 400 || e.Param != param || !e.NoRetry {
			t.Errorf("%s: %s, %v; want param %s", body, got, err, param)
		}
	}
	// What no default and no cap is for is the client's and the provider's business.
	body := `{"x":1,"X":2,"x":3,"max_tokens":-5}`
	if got, err := planned(t, body, OpEmbeddings, nil, []ParameterCap{{"max_tokens", 1}}, RewriteSpec{}); err != nil || got != body {
		t.Errorf("%s, %v", got, err)
	}
}

func TestPlanRefusesOptions(t *testing.T) {
	for body, param := range map[string]string{
		`{"options":{"num_predict":1,"num_predict":2}}`: "options.num_predict",
		`{"options":{"Num_Predict":1}}`:                 "options.num_predict",
		`{"options":{"num_predict":"1"}}`:               "options.num_predict",
		`{"options":{"num_predict":1},"options":{}}`:    "options",
		`{"Options":{"num_predict":1}}`:                 "options",
		`{"options":[]}`:                                "options",
	} {
		got, err := planned(t, body, OpOllamaChat, nil, []ParameterCap{{"max_tokens", 100}}, RewriteSpec{})
		if e, ok := errors.AsType[*Error](err); !ok || e.Status != 400 || e.Param != param {
			t.Errorf("%s: %s, %v; want param %s", body, got, err, param)
		}
	}
}

func TestPlanRefusesItsCaller(t *testing.T) {
	for _, c := range []struct {
		d ParameterDefault
		c ParameterCap
	}{
		{d: ParameterDefault{"model", `"x"`}}, {d: ParameterDefault{"stream", "true"}}, {d: ParameterDefault{"stream_options", "{}"}},
		{d: ParameterDefault{"a", "{"}}, {d: ParameterDefault{"a", ""}}, {d: ParameterDefault{"a", "1,2"}}, {d: ParameterDefault{`a"`, "1"}},
		{d: ParameterDefault{"options.num_predict", "1"}}, {d: ParameterDefault{"", "1"}}, {d: ParameterDefault{"é", "1"}},
		{d: ParameterDefault{strings.Repeat("a", 65), "1"}}, {d: ParameterDefault{"a", `"x"`}, c: ParameterCap{"a", 1}},
		{d: ParameterDefault{"max_tokens", `"x"`}, c: ParameterCap{"max_tokens", 1}},
	} {
		caps := []ParameterCap{{"zz", 1}}
		if c.c.Name != "" {
			caps[0] = c.c
		}
		got, err := planned(t, `{"x":1}`, OpChatCompletions, []ParameterDefault{c.d}, caps, RewriteSpec{})
		if e, ok := errors.AsType[*Error](err); !ok || e.Status != 500 {
			t.Errorf("%+v: %s, %v", c, got, err)
		}
	}
}

func TestPlanOfNothing(t *testing.T) {
	form := Envelope{Model: "a"}
	if edits, err := form.Plan([]byte("--form"), OpImagesEdits, []ParameterDefault{{"a", "1"}}, nil); err != nil || edits.Grows() != 0 {
		t.Errorf("%v %v", edits, err)
	}
	e, err := ParseEnvelope(chatBody)
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = e.Plan(chatBody, OpChatCompletions, nil, nil) }); n != 0 {
		t.Errorf("a route without parameters costs %v allocations", n)
	}
}

// checkPlanned compares what a route's parameters do to a body with what encoding/json reads before and after.
func checkPlanned(t *testing.T, body []byte, e Envelope) {
	t.Helper()
	defaults := []ParameterDefault{{"seed", "[1]"}, {"top_k", "4"}}
	caps := []ParameterCap{{"max_tokens", 100}, {"temperature", 1.5}, {"top_k", 8}, {"n", 3}}
	numbers := append([]string{"top_k", "temperature", "n", "best_of", "n_cmpl", "num_return_sequences"}, lengthNames[:]...)
	names := append([]string{"seed"}, numbers...)
	edits, err := e.Plan(body, OpChatCompletions, defaults, caps)
	before := readOracle(body).fields
	if err != nil {
		param := err.(*Error).Param
		var v float64
		if !oddNames(body, names...) && (json.Unmarshal(before[param], &v) == nil && len(before[param]) <= maxNumber) {
			t.Fatalf("refused without a reason: %v", err)
		}
		return
	}
	if oddNames(body, names...) {
		t.Fatalf("a parameter that is there twice or in another spelling passed: %q", body)
	}
	spec := RewriteSpec{Model: "other", IncludeUsage: true, Edits: edits}
	out := e.Rewrite(body, spec)
	if parts := bytes.Join(e.RewriteParts(body, spec), nil); !bytes.Equal(parts, out) {
		t.Fatalf("in parts it is %q, in one %q", parts, out)
	}
	after := readOracle(out)
	if !after.valid || after.special || oddNames(out, names...) {
		t.Fatalf("broken: %q became %q", body, out)
	}
	for _, name := range numbers {
		checkCapped(t, name, before[name], after.fields[name], body, out)
	}
	// There are engines that know but this name.
	if bound, err := strconv.Atoi(string(after.fields["max_tokens"])); err != nil || bound < 1 || bound > 100 {
		t.Fatalf("no bound of the answer's length: %q became %q (%v)", body, out, err)
	}
	for _, name := range append(names, "model", "stream_options") {
		delete(before, name)
		delete(after.fields, name)
	}
	if !reflect.DeepEqual(before, after.fields) {
		t.Fatalf("something else changed: %q became %q", body, out)
	}
}

// checkCapped checks one parameter of a request before and after checkPlanned's caps.
func checkCapped(t *testing.T, name string, before, after json.RawMessage, body, out []byte) {
	t.Helper()
	most := map[string]float64{"temperature": 1.5, "top_k": 8, "n": 3, "best_of": 3, "n_cmpl": 3, "num_return_sequences": 3}[name]
	length := most == 0
	if length {
		most = 100
	}
	var got, was *float64
	if after != nil && json.Unmarshal(after, &got) != nil || got != nil && *got > most || got != nil && length && (*got < 1 || *got != math.Trunc(*got)) {
		t.Fatalf("%s is above its cap: %q became %q", name, body, out)
	}
	if json.Unmarshal(before, &was) != nil || was == nil {
		return // absent, or beyond a float64
	}
	moved := name == "max_completion_tokens" && got == nil
	kept := *was <= most && (!length || *was >= 1 && *was == math.Trunc(*was)) && (name != "top_k" || *was > 0)
	if kept && !moved && (got == nil || *got != *was) {
		t.Fatalf("%s was under its cap and changed: %q became %q", name, body, out)
	}
}

// TestPlanDefaultOptions: a default for Ollama's options as a whole, and a cap of what lies in them, are one member.
func TestPlanDefaultOptions(t *testing.T) {
	defaults := []ParameterDefault{{"options", `{ "num_ctx":5, "num_predict":900 }`}, {"seed", "7"}}
	caps := []ParameterCap{{MaxTokensParameter, 100}}
	const put = `{"seed":7, "num_ctx":5, "num_predict":100 }`
	for body, want := range map[string]string{
		`{"model":"m"}`:                       `{"max_tokens":100,"options":` + put + `,"model":"m"}`,
		`{"model":"m","options":null}`:        `{"max_tokens":100,"model":"m","options":` + put + `}`,
		`{"model":"m","options":{"top_k":1}}`: `{"max_tokens":100,"model":"m","options":{"seed":7,"num_predict":100,"top_k":1}}`,
	} {
		e, err := ParseEnvelope([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		edits, err := e.Plan([]byte(body), OpOllamaChat, defaults, caps)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(e.Rewrite([]byte(body), RewriteSpec{Edits: edits})); got != want {
			t.Errorf("%s:\n got %s\nwant %s", body, got, want)
		}
		if got := string(e.Rewrite([]byte(body), RewriteSpec{Edits: edits, Normalized: true})); got != strings.Replace(want, `"max_tokens":100,`, "", 1) {
			t.Errorf("%s:\nnormalized it is %s", body, got)
		}
	}
}
