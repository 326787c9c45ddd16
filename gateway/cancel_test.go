package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"iop/execution"
	"iop/gateway"
	"iop/tunnel"
)

// waiting is a provider that says nothing, or what before writes, until it is cancelled. Each run's cancel code goes
// to codes.
func waiting(codes chan<- execution.Code, before func(run *tunnel.NodeRun)) handler {
	return func(ctx context.Context, run *tunnel.NodeRun) {
		if before != nil {
			before(run)
		}
		<-ctx.Done()
		code := execution.CodeNone
		if c, ok := errors.AsType[*tunnel.CancelError](context.Cause(ctx)); ok {
			code = c.Code
		}
		run.End(execution.Terminal{Outcome: execution.Cancelled, Code: code, Phase: execution.PhaseProviderCalled,
			Usage: execution.Usage{Input: 5, Output: 1, Known: true}})
		codes <- code
	}
}

func startStream(run *tunnel.NodeRun) {
	_ = run.Head(head(200, "text/event-stream"))
	_ = run.Write([]byte(chunk("a")), true)
}

func startHalfEvent(run *tunnel.NodeRun) {
	_ = run.Head(head(200, "text/event-stream"))
	_ = run.Write([]byte(`data: {"choices":[{"del`), false)
}

// lastRun is the newest run as the operator sees it.
func (e *edge) lastRun() (run struct {
	ID, State, Phase, Outcome, Code, Node, Detail string
	Status                                        int
	Usage                                         *execution.Usage
}) {
	e.t.Helper()
	var list struct{ Data []json.RawMessage }
	e.adminGet("/admin/v1/runs?limit=1", &list)
	if len(list.Data) == 1 {
		if err := json.Unmarshal(list.Data[0], &run); err != nil {
			e.t.Fatal(err)
		}
	}
	return run
}

func TestClientThatLeavesCancelsTheRun(t *testing.T) {
	tests := map[string]struct {
		body   string
		before func(*tunnel.NodeRun)
		phase  string
	}{
		"unary":                    {`{"model":"m"}`, nil, "provider_called"},
		"stream, before its head":  {`{"model":"m","stream":true}`, nil, "provider_called"},
		"stream, after one event":  {`{"model":"m","stream":true}`, startStream, "streaming"},
		"stream, inside an event":  {`{"model":"m","stream":true}`, startHalfEvent, "streaming"},
		"unary, after its headers": {`{"model":"m"}`, func(run *tunnel.NodeRun) { _ = run.Head(head(200, "application/json")) }, "provider_called"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, nil)
			codes := make(chan execution.Code, 1)
			started := make(chan struct{})
			e.addNode("n1", 1, waiting(codes, func(run *tunnel.NodeRun) {
				run.Phase(execution.PhaseProviderCalled)
				if test.before != nil {
					test.before(run)
				}
				close(started)
			}), "m")
			ctx, leave := context.WithCancel(t.Context())
			req := e.request(http.MethodPost, chat, test.body).WithContext(ctx)
			done := make(chan struct{})
			go func() {
				defer close(done)
				if resp, err := e.client.Do(req); err == nil {
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}()
			<-started
			left := time.Now()
			leave()
			<-done
			if code := <-codes; code != execution.CodeClientGone {
				t.Errorf("the Node was told %v", code)
			}
			if took := time.Since(left); took > 10*time.Second { // milliseconds; not by a HEARTBEAT, which are 30 s apart
				t.Errorf("it took %v", took)
			}
			e.idle()
			run := e.lastRun()
			if run.Outcome != "cancelled" || run.Code != "client_gone" || run.Usage == nil || run.Usage.Output != 1 {
				t.Errorf("the record is %+v", run)
			}
		})
	}
}

