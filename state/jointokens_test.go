package state

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
)

// TestTokenHasSoManyNames: a token gets no further name, keeps those that it has, and a name that was not used for a month
// does not count.
func TestTokenHasSoManyNames(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		token, _ := createJoinToken(t, s, JoinTokenSpec{JoinTokenBounds: JoinTokenBounds{MaxNodes: 2}})
		other, _ := createJoinToken(t, s, JoinTokenSpec{})
		claim := func(token JoinToken, node execution.NodeID, want error) {
			t.Helper()
			if err := s.ClaimNode(t.Context(), token.ID, node); !errors.Is(err, want) {
				t.Errorf("ClaimNode(%s, %s): %v; want %v", token.ID, node, err, want)
			}
		}
		claim(other, "c", nil)
		claim(token, "a", nil)
		claim(token, "b", nil)
		claim(token, "c", ErrNodeTaken)
		claim(token, "d", ErrTooManyNodes)
		claim(token, "a", nil)
		claim(other, "d", nil)
	})
	synctest.Test(t, func(t *testing.T) {
		s := openURL(t, "sqlite::memory:")
		token, _ := createJoinToken(t, s, JoinTokenSpec{})
		for i := range defaultNodes {
			if err := s.ClaimNode(t.Context(), token.ID, execution.NodeID(fmt.Sprint("n-", i))); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.ClaimNode(t.Context(), token.ID, "more"); !errors.Is(err, ErrTooManyNodes) {
			t.Errorf("beyond the default: %v", err)
		}
		time.Sleep(nameMemory)
		if err := s.ClaimNode(t.Context(), token.ID, "more"); err != nil {
			t.Errorf("a month later: %v", err)
		}
	})
}

func TestJoinTokenBounds(t *testing.T) {
	onEach(t, func(t *testing.T, s *Store) {
		spec := JoinTokenSpec{
			Labels: []string{"site=lab", "gpu=h*", "spot="}, Models: []string{"llama*", "qwen3"},
			JoinTokenBounds: JoinTokenBounds{MaxNodes: 3, MaxModels: 7, MaxInventoryBytes: 1 << 20},
		}
		_, secret := createJoinToken(t, s, spec)
		got, err := s.VerifyJoinToken(t.Context(), secret)
		if err != nil {
			t.Fatal(err)
		}
		if got.JoinTokenBounds != (JoinTokenBounds{MaxNodes: 3, MaxSessions: 12, MaxModels: 7, MaxInventoryBytes: 1 << 20}) {
			t.Errorf("bounds %+v", got.JoinTokenBounds)
		}
		for label, want := range map[string]bool{"site=lab": true, "site=home": false, "gpu=h100": true, "gpu=a100": false, "spot=": true, "spot=x": false, "rack=1": false} {
			key, value, _ := strings.Cut(label, "=")
			if got.AllowsLabel(key, value) != want {
				t.Errorf("label %s", label)
			}
		}
		for model, want := range map[string]bool{"llama3.2:latest": true, "qwen3": true, "qwen3:8b": false, "gpt-5": false} {
			if got.AllowsModel(model) != want {
				t.Errorf("model %s", model)
			}
		}
	})
	bound := JoinTokenBounds{}.complete(true)
	if bound != (JoinTokenBounds{1, 4, MaxModelsBound, 64 << 20}) {
		t.Errorf("of a bound token: %+v", bound)
	}
	if any := (&JoinToken{}); !any.AllowsLabel("a", "b") || !any.AllowsModel("m") {
		t.Error("a token without patterns allows not all")
	}
}

func TestJoinTokenClaimFaults(t *testing.T) {
	many := make([]string, 101)
	for i := range many {
		many[i] = "a=b"
	}
	for name, test := range map[string]struct {
		spec  JoinTokenSpec
		field string
	}{
		"a label without a value": {JoinTokenSpec{Labels: []string{"site"}}, "labels"},
		"a label without a name":  {JoinTokenSpec{Labels: []string{"=x"}}, "labels"},
		"a pattern as label":      {JoinTokenSpec{Labels: []string{"*=x"}}, "labels"},
		"a label with a class":    {JoinTokenSpec{Labels: []string{"a=[x]"}}, "labels"},
		"too many labels":         {JoinTokenSpec{Labels: many}, "labels"},
		"an empty model":          {JoinTokenSpec{Models: []string{""}}, "models"},
		"too many models":         {JoinTokenSpec{Models: many}, "models"},
		"names below 0":           {JoinTokenSpec{JoinTokenBounds: JoinTokenBounds{MaxNodes: -1}}, "max_nodes"},
		"too many names":          {JoinTokenSpec{JoinTokenBounds: JoinTokenBounds{MaxNodes: MaxNodesBound + 1}}, "max_nodes"},
		"too many sessions":       {JoinTokenSpec{JoinTokenBounds: JoinTokenBounds{MaxSessions: MaxSessionsBound + 1}}, "max_sessions"},
		"too many models at once": {JoinTokenSpec{JoinTokenBounds: JoinTokenBounds{MaxModels: MaxModelsBound + 1}}, "max_models"},
		"too large an inventory":  {JoinTokenSpec{JoinTokenBounds: JoinTokenBounds{MaxInventoryBytes: MaxInventoryBytesBound + 1}}, "max_inventory_bytes"},
	} {
		if fault, ok := errors.AsType[*SpecError](test.spec.check()); !ok || fault.Field != test.field {
			t.Errorf("%s: %v", name, fault)
		}
	}
}
