package gateway_test

import (
	"crypto/sha256"
	"encoding/base64"
	"io"
	"net/http"
	"strings"
	"testing"

	"iop/gateway"
)

// read sends a request and returns its answer.
func (e *edge) read(req *http.Request) (*http.Response, string) {
	e.t.Helper()
	resp := e.do(req)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		e.t.Fatal(err)
	}
	return resp, string(body)
}

// A client with a wrong base URL is told the path that it meant and the base URL that leads there, in the form that it reads.
func TestWrongBaseURLs(t *testing.T) {
	e := newEdge(t, nil)
	const (
		openAI    = "The base URL for OpenAI SDKs is this server's address followed by /v1, once"
		anthropic = "The base URL for Anthropic SDKs is this server's address without /v1"
		ollama    = "The base URL for Ollama clients (OLLAMA_HOST) is this server's address without /api"
	)
	for _, tt := range []struct{ method, path, form, right, base string }{
		{"POST", "/chat/completions", `{"error":{"message":`, "/v1/chat/completions", openAI},
		{"GET", "/chat/completions", `{"error":{"message":`, "/v1/chat/completions", openAI},
		{"POST", "/v1/v1/chat/completions", `{"error":{"message":`, "/v1/chat/completions", openAI},
		{"POST", "/v1/v1/v1/chat/completions", `{"error":{"message":`, "/v1/chat/completions", openAI},
		{"POST", "/api/v1/chat/completions", `{"error":{"message":`, "/v1/chat/completions", openAI},
		{"POST", "/api/chat/completions", `{"error":{"message":`, "/v1/chat/completions", openAI},
		{"POST", "/openai/deployments/gpt-4o/chat/completions", `{"error":{"message":`, "/v1/chat/completions", openAI},
		{"POST", "/v1/chat/completions/chat/completions", `{"error":{"message":`, "/v1/chat/completions", openAI},
		{"POST", "/v1//chat/completions", `{"error":{"message":`, "/v1/chat/completions", openAI},
		{"POST", "//v1/chat/completions", `{"error":{"message":`, "/v1/chat/completions", openAI},
		{"POST", "/v1/chat/completions//", `{"error":{"message":`, "/v1/chat/completions", openAI},
		{"POST", "/V1/Chat/Completions", `{"error":{"message":`, "/v1/chat/completions", openAI},
		{"POST", "/responses", `{"error":{"message":`, "/v1/responses", openAI},
		{"POST", "/embeddings", `{"error":{"message":`, "/v1/embeddings", openAI},
		{"POST", "/v1/audio/audio/speech", `{"error":{"message":`, "/v1/audio/speech", openAI},
		{"GET", "/models", `{"error":{"message":`, "/v1/models", openAI},
		{"GET", "/v1/v1/models", `{"error":{"message":`, "/v1/models", openAI},
		{"GET", "/models/llama3.2", `{"error":{"message":`, "/v1/models/{model}", openAI},
		{"GET", "/v1/v1/models/org/name:tag", `{"error":{"message":`, "/v1/models/{model}", openAI},
		{"POST", "/v1/chat/completion", `{"error":{"message":`, "/v1/chat/completions", openAI},
		{"POST", "/chat/completion", `{"error":{"message":`, "/v1/chat/completions", openAI},
		{"GET", "/v1/model", `{"error":{"message":`, "/v1/models", openAI},
		{"POST", "/v1/message", `{"type":"error","error":{`, "/v1/messages", anthropic},
		{"GET", "/api/tag", `{"error":"`, "/api/tags", ollama},
		{"POST", "/v1/tokenize", `{"error":{"message":`, "/tokenize", ""},
		{"POST", "/v1/v1/messages", `{"type":"error","error":{`, "/v1/messages", anthropic},
		{"POST", "/messages", `{"type":"error","error":{`, "/v1/messages", anthropic},
		{"POST", "/anthropic/v1/messages/count_tokens", `{"type":"error","error":{`, "/v1/messages/count_tokens", anthropic},
		{"POST", "/v1/api/chat", `{"error":"`, "/api/chat", ollama},
		{"POST", "/api/api/generate", `{"error":"`, "/api/generate", ollama},
		{"GET", "/tags", `{"error":"`, "/api/tags", ollama},
		{"POST", "/v1", `{"error":{"message":`, "", openAI},
		{"POST", "/v1/", `{"error":{"message":`, "", openAI},
		{"GET", "/api/v1/", `{"error":"`, "", openAI},
		{"POST", "/api", `{"error":{"message":`, "", ollama},
		{"POST", "/v1/v1/files", `{"error":{"message":`, "", "The base URL is this server's address"},
		{"POST", "/nothing", `{"error":{"message":`, "", "The base URL is this server's address"},
		{"POST", "/api/pull", `{"error":"`, "", "The operator of this server pulls"},
	} {
		resp, body := e.read(e.request(tt.method, tt.path, `{"model":"m"}`))
		if resp.StatusCode != http.StatusNotFound || !strings.HasPrefix(body, tt.form) || !strings.Contains(body, "There is nothing at "+tt.path) {
			t.Errorf("%s %s: %d %s", tt.method, tt.path, resp.StatusCode, body)
		}
		if !strings.Contains(body, tt.base) || tt.right != "" && !strings.Contains(body, " Use "+tt.right+".") || tt.right == "" && strings.Contains(body, " Use ") {
			t.Errorf("%s %s is to be told of %s: %s", tt.method, tt.path, tt.right, body)
		}
	}
	for path, no := range map[string]string{"/v1/files": "base URL", "/tunnel/v1/": "base URL", "/" + strings.Repeat("x/", 200) + "v1/models": " Use "} {
		if resp, body := e.read(e.request("GET", path, "")); resp.StatusCode != http.StatusNotFound || strings.Contains(body, no) {
			t.Errorf("%s: %d %s", path, resp.StatusCode, body)
		}
	}
	req := e.request("GET", "/v1/files", "")
	req.Header.Set("Anthropic-Version", "2023-06-01")
	if _, body := e.read(req); !strings.HasPrefix(body, `{"type":"error"`) {
		t.Errorf("an Anthropic SDK reads %s", body)
	}
	e.idle()
}

