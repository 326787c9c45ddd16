package nodeagent

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"iop/execution"
	"iop/lease"
	"iop/nodeagent/adapter/adaptertest"
	"iop/tunnel"
	"iop/tunnel/wire"
)

// normalizedRun is a run of the input, which says hello unless edits say more.
func normalizedRun(t testing.TB, edits ...func(*execution.Input)) *fakeRun {
	t.Helper()
	in := &execution.Input{Messages: []execution.Message{{Role: execution.RoleUser, Parts: []execution.Part{{Kind: execution.PartText, Text: "hello"}}}}}
	for _, edit := range edits {
		edit(in)
	}
	body, err := execution.AppendInput(nil, in)
	if err != nil {
		t.Fatal(err)
	}
	r := newRun("", string(body))
	r.open.Kind = &wire.Open_Run{Run: &wire.RunRequest{Provider: "p", Model: "m", Stream: true}}
	return r
}

func (r *fakeRun) run() *wire.RunRequest { return r.open.GetRun() }

// events are what was sent, in order.
func (r *fakeRun) events(t testing.TB) (events []execution.Event) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for data := r.out.Bytes(); len(data) > 0; {
		var e execution.Event
		n, err := tunnel.ParseRunEvent(data, &e)
		if err != nil || n == 0 {
			t.Fatalf("%q is no event: %v", data, err)
		}
		events = append(events, e)
		data = data[n:]
	}
	return events
}

// said writes the events for a comparison, without the usage.
func (r *fakeRun) said(t testing.TB) string {
	t.Helper()
	lines := adaptertest.Lines(r.events(t), execution.Usage{}, nil)
	return lines[:strings.LastIndex(strings.TrimSuffix(lines, "\n"), "\n")+1]
}

func engine(spec ProviderSpec, e Engine) ProviderSpec {
	spec.Engine = e
	return spec
}

const (
	ollamaLines = `{"model":"m","created_at":"2025-11-29T10:00:00Z","message":{"role":"assistant","content":"hi"},"done":false}` + "\n"
	ollamaEnd   = `{"model":"m","created_at":"2025-11-29T10:00:01Z","message":{"role":"assistant","content":""},"done":true,"done_reason":"stop","prompt_eval_count":7,"eval_count":3}` + "\n"
	ndjsonHead  = "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nConnection: close\r\n\r\n"
	claudeStart = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"x\",\"model\":\"m\",\"usage\":{\"input_tokens\":7,\"output_tokens\":1}}}\n\n" +
		"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n" +
		"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"hi\"}}\n\n"
	claudeEnd = "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":3}}\n\n" +
		"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
)

// dialects are what each protocol's provider answers.
var dialects = []struct {
	engine            Engine
	path, head        string
	begin, end, error string
}{
	{OpenAIEngine, "/v1/chat/completions", sseHead, firstChunk, lastChunk + usageChunk + doneEvent, `data: {"error":{"message":"it died","type":"server_error"}}` + "\n\n"},
	{OllamaEngine, "/api/chat", ndjsonHead, ollamaLines, ollamaEnd, `{"error":"it died"}` + "\n"},
	{AnthropicEngine, "/v1/messages", sseHead, claudeStart, claudeEnd, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"it died\"}}\n\n"},
}

// TestRun runs the same input on each protocol: the request is that protocol's, the answer comes as events, and the
// usage with the one terminal.
func TestRun(t *testing.T) {
	for _, d := range dialects {
		t.Run(string(d.engine), func(t *testing.T) {
			got := make(chan *http.Request, 1)
			a := testAgent(t, engine(httpProvider(t, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				r.Body = io.NopCloser(strings.NewReader(string(body)))
				got <- r
				_, fields, _ := strings.Cut(d.head, "Content-Type: ")
				kind, _, _ := strings.Cut(fields, "\r\n")
				w.Header().Set("Content-Type", kind)
				io.WriteString(w, d.begin+d.end)
			}), d.engine))
			r := normalizedRun(t)
			r.run().Headers = []*wire.Header{hdr("anthropic-beta", "x"), hdr("via", "1.1 iop"), hdr("authorization", "evil")}
			end := serveNow(t, a, r)
			want := execution.Usage{Input: 7, Output: 3, Known: true}
			if end.Outcome != execution.Completed || end.Phase != execution.PhaseProviderDone || end.Usage != want || end.Timings.FirstByte <= 0 {
				t.Errorf("ended as %+v", end)
			}
			req := <-got
			if req.URL.Path != d.path || req.Header.Get("Content-Type") != "application/json" || req.Header.Get("Authorization") != "" ||
				req.Header.Get("Via") != "1.1 iop" || (req.Header.Get("Anthropic-Beta") == "x") != (d.engine == AnthropicEngine) {
				t.Errorf("the request is %s with %v", req.URL, req.Header)
			}
			body, _ := io.ReadAll(req.Body)
			if !json.Valid(body) || !strings.Contains(string(body), `"hello"`) || !strings.Contains(string(body), `"stream":true`) {
				t.Errorf("its body is %s", body)
			}
			events := r.events(t)
			if events[0].Kind != execution.EventStarted || !strings.Contains(r.said(t), "finish stop") || !strings.Contains(r.said(t), "0 text ") {
				t.Errorf("events are\n%s", r.said(t))
			}
			if r.head != nil {
				t.Error("a head was sent")
			}
		})
	}
}

