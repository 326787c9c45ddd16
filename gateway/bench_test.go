package gateway_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"iop/execution"
	"iop/tunnel"
)

// BenchmarkUnary is one small request through client, Edge, tunnel and a Node whose provider costs nothing, all in one
// process, over real sockets.
func BenchmarkUnary(b *testing.B) {
	e := newEdge(b, nil)
	e.addNode("n1", 1024, answerJSON(200, `{"object":"chat.completion","choices":[{"message":{"content":"hello"}}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`), "m")
	e.client.Transport.(*http.Transport).MaxIdleConnsPerHost = 64
	body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", 200) + `"}]}`
	b.ReportAllocs()
	b.SetParallelism(16)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if status, _, answer := e.post("/v1/chat/completions", body); status != 200 {
				b.Errorf("%d %s", status, answer)
			}
		}
	})
}

// BenchmarkStream is the cost of one chunk of 220 bytes in 64 streams that the Node writes as fast as it can.
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
	var got atomic.Int64
	b.SetParallelism(streams / 2)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for {
			resp := e.do(e.request(http.MethodPost, "/v1/chat/completions", `{"model":"m","stream":true}`))
			n, _ := io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			got.Add(n)
			for range chunks {
				if !pb.Next() {
					return
				}
			}
		}
	})
	b.SetBytes(int64(len(event)))
}
