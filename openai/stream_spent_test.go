package openai

import (
	"fmt"
	"strings"
	"testing"

	"iop/execution"
)

// logged are chunks of 50 tokens with log probabilities, each of its own shape.
func logged(n int) (stream string) {
	for i := range n {
		stream += fmt.Sprintf(`data: {"choices":[{"index":0,"delta":{"reasoning_content":"%s"},"logprobs":{"content":[{"token":"x","logprob":-0.%d1}]},"finish_reason":null}]}`+"\n\n",
			strings.Repeat("word ", 40), i)
	}
	return stream
}

// TestSpent: what a stream had used when it was cut off, and whether that is the provider's word.
func TestSpent(t *testing.T) {
	const (
		chunk   = `data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}` + "\n\n"
		counted = `data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}],"usage":{"prompt_tokens":5,"completion_tokens":2}}` + "\n\n"
		finish  = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
		usage   = `data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":9}}` + "\n\n"
		failure = `data: {"error":{"message":"a text of many words that nobody asked for","code":500}}` + "\n\n"
		begin   = "event: message_start\n" + `data: {"type":"message_start","message":{"usage":{"input_tokens":7,"output_tokens":1}}}` + "\n\n"
		block   = "event: content_block_delta\n" + `data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"x"}}` + "\n\n"
		ping    = "event: ping\n" + `data: {"type":"ping"}` + "\n\n"
		delta   = `data: {"type":"response.output_text.delta","delta":"x"}` + "\n\n"
		part    = `data: {"type":"response.output_item.added","item":{}}` + "\n\n"
	)
	of := func(input, output int) string {
		return fmt.Sprintf(`,"usage":{"prompt_tokens":%d,"completion_tokens":%d}`, input, output)
	}
	total := func(input, output int) string { return `data: {"choices":[]` + of(input, output) + "}\n\n" }
	ended := func(index int, usage string) string {
		return fmt.Sprintf(`data: {"choices":[{"index":%d,"delta":{},"finish_reason":"stop"}]%s}`+"\n\n", index, usage)
	}
	running := func(index, output int) string {
		return fmt.Sprintf(`data: {"choices":[{"index":%d,"delta":{"content":"x"}}]%s}`+"\n\n", index, of(5, output))
	}
	for _, c := range []struct {
		name   string
		kind   StreamKind
		stream string
		want   execution.Usage
	}{
		{"several answers, each counted as it goes", StreamChat, running(0, 1) + running(1, 1) + running(2, 1) + running(0, 40) + running(2, 30) + running(1, 20), execution.Usage{Input: 5, Output: 90, Known: true}},
		{"one of which has ended", StreamChat, running(0, 40) + running(1, 20) + ended(0, of(5, 41)) + running(1, 30), execution.Usage{Input: 5, Output: 71, Known: true}},
		{"and their sum", StreamChat, running(0, 40) + running(1, 20) + ended(0, of(5, 41)) + ended(1, of(5, 21)) + total(5, 62), execution.Usage{Input: 5, Output: 62, Known: true}},
		{"more than are counted apart", StreamChat, running(0, 40) + running(1<<20, 20) + running(maxShares, 30) + running(maxShares-1, 5), execution.Usage{Input: 5, Output: 40 + 1 + 1 + 5, Known: true}},
		{"an error with the model's text", StreamChat, chunk + `data: {"error":{"message":"no JSON","failed_generation":"` + strings.Repeat("word ", 400) + `"}}` + "\n\n",
			execution.Usage{Output: 1 + 513, Known: true, Estimated: true}},
		{"Ollama's error with it", StreamOllama, `{"message":{"content":"x"},"done":false}` + "\n" + `{"error":"error parsing tool call: raw='` + strings.Repeat("word ", 400) + `'"}` + "\n",
			execution.Usage{Output: 1 + 510, Known: true, Estimated: true}},
		{"Ollama's lines of several tokens", StreamOllama, `{"message":{"content":"` + strings.Repeat("word ", 40) + `"},"done":false}` + "\n", execution.Usage{Output: 50, Known: true, Estimated: true}},
		{"chunks that differ in numbers", StreamChat, logged(40), execution.Usage{Output: 40 * 50, Known: true, Estimated: true}},
		{"the same long chunk", StreamChat, strings.Repeat(strings.Replace(chunk, `"x"`, `"`+strings.Repeat("word ", 40)+`"`, 1), 3), execution.Usage{Output: 150, Known: true, Estimated: true}},
		{"the same with usage", StreamChat, strings.Replace(counted, `"x"`, ` "`+strings.Repeat("word ", 40)+`"`, 1) + strings.Replace(chunk, `"x"`, `"`+strings.Repeat("word ", 40)+`"`, 1),
			execution.Usage{Input: 5, Output: 2 + 50, Known: true, Estimated: true}},
		{"nothing came", StreamChat, "", execution.Usage{}},
		{"comments", StreamChat, ": a\n\n: b\n\n", execution.Usage{}},
		{"an error alone", StreamChat, failure, execution.Usage{}},
		{"two chunks", StreamChat, chunk + chunk, execution.Usage{Output: 2, Known: true, Estimated: true}},
		{"many chunks of one shape", StreamChat, strings.Repeat(chunk, 40), execution.Usage{Output: 40, Known: true, Estimated: true}},
		{"two chunks and an error", StreamChat, chunk + chunk + failure, execution.Usage{Output: 2, Known: true, Estimated: true}},
		{"an end is no output", StreamChat, chunk + finish, execution.Usage{Output: 1, Known: true, Estimated: true}},
		{"the provider counts as it goes", StreamChat, counted + counted, execution.Usage{Input: 5, Output: 2, Known: true}},
		{"it counted until then", StreamChat, counted + chunk, execution.Usage{Input: 5, Output: 3, Known: true, Estimated: true}},
		{"all was reported", StreamChat, chunk + finish + usage, execution.Usage{Input: 5, Output: 9, Known: true}},
		{"several answers of llama.cpp's chat", StreamChat, chunk + ended(0, "") + total(5, 3) + ended(1, "") + total(5, 4), execution.Usage{Input: 5, Output: 7, Known: true}},
		{"its answers to several prompts", StreamChat, chunk + ended(0, of(5, 3)) + chunk + ended(1, of(2, 4)), execution.Usage{Input: 5, Output: 7, Known: true}},
		{"one of them under way", StreamChat, ended(0, of(5, 3)) + strings.Replace(counted, `"index":0`, `"index":1`, 1), execution.Usage{Input: 5, Output: 5, Known: true}},
		{"vLLM's, counted as they go", StreamChat, counted + ended(0, of(5, 3)) + ended(1, of(5, 4)) + total(5, 7), execution.Usage{Input: 5, Output: 7, Known: true}},
		{"several answers and their sum", StreamChat, ended(0, "") + ended(1, "") + ended(2, "") + total(5, 12), execution.Usage{Input: 5, Output: 12, Known: true}},
		{"one answer, reported thrice", StreamChat, ended(0, of(5, 3)) + ended(0, of(5, 3)) + total(5, 3) + total(5, 3), execution.Usage{Input: 5, Output: 3, Known: true}},
		{"reported behind the end", StreamChat, ended(0, of(5, 3)) + ended(0, of(5, 4)), execution.Usage{Input: 5, Output: 4, Known: true}},
		{"half an event", StreamChat, chunk + chunk[:40], execution.Usage{Output: 1, Known: true, Estimated: true}},
		{"Messages", StreamMessages, begin + ping + block + block, execution.Usage{Input: 7, Output: 3, Known: true, Estimated: true}},
		{"Messages of several tokens", StreamMessages, begin + strings.Replace(block, `"x"`, `"`+strings.Repeat("word ", 40)+`"`, 1) + block, execution.Usage{Input: 7, Output: 1 + 50 + 1, Known: true, Estimated: true}},
		{"Responses of several tokens", StreamResponses, strings.Replace(delta, `"x"`, `"`+strings.Repeat("word ", 40)+`"`, 1), execution.Usage{Output: 50, Known: true, Estimated: true}},
		{"chunks of several tokens", StreamChat, chunk + strings.Replace(chunk, `"x"`, `"y"`, 1) + strings.Repeat(strings.Replace(chunk, `"x"`, `"`+strings.Repeat("word ", 40)+`"`, 1), 3),
			execution.Usage{Output: 2 + 150, Known: true, Estimated: true}},
		{"Messages, before any output", StreamMessages, begin + ping, execution.Usage{Input: 7, Output: 1, Known: true}},
		{"Responses", StreamResponses, part + delta + delta, execution.Usage{Output: 2, Known: true, Estimated: true}},
		{"Ollama", StreamOllama, `{"message":{"content":"x"}}` + "\n" + `{"error":"gone"}` + "\n", execution.Usage{Output: 1, Known: true, Estimated: true}},
		{"an image", StreamMedia, `data: {"type":"image_generation.partial_image"}` + "\n\n", execution.Usage{}},
	} {
		for _, n := range []int{1, 7, len(c.stream) + 1} {
			f := NewStreamFilter(c.kind, true)
			for s := c.stream; s != ""; s = s[min(n, len(s)):] {
				f.Push([]byte(s[:min(n, len(s))]))
			}
			if got := f.Spent(); got != c.want {
				t.Errorf("%s, pieces of %d: %+v, want %+v", c.name, n, got, c.want)
			}
		}
	}
}

