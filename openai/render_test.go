package openai

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"iop/execution"
)

var update = flag.Bool("update", false, "write testdata/rendered anew")

// streamEvent is one event of a stream.
type streamEvent struct {
	name string // of its event line, or empty
	data string
}

// object decodes the event's data.
func (e streamEvent) object(t *testing.T) map[string]any {
	t.Helper()
	return decodeObject(t, []byte(e.data))
}

func decodeObject(t *testing.T, data []byte) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	return v
}

// splitStream takes a stream apart, strictly: an event line or none, one data line, an empty line, and nothing else.
func splitStream(t *testing.T, stream []byte) (events []streamEvent) {
	t.Helper()
	rest := string(stream)
	for rest != "" {
		block, after, ok := strings.Cut(rest, "\n\n")
		if !ok {
			t.Fatalf("the stream ends within an event: %q", rest)
		}
		rest = after
		var e streamEvent
		if name, data, ok := strings.Cut(block, "\n"); ok {
			e.name, ok = strings.CutPrefix(name, "event: ")
			if !ok {
				t.Fatalf("not an event line: %q", name)
			}
			block = data
		}
		if e.data, ok = strings.CutPrefix(block, "data: "); !ok || strings.ContainsAny(e.data, "\n\r") {
			t.Fatalf("not one data line: %q", block)
		}
		if e.data != "[DONE]" && !json.Valid([]byte(e.data)) {
			t.Fatalf("not JSON: %s", e.data)
		}
		events = append(events, e)
	}
	return events
}

// Short forms of events.
func say(choice int, text string) execution.Event {
	return execution.Event{Kind: execution.EventText, Choice: choice, Text: text}
}

func think(text, signature, redacted string) execution.Event {
	return execution.Event{Kind: execution.EventReasoning, Text: text, Signature: signature, Redacted: redacted}
}

func refuse(text string) execution.Event {
	return execution.Event{Kind: execution.EventRefusal, Text: text}
}

func callOf(index int, id, name, arguments string) execution.Event {
	return execution.Event{Kind: execution.EventToolCall, Call: execution.ToolCallDelta{Index: index, ID: id, Name: name, Arguments: arguments}}
}

func finish(choice int, reason execution.FinishReason) execution.Event {
	return execution.Event{Kind: execution.EventFinish, Choice: choice, Finish: execution.Finish{Reason: reason}}
}

const (
	citation = "{\"type\":\"url_citation\",\n\"url_citation\":{\"start_index\":0,\"end_index\":2,\"url\":\"https://example.com/\",\"title\":\"An \\\"example\\\"\"}}"
	logprobs = `[{"token":"a","logprob":-0.5,"bytes":[97],"top_logprobs":[{"token":"a","logprob":-0.5,"bytes":[97]}]}]`
)

var started = execution.Event{Kind: execution.EventStarted, Started: &execution.Started{ID: "p", Model: "other"}}

// answers are what the golden files are made of.
var answers = []struct {
	name   string
	events []execution.Event
	fails  bool
}{
	{"text", []execution.Event{started, say(0, "Hello,"), say(0, " \"wörld\"\n\t\x01</s>\u2028"), say(0, ""), finish(0, execution.FinishStop)}, false},
	{"empty", []execution.Event{finish(0, execution.FinishStopWord)}, false},
	{"calls", []execution.Event{
		say(0, "One moment."), callOf(0, "call_a", "look", ""), callOf(0, "", "", `{"q":`), callOf(0, "", "", `"{"}`),
		callOf(1, "call_b", "list", "{}"), finish(0, execution.FinishToolCalls),
	}, false},
	{"calls_at_once", []execution.Event{
		callOf(0, "", "look", `{"a":`), callOf(1, "call_b", "list", `{"b":`), callOf(0, "", "", `1}`), callOf(1, "", "", `2}`),
		say(0, "Both."), callOf(2, "call_c", "noargs", ""), finish(0, execution.FinishToolCalls),
	}, false},
	{"reasoning", []execution.Event{
		think("Let me", "", ""), think(" think.", "", ""), think("", "sig", ""), think("", "", "hidden"), think("Again.", "", ""),
		say(0, "42, bec"), finish(0, execution.FinishLength),
	}, false},
	{"refusal", []execution.Event{refuse("I "), refuse("won't."), finish(0, execution.FinishFilter)}, false},
	{"annotated", []execution.Event{
		{Kind: execution.EventText, Text: "a", Logprobs: json.RawMessage(logprobs)},
		{Kind: execution.EventText, Text: "b", Logprobs: json.RawMessage(logprobs)},
		{Kind: execution.EventAnnotation, Annotation: json.RawMessage(citation)},
		{Kind: execution.EventAnnotation, Annotation: json.RawMessage(citation)},
		refuse("But no."), finish(0, execution.FinishStop),
	}, false},
	{"choices", []execution.Event{say(1, "b"), say(0, "a"), finish(1, execution.FinishStop), say(0, "a"), finish(0, execution.FinishLength)}, false},
	{"failed", []execution.Event{say(0, "Half an ans")}, true},
}

