package anthropic

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"iop/execution"
	"iop/openai"
)

var spec = openai.RenderSpec{ID: "x1", Model: "mo\"del", Created: time.Unix(1, 0)}

// Events for tests.
func text(s string) execution.Event { return execution.Event{Kind: execution.EventText, Text: s} }
func thought(s, signature string) execution.Event {
	return execution.Event{Kind: execution.EventReasoning, Text: s, Signature: signature}
}
func hidden(s string) execution.Event {
	return execution.Event{Kind: execution.EventReasoning, Redacted: s}
}
func refusal(s string) execution.Event {
	return execution.Event{Kind: execution.EventRefusal, Text: s}
}
func call(i int, id, name, arguments string) execution.Event {
	return execution.Event{Kind: execution.EventToolCall, Call: execution.ToolCallDelta{Index: i, ID: id, Name: name, Arguments: arguments}}
}
func finish(reason execution.FinishReason) execution.Event {
	return execution.Event{Kind: execution.EventFinish, Finish: execution.Finish{Reason: reason}}
}
func started(u execution.Usage) execution.Event {
	return execution.Event{Kind: execution.EventStarted, Started: &execution.Started{ID: "p1", Usage: u}}
}

// stream renders events as a stream to its end.
func stream(r openai.Renderer, usage execution.Usage, events ...execution.Event) ([]byte, *openai.Error) {
	var out []byte
	for i := range events {
		out = r.Event(out, &events[i])
	}
	return r.Complete(out, usage)
}

// whole renders events as one object.
func whole(r openai.Renderer, usage execution.Usage, events ...execution.Event) ([]byte, *openai.Error) {
	c := execution.Collector{}
	for i := range events {
		if err := c.Add(&events[i]); err != nil {
			return nil, openai.ProviderFailed(err.Error())
		}
	}
	result := c.Result()
	result.Usage = usage
	return r.Whole(nil, result)
}

var usage = execution.Usage{Input: 100, Cached: 60, Output: 20, Reasoning: 8, Known: true}

var answers = []struct {
	name    string
	omitted bool
	events  []execution.Event
}{
	{"text", false, []execution.Event{started(execution.Usage{Input: 100, Cached: 60, Known: true}), text(""), text("Hello "), text("\"you\" 😀\n"), finish(execution.FinishStop)}},
	{"everything", false, []execution.Event{
		started(execution.Usage{}), thought("Let me ", ""), thought("think", ""), thought("", "SI"), thought("", "G"), thought("again", "S2"), hidden("RR"), text("I call"),
		call(0, "toolu_1", "f", ""), call(0, "", "", `{"a":`), call(0, "", "", `1}`), call(1, "toolu_2", "g", ""),
		{Kind: execution.EventUsage, Usage: &usage}, {Kind: execution.EventAnnotation, Annotation: []byte("{}")}, finish(execution.FinishToolCalls)}},
	{"omitted", true, []execution.Event{thought("secret", "SIG"), text("a"), {Kind: execution.EventFinish, Finish: execution.Finish{Reason: execution.FinishStopWord, StopWord: "END"}}}},
	{"interleaved", false, []execution.Event{
		text("I call"), call(0, "toolu_1", "f", ""), call(1, "toolu_2", "g", ""), call(0, "", "", `{"a":`), call(1, "", "", `{"b"`), thought("why", "S"),
		call(2, "", "h", ""), call(0, "", "", `1}`), call(1, "", "", `:"}"`), text("so"), text(" what"), call(1, "", "", `}`), call(2, "", "", `{}`),
		finish(execution.FinishToolCalls)}},
	{"refusal", false, []execution.Event{refusal("I would "), refusal("rather not"), finish(execution.FinishStop)}},
	{"empty", false, []execution.Event{started(execution.Usage{}), finish(execution.FinishLength)}},
}

func TestGolden(t *testing.T) {
	for _, a := range answers {
		out, e := stream(newRenderer(spec, a.omitted), usage, a.events...)
		if e != nil {
			t.Fatalf("%s: %v", a.name, e)
		}
		golden(t, a.name+".sse", out)
		if out, e = whole(newRenderer(spec, a.omitted), usage, a.events...); e != nil {
			t.Fatalf("%s: %v", a.name, e)
		}
		golden(t, a.name+".json", append(out, '\n'))
	}
}