// A method that a path does not take is often a redirect's doing.
func TestWrongMethods(t *testing.T) {
	e := newEdge(t, nil)
	for _, tt := range []struct{ method, path, want string }{
		{"GET", chat, "only allows POST. If the client sent a POST, a redirect on the way"},
		{"GET", "/v1/messages", "only allows POST. If the client sent a POST, a redirect on the way"},
		{"DELETE", chat, "/v1/chat/completions only allows POST."},
		{"POST", "/v1/models", "/v1/models only allows GET."},
		{"POST", "/", "/ only allows GET. Requests go to paths such as /v1/chat/completions. The base URL for OpenAI SDKs"},
	} {
		if resp, body := e.read(e.request(tt.method, tt.path, "")); resp.StatusCode != http.StatusMethodNotAllowed || !strings.Contains(body, tt.want) {
			t.Errorf("%s %s: %d %s", tt.method, tt.path, resp.StatusCode, body)
		}
	}
}

// One slash at the end of a path of the API is served as the path without it, and nothing else is cleaned.
func TestTrailingSlash(t *testing.T) {
	e := newEdge(t, nil)
	e.addProvider("n1", runsOn("ollama", "chat.completions", "ollama.chat", "messages"), answerJSON(200, `{"done":true}`), "m:latest")
	for _, tt := range []struct {
		method, path string
		status       int
	}{
		{"POST", "/v1/chat/completions/", 200},
		{"POST", "/v1/messages/", 200},
		{"POST", "/api/chat/", 200},
		{"POST", "/k/" + e.key + "/api/chat/", 200},
		{"GET", "/k/" + e.key + "/api/tags/", 200},
		{"GET", "/v1/models/", 200},
		{"GET", "/v1/models/m/", 200},
		{"GET", "/api/tags/", 200},
		{"GET", "/v1/chat/completions/", 405},
		{"POST", "/v1/chat/completions//", 404},
		{"POST", "/v1/chat/completions%2f", 404},
		{"POST", "/v1/chat/completions/%2f", 404},
		{"POST", "/v1/chat/./completions/", 404},
		{"GET", "/v1/models//", 404},
		{"GET", "/tunnel/v1/", 404},
		{"GET", "/healthz/", 404},
		{"GET", "/iop/v1/runs/x/", 404},
	} {
		req := e.request(tt.method, tt.path, `{"model":"m","messages":[]}`)
		if strings.HasPrefix(tt.path, "/k/") {
			req.Header.Del("Authorization")
		}
		if resp, body := e.read(req); resp.StatusCode != tt.status {
			t.Errorf("%s %s: %d %s", tt.method, tt.path, resp.StatusCode, body)
		}
	}
	if req := e.request("POST", chat+"/", `{"model":"m"}`); true {
		req.Header.Del("Authorization")
		if resp, body := e.read(req); resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("without a key: %d %s", resp.StatusCode, body)
		}
	}
	e.idle()
}

