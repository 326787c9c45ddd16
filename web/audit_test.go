package web_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"iop/state"
)

// TestConsoleIsAudited holds that what is done in the console is in the audit as the console's, with the browser's address
// and the session, from the sign-in to the sign-out; and that nobody finds a session by what the audit says of it.
func TestConsoleIsAudited(t *testing.T) {
	r := newRig(t)
	r.post("/admin/sign-in", url.Values{"token": {"adm-iop_wrong"}})
	r.signIn()
	if made := r.post("/admin/keys", url.Values{"name": {"alice"}}); made.status != http.StatusOK {
		t.Fatalf("%d %s", made.status, made.body)
	}
	r.follow(r.post("/admin/keys/alice/revoke", url.Values{}), "revoked")
	r.post("/admin/join-tokens", url.Values{"node": {"gpu-3"}})
	page := r.get("/admin/audit?actor=console")
	filtered := r.get("/admin/audit?source=127.0.0.1&key=alice")
	for _, want := range []string{`name="source" value="127.0.0.1"`, `name="key" value="alice"`, ">key_revoked</th>"} {
		if !strings.Contains(filtered.body, want) || strings.Contains(filtered.body, ">join_token_created</th>") {
			t.Errorf("the filtered page lacks %s, or shows too much:\n%s", want, filtered.body)
		}
	}
	at, err := url.Parse(r.admin + "/admin/")
	if err != nil {
		t.Fatal(err)
	}
	cookies := r.client.Jar.Cookies(at)
	r.post("/admin/sign-out", url.Values{})
	entries, _, err := r.store.AuditEntries(t.Context(), state.AuditQuery{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	sessions := map[string]bool{}
	for _, e := range slices.Backward(entries) {
		got = append(got, strings.TrimSpace(fmt.Sprint(e.Actor, " ", e.Action, " ", e.Source, " ", e.Outcome, " ", e.Subject, e.Node)))
		sessions[e.Session] = true
	}
	want := []string{
		"unknown sign_in_refused 127.0.0.1 refused", "console signed_in 127.0.0.1 done", "console key_created 127.0.0.1 done alice",
		"console key_revoked 127.0.0.1 done alice", "console join_token_created 127.0.0.1 done gpu-3", "console signed_out 127.0.0.1 done",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	delete(sessions, "")
	if len(sessions) != 1 || len(cookies) != 1 {
		t.Errorf("the sessions %v", sessions)
	}
	for session := range sessions {
		for _, cookie := range cookies {
			if strings.Contains(strings.ToLower(cookie.Value), session) {
				t.Error("the session's name is a part of its secret")
			}
		}
		if !strings.Contains(page.body, "session "+session) || !strings.Contains(page.body, ">join_token_created</th>") {
			t.Errorf("the page shows\n%s", page.body)
		}
	}
}
