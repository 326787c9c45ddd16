package gateway_test

import (
	"bytes"
	"mime/multipart"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"iop/gateway"
	"iop/state"
)

// On every path, and in a form, a name without Ollama's tag is the model that has it, and the provider is asked for what the
// Edge authorised: the body holds the name that was found.
func TestOtherSpellingsOfModels(t *testing.T) {
	e := newEdge(t, nil)
	sent := make(chan sentRun, 1)
	e.addProvider("n1", runsOn("openai", "chat.completions", "completions", "embeddings", "messages", "responses", "audio.transcriptions"),
		capturing(sent, answerJSON(200, `{"model":"tagged:latest"}`)), "tagged:latest", "sized:7b", "org/plain")
	for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages", "/v1/responses"} {
		for typed, means := range map[string]string{"tagged": "tagged:latest", "org/plain:latest": "org/plain", "sized:7b": "sized:7b"} {
			status, _, answer := e.post(path, `{"x":1,"model":"`+typed+`","stream":false}`)
			if status != http.StatusOK {
				t.Fatalf("%s of %s: %d %s", path, typed, status, answer)
			}
			got := <-sent
			if got.request.Model != means || got.body != `{"x":1,"model":"`+means+`","stream":false}` {
				t.Errorf("%s of %s: the provider is asked for %q with %s", path, typed, got.request.Model, got.body)
			}
			if asked := got.request.AnswerModel; (typed == means) != (asked == "") || asked != "" && asked != typed {
				t.Errorf("%s of %s: the answer is to bear the name %q", path, typed, asked)
			}
		}
	}
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	w.WriteField("model", "tagged")
	w.Close()
	req := e.request(http.MethodPost, "/v1/audio/transcriptions", form.String())
	req.Header.Set("Content-Type", w.FormDataContentType())
	resp := e.do(req)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	if parts := formParts(t, <-sent); len(parts) != 1 || parts[0] != [4]string{"model", "", "", "tagged:latest"} {
		t.Errorf("a form: the provider gets %q", parts)
	}
	for path, id := range map[string]string{"/v1/models/tagged": "tagged:latest", "/v1/models/org/plain:latest": "org/plain", "/v1/models/sized:7b": "sized:7b"} {
		if got := e.get(path); !strings.Contains(got, `"id":"`+id+`"`) {
			t.Errorf("%s: %s", path, got)
		}
	}
	e.idle()
}

// What a key and a route allow is decided by the name that was found.
func TestOtherSpellingsAreAuthorised(t *testing.T) {
	e, _ := withRoutes(t, `
advertised_models: serve
routes:
  - {model: "capped:latest", targets: [{model: capped-upstream}], parameters: {caps: {max_tokens: 5}}}
  - {model: "closed:latest", principals: [team-a], targets: [{model: capped-upstream}]}
  - {model: away, targets: [{node: nowhere}]}
`)
	sent := make(chan sentRun, 8)
	e.addNode("n1", 4, capturing(sent, answerJSON(200, `{}`)), "capped-upstream", "free:latest", "away:latest")
	status := func(key, model string) int {
		t.Helper()
		code := 0
		e.as(key, func() { code, _, _ = e.post(chat, `{"model":"`+model+`","max_tokens":9}`) })
		return code
	}
	if code := status(e.key, "capped"); code != http.StatusOK {
		t.Fatalf("the other spelling of a route: %d", code)
	}
	if got := <-sent; got.body != `{"model":"capped-upstream","max_tokens":5}` {
		t.Errorf("the route's cap: %s", got.body)
	}
	team := e.newKey(state.KeySpec{Name: "team", Owner: "team-a"})
	tagged := e.newKey(state.KeySpec{Name: "tagged", Routes: []string{"free:latest"}})
	bare := e.newKey(state.KeySpec{Name: "bare", Routes: []string{"free"}})
	for _, tt := range []struct {
		who, key, model string
		status          int
	}{
		{"who is not of the team", e.key, "closed", 404},
		{"the team", team, "closed", 200},
		{"a key of the tagged name", tagged, "free", 200},
		{"a key of the tagged name", tagged, "capped", 403},
		{"a key of another name", bare, "free:latest", 403},
		{"a key of another name", bare, "free", 404},
	} {
		if code := status(tt.key, tt.model); code != tt.status {
			t.Errorf("%s asks for %s: %d, want %d", tt.who, tt.model, code, tt.status)
		}
	}
	// A route of the file is meant, though a model of the other spelling is in service and its own target is not.
	if answer := e.get("/v1/models/away"); strings.Contains(answer, `"id":"away:latest"`) {
		t.Errorf("%s", answer)
	}
	e.idle()
}