// TestRunFaults: whatever a provider does wrong, the run has one terminal, which says what it was, and usage of what came.
func TestRunFaults(t *testing.T) {
	one := execution.Usage{Output: 1, Known: true, Estimated: true}
	for _, d := range dialects {
		spent := one
		if d.engine == AnthropicEngine {
			spent = execution.Usage{Input: 7, Output: 2, Known: true, Estimated: true}
		}
		for _, tt := range []struct {
			name, answer string
			code         execution.Code
			phase        execution.Phase
			usage        execution.Usage
			says         string // in the events
		}{
			{"engine death", d.head + d.begin + d.error, execution.CodeProviderError, execution.PhaseStreaming, spent, "it died"},
			{"error first", d.head + d.error, execution.CodeProviderError, execution.PhaseStreaming, execution.Usage{}, "it died"},
			{"missing terminal", d.head + d.begin, execution.CodeProviderTruncated, execution.PhaseStreaming, spent, ""},
			{"malformed", d.head + d.begin + "data: {\"a\n\n", execution.CodeProviderError, execution.PhaseStreaming, spent, ""},
			{"ends in an event", d.head + d.begin + "data: {\"a", execution.CodeProviderTruncated, execution.PhaseStreaming, spent, ""},
			{"empty", d.head, execution.CodeProviderError, execution.PhaseProviderCalled, execution.Usage{}, ""},
			{"cut", strings.Replace(d.head, "Connection", "Content-Length: 99999\r\nConnection", 1) + d.begin, execution.CodeProviderTruncated, execution.PhaseStreaming, spent, ""},
			{"context overflow", "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n" + `{"error":{"message":"the context is full","type":"exceed_context_size_error","code":400}}`,
				execution.CodeProviderError, execution.PhaseProviderCalled, execution.Usage{}, "Status:400 Type:exceed_context_size_error Code: Param: Message:the context is full"},
			{"overloaded", "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nConnection: close\r\n\r\n" + `{"error":"slow down"}`,
				execution.CodeProviderError, execution.PhaseProviderCalled, execution.Usage{}, "Status:429 Type: Code: Param: Message:slow down RetryAfter:7s"},
			{"refused", "HTTP/1.1 401 Unauthorized\r\nConnection: close\r\n\r\n" + `{"error":{"message":"bad key sk-1"}}`,
				execution.CodeProviderError, execution.PhaseProviderCalled, execution.Usage{}, "Status:401 Type: Code: Param: Message:The model's provider denied the operator access."},
			{"redirect", "HTTP/1.1 302 Found\r\nLocation: /x\r\nConnection: close\r\n\r\n", execution.CodeProviderRedirect, execution.PhaseProviderCalled, execution.Usage{}, ""},
			{"compressed", "HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nConnection: close\r\n\r\nxxx", execution.CodeProviderError, execution.PhaseProviderCalled, execution.Usage{}, ""},
			{"huge", d.head + "data: {\"" + strings.Repeat("x", 2<<20), execution.CodeResponseTooLarge, execution.PhaseStreaming, execution.Usage{}, ""},
		} {
			t.Run(string(d.engine)+"/"+tt.name, func(t *testing.T) {
				a := testAgent(t, engine(rawProvider(t, respond(tt.answer)), d.engine))
				r := normalizedRun(t)
				end := serveNow(t, a, r)
				if end.Outcome != execution.Failed || end.Code != tt.code || end.Phase != tt.phase || end.Usage != tt.usage {
					t.Errorf("ended as %+v", end)
				}
				if said := r.said(t); !strings.Contains(said, tt.says) || (tt.says == "") == strings.Contains(said, "failure") || strings.Contains(said, "sk-1") {
					t.Errorf("events are\n%s", said)
				}
				if a.only().inUse.Load() != 0 {
					t.Error("the place is still taken")
				}
			})
		}
	}
}

