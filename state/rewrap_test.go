package state

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"iop/execution"
)

const rewrapSlots = 2*rewrapBatch + 7

// rewrapVault is a Store with many slots under an old key, and a new key that is current.
func rewrapVault(t *testing.T, url string) (s *Store, from, to MasterKey) {
	s, from = openVault(t, url)
	for i := range rewrapSlots {
		setSlot(t, s, execution.SlotName(fmt.Sprintf("slot-%03d", i)), fmt.Sprint("value-", i))
	}
	to = newTestKey(t)
	if err := s.UseMasterKey(to, from); err != nil {
		t.Fatal(err)
	}
	return s, from, to
}

func checkRewrapped(t *testing.T, s *Store) {
	t.Helper()
	for i := range rewrapSlots {
		wantOpened(t, s, execution.SlotName(fmt.Sprintf("slot-%03d", i)), fmt.Sprint("1 value-", i))
	}
}

func TestRewrap(t *testing.T) {
	s, from, to := rewrapVault(t, "sqlite::memory:")
	ctx := t.Context()
	if _, err := s.RevokeSlot(ctx, "slot-000", true, "ops"); err != nil { // its value is still compared
		t.Fatal(err)
	}
	setSlot(t, s, "young", "v")
	uses := func() string {
		uses, err := s.MasterKeyUses(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, use := range uses {
			name := map[MasterKeyID]string{from.ID(): "from", to.ID(): "to"}[use.ID]
			lines = append(lines, fmt.Sprintf("%s %d %v %v", name, use.Slots, use.Known, use.Current))
		}
		slices.Sort(lines)
		return strings.Join(lines, ", ")
	}
	if got := uses(); got != fmt.Sprintf("from %d true false, to 1 true true", rewrapSlots) {
		t.Errorf("uses: %s", got)
	}
	if moved, err := s.Rewrap(ctx, from.ID(), to.ID(), "ops"); err != nil || moved != rewrapSlots {
		t.Errorf("%d, %v", moved, err)
	}
	if moved, err := s.Rewrap(ctx, from.ID(), to.ID(), "ops"); err != nil || moved != 0 {
		t.Errorf("again: %d, %v", moved, err)
	}
	if got := uses(); got != fmt.Sprintf("from 0 true false, to %d true true", rewrapSlots+1) {
		t.Errorf("uses: %s", got)
	}
	if err := s.UseMasterKey(to); err != nil { // the old one is gone
		t.Fatal(err)
	}
	wantOpened(t, s, "slot-001", "1 value-1")
	if _, err := s.RotateSlot(ctx, "slot-000", NewSecret("value-0"), "ops"); err == nil || !strings.Contains(err.Error(), ErrSameValue.Error()) {
		t.Errorf("the revoked value after a rewrap: %v", err)
	}
	entries, _, err := s.AuditEntries(ctx, AuditQuery{Actions: []AuditAction{AuditSlotRewrapped}, Limit: 1000})
	if err != nil || len(entries) != rewrapSlots || entries[0].Subject != string(to.ID()) {
		t.Errorf("%d entries, %v", len(entries), err)
	}
}

// A rewrap that ends in the middle leaves every slot good under one key or the other, and goes on when called again.
func TestRewrapGoesOn(t *testing.T) {
	s, from, to := rewrapVault(t, fileURL(t))
	stop := fmt.Sprintf(`CREATE TRIGGER stop BEFORE UPDATE ON slots WHEN new.name = 'slot-%03d' BEGIN SELECT RAISE(FAIL, 'disk full'); END`, rewrapBatch+3)
	if _, err := s.db.write.Exec(stop); err != nil {
		t.Fatal(err)
	}
	if moved, err := s.Rewrap(t.Context(), from.ID(), to.ID(), "ops"); err == nil || moved != rewrapBatch {
		t.Errorf("%d, %v", moved, err)
	}
	checkRewrapped(t, s)
	if _, err := s.db.write.Exec(`DROP TRIGGER stop`); err != nil {
		t.Fatal(err)
	}
	if moved, err := s.Rewrap(t.Context(), from.ID(), to.ID(), "ops"); err != nil || moved != rewrapSlots-rewrapBatch {
		t.Errorf("%d, %v", moved, err)
	}
	checkRewrapped(t, s)
}

// One slot that does not open keeps nobody else from the new key.
func TestRewrapPassesDamage(t *testing.T) {
	s, from, to := rewrapVault(t, "sqlite::memory:")
	if _, err := s.db.write.Exec(`UPDATE slots SET sealed = 'AAAA' || substr(sealed, 5) WHERE name = 'slot-001'`); err != nil {
		t.Fatal(err)
	}
	moved, err := s.Rewrap(t.Context(), from.ID(), to.ID(), "ops")
	if err == nil || moved != rewrapSlots-1 || strings.Count(err.Error(), `"slot-001"`) != 1 || reasonOf(t, err) != "damaged" {
		t.Errorf("%d, %v", moved, err)
	}
	wantOpened(t, s, "slot-106", "1 value-106")
}

func TestRewrapFaults(t *testing.T) {
	s, key := openVault(t, "sqlite::memory:")
	for name, rewrap := range map[string]func() (int, error){
		"unknown from": func() (int, error) { return s.Rewrap(t.Context(), "x", key.ID(), "ops") },
		"unknown to":   func() (int, error) { return s.Rewrap(t.Context(), key.ID(), "x", "ops") },
		"the same":     func() (int, error) { return s.Rewrap(t.Context(), key.ID(), key.ID(), "ops") },
		"nobody":       func() (int, error) { return s.Rewrap(t.Context(), key.ID(), "x", "") },
		"no key":       func() (int, error) { return openURL(t, "sqlite::memory:").Rewrap(t.Context(), key.ID(), "x", "ops") },
	} {
		if _, err := rewrap(); err == nil {
			t.Error(name)
		}
	}
}

// While slots are sealed again they open all the time, and changes are not lost.
func TestRewrapUnderUse(t *testing.T) {
	url := fileURL(t)
	s, from, to := rewrapVault(t, url)
	other := openURL(t, url)
	if err := other.UseMasterKey(to, from); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			slot := execution.SlotName(fmt.Sprintf("slot-%03d", i%rewrapSlots))
			if _, err := other.OpenCredential(context.Background(), slot); err != nil {
				t.Errorf("%s: %v", slot, err)
			}
			if _, err := other.RotateSlot(context.Background(), "slot-106", NewSecret(fmt.Sprint("rotated-", i)), "ops"); err != nil {
				t.Error(err)
			}
		}
	})
	if _, err := s.Rewrap(t.Context(), from.ID(), to.ID(), "ops"); err != nil {
		t.Error(err)
	}
	close(done)
	wg.Wait()
	if err := s.UseMasterKey(to); err != nil {
		t.Fatal(err)
	}
	for i := range rewrapSlots {
		if _, err := s.OpenCredential(t.Context(), execution.SlotName(fmt.Sprintf("slot-%03d", i))); err != nil {
			t.Error(err)
		}
	}
}
