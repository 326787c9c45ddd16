package e2e

import (
	"context"
	"net/http"
	"strings"
	"testing"
)

// TestStreamLostWithItsNodeIsBooked: by what the client has got of it, whatever it asked for at most.
func TestStreamLostWithItsNodeIsBooked(t *testing.T) {
	t.Parallel()
	for name, most := range map[string]int{"with a length": 1024, "without": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStack(t, stackConfig{})
			body := chat("sim-small", "tokens=1000,itl=10ms", true)
			if most > 0 {
				body["max_tokens"] = most
			}
			a := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", body)
			a.reaches(t, 20, patience)
			s.nodes[0].kill()
			if err := a.end(t, patience).broken(); err != nil {
				t.Error(err)
			}
			s.quiet()
			got := s.records()[a.header.Get("X-Iop-Run-Id")]
			delivered := int64(strings.Count(a.body.String(), `"choices"`))
			if delivered < 20 || got.Output < delivered || got.Output > delivered+2 || !got.Estimated || !got.Known || got.Input == 0 {
				t.Errorf("%d events were delivered, booked is %+v", delivered, got)
			}
		})
	}
}
