package state

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"iop/execution"
	"iop/lease"
)

func TestProfiles(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		ctx := t.Context()
		got := setProfile(t, s, Profile{Name: "p", Header: HeaderAPIKey, BaseURLs: []string{
			"https://B.example.com:443/v1/", "http://127.0.0.1:11434", "https://b.example.com", "http://[FE80::1]:80/x/v1", "https://h:8443/a/b/"}})
		want := []string{"http://127.0.0.1:11434", "http://[fe80::1]/x", "https://b.example.com", "https://h:8443/a/b"}
		if !slices.Equal(got.BaseURLs, want) || got.Header != HeaderAPIKey || got.By != "ops" || got.Updated.IsZero() {
			t.Errorf("%+v", got)
		}
		if stored, err := s.Profile(ctx, "p"); err != nil || !reflect.DeepEqual(stored, got) {
			t.Errorf("%+v, %v", stored, err)
		}
		setProfile(t, s, Profile{Name: "a", Header: HeaderXAPIKey, BaseURLs: []string{"http://x"}})
		if all, err := s.Profiles(ctx); err != nil || len(all) != 2 || all[0].Name != "a" || !reflect.DeepEqual(all[1], got) {
			t.Errorf("%+v, %v", all, err)
		}
		if _, err := s.Profile(ctx, "none"); !errors.Is(err, ErrNotFound) {
			t.Errorf("%v", err)
		}
		if err := s.DeleteProfile(ctx, "none", "ops"); !errors.Is(err, ErrNotFound) {
			t.Errorf("%v", err)
		}
		if err := s.DeleteProfile(ctx, "a", "ops"); err != nil {
			t.Error(err)
		}
		if all, err := s.Profiles(ctx); err != nil || len(all) != 1 {
			t.Errorf("%+v, %v", all, err)
		}
	})
}

