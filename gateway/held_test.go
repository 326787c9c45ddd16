package gateway_test

import (
	"bufio"
	"context"
	"io"
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
	// The usage is asked for behind the client's back: the second body counts as well.
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
	if n := held(); n < 2*int64(len(body)) {
		t.Errorf("%d bytes are held before the answer, want both bodies, %d", n, 2*len(body))
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
