//go:build engine

package engine

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// TestOtherFamilies shows that clients of the other protocols get what the engine says over its own, from an engine that has
// Chat Completions alone: each request is a normalized run.
func TestOtherFamilies(t *testing.T) {
	s := newStackWith(t, func(engine string) string { return chatAlone(t, engine) })
	_, answer := s.direct.post(chatPath, chat(40))
	var want struct {
		Choices []struct{ Message struct{ Content string } }
	}
	if err := json.Unmarshal(answer, &want); err != nil || len(want.Choices) != 1 {
		t.Fatalf("%v in %s", err, answer)
	}
	hello := []body{{"role": "user", "content": "Hello there"}}
	for _, test := range []struct {
		path string
		body body
		text func(data string) string // of an event, a line or a whole answer
	}{
		{"/v1/responses", body{"input": "Hello there", "max_output_tokens": 40, "seed": 1}, func(data string) string {
			var e struct {
				Type, Delta string
				Output      []struct{ Content []struct{ Text string } }
			}
			read(t, data, &e)
			if len(e.Output) > 0 {
				return e.Output[0].Content[0].Text
			}
			if e.Type == "response.output_text.delta" {
				return e.Delta
			}
			return ""
		}},
		{"/api/chat", body{"messages": hello, "options": body{"num_predict": 40, "seed": 1}}, func(data string) string {
			var e struct{ Message struct{ Content string } }
			read(t, data, &e)
			return e.Message.Content
		}},
		{"/api/generate", body{"prompt": "Hello there", "options": body{"num_predict": 40, "seed": 1}}, func(data string) string {
			var e struct{ Response string }
			read(t, data, &e)
			return e.Response
		}},
	} {
		t.Run(test.path, func(t *testing.T) {
			for _, stream := range []bool{false, true} {
				b := test.body.with(body{"model": model, "stream": stream})
				res := s.iop.send(test.path, b)
				if res.StatusCode != http.StatusOK || res.Header.Get("X-Iop-Execution") != "normalized" {
					t.Fatalf("%s %v", res.Status, res.Header)
				}
				got := ""
				for _, data := range piecesOf(t, res) {
					got += test.text(data)
				}
				if got != want.Choices[0].Message.Content {
					t.Errorf("stream %t: %q, the engine says %q", stream, got, want.Choices[0].Message.Content)
				}
			}
		})
	}
	t.Run("/v1/messages", func(t *testing.T) { messages(t, s) })
}

// messages has a Messages client: the protocol has no seed, so the engine's words are not known, but their number.
func messages(t *testing.T, s *stack) {
	b := body{"model": model, "max_tokens": 40, "messages": []body{{"role": "user", "content": "Hello there"}}, "stream": true}
	res := s.iop.send("/v1/messages", b)
	if res.StatusCode != http.StatusOK || res.Header.Get("X-Iop-Execution") != "normalized" {
		t.Fatalf("%s %v", res.Status, res.Header)
	}
	var types []string
	var used int
	for _, data := range piecesOf(t, res) {
		var e struct {
			Type  string
			Usage struct {
				Output int `json:"output_tokens"`
			}
		}
		read(t, data, &e)
		if used = max(used, e.Usage.Output); len(types) == 0 || types[len(types)-1] != e.Type {
			types = append(types, e.Type)
		}
	}
	want := []string{"message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop"}
	if !slices.Equal(types, want) || used != 40 {
		t.Errorf("%v, %d tokens", types, used)
	}
}

// chatAlone stands before the engine as one that has no other path of the families.
func chatAlone(t *testing.T, engine string) string {
	to, err := url.Parse(engine)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }, FlushInterval: -1}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/messages") || r.URL.Path == "/v1/responses" {
			http.NotFound(w, r)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// piecesOf reads an answer to its end: the events, the lines, or the one object that it is.
func piecesOf(t *testing.T, res *http.Response) []string {
	t.Helper()
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		return eventsOf(t, res).rest()
	}
	defer res.Body.Close()
	var all []string
	for d := json.NewDecoder(res.Body); d.More(); {
		var piece json.RawMessage
		if err := d.Decode(&piece); err != nil {
			t.Fatal(err)
		}
		all = append(all, string(piece))
	}
	return all
}

func read(t *testing.T, data string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(data), v); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
}
