package openai

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// renameAll pushes the answer in pieces of n bytes and returns what took its place.
func renameAll(kind StreamKind, name string, answer []byte, n int) []byte {
	r := NewModelRenamer(kind, name)
	var out []byte
	for len(answer) > 0 {
		k := min(n, len(answer))
		piece := bytes.Clone(answer[:k])
		out = append(out, r.Push(piece)...)
		answer = answer[k:]
	}
	return out
}

func TestModelRenamer(t *testing.T) {
	for _, c := range []struct {
		name     string
		kind     StreamKind
		in, want string
	}{
		{"a chat answer", StreamNone, `{"id":"x","model":"llama3.2:3b","choices":[{"model":"stays"}]}`, `{"id":"x","model":"chat","choices":[{"model":"stays"}]}`},
		{"pretty", StreamNone, "{\n  \"model\" :\t\"a\" ,\r\n \"x\": 1\n}\n", "{\n  \"model\" :\t\"chat\" ,\r\n \"x\": 1\n}\n"},
		{"the last member, behind numbers", StreamNone, `{"data":[{"embedding":[1,-2.5e3],"index":0}],"model":"e"}`, `{"data":[{"embedding":[1,-2.5e3],"index":0}],"model":"chat"}`},
		{"escapes in the old name", StreamNone, `{"model":"a\"b\\","x":"\\"}`, `{"model":"chat","x":"\\"}`},
		{"an empty name", StreamNone, `{"model":""}`, `{"model":"chat"}`},
		{"no string", StreamNone, `{"model":null,"x":{"model":"y"}}`, `{"model":null,"x":{"model":"y"}}`},
		{"an object", StreamNone, `{"model":{"model":"y"}}`, `{"model":{"model":"y"}}`},
		{"as a value", StreamNone, `{"a":"model","b":"c"}`, `{"a":"model","b":"c"}`},
		{"in a text", StreamNone, `{"a":"{\"model\":\"x\"}"}`, `{"a":"{\"model\":\"x\"}"}`},
		{"twice", StreamNone, `{"model":"a","model":"b"}`, `{"model":"chat","model":"chat"}`},
		{"longer names", StreamNone, `{"model_name":"a","the model":"b","models":"c","mode":"d"}`, `{"model_name":"a","the model":"b","models":"c","mode":"d"}`},
		{"an escaped name is another", StreamNone, `{"mode\u006c":"a"}`, `{"mode\u006c":"a"}`},
		{"in a list", StreamNone, `[{"model":"a"},"model","b"]`, `[{"model":"a"},"model","b"]`},
		{"of a response", StreamNone, `{"response":{"id":"r","model":"a","error":{"model":"y"}},"x":{"model":"z"}}`, `{"response":{"id":"r","model":"chat","error":{"model":"y"}},"x":{"model":"z"}}`},
		{"of a message", StreamNone, `{"message":{"model":"a"},"type":"message_start"}`, `{"message":{"model":"chat"},"type":"message_start"}`},
		{"of a message further in", StreamNone, `{"choices":{"message":{"model":"a"}}}`, `{"choices":{"message":{"model":"a"}}}`},
		{"a text named so", StreamNone, `{"response":"model","message":[{"model":"a"}]}`, `{"response":"model","message":[{"model":"a"}]}`},
		{"no JSON", StreamNone, `model "model": "x"`, `model "model": "x"`},
		{"text", StreamNone, "<html>\"model\":\"x\"", "<html>\"model\":\"x\""},
		{"events", StreamChat, "data: {\"model\":\"a\"}\n\ndata:{\"model\":\"b\"}\r\n\r\ndata: [DONE]\n\n", "data: {\"model\":\"chat\"}\n\ndata:{\"model\":\"chat\"}\r\n\r\ndata: [DONE]\n\n"},
		{"lone CRs", StreamChat, "data: {\"model\":\"a\"}\r\rdata: {\"model\":\"b\"}\r\r", "data: {\"model\":\"chat\"}\r\rdata: {\"model\":\"chat\"}\r\r"},
		{"behind a byte order mark", StreamChat, "\ufeffdata: {\"model\":\"a\"}\n\n", "\ufeffdata: {\"model\":\"chat\"}\n\n"},
		{"data of several lines", StreamChat, "data: {\ndata: \"model\":\ndata: \"a\"}\r\n\r\n", "data: {\ndata: \"model\":\ndata: \"chat\"}\r\n\r\n"},
		{"what is no data", StreamChat, ": {\"model\":\"a\"}\nevent: {\"model\":\"a\"}\ndata : {\"model\":\"a\"}\n\n", ": {\"model\":\"a\"}\nevent: {\"model\":\"a\"}\ndata : {\"model\":\"a\"}\n\n"},
		{"an event that is torn spoils no other", StreamChat, "data: {\"a\":{\"model\":\"x\n\ndata: {\"model\":\"b\"}\n\n", "data: {\"a\":{\"model\":\"x\n\ndata: {\"model\":\"chat\"}\n\n"},
		{"Responses", StreamResponses, "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"model\":\"a\"}}\n\n", "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"model\":\"chat\"}}\n\n"},
		{"Messages", StreamMessages, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"model\":\"a\"}}\n\n", "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"model\":\"chat\"}}\n\n"},
		{"Ollama", StreamOllama, "{\"model\":\"a\",\"message\":{\"content\":\"\"}}\n{\"model\":\"b\",\"done\":true}\n", "{\"model\":\"chat\",\"message\":{\"content\":\"\"}}\n{\"model\":\"chat\",\"done\":true}\n"},
		{"a torn line spoils no other", StreamOllama, "{\"model\":\"a\",\"x\":\"\n{\"model\":\"b\"}\n", "{\"model\":\"chat\",\"x\":\"\n{\"model\":\"chat\"}\n"},
	} {
		for n := 1; n <= len(c.in); n++ {
			if got := renameAll(c.kind, "chat", []byte(c.in), n); string(got) != c.want {
				t.Fatalf("%s, pieces of %d: %q, want %q", c.name, n, got, c.want)
			}
		}
	}
}

