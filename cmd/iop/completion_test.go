package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// completions are what a shell would offer for the last word of a command line.
func completions(t *testing.T, args ...string) string {
	t.Helper()
	status, stdout, stderr := execute(t, append([]string{"__complete"}, args...)...)
	if status != exitOK {
		t.Fatalf("status %d: %s", status, stderr)
	}
	return stdout
}

// TestCompletion: commands and closed sets complete without an Edge, and what an Edge knows with one.
func TestCompletion(t *testing.T) {
	t.Setenv("IOP_EDGE_STATE", "sqlite://"+filepath.Join(t.TempDir(), "none", "iop.db"))
	t.Setenv("IOP_ADMIN_URL", "http://127.0.0.1:1")
	for line, want := range map[string]string{
		"key ": "create\t", "runs --run-state ": "queued\n", "usage --by ": "model\n", "help ca ": "issue\t", "drain ": ":4",
		"completion ": "bash\t",
	} {
		if out := completions(t, strings.Split(line, " ")...); !strings.Contains(out, want) {
			t.Errorf("%s: %q", line, out)
		}
	}

	edge := startEdge(t)
	t.Setenv("IOP_EDGE_STATE", edge.state)
	_, id, _ := execute(t, "key", "create", "--name", "alice", "--admin-url", "http://"+edge.admin, "--json")
	_, _, _ = execute(t, "join-token", "create", "--node", "gpu-3", "--admin-url", "http://"+edge.admin)
	url := []string{"--admin-url", "http://" + edge.admin}
	for line, want := range map[string]string{"key revoke": "alice\t", "key show": "alice\t", "join-token revoke": "\tgpu-3\n"} {
		out := completions(t, append(append(strings.Fields(line), url...), "")...)
		_, about, _ := strings.Cut(out, "\t")
		word, _, _ := strings.Cut(about, "\n")
		if !strings.Contains(out, want) || word == "" || strings.HasPrefix(line, "key") && !strings.Contains(id, word) {
			t.Errorf("%s: %q", line, out)
		}
	}
	if out := completions(t, append(append([]string{"runs"}, url...), "--key", "")...); !strings.Contains(out, "alice") {
		t.Errorf("--key: %q", out)
	}
}

// lockedText keeps what is written to it.
type lockedText struct {
	mu   sync.Mutex
	text string // guarded by mu
}

func (l *lockedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text += string(p)
	return len(p), nil
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text
}

// TestShowWait: a person is told after a second, each second, and nothing of it stays.
func TestShowWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out lockedText
		stop := showWait(&out, "waiting")
		time.Sleep(waitShown - time.Millisecond)
		synctest.Wait()
		if out.String() != "" {
			t.Errorf("too early: %q", out.String())
		}
		time.Sleep(2 * waitShown)
		stop()
		stop()
		if text := out.String(); !strings.Contains(text, "waiting, 1s") || !strings.HasSuffix(text, "\r"+strings.Repeat(" ", 11)+"\r") {
			t.Errorf("%q", text)
		}
	})
	var out bytes.Buffer
	onlyOnTerminal(&out, "waiting")() // no terminal: nothing runs
}
