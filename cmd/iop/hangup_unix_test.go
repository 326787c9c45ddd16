//go:build unix

package main

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"iop/gateway/admin"
)

// TestHangupReloads: SIGHUP takes a changed file, and keeps the former routes where it has a fault.
func TestHangupReloads(t *testing.T) {
	s := newSite(t)
	path := writeFile(t, "iop.yaml", "routes:\n  - model: one\n")
	s.startEdge("--config", path)
	config := func() (status admin.Status) {
		s.ask(&status, "status")
		return status
	}
	if c := config().Config; c.Path != path || c.Routes != 1 || c.Digest == "" || c.Loaded == nil || c.Fault != nil {
		t.Errorf("at the start %+v", c)
	}
	change := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	change("routes:\n  - model: one\n  - model: two\n")
	eventually(t, "two routes", func() bool { return config().Config.Routes == 2 })
	digest := config().Config.Digest
	change("routes:\n  - model: one\n    policy: fastest\n")
	eventually(t, "the fault is told", func() bool { return config().Config.Fault != nil })
	if c := config().Config; c.Routes != 2 || c.Digest != digest || len(c.Fault.Faults) != 1 || c.Fault.Faults[0].Line != 3 {
		t.Errorf("after the fault %+v, %+v", c, c.Fault)
	}
	if out := s.must("status"); !strings.Contains(out, "was refused") || !strings.Contains(out, path+":3:") {
		t.Errorf("status:\n%s", out)
	}
	change("routes:\n  - model: three\n")
	eventually(t, "it is right again", func() bool { c := config().Config; return c.Fault == nil && c.Routes == 1 })
}

// TestHangupWithoutAFile: it neither ends the Edge nor goes unheeded.
func TestHangupWithoutAFile(t *testing.T) {
	s := newSite(t)
	s.startEdge()
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	var line struct{ Msg string }
	s.edge.object("SIGHUP", &line)
	if !strings.Contains(line.Msg, "nothing to reload") {
		t.Errorf("the log says %q", line.Msg)
	}
	s.must("status")
}

// TestFaultyFileDoesNotStart: every fault is told, and nothing listens.
func TestFaultyFileDoesNotStart(t *testing.T) {
	newSite(t)
	path := writeFile(t, "iop.yaml", "routes:\n  - model: one\n    policy: fastest\n  - speed: 1\n")
	status, _, stderr := execute(t, "edge", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--config", path)
	if status != exitFailed || !strings.Contains(stderr, path+":3:") || !strings.Contains(stderr, path+":4:") {
		t.Errorf("status %d, %q", status, stderr)
	}
}

// hangUp sends SIGHUP to this process, in which the commands under test run.
func hangUp(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
}

// TestThreat68CoreDumps: a process that holds credentials writes no core dump. Without the call in guardSecrets the limit
// stays what it was.
func TestThreat68CoreDumps(t *testing.T) {
	if err := guardSecrets(); err != nil {
		t.Fatal(err)
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_CORE, &limit); err != nil || limit.Cur != 0 || limit.Max != 0 {
		t.Errorf("%v: %+v", err, limit)
	}
}