func TestStopReasons(t *testing.T) {
	tool := call(0, "a", "f", "{}")
	tests := []struct {
		events []execution.Event
		want   string
	}{
		{[]execution.Event{finish(execution.FinishStop)}, "end_turn"},
		{[]execution.Event{finish(execution.FinishLength)}, "max_tokens"},
		{[]execution.Event{finish(execution.FinishStopWord)}, "stop_sequence"},
		{[]execution.Event{tool, finish(execution.FinishToolCalls)}, "tool_use"},
		{[]execution.Event{tool, finish(execution.FinishStop)}, "tool_use"},
		{[]execution.Event{tool, finish(execution.FinishLength)}, "max_tokens"},
		{[]execution.Event{finish(execution.FinishFilter)}, "refusal"},
		{[]execution.Event{finish(execution.FinishPause)}, "pause_turn"},
		{[]execution.Event{refusal("no"), finish(execution.FinishStop)}, "refusal"},
	}
	for _, tt := range tests {
		for name, render := range map[string]func(openai.Renderer, execution.Usage, ...execution.Event) ([]byte, *openai.Error){"stream": stream, "whole": whole} {
			out, e := render(newRenderer(spec, false), usage, tt.events...)
			if e != nil || !bytes.Contains(out, []byte(`"stop_reason":"`+tt.want+`","stop_sequence":null`)) {
				t.Errorf("%s of %v: %v %s, want %s", name, tt.events[len(tt.events)-1].Finish, e, out, tt.want)
			}
		}
	}
}

