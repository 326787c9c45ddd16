package sim

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// askFor is a chat request for a model with these messages.
func askFor(model, user string, messages ...string) string {
	list := make([]map[string]string, len(messages))
	for i, m := range messages {
		list[i] = map[string]string{"role": "user", "content": m}
	}
	return string(marshal(map[string]any{"model": model, "user": user, "messages": list, "max_tokens": 1}))
}

// cachedOf reads a whole chat answer and returns its prompt tokens and the cached ones of them.
func cachedOf(t *testing.T, resp *http.Response) (prompt, cached int) {
	t.Helper()
	var out struct {
		Usage struct {
			Prompt  int `json:"prompt_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil || json.Unmarshal(body, &out) != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%d %s: %v", resp.StatusCode, body, err)
	}
	return out.Usage.Prompt, out.Usage.Details.Cached
}

// TestPrefixCache: what an earlier prompt had in common needs no prefill, and is reported; another model, another
// beginning and what was forgotten do.
func TestPrefixCache(t *testing.T) {
	const rate = 1000
	inBubble(t, func(c *Config) {
		c.PrefixCache, c.PrefillTokensPerSecond, c.Models = 4000, rate, []string{"a", "b"}
	}, func(t *testing.T, s *Server, ask func(string) *http.Response) {
		long := func(word string) string { return strings.Repeat(word+" ", 600) } // 600 tokens and more
		took := func(body string) (prompt, cached int) {
			t.Helper()
			began := time.Now()
			prompt, cached = cachedOf(t, ask(body))
			want := time.Duration(float64(prompt-cached) / rate * float64(time.Second))
			if took := time.Since(began); took != want {
				t.Errorf("%d of %d cached took %s, want %s", cached, prompt, took, want)
			}
			return prompt, cached
		}
		if _, cached := took(askFor("a", "", long("xx"))); cached != 0 {
			t.Errorf("%d cached of the first prompt", cached)
		}
		if prompt, cached := took(askFor("a", "", long("xx"))); cached < prompt-2*blockTokens || cached >= prompt {
			t.Errorf("%d of %d cached of the same prompt", cached, prompt)
		}
		first, _ := took(askFor("a", "", long("xx")))
		if prompt, cached := took(askFor("a", "", long("xx"), "and more", long("yy"))); cached < first-2*blockTokens || cached > first+blockTokens || prompt < 2*cached-blockTokens {
			t.Errorf("%d of %d cached of a conversation that went on from %d", cached, prompt, first)
		}
		if _, cached := took(askFor("b", "", long("xx"))); cached != 0 {
			t.Errorf("%d cached of another model's prompt", cached)
		}
		if _, cached := took(askFor("a", "", "zz", long("xx"))); cached != 0 {
			t.Errorf("%d cached of a prompt with another beginning", cached)
		}
		for i := range 10 {
			took(askFor("a", "", long(fmt.Sprint("w", i))))
		}
		if _, cached := took(askFor("a", "", long("xx"))); cached != 0 {
			t.Errorf("%d cached of a prompt that was crowded out", cached)
		}
		if _, cached := took(askFor("a", "sim:cached=7", long("xx"))); cached != 7 {
			t.Errorf("%d cached, though the request said 7", cached)
		}
		if st := s.Stats(); st.Cached == 0 || st.Prompt <= st.Cached || s.Requests(1)[0].Cached != 7 {
			t.Errorf("stats say %d of %d cached", st.Cached, st.Prompt)
		}
		if n := len(s.prefixes.blocks); n > 4000/blockTokens || n != s.prefixes.used.Len() {
			t.Errorf("%d blocks are kept, %d in line", n, s.prefixes.used.Len())
		}
	})
}

// TestPrefillWithoutCache: every prompt is read whole, and none is said to be cached.
func TestPrefillWithoutCache(t *testing.T) {
	inBubble(t, func(c *Config) { c.PrefillTokensPerSecond, c.TTFT = 100, time.Second }, func(t *testing.T, _ *Server, ask func(string) *http.Response) {
		for range 2 {
			began := time.Now()
			prompt, cached := cachedOf(t, ask(askFor("sim-small", "", strings.Repeat("x", 600))))
			if took := time.Since(began); prompt != 200 || cached != 0 || took != 3*time.Second {
				t.Errorf("%d tokens, %d cached, in %s", prompt, cached, took)
			}
		}
	})
}

// TestColdLoad: the first request for a model waits for its load, those that come meanwhile for the rest of it, and
// later ones for nothing, until the model has made room for another.
func TestColdLoad(t *testing.T) {
	inBubble(t, func(c *Config) {
		c.Flavour, c.Models, c.Load, c.MaxLoaded, c.Loaded = Ollama, []string{"a", "b", "c"}, 8*time.Second, 2, []string{"b"}
	}, func(t *testing.T, s *Server, ask func(string) *http.Response) {
		took := func(model string) time.Duration {
			t.Helper()
			began := time.Now()
			cachedOf(t, ask(askFor(model, "", "hello")))
			return time.Since(began)
		}
		loaded := func(want string) {
			t.Helper()
			if got := strings.Join(s.Loaded(), " "); got != want {
				t.Errorf("in memory are %q, want %q", got, want)
			}
		}
		loaded("b")
		var both sync.WaitGroup
		both.Go(func() {
			if d := took("a"); d != 8*time.Second {
				t.Errorf("the load took %s", d)
			}
		})
		time.Sleep(3 * time.Second)
		loaded("b")
		both.Go(func() {
			if d := took("a:latest"); d != 5*time.Second {
				t.Errorf("the rest of the load took %s", d)
			}
		})
		both.Wait()
		synctest.Wait()
		loaded("a b")
		if d := took("a"); d != 0 {
			t.Errorf("a warm model took %s", d)
		}
		took("c") // b was used longest ago
		loaded("a c")
		if d := took("b"); d != 8*time.Second {
			t.Errorf("what made room came back in %s", d)
		}
		loaded("b c")
	})
}

// TestLoadedIsTold: by the paths that engines have for it, and only what is.
func TestLoadedIsTold(t *testing.T) {
	r := start(t, func(c *Config) { c.Flavour, c.Models = Ollama, []string{"a", "b"} })
	if body := r.do("GET", "/api/ps", "").body; strings.Contains(body, `"a"`) || strings.Contains(body, `"b"`) {
		t.Errorf("nothing was used, and loaded is %s", body)
	}
	r.do("POST", "/v1/chat/completions", askFor("a", "", "x"))
	if body := r.do("GET", "/api/ps", "").body; !strings.Contains(body, `"a"`) || strings.Contains(body, `"b"`) {
		t.Errorf("a was used, and loaded is %s", body)
	}
	if got := r.do("PUT", "/sim/loaded", `{"models":["b"]}`); !strings.Contains(got.body, `"b"`) || strings.Contains(got.body, `"a"`) {
		t.Errorf("told to hold b: %s", got.body)
	}
	if got := r.do("PUT", "/sim/loaded", `{"models":["z"]}`); got.StatusCode != http.StatusBadRequest {
		t.Errorf("told to hold an unknown model: %d", got.StatusCode)
	}
	lm := start(t, func(c *Config) {
		c.Flavour, c.Models, c.Load, c.Loaded = LMStudio, []string{"a", "b"}, time.Hour, []string{"b"}
	})
	var list struct{ Data []struct{ ID, State string } }
	if err := json.Unmarshal([]byte(lm.do("GET", "/api/v0/models", "").body), &list); err != nil || fmt.Sprint(list.Data) != "[{a not-loaded} {b loaded}]" {
		t.Errorf("LM Studio: %v, %v", list.Data, err)
	}
}

// TestFailRate: the share of requests that the simulator was started to fail, at once and with its status; the model
// list goes on.
func TestFailRate(t *testing.T) {
	r := start(t, func(c *Config) {
		c.FailRate, c.FailStatus, c.RetryAfter, c.TTFT = 0.25, 503, 1500*time.Millisecond, 0
	})
	failed := 0
	for range 40 {
		got := r.do("POST", "/v1/chat/completions", askFor("sim-small", "", "x"))
		switch {
		case got.StatusCode == 503 && got.Header.Get("Retry-After") == "2":
			failed++
		case got.StatusCode != 200:
			t.Errorf("%d with Retry-After %q", got.StatusCode, got.Header.Get("Retry-After"))
		}
		if list := r.do("GET", "/v1/models", ""); list.StatusCode != 200 {
			t.Errorf("the list of models: %d", list.StatusCode)
		}
	}
	if failed != 10 {
		t.Errorf("%d of 40 failed", failed)
	}
	all := start(t, func(c *Config) { c.FailRate = 1 })
	for range 3 {
		if got := all.do("POST", "/v1/chat/completions", askFor("sim-small", "sim:ttft=1h", "x")); got.StatusCode != 500 || got.Header.Get("Retry-After") != "" {
			t.Errorf("%d", got.StatusCode)
		}
	}
}

// TestFailFirst: requests with the same order fail so many times; each order counts on its own, and so does a new
// beginning.
func TestFailFirst(t *testing.T) {
	r := start(t, nil)
	statuses := func(order string, n int) (got string) {
		for range n {
			got += fmt.Sprint(r.do("POST", "/v1/chat/completions", askFor("sim-small", order, "x")).StatusCode, " ")
		}
		return got
	}
	for _, c := range []struct {
		order string
		want  string
	}{
		{"sim:fail_first=2,status=503,retry-after=4", "503 503 200 200 "},
		{"sim:fail-first=1", "500 200 200 200 "},
		{"sim:fail_first=2,status=429", "429 429 200 200 "},
		{"sim:fail_first=2,status=503,retry-after=4", "200 200 200 200 "},
		{"sim:status=503", "503 503 503 503 "},
	} {
		if got := statuses(c.order, 4); got != c.want {
			t.Errorf("%s: %s, want %s", c.order, got, c.want)
		}
	}
	if got := r.do("POST", "/v1/chat/completions", askFor("sim-small", "sim:status=503,retry-after=4", "x")); got.Header.Get("Retry-After") != "4" {
		t.Errorf("Retry-After is %q", got.Header.Get("Retry-After"))
	}
	r.do("POST", "/sim/config", `{"fail_first":1,"status":502}`)
	if got := statuses("", 2); got != "502 200 " {
		t.Errorf("by default: %s", got)
	}
	r.do("POST", "/sim/config", `{"fail_first":1,"status":502}`)
	if got := statuses("", 2); got != "502 200 " {
		t.Errorf("by default, ordered again: %s", got)
	}
}

func TestConfigOfMemoryAndFailures(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"prefill-tokens-per-second": func(c *Config) { c.PrefillTokensPerSecond = -1 },
		"prefix-cache":              func(c *Config) { c.PrefixCache = maxPrefixCache + 1 },
		"load must":                 func(c *Config) { c.Load = -1 },
		"loaded names":              func(c *Config) { c.Loaded = []string{"nobody"} },
		"max-loaded":                func(c *Config) { c.MaxLoaded = -1 },
		"fail-rate":                 func(c *Config) { c.FailRate = 1.1 },
		"fail-status":               func(c *Config) { c.FailStatus = 200 },
		"retry-after":               func(c *Config) { c.RetryAfter = -time.Second },
	} {
		c := DefaultConfig()
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
