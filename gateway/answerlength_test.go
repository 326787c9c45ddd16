package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"iop/execution"
	"iop/gateway/admin"
	"iop/tunnel"
)

// TestAnswersKeepToTheirLength: a Node that sends more or less than the content-length of its answer has not completed it: the
// client is not told that it is whole, never gets a byte beyond the length, and the run is booked as failed.
func TestAnswersKeepToTheirLength(t *testing.T) {
	for _, length := range []int{0, 10, 60 << 10, 100 << 10} {
		for name, more := range map[string]int{"exact": 0, "one short": -1, "one over": 1, "half": -length / 2, "far over": 300 << 10} {
			if length+more < 0 {
				continue
			}
			t.Run(fmt.Sprint(length, " ", name), func(t *testing.T) {
				t.Parallel()
				e := newEdge(t, nil)
				e.addNode("n1", 4, answerAs(200, "application/json", strings.Repeat("x", length+more), "content-length", strconv.Itoa(length)), "m")
				for _, client := range []*http.Client{e.client, e.h2()} {
					resp, err := client.Do(e.request(http.MethodPost, chat, `{"model":"m"}`))
					whole := err == nil && resp.StatusCode == http.StatusOK
					if err == nil {
						got, err := io.ReadAll(resp.Body)
						resp.Body.Close()
						whole = whole && err == nil
						if resp.StatusCode == http.StatusOK && len(got) > length {
							t.Errorf("%s: %d bytes of %d", resp.Proto, len(got), length)
						}
					}
					if exact := length+more == length; whole != exact {
						t.Errorf("the client takes it for whole: %t", whole)
					}
				}
				e.idle()
				want := "completed"
				if more != 0 {
					want = "failed"
				}
				for _, run := range e.recent(2) {
					if run.Outcome != want {
						t.Errorf("booked as %s (%s), want %s", run.Outcome, run.Code, want)
					}
				}
			})
		}
	}
}

// recent waits until so many runs have ended, and returns them.
func (e *edge) recent(n int) (runs []admin.Run) {
	e.eventually(fmt.Sprint(n, " runs ended"), func() bool {
		var list struct{ Data []admin.Run }
		e.adminGet("/admin/v1/runs?state=ended", &list)
		runs = list.Data
		return len(runs) == n
	})
	return runs
}

// TestBrokenNodeOpensItsBreaker: a Node that breaks the contract, or can't do its part, gets no more runs than one whose provider
// fails: else it fails fastest, looks least busy and gets all.
func TestBrokenNodeOpensItsBreaker(t *testing.T) {
	for _, code := range []execution.Code{execution.CodeInternal, execution.CodeProtocol, execution.CodeFlowControl} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			e := newEdge(t, nil)
			var broken atomic.Int64
			e.addNode("n1", 4, func(_ context.Context, run *tunnel.NodeRun) {
				broken.Add(1)
				run.End(execution.Terminal{Outcome: execution.Failed, Code: code, Phase: execution.PhaseProviderCalled})
			}, "m")
			e.addNode("n2", 4, answerJSON(200, `{}`), "m")
			for range 60 {
				e.post(chat, `{"model":"m"}`)
			}
			if n := broken.Load(); n > 15 { // five, and trials
				t.Errorf("it got %d of 60", n)
			}
		})
	}
}
