package state

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"iop/execution"
)

// testMasterKey is the variable that gives a child its master key.
const testMasterKey = "IOP_STATE_TEST_MASTER_KEY"

// changeSlots makes, changes, removes and makes again one slot, and prints each revision that it was given, and the
// number of the value that the slot has then.
func changeSlots(ctx context.Context, s *Store) error {
	keys, err := parseMasterKeys(os.Getenv(testMasterKey))
	if err != nil {
		return err
	}
	if err := s.UseMasterKey(keys[0]); err != nil {
		return err
	}
	value := 0
	next := func() Secret {
		value++
		return NewSecret(fmt.Sprint("value-", value))
	}
	for {
		for _, change := range []func() (Slot, error){
			func() (Slot, error) { return s.SetSlot(ctx, SlotSpec{"s", "bearer", next()}, "child") },
			func() (Slot, error) { return s.RotateSlot(ctx, "s", next(), "child") },
			func() (Slot, error) { return s.DisableSlot(ctx, "s", "child") },
			func() (Slot, error) { return s.EnableSlot(ctx, "s", "child") },
			func() (Slot, error) { return s.RevokeSlot(ctx, "s", true, "child") },
			func() (Slot, error) { return s.RotateSlot(ctx, "s", next(), "child") },
			func() (Slot, error) {
				revision, err := s.DeleteSlot(ctx, "s", "child")
				return Slot{Revision: revision}, err
			},
		} {
			slot, err := change()
			if err != nil {
				return err
			}
			fmt.Println(slot.Revision, value)
		}
	}
}

// A process that changes a slot is killed at whatever point it has reached, over and over. No revision that it printed
// comes back, the audit has each revision once, and what the slot holds opens under its revision or not at all.
func TestSlotsSurviveKill(t *testing.T) {
	const rounds = 20
	url := fileURL(t)
	first, err := Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	key := newTestKey(t)
	setProfile(t, first, Profile{Name: "bearer", Header: HeaderAPIKey, BaseURLs: []string{"https://x"}})
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	last := execution.Revision(0)
	for round := range rounds {
		last = killSlotChild(t, url, key, round, last)
		s, err := Open(t.Context(), url)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if err := s.UseMasterKey(key); err != nil {
			t.Fatal(err)
		}
		last = checkKilledSlot(t, s, round, last)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// killSlotChild runs a child until it has made some changes, and returns the last revision that it printed.
func killSlotChild(t *testing.T, url string, key MasterKey, round int, last execution.Revision) execution.Revision {
	t.Helper()
	cmd := child("slots", url)
	cmd.Env = append(cmd.Env, testMasterKey+"="+key.Reveal())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	made := 0
	for lines := bufio.NewScanner(out); lines.Scan(); made++ {
		var revision execution.Revision
		var value int
		if n, _ := fmt.Sscan(lines.Text(), &revision, &value); n != 2 {
			break // the kill cut the line
		}
		if revision <= last {
			t.Errorf("round %d: revision %d after %d", round, revision, last)
		}
		last = max(last, revision)
		if made == round { // each round one change later
			cmd.Process.Kill()
		}
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Fatalf("round %d: the child ended by itself: %v", round, err)
	}
	if made <= round {
		t.Fatalf("round %d: only %d changes were made", round, made)
	}
	return last
}

// checkKilledSlot compares what a killed child left with itself, and returns the last revision; the slot is gone then.
func checkKilledSlot(t *testing.T, s *Store, round int, printed execution.Revision) execution.Revision {
	t.Helper()
	revisions, err := s.SlotRevisions(t.Context())
	if err != nil || revisions["s"] < printed {
		t.Fatalf("round %d: revision %d, %v; %d was printed", round, revisions["s"], err, printed)
	}
	want, query := revisions["s"], AuditQuery{Slot: "s", Limit: 1000}
	for {
		entries, next := auditPage(t, s, query)
		for i := range entries {
			if entries[i].Revision != want {
				t.Fatalf("round %d: the audit has revision %d, want %d", round, entries[i].Revision, want)
			}
			want--
		}
		if query.Before = next; next == (AuditCursor{}) {
			break
		}
	}
	if want != 0 {
		t.Errorf("round %d: the audit lacks %d revisions", round, want)
	}
	slot, err := s.Slot(t.Context(), "s")
	if err != nil {
		return revisions["s"] // it was deleted
	}
	if got := opened(t, s, "s"); slot.Usable() != strings.HasPrefix(got, fmt.Sprintf("%d value-", slot.Revision)) {
		t.Errorf("round %d: %+v gives %q", round, slot, got)
	}
	revision, err := s.DeleteSlot(t.Context(), "s", "parent")
	if err != nil || revision != revisions["s"]+1 {
		t.Errorf("round %d: deleted at %d, %v", round, revision, err)
	}
	return revision
}
