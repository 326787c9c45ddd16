package openai

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"iop/execution"
)

// golden are streams as engines write them, and what must be read from each.
var golden = []struct {
	file     string
	kind     StreamKind
	events   int
	complete bool
	done     bool
	usage    execution.Usage
	usageOn  bool // it has a usage-only chunk
	failure  *StreamError
}{
	{file: "openai.sse", kind: StreamChat, events: 15, complete: true, done: true, usageOn: true,
		usage: execution.Usage{Input: 31, Output: 44, Cached: 16, Reasoning: 20, Known: true}},
	{file: "ollama.sse", kind: StreamChat, events: 12, complete: true, done: true, usageOn: true,
		usage: execution.Usage{Input: 29, Output: 12, Known: true}},
	{file: "ollama_died.sse", kind: StreamChat, events: 6},
	{file: "llamacpp.sse", kind: StreamChat, events: 10, complete: true, done: true,
		usage: execution.Usage{Input: 17, Output: 9, Known: true}},
	{file: "llamacpp_overflow.sse", kind: StreamChat, events: 1,
		failure: &StreamError{First: true, Err: &Error{Status: 400, Type: "invalid_request_error", Code: "invalid_request_error",
			Message: "the request exceeds the available context size, try increasing it", NoRetry: true}}},
	{file: "vllm_tools.sse", kind: StreamChat, events: 15, complete: true, done: true, usageOn: true,
		usage: execution.Usage{Input: 190, Output: 43, Cached: 176, Known: true}},
	{file: "vllm_error.sse", kind: StreamChat, events: 5,
		failure: &StreamError{Visible: true, Err: &Error{Status: 502, Type: "server_error", Code: "provider_error",
			Message: "EngineCore encountered an issue. See stack trace for the root cause."}}},
	{file: "azure.sse", kind: StreamChat, events: 7, complete: true, done: true, usageOn: true,
		usage: execution.Usage{Input: 11, Output: 5, Known: true}},
	{file: "crlf_comments.sse", kind: StreamChat, events: 5, complete: true, done: true, usageOn: true,
		usage: execution.Usage{Input: 190, Output: 43, Cached: 176, Known: true}},
	{file: "completions_multiline.sse", kind: StreamChat, events: 3, complete: true, done: true,
		usage: execution.Usage{Input: 3, Output: 3, Known: true}},
	{file: "responses.sse", kind: StreamResponses, events: 12, complete: true,
		usage: execution.Usage{Input: 52, Output: 70, Cached: 32, Reasoning: 64, Known: true}},
	{file: "responses_died.sse", kind: StreamResponses, events: 11},
	{file: "responses_quota.sse", kind: StreamResponses, events: 4, complete: true,
		failure: &StreamError{Visible: true, Err: &Error{Status: 502, Type: "server_error", Code: "provider_error",
			Message: "The plan's quota is used up."}}},
	{file: "messages.sse", kind: StreamMessages, events: 9, complete: true,
		usage: execution.Usage{Input: 2109, Output: 14, Cached: 2000, Known: true}},
	{file: "messages_overloaded.sse", kind: StreamMessages, events: 8,
		usage: execution.Usage{Input: 2109, Output: 1, Cached: 2000, Known: true},
		failure: &StreamError{Visible: true, Err: &Error{Status: 502, Type: "server_error", Code: "provider_error",
			Message: "Overloaded"}}},
	{file: "ollama.ndjson", kind: StreamOllama, events: 4, complete: true,
		usage: execution.Usage{Input: 23, Output: 6, Known: true}},
	{file: "ollama_error.ndjson", kind: StreamOllama, events: 3,
		failure: &StreamError{Visible: true, Err: &Error{Status: 502, Type: "server_error", Code: "provider_error",
			Message: "an error was encountered while running the model: unexpected EOF"}}},
	{file: "image.sse", kind: StreamMedia, events: 2, complete: true,
		usage: execution.Usage{Input: 12, Output: 272, Known: true}},
}

