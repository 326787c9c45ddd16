package web_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"iop/gateway/admin"
	"iop/web"
)

// nodeEdge is an admin API with one Node, "n1", that has an Ollama "o" and a vLLM "v".
type nodeEdge struct {
	silent  bool // the Node does not answer
	offline bool
	pull    http.HandlerFunc
	deleted chan string // bodies
}

func (e *nodeEdge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at := time.Date(2026, 3, 31, 12, 0, 0, 0, time.UTC)
	history := []admin.EndedSession{{Generation: 6, Remote: "192.0.2.1:7", Since: at, Until: at.Add(90 * time.Minute), Cause: "heartbeat_timeout"}}
	node := admin.Node{Node: "n1", State: "online", LastSeen: at, LastCause: "heartbeat_timeout", History: history, Sessions: []admin.Session{{
		Generation: 7, Current: true, State: "online", Since: at, Labels: map[string]string{"site": "lab"},
		Providers: []admin.Provider{{ID: "o", Adapter: "ollama", Health: "ok", Capacity: 4, Models: []string{"known-to-the-edge"}}},
	}}}
	if e.offline {
		node.State, node.Sessions = "offline", []admin.Session{}
	}
	var v any
	switch strings.TrimPrefix(r.URL.Path, "/admin/v1/nodes/n1") {
	case "":
		v = node
	case "/admin/v1/runs":
		v = map[string]any{"data": []any{}}
	case "/capabilities":
		if e.silent {
			w.WriteHeader(http.StatusGatewayTimeout)
			v = map[string]admin.ErrorBody{"error": {Message: "the Node did not answer in time", Code: "node_timeout"}}
			break
		}
		v = admin.NodeCapabilities{Node: "n1", Generation: 7, Providers: []admin.Capability{
			{ID: "o", Adapter: "openai", Engine: "ollama", EngineVersion: "0.12.6", Health: "ok", Capacity: 4, InFlight: 1, OperationsKnown: true, Operations: []string{"chat", "ollama_chat"}, Normalized: true,
				Models: []admin.CapabilityModel{{ID: "warm", Loaded: true}, {ID: "cold"}}},
			{ID: "v", Adapter: "vllm", Health: "hung"},
		}}
	case "/transport":
		reconnects := uint64(3)
		v = admin.NodeTransport{Edge: admin.Transport{SessionWindow: 1 << 20, StalledRuns: 2}, AtNode: admin.Transport{Reconnects: &reconnects}}
	case "/ollama/tags":
		v = admin.OllamaResult{Result: json.RawMessage(`{"models":[{"name":"warm:8b","size":4912898304,"details":{"parameter_size":"8B"}},{"name":"cold:1b"}]}`)}
	case "/ollama/ps":
		v = admin.OllamaResult{Result: json.RawMessage(`{"models":[{"name":"warm:8b","size_vram":1073741824}]}`)}
	case "/ollama/pull":
		e.pull(w, r)
		return
	case "/ollama/delete":
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(err)
		}
		e.deleted <- r.URL.RawQuery + " " + string(body)
		v = admin.OllamaResult{}
	default:
		w.WriteHeader(http.StatusNotFound)
		v = map[string]admin.ErrorBody{"error": {Message: "there is no Node " + r.URL.Path}}
	}
	_ = json.NewEncoder(w).Encode(v)
}

// open serves a console on the API and returns a client that is signed in.
func open(t *testing.T, api http.Handler) (*http.Client, string) {
	t.Helper()
	done := make(chan struct{})
	server := httptest.NewTLSServer(web.New(admin.Parts{
		API: api, Public: http.NotFoundHandler(), Listen: func() string { return "127.0.0.1:1" }, Metrics: http.NotFoundHandler(),
		Verify: func(token string) bool { return token == "t" }, Logger: slog.New(slog.DiscardHandler), Done: done,
	}))
	t.Cleanup(func() { server.Close(); close(done) })
	client := server.Client()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	client.Jar = jar
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if got := fetch(t, client, http.MethodPost, server.URL+"/admin/sign-in", url.Values{"token": {"t"}}); got.status != http.StatusSeeOther {
		t.Fatalf("sign-in: %d", got.status)
	}
	return client, server.URL + "/admin/nodes/n1"
}

