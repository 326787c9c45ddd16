package state

import (
	"context"
	"sync/atomic"
	"testing"
	"time"
)

// leaseFacts is what a leased run asks, as text: "key node credential".
func leaseFacts(t testing.TB, s *Store, m Moment, key KeyID) string {
	t.Helper()
	ctx := context.Background()
	text := "key"
	switch k, err := s.KeyAt(ctx, m, key); {
	case err != nil || !k.RevokedAt.IsZero():
		text = "no key"
	case !k.Expires.IsZero():
		text = "key with an end"
	}
	if allow, err := s.NodeAllowedAt(ctx, m, "n", testSerial); err != nil || !allow.Allows("bearer", "s") {
		text += ", no node"
	}
	credential, err := s.OpenCredentialAt(ctx, m, "s")
	if err != nil {
		return text + ", no credential"
	}
	return text + ", " + credential.Secret.Reveal() + " for " + credential.Profile.BaseURLs[0]
}

// What one process changes, another one that knows the state by heart answers at once: no revoked key, slot or Node gets
// a lease once the change was made. It fails where a Moment is kept for longer than one question, or where what was
// learned is given out for another Moment.
func TestMomentSeesOtherProcesses(t *testing.T) {
	url := fileURL(t)
	s, master := openVault(t, url)
	other := openURL(t, url)
	if err := other.UseMasterKey(master); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	key, _ := createKey(t, s, KeySpec{Name: "k"})
	node := NodeAllow{Node: "n", Profiles: []string{"*"}, Slots: []string{"s"}}
	for _, step := range []struct {
		name string
		do   func(s *Store) error
		want string
	}{
		{"set", func(s *Store) error {
			setSlot(t, s, "s", "value")
			_, err := s.AllowNode(ctx, node, "ops")
			return err
		}, "key, value for https://api.example.com"},
		{"rotate", func(s *Store) error { _, err := s.RotateSlot(ctx, "s", NewSecret("two"), "ops"); return err }, "key, two for https://api.example.com"},
		{"disable", func(s *Store) error { _, err := s.DisableSlot(ctx, "s", "ops"); return err }, "key, no credential"},
		{"enable", func(s *Store) error { _, err := s.EnableSlot(ctx, "s", "ops"); return err }, "key, two for https://api.example.com"},
		{"profile", func(s *Store) error {
			_, err := s.SetProfile(ctx, Profile{Name: "bearer", Header: HeaderAPIKey, BaseURLs: []string{"https://other"}}, "ops")
			return err
		}, "key, two for https://other"},
		{"deny a certificate", func(s *Store) error { return s.DenyNode(ctx, Denial{Serial: testSerial}, "ops") }, "key, no node, two for https://other"},
		{"undeny", func(s *Store) error { return s.UndenyNode(ctx, Denial{Serial: testSerial}, "ops") }, "key, two for https://other"},
		{"deny a node", func(s *Store) error { return s.DenyNode(ctx, Denial{Node: "n"}, "ops") }, "key, no node, two for https://other"},
		{"undeny it", func(s *Store) error { return s.UndenyNode(ctx, Denial{Node: "n"}, "ops") }, "key, two for https://other"},
		{"disallow", func(s *Store) error { return s.DisallowNode(ctx, "n", "ops") }, "key, no node, two for https://other"},
		{"allow", func(s *Store) error { _, err := s.AllowNode(ctx, node, "ops"); return err }, "key, two for https://other"},
		{"give the key an end", func(s *Store) error {
			later := time.Now().Add(time.Hour)
			_, err := s.UpdateKey(ctx, key.ID, KeyChange{Expires: &later})
			return err
		}, "key with an end, two for https://other"},
		{"and none", func(s *Store) error {
			_, err := s.UpdateKey(ctx, key.ID, KeyChange{Expires: new(time.Time)})
			return err
		}, "key, two for https://other"},
		{"revoke the key", func(s *Store) error { return s.RevokeKey(ctx, key.ID, "ops") }, "no key, two for https://other"},
		{"revoke the slot", func(s *Store) error { _, err := s.RevokeSlot(ctx, "s", false, "ops"); return err }, "no key, no credential"},
		{"set again", func(s *Store) error { setSlot(t, s, "s", "three"); return nil }, "no key, three for https://other"},
		{"delete", func(s *Store) error { _, err := s.DeleteSlot(ctx, "s", "ops"); return err }, "no key, no credential"},
	} {
		before := s.Moment(ctx)
		leaseFacts(t, s, before, key.ID) // learn
		if err := step.do(other); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		after := s.Moment(ctx)
		if after == before || after == (Moment{}) {
			t.Errorf("%s: the moment is still %v", step.name, after)
		}
		for _, m := range []Moment{after, {}, s.Moment(ctx)} {
			if got := leaseFacts(t, s, m, key.ID); got != step.want {
				t.Errorf("%s: %q as of %v, want %q", step.name, got, m, step.want)
			}
		}
	}
}

