package nodeagent

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"iop/execution"
)

// TestAnswers shows what becomes of every kind of answer that a provider may give.
func TestAnswers(t *testing.T) {
	plain := func(head, body string) string {
		return fmt.Sprintf("HTTP/1.1 %sContent-Length: %d\r\n\r\n%s", head, len(body), body)
	}
	json200 := "200 OK\r\nContent-Type: application/json\r\n"
	tests := []struct {
		name   string
		stream bool
		answer string
		// wanted; status 0 is no head at all
		outcome execution.Outcome
		code    execution.Code
		status  uint32
		body    string
	}{
		{"unary", false, plain(json200, unaryAnswer), execution.Completed, 0, 200, unaryAnswer},
		{"unary, chunked", false, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n{\"a\"\r\n3\r\n:1}\r\n0\r\n\r\n", execution.Completed, 0, 200, `{"a":1}`},
		{"unary to the connection's end", false, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{}", execution.Completed, 0, 200, `{}`},
		{"stream", true, sseHead + firstChunk + lastChunk + usageChunk + doneEvent, execution.Completed, 0, 200, firstChunk + lastChunk + usageChunk + doneEvent},
		{"stream without [DONE]", true, sseHead + firstChunk + lastChunk, execution.Completed, 0, 200, firstChunk + lastChunk},
		{"stream cut cleanly", true, sseHead + firstChunk, execution.Failed, execution.CodeProviderTruncated, 200, firstChunk},
		{"stream cut in an event", true, sseHead + firstChunk + `data: {"id":`, execution.Failed, execution.CodeProviderTruncated, 200, firstChunk + `data: {"id":`},
		{"stream cut in a chunk", true, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\nfff\r\n" + firstChunk, execution.Failed, execution.CodeProviderTruncated, 200, firstChunk},
		{"stream without an event", true, sseHead + ": hello\n\n", execution.Failed, execution.CodeProviderError, 0, ""},
		{"comments, then an error", true, sseHead + ": hello\n\n: again\n\ndata: {\"error\":{\"message\":\"no\"}}\n\n", execution.Completed, 0, 502, `{"error":{"message":"no",`},
		{"comments, then content", true, sseHead + ": hello\n\n" + firstChunk + doneEvent, execution.Completed, 0, 200, ": hello\n\n" + firstChunk + doneEvent},
		{"nothing but [DONE]", true, sseHead + doneEvent, execution.Completed, 0, 200, doneEvent},
		{"many comments", true, sseHead + strings.Repeat(": hello\n\n", 1000), execution.Failed, execution.CodeProviderTruncated, 200, strings.Repeat(": hello\n\n", 1000)},
		{"stream that is empty", true, sseHead, execution.Failed, execution.CodeProviderError, 0, ""},
		{"chunk after [DONE]", true, sseHead + firstChunk + doneEvent + firstChunk, execution.Completed, 0, 200, firstChunk + doneEvent},
		{"first event is an error", true, sseHead + `data: {"error":{"message":"out of memory","type":"server_error","code":500}}` + "\n\n" + doneEvent, execution.Completed, 0, 502, `{"error":{"message":"out of memory",`},
		{"first event is the client's fault", true, sseHead + `data: {"error":{"message":"context overflow","type":"invalid_request_error","code":400}}` + "\n\n" + doneEvent, execution.Completed, 0, 400, `{"error":{"message":"context overflow",`},
		{"error after content", true, sseHead + firstChunk + `data: {"error":{"message":"boom"}}` + "\n\n" + doneEvent, execution.Failed, execution.CodeProviderError, 200, firstChunk + `data: {"error":{"message":"boom"}}` + "\n\n"},
		{"error after content that no client sees", true, sseHead + firstChunk + `error: {"code":500,"message":"boom"}` + "\n\n" + doneEvent, execution.Failed, execution.CodeProviderError, 200, firstChunk + `error: {"code":500,"message":"boom"}` + "\n\n"},
		{"stream under no type", true, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + firstChunk + doneEvent, execution.Completed, 0, 200, firstChunk + doneEvent},
		{"stream under text/plain", true, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n" + firstChunk + doneEvent, execution.Completed, 0, 200, firstChunk + doneEvent},
		{"stream under json", true, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n" + firstChunk + doneEvent, execution.Completed, 0, 200, firstChunk + doneEvent},
		{"json where a stream was asked", true, plain(json200, unaryAnswer), execution.Completed, 0, 200, unaryAnswer},
		{"empty 200", false, plain(json200, ""), execution.Failed, execution.CodeProviderError, 0, ""},
		{"error status", false, plain("429 Too Many Requests\r\nRetry-After: 3\r\nContent-Type: application/json\r\n", `{"error":{}}`), execution.Completed, 0, 429, `{"error":{}}`},
		{"error status without a body", false, plain("503 Service Unavailable\r\n", ""), execution.Completed, 0, 503, ""},
		{"204", false, "HTTP/1.1 204 No Content\r\n\r\n", execution.Completed, 0, 204, ""},
		{"redirect", false, plain("307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/\r\n", ""), execution.Failed, execution.CodeProviderRedirect, 0, ""},
		{"not modified", false, "HTTP/1.1 304 Not Modified\r\n\r\n", execution.Failed, execution.CodeProviderRedirect, 0, ""},
		{"switching protocols", false, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", execution.Failed, execution.CodeProviderError, 0, ""},
		{"early hints", false, "HTTP/1.1 103 Early Hints\r\nX-Request-Id: early\r\nAuthorization: leak\r\n\r\n" + plain(json200, `{}`), execution.Completed, 0, 200, `{}`},
		{"closed without an answer", false, "", execution.Failed, execution.CodeProviderError, 0, ""},
		{"no HTTP", false, "SSH-2.0-OpenSSH_9.9\r\n\r\n", execution.Failed, execution.CodeProviderError, 0, ""},
		{"body shorter than announced", false, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"a\":", execution.Failed, execution.CodeProviderTruncated, 200, `{"a":`},
		{"body announced and missing", false, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n", execution.Failed, execution.CodeProviderError, 0, ""},
		{"huge header", false, "HTTP/1.1 200 OK\r\nX-A: " + strings.Repeat("a", 70<<10) + "\r\n\r\n{}", execution.Failed, execution.CodeResponseTooLarge, 0, ""},
		{"huge allowed header", false, "HTTP/1.1 200 OK\r\nX-Request-Id: " + strings.Repeat("a", 30<<10) + "\r\nContent-Length: 2\r\n\r\n{}", execution.Failed, execution.CodeResponseTooLarge, 0, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := testAgent(t, rawProvider(t, respond(tt.answer)))
			r := chatRun(tt.stream)
			end := serveNow(t, a, r)
			if end.Outcome != tt.outcome || end.Code != tt.code {
				t.Errorf("ended as %s, %s (%s), want %s, %s", end.Outcome, end.Code, end.Detail, tt.outcome, tt.code)
			}
			if got := r.head.GetStatus(); got != tt.status {
				t.Errorf("head has status %d, want %d", got, tt.status)
			}
			if got := r.out.String(); got != tt.body && (r.header(firstEventError) == "" || !strings.HasPrefix(got, tt.body)) {
				t.Errorf("body is %q, want %q", got, tt.body)
			}
			if got := a.only().inUse.Load(); got != 0 {
				t.Errorf("%d places are still taken", got)
			}
		})
	}
}

func TestFirstEventErrorIsMarked(t *testing.T) {
	a := testAgent(t, rawProvider(t, respond(sseHead+`data: {"error":{"message":"no"}}`+"\n\n")))
	r := chatRun(true)
	serveNow(t, a, r)
	if r.header(firstEventError) != "1" || r.header("content-type") != "application/json" {
		t.Errorf("head is %v, want it marked and of type JSON", r.head)
	}
}

func TestUsageAndTimings(t *testing.T) {
	want := execution.Usage{Input: 7, Output: 3, Known: true}
	t.Run("unary", func(t *testing.T) {
		a := testAgent(t, httpProvider(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, unaryAnswer)
		}))
		r := chatRun(false)
		end := serveNow(t, a, r)
		if end.Usage != want {
			t.Errorf("usage is %+v, want %+v", end.Usage, want)
		}
		if end.Timings.FirstByte <= 0 || end.Timings.Provider < end.Timings.FirstByte {
			t.Errorf("timings are %+v", end.Timings)
		}
		if end.Phase != execution.PhaseProviderDone {
			t.Errorf("phase is %s", end.Phase)
		}
	})
	t.Run("stream, withheld", func(t *testing.T) {
		a := testAgent(t, rawProvider(t, respond(sseHead+firstChunk+lastChunk+usageChunk+doneEvent)))
		r := chatRun(true)
		r.req().WithholdUsage = true
		end := serveNow(t, a, r)
		if end.Usage != want {
			t.Errorf("usage is %+v, want %+v", end.Usage, want)
		}
		if got := r.out.String(); got != firstChunk+lastChunk+doneEvent {
			t.Errorf("body is %q", got)
		}
	})
}

// TestHeadersOfAnAnswer shows that nothing but the allowed headers passes: not the provider's own, not those of an
// interim answer, not trailers.
func TestHeadersOfAnAnswer(t *testing.T) {
	answer := "HTTP/1.1 103 Early Hints\r\nX-Request-Id: interim\r\nOpenai-Version: interim\r\n\r\n" +
		"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Request-Id: abc\r\nSet-Cookie: a=b\r\nServer: x\r\n" +
		"Authorization: Bearer leak\r\nX-Api-Key: leak\r\nLocation: http://leak\r\nX-Ratelimit-Remaining-Tokens: 5\r\n" +
		"Access-Control-Allow-Origin: *\r\nX-Iop-First-Event-Error: 1\r\nOpenai-Processing-Ms: 12\r\nTrailer: Retry-After\r\nTransfer-Encoding: chunked\r\n\r\n" +
		"2\r\n{}\r\n0\r\nRetry-After: 7\r\nX-Undeclared: leak\r\n\r\n"
	a := testAgent(t, rawProvider(t, respond(answer)))
	r := chatRun(false)
	serveNow(t, a, r)
	want := map[string]string{
		"content-type": "application/json", "x-request-id": "abc", "x-ratelimit-remaining-tokens": "5", "openai-processing-ms": "12",
	}
	got := map[string]string{}
	for _, h := range r.head.GetHeaders() {
		got[h.Name] = h.Value
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("headers are %v, want %v", got, want)
	}
}

// TestRequestToProvider shows what a provider sees: its own host, the allowed headers, the body as it is.
func TestRequestToProvider(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("late=%v", late), func(t *testing.T) {
			type seen struct {
				header            http.Header
				host, uri, method string
				length            int64
				body              string
				encoding          []string
			}
			got := make(chan seen, 1)
			spec := httpProvider(t, func(w http.ResponseWriter, r *http.Request) {
				b, _ := io.ReadAll(r.Body)
				got <- seen{r.Header, r.Host, r.RequestURI, r.Method, r.ContentLength, string(b), r.TransferEncoding}
				io.WriteString(w, "{}")
			})
			host := strings.TrimPrefix(spec.URL, "http://")
			spec.URL += "/base/v1"
			a := testAgent(t, spec)
			body := strings.Repeat("x", 200<<10) // larger than what is awaited whole
			r := newRun("embeddings", body)
			r.late = late
			r.req().Headers = append(r.req().Headers, hdr("accept", "application/json"), hdr("user-agent", "client/1"),
				hdr("via", "1.1 edge"), hdr("openai-beta", "x"), hdr("authorization", "Bearer client"), hdr("host", "evil"),
				hdr("cookie", "a"), hdr("x-forwarded-for", "1.2.3.4"), hdr("connection", "upgrade"), hdr("upgrade", "h2c"),
				hdr("te", "trailers"), hdr("content-length", "1"), hdr("transfer-encoding", "chunked"), hdr("expect", "100-continue"),
				hdr("idempotency-key", "k"), hdr("Accept", "wrong case"), hdr("proxy-authorization", "p"), hdr("x-iop-lease", "l"))
			if end := serveNow(t, a, r); end.Outcome != execution.Completed {
				t.Fatalf("ended as %+v", end)
			}
			s := <-got
			if s.host != host || s.uri != "/base/v1/embeddings" || s.method != "POST" || s.length != int64(len(body)) || s.body != body || s.encoding != nil {
				t.Errorf("provider saw %s %s at %s, %d bytes, encoding %v", s.method, s.uri, s.host, s.length, s.encoding)
			}
			want := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json"}, "User-Agent": {"client/1"},
				"Via": {"1.1 edge"}, "Openai-Beta": {"x"}, "Accept-Encoding": {"identity"}, "Content-Length": {"204800"}}
			if late { // a body that can't be sent twice gets a connection of its own
				want["Connection"] = []string{"close"}
			}
			if fmt.Sprint(s.header) != fmt.Sprint(want) {
				t.Errorf("provider saw headers %v, want %v", s.header, want)
			}
		})
	}
}

func TestUserAgentDefault(t *testing.T) {
	got := make(chan string, 1)
	a := testAgent(t, httpProvider(t, func(w http.ResponseWriter, r *http.Request) {
		got <- r.UserAgent()
		io.WriteString(w, "{}")
	}))
	serveNow(t, a, chatRun(false))
	if ua := <-got; ua != defaultUserAgent {
		t.Errorf("user agent is %q", ua)
	}
}

// TestRejected shows what is refused before any provider hears of it, and that the body is not waited for.
func TestRejected(t *testing.T) {
	tests := []struct {
		name string
		edit func(*fakeRun, *Agent)
		code execution.Code
	}{
		{"unknown provider", func(r *fakeRun, _ *Agent) { r.req().Provider = "other" }, execution.CodeUnknownProvider},
		{"unknown model", func(r *fakeRun, _ *Agent) { r.req().Model = "other" }, execution.CodeUnknownProvider},
		{"unknown operation", func(r *fakeRun, _ *Agent) { r.req().Operation = "files" }, execution.CodeUnsupported},
		{"a path as operation", func(r *fakeRun, _ *Agent) { r.req().Operation = "/v1/../admin" }, execution.CodeUnsupported},
		{"a URL as provider", func(r *fakeRun, _ *Agent) { r.req().Provider = "http://169.254.169.254" }, execution.CodeUnknownProvider},
		{"lease", func(r *fakeRun, _ *Agent) { r.open.ExpectsLease = true }, execution.CodeUnsupported},
		{"no kind", func(r *fakeRun, _ *Agent) { r.open.Kind = nil }, execution.CodeUnsupported},
		{"CRLF in a header", func(r *fakeRun, _ *Agent) { r.req().Headers[0].Value = "a\r\nX-Evil: 1" }, execution.CodeBadRequest},
		{"NUL in a header", func(r *fakeRun, _ *Agent) { r.req().Headers[0].Value = "a\x00" }, execution.CodeBadRequest},
		{"header twice", func(r *fakeRun, _ *Agent) { r.req().Headers = append(r.req().Headers, hdr("content-type", "a")) }, execution.CodeBadRequest},
		{"a body of absurd length", func(r *fakeRun, _ *Agent) { r.open.BodyLength = 1 << 63 }, execution.CodeBadRequest},
		{"no place", func(_ *fakeRun, a *Agent) { a.only().inUse.Store(64) }, execution.CodeCapacity},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			spec := httpProvider(t, func(http.ResponseWriter, *http.Request) { t.Error("the provider was called") })
			spec.Models = []string{"m"}
			a := testAgent(t, spec)
			r := chatRun(false)
			r.late, r.feed = true, readerFunc(func([]byte) (int, error) {
				t.Error("the body was read")
				return 0, io.EOF
			})
			tt.edit(r, a)
			taken := a.only().inUse.Load()
			end := serveNow(t, a, r)
			if end.Outcome != execution.Rejected || end.Code != tt.code || r.head != nil || len(r.phases) != 0 {
				t.Errorf("ended as %+v, phases %v, want rejected, %s", end, r.phases, tt.code)
			}
			if a.only().inUse.Load() != taken {
				t.Error("a place was taken or given")
			}
		})
	}
}

// TestUnreachable shows that only what cannot have reached the provider says so.
func TestUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	a := testAgent(t, ProviderSpec{ID: "p", URL: "http://" + address, Capacity: 1})
	end := serveNow(t, a, chatRun(false))
	if end.Outcome != execution.Failed || end.Code != execution.CodeProviderUnreachable || end.Phase != execution.PhaseProviderCalled {
		t.Errorf("ended as %+v", end)
	}
	select {
	case <-a.only().wake:
	default:
		t.Error("the probe was not asked to look")
	}
}

func TestTLSFailureIsUnreachable(t *testing.T) {
	spec := rawProvider(t, respond("")) // closes during the handshake
	spec.URL = strings.Replace(spec.URL, "http:", "https:", 1)
	end := serveNow(t, testAgent(t, spec), chatRun(false))
	if end.Code != execution.CodeProviderUnreachable {
		t.Errorf("ended as %+v", end)
	}
}
