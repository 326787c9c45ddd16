package state

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"iop/execution"
)

// openVault opens a Store that has a master key and the profiles "bearer" and "other".
func openVault(t testing.TB, url string) (*Store, MasterKey) {
	t.Helper()
	s, key := openURL(t, url), newTestKey(t)
	if err := s.UseMasterKey(key); err != nil {
		t.Fatal(err)
	}
	for _, name := range []execution.ProfileName{"bearer", "other"} {
		setProfile(t, s, Profile{Name: name, Header: HeaderAuthorizationBearer, BaseURLs: []string{"https://api.example.com"}})
	}
	return s, key
}

func setProfile(t testing.TB, s *Store, profile Profile) Profile {
	t.Helper()
	profile, err := s.SetProfile(context.Background(), profile, "ops")
	if err != nil {
		t.Fatal(err)
	}
	return profile
}

func setSlot(t testing.TB, s *Store, name execution.SlotName, value string) Slot {
	t.Helper()
	slot, err := s.SetSlot(context.Background(), SlotSpec{Slot: name, Profile: "bearer", Value: NewSecret(value)}, "ops")
	if err != nil {
		t.Fatal(err)
	}
	return slot
}

// opened returns "revision value", or the reason why there is none.
func opened(t testing.TB, s *Store, name execution.SlotName) string {
	t.Helper()
	credential, err := s.OpenCredential(context.Background(), name)
	if err != nil {
		if credential.Secret.Reveal() != "" {
			t.Error("an error and a value")
		}
		return reasonOf(t, err)
	}
	return fmt.Sprint(credential.Revision, " ", credential.Secret.Reveal())
}

func reasonOf(t testing.TB, err error) string {
	t.Helper()
	fault, ok := errors.AsType[*CredentialError](err)
	if !ok {
		t.Errorf("no CredentialError: %v", err)
		return ""
	}
	return fault.Reason.String()
}

func wantOpened(t testing.TB, s *Store, name execution.SlotName, want string) {
	t.Helper()
	if got := opened(t, s, name); got != want {
		t.Errorf("slot %s: %q, want %q", name, got, want)
	}
}

func TestSlotLifecycle(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		ctx := t.Context()
		if err := s.UseMasterKey(newTestKey(t)); err != nil {
			t.Fatal(err)
		}
		profile := setProfile(t, s, Profile{Name: "bearer", Header: HeaderXAPIKey, BaseURLs: []string{"https://API.example.com:443/v1/"}})
		first := setSlot(t, s, "openai", "value-1")
		want := Slot{Name: "openai", Profile: "bearer", Revision: 1, Enabled: true, MasterKey: s.masterKeys.Load().current.id,
			Updated: first.Updated, By: "ops"}
		if first != want || first.Updated.IsZero() {
			t.Errorf("%+v, want %+v", first, want)
		}
		credential, err := s.OpenCredential(ctx, "openai")
		if err != nil || credential.Slot != "openai" || credential.Revision != 1 || !reflect.DeepEqual(credential.Profile, profile) {
			t.Errorf("%+v, %v", credential, err)
		}
		step := func(revision execution.Revision, want string) func(Slot, error) {
			return func(slot Slot, err error) {
				t.Helper()
				stored, storedErr := s.Slot(ctx, "openai")
				if err != nil || storedErr != nil || slot != stored || slot.Revision != revision {
					t.Errorf("%+v, %v; stored %+v, %v; want revision %d", slot, err, stored, storedErr, revision)
				}
				wantOpened(t, s, "openai", want)
			}
		}
		step(2, "2 value-2")(s.RotateSlot(ctx, "openai", NewSecret("value-2"), "ops"))
		step(3, "disabled")(s.DisableSlot(ctx, "openai", "ops"))
		step(3, "disabled")(s.DisableSlot(ctx, "openai", "again"))
		step(4, "4 value-2")(s.EnableSlot(ctx, "openai", "ops"))
		step(4, "4 value-2")(s.EnableSlot(ctx, "openai", "again"))
		step(5, "disabled")(s.DisableSlot(ctx, "openai", "ops"))
		step(6, "disabled")(s.RotateSlot(ctx, "openai", NewSecret("value-3"), "ops")) // stays what it is
		step(7, "7 value-3")(s.EnableSlot(ctx, "openai", "ops"))
		step(8, "revoked")(s.RevokeSlot(ctx, "openai", false, "ops"))
		if _, err := s.EnableSlot(ctx, "openai", "ops"); reasonOf(t, err) != "revoked" {
			t.Errorf("enabling a revoked slot: %v", err)
		}
		step(9, "9 value-3")(s.RotateSlot(ctx, "openai", NewSecret("value-3"), "ops")) // revoked by mistake
		step(10, "revoked")(s.RevokeSlot(ctx, "openai", true, "ops"))
		step(10, "revoked")(s.RevokeSlot(ctx, "openai", false, "ops"))
		for _, set := range []func() (Slot, error){
			func() (Slot, error) { return s.RotateSlot(ctx, "openai", NewSecret("value-3"), "ops") },
			func() (Slot, error) {
				return s.SetSlot(ctx, SlotSpec{"openai", "bearer", NewSecret("value-3")}, "ops")
			},
		} {
			if _, err := set(); !errors.Is(err, ErrSameValue) {
				t.Errorf("the value that somebody knows: %v", err)
			}
		}
		step(11, "11 value-4")(s.RotateSlot(ctx, "openai", NewSecret("value-4"), "ops"))
		if slot, err := s.Slot(ctx, "openai"); err != nil || slot.Revoked || slot.NeedsProviderRotation {
			t.Errorf("%+v, %v", slot, err)
		}
		if revision, err := s.DeleteSlot(ctx, "openai", "ops"); err != nil || revision != 12 {
			t.Errorf("deleted at %d, %v", revision, err)
		}
		wantOpened(t, s, "openai", "unknown_slot")
		if revisions, err := s.SlotRevisions(ctx); err != nil || !maps.Equal(revisions, map[execution.SlotName]execution.Revision{"openai": 12}) {
			t.Errorf("%v, %v", revisions, err)
		}
		if again := setSlot(t, s, "openai", "value-5"); again.Revision != 13 {
			t.Errorf("made again at revision %d", again.Revision)
		}
		checkSlotAudit(t, s)
	})
}

