package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// variable is what differs between two runs of the same request at the simulator: counters and the clock.
var variable = regexp.MustCompile(`(chatcmpl-|cmpl-|call_|resp_|msg_|fc_|rs_|item_)sim[0-9a-z]+x[0-9]+|"(created|created_at|completed_at)":[0-9]+`)

// direct asks the simulator itself, without anything between.
func (s *simulator) direct(t *testing.T, path string, body any) (*http.Response, []byte) {
	t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.Post(s.url+path, "application/json", bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	out, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, out
}

// TestBytesAreForwarded compares streams behind the Edge with those of the provider itself, byte by byte.
func TestBytesAreForwarded(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackConfig{simArgs: []string{"--models", "sim-small,deep-reason"}})
	knobs := []string{
		"text=cjk,split=1", "text=emoji,split=1", "text=emoji,split=2", "text=mix,split=3", "text=cjk,split=7,crlf", "text=mix,split=1,cr_split",
		"crlf", "cr_split", "cr,done=none", "comments", "comments,crlf,split=5", "nospace", "nospace,crlf,split=1", "bom", "ids", "retry_field",
		"bigevent=1m", "bigevent=1m,split=65536", "bigevent=1m,text=cjk,nospace,crlf", "tokens=3000,chunk_bytes=100", "tokens=2000,text=emoji,split=11",
		"reasoning=5", "cached=2", "usage=always", "usage=finish", "content_type=charset", "done=none", "tokens=0",
	}
	bodies := map[string]func(knob string) (string, map[string]any){
		"chat": func(k string) (string, map[string]any) {
			b := chat("sim-small", k, true)
			b["stream_options"] = map[string]any{"include_usage": true} // else the Edge would ask for it
			return "/v1/chat/completions", b
		},
		"chat without usage": func(k string) (string, map[string]any) {
			return "/v1/chat/completions", chat("sim-small", "usage=never,"+k, true)
		},
		"completions": func(k string) (string, map[string]any) {
			return "/v1/completions", map[string]any{"model": "sim-small", "stream": true, "user": "sim:" + k, "prompt": "hello", "stream_options": map[string]any{"include_usage": true}}
		},
		"responses": func(k string) (string, map[string]any) {
			return "/v1/responses", map[string]any{"model": "sim-small", "stream": true, "user": "sim:" + k, "input": "hello"}
		},
		"tools": func(k string) (string, map[string]any) {
			b := chat("deep-reason", k+",tools=2", true)
			b["stream_options"] = map[string]any{"include_usage": true}
			var tools []any
			for _, name := range []string{"weather", "天気"} {
				tools = append(tools, map[string]any{"type": "function", "function": map[string]any{"name": name, "parameters": map[string]any{
					"type": "object", "properties": map[string]any{"city": map[string]any{"type": "string"}}}}})
			}
			b["tools"] = tools
			return "/v1/chat/completions", b
		},
	}
	for kind, make := range bodies {
		for _, knob := range knobs {
			if kind == "chat without usage" && strings.Contains(knob, "usage=") {
				continue
			}
			t.Run(kind+"/"+knob, func(t *testing.T) {
				path, body := make(knob)
				res, want := s.sims[0].direct(t, path, body)
				if res.StatusCode != http.StatusOK || len(want) < 100 {
					t.Fatalf("the provider itself: %s %s", res.Status, want)
				}
				got, through := s.post(path, body)
				if got.StatusCode != http.StatusOK || got.Header.Get("Content-Type") != res.Header.Get("Content-Type") {
					t.Errorf("%s, %v", got.Status, got.Header)
				}
				sameBytes(t, through, want)
			})
		}
	}
	s.quiet()
}

func sameBytes(t *testing.T, got, want []byte) {
	t.Helper()
	got, want = variable.ReplaceAll(got, []byte("$1$2")), variable.ReplaceAll(want, []byte("$1$2"))
	if bytes.Equal(got, want) {
		return
	}
	i := 0
	for i < min(len(got), len(want)) && got[i] == want[i] {
		i++
	}
	from := max(0, i-60)
	t.Errorf("%d bytes, not %d; from byte %d\n%q, not\n%q", len(got), len(want), i, got[from:min(len(got), i+60)], want[from:min(len(want), i+60)])
}

// TestUsage has providers that tell usage in each of their ways, and clients that ask for it or do not.
func TestUsage(t *testing.T) {
	t.Parallel()
	for _, usage := range []string{"", "never", "always", "refuse", "finish"} {
		for _, asked := range []bool{true, false} {
			t.Run(fmt.Sprintf("usage=%s/asked=%v", usage, asked), func(t *testing.T) {
				t.Parallel()
				s := newStack(t, stackConfig{})
				knobs := "tokens=4,cached=2"
				if usage != "" {
					knobs += ",usage=" + usage
				}
				body := chat("sim-small", knobs, true)
				if asked {
					body["stream_options"] = map[string]any{"include_usage": true}
				}
				a := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", body).end(t, patience)
				if usage == "refuse" && asked {
					if a.status != http.StatusBadRequest || !strings.Contains(a.body.String(), "stream_options") {
						t.Error("a refusal of what the client itself asked for:", a)
					}
					return
				}
				if err := a.whole(); err != nil {
					t.Fatal(err)
				}
				usageAsPromised(t, a, usage, asked)
				s.quiet()
				run := s.run(a.header.Get("X-Iop-Run-Id"))
				// What a provider doesn't tell is counted: an event is a token, the role's too.
				told := usage != "never" && usage != "refuse"
				if run.Usage == nil || told && (run.Usage.Output != 4 || run.Usage.Input == 0 || run.Usage.Cached == 0) || !told && run.Usage.Output != 5 {
					t.Errorf("the operator sees usage %+v", run.Usage)
				}
				if usage == "refuse" { // it is asked again without, and then never with
					started := s.sims[0].stats(t).Started
					s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", body).end(t, patience)
					if again := s.sims[0].stats(t).Started; started != 2 || again != 3 {
						t.Errorf("the provider has seen %d requests, then %d", started, again)
					}
				}
				body["stream"] = false
				delete(body, "stream_options")
				_, want := s.sims[0].direct(t, "/v1/chat/completions", body)
				_, got := s.post("/v1/chat/completions", body)
				sameBytes(t, got, want)
			})
		}
	}
}

