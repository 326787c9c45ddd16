package gateway_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"iop/execution"
	"iop/state"
	"iop/tunnel"
)

// faulty is a ResponseWriter that panics at its nth write of a body, or where n is 0 at the head.
type faulty struct {
	header http.Header
	n      int
	wrote  chan struct{} // receives after each write
}

func (f *faulty) Header() http.Header { return f.header }
func (f *faulty) Flush()              {}

func (f *faulty) WriteHeader(int) {
	if f.n == 0 {
		panic("of this test, at the head")
	}
}

func (f *faulty) Write(p []byte) (int, error) {
	if f.n--; f.n == 0 {
		panic("of this test, at a write")
	}
	f.wrote <- struct{}{}
	return len(p), nil
}

// TestPanicLeavesNothingBehind: neither a run, nor a place on a Node or in the queue, nor a hold on the key's limits.
func TestPanicLeavesNothingBehind(t *testing.T) {
	tests := map[string]struct {
		n      int
		body   string
		queued bool
		want   execution.Usage
	}{
		"head of an answer":   {0, `{"model":"m","max_tokens":99,"messages":[]}`, false, execution.Usage{Input: 1, Output: 99, Known: true, Estimated: true}},
		"in a stream":         {2, `{"model":"m","max_tokens":99,"messages":[],"stream":true}`, false, execution.Usage{Input: 1, Output: 1, Known: true, Estimated: true}},
		"head while it waits": {0, `{"model":"m","max_tokens":99,"messages":[],"stream":true}`, true, execution.Usage{}},
		"news while it waits": {1, `{"model":"m","max_tokens":99,"messages":[],"stream":true}`, true, execution.Usage{}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, nil)
			cancelled := make(chan execution.Code, 1)
			started := make(chan struct{}, 1)
			release := make(chan struct{})
			wrote := make(chan struct{}, 8)
			n := 0
			e.addNode("n1", 1, func(ctx context.Context, run *tunnel.NodeRun) {
				n++
				switch {
				case n == 1 && test.queued: // takes the place
					started <- struct{}{}
					<-release
					uses(1, 1)(ctx, run)
				case n == 1 && test.n > 0:
					startStream(run)
					waiting(cancelled, func(run *tunnel.NodeRun) {
						<-wrote
						_ = run.Write([]byte(chunk("b")), true)
					})(ctx, run)
				default:
					uses(1, 1)(ctx, run)
				}
			}, "m")
			first := make(chan struct{})
			if test.queued {
				go func() { defer close(first); e.post(chat, `{"model":"m"}`) }()
				<-started
			} else {
				close(first)
			}
			key := e.newKey(state.KeySpec{Concurrency: 1, MonthlyTokens: 1000})
			req := httptest.NewRequest(http.MethodPost, chat, strings.NewReader(test.body))
			req.Header.Set("Authorization", "Bearer "+key)
			req.Header.Set("X-IOP-Queue-Updates", "1")
			func() {
				defer func() {
					if p := recover(); p != http.ErrAbortHandler {
						t.Errorf("net/http gets %v", p)
					}
				}()
				e.server.Public().ServeHTTP(&faulty{http.Header{}, test.n, wrote}, req)
			}()
			if !test.queued && test.n > 0 {
				if code := <-cancelled; code != execution.CodeInternal {
					t.Errorf("the Node was told %v", code)
				}
			}
			close(release)
			<-first
			e.idle()
			var record *state.UsageRecord
			for _, r := range e.records() {
				if r.Outcome == execution.Failed {
					record = &r
				}
			}
			if record == nil || record.Code != execution.CodeInternal || record.Usage != test.want || record.Duration <= 0 {
				t.Errorf("the usage record is %+v", record)
			}
			e.as(key, func() { // the concurrency is there again, and the budget but for what may have been used
				if status, _, body := e.post(chat, asks(int(999-test.want.Input-test.want.Output))); status != 200 {
					t.Errorf("the next request: %d %s", status, body)
				}
			})
			if e.metric("iop_panics_total") != 1 {
				t.Error("the panic is not counted")
			}
			e.idle()
		})
	}
}
