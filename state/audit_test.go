package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
)

var auditStart = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// leaseEntry is a complete entry about a lease, n milliseconds after auditStart.
func leaseEntry(n int) AuditEntry {
	at := auditStart.Add(time.Duration(n) * time.Millisecond)
	return AuditEntry{
		ID: fmt.Sprintf("aud_%06d", n), At: at, Actor: "edge-1", Action: AuditLeaseIssued, Outcome: AuditDone, Reason: "sealed",
		Subject: "subject", Lease: execution.LeaseID(fmt.Sprintf("jti-%d", n)), Run: execution.RunID(fmt.Sprintf("run_%d", n)),
		Attempt: 2, Principal: "team", Route: "chat", Slot: "openai", Profile: "bearer", Revision: 1 << 40,
		Node: execution.NodeID(fmt.Sprintf("gpu-%d", n%3)), Generation: 1 << 41, Target: "https://api.example.com",
		Expires: at.Add(30 * time.Second),
	}
}

func auditPage(t testing.TB, s *Store, q AuditQuery) ([]AuditEntry, AuditCursor) {
	t.Helper()
	entries, next, err := s.AuditEntries(context.Background(), q)
	if err != nil {
		t.Fatal(err)
	}
	return entries, next
}

func TestAuditRoundTrip(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		first, second := leaseEntry(1), leaseEntry(2)
		if err := s.Audit(t.Context(), first, second); err != nil {
			t.Fatal(err)
		}
		again := first
		again.Actor = "somebody else"
		if err := s.Audit(t.Context(), again); err != nil { // the first word counts
			t.Fatal(err)
		}
		if got, next := auditPage(t, s, AuditQuery{}); !reflect.DeepEqual(got, []AuditEntry{second, first}) || next != (AuditCursor{}) {
			t.Errorf("%+v, %v", got, next)
		}
		if err := s.Audit(t.Context(), AuditEntry{Actor: "ops", Action: AuditSlotSet, Outcome: AuditRefused}); err != nil {
			t.Fatal(err)
		}
		got, _ := auditPage(t, s, AuditQuery{Actor: "ops"})
		if len(got) != 1 || got[0].ID == "" || time.Since(got[0].At) > time.Minute || got[0].Expires != (time.Time{}) {
			t.Errorf("%+v", got)
		}
	})
}

func TestAuditRefusesIncomplete(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	for _, entry := range []AuditEntry{
		{}, {Action: AuditSlotSet, Outcome: AuditDone}, {Actor: "a", Outcome: AuditDone}, {Actor: "a", Action: AuditSlotSet},
	} {
		if s.Audit(t.Context(), leaseEntry(1), entry) == nil || s.AuditLease(entry) == nil {
			t.Errorf("taken: %+v", entry)
		}
	}
	if got, _ := auditPage(t, s, AuditQuery{}); len(got) != 0 {
		t.Errorf("half a call: %+v", got)
	}
}

// What a peer may have written is no reason to lose an entry, and an error's text is no reason.
func TestAuditMendsText(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	entry := leaseEntry(1)
	entry.Reason = "dial tcp: " + hidden
	entry.Principal = "nul\x00 and \xff"
	entry.Target = strings.Repeat("x", 10_000)
	entry.Revision, entry.Generation = 1<<63+5, 1<<64-1
	entry.At = time.Unix(-5, 0)
	if err := s.Audit(t.Context(), entry); err != nil {
		t.Fatal(err)
	}
	got, _ := auditPage(t, s, AuditQuery{})
	if len(got) != 1 || got[0].Reason != "unnamed" || got[0].Principal != "nul\uFFFD and \uFFFD" || len(got[0].Target) != maxUsageText {
		t.Errorf("%+v", got)
	}
}

