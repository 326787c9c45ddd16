package ollama

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/openai"
)

// Events for tests.
func said(s string) execution.Event { return execution.Event{Kind: execution.EventText, Text: s} }
func thought(s string) execution.Event {
	return execution.Event{Kind: execution.EventReasoning, Text: s, Signature: "unseen"}
}
func call(i int, id, name, arguments string) execution.Event {
	return execution.Event{Kind: execution.EventToolCall, Call: execution.ToolCallDelta{Index: i, ID: id, Name: name, Arguments: arguments}}
}
func finish(reason execution.FinishReason) execution.Event {
	return execution.Event{Kind: execution.EventFinish, Finish: execution.Finish{Reason: reason}}
}

var usage = execution.Usage{Input: 100, Cached: 60, Output: 20, Known: true}

func newSpec() openai.RenderSpec {
	return openai.RenderSpec{ID: "x1", Model: "mo\"del:8b", Created: time.Now()}
}

// stream renders events as a stream to its end, 10 ms between them.
func stream(r openai.Renderer, events ...execution.Event) ([]byte, *openai.Error) {
	var out []byte
	for i := range events {
		time.Sleep(10 * time.Millisecond)
		out = r.Event(out, &events[i])
	}
	return r.Complete(out, usage)
}

// whole renders events as one object.
func whole(r openai.Renderer, events ...execution.Event) ([]byte, *openai.Error) {
	c := execution.Collector{}
	for i := range events {
		if c.Add(&events[i]) != nil {
			return nil, openai.ProviderFailed("")
		}
	}
	result := c.Result()
	result.Usage = usage
	return r.Whole(nil, result)
}

var answers = []struct {
	name     string
	generate bool
	events   []execution.Event
}{
	{"chat", false, []execution.Event{
		{Kind: execution.EventStarted, Started: &execution.Started{}}, said(""), thought("hm"), said("Hello \"you\" 😀\n"), {Kind: execution.EventRefusal, Text: " no"},
		{Kind: execution.EventUsage, Usage: &usage}, finish(execution.FinishLength)}},
	{"calls", false, []execution.Event{
		call(0, "c1", "f", "{\n\"a\":"), call(1, "", "g", ""), call(0, "", "", "\"\\n\"}"), said("then"), finish(execution.FinishToolCalls)}},
	{"generate", true, []execution.Event{thought("hm"), said("Hello"), finish(execution.FinishStop)}},
	{"logprobs", false, []execution.Event{
		{Kind: execution.EventText, Text: "a", Logprobs: []byte("[{\"token\":\"a\",\n\"logprob\":-0.5}]")},
		{Kind: execution.EventText, Text: "b", Logprobs: []byte(`[{"token":"b","logprob":-1,"top_logprobs":[]}]`)}, finish(execution.FinishStop)}},
}

func TestGolden(t *testing.T) {
	for _, a := range answers {
		synctest.Test(t, func(t *testing.T) {
			out, e := stream(newRenderer(newSpec(), a.generate), a.events...)
			if e != nil {
				t.Fatalf("%s: %v", a.name, e)
			}
			golden(t, a.name+".ndjson", out)
		})
		synctest.Test(t, func(t *testing.T) {
			spec := newSpec()
			time.Sleep(time.Second)
			out, e := whole(newRenderer(spec, a.generate), a.events...)
			if e != nil {
				t.Fatalf("%s: %v", a.name, e)
			}
			golden(t, a.name+"_whole.json", append(out, '\n'))
		})
	}
}