func readStream(t testing.TB, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "streams", file))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// through pushes the stream in pieces of n bytes and returns all that came out.
func through(f *StreamFilter, stream []byte, n int) []byte {
	var out []byte
	for len(stream) > 0 {
		k := min(n, len(stream))
		piece := bytes.Clone(stream[:k]) // so that nothing may be kept of it
		got, _ := f.Push(piece)
		out = append(out, got...)
		for i := range piece {
			piece[i] = '#'
		}
		stream = stream[k:]
	}
	return append(out, f.Finish()...)
}

// withoutUsageChunk removes the golden stream's last chunk before [DONE].
func withoutUsageChunk(stream []byte) []byte {
	s := string(stream)
	done := strings.Index(s, "data: [DONE]")
	eol := "\n"
	if strings.Contains(s, "\r\n") {
		eol = "\r\n"
	}
	start := strings.LastIndex(s[:done-len(eol+eol)], eol+eol) + len(eol+eol)
	return []byte(s[:start] + s[done:])
}

func TestGoldenStreams(t *testing.T) {
	for _, g := range golden {
		stream := readStream(t, g.file)
		for _, withhold := range []bool{false, true} {
			want := stream
			if withhold && g.usageOn {
				want = withoutUsageChunk(stream)
			}
			if g.failure != nil && g.kind == StreamChat {
				want = want[:bytes.Index(want, []byte("data: [DONE]"))] // nothing passes after an error
			}
			for n := 1; n <= len(stream); n += 1 + n/24 {
				f := NewStreamFilter(g.kind, withhold)
				if out := through(f, stream, n); !bytes.Equal(out, want) {
					t.Fatalf("%s, withhold %t, pieces of %d: forwarded\n%q\nwant\n%q", g.file, withhold, n, out, want)
				}
				checkReading(t, fmt.Sprintf("%s, withhold %t, pieces of %d", g.file, withhold, n), f, g.events, g.complete, g.done, g.usage, g.failure)
			}
		}
	}
}

func checkReading(t *testing.T, what string, f *StreamFilter, events int, complete, done bool, usage execution.Usage, failure *StreamError) {
	t.Helper()
	if f.Events() != events || f.Complete() != complete || f.SawDone() != done || f.Usage() != usage {
		t.Fatalf("%s: events %d complete %t done %t usage %+v; want %d %t %t %+v",
			what, f.Events(), f.Complete(), f.SawDone(), f.Usage(), events, complete, done, usage)
	}
	got := f.ErrorEvent()
	switch {
	case (got == nil) != (failure == nil):
		t.Fatalf("%s: error event %+v, want %+v", what, got, failure)
	case got != nil && (got.First != failure.First || got.Visible != failure.Visible || *got.Err != *failure.Err):
		t.Fatalf("%s: error event %+v (%+v), want %+v (%+v)", what, got, got.Err, failure, failure.Err)
	}
}

// TestPushAliases holds the filter to its promise: what is not withheld is not copied.
func TestPushAliases(t *testing.T) {
	stream := readStream(t, "openai.sse")
	f := NewStreamFilter(StreamChat, false)
	out, border := f.Push(stream)
	if len(out) != len(stream) || &out[0] != &stream[0] || !border {
		t.Fatalf("a whole stream must come back as the same memory, at a border (%t)", border)
	}
	f = NewStreamFilter(StreamChat, true)
	first := bytes.Index(stream, []byte("\n\n")) + 2
	if out, _ = f.Push(stream[:first]); &out[0] != &stream[0] {
		t.Fatal("withholding must not copy whole events either")
	}
	cutAt := first + bytes.Index(stream[first:], []byte(`"choices":[{`)) + len(`"choices":[{`)
	if out, border = f.Push(stream[first:cutAt]); &out[0] != &stream[first] || border {
		t.Fatal("a chunk that has choices must pass at once, without a copy, and not as a border")
	}
}

