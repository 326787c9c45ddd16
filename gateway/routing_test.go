package gateway_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"iop/execution"
	"iop/state"
	"iop/tunnel"
	"iop/tunnel/wire"
)

// newKey makes an API key and returns its secret.
func (e *edge) newKey(spec state.KeySpec) string {
	e.t.Helper()
	if spec.Name == "" {
		spec.Name = "extra " + rand.Text()
	}
	_, secret, err := e.store.CreateKey(e.t.Context(), spec)
	if err != nil {
		e.t.Fatal(err)
	}
	return secret.Reveal()
}

// as runs f with another key.
func (e *edge) as(key string, f func()) {
	e.t.Helper()
	own := e.key
	e.key = key
	defer func() { e.key = own }()
	f()
}

// sentRun is what a Node got.
type sentRun struct {
	request *wire.ProviderTunnelRequest
	open    *wire.Open
	body    string
}

// capturing is a provider that keeps what it was sent, and then does what h does.
func capturing(to chan<- sentRun, h handler) handler {
	return func(ctx context.Context, run *tunnel.NodeRun) {
		body, _ := io.ReadAll(run)
		to <- sentRun{run.Open().GetProviderTunnel(), run.Open(), string(body)}
		h(ctx, run)
	}
}

// formParts reads what a Node got as a form: each part as its name, its file's name, its type and its content.
func formParts(t *testing.T, got sentRun) (parts [][4]string) {
	t.Helper()
	kind := ""
	for _, h := range got.request.Headers {
		if h.Name == "content-type" {
			kind = h.Value
		}
	}
	_, params, err := mime.ParseMediaType(kind)
	if err != nil {
		t.Fatalf("the provider got a body of type %q: %v", kind, err)
	}
	r := multipart.NewReader(strings.NewReader(got.body), params["boundary"])
	for {
		part, err := r.NextRawPart()
		if err == io.EOF {
			return parts
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(part)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, [4]string{part.FormName(), part.FileName(), part.Header.Get("Content-Type"), string(content)})
	}
}

// TestRouteChangesNothingButTheModel: of a JSON body only the model's name is another, to the byte; of a form, too, but
// its boundary and the parts' headers are the Edge's.
func TestRouteChangesNothingButTheModel(t *testing.T) {
	e, _ := withRoutes(t, "routes:\n  - model: chat\n    aliases: [gpt]\n    targets: [{model: \"real/model:7b\"}]\n")
	sent := make(chan sentRun, 1)
	e.addNode("n1", 4, capturing(sent, answerJSON(200, `{}`)), "real/model:7b")

	const odd = "{ \"x\" : 1e400,\t\"model\"  :\"%s\" ,\r\n\"messages\":[{\"role\":\"user\",\"content\":\"\\u0000é \\\"model\\\":\\\"chat\\\"\"}], \"y\":[ ], \"y\":{ }, \"metadata\":{\"model\":\"chat\"} }  "
	for _, name := range []string{"chat", "gpt"} {
		if status, _, body := e.post(chat, fmt.Sprintf(odd, name)); status != 200 {
			t.Fatalf("%s: %d %s", name, status, body)
		}
		got := <-sent
		if want := fmt.Sprintf(odd, "real/model:7b"); got.body != want || got.request.Model != "real/model:7b" {
			t.Errorf("%s: the provider of %q got\n%q, want\n%q", name, got.request.Model, got.body, want)
		}
		if got.request.AnswerModel != "" {
			t.Errorf("the answer is renamed to %q", got.request.AnswerModel)
		}
	}

	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	_ = w.SetBoundary("of-this-test")
	file, _ := w.CreateFormFile("file", "model.wav")
	content := strings.Repeat("\x00\r\n--of-this \"model\" chat", 10_000)
	_, _ = io.WriteString(file, content)
	_ = w.WriteField("model", "chat")
	_ = w.WriteField("language", "chat")
	_ = w.Close()
	req := e.request(http.MethodPost, "/v1/audio/transcriptions", b.String())
	req.Header.Set("Content-Type", w.FormDataContentType())
	resp := e.do(req)
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Fatalf("form: %d", resp.StatusCode)
	}
	got := <-sent
	want := [][4]string{{"file", "model.wav", "application/octet-stream", content}, {"model", "", "", "real/model:7b"}, {"language", "", "", "chat"}}
	if parts := formParts(t, got); !slices.Equal(parts, want) || strings.Contains(got.body, "of-this-test") {
		t.Errorf("the provider got a form of %d parts, %d bytes", len(parts), len(got.body))
	}
	e.idle()
}

