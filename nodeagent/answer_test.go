package nodeagent

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/tunnel"
)

const errorEvent = `data: {"error":{"message":"CUDA out of memory","type":"server_error","code":500}}` + "\n\n"

// TestToldErrors: an error that the client has seen in its stream fails the run, and the Edge is told that there is
// nothing to add. Its words are no tokens.
func TestToldErrors(t *testing.T) {
	const (
		created = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r\"}}\n\n"
		delta   = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"x\"}\n\n"
		broke   = "event: error\ndata: {\"type\":\"error\",\"message\":\"quota\",\"code\":\"x\"}\n\n"
		failed  = "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"error\":{\"message\":\"quota\"}}}\n\n"
	)
	for _, tt := range []struct {
		name, op, answer, passed string
		usage                    execution.Usage
	}{
		{"chat", "chat.completions", firstChunk + firstChunk + errorEvent, firstChunk + firstChunk + errorEvent, execution.Usage{Output: 2, Known: true, Estimated: true}},
		{"chat, [DONE] behind it", "chat.completions", firstChunk + errorEvent + doneEvent, firstChunk + errorEvent, execution.Usage{Output: 1, Known: true, Estimated: true}},
		{"chat, usage before it", "chat.completions", firstChunk + usageChunk + errorEvent + doneEvent, firstChunk + usageChunk + errorEvent, execution.Usage{Input: 7, Output: 3, Known: true}},
		{"Responses, with its end", "responses", created + delta + broke + failed, created + delta + broke + failed, execution.Usage{Output: 1, Known: true, Estimated: true}},
		{"Responses, without it", "responses", created + delta + broke, created + delta + broke, execution.Usage{Output: 1, Known: true, Estimated: true}},
		{"Responses, failed at once", "responses", created + failed, created + failed, execution.Usage{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := testAgent(t, rawProvider(t, respond(sseHead+tt.answer)))
			r := newRun(tt.op, `{"model":"m"}`)
			r.req().Stream = true
			end := serveNow(t, a, r)
			if end.Outcome != execution.Failed || end.Code != execution.CodeProviderError || !end.Told || end.Phase != execution.PhaseProviderDone {
				t.Errorf("ended as %+v", end)
			}
			if end.Usage != tt.usage {
				t.Errorf("usage is %+v, want %+v", end.Usage, tt.usage)
			}
			if got := r.out.String(); got != tt.passed {
				t.Errorf("body is %q, want %q", got, tt.passed)
			}
		})
	}
	t.Run("what no client sees is not told", func(t *testing.T) {
		a := testAgent(t, rawProvider(t, respond(sseHead+firstChunk+`error: {"message":"boom"}`+"\n\n")))
		if end := serveNow(t, a, chatRun(true)); end.Outcome != execution.Failed || end.Told || !end.Usage.Estimated {
			t.Errorf("ended as %+v", end)
		}
	})
	t.Run("an error that comes first is a status, not usage", func(t *testing.T) {
		a := testAgent(t, rawProvider(t, respond(sseHead+errorEvent+doneEvent)))
		r := chatRun(true)
		if end := serveNow(t, a, r); end.Outcome != execution.Completed || end.Told || end.Usage.Known || r.head.GetStatus() != 502 {
			t.Errorf("ended as %+v with status %d", end, r.head.GetStatus())
		}
	})
}

// TestClientThatLeavesOverAnError: whoever hangs up on the provider's own error leaves a failed run behind, as one who stays
// does, and not one that they cancelled.
func TestClientThatLeavesOverAnError(t *testing.T) {
	const responsesError = "data: {\"type\":\"response.created\"}\n\ndata: {\"type\":\"error\",\"message\":\"x\"}\n\n"
	for name, tt := range map[string]struct {
		op, answer string
		code       execution.Code // of the cancel
		want       execution.Outcome
	}{
		"chat, over the error":      {"chat.completions", firstChunk + errorEvent, execution.CodeClientGone, execution.Failed},
		"Responses, over the error": {"responses", responsesError, execution.CodeClientGone, execution.Failed},
		"without an error":          {"chat.completions", firstChunk, execution.CodeClientGone, execution.Cancelled},
		"the operator's cancel":     {"responses", responsesError, execution.CodeCancelledByOperator, execution.Cancelled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := pipeProvider(t, func(c net.Conn, _ *http.Request) {
					io.WriteString(c, sseHead+tt.answer)
					io.Copy(io.Discard, c)
				})
				r := newRun(tt.op, `{"model":"m"}`)
				r.req().Stream = true
				r.gate = make(chan struct{})
				ctx, cancel := context.WithCancelCause(t.Context())
				done := serveAsync(a, r, ctx)
				if name != "chat, over the error" { // whose write ends by the cancel
					close(r.gate)
				}
				synctest.Wait()
				cancel(&tunnel.CancelError{Code: tt.code})
				<-done
				if end := r.terminal(t); end.Outcome != tt.want || end.Told != (tt.want == execution.Failed) {
					t.Errorf("ended as %+v", end)
				}
				a.closeIdle()
			})
		})
	}
}

