package e2e

import (
	"bufio"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestNamesPeopleType has the official SDKs ask an Ollama for llama3.2, which it lists as llama3.2:latest, and gives them wrong
// base URLs.
func TestNamesPeopleType(t *testing.T) {
	t.Parallel()
	s := newEdge(t)
	s.key = s.newKey("limited", "--routes", "*")
	sim := s.startSim("--flavour", "ollama", "--models", "llama3.2:latest,qwen3:4b")
	s.startNode("node-1", "--provider", "ollama:ollama="+sim.url)
	s.lists(t, grace, "llama3.2:latest", "qwen3:4b")
	w := &sdkWorld{main: s, sdkTarget: s.sdkTarget()}
	s.runNamesScript(t, w, "names.py", "names/openai_stream", "names/openai_responses", "names/anthropic_stream", "names/retrieve", "names/suggested",
		"urls/openai_wrong", "urls/anthropic_wrong", "urls/ollama_wrong", "urls/slash")

	var usage struct {
		Data []struct {
			Model     string
			Completed int
		}
	}
	s.json(&usage, "usage", "--by", "model", "--json")
	completed := map[string]int{}
	for _, row := range usage.Data {
		if row.Completed > 0 {
			completed[row.Model] = row.Completed
		}
	}
	if len(completed) != 1 || completed["llama3.2:latest"] != 4 {
		t.Errorf("usage is booked for the models %v", completed)
	}
	s.settled()
}

// runNamesScript runs a script of sdk/python, which must have these checks.
func (s *stack) runNamesScript(t *testing.T, w *sdkWorld, script string, checks ...string) {
	t.Helper()
	command := []string{filepath.Join(sdkDir(t), "clients", "bin", "python"), filepath.Join("sdk", "python", script)}
	runScriptWith(t, w, command, func(out *bufio.Reader) {
		ran := w.follow(t, out)
		if missing := slices.DeleteFunc(slices.Clone(checks), func(name string) bool { return slices.Contains(ran, name) }); len(missing) > 0 {
			t.Errorf("these checks did not run: %s", strings.Join(missing, ", "))
		}
	})
}
