package openai

import (
	"encoding/json"
	"strings"
	"testing"
)

// streamEvent is one event of a stream.
type streamEvent struct {
	name string // of its event line, or empty
	data string
}

// object decodes the event's data.
func (e streamEvent) object(t *testing.T) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(e.data), &v); err != nil {
		t.Fatalf("%v: %s", err, e.data)
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