// TestErrorThenSilence: a Responses stream that goes on to say nothing after its error keeps no place for long.
func TestErrorThenSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := pipeProvider(t, func(c net.Conn, _ *http.Request) {
			io.WriteString(c, sseHead+"data: {\"type\":\"response.created\"}\n\ndata: {\"type\":\"error\",\"message\":\"x\"}\n\n")
			io.Copy(io.Discard, c)
		})
		r := newRun("responses", `{"model":"m"}`)
		r.req().Stream = true
		begin := time.Now()
		<-serveAsync(a, r, t.Context())
		if end := r.terminal(t); end.Outcome != execution.Failed || !end.Told || time.Since(begin) != failedPatience {
			t.Errorf("ended after %s as %+v", time.Since(begin), end)
		}
		a.closeIdle()
	})
}

// TestUsageOfABrokenStream: what was produced is an estimate where the provider did not come to its report.
func TestUsageOfABrokenStream(t *testing.T) {
	a := testAgent(t, rawProvider(t, respond(sseHead+firstChunk+firstChunk)))
	end := serveNow(t, a, chatRun(true))
	if want := (execution.Usage{Output: 2, Known: true, Estimated: true}); end.Outcome != execution.Failed || end.Usage != want {
		t.Errorf("ended as %+v", end)
	}
}

// TestAnswerModel: the client reads its own name for the model, and all else as the provider wrote it.
func TestAnswerModel(t *testing.T) {
	named := func(answer, model string) string { return strings.ReplaceAll(answer, `"m-7b"`, `"`+model+`"`) }
	unary := `{"id":"x","model":"m-7b","choices":[{"message":{"content":"I am \"m-7b\""}}],"usage":{"prompt_tokens":7,"completion_tokens":3}}`
	long := `{"data":[` + strings.Repeat("0.25,", maxGathered/5) + `1],"model":"m-7b"}`
	chunk := `data: {"id":"x","model":"m-7b","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}` + "\n\n"
	head := func(length int, kind string) string {
		return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: %s\r\nOpenai-Model: m-7b\r\nContent-Length: %d\r\n\r\n", kind, length)
	}
	for _, tt := range []struct {
		name, op     string
		stream       bool
		answer, want string
		length       string // of the head, empty if it has none
	}{
		{"unary", "chat.completions", false, head(len(unary), "application/json") + unary, named(unary, "chat"), strconv.Itoa(len(named(unary, "chat")))},
		{"unary, length unknown", "chat.completions", false, "HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\n\r\n" + unary, named(unary, "chat"), ""},
		{"an answer that is too long to wait for", "embeddings", false, head(len(long), "application/json") + long, named(long, "chat"), ""},
		{"no JSON", "chat.completions", false, head(len(unary), "text/plain") + unary, unary, strconv.Itoa(len(unary))},
		{"an error", "chat.completions", false, "HTTP/1.1 404 Not Found\r\nContent-Type: application/problem+json\r\nContent-Length: 28\r\n\r\n" + `{"model":"m-7b","error":{}} `, `{"model":"chat","error":{}} `, "28"},
		{"without a body", "chat.completions", false, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 0\r\n\r\n", "", "0"},
		{"stream", "chat.completions", true, sseHead + ": hi\n\n" + chunk + chunk + doneEvent, ": hi\n\n" + named(chunk, "chat") + named(chunk, "chat") + doneEvent, ""},
		{"Responses", "responses", true, sseHead + "data: {\"type\":\"response.completed\",\"response\":{\"model\":\"m-7b\"}}\n\n", "data: {\"type\":\"response.completed\",\"response\":{\"model\":\"chat\"}}\n\n", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := testAgent(t, rawProvider(t, respond(tt.answer)))
			r := newRun(tt.op, `{"model":"m"}`)
			r.req().Stream, r.req().AnswerModel = tt.stream, "chat"
			end := serveNow(t, a, r)
			if end.Outcome != execution.Completed {
				t.Fatalf("ended as %+v", end)
			}
			if got := r.out.String(); got != tt.want {
				t.Errorf("body is %.300q, want %.300q", got, tt.want)
			}
			if got := r.header("content-length"); got != tt.length {
				t.Errorf("length is %q, want %q", got, tt.length)
			}
			if got := r.header("openai-model"); got != "" && got != "chat" && tt.name != "no JSON" {
				t.Errorf("the head names %q", got)
			}
			if strings.HasPrefix(tt.name, "unary") && end.Usage.Output != 3 {
				t.Errorf("usage is %+v", end.Usage)
			}
		})
	}
	t.Run("cut off before its end", func(t *testing.T) {
		a := testAgent(t, rawProvider(t, respond(head(len(unary), "application/json")+unary[:40])))
		r := chatRun(false)
		r.req().AnswerModel = "chat"
		if end := serveNow(t, a, r); end.Code != execution.CodeProviderError || r.head != nil {
			t.Errorf("ended as %+v, with the head %v", end, r.head)
		}
	})
}

// TestRetryAfterPasses: a provider's own limit is told with every status that it may come with.
func TestRetryAfterPasses(t *testing.T) {
	for _, status := range []int{200, 202, 408, 413, 429, 500, 502, 503, 504, 529} {
		a := testAgent(t, rawProvider(t, respond(fmt.Sprintf("HTTP/1.1 %d x\r\nRetry-After: 7\r\nRetry-After-Ms: 6500\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", status))))
		r := chatRun(false)
		serveNow(t, a, r)
		if r.head.GetStatus() != uint32(status) || r.header("retry-after") != "7" || r.header("retry-after-ms") != "6500" {
			t.Errorf("%d: head is %v", status, r.head)
		}
	}
}
