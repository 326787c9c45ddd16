package e2e

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// echoForms are ways in which a provider may write its key into an answer.
var echoForms = map[string]func(string) string{
	"hex":            func(s string) string { return hex.EncodeToString([]byte(s)) },
	"HEX":            func(s string) string { return strings.ToUpper(hex.EncodeToString([]byte(s))) },
	"JSON escapes":   eachByte(`\u%04X`),
	"Python escapes": eachByte(`\x%02x`),
	"URL":            url.QueryEscape,
	"URL, all of it": eachByte("%%%02x"),
	"HTML":           html.EscapeString,
	"HTML, decimal":  eachByte("&#%d;"),
	"HTML in JSON":   func(s string) string { b, _ := json.Marshal(html.EscapeString(s)); return strings.Trim(string(b), `"`) },
}

func eachByte(format string) func(string) string {
	return func(s string) string {
		var b strings.Builder
		for i := range len(s) {
			fmt.Fprintf(&b, format, s[i])
		}
		return b.String()
	}
}

// echoingProvider repeats the key in the form that the request's user field names. "gzip" compresses the answer, whatever the
// request allows.
func echoingProvider(t *testing.T, key string) string {
	t.Helper()
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "identity" {
			t.Errorf("%s asks for the encoding %q", r.URL.Path, r.Header.Get("Accept-Encoding"))
		}
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/v1/models" {
			fmt.Fprintf(w, `{"object":"list","data":[{"id":"m","object":"model"},{"id":%q,"object":"model"}]}`, "m-"+key)
			return
		}
		if r.URL.Path != "/v1/chat/completions" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		var body struct{ User string }
		_ = json.NewDecoder(r.Body).Decode(&body) // the Node's look for the path has none
		if body.User == "gzip" {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			fmt.Fprintf(z, `{"key":%q}`, key)
			z.Close()
			return
		}
		form := echoForms[body.User]
		if form == nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		echo := form(key)
		for _, piece := range []string{`{"choices":[{"message":{"content":"echo `, echo[:len(echo)/2], echo[len(echo)/2:], `"}}]}`} {
			io.WriteString(w, piece)
			w.(http.Flusher).Flush()
		}
	}))
	t.Cleanup(provider.Close)
	return provider.URL
}

// TestProviderEchoesItsKey: in whatever usual form a provider repeats the key that the Node has for it, it reaches no client and no
// list of models, and an answer that is compressed unasked is refused.
func TestProviderEchoesItsKey(t *testing.T) {
	t.Parallel()
	const key = "sk-live_Q7vK2/mZp9+Lx&W"
	s := newEdge(t)
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(key), 0o600); err != nil {
		t.Fatal(err)
	}
	s.startNode("node-1", "--provider", "echo="+echoingProvider(t, key)+",key-file="+file)
	eventually(t, patience, "the model is listed", func() bool { return strings.Contains(fmt.Sprint(s.models()), "m") })
	if models := fmt.Sprint(s.models()); strings.Contains(models, key) {
		t.Errorf("a model's name shows the key: %s", models)
	}
	for name, form := range echoForms {
		resp, body := s.post("/v1/chat/completions", map[string]any{"model": "m", "user": name})
		hidden := bytes.Contains(body, []byte(strings.Repeat("*", len(form(key)))))
		if resp.StatusCode != http.StatusOK || !hidden {
			t.Errorf("%s: %d %s", name, resp.StatusCode, body)
		}
	}
	resp, body := s.post("/v1/chat/completions", map[string]any{"model": "m", "user": "gzip"})
	if resp.StatusCode != http.StatusBadGateway || resp.Header.Get("Content-Encoding") != "" || !json.Valid(body) {
		t.Errorf("compressed: %d %q %q", resp.StatusCode, resp.Header, body)
	}
}
