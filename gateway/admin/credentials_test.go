package admin_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"iop/gateway/admin"
	"iop/gateway/credential"
	"iop/lease"
	"iop/state"
)

// canary is a provider's secret that no answer and no log line may repeat.
const canary = "sk-canary-8c1f"

// newVault is a desk whose Edge has a master key, and one profile.
func newVault(t *testing.T) *desk {
	t.Helper()
	d := newDesk(t)
	d.useMasterKeys(1)
	d.must(nil, "PUT", v1+"/profiles/openai", `{"header":"authorization-bearer","base_urls":["https://api.example.com/v1/"]}`)
	return d
}

// useMasterKeys tells the store fresh master keys, the current one first, and returns them.
func (d *desk) useMasterKeys(n int) []state.MasterKey {
	d.t.Helper()
	keys := make([]state.MasterKey, n)
	for i := range keys {
		var err error
		if keys[i], err = state.NewMasterKey(); err != nil {
			d.t.Fatal(err)
		}
	}
	if err := d.store.UseMasterKey(keys[0], keys[1:]...); err != nil {
		d.t.Fatal(err)
	}
	return keys
}

// keepsQuiet fails if a value has got into the log or an answer.
func (d *desk) keepsQuiet(values ...string) {
	d.t.Helper()
	for _, value := range values {
		if strings.Contains(d.logs.String(), value) {
			d.t.Errorf("the log has %s:\n%s", value, d.logs)
		}
		for _, path := range []string{"/slots", "/slots/main", "/profiles", "/audit?limit=1000", "/master-keys", "/node-list"} {
			if a := d.ask("GET", v1+path, ""); strings.Contains(a.body, value) {
				d.t.Errorf("%s shows %s: %s", path, value, a.body)
			}
		}
	}
}

func body(value string) string { return fmt.Sprintf(`{"profile":"openai","value":%q}`, value) }

// TestSlotLife: made, rotated, disabled, enabled, revoked, given another value, removed; each answer says what became of
// the leases of before, and the value goes in and never comes out.
func TestSlotLife(t *testing.T) {
	d := newVault(t)
	path := v1 + "/slots/main"
	var change admin.SlotChange
	d.must(&change, "PUT", path, body(canary))
	first := change.Slot.Revision
	if change.State != admin.Done || change.Note != "" || !change.Slot.Usable || change.Slot.Profile != "openai" || first == 0 {
		t.Errorf("made %+v, %+v", change, change.Slot)
	}

	until := time.Now().Add(30 * time.Second).UTC().Truncate(time.Millisecond)
	d.edge.withdrawal = credential.Withdrawal{Leases: 2, Runs: 1, Until: until}
	d.must(&change, "POST", path+"/rotate", `{"value":"`+canary+`2"}`)
	if change.State != admin.Pending || change.Until == nil || !change.Until.Equal(until) || change.Leases != 2 || change.Runs != 1 || change.Slot.Revision <= first {
		t.Errorf("rotated %+v, %+v", change, change.Slot)
	}
	d.edge.withdrawal = credential.Withdrawal{Leases: 2}
	for _, step := range []struct {
		action, body   string
		usable, honest bool
	}{
		{"disable", "", false, true}, {"enable", "", true, false}, {"revoke", `{}`, false, true}, {"revoke", `{"needs_provider_rotation":true}`, false, true},
	} {
		change = admin.SlotChange{}
		d.must(&change, "POST", path+"/"+step.action, step.body)
		if change.State != admin.Done || change.Until != nil || change.Slot.Usable != step.usable || (change.Note == admin.ReleasedNote) != step.honest {
			t.Errorf("%s: %+v, %+v", step.action, change, change.Slot)
		}
	}
	if !change.Slot.NeedsProviderRotation {
		t.Errorf("not marked: %+v", change.Slot)
	}
	d.refused(409, "same_value", "value", "POST", path+"/rotate", `{"value":"`+canary+`2"}`)
	d.refused(409, "slot_unusable", "slot", "POST", path+"/enable", "")
	d.must(&change, "POST", path+"/rotate", `{"value":"`+canary+`3"}`)
	if s := change.Slot; !s.Usable || s.Revoked || s.NeedsProviderRotation {
		t.Errorf("with another value %+v", s)
	}
	d.keepsQuiet(canary)
	change = admin.SlotChange{}
	d.must(&change, "DELETE", path, "")
	if change.Slot != nil || change.Note != admin.ReleasedNote {
		t.Errorf("removed %+v", change)
	}
	d.refused(404, "not_found", "slot", "GET", path, "")
	if want := "profiles" + strings.Repeat(" slot main", 8); strings.Join(d.edge.told, " ") != want {
		t.Errorf("the Edge was told %q", d.edge.told)
	}
}

