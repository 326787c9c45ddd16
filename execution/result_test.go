package execution

import (
	"reflect"
	"strings"
	"testing"
)

// TestEvents: the events that make an answer say it in its order.
func TestEvents(t *testing.T) {
	call := func(index int, id, arguments string) Event {
		return Event{Kind: EventToolCall, Call: ToolCallDelta{Index: index, ID: id, Name: id, Arguments: arguments}}
	}
	var c Collector
	for _, e := range []Event{
		{Kind: EventReasoning, Text: "a"}, {Kind: EventReasoning, Text: "b", Signature: "s1"}, {Kind: EventText, Text: ""},
		{Kind: EventText, Text: "one ", Logprobs: []byte("[1]")}, {Kind: EventAnnotation, Annotation: []byte("{}")}, {Kind: EventText, Text: "two", Logprobs: []byte("[ ]")},
		{Kind: EventText, Logprobs: []byte("[2, 3]")}, {Kind: EventReasoning, Redacted: "r"}, {Kind: EventReasoning, Text: "c", Signature: "s2"},
		call(0, "f", "{"), call(1, "g", "{}"), call(0, "", "}"), {Kind: EventText, Text: "three"}, {Kind: EventRefusal, Text: "no", Logprobs: []byte("[4]")},
	} {
		if err := c.Add(&e); err != nil {
			t.Fatal(err)
		}
	}
	want := []Event{
		{Kind: EventReasoning, Text: "ab", Signature: "s1"}, {Kind: EventText, Text: "one two", Logprobs: []byte("[1,2, 3]")},
		{Kind: EventAnnotation, Annotation: []byte("{}")}, {Kind: EventReasoning, Redacted: "r"}, {Kind: EventReasoning, Text: "c", Signature: "s2"},
		call(0, "f", "{}"), call(1, "g", "{}"), {Kind: EventText, Text: "three"}, {Kind: EventRefusal, Text: "no", Logprobs: []byte("[4]")},
	}
	if got := c.Result().Choices[0].Events(); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestCollectorSize: what costs memory counts, however small it is, and also what is no text.
func TestCollectorSize(t *testing.T) {
	const n = 1000
	for name, events := range map[string][]Event{
		"thoughts":    {{Kind: EventReasoning, Text: "t"}, {Kind: EventText, Text: "x"}},
		"signatures":  {{Kind: EventReasoning, Text: "t", Signature: "s"}},
		"redacted":    {{Kind: EventReasoning, Redacted: "r"}},
		"annotations": {{Kind: EventAnnotation}},
		"logprobs":    {{Kind: EventText, Logprobs: []byte("[]")}},
	} {
		var c Collector
		for range n {
			for i := range events {
				if err := c.Add(&events[i]); err != nil {
					t.Fatal(err)
				}
			}
		}
		if c.Size() < n*PieceSize {
			t.Errorf("%s: %d bytes", name, c.Size())
		}
	}
	var c Collector
	long := strings.Repeat("x", 1<<20)
	for i := range 8 {
		if err := c.Add(&Event{Kind: EventToolCall, Call: ToolCallDelta{Index: i, ID: long, Name: long}}); err != nil {
			t.Fatal(err)
		}
	}
	if c.Size() < 16<<20 {
		t.Errorf("%d bytes of names", c.Size())
	}
}

func TestCollector(t *testing.T) {
	var c Collector
	for _, e := range []Event{
		{Kind: EventStarted, Started: &Started{ID: "x"}},
		{Kind: EventReasoning, Text: "th"}, {Kind: EventReasoning, Text: "ought", Signature: "s1"},
		{Kind: EventReasoning, Text: "second"}, {Kind: EventReasoning, Redacted: "r"},
		{Kind: EventText, Text: "Hel"}, {Kind: EventText, Choice: 1, Text: "other"}, {Kind: EventText, Text: "lo"},
		{Kind: EventToolCall, Call: ToolCallDelta{Index: 0, ID: "a", Name: "f", Arguments: `{"x"`}},
		{Kind: EventToolCall, Call: ToolCallDelta{Index: 1, ID: "b", Name: "g"}},
		{Kind: EventToolCall, Call: ToolCallDelta{Index: 0, Arguments: `:1}`}},
		{Kind: EventUsage, Usage: &Usage{Input: 3, Known: true}},
		{Kind: EventFinish, Finish: Finish{Reason: FinishToolCalls}}, {Kind: EventFinish, Choice: 1, Finish: Finish{Reason: FinishStop}},
	} {
		if err := c.Add(&e); err != nil {
			t.Fatal(err)
		}
	}
	want := &Result{
		Started: &Started{ID: "x"}, Usage: Usage{Input: 3, Known: true},
		Choices: []Choice{{
			Text:      "Hello",
			Reasoning: []Part{{Kind: PartReasoning, Text: "thought", Signature: "s1"}, {Kind: PartReasoning, Text: "second"}, {Kind: PartReasoning, Redacted: "r"}},
			ToolCalls: []ToolCall{{ID: "a", Name: "f", Arguments: `{"x":1}`}, {ID: "b", Name: "g"}},
			Finish:    Finish{Reason: FinishToolCalls},
		}, {Text: "other", Finish: Finish{Reason: FinishStop}}},
	}
	got := c.Result()
	for i := range got.Choices {
		got.Choices[i].order = nil
		if !reflect.DeepEqual(got.Choices[i], want.Choices[i]) {
			t.Errorf("choice %d: %+v\nwant %+v", i, got.Choices[i], want.Choices[i])
		}
	}
	if got.Started.ID != "x" || got.Usage != want.Usage || len(got.Choices) != 2 {
		t.Errorf("%+v", got)
	}
	for _, e := range []Event{{Kind: EventText, Choice: MaxChoices}, {Kind: EventText, Choice: -1}, {Kind: EventToolCall, Call: ToolCallDelta{Index: 1}}} {
		if new(Collector).Add(&e) == nil {
			t.Errorf("taken: %+v", e)
		}
	}
}
