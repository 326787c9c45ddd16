package state

import (
	"context"
	"testing"
	"time"
)

// A query that was parsed once outlives its connection, which a cancelled look-up may cost.
func TestPreparedQueriesOutliveConnections(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		if err := s.UseMasterKey(newTestKey(t)); err != nil {
			t.Fatal(err)
		}
		setProfile(t, s, Profile{Name: "bearer", Header: HeaderAPIKey, BaseURLs: []string{"https://x"}})
		setSlot(t, s, "s", "value")
		if _, err := s.AllowNode(t.Context(), NodeAllow{Node: "n"}, "ops"); err != nil {
			t.Fatal(err)
		}
		for i := range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Microsecond)
			credential, err := s.OpenCredential(ctx, "s")
			if err == nil && credential.Secret.Reveal() != "value" || err != nil && credential.Secret.Reveal() != "" {
				t.Errorf("%+v, %v", credential, err)
			}
			if _, err := s.NodeAllowed(ctx, "other", "1"); err == nil {
				t.Error("allowed in haste")
			}
			cancel()
		}
		wantOpened(t, s, "s", "1 value")
		if _, err := s.NodeAllowed(t.Context(), "n", "1"); err != nil {
			t.Error(err)
		}
	})
}

// A newer version adds columns while this one runs.
func TestPreparedQueriesOutliveMigrations(t *testing.T) {
	url := fileURL(t)
	s, _ := openVault(t, url)
	setSlot(t, s, "s", "value")
	if _, err := s.AllowNode(t.Context(), NodeAllow{Node: "n"}, "ops"); err != nil {
		t.Fatal(err)
	}
	newer := openURL(t, url)
	for _, table := range []string{"slots", "profiles", "node_allows", "node_denials"} {
		wantOpened(t, s, "s", "1 value")
		if _, err := newer.db.write.Exec(`ALTER TABLE ` + table + ` ADD COLUMN later BIGINT NOT NULL DEFAULT 0`); err != nil {
			t.Fatal(err)
		}
		wantOpened(t, s, "s", "1 value")
		if _, err := s.NodeAllowed(t.Context(), "n", "1"); err != nil {
			t.Error(err)
		}
	}
}
