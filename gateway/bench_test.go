package gateway_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"iop/execution"
	"iop/gateway"
	"iop/tunnel"
)

// reportCPU reports the process's CPU time per operation: on a machine with other work, wall time says little. All of
// the client, the Edge and the Node is in it.
func reportCPU(b *testing.B, each int, unit string) func() {
	before := processCPU(b)
	return func() { b.ReportMetric(float64((processCPU(b)-before).Nanoseconds())/float64(b.N*each), unit) }
}

// BenchmarkUnary is one small request through client, Edge, tunnel and a Node whose provider costs nothing, all in one
// process, over real sockets.
func BenchmarkUnary(b *testing.B) {
	logs := gateway.NewLogWriter(io.Discard)
	defer logs.Close()
	e := newEdge(b, func(c *gateway.Config) { c.Logger = slog.New(gateway.NewLogHandler(logs, slog.LevelInfo)) })
	e.addNode("n1", 1024, answerJSON(200, `{"object":"chat.completion","choices":[{"message":{"content":"hello"}}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`), "m")
	e.client.Transport.(*http.Transport).MaxIdleConnsPerHost = 64
	body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", 200) + `"}]}`
	b.ReportAllocs()
	b.SetParallelism(16)
	b.ResetTimer()
	defer reportCPU(b, 1, "cpu-ns/op")()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if status, _, answer := e.post("/v1/chat/completions", body); status != 200 {
				b.Errorf("%d %s", status, answer)
			}
		}
	})
}

// BenchmarkStream is 64 streams of 2,000 chunks of 220 bytes each, which the Node writes as fast as it can. Look at
// cpu-ns/chunk.
func BenchmarkStream(b *testing.B) {
	const streams, chunks = 64, 2000
	e := newEdge(b, nil)
	event := []byte("data: {\"choices\":[{\"delta\":{\"content\":\"" + strings.Repeat("y", 180) + "\"}}]}\n\n")
	e.addNode("n1", 1024, func(_ context.Context, run *tunnel.NodeRun) {
		_ = run.Head(head(200, "text/event-stream"))
		for range chunks {
			if run.Write(event, true) != nil {
				break
			}
		}
		run.End(execution.Terminal{Outcome: execution.Completed, Phase: execution.PhaseProviderDone})
	}, "m")
	e.client.Transport.(*http.Transport).MaxIdleConnsPerHost = streams
	report := reportCPU(b, streams*chunks, "cpu-ns/chunk")
	for b.Loop() {
		var wg sync.WaitGroup
		for range streams {
			wg.Go(func() {
				resp := e.do(e.request(http.MethodPost, "/v1/chat/completions", `{"model":"m","stream":true}`))
				defer resp.Body.Close()
				if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != int64(chunks*len(event)) {
					b.Errorf("%d bytes, %v", n, err)
				}
			})
		}
		wg.Wait()
	}
	report()
}
