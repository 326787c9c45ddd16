//go:build engine

package engine

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

const (
	model = "iop-noise"
	// places is how many runs the engine computes at once: see run.sh.
	places = 2

	chatPath = "/v1/chat/completions"
)

// chat asks for that many tokens, the same ones each time. The answer ends early only if the request makes it.
func chat(tokens int) body {
	return body{
		"model": model, "messages": []body{{"role": "user", "content": "Hello there"}},
		"max_tokens": tokens, "seed": 1, "cache_prompt": false,
	}
}

// endless is more than anybody waits for: the engine slows down as its context fills.
const endless = 15000

// streamed is what makes a stream of a request.
var streamed = body{"stream": true}

// TestSameAnswer shows that a client gets from IOP what it would get from the engine, event by event.
func TestSameAnswer(t *testing.T) {
	s := newStack(t)
	completion := body{"model": model, "prompt": "Hello", "max_tokens": 40, "seed": 1, "cache_prompt": false}
	response := body{"model": model, "input": "Hello", "max_output_tokens": 40, "seed": 1, "cache_prompt": false}
	for _, test := range []struct {
		name, path string
		body       body
	}{
		{"chat", chatPath, chat(200)},
		{"chat with logprobs", chatPath, chat(5).with(body{"logprobs": true, "top_logprobs": 3})},
		{"two choices", chatPath, chat(5).with(body{"n": 2})},
		{"completion", "/v1/completions", completion},
		{"response", "/v1/responses", response},
		{"tokens", "/tokenize", body{"model": model, "content": "вода 水 🙂"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			want, answer := s.direct.post(test.path, test.body)
			got, relayed := s.iop.post(test.path, test.body)
			if got != want || got != http.StatusOK {
				t.Fatalf("status %d, of the engine %d", got, want)
			}
			same(t, []string{string(relayed)}, []string{string(answer)})
		})
	}
	for _, test := range []struct {
		name, path string
		body       body
	}{
		{"chat stream", chatPath, chat(200)},
		{"chat stream that asks for usage", chatPath, chat(20).with(body{"stream_options": body{"include_usage": true}})},
		{"chat stream that wants no usage", chatPath, chat(20).with(body{"stream_options": body{"include_usage": false}})},
		{"completion stream", "/v1/completions", completion},
		{"response stream", "/v1/responses", response},
	} {
		t.Run(test.name, func(t *testing.T) {
			want := eventsOf(t, s.direct.send(test.path, test.body.with(streamed))).rest()
			res := s.iop.send(test.path, test.body.with(streamed))
			same(t, eventsOf(t, res).rest(), want)
			r := s.ended(res, 5*time.Second)
			if r.Outcome != "completed" || r.Usage == nil || r.Usage.Input == 0 || r.Usage.Output < 20 {
				t.Fatalf("the run ended as %+v, used %+v", r, r.Usage)
			}
		})
	}
}

// same compares answers but for what the engine makes up anew for each.
func same(t *testing.T, got, want []string) {
	t.Helper()
	got, want = mapped(got, stable), mapped(want, stable)
	if len(want) == 0 {
		t.Fatal("the engine itself sent nothing")
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Fatalf("part %d of %d differs\n got %s\nwant %s", i, len(want), got[i], want[i])
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%d parts, the engine sends %d\n got %s\nwant %s", len(got), len(want), got, want)
	}
}

func mapped(in []string, f func(string) string) (out []string) {
	for _, s := range in {
		out = append(out, f(s))
	}
	return out
}

// stable renders JSON without identifiers and times, at any depth. What is no JSON stays as it is.
func stable(text string) string {
	var v any
	if json.Unmarshal([]byte(text), &v) != nil {
		return text
	}
	var strip func(any)
	strip = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for _, name := range []string{"item_id", "created", "created_at", "completed_at", "timings"} {
				delete(v, name)
			}
			if id, ok := v["id"].(string); ok && id != "" {
				v["id"] = "some id"
			}
			for _, inner := range v {
				strip(inner)
			}
		case []any:
			for _, inner := range v {
				strip(inner)
			}
		}
	}
	strip(v)
	data, err := json.Marshal(v)
	if err != nil {
		return text
	}
	return string(data)
}