// borderAt pushes the pieces and returns the last answer about the border.
func borderAt(f *StreamFilter, pieces ...string) (out string, border bool) {
	for _, p := range pieces {
		var o []byte
		o, border = f.Push([]byte(p))
		out += string(o)
	}
	return out, border
}

func TestBorders(t *testing.T) {
	const chunk = `data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}`
	for _, c := range []struct {
		name     string
		withhold bool
		pieces   []string
		out      string
		border   bool
	}{
		{"nothing yet", false, nil, "", false}, // no push, no answer
		{"whole event", false, []string{chunk + "\n\n"}, chunk + "\n\n", true},
		{"line without blank", false, []string{chunk + "\n"}, chunk + "\n", false},
		{"blank in the next push", false, []string{chunk + "\n", "\n"}, chunk + "\n\n", true},
		{"CRLF", false, []string{chunk + "\r\n\r\n"}, chunk + "\r\n\r\n", true},
		{"between CR and LF of the blank line", false, []string{chunk + "\r\n\r"}, chunk + "\r\n\r", false},
		{"after that LF", false, []string{chunk + "\r\n\r", "\n"}, chunk + "\r\n\r\n", true},
		{"between CR and LF of the data line", false, []string{chunk + "\r", "\n\r\n"}, chunk + "\r\n\r\n", true},
		{"lone CRs", false, []string{chunk + "\r\r"}, chunk + "\r\r", true},
		{"lone CRs apart", false, []string{chunk + "\r", "\r"}, chunk + "\r\r", true},
		{"comment line", false, []string{": hi\n"}, ": hi\n", true},
		{"half a comment", false, []string{": h"}, ": h", false},
		{"rest of it", false, []string{": h", "i\n"}, ": hi\n", true},
		{"a comment inside an event is no border", false, []string{chunk + "\n: hi\n"}, chunk + "\n: hi\n", false},
		{"half an event after a whole one", false, []string{chunk + "\n\n" + chunk[:70]}, chunk + "\n\n" + chunk[:70], false},
		{"the first event is held", false, []string{chunk[:15]}, "", true},
		{"later ones are not", false, []string{chunk + "\n\n", chunk[:15]}, chunk + "\n\n" + chunk[:15], false},
		{"they are while usage is withheld", true, []string{chunk + "\n\n", chunk[:15]}, chunk + "\n\n", true},
		{"until they have choices", true, []string{chunk + "\n\n", chunk[:15], chunk[15:40]}, chunk + "\n\n" + chunk[:40], false},
		{"a dropped event leaves a border", true, []string{`data: {"choices":[],"usage":{"prompt_tokens":1}}` + "\r\n\r"}, "", true},
		{"its LF goes with it", true, []string{`data: {"choices":[],"usage":{"prompt_tokens":1}}` + "\r\n\r", "\n" + chunk + "\n\n"}, chunk + "\n\n", true},
		{"no blank line after [DONE]", false, []string{chunk + "\n\ndata: [DONE]\n"}, chunk + "\n\ndata: [DONE]\n\n", true},
		{"CR after [DONE]", false, []string{chunk + "\n\ndata: [DONE]\r"}, chunk + "\n\ndata: [DONE]\r\n\r\n", true},
		{"bytes after [DONE]", false, []string{chunk + "\n\ndata: [DONE]\n\n" + chunk + "\n\n", chunk}, chunk + "\n\ndata: [DONE]\n\n", true},
	} {
		out, border := borderAt(NewStreamFilter(StreamChat, c.withhold), c.pieces...)
		if out != c.out || border != c.border {
			t.Errorf("%s: forwarded %q at border %t, want %q %t", c.name, out, border, c.out, c.border)
		}
	}
}

