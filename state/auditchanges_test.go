package state

import (
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// entriesOf are the entries of a query as lines, the oldest first.
func entriesOf(t *testing.T, s *Store, q AuditQuery) (lines []string) {
	t.Helper()
	entries, _, err := s.AuditEntries(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range slices.Backward(entries) {
		lines = append(lines, strings.Join(strings.Fields(fmt.Sprint(e.Actor, " ", e.Source, " ", e.Session, " ", e.Action, " ", e.Node, " ", e.Subject, " ", e.Detail)), " "))
	}
	return lines
}

// Each change of a key or a join token has an entry in the transaction that makes it; what changes nothing has none.
func TestChangesOfKeysAreAudited(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		ctx := WithActor(t.Context(), Actor{Name: ActorConsole, Source: "192.0.2.1", Session: "s1"})
		key, secret, err := s.CreateKey(ctx, KeySpec{Name: "ci", RPM: 6, Routes: []string{"a*", "c*"}})
		if err != nil {
			t.Fatal(err)
		}
		for _, change := range []KeyChange{{RPM: new(int64(7))}, {RPM: new(int64(7))}, {}} {
			if _, err := s.UpdateKey(ctx, key.ID, change); err != nil {
				t.Fatal(err)
			}
		}
		if _, _, err := s.CreateKey(ctx, KeySpec{Name: "ci"}); err == nil {
			t.Error("the name was given twice")
		}
		for range 2 {
			if err := s.RevokeKey(ctx, key.ID, "carol"); err != nil {
				t.Fatal(err)
			}
		}
		token, joinSecret, err := s.CreateJoinToken(ctx, JoinTokenSpec{Node: "gpu-1", Labels: []string{"site=lab"}})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := s.RevokeJoinToken(ctx, token.ID, "carol"); err != nil {
				t.Fatal(err)
			}
		}
		const by = "console 192.0.2.1 s1 "
		want := []string{
			by + `key_created ci routes [] -> [a* c*], rpm 0 -> 6`, by + "key_updated ci rpm 6 -> 7", "carol 192.0.2.1 s1 key_revoked ci",
			by + `join_token_created gpu-1 labels [] -> [site=lab]`, "carol 192.0.2.1 s1 join_token_revoked gpu-1",
		}
		all := entriesOf(t, s, AuditQuery{})
		if !slices.Equal(all, want) {
			t.Errorf("got  %q\nwant %q", all, want)
		}
		if got := entriesOf(t, s, AuditQuery{Key: key.ID}); !slices.Equal(got, want[:3]) {
			t.Errorf("of the key: %q", got)
		}
		if got := entriesOf(t, s, AuditQuery{JoinToken: token.ID}); !slices.Equal(got, want[3:]) {
			t.Errorf("of the join token: %q", got)
		}
		if got := entriesOf(t, s, AuditQuery{Source: "192.0.2.2"}); len(got) != 0 {
			t.Errorf("from elsewhere: %q", got)
		}
		for _, secret := range []Secret{secret, joinSecret} {
			if strings.Contains(strings.Join(all, "\n"), secret.Reveal()) {
				t.Error("a secret is in the audit")
			}
		}
	})
}

// A join token's use is noted when a Node gets its name by it, not each time that it connects; and two that take a name
// from each other don't fill the audit.
func TestUseOfAJoinTokenIsAudited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openURL(t, "sqlite::memory:")
		ctx := WithActor(t.Context(), Actor{Name: ActorNode, Source: "192.0.2.7"})
		a, _ := createJoinToken(t, s, JoinTokenSpec{Node: "gpu-1"})
		b, _ := createJoinToken(t, s, JoinTokenSpec{Node: "gpu-1"})
		claim := func(tokens ...JoinTokenID) {
			t.Helper()
			for _, token := range tokens {
				time.Sleep(time.Second)
				if err := s.ClaimNode(ctx, token, "gpu-1"); err != nil {
					t.Fatal(err)
				}
			}
		}
		used := func() int {
			return len(entriesOf(t, s, AuditQuery{Actions: []AuditAction{AuditJoinTokenUsed}, Limit: 1000}))
		}
		claim(a.ID, a.ID, a.ID)
		if got := entriesOf(t, s, AuditQuery{JoinToken: a.ID}); len(got) != 2 || got[1] != "node 192.0.2.7 join_token_used gpu-1" {
			t.Errorf("%q", got)
		}
		for range 50 {
			claim(b.ID, a.ID)
		}
		if n := used(); n != 2 {
			t.Errorf("%d entries of two tokens within an hour", n)
		}
		time.Sleep(tokenUseEvery)
		if claim(b.ID); used() != 3 {
			t.Errorf("%d entries after an hour", used())
		}
		if err := s.ClaimNode(ctx, a.ID, "gpu-2"); err == nil || used() != 3 {
			t.Errorf("a refused claim: %v, %d entries", err, used())
		}
	})
}