func TestAuditPages(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	const entries = 250
	var all []AuditEntry
	for n := range entries {
		entry := leaseEntry(n)
		entry.At = auditStart.Add(time.Duration(n/100) * time.Second) // many at one time
		if n%10 == 0 {
			entry.Action, entry.Slot = AuditSlotRotated, "other"
		}
		all = append(all, entry)
	}
	if err := s.Audit(t.Context(), all...); err != nil {
		t.Fatal(err)
	}
	slices.Reverse(all)
	read := func(q AuditQuery) (ids []string, pages int) {
		for {
			page, next := auditPage(t, s, q)
			for _, e := range page {
				ids = append(ids, e.ID)
			}
			if pages++; next == (AuditCursor{}) {
				return ids, pages
			}
			q.Before = next
		}
	}
	want := func(keep func(*AuditEntry) bool) (ids []string) {
		for i := range all {
			if keep(&all[i]) {
				ids = append(ids, all[i].ID)
			}
		}
		return ids
	}
	for name, test := range map[string]struct {
		q     AuditQuery
		pages int
		keep  func(*AuditEntry) bool
	}{
		"all":     {AuditQuery{}, 3, func(*AuditEntry) bool { return true }},
		"by 7":    {AuditQuery{Limit: 7}, 36, func(*AuditEntry) bool { return true }},
		"by 125":  {AuditQuery{Limit: 125}, 2, func(*AuditEntry) bool { return true }},
		"at once": {AuditQuery{Limit: 250}, 1, func(*AuditEntry) bool { return true }},
		"slot":    {AuditQuery{Slot: "other", Limit: 20}, 2, func(e *AuditEntry) bool { return e.Slot == "other" }},
		"node":    {AuditQuery{Node: "gpu-1"}, 1, func(e *AuditEntry) bool { return e.Node == "gpu-1" }},
		"lease":   {AuditQuery{Lease: "jti-17"}, 1, func(e *AuditEntry) bool { return e.Lease == "jti-17" }},
		"run":     {AuditQuery{Run: "run_17"}, 1, func(e *AuditEntry) bool { return e.Run == "run_17" }},
		"nobody":  {AuditQuery{Actor: "nobody"}, 1, func(*AuditEntry) bool { return false }},
		"two actions": {AuditQuery{Actions: []AuditAction{AuditSlotRotated, AuditSlotSet}}, 1,
			func(e *AuditEntry) bool { return e.Action == AuditSlotRotated }},
		"time": {AuditQuery{From: auditStart.Add(time.Second), To: auditStart.Add(2 * time.Second), Limit: 40}, 3,
			func(e *AuditEntry) bool { return e.At.Equal(auditStart.Add(time.Second)) }},
	} {
		got, pages := read(test.q)
		if pages != test.pages || !slices.Equal(got, want(test.keep)) {
			t.Errorf("%s: %d pages, want %d; %d entries %v", name, pages, test.pages, len(got), got)
		}
	}
	for _, q := range []AuditQuery{{Limit: -1}, {Limit: 1001}, {Actions: make([]AuditAction, 65)}} {
		if _, _, err := s.AuditEntries(t.Context(), q); err == nil {
			t.Errorf("%+v is taken", q)
		}
	}
}

func TestPruneAudit(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	var all []AuditEntry
	for n := range 2500 {
		entry := leaseEntry(n)
		switch n % 50 {
		case 0:
			entry.Action = AuditSlotSet
		case 1:
			entry.Action = AuditLeaseRefused
		case 2:
			entry.Action = AuditLeaseRevoked // an operator's act
		}
		all = append(all, entry)
	}
	if err := s.Audit(t.Context(), all...); err != nil {
		t.Fatal(err)
	}
	if n, err := s.PruneAudit(t.Context(), auditStart.Add(2000*time.Millisecond)); err != nil || n != 1920 {
		t.Errorf("%d, %v", n, err)
	}
	got, next := auditPage(t, s, AuditQuery{Limit: 1000})
	if len(got) != 580 || next != (AuditCursor{}) || got[579].Action != AuditSlotSet || got[579].ID != "aud_000000" {
		t.Errorf("%d are left, %v", len(got), next)
	}
}

func TestAuditNames(t *testing.T) {
	seen := make(map[string]bool)
	for action := AuditLeaseIssued; int(action) < len(auditActionNames); action++ {
		again, err := ParseAuditAction(action.String())
		if err != nil || again != action || seen[action.String()] {
			t.Errorf("%v: %v, %v", action, again, err)
		}
		seen[action.String()] = true
	}
	if _, err := ParseAuditAction(""); err == nil || AuditAction(0).String() != "unknown_0" || AuditAction(200).String() != "unknown_200" {
		t.Error("what is no action")
	}
	if last := AuditAction(len(auditActionNames) - 1); last != AuditNodeForgotten {
		t.Errorf("the last name is that of %d", last)
	}
}