func TestFinish(t *testing.T) {
	const chunk = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
	const usage = `data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2}}`
	for _, c := range []struct {
		name, in, out string
		complete      bool
		border        bool
	}{
		{"whole but for the blank line", chunk + "\n", chunk + "\n\n", true, true},
		{"whole but for both line ends", chunk, chunk + "\n\n", true, true},
		{"CR", chunk + "\r", chunk + "\r\n\r\n", true, true},
		{"half a chunk", chunk[:40], chunk[:40], false, false},
		{"half a line after a whole event", chunk + "\n\nda", chunk + "\n\nda", true, false},
		{"usage chunk without an end is withheld", chunk + "\n\n" + usage, chunk + "\n\n", true, true},
		{"[DONE] without an end", "data: [DONE]", "data: [DONE]\n\n", true, true},
		{"half a comment", ": pi", ": pi", false, false},
		{"empty", "", "", false, true},
		{"old error field without an end", `error: {"code":400,"message":"no"}`, `error: {"code":400,"message":"no"}` + "\n\n", false, true},
	} {
		for n := 1; n <= len(c.in)+1; n++ {
			f := NewStreamFilter(StreamChat, true)
			out := through(f, []byte(c.in), n)
			if string(out) != c.out || f.Complete() != c.complete || f.AtBorder() != c.border {
				t.Fatalf("%s, pieces of %d: forwarded %q complete %t border %t; want %q %t %t",
					c.name, n, out, f.Complete(), f.AtBorder(), c.out, c.complete, c.border)
			}
		}
	}
}

func TestErrorEvents(t *testing.T) {
	for _, c := range []struct {
		name   string
		kind   StreamKind
		stream string
		status int
		first  bool
		seen   bool
	}{
		{"object, first", StreamChat, `data: {"error":{"message":"too long","type":"BadRequestError","code":400}}`, 400, true, true},
		{"code in digits", StreamChat, `data: {"error":{"message":"busy","code":"429"}}`, 429, true, true},
		{"the operator's credentials", StreamChat, `data: {"error":{"message":"key sk-123 is bad","code":401}}`, 502, true, true},
		{"text", StreamChat, `data: {"error":"boom"}`, 502, true, true},
		{"behind a byte order mark", StreamChat, "\ufeff" + `data: {"error":"boom"}`, 502, true, true},
		{"after a comment", StreamChat, ": hello\n\n" + `data: {"error":"boom"}`, 502, true, true},
		{"second", StreamChat, `data: {"choices":[{"finish_reason":null}]}` + "\n\n" + `data: {"error":{"message":"x","code":500}}`, 502, false, true},
		{"event: error, flat", StreamChat, "event: error\n" + `data: {"message":"x","code":503}`, 502, true, false},
		{"event: error, nested", StreamChat, "event: error\n" + `data: {"error":{"message":"x"}}`, 502, true, true},
		{"field", StreamChat, `error: {"code":500,"message":"slot unavailable"}`, 502, true, false},
		{"Responses, untyped", StreamResponses, `data: {"error":{"message":"x","code":400}}`, 400, true, true},
		{"Responses, flat", StreamResponses, "event: error\n" + `data: {"type":"error","code":"server_error","message":"x","param":null,"sequence_number":3}`, 502, true, true},
		{"Messages", StreamMessages, "event: error\n" + `data: {"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}`, 429, true, true},
		{"Ollama", StreamOllama, `{"error":"model runner has stopped"}`, 502, true, true},
	} {
		f := NewStreamFilter(c.kind, false)
		through(f, []byte(c.stream+"\n\n"), 7)
		e := f.ErrorEvent()
		if e == nil {
			t.Errorf("%s: no error seen", c.name)
			continue
		}
		if e.Err.Status != c.status || e.First != c.first || e.Visible != c.seen {
			t.Errorf("%s: %+v %+v", c.name, e, e.Err)
		}
		if strings.Contains(e.Err.Message, "sk-123") {
			t.Errorf("%s: a provider's credential text reached the client: %q", c.name, e.Err.Message)
		}
	}
	for _, harmless := range []string{
		`data: {"error":null,"choices":[{"finish_reason":null}]}`,
		`data: {"choices":[{"delta":{"content":"\"error\":{\"code\":400}"},"finish_reason":null}]}`,
		`data: {"choices":[{"delta":{"content":"error"},"finish_reason":null}]}`,
		`data: {"choices":[{"delta":{"content":"x"},"finish_reason":""}]}`,
		`data: {"choices":[{"finish_reason":"stop"}],"cut off`,
		`data: {"choices":[{"delta":{"error":{"code":400}},"finish_reason":null}]}`,
	} {
		f := NewStreamFilter(StreamChat, false)
		through(f, []byte(harmless+"\n\n"), 1000)
		if f.ErrorEvent() != nil || f.Complete() || f.Usage().Known {
			t.Errorf("%s: read as %+v, complete %t, usage %+v", harmless, f.ErrorEvent(), f.Complete(), f.Usage())
		}
	}
}

