package e2e

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// badEdge is a stack with a body limit of 1 MiB, and keys that must not work.
type badEdge struct {
	*stack
	narrow, revoked, expired, unknown string
}

func newBadEdge(t *testing.T) *badEdge {
	t.Helper()
	b := &badEdge{stack: newStack(t, stackConfig{edgeArgs: []string{"--max-body", "1048576"}, simArgs: []string{"--slots", "16"}})}
	b.narrow = b.newKey("narrow", "--routes", "other-*")
	b.revoked = b.newKey("revoked")
	b.revokeKey("revoked")
	b.expired = b.expiredKey()
	b.unknown = newEdge(t).key
	return b
}

// refusal is what a bad request must be answered with.
type refusal struct {
	status int
	code   string // OpenAI's; other families have none
	param  string
	names  string // what the message must name
}

// family tells from the path whose error object must come.
func errorFamily(target string) string {
	switch {
	case strings.HasPrefix(target, "/v1/messages"):
		return "anthropic"
	case strings.HasPrefix(target, "/api/"):
		return "ollama"
	}
	return "openai"
}

// check compares an answer with the refusal, in the shape of the path's family.
func (want refusal) check(t *testing.T, s *stack, target string, a rawAnswer) {
	t.Helper()
	if a.status != want.status || a.header.Get("Content-Type") != "application/json" {
		t.Fatalf("%d %v %s, not %d", a.status, a.header, tail(a.body, 500), want.status)
	}
	message := want.message(t, target, a)
	if message == "" || !strings.Contains(message, want.names) {
		t.Errorf("message %q, which should name %q", message, want.names)
	}
	if id := a.header.Get("X-Request-Id"); !strings.HasPrefix(id, "req_") {
		t.Errorf("X-Request-Id %q", id)
	}
	want.checkHeaders(t, a)
	for _, secret := range []string{s.key, "node-1", strings.TrimPrefix(s.sims[0].url, "http://")} {
		if strings.Contains(a.body, secret) {
			t.Errorf("the answer tells %q: %s", secret, a.body)
		}
	}
}

func (want refusal) checkHeaders(t *testing.T, a rawAnswer) {
	t.Helper()
	_, waits := a.header["Retry-After"]
	switch want.status {
	case 429, 503:
		if !waits {
			t.Errorf("no Retry-After: %v", a.header)
		}
		return
	case 401:
		if a.header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("WWW-Authenticate %q", a.header.Get("WWW-Authenticate"))
		}
	case 405:
		if a.header.Get("Allow") == "" {
			t.Error("no Allow")
		}
	}
	if a.header.Get("X-Should-Retry") != "false" || waits {
		t.Errorf("clients would try again: %v", a.header)
	}
}

// message reads the error object, and checks its other fields.
func (want refusal) message(t *testing.T, target string, a rawAnswer) string {
	t.Helper()
	fields := func(v any) {
		t.Helper()
		d := json.NewDecoder(strings.NewReader(a.body))
		d.DisallowUnknownFields()
		if err := d.Decode(v); err != nil {
			t.Fatalf("%v in %q", err, a.body)
		}
	}
	switch errorFamily(target) {
	case "anthropic":
		var e struct {
			Type  string `json:"type"`
			Error struct {
				Type    string `json:"type"`
				Message string `json:"message"`
			} `json:"error"`
			RequestID string `json:"request_id"`
		}
		fields(&e)
		if e.Type != "error" || !strings.HasSuffix(e.Error.Type, "_error") || e.RequestID == "" || e.RequestID != a.header.Get("Request-Id") {
			t.Errorf("%s, Request-Id %q", a.body, a.header.Get("Request-Id"))
		}
		return e.Error.Message
	case "ollama":
		var e struct {
			Error string `json:"error"`
		}
		fields(&e)
		return e.Error
	}
	var e struct {
		Error struct {
			Message string  `json:"message"`
			Type    string  `json:"type"`
			Param   *string `json:"param"`
			Code    string  `json:"code"`
		} `json:"error"`
	}
	fields(&e)
	param := ""
	if e.Error.Param != nil {
		param = *e.Error.Param
	}
	if e.Error.Code != want.code || param != want.param || e.Error.Type == "" {
		t.Errorf("%s, not code %q, param %q", a.body, want.code, want.param)
	}
	return e.Error.Message
}