// checkSlotAudit compares the audit with what TestSlotLifecycle did: each change once, what changed nothing not at all.
func checkSlotAudit(t *testing.T, s *Store) {
	t.Helper()
	entries, next, err := s.AuditEntries(t.Context(), AuditQuery{Slot: "openai"})
	if err != nil || next != (AuditCursor{}) {
		t.Fatal(err, next)
	}
	var got []string
	revision := execution.Revision(14)
	for _, e := range entries {
		got = append(got, e.Action.String())
		if revision--; e.Revision != revision || e.Actor != "ops" || e.Outcome != AuditDone || e.Profile != "bearer" || e.At.IsZero() {
			t.Errorf("%+v", e)
		}
	}
	slices.Reverse(got)
	want := "slot_set slot_rotated slot_disabled slot_enabled slot_disabled slot_rotated slot_enabled slot_revoked " +
		"slot_rotated slot_revoked slot_rotated slot_deleted slot_set"
	if text := strings.Join(got, " "); text != want {
		t.Errorf("audit %s\nwant  %s", text, want)
	}
}

func TestSlotFaults(t *testing.T) {
	s, _ := openVault(t, "sqlite::memory:")
	ctx := t.Context()
	long := strings.Repeat("x", maxCredential)
	setSlot(t, s, "ok", long)
	wantOpened(t, s, "ok", "1 "+long)
	setSlot(t, s, "ok", "!~")
	for field, spec := range map[string]SlotSpec{
		"slot":          {"", "bearer", NewSecret("v")},
		"slot ":         {"a b", "bearer", NewSecret("v")},
		"profile":       {"ok", "none", NewSecret("v")},
		"profile ":      {"ok", "", NewSecret("v")},
		"value":         {"ok", "bearer", Secret{}},
		"value ":        {"ok", "bearer", NewSecret(hidden + " ")},
		"value  ":       {"ok", "bearer", NewSecret(hidden + "\r\nX: y")},
		"value   ":      {"ok", "bearer", NewSecret(hidden + "é")},
		"value    ":     {"ok", "bearer", NewSecret(hidden + "\x7f")},
		"value     ":    {"ok", "bearer", NewSecret(hidden + long)},
		"value      ":   {"ok", "bearer", NewSecret("\n")},
		"value       ":  {"ok", "bearer", NewSecret(hidden + "\x00")},
		"value        ": {"ok", "bearer", NewSecret(hidden + "\n")},
	} {
		_, err := s.SetSlot(ctx, spec, "ops")
		if fault, ok := errors.AsType[*SpecError](err); !ok || fault.Field != strings.TrimSpace(field) {
			t.Errorf("%s: %v", field, err)
		}
		if err != nil && leaks(err.Error()) {
			t.Errorf("the error shows the value: %v", err)
		}
	}
	for _, by := range []string{"", "a\nb"} {
		if _, err := s.DisableSlot(ctx, "ok", by); err == nil {
			t.Errorf("by %q", by)
		}
	}
	wantOpened(t, s, "ok", "2 !~") // nothing of it changed anything
	for name, do := range map[string]func() error{
		"rotate":  func() error { _, err := s.RotateSlot(ctx, "none", NewSecret("v"), "ops"); return err },
		"disable": func() error { _, err := s.DisableSlot(ctx, "none", "ops"); return err },
		"enable":  func() error { _, err := s.EnableSlot(ctx, "none", "ops"); return err },
		"revoke":  func() error { _, err := s.RevokeSlot(ctx, "none", true, "ops"); return err },
		"delete":  func() error { _, err := s.DeleteSlot(ctx, "none", "ops"); return err },
		"slot":    func() error { _, err := s.Slot(ctx, "none"); return err },
		"open":    func() error { _, err := s.OpenCredential(ctx, "none"); return err },
	} {
		if err := do(); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s of no slot: %v", name, err)
		}
	}
}

