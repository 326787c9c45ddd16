package openai

import (
	"encoding/json"
	"testing"

	"iop/execution"
)

// TestAnswersCanBeGivenBack: a client's next turn holds what it was given, as it was given. Each answer must be taken, and
// mean what it said.
func TestAnswersCanBeGivenBack(t *testing.T) {
	for _, a := range answers {
		if a.fails {
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			result := collect(t, a.events)
			for protocol, r := range newRenderers(t, goldenSpec) {
				whole, err := r.Whole(nil, result)
				if err != nil {
					t.Fatal(err)
				}
				var in *execution.Input
				if protocol == "chat" {
					in = mustChat(t, chatTurn(t, whole)).Input
				} else {
					in = mustResponses(t, responsesTurn(t, whole)).Input
				}
				checkGivenBack(t, in, &result.Choices[0], protocol == "responses")
			}
		})
	}
}

// chatTurn makes a request of an answer's message.
func chatTurn(t *testing.T, whole []byte) string {
	t.Helper()
	message := decodeObject(t, whole)["choices"].([]any)[0].(map[string]any)["message"]
	data, err := json.Marshal(map[string]any{"messages": []any{map[string]any{"role": "user", "content": "hi"}, message}})
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// responsesTurn makes a request of an answer's items.
func responsesTurn(t *testing.T, whole []byte) string {
	t.Helper()
	input := append([]any{map[string]any{"role": "user", "content": "hi"}}, decodeObject(t, whole)["output"].([]any)...)
	data, err := json.Marshal(map[string]any{"input": input})
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func checkGivenBack(t *testing.T, in *execution.Input, said *execution.Choice, signed bool) {
	t.Helper()
	if len(in.Messages) != 2 {
		t.Fatalf("%d messages", len(in.Messages))
	}
	m := in.Messages[1]
	var text, refusal string
	var thoughts []execution.Part
	for _, p := range m.Parts {
		switch p.Kind {
		case execution.PartText:
			text += p.Text
		case execution.PartRefusal:
			refusal += p.Text
		case execution.PartReasoning:
			thoughts = append(thoughts, p)
		}
	}
	if text != said.Text || refusal != said.Refusal || len(m.ToolCalls) != len(said.ToolCalls) {
		t.Errorf("got %+v, said %+v", m, said)
	}
	for i, call := range m.ToolCalls {
		want := said.ToolCalls[i]
		if call.Name != want.Name || call.Arguments != want.Arguments || call.ID == "" || want.ID != "" && call.ID != want.ID {
			t.Errorf("call %+v, want %+v", call, want)
		}
	}
	if !signed {
		return // Chat Completions has no place for signatures
	}
	if len(thoughts) != len(said.Reasoning) {
		t.Fatalf("thoughts %+v, want %+v", thoughts, said.Reasoning)
	}
	for i, thought := range thoughts {
		want := said.Reasoning[i]
		if thought.Text != want.Text || thought.Signature != want.Signature || thought.Redacted != want.Redacted {
			t.Errorf("thought %+v, want %+v", thought, want)
		}
	}
}