// A browser gets a page at the root, and Ollama's clients what they look for.
func TestRoot(t *testing.T) {
	e := newEdge(t, nil)
	e.addNode("n1", 4, answerJSON(200, `{}`), "secret-model")
	root := func(method, accept, host string, more ...string) (*http.Response, string) {
		t.Helper()
		req := e.request(method, "/", "")
		req.Header.Del("Authorization")
		if accept != "" {
			req.Header.Set("Accept", accept)
		}
		if host != "" {
			req.Host = host
		}
		for i := 0; i < len(more); i += 2 {
			req.Header.Set(more[i], more[i+1])
		}
		return e.read(req)
	}
	const browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
	for _, accept := range []string{"", "*/*", "application/json", "text/plain", "text/htmlx", "text/html;q=0", "application/json, text/html; q=0.0"} {
		resp, body := root("GET", accept, "")
		if body != "Ollama is running" || resp.Header.Get("Content-Type") != "text/plain; charset=utf-8" || resp.Header.Get("Vary") != "Accept" {
			t.Errorf("Accept %q: %v %.200s", accept, resp.Header, body)
		}
		if resp, body = root("HEAD", accept, ""); resp.StatusCode != http.StatusOK || body != "" {
			t.Errorf("HEAD: %d %s", resp.StatusCode, body)
		}
	}
	for _, accept := range []string{browser, "TEXT/HTML", "application/json;q=0.5, text/html;q=0.9", "text/html;q=0.001"} {
		resp, body := root("GET", accept, "edge.example.org:8443")
		h := resp.Header
		if resp.StatusCode != 200 || h.Get("Content-Type") != "text/html; charset=utf-8" || h.Get("Cache-Control") != "no-store" || h.Get("X-Content-Type-Options") != "nosniff" ||
			!strings.HasPrefix(h.Get("Content-Security-Policy"), "default-src 'none';") || strings.Contains(h.Get("Content-Security-Policy"), "unsafe") {
			t.Errorf("Accept %q: %d %v", accept, resp.StatusCode, h)
		}
		if strings.Count(body, ">http://edge.example.org:8443</span>/v1") != 5 || strings.Contains(body, "secret-model") || strings.Contains(body, "test") {
			t.Errorf("Accept %q: %s", accept, body)
		}
		for _, tag := range []string{"style", "script"} {
			_, text, _ := strings.Cut(body, "<"+tag+">")
			text, _, _ = strings.Cut(text, "</"+tag+">")
			sum := sha256.Sum256([]byte(text))
			if source := tag + "-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"; !strings.Contains(h.Get("Content-Security-Policy"), source) {
				t.Errorf("the policy does not allow the page's own %s: no %s", tag, source)
			}
		}
		for _, outside := range []string{"src=", "url(", "@import", "<form", "href=\"http"} {
			if strings.Contains(body, outside) {
				t.Errorf("the page has %s", outside)
			}
		}
	}
	if resp, body := root("HEAD", browser, ""); resp.StatusCode != 200 || body != "" || resp.Header.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Errorf("HEAD: %v %s", resp.Header, body)
	}
	if _, body := root("GET", browser, "edge.example.org", "X-Forwarded-Proto", "https"); !strings.Contains(body, ">https://edge.example.org</span>/v1") {
		t.Error("behind TLS the page says http")
	}
	for _, host := range []string{"x'$(id)", "a&b=c", "-x", "edge:0", "edge:99999", "a;b", "[::1"} {
		if resp, body := root("GET", browser, host); resp.StatusCode == http.StatusOK && (strings.Contains(body, "//"+host) || !strings.Contains(body, ">http://EDGE</span>")) {
			t.Errorf("Host %q stands in the page", host)
		}
	}
	for _, host := range []string{"[::1]:8480", "[2001:db8::1]", "10.0.0.7", "xn--bcher-kva.example", "localhost:1", "edge_1:80"} {
		if _, body := root("GET", browser, host); !strings.Contains(body, ">http://"+host+"</span>/v1") {
			t.Errorf("Host %q does not stand in the page", host)
		}
	}
	if resp, body := e.read(e.request("GET", "/k/"+e.key+"/", "")); strings.Contains(body, e.key) || resp.StatusCode != 200 && resp.StatusCode != 401 {
		t.Errorf("a key in the path: %d %s", resp.StatusCode, body)
	}
}

// What is said of any path holds no more of it than what withoutKey leaves, and is one of the API's paths.
func FuzzMeant(f *testing.F) {
	for _, seed := range []string{"/v1/v1/messages", "//", "/chat/completions", "/v1/models/\xff", "/V1/MODELS/x", "/api/v1", strings.Repeat("/v1", 100)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, path string) {
		right := gateway.Meant(path)
		if right == "" {
			return
		}
		if right != "/v1/models/{model}" && gateway.Meant(right) != right {
			t.Errorf("%q is meant for %q, which is meant for %q", path, right, gateway.Meant(right))
		}
	})
}

func FuzzPlainHost(f *testing.F) {
	for _, seed := range []string{"edge.example.org:443", "[::1]:80", "[fe80::1%25eth0]", "a'b", "x:y", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, host string) {
		if gateway.IsPlainHost(host) && strings.ContainsAny(host, "\"'`$\\<>&;|(){} \t\r\n%@/?#") {
			t.Errorf("%q is no plain host", host)
		}
	})
}