// chunk is an element of a chat stream.
type chunk struct {
	Choices []struct {
		FinishReason string `json:"finish_reason"`
		Delta        struct{ Role, Content string }
	}
	Error *struct{ Code, Message string }
}

func chunkOf(t *testing.T, data string) (c chunk) {
	t.Helper()
	if err := json.Unmarshal([]byte(data), &c); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	return c
}

// TestStreamEnds shows how a stream says that it is complete, and that text of several bytes a letter survives.
func TestStreamEnds(t *testing.T) {
	s := newStack(t)
	for _, test := range []struct {
		name, finish string
		body         body
	}{
		{"at the limit", "length", chat(200)},
		{"at the end token", "stop", chat(200).with(body{"logit_bias": body{"2": 100}})},
		{"at a word", "stop", chat(200).with(body{"stop": []string{" o"}})},
	} {
		t.Run(test.name, func(t *testing.T) {
			var role, text, finish string
			all := eventsOf(t, s.iop.send(chatPath, test.body.with(streamed))).rest()
			for _, data := range all[:len(all)-1] {
				c := chunkOf(t, data)
				if len(c.Choices) != 1 || c.Error != nil || finish != "" {
					t.Fatalf("after finish_reason %q: %s", finish, data)
				}
				role += c.Choices[0].Delta.Role
				text += c.Choices[0].Delta.Content
				finish = c.Choices[0].FinishReason
			}
			if role != "assistant" || finish != test.finish || all[len(all)-1] != "[DONE]" {
				t.Fatalf("role %q, finish_reason %q, the last event %q", role, finish, all[len(all)-1])
			}
			if test.finish == "length" && (len(strings.Fields(text)) != 200 || len(text) == utf8.RuneCountInString(text)) {
				t.Fatalf("not 200 words, some outside ASCII: %q", text)
			}
			if strings.ContainsRune(text, utf8.RuneError) {
				t.Fatalf("a broken letter: %q", text)
			}
		})
	}
}

// TestStreamFlows shows that words arrive while the engine still makes more.
func TestStreamFlows(t *testing.T) {
	s := newStack(t)
	stream := eventsOf(t, s.iop.send(chatPath, chat(endless).with(streamed)))
	for range 10 {
		if _, err := stream.next(); err != nil {
			t.Fatal(err)
		}
	}
	if busy := s.engineMetric("requests_processing"); busy != 1 {
		t.Fatalf("the first words came when the engine had %v runs left", busy)
	}
}

// TestClientGone shows that the engine stops computing when the client leaves, wherever the run is. The engine looks
// once a second whether somebody still listens, unless it has something to write; its log tells when it noticed.
func TestClientGone(t *testing.T) {
	s := newStack(t)
	long := body{"messages": []body{{"role": "user", "content": strings.Repeat("word ", 3000)}}}
	for _, test := range []struct {
		name   string
		body   body
		header http.Header
		events int // read before the client leaves
	}{
		{name: "in a stream", body: chat(endless).with(streamed), events: 10},
		// With this header the engine would finish the answer for a client that may come back.
		{name: "in a conversation", body: chat(endless).with(streamed), header: http.Header{"X-Conversation-Id": {"c1"}}, events: 10},
		{name: "before the first token", body: chat(10).with(long).with(streamed)},
		{name: "without a stream", body: chat(endless)},
	} {
		t.Run(test.name, func(t *testing.T) {
			mark := s.engine.mark()
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			req := s.iop.request(ctx, chatPath, test.body)
			for name, values := range test.header {
				req.Header[name] = values
			}
			enough, gone := make(chan struct{}), make(chan error, 1)
			go func() { gone <- readThenHang(s.client, req, test.events, enough) }()
			if test.events == 0 {
				s.engine.await(t, mark, "processing task", 10*time.Second)
			} else {
				select {
				case <-enough:
				case err := <-gone:
					t.Fatalf("the stream ended by itself: %v", err)
				}
			}
			leave()
			if err := <-gone; !errors.Is(err, context.Canceled) {
				t.Fatalf("the answer came to its end: %v", err)
			}
			s.engine.await(t, mark, "cancel task", 5*time.Second)
			eventually(t, 5*time.Second, "the engine is idle", func() bool { return s.engineMetric("requests_processing") == 0 })
		})
	}
	if status, answer := s.iop.post(chatPath, chat(3)); status != http.StatusOK {
		t.Fatalf("afterwards: %d %s", status, answer)
	}
}