// TestNotWhole: what was no whole answer ends with a line that says so and never with done.
func TestNotWhole(t *testing.T) {
	tests := []struct {
		name          string
		generate      bool
		events        []execution.Event
		stream, whole bool // fails so
	}{
		{"nothing", false, nil, true, true},
		{"no finish", false, []execution.Event{said("a")}, true, true},
		{"arguments that are no JSON", false, []execution.Event{call(0, "a", "f", `{"a":`), finish(execution.FinishToolCalls)}, true, true},
		{"arguments that are no object", false, []execution.Event{call(0, "a", "f", `{}`), call(1, "b", "f", `"x"`), finish(execution.FinishStop)}, true, true},
		{"arguments cut by the bound", false, []execution.Event{call(0, "a", "f", `{"a":`), finish(execution.FinishLength)}, true, true},
		{"a gap", false, []execution.Event{call(1, "a", "f", `{}`), finish(execution.FinishStop)}, true, true},
		{"a call that nobody offered", true, []execution.Event{call(0, "a", "f", `{}`), finish(execution.FinishStop)}, true, true},
		{"too long", false, []execution.Event{call(0, "a", "f", strings.Repeat(" ", maxHeld)), call(0, "", "", "{}"), finish(execution.FinishStop)}, true, false},
	}
	for _, tt := range tests {
		r := newRenderer(newSpec(), tt.generate)
		var out []byte
		for i := range tt.events {
			out = r.Event(out, &tt.events[i])
		}
		out, e := r.Complete(out, usage)
		if (e != nil) != tt.stream || bytes.Contains(out, []byte(`"done":true`)) || len(out) > 0 && out[len(out)-1] != '\n' {
			t.Errorf("%s: the stream ends with %v and %.300s", tt.name, e, out)
		}
		if e != nil {
			if failed := r.Fail(nil, e); !bytes.HasPrefix(failed, []byte(`{"error":"`)) || !bytes.HasSuffix(failed, []byte("\"}\n")) {
				t.Errorf("%s: the stream's error is %s", tt.name, failed)
			}
		}
		if out, e = whole(newRenderer(newSpec(), tt.generate), tt.events...); (e != nil) != tt.whole || e != nil && len(out) > 0 {
			t.Errorf("%s: whole is %v and %.300s", tt.name, e, out)
		}
	}
}

func TestDoneReasons(t *testing.T) {
	for reason, want := range map[execution.FinishReason]string{
		execution.FinishStop: "stop", execution.FinishStopWord: "stop", execution.FinishToolCalls: "stop", execution.FinishLength: "length",
		execution.FinishFilter: "content_filter", execution.FinishPause: "pause_turn",
	} {
		e := finish(reason)
		r := newRenderer(newSpec(), false)
		out, fault := r.Complete(r.Event(nil, &e), usage)
		if fault != nil || !bytes.Contains(out, []byte(`"done":true,"done_reason":"`+want+`"`)) {
			t.Errorf("%s: %v %s", reason, fault, out)
		}
	}
}

// answer is what a client reads of a line or an object.
type answer struct {
	Message struct {
		Content, Thinking string
		ToolCalls         []any `json:"tool_calls"`
	}
	Done bool
}

// TestAnyOrder: the lines of a stream say together what the whole answer says, whatever the order of events, and only the
// last is done.
func TestAnyOrder(t *testing.T) {
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 2))
		var events []execution.Event
		calls := 0
		for range rng.IntN(30) {
			s := strings.Repeat("é\"\\\n", rng.IntN(3))
			switch rng.IntN(5) {
			case 0:
				events = append(events, said(s))
			case 1:
				events = append(events, thought(s))
			case 2:
				events = append(events, execution.Event{Kind: execution.EventUsage, Usage: &usage})
			case 3:
				events = append(events, call(calls, fmt.Sprint("id", calls), "f", `{"a":"b"}`))
				calls++
			case 4:
				if calls > 0 {
					events = append(events, call(rng.IntN(calls), "", "", "\n"))
				}
			}
		}
		events = append(events, finish(execution.FinishStop))
		r := newRenderer(newSpec(), false)
		var out []byte
		for i := range events {
			out = r.Event(out, &events[i])
		}
		out, e := r.Complete(out, usage)
		object, e2 := whole(newRenderer(newSpec(), false), events...)
		if e != nil || e2 != nil {
			t.Fatalf("seed %d: %v %v", seed, e, e2)
		}
		var got, want answer
		for line := range bytes.Lines(out) {
			a := answer{}
			if err := json.Unmarshal(line, &a); err != nil || got.Done {
				t.Fatalf("seed %d: %v in %s", seed, err, line)
			}
			got.Message.Content += a.Message.Content
			got.Message.Thinking += a.Message.Thinking
			got.Message.ToolCalls = append(got.Message.ToolCalls, a.Message.ToolCalls...)
			got.Done = a.Done
		}
		if err := json.Unmarshal(object, &want); err != nil {
			t.Fatalf("seed %d: %v in %s", seed, err, object)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) || !got.Done {
			t.Fatalf("seed %d: the stream says %v, the object %v", seed, got, want)
		}
	}
}

