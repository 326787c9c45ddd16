package openai

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestErrorConstructors(t *testing.T) {
	for _, c := range []struct {
		e       *Error
		status  int
		code    string
		param   string
		noRetry bool
	}{
		{InvalidAPIKey(FamilyOpenAI), 401, "invalid_api_key", "", true},
		{ModelNotAllowed("m"), 403, "model_not_allowed", "model", true},
		{ModelNotFound("m"), 404, "model_not_found", "model", true},
		{InvalidRequest("stream", "no"), 400, "invalid_request_error", "stream", true},
		{ModelRequired(), 400, "invalid_request_error", "model", true},
		{RequestTooLarge(64 << 20), 413, "request_too_large", "", true},
		{UnsupportedMediaType("application/json"), 415, "unsupported_media_type", "", true},
		{UnknownPath("/v1/x"), 404, "unknown_path", "", true},
		{MethodNotAllowed("/v1/x", "POST"), 405, "method_not_allowed", "", true},
		{RateLimited(time.Second, ""), 429, "rate_limit_exceeded", "", false},
		{QueueFull(time.Second), 429, "queue_full", "", false},
		{ProviderFailed(""), 502, "provider_error", "", false},
		{ProviderTruncated(), 502, "provider_error", "", false},
		{ProviderRefused(), 502, "provider_error", "", true},
		{CredentialRejected(), 502, "credential_rejected", "", true},
		{NoNodeAvailable(time.Second), 503, "no_node_available", "", false},
		{NoNodeInTime("m", "/v1/models", 30*time.Second, time.Second), 503, "no_node_available", "", true},
		{ModelAway("m", "/v1/models"), 404, "model_not_found", "model", true},
		{Overloaded(time.Second), 503, "overloaded", "", false},
		{Stopping(time.Second), 503, "stopping", "", false},
		{Interrupted(time.Second), 503, "interrupted", "", false},
		{StateUnavailable(time.Second), 503, "state_unavailable", "", false},
		{NodeLost(), 502, "node_lost", "", false},
		{QueueTimeout(), 504, "queue_timeout", "", false},
		{ProviderTimeout(), 504, "provider_timeout", "", false},
		{Internal(), 500, "internal_error", "", false},
	} {
		if c.e.Status != c.status || c.e.Code != c.code || c.e.Param != c.param || c.e.NoRetry != c.noRetry || c.e.Type == "" || c.e.Message == "" {
			t.Errorf("%+v, want %+v", c.e, c)
		}
	}
	if m := RequestTooLarge(64 << 20).Message; !strings.Contains(m, "64 MiB") {
		t.Errorf("the limit is not named: %s", m)
	}
	if m := UnknownPath("/v1/" + strings.Repeat("é", 5000)).Message; len(m) > 300 || !strings.Contains(m, "/v1/") {
		t.Errorf("a path must be named, within bounds: %d bytes", len(m))
	}
}

func TestWriteError(t *testing.T) {
	e := &Error{Status: 429, Type: "rate_limit_error", Code: "queue_full", Message: "say \"no\"\n\x00\xff", RetryAfter: 1200 * time.Millisecond}
	for fam, want := range map[Family]string{
		FamilyOpenAI:    `{"error":{"message":"say \"no\"\n\u0000` + "\ufffd" + `","type":"rate_limit_error","param":null,"code":"queue_full"}}`,
		FamilyAnthropic: `{"type":"error","error":{"type":"rate_limit_error","message":"say \"no\"\n\u0000` + "\ufffd" + `"},"request_id":"req_1"}`,
		FamilyOllama:    `{"error":"say \"no\"\n\u0000` + "\ufffd" + `"}`,
	} {
		w := httptest.NewRecorder()
		WriteError(w, fam, "req_1", e)
		if w.Code != 429 || w.Body.String() != want || !json.Valid(w.Body.Bytes()) {
			t.Errorf("family %d: %d %s", fam, w.Code, w.Body)
		}
		h := w.Header()
		if h.Get("Retry-After") != "2" || h.Get("Content-Type") != "application/json" || h.Get("X-Request-Id") != "req_1" ||
			(h.Get("Request-Id") != "") != (fam == FamilyAnthropic) || h.Get("X-Should-Retry") != "" {
			t.Errorf("family %d: %v", fam, h)
		}
	}
	header := func(e *Error) http.Header {
		w := httptest.NewRecorder()
		WriteError(w, FamilyOpenAI, "", e)
		return w.Header()
	}
	if h := header(QueueFull(time.Hour)); h.Get("Retry-After") != "60" {
		t.Errorf("Retry-After over the cap: %v", h)
	}
	if h := header(CredentialRejected()); h.Get("X-Should-Retry") != "false" || h.Get("Retry-After") != "" {
		t.Errorf("%v", h)
	}
	if h := header(InvalidAPIKey(FamilyOpenAI)); h.Get("Www-Authenticate") == "" || h.Get("X-Should-Retry") != "false" {
		t.Errorf("%v", h)
	}
	if h := header(MethodNotAllowed("/x", "POST")); h.Get("Allow") != "POST" {
		t.Errorf("%v", h)
	}
}

