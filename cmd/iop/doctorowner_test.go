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

// TestDoctorEdgeOfAService: what root can read is judged by the owner of the state. Any user may run it: the doctor takes its user
// as a parameter, and files that nobody may read are closed to the owner of the state too.
func TestDoctorEdgeOfAService(t *testing.T) {
	root := os.Geteuid() == 0
	args, dir := quietEdge(t)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if root {
		if _, other := serviceOf(dir, 0); other {
			t.Error("root's own state is another user's")
		}
		if err := os.Chown(dir, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	routes := writeFile(t, "iop.yaml", "routes:\n  - model: m\n")
	examine := func(euid int) (found diagnosis) {
		d := doctor{show: func(checkup) {}}
		e := edgeDoctor{d: &d, config: &edgeSettings{Config: routes}, files: []string{filepath.Join(dir, "iop.db")}}
		e.serviceReads(euid)
		return d.diagnosis
	}
	if err := os.Chmod(routes, 0); err != nil {
		t.Fatal(err)
	}
	d := examine(0)
	d.has(t, "service", verdictFailed, "can't read "+routes)
	if !strings.HasPrefix(d.Checks[0].Do, "chown ") {
		t.Errorf("%+v", d.Checks)
	}
	if d := examine(1000); len(d.Checks) != 0 {
		t.Errorf("not root: %+v", d.Checks)
	}
	if root { // the whole command
		_, d := diagnose(t, append(args, "--config", routes)...)
		d.has(t, "service", verdictFailed, "can't read "+routes)
	}
	closed := filepath.Dir(routes)
	if err := errors.Join(os.Chmod(routes, 0o644), os.Chmod(closed, 0)); err != nil {
		t.Fatal(err)
	}
	d = examine(0)
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	d.has(t, "service", verdictFailed, "it can't enter "+closed)
	if strings.Contains(d.Checks[0].Do, "chown") {
		t.Errorf("a directory is not to be given away: %+v", d.Checks)
	}
}

// TestRootGivesStateToTheService: a state that root's command makes in a directory of the service is the service's. Others can make
// files of their own only.
func TestRootGivesStateToTheService(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	owner := os.Geteuid()
	if owner == 0 {
		owner = 65534
		if err := os.Chown(dir, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	if status, _, stderr := execute(t, "key", "create", "--name", "a", "--admin-url", "http://127.0.0.1:1", "--state", "sqlite://"+filepath.Join(dir, "iop.db")); status != exitOK {
		t.Fatalf("%d: %s", status, stderr)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) < 2 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		if uid := info.Sys().(*syscall.Stat_t).Uid; int(uid) != owner {
			t.Errorf("%s belongs to %d, not to %d", f.Name(), uid, owner)
		}
	}
}
