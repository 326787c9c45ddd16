package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"iop/execution"
	"iop/tunnel"
)

// fault is one way in which a provider fails a normalized run.
type fault struct {
	name   string
	events []*execution.Event
	end    execution.Terminal
	// What the client is told where nothing of the answer was sent.
	status int
	told   string
	retry  string // X-Should-Retry
}

var overflow = failure(execution.Failure{Status: 400, Type: "invalid_request_error", Code: "context_length_exceeded", Message: "the prompt is too long"})

var faults = []fault{
	{name: "the engine refuses", events: []*execution.Event{overflow}, end: failed(execution.CodeProviderError, execution.PhaseProviderCalled),
		status: 400, told: "the prompt is too long", retry: "false"},
	{name: "the operator's access", events: []*execution.Event{failure(execution.Failure{Status: 401, Message: "bad key sk-1"})},
		end: failed(execution.CodeProviderError, execution.PhaseProviderCalled), status: 502, told: "denied the operator access", retry: "false"},
	{name: "overloaded", events: []*execution.Event{failure(execution.Failure{Status: 529, Message: "come later", RetryAfter: 3 * time.Second})},
		end: failed(execution.CodeProviderError, execution.PhaseProviderCalled), status: 503, told: "come later"},
	{name: "an error first in the stream", events: []*execution.Event{started, failure(execution.Failure{Message: "out of memory"})},
		end: failed(execution.CodeProviderError, execution.PhaseStreaming), status: 502, told: "out of memory"},
	{name: "it dies before its answer", end: failed(execution.CodeProviderError, execution.PhaseProviderCalled), status: 502, told: "failed to answer"},
	{name: "no terminal", events: []*execution.Event{started}, end: failed(execution.CodeProviderTruncated, execution.PhaseStreaming),
		status: 502, told: "before it was complete"},
	{name: "completed without a finish", events: []*execution.Event{started}, end: completed, status: 502, told: ""},
	{name: "the adapter refuses", events: []*execution.Event{failure(execution.Failure{Status: 400, Unsupported: true, Param: execution.ParamMaxTokens, Message: "not there"})},
		end: execution.Terminal{Outcome: execution.Rejected, Code: execution.CodeBadRequest, Phase: execution.PhaseAdmitted}, status: 400, told: "not there", retry: "false"},
}

// Before anything of the answer was sent a failure is a status, with the family's own error.
func TestNormalizedFailsBeforeItsAnswer(t *testing.T) {
	e := newEdge(t, nil) // one of all, as each fault has a Node of its own
	n := 0
	for _, ft := range faults {
		t.Run(ft.name, func(t *testing.T) {
			eachFamily(t, func(t *testing.T, f family, stream bool) {
				n++
				name := fmt.Sprint("n", n)
				defer e.addProvider(name, runsOn("openai"), answerEvents(ft.end, ft.events...), "m").leave(e, name)
				status, h, answer := f.ask(e, stream)
				if status != ft.status || !strings.HasPrefix(answer, f.refused) || !strings.Contains(answer, ft.told) || strings.Contains(answer, "sk-1") {
					t.Errorf("%d, want %d: %s", status, ft.status, answer)
				}
				if !json.Valid([]byte(answer)) || h.Get("Content-Type") != "application/json" || h.Get("X-Should-Retry") != ft.retry {
					t.Errorf("%v: %s", h, answer)
				}
				e.idle()
			})
		})
	}
}

// leave ends the Node, and waits until the Edge knows.
func (n *node) leave(e *edge, name string) {
	n.stop()
	e.eventually("node "+name+" is offline", func() bool { return e.nodeState(name) != "online" })
}

// Once something of the answer was sent, a failure is the family's own error in the stream, once, with nothing behind it and no
// terminal beside it.
func TestNormalizedFailsInItsAnswer(t *testing.T) {
	for _, ft := range faults[3:7] {
		t.Run(ft.name, func(t *testing.T) {
			eachStream(t, func(t *testing.T, f family) {
				e := newEdge(t, nil)
				events := append([]*execution.Event{started, hello}, ft.events...)
				if len(ft.events) > 0 && ft.events[0] == started {
					events = append([]*execution.Event{started, hello}, ft.events[1:]...)
				}
				e.addProvider("n1", runsOn("openai"), answerEvents(ft.end, events...), "m")
				status, _, answer := f.ask(e, true)
				if status != http.StatusOK || strings.Count(answer, f.broken) != 1 || strings.Contains(answer, f.done) || !strings.Contains(answer, "Hel") {
					t.Errorf("%d: %s", status, answer)
				}
				if !strings.Contains(answer, ft.told) {
					t.Errorf("want %q: %s", ft.told, answer)
				}
				if run := e.lastRun(); run.Outcome != "failed" {
					t.Errorf("the run: %+v", run)
				}
				e.idle()
			})
		})
	}
}

// A Node whose events are none ends that run alone, with the family's error.
func TestMalformedEvents(t *testing.T) {
	e := newEdge(t, nil)
	e.addProvider("n1", runsOn("openai"), func(ctx context.Context, run *tunnel.NodeRun) {
		_ = run.Events(tunnel.AppendRunEvent(nil, hello))
		_ = run.Events([]byte{3, 0xff, 0xff, 0xff})
		<-ctx.Done()
		run.End(failed(execution.CodeProtocol, execution.PhaseStreaming))
	}, "m")
	_, _, answer := families["chat"].ask(e, true)
	if strings.Count(answer, families["chat"].broken) != 1 || strings.Contains(answer, "[DONE]") {
		t.Errorf("%s", answer)
	}
	if run := e.lastRun(); run.Code != "protocol" || run.Outcome != "failed" {
		t.Errorf("%+v", run)
	}
	e.idle()
}