func TestAnthropicTypes(t *testing.T) {
	for status, want := range map[int]string{400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
		413: "request_too_large", 429: "rate_limit_error", 500: "api_error", 502: "api_error", 503: "overloaded_error", 504: "timeout_error", 422: "invalid_request_error"} {
		if got := anthropicType(&Error{Status: status}); got != want {
			t.Errorf("%d is %s, want %s", status, got, want)
		}
	}
	for _, e := range []*Error{Stopping(time.Second), Interrupted(time.Second), StateUnavailable(time.Second), NodeLost()} {
		if got := anthropicType(e); got != "api_error" {
			t.Errorf("%s is %s", e.Code, got)
		}
	}
}

// TestInBandErrors reads each error event with the reader of our clients and with the filter of our Nodes.
func TestInBandErrors(t *testing.T) {
	e := ProviderFailed("line one\nline two")
	for kind, types := range map[StreamKind][]string{
		StreamChat: {""}, StreamMedia: {""}, StreamMessages: {"error"}, StreamResponses: {"error", "response.failed"},
	} {
		out := AppendInBandError([]byte(": before\n"), kind, e)
		r := NewEventReader(bytes.NewReader(out))
		for _, want := range types {
			ev, err := r.Next()
			if err != nil || ev.Type != want || !json.Valid(ev.Data) || !bytes.Contains(ev.Data, []byte(`"error":{`)) {
				t.Errorf("kind %d: %q %s %v", kind, ev.Type, ev.Data, err)
			}
		}
		f := NewStreamFilter(kind, false)
		if f.Push(out); f.ErrorEvent() == nil || !f.ErrorEvent().Visible || f.ErrorEvent().Err.Message != e.Message || !f.AtBorder() {
			t.Errorf("kind %d: not read as an error: %s", kind, out)
		}
	}
	if got := string(AppendInBandError(nil, StreamOllama, e)); got != `{"error":"line one\nline two"}`+"\n" {
		t.Error(got)
	}
	if got := string(AppendInBandError(nil, StreamChat, e)); got != `data: {"error":{"message":"line one\nline two","type":"server_error","param":null,"code":"provider_error"}}`+"\n\n" {
		t.Error(got)
	}
}

func TestResponsesErrorFields(t *testing.T) {
	out := AppendInBandError(nil, StreamResponses, ProviderFailed("x"))
	r := NewEventReader(bytes.NewReader(out))
	first, err := r.Next()
	if err != nil {
		t.Fatal(err)
	}
	var flat map[string]any
	if err := json.Unmarshal(first.Data, &flat); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]any{"type": "error", "code": "provider_error", "message": "x", "param": nil, "sequence_number": 0.0} {
		if got, ok := flat[name]; !ok || got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	second, err := r.Next()
	if err != nil {
		t.Fatal(err)
	}
	var failed struct {
		Type     string
		Seq      int64 `json:"sequence_number"`
		Response map[string]json.RawMessage
	}
	if err := json.Unmarshal(second.Data, &failed); err != nil || failed.Type != "response.failed" || failed.Seq != 1 {
		t.Fatal(err, failed)
	}
	for _, name := range []string{"id", "object", "created_at", "error", "incomplete_details", "instructions", "model", "tools", "output",
		"parallel_tool_calls", "metadata", "tool_choice", "temperature", "top_p", "status"} {
		if _, ok := failed.Response[name]; !ok {
			t.Errorf("the response lacks %s, which is required", name)
		}
	}
}

