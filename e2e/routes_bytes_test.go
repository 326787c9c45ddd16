package e2e

import (
	"bytes"
	"net/http"
	"testing"
)

// renameFile has a route whose answers carry the client's name, which is longer than the provider's.
const renameFile = `
routes:
  - model: a-much-longer-name-than-the-provider-has/日本語:"quoted"
    aliases: [x]
    rename_model: true
    targets: [{model: sim-small}]
`

const longName = `a-much-longer-name-than-the-provider-has/日本語:"quoted"`

// TestRenamedBytes compares answers with another model's name in them with those of the provider itself: that name is
// all that differs, however the provider writes its events.
func TestRenamedBytes(t *testing.T) {
	t.Parallel()
	s := newRouted(t, renameFile)
	s.startNodeBehind("node-1", "sim-small")
	streams := []string{
		"text=emoji,split=1", "text=mix,split=3", "text=cjk,split=7,crlf", "text=mix,split=1,cr_split", "crlf", "comments,crlf,split=5",
		"nospace", "nospace,crlf,split=1", "ids", "retry_field", "bigevent=100k", "bigevent=100k,split=16384", "tokens=300,chunk_bytes=100",
		"reasoning=5", "usage=always", "usage=finish", "done=none", "tokens=0",
	}
	for _, knob := range streams {
		for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/responses"} {
			t.Run(path+"/"+knob, func(t *testing.T) { s.renamed(t, path, knob, true) })
		}
	}
	for _, knob := range []string{"", "text=emoji", "big_response=200k", "gzip", "tokens=500"} {
		for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/responses"} {
			t.Run(path+"/whole/"+knob, func(t *testing.T) { s.renamed(t, path, knob, false) })
		}
	}
	t.Run("embeddings", func(t *testing.T) {
		body := map[string]any{"model": "sim-small", "input": []string{"one", "two"}}
		_, want := s.sims[0].direct(t, "/v1/embeddings", body)
		body["model"] = longName
		res, got := s.post("/v1/embeddings", body)
		if res.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", res.Status, got)
		}
		sameBytes(t, got, renamedIn(want, longName))
	})
	s.quiet()
}

// renamed compares one answer under both of the route's names.
func (s *routed) renamed(t *testing.T, path, knob string, stream bool) {
	t.Helper()
	body := chat("sim-small", knob, stream)
	if path != "/v1/chat/completions" {
		delete(body, "messages")
		body[map[string]string{"/v1/completions": "prompt", "/v1/responses": "input"}[path]] = "hello"
	}
	if stream && path != "/v1/responses" {
		body["stream_options"] = map[string]any{"include_usage": true} // else the Edge would ask for it
	}
	_, want := s.sims[0].direct(t, path, body)
	if !bytes.Contains(want, []byte(`"model":"sim-small"`)) {
		t.Fatalf("the provider itself: %s", tail(string(want), 500))
	}
	for _, name := range []string{"x", longName} {
		body["model"] = name
		res, got := s.post(path, body)
		if res.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", res.Status, tail(string(got), 500))
		}
		sameBytes(t, got, renamedIn(want, name))
	}
}

// renamedIn is a provider's answer with the client's name in it.
func renamedIn(answer []byte, name string) []byte {
	name = string(bytes.ReplaceAll([]byte(name), []byte(`"`), []byte(`\"`)))
	return bytes.ReplaceAll(answer, []byte(`"model":"sim-small"`), []byte(`"model":"`+name+`"`))
}
