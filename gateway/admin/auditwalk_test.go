package admin_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"iop/gateway/admin"
	"iop/state"
)

// readOnly are the operations that change nothing although they are no GET.
var readOnly = []string{
	"POST /config/check", "POST /nodes/{node}/ollama/tags", "POST /nodes/{node}/ollama/ps", "POST /nodes/{node}/ollama/version",
	"POST /nodes/{node}/ollama/show",
}

// newest returns the entries that are in the audit, the newest first.
func (d *desk) newest() []state.AuditEntry {
	d.t.Helper()
	entries, _, err := d.store.AuditEntries(d.t.Context(), state.AuditQuery{Limit: 1000})
	if err != nil {
		d.t.Fatal(err)
	}
	return entries
}

// TestEveryChangeIsAudited walks through all operations of the API that change anything. Each leaves an entry that says
// what was done, who did it and from where, and none of them says a secret.
func TestEveryChangeIsAudited(t *testing.T) {
	d := newDesk(t)
	former := d.useMasterKeys(1)[0]
	d.edge.file = goodConfig
	var key admin.Key
	var token admin.JoinToken
	walked := map[string]bool{}
	step := func(operation, path, body, want string, answer any) {
		t.Helper()
		walked[operation] = true
		before := len(d.newest())
		method, _, _ := strings.Cut(operation, " ")
		if strings.HasSuffix(operation, "/pull") {
			if got := d.ask(method, v1+path, body); got.status != http.StatusOK {
				t.Fatalf("%s: %d %s", operation, got.status, got.body)
			}
		} else {
			d.must(answer, method, v1+path, body)
		}
		all := d.newest()
		entries := all[:len(all)-before]
		if !slices.ContainsFunc(entries, func(e state.AuditEntry) bool { return e.Action.String() == want }) {
			t.Errorf("%s left no %s, but %+v", operation, want, entries)
		}
		for _, e := range entries {
			if e.Actor != state.ActorAdmin || e.Source != "127.0.0.1" || e.Session != "" || e.Outcome == 0 {
				t.Errorf("%s left %+v", operation, e)
			}
		}
	}
	step("POST /nodes/{node}/drain", "/nodes/n1/drain", "", "node_drained", nil)
	step("POST /nodes/{node}/resume", "/nodes/n1/resume", "", "node_resumed", nil)
	step("DELETE /nodes/{node}", "/nodes/n1", "", "node_forgotten", nil)
	step("POST /nodes/{node}/ollama/pull", "/nodes/n1/ollama/pull", `{"model":"m"}`, "model_pulled", nil)
	step("POST /nodes/{node}/ollama/delete", "/nodes/n1/ollama/delete", `{"model":"m"}`, "model_deleted", nil)
	step("POST /runs/{id}/cancel", "/runs/run_active/cancel", "", "run_cancelled", nil)
	step("POST /keys", "/keys", `{"name":"ci","rpm":60}`, "key_created", &key)
	step("PATCH /keys/{id}", "/keys/ci", `{"rpm":120,"owner":"team-a"}`, "key_updated", nil)
	step("POST /keys/{id}/revoke", "/keys/ci/revoke", "", "key_revoked", nil)
	step("POST /join-tokens", "/join-tokens", `{"node":"n1"}`, "join_token_created", &token)
	step("POST /join-tokens/{id}/revoke", "/join-tokens/"+string(token.ID)+"/revoke", "", "join_token_revoked", nil)
	step("PUT /profiles/{profile}", "/profiles/openai", `{"header":"x-api-key","base_urls":["https://api.example.com"]}`, "profile_set", nil)
	step("PUT /slots/{slot}", "/slots/main", body(canary), "slot_set", nil)
	if next, err := state.NewMasterKey(); err != nil {
		t.Fatal(err)
	} else if err := d.store.UseMasterKey(next, former); err != nil {
		t.Fatal(err)
	}
	step("POST /master-keys/rewrap", "/master-keys/rewrap", "", "slot_rewrapped", nil)
	step("POST /slots/{slot}/rotate", "/slots/main/rotate", `{"value":"`+canary+`2"}`, "slot_rotated", nil)
	step("POST /slots/{slot}/disable", "/slots/main/disable", "", "slot_disabled", nil)
	step("POST /slots/{slot}/enable", "/slots/main/enable", "", "slot_enabled", nil)
	step("POST /slots/{slot}/revoke", "/slots/main/revoke", `{}`, "slot_revoked", nil)
	step("DELETE /slots/{slot}", "/slots/main", "", "slot_deleted", nil)
	step("DELETE /profiles/{profile}", "/profiles/openai", "", "profile_deleted", nil)
	step("PUT /node-list/allowed/{node}", "/node-list/allowed/n1", `{"slots":["*"],"profiles":["*"]}`, "node_allowed", nil)
	step("DELETE /node-list/allowed/{node}", "/node-list/allowed/n1", "", "node_disallowed", nil)
	step("PUT /node-list/denied/nodes/{node}", "/node-list/denied/nodes/n2", "", "node_denied", nil)
	step("DELETE /node-list/denied/nodes/{node}", "/node-list/denied/nodes/n2", "", "node_undenied", nil)
	step("PUT /node-list/denied/certificates/{serial}", "/node-list/denied/certificates/0a", "", "node_denied", nil)
	step("DELETE /node-list/denied/certificates/{serial}", "/node-list/denied/certificates/0a", "", "node_undenied", nil)
	step("POST /signing-key/rotate", "/signing-key/rotate", "", "signing_key_rotated", nil)
	step("DELETE /signing-key/{id}", "/signing-key/k1", "", "signing_key_revoked", nil)
	step("POST /config/reload", "/config/reload", "", "routes_reloaded", nil)

	for _, operation := range admin.Endpoints() {
		if !strings.HasPrefix(operation, "GET ") && walked[operation] == slices.Contains(readOnly, operation) {
			t.Errorf("%s: is it a change? It is to be walked here or to be readOnly", operation)
		}
	}
	text, err := json.Marshal(d.newest())
	if err != nil {
		t.Fatal(err)
	}
	for what, secret := range map[string]string{"key": key.Key, "join token": token.Token, "value": canary, "admin token": d.token} {
		if secret == "" || strings.Contains(string(text), secret) {
			t.Errorf("the %s is in the audit", what)
		}
	}
}