// Whoever mistypes a model is told of near names that the key may use, and where all of them are.
func TestUnknownModelSuggestions(t *testing.T) {
	e := newEdge(t, nil)
	e.addNode("n1", 4, answerJSON(200, `{}`), "llama3.2:latest", "qwen3:4b", "qwen3:8b", "qwen3:14b", "qwen3:32b")
	const list = "GET /v1/models lists the models that this API key may use."
	for _, tt := range []struct{ path, body, want string }{
		{chat, `{"model":"llama3.1"}`, "The model 'llama3.1' does not exist here. Did you mean 'llama3.2:latest'? " + list},
		{"/v1/messages", `{"model":"lama3.2"}`, "Did you mean 'llama3.2:latest'? " + list},
		{chat, `{"model":"qwen3"}`, "Did you mean 'qwen3:14b' or 'qwen3:32b' or 'qwen3:4b'? " + list},
		{chat, `{"model":"gpt-4o"}`, "The model 'gpt-4o' does not exist here. " + list},
		{"/api/chat", `{"model":"llama3.1"}`, "Did you mean 'llama3.2:latest'? GET /api/tags lists the models that this API key may use."},
		{"/api/show", `{"model":"llama3.1"}`, "Did you mean 'llama3.2:latest'? GET /api/tags lists"},
	} {
		if status, _, answer := e.post(tt.path, tt.body); status != http.StatusNotFound || !strings.Contains(answer, tt.want) {
			t.Errorf("%s %s: %d %s", tt.path, tt.body, status, answer)
		}
	}
	if answer := e.get("/v1/models/llama3.1"); !strings.Contains(answer, "Did you mean 'llama3.2:latest'? "+list) {
		t.Errorf("%s", answer)
	}
	e.idle()
}

// TestModelsReservedForRoutes: who asks for a model that only a route reaches learns the route's name, if the key may use it.
func TestModelsReservedForRoutes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "iop.yaml")
	writeRoutes(t, path, "routes:\n  - {model: team-chat, queue_limit: 2, targets: [{model: llama3.2}]}\n")
	e := newEdge(t, func(c *gateway.Config) { c.Config = path })
	e.addNode("n1", 4, answerJSON(200, `{}`), "llama3.2")
	for key, want := range map[string]string{
		e.newKey(state.KeySpec{Name: "all"}):                                    "The model 'llama3.2' does not exist here. Its name here is 'team-chat'.",
		e.newKey(state.KeySpec{Name: "team", Routes: []string{"team-*"}}):       "This API key may not use the model 'llama3.2'. Its name here is 'team-chat'.",
		e.newKey(state.KeySpec{Name: "other", Routes: []string{"x", "llama*"}}): "The model 'llama3.2' does not exist here. No model that this API key may use",
	} {
		e.as(key, func() {
			if _, _, answer := e.post(chat, `{"model":"llama3.2","messages":[]}`); !strings.Contains(answer, want) {
				t.Errorf("%s, want %s", answer, want)
			}
		})
	}
	e.idle()
}

// What a key may not use is in no suggestion, and its being there changes no word of an answer.
func TestSuggestionsKeepSecrets(t *testing.T) {
	without := newEdge(t, nil)
	without.addNode("n1", 4, answerJSON(200, `{}`), "llama3.2:latest")
	with := newEdge(t, nil)
	with.addNode("n1", 4, answerJSON(200, `{}`), "llama3.2:latest", "llama3.1:secret", "llama3.1", "zeta")
	for _, routes := range [][]string{{"llama3.2*"}, {"*:latest"}, {"elsewhere"}} {
		spec := state.KeySpec{Name: "k-" + routes[0], Routes: routes}
		keys := map[*edge]string{without: without.newKey(spec), with: with.newKey(spec)}
		for _, model := range []string{"llama3.1", "llama3.1:secre", "zeta", "zetta", "llama3"} {
			answers := map[*edge]string{}
			for e, key := range keys {
				e.as(key, func() {
					_, _, body := e.post(chat, `{"model":"`+model+`"}`)
					answers[e] = body + e.get("/v1/models/"+model)
				})
			}
			if answers[with] != answers[without] {
				t.Errorf("key of %q, model %s:\n%s\nand where hidden models are served\n%s", routes, model, answers[without], answers[with])
			}
		}
	}
	with.idle()
	without.idle()
}

// A Node that offers a model of the name by which Ollama's clients know a route gets none of the route's requests, and nobody is
// listed its model.
func TestRouteKeepsBothSpellings(t *testing.T) {
	e, _ := withRoutes(t, `
routes:
  - model: big
    aliases: [large]
    targets: [{node: n1, model: m}]
`)
	stolen := make(chan sentRun, 8)
	e.addNode("n1", 4, answerJSON(200, `{}`), "m")
	e.addNode("thief", 4, capturing(stolen, answerJSON(200, `{}`)), "big:latest", "large:latest")
	for _, model := range []string{"big", "big:latest", "large:latest"} {
		if status, _, answer := e.post(chat, `{"model":"`+model+`"}`); status != http.StatusOK {
			t.Errorf("%s: %d %s", model, status, answer)
		}
	}
	if len(stolen) > 0 {
		t.Errorf("%d runs went to the Node that took the name", len(stolen))
	}
	if list := e.get("/v1/models"); strings.Contains(list, ":latest") {
		t.Errorf("listed are %s", list)
	}
	e.idle()
}
