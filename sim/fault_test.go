package sim

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"syscall"
	"testing"
	"time"
)

// mark stands in every token of the answers that these tests count.
const mark = `"content":" t`

func TestFaultsOnTheWire(t *testing.T) {
	r := start(t, nil)
	for _, c := range []struct {
		knobs  string
		stream bool
		reset  bool     // the connection ends with RST
		whole  bool     // the chunked body has its terminator
		tokens int      // 0: not counted
		has    []string // in the raw answer
		hasNot []string
	}{
		{knobs: "close", hasNot: []string{"HTTP"}},
		{knobs: "reset", reset: true, hasNot: []string{"HTTP"}},
		{knobs: "reset", stream: true, reset: true, hasNot: []string{"HTTP"}},
		{knobs: "midclose", stream: true, whole: true, tokens: 2, hasNot: []string{"[DONE]", `"stop"`}},
		{knobs: "midclose=7", stream: true, whole: true, tokens: 6, hasNot: []string{"[DONE]", `"stop"`}},
		{knobs: "midclose=0", stream: true, whole: true, has: []string{`"role":"assistant"`}, hasNot: []string{`"hello"`, "[DONE]"}},
		{knobs: "midclose=99,tokens=4", stream: true, whole: true, tokens: 3, hasNot: []string{"[DONE]", `"stop"`}},
		{knobs: "midclose", whole: true, hasNot: []string{`"usage"`}},
		{knobs: "midreset", stream: true, reset: true, tokens: 2},
		{knobs: "midreset", reset: true, has: []string{"200 OK"}},
		{knobs: "midabort", stream: true, tokens: 2, hasNot: []string{"[DONE]"}},
		{knobs: "midabort", has: []string{"200 OK"}},
		{knobs: "error_event_first", stream: true, whole: true, has: []string{"200 OK", `data: {"error":{`}, hasNot: []string{"assistant", "[DONE]"}},
		{knobs: "error_event_first", has: []string{"500 Internal", `{"error":{`}},
		{knobs: "error_event_mid", stream: true, whole: true, tokens: 2, has: []string{`data: {"error":{`}},
		{knobs: "llamacpp_error", stream: true, whole: true, tokens: 2, has: []string{"\nerror: {\"code\":400", "data: [DONE]"}},
		{knobs: "llamacpp_error", has: []string{"400 Bad Request"}},
		{knobs: "empty200", stream: true, has: []string{"200 OK", "Content-Length: 0", "text/event-stream"}},
		{knobs: "empty200", has: []string{"200 OK", "Content-Length: 0"}},
		{knobs: "die", stream: true, tokens: 2, hasNot: []string{"[DONE]"}},
		{knobs: "done=none", stream: true, whole: true, tokens: 15, has: []string{`"stop"`}, hasNot: []string{"[DONE]"}},
		{knobs: "done=space", stream: true, whole: true, tokens: 15, has: []string{"data: [DONE] \n\n"}},
		{knobs: "headers=early", stream: true, whole: true, tokens: 15, has: []string{"data: [DONE]\n\n"}},
		{knobs: "huge_headers=70k", has: []string{"X-Sim-Pad-17: xxxx", "200 OK"}},
		{knobs: "content_type=none", stream: true, whole: true, tokens: 15, hasNot: []string{"Content-Type"}},
		{knobs: "content_type=charset", stream: true, whole: true, tokens: 15, has: []string{"Content-Type: text/event-stream; charset=utf-8"}},
		{knobs: "content_type=json", stream: true, whole: true, tokens: 15, has: []string{"Content-Type: application/json\r\n"}},
		{knobs: "content_type=ndjson", stream: true, whole: true, tokens: 15, has: []string{"Content-Type: application/x-ndjson"}},
		{knobs: "content_type=text/x", has: []string{"Content-Type: text/x\r\n"}},
		{knobs: "redirect", has: []string{"307 Temporary", "Location: /redirected\r\n"}},
		{knobs: "redirect=http://127.0.0.1:1/x", has: []string{"Location: http://127.0.0.1:1/x"}},
	} {
		raw, err := r.raw(chatPath, chat(c.knobs, c.stream))
		name := c.knobs
		if c.stream {
			name += " (stream)"
		}
		if got := errors.Is(err, syscall.ECONNRESET); got != c.reset || err != nil && !got {
			t.Errorf("%s: ended with %v", name, err)
		}
		if n := strings.Count(raw, mark); c.tokens > 0 && n != c.tokens {
			t.Errorf("%s: %d tokens, want %d", name, n, c.tokens)
		}
		for _, s := range c.has {
			if !strings.Contains(raw, s) {
				t.Errorf("%s: no %q in %q", name, s, raw)
			}
		}
		for _, s := range c.hasNot {
			if strings.Contains(raw, s) {
				t.Errorf("%s: %q in %q", name, s, raw)
			}
		}
		if strings.Contains(raw, "chunked") {
			if _, whole := chunks(t, raw); whole != c.whole {
				t.Errorf("%s: body's end is there: %v, want %v", name, whole, c.whole)
			}
		}
	}
	if st := r.idle(); st.Cancelled != 0 {
		t.Errorf("a fault counts as a cancel: %+v", st)
	}
}