var (
	badKey     = refusal{status: 401, code: "invalid_api_key"}
	badRequest = refusal{status: 400, code: "invalid_request_error"}
	badModel   = refusal{status: 400, code: "invalid_request_error", param: "model"}
	badMedia   = refusal{status: 415, code: "unsupported_media_type"}
	noModel    = refusal{status: 404, code: "model_not_found", param: "model"}
	tooLarge   = refusal{status: 413, code: "request_too_large", names: "1 MiB"}
	noPath     = refusal{status: 404, code: "unknown_path"}
)

// Paths of operations by what they take.
var (
	jsonPaths = []string{
		"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/moderations", "/v1/rerank", "/rerank", "/v2/rerank",
		"/v1/images/generations", "/v1/images/edits", "/v1/audio/speech", "/tokenize", "/detokenize",
	}
	formPaths = []string{"/v1/images/edits", "/v1/audio/transcriptions", "/v1/audio/translations"}
)

// badBodies are wrong on every path that takes JSON.
var badBodies = []struct {
	name string
	body string
	want refusal
}{
	{"nothing", "", badRequest},
	{"white space", " \r\n\t ", badRequest},
	{"half an object", `{"model":"sim-small"`, badRequest},
	{"a comma too many", `{"model":"sim-small",}`, badRequest},
	{"single quotes", `{'model':'sim-small'}`, badRequest},
	{"a comment", `{"model":"sim-small"/*x*/}`, badRequest},
	{"not a number", `{"model":"sim-small","n":NaN}`, badRequest},
	{"a raw line break in a string", "{\"model\":\"sim-small\",\"a\":\"\n\"}", badRequest},
	{"a byte order mark", "\ufeff" + `{"model":"sim-small"}`, badRequest},
	{"two documents", `{"model":"sim-small"}{"model":"sim-large"}`, badRequest},
	{"text after it", `{"model":"sim-small"} x`, badRequest},
	{"an array", `[{"model":"sim-small"}]`, badRequest},
	{"a string", `"sim-small"`, badRequest},
	{"null", `null`, badRequest},
	{"form data", `model=sim-small`, badRequest},
	{"65 levels", `{"model":"sim-small","a":` + strings.Repeat("[", 65) + strings.Repeat("]", 65) + `}`, refusal{400, "invalid_request_error", "", "deeper"}},
	{"half a million levels", strings.Repeat("[", 500_000), refusal{400, "invalid_request_error", "", "deeper"}},
	{"half a million objects", `{"a":` + strings.Repeat(`{"a":`, 100_000), refusal{400, "invalid_request_error", "", "deeper"}},

	{"no model", `{"messages":[]}`, badModel},
	{"a model further down", `{"messages":[{"model":"sim-small"}]}`, badModel},
	{"an empty model", `{"model":""}`, badModel},
	{"null for a model", `{"model":null}`, badModel},
	{"a number for a model", `{"model":7}`, badModel},
	{"a list for a model", `{"model":["sim-small"]}`, badModel},
	{"an object for a model", `{"model":{"id":"sim-small"}}`, badModel},
	{"a long model", `{"model":"` + strings.Repeat("m", 257) + `"}`, badModel},
	{"a model of 900 KB", `{"model":"` + strings.Repeat("m", 900_000) + `"}`, badModel},
	{"a line break in the model", `{"model":"sim-small\r\nX-Evil: 1"}`, badModel},
	{"a NUL in the model", `{"model":"sim-small\u0000"}`, badModel},
	{"broken UTF-8 in the model", "{\"model\":\"sim-\xff\"}", badRequest},
	{"broken UTF-8 in a name", "{\"model\":\"sim-small\",\"mo\xffdel\":\"sim-large\"}", badRequest},
	{"half a surrogate in a name", `{"model":"sim-small","mod\ud800el":"sim-large"}`, badRequest},
	{"a NUL in a name", `{"model":"sim-small","model\u0000":"sim-large"}`, badRequest},
	{"a ligature in a name", `{"model":"sim-small","ﬅream":true}`, badRequest},
	{"another model to fall back on", `{"model":"sim-small","models":["sim-large"]}`, refusal{400, "unsupported_parameter", "models", "models"}},
	{"another host", `{"model":"sim-small","api_base":"http://127.0.0.1:9"}`, refusal{400, "unsupported_parameter", "api_base", "api_base"}},
	{"a text for n", `{"model":"sim-small","n":"9"}`, refusal{400, "invalid_request_error", "n", ""}},
	{"a text for max_tokens", `{"model":"sim-small","max_tokens":"9"}`, refusal{400, "invalid_request_error", "max_tokens", ""}},
	{"max_tokens without its underscore", `{"model":"sim-small","maxTokens":9}`, refusal{400, "invalid_request_error", "max_tokens", ""}},
	{"half a surrogate in the model", `{"model":"\ud800"}`, badModel},

	{"two models", `{"model":"sim-small","model":"sim-large"}`, badModel},
	{"the same model twice", `{"model":"sim-small","model":"sim-small"}`, badModel},
	{"two models, far apart", `{"model":"sim-small","a":"` + strings.Repeat("x", 100_000) + `","model":"sim-large"}`, badModel},
	{"a model in capitals", `{"model":"sim-small","MODEL":"sim-large"}`, badModel},
	{"only a model in capitals", `{"Model":"sim-small"}`, badModel},
	{"a model with an escape in its name", `{"model":"sim-small","mod\u0065l":"sim-large"}`, badModel},
	{"only a model with an escape in its name", `{"\u006dodel":"sim-small"}`, badModel},

	{"a text for stream", `{"model":"sim-small","stream":"true"}`, refusal{400, "invalid_request_error", "stream", ""}},
	{"a number for stream", `{"model":"sim-small","stream":1}`, refusal{400, "invalid_request_error", "stream", ""}},
	{"stream twice", `{"model":"sim-small","stream":false,"stream":true}`, refusal{400, "invalid_request_error", "stream", ""}},
	{"stream with a long s", `{"model":"sim-small","ſtream":true}`, refusal{400, "invalid_request_error", "stream", ""}},
	{"a text for stream_options", `{"model":"sim-small","stream_options":"x"}`, refusal{400, "invalid_request_error", "stream_options", ""}},
	{"include_usage twice", `{"model":"sim-small","stream_options":{"include_usage":true,"include_usage":false}}`,
		refusal{400, "invalid_request_error", "stream_options.include_usage", ""}},
	{"an unknown model", `{"model":"no/such:model"}`, noModel},
	{"a model that is nearly there", `{"model":"sim-small "}`, noModel},
	{"a model in other letters", `{"model":"SIM-SMALL"}`, noModel},
	{"a path for a model", `{"model":"../../admin"}`, noModel},
}

