package main

import (
	"strings"
	"testing"

	"iop/gateway/admin"
)

// TestKeyLimits: a key's limits are made, shown, changed and taken away, with an Edge and without one.
func TestKeyLimits(t *testing.T) {
	for _, running := range []bool{false, true} {
		name := "on the state"
		if running {
			name = "through the Edge"
		}
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			if running {
				s.startEdge()
			}
			var key admin.Key
			s.ask(&key, "key", "create", "--name", "ci", "--owner", "team-a", "--rpm", "60", "--tpm", "1000", "--concurrency", "2",
				"--monthly-tokens", "5000", "--weight", "3", "--priority", "-7", "--expires", "30d")
			want := admin.Key{Owner: "team-a", Principal: "team-a", RPM: 60, TPM: 1000, Concurrency: 2, MonthlyTokens: 5000, Weight: 3, Priority: -7}
			compareKeys(t, key, want)
			id := string(key.ID)
			if list := s.must("key", "list"); !strings.Contains(list, "60/min, 1000 tok/min, 2 at once, 5000 tok/month, weight 3, priority -7") ||
				!strings.Contains(list, "valid for 29d") {
				t.Errorf("list:\n%s", list)
			}

			var changed admin.Key
			s.ask(&changed, "key", "update", id, "--rpm", "0", "--owner", "", "--priority", "4", "--expires", "0", "--routes", "a*,b")
			want.RPM, want.Owner, want.Principal, want.Priority = 0, "", "key:"+id, 4
			compareKeys(t, changed, want)
			if changed.Expires != nil || strings.Join(changed.Routes, " ") != "a* b" || changed.Name != "ci" || changed.Key != "" {
				t.Errorf("changed to %+v", changed)
			}
			s.ask(&changed, "key", "update", id, "--routes", "")
			if len(changed.Routes) != 0 {
				t.Errorf("routes %q", changed.Routes)
			}
			show := s.must("key", "show", id)
			for _, line := range []string{"principal  key:" + id, "state      valid", "routes     all", "requests   no limit", "tokens     1000 a minute", "month      5000 tokens"} {
				if !strings.Contains(show, line) {
					t.Errorf("%q is missing:\n%s", line, show)
				}
			}
			if told := strings.Contains(show, "0 running"); told != running {
				t.Errorf("what is used now is told: %v\n%s", told, show)
			}
			for _, args := range [][]string{{"show", "none"}, {"update", "none", "--rpm", "1"}} {
				status, _, stderr := execute(t, append([]string{"key"}, args...)...)
				if status != exitFailed || strings.Count(stderr, "\n") != 1 {
					t.Errorf("key %q: status %d, %q", args, status, stderr)
				}
			}
			if status, _, stderr := execute(t, "key", "update", id, "--weight", "1001"); status != exitFailed || !strings.Contains(stderr, "weight") {
				t.Errorf("a wrong weight: status %d, %q", status, stderr)
			}
		})
	}
}

func compareKeys(t *testing.T, got, want admin.Key) {
	t.Helper()
	if got.Owner != want.Owner || got.Principal != want.Principal || got.RPM != want.RPM || got.TPM != want.TPM || got.Concurrency != want.Concurrency ||
		got.MonthlyTokens != want.MonthlyTokens || got.Weight != want.Weight || got.Priority != want.Priority {
		t.Errorf("key %+v, want %+v", got, want)
	}
}

// TestKeyNames: a key's name does in the place of its id, with an Edge and without one, and belongs to one key.
func TestKeyNames(t *testing.T) {
	for _, running := range []bool{false, true} {
		t.Run(map[bool]string{false: "on the state", true: "through the Edge"}[running], func(t *testing.T) {
			s := newSite(t)
			if running {
				s.startEdge()
			}
			var first, got admin.Key
			s.ask(&first, "key", "create", "--name", "alice")
			status, _, stderr := execute(t, "key", "create", "--name", "alice")
			if status != exitFailed || !strings.Contains(stderr, string(first.ID)) {
				t.Errorf("a second alice: status %d, %q", status, stderr)
			}
			if s.ask(&got, "key", "update", "alice", "--rpm", "7"); got.ID != first.ID || got.RPM != 7 {
				t.Errorf("updated %+v", got)
			}
			if show := s.must("key", "show", "alice"); !strings.Contains(show, string(first.ID)) {
				t.Errorf("shown is\n%s", show)
			}
			var revoked map[string]any
			if s.ask(&revoked, "key", "revoke", "alice"); revoked["id"] != string(first.ID) {
				t.Errorf("revoked %v", revoked)
			}
			var second admin.Key
			s.ask(&second, "key", "create", "--name", "alice")
			if s.ask(&got, "key", "show", "alice"); got.ID != second.ID {
				t.Errorf("alice is %+v", got)
			}
			if s.ask(&got, "key", "show", string(first.ID)); got.ID != first.ID || got.Revoked == nil {
				t.Errorf("by its id it is %+v", got)
			}
		})
	}
}
