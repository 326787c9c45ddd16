package gateway_test

import (
	"fmt"
	"strings"
	"testing"

	"iop/execution"
	"iop/state"
)

// TestSteeringMembersAreRefused: what makes some providers run another model, or use another host or credential, reaches
// none, on whatever path, unless the route allows it by name.
func TestSteeringMembersAreRefused(t *testing.T) {
	e, _ := withRoutes(t, `
routes:
  - model: chat
    targets: [{model: m}]
  - model: open
    targets: [{model: m}]
    parameters: {allow: [models, aws_*]}
`)
	sent := make(chan sentRun, 32) // room for all, if they passed
	e.addNode("n1", 4, capturing(sent, answerJSON(200, `{}`)), "m")
	for _, test := range []struct{ path, member, param string }{
		{chat, `"models":["gpt-5"]`, "models"}, {chat, `"fallbacks":["gpt-5"]`, "fallbacks"}, {chat, `"api_base":"http://evil.example"`, "api_base"},
		{"/v1/completions", `"extra_body":{"model":"gpt-5"}`, "extra_body"}, {"/v1/embeddings", `"api_key":"sk-x"`, "api_key"},
		{"/v1/responses", `"providerOptions":{}`, "provider_options"}, {"/v1/responses", `"background":true`, "background"},
		{chat, `"deferred":true`, "deferred"}, {chat, `"data_sources":[{"type":"azure_search"}]`, "data_sources"},
		{chat, `"session_params":{"id":"x"}`, "session_params"}, {chat, `"auto_max_new_tokens":true`, "auto_max_new_tokens"},
		{chat, `"langfuse_host":"http://evil.example"`, "langfuse_*"}, {chat, `"priority":-9`, "priority"},
		{chat, `"vllm_xargs":{"kv_transfer_params":"x"}`, "vllm_xargs"}, {chat, `"slotId":3`, "slot_id"}, {chat, `"multi_agent":{"enabled":true}`, "multi_agent"},
		{"/v1/responses", `"tools":[{"type":"web_search"},{"type":"image_generation","model":"gpt-image-1"}]`, "tools.model"},
		{chat, `"tools":[{"type":"openrouter:image_generation","parameters":{"model":"gpt-image-1"}}]`, "tools.model"},
		{chat, `"tools":[{"type":"advisor_1","name":"advisor","\u006dodel":"claude-opus"}]`, "tools.model"},
		{"/v1/responses", `"moderation":{"model":"omni-moderation-latest"}`, "*model"}, {"/v1/embeddings", `"options":{"draft":{"model_id":"big"}}`, "*model"},
		{"/v1/responses", `"input":[{"type":"additional_tools","tools":[{"type":"image_generation","model":"gpt-image-2"}]}]`, "tools.model"},
		{chat, `"messages":[{"role":"system","content":[{"type":"tool_addition","tool":{"definition":{"model":"claude-opus"}}}]}]`, "tools.model"},
		{chat, `"tools":[{"type":"openrouter:advisor"}]`, "tools.model"}, {chat, `"tags":["paid"]`, "tags"}, {chat, `"config_id":"other"`, "config_id"},
		{chat, `"config_ids":["a"]`, "config_ids"}, {chat, `"thread_id":"another's"`, "thread_id"},
		{chat, `"aws_region_name":"x"`, "aws_*"}, {chat, `"additional_drop_params":["max_tokens"]`, "additional_drop_params"},
		{chat, `"mock_testing_fallbacks":true`, "mock_testing_*"}, {chat, `"litellm_metadata":{"tags":["paid"]}`, "litellm_metadata"},
		{chat, `"request_id":"req_17"`, "request_id"}, {chat, `"num_retries":100,"timeout":1`, "num_retries"}, {"/v1/responses", `"max_retries":9`, "max_retries"},
		{chat, `"allowed_model_region":"eu"`, "allowed_model_region"}, {chat, `"region_name":"us-east-1"`, "region_name"},
		{chat, `"guardrails":{"config_id":"other","options":{"llm_params":{"max_tokens":9999}}}`, "guardrails"},
	} {
		status, _, body := e.post(test.path, `{"model":"chat",`+test.member+`}`)
		if code, _ := errorOf(t, body); status != 400 || code != "unsupported_parameter" || !strings.Contains(body, fmt.Sprintf(`"param":%q`, test.param)) {
			t.Errorf("%s: %d %s", test.member, status, body)
		}
	}
	const harmless = `{"model":"open","models":["a","b"],"aws_region_name":"x","fallbacks":null,"background":false,"tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{"model":{}}}}},{"model":null}]}`
	if status, _, body := e.post(chat, harmless); status != 200 {
		t.Fatalf("allowed: %d %s", status, body)
	}
	if got := <-sent; got.body != strings.Replace(harmless, "open", "m", 1) {
		t.Errorf("the provider got %s", got.body)
	}
	if status, _, body := e.post(chat, `{"model":"open","models":["a"],"route":"fallback"}`); status != 400 || !strings.Contains(body, `"param":"route"`) {
		t.Errorf("another one: %d %s", status, body)
	}
	e.idle()
}

