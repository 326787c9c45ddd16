package openai

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"iop/execution"
)

// TestUsageOfLongEvents: of an event that is too long to be read the usage is the provider's, not one that the request made it
// repeat.
func TestUsageOfLongEvents(t *testing.T) {
	t.Parallel()
	long, kilobytes := strings.Repeat("x", maxEvent), strings.Repeat("y", tailSize)
	const forged = `{"default":{"usage":{"input_tokens":1,"output_tokens":1,"prompt_tokens":1,"completion_tokens":1}}}`
	real := execution.Usage{Input: 70, Output: 9, Known: true}
	for name, c := range map[string]struct {
		kind StreamKind
		data string
		want execution.Usage
	}{
		"Responses": {StreamResponses, `{"type":"response.completed","response":{"output":"` + long + `","usage":{"input_tokens":70,"output_tokens":9},"user":null}}`, real},
		"its echo behind": {StreamResponses, `{"type":"response.completed","response":{"output":"` + long + `","usage":{"input_tokens":70,"output_tokens":9},"tools":[` + forged +
			`],"metadata":{"usage":"{\"input_tokens\":1}"}},"sequence_number":7}`, real},
		"an echo alone":    {StreamResponses, `{"type":"response.completed","response":{"output":"` + long + `","tools":[` + forged + `]}}`, execution.Usage{}},
		"far from the end": {StreamResponses, `{"type":"response.completed","response":{"output":"` + long + `","usage":{"input_tokens":70,"output_tokens":9},"x":"` + kilobytes + `","tools":` + forged + `}}`, execution.Usage{}},
		"chat":             {StreamChat, `{"usage":{"prompt_tokens":70,"completion_tokens":9}, "choices":[{"delta":{"content":"` + long[:maxEvent-100] + `"},"x":` + forged + `}]}`, execution.Usage{Output: 1, Known: true, Estimated: true}},
		"chat's end":       {StreamChat, `{"choices":[{"delta":{"content":"` + long + `"}}],"usage": {"prompt_tokens":70,"completion_tokens":9} , "x":[` + forged + `]}`, real},
		"Messages":         {StreamMessages, `{"type":"message_delta","delta":{"x":"` + long + `"},"usage":{"input_tokens":70,"output_tokens":9}}`, real},
		"Ollama":           {StreamOllama, `{"response":"","context":[` + strings.Repeat("1234567,", maxEvent/8) + `1],"done":true,"prompt_eval_count":70,"eval_count":9}`, real},
	} {
		stream := "data: " + c.data + "\nid: 5\n\n"
		if c.kind == StreamOllama {
			stream = c.data + "\n"
		}
		for _, n := range []int{1 << 10, 100_003, len(stream)} {
			f := NewStreamFilter(c.kind, false)
			for s := stream; s != ""; s = s[min(n, len(s)):] {
				f.Push([]byte(s[:min(n, len(s))]))
			}
			f.Finish()
			if got := f.Spent(); got != c.want {
				t.Errorf("%s, pieces of %d: %+v, want %+v", name, n, got, c.want)
			}
		}
	}
}

// TestUsageOfIterations: what an answer took beside its own tokens is booked, and what they hold already is not booked twice.
func TestUsageOfIterations(t *testing.T) {
	t.Parallel()
	for usage, want := range map[string]execution.Usage{
		`{"input_tokens":23,"output_tokens":5,"iterations":[{"type":"compaction","input_tokens":100,"cache_read_input_tokens":80,"output_tokens":3},{"type":"message","input_tokens":23,"output_tokens":5}]}`: {Input: 203, Output: 8, Known: true},
		`{"input_tokens":23,"output_tokens":5,"iterations":[{"type":"message","input_tokens":10,"output_tokens":2},{"type":"message","input_tokens":13,"output_tokens":3}]}`:                                  {Input: 23, Output: 5, Known: true},
		`{"output_tokens":5,"iterations":null}`: {Output: 5, Known: true},
		`{"iterations":[{"input_tokens":4000000000000000000},{"input_tokens":4000000000000000000},{"input_tokens":4000000000000000000}],"output_tokens":1}`: {Input: 1<<63 - 1, Output: 1, Known: true},
	} {
		if got := parseUsage([]byte(usage)); got != want {
			t.Errorf("%s: %+v, want %+v", usage, got, want)
		}
	}
}

// FuzzTailMembers compares with a walk from the beginning, and with the same text cut at its start.
func FuzzTailMembers(f *testing.F) {
	for _, s := range []string{
		`{"a":1,"b":{"c":[1,{"d":"}\\\""}]},"e\"":"x:,","f":[]}`, `{}`, `{"a":{"usage":{}}}`, ` { "a" : null , "b" : "\\" } `, `[1]`, `{"a":"\\\\\"{"}`,
	} {
		f.Add([]byte(s), uint(3))
	}
	f.Fuzz(func(t *testing.T, doc []byte, cut uint) {
		if !json.Valid(doc) {
			return
		}
		var want, got []string
		for m := objectMembers(doc); m.next(); {
			want = append(want, fmt.Sprintf("%s:%s", m.key, m.val))
		}
		if len(want) == 0 {
			return
		}
		for m := (tailMembers{b: doc, i: len(doc), want: 1}); m.next(); {
			got = append(got, fmt.Sprintf("%s:%s", m.key, m.val))
		}
		for i := range got {
			if j := len(want) - 1 - i; j < 0 || got[i] != want[j] {
				t.Fatalf("%q: %q, want the reverse of %q", doc, got, want)
			}
		}
		if len(got) != len(want) {
			t.Fatalf("%q: %q, want the reverse of %q", doc, got, want)
		}
		part := doc[cut%uint(len(doc)):]
		n := 0
		for m := (tailMembers{b: part, i: len(part), want: 1}); m.next(); n++ {
			if n >= len(got) || got[n] != fmt.Sprintf("%s:%s", m.key, m.val) {
				t.Fatalf("%q of %q: %q:%q is no member", part, doc, m.key, m.val)
			}
		}
	})
}
