package gateway_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"iop/execution"
	"iop/gateway"
	"iop/gateway/admin"
	"iop/tunnel"
)

// TestTrialOfWhichNothingIsKnown: whatever ends a run without a word on its target, its breaker's trial ends with it, and
// the next request is one.
func TestTrialOfWhichNothingIsKnown(t *testing.T) {
	const file = "routes: [{model: chat, targets: [{model: m}]}]"
	small := `{"model":"chat"}`
	tests := map[string]struct {
		path    string
		body    string
		neutral handler
		panics  bool
	}{
		"the run says nothing": {chat, small, failedWith(execution.CodeCredentialRejected, execution.PhaseAdmitted), false},
		"it is not opened":     {"/v1/messages", `{"max_tokens":5,"messages":[{"role":"user","content":"` + strings.Repeat("x", 900_000) + `"}],"model":"chat"}`, nil, false}, // there is no room to parse it
		"a panic":              {chat, small, answerJSON(200, ""), true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "iop.yaml")
			writeRoutes(t, path, file)
			e := newEdge(t, func(c *gateway.Config) { c.Config, c.MaxBodyBytes, c.BodyBudget = path, 1<<20, 3<<19 })
			var answer atomic.Pointer[handler]
			set := func(h handler) { answer.Store(&h) }
			set(answerJSON(502, `{"error":{"message":"no"}}`))
			e.addProvider("n1", runsOn("openai", "chat.completions"), func(ctx context.Context, run *tunnel.NodeRun) { (*answer.Load())(ctx, run) }, "m")
			breaker := func() string {
				var list struct{ Data []admin.Route }
				e.adminGet("/admin/v1/routes", &list)
				return list.Data[0].Groups[0].Targets[0].Breaker
			}
			for range 5 {
				e.post(chat, small)
			}
			e.eventually("a trial is let through", func() bool { return breaker() == "half_open" })
			set(test.neutral)
			if test.panics {
				req := httptest.NewRequest(http.MethodPost, chat, strings.NewReader(test.body))
				req.Header.Set("Authorization", "Bearer "+e.key)
				func() {
					defer func() { _ = recover() }()
					e.server.Public().ServeHTTP(&faulty{http.Header{}, 0, nil}, req)
				}()
			} else if status, _, body := e.post(test.path, test.body); status < 500 {
				t.Fatalf("%d %s", status, body)
			}
			if got := breaker(); got != "half_open" {
				t.Fatalf("the breaker is %s", got)
			}
			e.idle()
			set(answerJSON(200, `{}`))
			e.post(chat, small)
			var list struct{ Data []struct{ Reason string } }
			e.adminGet("/admin/v1/runs?limit=1", &list)
			if got := list.Data[0].Reason; !strings.HasPrefix(got, "trial ") || breaker() != "closed" {
				t.Errorf("the next request got its target by %q, and the breaker is %s", got, breaker())
			}
			e.idle()
		})
	}
}
