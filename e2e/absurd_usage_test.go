package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestAbsurdUsage: a provider that reports 10^15 tokens, behind a real Node, spoils the route for nobody: neither the key
// that met it nor a key with a budget is refused afterwards.
func TestAbsurdUsage(t *testing.T) {
	t.Parallel()
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.Method == http.MethodGet {
			_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"sim-small","object":"model"}]}`)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprint(w, `{"id":"x","object":"chat.completion","model":"sim-small","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],
			"usage":{"prompt_tokens":1000000000000000,"completion_tokens":1000000000000000,"total_tokens":2000000000000000}}`)
	}))
	t.Cleanup(provider.Close)
	s := newStack(t, stackConfig{provider: "lies=" + provider.URL})
	budget := s.with(s.limitedKey("budget", "--monthly-tokens", "2000000").Key)
	for range 3 {
		budget.served(t, chat("sim-small", "", false))
	}
	s.quiet()
	for id, r := range s.records() {
		if !r.Estimated || r.Input > 1<<18 || r.Output > 1<<18 || r.Input < 1 || r.Output < 1 {
			t.Errorf("%s is booked as %+v", id, r)
		}
	}
	if n := s.metric("iop_usage_implausible_total"); n != 3 {
		t.Errorf("%v reports are counted as implausible, want 3", n)
	}
	s.startNode("honest", "--provider", "sim="+s.startSim().url)
	fresh := s.with(s.limitedKey("fresh", "--monthly-tokens", "20000").Key)
	for range 10 {
		s.with(s.key).served(t, chat("sim-small", "tokens=3", false))
	}
	fresh.served(t, chat("sim-small", "tokens=3", false))
}