// TestAuditOfAKey: its entries say which key by id and name, and what was changed; they are found by either.
func TestAuditOfAKey(t *testing.T) {
	d := newDesk(t)
	d.makeKeys()
	d.must(nil, "PATCH", v1+"/keys/k1", `{"name":"ci","rpm":60,"owner":"team, \"a\""}`)
	d.must(nil, "PATCH", v1+"/keys/ci", `{"rpm":60}`) // as it is
	d.must(nil, "POST", v1+"/keys/ci/revoke", "")
	d.must(nil, "POST", v1+"/keys/ci/revoke", "") // again
	for _, key := range []string{"ci", string(d.edge.k1)} {
		var page admin.AuditPage
		d.must(&page, "GET", v1+"/audit"+query("key", key), "")
		var got []string
		for _, e := range slices.Backward(page.Data) {
			got = append(got, strings.TrimSpace(fmt.Sprint(e.Actor, " ", e.Action, " ", e.Subject, " ", e.Detail)))
			if e.Key != d.edge.k1 {
				t.Errorf("%+v", e)
			}
		}
		want := []string{
			"local key_created k1", `admin key_updated ci name "k1" -> "ci", owner "" -> "team, \"a\"", rpm 0 -> 60`, "admin key_revoked ci",
		}
		if !slices.Equal(got, want) {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
	d.refused(404, "not_found", "key", "GET", v1+"/audit?key=nobody", "")
}

// TestRefusedReloadIsAudited: an order that came to nothing was given all the same.
func TestRefusedReloadIsAudited(t *testing.T) {
	d := newDesk(t)
	d.edge.file = badConfig
	d.refused(422, "invalid_config", "", "POST", v1+"/config/reload", "")
	if e := d.newest()[0]; e.Action != state.AuditRoutesReloaded || e.Outcome != state.AuditRefused || e.Reason != "invalid_config" {
		t.Errorf("%+v", e)
	}
}

// TestWrongTokensAreAudited: wrong admin tokens are in the audit with where they came from, and however many come, the
// entries are few.
func TestWrongTokensAreAudited(t *testing.T) {
	d := newDesk(t)
	handler := d.server.Config.Handler
	for i := range 200 {
		r := httptest.NewRequest("GET", v1+"/status", nil)
		r.RemoteAddr = fmt.Sprintf("[2001:db8::%x]:4711", i+1)
		r.Header.Set("Authorization", "Bearer "+canary)
		handler.ServeHTTP(httptest.NewRecorder(), r)
	}
	entries := d.newest()
	if len(entries) == 0 || len(entries) > 11 {
		t.Fatalf("%d entries", len(entries))
	}
	for _, e := range entries {
		if e.Action != state.AuditAdminRefused || e.Outcome != state.AuditRefused || e.Actor != state.ActorUnknown ||
			!strings.HasPrefix(e.Source, "2001:db8::") || strings.Contains(fmt.Sprintf("%+v", e), canary) {
			t.Errorf("%+v", e)
		}
	}
	without := httptest.NewRequest("GET", v1+"/status", nil) // that is no guess
	handler.ServeHTTP(httptest.NewRecorder(), without)
	if now := d.newest(); len(now) != len(entries) {
		t.Errorf("a request without a token: %+v", now[0])
	}
}
