package e2e

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestThreat39Smuggling writes requests whose end two servers may see in different places. Whatever the Edge makes of each, it
// must not take for a request what was a body: after it comes a request for the model list, with a key, and behind
// whatever the Edge answers or hangs up, nothing but that one answer may follow; behind a body in chunks, not even that.
func TestThreat39Smuggling(t *testing.T) {
	s := newStack(t, stackConfig{})
	host := strings.TrimPrefix(s.url, "http://")
	key := "Authorization: Bearer " + s.key
	good := `{"model":"sim-small","messages":[{"role":"user","content":"hello"}],"user":"sim:tokens=3"}`
	// smuggled has a key, too: who may run it must not do so unseen.
	smuggled := "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + key + fmt.Sprintf("\r\nContent-Length: %d\r\n\r\n%s", len(good), good)
	head := "POST /v1/embeddings HTTP/1.1\r\nHost: " + host + "\r\n" + key + "\r\n"

	reject, either := []int{400}, []int{200, 400}
	for _, c := range []struct {
		name    string
		request string
		status  []int
	}{
		{"two lengths", head + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n" + smuggled, reject},
		{"a list of lengths", head + "Content-Length: 5, 6\r\n\r\n" + smuggled, reject},
		{"a signed length", head + "Content-Length: +5\r\n\r\n" + smuggled, reject},
		{"a negative length", head + "Content-Length: -5\r\n\r\n" + smuggled, reject},
		{"a length in hexadecimal", head + "Content-Length: 0x5\r\n\r\n" + smuggled, reject},
		{"a length and more", head + "Content-Length: 5 6\r\n\r\n" + smuggled, reject},
		{"a length too large to count", head + "Content-Length: 99999999999999999999\r\n\r\n" + smuggled, reject},
		{"a space before the colon", head + "Content-Length : 5\r\n\r\n" + smuggled, reject},
		{"an unknown coding", head + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + smuggled, []int{400, 501}},
		{"a coding behind chunked", head + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + smuggled, []int{400, 501}},
		{"chunked twice", head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled, []int{400, 501}},
		{"a tab in the coding", head + "Transfer-Encoding: chunked\tx\r\n\r\n0\r\n\r\n" + smuggled, []int{400, 501}},
		{"a coding in HTTP/1.0", strings.Replace(head, "1.1", "1.0", 1) + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", reject},
		{"a length and a coding in HTTP/1.0", strings.Replace(head, "1.1", "1.0", 1) + "Connection: keep-alive\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}", reject},
		{"a coding and a length in HTTP/1.0", strings.Replace(head, "1.1", "1.0", 1) + "Connection: keep-alive\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}", reject},
		{"a coding in HTTP/1.0 without a body", "GET /v1/models HTTP/1.0\r\nHost: " + host + "\r\n" + key + "\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n", []int{200}},
		{"chunks behind OPTIONS *", "OPTIONS * HTTP/1.1\r\nHost: " + host + "\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", []int{404}},
		{"a chunk that is too short", head + "Transfer-Encoding: chunked\r\n\r\n3\r\n{}\r\n0\r\n\r\n" + smuggled, reject},
		{"a chunk that is too long", head + "Transfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n" + smuggled, reject},
		{"a negative chunk", head + "Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n" + smuggled, reject},
		{"a huge chunk", head + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n{}\r\n0\r\n\r\n" + smuggled, reject},
		{"a signed chunk", head + "Transfer-Encoding: chunked\r\n\r\n+2\r\n{}\r\n0\r\n\r\n" + smuggled, reject},
		{"a chunk in 0x", head + "Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n" + smuggled, reject},
		{"a line feed ends a chunk's size", head + "Transfer-Encoding: chunked\r\n\r\n2;\n{}\r\n0\r\n\r\n" + smuggled, reject},
		{"two hosts", head + "Host: other\r\nContent-Length: 2\r\n\r\n{}", reject},
		{"no host", "POST /v1/embeddings HTTP/1.1\r\n" + key + "\r\nContent-Length: 2\r\n\r\n{}", reject},
		{"a NUL in a header", head + "X-A: a\x00b\r\nContent-Length: 2\r\n\r\n{}", reject},
		{"a carriage return in a header", head + "X-A: a\rTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}", reject},
		{"a header without a name", head + ": a\r\nContent-Length: 2\r\n\r\n{}", reject},
		{"a header that is none", head + "nonsense\r\nContent-Length: 2\r\n\r\n{}", reject},
		{"HTTP/3 in letters", "POST /v1/embeddings HTTP/3.0\r\nHost: x\r\n\r\n", []int{505}},
		{"a method with a bracket", "PO(ST /v1/embeddings HTTP/1.1\r\nHost: x\r\n\r\n", reject},
		// What a server may accept. The body ends where the last chunk says (RFC 9112 section 6.3).
		{"both a length and chunks", head + fmt.Sprintf("Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 12), reject},
		{"a length that covers another request", head + fmt.Sprintf("Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n%s", 12+len(smuggled), smuggled), reject},
		{"chunks with extensions", head + "Transfer-Encoding: chunked\r\n\r\n2;a=\"b\"\r\n{}\r\n0\r\n\r\n", reject},
		{"a trailer that authorises", head + "Transfer-Encoding: chunked\r\nTrailer: Authorization\r\n\r\n2\r\n{}\r\n0\r\nAuthorization: Bearer x\r\nContent-Length: 100\r\n\r\n", reject},
		{"a folded header", strings.Replace(head, "Host:", "X-A: a\r\n b\r\nHost:", 1) + "Content-Length: 2\r\n\r\n{}", reject},
		{"a coding in capitals", head + "Transfer-Encoding: CHUNKED\r\n\r\n2\r\n{}\r\n0\r\n\r\n", either},
		{"line feeds only", "GET /v1/models/sim-small HTTP/1.1\nHost: x\n" + key + "\n\n", either},
	} {
		t.Run(c.name, func(t *testing.T) { s.smuggle(t, c.request, c.status) })
	}
	s.unharmed(t, 0)
}

// smuggle sends a request and, behind it, one for the model list. The connection stays open: that one is answered or refused
// because of what was before it, and not because nobody listens any more.
func (s *stack) smuggle(t *testing.T, request string, status []int) {
	t.Helper()
	c := s.dial(t)
	// In one write: what a server has not read when it closes makes a reset, which may overtake its answer.
	c.write([]byte(request + "GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + s.key + "\r\nConnection: close\r\n\r\n"))
	var got []rawAnswer
	for {
		a, ok := c.answer("POST")
		if !ok {
			break
		}
		got = append(got, a)
	}
	switch {
	case len(got) == 0 || len(got) > 2:
		t.Fatalf("%d answers: %+v", len(got), got)
	case len(got) == 2 && strings.Contains(request, "Transfer-Encoding"):
		t.Errorf("behind a body in chunks another request is answered: %+v", got[1])
	case len(got) == 2 && (got[1].status != http.StatusOK || !strings.HasPrefix(got[1].body, `{"object":"list"`)):
		t.Errorf("the answer to the second request: %+v", got[1])
	}
	for _, want := range status {
		if got[0].status == want {
			return
		}
	}
	t.Errorf("%d %s, not %v", got[0].status, got[0].body, status)
}

// TestUnusualRequests are odd, and right.
func TestUnusualRequests(t *testing.T) {
	s := newStack(t, stackConfig{})
	body := `{"messages":[{"role":"user","content":"hello"}],"user":"sim:tokens=3","model":"sim-small"}`
	deep := strings.Repeat("[", 60) + strings.Repeat("]", 60)
	requests := map[string]rawRequest{
		"in chunks":                     {length: "chunked"},
		"hop-by-hop names":              {header: []string{"Connection: keep-alive, X-A, Authorization", "X-A: b", "Keep-Alive: timeout=5", "TE: trailers"}},
		"an upgrade that nobody offers": {header: []string{"Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"}},
		"a websocket that is none":      {header: []string{"Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="}},
		"no media type":                 {},
		"another media type":            {header: []string{"Content-Type: text/plain"}},
		"a method that overrides":       {header: []string{"X-HTTP-Method-Override: DELETE"}},
		"60 levels":                     {body: strings.Replace(body, `"model"`, `"metadata":`+deep+`,"model"`, 1)},
		"a model behind a megabyte":     {body: strings.Replace(body, `"model"`, `"x":"`+strings.Repeat("y", 1<<20)+`","model"`, 1)},
		"a model with an escape":        {body: strings.Replace(body, `"sim-small"`, `"sim\u002dsm\u0061ll"`, 1)},
		"unknown fields, nulls, spaces": {body: strings.Replace(body, `{`, " {\t\"stream\" : null, \"stream_options\":null,\n\"zzz\": {\"mode\": \"other\"} ,", 1) + "\r\n "},
		"an empty query":                {target: "/v1/chat/completions?"},
		"a query":                       {target: "/v1/chat/completions?api-version=1&beta=true"},
		"percent signs in the path":     {target: "/v1/%63hat/completions"},
		"an absolute target":            {target: s.url + "/v1/chat/completions"},
	}
	for name, q := range requests {
		t.Run(name, func(t *testing.T) {
			if q.target == "" {
				q.target = "/v1/chat/completions"
			}
			if q.body == "" {
				q.body = body
			}
			if a := q.send(t, s); a.status != http.StatusOK || !strings.Contains(a.body, `"hello t1 t2"`) {
				t.Errorf("%d %s", a.status, tail(a.body, 500))
			}
		})
	}
	t.Run("two in a row", func(t *testing.T) {
		c := s.dial(t)
		q := rawRequest{target: "/v1/chat/completions", body: body}.bytes(s)
		go c.write(append(q, q...))
		for range 2 {
			if a, ok := c.answer("POST"); !ok || a.status != http.StatusOK {
				t.Errorf("%v %+v", ok, a)
			}
		}
	})
	s.unharmed(t, len(requests)+2)
}

// trap is a server that nobody must ever call.
type trap struct {
	url string
	mu  sync.Mutex
	got []string // guarded by mu
}

func newTrap(t *testing.T) *trap {
	t.Helper()
	l, err := net.Listen("tcp", freePort(t)) // not one that was somebody's: a Node may still look for its provider there
	if err != nil {
		t.Fatal(err)
	}
	tr := &trap{url: "http://" + l.Addr().String()}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
			buf := make([]byte, 4096)
			n, _ := conn.Read(buf)
			conn.Close()
			tr.mu.Lock()
			tr.got = append(tr.got, string(buf[:n]))
			tr.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		l.Close()
		served.Wait()
		if len(tr.got) > 0 {
			t.Errorf("a client's field made somebody call %q", tr.got)
		}
	})
	return tr
}

// TestNoFieldChoosesAHost names a server of the client's own in every place that some gateway has believed.
func TestNoFieldChoosesAHost(t *testing.T) {
	s := newStack(t, stackConfig{})
	tr := newTrap(t)
	host := strings.TrimPrefix(tr.url, "http://")
	var passed, nested []string
	for _, name := range []string{
		"api_base", "base_url", "baseUrl", "api_url", "url", "endpoint", "target", "target_url", "upstream", "host", "proxy", "server", "provider", "api_host",
		"azure_endpoint", "litellm_params", "callback", "webhook", "webhook_url", "fallbacks", "redirect", "api_key", "extra_body", "extra_headers",
	} {
		member := fmt.Sprintf(`%q:%q`, name, tr.url+"/v1")
		nested = append(nested, member)
		a := rawRequest{target: "/v1/chat/completions", body: `{"model":"sim-small","messages":[],` + member + `}`}.send(t, s)
		switch {
		case a.status == http.StatusOK:
			passed = append(passed, member)
		case a.status != http.StatusBadRequest || !strings.Contains(a.body, `"code":"unsupported_parameter"`):
			t.Errorf("%s: %+v", name, a)
		}
	}
	if len(nested)-len(passed) < 10 {
		t.Errorf("only %d of %d members are refused; passed were %s", len(nested)-len(passed), len(nested), passed)
	}
	body := `{"model":"sim-small",` + strings.Join(passed, ",") + `,"metadata":{` + strings.Join(nested, ",") +
		`},"messages":[{"role":"user","content":[{"type":"text","text":"hello"},{"type":"image_url","image_url":{"url":"` + tr.url + `/a.png"}}]}]}`
	headers := []string{
		"X-Forwarded-Host: " + host, "X-Forwarded-Server: " + host, "Forwarded: host=" + host, "X-Original-URL: " + tr.url, "X-Rewrite-URL: " + tr.url,
		"X-Host: " + host, "X-Target: " + tr.url, "X-Upstream: " + tr.url, "X-Base-Url: " + tr.url, "X-Api-Base: " + tr.url, "X-Iop-Provider: " + tr.url,
		"X-Iop-Target: " + tr.url, "X-Iop-Run-Id: run_mine", "Referer: " + tr.url, "Origin: " + tr.url, "Location: " + tr.url, "Destination: " + tr.url,
		"Openai-Organization: " + tr.url, "Openai-Project: " + tr.url, "Traceparent: " + tr.url,
	}
	requests := map[string]rawRequest{
		"members":            {body: body},
		"headers":            {body: body, header: headers},
		"the Host header":    {body: body, header: nil},
		"the query":          {body: body, target: "/v1/chat/completions?api_base=" + tr.url + "&url=" + tr.url + "&host=" + host},
		"an absolute target": {body: body, target: tr.url + "/v1/chat/completions"},
		"a form": {target: "/v1/audio/transcriptions", header: []string{"Content-Type: multipart/form-data; boundary=B"},
			body: form(formField("url", tr.url), formField("endpoint", tr.url), formFile, formField("model", "sim-audio"))},
	}
	for name, q := range requests {
		t.Run(name, func(t *testing.T) {
			if q.target == "" {
				q.target = "/v1/chat/completions"
			}
			c := s.dial(t)
			data := string(q.bytes(s))
			if name == "the Host header" {
				data = strings.Replace(data, "Host: "+strings.TrimPrefix(s.url, "http://"), "Host: "+host, 1)
			}
			go c.write([]byte(data))
			if a, ok := c.answer("POST"); !ok || a.status != http.StatusOK {
				t.Errorf("%v %+v", ok, a)
			}
		})
	}
	t.Run("a provider that redirects", func(t *testing.T) {
		a := rawRequest{target: "/v1/chat/completions", body: `{"model":"sim-small","messages":[],"user":"sim:redirect=` + tr.url + `/v1"}`}.send(t, s)
		if a.status != http.StatusBadGateway || strings.Contains(a.body+fmt.Sprint(a.header), host) {
			t.Errorf("%+v", a)
		}
	})
	s.atProvider(t, host)
	s.unharmed(t, len(passed)+len(requests)+1)
}

// atProvider checks that each request reached the provider under its own name and with nothing that routes.
func (s *stack) atProvider(t *testing.T, trap string) {
	t.Helper()
	var all []struct {
		Method, Path, Host string
		Headers            http.Header
	}
	s.sims[0].control(t, "GET", "/sim/requests", nil, &all)
	for _, r := range all {
		if r.Method != "POST" {
			continue
		}
		if want := strings.TrimPrefix(s.sims[0].url, "http://"); r.Host != want || strings.Contains(r.Path, "?") {
			t.Errorf("%s at host %s", r.Path, r.Host)
		}
		for name, values := range r.Headers {
			switch {
			case name == "Traceparent": // the client's to say, and nobody's address
			case strings.HasPrefix(name, "X-"), name == "Authorization", name == "Cookie", name == "Forwarded", strings.Contains(strings.Join(values, " "), trap):
				t.Errorf("the provider got %s: %q", name, values)
			}
		}
	}
}

// TestKeyGuessing: who tries keys from one address is slowed down; a good key from there is not.
func TestKeyGuessing(t *testing.T) {
	s := newEdge(t)
	other := newEdge(t)
	guess := rawRequest{method: "GET", target: "/v1/models", auth: "Authorization: Bearer " + other.key}
	for range 200 {
		a := guess.send(t, s)
		if a.status == http.StatusUnauthorized {
			continue
		}
		if a.status != http.StatusTooManyRequests || a.header.Get("Retry-After") == "" || !strings.Contains(a.body, `"code":"rate_limit_exceeded"`) {
			t.Errorf("%+v", a)
		}
		if res, body := s.get("/v1/models"); res.StatusCode != http.StatusOK {
			t.Errorf("a good key after the guesses: %s %s", res.Status, body)
		}
		return
	}
	t.Error("200 guesses in a row were looked at")
}
