package openai

import (
	"strings"
	"testing"
)

// BenchmarkRenderChat is one chunk of ordinary size, as BenchmarkStreamFilter passes one on.
func BenchmarkRenderChat(b *testing.B) {
	benchRender(b, newChatRenderer(goldenSpec, 1))
}

// BenchmarkRenderResponses is the same text as a Responses event.
func BenchmarkRenderResponses(b *testing.B) {
	benchRender(b, newResponsesRenderer(goldenSpec, nil))
}

func benchRender(b *testing.B, r Renderer) {
	e := say(0, " token and another")
	dst := r.Event(make([]byte, 0, 1<<12), &e)
	b.ReportAllocs()
	for b.Loop() {
		if r, ok := r.(*responsesRenderer); ok {
			r.message.text, r.size = r.message.text[:0], 0
		}
		dst = r.Event(dst[:0], &e)
	}
}

func BenchmarkParseChat(b *testing.B) {
	b.SetBytes(int64(len(chatBody)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseChat(chatBody); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkParseChatImage is a body of 30 MB of base64, where each pass over the bytes shows.
func BenchmarkParseChatImage(b *testing.B) {
	body := []byte(`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` +
		strings.Repeat("iVBORw0KGgoAAAANSUhEUgAA", 30<<20/24) + `"}}]}],"model":"m"}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseChat(body); err != nil {
			b.Fatal(err)
		}
	}
}
