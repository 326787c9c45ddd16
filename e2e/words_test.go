package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
)

// wordsFile has one route, whose failed runs are not tried elsewhere.
const wordsFile = `
routes:
  - model: chat
    retry: {attempts: 0}
    targets: [{model: sim-small}]
`

// language is a client's protocol: how it asks, and how it is told of a failure.
type language struct {
	path, body string // two verbs: the simulator's knobs, and whether to stream
	told       func(body string) (kind, message string)
}

var languages = map[string]language{
	"chat": {"/v1/chat/completions", `{"model":"chat","messages":[{"role":"user","content":"sim:%s hi"}],"stream":%t}`,
		func(body string) (string, string) {
			var e struct {
				Error struct{ Code, Message string }
			}
			lastJSON(body, &e)
			return e.Error.Code, e.Error.Message
		}},
	"responses": {"/v1/responses", `{"model":"chat","input":"sim:%s hi","stream":%t}`,
		func(body string) (string, string) {
			var e struct {
				Error    struct{ Code, Message string }
				Response struct {
					Error struct{ Code, Message string }
				}
			}
			if lastJSON(body, &e); e.Response.Error.Code != "" {
				return e.Response.Error.Code, e.Response.Error.Message
			}
			return e.Error.Code, e.Error.Message
		}},
	"messages": {"/v1/messages", `{"model":"chat","max_tokens":100000,"messages":[{"role":"user","content":"sim:%s hi"}],"stream":%t}`,
		func(body string) (string, string) {
			var e struct {
				Error struct{ Type, Message string }
			}
			lastJSON(body, &e)
			return e.Error.Type, e.Error.Message
		}},
	"ollama": {"/api/chat", `{"model":"chat","messages":[{"role":"user","content":"sim:%s hi"}],"stream":%t}`,
		func(body string) (string, string) {
			var e struct{ Error string }
			lastJSON(body, &e)
			return "", e.Error
		}},
}

// lastJSON decodes the last line of JSON in an answer, whatever stands before it in an event stream.
func lastJSON(body string, v any) {
	if i := strings.LastIndex(body, "data: "); i >= 0 {
		body = body[i+len("data: "):]
	}
	body = strings.TrimSpace(body)
	_ = json.Unmarshal([]byte(body[strings.LastIndexByte(body, '\n')+1:]), v)
}

// word is how a failure is told: the code of OpenAI's languages, Anthropic's type, and the words of all of them.
type word struct {
	status     int
	code, kind string
	message    string
	retryAfter bool
}

var (
	saysStopping    = word{status: 503, code: "stopping", kind: "api_error", message: "The service is shutting down or restarting", retryAfter: true}
	saysInterrupted = word{status: 503, code: "interrupted", kind: "api_error", message: "The run was interrupted because part of the service is shutting down", retryAfter: true}
	saysNodeLost    = word{status: 502, code: "node_lost", kind: "api_error", message: "The connection to the model was lost."}
)

// said are the requests of one language: a stream that has begun, and a stream and a whole answer without a byte yet.
type said struct {
	name   string
	d      language
	begun  *answer
	silent map[string]*answer
}

// sayAll sends the three requests in each language, and waits until a provider has all of them.
func (w *routed) sayAll(t *testing.T, sim *simulator) (all []said) {
	t.Helper()
	ask := func(d language, knobs string, stream bool) *answer {
		return w.askAs(context.Background(), w.key, d.path, fmt.Sprintf(d.body, knobs, stream), nil)
	}
	for name, d := range languages {
		s := said{name: name, d: d, begun: ask(d, "tokens=100000,itl=20ms", true), silent: map[string]*answer{
			"stream": ask(d, "ttft=10m", true), "whole answer": ask(d, "ttft=10m", false),
		}}
		eventually(t, patience, name+" streams", func() bool {
			s.begun.mu.Lock()
			defer s.begun.mu.Unlock()
			return strings.Count(s.begun.body.String(), "\n") > 8
		})
		all = append(all, s)
	}
	sim.active(t, int64(3*len(languages)))
	return all
}

// check compares what the clients are told with what they should be.
func (s said) check(t *testing.T, want word) {
	t.Helper()
	for what, a := range s.silent {
		s.refused(t, what, a, want)
	}
	s.begun.end(t, patience)
	if s.begun.status != http.StatusOK || s.begun.err != nil {
		t.Errorf("%s, the stream: %s", s.name, s.begun)
	}
	s.tells(t, "stream that had begun", s.begun, want)
}

// refused checks an answer that has no byte of the model's.
func (s said) refused(t *testing.T, what string, a *answer, want word) {
	t.Helper()
	a.end(t, patience)
	if a.status != want.status || a.header.Get("X-Should-Retry") != "" || (a.header.Get("Retry-After") != "") != want.retryAfter {
		t.Errorf("%s, %s: %v %s", s.name, what, a.header, a)
	}
	s.tells(t, what, a, want)
}

func (s said) tells(t *testing.T, what string, a *answer, want word) {
	t.Helper()
	code := want.code
	switch s.name {
	case "messages":
		code = want.kind
	case "ollama":
		code = ""
	}
	if c, m := s.d.told(a.body.String()); c != code || !strings.HasPrefix(m, want.message) {
		t.Errorf("%s, %s: told %q %q, want %q %q: %s", s.name, what, c, m, code, want.message, a)
	}
}

// newSpoken is an Edge with a Node that has room for all languages at once.
func newSpoken(t *testing.T, edgeArgs, nodeArgs []string) (*routed, *simulator, *process) {
	t.Helper()
	w := newRouted(t, wordsFile, edgeArgs...)
	sim := w.startSim("--slots", "32")
	node := w.launchNode("node-1", append([]string{"--provider", "sim=" + sim.url + ",capacity=12"}, nodeArgs...)...)
	w.serving("node-1", "sim-small")
	return w, sim, node
}

// TestClientsAreToldWhatHappened: clients of each protocol learn that their run was cut by a stop of the Edge or of its Node,
// or that the Node was lost. None of it is called overload or the provider's fault.
func TestClientsAreToldWhatHappened(t *testing.T) {
	t.Parallel()
	t.Run("the Edge stops", func(t *testing.T) {
		t.Parallel()
		w, sim, _ := newSpoken(t, []string{"--drain-timeout", "1s"}, nil)
		all := w.sayAll(t, sim)
		queued := map[string]*answer{}
		for name, d := range languages {
			queued[name] = w.askAs(context.Background(), w.key, d.path, fmt.Sprintf(d.body, "tokens=1", false), nil)
		}
		w.queued(len(queued))
		w.edge.signal(syscall.SIGTERM)
		for _, s := range all {
			s.check(t, saysInterrupted)
			s.refused(t, "queued", queued[s.name], saysStopping)
		}
	})
	t.Run("the Node stops", func(t *testing.T) {
		t.Parallel()
		w, sim, node := newSpoken(t, nil, []string{"--drain-timeout", "500ms"})
		all := w.sayAll(t, sim)
		node.signal(syscall.SIGTERM)
		for _, s := range all {
			s.check(t, saysInterrupted)
		}
		<-node.done
	})
	t.Run("the Node is killed", func(t *testing.T) {
		t.Parallel()
		w, sim, node := newSpoken(t, nil, nil)
		all := w.sayAll(t, sim)
		node.kill()
		for _, s := range all {
			s.check(t, saysNodeLost)
		}
	})
}