func TestDeathOfEachFlavour(t *testing.T) {
	for _, c := range []struct {
		flavour Flavour
		path    string
		reset   bool
		end     string // of the raw answer
	}{
		{flavour: VLLM, path: chatPath, end: "data: [DONE]\n\n\r\n0\r\n\r\n"},
		{flavour: LlamaCPP, path: chatPath, reset: true},
		{flavour: Ollama, path: chatPath, end: "\"finish_reason\":null}]}\n\n\r\n0\r\n\r\n"},
		{flavour: Ollama, path: "/api/chat", end: "unexpected EOF\"}\n\r\n0\r\n\r\n"},
		{flavour: Ollama, path: "/v1/messages", end: "\n\n\r\n0\r\n\r\n"},
		{flavour: OpenAI, path: chatPath, end: "\n\n\r\n"},
	} {
		r := start(t, func(cfg *Config) { cfg.Flavour = c.flavour })
		body := `{"model":"sim-small","max_tokens":50,"stream":true,"messages":[{"role":"user","content":"sim:die hello"}]}`
		raw, err := r.raw(c.path, body)
		if errors.Is(err, syscall.ECONNRESET) != c.reset || !strings.HasSuffix(raw, c.end) {
			t.Errorf("%s %s: %v, %q", c.flavour, c.path, err, raw)
		}
	}
}

func TestErrorShapes(t *testing.T) {
	r := start(t, nil)
	for shape, want := range map[string]string{
		"openai":    `{"error":{"code":"rate_limit_exceeded","message":"The simulator was told to answer Too Many Requests.","param":null,"type":"requests"}}`,
		"string":    `{"error":"The simulator was told to answer Too Many Requests."}`,
		"detail":    `{"detail":"The simulator was told to answer Too Many Requests."}`,
		"flat":      `{"code":429,"message":"The simulator was told to answer Too Many Requests.","object":"error","param":null,"type":"requests"}`,
		"html":      `<html><head><title>Too Many Requests</title></head><body><h1>Too Many Requests</h1></body></html>` + "\n",
		"empty":     ``,
		"anthropic": `{"error":{"message":"The simulator was told to answer Too Many Requests.","type":"rate_limit_error"},"request_id":"req_sim","type":"error"}`,
	} {
		a := r.post(chatPath, chat("status=429,retry_after=7,error_shape="+shape, true))
		if a.StatusCode != 429 || a.Header.Get("Retry-After") != "7" || a.body != want {
			t.Errorf("%s: %d %q", shape, a.StatusCode, a.body)
		}
	}
	if st := r.idle(); st.Rejected != 7 || st.Peak != 0 {
		t.Errorf("an ordered status took a slot: %+v", st)
	}
}