// Without the right master key nothing comes out and nothing goes in, but what only stops things still works.
func TestNoMasterKeyFailsClosed(t *testing.T) {
	url := fileURL(t)
	s, right := openVault(t, url)
	setSlot(t, s, "a", "value")
	ctx := t.Context()

	copied := openURL(t, url) // as somebody who has the file
	wantOpened(t, copied, "a", "no_master_key")
	if _, err := copied.SetSlot(ctx, SlotSpec{"b", "bearer", NewSecret("v")}, "ops"); reasonOf(t, err) != "no_master_key" {
		t.Error("set without a key")
	}
	if _, err := copied.RotateSlot(ctx, "a", NewSecret("v"), "ops"); reasonOf(t, err) != "no_master_key" {
		t.Error("rotated without a key")
	}
	wrong := newTestKey(t)
	if err := copied.UseMasterKey(wrong); err != nil {
		t.Fatal(err)
	}
	wantOpened(t, copied, "a", "unknown_master_key")
	// Whoever may write makes the row name a key that he has.
	if _, err := s.db.write.Exec(`UPDATE slots SET master_key = $1`, string(wrong.ID())); err != nil {
		t.Fatal(err)
	}
	wantOpened(t, copied, "a", "damaged")
	if _, err := s.db.write.Exec(`UPDATE slots SET master_key = $1`, string(right.ID())); err != nil {
		t.Fatal(err)
	}

	without := openURL(t, url)
	if slot, err := without.DisableSlot(ctx, "a", "ops"); err != nil || slot.Revision != 2 {
		t.Errorf("%+v, %v", slot, err)
	}
	wantOpened(t, s, "a", "disabled") // at once, in the other process
	if _, err := without.EnableSlot(ctx, "a", "ops"); reasonOf(t, err) != "no_master_key" {
		t.Errorf("enabled without a key: %v", err)
	}
	if slot, err := s.EnableSlot(ctx, "a", "ops"); err != nil || slot.Revision != 3 {
		t.Errorf("what was refused took a revision: %+v, %v", slot, err)
	}
	wantOpened(t, s, "a", "3 value")
	if _, err := without.RevokeSlot(ctx, "a", true, "ops"); err != nil {
		t.Error(err)
	}
	wantOpened(t, s, "a", "revoked")
	if _, err := copied.RotateSlot(ctx, "a", NewSecret("other"), "ops"); reasonOf(t, err) != "unknown_master_key" {
		t.Errorf("a value that can't be compared: %v", err)
	}
	if _, err := without.DeleteSlot(ctx, "a", "ops"); err != nil {
		t.Error(err)
	}
}

