package sim

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestKnobsParse(t *testing.T) {
	k := newKnobs(DefaultConfig())
	rest, err := k.parse("sim:tokens=7,ttft=2s,crlf,midclose=5,bigevent=2k,tps=50, tell me a story")
	if err != nil {
		t.Fatal(err)
	}
	if rest != "tell me a story" {
		t.Errorf("rest %q", rest)
	}
	if k.tokens != 7 || k.ttft != 2*time.Second || !k.crlf || k.fault != faultMidClose || k.after != 5 || k.bigEvent != 2048 || k.gap != 20*time.Millisecond {
		t.Errorf("%+v", k)
	}
	if rest, err := k.parse("similar text"); err != nil || rest != "similar text" {
		t.Errorf("text without knobs: %q, %v", rest, err)
	}
}

func TestFaultNamesAnyToggle(t *testing.T) {
	k := newKnobs(DefaultConfig())
	if _, err := k.parse("sim:fault=crlf,fault=midreset,after=9"); err != nil {
		t.Fatal(err)
	}
	if !k.crlf || k.fault != faultMidReset || k.after != 9 {
		t.Errorf("%+v", k)
	}
}

func TestEveryFaultAndKnobIsTold(t *testing.T) {
	help := Help()
	for _, e := range knobTable {
		if !strings.Contains(help, "  "+e.name+" ") {
			t.Errorf("help is silent about %s", e.name)
		}
	}
	for _, f := range faultHelp {
		k := newKnobs(DefaultConfig())
		if err := k.apply(f[0], ""); err != nil || k.fault != f[0] {
			t.Errorf("%s: %v", f[0], err)
		}
	}
}

func TestWrongKnobsAreRefused(t *testing.T) {
	for _, order := range []string{
		"nonsense", "tokens", "tokens=x", "tokens=-1", "ttft=5", "ttft=-1s", "tps=nan", "tps=-1", "usage=sometimes",
		"status=99", "bigevent=1g", "bigevent=9999999m", "crlf=maybe", "fault=nonsense", "midclose=x", "fault=", "text=klingon",
	} {
		k := newKnobs(DefaultConfig())
		if _, err := k.parse("sim:" + order); err == nil {
			t.Errorf("%s is accepted", order)
		}
	}
}

