package gateway_test

import (
	"encoding/json"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"

	"iop/gateway"
	"iop/state"
)

// errorOf reads an error in OpenAI's shape.
func errorOf(t *testing.T, body string) (code, message string) {
	t.Helper()
	var answer struct {
		Error struct {
			Message string          `json:"message"`
			Type    string          `json:"type"`
			Param   json.RawMessage `json:"param"`
			Code    string          `json:"code"`
		} `json:"error"`
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		t.Fatalf("%v in %q", err, body)
	}
	if answer.Error.Type == "" || answer.Error.Message == "" || len(answer.Error.Param) == 0 {
		t.Errorf("incomplete error object: %s", body)
	}
	return answer.Error.Code, answer.Error.Message
}

func TestBadRequests(t *testing.T) {
	e := newEdge(t, func(c *gateway.Config) { c.MaxBodyBytes = 4096; c.BodyBudget = 8192 })
	e.addNode("n1", 4, answerJSON(200, `{}`), "m")
	_, secret, err := e.store.CreateKey(t.Context(), state.KeySpec{Name: "narrow", Routes: []string{"other-*"}})
	if err != nil {
		t.Fatal(err)
	}
	const chat = "/v1/chat/completions"
	tests := map[string]struct {
		method, path, body string
		change             func(*http.Request)
		status             int
		code               string
		names              string // must stand in the message
	}{
		"no key":              {path: chat, body: `{"model":"m"}`, change: func(r *http.Request) { r.Header.Del("Authorization") }, status: 401, code: "invalid_api_key"},
		"wrong key":           {path: chat, body: `{"model":"m"}`, change: func(r *http.Request) { r.Header.Set("Authorization", "Bearer sk-nonsense") }, status: 401, code: "invalid_api_key"},
		"two keys":            {path: chat, body: `{"model":"m"}`, change: func(r *http.Request) { r.Header.Add("Authorization", "Bearer x") }, status: 401, code: "invalid_api_key"},
		"basic":               {path: chat, body: `{"model":"m"}`, change: func(r *http.Request) { r.SetBasicAuth("a", "b") }, status: 401, code: "invalid_api_key"},
		"key of other models": {path: chat, body: `{"model":"m"}`, change: func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+secret.Reveal()) }, status: 403, code: "model_not_allowed"},
		"malformed":           {path: chat, body: `{"model":`, status: 400, code: "invalid_request_error"},
		"no body":             {path: chat, body: ``, status: 400, code: "invalid_request_error"},
		"no model":            {path: chat, body: `{"messages":[]}`, status: 400, code: "invalid_request_error", names: "model"},
		"model is a number":   {path: chat, body: `{"model":7}`, status: 400, code: "invalid_request_error", names: "model"},
		"two models":          {path: chat, body: `{"model":"m","model":"secret"}`, status: 400, code: "invalid_request_error", names: "model"},
		"model in capitals":   {path: chat, body: `{"model":"m","MODEL":"secret"}`, status: 400, code: "invalid_request_error", names: "model"},
		"unknown path":        {path: "/v1/nothing", body: `{}`, status: 404, code: "unknown_path", names: "/v1/nothing"},
		"path to clean":       {path: "/v1/../v1/chat/completions", body: `{"model":"m"}`, status: 404, code: "unknown_path"},
		"double slash":        {path: "/v1//chat/completions", body: `{"model":"m"}`, status: 404, code: "unknown_path"},
		"wrong method":        {method: "GET", path: chat, status: 405, code: "method_not_allowed", names: "POST"},
		"too large":           {path: chat, body: `{"model":"m","x":"` + strings.Repeat("x", 5000) + `"}`, status: 413, code: "request_too_large", names: "4 KiB"},
		"too large, chunked": {path: chat, body: `{"model":"m","x":"` + strings.Repeat("x", 5000) + `"}`, status: 413, code: "request_too_large",
			change: func(r *http.Request) { r.ContentLength = -1; r.Body = io.NopCloser(r.Body) }},
		"compressed":   {path: chat, body: `{"model":"m"}`, change: func(r *http.Request) { r.Header.Set("Content-Encoding", "gzip") }, status: 415, code: "unsupported_media_type"},
		"form to chat": {path: chat, body: `{"model":"m"}`, change: func(r *http.Request) { r.Header.Set("Content-Type", "multipart/form-data; boundary=x") }, status: 415, code: "unsupported_media_type"},
		"json to form": {path: "/v1/audio/transcriptions", body: `{"model":"m"}`, status: 415, code: "unsupported_media_type"},
		"looped":       {path: chat, body: `{"model":"m"}`, change: func(r *http.Request) { r.Header.Set("Via", "1.1 other, "+e.server.Via()) }, status: 400, code: "request_loop"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			method := test.method
			if method == "" {
				method = http.MethodPost
			}
			req := e.request(method, test.path, test.body)
			if test.change != nil {
				test.change(req)
			}
			resp := e.do(req)
			defer resp.Body.Close()
			body, _ := io.ReadAll(resp.Body)
			code, message := errorOf(t, string(body))
			if resp.StatusCode != test.status || code != test.code || !strings.Contains(message, test.names) {
				t.Errorf("got %d %s: %s", resp.StatusCode, code, message)
			}
			checkRefusalHeaders(t, resp)
		})
	}
	e.idle()
}

