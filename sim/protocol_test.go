package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// anthropicEvents returns the events of a Messages stream and the joined deltas of each kind.
func anthropicEvents(t *testing.T, body string) (kinds []string, deltas map[string]string) {
	t.Helper()
	deltas = map[string]string{}
	for event := range strings.SplitSeq(strings.TrimSpace(body), "\n\n") {
		name, data, ok := strings.Cut(event, "\ndata: ")
		if !ok {
			t.Fatalf("no event: %q", event)
		}
		var e struct {
			Type  string
			Delta map[string]any
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil || name != "event: "+e.Type {
			t.Fatalf("%v in %q", err, event)
		}
		if len(kinds) == 0 || kinds[len(kinds)-1] != e.Type {
			kinds = append(kinds, e.Type)
		}
		for k, v := range e.Delta {
			if s, ok := v.(string); ok && k != "type" {
				deltas[k] += s
			}
		}
	}
	return kinds, deltas
}

func TestMessages(t *testing.T) {
	r := start(t, nil)
	a := r.post("/v1/messages", `{"model":"sim-reason","max_tokens":100,"stream":true,"system":"s","messages":[{"role":"user","content":[{"type":"text","text":"sim:tokens=3 hi"}]}]}`)
	kinds, deltas := anthropicEvents(t, a.body)
	want := []string{
		"message_start", "ping", "content_block_start", "content_block_delta", "content_block_stop",
		"content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop",
	}
	if !slices.Equal(kinds, want) || deltas["text"] != "hi t1 t2" || deltas["thinking"] == "" || deltas["stop_reason"] != "end_turn" || a.Header.Get("Request-Id") == "" {
		t.Errorf("%v %v", kinds, deltas)
	}

	var m struct {
		Content []struct{ Type, Text string }
		Stop    string `json:"stop_reason"`
		Usage   map[string]int
	}
	r.decode(r.post("/v1/messages", `{"model":"sim-small","max_tokens":2,"messages":[{"role":"user","content":"one two three"}]}`), &m)
	if len(m.Content) != 1 || m.Content[0].Text != "one two" || m.Stop != "max_tokens" || m.Usage["output_tokens"] != 2 {
		t.Errorf("%+v", m)
	}
	var n map[string]int
	r.decode(r.post("/v1/messages/count_tokens", `{"model":"sim-small","messages":[{"role":"user","content":"one two three"}]}`), &n)
	if n["input_tokens"] != m.Usage["input_tokens"]+m.Usage["cache_read_input_tokens"] {
		t.Errorf("count %v, usage %v", n, m.Usage)
	}
}

func TestMessagesTools(t *testing.T) {
	r := start(t, nil)
	req := func(last string, stream bool) string {
		return fmt.Sprintf(`{"model":"sim-small","max_tokens":100,"stream":%v,"tool_choice":{"type":"any"},`+
			`"tools":[{"name":"get","input_schema":{"type":"object","properties":{"a":{"type":"integer"}}}}],"messages":[%s]}`, stream, last)
	}
	ask := `{"role":"user","content":"x"}`
	kinds, deltas := anthropicEvents(t, r.post("/v1/messages", req(ask, true)).body)
	if deltas["partial_json"] != `{"a":1}` || deltas["stop_reason"] != "tool_use" || kinds[len(kinds)-1] != "message_stop" {
		t.Errorf("%v %v", kinds, deltas)
	}
	a := r.post("/v1/messages", req(ask, false))
	if !strings.Contains(a.body, `"input":{"a":1},"name":"get","type":"tool_use"`) {
		t.Error(a.body)
	}
	answered := r.post("/v1/messages", req(ask+`,{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"sunny"}]}`, false))
	if !strings.Contains(answered.body, `"end_turn"`) {
		t.Error(answered.body)
	}
}

func TestMessagesErrors(t *testing.T) {
	r := start(t, nil)
	for body, status := range map[string]int{
		`{"model":"sim-small","messages":[{"role":"user","content":"x"}]}`:                                           400,
		`{"model":"sim-small","max_tokens":5}`:                                                                       400,
		`{"model":"nobody","max_tokens":5,"messages":[{"role":"user","content":"x"}]}`:                               404,
		`{"model":"sim-small","max_tokens":5,"messages":[{"role":"user","content":"sim:status=529 x"}]}`:             529,
		`{"model":"sim-small","max_tokens":5,"messages":[{"role":"user","content":"sim:error_event_first x"}]}`:      500,
		`{"model":"sim-small","max_tokens":5,"messages":[{"role":"user","content":"sim:status=503,retry_after=1"}]}`: 503,
	} {
		a := r.post("/v1/messages", body)
		if a.StatusCode != status || !strings.HasPrefix(a.body, `{"error":{"message":`) || !strings.Contains(a.body, `"type":"error"`) {
			t.Errorf("%s: %d %s", body, a.StatusCode, a.body)
		}
	}
	a := r.post("/v1/messages", `{"model":"sim-small","max_tokens":50,"stream":true,"messages":[{"role":"user","content":"sim:error_event_mid x"}]}`)
	if kinds, _ := anthropicEvents(t, a.body); kinds[len(kinds)-1] != "error" {
		t.Errorf("%v", kinds)
	}
}

// ollamaLines decodes newline-delimited JSON.
func ollamaLines(t *testing.T, body string) (text string, last map[string]any) {
	t.Helper()
	for line := range strings.SplitSeq(strings.TrimSuffix(body, "\n"), "\n") {
		last = nil
		if err := json.Unmarshal([]byte(line), &last); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		if m, ok := last["message"].(map[string]any); ok {
			s, _ := m["content"].(string)
			text += s
		}
		s, _ := last["response"].(string)
		text += s
	}
	return text, last
}

func TestOllama(t *testing.T) {
	r := start(t, func(c *Config) { c.Flavour = Ollama })
	a := r.post("/api/chat", `{"model":"sim-small:latest","messages":[{"role":"user","content":"sim:tokens=3,text=cjk hi"}]}`)
	text, last := ollamaLines(t, a.body)
	if text != "hi世界推論" || last["done"] != true || last["eval_count"] != 3.0 || a.Header.Get("Content-Type") != ndjsonType {
		t.Errorf("%q %v %v", text, last, a.Header)
	}
	text, last = ollamaLines(t, r.post("/api/generate", `{"model":"sim-small","prompt":"a b","options":{"num_predict":2}}`).body)
	if text != "a b" || last["done_reason"] != "length" {
		t.Errorf("%q %v", text, last)
	}
	var whole struct {
		Message struct{ Content, Thinking string }
		Done    bool
	}
	r.decode(r.post("/api/chat", `{"model":"sim-small","stream":false,"think":true,"messages":[{"role":"user","content":"hi"}]}`), &whole)
	if !whole.Done || !strings.HasPrefix(whole.Message.Content, "hi t1") || whole.Message.Thinking == "" {
		t.Errorf("%+v", whole)
	}
	a = r.post("/api/chat", `{"model":"sim-small","messages":[{"role":"user","content":"use get"}],"tools":[{"type":"function","function":{"name":"get","parameters":{"type":"object"}}}]}`)
	if !strings.Contains(a.body, `"function":{"arguments":{},"index":0,"name":"get"},"id":"call_sim`) {
		t.Error(a.body)
	}
	a = r.post("/api/chat", `{"model":"sim-small","stream":false,"format":{"type":"object","properties":{"a":{"type":"integer"}}},"messages":[{"role":"user","content":"x"}]}`)
	if !strings.Contains(a.body, `"content":"{\"a\":1}"`) {
		t.Error(a.body)
	}
	if a := r.post("/api/chat", `{"model":"nobody","messages":[]}`); a.StatusCode != 404 || !strings.HasPrefix(a.body, `{"error":"`) {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	var embed struct{ Embeddings [][]float32 }
	r.decode(r.post("/api/embed", `{"model":"sim-embed","input":["a","b"],"dimensions":4}`), &embed)
	if len(embed.Embeddings) != 2 || len(embed.Embeddings[1]) != 4 {
		t.Errorf("%+v", embed)
	}
	if a := r.post("/api/embeddings", `{"model":"sim-embed","prompt":"a"}`); !strings.HasPrefix(a.body, `{"embedding":[`) {
		t.Error(a.body)
	}
	if a := r.post("/api/show", `{"model":"sim-small"}`); a.StatusCode != 200 || !strings.Contains(a.body, `"capabilities"`) {
		t.Error(a.body)
	}
	if a := r.do("GET", "/api/ps", ""); strings.Contains(a.body, "sim-large") || !strings.Contains(a.body, "sim-embed") {
		t.Errorf("loaded: %s", a.body)
	}
}

func TestFlavoursCanBeTold(t *testing.T) {
	probes := map[string][]string{ // path: what tells the flavour
		"/version": {"vllm"}, "/metrics": {"vllm"}, "/props": {"llamacpp"}, "/slots": {"llamacpp"},
		"/api/version": {"ollama"}, "/api/tags": {"ollama"}, "/": {"ollama"}, "/api/v0/models": {"lmstudio"},
		"/get_server_info": {"sglang"}, "/get_model_info": {"sglang"}, "/health": {"vllm", "llamacpp", "sglang"},
		"/v1/models": {"openai", "vllm", "llamacpp", "ollama", "lmstudio", "sglang", "anthropic"},
	}
	for _, f := range flavours {
		r := start(t, func(c *Config) { c.Flavour = f })
		for path, who := range probes {
			a := r.do("GET", path, "")
			if has := slices.Contains(who, string(f)); has != (a.StatusCode == 200) {
				t.Errorf("%s %s: %d", f, path, a.StatusCode)
			}
		}
		if a := r.post(chatPath, chat("tokens=3", true)); !strings.HasPrefix(contentOf(t, a.body), "hello t1") {
			t.Errorf("%s: %s", f, a.body)
		}
	}
}

func TestFlavourDetails(t *testing.T) {
	with := func(f Flavour) *rig { return start(t, func(c *Config) { c.Flavour, c.Slots = f, 7 }) }
	if a := with(LlamaCPP).do("GET", "/props", ""); !strings.Contains(a.body, `"total_slots":7`) {
		t.Error(a.body)
	}
	if a := with(SGLang).do("GET", "/get_server_info", ""); !strings.Contains(a.body, `"max_running_requests":7`) {
		t.Error(a.body)
	}
	if a := with(VLLM).do("GET", "/metrics", ""); !strings.Contains(a.body, `vllm:num_requests_running{engine="0",model_name="sim-small"} 0.0`) {
		t.Error(a.body)
	}
	r := with(Ollama)
	if a := r.do("GET", "/", ""); a.body != "Ollama is running" {
		t.Error(a.body)
	}
	if a := r.do("HEAD", "/", ""); a.StatusCode != 200 {
		t.Errorf("HEAD: %d", a.StatusCode)
	}
	a := r.post(chatPath, strings.Replace(chat("tokens=2", true), `"model"`, `"n":3,"model"`, 1))
	if n := strings.Count(a.body, `"role":"assistant"`); n != 3 || strings.Contains(a.body, `"index":1`) {
		t.Errorf("Ollama repeats the role and ignores n: %d in %s", n, a.body)
	}
	a = with(LlamaCPP).post(chatPath, chat("tokens=2", true))
	if strings.Contains(a.body, `"role"`) || strings.Count(a.body, `"timings"`) != 1 || !strings.Contains(a.body, `"finish_reason":"stop"}],"usage":{`) {
		t.Errorf("llama.cpp puts usage and timings into the finish chunk: %s", a.body)
	}
	for f, want := range map[Flavour]string{
		VLLM: `"code":404`, OpenAI: `"code":"model_not_found"`, Ollama: `"message":`, Anthropic: `"type":"error"`,
	} {
		if a := with(f).post(chatPath, strings.Replace(chat("", true), "sim-small", "nobody", 1)); a.StatusCode != 404 || !strings.Contains(a.body, want) {
			t.Errorf("%s: %d %s", f, a.StatusCode, a.body)
		}
	}
	if a := with(LlamaCPP).post(chatPath, `{"model":`); a.StatusCode != 500 {
		t.Errorf("llama.cpp answers bad JSON with 500, not %d", a.StatusCode)
	}
}

func TestLoopbackOllamaRefusesStrangers(t *testing.T) {
	r := start(t, func(c *Config) { c.Flavour = Ollama })
	for _, c := range []struct {
		host, origin string
		status       int
	}{
		{"", "", 200}, {"localhost:11434", "", 200}, {"edge.example.com", "", 403}, {"8.8.8.8", "", 403}, {"[::1]:80", "", 200},
		{"", "http://localhost:3000", 200}, {"", "https://edge.example.com", 403},
	} {
		req, err := http.NewRequest("GET", r.url+"/api/tags", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = c.host
		if c.origin != "" {
			req.Header.Set("Origin", c.origin)
		}
		resp, err := r.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.status {
			t.Errorf("%+v: %d", c, resp.StatusCode)
		}
	}
}

func TestUsageRules(t *testing.T) {
	const asked = `"stream_options":{"include_usage":true},`
	count := func(body string) (null, inEmpty, inFinish, inOthers int) {
		for line := range strings.SplitSeq(body, "\n") {
			switch {
			case strings.Contains(line, `"usage":null`):
				null++
			case !strings.Contains(line, `"usage":{`):
			case strings.Contains(line, `"choices":[]`):
				inEmpty++
			case strings.Contains(line, `"finish_reason":"stop"`):
				inFinish++
			default:
				inOthers++
			}
		}
		return
	}
	r := start(t, nil)
	for _, c := range []struct {
		knobs, options                    string
		null, inEmpty, inFinish, inOthers int
	}{
		{"tokens=3", "", 0, 0, 0, 0},
		{"tokens=3", asked, 5, 1, 0, 0},
		{"tokens=3,usage=never", asked, 0, 0, 0, 0},
		{"tokens=3,usage=always", "", 0, 1, 1, 4},
		{"tokens=3,usage=finish", "", 0, 0, 1, 0},
		{"tokens=3,usage=finish", asked, 0, 0, 1, 0},
	} {
		a := r.post(chatPath, strings.Replace(chat(c.knobs, true), "{", "{"+c.options, 1))
		null, inEmpty, inFinish, inOthers := count(a.body)
		if null != c.null || inEmpty != c.inEmpty || inFinish != c.inFinish || inOthers != c.inOthers {
			t.Errorf("%s %s: null %d, empty %d, finish %d, others %d", c.knobs, c.options, null, inEmpty, inFinish, inOthers)
		}
	}
	if a := r.post(chatPath, strings.Replace(chat("usage=refuse", true), "{", "{"+asked, 1)); a.StatusCode != 400 || !strings.Contains(a.body, "stream_options") {
		t.Errorf("refuse: %d %s", a.StatusCode, a.body)
	}
	if a := r.post(chatPath, chat("usage=refuse", true)); a.StatusCode != 200 {
		t.Errorf("refuse without options: %d", a.StatusCode)
	}
	if a := r.post(chatPath, chat("cached=2", false)); !strings.Contains(a.body, `"cached_tokens":2`) {
		t.Errorf("cached: %s", a.body)
	}
}

func TestBadRequests(t *testing.T) {
	r := start(t, nil)
	for _, c := range []struct{ path, body, param string }{
		{chatPath, `{`, ""}, {chatPath, ``, ""}, {chatPath, `[]`, ""}, {chatPath, `{"model":"sim-small"}`, "messages"},
		{chatPath, `{"model":5,"messages":[]}`, ""}, {chatPath, `{"model":"sim-small","messages":"x"}`, ""},
		{chatPath, `{"messages":[]}`, "model"}, {chatPath, `{"model":"sim-small","messages":[],"n":0}`, "n"},
		{"/v1/completions", `{"model":"sim-small"}`, "prompt"}, {"/v1/completions", `{"model":"sim-small","prompt":5}`, "input"},
		{"/v1/embeddings", `{"model":"sim-small"}`, "input"}, {"/v1/embeddings", `{"model":"sim-small","input":"x","dimensions":0}`, "dimensions"},
		{"/v1/responses", `{"model":"sim-small"}`, "input"}, {"/v1/rerank", `{"model":"sim-small","query":"x"}`, "documents"},
		{"/v1/images/generations", `{"model":"sim-small"}`, "prompt"}, {"/v1/images/generations", `{"model":"sim-small","prompt":"x","n":99}`, "n"},
		{"/v1/audio/speech", `{"model":"sim-small"}`, "input"}, {"/v1/moderations", `{}`, "input"}, {"/tokenize", `{"prompt":5}`, ""},
	} {
		a := r.post(c.path, c.body)
		var e struct {
			Error struct{ Message, Type, Param string }
		}
		if err := json.Unmarshal([]byte(a.body), &e); err != nil || a.StatusCode != 400 || e.Error.Param != c.param || e.Error.Message == "" {
			t.Errorf("%s %s: %d %s", c.path, c.body, a.StatusCode, a.body)
		}
	}
	if a := r.do("GET", "/v1/nothing", ""); a.StatusCode != 404 || !strings.Contains(a.body, "/v1/nothing") {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	if st := r.idle(); st.Rejected != st.Started {
		t.Errorf("%+v", st)
	}
}

func TestAPIKey(t *testing.T) {
	r := start(t, func(c *Config) { c.APIKey = "secret" })
	for _, c := range []struct {
		header []string
		status int
	}{
		{nil, 401}, {[]string{"Authorization", "Bearer wrong"}, 401}, {[]string{"Authorization", "Bearer secret"}, 200}, {[]string{"X-Api-Key", "secret"}, 200},
	} {
		if a := r.do("POST", chatPath, chat("", false), c.header...); a.StatusCode != c.status || strings.Contains(a.body, "secret") {
			t.Errorf("%v: %d %s", c.header, a.StatusCode, a.body)
		}
	}
	if a := r.do("GET", "/sim/stats", ""); a.StatusCode != 200 {
		t.Errorf("stats: %d", a.StatusCode)
	}
}

func TestRequestsAreRemembered(t *testing.T) {
	r := start(t, nil)
	big := bytes.Repeat([]byte("x"), largeBody)
	body := strings.Replace(chat("tokens=2", true), `"hello"`, `"`+string(big)+`"`, 1)
	if a := r.do("POST", chatPath+"?beta=true", body, "X-Canary", "yes"); a.StatusCode != 200 {
		t.Fatal(a.body)
	}
	r.idle()
	got := r.s.Requests(5)[0]
	if got.Path != chatPath+"?beta=true" || got.Host != r.s.Addr().String() || got.Headers.Get("X-Canary") != "yes" || got.Model != "sim-small" ||
		!got.Stream || got.State != stateFinished || got.Status != 200 || got.Tokens != 2 {
		t.Errorf("%+v", got)
	}
	if got.BodyLength != int64(len(body)) || got.Body != body[:bodyPrefix] || len(got.BodySHA256) != 64 {
		t.Errorf("body: %d bytes, sum %s", got.BodyLength, got.BodySHA256)
	}
	for range ringSize + 5 {
		r.do("GET", "/v1/models", "")
	}
	var list []Request
	r.decode(r.do("GET", "/sim/requests", ""), &list)
	if len(list) < ringSize-1 || list[0].ID != ringSize+6 || list[0].Inference {
		t.Errorf("%d remembered, newest %d", len(list), list[0].ID)
	}
	r.decode(r.do("GET", "/sim/requests?n=2", ""), &list)
	if len(list) != 2 {
		t.Errorf("%d of 2", len(list))
	}
	if a := r.do("GET", "/sim/requests?n=x", ""); a.StatusCode != http.StatusBadRequest {
		t.Errorf("%d", a.StatusCode)
	}
	r.post("/sim/reset", "")
	if st := r.s.Stats(); st.Started != 0 || len(r.s.Requests(5)) != 0 {
		t.Errorf("after reset: %+v", st)
	}
}

func TestTokenize(t *testing.T) {
	r := start(t, nil)
	const text = "hello 世界 👩‍👩‍👧‍👦"
	var a struct {
		Count  int
		Tokens []int
	}
	r.decode(r.post("/tokenize", `{"model":"sim-small","prompt":"`+text+`"}`), &a)
	b, _ := json.Marshal(map[string]any{"model": "sim-small", "tokens": a.Tokens})
	var back struct{ Prompt string }
	r.decode(r.post("/detokenize", string(b)), &back)
	if back.Prompt != text || a.Count != len(a.Tokens) || a.Count != countTokens(len(text)) {
		t.Errorf("%+v %q", a, back.Prompt)
	}
	if textOf([]int{-1, 0, 1 << 40}) != "???" {
		t.Error("foreign tokens")
	}
}

func TestRerank(t *testing.T) {
	r := start(t, nil)
	for _, path := range []string{"/rerank", "/v1/rerank", "/v2/rerank"} {
		var a struct {
			Results []struct {
				Index int
				Score float64 `json:"relevance_score"`
			}
		}
		r.decode(r.post(path, `{"model":"sim-small","query":"red fox","top_n":2,"documents":["blue",{"text":"a red fox"},"red"]}`), &a)
		if len(a.Results) != 2 || a.Results[0].Index != 1 || a.Results[1].Index != 2 || a.Results[0].Score <= a.Results[1].Score {
			t.Errorf("%s: %+v", path, a)
		}
	}
}

func TestAnswersRepeat(t *testing.T) {
	r := start(t, nil)
	for _, stream := range []bool{true, false} {
		one := stable(r.post(chatPath, chat("text=mix,tokens=30", stream)).body)
		two := stable(r.post(chatPath, chat("text=mix,tokens=30", stream)).body)
		if stream && one != two || len(one) != len(two) {
			t.Errorf("%s\n%s", one, two)
		}
	}
}
