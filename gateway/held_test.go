package gateway_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"iop/execution"
	"iop/tunnel"
)

// TestStreamUnderWayHoldsNoRequest: a request's body counts against the budget until its answer has begun, after which
// it is never sent again; long streams with large prompts must not keep others out.
func TestStreamUnderWayHoldsNoRequest(t *testing.T) {
	e := newEdge(t, nil)
	read, answer, end := make(chan struct{}), make(chan struct{}), make(chan struct{})
	e.addNode("n1", 4, func(_ context.Context, run *tunnel.NodeRun) {
		_, _ = io.Copy(io.Discard, run)
		close(read)
		<-answer
		_ = run.Head(head(http.StatusOK, "text/event-stream"))
		_ = run.Write([]byte(chunk("hello")), true)
		<-end
		_ = run.Write([]byte(doneEvent), true)
		run.End(execution.Terminal{Outcome: execution.Completed, Phase: execution.PhaseProviderDone})
	}, "m")
	held := func() int64 {
		var st struct {
			Body int64 `json:"body_budget_bytes"`
		}
		e.adminGet("/admin/v1/status", &st)
		return st.Body
	}
	// The usage is asked for behind the client's back: that costs no second body.
	body := `{"model":"m","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("x", 1<<20) + `"}]}`
	req := e.request(http.MethodPost, "/v1/chat/completions", body)
	responded := make(chan *http.Response, 1)
	go func() {
		defer close(responded)
		resp, err := e.client.Do(req)
		if err != nil {
			t.Error(err)
			return
		}
		responded <- resp
	}()
	<-read
	if n := held(); n != int64(len(body)) {
		t.Errorf("%d bytes are held before the answer, want one body, %d", n, len(body))
	}
	close(answer)
	resp := <-responded
	if resp == nil {
		t.FailNow()
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	if line, err := lines.ReadString('\n'); err != nil || line+"\n" != chunk("hello") {
		t.Errorf("%q, %v", line, err)
	}
	e.eventually("the stream holds no body", func() bool { return held() == 0 })
	close(end)
	if rest, err := io.ReadAll(lines); err != nil || string(rest) != "\n"+doneEvent {
		t.Errorf("%q, %v", rest, err)
	}
	e.idle()
}

// TestUnreadAnswerHoldsNoRequest: a client that takes nothing of its answer does not keep its request's body in memory.
func TestUnreadAnswerHoldsNoRequest(t *testing.T) {
	event := chunk("hello") + doneEvent
	whole := `{"object":"chat.completion"}`
	for name, answer := range map[string]handler{
		"a stream": func(ctx context.Context, run *tunnel.NodeRun) {
			_ = run.Head(head(http.StatusOK, "text/event-stream"))
			_ = run.Write([]byte(event), true)
			<-ctx.Done()
			run.End(execution.Terminal{Outcome: execution.Cancelled, Code: execution.CodeClientGone})
		},
		"a whole answer":     answerJSON(http.StatusOK, whole+strings.Repeat(" ", 10<<10)),
		"a provider's error": answerJSON(http.StatusBadRequest, errorBody(strings.Repeat("x", 10<<10))),
	} {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, nil)
			read, proceed := make(chan struct{}), make(chan struct{})
			e.addNode("n1", 4, func(ctx context.Context, run *tunnel.NodeRun) {
				_, _ = io.Copy(io.Discard, run)
				close(read)
				<-proceed
				answer(ctx, run)
			}, "m")
			held := func() (n int64) {
				var st struct {
					Body int64 `json:"body_budget_bytes"`
				}
				e.adminGet("/admin/v1/status", &st)
				return st.Body
			}
			dialer := func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, e.server.Addr().String())
			}
			c := &callers{t: t, dial: dialer, key: e.key}
			defer c.leave()
			body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", 50<<10) + `"}]}`
			c.http2With(body)
			<-read
			if n := held(); n < int64(len(body)) {
				t.Errorf("%d bytes are held before the answer, want %d at least", n, len(body))
			}
			close(proceed)
			e.eventually("nothing is held", func() bool { return held() == 0 })
			var st struct {
				Runs int `json:"runs_in_flight"`
			}
			if e.adminGet("/admin/v1/status", &st); st.Runs != 1 {
				t.Errorf("%d runs are under way, want the one whose client reads nothing", st.Runs)
			}
		})
	}
}
