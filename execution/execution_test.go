package execution

import (
	"regexp"
	"strings"
	"testing"
)

func TestNewRunID(t *testing.T) {
	form := regexp.MustCompile(`^run_[a-z2-7]{26}$`)
	seen := map[RunID]bool{}
	letters := map[rune]int{}
	for range 10_000 {
		id := NewRunID()
		if !form.MatchString(string(id)) || seen[id] {
			t.Fatalf("%q is malformed or was there before", id)
		}
		seen[id] = true
		for _, c := range string(id[4:]) {
			letters[c]++
		}
	}
	// 260,000 letters of 32 kinds: each within a tenth of its share, which is 30 standard deviations.
	for c, n := range letters {
		if n < 8125*9/10 || n > 8125*11/10 {
			t.Errorf("%q stands %d times in 260,000 letters", c, n)
		}
	}
	if len(letters) != 32 {
		t.Errorf("%d letters are used", len(letters))
	}
}

func TestNodeIDValidate(t *testing.T) {
	for _, good := range []NodeID{"a", "gpu-3", "Lab_1.example:2", "...", ".a", NodeID(strings.Repeat("x", MaxNodeIDLength))} {
		if err := good.Validate(); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []NodeID{"", "a b", "ä", "a/b", "<x>", "a\n", ".", "..", NodeID(strings.Repeat("x", MaxNodeIDLength+1))} {
		if bad.Validate() == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

// TestNoNameIsADirectory: names are segments of the admin API's paths, which clients and proxies resolve.
func TestNoNameIsADirectory(t *testing.T) {
	for _, name := range []string{".", ".."} {
		for kind, err := range map[string]error{
			"node": NodeID(name).Validate(), "slot": SlotName(name).Validate(), "profile": ProfileName(name).Validate(),
		} {
			if err == nil || !strings.Contains(err.Error(), kind+" name must not be") {
				t.Errorf("%s %q: %v", kind, name, err)
			}
		}
	}
	for _, err := range []error{SlotName("...").Validate(), ProfileName(".x").Validate()} {
		if err != nil {
			t.Error(err)
		}
	}
}

// TestNames: every value has a name of its own, and what is beyond them says so.
func TestNames(t *testing.T) {
	check := func(kind string, names []string, first int) {
		seen := map[string]bool{}
		for i, n := range names[first:] {
			if n == "" && (kind != "code" || i > 0) || seen[n] {
				t.Errorf("%s %d is named %q", kind, i+first, n)
			}
			seen[n] = true
		}
	}
	check("outcome", outcomeNames[:], 1)
	check("phase", phaseNames[:], 0)
	check("code", codeNames[:], 0)
	if len(codeNames) != int(CodeNoNodeAvailable)+1 || len(phaseNames) != int(PhaseProviderDone)+1 || len(outcomeNames) != int(Rejected)+1 {
		t.Error("a value without a name, or a name without a value")
	}
	if got := Code(200).String(); got != "unknown_200" {
		t.Errorf("code 200 is named %q", got)
	}
}