// form builds a multipart form from raw parts.
func form(parts ...string) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString("--B\r\n" + p + "\r\n")
	}
	b.WriteString("--B--\r\n")
	return b.String()
}

func formField(name, value string) string {
	return `Content-Disposition: form-data; name="` + name + `"` + "\r\n\r\n" + value
}

const formFile = `Content-Disposition: form-data; name="file"; filename="a.wav"` + "\r\nContent-Type: audio/wav\r\n\r\nRIFF"

// badForms are wrong on every path that takes a form.
var badForms = []struct {
	name string
	body string
	want refusal
}{
	{"nothing", "", badRequest},
	{"rubbish", "rubbish", badRequest},
	{"no end", "--B\r\n" + formField("model", "sim-audio"), badRequest},
	{"only the end", "--B--\r\n", badRequest},
	{"no model", form(formFile), badModel},
	{"an empty model", form(formField("model", ""), formFile), badModel},
	{"two models", form(formField("model", "sim-audio"), formFile, formField("model", "sim-large")), badModel},
	{"a model in capitals", form(formField("model", "sim-audio"), formField("Model", "sim-large")), badModel},
	{"a file for a model", form(`Content-Disposition: form-data; name="model"; filename="x"`+"\r\n\r\nsim-audio", formFile), badModel},
	{"a long model", form(formField("model", strings.Repeat("m", 300))), badModel},
	{"a model in base64", form(`Content-Disposition: form-data; name="model"`+"\r\nContent-Transfer-Encoding: base64\r\n\r\nc2ltLWF1ZGlv", formFile), badModel},
	{"a line break in the model", form(formField("model", "sim-audio\r\nX-Evil: 1"), formFile), badModel},
	{"an extended name", form(`Content-Disposition: form-data; name*=utf-8''model`+"\r\n\r\nsim-audio", formFile), badRequest},
	{"two dispositions", form(`Content-Disposition: form-data; name="a"`+"\r\n"+formField("model", "sim-audio"), formFile), refusal{400, "invalid_request_error", "a", ""}},
	{"a part without a name", form("Content-Type: text/plain\r\n\r\nx", formField("model", "sim-audio")), badRequest},
	{"300 parts", form(slices.Repeat([]string{formField("x[]", "y")}, 300)...), badRequest},
	{"an unknown model", form(formField("model", "nobody"), formFile), noModel},
}