var (
	goldenSpec  = RenderSpec{ID: "abc", Model: "m", Created: time.Unix(1764400000, 0)}
	goldenUsage = execution.Usage{Input: 10, Output: 5, Cached: 4, Reasoning: 2, Known: true}
)

const goldenRequest = `{"input":"hi","instructions":"Be \"brief\".","tools":[{"type":"function","name":"look","parameters":{"type":"object"}},` +
	`{"type":"function","name":"list","description":"d","strict":true}],"tool_choice":"auto","temperature":0.5,"metadata":{"b":"2","a":"1"},` +
	`"text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object"}}},"reasoning":{"effort":"low"},"max_output_tokens":64,"service_tier":"flex"}`

// newRenderers returns a fresh renderer of each protocol.
func newRenderers(t *testing.T, spec RenderSpec) map[string]Renderer {
	t.Helper()
	chat, responses := mustChat(t, "{"+userTurn+"}"), mustResponses(t, goldenRequest)
	r := responses.Render(spec)
	r.(*responsesRenderer).now = func() time.Time { return time.Unix(1764400003, 0) }
	return map[string]Renderer{"chat": chat.Render(spec), "responses": r}
}

// render writes a stream of events.
func render(r Renderer, events []execution.Event, fails bool) (stream []byte, err *Error) {
	for i := range events {
		stream = r.Event(stream, &events[i])
	}
	if fails {
		return r.Fail(stream, ProviderTruncated()), nil
	}
	return r.Complete(stream, goldenUsage)
}

// collect makes the whole result of the events.
func collect(t *testing.T, events []execution.Event) *execution.Result {
	t.Helper()
	var c execution.Collector
	for i := range events {
		if err := c.Add(&events[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Add(&execution.Event{Kind: execution.EventUsage, Usage: &goldenUsage}); err != nil {
		t.Fatal(err)
	}
	return c.Result()
}

func TestRenderGolden(t *testing.T) {
	for _, a := range answers {
		for protocol, r := range newRenderers(t, goldenSpec) {
			stream, err := render(r, a.events, a.fails)
			if err != nil {
				t.Fatal(err)
			}
			compareGolden(t, protocol+"_"+a.name+".sse", stream)
			whole, err := newRenderers(t, goldenSpec)[protocol].Whole(nil, collect(t, a.events))
			if a.fails {
				if err == nil || err.Code != "provider_error" || len(whole) > 0 {
					t.Errorf("half an answer is given whole: %v %s", err, whole)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			compareGolden(t, protocol+"_"+a.name+".json", append(whole, '\n'))
			checkSchema(t, map[string]string{"chat": "completion", "responses": "response"}[protocol], decodeObject(t, whole))
		}
		checkEnds(t, a.events, a.fails)
	}
}

// checkEnds checks the streams of both protocols event by event.
func checkEnds(t *testing.T, events []execution.Event, fails bool) {
	t.Helper()
	for _, usage := range []bool{false, true} {
		spec := goldenSpec
		spec.IncludeUsage = usage
		renderers := newRenderers(t, spec)
		stream, err := render(renderers["chat"], events, fails)
		if err != nil {
			t.Fatal(err)
		}
		checkChatStream(t, stream, spec, fails)
		if stream, err = render(renderers["responses"], events, fails); err != nil {
			t.Fatal(err)
		}
		final := checkResponsesStream(t, stream, responsesEnd(events, fails))
		if fails {
			continue
		}
		whole, err := newRenderers(t, spec)["responses"].Whole(nil, collect(t, events))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := spoken(decodeObject(t, whole)), spoken(final); got != want {
			t.Fatalf("the whole answer says %q, the stream %q", got, want)
		}
	}
}

// responsesEnd is the event that must end a Responses stream.
func responsesEnd(events []execution.Event, fails bool) string {
	if fails {
		return "response.failed"
	}
	for _, e := range events {
		if e.Kind == execution.EventFinish && e.Choice == 0 && incompleteReason(e.Finish.Reason) != "" {
			return "response.incomplete"
		}
	}
	return "response.completed"
}

// spoken is what a response says, in the order that its kinds have in a whole answer.
func spoken(response map[string]any) string {
	var text, refusal, calls, thoughts, signatures string // how thoughts are cut depends on what lies between
	for _, item := range response["output"].([]any) {
		item := item.(map[string]any)
		switch item["type"] {
		case "message":
			for _, part := range item["content"].([]any) {
				part := part.(map[string]any)
				if part["type"] == "output_text" {
					text += part["text"].(string)
				} else {
					refusal += part["refusal"].(string)
				}
			}
		case "function_call":
			calls += fmt.Sprintf("%s %s %s;", item["call_id"], item["name"], item["arguments"])
		case "reasoning":
			for _, part := range item["summary"].([]any) {
				thoughts += part.(map[string]any)["text"].(string)
			}
			if signature, ok := item["encrypted_content"].(string); ok {
				signatures += signature
			}
		}
	}
	return thoughts + "|" + signatures + "|" + text + "|" + refusal + "|" + calls
}

func compareGolden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", "rendered", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: got\n%s", name, got)
	}
}

// TestRenderAnyOrder: events in any order that the contract allows make a stream that is well-formed, event by event as
// the schema has it, with one end, and that says what the whole answer says.
func TestRenderAnyOrder(t *testing.T) {
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 5))
		events, fails := randomAnswer(rng)
		t.Run(fmt.Sprint(seed), func(t *testing.T) { checkEnds(t, events, fails) })
	}
}