// A name that needs escapes can neither break out of its string nor of its line.
func TestRenamedNameIsEscaped(t *testing.T) {
	name := "a\"b\\c\nd\r\n\ndata: e\x00"
	got := renameAll(StreamChat, name, []byte("data: {\"model\":\"m\",\"x\":1}\n\n"), 3)
	data := bytes.TrimSuffix(bytes.TrimPrefix(got, []byte("data: ")), []byte("\n\n"))
	if !wellFormed(data) || text(member(data, "model")) != name || bytes.ContainsAny(data, "\r\n") {
		t.Errorf("%q", got)
	}
}

// What has no model to be renamed is not copied.
func TestRenamerAliases(t *testing.T) {
	r := NewModelRenamer(StreamChat, "chat")
	p := []byte("data: {\"choices\":[]}\n\ndata: {\"cho")
	if out := r.Push(p); len(out) != len(p) || &out[0] != &p[0] {
		t.Errorf("%q is a copy", out)
	}
}

// renamedModel is the plain definition: the text with the name in the place of the model's value.
func renamedModel(obj, name []byte) []byte {
	var out []byte
	from := 0
	for m := objectMembers(obj); m.next(); {
		at := m.i - len(m.val)
		switch key := string(m.key); {
		case key == "model" && is(m.val, '"'):
			out = append(append(out, obj[from:at]...), name...)
		case (key == "response" || key == "message") && is(m.val, '{'):
			out = append(append(out, obj[from:at]...), renamedInner(m.val, name)...)
		default:
			continue
		}
		from = m.i
	}
	return append(out, obj[from:]...)
}