// What is too old to be kept goes, but for the history of what the state holds.
func TestPruneAuditKeepsHistory(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		old := time.Now().Add(-time.Hour)
		var all []AuditEntry
		for _, name := range AuditActions() {
			action, err := ParseAuditAction(name)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, AuditEntry{At: old, Actor: "x", Action: action, Outcome: AuditDone})
		}
		if err := s.Audit(t.Context(), all...); err != nil {
			t.Fatal(err)
		}
		goes := []AuditAction{
			AuditLeaseIssued, AuditLeaseRefused, AuditJoinTokenUsed, AuditNodeDrained, AuditNodeResumed, AuditRunCancelled,
			AuditRoutesReloaded, AuditRoutesApplied, AuditSignedIn, AuditSignedOut, AuditSignInRefused, AuditAdminRefused,
		}
		n, err := s.PruneAudit(t.Context(), time.Now())
		if err != nil || n != int64(len(goes)) {
			t.Errorf("%d deleted, %v", n, err)
		}
		left, _, err := s.AuditEntries(t.Context(), AuditQuery{Limit: 1000})
		if err != nil || len(left) != len(all)-len(goes) {
			t.Errorf("%d are left of %d, %v", len(left), len(all), err)
		}
		for _, e := range left {
			if slices.Contains(goes, e.Action) {
				t.Errorf("%v is left", e.Action)
			}
		}
	})
}

// However much is changed at once, an entry says a bounded part of it, in whole characters.
func TestLongChange(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	var routes []string
	for i := range 90 {
		routes = append(routes, fmt.Sprintf("größe-%d", i))
	}
	createKey(t, s, KeySpec{Name: "k", Routes: routes})
	got := entriesOf(t, s, AuditQuery{})
	if len(got) != 1 || len(got[0]) > maxChangeText+50 || !strings.HasSuffix(got[0], "...") || strings.ContainsRune(got[0], '\uFFFD') {
		t.Errorf("%q", got)
	}
}

// The few entries about a key or a join token are found without reading those about leases, which are millions: the use of
// a token is looked for while no other change of the state gets in.
func TestAuditIndexes(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	plan := func(query string, args ...any) string {
		t.Helper()
		steps, err := queryAll(t.Context(), s.db.read, func(rows *sql.Rows) (step string, err error) {
			var id, parent, unused int
			err = rows.Scan(&id, &parent, &unused, &step)
			return step, err
		}, "EXPLAIN QUERY PLAN "+query, args...)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(steps, "; ")
	}
	for index, q := range map[string]AuditQuery{
		"audit_by_key": {Key: "k"}, "audit_by_join_token": {JoinToken: "j"}, "audit_by_slot": {Slot: "s"}, "audit_by_lease": {Lease: "l"},
		"audit_by_run": {Run: "r"}, "audit_by_time": {},
	} {
		query, args, _, err := q.compose()
		if err != nil {
			t.Fatal(err)
		}
		if got := plan(query, args...); !strings.Contains(got, index+" ") || strings.Contains(got, "SCAN") {
			t.Errorf("%s: %s", index, got)
		}
	}
	if got := plan(queryTokenUsed, "j", "gpu-1", int64(1)); !strings.Contains(got, "audit_by_join_token (join_token=? AND at>?)") {
		t.Errorf("the use of a join token: %s", got)
	}
}
