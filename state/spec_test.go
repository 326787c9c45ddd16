package state

import (
	"errors"
	"strings"
	"testing"
	"time"

	"iop/execution"
)

func TestKeySpecFaults(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	long := strings.Repeat("é", 129)
	tests := []struct {
		name  string
		spec  KeySpec
		field string
		fault string // a part of it
	}{
		{"no name", KeySpec{}, "name", "empty"},
		{"long name", KeySpec{Name: long}, "name", "128"},
		{"newline", KeySpec{Name: "a\nb"}, "name", "U+000A"},
		{"escape", KeySpec{Name: "a\x1b[31m"}, "name", "U+001B"},
		{"text direction", KeySpec{Name: "a\u202eb"}, "name", "U+202E"},
		{"not UTF-8", KeySpec{Name: "a\xff"}, "name", "UTF-8"},
		{"space around", KeySpec{Name: " a"}, "name", "space"},
		{"long owner", KeySpec{Name: "k", Owner: long}, "owner", "128"},
		{"control in owner", KeySpec{Name: "k", Owner: "a\x00"}, "owner", "U+0000"},
		{"another key's principal", KeySpec{Name: "k", Owner: "key:0Ab3dE9z"}, "owner", "key:"},
		{"empty route", KeySpec{Name: "k", Routes: []string{"a", ""}}, "routes", "empty"},
		{"class", KeySpec{Name: "k", Routes: []string{"llama-[23]"}}, "routes", `"llama-[23]"`},
		{"escape in route", KeySpec{Name: "k", Routes: []string{`a\*`}}, "routes", "meaning"},
		{"two in one", KeySpec{Name: "k", Routes: []string{"a,b"}}, "routes", "meaning"},
		{"space in route", KeySpec{Name: "k", Routes: []string{"a b"}}, "routes", "space"},
		{"long route", KeySpec{Name: "k", Routes: []string{strings.Repeat("x", 257)}}, "routes", "256"},
		{"route not UTF-8", KeySpec{Name: "k", Routes: []string{"\xff"}}, "routes", "UTF-8"},
		{"many routes", KeySpec{Name: "k", Routes: make([]string, 101)}, "routes", "100"},
		{"rpm", KeySpec{Name: "k", RPM: -1}, "rpm", "negative"},
		{"tpm", KeySpec{Name: "k", TPM: -1}, "tpm", "negative"},
		{"concurrency", KeySpec{Name: "k", Concurrency: -1}, "concurrency", "negative"},
		{"monthly tokens", KeySpec{Name: "k", MonthlyTokens: -1}, "monthly_tokens", "negative"},
		{"high limit", KeySpec{Name: "k", MonthlyTokens: MaxLimit + 1}, "monthly_tokens", "at most 1000000000000"},
		{"negative weight", KeySpec{Name: "k", Weight: -1}, "weight", "1 to 1000"},
		{"high weight", KeySpec{Name: "k", Weight: 1001}, "weight", "1 to 1000"},
		{"low priority", KeySpec{Name: "k", Priority: -101}, "priority", "-100 to 100"},
		{"high priority", KeySpec{Name: "k", Priority: 101}, "priority", "-100 to 100"},
		{"past", KeySpec{Name: "k", Expires: time.Now().Add(-time.Second)}, "expires", "future"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, secret, err := s.CreateKey(t.Context(), test.spec)
			spec, ok := errors.AsType[*SpecError](err)
			if !ok || spec.Field != test.field || !strings.Contains(spec.Fault, test.fault) {
				t.Errorf("%v; want field %s and %q", err, test.field, test.fault)
			}
			if secret.Reveal() != "" {
				t.Error("a key came with the error")
			}
		})
	}
	if keys, err := s.Keys(t.Context()); err != nil || len(keys) != 0 {
		t.Errorf("refused keys were stored: %v, %v", keys, err)
	}
	for _, name := range []string{"a", strings.Repeat("é", 128), "Zoë's laptop (2)", "日本"} {
		if _, _, err := s.CreateKey(t.Context(), KeySpec{Name: name, Owner: name}); err != nil {
			t.Errorf("name %q: %v", name, err)
		}
	}
}

func TestJoinTokenSpecFaults(t *testing.T) {
	s := openURL(t, "sqlite::memory:")
	for field, spec := range map[string]JoinTokenSpec{
		"node": {Node: "a b"},
		"ttl":  {TTL: -1},
	} {
		_, _, err := s.CreateJoinToken(t.Context(), spec)
		if got, ok := errors.AsType[*SpecError](err); !ok || got.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, _, err := s.CreateJoinToken(t.Context(), JoinTokenSpec{Node: execution.NodeID(strings.Repeat("x", 129))}); err == nil {
		t.Error("a node name of 129 characters was taken")
	}
}

func TestAllowsModel(t *testing.T) {
	tests := []struct {
		pattern string
		yes, no []string
	}{
		{"*", []string{"", "a", "meta-llama/Llama-3:8b"}, nil},
		{"llama3", []string{"llama3"}, []string{"", "llama", "llama33", "Llama3", "xllama3"}},
		{"llama*", []string{"llama", "llama3", "llama/a/b"}, []string{"lama", "meta-llama"}},
		{"*/*-8b", []string{"meta/x-8b", "a/b/c-8b", "/-8b"}, []string{"x-8b", "meta/x-8b-q4"}},
		{"*ab*ab", []string{"abab", "xabyab", "aabab"}, []string{"ab", "abba"}},
		{"a?c", []string{"abc", "a/c", "aéc"}, []string{"ac", "abbc"}},
		{"?*", []string{"a", "ab"}, []string{""}},
		{"a**", []string{"a", "ab"}, []string{"b"}},
		{"a.b", []string{"a.b"}, []string{"axb"}},
	}
	for _, test := range tests {
		if err := CheckGlob(test.pattern); err != nil {
			t.Errorf("pattern %q: %v", test.pattern, err)
		}
		key := Key{Routes: []string{test.pattern}}
		for _, model := range test.yes {
			if !key.AllowsModel(model) {
				t.Errorf("%q does not allow %q", test.pattern, model)
			}
		}
		for _, model := range test.no {
			if key.AllowsModel(model) {
				t.Errorf("%q allows %q", test.pattern, model)
			}
		}
	}
	if !(&Key{}).AllowsModel("anything") {
		t.Error("a key without routes does not allow everything")
	}
	several := Key{Routes: []string{"a", "b*"}}
	if !several.AllowsModel("bc") || several.AllowsModel("c") {
		t.Error("of several patterns one must match")
	}
}

// A pattern that makes backtracking matchers take exponential time.
func TestGlobIsNotExponential(t *testing.T) {
	pattern, model := strings.Repeat("*a", 100)+"b", strings.Repeat("a", 1000)
	if MatchGlob(pattern, model) {
		t.Error("matches")
	}
	if !MatchGlob(pattern, model+"b") {
		t.Error("does not match")
	}
}

func TestPrincipal(t *testing.T) {
	if p := (&Key{ID: "0Ab3dE9z"}).Principal(); p != "key:0Ab3dE9z" {
		t.Error(p)
	}
	if p := (&Key{ID: "0Ab3dE9z", Owner: "team"}).Principal(); p != "team" {
		t.Error(p)
	}
}
