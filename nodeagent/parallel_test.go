package nodeagent

import (
	"log/slog"
	"strings"
	"testing"

	"iop/sim"
)

func TestParallelOf(t *testing.T) {
	for environ, want := range map[string]int{
		"":                        0,
		"PATH=/bin\x00HOME=/root": 0,
		"OLLAMA_NUM_PARALLEL=4":   4,
		"A=b\x00OLLAMA_NUM_PARALLEL=4\x00C=d\x00":          4,
		"OLLAMA_NUM_PARALLEL= '8' ":                        8,
		"OLLAMA_NUM_PARALLEL=\"2\"":                        2,
		"OLLAMA_NUM_PARALLEL=":                             0,
		"OLLAMA_NUM_PARALLEL=0":                            0,
		"OLLAMA_NUM_PARALLEL=-1":                           0,
		"OLLAMA_NUM_PARALLEL=many":                         0,
		"OLLAMA_NUM_PARALLEL=999999":                       maxCapacity,
		"OLLAMA_NUM_PARALLEL=99999999999999999999":         0,
		"XOLLAMA_NUM_PARALLEL=4":                           0,
		"A=\nOLLAMA_NUM_PARALLEL=4":                        0,
		"OLLAMA_NUM_PARALLEL=3\x00OLLAMA_NUM_PARALLEL=4":   3,
		"OLLAMA_NUM_PARALLEL_X=4\x00ollama_num_parallel=4": 0,
	} {
		if got := parallelOf([]byte(environ)); got != want {
			t.Errorf("%q: %d, want %d", environ, got, want)
		}
	}
}

func FuzzParallelOf(f *testing.F) {
	f.Add([]byte("A=b\x00OLLAMA_NUM_PARALLEL=4\x00"))
	f.Add([]byte("OLLAMA_NUM_PARALLEL=\"'"))
	f.Fuzz(func(t *testing.T, environ []byte) {
		if n := parallelOf(environ); n < 0 || n > maxCapacity {
			t.Errorf("%q: %d", environ, n)
		}
	})
}

func TestLocalPort(t *testing.T) {
	for url, want := range map[string]uint16{
		"http://127.0.0.1:11434": 11434, "http://localhost:11434/base": 11434, "http://[::1]:11434": 11434, "http://127.1.2.3:5": 5,
		"http://localhost": 80, "https://localhost": 443, "http://10.0.0.1:11434": 0, "http://ollama:11434": 0, "http://localhost.example:1": 0,
	} {
		if got := testAgent(t, ProviderSpec{ID: "p", URL: url}).only().localPort(); got != want {
			t.Errorf("%s: port %d, want %d", url, got, want)
		}
	}
}

// An Ollama whose capacity can't be known gets one run at a time, and the log names the flag and the variable, once. What the
// operator says needs no words.
func TestUnknownOllamaCapacity(t *testing.T) {
	server := engineServer(t, sim.Ollama, 1)
	for _, capacity := range []int{0, 6} {
		var log strings.Builder
		p := testAgent(t, ProviderSpec{ID: "p", URL: server.URL, Capacity: capacity}).only()
		b := &prober{p: p, log: slog.New(slog.NewTextHandler(&log, nil)), changed: func() {}}
		b.look(t.Context())
		b.identified = b.identified.Add(-2 * askAgain)
		b.look(t.Context())
		if got := p.capacity.Load(); got != int64(max(capacity, 1)) {
			t.Errorf("the operator says %d: capacity %d", capacity, got)
		}
		hint := "--provider p=" + server.URL + ",capacity=N"
		if n := strings.Count(log.String(), hint); n != 1 && capacity == 0 || n != 0 && capacity != 0 {
			t.Errorf("the operator says %d: the log has the flag %d times: %s", capacity, n, &log)
		}
		if capacity == 0 && !strings.Contains(log.String(), numParallel) {
			t.Errorf("the variable is not named: %s", &log)
		}
	}
}