func TestRouteParameters(t *testing.T) {
	e, _ := withRoutes(t, `
routes:
  - model: chat
    targets: [{model: m}]
    parameters:
      defaults: {temperature: 0.2, stop: [a, b]}
      caps: {max_tokens: 100, top_k: 5}
`)
	sent := make(chan sentRun, 1)
	e.addNode("n1", 4, capturing(sent, answerJSON(200, `{}`)), "m")
	tests := map[string]struct {
		body string
		want map[string]any
	}{
		"nothing given":   {`{"model":"chat"}`, map[string]any{"model": "m", "temperature": 0.2, "stop": []any{"a", "b"}, "max_tokens": 100.0}},
		"given":           {`{"model":"chat","temperature":1,"stop":[],"max_tokens":7,"top_k":3}`, map[string]any{"model": "m", "temperature": 1.0, "stop": []any{}, "max_tokens": 7.0, "top_k": 3.0}},
		"too much":        {`{"model":"chat","temperature":1,"stop":"x","max_completion_tokens":7000,"top_k":30}`, map[string]any{"model": "m", "temperature": 1.0, "stop": "x", "max_tokens": 100.0, "top_k": 5.0}},
		"no bound at all": {`{"model":"chat","temperature":1,"stop":"x","max_tokens":0,"n_predict":-1,"top_k":0}`, map[string]any{"model": "m", "temperature": 1.0, "stop": "x", "max_tokens": 100.0, "n_predict": 100.0, "top_k": 5.0}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if status, _, body := e.post(chat, test.body); status != 200 {
				t.Fatalf("%d %s", status, body)
			}
			var got map[string]any
			if body := (<-sent).body; json.Unmarshal([]byte(body), &got) != nil || fmt.Sprint(got) != fmt.Sprint(test.want) {
				t.Errorf("the provider got %s, want %v", body, test.want)
			}
		})
	}
	status, _, body := e.post(chat, `{"model":"chat","top_k":"many"}`)
	if code, _ := errorOf(t, body); status != 400 || code != "invalid_request_error" || !strings.Contains(body, `"param":"top_k"`) {
		t.Errorf("a cap of what is no number: %d %s", status, body)
	}
	e.idle()
}

// TestRouteReachesTheNode: the name that answers carry and the timeouts of phases are the Node's business.
func TestRouteReachesTheNode(t *testing.T) {
	e, _ := withRoutes(t, `
defaults: {timeouts: {between_chunks: 7s}}
routes:
  - model: chat
    aliases: [gpt, m]
    rename_model: true
    timeouts: {first_byte: 1500ms, total: 20s}
    targets: [{model: m}]
  - model: plain
    targets: [{model: m}]
`)
	sent := make(chan sentRun, 1)
	e.addNode("n1", 4, capturing(sent, answerJSON(200, `{}`)), "m")
	for _, name := range []string{"chat", "gpt", "m"} {
		e.post(chat, `{"model":"`+name+`"}`)
		got := <-sent
		// m as well: a provider may answer with a more exact name than it is called by.
		if got.request.AnswerModel != name {
			t.Errorf("%s: answers carry %q", name, got.request.AnswerModel)
		}
		if got.request.FirstByteTimeoutMs != 1500 || got.request.IdleTimeoutMs != 7000 {
			t.Errorf("%s: timeouts %d, %d ms", name, got.request.FirstByteTimeoutMs, got.request.IdleTimeoutMs)
		}
		if got.open.TimeoutMs == 0 || got.open.TimeoutMs > 20_000 {
			t.Errorf("%s: total %d ms", name, got.open.TimeoutMs)
		}
	}
	e.post(chat, `{"model":"plain"}`)
	if got := <-sent; got.request.AnswerModel != "" || got.request.FirstByteTimeoutMs != 0 || got.open.TimeoutMs < 29*60_000 {
		t.Errorf("plain: %v, %d ms", got.request, got.open.TimeoutMs)
	}
	e.idle()
}

func TestRouteTotalTimeout(t *testing.T) {
	e, _ := withRoutes(t, "routes:\n  - model: chat\n    timeouts: {total: 200ms}\n    targets: [{model: m}]\n")
	codes := make(chan execution.Code, 1)
	e.addNode("n1", 4, waiting(codes, nil), "m")
	began := time.Now()
	status, _, body := e.post(chat, `{"model":"chat"}`)
	if code, _ := errorOf(t, body); status != 504 || code != "provider_timeout" || time.Since(began) < 200*time.Millisecond {
		t.Errorf("after %v: %d %s", time.Since(began), status, body)
	}
	e.idle()
}

