package e2e

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// canaries are the secrets that were put in somewhere, by name, and every form in which one may come out.
type canaries struct {
	words map[string]string   // by what they are
	forms map[string][]string // by the same
}

// plant notes a secret; pieces of it count as well, as a log line that shows half of a key is no better.
func (c *canaries) plant(name, secret string) string {
	if c.forms == nil {
		c.words, c.forms = map[string]string{}, map[string][]string{}
	}
	c.words[name] = secret
	const piece = 16
	for _, s := range []string{secret, secret[:min(piece, len(secret))], secret[max(0, len(secret)-piece):]} {
		c.forms[name] = append(c.forms[name], formsOf(s)...)
	}
	return secret
}

// plantToken notes a key or a token of ours, whose prefix and id are public.
func (c *canaries) plantToken(name, token string) string {
	_, body, ok := strings.Cut(token, "_")
	if !ok || len(body) < 40 {
		panic("no token: " + name)
	}
	c.plant(name, body[8:])
	return token
}

// formsOf are a text as it is, and as logs, URLs, headers and dumps show it.
func formsOf(s string) []string {
	quoted, _ := json.Marshal(s)
	forms := []string{
		s, url.QueryEscape(s), url.PathEscape(s), hex.EncodeToString([]byte(s)), strings.ToUpper(hex.EncodeToString([]byte(s))),
		strings.Trim(string(quoted), `"`), strings.Trim(fmt.Sprintf("%q", s), `"`), strings.Trim(fmt.Sprintf("%+q", s), `"`),
		strings.Trim(fmt.Sprint([]byte(s)), "[]"), strings.Trim(fmt.Sprintf("% x", s), " "),
	}
	// In base64 a text looks different at each of three offsets; what depends on its neighbours is left out.
	for skip := range 3 {
		for _, e := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			text := e.EncodeToString(append(make([]byte, skip), s...))
			from, to := (skip*8+5)/6, len(text)-1
			forms = append(forms, text[from:to])
		}
	}
	slices.Sort(forms)
	return slices.Compact(forms)
}

// look reports every canary that text holds, but for the excused ones.
func (c *canaries) look(t *testing.T, where, text string, excused ...string) {
	t.Helper()
	for name, forms := range c.forms {
		if slices.Contains(excused, name) {
			continue
		}
		for _, form := range forms {
			if i := strings.Index(text, form); i >= 0 {
				t.Errorf("%s shows %s: ...%s...", where, name, text[max(0, i-150):min(len(text), i+len(form)+50)])
				break
			}
		}
	}
}

// secretStack is a stack at log level debug with a canary in every input.
type secretStack struct {
	*stack
	canaries
	providerKey, revoked, foreign string
}

// secretRoutes has a route of a file beside the advertised ones.
const secretRoutes = `
advertised_models: serve
routes:
  - model: routed
    policy: prefix_affinity
    targets: [{model: sim-small}]
`

