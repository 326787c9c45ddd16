package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
)

// control talks to the simulator's own paths.
func (s *simulator) control(t *testing.T, method, path string, in, out any) {
	t.Helper()
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequest(method, s.url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s %v %s", method, path, res.Status, err, data)
	}
	if out != nil {
		if err := json.Unmarshal(data, out); err != nil {
			t.Fatalf("%s %s: %v in %s", method, path, err, data)
		}
	}
}

// goError returns err as the SDK's error, which must have this status and code.
func goError(t *testing.T, err error, status int, code string) *openai.Error {
	t.Helper()
	e, ok := errors.AsType[*openai.Error](err)
	if !ok {
		t.Fatalf("%T: %v", err, err)
	}
	if e.StatusCode != status || code != "" && e.Code != code || e.Message == "" || e.Type == "" {
		t.Errorf("%d %q %q %q, not %d %q", e.StatusCode, e.Code, e.Type, e.Message, status, code)
	}
	if id := e.Response.Header.Get("X-Request-Id"); !strings.HasPrefix(id, "req_") {
		t.Errorf("%d: X-Request-Id %q", status, id)
	}
	return e
}

// goAttempts checks how often the SDK asked: the last request says so itself.
func goAttempts(t *testing.T, e *openai.Error, want int) {
	t.Helper()
	if got := e.Response.Request.Header.Get("X-Stainless-Retry-Count"); got != strconv.Itoa(want-1) {
		t.Errorf("%d: the last attempt's retry count is %s, not %d", e.StatusCode, got, want-1)
	}
}

func (g *goSDK) edgeErrors(t *testing.T) {
	tight := goClient(g.Tight.BaseURL, g.Tight.Key)
	large := goChat(strings.Repeat("x", 300_000), "")
	for _, c := range []struct {
		name   string
		client openai.Client
		params openai.ChatCompletionNewParams
		option option.RequestOption
		status int
		code   string
		param  string
	}{
		{"wrong key", goClient(g.BaseURL, g.Keys["wrong"]), goChat("a", ""), nil, 401, "invalid_api_key", ""},
		{"revoked key", goClient(g.BaseURL, g.Keys["revoked"]), goChat("a", ""), nil, 401, "invalid_api_key", ""},
		{"expired key", goClient(g.BaseURL, g.Keys["expired"]), goChat("a", ""), nil, 401, "invalid_api_key", ""},
		{"a model that is not the key's", goClient(g.BaseURL, g.Keys["narrow"]), goChat("a", ""), nil, 403, "model_not_allowed", "model"},
		{"no such model", g.Client, goChatFor("nobody", "a", ""), nil, 404, "model_not_found", "model"},
		{"a wrong type", g.Client, goChat("a", ""), option.WithJSONSet("stream", "yes"), 400, "invalid_request_error", "stream"},
		{"too large", tight, large, nil, 413, "request_too_large", ""},
		{"compressed", g.Client, goChat("a", ""), option.WithHeader("Content-Encoding", "gzip"), 415, "unsupported_media_type", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var opts []option.RequestOption
			if c.option != nil {
				opts = append(opts, c.option)
			}
			_, err := c.client.Chat.Completions.New(t.Context(), c.params, opts...)
			e := goError(t, err, c.status, c.code)
			goAttempts(t, e, 1)
			if e.Param != c.param || e.Response.Header.Get("X-Should-Retry") != "false" {
				t.Errorf("param %q, header %v", e.Param, e.Response.Header)
			}
		})
	}
}

// failingModel returns a model for a request that fails on purpose.
func (g *goSDK) failingModel() string { return fmt.Sprintf("failing-%d", g.failed.Add(1)-1) }

// failing is a chat request that fails on purpose.
func (g *goSDK) failing(text, knobs string) openai.ChatCompletionNewParams {
	return goChatFor(g.failingModel(), text, knobs)
}

