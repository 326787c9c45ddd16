package admin_test

import (
	"strings"
	"testing"
)

// TestBodyFaultsNameTheMember holds that whoever sends a wrong body learns which member is wrong and what it must be,
// in words that are not Go's.
func TestBodyFaultsNameTheMember(t *testing.T) {
	d := newDesk(t)
	for _, c := range []struct{ path, body, param, says string }{
		{"/keys", `{"name":5}`, "name", "must be a string, not 5"},
		{"/keys", `{"name":"a","rpm":"x"}`, "rpm", `must be a whole number below 2^63, not "x"`},
		{"/keys", `{"name":"a","rpm":1.5}`, "rpm", "not 1.5"},
		{"/keys", `{"name":"a","rpm":9223372036854775808}`, "rpm", "below 2^63"},
		{"/keys", `{"name":"a","routes":"x"}`, "routes", "must be a list, each entry a string"},
		{"/keys", `{"name":"a","routes":[5]}`, "routes", "each entry a string, not [5]"},
		{"/keys", `{"name":"a","expires":"soon"}`, "expires", "must be a time such as"},
		{"/keys", `{"name":"a","bogus":1}`, "bogus", "allowed: concurrency, expires, monthly_tokens, name"},
		{"/keys", `{"name":"a","":1}`, "", `unknown member ""`},
		{"/keys", `{"name":"a","rpm":60,"rpm":0}`, "rpm", "is given twice"},
		{"/keys", `{"name":"a","RPM":60}`, "RPM", `unknown member "RPM"`},
		{"/keys", `["a"]`, "", "must be a JSON object"},
		{"/keys", `"` + strings.Repeat("x", 1000) + `"`, "", "must be a JSON object"},
		{"/keys", `{"name":["` + strings.Repeat("x", 1000) + `"]}`, "name", "not what was given"},
		{"/keys", ` `, "", "the body is empty"},
		{"/keys", `{"name":"a"`, "", "not valid JSON"},
		{"/keys", `{"name":"a"} {}`, "", "not valid JSON"},
		{"/join-tokens", `{"node":5}`, "node", "must be a string"},
		{"/join-tokens", `{"ttl_seconds":1e12}`, "ttl_seconds", "not 1e12"},
		{"/slots/s/revoke", `{"needs_provider_rotation":"yes"}`, "needs_provider_rotation", "must be true or false"},
	} {
		got := d.refused(400, "invalid_request", c.param, "POST", v1+c.path, c.body)
		if !strings.Contains(got.Message, c.says) || strings.Contains(got.Message, "Go ") || len(got.Message) > 400 {
			t.Errorf("%s %.80s: %s", c.path, c.body, got.Message)
		}
	}
	for path, body := range map[string]string{
		"/slots/s": `{"profile":"p","value":5551234}`, "/slots/t": `{"profile":"p","value":"v","5551234":1}`,
		"/slots/u": `{"profile":"p","value":"5551234","value":"5551234"}`, "/slots/v": `{"profile":"p","Value":"5551234"}`,
	} {
		param := map[string]string{"/slots/s": "value", "/slots/u": "value"}[path]
		if got := d.refused(400, "invalid_request", param, "PUT", v1+path, body); strings.Contains(got.Message, "5551234") {
			t.Errorf("%s repeats what may be a secret: %s", path, got.Message)
		}
	}
	large := `{"name":"` + strings.Repeat("x", 70<<10) + `"}`
	d.refused(413, "body_too_large", "", "POST", v1+"/keys", large)
}