func TestUsageOnlyChunks(t *testing.T) {
	for stream, dropped := range map[string]bool{
		`data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}`:                            true,
		`data: {"choices": [], "usage": {"prompt_tokens": 1}}`:                                              true,
		`data: {"usage":{"prompt_tokens":1},"choices":null}`:                                                true,
		"id: 7\nevent: message\n" + `data: {"choices":[],"usage":{"prompt_tokens":1}}`:                      true,
		`data: {"choices":[],` + "\n" + `data: "usage":{"prompt_tokens":1}}`:                                true,
		`data: {"choices":[{"index":0}],"choices":[],"usage":{"prompt_tokens":1}}`:                          false,
		`data: {"choices":[],"usage":{"prompt_tokens":1}} trailing`:                                         false,
		`data: {"choices":[],"usage":null}`:                                                                 false,
		`data: {"choices":[],"prompt_filter_results":[]}`:                                                   false,
		`data: {"usage":{"prompt_tokens":1}}`:                                                               false,
		`data: {"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}`:                          false,
		`data: {"choices":[],"usage":{"prompt_tokens":1},"error":{"message":"x"}}`:                          false,
		`data: {"choices":[],"usage":{"prompt_tokens":1},"pad":"` + strings.Repeat("x", maxHeld) + `"}`:     false,
		`data: {"choices":[],"usage":{"prompt_tokens":1},"pad":"` + strings.Repeat("x", maxHeld-200) + `"}`: true,
	} {
		for _, n := range []int{1, 3, 4096, 1 << 20} {
			if n < 3 && len(stream) > 4096 {
				continue
			}
			f := NewStreamFilter(StreamChat, true)
			out := through(f, []byte(stream+"\n\n"), n)
			if (len(out) == 0) != dropped || (!dropped && string(out) != stream+"\n\n") {
				t.Errorf("%.90s, pieces of %d: %d of %d bytes forwarded", stream, n, len(out), len(stream)+2)
			}
		}
	}
}

