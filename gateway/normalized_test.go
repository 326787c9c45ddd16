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

func TestNormalizedAnswer(t *testing.T) {
	eachFamily(t, func(t *testing.T, f family, stream bool) {
		e := newEdge(t, nil)
		e.addProvider("n1", runsOn("anthropic"), answerEvents(completed, started, hello, world, stop), "m")
		status, h, answer := f.ask(e, stream)
		if status != http.StatusOK || h.Get("X-Iop-Execution") != "normalized" {
			t.Fatalf("%d, execution %q: %s", status, h.Get("X-Iop-Execution"), answer)
		}
		want := f.whole
		if stream {
			want = f.done
		}
		if strings.Count(answer, want) != 1 || strings.Contains(answer, "theirs") || !strings.Contains(answer, `"model":"m"`) {
			t.Errorf("want %q once, and the model's name as the client has it: %s", want, answer)
		}
		if !stream && !json.Valid([]byte(answer)) {
			t.Errorf("no JSON: %s", answer)
		}
		if run := e.lastRun(); run.Outcome != "completed" || run.Usage == nil || *run.Usage != used {
			t.Errorf("the run: %+v", run)
		}
		e.idle()
	})
}

func TestRawIsSaidToBeRaw(t *testing.T) {
	e := newEdge(t, nil)
	e.addProvider("n1", runsOn("openai", "chat.completions"), answerJSON(200, `{}`), "m")
	if status, h, answer := e.post("/v1/chat/completions", `{"model":"m","messages":[]}`); status != 200 || h.Get("X-Iop-Execution") != "raw" {
		t.Errorf("%d, execution %q: %s", status, h.Get("X-Iop-Execution"), answer)
	}
	e.idle()
}

// What one adapter can't carry another one may; a target of the same kind is not asked.
func TestUnsupportedGoesToAnotherKind(t *testing.T) {
	e := newEdge(t, nil)
	asked := make(chan string, 8)
	refuses := func(name string) handler {
		return func(ctx context.Context, run *tunnel.NodeRun) {
			asked <- name
			answerEvents(faults[7].end, faults[7].events...)(ctx, run)
		}
	}
	e.addProvider("a1", runsOn("anthropic"), refuses("a1"), "m")
	e.addProvider("a2", runsOn("anthropic"), refuses("a2"), "m")
	status, _, answer := families["responses"].ask(e, false)
	if status != 400 || !strings.Contains(answer, `"param":"max_output_tokens"`) || !strings.Contains(answer, `"code":"unsupported_parameter"`) {
		t.Errorf("%d: %s", status, answer)
	}
	if len(asked) != 1 {
		t.Errorf("%d targets of one kind were asked", len(asked))
	}
	e.addProvider("o1", runsOn("openai"), answerEvents(completed, started, hello, world, stop), "m")
	for range 4 {
		if status, _, answer := families["responses"].ask(e, false); status != 200 {
			t.Errorf("%d: %s", status, answer)
		}
	}
	e.idle()
}

// What can't be read as a normalized run goes where it is relayed raw, and is refused where that is nowhere.
func TestUnreadableGoesRaw(t *testing.T) {
	e := newEdge(t, nil)
	e.addProvider("n1", runsOn("anthropic"), answerEvents(completed, started, hello, stop), "m")
	const odd = `{"model":"m","messages":[{"role":"user","content":"hi"}],"no_such_parameter":1}`
	if status, _, answer := e.post("/v1/chat/completions", odd); status != 400 || !strings.Contains(answer, `"param":"no_such_parameter"`) {
		t.Errorf("%d: %s", status, answer)
	}
	e.addProvider("n2", runsOn("openai", "chat.completions"), answerJSON(200, `{"ok":1}`), "m")
	for range 4 {
		if status, h, answer := e.post("/v1/chat/completions", odd); status != 200 || answer != `{"ok":1}` || h.Get("X-Iop-Execution") != "raw" {
			t.Errorf("%d: %s", status, answer)
		}
	}
	e.idle()
}

func TestUnsupportedOperationIsRefusedAtOnce(t *testing.T) {
	e := newEdge(t, nil)
	e.addProvider("n1", tunnel.ProviderInfo{Adapter: "openai", Capacity: 1, OperationsKnown: true, Operations: []string{"embeddings"}}, answerJSON(200, `{}`), "m")
	for path, shape := range map[string]string{
		"/v1/chat/completions": `"code":"unsupported_operation"`,
		"/v1/messages":         `{"type":"error","error":{"type":"not_found_error"`,
		"/api/chat":            `{"error":"The providers of this model do not support /api/chat."}`,
	} {
		if status, h, answer := e.post(path, `{"model":"m","messages":[]}`); status != 404 || !strings.Contains(answer, shape) || h.Get("X-Should-Retry") != "false" {
			t.Errorf("%s: %d %s", path, status, answer)
		}
	}
	if status, _, answer := e.post("/v1/embeddings", `{"model":"m","input":"x"}`); status != 200 {
		t.Errorf("%d: %s", status, answer)
	}
	e.idle()
}

// A provider that refuses to be asked for usage is asked once more, without.
func TestNormalizedWithoutUsage(t *testing.T) {
	e := newEdge(t, nil)
	asked := make(chan bool, 8)
	e.addProvider("n1", runsOn("openai"), func(ctx context.Context, run *tunnel.NodeRun) {
		without := run.Open().GetRun().GetWithoutUsage()
		asked <- without
		if without {
			answerEvents(completed, started, hello, world, stop)(ctx, run)
			return
		}
		answerEvents(failed(execution.CodeProviderError, execution.PhaseProviderCalled),
			failure(execution.Failure{Status: 400, Message: "stream_options is not a parameter"}))(ctx, run)
	}, "m")
	for range 2 {
		if status, _, answer := families["messages"].ask(e, true); status != 200 || !strings.Contains(answer, families["messages"].done) {
			t.Fatalf("%d: %s", status, answer)
		}
	}
	close(asked)
	var got []bool
	for without := range asked {
		got = append(got, without)
	}
	if fmt.Sprint(got) != "[false true true]" {
		t.Errorf("it was asked without usage: %v", got)
	}
	e.idle()
}

// Retry-After of a provider that is full keeps runs away from it, and another one is tried.
func TestNormalizedRetriesElsewhere(t *testing.T) {
	e := newEdge(t, nil)
	full := failure(execution.Failure{Status: 429, Message: "too many", RetryAfter: 30 * time.Second})
	n := make(chan struct{}, 16)
	e.addProvider("full", runsOn("anthropic"), func(ctx context.Context, run *tunnel.NodeRun) {
		n <- struct{}{}
		answerEvents(failed(execution.CodeProviderError, execution.PhaseProviderCalled), full)(ctx, run)
	}, "m")
	e.addProvider("free", runsOn("anthropic"), answerEvents(completed, started, hello, world, stop), "m")
	for range 6 {
		if status, _, answer := families["chat"].ask(e, true); status != 200 || !strings.Contains(answer, "[DONE]") {
			t.Fatalf("%d: %s", status, answer)
		}
	}
	if len(n) > 1 {
		t.Errorf("the full one was asked %d times", len(n))
	}
	e.idle()
}
