package gateway_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"iop/nodeagent"
	"iop/sim"
)

// providerKind is a kind of provider: an engine that has one family's paths and no others. Its model has its name.
type providerKind struct {
	name    string
	flavour sim.Flavour
	has     []string // prefixes of paths
	raw     []string // the families whose clients are relayed
}

var providerKinds = []providerKind{
	{"openai", sim.OpenAI, []string{"/v1/chat/completions", "/v1/models"}, []string{"chat"}},
	{"ollama", sim.Ollama, []string{"/api/", "/v1/models"}, []string{"ollama chat", "ollama generate"}},
	{"anthropic", sim.Anthropic, []string{"/v1/messages", "/v1/models"}, []string{"messages"}},
}

// addSims connects a real Node with a simulated provider of each kind.
func (e *edge) addSims() {
	e.t.Helper()
	var specs []nodeagent.ProviderSpec
	for _, k := range providerKinds {
		c := sim.DefaultConfig()
		c.Flavour, c.Models, c.Slots = k.flavour, []string{k.name + "-model"}, 64
		engine, err := sim.New(c)
		if err != nil {
			e.t.Fatal(err)
		}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for _, prefix := range k.has {
				if strings.HasPrefix(r.URL.Path, prefix) || r.URL.Path == "/" {
					engine.Handler().ServeHTTP(w, r)
					return
				}
			}
			http.NotFound(w, r)
		}))
		e.t.Cleanup(func() { // after the Node's end
			server.CloseClientConnections()
			server.Close()
		})
		spec := k.name + ":" + k.name + "=" + server.URL + ",capacity=64"
		p, err := nodeagent.ParseSpec(spec)
		if err != nil {
			e.t.Fatal(err)
		}
		specs = append(specs, p)
	}
	e.runAgent("sims", specs...)
	for _, k := range providerKinds {
		e.eventually("the paths of "+k.name+" are known", func() bool {
			status, _, answer := e.post("/v1/moderations", `{"model":"`+k.name+`-model","input":"x"}`)
			return status == http.StatusNotFound && strings.Contains(answer, "unsupported_operation")
		})
	}
}

// asks is the body of the family's request to a kind of provider, with orders for the simulator.
func (f family) asks(kind, orders string, stream bool) string {
	body := strings.Replace(f.with(stream), `"m"`, `"`+kind+`-model"`, 1)
	return strings.Replace(body, `"hi"`, `"sim:`+orders+` hi"`, 1)
}

// eachPair runs a test for each family of clients with each kind of provider.
func eachPair(t *testing.T, test func(t *testing.T, f family, k providerKind, raw, stream bool)) {
	for _, k := range providerKinds {
		for name, f := range families {
			for _, stream := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s to %s/stream=%v", name, k.name, stream), func(t *testing.T) {
					raw := false
					for _, r := range k.raw {
						raw = raw || r == name
					}
					test(t, f, k, raw, stream)
				})
			}
		}
	}
}

