package gateway_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"iop/execution"
	"iop/tunnel"
)

// Each attempt that produced something is booked, not the last alone.
func TestRetriesAreBooked(t *testing.T) {
	e, _ := withRoutes(t, `
routes:
  - model: m
    retry: {attempts: 3, on: [server_error]}
`)
	body := fmt.Sprintf(`{"error":{"code":500,"message":"Failed to parse input at pos 9: %s"}}`, strings.Repeat("word ", 800))
	for _, node := range []string{"n1", "n2", "n3"} {
		e.addNode(node, 1, answerJSON(500, body), "m")
	}
	if status, _, answer := e.post(chat, `{"model":"m","messages":[],"max_tokens":2000}`); status < 500 {
		t.Fatalf("%d %s", status, answer)
	}
	e.idle()
	rec := e.records()[0]
	if got, want := rec.Usage.Output, 3*int64(len(body)/4); got < want-3 || got > want+3 || rec.Attempts != 3 {
		t.Errorf("booked are %d tokens of about %d, in %d attempts", got, want, rec.Attempts)
	}
}

// A provider that gives up on a long answer has worked on it; one that says so at once, or fails otherwise, has not.
func TestTimeoutsOfProvidersAreBooked(t *testing.T) {
	for name, test := range map[string]struct {
		status int
		takes  time.Duration
		booked int64
	}{
		"504": {504, 150 * time.Millisecond, 2000}, "408": {408, 150 * time.Millisecond, 2000}, "524": {524, 150 * time.Millisecond, 2000},
		"504 at once": {504, 0, 0}, "500": {500, 150 * time.Millisecond, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEdge(t, nil)
			e.addNode("n1", 1, func(_ context.Context, run *tunnel.NodeRun) {
				began := time.Now()
				time.Sleep(test.takes)
				_ = run.Head(head(test.status, "application/json"))
				_ = run.Write([]byte(`{"error":{"message":"timed out"}}`), false)
				end := execution.Terminal{Outcome: execution.Completed, Phase: execution.PhaseProviderDone}
				if test.takes > 0 {
					end.Timings.Provider = time.Since(began)
				}
				run.End(end)
			}, "m")
			if status, _, answer := e.post(chat, `{"model":"m","messages":[],"max_tokens":2000}`); status < 400 {
				t.Fatalf("%d %s", status, answer)
			}
			e.idle()
			if got := e.records()[0].Usage.Output; got != test.booked {
				t.Errorf("booked are %d tokens, want %d", got, test.booked)
			}
		})
	}
}
