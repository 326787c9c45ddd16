package nodeagent

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestExamine: one look tells what a Node would offer, and why it would not; no key is in what it tells.
func TestExamine(t *testing.T) {
	const key = "sk-canary-7c21"
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte(key), 0o600); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+key {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = w.Write([]byte(`{"object":"list","data":[{"id":"b"},{"id":"a"}]}`))
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	specs := []ProviderSpec{
		{ID: "good", Engine: OpenAIEngine, URL: server.URL, KeyFile: file, Capacity: 3},
		{ID: "keyless", Engine: OpenAIEngine, URL: server.URL},
		{ID: "gone", Engine: OpenAIEngine, URL: "http://127.0.0.1:1", KeyFile: file},
		{ID: "wrong", URL: "ftp://h"},
		{ID: "named", Engine: OpenAIEngine, URL: server.URL, KeyFile: file, Models: []string{"a:latest", "nope"}},
		{ID: "named-keyless", Engine: OpenAIEngine, URL: server.URL, Models: []string{"a"}},
	}
	all := Examine(t.Context(), specs)
	if good := all[0]; good.Err != nil || good.Capacity != 3 || strings.Join(good.Models, " ") != "a b" {
		t.Errorf("%+v", good)
	}
	if named := all[4]; strings.Join(named.Missing, " ") != "nope" || strings.Join(named.Listed, " ") != "a b" || !named.Default || all[0].Default || all[0].Missing != nil {
		t.Errorf("%+v", named)
	}
	if keyless := all[1]; !keyless.Listless || keyless.Err == nil {
		t.Errorf("%+v", keyless)
	}
	if named := all[5]; named.Err != nil || named.Refused == nil || !strings.Contains(named.Refused.Found, "requires a key (401)") || all[4].Refused != nil {
		t.Errorf("%+v", named)
	}
	if gone := all[2]; !gone.Unreachable || gone.Err == nil || strings.Contains(gone.Err.Error(), key) {
		t.Errorf("%+v", gone)
	}
	if wrong := all[3]; wrong.Err == nil || wrong.Unreachable {
		t.Errorf("%+v", wrong)
	}
}
