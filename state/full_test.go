package state

import (
	"fmt"
	"strconv"
	"testing"
)

// limitPages has SQLite take the database for full once it has so many pages; 0 allows no more than it has now. It is what a
// full disk looks like from above the file system.
func (s *Store) limitPages(t *testing.T, pages int64) {
	t.Helper()
	var now int64
	if err := s.db.write.QueryRowContext(t.Context(), "PRAGMA page_count").Scan(&now); err != nil {
		t.Fatal(err)
	}
	if err := s.db.write.QueryRowContext(t.Context(), "PRAGMA max_page_count="+strconv.FormatInt(max(pages, now), 10)).Scan(&now); err != nil {
		t.Fatal(err)
	}
}

// TestFullDisk: a full disk is reported and counted as such, costs no key that was made before, and is over when there is
// room.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	s := openURL(t, "sqlite://"+closedWith(t, 1))
	_, kept, err := s.CreateKey(t.Context(), KeySpec{Name: "kept"})
	if err != nil {
		t.Fatal(err)
	}
	s.limitPages(t, 0)
	made := 0
	for ; err == nil && made < 1000; made++ {
		_, _, err = s.CreateKey(t.Context(), KeySpec{Name: fmt.Sprintf("f%099d", made)})
	}
	if why := FailureOf(err); why != FailureFull || why.String() != "full" || why.Reason() != "the disk is full" {
		t.Fatalf("after %d keys: %v, which is %s: %s", made, err, why, why.Reason())
	}
	if n := s.Failed(FailureFull); n != 1 {
		t.Errorf("%d accesses are counted", n)
	}
	if f := s.Fault(); f != nil {
		t.Errorf("the files are at fault: %v", f)
	}
	if _, err := s.VerifyKey(t.Context(), kept.Reveal()); err != nil {
		t.Errorf("a key made before is not found: %v", err)
	}
	s.limitPages(t, 1<<20)
	if _, _, err := s.CreateKey(t.Context(), KeySpec{Name: "later"}); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

// TestFailuresHaveReasons: each failure has a name and a reason, which are one's own.
func TestFailuresHaveReasons(t *testing.T) {
	seen := map[string]bool{"": true}
	for _, f := range Failures() {
		if seen[f.String()] || seen[f.Reason()] {
			t.Errorf("%d is %q, %q", f, f.String(), f.Reason())
		}
		seen[f.String()], seen[f.Reason()] = true, true
	}
	if FailureNone.Reason() != "" {
		t.Errorf("no failure has a reason: %s", FailureNone.Reason())
	}
}
