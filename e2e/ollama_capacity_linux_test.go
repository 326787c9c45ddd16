package e2e

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestOllamaCapacity: a Node takes an Ollama's capacity from OLLAMA_NUM_PARALLEL of its process, so that requests beyond it wait
// at the Edge; where it can't, it takes one and says how to set it. The process is the simulator under Ollama's name. Only
// Linux shows the variables of a process.
func TestOllamaCapacity(t *testing.T) {
	t.Parallel()
	link := filepath.Join(t.TempDir(), "ollama")
	if err := os.Symlink(binary, link); err != nil {
		t.Fatal(err)
	}
	ollama := func(env ...string) *simulator {
		t.Helper()
		cmd := exec.Command(link, "sim", "--flavour", "ollama", "--listen", freePort(t), "--json", "--slots", "16")
		p := startCommand(t, "ollama", env, cmd)
		var at struct{ URL string }
		p.jsonLine("url", patience, &at)
		return &simulator{process: p, url: at.URL}
	}
	for _, tt := range []struct {
		env      string
		option   string
		capacity int
		says     string
	}{
		{"OLLAMA_NUM_PARALLEL=3", "", 3, "Ollama's capacity is known"},
		{"OLLAMA_NUM_PARALLEL=3", ",capacity=2", 2, ""},
		{"OLLAMA_NUM_PARALLEL=", "", 1, "start it with OLLAMA_NUM_PARALLEL=N"},
	} {
		t.Run(tt.env+tt.option, func(t *testing.T) {
			s := newEdge(t)
			sim := ollama(tt.env)
			node := s.startNode("node-1", "--provider", "ollama="+sim.url+tt.option)
			if tt.says != "" {
				node.line(tt.says, patience)
			} else if strings.Contains(node.text(), "OLLAMA_NUM_PARALLEL") {
				t.Errorf("the Node speaks of a variable that does not count:\n%s", node.text())
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			var answers []*answer
			for range tt.capacity + 2 {
				answers = append(answers, s.ask(ctx, http.DefaultClient, "/v1/chat/completions", chat("sim-small", "ttft=10m", false)))
			}
			eventually(t, patience, "as many run as the Ollama takes, and the others wait at the Edge", func() bool {
				return s.metric("iop_queued") == 2 && sim.stats(t).Active == int64(tt.capacity)
			})
			cancel()
			for _, a := range answers {
				a.end(t, patience)
			}
			s.settled()
		})
	}
}