// A row that is moved, or put together of two, does not open. Each move was seen to open with its part, or the separators,
// taken out of additionalData.
func TestMovedRowsDoNotOpen(t *testing.T) {
	for name, move := range map[string]string{
		"to another slot":                        `UPDATE slots SET name = 'c' WHERE name = 'a'`,
		"over another slot":                      `UPDATE slots SET sealed = (SELECT sealed FROM slots WHERE name = 'b') WHERE name = 'a'`,
		"to another profile":                     `UPDATE slots SET profile = 'other' WHERE name = 'a'`,
		"to a later revision":                    `UPDATE slots SET revision = 3, sealed_revision = 3 WHERE name = 'a'`,
		"to a later revision alone":              `UPDATE slots SET revision = 3 WHERE name = 'a'`,
		"to an earlier revision":                 `UPDATE slots SET revision = 1, sealed_revision = 1 WHERE name = 'a'`,
		"names as one":                           `UPDATE slots SET profile = 'beare', name = 'ra' WHERE name = 'a'`,
		"disabled, made to look enabled":         `UPDATE slots SET enabled = 1 WHERE name = 'off'`,
		"revoked, made to look as if it was not": `UPDATE slots SET revoked = 0 WHERE name = 'dead'`,
		"cut":                                    `UPDATE slots SET sealed = substr(sealed, 1, 32) WHERE name = 'a'`,
		"cut to less than a nonce":               `UPDATE slots SET sealed = 'AAAA' WHERE name = 'a'`,
		"empty":                                  `UPDATE slots SET sealed = '' WHERE name = 'a'`,
		"no base64":                              `UPDATE slots SET sealed = '*' || sealed WHERE name = 'a'`,
		"another bit":                            `UPDATE slots SET sealed = 'AAAA' || substr(sealed, 5) WHERE name = 'a'`,
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := openVault(t, "sqlite::memory:")
			setProfile(t, s, Profile{Name: "beare", Header: HeaderAPIKey, BaseURLs: []string{"http://x"}})
			for _, slot := range []execution.SlotName{"a", "b", "off", "dead"} {
				setSlot(t, s, slot, "first")
				setSlot(t, s, slot, "second")
			}
			if _, err := s.DisableSlot(t.Context(), "off", "ops"); err != nil {
				t.Fatal(err)
			}
			if _, err := s.RevokeSlot(t.Context(), "dead", false, "ops"); err != nil {
				t.Fatal(err)
			}
			wantOpened(t, s, "a", "2 second")
			wantOpened(t, s, "b", "2 second")
			result, err := s.db.write.Exec(move)
			if err != nil {
				t.Fatal(err)
			}
			if n, err := result.RowsAffected(); err != nil || n != 1 {
				t.Fatalf("%d rows, %v", n, err)
			}
			slots, err := s.Slots(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, slot := range slots {
				untouched := slot.Name == "b" || slot.Name == "a" && !strings.HasSuffix(move, "'a'")
				if got := opened(t, s, slot.Name); !untouched && strings.Contains(got, " ") {
					t.Errorf("slot %s opens: %q", slot.Name, got)
				}
			}
			wantOpened(t, s, "b", "2 second") // which nobody touched
		})
	}
}

// What somebody who may write puts into a profile is no header and no list of places: it is an error, not a guess.
func TestAlteredProfileDoesNotOpen(t *testing.T) {
	for _, alter := range []string{
		`UPDATE profiles SET header = 'cookie'`, `UPDATE profiles SET header = ''`, `UPDATE profiles SET base_urls = 'x'`,
		`DELETE FROM profiles`,
	} {
		s, _ := openVault(t, "sqlite::memory:")
		setSlot(t, s, "a", "value")
		if _, err := s.db.write.Exec(alter); err != nil {
			t.Fatal(err)
		}
		if credential, err := s.OpenCredential(t.Context(), "a"); err == nil {
			t.Errorf("%s: %+v", alter, credential)
		}
	}
}

// Two values that are the same do not look the same, nor does one that is sealed again.
func TestSealsDiffer(t *testing.T) {
	s, _ := openVault(t, "sqlite::memory:")
	seen := make(map[string]bool)
	for i := range 20 {
		setSlot(t, s, execution.SlotName(fmt.Sprint("s", i%2)), "value")
		seals, err := queryAll(t.Context(), s.db.read, scanOne[string], `SELECT substr(sealed, 1, 16) FROM slots WHERE name = $1`, fmt.Sprint("s", i%2))
		if err != nil || len(seals) != 1 || seen[seals[0]] {
			t.Fatalf("%v, %v", seals, err)
		}
		seen[seals[0]] = true
	}
}