// randomAnswer makes an answer of one choice.
func randomAnswer(rng *rand.Rand) (events []execution.Event, fails bool) {
	texts := []string{"a", "\"", "\\", "\n\r\t\x00\x7f", "é\u2028", "\xff", "{", ""}
	text := func() string { return texts[rng.IntN(len(texts))] }
	var pieces [][]string // of each call's arguments that are still to come
	for range rng.IntN(20) {
		switch rng.IntN(8) {
		case 0, 1:
			e := say(0, text())
			if rng.IntN(3) == 0 {
				e.Logprobs = json.RawMessage(logprobs)
			}
			events = append(events, e)
		case 2:
			events = append(events, refuse(text()))
		case 3:
			events = append(events, think(text(), strings.Repeat("s", rng.IntN(2)), ""))
		case 4:
			events = append(events, think("", "", "hidden"))
		case 5:
			events = append(events, execution.Event{Kind: execution.EventAnnotation, Annotation: json.RawMessage(citation)})
		case 6:
			arguments := [][]string{{`{"a":`, `"}\"",`, `"b":[{}]}`}, {"{}"}, {"", "{", "}"}, {}}[rng.IntN(4)]
			events = append(events, callOf(len(pieces), fmt.Sprintf("call_%d", len(pieces)), "f", ""))
			pieces = append(pieces, arguments)
		case 7:
			if len(pieces) > 0 {
				i := rng.IntN(len(pieces))
				if len(pieces[i]) > 0 {
					events = append(events, callOf(i, "", "", pieces[i][0]))
					pieces[i] = pieces[i][1:]
				}
			}
		}
	}
	if rng.IntN(5) == 0 {
		return events, true
	}
	reasons := []execution.FinishReason{
		execution.FinishStop, execution.FinishStopWord, execution.FinishLength,
		execution.FinishToolCalls, execution.FinishFilter, execution.FinishPause,
	}
	return append(events, finish(0, reasons[rng.IntN(len(reasons))])), false
}

// TestRenderChatChoices: the events of several choices in any order give each choice its own answer.
func TestRenderChatChoices(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 9))
		queues := make([][]execution.Event, 1+rng.IntN(3))
		left := 0
		for choice := range queues {
			queues[choice], _ = randomAnswer(rng)
			if n := len(queues[choice]); n == 0 || queues[choice][n-1].Kind != execution.EventFinish {
				queues[choice] = append(queues[choice], finish(choice, execution.FinishStop))
			}
			left += len(queues[choice])
		}
		var events []execution.Event
		for left > 0 {
			choice := rng.IntN(len(queues))
			if q := queues[choice]; len(q) > 0 {
				e := q[0]
				e.Choice = choice
				events, queues[choice] = append(events, e), q[1:]
				left--
			}
		}
		stream, err := render(newRenderers(t, goldenSpec)["chat"], events, false)
		if err != nil {
			t.Fatal(err)
		}
		checkChatStream(t, stream, goldenSpec, false)
		whole, err := newRenderers(t, goldenSpec)["chat"].Whole(nil, collect(t, events))
		if err != nil {
			t.Fatal(err)
		}
		object := decodeObject(t, whole)
		checkSchema(t, "completion", object)
		for i, c := range object["choices"].([]any) {
			if got, want := told(t, stream, i), toldWhole(c.(map[string]any)); got != want {
				t.Fatalf("seed %d, choice %d: the stream says %s, the whole answer %s", seed, i, got, want)
			}
		}
	}
}

