package main

import (
	"strings"
	"testing"
	"time"

	"iop/gateway/admin"
	"iop/lease"
)

// TestSigningKeyOrder: an order to an Edge that has just started stands, is shown, and is the same when it is repeated.
func TestSigningKeyOrder(t *testing.T) {
	c := newCertified(t)
	c.startEdge(c.edgeFlags()...)
	var before, after admin.SigningKeys
	c.ask(&before, "signing-key", "show")
	if len(before.Keys) != 2 || before.Keys[0].Role != lease.KeyCurrent || before.Keys[1].Role != lease.KeyNext || before.Keys[1].UsableFrom == nil {
		t.Fatalf("%+v", before)
	}
	usable := *before.Keys[1].UsableFrom
	if !before.Rotates.After(usable) || usable.Sub(before.Keys[1].Announced) != lease.PublishAhead {
		t.Errorf("the next key may sign from %s on, and will from %s on", usable, before.Rotates)
	}
	for range 2 {
		var order admin.SigningKeyRotation
		c.ask(&order, "signing-key", "rotate")
		if order.State != admin.Pending || order.Until == nil || !order.Until.Equal(usable) {
			t.Errorf("%+v", order)
		}
	}
	c.ask(&after, "signing-key", "show")
	if !after.Rotates.Equal(usable) || after.Keys[0].ID != before.Keys[0].ID {
		t.Errorf("after the order %+v", after)
	}
	if out := c.must("signing-key", "rotate"); !strings.HasPrefix(out, "pending: the key "+string(before.Keys[1].ID)) {
		t.Errorf("rotate: %s", out)
	}
}

// TestSigningKeyRevoked: the next key signs at once, an order of before has gone with the key, and an unknown id is told.
func TestSigningKeyRevoked(t *testing.T) {
	c := newCertified(t)
	c.startEdge(c.edgeFlags()...)
	var before, after admin.SigningKeys
	c.ask(&before, "signing-key", "show")
	c.ask(&after, "signing-key", "revoke", string(before.Keys[0].ID))
	if after.Keys[0].ID != before.Keys[1].ID || after.Keys[1].ID == before.Keys[1].ID || len(after.Keys) != 2 {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if out := c.try(exitFailed, "signing-key", "revoke", string(before.Keys[0].ID)); !strings.Contains(out, "no such signing key") {
		t.Errorf("a second time: %s", out)
	}
	if out := c.must("signing-key", "revoke", string(after.Keys[1].ID)); !strings.HasPrefix(out, "revoked: the key "+string(after.Keys[0].ID)+" signs") {
		t.Errorf("the next key: %s", out)
	}
}

// TestSigningKeyNeedsAnEdge: the keys are in the memory of an Edge in managed mode, and nowhere else.
func TestSigningKeyNeedsAnEdge(t *testing.T) {
	v := newVault(t, true)
	for _, verb := range []string{"rotate", "show"} {
		if out := v.try(exitFailed, "signing-key", verb); !strings.Contains(out, "token mode") {
			t.Errorf("%s in token mode: %s", verb, out)
		}
	}
	t.Setenv("IOP_ADMIN_URL", "http://127.0.0.1:1")
	if out := v.try(exitFailed, "signing-key", "rotate"); !strings.Contains(out, "no Edge is running") {
		t.Errorf("without an Edge: %s", out)
	}
}

func TestSigningKeyTable(t *testing.T) {
	now := time.Now()
	at := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	soon := at.Add(-time.Hour)
	keys := admin.SigningKeys{Rotates: at, Keys: []admin.SigningKey{
		{ID: "a", Role: lease.KeyCurrent, Announced: now.Add(-26 * time.Hour)}, {ID: "b", Role: lease.KeyNext, Announced: now.Add(-time.Hour), UsableFrom: &soon},
		{ID: "c", Role: lease.KeyFormer, Announced: now.Add(-72 * time.Hour), VerifiesUntil: &soon},
	}}
	newFakeAdmin(t, map[string]any{"/admin/v1/signing-key": keys, "/admin/v1/signing-key/rotate": admin.SigningKeyRotation{State: admin.Done, SigningKeys: keys}})
	shows(t, "signing-key show", `
ID  ROLE     ANNOUNCED  USE
a   current  26h        signs until 2026-11-29T12:00:00Z
b   next     1h         signs from 2026-11-29T12:00:00Z on, may from 2026-11-29T11:00:00Z on
c   former   3d         verifies until 2026-11-29T11:00:00Z`)
	shows(t, "signing-key rotate", "done: the key a signs leases")
}