// readThenHang reads an answer to its end, or to the error that ends it, and closes enough after that many events.
func readThenHang(client *http.Client, req *http.Request, events int, enough chan<- struct{}) error {
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	seen, buf := 0, make([]byte, 4<<10)
	for {
		n, err := res.Body.Read(buf)
		before := seen
		seen += strings.Count(string(buf[:n]), "\n\n")
		if before < events && seen >= events {
			close(enough)
		}
		if err != nil {
			return err
		}
	}
}

// TestPlaces shows that IOP knows the engine's places without being told, and that what is too much waits at the Edge:
// in the engine nothing waits.
func TestPlaces(t *testing.T) {
	s := newStack(t)
	const runs = 4 * places
	var clients sync.WaitGroup
	results := make(chan error, runs)
	for range runs {
		req := s.iop.request(t.Context(), chatPath, chat(300).with(streamed))
		clients.Go(func() { results <- complete(s.client, req) })
	}
	ended := make(chan struct{})
	go func() { clients.Wait(); close(ended) }()
	var most, waiting float64
	eventually(t, time.Minute, "all runs have ended", func() bool {
		most = max(most, s.engineMetric("requests_processing"))
		waiting = max(waiting, s.engineMetric("requests_deferred"))
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
	for range runs {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if most != places || waiting != 0 {
		t.Errorf("at most %v runs at once in the engine, %v waiting", most, waiting)
	}
}

// complete reads an answer and returns an error unless it is a whole chat stream.
func complete(client *http.Client, req *http.Request) error {
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err == nil && (res.StatusCode != http.StatusOK || !strings.HasSuffix(string(data), "data: [DONE]\n\n")) {
		err = errors.New(res.Status + ": " + string(data))
	}
	return err
}

// TestEngineDies shows what clients see of an engine that is killed under them, and that its successor is found.
func TestEngineDies(t *testing.T) {
	s := newStack(t)
	res := s.iop.send(chatPath, chat(endless).with(streamed))
	stream := eventsOf(t, res)
	for range 10 {
		if _, err := stream.next(); err != nil {
			t.Fatal(err)
		}
	}
	type reply struct {
		status int
		text   string
		err    error
	}
	unary := make(chan reply, 1)
	mark, req := s.engine.mark(), s.iop.request(t.Context(), chatPath, chat(endless))
	go func() {
		res, err := s.client.Do(req)
		if err != nil {
			unary <- reply{err: err}
			return
		}
		defer res.Body.Close()
		data, err := io.ReadAll(res.Body)
		unary <- reply{res.StatusCode, string(data), err}
	}()
	s.engine.await(t, mark, "processing task", 10*time.Second)
	s.engine.kill()

	all := stream.rest()
	if len(all) == 0 || slices.Contains(all, "[DONE]") {
		t.Fatalf("the stream ended as if it were whole, after %d more events", len(all))
	}
	for i, data := range all {
		c := chunkOf(t, data)
		if last := i == len(all)-1; (c.Error != nil) != last || len(c.Choices) > 0 && c.Choices[0].FinishReason != "" {
			t.Fatalf("event %d of %d after the engine's death: %s", i, len(all), data)
		}
		if c.Error != nil && (c.Error.Code != "provider_error" || c.Error.Message == "") {
			t.Fatalf("the error is %+v", c.Error)
		}
	}
	if r := s.ended(res, 5*time.Second); r.Outcome != "failed" || r.Code != "provider_truncated" {
		t.Fatalf("the run ended as %+v", r)
	}
	if r := <-unary; r.err != nil || r.status != http.StatusBadGateway || !strings.Contains(r.text, `"provider_error"`) {
		t.Fatalf("without a stream: %+v", r)
	}
	eventually(t, 10*time.Second, "the dead engine's model is no longer offered", func() bool { return len(s.iop.models()) == 0 })
	s.startEngine()
	eventually(t, 10*time.Second, "the new engine's model is offered", func() bool { return slices.Equal(s.iop.models(), []string{model}) })
	if status, answer := s.iop.post(chatPath, chat(3)); status != http.StatusOK {
		t.Fatalf("from the new engine: %d %s", status, answer)
	}
}

// TestErrors shows which refusals are the engine's own words, and where IOP is stricter than the engine.
func TestErrors(t *testing.T) {
	s := newStack(t)
	t.Run("the engine's own", func(t *testing.T) {
		for _, b := range []body{
			chat(1).with(body{"max_tokens": "many"}),
			chat(1).with(body{"temperature": "hot", "stream": true}),
			chat(1).with(body{"messages": []body{{"role": "user", "content": strings.Repeat("x", 20000)}}, "stream": true}),
		} {
			want, words := s.direct.post(chatPath, b)
			got, relayed := s.iop.post(chatPath, b)
			if got != want || got != http.StatusBadRequest || string(relayed) != string(words) {
				t.Errorf("%d %s, of the engine %d %s", got, relayed, want, words)
			}
		}
	})
	for _, test := range []struct {
		name, path string
		body       any
		engine     int // the status that the engine itself answers with
		status     int
		code       string
	}{
		{"a model that the engine does not have", chatPath, chat(1).with(body{"model": "other"}), 200, 404, "model_not_found"},
		{"no JSON", chatPath, `{"model":"` + model + `",`, 500, 400, "invalid_request_error"},
		{"an operation that the engine can't do", "/v1/embeddings", body{"model": model, "input": "x"}, 501, 502, "provider_error"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if status, answer := s.direct.post(test.path, test.body); status != test.engine {
				t.Errorf("the engine has changed its mind: %d %s", status, answer)
			}
			status, answer := s.iop.post(test.path, test.body)
			var e struct {
				Error struct{ Message, Type, Code string }
			}
			if err := json.Unmarshal(answer, &e); err != nil {
				t.Fatalf("%v in %s", err, answer)
			}
			if status != test.status || e.Error.Code != test.code && e.Error.Type != test.code || e.Error.Message == "" {
				t.Fatalf("%d %s", status, answer)
			}
		})
	}
}

// TestOpenAISDK lets OpenAI's own client talk to the engine.
func TestOpenAISDK(t *testing.T) {
	s := newStack(t)
	client := openai.NewClient(option.WithBaseURL(s.iop.url+"/v1"), option.WithAPIKey(s.iop.key), option.WithHTTPClient(s.client))
	params := openai.ChatCompletionNewParams{
		Model:         model,
		Messages:      []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Hello there")},
		MaxTokens:     openai.Int(50),
		Seed:          openai.Int(1),
		StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
	}
	stream := client.Chat.Completions.NewStreaming(t.Context(), params)
	defer stream.Close()
	var got openai.ChatCompletionAccumulator
	for stream.Next() {
		got.AddChunk(stream.Current())
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if len(got.Choices) != 1 || got.Choices[0].FinishReason != "length" || got.Usage.CompletionTokens != 50 {
		t.Fatalf("%d choices, usage %+v", len(got.Choices), got.Usage)
	}
	if words := strings.Fields(got.Choices[0].Message.Content); len(words) != 50 {
		t.Fatalf("%d words: %q", len(words), words)
	}
}