// TestRunCutBehindItsEnd: a connection that breaks when the answer has said why it ended takes nothing from it, as little as from
// one that is relayed.
func TestRunCutBehindItsEnd(t *testing.T) {
	a := testAgent(t, rawProvider(t, respond(strings.Replace(sseHead, "Connection", "Content-Length: 99999\r\nConnection", 1)+firstChunk+lastChunk)))
	r := normalizedRun(t)
	if end := serveNow(t, a, r); end.Outcome != execution.Completed {
		t.Errorf("ended as %+v", end)
	}
	if said := r.said(t); !strings.Contains(said, "finish stop") {
		t.Errorf("events are\n%s", said)
	}
}

// TestRunAnsweredWhole: a provider that does not stream says at least why.
func TestRunAnsweredWhole(t *testing.T) {
	for answer, says := range map[string]string{`{"error":{"message":"no such model","code":404}}`: "Status:404", unaryAnswer: ""} {
		a := testAgent(t, rawProvider(t, respond("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"+answer)))
		r := normalizedRun(t)
		if end := serveNow(t, a, r); end.Outcome != execution.Failed || end.Code != execution.CodeProviderError {
			t.Errorf("%s: %+v", answer, end)
		}
		if said := r.said(t); !strings.Contains(said, says) {
			t.Errorf("%s: events are %s", answer, said)
		}
	}
}

// TestRunCancelled ends runs in every phase. The provider's connection ends too.
func TestRunCancelled(t *testing.T) {
	for _, d := range dialects {
		for _, tt := range []struct {
			name, answer string
			phase        execution.Phase
		}{
			{"waiting for the head", "", execution.PhaseProviderCalled},
			{"waiting for the first byte", d.head, execution.PhaseProviderCalled},
			{"streaming", d.head + d.begin, execution.PhaseStreaming},
		} {
			t.Run(string(d.engine)+"/"+tt.name, func(t *testing.T) {
				called, gone := make(chan struct{}), make(chan struct{})
				a := testAgent(t, engine(rawProvider(t, func(c net.Conn, _ *http.Request) {
					io.WriteString(c, tt.answer)
					close(called)
					io.Copy(io.Discard, c)
					close(gone)
				}), d.engine))
				ctx, cancel := cancellable()
				r := normalizedRun(t)
				done := serveAsync(a, r, ctx)
				await(t, "the call", called)
				if tt.phase == execution.PhaseStreaming {
					r.awaitWrite(t)
				}
				at := time.Now()
				cancel(execution.CodeClientGone)
				await(t, "ServeRun", done)
				await(t, "the provider's connection to end", gone)
				if took := time.Since(at); took > cancelTime {
					t.Errorf("it took %s", took)
				}
				if end := r.terminal(t); end.Outcome != execution.Cancelled || end.Code != execution.CodeClientGone || end.Phase != tt.phase {
					t.Errorf("ended as %+v", end)
				}
			})
		}
	}
}

// TestRunCancelledBlocked cancels runs whose input never arrives, and whose events nobody takes.
func TestRunCancelledBlocked(t *testing.T) {
	t.Run("input", func(t *testing.T) {
		a := testAgent(t, ProviderSpec{ID: "p", URL: "http://127.0.0.1:1", Capacity: 1})
		ctx, cancel := cancellable()
		r := normalizedRun(t)
		reading := make(chan struct{})
		r.late, r.feed = true, readerFunc(func([]byte) (int, error) {
			close(reading)
			<-ctx.Done()
			return 0, context.Cause(ctx)
		})
		done := serveAsync(a, r, ctx)
		await(t, "the input to be read", reading)
		cancel(execution.CodeDeadline)
		await(t, "ServeRun", done)
		if end := r.terminal(t); end.Outcome != execution.Cancelled || end.Code != execution.CodeDeadline || end.Phase != execution.PhaseAdmitted {
			t.Errorf("ended as %+v", end)
		}
	})
	t.Run("events", func(t *testing.T) {
		sent := make(chan struct{})
		a := testAgent(t, rawProvider(t, func(c net.Conn, _ *http.Request) {
			io.WriteString(c, sseHead+firstChunk)
			close(sent)
			io.Copy(io.Discard, c)
		}))
		ctx, cancel := cancellable()
		r := normalizedRun(t)
		r.gate = make(chan struct{})
		done := serveAsync(a, r, ctx)
		await(t, "the answer", sent)
		eventually(t, "the first byte", func() bool { return a.only().activity.Load() > 0 })
		cancel(execution.CodeCancelledByCaller)
		await(t, "ServeRun", done)
		if end := r.terminal(t); end.Outcome != execution.Cancelled || end.Code != execution.CodeCancelledByCaller {
			t.Errorf("ended as %+v", end)
		}
	})
}