func newSecretStack(t *testing.T) *secretStack {
	t.Helper()
	s := &secretStack{stack: newRouted(t, secretRoutes, "--log", "debug").stack}
	s.plantToken("the API key", s.key)
	s.plantToken("the join token", s.token)
	s.plantToken("the admin token", s.adminToken())
	s.foreign = s.plantToken("an unknown API key", newEdge(t).key)
	s.revoked = s.plantToken("a revoked API key", s.newKey("revoked"))
	s.revokeKey("revoked")
	s.providerKey = s.plant("the provider's key", "sk-provider-Q7vK2mZp9LxWc4RtYb8N")

	file := filepath.Join(t.TempDir(), "provider-key")
	if err := os.WriteFile(file, []byte(s.providerKey+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	models := "sim-small,sim-embed,sim-audio,sim-image"
	for i := range failingModels {
		models += fmt.Sprintf(",failing-%d", i)
	}
	sim := s.startSim("--api-key", s.providerKey, "--slots", "8", "--models", models)
	s.startNode("node-1", "--log", "debug", "--provider", "sim="+sim.url+",capacity=8,key-file="+file)
	return s
}

const failingModels = 40

// failing is secretChat with a model of its own: one that fails too often is left alone for a while.
func failing(i int, prompt, knobs string, stream bool) map[string]any {
	c := secretChat(prompt, knobs, stream)
	c["model"] = fmt.Sprintf("failing-%d", i%failingModels)
	return c
}

// knobs that make a provider repeat what it knows.
var leaks = []string{
	"leak", "leak,chunk_bytes=200", "echo_headers", "echo_headers,chunk_bytes=2000", "early_hints", "leak,early_hints", "leak,status=400", "leak,status=401", "leak,status=403", "leak,status=429", "leak,status=500",
	"leak,status=400,error_shape=detail", "leak,status=422,error_shape=string", "leak,status=503,error_shape=flat", "leak,redirect", "leak,split=1",
	"leak,error_event_first", "leak,error_event_mid", "leak,midclose", "leak,midreset", "leak,empty200", "leak,close",
}

// TestSecretsStayInside (a canary in every input, nothing of it in any output).
func TestSecretsStayInside(t *testing.T) {
	s := newSecretStack(t)
	prompt := s.plant("the prompt", "the-heron é/+&=? flies-at-dawn-83114")
	header := s.plant("a header", "header+value/55190=kingfisher")
	query := s.plant("the query", "query+value/66201=bittern")
	file := s.plant("a file", "file/content+77312=cormorant")
	path := s.plant("a path", "path-value-88423-shelduck")

	h := http.Header{
		"X-Secret": {header}, "Cookie": {"session=" + header}, "User-Agent": {"agent " + header}, "Openai-Organization": {header}, "Referer": {"http://x/" + header},
		"Proxy-Authorization": {"Basic " + header}, "Traceparent": {header}, "X-Api-Key": {header}, "Via": {"1.1 " + header}, "Content-Language": {header},
	}
	t.Run("limits", func(t *testing.T) { s.limited(t, prompt, h) })
	t.Run("waiting", func(t *testing.T) { s.waiting(t, prompt, h) })
	t.Run("runs", func(t *testing.T) { s.run(t, prompt, query, h) })
	t.Run("leaks", func(t *testing.T) { s.leaky(t, prompt, h) })
	t.Run("forms", func(t *testing.T) { s.forms(t, file, h) })
	t.Run("refusals", func(t *testing.T) { s.refusals(t, prompt, header, query, path) })
	t.Run("wrong starts", s.wrongStarts)
	t.Run("lost Node", func(t *testing.T) { s.lostNode(t, prompt, h) })
	s.outputs(t)
}

// send makes a request with the headers, and returns the answer's head and body as text.
func (s *secretStack) send(t *testing.T, method, target string, body any, h http.Header) (int, string) {
	t.Helper()
	res, err := http.DefaultTransport.RoundTrip(s.request(method, target, body, h))
	if err != nil {
		t.Fatalf("%s: %v", target, err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil && err != io.ErrUnexpectedEOF {
		t.Fatalf("%s: %v", target, err)
	}
	return res.StatusCode, fmt.Sprintf("%s %v %v\n%s", res.Status, res.Header, res.Trailer, data)
}

func secretChat(prompt, knobs string, stream bool) map[string]any {
	c := chat("sim-small", knobs, stream)
	c["messages"] = []map[string]string{{"role": "system", "content": prompt}, {"role": "user", "content": prompt}}
	c["metadata"] = map[string]string{"note": prompt}
	return c
}

// run makes requests that succeed. Their answers may repeat the prompt, which is what was asked for.
func (s *secretStack) run(t *testing.T, prompt, query string, h http.Header) {
	q := "?api_key=" + url.QueryEscape(query)
	for _, stream := range []bool{false, true} {
		status, text := s.send(t, "POST", "/v1/chat/completions"+q, secretChat(prompt, "tokens=8", stream), h)
		if status != http.StatusOK {
			t.Errorf("%s", text)
		}
		s.look(t, "an answer", text, "the prompt")
	}
	for _, c := range []struct {
		path string
		body map[string]any
	}{
		{"/v1/embeddings", map[string]any{"model": "sim-embed", "input": prompt}},
		{"/v1/completions", map[string]any{"model": "sim-small", "prompt": prompt, "stream": true}},
		{"/v1/responses", map[string]any{"model": "sim-small", "input": prompt, "instructions": prompt, "stream": true}},
		{"/v1/moderations", map[string]any{"model": "sim-small", "input": prompt}},
		{"/v1/images/generations", map[string]any{"model": "sim-image", "prompt": prompt}},
		{"/v1/audio/speech", map[string]any{"model": "sim-audio", "input": prompt, "voice": "alloy"}},
		{"/v1/chat/completions", map[string]any{"model": "routed", "messages": secretChat(prompt, "", false)["messages"], "prompt_cache_key": prompt, "user": prompt}},
	} {
		status, text := s.send(t, "POST", c.path+q, c.body, h)
		if status != http.StatusOK {
			t.Errorf("%s: %s", c.path, text)
		}
		s.look(t, c.path, text, "the prompt")
	}
}

// leaky lets the provider repeat its own key in every way that it knows.
func (s *secretStack) leaky(t *testing.T, prompt string, h http.Header) {
	for i, knobs := range leaks {
		for _, stream := range []bool{false, true} {
			_, text := s.send(t, "POST", "/v1/chat/completions", failing(i, prompt, "tokens=6,"+knobs, stream), h)
			if knobs == "leak,chunk_bytes=200" && !strings.Contains(text, "****") {
				t.Errorf("the provider did not repeat its key: %s", text)
			}
			// echo_headers shows the client what it sent itself, as far as that reaches a provider.
			s.look(t, fmt.Sprintf("the answer under %s (stream %v)", knobs, stream), text, "the prompt", "a header")
		}
	}
}

// limited has requests refused by each limit of a key.
func (s *secretStack) limited(t *testing.T, prompt string, h http.Header) {
	for _, args := range [][]string{{"--rpm", "1"}, {"--tpm", "1000"}, {"--monthly-tokens", "1"}} {
		key := s.limitedKey("limited by "+args[0], args...)
		s.plantToken("a key with "+args[0], key.Key)
		h := h.Clone()
		h.Set("Authorization", "Bearer "+key.Key)
		body := secretChat(prompt, "tokens=2000", false)
		for range 2 {
			status, text := s.send(t, "POST", "/v1/chat/completions", body, h)
			s.look(t, fmt.Sprintf("the answer %d to a key with %s", status, args[0]), text, "the prompt")
			s.settled()
		}
		if status, text := s.send(t, "POST", "/v1/chat/completions", body, h); status != http.StatusTooManyRequests {
			t.Errorf("a key with %s: %s", args[0], text)
		} else {
			s.look(t, "the refusal of a key with "+args[0], text)
		}
		s.look(t, "iop key show", iop(t, s.env, "key", "show", key.ID)+iop(t, s.env, "key", "update", key.ID, "--priority", "3", "--json"))
	}
}

// waiting looks at the queue while requests wait in it, and at what is said of a file of routes with faults.
func (s *secretStack) waiting(t *testing.T, prompt string, h http.Header) {
	var left []*caller
	for range 10 { // two more than the provider has places for
		c := newCaller(t, "FIN")
		left = append(left, c)
		s.ask(c, c.Client, "/v1/chat/completions", secretChat(prompt, "ttft=60s", true))
	}
	eventually(t, patience, "some wait", func() bool { return s.metric("iop_queued") > 0 })
	for _, args := range [][]string{{"queue"}, {"queue", "--json"}, {"routes"}, {"runs"}, {"status"}} {
		s.look(t, "iop "+strings.Join(args, " ")+" under load", iop(t, s.env, args...))
	}
	for _, c := range left {
		c.leave()
	}
	s.settled()
	secret := s.plant("a key in a wrong file of routes", "sk-in-routes-4417-Turnstone-Q8")
	file := "routes:\n  - model: x\n    api_key: " + secret + "\n    targets: [{model: y, node: [" + secret + "]}]\n"
	req, err := http.NewRequest("POST", s.admin+"/admin/v1/config/check", strings.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.adminToken())
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode/100 == 2 {
		t.Errorf("a wrong file was taken: %s %s", res.Status, body)
	}
}

func (s *secretStack) forms(t *testing.T, file string, h http.Header) {
	h = h.Clone()
	h.Set("Content-Type", "multipart/form-data; boundary=B")
	part := `Content-Disposition: form-data; name="file"; filename="` + url.PathEscape(file) + `.wav"` + "\r\n\r\n" + file
	for _, body := range []string{
		form(formField("model", "sim-audio"), part), form(formField("model", "sim-audio"), formField("prompt", "sim:status=500"), part),
		form(part), form(formField("model", "nobody"), part), form(formField("model", "sim-audio"), formField("model", "x"), part), "--B\r\n" + part,
	} {
		status, text := s.send(t, "POST", "/v1/audio/transcriptions", body, h)
		if status == http.StatusOK { // it names the file
			s.look(t, "a transcript", text, "a file")
		} else {
			s.look(t, "the error of a form", text)
		}
	}
}

// refusals are requests that never become runs, or fail.
func (s *secretStack) refusals(t *testing.T, prompt, header, query, path string) {
	auth := func(values ...string) http.Header { return http.Header{"Authorization": values, "X-Secret": {header}} }
	good := secretChat(prompt, "", false)
	for name, c := range map[string]struct {
		method, target string
		body           any
		header         http.Header
	}{
		"unknown key":      {"POST", "/v1/chat/completions", good, auth("Bearer " + s.foreign)},
		"revoked key":      {"POST", "/v1/chat/completions", good, auth("Bearer " + s.revoked)},
		"two keys":         {"POST", "/v1/chat/completions", good, auth("Bearer "+s.key, "Bearer "+s.foreign)},
		"join token":       {"POST", "/v1/chat/completions", good, auth("Bearer " + s.token)},
		"admin token":      {"GET", "/v1/models", nil, auth("Bearer " + s.adminToken())},
		"malformed key":    {"POST", "/v1/chat/completions", good, auth("Bearer " + s.key + "x")},
		"another scheme":   {"POST", "/v1/chat/completions", good, auth("Basic " + s.key)},
		"key in query":     {"GET", "/v1/models?key=" + s.key, nil, auth("x")},
		"malformed JSON":   {"POST", "/v1/chat/completions", `{"model":"sim-small","messages":"` + prompt, nil},
		"a wrong type":     {"POST", "/v1/chat/completions", `{"model":["` + prompt + `"]}`, nil},
		"a wrong stream":   {"POST", "/v1/chat/completions", map[string]any{"model": "sim-small", "stream": prompt}, nil},
		"not the engine's": {"POST", "/v1/chat/completions", map[string]any{"model": "sim-small", "messages": prompt}, nil},
		"no model":         {"POST", "/v1/chat/completions", map[string]any{"messages": prompt}, nil},
		"compressed":       {"POST", "/v1/chat/completions", good, http.Header{"Content-Encoding": {header}}},
		"a wrong method":   {"PUT", "/v1/chat/completions?q=" + url.QueryEscape(query), good, nil},
		"nobody's run":     {"GET", "/iop/v1/runs/" + path, nil, nil},
		"provider fails":   {"POST", "/v1/chat/completions", failing(30, prompt, "status=500", false), nil},
		"provider breaks":  {"POST", "/v1/chat/completions", failing(31, prompt, "midreset", true), nil},
		"provider closes":  {"POST", "/v1/chat/completions", failing(32, prompt, "close", true), nil},
		"wrong knobs":      {"POST", "/v1/chat/completions", failing(33, prompt, "no_such_knob", true), nil},
	} {
		_, text := s.send(t, c.method, c.target, c.body, c.header)
		var excused []string
		if name == "provider breaks" { // what it had said is the client's
			excused = append(excused, "the prompt")
		}
		s.look(t, "the answer to "+name, text, excused...)
	}
	// A model and a path that are not there are named to whom asked for them; the model to the operator, too, as models
	// are no secrets.
	model := s.plant("a model's name", "no-such-model-99534-lapwing")
	_, text := s.send(t, "POST", "/v1/chat/completions", map[string]any{"model": model, "messages": prompt}, nil)
	s.look(t, "the answer to an unknown model", text, "a model's name")
	_, text = s.send(t, "POST", "/v1/"+path+"?q="+url.QueryEscape(query), good, nil)
	s.look(t, "the answer to an unknown path", text, "a path")

	for _, address := range []string{s.url, s.admin} {
		for _, bytes := range []string{
			header + "\r\n\r\n", "GET /" + path + " HTTP/1.1\r\n" + header + "\r\n\r\n", "GET / HTTP/9.9\r\nX: " + header + "\r\n\r\n",
			"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + header + strings.Repeat(header, 9), "\x16\x03\x01\x00" + header,
			"GET /tunnel/v1 HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: " + path + "\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n" + header,
		} {
			c := (&stack{url: address}).dial(t)
			c.write([]byte(bytes))
			_ = c.conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
			answer, _ := io.ReadAll(c.in)
			c.conn.Close()
			s.look(t, "the answer to noise", string(answer))
		}
	}
}

// wrongStarts are processes whose secrets are wrong, or lie beside something wrong.
func (s *secretStack) wrongStarts(t *testing.T) {
	bad := s.plant("a wrong join token", "njt-iop_wrong9Token2Canary7Grebe4Curlew1")
	password := s.plant("a password in a URL", "pass9word2Canary7Avocet")
	twoKeys := s.plant("a key file of two lines", "sk-two-lines-4471-Whimbrel")
	file := filepath.Join(t.TempDir(), "two")
	if err := os.WriteFile(file, []byte(twoKeys+"\n"+twoKeys+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	edge := "IOP_NODE_EDGE=ws" + strings.TrimPrefix(s.url, "http") + "/tunnel/v1"
	good := "IOP_NODE_JOIN_TOKEN=" + s.token
	for name, c := range map[string]struct {
		env  []string
		args []string
	}{
		"key file":          {[]string{edge, good}, []string{"node", "--provider", "sim=" + s.sims[0].url + ",key-file=" + file}},
		"password in SPEC":  {[]string{edge, good}, []string{"node", "--provider", "sim=http://me:" + password + "@127.0.0.1:1"}},
		"key in SPEC":       {[]string{edge, good}, []string{"node", "--provider", "sim=http://127.0.0.1:1/?key=" + password}},
		"password for Edge": {[]string{"IOP_NODE_EDGE=ws://me:" + password + "@127.0.0.1:1/tunnel/v1", good}, []string{"node", "--provider", "sim=http://127.0.0.1:1"}},
		"a wrong duration":  {[]string{edge, good, "IOP_NODE_DRAIN_TIMEOUT=soon"}, []string{"node"}},
		"admin token":       {append(slices.Clone(s.env), "IOP_ADMIN_TOKEN="+s.foreign), []string{"status"}},
	} {
		stdout, stderr, err := tryIOP(t, c.env, c.args...)
		if err == nil {
			t.Errorf("%s: no error\n%s", name, stdout+stderr)
		}
		s.look(t, "iop with a wrong "+name, stdout+stderr)
	}
	p := start(t, "intruder", []string{edge, "IOP_NODE_NAME=intruder", "IOP_NODE_JOIN_TOKEN=" + bad}, "node", "--log", "debug", "--provider", "sim="+s.sims[0].url)
	p.line("refused", patience)
	s.nodes = append(s.nodes, p)
}

// lostNode kills the Node under a run.
func (s *secretStack) lostNode(t *testing.T, prompt string, h http.Header) {
	res, err := http.DefaultTransport.RoundTrip(s.request("POST", "/v1/chat/completions", secretChat(prompt, "tokens=1000,itl=50ms", true), h))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.ReadFull(res.Body, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	s.nodes[0].kill()
	rest, err := io.ReadAll(res.Body)
	if err != nil || !strings.Contains(string(rest), `"error"`) {
		t.Errorf("%v %s", err, rest)
	}
	s.look(t, "the error event", string(rest), "the prompt")
}

// outputs looks through everything that came out beside the answers.
func (s *secretStack) outputs(t *testing.T) {
	s.settled()
	for _, path := range []string{"/metrics", "/admin/v1/status", "/admin/v1/nodes", "/admin/v1/runs?limit=1000", "/admin/v1/keys", "/admin/v1/join-tokens", "/debug/pprof/goroutine?debug=2", "/debug/pprof/heap?debug=1",
		"/admin/v1/routes", "/admin/v1/queue", "/admin/v1/config", "/admin/v1/usage?by=key,principal,route,model,node,provider,outcome,day", "/admin/v1/usage/records", "/admin/v1/usage/records?format=csv"} {
		status, text := s.adminGet(t, path, s.adminToken())
		if status != http.StatusOK || len(text) < 20 {
			t.Errorf("%s: %d %s", path, status, text)
		}
		s.look(t, path, text, operators(path)...)
	}
	_, text := s.adminGet(t, "/admin/v1/status", s.foreign)
	s.look(t, "the refusal of an admin token", text)
	for _, args := range [][]string{{"status"}, {"nodes"}, {"runs"}, {"key", "list"}, {"join-token", "list"}, {"key", "list", "--json"}, {"runs", "--json"}, {"nodes", "--json"},
		{"routes"}, {"routes", "--json"}, {"queue"}, {"queue", "--json"}, {"status", "--json"}, {"usage", "--by", "key,model,day"}, {"usage", "--json"}, {"usage", "--csv"}, {"usage", "--records"}, {"usage", "--records", "--csv"}} {
		s.look(t, "iop "+strings.Join(args, " "), iop(t, s.env, args...), operators(args[0])...)
	}
	var arrived json.RawMessage
	s.sims[0].control(t, "GET", "/sim/requests", nil, &arrived)
	s.look(t, "what reached the provider", string(arrived), "the prompt", "a header", "a file", "the provider's key", "the next provider's key")
	processes := append([]*process{s.edge, s.sims[0].process}, s.nodes...)
	for _, p := range processes {
		p.stop(patience)
		if p != s.sims[0].process && len(p.text()) < 200 {
			t.Errorf("%s printed next to nothing: %q", p.name, p.text())
		}
		s.look(t, "the output of "+p.name, p.text(), "a model's name")
	}
	s.lookInState(t)
}

// operators are the canaries that a list of runs may show.
func operators(where string) []string {
	if strings.Contains(where, "runs") {
		return []string{"a model's name"}
	}
	return nil
}

func (s *secretStack) adminGet(t *testing.T, path, token string) (int, string) {
	t.Helper()
	req, err := http.NewRequest("GET", s.admin+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, fmt.Sprintf("%v\n%s", res.Header, body)
}

// lookInState looks into the files of the state: only the admin token lies there as it is, in a file of its own.
func (s *secretStack) lookInState(t *testing.T) {
	dir := filepath.Dir(strings.TrimPrefix(s.state, "sqlite://"))
	files, err := os.ReadDir(dir)
	if err != nil || len(files) < 2 {
		t.Fatalf("%v, %d files of state", err, len(files))
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s can be read by others: %v", f.Name(), info.Mode())
		}
		if f.Name() == "admin-token" || f.IsDir() {
			continue
		}
		text, err := readFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		s.look(t, "the file "+f.Name(), text)
	}
}

// TestCanariesAreFound: a search that finds nothing proves nothing, unless it finds what is there.
func TestCanariesAreFound(t *testing.T) {
	var c canaries
	secret := c.plant("it", "sk-Ab/+9 é zz-longer-than-one-piece")
	for _, text := range []string{
		"x " + secret + " y", url.QueryEscape("a=" + secret), fmt.Sprintf("%x", "ab"+secret), fmt.Sprintf("%q", secret), fmt.Sprint([]byte(secret)),
		base64.StdEncoding.EncodeToString([]byte("Bearer " + secret)), base64.StdEncoding.EncodeToString([]byte("user:" + secret + "!")),
		base64.URLEncoding.EncodeToString([]byte("ab" + secret)), secret[:20] + "...", "..." + secret[len(secret)-18:],
	} {
		found := false
		for _, form := range c.forms["it"] {
			found = found || strings.Contains(text, form)
		}
		if !found {
			t.Errorf("not found in %q", text)
		}
	}
}