// TestNothingFollowsAnError: whatever a provider still sends after its error, in whatever pieces, is not passed on; of a
// Responses stream the end is, which says the same.
func TestNothingFollowsAnError(t *testing.T) {
	for _, c := range []struct {
		name              string
		kind              StreamKind
		before, failure   string
		after             string
		passed            string
		complete, visible bool
	}{
		{"vLLM's [DONE]", StreamChat, "data: {\"choices\":[{}]}\n\n", "data: {\"error\":{\"message\":\"boom\"}}\n\n", "data: [DONE]\n\n", "", false, true},
		{"more content", StreamChat, "data: {\"choices\":[{}]}\r\n\r\n", "data: {\"error\":{\"message\":\"boom\"}}\r\n\r\n", "data: {\"choices\":[{\"finish_reason\":\"stop\"}]}\r\n\r\n", "", false, true},
		{"Messages", StreamMessages, "data: {\"type\":\"ping\"}\n\n", "event: error\ndata: {\"type\":\"error\",\"error\":{\"message\":\"x\"}}\n\n", "data: {\"type\":\"message_stop\"}\n\n", "", false, true},
		{"Ollama", StreamOllama, "{\"message\":{}}\n", "{\"error\":\"boom\"}\n", "{\"done\":true}\n", "", false, true},
		{"Responses", StreamResponses, "data: {\"type\":\"response.created\"}\n\n", "data: {\"type\":\"error\",\"message\":\"x\"}\n\n",
			"data: {\"type\":\"response.failed\",\"response\":{}}\n\n", "data: {\"type\":\"response.failed\",\"response\":{}}\n\n", true, true},
	} {
		stream := c.before + c.failure + c.after
		for n := 1; n <= len(stream); n++ {
			f := NewStreamFilter(c.kind, false)
			out := through(f, []byte(stream), n)
			if want := c.before + c.failure + c.passed; string(out) != want {
				t.Fatalf("%s, pieces of %d: %q, want %q", c.name, n, out, want)
			}
			if e := f.ErrorEvent(); e == nil || e.Visible != c.visible || f.Complete() != c.complete || !f.AtBorder() {
				t.Fatalf("%s, pieces of %d: error %+v, complete %t, at a border %t", c.name, n, e, f.Complete(), f.AtBorder())
			}
		}
	}
}

// TestSpentOnOtherTexts: the model's text counts by whatever name it comes, also where chunks differ in numbers.
func TestSpentOnOtherTexts(t *testing.T) {
	for _, name := range []string{"content", "refusal", "input", "arguments", "summary", "transcript", "thinking"} {
		f := NewStreamFilter(StreamChat, false)
		f.Push([]byte(strings.ReplaceAll(logged(40), "reasoning_content", name)))
		if got := f.Spent().Output; got != 40*50 {
			t.Errorf("%s: %d tokens of %d", name, got, 40*50)
		}
	}
}