// Entries about leases are written together, within the interval, each once.
func TestAuditLeaseBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openURL(t, "sqlite::memory:")
		const entries = 1200
		for n := range entries {
			if err := s.AuditLease(leaseEntry(n)); err != nil {
				t.Fatal(err)
			}
		}
		if got, _ := auditPage(t, s, AuditQuery{}); len(got) != 0 {
			t.Error("each was written alone")
		}
		time.Sleep(leaseInterval)
		synctest.Wait()
		if stats := s.AuditLeaseStats(); stats != (AuditLeaseStats{Written: entries}) {
			t.Errorf("%+v", stats)
		}
		got, _ := auditPage(t, s, AuditQuery{Limit: 1})
		if want := leaseEntry(entries - 1); len(got) != 1 || !reflect.DeepEqual(got[0], want) {
			t.Errorf("%+v", got)
		}
		if err := s.AuditLease(leaseEntry(entries)); err != nil { // and again after a rest
			t.Fatal(err)
		}
		time.Sleep(leaseInterval)
		synctest.Wait()
		if got, _ := auditPage(t, s, AuditQuery{Lease: leaseEntry(entries).Lease}); len(got) != 1 {
			t.Errorf("%+v", got)
		}
	})
}

// A database that fails keeps entries waiting, up to the bound; then there are no more leases. When it works again all
// that was taken is written. The log says so once each way.
func TestAuditLeaseWaitsForDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		before := slog.Default()
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		defer slog.SetDefault(before)

		const room = 1700
		s := openURL(t, "sqlite::memory:")
		s.leases.room = room
		if _, err := s.db.write.Exec(`CREATE TRIGGER full BEFORE INSERT ON audit BEGIN SELECT RAISE(FAIL, 'disk full'); END`); err != nil {
			t.Fatal(err)
		}
		for n := range room {
			if err := s.AuditLease(leaseEntry(n)); err != nil {
				t.Fatal(n, err)
			}
		}
		for range 2 {
			if err := s.AuditLease(leaseEntry(1)); !errors.Is(err, ErrAuditFull) {
				t.Errorf("beyond the bound: %v", err)
			}
		}
		time.Sleep(5 * leaseInterval)
		synctest.Wait()
		if stats := s.AuditLeaseStats(); stats.Pending != room || stats.Refused != 2 || stats.Written != 0 || stats.Failures < 3 {
			t.Errorf("%+v", stats)
		}
		if err := s.FlushAudit(t.Context()); err == nil || !strings.Contains(err.Error(), fmt.Sprint(room, " entries")) {
			t.Errorf("%v", err)
		}
		if _, err := s.db.write.Exec(`DROP TRIGGER full`); err != nil {
			t.Fatal(err)
		}
		time.Sleep(leaseInterval)
		synctest.Wait()
		if stats := s.AuditLeaseStats(); stats.Pending != 0 || stats.Written != room {
			t.Errorf("%+v", stats)
		}
		if err := s.AuditLease(leaseEntry(room)); err != nil {
			t.Error(err)
		}
		if warned, well := strings.Count(log.String(), "WARN"), strings.Count(log.String(), "INFO"); warned != 1 || well != 1 {
			t.Errorf("log: %s", &log)
		}
	})
}

func TestCloseWritesLeaseAudit(t *testing.T) {
	url := fileURL(t)
	s, err := Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.AuditLease(leaseEntry(1)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got, _ := auditPage(t, openURL(t, url), AuditQuery{}); len(got) != 1 || !reflect.DeepEqual(got[0], leaseEntry(1)) {
		t.Errorf("%+v", got)
	}
}

// What could not be written at the end is said, not swallowed.
func TestCloseSaysWhatIsLost(t *testing.T) {
	s, err := Open(t.Context(), "sqlite::memory:")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.write.Exec(`DROP TABLE audit`); err != nil {
		t.Fatal(err)
	}
	if err := s.AuditLease(leaseEntry(1)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err == nil || !strings.Contains(err.Error(), "1 entries about leases") {
		t.Errorf("%v", err)
	}
}

func BenchmarkAuditLease(b *testing.B) {
	s := openURL(b, fileURL(b))
	n := 0
	b.ReportAllocs()
	before := processCPU(b)
	for b.Loop() { // with its writing
		for range leaseBatch {
			entry := leaseEntry(n)
			entry.ID = ""
			if err := s.AuditLease(entry); err != nil {
				b.Fatal(err)
			}
			n++
		}
		if err := s.FlushAudit(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((processCPU(b)-before).Microseconds())/float64(n), "cpu-us/entry")
}
