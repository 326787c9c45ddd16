//go:build unix

package filewatch

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestFilesThatCannotBeRead: each fault of each file is in the error, nothing blocks, and the contents in force stay.
func TestFilesThatCannotBeRead(t *testing.T) {
	p := newPair(t)
	p.open()
	expect := func(words ...string) {
		t.Helper()
		p.Look()
		p.Look()
		for _, word := range words {
			if !strings.Contains(p.Status().Fault, word) {
				t.Errorf("%q lacks %q", p.Status().Fault, word)
			}
		}
		if len(p.taken) != 1 {
			t.Errorf("took %q", p.taken)
		}
	}
	old := time.Now().Add(-time.Hour)
	if err := errors.Join(os.Chtimes(p.a, old, old), os.Chtimes(p.b, old, old), p.Reload()); err != nil {
		t.Fatal(err)
	}
	p.Look() // reads them once more, now that their times tell a change
	if err := os.Chmod(p.b, 0o640); err != nil {
		t.Fatal(err)
	}
	expect(p.b, "0600") // nothing but the mode changed
	p.write(p.a, "nine bytes")
	expect(p.a+": the file is larger than 8 bytes", "0600")
	if err := errors.Join(os.Remove(p.a), os.Remove(p.b), syscall.Mkfifo(p.b, 0o600)); err != nil {
		t.Fatal(err)
	}
	expect("no such file", p.b+" is not a regular file")
	if err := os.Remove(p.b); err != nil {
		t.Fatal(err)
	}
	p.write(p.a, "a1")
	p.write(p.b, "b1")
	p.Look()
	p.Look()
	if p.Status().Fault != "" {
		t.Errorf("%+v", p.Status())
	}
}

// TestReplaceKeepsTheOwner: what root renews stays readable for the service whose file it is. Other users are the owner anyway.
func TestReplaceKeepsTheOwner(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := Create(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Create(path, []byte("new"), 0o600); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a file that exists: %v", err)
	}
	uid, gid := os.Geteuid(), os.Getegid()
	if uid == 0 {
		uid, gid = 65534, 65534
		if err := os.Chown(path, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	if err := Replace(path, []byte("new"), 0o640); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil || string(content) != "new" {
		t.Errorf("%q, %v", content, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if owner := info.Sys().(*syscall.Stat_t); int(owner.Uid) != uid || int(owner.Gid) != gid || info.Mode().Perm() != 0o640 {
		t.Errorf("owned by %d:%d, mode %v", owner.Uid, owner.Gid, info.Mode())
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 1 {
		t.Errorf("left %v, %v", left, err)
	}
}