// TestWhoMayUseARoute: a key's list and the route's principals both hold. Who may not use a route can't tell it from one
// that does not exist.
func TestWhoMayUseARoute(t *testing.T) {
	e, _ := withRoutes(t, `
routes:
  - model: open
    aliases: [public]
    targets: [{model: m}]
  - model: closed
    aliases: [secret]
    principals: [team-*]
    targets: [{model: m}]
  - model: away
    targets: [{node: nowhere, model: m}]
`)
	e.addNode("n1", 4, answerJSON(200, `{}`), "m")
	keys := map[string]string{
		"anybody":       e.key,
		"team":          e.newKey(state.KeySpec{Owner: "team-a"}),
		"other":         e.newKey(state.KeySpec{Owner: "teams"}),
		"only an alias": e.newKey(state.KeySpec{Routes: []string{"public"}}),
		"only a route":  e.newKey(state.KeySpec{Routes: []string{"open"}}),
		"team, narrow":  e.newKey(state.KeySpec{Owner: "team-a", Routes: []string{"secret"}}),
	}
	tests := []struct {
		key    string
		models string // that are listed
		may    []string
		not    map[string]int
	}{
		{"anybody", "open public", []string{"open", "public"}, map[string]int{"closed": 404, "secret": 404, "nothing": 404, "m": 404}},
		{"other", "open public", []string{"open", "public"}, map[string]int{"closed": 404, "secret": 404, "nothing": 404}},
		{"team", "closed open public secret", []string{"open", "public", "closed", "secret"}, map[string]int{"nothing": 404}}, // of m it learns the route: TestModelsReservedForRoutes
		{"only an alias", "public", []string{"public"}, map[string]int{"open": 403, "closed": 403, "secret": 403, "nothing": 403}},
		{"only a route", "open public", []string{"open", "public"}, map[string]int{"closed": 403, "secret": 403, "nothing": 403, "m": 403}},
		{"team, narrow", "secret", []string{"secret"}, map[string]int{"closed": 403, "open": 403, "nothing": 403}},
	}
	for _, test := range tests {
		t.Run(test.key, func(t *testing.T) {
			e.as(keys[test.key], func() {
				if got := e.models(); got != test.models {
					t.Errorf("it sees %q, want %q", got, test.models)
				}
				for _, name := range test.may {
					if status, _, body := e.post(chat, `{"model":"`+name+`"}`); status != 200 {
						t.Errorf("%s: %d %s", name, status, body)
					}
					if got := e.get("/v1/models/" + name); !strings.Contains(got, `"id":"`+name+`"`) {
						t.Errorf("%s is shown as %s", name, got)
					}
				}
				for name, want := range test.not {
					status, _, body := e.post(chat, `{"model":"`+name+`"}`)
					code, message := errorOf(t, body)
					if status != want || code != map[int]string{403: "model_not_allowed", 404: "model_not_found"}[want] {
						t.Errorf("%s: %d %s", name, status, body)
					}
					if test.key == "team" && name == "m" { // a key that may use the route gets its name
						if !strings.HasSuffix(message, "Its name here is 'closed'.") {
							t.Errorf("%s: %q", name, message)
						}
						continue
					}
					// The same words as for a name that nobody ever had.
					_, _, other := e.post(chat, `{"model":"`+strings.Repeat("z", len(name))+`"}`)
					if _, of := errorOf(t, other); strings.ReplaceAll(of, strings.Repeat("z", len(name)), name) != message {
						t.Errorf("%s: %q differs from %q", name, message, of)
					}
					if code, _ := errorOf(t, e.get("/v1/models/"+name)); code != map[int]string{403: "model_not_allowed", 404: "model_not_found"}[want] {
						t.Errorf("shown: %s", code)
					}
				}
			})
		})
	}
	e.idle()
}

// models are the ids of /v1/models in its order.
func (e *edge) models() string {
	e.t.Helper()
	var list struct{ Data []struct{ ID string } }
	if err := json.Unmarshal([]byte(e.get("/v1/models")), &list); err != nil {
		e.t.Fatal(err)
	}
	var ids []string
	for _, m := range list.Data {
		ids = append(ids, m.ID)
	}
	return strings.Join(ids, " ")
}

func TestAdvertisedModelsBesideRoutes(t *testing.T) {
	e, _ := withRoutes(t, "advertised_models: serve\nroutes:\n  - model: b\n    aliases: [d]\n    targets: [{model: c}]\n")
	sent := make(chan sentRun, 1)
	n := e.addNode("n1", 4, capturing(sent, answerJSON(200, `{}`)), "a", "b", "c")
	if got := e.models(); got != "a b c d" {
		t.Errorf("models %q", got)
	}
	if got := e.get("/v1/models/b"); !strings.Contains(got, `"owned_by":"iop"`) {
		t.Errorf("the route b is hidden behind a model: %s", got)
	}
	e.post(chat, `{"model":"b"}`)
	if got := <-sent; got.request.Model != "c" {
		t.Errorf("b runs %q", got.request.Model)
	}
	n.stop()
	e.eventually("nothing can be had", func() bool { return e.models() == "" })
}