func TestProfileFaults(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	good := []string{"https://x"}
	for _, test := range []struct {
		field string
		Profile
	}{
		{"profile", Profile{"", HeaderAPIKey, good, now(), ""}},
		{"profile", Profile{"a b", HeaderAPIKey, good, now(), ""}},
		{"profile", Profile{execution.ProfileName(strings.Repeat("x", 65)), HeaderAPIKey, good, now(), ""}},
		{"header", Profile{"p", 0, good, now(), ""}},
		{"header", Profile{"p", 4, good, now(), ""}},
		{"base_urls", Profile{"p", HeaderAPIKey, nil, now(), ""}},
		{"base_urls", Profile{"p", HeaderAPIKey, slices.Repeat(good, maxBaseURLs+1), now(), ""}},
	} {
		_, err := s.SetProfile(t.Context(), test.Profile, "ops")
		if fault, ok := errors.AsType[*SpecError](err); !ok || fault.Field != test.field {
			t.Errorf("%+v: %v", test.Profile, err)
		}
	}
	for _, url := range []string{
		"", "x", "//x", "ftp://x", "https://", "https:///p", "https://:443", "https://user:" + hidden + "@x", "https://x/?k=" + hidden,
		"https://x/#" + hidden, "https://x/%2e%2e/" + hidden, "https://x/../" + hidden, "https://x//" + hidden, "https://x/./" + hidden,
		"https://x:0", "https://x:", "https://x:080", "https://x:99999", "https://x:http", `https://x\` + hidden, "https://x/" + hidden + "\r\n",
		"https://x /", "https://é", "https:x", "HTTPS:x", "https://" + strings.Repeat("x", maxBaseURL), "https://x/?", "https://x/#", "https://x/v1/v1",
	} {
		_, err := s.SetProfile(t.Context(), Profile{Name: "p", Header: HeaderAPIKey, BaseURLs: []string{"https://ok", url}}, "ops")
		if fault, ok := errors.AsType[*SpecError](err); !ok || fault.Field != "base_urls" || leaks(err.Error()) {
			t.Errorf("%q: %v", url, err)
		}
	}
	if _, err := ParseHeader(""); err == nil {
		t.Error("no header is a header")
	}
	for header := HeaderAuthorizationBearer; header <= HeaderAPIKey; header++ {
		if again, err := ParseHeader(header.String()); err != nil || again != header {
			t.Errorf("%v: %v, %v", header, again, err)
		}
	}
}

// A profile that changes takes its slots to another revision: what was leased for the old place is old.
func TestProfileChangeRaisesSlots(t *testing.T) {
	url := fileURL(t)
	s, _ := openVault(t, url)
	ctx := t.Context()
	for _, slot := range []execution.SlotName{"a", "off", "dead"} {
		setSlot(t, s, slot, "value of "[:5]+string(slot))
	}
	if _, err := s.SetSlot(ctx, SlotSpec{"elsewhere", "other", NewSecret("v")}, "ops"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.DisableSlot(ctx, "off", "ops"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.RevokeSlot(ctx, "dead", false, "ops"); err != nil {
		t.Fatal(err)
	}
	changed := Profile{Name: "bearer", Header: HeaderXAPIKey, BaseURLs: []string{"https://new.example.com"}}
	before := setProfile(t, s, changed)
	wantOpened(t, s, "a", "2 valuea")
	wantOpened(t, s, "off", "disabled")
	wantOpened(t, s, "dead", "revoked")
	wantOpened(t, s, "elsewhere", "1 v")
	if credential, err := s.OpenCredential(ctx, "a"); err != nil || credential.Profile.BaseURLs[0] != "https://new.example.com" {
		t.Errorf("%+v, %v", credential, err)
	}
	for name, want := range map[execution.SlotName]execution.Revision{"a": 2, "off": 3, "dead": 3, "elsewhere": 1} {
		if slot, err := s.Slot(ctx, name); err != nil || slot.Revision != want {
			t.Errorf("%s: %+v, %v; want revision %d", name, slot, err, want)
		}
	}
	if again := setProfile(t, s, changed); !reflect.DeepEqual(again, before) {
		t.Errorf("what changes nothing made %+v of %+v", again, before)
	}
	wantOpened(t, s, "a", "2 valuea")
	if _, err := s.EnableSlot(ctx, "off", "ops"); err != nil {
		t.Error(err)
	}
	wantOpened(t, s, "off", "4 valueoff")

	without := openURL(t, url)
	changed.BaseURLs = []string{"https://newer.example.com"}
	if _, err := without.SetProfile(ctx, changed, "ops"); reasonOf(t, err) != "no_master_key" {
		t.Errorf("changed without the key: %v", err)
	}
	if profile, err := s.Profile(ctx, "bearer"); err != nil || !reflect.DeepEqual(profile, before) {
		t.Errorf("half a change: %+v, %v", profile, err)
	}
}

func TestProfileInUse(t *testing.T) {
	s, _ := openVault(t, "sqlite::memory:")
	setSlot(t, s, "a", "v")
	if err := s.DeleteProfile(t.Context(), "bearer", "ops"); !errors.Is(err, ErrProfileInUse) {
		t.Errorf("%v", err)
	}
	if _, err := s.DeleteSlot(t.Context(), "a", "ops"); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteProfile(t.Context(), "bearer", "ops"); err != nil {
		t.Error(err)
	}
	if _, err := s.SetSlot(t.Context(), SlotSpec{"a", "bearer", NewSecret("v")}, "ops"); err == nil {
		t.Error("a slot of a deleted profile")
	}
}

func FuzzBaseURL(f *testing.F) {
	for _, url := range []string{"https://x", "http://[::1]:80/v1/", "https://X:443/a/../b", "https://u:p@x", "https://x/v1/v1", "https://x//v1", "http://x/%41", "https://[::1%25a]/"} {
		f.Add(url)
	}
	f.Fuzz(func(t *testing.T, text string) {
		url, err := canonicalBaseURL(text)
		if err != nil {
			return
		}
		again, err := canonicalBaseURL(url)
		if err != nil || again != url {
			t.Errorf("%q became %q, and that %q, %v", text, url, again, err)
		}
		if err := lease.Target(url).Validate(); err != nil {
			t.Errorf("%q became %q, which no lease can bear: %v", text, url, err)
		}
	})
}

// What a profile and a slot may say, a lease can bear. Package lease is a neighbour that this one does not import.
func TestLeaseBearsWhatIsKept(t *testing.T) {
	for header := HeaderAuthorizationBearer; header <= HeaderAPIKey; header++ {
		if same, err := lease.ParseHeader(header.String()); err != nil || same.String() != header.String() {
			t.Errorf("%v: %v, %v", header, same, err)
		}
	}
	for _, text := range []string{"https://B.example.com:443/v1/", "http://[FE80::1]:80/x/v1", "https://h:8443/a/b/", "http://127.0.0.1"} {
		url, err := canonicalBaseURL(text)
		if err != nil || lease.Target(url).Validate() != nil {
			t.Errorf("%q: %q, %v", text, url, err)
		}
	}
	longest := strings.Repeat("x", maxCredential)
	if _, err := lease.NewSecret([]byte(longest)); err != nil || checkCredential([]byte(longest)) != nil {
		t.Errorf("the longest credential: %v", err)
	}
	for c := range 256 {
		_, err := lease.NewSecret([]byte{byte(c)})
		if (err == nil) != (checkCredential([]byte{byte(c)}) == nil) {
			t.Errorf("byte %#x: %v", c, err)
		}
	}
}
