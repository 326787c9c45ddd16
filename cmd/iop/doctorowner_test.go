//go:build linux || darwin

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestAccountReads: the owner's, the group's or the others' bit of the mode counts, of the file and of the directories above.
func TestAccountReads(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "tls.key")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	of := info.Sys().(*syscall.Stat_t)
	owner, member, other := account{uid: of.Uid}, account{uid: of.Uid + 1, groups: []uint32{of.Gid}}, account{uid: of.Uid + 1, groups: []uint32{of.Gid + 1}}
	for mode, want := range map[fs.FileMode][3]bool{0o600: {true, false, false}, 0o640: {true, true, false}, 0o604: {true, false, true}, 0o040: {false, true, false}} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if got := [3]bool{owner.may(path, 0o4), member.may(path, 0o4), other.may(path, 0o4)}; got != want {
			t.Errorf("%#o: %v, want %v", mode, got, want)
		}
	}
	if err := errors.Join(os.Chmod(path, 0o644), os.Chmod(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	if at := other.blocks(path); !strings.HasPrefix(path, at) || at == path || at == "" {
		t.Errorf("blocked at %q", at)
	}
}

// TestStartFaultOfAFile: only an address that may not be listened on is about ports.
func TestStartFaultOfAFile(t *testing.T) {
	t.Parallel()
	file := fmt.Errorf("certificate: %w", &fs.PathError{Op: "open", Path: "/etc/iop/tls.key", Err: syscall.EACCES})
	if err := startFault(file); strings.Contains(err.Error(), "CAP_NET") {
		t.Error(err)
	}
	port := fmt.Errorf("listen: %w", &net.OpError{Op: "listen", Net: "tcp", Err: os.NewSyscallError("bind", syscall.EACCES)})
	if err := startFault(port); !strings.Contains(err.Error(), "CAP_NET") {
		t.Error(err)
	}
}

// TestDoctorEdgeOfAService: what root can read is judged by the owner of the state.
func TestDoctorEdgeOfAService(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory to another user")
	}
	args, dir := quietEdge(t)
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	routes := writeFile(t, "iop.yaml", "routes:\n  - model: m\n")
	if err := os.Chmod(routes, 0o600); err != nil {
		t.Fatal(err)
	}
	_, d := diagnose(t, append(args, "--config", routes)...)
	d.has(t, "service", verdictFailed, "can't read "+routes)
}
