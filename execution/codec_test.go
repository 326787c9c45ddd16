package execution

import (
	"reflect"
	"strings"
	"testing"
)

func TestInputTravels(t *testing.T) {
	temperature, n := 0.5, int64(64)
	in := &Input{
		Messages:   []Message{{Role: RoleUser, Parts: []Part{{Kind: PartText, Text: "<&>\u2028"}, {Kind: PartImage, Data: "aGk=", MediaType: "image/png"}}}},
		Tools:      []Tool{{Name: "f", Parameters: []byte(`{"type":"object"}`)}},
		ToolChoice: &ToolChoice{Mode: ToolsNamed, Name: "f"},
		Sampling:   Sampling{Temperature: &temperature, MaxTokens: &n, Stop: []string{"x"}},
		Extensions: map[string]Extension{"ollama": {"keep_alive": []byte(`"5m"`)}},
	}
	data, err := AppendInput(nil, in)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseInput(data)
	if err != nil {
		t.Fatal(err)
	}
	in.Version = InputVersion
	if !reflect.DeepEqual(got, in) {
		t.Errorf("got %+v\nwant %+v", got, in)
	}
}

func TestInputIsRefused(t *testing.T) {
	const good = `{"version":1,"messages":[{"role":"user","parts":[{"kind":"text","text":"x"}]}]}`
	if _, err := ParseInput([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for name, doc := range map[string]string{
		"version":     strings.Replace(good, "1", "2", 1),
		"field":       strings.Replace(good, `"version"`, `"new":1,"version"`, 1),
		"role":        strings.Replace(good, `"user"`, `"boss"`, 1),
		"kind":        strings.Replace(good, `"kind":"text"`, `"kind":"smell"`, 1),
		"no messages": `{"version":1,"messages":[]}`,
		"follows":     good + `{}`,
		"cut":         good[:len(good)-1],
		"choice":      strings.Replace(good, `"version"`, `"tool_choice":{"mode":"some"},"version"`, 1),
		"format":      strings.Replace(good, `"version"`, `"format":{"kind":"xml"},"version"`, 1),
	} {
		if _, err := ParseInput([]byte(doc)); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func FuzzParseInput(f *testing.F) {
	f.Add([]byte(`{"version":1,"messages":[{"role":"user","parts":[{"kind":"text","text":"x"}]}]}`))
	f.Add([]byte(`{"version":1,"messages":[{"role":"assistant","tool_calls":[{"id":"a","name":"f","arguments":"{}"}]}],"sampling":{"max_tokens":5}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		in, err := ParseInput(data)
		if err != nil {
			return
		}
		again, err := AppendInput(nil, in)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseInput(again); err != nil {
			t.Errorf("%v of its own %s", err, again)
		}
	})
}
