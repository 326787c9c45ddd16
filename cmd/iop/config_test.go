package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCheckConfig(t *testing.T) {
	t.Setenv("IOP_EDGE_STATE", "sqlite://"+filepath.Join(t.TempDir(), "none", "iop.db"))
	good := writeFile(t, "iop.yaml", "routes:\n  - model: chat\n    targets: [{model: m}]\n  - model: m\n")
	status, stdout, stderr := execute(t, "edge", "--config", good, "--check-config")
	if status != exitOK || !strings.HasPrefix(stdout, good+": 2 routes, ok\nmodels that no route names are served under their own names\nnot compared with routes in force: ") || strings.Count(stdout, "\n") != 3 || stderr != "" {
		t.Errorf("status %d, %q, %q", status, stdout, stderr)
	}

	bad := writeFile(t, "bad.yaml", "routes:\n  - model: chat\n    policy: fastest\n  - model: chat\n    speed: 1\n")
	t.Setenv("IOP_EDGE_CONFIG", bad)
	status, stdout, stderr = execute(t, "edge", "--check-config")
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	if status != exitFailed || stdout != "" || len(lines) < 3 {
		t.Errorf("status %d, %q, %q", status, stdout, stderr)
	}
	for _, line := range lines {
		if !strings.HasPrefix(line, bad+":") {
			t.Errorf("a line that no editor understands: %q", line)
		}
	}

	t.Setenv("IOP_EDGE_CONFIG", bad+".none")
	status, _, stderr = execute(t, "edge", "--check-config")
	if status != exitFailed || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "no such file") {
		t.Errorf("no file: status %d, %q", status, stderr)
	}
	if _, err := os.Stat(filepath.Dir(strings.TrimPrefix(os.Getenv("IOP_EDGE_STATE"), "sqlite://"))); err == nil {
		t.Error("a check made a state")
	}
}

// TestCheckConfigOfManagedMode: a file with slots is right in managed mode alone, and is checked without a certificate.
func TestCheckConfigOfManagedMode(t *testing.T) {
	t.Setenv("IOP_EDGE_STATE", "sqlite://"+filepath.Join(t.TempDir(), "none", "iop.db"))
	path := writeFile(t, "iop.yaml", "routes:\n  - model: chat\n    targets: [{model: m, slot: main}]\n")
	if status, stdout, stderr := execute(t, "edge", "--mode", "managed", "--config", path, "--check-config"); status != exitOK || !strings.HasPrefix(stdout, path+": 1 route, ok\n") {
		t.Errorf("managed: status %d: %s%s", status, stdout, stderr)
	}
	if status, _, stderr := execute(t, "edge", "--config", path, "--check-config"); status != exitFailed || !strings.Contains(stderr, "managed mode") {
		t.Errorf("token: status %d: %s", status, stderr)
	}
}

// TestExampleConfigIsRight: the file that we ship as an example is one that the Edge takes.
func TestExampleConfigIsRight(t *testing.T) {
	if status, stdout, stderr := execute(t, "edge", "--config", "../../deploy/iop.example.yaml", "--check-config"); status != exitOK {
		t.Errorf("status %d: %s%s", status, stdout, stderr)
	}
}