// providerErrors asks for every status of a provider, all at once: most of the time passes in the SDK's waits.
func (g *goSDK) providerErrors(t *testing.T) {
	var group sync.WaitGroup
	defer group.Wait()
	for _, c := range []struct{ status, told, attempts int }{
		{400, 400, 1}, {401, 502, 1}, {403, 502, 1}, {404, 404, 1}, {408, 408, 3}, {409, 409, 3}, {413, 413, 1}, {422, 422, 1},
		{429, 429, 3}, {500, 502, 3}, {502, 502, 3}, {503, 503, 3}, {504, 502, 3}, {529, 503, 3},
	} {
		for _, shape := range []string{"openai", "string", "detail", "flat", "html", "empty"} {
			group.Go(func() {
				marker := "provider-go-" + strconv.Itoa(c.status) + "-" + shape
				_, err := g.Chat.Completions.New(t.Context(), g.failing(marker, "error_shape="+shape+",status="+strconv.Itoa(c.status)))
				e, ok := errors.AsType[*openai.Error](err)
				if !ok || e.StatusCode != c.told || e.Message == "" || e.Type == "" {
					t.Errorf("%s: %v, raw %s", marker, err, raw(e))
					return
				}
				goAttempts(t, e, c.attempts)
				if n := len(g.main.sims[0].sdkSeen(t, marker)); n != c.attempts {
					t.Errorf("%s: %d attempts, not %d", marker, n, c.attempts)
				}
			})
		}
	}
}

func raw(e *openai.Error) string {
	if e == nil {
		return ""
	}
	return e.RawJSON()
}

func (g *goSDK) retryThenSuccess(t *testing.T) {
	sim := g.main.sims[0]
	sim.control(t, "POST", "/sim/config", map[string]any{"status": 503, "times": 2}, nil)
	if a := g.ask(t, goChat("mended-go", "tokens=3")); a.Choices[0].Message.Content != "mended-go t1 t2" {
		t.Errorf("%s", a.RawJSON())
	}
	if n := len(sim.sdkSeen(t, "mended-go")); n != 3 {
		t.Errorf("%d attempts", n)
	}
}

func (g *goSDK) retryAfter(t *testing.T) {
	sim := g.main.sims[0]
	sim.control(t, "POST", "/sim/config", map[string]any{"status": 429, "retry_after": "2", "times": 1}, nil)
	g.ask(t, goChat("later-go", "tokens=3"))
	seen := sim.sdkSeen(t, "later-go")
	if len(seen) != 2 {
		t.Fatalf("%d attempts", len(seen))
	}
	if waited := seen[1].Started.Sub(seen[0].Started); waited < 1900*time.Millisecond {
		t.Errorf("came again after %s, although Retry-After said 2", waited)
	}
}

// waiting shows a full queue, a wait that is too long, a provider that hangs, and no room for bodies.
func (g *goSDK) waiting(t *testing.T) {
	client := goClient(g.Tight.BaseURL, g.Tight.Key, option.WithMaxRetries(0))
	call := func(text, knobs string) <-chan error {
		answer := make(chan error, 1)
		go func() {
			_, err := client.Chat.Completions.New(t.Context(), goChat(text, knobs))
			answer <- err
		}()
		return answer
	}
	hung := call("hung-go "+strings.Repeat("x", 200_000), "hang")
	eventually(t, patience, "the provider has the request", func() bool { return len(g.tight.sims[0].sdkSeen(t, "hung-go")) == 1 })
	queued := call("queued-go", "")
	eventually(t, patience, "one waits", func() bool { return g.tight.metric("iop_queued") == 1 })
	for _, e := range []*openai.Error{
		goError(t, <-call("full-go", ""), 429, "queue_full"),
		goError(t, <-call("heavy-go "+strings.Repeat("x", 100_000), ""), 503, "overloaded"),
	} {
		if wait, err := strconv.Atoi(e.Response.Header.Get("Retry-After")); err != nil || wait < 1 || wait > 60 {
			t.Errorf("%s: Retry-After %q", e.Code, e.Response.Header.Get("Retry-After"))
		}
	}
	goError(t, <-queued, 504, "queue_timeout")
	goError(t, <-hung, 504, "provider_timeout")
}

// goCancelled waits until the provider has seen that a client left, and returns how long after left that was.
func (g *goSDK) goCancelled(t *testing.T, marker string, left time.Time) (took time.Duration) {
	t.Helper()
	eventually(t, patience, "the provider sees that the client left", func() bool {
		seen := g.main.sims[0].sdkSeen(t, marker)
		if len(seen) == 0 || seen[0].State != "cancelled" {
			return false
		}
		took = seen[0].Ended.Sub(left)
		return true
	})
	return took
}