// TestBadInput sends what is wrong in one way each, and then looks whether any of it had an effect.
func TestBadInput(t *testing.T) {
	b := newBadEdge(t)
	t.Run("bodies", b.bodies)
	t.Run("forms", b.forms)
	t.Run("media types", b.mediaTypes)
	t.Run("sizes", b.sizes)
	t.Run("keys", b.keys)
	t.Run("paths", b.paths)
	t.Run("methods", b.methods)
	b.unharmed(t, 0)
}

// probePaths are what a Node itself asks a provider for.
var probePaths = []string{"/v1/models", "/version", "/props", "/slots", "/health", "/api/version", "/api/v0/models", "/get_server_info"}

// probeBody is what a Node sends to find out which paths a provider has; the simulator does not read it where it has none.
const probeBody = `{"iop":`

// unharmed checks that n requests have reached the provider since the last time, that nothing runs or panicked, and
// that the stack serves.
func (s *stack) unharmed(t *testing.T, n int) {
	t.Helper()
	s.settled()
	sim := s.sims[0]
	var all []struct{ Method, Path, Body string }
	sim.control(t, "GET", "/sim/requests", nil, &all)
	arrived := 0
	for _, r := range all {
		if r.Method == "POST" && (r.Body == probeBody || r.Body == "" && (r.Path == "/v1/iop-no-such-path" || strings.HasPrefix(r.Path, "/api/"))) {
			continue
		}
		if r.Method == "POST" {
			arrived++
		} else if r.Method != "GET" || !slices.Contains(probePaths, r.Path) {
			t.Errorf("the provider saw %s %s", r.Method, r.Path)
		}
	}
	if arrived != n {
		t.Errorf("%d requests reached the provider, not %d: %+v", arrived, n, all)
	}
	sim.control(t, "POST", "/sim/reset", nil, nil)
	if panics := s.metric("iop_panics_total"); panics != 0 {
		t.Errorf("%v panics", panics)
	}
	res, body := s.do("POST", "/v1/chat/completions", chat("sim-small", "tokens=3", false), nil)
	if res.StatusCode != http.StatusOK || !strings.Contains(string(body), "hello t1 t2") {
		t.Errorf("the stack does not serve any more: %s %s", res.Status, body)
	}
	s.settled()
	sim.control(t, "POST", "/sim/reset", nil, nil)
}

func (b *badEdge) bodies(t *testing.T) {
	for _, path := range jsonPaths {
		for _, c := range badBodies {
			t.Run(path[1:]+"/"+c.name, func(t *testing.T) {
				a := rawRequest{target: path, header: []string{"Content-Type: application/json"}, body: c.body}.send(t, b.stack)
				c.want.check(t, b.stack, path, a)
			})
		}
	}
}