func TestBytesOfAStream(t *testing.T) {
	r := start(t, nil)
	plainRaw, err := r.raw(chatPath, chat("text=mix,tokens=12", true))
	if err != nil {
		t.Fatal(err)
	}
	list, _ := chunks(t, plainRaw)
	for _, event := range list {
		if !strings.HasPrefix(event, "data: ") || !strings.HasSuffix(event, "\n\n") {
			t.Errorf("a write that is no event: %q", event)
		}
	}
	want := stable(strings.Join(list, ""))

	for _, c := range []struct {
		knobs string
		undo  func(string) string // back to the plain stream
		check func(write string) bool
	}{
		{"split=1", nil, func(w string) bool { return len(w) == 1 }},
		{"split=7", nil, func(w string) bool { return len(w) <= 7 }},
		{"crlf", func(s string) string { return strings.ReplaceAll(s, "\r\n", "\n") }, func(w string) bool { return strings.HasSuffix(w, "\r\n\r\n") }},
		{"cr", func(s string) string { return strings.ReplaceAll(s, "\r", "\n") }, func(w string) bool { return strings.HasSuffix(w, "\r\r") }},
		{"cr_split", func(s string) string { return strings.ReplaceAll(s, "\r\n", "\n") }, func(w string) bool { return !strings.Contains(w, "\r\n") }},
		{"nospace", func(s string) string { return strings.ReplaceAll(s, "data:", "data: ") }, func(w string) bool { return !strings.Contains(w, "data: ") }},
		{"comments", func(s string) string { return strings.ReplaceAll(s, ": sim\n\n", "") }, func(w string) bool { return strings.HasPrefix(w, ": sim\n\n") }},
		{"bom", func(s string) string { return strings.TrimPrefix(s, "\ufeff") }, nil},
		{"retry_field", func(s string) string { return strings.TrimPrefix(s, "retry: 3000\n\n") }, nil},
		{"done=unterminated", func(s string) string { return s + "\n\n" }, nil},
	} {
		raw, err := r.raw(chatPath, chat("text=mix,tokens=12,"+c.knobs, true))
		if err != nil {
			t.Fatal(err)
		}
		writes, whole := chunks(t, raw)
		got := stable(strings.Join(writes, ""))
		if got == want && c.undo != nil {
			t.Errorf("%s changes nothing", c.knobs)
		}
		if c.undo != nil {
			got = c.undo(got)
		}
		if got != want || !whole {
			t.Errorf("%s: got\n%q, want\n%q", c.knobs, got, want)
		}
		for _, w := range writes {
			if c.check != nil && !c.check(w) {
				t.Errorf("%s: a write of %q", c.knobs, w)
			}
		}
	}
}

// stable takes out of a stream what differs between two requests.
func stable(s string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(s, `"id":"chatcmpl-`) {
		_, rest, ok := strings.Cut(part, `,"model"`)
		if !ok {
			rest = part
		}
		b.WriteString(rest)
	}
	return b.String()
}

func TestIDsOnEvents(t *testing.T) {
	r := start(t, nil)
	if a := r.post(chatPath, chat("ids,tokens=1", true)); !strings.HasPrefix(a.body, "id: 0\ndata: {") || !strings.Contains(a.body, "\n\nid: 1\n") {
		t.Errorf("%q", a.body)
	}
}

func TestTrailingAfterDone(t *testing.T) {
	r := start(t, nil)
	a := r.post(chatPath, chat("trailing_after_done", true))
	_, after, ok := strings.Cut(a.body, "data: [DONE]\n\n")
	if !ok || !strings.Contains(after, "after the end") {
		t.Errorf("%q", a.body)
	}
}

func TestBigAnswers(t *testing.T) {
	r := start(t, nil)
	a := r.post(chatPath, chat("bigevent=1m", true))
	longest := 0
	for line := range strings.SplitSeq(a.body, "\n") {
		longest = max(longest, len(line))
	}
	if longest < 1<<20 || longest > 1<<20+1024 {
		t.Errorf("longest line %d", longest)
	}
	if a := r.post(chatPath, chat("big_response=3m", false)); len(a.body) < 3<<20 || a.err != nil {
		t.Errorf("%d bytes, %v", len(a.body), a.err)
	}
}

