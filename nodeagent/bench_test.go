package nodeagent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"iop/execution"
	"iop/tunnel"
	"iop/tunnel/wire"
)

// nullRun is a run whose answer is for nobody.
type nullRun struct {
	open *wire.Open
	body []byte
	end  execution.Terminal
	out  int
}

func (r *nullRun) Open() *wire.Open         { return r.open }
func (r *nullRun) Body() ([]byte, bool)     { return r.body, true }
func (r *nullRun) Read([]byte) (int, error) { return 0, io.EOF }
func (r *nullRun) Phase(execution.Phase)    {}
func (r *nullRun) Keeper() tunnel.Keeper    { return nil }
func (r *nullRun) Lease(context.Context) ([]byte, error) {
	return nil, errors.New("no lease")
}
func (r *nullRun) Head(*wire.Head) error        { return nil }
func (r *nullRun) End(t execution.Terminal)     { r.end = t }
func (r *nullRun) Events(p []byte) error        { r.out += len(p); return nil }
func (r *nullRun) Write(p []byte, _ bool) error { r.out += len(p); return nil }

func benchAgent(b *testing.B, h http.HandlerFunc) *Agent {
	s := httptest.NewServer(h)
	b.Cleanup(s.Close)
	return benchAgentAt(b, s.URL)
}

func benchAgentAt(b *testing.B, url string) *Agent {
	providers, err := makeProviders([]ProviderSpec{{ID: "p", URL: url, Capacity: 256}})
	if err != nil {
		b.Fatal(err)
	}
	a := &Agent{log: slog.New(slog.DiscardHandler)}
	a.providers.Store(&providers)
	b.Cleanup(a.closeIdle)
	return a
}

func benchRun(stream bool) *nullRun {
	r := chatRun(stream)
	return &nullRun{open: r.open, body: r.body}
}

// BenchmarkUnary is a whole run with a short answer, the provider (net/http as well) included.
func BenchmarkUnary(b *testing.B) {
	a := benchAgent(b, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header()["Content-Type"] = jsonType
		io.WriteString(w, unaryAnswer)
	})
	r := benchRun(false)
	b.ReportAllocs()
	for b.Loop() {
		if a.serve(context.Background(), r); r.end.Outcome != execution.Completed {
			b.Fatal(r.end)
		}
	}
}

// BenchmarkUnaryScripted is the same against a provider that costs next to nothing: a raw socket with a fixed answer.
func BenchmarkUnaryScripted(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	answer := []byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 203\r\nX-Request-Id: abc\r\nDate: x\r\n\r\n")
	answer = append(answer, unaryAnswer+strings.Repeat(" ", 203-len(unaryAnswer))...)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 4096)
				for {
					if _, err := c.Read(buf); err != nil {
						return
					}
					c.Write(answer)
				}
			}()
		}
	}()
	a := benchAgentAt(b, "http://"+l.Addr().String())
	r := benchRun(false)
	b.ReportAllocs()
	for b.Loop() {
		if a.serve(context.Background(), r); r.end.Outcome != execution.Completed {
			b.Fatal(r.end)
		}
	}
}

// BenchmarkChunkFromSocket is one chunk that arrives alone on a socket, chunked, the writer's side included.
func BenchmarkChunkFromSocket(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	event := firstChunk
	chunk := []byte(fmt.Sprintf("%x\r\n%s\r\n", len(event), event))
	n := b.N
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		c.Read(make([]byte, 4096))
		io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
		for range n {
			c.Write(chunk)
		}
		fmt.Fprintf(c, "%x\r\n%s\r\n0\r\n\r\n", len(doneEvent), doneEvent)
	}()
	a := benchAgentAt(b, "http://"+l.Addr().String())
	r := benchRun(true)
	b.ReportAllocs()
	b.ResetTimer()
	a.serve(context.Background(), r)
	if r.end.Outcome != execution.Completed {
		b.Fatal(r.end)
	}
}

// BenchmarkChunk is what one streamed chunk of a flood costs, without the provider's side and without sockets.
func BenchmarkChunk(b *testing.B) {
	a := benchAgentAt(b, "http://127.0.0.1:1")
	chunk := []byte(`data: {"id":"chatcmpl-1234567890","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":" hello"},"finish_reason":null}]}` + "\n\n")
	for _, size := range []int{1, 16, 128} {
		b.Run(map[int]string{1: "alone", 16: "by 16", 128: "by 128"}[size], func(b *testing.B) {
			burst := bytes.Repeat(chunk, size)
			a.only().transport = roundTripper(func(*http.Request) (*http.Response, error) {
				return &http.Response{
					StatusCode: 200, ContentLength: -1, Header: http.Header{"Content-Type": {"text/event-stream"}},
					Body: io.NopCloser(&flood{burst, b.N, size, doneEvent}),
				}, nil
			})
			r := benchRun(true)
			b.ReportAllocs()
			b.SetBytes(int64(len(chunk)))
			b.ResetTimer()
			a.serve(context.Background(), r)
			if r.end.Outcome != execution.Completed {
				b.Fatal(r.end)
			}
		})
	}
}

// flood gives bursts of chunks until n chunks are out, then the stream's end.
type flood struct {
	burst   []byte
	n, each int
	end     string
}

func (f *flood) Read(p []byte) (int, error) {
	if f.n > 0 {
		f.n -= f.each
		return copy(p, f.burst), nil
	}
	return copy(p, f.end), io.EOF
}

// BenchmarkRunChunk is what one streamed chunk of a normalized run costs, beside BenchmarkChunk, which is the raw relay of
// the same.
func BenchmarkRunChunk(b *testing.B) {
	for _, bench := range []struct {
		name   string
		engine Engine
		chunk  string
		end    string
	}{
		{"openai", OpenAIEngine, `data: {"id":"chatcmpl-1234567890","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{"index":0,"delta":{"content":" hello"},"finish_reason":null}]}` + "\n\n", lastChunk + doneEvent},
		{"ollama", OllamaEngine, strings.Replace(ollamaLines, "hi", " hello", 1), ollamaEnd},
		{"anthropic", AnthropicEngine, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\" hello\"}}\n\n", claudeEnd},
	} {
		for _, size := range []int{1, 16, 128} {
			b.Run(fmt.Sprintf("%s by %d", bench.name, size), func(b *testing.B) {
				a := benchAgentAt(b, "http://127.0.0.1:1")
				p := a.only()
				p.mu.Lock()
				p.setEngineLocked(bench.engine, 256)
				p.mu.Unlock()
				start := ""
				if bench.engine == AnthropicEngine {
					start = claudeStart
				}
				p.transport = roundTripper(func(*http.Request) (*http.Response, error) {
					body := io.MultiReader(strings.NewReader(start), &flood{bytes.Repeat([]byte(bench.chunk), size), b.N, size, bench.end})
					return &http.Response{StatusCode: 200, ContentLength: -1, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: io.NopCloser(body)}, nil
				})
				f := normalizedRun(b)
				r := &nullRun{open: f.open, body: f.body}
				b.ReportAllocs()
				b.ResetTimer()
				a.serve(context.Background(), r)
				if r.end.Outcome != execution.Completed {
					b.Fatal(r.end)
				}
			})
		}
	}
}
