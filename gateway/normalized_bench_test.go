package gateway_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// The same stream as the relay benchmarks have, for a client whose protocol the provider does not speak: the Node reads
// it as events, and the Edge renders them. Beside BenchmarkRelayFlood and BenchmarkRelayPaced it says what that costs.
func BenchmarkNormalizedFlood(b *testing.B) { benchNormalized(b, 64, 2000, 0) }
func BenchmarkNormalizedPaced(b *testing.B) { benchNormalized(b, 100, 100, 20*time.Millisecond) }

// finishChunk ends a stream as an adapter wants it.
const finishChunk = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"

func benchNormalized(b *testing.B, streams, chunks int, pause time.Duration) {
	e := benchEdge(b, streams)
	e.addAgent(streamChunks(chunks, pause, finishChunk+doneEvent))
	const body = `{"model":"m","stream":true,"max_tokens":100000,"messages":[{"role":"user","content":"hi"}]}`
	e.eventually("the provider's paths are known", func() bool {
		status, h, _ := e.post("/v1/messages", strings.Replace(body, "true", "false", 1))
		return status == http.StatusOK && h.Get("X-Iop-Execution") == "normalized"
	})
	report := reportCPU(b, streams*chunks, "cpu-ns/chunk")
	for b.Loop() {
		var wg sync.WaitGroup
		for range streams {
			wg.Go(func() {
				resp := e.do(e.request(http.MethodPost, "/v1/messages", body))
				defer resp.Body.Close()
				var last tail
				if n, err := io.Copy(&last, resp.Body); err != nil || n < int64(chunks*180) || !bytes.Contains(last, []byte("message_stop")) {
					b.Errorf("%d bytes, %v: %q", n, err, last)
				}
			})
		}
		wg.Wait()
	}
	report()
}

// tail keeps the end of what is written.
type tail []byte

func (t *tail) Write(p []byte) (int, error) {
	if len(p) > 256 {
		*t = append((*t)[:0], p[len(p)-256:]...)
		return len(p), nil
	}
	*t = append(*t, p...)
	*t = (*t)[max(0, len(*t)-256):]
	return len(p), nil
}
