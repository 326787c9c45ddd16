package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	role   = `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	token  = `data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}` + "\n\n"
	finish = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	usage  = `data: {"choices":[],"usage":{"completion_tokens":7}}` + "\n\n"
	done   = "data: [DONE]\n\n"
)

// serve answers each chat completion with body.
func serve(t *testing.T, status int, body string) Target {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/chat/completions" || r.Header.Get("Authorization") != "Bearer k" {
			http.Error(w, "not what a client sends", http.StatusTeapot)
			return
		}
		w.WriteHeader(status)
		io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	return Target{URL: server.URL + "/v1", Key: "k", Model: "m"}
}

func TestRunCountsOutcomes(t *testing.T) {
	whole := `{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}],"usage":{"completion_tokens":5}}`
	tests := []struct {
		name   string
		stream bool
		status int
		body   string
		kind   string
		tokens int64
	}{
		{"stream with usage", true, 200, role + token + token + finish + usage + done, "", 7},
		{"stream without usage", true, 200, role + token + token + finish + done, "", 2},
		{"stream with finish_reason only", true, 200, token + finish, "", 1},
		{"comments", true, 200, ": ping\n" + token + ": ping\n" + finish + done, "", 1},
		{"truncated stream", true, 200, role + token, KindTruncated, 0},
		{"empty stream", true, 200, "", KindTruncated, 0},
		{"error in the stream", true, 200, token + `data: {"error":{"message":"gone"}}` + "\n\n", KindInBand, 0},
		{"no JSON in the stream", true, 200, "data: {\n\n", KindBadAnswer, 0},
		{"refused", true, 429, `{"error":{"message":"slow down"}}`, "http_429", 0},
		{"whole", false, 200, whole, "", 5},
		{"whole without choices", false, 200, `{}`, KindBadAnswer, 0},
		{"whole and no JSON", false, 200, `<html>`, KindBadAnswer, 0},
		{"whole and refused", false, 503, `no`, "http_503", 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			cfg := Config{Target: serve(t, test.status, test.body), Concurrency: 2, Requests: 3, Stream: test.stream}
			report, err := Run(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			if report.Requests != 3 || report.Tokens != 3*test.tokens {
				t.Errorf("requests %d, tokens %d; want 3, %d", report.Requests, report.Tokens, 3*test.tokens)
			}
			if test.kind == "" && (report.Failed != 0 || report.TTFT.P50 <= 0 || report.Latency.P99 < report.TTFT.P50) {
				t.Errorf("report %+v: want success and times", report)
			}
			if test.kind != "" && (report.Failed != 3 || report.Errors[test.kind] != 3 || report.FirstError == "") {
				t.Errorf("failed %d, errors %v, first %q; want 3 of kind %s", report.Failed, report.Errors, report.FirstError, test.kind)
			}
		})
	}
}

func TestRunWithoutServer(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	report, err := Run(t.Context(), Config{Target: Target{URL: server.URL, Model: "m"}, Concurrency: 1, Requests: 1})
	if err != nil || report.Errors[KindConnect] != 1 {
		t.Errorf("report %+v, %v; want one failure to connect", report, err)
	}
}

// TestRunBrokenStream: a connection that breaks is told from a stream that ends early.
func TestRunBrokenStream(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, token)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer server.Close()
	report, err := Run(t.Context(), Config{Target: Target{URL: server.URL, Model: "m"}, Concurrency: 1, Requests: 1, Stream: true})
	if err != nil || report.Errors[KindBroken] != 1 {
		t.Errorf("report %+v, %v; want one broken", report, err)
	}
}

// TestRunIsBoundedInRequests: never more under way, and never more in all, than asked for.
func TestRunIsBoundedInRequests(t *testing.T) {
	var now, most, all atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		all.Add(1)
		io.WriteString(w, token+done)
	}))
	defer server.Close()
	report, err := Run(t.Context(), Config{Target: Target{URL: server.URL, Model: "m"}, Concurrency: 3, Requests: 50, Stream: true})
	if err != nil || report.Requests != 50 || all.Load() != 50 || most.Load() > 3 {
		t.Errorf("%d reported, %d made, %d at once, %v; want 50, 50, 3 at most", report.Requests, all.Load(), most.Load(), err)
	}
}

// TestRunEndsWithItsContext: a server that never answers does not hold a cancelled run.
func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // the server notices a client's end only once the body is read
		cancel()
		<-r.Context().Done()
	}))
	defer server.Close()
	report, err := Run(ctx, Config{Target: Target{URL: server.URL, Model: "m"}, Concurrency: 1, Duration: time.Hour})
	if err != nil || report.Errors[KindUnfinished] != 1 {
		t.Errorf("report %+v, %v; want one unfinished", report, err)
	}
}

func TestCompare(t *testing.T) {
	good, bad := serve(t, 200, token+finish+usage+done), serve(t, 500, "no")
	c, err := Compare(t.Context(), Config{Target: good, Concurrency: 2, Requests: 10, Stream: true}, bad)
	if err != nil {
		t.Fatal(err)
	}
	if c.Target.Requests != 10 || c.Target.Failed != 0 || c.Against.Requests != 10 || c.Against.Errors["http_500"] != 10 {
		t.Errorf("comparison %+v", c)
	}
	if c.Ratios.TTFTP50 != 0 {
		t.Errorf("a ratio to nothing is %v; want 0", c.Ratios.TTFTP50)
	}
	c, err = Compare(t.Context(), Config{Target: good, Concurrency: 1, Requests: 3, Stream: true}, good)
	if err != nil || c.Ratios.TTFTP50 <= 0 || c.Ratios.TokensPerSecond <= 0 {
		t.Errorf("comparison with itself: %+v, %v", c.Ratios, err)
	}
}

func TestConfigFaults(t *testing.T) {
	good := Config{Target: Target{URL: "http://h", Model: "m"}, Concurrency: 1, Requests: 1}
	tests := []struct {
		field  string
		break_ func(*Config)
	}{
		{"url", func(c *Config) { c.Target.URL = "h:80" }},
		{"url", func(c *Config) { c.Target.URL = "http://u:secret@h" }},
		{"model", func(c *Config) { c.Target.Model = "" }},
		{"concurrency", func(c *Config) { c.Concurrency = 0 }},
		{"requests", func(c *Config) { c.Requests = -1 }},
		{"requests or duration", func(c *Config) { c.Requests = 0 }},
		{"duration", func(c *Config) { c.Duration = 2 * time.Hour }},
		{"max-tokens", func(c *Config) { c.MaxTokens = -1 }},
	}
	for _, test := range tests {
		cfg := good
		test.break_(&cfg)
		_, err := Run(t.Context(), cfg)
		if err == nil || !strings.HasPrefix(err.Error(), test.field) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: error %v", test.field, err)
		}
	}
}

func TestRequestBody(t *testing.T) {
	var got map[string]any
	cfg := Config{Target: Target{Model: "m"}, Stream: true, MaxTokens: 9, Prompt: "hi"}
	if err := json.Unmarshal(requestBody(cfg), &got); err != nil {
		t.Fatal(err)
	}
	if got["model"] != "m" || got["stream"] != true || got["max_tokens"] != 9.0 || fmt.Sprint(got["stream_options"]) != "map[include_usage:true]" {
		t.Errorf("body %v", got)
	}
	cfg.Stream, cfg.MaxTokens = false, 0
	if body := string(requestBody(cfg)); strings.Contains(body, "stream") || strings.Contains(body, "max_tokens") {
		t.Errorf("body %s: want no stream, no max_tokens", body)
	}
}

func TestEndpoint(t *testing.T) {
	for _, url := range []string{"http://h", "http://h/", "http://h/v1", "http://h/v1/"} {
		if got := (Target{URL: url}).endpoint("/x"); got != "http://h/v1/x" {
			t.Errorf("%s: %s", url, got)
		}
	}
}

func TestHistogram(t *testing.T) {
	var h, other histogram
	if h.quantile(0.5) != 0 {
		t.Error("an empty histogram has a quantile")
	}
	for i := range 1000 {
		d := time.Duration(i+1) * time.Millisecond
		if i%2 == 0 {
			h.add(d)
		} else {
			other.add(d)
		}
	}
	h.merge(&other)
	for _, test := range []struct {
		q    float64
		want time.Duration
	}{{0.5, 500 * time.Millisecond}, {0.99, 990 * time.Millisecond}, {1, time.Second}} {
		got := h.quantile(test.q)
		if got < test.want || got > test.want+test.want/40 {
			t.Errorf("quantile %v = %v, want %v within 2 %%", test.q, got, test.want)
		}
	}
	h.add(-time.Second) // a clock that stepped
	h.add(100 * time.Hour)
	if h.max != 100*time.Hour || h.quantile(1) > 100*time.Hour {
		t.Errorf("max %v, quantile(1) %v", h.max, h.quantile(1))
	}
}