// TestSlotFaults: what is wrong is named, changes nothing, and repeats no value.
func TestSlotFaults(t *testing.T) {
	d := newVault(t)
	told := len(d.edge.told)
	for text, param := range map[string]string{
		body(""): "value", body(canary + "\n"): "value", body(canary + "é"): "value", body(strings.Repeat("x", 2049)): "value",
		`{"profile":"none","value":"` + canary + `"}`: "profile", `{"value":"` + canary + `"}`: "profile",
	} {
		d.refused(400, "invalid_request", param, "PUT", v1+"/slots/main", text)
	}
	for _, text := range []string{
		`{"` + canary + `":1}`, `{"profile":"openai","value":"` + canary,
		`"` + canary + `"`, body(canary) + canary, `{"profile":"openai","value":"\ud800` + canary + `"}x`,
	} {
		for _, ask := range [][2]string{{"PUT", "/slots/main"}, {"POST", "/slots/main/rotate"}} {
			if got := d.refused(400, "invalid_request", "", ask[0], v1+ask[1], text); strings.Contains(got.Message, "canary") {
				t.Errorf("%s: %s", text, got.Message)
			}
		}
	}
	got := d.refused(400, "invalid_request", "value", "PUT", v1+"/slots/main", `{"profile":"openai","value":["`+canary+`"]}`)
	if strings.Contains(got.Message, "canary") {
		t.Error(got.Message)
	}
	d.refused(400, "invalid_request", "slot", "PUT", v1+"/slots/a%20b", body(canary))
	d.refused(415, "unsupported_media_type", "", "PUT", v1+"/slots/main", body(canary), with("Content-Type", "text/plain"))
	d.refused(400, "unknown_parameter", "value", "PUT", v1+"/slots/main?value="+canary, body(canary))
	for _, action := range []string{"enable", "disable"} {
		d.refused(404, "not_found", "slot", "POST", v1+"/slots/none/"+action, "")
	}
	d.refused(404, "not_found", "slot", "POST", v1+"/slots/none/revoke", `{}`)
	d.refused(404, "not_found", "slot", "POST", v1+"/slots/none/rotate", `{"value":"`+canary+`"}`)
	d.refused(404, "not_found", "slot", "DELETE", v1+"/slots/none", "")
	if len(d.edge.told) != told {
		t.Errorf("the Edge was told %q", d.edge.told[told:])
	}
	d.keepsQuiet(canary)
}

// TestNoMasterKeyNoValue: without the key no value is taken.
func TestNoMasterKeyNoValue(t *testing.T) {
	d := newDesk(t)
	d.must(nil, "PUT", v1+"/profiles/openai", `{"header":"x-api-key","base_urls":["https://api.example.com"]}`)
	d.refused(409, "no_master_key", "", "PUT", v1+"/slots/main", body(canary))
	d.refused(409, "no_master_key", "", "POST", v1+"/master-keys/rewrap", "")
}

