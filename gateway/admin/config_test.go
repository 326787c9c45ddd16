package admin_test

import (
	"errors"
	"slices"
	"testing"

	"iop/gateway/admin"
	"iop/gateway/route"
	"iop/state"
)

const (
	goodConfig = "routes:\n  - model: chat\n    targets: [{model: m}]\n"
	badConfig  = "routes:\n  - model: chat\n    policy: bad\n"
)

func TestReload(t *testing.T) {
	d := newDesk(t)
	d.refused(409, "no_config_file", "", "POST", v1+"/config/reload", "")
	var c admin.Configuration
	d.must(&c, "GET", v1+"/config", "")
	if c.Path != "" || c.AdvertisedModels != "serve" || len(c.Table) != 0 {
		t.Errorf("without a file: %+v", c)
	}
	d.edge.file = goodConfig
	d.must(&c, "POST", v1+"/config/reload", "")
	if c.Path != "iop.yaml" || c.AdvertisedModels != "serve" || len(c.Table) != 1 || c.Table[0].Name != "chat" || c.Digest == "" || len(c.Coverage.Missing) != 1 {
		t.Errorf("with a file: %+v", c)
	}
	digest := c.Digest
	d.edge.file = badConfig
	refused := d.refused(422, "invalid_config", "", "POST", v1+"/config/reload", "")
	if len(refused.Faults) != 1 || refused.Faults[0].Line != 3 || refused.Faults[0].Path == "" {
		t.Errorf("told %+v", refused)
	}
	d.must(&c, "GET", v1+"/config", "")
	if c.Digest != digest || len(c.Table) != 1 || c.Fault == nil || len(c.Fault.Faults) != 1 {
		t.Errorf("after a bad file: %+v", c)
	}
	d.edge.unread = errors.New("open iop.yaml: permission denied")
	if e := d.refused(422, "invalid_config", "", "POST", v1+"/config/reload", ""); e.Message != "open iop.yaml: permission denied" {
		t.Errorf("told %q", e.Message)
	}
}

// TestDoubtfulNamesAreListed: principals that no live key has, in a file that is right otherwise.
func TestDoubtfulNamesAreListed(t *testing.T) {
	d := newDesk(t)
	const file = "routes:\n  - {model: chat, principals: [anna, team-q, 'team-?', gone, late, 'none*']}\n"
	var c admin.Configuration
	d.must(&c, "POST", v1+"/config/check", file, yaml)
	if len(c.Coverage.Absent) != 0 {
		t.Errorf("without keys: %+v", c.Coverage.Absent)
	}
	made := map[string]state.KeyID{}
	for name, owner := range map[string]string{"anna": "", "a1": "team-a", "g1": "gone"} {
		key, _, err := d.store.CreateKey(t.Context(), state.KeySpec{Name: name, Owner: owner})
		if err != nil {
			t.Fatal(err)
		}
		made[name] = key.ID
	}
	if err := d.store.RevokeKey(t.Context(), made["g1"], "test"); err != nil {
		t.Fatal(err)
	}
	d.must(&c, "POST", v1+"/config/check", file, yaml)
	want := []admin.AbsentPrincipal{
		{Route: "chat", Principal: "anna", Key: "key:" + string(made["anna"])}, {Route: "chat", Principal: "team-q", Similar: "team-a"},
		{Route: "chat", Principal: "gone"}, {Route: "chat", Principal: "late"}, {Route: "chat", Principal: "none*"},
	}
	if !slices.Equal(c.Coverage.Absent, want) {
		t.Errorf("got %+v, want %+v", c.Coverage.Absent, want)
	}
}

// TestSlotsThatDoNotExistAreListed: a mistyped slot would have each run of its target fail.
func TestSlotsThatDoNotExistAreListed(t *testing.T) {
	const file = "routes:\n  - {model: chat, targets: [{model: m, slot: openia}, {model: n, slot: openia}]}\n  - {model: other, targets: [{model: m, slot: openai}, {model: m}]}\n"
	table, err := route.Parse("iop.yaml", []byte(file), route.Managed(true))
	if err != nil {
		t.Fatal(err)
	}
	want := []admin.AbsentSlot{{Route: "chat", Slot: "openia", Similar: "openai"}}
	if got := admin.AbsentSlots(table, []state.Slot{{Name: "main"}, {Name: "openai"}}); !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := admin.AbsentSlots(table, nil); len(got) != 2 || got[0].Similar != "" {
		t.Errorf("without slots: %+v", got)
	}
}

func TestCheckAppliesNothing(t *testing.T) {
	d := newDesk(t)
	var c admin.Configuration
	d.must(&c, "POST", v1+"/config/check", goodConfig, yaml)
	if len(c.Table) != 1 || len(c.Table[0].Groups) != 1 || c.Routes != 1 {
		t.Errorf("checked: %+v", c)
	}
	if e := d.refused(422, "invalid_config", "", "POST", v1+"/config/check", badConfig, yaml); len(e.Faults) != 1 {
		t.Errorf("told %+v", e)
	}
	d.must(&c, "GET", v1+"/config", "")
	if len(c.Table) != 0 || c.Fault != nil {
		t.Errorf("it was applied: %+v", c)
	}
}
