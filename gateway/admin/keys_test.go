package admin_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"iop/gateway/admin"
	"iop/state"
)

// TestKeyLife: made, shown once, changed, revoked.
func TestKeyLife(t *testing.T) {
	d := newDesk(t)
	var made, got admin.Key
	d.must(&made, "POST", v1+"/keys", `{"name":"ci","owner":"team-a","routes":["m*"],"rpm":60,"tpm":1000,"concurrency":3,`+
		`"monthly_tokens":9,"weight":2,"priority":-5,"expires":"2099-01-01T00:00:00Z"}`)
	if !strings.HasPrefix(made.Key, "sk-iop_") || made.Principal != "team-a" || made.Weight != 2 || made.Priority != -5 || made.MonthlyTokens != 9 {
		t.Errorf("made %+v", made)
	}
	path := v1 + "/keys/" + string(made.ID)
	d.must(&got, "GET", path, "")
	if got.Key != "" || got.Use == nil || got.Use.Running != 1 || got.Use.Requests.Remaining != 59 || got.Use.Tokens != nil {
		t.Errorf("got %+v, use %+v", got, got.Use)
	}
	for _, text := range []string{d.ask("GET", v1+"/keys", "").body, d.ask("GET", path, "").body, d.logs.String()} {
		if strings.Contains(text, made.Key) {
			t.Errorf("the secret is shown again: %s", text)
		}
	}
	d.must(&got, "PATCH", path, `{"rpm":0,"owner":"","routes":[],"priority":100}`)
	if got.RPM != 0 || got.Principal != "key:"+string(made.ID) || len(got.Routes) != 0 || got.Priority != 100 || got.TPM != 1000 || got.Expires == nil {
		t.Errorf("changed to %+v", got)
	}
	d.must(&got, "PATCH", path, `{"expires":null}`)
	if got.Expires != nil {
		t.Errorf("it expires %v", got.Expires)
	}
	d.must(nil, "PATCH", path, `{}`)
	d.must(nil, "POST", path+"/revoke", "")
	d.must(&got, "GET", path, "")
	if got.Revoked == nil {
		t.Errorf("not revoked: %+v", got)
	}
}

// TestUnmatchedModels: who makes, changes or shows a key learns which of its models nothing has.
func TestUnmatchedModels(t *testing.T) {
	d := newDesk(t)
	var key admin.Key
	d.must(&key, "POST", v1+"/keys", `{"name":"ci","routes":["m*","mistyped"]}`)
	want := []admin.UnmatchedModel{{Pattern: "mistyped", Similar: "typed"}}
	if !slices.Equal(key.Unmatched, want) {
		t.Errorf("made: %+v", key.Unmatched)
	}
	path := v1 + "/keys/ci"
	for _, call := range [][2]string{{"PATCH", `{"routes":["mistyped"]}`}, {"GET", ""}} {
		key = admin.Key{}
		if d.must(&key, call[0], path, call[1]); !slices.Equal(key.Unmatched, want) {
			t.Errorf("%s: %+v", call[0], key.Unmatched)
		}
	}
	key = admin.Key{}
	if d.must(&key, "PATCH", path, `{"routes":["m"]}`); key.Unmatched != nil {
		t.Errorf("corrected: %+v", key.Unmatched)
	}
}

func TestKeyFaults(t *testing.T) {
	d := newDesk(t)
	for body, param := range map[string]string{
		`{"name":""}`: "name", `{"name":"x","rpm":-1}`: "rpm", `{"name":"x","owner":"key:a"}`: "owner",
		`{"name":"x","weight":1001}`: "weight", `{"name":"x","priority":101}`: "priority", `{"name":"x","monthly_tokens":-1}`: "monthly_tokens",
		`{"name":"x","expires":"2001-01-01T00:00:00Z"}`: "expires", `{"name":"x","routes":[""]}`: "routes",
	} {
		d.refused(400, "invalid_request", param, "POST", v1+"/keys", body)
	}
	key, _, err := d.store.CreateKey(t.Context(), state.KeySpec{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	path := v1 + "/keys/" + string(key.ID)
	for body, param := range map[string]string{`{"name":""}`: "name", `{"weight":0}`: "weight", `{"tpm":-1}`: "tpm"} {
		d.refused(400, "invalid_request", param, "PATCH", path, body)
	}
	d.refused(400, "invalid_request", "revoked", "PATCH", path, `{"revoked":null}`)
	d.refused(400, "invalid_request", "id", "PATCH", path, `{"id":"b"}`)
	for _, r := range [][2]string{{"GET", ""}, {"PATCH", `{}`}} {
		d.refused(404, "not_found", "id", r[0], v1+"/keys/none", r[1])
	}
	d.refused(404, "not_found", "id", "POST", v1+"/keys/none/revoke", "")
	d.refused(404, "not_found", "id", "POST", v1+"/join-tokens/none/revoke", "")
	d.refused(400, "invalid_request", "ttl_seconds", "POST", v1+"/join-tokens", `{"ttl_seconds":-1}`)
	d.refused(400, "invalid_request", "node", "POST", v1+"/join-tokens", `{"node":"a/b"}`)
}

// TestBudgetIsShown: what a key used this month stands beside its budget.
func TestBudgetIsShown(t *testing.T) {
	d := newDesk(t)
	key, _, err := d.store.CreateKey(t.Context(), state.KeySpec{Name: "a", MonthlyTokens: 100})
	if err != nil {
		t.Fatal(err)
	}
	record := usageRecord("run_1")
	record.Key, record.Started = key.ID, time.Now()
	record.Usage.Input, record.Usage.Output, record.Usage.Known = 30, 12, true
	if err := d.store.AddUsage(t.Context(), []state.UsageRecord{record}); err != nil {
		t.Fatal(err)
	}
	var got admin.Key
	d.must(&got, "GET", v1+"/keys/"+string(key.ID), "")
	if got.Use.MonthTokens != 42 {
		t.Errorf("%+v", got.Use)
	}
}