// TestNotTold: a change that the Edge can't act on is not answered as if it could.
func TestNotTold(t *testing.T) {
	d := newVault(t)
	d.must(nil, "PUT", v1+"/slots/main", body(canary))
	key, _, err := d.store.CreateKey(t.Context(), state.KeySpec{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	d.edge.toldErr = errors.New("the disk is gone")
	for _, ask := range [][3]string{
		{"POST", "/slots/main/disable", ""}, {"DELETE", "/slots/main", ""}, {"PUT", "/node-list/denied/nodes/n1", ""},
		{"PUT", "/profiles/openai", `{"header":"api-key","base_urls":["https://api.example.com"]}`}, {"POST", "/keys/" + string(key.ID) + "/revoke", ""},
	} {
		d.refused(500, "not_withdrawn", "", ask[0], v1+ask[1], ask[2])
	}
}

func TestProfiles(t *testing.T) {
	d := newVault(t)
	var profile admin.Profile
	d.must(&profile, "GET", v1+"/profiles/openai", "")
	if profile.Header != "authorization-bearer" || strings.Join(profile.BaseURLs, " ") != "https://api.example.com" || profile.By != "admin" {
		t.Errorf("%+v", profile)
	}
	for text, param := range map[string]string{
		`{"header":"cookie","base_urls":["https://a"]}`: "header", `{"header":"api-key","base_urls":[]}`: "base_urls",
		`{"header":"api-key","base_urls":["ftp://a"]}`: "base_urls",
	} {
		d.refused(400, "invalid_request", param, "PUT", v1+"/profiles/x", text)
	}
	d.must(nil, "PUT", v1+"/slots/main", body(canary))
	d.refused(409, "profile_in_use", "profile", "DELETE", v1+"/profiles/openai", "")
	d.must(nil, "DELETE", v1+"/slots/main", "")
	d.must(nil, "DELETE", v1+"/profiles/openai", "")
	d.refused(404, "not_found", "profile", "GET", v1+"/profiles/openai", "")
	d.refused(404, "not_found", "profile", "DELETE", v1+"/profiles/openai", "")
}

// TestNodeList: who may connect, who may not, and each change ends sessions.
func TestNodeList(t *testing.T) {
	d := newDesk(t)
	var change admin.NodesChange
	d.must(&change, "PUT", v1+"/node-list/allowed/gpu-3", `{"slots":["open*"],"profiles":["*"]}`)
	if change.SessionsEnded != 1 || change.Allowed == nil || change.Allowed.Node != "gpu-3" {
		t.Errorf("%+v", change)
	}
	d.must(nil, "PUT", v1+"/node-list/denied/nodes/gpu-4", "")
	d.must(nil, "PUT", v1+"/node-list/denied/certificates/0A:BC", "")
	var list admin.NodeList
	d.must(&list, "GET", v1+"/node-list", "")
	if len(list.Allowed) != 1 || list.Allowed[0].Slots[0] != "open*" || len(list.Denied) != 2 {
		t.Errorf("%+v", list)
	}
	d.must(nil, "DELETE", v1+"/node-list/allowed/gpu-3", "")
	d.must(nil, "DELETE", v1+"/node-list/denied/nodes/gpu-4", "")
	d.must(nil, "DELETE", v1+"/node-list/denied/certificates/abc", "")
	d.must(&list, "GET", v1+"/node-list", "")
	if len(list.Allowed)+len(list.Denied) != 0 || len(d.edge.told) != 6 {
		t.Errorf("%+v, told %q", list, d.edge.told)
	}
	d.refused(404, "not_found", "node", "DELETE", v1+"/node-list/allowed/gpu-3", "")
	d.refused(404, "not_found", "node", "DELETE", v1+"/node-list/denied/nodes/gpu-3", "")
	d.refused(404, "not_found", "serial", "DELETE", v1+"/node-list/denied/certificates/abc", "")
	d.refused(400, "invalid_request", "serial", "PUT", v1+"/node-list/denied/certificates/xyz", "")
	d.refused(400, "invalid_request", "node", "PUT", v1+"/node-list/allowed/a%20b", `{"slots":["*"],"profiles":["*"]}`)
	d.refused(400, "invalid_request", "slots", "PUT", v1+"/node-list/allowed/a", `{"slots":["[a]"],"profiles":["*"]}`)
}

// TestAudit: each change has a row, they come in pages, and filters select.
func TestAudit(t *testing.T) {
	d := newVault(t)
	d.must(nil, "PUT", v1+"/slots/main", body(canary))
	d.must(nil, "PUT", v1+"/slots/other", body(canary))
	d.must(nil, "POST", v1+"/slots/main/disable", "")
	entry := state.AuditEntry{
		Actor: "edge-1", Action: state.AuditLeaseIssued, Outcome: state.AuditDone, Lease: "l1", Run: "run_1", Attempt: 1, Principal: "team-a",
		Route: "chat", Slot: "main", Profile: "openai", Revision: 1, Node: "n1", Generation: 7, Target: "https://api.example.com", Expires: began,
	}
	if err := d.store.AuditLease(entry); err != nil {
		t.Fatal(err)
	}
	var page admin.AuditPage
	d.must(&page, "GET", v1+"/audit", "")
	if len(page.Data) != 5 || page.Next != "" {
		t.Fatalf("%+v", page)
	}
	var got []string
	for path := v1 + "/audit?limit=2"; ; path = v1 + "/audit" + query("limit", "2", "before", page.Next) {
		page = admin.AuditPage{}
		d.must(&page, "GET", path, "")
		for _, e := range page.Data {
			got = append(got, e.Action)
		}
		if page.Next == "" {
			break
		}
	}
	if len(got) != 5 || got[4] != "profile_set" {
		t.Errorf("in pages %q", got)
	}
	for filter, want := range map[string]int{
		"slot=main": 3, "action=slot_set,slot_disabled": 3, "action=lease_issued": 1, "lease=l1": 1, "run=run_1": 1, "node=n1": 1, "profile=openai": 5,
		"actor=admin": 4, "from=2099-01-01": 0, "to=2001-01-01": 0, "slot=other&action=slot_set": 1,
	} {
		d.must(&page, "GET", v1+"/audit?"+filter, "")
		if len(page.Data) != want {
			t.Errorf("%s: %d entries, want %d: %+v", filter, len(page.Data), want, page.Data)
		}
	}
	for filter, param := range map[string]string{
		"action=slot_eaten": "action", "limit=0": "limit", "limit=1001": "limit", "from=x": "from", "to=x": "to", "before=x": "before", "before=1.": "before",
	} {
		d.refused(400, "invalid_request", param, "GET", v1+"/audit?"+filter, "")
	}
	d.keepsQuiet(canary)
}

// TestRewrap: what an older key sealed is moved, and the ids tell it.
func TestRewrap(t *testing.T) {
	d := newVault(t)
	d.must(nil, "PUT", v1+"/slots/main", body(canary))
	d.useMasterKeys(1) // which can't open it
	var keys struct{ Data []admin.MasterKey }
	d.must(&keys, "GET", v1+"/master-keys", "")
	if len(keys.Data) != 2 || keys.Data[0].Known == keys.Data[1].Known {
		t.Errorf("%+v", keys.Data)
	}
	var moved admin.Rewrapped
	d.must(&moved, "POST", v1+"/master-keys/rewrap", "")
	if moved.Moved != 0 {
		t.Errorf("moved what can't be opened: %+v", moved)
	}
	d.refused(409, "slot_unusable", "slot", "PUT", v1+"/profiles/openai", `{"header":"api-key","base_urls":["https://api.example.com"]}`)

	d = newDesk(t)
	old := d.useMasterKeys(1)[0]
	d.must(nil, "PUT", v1+"/profiles/openai", `{"header":"api-key","base_urls":["https://api.example.com"]}`)
	d.must(nil, "PUT", v1+"/slots/main", body(canary))
	fresh := d.useMasterKeys(1)[0]
	if err := d.store.UseMasterKey(fresh, old); err != nil {
		t.Fatal(err)
	}
	d.must(&moved, "POST", v1+"/master-keys/rewrap", "")
	if moved.Moved != 1 || moved.MasterKey != fresh.ID() {
		t.Errorf("%+v", moved)
	}
	d.keepsQuiet(canary, fresh.Reveal(), old.Reveal())
}

func TestIdentity(t *testing.T) {
	d := newDesk(t)
	var got admin.Identity
	d.must(&got, "GET", v1+"/identity", "")
	if !got.Managed || got.ID != "spiffe://iop.example.org/edge/main" || got.Fault == "" || got.NotAfter == nil {
		t.Errorf("%+v", got)
	}
	d.edge.token = true
	if a := d.ask("GET", v1+"/identity", ""); a.body != "{\"managed\":false}\n" {
		t.Errorf("in token mode: %s", a.body)
	}
}

// TestSigningKey: an order that comes too early stands, and the answer says from when on.
func TestSigningKey(t *testing.T) {
	d := newDesk(t)
	var keys admin.SigningKeys
	d.must(&keys, "GET", v1+"/signing-key", "")
	if len(keys.Keys) != 3 || keys.Keys[1].Role != lease.KeyNext || keys.Keys[1].UsableFrom == nil || keys.Keys[0].UsableFrom != nil || keys.Keys[2].VerifiesUntil == nil {
		t.Errorf("%+v", keys)
	}
	var got admin.SigningKeyRotation
	d.must(&got, "POST", v1+"/signing-key/rotate", "")
	if got.State != admin.Done || got.Until != nil || len(got.Keys) != 3 || len(d.edge.told) != 1 {
		t.Errorf("%+v, told %q", got, d.edge.told)
	}
	d.edge.pending = began
	d.must(&got, "POST", v1+"/signing-key/rotate", "")
	if got.State != admin.Pending || got.Until == nil || !got.Until.Equal(began) {
		t.Errorf("%+v", got)
	}
	d.must(&keys, "DELETE", v1+"/signing-key/k2", "")
	if told := d.edge.told; len(keys.Keys) != 3 || told[len(told)-1] != "signing key k2" {
		t.Errorf("%+v, told %q", keys, told)
	}
	d.refused(404, "not_found", "id", "DELETE", v1+"/signing-key/k9", "")
	d.edge.token = true
	d.refused(409, "not_managed", "", "GET", v1+"/signing-key", "")
	d.refused(409, "not_managed", "", "POST", v1+"/signing-key/rotate", "")
	d.refused(409, "not_managed", "", "DELETE", v1+"/signing-key/k1", "")
}

// TestSlotsInRoutes: a file with slots is right in managed mode alone, and shows them.
func TestSlotsInRoutes(t *testing.T) {
	d := newDesk(t)
	const file = "routes:\n  - model: chat\n    targets: [{model: m, slot: main, profile: openai, base_url: \"https://api.example.com\"}]\n"
	var got admin.Configuration
	d.must(&got, "POST", v1+"/config/check", file, yaml)
	if to := got.Table[0].Groups[0].Targets[0]; to.Slot != "main" || to.Profile != "openai" || to.BaseURL != "https://api.example.com" {
		t.Errorf("%+v", to)
	}
	d.edge.token = true
	d.refused(422, "invalid_config", "", "POST", v1+"/config/check", file, yaml)
}

// TestRevokedKeysLeases: the answer to a revocation says what became of the leases of the key's runs.
func TestRevokedKeysLeases(t *testing.T) {
	d := newDesk(t)
	key, _, err := d.store.CreateKey(t.Context(), state.KeySpec{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	d.edge.withdrawal = credential.Withdrawal{Leases: 3, Runs: 2}
	var got admin.KeyRevocation
	d.must(&got, "POST", v1+"/keys/"+string(key.ID)+"/revoke", "")
	if got.ID != key.ID || got.State != admin.Done || got.Leases != 3 || got.Runs != 2 || len(d.edge.told) != 1 {
		t.Errorf("%+v, told %q", got, d.edge.told)
	}
}
