package main

import (
	"log/slog"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestOneEdgeForAState: a second Edge is refused while the first one runs, and not afterwards.
func TestOneEdgeForAState(t *testing.T) {
	switch runtime.GOOS {
	case "linux", "darwin", "windows":
	default:
		t.Skip("files can't be locked here")
	}
	path := filepath.Join(t.TempDir(), "iop.db")
	url, log := "sqlite://"+path, slog.New(slog.DiscardHandler)
	release, err := claimState(url, log)
	if err != nil {
		t.Fatal(err)
	}
	status, _, stderr := execute(t, "edge", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--state", url)
	if status != exitFailed || !strings.Contains(stderr, "another Edge uses the state") {
		t.Errorf("a second Edge: status %d, %q", status, stderr)
	}
	if status, _, stderr = execute(t, "key", "create", "--name", "x", "--admin-url", "http://127.0.0.1:1", "--state", url); status != exitOK {
		t.Errorf("a command meanwhile: status %d, %q", status, stderr)
	}
	if err := release(); err != nil {
		t.Fatal(err)
	}
	if release, err = claimState(url, log); err != nil {
		t.Fatalf("after the first one's end: %v", err)
	}
	if err := release(); err != nil {
		t.Error(err)
	}
}