func fetch(t *testing.T, client *http.Client, method, address string, form url.Values, header ...string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{res.StatusCode, res.Header, string(text)}
}

func wants(t *testing.T, page reply, wanted ...string) {
	t.Helper()
	for _, want := range wanted {
		if !strings.Contains(page.body, want) {
			t.Errorf("no %q in:\n%s", want, page.body)
		}
	}
}

func TestNodePage(t *testing.T) {
	edge := &nodeEdge{}
	client, address := open(t, edge)
	page := fetch(t, client, http.MethodGet, address, nil)
	wants(t, page, "heartbeat_timeout", "1 h 30 min", "192.0.2.1:7", "ollama 0.12.6", "<code>warm</code> <span class=\"badge good\">loaded</span>", "<code>cold</code>",
		"unknown engine", "1 of 4 in use", "ollama_chat", ">unknown<", "Stalled runs", "1.0 MiB", "Previous sessions",
		`data-pull="pulls-0"`, `/nodes/n1?ollama=o"`, `/ollama?provider=o"`, "pull.js")
	if strings.Contains(page.body, `value="v"`) {
		t.Error("a provider that is no Ollama can be told to pull")
	}
	t.Run("an Ollama that the page does not know yet", func(t *testing.T) {
		if got := fetch(t, client, http.MethodGet, address, nil, "Hx-Request", "true"); got.header.Get("Hx-Refresh") != "true" {
			t.Errorf("%v", got.header)
		}
		if got := fetch(t, client, http.MethodGet, address+"?ollama=o", nil, "Hx-Request", "true"); got.header.Get("Hx-Refresh") != "" {
			t.Errorf("%v", got.header)
		}
	})
	t.Run("a Node that does not answer", func(t *testing.T) {
		silent, address := open(t, &nodeEdge{silent: true})
		wants(t, fetch(t, silent, http.MethodGet, address, nil), "did not answer in time", "known-to-the-edge", "heartbeat_timeout")
	})
	t.Run("a Node that is gone", func(t *testing.T) {
		gone, address := open(t, &nodeEdge{offline: true})
		page := fetch(t, gone, http.MethodGet, address, nil)
		wants(t, page, "Not connected", "iop node --edge", "heartbeat_timeout", "1 h 30 min")
		if strings.Contains(page.body, "Drain<") || strings.Contains(page.body, "data-pull") {
			t.Error("what needs the Node is offered")
		}
	})
}

func TestOllamaModels(t *testing.T) {
	edge := &nodeEdge{deleted: make(chan string, 1)}
	client, address := open(t, edge)
	page := fetch(t, client, http.MethodGet, address+"/ollama?provider=o", nil, "Hx-Request", "true")
	wants(t, page, "warm:8b", "4.6 GiB", "1.0 GiB of VRAM", "cold:1b", `data-confirm="Delete cold:1b`)
	got := fetch(t, client, http.MethodPost, address+"/ollama/delete", url.Values{"provider": {"o"}, "model": {"cold:1b"}})
	if got.status != http.StatusSeeOther || got.header.Get("Location") != "/admin/nodes/n1?done=model-deleted" {
		t.Errorf("%d %v", got.status, got.header)
	}
	if body := <-edge.deleted; body != `provider=o {"model":"cold:1b"}`+"\n" {
		t.Errorf("the API was asked %q", body)
	}
}