// send is post, with a test of its own.
func (e *edge) send(t *testing.T, path, body string) (status int, h http.Header, answer string) {
	t.Helper()
	resp, err := e.client.Do(e.request(http.MethodPost, path, body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return resp.StatusCode, resp.Header, string(data) + "<cut off>"
	}
	return resp.StatusCode, resp.Header, string(data)
}

func TestEachFamilyReachesEachProvider(t *testing.T) {
	e := newEdge(t, nil)
	e.addSims()
	eachPair(t, func(t *testing.T, f family, k providerKind, raw, stream bool) {
		status, h, answer := e.send(t, f.path, f.asks(k.name, "tokens=5", stream))
		want := map[bool]string{true: "raw", false: "normalized"}[raw]
		if status != http.StatusOK || h.Get("X-Iop-Execution") != want {
			t.Fatalf("%d, %q, want %s: %s", status, h.Get("X-Iop-Execution"), want, answer)
		}
		switch {
		case stream && (strings.Count(answer, f.done) != 1 || strings.Contains(answer, f.broken)):
			t.Errorf("the stream has no end, or two: %s", answer)
		case !stream && !json.Valid([]byte(answer)):
			t.Errorf("no JSON: %s", answer)
		}
		run := e.lastRun()
		if run.Outcome != "completed" || run.Usage == nil || run.Usage.Output != 5 || run.Usage.Input == 0 || run.Usage.Estimated {
			t.Errorf("%+v, usage %+v", run, run.Usage)
		}
	})
	e.idle()
}

// Whatever befalls a provider, the client is told in its own protocol's words, once, and nothing looks whole.
func TestEachFamilyHearsOfFaults(t *testing.T) {
	e := newEdge(t, nil)
	e.addSims()
	for _, orders := range []string{"tokens=9,die=3", "tokens=9,error_event_mid=3", "tokens=9,malformed=3", "tokens=9,midclose=3", "tokens=9,midreset=3"} {
		t.Run(orders, func(t *testing.T) {
			eachPair(t, func(t *testing.T, f family, k providerKind, raw, stream bool) {
				status, _, answer := e.send(t, f.path, f.asks(k.name, orders, stream))
				if !stream {
					checkWholeFault(t, f, raw, status, answer)
					return
				}
				if status != http.StatusOK {
					t.Fatalf("%d: %s", status, answer)
				}
				// A provider's own error passes as it wrote it, and some write an end behind it.
				own := raw && strings.HasPrefix(orders, "tokens=9,error")
				if !own && (strings.Count(answer, f.broken) != 1 || strings.Contains(answer, f.done)) || !strings.Contains(answer, `"error"`) {
					t.Errorf("%s", answer)
				}
				if run := e.lastRun(); run.Outcome != "failed" {
					t.Errorf("%+v", run)
				}
			})
		})
	}
	t.Run("overflow", func(t *testing.T) {
		eachPair(t, func(t *testing.T, f family, k providerKind, raw, stream bool) {
			status, h, answer := e.send(t, f.path, f.asks(k.name, "overflow", stream))
			if status != http.StatusBadRequest || !raw && !strings.HasPrefix(answer, f.refused) || !json.Valid([]byte(answer)) || !strings.Contains(answer, `"error"`) {
				t.Errorf("%d %v: %s", status, h, answer)
			}
		})
	})
	e.idle()
}

// checkWholeFault looks at an answer without a stream that failed under way. One that is relayed may only be cut off.
func checkWholeFault(t *testing.T, f family, raw bool, status int, answer string) {
	t.Helper()
	if status == http.StatusOK {
		if !raw {
			t.Errorf("a failure looks like an answer: %s", answer)
		}
		return // an engine answers without a stream as it likes
	}
	if status < 500 || !strings.HasPrefix(answer, f.refused) || !json.Valid([]byte(answer)) {
		t.Errorf("%d: %s", status, answer)
	}
}

// What a provider's protocol has no word for is refused, naming it as the client does.
func TestUnsupportedParameterIsNamed(t *testing.T) {
	e := newEdge(t, nil)
	e.addSims()
	for _, tt := range []struct{ path, body, param string }{
		{"/v1/chat/completions", `{"model":"anthropic-model","messages":[{"role":"user","content":"x"}],"logprobs":true}`, `"param":"logprobs"`},
		{"/v1/responses", `{"model":"anthropic-model","input":"x","top_logprobs":3,"include":["message.output_text.logprobs"]}`, `"param":"`},
		{"/v1/chat/completions", `{"model":"ollama-model","messages":[{"role":"user","content":"x"}],"n":2}`, `"param":"n"`},
		{"/api/chat", `{"model":"anthropic-model","messages":[{"role":"user","content":"x"}],"options":{"seed":3}}`, `seed`},
		{"/v1/messages", `{"model":"ollama-model","max_tokens":9,"messages":[{"role":"user","content":"x"}],"tools":[{"name":"f","input_schema":{"type":"object"}}],"tool_choice":{"type":"any"}}`, `tool_choice`},
	} {
		status, h, answer := e.post(tt.path, tt.body)
		if status != http.StatusBadRequest || !strings.Contains(answer, tt.param) || h.Get("X-Should-Retry") != "false" {
			t.Errorf("%s: %d %s", tt.body, status, answer)
		}
	}
	e.idle()
}