func TestWrapProviderError(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int
		body   string
		want   int    // status
		pass   bool   // as it is
		msg    string // else part of the message
		param  string
	}{
		{"object", 400, `{"error":{"message":"bad","type":"invalid_request_error","param":"n","code":null}}`, 400, true, "", ""},
		{"integer code", 400, ` {"error":{"code":400,"message":"bad"}}` + "\n", 400, true, "", ""},
		{"429", 429, `{"error":{"message":"slow"}}`, 429, true, "", ""},
		{"text in error", 404, `{"error":"model \"x\" not found, try pulling it first"}`, 404, false, `model "x" not found`, ""},
		{"FastAPI text", 404, `{"detail":"Not Found"}`, 404, false, "Not Found", ""},
		{"FastAPI list", 422, `{"detail":[{"type":"missing","loc":["body","messages"],"msg":"Field required","input":{}},{"loc":["body",3,"n"],"msg":"bad n"}]}`, 422, false,
			"messages: Field required; n: bad n", "messages"},
		{"flat vLLM", 400, `{"object":"error","message":"too long","type":"BadRequestError","param":"prompt","code":400}`, 400, false, "too long", "prompt"},
		{"text-embeddings", 413, `{"message":"batch too large","type":"Validation"}`, 413, false, "batch too large", ""},
		{"error_type", 422, `{"error":"inputs too long","error_type":"validation"}`, 422, false, "inputs too long", ""},
		{"error is null", 400, `{"error":null}`, 400, false, "status 400", ""},
		{"HTML", 404, "<html><body>nginx</body></html>", 404, false, "status 404", ""},
		{"plain text", 404, "404 page not found\n", 404, false, "404 page not found", ""},
		{"empty", 400, "", 400, false, "status 400", ""},
		{"broken JSON", 400, `{"error":{"message":`, 400, false, "status 400", ""},
		{"binary", 400, "\x00\xff\xfe", 400, false, "status 400", ""},
		{"long", 400, `{"error":"` + strings.Repeat("é", 5000) + `"}`, 400, false, "é...", ""},
		{"credentials", 401, `{"error":{"message":"Incorrect API key provided: sk-abc***xyz","code":"invalid_api_key"}}`, 502, false, "denied", ""},
		{"forbidden", 403, `{"error":{"message":"sk-abc"}}`, 502, false, "denied", ""},
		{"5xx with a message", 500, `{"error":{"code":500,"message":"Only one completion choice is allowed","type":"server_error"}}`, 502, false, "Only one completion choice", ""},
		{"503 loading", 503, `{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}`, 503, false, "Loading model", ""},
		{"501", 501, `{"error":{"message":"no embeddings here"}}`, 502, false, "no embeddings", ""},
		{"redirect", 307, "", 502, false, "failed", ""},
	} {
		status, body, e := WrapProviderError(c.status, []byte(c.body))
		if status != c.want || (e == nil) != c.pass {
			t.Errorf("%s: %d %s (%v)", c.name, status, body, e)
			continue
		}
		if c.pass {
			if string(body) != c.body {
				t.Errorf("%s: changed to %s", c.name, body)
			}
			continue
		}
		var got struct {
			Error struct {
				Message, Type string
				Param, Code   *string
			}
		}
		if err := json.Unmarshal(body, &got); err != nil || !strings.Contains(got.Error.Message, c.msg) || len(got.Error.Message) > 2100 {
			t.Errorf("%s: %s (%v)", c.name, body, err)
		}
		if got.Error.Code == nil || got.Error.Type == "" || e.Param != c.param || e.Status != status {
			t.Errorf("%s: %s", c.name, body)
		}
		if strings.Contains(string(body), "sk-abc") {
			t.Errorf("%s: the provider's words about its key reached the client: %s", c.name, body)
		}
		if wantNoRetry := c.status < 500 && c.status != 307 || c.status == 501; e.NoRetry != wantNoRetry {
			t.Errorf("%s: NoRetry is %t", c.name, e.NoRetry)
		}
	}
}

func TestErrorText(t *testing.T) {
	if got := InvalidRequest("model", "bad").Error(); got != "invalid_request_error (400, param model): bad" {
		t.Error(got)
	}
	if got := QueueTimeout().Error(); !strings.HasPrefix(got, "queue_timeout (504): ") {
		t.Error(got)
	}
}
