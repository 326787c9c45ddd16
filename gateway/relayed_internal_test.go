package gateway

import (
	"strings"
	"testing"

	"iop/openai"
)

// TestTokensOfWhatWasRelayed: never fewer than events were delivered, and text counts however it was put into events.
func TestTokensOfWhatWasRelayed(t *testing.T) {
	const frame = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":"`
	event := func(text string) string { return frame + text + "\"}}]}\n\n" }
	message := func(text string) string {
		return "event: content_block_delta\ndata: {\"delta\":{\"type\":\"text_delta\",\"text\":\"" + text + "\"}}\n\n"
	}
	line := func(text string) string { return `{"model":"m","message":{"content":"` + text + "\"}}\n" }
	role := event(`","role":"assistant`)
	long := strings.Repeat("word ", 40) // 200 bytes: 50 tokens
	for name, test := range map[string]struct {
		kind        openai.StreamKind
		pieces      []string
		most        int64
		least, best int64
	}{
		"an event each":         {openai.StreamChat, []string{role, event("one"), event("two")}, 0, 3, 3},
		"together":              {openai.StreamChat, []string{role + event("one") + event("two")}, 0, 3, 3},
		"cut in an event":       {openai.StreamChat, []string{role, event("one"), frame}, 0, 2, 4},
		"several tokens each":   {openai.StreamChat, []string{role, event(long), event(long), event(long)}, 0, 130, 160},
		"no more than allowed":  {openai.StreamChat, []string{role, event(long), event(long), event(long)}, 20, 20, 20},
		"more events than that": {openai.StreamChat, []string{role, event("a"), event("b")}, 1, 3, 3},
		"behind a comment":      {openai.StreamChat, []string{": wait\n\n", role, event("one"), event("two")}, 0, 3, 4},
		"messages":              {openai.StreamMessages, []string{message("a"), message("b")}, 0, 2, 2},
		"lines":                 {openai.StreamOllama, []string{line("a"), line("b") + line("c")}, 0, 3, 3},
		"lines with much":       {openai.StreamOllama, []string{line("a"), line(long)}, 0, 48, 52},
		"an echo of the prompt": {openai.StreamResponses, []string{"event: a\ndata: " + strings.Repeat("x", 4096) + "\n\n", message(long)}, 0, 700, 1100},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var r relayed
			for _, piece := range test.pieces {
				r.note([]byte(piece))
			}
			if n := r.output(test.kind, test.most); n < test.least || n > test.best {
				t.Errorf("%d tokens, want %d to %d", n, test.least, test.best)
			}
		})
	}
	if n := (&relayed{bytes: 400}).output(openai.StreamChat, 0); n != 100 {
		t.Errorf("of a document of 400 bytes: %d", n)
	}
}