func TestWrongKnobIsTheClientsFault(t *testing.T) {
	r := start(t, nil)
	a := r.post(chatPath, chat("toknes=5", false))
	if a.StatusCode != 400 || !strings.Contains(a.body, "toknes") {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
}

func TestPlacesForKnobs(t *testing.T) {
	r := start(t, func(c *Config) { c.Flavour = Ollama })
	for name, req := range map[string][2]string{
		"user":          {chatPath, `{"model":"sim-small","user":"sim:status=418","messages":[{"role":"user","content":"x"}]}`},
		"safety":        {chatPath, `{"model":"sim-small","safety_identifier":"sim:status=418","messages":[]}`},
		"metadata.sim":  {chatPath, `{"model":"sim-small","metadata":{"sim":"status=418"},"messages":[]}`},
		"last message":  {chatPath, `{"model":"sim-small","messages":[{"role":"user","content":"x"},{"role":"user","content":[{"type":"text","text":"sim:status=418 hello"}]}]}`},
		"user_id":       {"/v1/messages", `{"model":"sim-small","max_tokens":9,"metadata":{"user_id":"sim:status=418"},"messages":[{"role":"user","content":"x"}]}`},
		"input":         {"/v1/responses", `{"model":"sim-small","input":"sim:status=418 x"}`},
		"embedding":     {"/v1/embeddings", `{"model":"sim-small","input":"x","user":"sim:status=418"}`},
		"prompt":        {"/v1/completions", `{"model":"sim-small","prompt":"sim:status=418"}`},
		"image prompt":  {"/v1/images/generations", `{"model":"sim-small","prompt":"sim:status=418 cat"}`},
		"speech":        {"/v1/audio/speech", `{"model":"sim-small","input":"sim:status=418 say"}`},
		"ollama chat":   {"/api/chat", `{"model":"sim-small","messages":[{"role":"user","content":"sim:status=418"}]}`},
		"ollama prompt": {"/api/generate", `{"model":"sim-small","prompt":"sim:status=418"}`},
		"rerank":        {"/v1/rerank", `{"model":"sim-small","query":"sim:status=418","documents":["a"]}`},
	} {
		if a := r.post(req[0], req[1]); a.StatusCode != 418 {
			t.Errorf("%s: %d %s", name, a.StatusCode, a.body)
		}
	}
	if a := r.do("GET", "/v1/models", "", "X-Sim", "status=418"); a.StatusCode != 418 {
		t.Errorf("X-Sim: %d", a.StatusCode)
	}
}

func TestDefaultKnobs(t *testing.T) {
	r := start(t, nil)
	set := func(body string) {
		t.Helper()
		if a := r.post("/sim/config", body); a.StatusCode != 200 {
			t.Fatalf("%d %s", a.StatusCode, a.body)
		}
	}
	want := func(path string, status int) {
		t.Helper()
		method, body := "GET", ""
		if path == chatPath {
			method, body = "POST", chat("", false)
		}
		if a := r.do(method, path, body); a.StatusCode != status {
			t.Errorf("%s: %d, want %d", path, a.StatusCode, status)
		}
	}
	set(`{"status":503,"retry_after":"3","crlf":true}`)
	want(chatPath, 503)
	want("/v1/models", 200) // defaults are for inference
	set(`{"path":"*"}`)
	want("/v1/models", 503)
	set(`{"path":"/v1/models"}`)
	want("/v1/models", 503)
	want(chatPath, 200)
	set(`{"path":null,"times":2}`)
	want(chatPath, 503)
	want(chatPath, 503)
	want(chatPath, 200)
	set(`{"status":503}`)
	r.do("DELETE", "/sim/config", "")
	want(chatPath, 200)
	for _, bad := range []string{`{"nope":1}`, `{"ttft":"x"}`, `{"ttft":[]}`, `[]`, `{`} {
		if a := r.post("/sim/config", bad); a.StatusCode != 400 {
			t.Errorf("%s: %d", bad, a.StatusCode)
		}
	}
	set(`{"status":503,"tokens":4}`)
	r.post("/sim/config", `{"tokens":9,"nope":1}`) // all or nothing
	if a := r.do("GET", "/sim/config", ""); !strings.Contains(a.body, `"tokens": "4"`) {
		t.Errorf("config %s", a.body)
	}
}

func TestModelsAndSlotsCanChange(t *testing.T) {
	r := start(t, nil)
	if a := r.do("PUT", "/sim/models", `{"models":["a","b/c:d"]}`); a.StatusCode != 200 {
		t.Fatal(a.body)
	}
	if a := r.do("GET", "/v1/models", ""); !strings.Contains(a.body, `"b/c:d"`) || strings.Contains(a.body, "sim-small") {
		t.Error(a.body)
	}
	for _, id := range []string{"b/c:d", "b%2Fc:d"} {
		if a := r.do("GET", "/v1/models/"+id, ""); a.StatusCode != 200 || !strings.Contains(a.body, `"b/c:d"`) {
			t.Errorf("%s: %d %s", id, a.StatusCode, a.body)
		}
	}
	if a := r.post(chatPath, chat("", false)); a.StatusCode != 404 {
		t.Errorf("a removed model: %d", a.StatusCode)
	}
	if a := r.do("PUT", "/sim/slots", `{"slots":9,"queue":0}`); a.StatusCode != 200 || r.s.Stats().Slots != 9 {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	if a := r.do("PUT", "/sim/slots", `{"slots":0}`); a.StatusCode != 400 {
		t.Errorf("no slots: %d", a.StatusCode)
	}
	if a := r.do("PUT", "/sim/models", `{"models":["a","a"]}`); a.StatusCode != 400 {
		t.Errorf("twice: %d", a.StatusCode)
	}
}

func FuzzKnobs(f *testing.F) {
	f.Add("sim:tokens=5,fault=hang hello")
	f.Add("sim:,,,=,a=b=c")
	f.Add("sim:bigevent=1m,split=1\tx")
	f.Fuzz(func(t *testing.T, s string) {
		k := newKnobs(DefaultConfig())
		rest, err := k.parse(s)
		if err == nil && len(rest) > len(s) {
			t.Errorf("rest %q of %q", rest, s)
		}
		if k.tokens > maxTokens || k.bigEvent > maxKnobBytes || k.split < 0 || k.gap < 0 || k.stall < 0 {
			t.Errorf("out of bounds: %+v", k)
		}
	})
}

// TestMissingPaths: an engine can lack what others have, and can say 200 to that.
func TestMissingPaths(t *testing.T) {
	c := DefaultConfig()
	c.Flavour, c.Exact = Ollama, true
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	post := func(path, orders string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("POST", path, strings.NewReader("{"))
		r.Header.Set("X-Sim", orders)
		s.Handler().ServeHTTP(w, r)
		return w
	}
	for _, tt := range []struct {
		path, orders string
		status       int
	}{
		{"/v1/rerank", "", 404},
		{"/v1/chat/completions", "", 400},
		{"/v1/chat/completions", "lacks=/api/chat|/v1/chat/completions", 404},
		{"/v1/chat/completions", "lacks=/v1/chat/completions,any_path", 200},
		{"/nowhere", "any_path", 200},
	} {
		if w := post(tt.path, tt.orders); w.Code != tt.status {
			t.Errorf("%s with %q: %d %s", tt.path, tt.orders, w.Code, w.Body)
		}
	}
	if st := s.Stats(); st.Started != 0 || st.Rejected != 0 {
		t.Errorf("what is no request of a model counts as one: %+v", st.Counts)
	}
}
