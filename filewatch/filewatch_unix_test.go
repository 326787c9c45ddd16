//go:build unix

package filewatch

import (
	"errors"
	"os"
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