func checkRefusalHeaders(t *testing.T, resp *http.Response) {
	t.Helper()
	if resp.StatusCode == 401 && resp.Header.Get("Www-Authenticate") == "" {
		t.Error("no WWW-Authenticate")
	}
	if resp.StatusCode == 405 && resp.Header.Get("Allow") != "POST" {
		t.Errorf("Allow: %q", resp.Header.Get("Allow"))
	}
	if resp.Header.Get("X-Should-Retry") != "false" {
		t.Error("clients would try again")
	}
}

func TestOtherFamiliesHaveTheirOwnErrors(t *testing.T) {
	e := newEdge(t, nil)
	if status, _, body := e.post("/v1/messages", `{"model":1}`); status != 400 || !strings.HasPrefix(body, `{"type":"error","error":{"type":"invalid_request_error"`) {
		t.Errorf("Anthropic: %d %s", status, body)
	}
	if status, _, body := e.post("/api/chat", `{"model":1}`); status != 400 || !strings.HasPrefix(body, `{"error":"`) {
		t.Errorf("Ollama: %d %s", status, body)
	}
}

func TestMultipartModelRoutes(t *testing.T) {
	e := newEdge(t, nil)
	e.addNode("n1", 4, answerJSON(200, `{"text":"hello"}`), "whisper")
	var form strings.Builder
	w := multipart.NewWriter(&form)
	file, _ := w.CreateFormFile("file", "a.wav")
	io.WriteString(file, strings.Repeat("\x00RIFF", 100_000))
	w.WriteField("model", "whisper")
	w.Close()
	req := e.request(http.MethodPost, "/v1/audio/transcriptions", form.String())
	req.Header.Set("Content-Type", w.FormDataContentType())
	resp := e.do(req)
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != 200 || string(body) != `{"text":"hello"}` {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	e.idle()
}

func TestUnknownModelIsToldWhenTheNodesAreKnown(t *testing.T) {
	e := newEdge(t, nil)
	e.addNode("n1", 4, answerJSON(200, `{}`), "m")
	status, _, body := e.post("/v1/chat/completions", `{"model":"gpt-99"}`)
	if code, _ := errorOf(t, body); status != 404 || code != "model_not_found" {
		t.Errorf("%d %s", status, body)
	}
}

func TestModels(t *testing.T) {
	e := newEdge(t, nil)
	n := e.addNode("n1", 4, answerJSON(200, `{}`), "b", "a/with:odd/name")
	want := `{"object":"list","data":[{"id":"a/with:odd/name","object":"model","created":0,"owned_by":"test"},{"id":"b","object":"model","created":0,"owned_by":"test"}]}`
	if got := e.get("/v1/models"); got != want {
		t.Errorf("list is %s", got)
	}
	for _, path := range []string{"/v1/models/a/with:odd/name", "/v1/models/a%2Fwith%3Aodd%2Fname"} {
		if got := e.get(path); got != `{"id":"a/with:odd/name","object":"model","created":0,"owned_by":"test"}` {
			t.Errorf("%s is %s", path, got)
		}
	}
	if code, _ := errorOf(t, e.get("/v1/models/c")); code != "model_not_found" {
		t.Errorf("code %s", code)
	}
	_, secret, err := e.store.CreateKey(t.Context(), state.KeySpec{Name: "narrow", Routes: []string{"b"}})
	if err != nil {
		t.Fatal(err)
	}
	wide := e.key
	e.key = secret.Reveal()
	if got := e.get("/v1/models"); strings.Contains(got, "odd") || !strings.Contains(got, `"b"`) {
		t.Errorf("a narrow key sees %s", got)
	}
	e.key = wide
	n.stop()
	e.eventually("the Node's models are gone", func() bool { return e.get("/v1/models") == `{"object":"list","data":[]}` })
}

func TestHealth(t *testing.T) {
	e := newEdge(t, nil)
	if got := e.get("/healthz"); got != "ok\n" {
		t.Errorf("healthz: %q", got)
	}
	if got := e.get("/readyz"); got != "ready\n" {
		t.Errorf("readyz: %q", got)
	}
}