// TestRunTimeouts: the limits on silence hold, and comments do not count as an answer.
func TestRunTimeouts(t *testing.T) {
	for name, answer := range map[string]string{"head": "", "comments": sseHead + ": wait\n\n", "chunks": sseHead + firstChunk} {
		a := testAgent(t, rawProvider(t, func(c net.Conn, _ *http.Request) {
			io.WriteString(c, answer)
			io.Copy(io.Discard, c)
		}))
		r := normalizedRun(t)
		r.run().FirstByteTimeoutMs, r.run().IdleTimeoutMs = 30, 30
		if end := serveNow(t, a, r); end.Outcome != execution.Failed || end.Code != execution.CodeProviderTimeout {
			t.Errorf("%s: ended as %+v", name, end)
		}
	}
}

// TestRunRefused: what the provider's protocol can't carry reaches no provider, and its lease is not opened.
func TestRunRefused(t *testing.T) {
	calls := make(chan struct{}, 8)
	spec := engine(slotted(httpProvider(t, func(http.ResponseWriter, *http.Request) { calls <- struct{}{} })), AnthropicEngine)
	a := testAgent(t, spec)
	r := normalizedRun(t, func(in *execution.Input) { in.Sampling.Seed = new(int64) })
	l := newLoans(t, a, spec)
	r.keeper, r.lease = l.keeper, l.lendRun(t, r)
	end := serveNow(t, a, r)
	if end.Outcome != execution.Rejected || end.Code != execution.CodeBadRequest || end.Phase != execution.PhaseAdmitted {
		t.Errorf("ended as %+v", end)
	}
	events := r.events(t)
	if len(events) != 1 || events[0].Failure == nil || !events[0].Failure.Unsupported || events[0].Failure.Param != execution.ParamSeed || events[0].Failure.Status != 400 {
		t.Errorf("events are %+v", events)
	}
	if a.leases.Opened() != 0 || len(calls) != 0 {
		t.Errorf("%d leases were opened, %d calls made", a.leases.Opened(), len(calls))
	}
	for _, input := range []string{`{"version":2,"messages":[{"role":"user"}]}`, `{"version":1,"messages":[{"role":"user"}],"new":1}`, `{`, `{"version":1}`} {
		r := newRun("", input)
		r.open.Kind = normalizedRun(t).open.Kind
		a := testAgent(t, httpProvider(t, func(http.ResponseWriter, *http.Request) { calls <- struct{}{} }))
		if end := serveNow(t, a, r); end.Outcome != execution.Rejected || end.Code != execution.CodeUnsupported || len(calls) != 0 {
			t.Errorf("%s: ended as %+v", input, end)
		}
	}
}

// lendRun seals the lease of a normalized run: it is bound to the run's input.
func (l *loans) lendRun(t testing.TB, r *fakeRun) []byte {
	t.Helper()
	digest, err := lease.RequestDigest(lease.RunMethod, lease.RunPath, lease.RunType, sha256.Sum256(r.body))
	if err != nil {
		t.Fatal(err)
	}
	return l.lendDigest(t, r.open, digest)
}