// TestPullWithoutScript waits for the end of a pull, and says how it went.
func TestPullWithoutScript(t *testing.T) {
	for says, want := range map[string]string{
		`{"status":"pulling manifest"}` + "\n" + `{"status":"success"}` + "\n":                                 "",
		`{"status":"pulling manifest"}` + "\n" + `{"error":"pull model manifest: file does not exist"}` + "\n": "file does not exist",
		`{"status":"pulling manifest"}` + "\n":                                                                 "ended early",
		`no progress`:                                                                                          "ended early",
		strings.Repeat("x", 100<<10):                                                                           "ended early",
	} {
		edge := &nodeEdge{pull: func(w http.ResponseWriter, r *http.Request) {
			for piece := range slices.Chunk([]byte(says), 7) { // lines come in pieces
				if _, err := w.Write(piece); err != nil {
					return
				}
			}
		}}
		client, address := open(t, edge)
		got := fetch(t, client, http.MethodPost, address+"/ollama/pull", url.Values{"provider": {"o"}, "model": {"new:8b"}})
		switch {
		case want == "" && (got.status != http.StatusSeeOther || !strings.HasSuffix(got.header.Get("Location"), "?done=model-pulled")):
			t.Errorf("%q: %d %v", says, got.status, got.header)
		case want != "" && (got.status != http.StatusUnprocessableEntity || !strings.Contains(got.body, want) || !strings.Contains(got.body, `value="new:8b"`)):
			t.Errorf("%.60q: %d\n%s", says, got.status, got.body)
		}
	}
	edge := &nodeEdge{pull: func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w, `{"error":{"message":"four at once","code":"too_many_calls"}}`)
	}}
	client, address := open(t, edge)
	if got := fetch(t, client, http.MethodPost, address+"/ollama/pull", url.Values{"model": {"m"}}); got.status != http.StatusUnprocessableEntity || !strings.Contains(got.body, "four at once") {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// TestPullStreams holds that progress comes as it is made, and that who goes away ends the pull.
func TestPullStreams(t *testing.T) {
	ended := make(chan error, 1)
	edge := &nodeEdge{pull: func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || string(body) != `{"model":"new:8b"}` || r.URL.RawQuery != "provider=o" {
			ended <- fmt.Errorf("the API was asked %q %q, %v", r.URL.RawQuery, body, err)
			return
		}
		w.Header().Set("Content-Type", "application/x-ndjson")
		_, _ = io.WriteString(w, `{"status":"pulling manifest"}`+"\n")
		if err := http.NewResponseController(w).Flush(); err != nil {
			ended <- err
			return
		}
		<-r.Context().Done()
		ended <- nil
	}}
	client, address := open(t, edge)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	form := url.Values{"provider": {"o"}, "model": {"new:8b"}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address+"/ollama/pull", strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/x-ndjson")
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	line, err := bufio.NewReader(res.Body).ReadString('\n')
	if err != nil || !strings.Contains(line, "pulling manifest") || res.Header.Get("Content-Type") != "application/x-ndjson" {
		t.Fatalf("%q, %v, %v", line, err, res.Header)
	}
	leave()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestPagesAskForAPlace: who is signed in needs a place for the connection; the page to sign in on takes none from others.
func TestPagesAskForAPlace(t *testing.T) {
	done := make(chan struct{})
	defer close(done)
	asked := 0
	console := web.New(admin.Parts{
		API: evilEdge(), Public: http.NotFoundHandler(), Listen: func() string { return "127.0.0.1:1" }, Metrics: http.NotFoundHandler(),
		Verify: func(token string) bool { return token == "t" }, Logger: slog.New(slog.DiscardHandler), Done: done,
		Admit: func(w http.ResponseWriter, _ *http.Request) bool {
			asked++
			w.WriteHeader(http.StatusServiceUnavailable)
			return false
		},
	})
	ask := func(req *http.Request) *http.Response {
		got := httptest.NewRecorder()
		console.ServeHTTP(got, req)
		return got.Result()
	}
	form := httptest.NewRequest(http.MethodPost, "/admin/sign-in", strings.NewReader("token=t"))
	form.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	in := ask(form)
	ask(httptest.NewRequest(http.MethodGet, "/admin/sign-in", nil))
	ask(httptest.NewRequest(http.MethodGet, "/admin/nodes", nil))
	if asked != 0 {
		t.Errorf("strangers asked for %d places", asked)
	}
	page := httptest.NewRequest(http.MethodGet, "/admin/nodes", nil)
	page.AddCookie(in.Cookies()[0])
	if got := ask(page); got.StatusCode != http.StatusServiceUnavailable || asked != 1 {
		t.Errorf("without a place: %s, asked %d times", got.Status, asked)
	}
}
