package nodeagent

import (
	"bytes"
	"context"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestFindingsOfProviders: the log says what is wrong with a provider in the words of "iop doctor", once for each change.
func TestFindingsOfProviders(t *testing.T) {
	var answer http.HandlerFunc
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer(w, r) }))
	t.Cleanup(server.Close)
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	status := func(code int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			_, _ = io.WriteString(w, body)
		}
	}
	for name, test := range map[string]struct {
		url    string
		answer http.HandlerFunc
		found  string
	}{
		"refused":         {"http://127.0.0.1:1", nil, "nothing listens at 127.0.0.1:1"},
		"wants a key":     {server.URL, status(401, "{}"), "requires a key (401)"},
		"no list":         {server.URL, status(404, "{}"), "/v1/models was not found (404)"},
		"a page":          {server.URL, status(200, "<!doctype html><title>Open WebUI"), "answers with a web page"},
		"HTTP to HTTPS":   {"http" + strings.TrimPrefix(secure.URL, "https"), nil, "speaks TLS"},
		"HTTPS to HTTP":   {"https" + strings.TrimPrefix(server.URL, "http"), nil, "does not speak TLS"},
		"unknown signer":  {secure.URL, nil, "does not trust"},
		"no such machine": {"http://provider.invalid", nil, "provider.invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			answer = test.answer
			spec := ProviderSpec{ID: "p", Engine: OpenAIEngine, URL: test.url}
			var lines bytes.Buffer
			b := &prober{p: testAgent(t, spec).only(), log: slog.New(slog.NewTextHandler(&lines, nil)), changed: func() {}}
			for range 3 {
				b.look(context.Background())
			}
			text := lines.String()
			if strings.Count(text, "found=") != 1 || !strings.Contains(text, test.found) || !strings.Contains(text, " do=") {
				t.Errorf("the log: %s", text)
			}
			if looked := Examine(t.Context(), []ProviderSpec{spec})[0]; looked.Finding == nil || !strings.Contains(looked.Finding.Found, test.found) {
				t.Errorf("the doctor: %+v", looked)
			}
		})
	}
}

// TestChangedFindingsOfAProvider: another fault, or the same one after a good answer, is logged at once.
func TestChangedFindingsOfAProvider(t *testing.T) {
	code := http.StatusOK
	spec := httpProvider(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"m"}]}`)
	})
	spec.Engine = OpenAIEngine
	spec.Models = nil
	var lines bytes.Buffer
	b := &prober{p: testAgent(t, spec).only(), log: slog.New(slog.NewTextHandler(&lines, nil)), changed: func() {}}
	for _, code = range []int{200, 401, 401, 503, 200, 503, 503} {
		b.look(context.Background())
	}
	if text := lines.String(); strings.Count(text, "found=") != 3 || strings.Count(text, "requires a key") != 1 || strings.Count(text, "fails (503)") != 2 {
		t.Errorf("%s", text)
	}
}