// bestOfThree lets a loaded machine be late, but not three times.
func (g *goSDK) bestOfThree(t *testing.T, name string, leave func(marker string) time.Time) {
	t.Helper()
	var took []time.Duration
	for i := range 3 {
		marker := name + "-" + strconv.Itoa(i)
		took = append(took, g.goCancelled(t, marker, leave(marker)))
		if took[i] <= time.Second {
			t.Logf("cancelled %s later", took[i])
			return
		}
	}
	t.Errorf("the provider went on for %s", took)
}

func (g *goSDK) abortStream(t *testing.T) {
	g.bestOfThree(t, "leave-stream-go", func(marker string) time.Time {
		s := g.Chat.Completions.NewStreaming(t.Context(), goChat(marker, "tokens=100000,itl=20ms"))
		for range 3 {
			if !s.Next() {
				t.Fatal(s.Err())
			}
		}
		left := time.Now()
		s.Close()
		return left
	})
}

func (g *goSDK) abortUnary(t *testing.T) {
	g.bestOfThree(t, "leave-unary-go", func(marker string) time.Time {
		ctx, cancel := context.WithCancel(t.Context())
		answer := make(chan error, 1)
		go func() {
			_, err := g.Chat.Completions.New(ctx, goChat(marker, "ttft=10m"))
			answer <- err
		}()
		eventually(t, patience, "the provider has the request", func() bool { return len(g.main.sims[0].sdkSeen(t, marker)) == 1 })
		left := time.Now()
		cancel()
		if err := <-answer; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		return left
	})
}

// goBroken checks that a stream ended with an error in its midst.
func goBroken(t *testing.T, what string, events int, err error) {
	t.Helper()
	e, ok := errors.AsType[*ssestream.StreamError](err)
	if !ok {
		t.Errorf("%s: after %d events %T: %v", what, events, err, err)
		return
	}
	var body struct {
		Error struct{ Message, Code string }
	}
	if err := json.Unmarshal(e.Event.Data, &body); err != nil || body.Error.Message == "" || body.Error.Code == "" {
		t.Errorf("%s: %v in %s", what, err, e.Event.Data)
	}
	if events == 0 {
		t.Errorf("%s: no event before the error", what)
	}
}

func (g *goSDK) brokenStream(t *testing.T) {
	for _, fault := range []string{"midclose", "midreset", "midabort", "error_event_mid", "llamacpp_error", "die"} {
		chunks, err := readAll(g.Chat.Completions.NewStreaming(t.Context(), g.failing("a", "tokens=20,itl=5ms,after=6,fault="+fault)))
		goBroken(t, fault, len(chunks), err)
		for _, chunk := range chunks {
			if chunk.Choices[0].FinishReason != "" {
				t.Errorf("%s: an end that nobody sent: %s", fault, chunk.RawJSON())
			}
		}
	}
}

func (g *goSDK) brokenAtOnce(t *testing.T) {
	client := goClient(g.BaseURL, g.Key, option.WithMaxRetries(0))
	for _, fault := range []string{"close", "reset", "empty200", "error_event_first"} {
		_, err := readAll(client.Chat.Completions.NewStreaming(t.Context(), g.failing("a", "fault="+fault)))
		goError(t, err, 502, "")
	}
	for _, fault := range []string{"close", "reset", "empty200", "midreset", "midabort"} {
		_, err := client.Chat.Completions.New(t.Context(), g.failing("a", "fault="+fault))
		goError(t, err, 502, "provider_error")
	}
}

func (g *goSDK) brokenResponses(t *testing.T) {
	for _, fault := range []string{"midclose", "midreset", "error_event_mid"} {
		events, err := readAll(g.Responses.NewStreaming(t.Context(), goResponse(g.failingModel(), "a", "tokens=20,after=6,fault="+fault)))
		goBroken(t, fault, len(events), err)
	}
}

func (g *goSDK) nodeKilled(t *testing.T) {
	s := g.Chat.Completions.NewStreaming(t.Context(), goChat("killed-go", "tokens=100000,itl=20ms"))
	defer s.Close()
	events := 0
	for s.Next() {
		if events++; events == 3 {
			g.main.nodes[0].kill()
		}
	}
	goBroken(t, "Node killed", events, s.Err())
}