// told is what a stream of chunks says in one choice.
func told(t *testing.T, stream []byte, choice int) string {
	t.Helper()
	var text, refusal, thought, reason string
	calls := map[int]string{}
	for _, e := range splitStream(t, stream) {
		if e.data == "[DONE]" {
			break
		}
		c := e.object(t)["choices"].([]any)[0].(map[string]any)
		if c["index"] != float64(choice) {
			continue
		}
		delta := c["delta"].(map[string]any)
		add := func(to *string, name string) {
			if piece, ok := delta[name].(string); ok {
				*to += piece
			}
		}
		add(&text, "content")
		add(&refusal, "refusal")
		add(&thought, "reasoning_content")
		list, _ := delta["tool_calls"].([]any)
		for _, call := range list {
			call := call.(map[string]any)
			calls[int(call["index"].(float64))] += call["function"].(map[string]any)["arguments"].(string)
		}
		if c["finish_reason"] != nil {
			reason = c["finish_reason"].(string)
		}
	}
	return fmt.Sprintf("%q %q %q %v %s", text, refusal, thought, calls, reason)
}

// toldWhole is told of a whole answer's choice.
func toldWhole(c map[string]any) string {
	message := c["message"].(map[string]any)
	get := func(name string) string {
		s, _ := message[name].(string)
		return s
	}
	calls := map[int]string{}
	list, _ := message["tool_calls"].([]any)
	for i, call := range list {
		calls[i] = call.(map[string]any)["function"].(map[string]any)["arguments"].(string)
	}
	return fmt.Sprintf("%q %q %q %v %s", get("content"), get("refusal"), get("reasoning_content"), calls, c["finish_reason"])
}

// TestRenderIgnoresWhatBreaksTheContract: an event that should not be never breaks the stream.
func TestRenderIgnoresWhatBreaksTheContract(t *testing.T) {
	for _, e := range []execution.Event{
		{}, {Kind: 99}, {Kind: execution.EventFinish}, {Kind: execution.EventText, Choice: -1, Text: "x"},
		{Kind: execution.EventText, Choice: execution.MaxChoices, Text: "x"}, callOf(-1, "a", "f", "{}"),
		{Kind: execution.EventAnnotation, Annotation: json.RawMessage("{")}, {Kind: execution.EventUsage}, {Kind: execution.EventFailure},
	} {
		for protocol, r := range newRenderers(t, goldenSpec) {
			if got := r.Event(nil, &e); len(got) > 0 {
				t.Errorf("%s: %+v: %s", protocol, e, got)
			}
		}
	}
	r := newRenderers(t, goldenSpec)["chat"]
	odd := []execution.Event{{Kind: execution.EventText, Text: "a", Logprobs: json.RawMessage("]")}, finish(0, "\"}")}
	stream, err := render(r, odd, false)
	if err != nil {
		t.Fatal(err)
	}
	checkChatStream(t, stream, goldenSpec, false)
}

// TestRenderRefusesHalfAnAnswer: nothing is appended where the events do not make a whole answer.
func TestRenderRefusesHalfAnAnswer(t *testing.T) {
	for name, events := range map[string][]execution.Event{
		"nothing":               {},
		"started only":          {started},
		"no end":                {say(0, "a")},
		"one choice has no end": {say(0, "a"), say(1, "b"), finish(1, execution.FinishStop)},
	} {
		for protocol, r := range newRenderers(t, goldenSpec) {
			stream, err := render(r, events, false)
			if err == nil || err.Code != "provider_error" || strings.Contains(string(stream), "DONE") || strings.Contains(string(stream), "response.completed") {
				t.Errorf("%s, %s: %v\n%s", name, protocol, err, stream)
			}
			_, err = newRenderers(t, goldenSpec)[protocol].Whole(nil, collect(t, events))
			if err == nil || err.Code != "provider_error" {
				t.Errorf("%s, %s, whole: %v", name, protocol, err)
			}
		}
	}
	for _, r := range newRenderers(t, goldenSpec) {
		if _, err := r.Whole(nil, &execution.Result{Failure: &execution.Failure{}, Choices: []execution.Choice{{Finish: execution.Finish{Reason: execution.FinishStop}}}}); err == nil {
			t.Error("a failure is given whole")
		}
	}
}