func renamedInner(obj, name []byte) []byte {
	var out []byte
	from := 0
	for m := objectMembers(obj); m.next(); {
		if string(m.key) == "model" && is(m.val, '"') {
			out = append(append(out, obj[from:m.i-len(m.val)]...), name...)
			from = m.i
		}
	}
	return append(out, obj[from:]...)
}

// FuzzModelRenamer: of JSON exactly the models change, as a walk over the whole text finds them; of anything else the
// same comes out however it is cut, and where nothing is named model nothing changes.
func FuzzModelRenamer(f *testing.F) {
	for _, g := range golden {
		f.Add(readStream(f, g.file), uint8(g.kind), "chat", uint16(7))
	}
	for _, s := range []string{
		`{"model":"a","x":[{"model":1}],"response":{"model":"b"},"message":{"a":{"model":"c"},"model":"d"}}`,
		`{"response":{},"model":"\\\"","message":[],"a":"model"}`, "data: {\"model\":\"a\r\n\r\ndata:\ndata: \"model\":\"", "\ufeff\ufeffdata: {", `{"model":"a`,
		"{\"model\":\"a\rb\",\"model\":\"c\"}",
	} {
		f.Add([]byte(s), uint8(StreamNone), "x\"\n", uint16(1))
		f.Add([]byte(s), uint8(StreamChat), "", uint16(3))
	}
	f.Fuzz(func(t *testing.T, in []byte, k uint8, name string, step uint16) {
		kind := StreamKind(k % uint8(StreamMedia+1))
		whole := renameAll(kind, name, in, len(in)+1)
		if got := renameAll(kind, name, in, int(step)+1); !bytes.Equal(got, whole) {
			t.Fatalf("every %d: %q, whole: %q", step+1, got, whole)
		}
		if !bytes.Contains(in, []byte("model")) && !bytes.Contains(in, []byte("data:")) && !bytes.Equal(in, whole) {
			t.Fatalf("%q became %q", in, whole)
		}
		quoted := appendString(nil, name)
		if wellFormed(in) {
			want := renamedModel(in, quoted)
			if got := renameAll(StreamNone, name, in, int(step)+1); !bytes.Equal(got, want) {
				t.Fatalf("%q became %q, want %q", in, got, want)
			}
			if line := bytes.ReplaceAll(bytes.ReplaceAll(in, []byte("\n"), nil), []byte("\r"), nil); len(line) > 0 {
				checkFramed(t, line, renamedModel(line, quoted), name, int(step)+1)
			}
		}
	})
}

// checkFramed puts one JSON text on lines of each kind, two after one another.
func checkFramed(t *testing.T, line, want []byte, name string, step int) {
	t.Helper()
	for _, frame := range []struct {
		kind   StreamKind
		format string
	}{{StreamOllama, "%s\n%s\n"}, {StreamChat, "data: %s\n\ndata:%s\n\n"}, {StreamMessages, ": c\r\nevent: e\r\ndata: %s\r\n\r\ndata: %s\r\n\r\n"}} {
		in, out := fmt.Sprintf(frame.format, line, line), fmt.Sprintf(frame.format, want, want)
		if got := renameAll(frame.kind, name, []byte(in), step); string(got) != out {
			t.Fatalf("%q became %q, want %q", in, got, out)
		}
	}
}

func BenchmarkModelRenamer(b *testing.B) {
	for _, c := range []struct {
		name   string
		kind   StreamKind
		answer []byte
	}{
		{"chat", StreamChat, readStream(b, "openai.sse")},
		{"embedding", StreamNone, []byte(`{"data":[{"embedding":[` + strings.Repeat("-0.0123456,", 1<<14) + `0]}],"model":"m"}`)},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.answer)))
			b.ReportAllocs()
			r := NewModelRenamer(c.kind, "the-name")
			for b.Loop() {
				for p := c.answer; len(p) > 0; p = p[min(len(p), 4096):] {
					r.Push(p[:min(len(p), 4096)])
				}
			}
		})
	}
}
