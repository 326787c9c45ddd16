package openai

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"iop/execution"
	"iop/nodeagent/adapter"
	family "iop/openai"
)

// TestWhatWasParsedIsSaidAgain: a client's request of this protocol, read by the Edge's parser and said again by the adapter,
// is the same request. Messages of Responses are said in Chat Completions and read again.
func TestWhatWasParsedIsSaidAgain(t *testing.T) {
	for name, c := range map[string]struct {
		parse func([]byte) (*family.Request, *family.Error)
		body  string
	}{
		"chat": {family.ParseChat, `{"messages":[
			{"role":"system","content":"be brief"},
			{"role":"user","name":"ann","content":[{"type":"text","text":"look"},
				{"type":"image_url","image_url":{"url":"data:image/png;base64,aGk=","detail":"low"}},
				{"type":"image_url","image_url":{"url":"https://example.com/a.png"}},
				{"type":"input_audio","input_audio":{"data":"aGk=","format":"mp3"}},
				{"type":"file","file":{"filename":"a.pdf","file_data":"data:application/pdf;base64,aGk="}},
				{"type":"file","file":{"file_id":"file_1"}}]},
			{"role":"assistant","content":"so","reasoning_content":"hm","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]},
			{"role":"tool","tool_call_id":"c1","content":"42"},
			{"role":"assistant","content":"no","refusal":"won't"},
			{"role":"user","content":"why?"}],
			"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"},"strict":true}}],
			"tool_choice":{"type":"function","function":{"name":"f"}},"parallel_tool_calls":false,
			"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object"},"strict":true}},
			"temperature":0.5,"top_p":0.9,"top_k":5,"min_p":0.1,"repetition_penalty":1.1,"seed":7,"stop":["a","b"],"n":2,"max_tokens":9,
			"frequency_penalty":1,"presence_penalty":-1,"logprobs":true,"top_logprobs":2,"logit_bias":{"5":-1},"reasoning_effort":"low",
			"metadata":{"a":"b"},"user":"u","service_tier":"flex","verbosity":"low","chat_template_kwargs":{"x":[1]}}`},
		"responses": {family.ParseResponses, `{"instructions":"be brief","input":[
			{"role":"user","content":[{"type":"input_text","text":"look"},{"type":"input_image","image_url":"data:image/png;base64,aGk="}]},
			{"type":"reasoning","summary":[{"type":"summary_text","text":"hm"}]},
			{"type":"message","role":"assistant","content":[{"type":"output_text","text":"so"}]},
			{"type":"function_call","call_id":"c1","name":"f","arguments":"{}"},
			{"type":"function_call","call_id":"c2","name":"f","arguments":"{}"},
			{"type":"function_call_output","call_id":"c1","output":"42"},
			{"type":"function_call_output","call_id":"c2","output":"43"}],
			"tools":[{"type":"function","name":"f","parameters":{"type":"object"}}],"tool_choice":"required",
			"text":{"format":{"type":"json_object"},"verbosity":"high"},"max_output_tokens":9,"include":["message.output_text.logprobs"],
			"reasoning":{"effort":"high"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			first, refused := c.parse([]byte(c.body))
			if refused != nil {
				t.Fatal(refused)
			}
			said, err := New().Request(first.Input, adapter.Spec{Model: "m"})
			if err != nil {
				t.Fatal(err)
			}
			second, refused := family.ParseChat(said.Body)
			if refused != nil {
				t.Fatalf("%v\n%s", refused, said.Body)
			}
			if got, want := inputJSON(t, second.Input), inputJSON(t, first.Input); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func inputJSON(t *testing.T, in *execution.Input) string {
	t.Helper()
	data, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestWhatWasRenderedIsReadAgain: the streams that the Edge writes of this protocol are ones that the adapter reads, and
// what it read of one is written again as it was.
func TestWhatWasRenderedIsReadAgain(t *testing.T) {
	for _, name := range []string{"text", "empty", "calls", "calls_at_once", "reasoning", "refusal", "annotated", "choices", "usage"} {
		golden, err := os.ReadFile(filepath.Join("..", "..", "..", "openai", "testdata", "rendered", "chat_"+name+".sse"))
		if err != nil {
			t.Fatal(err)
		}
		request, refused := family.ParseChat([]byte(`{"messages":[{"role":"user","content":"hi"}],"n":2}`))
		if refused != nil {
			t.Fatal(refused)
		}
		renderer := request.Render(family.RenderSpec{ID: "abc", Model: "m", Created: time.Unix(1764400000, 0), IncludeUsage: name == "usage"})
		reader := New().Reader(adapter.Spec{Model: "m"})
		var out []byte
		emit := func(e *execution.Event) error {
			out = renderer.Event(out, e)
			return nil
		}
		done, err := reader.Push(golden, emit)
		if err == nil && !done {
			err = reader.End(emit)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if out, refused = renderer.Complete(out, reader.Usage()); refused != nil {
			t.Fatalf("%s: %v", name, refused)
		}
		if string(out) != string(golden) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, out, golden)
		}
	}
}