// TestRenderResponsesGivesUp: what the protocol can't say any more ends in an error, never in a wrong answer.
func TestRenderResponsesGivesUp(t *testing.T) {
	piece := strings.Repeat("x", 1<<20)
	long := make([]execution.Event, 0, 16)
	for range 10 {
		long = append(long, say(0, piece))
	}
	for name, events := range map[string][]execution.Event{
		"a call goes on after its end": {callOf(0, "a", "f", "{}"), callOf(1, "b", "f", ""), callOf(0, "", "", "{}")},
		"a call out of order":          {callOf(1, "a", "f", "{}")},
		"too long":                     long,
	} {
		events = append(events, finish(0, execution.FinishStop))
		r := newRenderers(t, goldenSpec)["responses"]
		stream, err := render(r, events, false)
		if err == nil || err.Code != "provider_error" {
			t.Errorf("%s: %v", name, err)
			continue
		}
		checkResponsesStream(t, r.Fail(stream, err), "response.failed")
	}
	r := newRenderers(t, goldenSpec)["responses"]
	stream, err := render(r, []execution.Event{callOf(0, "a", "f", "{}"), callOf(1, "b", "f", "{}"), callOf(0, "", "", " \n"), finish(0, execution.FinishToolCalls)}, false)
	if err != nil {
		t.Fatalf("white space after a call: %v", err)
	}
	checkResponsesStream(t, stream, "response.completed")
}

// TestRenderUsage: a client gets the usage chunk only if it asked and somebody knows.
// TestRenderResponsesRemembersLittle: what a renderer remembers is bounded, however small the pieces are and wherever a
// provider puts its bytes.
func TestRenderResponsesRemembersLittle(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for name, event := range map[string]func(i int) execution.Event{
		"parts": func(i int) execution.Event {
			return execution.Event{Kind: []execution.EventKind{execution.EventText, execution.EventRefusal}[i%2], Text: "x"}
		},
		"names of calls": func(i int) execution.Event {
			return execution.Event{Kind: execution.EventToolCall, Call: execution.ToolCallDelta{Index: i, ID: "x", Name: long}}
		},
	} {
		r := newResponsesRenderer(goldenSpec, nil)
		for i := 0; r.Fault() == nil; i++ {
			if i > maxResponsesText/partSize+2 || name == "names of calls" && i > 16 {
				t.Errorf("%s: no bound", name)
				break
			}
			e := event(i)
			r.Event(nil, &e)
		}
	}
}

func TestRenderUsage(t *testing.T) {
	spec := goldenSpec
	spec.IncludeUsage = true
	events := []execution.Event{say(0, "a"), finish(0, execution.FinishStop)}
	stream, err := render(newRenderers(t, spec)["chat"], events, false)
	if err != nil {
		t.Fatal(err)
	}
	compareGolden(t, "chat_usage.sse", stream)
	r := newRenderers(t, spec)["chat"]
	stream = nil
	for i := range events {
		stream = r.Event(stream, &events[i])
	}
	if stream, err = r.Complete(stream, execution.Usage{}); err != nil || strings.Contains(string(stream), "prompt_tokens") {
		t.Errorf("%v\n%s", err, stream)
	}
}

// TestRenderFailsBeforeItBegan: the protocol's first events come even then.
func TestRenderFailsBeforeItBegan(t *testing.T) {
	renderers := newRenderers(t, goldenSpec)
	checkResponsesStream(t, renderers["responses"].Fail(nil, QueueTimeout()), "response.failed")
	checkChatStream(t, renderers["chat"].Fail(nil, QueueTimeout()), goldenSpec, true)
}

func TestRenderTextAllocatesNothing(t *testing.T) {
	for protocol, r := range newRenderers(t, goldenSpec) {
		e := say(0, " token \"and\" another")
		dst := r.Event(make([]byte, 0, 1<<12), &e)[:0]
		if r, ok := r.(*responsesRenderer); ok {
			r.message.text = make([]byte, 0, 1<<20)
		}
		if n := testing.AllocsPerRun(1000, func() { dst = r.Event(dst[:0], &e) }); n != 0 {
			t.Errorf("%s: %v allocations an event", protocol, n)
		}
	}
}
