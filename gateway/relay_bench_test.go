package gateway_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"iop/execution"
	"iop/gateway"
	"iop/nodeagent"
)

// The relay benchmarks are the whole way, client, Edge, tunnel, Node and provider, in one process over real sockets.
// Client and provider are in the numbers, too; what stands in the documents about Edge and Node alone is measured with
// processes of their own.

// addAgent connects a real Node whose provider is h. The provider's connections are closed with it.
func (e *edge) addAgent(h http.HandlerFunc) {
	e.t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"m","object":"model"}]}`)
	})
	mux.HandleFunc("POST /v1/chat/completions", h)
	provider := httptest.NewServer(mux)
	e.t.Cleanup(provider.Close) // after the Node's end
	e.runAgent("n1", nodeagent.ProviderSpec{ID: "p", Engine: "openai", URL: provider.URL, Capacity: 1024})
	e.eventually("the model is offered", func() bool { return strings.Contains(e.get("/v1/models"), `"m"`) })
}

// runAgent runs a real Node until the test ends, before what was cleaned up before the call.
func (e *edge) runAgent(name execution.NodeID, providers ...nodeagent.ProviderSpec) {
	e.t.Helper()
	agent, err := nodeagent.New(nodeagent.Config{
		Edge: "ws://" + e.server.Addr().String() + "/tunnel/v1", Name: name, JoinToken: func() (string, error) { return e.join, nil },
		Providers: providers, Logger: slog.New(slog.DiscardHandler), DrainTimeout: time.Second,
	})
	if err != nil {
		e.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- agent.Run(ctx) }()
	e.t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			e.t.Error(err)
		}
	})
}

// benchEdge logs as an operator's would, to nowhere.
func benchEdge(b *testing.B, clients int) *edge {
	logs := gateway.NewLogWriter(io.Discard)
	b.Cleanup(func() { _ = logs.Close() })
	e := newEdge(b, func(c *gateway.Config) { c.Logger = slog.New(gateway.NewLogHandler(logs, slog.LevelInfo)) })
	e.client.Transport.(*http.Transport).MaxIdleConnsPerHost = clients
	return e
}

// benchChunk is one event of a stream, 220 bytes or so.
var benchChunk = []byte("data: {\"choices\":[{\"delta\":{\"content\":\"" + strings.Repeat("y", 180) + "\"}}]}\n\n")

// streamChunks answers with a stream whose chunks are written one by one, with a pause in between, and then with its end.
func streamChunks(chunks int, pause time.Duration, end string) http.HandlerFunc {
	framed := fmt.Appendf(nil, "%x\r\n%s\r\n", len(benchChunk), benchChunk)
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err) // httptest's connections are TCP
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
		for range chunks {
			if pause > 0 {
				time.Sleep(pause)
			}
			if _, err := conn.Write(framed); err != nil {
				return
			}
		}
		_, _ = fmt.Fprintf(conn, "%x\r\n%s\r\n0\r\n\r\n", len(end), end)
	}
}

// BenchmarkRelayUnary is one small request, 16 at once for each processor.
func BenchmarkRelayUnary(b *testing.B) {
	e := benchEdge(b, 64)
	e.addAgent(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"object":"chat.completion","choices":[{"message":{"content":"hello"}}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`)
	})
	body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", 200) + `"}]}`
	b.ReportAllocs()
	b.SetParallelism(16)
	b.ResetTimer()
	defer reportCPU(b, 1, "cpu-ns/op")()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if status, _, answer := e.post("/v1/chat/completions", body); status != http.StatusOK {
				b.Errorf("%d %s", status, answer)
			}
		}
	})
}

// BenchmarkRelayFlood is 64 streams that the provider writes as fast as it can; BenchmarkRelayPaced 100 streams with a
// chunk each 20 ms. Look at cpu-ns/chunk.
func BenchmarkRelayFlood(b *testing.B) { benchRelay(b, 64, 2000, 0) }
func BenchmarkRelayPaced(b *testing.B) { benchRelay(b, 100, 100, 20*time.Millisecond) }

func benchRelay(b *testing.B, streams, chunks int, pause time.Duration) {
	e := benchEdge(b, streams)
	e.addAgent(streamChunks(chunks, pause, doneEvent))
	want := int64(chunks*len(benchChunk) + len(doneEvent))
	report := reportCPU(b, streams*chunks, "cpu-ns/chunk")
	for b.Loop() {
		var wg sync.WaitGroup
		for range streams {
			wg.Go(func() {
				resp := e.do(e.request(http.MethodPost, "/v1/chat/completions", `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`))
				defer resp.Body.Close()
				if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != want {
					b.Errorf("%d bytes, want %d: %v", n, want, err)
				}
			})
		}
		wg.Wait()
	}
	report()
}