// TestClientThatLeavesAfterTheEnd: clients hang up on [DONE], before the Node has ended the run. They have what they asked
// for. Text that looks like it is none.
func TestClientThatLeavesAfterTheEnd(t *testing.T) {
	for last, want := range map[string]string{
		"data: [DONE]\n\n":             "completed ",
		"data:[DONE]\r\n\r\n":          "completed ",
		"data: {\"d\":\"[DONE]\"}\n\n": "cancelled client_gone",
	} {
		e := newEdge(t, nil)
		codes := make(chan execution.Code, 1)
		e.addNode("n1", 1, waiting(codes, func(run *tunnel.NodeRun) {
			startStream(run)
			_ = run.Write([]byte(last), true)
		}), "m")
		ctx, leave := context.WithCancel(t.Context())
		resp, err := e.client.Do(e.request(http.MethodPost, chat, `{"model":"m","stream":true}`).WithContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(io.LimitReader(resp.Body, int64(len(chunk("a")+last)))); err != nil || string(got) != chunk("a")+last {
			t.Errorf("read %q, %v", got, err)
		}
		leave()
		resp.Body.Close()
		if code := <-codes; code != execution.CodeClientGone {
			t.Errorf("the Node was told %v", code)
		}
		e.idle()
		if run := e.lastRun(); run.Outcome+" "+run.Code != want || run.Usage == nil || run.Usage.Output != 1 {
			t.Errorf("after %q the record is %+v, want %s", last, run, want)
		}
	}
}

func TestClientThatLeavesTheQueueIsForgotten(t *testing.T) {
	e := newEdge(t, nil)
	ctx, leave := context.WithCancel(t.Context())
	req := e.request(http.MethodPost, chat, `{"model":"m"}`).WithContext(ctx)
	done := make(chan error)
	go func() {
		_, err := e.client.Do(req)
		done <- err
	}()
	e.eventually("it waits", func() bool { return e.lastRun().State == "queued" })
	leave()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	e.idle()
	if run := e.lastRun(); run.Outcome != "cancelled" || run.Code != "client_gone" || run.Phase != "queued" {
		t.Errorf("the record is %+v", run)
	}
}

// answered is what a client got.
type answered struct {
	status int
	body   string
}

// postSlowly sends a chat request, closes reading once it is sent or, if bytes are expected, once the first has come,
// and returns the whole answer.
func (e *edge) postSlowly(body string, expect bool, reading chan<- struct{}) answered {
	if !expect {
		close(reading)
	}
	resp := e.do(e.request(http.MethodPost, chat, body))
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	if expect {
		_, _ = r.Peek(1) // what is wrong with it, the rest tells
		close(reading)
	}
	all, _ := io.ReadAll(r)
	return answered{resp.StatusCode, string(all)}
}

func TestCallerCancels(t *testing.T) {
	tests := map[string]struct {
		body   string
		before func(*tunnel.NodeRun)
		status int
		ending string
	}{
		"unary": {`{"model":"m"}`, nil, 499,
			`{"error":{"message":"The run was cancelled.","type":"invalid_request_error","param":null,"code":"run_cancelled"}}`},
		"stream": {`{"model":"m","stream":true}`, startStream, 200,
			chunk("a") + `data: {"error":{"message":"The run was cancelled.","type":"invalid_request_error","param":null,"code":"run_cancelled"}}` + "\n\n"},
		"half an event": {`{"model":"m","stream":true}`, startHalfEvent, 200,
			`data: {"choices":[{"del` + "\n\n" + `data: {"error":{"message":"The run was cancelled.","type":"invalid_request_error","param":null,"code":"run_cancelled"}}` + "\n\n"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, nil)
			codes := make(chan execution.Code, 1)
			started := make(chan string, 1)
			e.addNode("n1", 1, waiting(codes, func(run *tunnel.NodeRun) {
				if test.before != nil {
					test.before(run)
				}
				started <- run.Open().RunId
			}), "m")
			got, reading := make(chan answered, 1), make(chan struct{})
			go func() { got <- e.postSlowly(test.body, test.before != nil, reading) }()
			id := <-started
			<-reading
			status, _, body := e.post("/iop/v1/runs/"+id+"/cancel", "")
			if status != 200 || !strings.Contains(body, id) {
				t.Fatalf("cancel: %d %s", status, body)
			}
			if code := <-codes; code != execution.CodeCancelledByCaller {
				t.Errorf("the Node was told %v", code)
			}
			if r := <-got; r.status != test.status || r.body != test.ending {
				t.Errorf("the client got %d %q", r.status, r.body)
			}
			e.idle()
			var view struct {
				State, Outcome, Code string
				Usage                execution.Usage
			}
			if err := json.Unmarshal([]byte(e.get("/iop/v1/runs/"+id)), &view); err != nil {
				t.Fatal(err)
			}
			if view.State != "ended" || view.Outcome != "cancelled" || view.Code != "cancelled_by_caller" || view.Usage.Input != 5 {
				t.Errorf("the run is %+v", view)
			}
		})
	}
}