// TestLargeEvents: an event of any size passes, memory stays bounded, and usage is found where it ends the event.
func TestLargeEvents(t *testing.T) {
	text := strings.Repeat(`a\n`, 100_000)
	usage := `"usage":{"prompt_tokens":8,"completion_tokens":3}`
	for _, c := range []struct {
		name, stream string
		kind         StreamKind
	}{
		{"0.6 MB, usage last", `data: {"choices":[{"delta":{"content":"` + strings.Repeat(text, 3) + `"},"finish_reason":"stop"}],` + usage + "}\n\n", StreamChat},
		{"0.6 MB, usage first", `data: {` + usage + `,"choices":[{"delta":{"content":"` + strings.Repeat(text, 3) + `"},"finish_reason":"stop"}]}` + "\n\n", StreamChat},
		{"2 MB, usage last", `data: {"choices":[{"delta":{"content":"` + strings.Repeat(text, 10) + `"},"finish_reason":"stop"}],` + usage + "}\n\n", StreamChat},
		{"2 MB Responses", "event: response.completed\n" + `data: {"response":{"output":"` + strings.Repeat(text, 10) + `",` + usage + "}}\n\n", StreamResponses},
		{"2 MB image", `data: {"type":"image_edit.completed","b64_json":"` + strings.Repeat(text, 10) + `",` + usage + "}\n\n", StreamMedia},
	} {
		for _, n := range []int{1000, 32 << 10, 1 << 20, len(c.stream)} {
			f := NewStreamFilter(c.kind, true)
			in := []byte(c.stream)
			for at := 0; at < len(in); at += n {
				out, _ := f.Push(in[at:min(len(in), at+n)])
				if at > maxHeld && len(out) == 0 {
					t.Fatalf("%s, pieces of %d: held at %d", c.name, n, at)
				}
				if cap(f.buf)+cap(f.out) > 4*maxEvent {
					t.Fatalf("%s, pieces of %d: keeps %d bytes", c.name, n, cap(f.buf)+cap(f.out))
				}
			}
			if f.Usage() != (execution.Usage{Input: 8, Output: 3, Known: true}) || !f.Complete() || f.Events() != 1 {
				t.Errorf("%s, pieces of %d: usage %+v, complete %t, events %d", c.name, n, f.Usage(), f.Complete(), f.Events())
			}
			if cap(f.buf) > keepCapacity {
				t.Errorf("%s, pieces of %d: %d bytes kept after the event", c.name, n, cap(f.buf))
			}
		}
	}
}

// TestLargeEventLines cuts events of several long lines, some pushes far larger than what was held before them.
func TestLargeEventLines(t *testing.T) {
	line := "data: " + strings.Repeat("x", 700_000)
	stream := line + "\n" + line + line + "\ndata: {}\n\n" + "data: " + strings.Repeat("y", 3<<20) + "\n\ndata: {}\n\n"
	for _, pieces := range [][]int{{10, len(stream) - 10}, {10, 1 << 21, len(stream) - 10 - 1<<21}, {700_000, 700_000, 700_000, len(stream) - 2_100_000}} {
		f := NewStreamFilter(StreamChat, true)
		var out []byte
		rest := []byte(stream)
		for _, n := range pieces {
			got, _ := f.Push(rest[:n])
			out, rest = append(out, got...), rest[n:]
		}
		if out = append(out, f.Finish()...); string(out) != stream || f.Events() != 3 {
			t.Errorf("pieces %v: %d of %d bytes, %d events", pieces, len(out), len(stream), f.Events())
		}
	}
}