// TestNotWhole: what was no whole answer ends with the protocol's error and never with message_stop.
func TestNotWhole(t *testing.T) {
	length := finish(execution.FinishLength)
	tests := []struct {
		name          string
		events        []execution.Event
		stream, whole bool // fails so
	}{
		{"nothing", nil, true, true},
		{"no finish", []execution.Event{started(execution.Usage{}), text("a")}, true, true},
		{"arguments that are no JSON", []execution.Event{call(0, "a", "f", `{"a":`), finish(execution.FinishToolCalls)}, true, true},
		{"arguments that are no object", []execution.Event{call(0, "a", "f", `[1]`), text("b"), finish(execution.FinishStop)}, true, true},
		{"the first of two calls", []execution.Event{call(0, "a", "f", `{`), call(1, "b", "f", `{}`), finish(execution.FinishToolCalls)}, true, true},
		{"cut by the bound", []execution.Event{call(0, "a", "f", `{"a":`), length}, false, true},
		{"mixed calls", []execution.Event{call(0, "a", "f", `{`), call(1, "b", "f", `{}`), call(0, "", "", `}`), finish(execution.FinishToolCalls)}, false, false},
		{"mixed calls that the bound cuts", []execution.Event{call(0, "a", "f", `{`), call(1, "b", "f", `{`), length}, false, true},
		{"mixed calls, one is never whole", []execution.Event{call(0, "a", "f", `{`), call(1, "b", "f", `{`), call(0, "", "", `}`), finish(execution.FinishToolCalls)}, true, true},
		{"a call goes on after its end", []execution.Event{call(0, "a", "f", `{}`), call(1, "b", "f", `{}`), call(0, "", "", `1`), finish(execution.FinishToolCalls)}, true, true},
		{"white space after a call's end", []execution.Event{call(0, "a", "f", `{}`), call(1, "b", "f", `{}`), call(0, "", "", "\n"), finish(execution.FinishToolCalls)}, false, false},
		{"text before a call is whole", []execution.Event{call(0, "a", "f", `{`), text("t"), call(0, "", "", `}`), text("t"), finish(execution.FinishToolCalls)}, false, false},
		{"calls without arguments", []execution.Event{call(0, "a", "f", ""), call(1, "b", "f", ""), text("t"), finish(execution.FinishToolCalls)}, false, false},
		{"too much waits", []execution.Event{call(0, "a", "f", `{`), text(strings.Repeat("t", maxWaiting)), call(0, "", "", `}`), finish(execution.FinishToolCalls)}, true, false},
		{"a gap", []execution.Event{call(1, "a", "f", `{}`), finish(execution.FinishToolCalls)}, true, true},
		{"a thought before bad arguments' end", []execution.Event{call(0, "a", "f", `{`), thought("t", ""), finish(execution.FinishStop)}, true, true},
		{"a hidden thought there", []execution.Event{call(0, "a", "f", `{`), hidden("t"), finish(execution.FinishStop)}, true, true},
		{"too long", []execution.Event{call(0, "a", "f", strings.Repeat(" ", maxArguments)), call(0, "", "", "{}"), finish(execution.FinishStop)}, true, false},
		{"signed too long", []execution.Event{thought("t", strings.Repeat("s", maxSignature)), thought("", "s"), finish(execution.FinishStop)}, true, false},
	}
	for _, tt := range tests {
		r := newRenderer(spec, false)
		out, e := stream(r, usage, tt.events...)
		if (e != nil) != tt.stream || e == nil != bytes.HasSuffix(out, []byte("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n")) {
			t.Errorf("%s: the stream ends with %v and %.300s", tt.name, e, out)
		}
		if e != nil {
			failed := r.Fail(nil, e)
			if !bytes.HasPrefix(failed, []byte("event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":")) {
				t.Errorf("%s: the stream's error is %s", tt.name, failed)
			}
		}
		prefix := []byte("before")
		out, e = newRenderer(spec, false).Whole(prefix, collect(tt.events))
		if (e != nil) != tt.whole || e != nil && !bytes.Equal(out, prefix) {
			t.Errorf("%s: whole is %v and %.300s", tt.name, e, out)
		}
	}
}

func collect(events []execution.Event) *execution.Result {
	c := execution.Collector{}
	for i := range events {
		if c.Add(&events[i]) != nil {
			return &execution.Result{}
		}
	}
	return c.Result()
}

// client reads a stream as an SDK does, and complains of each event that is out of order.
type client struct {
	started, ended bool
	open           int // index of the open block, or -1
	blocks         []map[string]any
	input          []string // of each block, as JSON text
	stop           string
}

func (c *client) read(data []byte) error {
	r := openai.NewEventReader(bytes.NewReader(data))
	for {
		ev, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := c.event(ev); err != nil {
			return fmt.Errorf("%s: %w", ev.Data, err)
		}
	}
}

func (c *client) event(ev openai.Event) error {
	var e struct {
		Type    string
		Message *struct{ ID, Model, Role string }
		Index   int
		Block   map[string]any `json:"content_block"`
		Delta   struct {
			Type, Text, Thinking, Signature string
			PartialJSON                     string `json:"partial_json"`
			StopReason                      string `json:"stop_reason"`
		}
	}
	if err := json.Unmarshal(ev.Data, &e); err != nil {
		return err
	}
	if e.Type != ev.Type || c.ended || (e.Type == "message_start") == c.started {
		return errors.New("out of order")
	}
	switch e.Type {
	case "message_start":
		c.started, c.open = true, -1
	case "content_block_start":
		if c.open >= 0 || e.Index != len(c.blocks) {
			return errors.New("a block begins within another")
		}
		c.open = e.Index
		c.blocks, c.input = append(c.blocks, e.Block), append(c.input, "")
	case "content_block_stop":
		if e.Index != c.open {
			return errors.New("another block is open")
		}
		c.open = -1
	case "content_block_delta":
		if e.Index != c.open {
			return errors.New("another block is open")
		}
		c.input[c.open] += e.Delta.PartialJSON
		b := c.blocks[c.open]
		add := func(kind, field, s string) error {
			if e.Delta.Type == kind && b[field] == nil {
				return fmt.Errorf("no %s here", kind)
			}
			if e.Delta.Type == kind {
				b[field] = b[field].(string) + s
			}
			return nil
		}
		return errors.Join(add("text_delta", "text", e.Delta.Text), add("thinking_delta", "thinking", e.Delta.Thinking),
			add("signature_delta", "signature", e.Delta.Signature))
	case "message_delta":
		if c.open >= 0 || c.stop != "" {
			return errors.New("a block is open")
		}
		c.stop = e.Delta.StopReason
	case "message_stop":
		c.ended = true
	default:
		return errors.New("unknown")
	}
	return nil
}

// randomEvents makes an answer within the contract: other events anywhere between calls and their pieces, one finish.
func randomEvents(rng *rand.Rand) (events []execution.Event) {
	calls, open := 0, false
	if rng.IntN(2) == 0 {
		events = append(events, started(execution.Usage{}))
	}
	for range rng.IntN(30) {
		s := strings.Repeat("é\"\\\n", rng.IntN(3))
		switch rng.IntN(9) {
		case 0, 1:
			events, open = append(events, text(s)), open && s == ""
		case 2:
			events, open = append(events, thought(s, "")), open && s == ""
		case 3:
			events, open = append(events, thought(s, "sig")), false
		case 4:
			events, open = append(events, hidden("h")), false
		case 5:
			events = append(events, execution.Event{Kind: execution.EventUsage, Usage: &usage})
		case 6:
			events = append(events, call(calls, fmt.Sprint("id", calls), "f", `{"a":"`), call(calls, "", "", `b"}`))
			calls, open = calls+1, true
		case 8:
			begun := rng.IntN(4)
			for i := range begun {
				events = append(events, call(calls+i, fmt.Sprint("id", calls+i), "f", ""))
			}
			events, open = append(events, interleaved(rng, calls, begun)...), open && begun == 0
			calls += begun
		case 7:
			if open {
				events = append(events, call(calls-1, "", "", " "))
			}
		}
	}
	return append(events, finish([]execution.FinishReason{execution.FinishStop, execution.FinishLength, execution.FinishToolCalls}[rng.IntN(3)]))
}

// interleaved are the arguments of some calls, in turns, with other events between them.
func interleaved(rng *rand.Rand, first, n int) (events []execution.Event) {
	const arguments = `{"a":"b"}`
	sent, whole := make([]int, n), 0
	for whole < n {
		i := rng.IntN(n)
		if rest := arguments[sent[i]:]; rest != "" {
			size := 1 + rng.IntN(len(rest))
			events = append(events, call(first+i, "", "", rest[:size]))
			if sent[i] += size; sent[i] == len(arguments) {
				whole++
			}
		}
		switch rng.IntN(6) {
		case 0:
			events = append(events, text("x"))
		case 1:
			events = append(events, thought("y", ""), thought("", "s"))
		case 2:
			events = append(events, hidden("z"), refusal(""))
		}
	}
	return events
}

// TestAnyOrder: a client puts together from the stream what the whole answer says, whatever the order of events, and
// each event is in its place.
func TestAnyOrder(t *testing.T) {
	for seed := range uint64(2000) {
		events := randomEvents(rand.New(rand.NewPCG(seed, 1)))
		out, e := stream(newRenderer(spec, false), usage, events...)
		if e != nil {
			t.Fatalf("seed %d: %v", seed, e)
		}
		c := client{}
		if err := c.read(out); err != nil || !c.ended || c.stop == "" {
			t.Fatalf("seed %d: %v in\n%s", seed, err, out)
		}
		data, e := whole(newRenderer(spec, false), usage, events...)
		if e != nil {
			t.Fatalf("seed %d: %v", seed, e)
		}
		var message struct {
			Content []map[string]any
			Stop    string `json:"stop_reason"`
		}
		if err := json.Unmarshal(data, &message); err != nil {
			t.Fatalf("seed %d: %v in %s", seed, err, data)
		}
		for i, input := range c.input {
			if input != "" {
				if err := json.Unmarshal([]byte(input), new(c.blocks[i]["input"])); err != nil {
					t.Fatal(err)
				}
				c.blocks[i]["input"] = map[string]any{"a": "b"}
			}
		}
		if got, want := gather(c.blocks), gather(message.Content); got != want || c.stop != message.Stop {
			t.Fatalf("seed %d: the stream says %s %s, the object %s %s", seed, got, c.stop, want, message.Stop)
		}
	}
}

// gather sorts content by its kind: a whole answer has lost the order between kinds.
func gather(blocks []map[string]any) string {
	kinds := map[string]string{}
	for _, b := range blocks {
		switch kind := b["type"].(string); kind {
		case "text":
			kinds[kind] += b["text"].(string)
		case "tool_use":
			kinds[kind] += fmt.Sprint(b["id"], b["name"], b["input"], ";")
		default:
			for _, member := range []string{"thinking", "signature", "data"} {
				if s, ok := b[member].(string); ok {
					kinds["thinking"] += s
				}
			}
		}
	}
	return fmt.Sprint(kinds)
}

// TestEventAllocates: a chunk of text costs no memory.
func TestEventAllocates(t *testing.T) {
	r := newRenderer(spec, false)
	buf := make([]byte, 0, 4096)
	e := text("Hello, \"world\" 😀")
	buf = r.Event(buf, &e)
	if n := testing.AllocsPerRun(100, func() { buf = r.Event(buf[:0], &e) }); n != 0 {
		t.Errorf("%v allocations for a piece of text", n)
	}
}

func BenchmarkEvent(b *testing.B) {
	r := newRenderer(spec, false)
	buf := make([]byte, 0, 4096)
	e := text(" token")
	b.ReportAllocs()
	for b.Loop() {
		buf = r.Event(buf[:0], &e)
	}
}