func (b *badEdge) forms(t *testing.T) {
	for _, path := range formPaths {
		for _, c := range badForms {
			t.Run(path[1:]+"/"+c.name, func(t *testing.T) {
				a := rawRequest{target: path, header: []string{"Content-Type: multipart/form-data; boundary=B"}, body: c.body}.send(t, b.stack)
				c.want.check(t, b.stack, path, a)
			})
		}
	}
}

func (b *badEdge) mediaTypes(t *testing.T) {
	const good = `{"model":"sim-small","messages":[]}`
	for name, c := range map[string]struct {
		path   string
		header []string
		want   refusal
	}{
		"gzip":              {"/v1/chat/completions", []string{"Content-Encoding: gzip"}, badMedia},
		"br":                {"/v1/embeddings", []string{"Content-Encoding: br"}, badMedia},
		"gzip, chunked":     {"/v1/responses", []string{"Content-Type: application/json", "Content-Encoding: gzip, gzip"}, badMedia},
		"a form to chat":    {"/v1/chat/completions", []string{"Content-Type: multipart/form-data; boundary=B"}, badMedia},
		"JSON to a form":    {"/v1/audio/transcriptions", []string{"Content-Type: application/json"}, badMedia},
		"no type to a form": {"/v1/audio/translations", nil, badMedia},
		"no boundary":       {"/v1/images/edits", []string{"Content-Type: multipart/form-data"}, badRequest},
		"a long boundary":   {"/v1/images/edits", []string{"Content-Type: multipart/form-data; boundary=" + strings.Repeat("b", 71)}, badRequest},
	} {
		t.Run(name, func(t *testing.T) {
			c.want.check(t, b.stack, c.path, rawRequest{target: c.path, header: c.header, body: good}.send(t, b.stack))
		})
	}
}