func TestSecretsComeBack(t *testing.T) {
	r := start(t, nil)
	const key = "Bearer canary-key"
	a := r.do("POST", chatPath, chat("leak", false), "Authorization", key)
	if a.Header.Get("X-Sim-Leak") != key || !strings.Contains(a.Header.Get("Set-Cookie"), "canary-key") || !strings.Contains(a.body, key) {
		t.Errorf("leak: %v %s", a.Header, a.body)
	}
	if a := r.do("POST", chatPath, chat("leak,status=401", false), "Authorization", key); !strings.Contains(a.body, key) {
		t.Errorf("leak in an error: %s", a.body)
	}
	a = r.do("POST", chatPath, chat("echo_headers", true), "Authorization", key, "X-Canary", "yes")
	if text := contentOf(t, a.body); !strings.Contains(text, "X-Canary: yes") || !strings.Contains(text, key) || !strings.HasPrefix(text, "POST /v1/chat") {
		t.Errorf("echo: %s", text)
	}
}

func TestEarlyHintsAndTrailers(t *testing.T) {
	r := start(t, nil)
	hints := make(chan textproto.MIMEHeader, 1)
	trace := &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
		if code == http.StatusEarlyHints {
			hints <- h
		}
		return nil
	}}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), "POST", r.url+chatPath, strings.NewReader(chat("early_hints", false)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer canary-key")
	resp, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadAll(resp.Body); err != nil {
		t.Fatal(err)
	}
	if h := <-hints; !strings.Contains(h.Get("Link"), "canary-key") {
		t.Errorf("hints %v", h)
	}
	if !strings.Contains(resp.Trailer.Get("X-Sim-Trailer"), "canary-key") {
		t.Errorf("trailer %v", resp.Trailer)
	}
}

func TestGzip(t *testing.T) {
	r := start(t, nil)
	for _, stream := range []bool{true, false} {
		a := r.do("POST", chatPath, chat("gzip", stream), "Accept-Encoding", "gzip")
		if a.Header.Get("Content-Encoding") != "gzip" || a.err != nil {
			t.Fatalf("%v %v", a.Header, a.err)
		}
		z, err := gzip.NewReader(strings.NewReader(a.body))
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(z); err != nil || !bytes.Contains(b, []byte("hello")) {
			t.Errorf("%v %q", err, b)
		}
	}
	if a := r.post(chatPath, chat("gzip", false)); a.Header.Get("Content-Encoding") != "" {
		t.Error("compressed for a client that did not ask")
	}
}