func TestRunsOfOthersAreNotThere(t *testing.T) {
	e := newEdge(t, nil)
	e.addNode("secret-node", 1, answerJSON(200, `{}`), "m")
	_, h, _ := e.post(chat, `{"model":"m"}`)
	id := h.Get("X-Iop-Run-Id")
	if got := e.get("/iop/v1/runs/" + id); !strings.Contains(got, `"outcome":"completed"`) || strings.Contains(got, "secret-node") {
		t.Errorf("own run: %s", got)
	}
	_, secret, err := e.store.CreateKey(t.Context(), stateKey("other"))
	if err != nil {
		t.Fatal(err)
	}
	e.key = secret.Reveal()
	foreign, unknown := e.get("/iop/v1/runs/"+id), e.get("/iop/v1/runs/run_x")
	if code, _ := errorOf(t, foreign); code != "run_not_found" || foreign != unknown {
		t.Errorf("a foreign run and no run differ: %s, %s", foreign, unknown)
	}
	if status, _, _ := e.post("/iop/v1/runs/"+id+"/cancel", ""); status != 404 {
		t.Errorf("cancel of a foreign run: %d", status)
	}
}

func TestBrokenStreamsAreNeverTakenForWhole(t *testing.T) {
	ends := func(code execution.Code, data ...string) handler {
		return func(_ context.Context, run *tunnel.NodeRun) {
			_ = run.Head(head(200, "text/event-stream"))
			for _, d := range data {
				_ = run.Write([]byte(d), strings.HasSuffix(d, "\n\n"))
			}
			run.End(execution.Terminal{Outcome: execution.Failed, Code: code, Phase: execution.PhaseStreaming})
		}
	}
	const told = `data: {"error":{"message":"The model's provider ended its response before it was complete.","type":"server_error","param":null,"code":"provider_error"}}` + "\n\n"
	tests := map[string]struct {
		answer handler
		status int
		want   string
	}{
		"between events":  {ends(execution.CodeProviderTruncated, chunk("a")), 200, chunk("a") + told},
		"inside an event": {ends(execution.CodeProviderTruncated, chunk("a"), "data: {"), 200, chunk("a") + "data: {\n\n" + told},
		"after [DONE]":    {ends(execution.CodeProviderError, chunk("a"), doneEvent), 200, chunk("a") + doneEvent},
		"before an event": {ends(execution.CodeProviderTruncated), 502, strings.TrimSuffix(strings.TrimPrefix(told, "data: "), "\n\n")},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, nil)
			e.addNode("n1", 1, test.answer, "m")
			if status, _, body := e.post(chat, `{"model":"m","stream":true}`); status != test.status || body != test.want {
				t.Errorf("got %d %q", status, body)
			}
			e.idle()
		})
	}
}

func TestBrokenUnaryAnswers(t *testing.T) {
	big := strings.Repeat("x", 200_000)
	tests := map[string]struct {
		head []string
		data string
		cut  bool // bytes went out, so that only cutting the connection is left
	}{
		"small, of known length":   {[]string{"content-length", "1000"}, "{", false},
		"small, of unknown length": {nil, "{", false},
		"large, of known length":   {[]string{"content-length", "400000"}, big, true},
		"large, of unknown length": {nil, big, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			e := newEdge(t, nil)
			e.addNode("n1", 1, func(_ context.Context, run *tunnel.NodeRun) {
				_ = run.Head(head(200, "application/json", test.head...))
				_ = run.Write([]byte(test.data), false)
				run.End(execution.Terminal{Outcome: execution.Failed, Code: execution.CodeProviderTruncated})
			}, "m")
			resp := e.do(e.request(http.MethodPost, chat, `{"model":"m"}`))
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			switch {
			case test.cut && err == nil:
				t.Errorf("the client takes %d bytes for the whole answer", len(body))
			case !test.cut && resp.StatusCode != 502:
				t.Errorf("got %d %s", resp.StatusCode, body)
			}
			e.idle()
		})
	}
}