// usageAsPromised checks where usage stands in a stream.
func usageAsPromised(t *testing.T, a *answer, usage string, asked bool) {
	t.Helper()
	var only, within int // chunks with nothing but usage; others that have it
	for _, e := range a.events[:len(a.events)-1] {
		var chunk struct {
			Choices []json.RawMessage
			Usage   *struct {
				PromptTokens        int `json:"prompt_tokens"`
				CompletionTokens    int `json:"completion_tokens"`
				PromptTokensDetails struct {
					CachedTokens int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		if err := json.Unmarshal([]byte(e), &chunk); err != nil {
			t.Fatal(err)
		}
		switch {
		case len(chunk.Choices) == 0:
			only++
		case chunk.Usage != nil:
			within++
		}
		if chunk.Usage != nil && (chunk.Usage.CompletionTokens == 0 || chunk.Usage.PromptTokensDetails.CachedTokens != 2) {
			t.Errorf("usage without its details: %s", e)
		}
	}
	wantOnly := asked && (usage == "" || usage == "always")
	wantWithin := usage == "always" || usage == "finish"
	if (only == 1) != wantOnly || only > 1 || (within > 0) != wantWithin {
		t.Errorf("%d chunks with usage alone, %d with usage beside text:\n%s", only, within, strings.Join(a.events, "\n"))
	}
}

// TestFirstChunkAtOnce has each content type that a stream may bear; none of them is held back.
func TestFirstChunkAtOnce(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackConfig{simArgs: []string{"--slots", "16"}})
	for _, kind := range []string{"charset", "none", "json", "ndjson", "html", "text/event-stream", "Text/Event-Stream;charset=UTF-8", "application/octet-stream"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			a := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=3,itl=1s,content_type="+kind, true))
			if err := a.end(t, patience).whole(); err != nil {
				t.Fatal(err)
			}
			n := len(a.arrived)
			if spread := a.arrived[n-1].Sub(a.arrived[0]); spread < 1500*time.Millisecond {
				t.Errorf("the first chunk came %s before the last: it was held back", spread)
			}
			if a.header.Get("X-Accel-Buffering") != "no" || a.header.Get("Cache-Control") != "no-cache" || a.header.Get("Content-Encoding") != "" || a.header.Get("Content-Length") != "" {
				t.Errorf("headers %v", a.header)
			}
		})
	}
}

// delays are the times from the writing of each token at the provider to its arrival, sorted. The stream must have
// been asked for with text=stamp.
func (a *answer) delays(t *testing.T) (all []time.Duration) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, e := range a.events {
		var chunk struct {
			Choices []struct{ Delta struct{ Content string } }
		}
		if json.Unmarshal([]byte(e), &chunk) != nil || len(chunk.Choices) == 0 {
			continue
		}
		if stamp, err := strconv.ParseInt(strings.TrimSpace(chunk.Choices[0].Delta.Content), 10, 64); err == nil {
			all = append(all, a.arrived[i].Sub(time.Unix(0, stamp)))
		}
	}
	if len(all) == 0 {
		t.Fatal("no stamped token:", a.events)
	}
	slices.Sort(all)
	return all
}

func percentile(sorted []time.Duration, p int) time.Duration { return sorted[(len(sorted)-1)*p/100] }

// TestSmoothStream compares the delay of tokens through the Edge with that of the provider's own streams. It has the
// machine for itself: no parallel test.
func TestSmoothStream(t *testing.T) {
	s := newStack(t, stackConfig{simArgs: []string{"--slots", "32"}})
	measure := func(s *stack) (all []time.Duration) {
		var streams []*answer
		for range 10 {
			streams = append(streams, s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=150,itl=20ms,text=stamp", true)))
		}
		for _, a := range streams {
			if err := a.end(t, 60*time.Second).whole(); err != nil {
				t.Fatal(err)
			}
			all = append(all, a.delays(t)...)
		}
		slices.Sort(all)
		return all
	}
	provider := &stack{t: t, url: s.sims[0].url}
	for range 15 { // one quiet moment of the machine is enough
		direct, through := measure(provider), measure(s)
		t.Logf("p50 %s direct, %s through; p99 %s, %s", percentile(direct, 50), percentile(through, 50), percentile(direct, 99), percentile(through, 99))
		if percentile(through, 50) <= 3*percentile(direct, 50)+2*time.Millisecond && percentile(through, 99) <= 3*percentile(direct, 99)+10*time.Millisecond {
			return
		}
	}
	t.Error("the stream is not as smooth as the provider's own")
}
