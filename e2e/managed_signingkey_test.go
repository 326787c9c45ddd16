package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// signingKeys is what iop signing-key prints.
type signingKeys struct {
	State   string
	Until   *time.Time
	Rotates time.Time
	Keys    []struct {
		ID, Role   string
		UsableFrom *time.Time `json:"usable_from"`
	}
}

func (m *managed) signingKey(t *testing.T, verb string) (keys signingKeys) {
	t.Helper()
	if err := json.Unmarshal([]byte(iop(t, m.env, "signing-key", verb, "--json")), &keys); err != nil {
		t.Fatal(err)
	}
	if len(keys.Keys) != 2 || keys.Keys[0].Role != "current" || keys.Keys[1].Role != "next" || keys.Keys[1].UsableFrom == nil {
		t.Fatalf("signing-key %s: %+v", verb, keys)
	}
	return keys
}

// TestManagedSigningKey orders another signing key under load. The next key is announced, and for ten minutes not used:
// that it is used then, and that no run fails over it, is TestSigningKeyRotatedUnderLoad's, where time is synthetic.
func TestManagedSigningKey(t *testing.T) {
	t.Parallel()
	m := newManaged(t, managedRoutes())
	m.join("gpu-1", "openai")
	l := newManagedLoad(m, 3, 2, 300)
	before := m.signingKey(t, "show")
	usable := *before.Keys[1].UsableFrom
	if !before.Rotates.After(usable.Add(time.Hour)) {
		t.Errorf("without an order the key changes at %s", before.Rotates)
	}
	order := m.signingKey(t, "rotate")
	if order.State != "pending" || order.Until == nil || !order.Until.Equal(usable) {
		t.Errorf("%+v", order)
	}
	l.goesOn(t)
	after := m.signingKey(t, "show")
	if !after.Rotates.Equal(usable) || after.Keys[0].ID != before.Keys[0].ID || after.Keys[1].ID != before.Keys[1].ID {
		t.Errorf("after the order %+v, before %+v", after, before)
	}
	if text := iop(t, m.env, "signing-key", "rotate"); !strings.HasPrefix(text, "pending: the key "+before.Keys[1].ID+" signs leases from ") {
		t.Error(text)
	}
	l.end(t, 60*time.Second)
	m.quiet()
	m.noFalseAlarm()
}