// TestShape: what looks like the last dull chunk is dull, and only that.
func TestShape(t *testing.T) {
	chunk := func(text, finish string) []byte {
		return []byte(`data: {"id":"c1","choices":[{"index":0,"delta":{"content":"` + text + `"},"finish_reason":` + finish + "}]}\n\n")
	}
	f := NewStreamFilter(StreamChat, false)
	for i := range 20 {
		f.Push(chunk(fmt.Sprint("word ", i), "null"))
	}
	if !f.dull.match(chunk(`line\n`, "null")[6 : len(chunk(`line\n`, "null"))-2]) {
		t.Error("an ordinary chunk is not recognised by its shape")
	}
	for _, c := range [][]byte{chunk("x", `"stop"`), chunk(`x"},"finish_reason":"stop"},{"a":{"b":"`, "null"), chunk(`x\`, "null")} {
		if f.dull.match(c[6 : len(c)-2]) {
			t.Errorf("taken for an ordinary chunk: %s", c)
		}
	}
	if f.dull.match([]byte(string(f.dull.last) + "{}")) {
		t.Error("bytes behind the end are not looked at")
	}
	var names shape
	names.learn([]byte(`{"usagX":{"total_tokens":1}}`))
	names.learn([]byte(`{"usagY":{"total_tokens":1}}`))
	if names.match([]byte(`{"usage":{"total_tokens":1}}`)) {
		t.Error("a member's name was taken for text that may differ")
	}
	if f.Push(chunk(`x"},"finish_reason":"stop"},{"a":{"b":"`, "null")); !f.Complete() {
		t.Error("a finish_reason in the place of text was missed")
	}
}

func TestPushAllocates(t *testing.T) {
	event := bytes.Clone(benchChunk)
	for _, withhold := range []bool{false, true} {
		f := NewStreamFilter(StreamChat, withhold)
		i := 0
		if n := testing.AllocsPerRun(1000, func() {
			event[len(event)-55] = 'a' + byte(i%26)
			i++
			f.Push(event)
		}); n != 0 {
			t.Errorf("withhold %t: %v allocations for a whole event", withhold, n)
		}
		if n := testing.AllocsPerRun(1000, func() {
			f.Push(event[:100])
			f.Push(event[100:])
		}); n != 0 {
			t.Errorf("withhold %t: %v allocations for an event in two pieces", withhold, n)
		}
	}
}

func TestUsageObserver(t *testing.T) {
	numbers := `{"object":"embedding","index":0,"embedding":[` + strings.Repeat("0.0123,-4.5e-3,", 20_000) + `1]}`
	usage := `"usage":{"prompt_tokens":12,"total_tokens":12}`
	want := execution.Usage{Input: 12, Known: true}
	for _, c := range []struct {
		name, body string
		want       execution.Usage
	}{
		{"short", `{"choices":[{"message":{"content":"\"usage\":{}"}}],` + usage + `}`, want},
		{"not at the top level", `{"choices":[{"usage":{"prompt_tokens":99}}]}`, execution.Usage{}},
		{"behind the numbers", `{"object":"list","data":[` + numbers + `],"model":"m",` + usage + `}`, want},
		{"before the numbers", `{"model":"m",` + usage + `,"object":"list","data":[` + numbers + `]}`, want},
		{"null", `{"usage":null}`, execution.Usage{}},
		{"none", `{"data":[` + numbers + `]}`, execution.Usage{}},
		{"not JSON", "RIFF....", execution.Usage{}},
		{"empty", "", execution.Usage{}},
		{"Ollama", `{"model":"m","embeddings":[[0.1]],"total_duration":1,"prompt_eval_count":12}`, want},
		{"Responses", `{"object":"response","usage":{"input_tokens":12,"input_tokens_details":{"cached_tokens":4},"output_tokens":5,"output_tokens_details":{"reasoning_tokens":3}}}`,
			execution.Usage{Input: 12, Output: 5, Cached: 4, Reasoning: 3, Known: true}},
		{"rerank", `{"id":"r","usage":{"total_tokens":12},"results":[]}`, want},
		{"seconds, not tokens", `{"text":"hi","usage":{"type":"duration","seconds":3}}`, execution.Usage{}},
		{"floats and nonsense", `{"usage":{"prompt_tokens":12.0,"completion_tokens":-4,"reasoning_tokens":"x"}}`, want},
		{"huge", `{"usage":{"prompt_tokens":12,"completion_tokens":99999999999999999999999999}}`, want},
		{"amid much", `{"data":[` + numbers + `],` + usage + `,"prompt_logprobs":[` + numbers + `]}`, want},
		{"repeated of the request", `{"data":[` + numbers + `],` + usage + `,"metadata":{"usage":{"prompt_tokens":0}}}`, want},
		{"repeated before", `{"metadata":{"usage":{"prompt_tokens":0}},"data":[` + numbers + `],` + usage + `}`, want},
		{"a value of that name", `{"usage":"usage","x":"usage",` + usage + `}`, want},
		{"strings with all signs", `{"a":"]}\\","b":"\"}]{[","c":"\\\\\"",` + usage + `}`, want},
		{"a text of escapes", `{"a":"` + strings.Repeat(`\\`, 40_000) + `",` + usage + `}`, want},
		{"Ollama, long", `{"model":"m","response":"` + strings.Repeat("word ", 40_000) + `","done":true,"context":[1,2],"prompt_eval_count":12,"eval_duration":3,"eval_count":40000}`,
			execution.Usage{Input: 12, Output: 40000, Known: true}},
		{"Ollama, of many", `{"embeddings":[[0.1,` + strings.Repeat("0.123456,", 20_000) + `1]],"total_duration":1,"prompt_eval_count":12}`, want},
		{"reasoning beside the output", `{"usage":{"prompt_tokens":12,"completion_tokens":9,"total_tokens":121,"completion_tokens_details":{"reasoning_tokens":100}}}`,
			execution.Usage{Input: 12, Output: 109, Reasoning: 100, Known: true}},
		{"reasoning alone", `{"usage":{"input_tokens":12,"total_tokens":112}}`, execution.Usage{Input: 12, Output: 100, Known: true}},
		{"a total of less", `{"usage":{"input_tokens":12,"output_tokens":3,"total_tokens":3,"cache_read_input_tokens":5}}`,
			execution.Usage{Input: 17, Output: 3, Cached: 5, Known: true}},
		{"a list of answers", ` [ {` + usage + `,"choices":[]}, {"choices":[1],"usage":{"prompt_tokens":3,"completion_tokens":4}},{}]`,
			execution.Usage{Input: 15, Output: 4, Known: true}},
		{"answers of llama.cpp", `{"choices":[{"text":"` + strings.Repeat("a", 400) + `"},{"text":"` + strings.Repeat("b", 800) + `"}],"usage":{"prompt_tokens":12,"completion_tokens":100},"timings":{}}`,
			execution.Usage{Input: 12, Output: 303, Known: true, Estimated: true}},
		{"its short one first", `{"choices":[{"text":"a"},{"text":"` + strings.Repeat("b", 4000) + `"}],"timings":{},"usage":{"prompt_tokens":12,"completion_tokens":1}}`,
			execution.Usage{Input: 12, Output: 1004, Known: true, Estimated: true}},
		{"with log probabilities", `{"choices":[{"text":"` + strings.Repeat("a", 100_000) + `"},{"text":"` + strings.Repeat("b", 200_000) + `"}],"usage":{"prompt_tokens":12,"completion_tokens":100},"timings":{}}`,
			execution.Usage{Input: 12, Output: 300, Known: true, Estimated: true}},
		{"one answer of it", `{"choices":[{"text":"a","x":[{}]}],"usage":{"prompt_tokens":12,"completion_tokens":1},"timings":{}}`, execution.Usage{Input: 12, Output: 1, Known: true}},
		{"answers of others", `{"choices":[{"text":"a"},{"text":"b"}],"usage":{"prompt_tokens":12,"completion_tokens":2}}`, execution.Usage{Input: 12, Output: 2, Known: true}},
		{"a list of numbers", `[1,[2],"usage",{"a":{` + usage + `}}]`, execution.Usage{}},
		{"cut off", `{` + usage + `,"data":[1,2`, want},
		{"spaces", "\n{ \"usage\" :\t{ \"prompt_tokens\" : 12 } }\n", want},
	} {
		for _, n := range []int{1, 100, 20_000, 1 << 20} {
			if n == 1 && len(c.body) > 100_000 {
				n = 7
			}
			var o UsageObserver
			for b := []byte(c.body); len(b) > 0; {
				k := min(n, len(b))
				if w, err := o.Write(b[:k]); w != k || err != nil {
					t.Fatal(w, err)
				}
				b = b[k:]
			}
			if got := o.Usage(); got != c.want {
				t.Errorf("%s, pieces of %d: %+v, want %+v", c.name, n, got, c.want)
			}
		}
	}
}