// TestInvalidUTF8IsRefused: a decoder that drops bad bytes would read mo\xffdel as model.
func TestInvalidUTF8IsRefused(t *testing.T) {
	e := newEdge(t, nil)
	e.addNode("n1", 1, answerJSON(200, `{}`), "m")
	for _, path := range []string{chat, "/v1/responses", "/v1/messages", "/api/chat", "/v1/embeddings"} {
		status, _, body := e.post(path, "{\"model\":\"m\",\"mo\xffdel\":\"other\"}")
		if status != 400 || !strings.Contains(body, "not valid UTF-8 at byte 16") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	e.idle()
}

// TestFirstPromptReportedAlone: a provider that reports one prompt of several does not make the others free.
func TestFirstPromptReportedAlone(t *testing.T) {
	e := newEdge(t, nil)
	e.addNode("n1", 1, uses(100, 7), "m")
	prompt := `"` + strings.Repeat("word", 100) + `"`
	for _, list := range []string{prompt, prompt + "," + prompt + "," + prompt} {
		if status, _, body := e.post("/v1/completions", `{"model":"m","prompt":[`+list+`]}`); status != 200 {
			t.Fatalf("%d %s", status, body)
		}
	}
	e.idle()
	one, three := execution.Usage{Input: 100, Output: 7, Known: true}, execution.Usage{Input: 302, Output: 7, Known: true, Estimated: true}
	booked := e.records()
	if len(booked) != 2 || booked[0].Usage != one && booked[0].Usage != three || booked[0].Usage == booked[1].Usage ||
		booked[1].Usage != one && booked[1].Usage != three {
		t.Errorf("%+v", booked)
	}
}

// TestEstimateOfWhatIsAskedFor: of several lengths the greatest counts, and each answer to each prompt. A run whose
// provider reports no usage is booked as what was estimated.
func TestEstimateOfWhatIsAskedFor(t *testing.T) {
	e, _ := withRoutes(t, `
routes:
  - model: m
  - model: capped
    targets: [{model: m}]
    parameters: {caps: {max_tokens: 50, n: 2}}
`)
	p := runsOn("ollama", "chat.completions", "completions", "embeddings", "messages", "responses", "ollama.chat")
	e.addProvider("n1", p, answerJSON(200, `{}`), "m")
	const first = 256 // what an answer is thought to have before there was one
	for _, test := range []struct {
		path, body    string
		input, output int64
	}{
		{chat, `{"model":"m","messages":[],"max_tokens":7}`, 1, 7},
		{chat, `{"model":"m","messages":[],"max_tokens":7,"max_completion_tokens":70}`, 1, 70},
		{chat, `{"model":"m","messages":[],"max_tokens":7,"n_predict":700}`, 1, 700},
		{chat, `{"model":"m","messages":[],"max_tokens":7,"n_predict":-1}`, 1, first},
		{chat, `{"model":"m","messages":[],"max_tokens":9000,"n_predict":-1}`, 1, 9000},
		{chat, `{"model":"m","messages":[],"max_tokens":0}`, 1, first},
		{chat, `{"model":"m","messages":[],"max_output_tokens":1}`, 1, first},
		{chat, `{"model":"m","messages":[],"max_tokens":7.0,"n":3e0}`, 1, 21},
		{chat, `{"model":"m","messages":[],"max_tokens":7,"n":2,"best_of":5}`, 1, 35},
		{chat, `{"model":"m","messages":[],"max_tokens":7,"n":1000}`, 1, 7000},
		{"/v1/completions", `{"model":"m","prompt":["a","b","c"],"max_tokens":7,"n":2}`, 3, 42},
		{"/v1/completions", `{"model":"m","prompt":[[1,1,1,1,1,1,1,1],[2,2]],"max_tokens":7}`, 10, 14},
		{"/v1/completions", `{"model":"m","messages":[],"prompt":"` + strings.Repeat("x", 4000) + `","max_tokens":7}`, 1001, 7},
		{"/v1/messages", `{"model":"m","messages":[],"system":"` + strings.Repeat("x", 4000) + `","max_tokens":7}`, 1001, 7},
		{"/v1/embeddings", `{"model":"m","input":[1,1,1,1,1,1,1,1]}`, 8, 0},
		{"/api/chat", `{"model":"m","stream":false,"messages":[],"max_tokens":1,"options":{"num_predict":900}}`, 1, 900},
		{"/api/chat", `{"model":"m","stream":false,"messages":[],"max_tokens":1}`, 1, first},
		{chat, `{"model":"capped","messages":[]}`, 1, 50},
		{chat, `{"model":"capped","messages":[],"max_tokens":0,"n_predict":-1,"n":9}`, 1, 100},
		{chat, `{"model":"capped","messages":[],"max_completion_tokens":20}`, 1, 20},
	} {
		e.as(e.newKey(state.KeySpec{Name: test.path + test.body[:min(len(test.body), 100)]}), func() {
			if status, _, body := e.post(test.path, test.body); status != 200 {
				t.Errorf("%.100s: %d %s", test.body, status, body)
				return
			}
			e.idle()
			want := execution.Usage{Input: test.input, Output: test.output, Known: true, Estimated: true}
			records := e.records()
			if u := records[len(records)-1].Usage; u != want {
				t.Errorf("%.100s: booked is %+v, want %+v", test.body, u, want)
			}
		})
	}
}
