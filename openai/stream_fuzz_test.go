package openai

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"iop/execution"
)

// FuzzStreamFilter: however a stream is cut, the same comes out and the same is read; what comes out is what went in
// but for the documented exceptions; and what clients then see are the events minus the usage-only chunks, as
// encoding/json understands them.
func FuzzStreamFilter(f *testing.F) {
	for _, g := range golden {
		f.Add(readStream(f, g.file), uint8(g.kind), true, uint16(17), uint16(400))
	}
	for _, s := range []string{
		"data: {\"choices\":[],\"usage\":{}}\r\n\r", "data:x\r\rdata: y\r\r", ": c\ndata: [DONE]\r", "\ufeffdata: {\"choices\":null,\"usage\":{}}\n\n",
		"error: {\"code\":400}\n\ndata: [DONE]\n\n", "id: 1\n\ndata\n\nevent: error\ndata: x\n\n", "data: {\"choices\":[{\"finish_reason\":\"stop\"}]}",
	} {
		f.Add([]byte(s), uint8(StreamChat), true, uint16(1), uint16(5))
	}
	f.Fuzz(func(t *testing.T, in []byte, k uint8, withhold bool, first, step uint16) {
		if len(in) > maxHeld/2 {
			return
		}
		kind := StreamKind(k % uint8(StreamMedia+1))
		whole := NewStreamFilter(kind, withhold)
		want := through(whole, in, len(in)+1)

		split := NewStreamFilter(kind, withhold)
		got, border := []byte(nil), true
		cut := min(int(first), len(in))
		if cut > 0 {
			var out []byte
			out, border = split.Push(bytes.Clone(in[:cut]))
			got = append(got, out...)
		}
		if border && !atBorder(kind, got) {
			t.Fatalf("%q was said to end at a border", got)
		}
		got = append(got, through(split, in[cut:], int(step)+1)...)
		if !bytes.Equal(got, want) {
			t.Fatalf("cut at %d and every %d: %q, whole: %q", cut, step, got, want)
		}
		if split.Events() != whole.Events() || split.Complete() != whole.Complete() || split.SawDone() != whole.SawDone() ||
			split.Usage() != whole.Usage() || split.AtBorder() != whole.AtBorder() {
			t.Fatalf("cut at %d and every %d: read otherwise than whole", cut, step)
		}
		a, b := split.ErrorEvent(), whole.ErrorEvent()
		if (a == nil) != (b == nil) || (a != nil && (*a.Err != *b.Err || a.First != b.First || a.Visible != b.Visible)) {
			t.Fatalf("error events: %+v and %+v", a, b)
		}
		if whole.Spent() != split.Spent() {
			t.Fatalf("cut at %d and every %d: spent %+v, whole %+v", cut, step, split.Spent(), whole.Spent())
		}
		ended := b != nil && (!b.Visible || kind != StreamResponses)
		switch {
		case whole.SawDone() || ended:
			checkPrefix(t, in, want, withhold && kind == StreamChat)
		case !withhold || kind != StreamChat:
			if rest, ok := bytes.CutPrefix(want, in); !ok || len(bytes.Trim(rest, "\r\n")) > 0 || len(rest) > 3 {
				t.Fatalf("forwarded %q for %q", want, in)
			}
		}
		if kind == StreamChat && !ended {
			checkChat(t, in, want, whole, withhold)
		}
	})
}

// atBorder is the plain definition: nothing, or a blank line or complete comment line at the end.
func atBorder(kind StreamKind, out []byte) bool {
	if len(out) == 0 {
		return true
	}
	if c := out[len(out)-1]; c != '\n' && (c != '\r' || kind == StreamOllama) {
		return false
	}
	if kind == StreamOllama {
		return true
	}
	fresh := true
	for len(out) > 0 {
		var line []byte
		line, out = cutLine(out)
		fresh = len(line) == 0 || (fresh && line[0] == ':')
	}
	return fresh
}

func checkPrefix(t *testing.T, in, out []byte, dropped bool) {
	t.Helper()
	if trimmed := bytes.TrimRight(out, "\r\n"); !dropped && !bytes.HasPrefix(in, trimmed) {
		t.Fatalf("forwarded %q, which is no beginning of %q", out, in)
	}
}

// checkChat compares the events before and after the filter.
func checkChat(t *testing.T, in, out []byte, f *StreamFilter, withhold bool) {
	t.Helper()
	var want []string
	complete := false
	for _, data := range payloads(in) {
		if strings.TrimSpace(data) == "[DONE]" {
			want, complete = append(want, data), true
			break
		}
		c := decodeChunk(data)
		if c.odd {
			return
		}
		complete = complete || c.finished
		if !withhold || !c.usageOnly {
			want = append(want, data)
		}
	}
	got := payloads(out)
	if g, w := strings.Join(got, "\x00"), strings.Join(want, "\x00"); g != w && !strings.Contains(w, "[DONE]\n") {
		// An event that the end of the stream cuts off is no event; the filter may have completed it.
		if !strings.HasPrefix(g, w) || len(got) > len(want)+1 {
			t.Fatalf("clients see %q, want %q", got, want)
		}
		return
	}
	if complete != f.Complete() && !endsOpen(in) {
		t.Fatalf("complete is %t, want %t", f.Complete(), complete)
	}
}

