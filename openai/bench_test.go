package openai

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// benchChunk is a chunk of ordinary size; its text stands 55 bytes before its end.
var benchChunk = []byte(`data: {"id":"chatcmpl-9f2c41d07ab34e1f","object":"chat.completion.chunk","created":1764400000,` +
	`"model":"qwen3-32b","choices":[{"index":0,"delta":{"content":" token and another"},"logprobs":null,"finish_reason":null}]}` + "\n\n")

var chatBody = []byte(`{"model":"llama3.2:3b","messages":[{"role":"system","content":"You are a helpful assistant. Answer briefly."},` +
	`{"role":"user","content":"What is the tallest mountain of Iceland, and how high is it?\nAnswer in one line."}],` +
	`"temperature":0.7,"max_tokens":256,"stream":true,"stream_options":{"include_usage":true},"user":"u-193"}`)

func BenchmarkParseEnvelopeSmall(b *testing.B) {
	b.SetBytes(int64(len(chatBody)))
	b.ReportAllocs()
	for b.Loop() {
		if e, err := ParseEnvelope(chatBody); err != nil || !e.Stream {
			b.Fatal(err)
		}
	}
}

// BenchmarkParseEnvelopeImage is a body of 30 MB of base64 with the model behind it.
func BenchmarkParseEnvelopeImage(b *testing.B) {
	body := []byte(`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` +
		strings.Repeat("iVBORw0KGgoAAAANSUhEUgAA", 30<<20/24) + `"}}]}],"model":"m"}`)
	benchEnvelope(b, body)
}

// BenchmarkParseEnvelopeText is a long conversation: short strings with escapes.
func BenchmarkParseEnvelopeText(b *testing.B) {
	turn := `{"role":"user","content":"Line one of a longer turn, as people write.\nAnd \"another\" one, with some words in it."},`
	body := []byte(`{"model":"m","messages":[` + strings.TrimSuffix(strings.Repeat(turn, 10_000), ",") + `]}`)
	benchEnvelope(b, body)
}

// BenchmarkParseEnvelopeNumbers is an embeddings request of tokens: the worst there is per byte.
func BenchmarkParseEnvelopeNumbers(b *testing.B) {
	body := []byte(`{"model":"m","input":[` + strings.TrimSuffix(strings.Repeat("1234,56,78901,", 100_000), ",") + `]}`)
	benchEnvelope(b, body)
}

func benchEnvelope(b *testing.B, body []byte) {
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if e, err := ParseEnvelope(body); err != nil || e.Model != "m" {
			b.Fatal(err)
		}
	}
}

func BenchmarkRewrite(b *testing.B) {
	e, err := ParseEnvelope(chatBody)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		e.Rewrite(chatBody, RewriteSpec{Model: "llama-3.2-3b-instruct", IncludeUsage: true})
	}
}

// BenchmarkRewriteParameters is BenchmarkRewrite on a route with a default and a cap.
func BenchmarkRewriteParameters(b *testing.B) {
	e, err := ParseEnvelope(chatBody)
	if err != nil {
		b.Fatal(err)
	}
	defaults := []ParameterDefault{{Name: "top_p", Value: "0.9"}}
	caps := []ParameterCap{{Name: "max_tokens", Max: 128}}
	b.ReportAllocs()
	for b.Loop() {
		edits, err := e.Plan(chatBody, OpChatCompletions, defaults, caps)
		if err != nil {
			b.Fatal(err)
		}
		e.Rewrite(chatBody, RewriteSpec{Model: "llama-3.2-3b-instruct", IncludeUsage: true, Edits: edits})
	}
}

// BenchmarkStreamFilter pushes one chunk a time, as the paced workload does.
func BenchmarkStreamFilter(b *testing.B) {
	for _, withhold := range []bool{false, true} {
		b.Run(fmt.Sprintf("withhold=%t", withhold), func(b *testing.B) {
			event := bytes.Clone(benchChunk)
			f := NewStreamFilter(StreamChat, withhold)
			b.SetBytes(int64(len(event)))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				event[len(event)-55] = 'a' + byte(i%26)
				f.Push(event)
			}
		})
	}
}

// BenchmarkStreamFilterBulk pushes 32 KiB a time, as a flood does. One op is one event.
func BenchmarkStreamFilterBulk(b *testing.B) {
	p := bytes.Repeat(benchChunk, 32<<10/len(benchChunk))
	for i := range len(p) / len(benchChunk) {
		p[(i+1)*len(benchChunk)-55] = 'a' + byte(i%26)
	}
	f := NewStreamFilter(StreamChat, true)
	b.SetBytes(int64(len(benchChunk)))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%(32<<10/len(benchChunk)) == 0 {
			f.Push(p)
		}
	}
}

// BenchmarkStreamFilterVarying has chunks that differ in two places, so that each must be searched.
func BenchmarkStreamFilterVarying(b *testing.B) {
	pieces := bytes.SplitAfter(readStream(b, "openai.sse"), []byte("\n\n"))
	pieces = pieces[1 : len(pieces)-4]
	f := NewStreamFilter(StreamChat, true)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		f.Push(pieces[i%len(pieces)])
	}
}

func BenchmarkStreamFilterSplit(b *testing.B) {
	f := NewStreamFilter(StreamChat, true)
	b.ReportAllocs()
	for b.Loop() {
		f.Push(benchChunk[:150])
		f.Push(benchChunk[150:])
	}
}

func BenchmarkStreamFilterResponses(b *testing.B) {
	event := []byte("event: response.output_text.delta\n" + `data: {"type":"response.output_text.delta","item_id":"msg_0a6e91c7d2","output_index":0,` +
		`"content_index":0,"delta":" token","logprobs":[],"sequence_number":117,"obfuscation":"q8ZtaB3x"}` + "\n\n")
	f := NewStreamFilter(StreamResponses, false)
	b.ReportAllocs()
	for b.Loop() {
		f.Push(event)
	}
}

func BenchmarkEventReader(b *testing.B) {
	p := bytes.Repeat(benchChunk, 1000)
	r := NewEventReader(nil)
	src := bytes.NewReader(p)
	r.r = src
	b.SetBytes(int64(len(benchChunk)))
	b.ReportAllocs()
	for b.Loop() {
		if src.Len() == 0 {
			src.Reset(p)
		}
		if _, err := r.Next(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkUsageObserver is an answer of embeddings, which is numbers for the most part.
func BenchmarkUsageObserver(b *testing.B) {
	body := []byte(`{"data":[{"embedding":[` + strings.Repeat("0.0123456,-0.0456789,", 50_000) + `1]}],"usage":{"prompt_tokens":12,"total_tokens":12}}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		var o UsageObserver
		for rest := body; len(rest) > 0; {
			n, _ := o.Write(rest[:min(32<<10, len(rest))])
			rest = rest[n:]
		}
		if u := o.Usage(); u.Input != 12 {
			b.Fatal(u)
		}
	}
}