// TestRunLeased: the lease of a run opens for its input and for no other, and the credential reaches the provider and
// nobody else, in whatever pieces the provider repeats it.
func TestRunLeased(t *testing.T) {
	got := make(chan string, 1)
	spec := slotted(httpProvider(t, func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get("Authorization")
		w.Header().Set("Content-Type", "text/event-stream")
		for _, piece := range append(strings.Split("your key is "+canary, ""), "!", canary) {
			fmt.Fprintf(w, "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{\"content\":%q}}]}\n\n", piece)
		}
		for _, piece := range strings.Split(`{"k":"`+canary+`"}`, "") {
			fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"c\",\"function\":{\"name\":\"f\",\"arguments\":%q}}]}}]}\n\n", piece)
		}
		fmt.Fprintf(w, "data: {\"error\":{\"message\":%q,\"type\":%q,\"code\":%q}}\n\n", canary, canary, canary)
	}))
	a := testAgent(t, spec)
	l := newLoans(t, a, spec)
	r := normalizedRun(t)
	r.open.RunId = string(execution.NewRunID())
	r.keeper, r.lease = l.keeper, l.lendRun(t, r)
	end := serveNow(t, a, r)
	if auth := <-got; auth != "Bearer "+canary {
		t.Fatalf("the provider saw %q", auth)
	}
	var c execution.Collector
	for _, e := range r.events(t) {
		if err := c.Add(&e); err != nil {
			t.Fatal(err)
		}
	}
	choice := c.Result().Choices[0]
	hidden := strings.Repeat("*", len(canary))
	if choice.Text != "your key is "+hidden+"!"+hidden || len(choice.ToolCalls) != 1 || choice.ToolCalls[0].Arguments != `{"k":"`+hidden+`"}` {
		t.Errorf("the answer is %+v", choice)
	}
	if all := r.out.String() + end.Detail; strings.Contains(all, canary) || c.Result().Failure == nil || c.Result().Failure.Message != hidden {
		t.Errorf("the answer holds the credential, or not the error: %q, %+v", all, end)
	}

	other := normalizedRun(t, func(in *execution.Input) { in.User = "somebody" })
	other.open.RunId = string(execution.NewRunID())
	other.keeper = l.keeper
	other.lease = l.lendRun(t, other)
	other.body = normalizedRun(t).body
	other.open.BodyLength = uint64(len(other.body))
	if end := serveNow(t, a, other); end.Code != execution.CodeCredentialRejected || len(got) != 0 {
		t.Errorf("another input: ended as %+v", end)
	}
}

// TestEventScrubberSignature: a signature comes in pieces, too, and is a text of its own.
func TestEventScrubberSignature(t *testing.T) {
	s := leasedCredential([]byte(canary)).eventScrubber()
	var c execution.Collector
	take := func(e *execution.Event) error { return c.Add(e) }
	push := func(e execution.Event) {
		if err := s.push(&e, take); err != nil {
			t.Fatal(err)
		}
	}
	push(execution.Event{Kind: execution.EventReasoning, Text: "thought" + canary[:1]})
	for _, piece := range strings.Split("a"+canary+"b"+canary[:3], "") {
		push(execution.Event{Kind: execution.EventReasoning, Signature: piece})
	}
	push(execution.Event{Kind: execution.EventReasoning, Text: canary[3:] + " "})
	push(execution.Event{Kind: execution.EventReasoning, Text: canary[:2], Signature: "whole"})
	push(execution.Event{Kind: execution.EventFinish, Finish: execution.Finish{Reason: execution.FinishStop}})
	want := []execution.Part{
		{Kind: execution.PartReasoning, Text: "thought" + canary[:1], Signature: "a" + strings.Repeat("*", len(canary)) + "b" + canary[:3]},
		{Kind: execution.PartReasoning, Text: canary[3:] + " " + canary[:2], Signature: "whole"},
	}
	if got := c.Result().Choices[0].Reasoning; !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestRunWhole: many events in one read arrive in order and whole, whatever is sent at once.
func TestRunWhole(t *testing.T) {
	const n = 5000
	a := testAgent(t, httpProvider(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range n {
			fmt.Fprintf(w, "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%d,\"}}]}\n\n", i)
		}
		io.WriteString(w, lastChunk+doneEvent)
	}))
	r := normalizedRun(t)
	if end := serveNow(t, a, r); end.Outcome != execution.Completed || end.Usage.Output != n {
		t.Fatalf("ended as %+v", end)
	}
	var text strings.Builder
	for _, e := range r.events(t) {
		text.WriteString(e.Text)
	}
	var want strings.Builder
	for i := range n {
		fmt.Fprintf(&want, "%d,", i)
	}
	if text.String() != want.String() {
		t.Error("the text is not what was sent")
	}
}