// TestEventAllocates: a chunk of text costs no memory.
// The names of calls count as what their arguments do.
func TestCallsAreBounded(t *testing.T) {
	r := newRenderer(newSpec(), false)
	long := strings.Repeat("x", 1<<20)
	for i := 0; r.Fault() == nil; i++ {
		if i > 16 {
			t.Fatal("no bound")
		}
		e := call(i, "a", long, "{}")
		r.Event(nil, &e)
	}
}

func TestEventAllocates(t *testing.T) {
	r := newRenderer(newSpec(), false)
	buf := make([]byte, 0, 4096)
	e := said("Hello, \"world\" 😀")
	if n := testing.AllocsPerRun(100, func() { buf = r.Event(buf[:0], &e) }); n != 0 {
		t.Errorf("%v allocations for a piece of text", n)
	}
}

func BenchmarkEvent(b *testing.B) {
	r := newRenderer(newSpec(), false)
	buf := make([]byte, 0, 4096)
	e := said(" token")
	b.ReportAllocs()
	for b.Loop() {
		buf = r.Event(buf[:0], &e)
	}
}

func BenchmarkParseChat(b *testing.B) {
	body := []byte(`{"model":"m","messages":[{"role":"user","content":"What is this?","images":["` + png[:11] + strings.Repeat("A", 1<<20) + `"]}]}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, e := ParseChat(body); e != nil {
			b.Fatal(e)
		}
	}
}

func TestDocuments(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)
	known := Model{Name: "a:8b", ModifiedAt: at, Size: 5, Digest: strings.Repeat("ab", 32), Details: Details{Format: "gguf", Family: "qwen3", Families: []string{"qwen3", "x"}, ParameterSize: "8B", QuantizationLevel: "Q4_K_M"}, Capabilities: []string{"completion", "vision"}}
	var out []byte
	for _, document := range [][]byte{
		AppendTags(nil), AppendTags(nil, known, Model{Name: "unknown"}),
		AppendPS(nil, Loaded{Model: known, SizeVRAM: 4, ContextLength: 4096, ExpiresAt: at}, Loaded{Model: Model{Name: "unknown"}}),
		AppendShow(nil, Show{Details: known.Details, Modelfile: "FROM a", Parameters: "stop x", Template: "{{ .Prompt }}", System: "S", License: "L",
			Capabilities: []string{"completion", "tools"}, ModelInfo: []byte(`{"general.architecture":"qwen3"}`), ModifiedAt: at}),
		AppendShow(nil, Show{ModelInfo: ModelInfo("", 0)}), AppendShow(nil, Show{ModelInfo: ModelInfo(`qwen"3`, 40960)}),
		AppendShow(nil, Show{ModelInfo: []byte("[]")}), AppendVersion(nil, "0.17.4"),
		AppendLoaded(nil, "a:8b", at, false, false), AppendLoaded(nil, "a:8b", at, true, true),
	} {
		if !json.Valid(document) {
			t.Errorf("no JSON: %s", document)
		}
		out = append(append(out, document...), '\n')
	}
	golden(t, "documents.ndjson", out)
}
