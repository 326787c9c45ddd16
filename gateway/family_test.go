package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"iop/execution"
	"iop/tunnel"
)

// runsOn is a provider that has none of the operations itself: its adapter of that kind runs all.
func runsOn(adapter string, operations ...string) tunnel.ProviderInfo {
	return tunnel.ProviderInfo{Adapter: adapter, Capacity: 8, OperationsKnown: true, Operations: operations, Runs: true}
}

// The events of a small answer.
var (
	started = &execution.Event{Kind: execution.EventStarted, Started: &execution.Started{ID: "x", Model: "theirs", Created: time.Unix(1, 0)}}
	hello   = &execution.Event{Kind: execution.EventText, Text: "Hel"}
	world   = &execution.Event{Kind: execution.EventText, Text: "lo"}
	stop    = &execution.Event{Kind: execution.EventFinish, Finish: execution.Finish{Reason: execution.FinishStop}}
)

func failure(f execution.Failure) *execution.Event {
	return &execution.Event{Kind: execution.EventFailure, Failure: &f}
}

var (
	used      = execution.Usage{Input: 7, Output: 2, Known: true}
	completed = execution.Terminal{Outcome: execution.Completed, Phase: execution.PhaseProviderDone, Usage: used}
)

func failed(code execution.Code, phase execution.Phase) execution.Terminal {
	return execution.Terminal{Outcome: execution.Failed, Code: code, Phase: phase}
}

// answerEvents is a Node's adapter that answers with the events, each in a frame of its own, and the end.
func answerEvents(end execution.Terminal, events ...*execution.Event) handler {
	return func(_ context.Context, run *tunnel.NodeRun) {
		_, _ = io.Copy(io.Discard, run)
		for _, ev := range events {
			_ = run.Events(tunnel.AppendRunEvent(nil, ev))
		}
		run.End(end)
	}
}

// family is how a client of one protocol asks, and what it is told.
type family struct {
	path, body, stream string // the member that asks for a stream, or for none
	// What stands in the whole answer, at the end of a stream, and in a stream that failed.
	whole, done, broken string
	// What stands in an answer with an error status.
	refused string
}

var families = map[string]family{
	"chat": {
		path: "/v1/chat/completions", body: `{"model":"m","messages":[{"role":"user","content":"hi"}]%s}`, stream: `,"stream":true`,
		whole: `"content":"Hello"`, done: "data: [DONE]\n\n", broken: `data: {"error":{"message":`, refused: `{"error":{"message":`,
	},
	"responses": {
		path: "/v1/responses", body: `{"model":"m","input":"hi"%s}`, stream: `,"stream":true`,
		whole: `"text":"Hello"`, done: `"type":"response.completed"`, broken: "event: error\ndata: ", refused: `{"error":{"message":`,
	},
	"messages": {
		path: "/v1/messages", body: `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]%s}`, stream: `,"stream":true`,
		whole: `"text":"Hello"`, done: "event: message_stop\n", broken: "event: error\ndata: {\"type\":\"error\"", refused: `{"type":"error","error":{"type":`,
	},
	"ollama chat": {
		path: "/api/chat", body: `{"model":"m","messages":[{"role":"user","content":"hi"}]%s}`,
		whole: `"content":"Hello"`, done: `"done":true`, broken: `{"error":"`, refused: `{"error":"`,
	},
	"ollama generate": {
		path: "/api/generate", body: `{"model":"m","prompt":"hi"%s}`,
		whole: `"response":"Hello"`, done: `"done":true`, broken: `{"error":"`, refused: `{"error":"`,
	},
}

// ask sends the family's request, and returns the whole answer.
func (f family) ask(e *edge, stream bool) (status int, h http.Header, answer string) {
	e.t.Helper()
	return e.post(f.path, f.with(stream))
}

func (f family) with(stream bool) string {
	more := ""
	switch {
	case stream:
		more = f.stream
	case f.stream == "":
		more = `,"stream":false`
	}
	return fmt.Sprintf(f.body, more)
}

// eachFamily runs a test for each family of clients, with and without a stream.
func eachFamily(t *testing.T, test func(t *testing.T, f family, stream bool)) {
	for name, f := range families {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/stream=%v", name, stream), func(t *testing.T) { test(t, f, stream) })
		}
	}
}

// eachStream is eachFamily for what concerns streams alone.
func eachStream(t *testing.T, test func(t *testing.T, f family)) {
	for name, f := range families {
		t.Run(name, func(t *testing.T) { test(t, f) })
	}
}