func endsOpen(in []byte) bool { return !atBorder(StreamChat, in) }

func payloads(stream []byte) (all []string) {
	r := NewEventReader(bytes.NewReader(stream))
	for {
		e, err := r.Next()
		if err == io.EOF {
			return all
		}
		if len(e.Data) > 0 {
			all = append(all, string(e.Data))
		}
	}
}

type decodedChunk struct {
	finished, usageOnly bool
	odd                 bool // decoders may differ about it
}

func decodeChunk(data string) (c decodedChunk) {
	// The needle of choicesBegin decides before the JSON does; duplicate and escaped names are read differently.
	if hasChoices([]byte(data)) && strings.Contains(data, `[]`) || strings.Contains(data, `\`) || strings.Contains(data, "[DONE]") {
		c.odd = true
		return c
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal([]byte(data), &fields) != nil || !wellFormed([]byte(data)) {
		return c
	}
	n := 0
	for m := objectMembers([]byte(data)); m.next(); {
		n++
	}
	if c.odd = n != len(fields); c.odd {
		return c
	}
	choices, usage, err := fields["choices"], fields["usage"], fields["error"]
	var list []json.RawMessage
	empty := choices != nil && json.Unmarshal(choices, &list) == nil && len(list) == 0
	c.usageOnly = empty && len(usage) > 0 && usage[0] == '{' && !isError(err)
	for _, raw := range list {
		var choice map[string]json.RawMessage
		var reason string
		if json.Unmarshal(raw, &choice) == nil && json.Unmarshal(choice["finish_reason"], &reason) == nil && reason != "" {
			c.finished = true
		}
		if bytes.Count(raw, []byte("finish_reason")) > 1 {
			c.odd = true
		}
	}
	return c
}

// FuzzShape: what a chunk says is the same whether or not the filter has learned what its neighbours look like.
func FuzzShape(f *testing.F) {
	for _, file := range []string{"openai.sse", "llamacpp.sse", "vllm_tools.sse", "azure.sse"} {
		f.Add(strings.Join(payloads(readStream(f, file)), "\n"))
	}
	f.Add(`{"a":"x","b":"y"}` + "\n" + `{"a":"z","b":"w"}` + "\n" + `{"a":"\\","usage":{"total_tokens":1},"b":"y"}` + "\n" + `{"a":"q","b":"\""}`)
	f.Add(`{"usage":"a"}` + "\n" + `{"usage":"b"}` + "\n" + `{"usage":"c"}` + "\n" + `{"x":"a","finish_reason":null}` + "\n" + `{"x":"b","finish_reason":null}`)
	f.Fuzz(func(t *testing.T, lines string) {
		if strings.Contains(lines, "\r") || strings.Contains(lines, "[DONE]") {
			return
		}
		taught := NewStreamFilter(StreamChat, true)
		complete, usage := false, taught.Usage()
		for line := range strings.SplitSeq(lines, "\n") {
			if taught.ErrorEvent() != nil {
				return // nothing is forwarded after it
			}
			event := []byte("data: " + line + "\n\n")
			fresh := NewStreamFilter(StreamChat, true)
			want, _ := fresh.Push(event)
			got, _ := taught.Push(event)
			complete = complete || fresh.Complete()
			if fresh.Usage().Known {
				usage = fresh.Usage()
			}
			if !bytes.Equal(got, want) || taught.Complete() != complete || taught.Usage() != usage || (fresh.ErrorEvent() != nil && taught.ErrorEvent() == nil) {
				t.Fatalf("%q after its neighbours: forwarded %q, complete %t, usage %+v, error %v; alone %q %t %+v %v", line,
					got, taught.Complete(), taught.Usage(), taught.ErrorEvent(), want, complete, usage, fresh.ErrorEvent())
			}
		}
	})
}

// FuzzUsageObserver: of any JSON the observer says what a decoder finds at the root, in whatever pieces the answer came.
func FuzzUsageObserver(f *testing.F) {
	f.Add([]byte(`{"a":"\"usage\":{","usage":{"prompt_tokens":3,"completion_tokens":4},"b":[{"usage":{"prompt_tokens":9}}]}`), 3)
	f.Add([]byte(`{"response":"\\","prompt_eval_count":3,"eval_count":4}`), 1)
	f.Add([]byte(`[{"usage":{"total_tokens":3}},{"usage":{"total_tokens":4}}]`), 7)
	f.Fuzz(func(t *testing.T, body []byte, n int) {
		var whole, pieces UsageObserver
		whole.Write(body)
		for rest := body; len(rest) > 0; {
			k := min(max(n, 1), len(rest))
			pieces.Write(rest[:k])
			rest = rest[k:]
		}
		got := whole.Usage()
		if in := pieces.Usage(); in != got {
			t.Fatalf("%+v in pieces, %+v as a whole", in, got)
		}
		if !wellFormed(body) {
			return
		}
		var want execution.Usage
		names := 0
		for m := objectMembers(body); m.next(); {
			switch {
			case string(m.key) != "usage":
			case len(m.val) > maxUsageValue:
				return
			default:
				names++
				if is(m.val, '{') {
					want = parseUsage(m.val)
				}
			}
		}
		if names == 1 && want.Known && got != want {
			t.Fatalf("%+v, a decoder finds %+v", got, want)
		}
	})
}
