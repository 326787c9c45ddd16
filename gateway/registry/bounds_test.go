package registry

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"iop/execution"
	"iop/state"
	"iop/tunnel"
)

// TestTokenBoundsItsSessions: over all its names, those that are not ready too; each that ends makes room.
func TestTokenBoundsItsSessions(t *testing.T) {
	r := newRegistry(t)
	token := &state.JoinToken{ID: "t1", JoinTokenBounds: state.JoinTokenBounds{MaxSessions: 3}}
	var open []*fakeSession
	for i := range 3 {
		s := newSession(fmt.Sprint(i))
		s.node, s.proof = execution.NodeID(fmt.Sprint("n", i)), token
		register(t, r, s)
		open = append(open, s)
	}
	fourth := newSession("4")
	fourth.node, fourth.proof = "n4", token
	if _, err := r.register(t.Context(), fourth); code(err) != "token_limit" || !strings.Contains(err.Error(), "3 sessions") {
		t.Errorf("a session too many: %v", err)
	}
	other := newSession("5")
	other.node, other.token, other.proof = "n5", "t2", &state.JoinToken{ID: "t2", JoinTokenBounds: token.JoinTokenBounds}
	register(t, r, other) // another token has room of its own
	r.gone(open[0].node, open[0].gen, nil)
	register(t, r, fourth)
}

func TestTokenAllowsLabels(t *testing.T) {
	r := newRegistry(t)
	token := &state.JoinToken{ID: "t1", Labels: []string{"site=lab", "gpu=h*"}}
	for name, test := range map[string]struct {
		labels map[string]string
		names  string // in the refusal; empty: it is taken
	}{
		"none":             {nil, ""},
		"some of them":     {map[string]string{"gpu": "h100"}, ""},
		"another value":    {map[string]string{"site": "prod"}, "site=prod"},
		"another label":    {map[string]string{"site": "lab", "tier": "gold"}, "tier=gold"},
		"in other letters": {map[string]string{"Site": "lab"}, "Site=lab"},
	} {
		s := newSession(name)
		s.node, s.proof = "labelled", token
		info := *s.info
		info.Labels = test.labels
		s.info = &info
		_, err := r.register(t.Context(), s)
		if test.names == "" && err != nil || test.names != "" && (code(err) != "label_not_allowed" || !strings.Contains(err.Error(), test.names)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTooManyNamesIsTold(t *testing.T) {
	r := newRegistry(t)
	s := newSession("a")
	s.token = "full"
	if _, err := r.register(t.Context(), s); code(err) != "token_limit" || !strings.Contains(err.Error(), "--max-nodes") {
		t.Errorf("got %v", err)
	}
}

// TestAllowanceOfAToken is what the tunnel is told of a token.
func TestAllowanceOfAToken(t *testing.T) {
	r := newRegistry(t)
	id, err := r.Authenticate(&http.Request{Header: http.Header{"Authorization": {"Bearer good"}}})
	if err != nil || id.Allowance == nil || id.Allowance.Account != "token t1" || id.Allowance.Model != nil {
		t.Fatalf("%+v, %v", id.Allowance, err)
	}
	a := allowance(&state.JoinToken{ID: "x", Models: []string{"llama*"}, JoinTokenBounds: state.JoinTokenBounds{MaxModels: 5, MaxInventoryBytes: 7}})
	if a.Models != 5 || a.InventoryBytes != 7 || !a.Model("llama3") || a.Model("gpt") {
		t.Errorf("%+v", a)
	}
}

// TestOffersCostNoMoreThanTheirModels: each model is looked at once, however many providers there are.
func TestOffersCostNoMoreThanTheirModels(t *testing.T) {
	info := &tunnel.NodeInfo{}
	for i := range 256 {
		info.Providers = append(info.Providers, tunnel.ProviderInfo{ID: execution.ProviderID(fmt.Sprint("p", i)), Adapter: "openai"})
	}
	for i := range 4096 {
		info.Models = append(info.Models, tunnel.ModelInfo{Provider: execution.ProviderID(fmt.Sprint("p", i%256)), ID: fmt.Sprint("m", i)})
	}
	for i, o := range offers(info, false, nil) {
		if len(o.Models) != 16 || o.Models[1].ID != fmt.Sprint("m", i+256) {
			t.Fatalf("%s: %v", o.Provider, o.Models)
		}
	}
}