// A Node that is lost ends its runs; what had begun is told in-band, what had not goes to another Node.
func TestLostNode(t *testing.T) {
	e := newEdge(t, nil)
	codes := make(chan execution.Code, 2)
	started := make(chan struct{}, 2)
	lost := e.addNode("lost", 2, waiting(codes, func(run *tunnel.NodeRun) {
		if run.Open().GetProviderTunnel().Stream {
			startStream(run)
		}
		started <- struct{}{}
	}), "m")
	streamed, unary := make(chan string, 1), make(chan string, 1)
	go func() { _, _, body := e.post(chat, `{"model":"m","stream":true}`); streamed <- body }()
	<-started
	go func() { _, _, body := e.post(chat, `{"model":"m"}`); unary <- body }()
	<-started
	e.addNode("other", 2, answerJSON(200, `{"other":true}`), "m")
	lost.stop()
	if body := <-streamed; !strings.HasPrefix(body, chunk("a")) || !strings.Contains(body, `"error"`) || strings.Contains(body, "[DONE]") {
		t.Errorf("stream: %q", body)
	}
	if body := <-unary; body != `{"other":true}` {
		t.Errorf("unary: %q", body)
	}
	e.idle()
}

// Requests that wait for a Node run when one joins.
func TestWaitsForANode(t *testing.T) {
	e := newEdge(t, nil)
	const n = 5
	got := make(chan string, n)
	for range n {
		go func() { _, _, body := e.post(chat, `{"model":"m"}`); got <- body }()
	}
	e.eventually("all wait", func() bool {
		var st struct{ Queued int }
		e.adminGet("/admin/v1/status", &st)
		return st.Queued == n
	})
	e.addNode("n1", 2, answerJSON(200, `{"ok":true}`), "m")
	for range n {
		if body := <-got; body != `{"ok":true}` {
			t.Errorf("got %q", body)
		}
	}
	e.idle()
}

func TestQueueIsBounded(t *testing.T) {
	e := newEdge(t, func(c *gateway.Config) { c.QueueLimit = 2 })
	codes := make(chan execution.Code, 8)
	e.addNode("n1", 1, waiting(codes, nil), "m")
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan struct{}, 3)
	for range 3 {
		go func() {
			if resp, err := e.client.Do(e.request(http.MethodPost, chat, `{"model":"m"}`).WithContext(ctx)); err == nil {
				resp.Body.Close()
			}
			done <- struct{}{}
		}()
	}
	e.eventually("two wait", func() bool {
		var st struct{ Queued, Streams int }
		e.adminGet("/admin/v1/status", &st)
		return st.Queued == 2 && st.Streams == 1
	})
	status, h, body := e.post(chat, `{"model":"m"}`)
	if code, _ := errorOf(t, body); status != 429 || code != "queue_full" || h.Get("Retry-After") == "" {
		t.Errorf("got %d %s", status, body)
	}
	leave()
	for range 3 {
		<-done
	}
	e.idle()
}

func TestDrainTellsClients(t *testing.T) {
	e := newEdge(t, func(c *gateway.Config) { c.DrainTimeout = 100 * time.Millisecond })
	codes := make(chan execution.Code, 2)
	e.addNode("n1", 1, waiting(codes, startStream), "m")
	resp := e.do(e.request(http.MethodPost, chat, `{"model":"m","stream":true}`))
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	if line, _ := r.ReadString('\n'); line+"\n" != chunk("a") {
		t.Fatalf("got %q", line)
	}
	type told struct {
		status int
		answer string
	}
	queued := make(chan told, 1)
	go func() { status, _, answer := e.post(chat, `{"model":"m"}`); queued <- told{status, answer} }()
	e.eventually("one waits", func() bool { return e.lastRun().State == "queued" })
	e.stop()
	waited := <-queued
	if code, _ := errorOf(t, waited.answer); waited.status != 503 || code != "stopping" {
		t.Errorf("a queued request gets %d %s", waited.status, waited.answer)
	}
	rest, err := io.ReadAll(r)
	if err != nil || !strings.Contains(string(rest), `"code":"interrupted"`) {
		t.Errorf("the stream ends with %q, %v", rest, err)
	}
	if code := <-codes; code != execution.CodeDrainDeadline {
		t.Errorf("the Node was told %v", code)
	}
	select {
	case err := <-e.done:
		e.done <- err
	case <-time.After(patience):
		t.Error("Run does not end")
	}
}
