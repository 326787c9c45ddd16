package admin_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"iop/gateway/admin"
	"iop/state"
)

// FuzzRequests: whatever who has the token sends, the API answers what a program can read, and nothing is its own fault.
func FuzzRequests(f *testing.F) {
	for _, seed := range [][4]string{
		{"GET", "/admin/v1/runs?state=ended&limit=3", "", ""},
		{"GET", "/admin/v1/usage?by=key,day&from=2026-01-01&to=2026-02-01T00:00:00Z", "", ""},
		{"GET", "/admin/v1/usage/records?format=csv&principal=%00", "", ""},
		{"POST", "/admin/v1/keys", "application/json", `{"name":"a","routes":["*"],"rpm":1,"expires":"2099-01-01T00:00:00Z"}`},
		{"PATCH", "/admin/v1/keys/abcdefgh", "application/json; charset=utf-8", `{"expires":null,"weight":3}`},
		{"POST", "/admin/v1/join-tokens", "application/json", `{"node":"n1","ttl_seconds":60}`},
		{"POST", "/admin/v1/join-tokens/x/revoke", "", ""},
		{"POST", "/admin/v1/config/check", "application/yaml", goodConfig},
		{"POST", "/admin/v1/config/check", "application/yaml", badConfig},
		{"POST", "/admin/v1/nodes/n%2F1/drain", "", ""},
		{"PUT", "/admin/v1/slots/main", "application/json", `{"profile":"p","value":"v"}`},
		{"POST", "/admin/v1/slots/main/revoke", "application/json", `{"needs_provider_rotation":true}`},
		{"PUT", "/admin/v1/profiles/p", "application/json", `{"header":"api-key","base_urls":["https://a/b"]}`},
		{"PUT", "/admin/v1/node-list/allowed/n1", "application/json", `{"slots":["a*"],"profiles":["?"]}`},
		{"PUT", "/admin/v1/node-list/denied/certificates/0a%3Ab", "", ""},
		{"GET", "/admin/v1/audit?action=slot_set&before=1.x&limit=2&from=2026-01-01", "", ""},
		{"DELETE", "/admin/v1//keys/../keys/%2e%2e", "text/plain", "x"},
	} {
		f.Add(seed[0], seed[1], seed[2], seed[3])
	}
	store, err := state.Open(f.Context(), "sqlite::memory:")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { store.Close() })
	secret, _, err := store.AdminToken(f.Context())
	if err != nil {
		f.Fatal(err)
	}
	token, edge, logs := secret.Reveal(), newFakeEdge(), new(bytes.Buffer)
	handler := admin.New(admin.Config{Store: store, Edge: edge, Metrics: http.NotFoundHandler(), Logger: slog.New(slog.NewTextHandler(logs, nil))})
	f.Fuzz(func(t *testing.T, method, target, kind, body string) {
		u, err := url.ParseRequestURI(target)
		if err != nil || u.Host != "" || !strings.HasPrefix(u.Path, "/admin/v1/") || u.Query().Has("follow") {
			return // net/http lets no such request in, it is not about the API, or it has no end
		}
		r, err := http.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
		if err != nil {
			return
		}
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("Content-Type", kind)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		switch {
		case w.Code >= 500:
			t.Errorf("%s %s: %d %s\n%s", method, target, w.Code, w.Body, logs)
		case w.Code >= 400:
			var answer struct{ Error admin.ErrorBody }
			if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || answer.Error.Code == "" || answer.Error.Message == "" {
				t.Errorf("%s %s: %d %s", method, target, w.Code, w.Body)
			}
		case w.Code == 200 && method != http.MethodHead && w.Header().Get("Content-Type") == "application/json" && !json.Valid(w.Body.Bytes()):
			t.Errorf("%s %s: %s", method, target, w.Body)
		}
		for name := range w.Header() {
			if strings.HasPrefix(name, "Access-Control-") {
				t.Errorf("%s %s: it has %s", method, target, name)
			}
		}
		logs.Reset()
	})
}
