package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// routed is a stack whose Edge has a file of routes.
type routed struct {
	*stack
	file string // its path
}

// newRouted starts an Edge with a file of routes.
func newRouted(t *testing.T, yaml string, args ...string) *routed {
	t.Helper()
	file := filepath.Join(t.TempDir(), "iop.yaml")
	writeRoutes(t, file, yaml)
	return &routed{stack: newEdge(t, append([]string{"--config", file}, args...)...), file: file}
}

// writeRoutes replaces a file at one stroke, as most programs do that write configurations.
func writeRoutes(t *testing.T, file, yaml string) {
	t.Helper()
	if err := os.WriteFile(file+".new", []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// configState is what the operator is told of the file of routes.
type configState struct {
	Digest string
	Routes int
	Fault  *struct {
		Message string
		Faults  []struct {
			Line, Column  int
			Path, Message string
		}
	}
}

// config is that state as `iop status --json` shows it.
func (s *stack) config() configState {
	s.t.Helper()
	var status struct{ Config configState }
	s.operator("/status", &status)
	return status.Config
}

// askAs is ask with another key, and more header fields.
func (s *stack) askAs(ctx context.Context, key, path string, body any, header http.Header) *answer {
	s.t.Helper()
	h := http.Header{"Authorization": {"Bearer " + key}}
	for name, values := range header {
		h[name] = values
	}
	return sendRequest(s.request("POST", path, body, h).WithContext(ctx))
}

// sendRequest sends a request and reads its answer until it ends. It returns at once.
func sendRequest(req *http.Request) *answer {
	a := &answer{done: make(chan struct{})}
	go func() {
		defer close(a.done)
		res, err := crowdClient.Do(req)
		if err != nil {
			a.note(func() { a.err = err })
			return
		}
		defer res.Body.Close()
		a.note(func() { a.status, a.header = res.StatusCode, res.Header })
		a.read(res.Body)
	}()
	return a
}

// crowdClient is for many requests at once: it keeps their connections, and the tests' ports.
var crowdClient = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: 10 * time.Second}}

// chatNow is a chat in the stack's name that is awaited.
func (s *stack) chatNow(t *testing.T, model, knobs string, stream bool) *answer {
	t.Helper()
	return s.askAs(context.Background(), s.key, "/v1/chat/completions", chat(model, knobs, stream), nil).end(t, patience)
}

// ok fails unless the answer is a whole one.
func (a *answer) ok(t *testing.T, what string) {
	t.Helper()
	if a.status != http.StatusOK || a.err != nil {
		t.Errorf("%s: %s", what, a)
		return
	}
	if a.header.Get("Content-Type") != "application/json" {
		if err := a.whole(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// problem returns the error object of an answer that is one.
func (a *answer) problem(t *testing.T) (code, message string) {
	t.Helper()
	var e errorObject
	if err := json.Unmarshal([]byte(a.body.String()), &e); err != nil || e.Error == nil {
		t.Fatalf("no error object: %s", a)
	}
	code, _ = e.Error.Code.(string)
	return code, e.Error.Message
}

// refused fails unless the answer is an error with that status and code.
func (a *answer) refused(t *testing.T, what string, status int, code string) {
	t.Helper()
	if a.status != status {
		t.Errorf("%s: not %d: %s", what, status, a)
		return
	}
	if got, _ := a.problem(t); got != code {
		t.Errorf("%s: code %q, not %q", what, got, code)
	}
}

// namedAnswer is the model of an answer, of a whole one or of one event.
type namedAnswer struct {
	Model string
}

// answerModels are the names that an answer gives its model, each once, in order.
func (a *answer) answerModels(t *testing.T) (names []string) {
	t.Helper()
	texts := []string{a.body.String()}
	if len(a.events) > 0 {
		texts = a.events
	}
	for _, text := range texts {
		if text == "[DONE]" {
			continue
		}
		var c namedAnswer
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		if len(names) == 0 || names[len(names)-1] != c.Model {
			names = append(names, c.Model)
		}
	}
	return names
}

// seenRequest is an inference request as a simulator remembers it.
type seenRequest struct {
	Model, Body, State string
	Inference          bool
	Headers            http.Header
	Prompt             int64     `json:"prompt_tokens"`
	Cached             int64     `json:"cached_tokens"`
	Started            time.Time `json:"started"`
}

// inferences are the inference requests that the simulator remembers, the oldest first.
func (s *simulator) inferences(t *testing.T) (list []seenRequest) {
	t.Helper()
	var all []seenRequest
	s.control(t, "GET", "/sim/requests", nil, &all)
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Inference {
			list = append(list, all[i])
		}
	}
	return list
}

// queued waits until n requests wait in the Edge.
func (s *stack) queued(n int) {
	s.t.Helper()
	eventually(s.t, patience, "requests wait in the Edge", func() bool { return s.metric("iop_queued") == float64(n) })
}

// logLine is the Edge's line on one run, once it is there.
func (s *stack) logLine(runID string) map[string]any {
	s.t.Helper()
	line := s.edge.line(`"run_id":"`+runID+`"`, patience)
	var fields map[string]any
	if err := json.Unmarshal([]byte(line), &fields); err != nil {
		s.t.Fatalf("%v in %s", err, line)
	}
	return fields
}

// serving waits until the Node is online and serves the model.
func (s *stack) serving(name, model string) {
	s.t.Helper()
	eventually(s.t, patience, name+" serves "+model, func() bool {
		n := s.node(name)
		if n.State != "online" {
			return false
		}
		for _, session := range n.Sessions {
			for _, p := range session.Providers {
				for _, m := range p.Models {
					if session.Current && m == model {
						return true
					}
				}
			}
		}
		return false
	})
}

// labelledNode starts a Node with labels, and does not wait for it.
func (s *stack) labelledNode(name, labels, spec string) *process {
	s.t.Helper()
	return s.launchNode(name, "--labels", labels, "--provider", spec)
}

// compactJSON is a text without the spaces that mean nothing.
func compactJSON(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(text)); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return strings.TrimSpace(b.String())
}