func TestRespondEarly(t *testing.T) {
	r := start(t, nil)
	r.post("/sim/config", `{"respond_early":true,"status":413}`)
	conn, err := net.Dial("tcp", r.s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// The body never comes: the answer must.
	if _, err := io.WriteString(conn, "POST "+chatPath+" HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	conn.SetReadDeadline(time.Now().Add(patience))
	b := make([]byte, 32)
	if _, err := io.ReadFull(conn, b); err != nil || !bytes.Contains(b, []byte(" 413 ")) {
		t.Errorf("%v %q", err, b)
	}
}

func TestRedirectIsSeenWhenFollowed(t *testing.T) {
	r := start(t, nil)
	req, err := http.NewRequest("POST", r.url+chatPath, strings.NewReader(chat("redirect", false)))
	if err != nil {
		t.Fatal(err)
	}
	follower := &http.Client{Transport: r.client.Transport}
	resp, err := follower.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if got := r.s.Requests(1)[0]; got.Path != redirectedPath {
		t.Errorf("last request: %+v", got)
	}
}

// begin sends a chat request on a connection of its own and returns when the simulator has it in the given state.
func (r *rig) begin(knobs string, stream bool, reached func(Stats) bool) *net.TCPConn {
	r.Helper()
	conn, err := net.Dial("tcp", r.s.Addr().String())
	if err != nil {
		r.Fatal(err)
	}
	if err := writeRequest(conn, chatPath, chat(knobs, stream)); err != nil {
		r.Fatal(err)
	}
	r.until(knobs, func() bool { return reached(r.s.Stats()) })
	return conn.(*net.TCPConn)
}

func TestCancelIsSeenInEveryWait(t *testing.T) {
	active := func(st Stats) bool { return st.Active == 1 }
	for _, reset := range []bool{false, true} {
		for _, c := range []struct {
			knobs  string
			stream bool
		}{
			{"ttft=1h", true}, {"ttft=1h", false}, {"itl=1h", true}, {"itl=1h", false}, {"hang", true}, {"hang", false},
			{"hang_after=3", true}, {"hang_after=3", false}, {"stall_after=2,stall=1h", true}, {"ttft=1h,headers=early", true},
		} {
			r := start(t, nil)
			conn := r.begin(c.knobs, c.stream, active)
			if reset {
				conn.SetLinger(0)
			}
			conn.Close()
			r.until("cancelled", func() bool { return r.s.Stats().Cancelled == 1 })
			r.idle()
			got := r.s.Requests(1)[0]
			if got.State != stateCancelled || got.Gone == nil || got.Ended == nil || r.s.Stats().LastCancel.At == nil {
				t.Errorf("%s: %+v", c.knobs, got)
			}
		}
	}
}

func TestCancelWhileQueued(t *testing.T) {
	r := start(t, func(c *Config) { c.Slots = 1 })
	first := r.begin("hang", false, func(st Stats) bool { return st.Active == 1 })
	defer first.Close()
	second := r.begin("", false, func(st Stats) bool { return st.Queued == 1 })
	second.Close()
	r.until("the queue is empty", func() bool { st := r.s.Stats(); return st.Queued == 0 && st.Cancelled == 1 })
	if st := r.s.Stats(); st.Active != 1 || st.Busy != 1 {
		t.Errorf("the wrong one went: %+v", st)
	}
}

func TestClientGoneWhileItSends(t *testing.T) {
	r := start(t, nil)
	conn, err := net.Dial("tcp", r.s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(conn, "POST "+chatPath+" HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{")
	r.until("reading", func() bool { return r.s.Stats().Reading == 1 })
	conn.Close()
	r.until("cancelled", func() bool { return r.s.Stats().Cancelled == 1 })
	r.idle()
}

func TestIgnoreCancel(t *testing.T) {
	r := start(t, nil)
	conn := r.begin("ignore_cancel,hang", false, func(st Stats) bool { return st.Active == 1 })
	conn.Close()
	r.until("the end of the client is noticed", func() bool { return r.s.Requests(1)[0].Gone != nil })
	if st := r.s.Stats(); st.Active != 1 || st.Busy != 1 {
		t.Errorf("it stopped: %+v", st)
	}

	r = start(t, nil)
	conn = r.begin("ignore_cancel,itl=5ms,tokens=60", true, func(st Stats) bool { return st.Active == 1 })
	conn.Close()
	if st := r.idle(); st.Cancelled != 1 {
		t.Errorf("%+v", st)
	}
	if got := r.s.Requests(1)[0]; got.Tokens != 60 {
		t.Errorf("generated %d tokens", got.Tokens)
	}
}

func TestFullQueueIsRefused(t *testing.T) {
	r := start(t, func(c *Config) { c.Slots, c.Queue = 1, 0 })
	conn := r.begin("hang", false, func(st Stats) bool { return st.Active == 1 })
	a := r.post(chatPath, chat("", false))
	if a.StatusCode != 429 || a.Header.Get("Retry-After") == "" {
		t.Errorf("%d %v", a.StatusCode, a.Header)
	}
	conn.Close()
	r.idle()
	if a := r.post(chatPath, chat("", false)); a.StatusCode != 200 {
		t.Errorf("after the slot was free: %d", a.StatusCode)
	}
}

// TestStormOfCancels ends many requests at random moments: nothing may be left over.
func TestStormOfCancels(t *testing.T) {
	r := start(t, func(c *Config) { c.Slots, c.Queue = 3, 8 })
	done := make(chan struct{})
	for i := range 120 {
		go func() {
			defer func() { done <- struct{}{} }()
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%12)*5*time.Millisecond)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, "POST", r.url+chatPath, strings.NewReader(chat("ttft=10ms,itl=2ms,tokens=8", i%2 == 0)))
			if err != nil {
				t.Error(err)
				return
			}
			if resp, err := r.client.Do(req); err == nil {
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		}()
	}
	for range 120 {
		<-done
	}
	st := r.idle()
	if st.Peak > 3 || st.Models["sim-small"].Peak > 3 || st.QueuePeak > 8 {
		t.Errorf("over the limits: %+v", st)
	}
}