// Changes of one slot from two Stores at once: each gets a revision of its own, and in the end the value is that of the
// highest.
func TestSlotChangesAtOnce(t *testing.T) {
	url := fileURL(t)
	a, key := openVault(t, url)
	b := openURL(t, url)
	if err := b.UseMasterKey(key); err != nil {
		t.Fatal(err)
	}
	setSlot(t, a, "s", "first")
	var mu sync.Mutex
	values := make(map[execution.Revision]string)
	var wg sync.WaitGroup
	for i := range 8 {
		s := []*Store{a, b}[i%2]
		wg.Go(func() {
			for n := range 5 {
				value := fmt.Sprint("value-", i, "-", n)
				slot, err := s.RotateSlot(context.Background(), "s", NewSecret(value), "ops")
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				values[slot.Revision] = value
				mu.Unlock()
				if _, err := s.OpenCredential(context.Background(), "s"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if len(values) != 40 {
		t.Errorf("%d revisions", len(values))
	}
	wantOpened(t, a, "s", "41 "+values[41])
}

func TestRevisionsEnd(t *testing.T) {
	s, _ := openVault(t, "sqlite::memory:")
	if _, err := s.db.write.Exec(`INSERT INTO slot_revisions VALUES ('s', 9223372036854775806)`); err != nil {
		t.Fatal(err)
	}
	setSlot(t, s, "s", "last")
	wantOpened(t, s, "s", "9223372036854775807 last")
	if _, err := s.RotateSlot(t.Context(), "s", NewSecret("more"), "ops"); err == nil || !strings.Contains(err.Error(), "used up") {
		t.Errorf("%v", err)
	}
	wantOpened(t, s, "s", "9223372036854775807 last")
}

// A change whose audit row can't be written does not happen.
func TestNoChangeWithoutAudit(t *testing.T) {
	s, _ := openVault(t, "sqlite::memory:")
	setSlot(t, s, "s", "value")
	if _, err := s.db.write.Exec(`CREATE TRIGGER full BEFORE INSERT ON audit BEGIN SELECT RAISE(FAIL, 'disk full'); END`); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	for name, change := range map[string]func() error{
		"set":     func() error { _, err := s.SetSlot(ctx, SlotSpec{"s", "bearer", NewSecret("v")}, "ops"); return err },
		"disable": func() error { _, err := s.DisableSlot(ctx, "s", "ops"); return err },
		"delete":  func() error { _, err := s.DeleteSlot(ctx, "s", "ops"); return err },
		"profile": func() error {
			_, err := s.SetProfile(ctx, Profile{Name: "bearer", Header: HeaderAPIKey, BaseURLs: []string{"http://x"}}, "ops")
			return err
		},
		"remove profile": func() error { return s.DeleteProfile(ctx, "other", "ops") },
		"allow":          func() error { _, err := s.AllowNode(ctx, NodeAllow{Node: "n"}, "ops"); return err },
		"deny":           func() error { return s.DenyNode(ctx, Denial{Node: "n"}, "ops") },
	} {
		if err := change(); err == nil || !strings.Contains(err.Error(), "disk full") {
			t.Errorf("%s: %v", name, err)
		}
	}
	credential, err := s.OpenCredential(ctx, "s")
	if err != nil || credential.Revision != 1 || credential.Profile.Header != HeaderAuthorizationBearer {
		t.Errorf("%+v, %v", credential, err)
	}
	profiles, err := s.Profiles(ctx)
	allows, err2 := s.NodeAllows(ctx)
	denials, err3 := s.Denials(ctx)
	if err := errors.Join(err, err2, err3); err != nil || len(profiles) != 2 || len(allows)+len(denials) != 0 {
		t.Errorf("%v, %v, %v, %v", profiles, allows, denials, err)
	}
}

func BenchmarkOpenCredential(b *testing.B) {
	for name, url := range map[string]string{"file": fileURL(b), "memory": "sqlite::memory:"} {
		b.Run(name, func(b *testing.B) {
			s, _ := openVault(b, url)
			setSlot(b, s, "s", strings.Repeat("k", 164))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.OpenCredential(b.Context(), "s"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