// A Store sees its own changes, also where no Moment can be had.
func TestMomentSeesOwnChanges(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		key, _ := createKey(t, s, KeySpec{Name: "k"})
		if k, err := s.KeyAt(t.Context(), s.Moment(t.Context()), key.ID); err != nil || !k.RevokedAt.IsZero() {
			t.Fatalf("%+v, %v", k, err)
		}
		if err := s.RevokeKey(t.Context(), key.ID, "ops"); err != nil {
			t.Fatal(err)
		}
		if k, err := s.KeyAt(t.Context(), s.Moment(t.Context()), key.ID); err != nil || k.RevokedAt.IsZero() {
			t.Errorf("%+v, %v", k, err)
		}
	})
}

// What was learned costs no look-up until somebody writes, and is not mixed up when the connection that Moments are read
// on is another one, which counts anew.
func TestMomentSparesLookUps(t *testing.T) {
	s, _ := openVault(t, fileURL(t))
	key, _ := createKey(t, s, KeySpec{Name: "k"})
	var lookUps atomic.Int64
	s.Observe(func(bool, time.Duration) { lookUps.Add(1) })
	first := s.Moment(t.Context())
	for range 10 {
		leaseFacts(t, s, s.Moment(t.Context()), key.ID)
	}
	// Two of the three found nothing, which is not learned.
	if n := lookUps.Load(); n != 1+2*10 {
		t.Errorf("%d look-ups", n)
	}
	s.db.versions.mu.Lock()
	s.db.versions.dropLocked()
	s.db.versions.mu.Unlock()
	if m := s.Moment(t.Context()); m == first || m == (Moment{}) {
		t.Errorf("after another connection: %v", m)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if m := s.Moment(cancelled); m != (Moment{}) {
		t.Errorf("a cancelled context gets %v", m)
	}
}

// What is learned is bounded.
func TestLearnedIsBounded(t *testing.T) {
	var l learned[int, int]
	for i := range 3 * maxLearned {
		if n, err := l.get(Moment{1, 1}, i, func() (int, error) { return i, nil }); n != i || err != nil {
			t.Fatalf("%d, %v", n, err)
		}
		if len(l.values) > maxLearned {
			t.Fatalf("%d values", len(l.values))
		}
	}
}

// BenchmarkLeaseFacts is what a leased run asks of the state.
func BenchmarkLeaseFacts(b *testing.B) {
	s, _ := openVault(b, fileURL(b))
	key, _ := createKey(b, s, KeySpec{Name: "k"})
	setSlot(b, s, "s", "value")
	if _, err := s.AllowNode(b.Context(), NodeAllow{Node: "n", Profiles: []string{"*"}, Slots: []string{"s"}}, "ops"); err != nil {
		b.Fatal(err)
	}
	for name, moment := range map[string]func() Moment{
		"quiet":   func() Moment { return s.Moment(b.Context()) },
		"written": func() Moment { return Moment{} },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				leaseFacts(b, s, moment(), key.ID)
			}
		})
	}
}
