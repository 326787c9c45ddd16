package gateway_test

import (
	"fmt"
	"strings"
	"testing"

	"iop/state"
)

// TestUnknownMembersWithLimits: a client with limits, of the key or of the route, can't send a provider a member that the operation
// is not known to define. Others can, and the operator may allow one, or refuse a known one.
func TestUnknownMembersWithLimits(t *testing.T) {
	t.Parallel()
	e, _ := withRoutes(t, `
routes:
  - model: open
    targets: [{model: m}]
  - model: capped
    targets: [{model: m}]
    parameters: {caps: {max_tokens: 50}}
  - model: timed
    targets: [{model: m}]
    timeouts: {total: 1h}
  - model: team
    principals: ["*-team"]
    targets: [{model: m}]
  - model: allowing
    targets: [{model: m}]
    parameters: {caps: {max_tokens: 50}, allow: [brand_new]}
  - model: refusing
    targets: [{model: m}]
    parameters: {refuse: [num_gpu, seed]}
`)
	sent := make(chan sentRun, 64) // room for all, if they passed
	p := runsOn("ollama", "chat.completions", "messages", "ollama.chat", "audio.transcriptions")
	e.addProvider("n1", p, capturing(sent, answerJSON(200, `{}`)), "m")
	free := state.KeySpec{Owner: "a-team"}
	for _, test := range []struct {
		name   string
		key    state.KeySpec
		model  string
		path   string
		member string
		param  string // of what is refused
	}{
		{"no limits", free, "open", chat, `"brand_new":1`, ""}, {"no limits", free, "open", chat, `"Top_K":1`, ""},
		{"a cap", free, "capped", chat, `"brand_new":1`, "brand_new"}, {"a total", free, "timed", chat, `"brand_new":1`, "brand_new"},
		{"principals", free, "team", chat, `"brand_new":null`, "brand_new"}, {"a cap", free, "capped", chat, `"Top_K":1`, "Top_K"},
		{"a cap", free, "capped", chat, `"top_k":1,"min_p":0.1,"guided_json":{}`, ""}, {"allowed", free, "allowing", chat, `"brand_new":1`, ""},
		{"another one", free, "allowing", chat, `"brand_newer":1`, "brand_newer"},
		{"refused", free, "refusing", chat, `"seed":1`, "seed"}, {"refused", free, "refusing", "/api/chat", `"options":{"num_gpu":0}`, "options.num_gpu"},
		{"refused", free, "refusing", "/api/chat", `"options":{"NUM_GPU":0}`, "options.NUM_GPU"}, {"refused", free, "refusing", "/api/chat", `"options":{"num_ctx":1}`, ""},
		{"a list of models", state.KeySpec{Routes: []string{"o*"}}, "open", chat, `"brand_new":1`, "brand_new"},
		{"a rate", state.KeySpec{RPM: 100}, "open", "/v1/messages", `"brand_new":1`, "brand_new"}, {"tokens", state.KeySpec{TPM: 1 << 20}, "open", chat, `"brand_new":1`, "brand_new"},
		{"runs at once", state.KeySpec{Concurrency: 9}, "open", "/api/chat", `"brand_new":1`, "brand_new"},
		{"a budget", state.KeySpec{MonthlyTokens: 1 << 20}, "open", chat, `"brand_new":1`, "brand_new"},
		{"a weight alone", state.KeySpec{Weight: 3, Priority: 1}, "open", chat, `"brand_new":1`, ""},
		{"a budget", state.KeySpec{MonthlyTokens: 1 << 20}, "allowing", chat, `"brand_new":1`, ""},
	} {
		e.as(e.newKey(test.key), func() {
			status, _, body := e.post(test.path, fmt.Sprintf(`{"model":%q,"messages":[],"stream":false,%s}`, test.model, test.member))
			switch {
			case test.param == "" && status != 200, test.param != "" && status != 400:
				t.Errorf("%s, %s: %d %s", test.name, test.member, status, body)
			case test.param == "":
				if got := <-sent; !strings.Contains(got.body, test.member) {
					t.Errorf("%s, %s: the provider got %s", test.name, test.member, got.body)
				}
			case !strings.Contains(body, test.param+" is not forwarded"), strings.HasPrefix(test.path, "/v1/chat") && !strings.Contains(body, fmt.Sprintf(`"param":%q,"code":"unsupported_parameter"`, test.param)):
				t.Errorf("%s, %s: %s", test.name, test.member, body)
			}
		})
	}
	e.idle()
	if len(sent) > 0 {
		t.Errorf("the provider got %s", (<-sent).body)
	}
}