func (b *badEdge) sizes(t *testing.T) {
	large := `{"model":"sim-small","messages":[],"x":"` + strings.Repeat("x", 1<<20) + `"}`
	for _, path := range slices.Concat(jsonPaths, formPaths) {
		for _, length := range []string{"", "chunked", "Content-Length: 9223372036854775807"} {
			t.Run(path[1:]+" "+length, func(t *testing.T) {
				a := rawRequest{target: path, header: []string{"Content-Type: application/json"}, body: large, length: length}.send(t, b.stack)
				tooLarge.check(t, b.stack, path, a)
			})
		}
	}
	t.Run("who asks first need not send it", func(t *testing.T) {
		c := b.dial(t)
		c.write(rawRequest{target: "/v1/chat/completions", header: []string{"Expect: 100-continue"}, length: "Content-Length: 2000000"}.bytes(b.stack))
		a, ok := c.answer("POST")
		if !ok {
			t.Fatal("no answer")
		}
		tooLarge.check(t, b.stack, "/v1/chat/completions", a)
	})
	t.Run("headers", func(t *testing.T) {
		a := rawRequest{target: "/v1/chat/completions", header: []string{"X-Large: " + strings.Repeat("x", 100<<10)}, body: "{}"}.send(t, b.stack)
		if a.status != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
}

func (b *badEdge) keys(t *testing.T) {
	join, admin := b.token, b.adminToken()
	auth := map[string]string{
		"none":              "-",
		"empty":             "Authorization:",
		"no token":          "Authorization: Bearer",
		"another scheme":    "Authorization: Basic " + b.key,
		"no scheme":         "Authorization: " + b.key,
		"two spaces":        "Authorization: Bearer  " + b.key,
		"two tokens":        "Authorization: Bearer " + b.key + " " + b.key,
		"a list":            "Authorization: Bearer " + b.key + ",Bearer " + b.key,
		"two headers":       "Authorization: Bearer " + b.key + "\r\nAuthorization: Bearer " + b.key,
		"two keys":          "Authorization: Bearer " + b.unknown + "\r\nAuthorization: Bearer " + b.key,
		"wrong x-api-key":   "X-Api-Key: " + b.unknown,
		"in api-key":        "Api-Key: " + b.key,
		"in the proxy's":    "Proxy-Authorization: Bearer " + b.key,
		"in a cookie":       "Cookie: Authorization=Bearer " + b.key,
		"no key at all":     "Authorization: Bearer sk-nonsense",
		"a letter missing":  "Authorization: Bearer " + b.key[:len(b.key)-1],
		"a letter too many": "Authorization: Bearer " + b.key + "a",
		"other case":        "Authorization: Bearer " + strings.ToUpper(b.key),
		"its id only":       "Authorization: Bearer " + b.key[:15],
		"of another Edge":   "Authorization: Bearer " + b.unknown,
		"revoked":           "Authorization: Bearer " + b.revoked,
		"expired":           "Authorization: Bearer " + b.expired,
		"a join token":      "Authorization: Bearer " + join,
		"the admin token":   "Authorization: Bearer " + admin,
		"SQL":               "Authorization: Bearer ' OR 1=1 --",
		"200 KB":            "Authorization: Bearer " + strings.Repeat("k", 40<<10),
	}
	targets := []rawRequest{
		{target: "/v1/chat/completions", body: `{"model":"sim-small","messages":[]}`},
		{target: "/v1/audio/transcriptions", header: []string{"Content-Type: multipart/form-data; boundary=B"}, body: form(formField("model", "sim-audio"), formFile)},
		{method: "GET", target: "/v1/models"},
		{method: "GET", target: "/v1/models/sim-small"},
		{method: "GET", target: "/iop/v1/runs/run_x"},
		{method: "POST", target: "/iop/v1/runs/run_x/cancel"},
	}
	for name, line := range auth {
		for _, q := range targets {
			if name == "wrong x-api-key" && strings.HasPrefix(q.target, "/v1/models") {
				continue // the answer has Anthropic's form, which has no code
			}
			t.Run(name+q.target, func(t *testing.T) {
				q.auth = line
				a := q.send(t, b.stack)
				badKey.check(t, b.stack, q.target, a)
				if strings.Contains(a.body, b.unknown) || strings.Contains(a.body, b.revoked) || strings.Contains(a.body, admin) {
					t.Errorf("the answer repeats a key: %s", a.body)
				}
			})
		}
	}
	t.Run("in the query", func(t *testing.T) {
		q := rawRequest{target: "/v1/chat/completions?api_key=" + b.key + "&key=" + b.key, auth: "-", body: `{"model":"sim-small"}`}
		badKey.check(t, b.stack, q.target, q.send(t, b.stack))
	})
	t.Run("of other models", func(t *testing.T) {
		want := refusal{403, "model_not_allowed", "model", "sim-small"}
		for _, q := range []rawRequest{
			{target: "/v1/chat/completions", body: `{"model":"sim-small","messages":[]}`}, {method: "GET", target: "/v1/models/sim-small"},
		} {
			q.auth = "Authorization: Bearer " + b.narrow
			want.check(t, b.stack, q.target, q.send(t, b.stack))
		}
	})
	t.Run("the scheme's case is free", func(t *testing.T) {
		if a := (rawRequest{method: "GET", target: "/v1/models", auth: "authorization: bEARER " + b.key}).send(t, b.stack); a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
	t.Run("the body is not awaited", func(t *testing.T) {
		c := b.dial(t)
		c.write(rawRequest{target: "/v1/chat/completions", auth: "-", length: "Content-Length: 1000"}.bytes(b.stack))
		a, ok := c.answer("POST")
		if !ok {
			t.Fatal("no answer")
		}
		badKey.check(t, b.stack, "/v1/chat/completions", a)
	})
}

func (b *badEdge) paths(t *testing.T) {
	for _, target := range []string{
		"/v1", "/v1/", "/v1/nothing", "/v1/chat", "/v1/chat/completions/x", "/V1/chat/completions", "/v1/Chat/completions",
		"/v1/../admin", "/v1/../admin/v1/status", "/v1/%2e%2e/admin/v1/status", "/v1/%2E%2E%2fadmin", "/../admin/v1/status", "/./v1/chat/completions",
		"/v1/chat/../chat/completions", "/v1/chat/./completions", "//v1/chat/completions", "/v1//chat/completions", "/v1/chat/completions//",
		`/v1\chat\completions`, "/v1%5cchat%5ccompletions", "/v1/chat/completions%00", "/v1/chat/completions%20", "/v1/chat/completions;a=b",
		"/v1/chat/completions%3fmodel=x", "/%2f%2f169.254.169.254/", "/admin/v1/status", "/metrics", "/debug/pprof/", "/sim", "/v1/files", "/v1/audio",
		"/v1/models/../../admin/v1/status%2f..", "/iop/v1/runs/", "/iop/v1/runs/a/b", "/iop/v1/runs/../../../admin", "/iop", "/tunnel", "/tunnel/v1/",
		"/v1/messages/batches", "/v1/messages/../chat/completions",
		"/api", "/api/", "/api/tags/x", "/api/pull", "/api/delete", "/api/blobs/x", "/api/../v1/chat/completions",
	} {
		method := "POST"
		if strings.HasPrefix(target, "/v1/models/") {
			method = "GET"
		}
		t.Run(method+" "+target, func(t *testing.T) {
			want := noPath
			if method == "GET" {
				want = noModel // whatever follows /v1/models/ is a name
			}
			a := rawRequest{method: method, target: target, body: `{"model":"sim-small","messages":[]}`}.send(t, b.stack)
			read := target
			if strings.HasSuffix(target, "/chat/completions") {
				read = "/v1/chat/completions" // the error has the form of the API whose path was meant
			}
			want.check(t, b.stack, read, a)
		})
	}
	t.Run("somebody else's run", func(t *testing.T) {
		want := refusal{status: 404, code: "run_not_found"}
		for _, q := range []rawRequest{{method: "GET", target: "/iop/v1/runs/run_x"}, {target: "/iop/v1/runs/run_x/cancel"}} {
			want.check(t, b.stack, q.target, q.send(t, b.stack))
		}
	})
	t.Run("a tunnel that is none", func(t *testing.T) {
		if a := (rawRequest{method: "GET", target: "/tunnel/v1"}).send(t, b.stack); a.status < 400 || a.status > 499 {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
	for _, target := range []string{"http://169.254.169.254/latest/meta-data", "v1/models", "*", "", "/v1/models HTTP/1.1 x", "/%zz", "/\x01"} {
		t.Run("as target "+target, func(t *testing.T) {
			if a := (rawRequest{method: "GET", target: target}).send(t, b.stack); a.status < 400 || a.status > 499 {
				t.Errorf("%d %s", a.status, a.body)
			}
		})
	}
	t.Run("CONNECT", func(t *testing.T) {
		if a := (rawRequest{method: "CONNECT", target: "127.0.0.1:22"}).send(t, b.stack); a.status < 400 || a.status > 499 {
			t.Errorf("%d %s", a.status, a.body)
		}
	})
}

func (b *badEdge) methods(t *testing.T) {
	want := refusal{status: 405, code: "method_not_allowed"}
	check := func(method, target, allow string) {
		t.Run(method+" "+target, func(t *testing.T) {
			a := rawRequest{method: method, target: target}.send(t, b.stack)
			if method == "HEAD" {
				if a.status != 405 || a.header.Get("Allow") != allow {
					t.Errorf("%d %v", a.status, a.header)
				}
				return
			}
			want.check(t, b.stack, target, a)
			if a.header.Get("Allow") != allow {
				t.Errorf("Allow %q, not %q", a.header.Get("Allow"), allow)
			}
		})
	}
	for _, target := range slices.Concat(jsonPaths, formPaths[1:], []string{"/iop/v1/runs/run_x/cancel"}) {
		for _, method := range []string{"GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "post", "BREW"} {
			check(method, target, "POST")
		}
	}
	for _, target := range []string{"/v1/models", "/v1/models/sim-small", "/iop/v1/runs/run_x", "/tunnel/v1"} {
		for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS"} {
			check(method, target, "GET")
		}
	}
}
