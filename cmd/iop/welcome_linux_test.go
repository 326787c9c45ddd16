package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// openTerminal returns a terminal for a command, and what a person reads there, line by line. The channel is closed at its end.
func openTerminal(t *testing.T) (*os.File, <-chan string) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		defer master.Close()
		for scan := bufio.NewScanner(master); scan.Scan(); { // it ends when nobody has the terminal any more
			lines <- strings.TrimRight(scan.Text(), "\r")
		}
	}()
	return terminal, lines
}

// onPTY runs an Edge whose standard output, or error, is a terminal until a line has been read there, and returns what was read.
func onPTY(t *testing.T, last string, toStdout bool, args ...string) string {
	t.Helper()
	terminal, lines := openTerminal(t)
	other, err := os.Create(filepath.Join(t.TempDir(), "other"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	stdout, stderr := terminal, other
	if !toStdout {
		stdout, stderr = other, terminal
	}
	ctx, stop := context.WithCancel(context.Background())
	status := make(chan int, 1)
	go func() {
		status <- run(ctx, append([]string{"edge", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--drain-timeout", "1s"}, args...), stdout, stderr)
	}()
	var read []string
	for line := range lines {
		if read = append(read, line); strings.Contains(line, last) {
			break
		}
	}
	stop()
	if got := <-status; got != exitOK {
		t.Errorf("status %d", got)
	}
	terminal.Close()
	for line := range lines {
		read = append(read, line)
	}
	return strings.Join(read, "\n")
}

// TestWelcome: the first Edge on a terminal tells where it is and what comes next, a later one where it is.
func TestWelcome(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	state := "sqlite://" + filepath.Join(dir, "iop.db")
	token := filepath.Join(dir, "admin-token")
	first := onPTY(t, "iop join-token create", true, "--state", state)
	for _, want := range []string{
		"  base URL     http://127.0.0.1:", "/v1\n", "  console      http://127.0.0.1:", "/admin/\n", "  admin token  " + token, "export IOP_EDGE_STATE=" + state,
		"export IOP_ADMIN_URL=http://127.0.0.1:", "iop key create --name", "iop join-token create --node",
	} {
		if !strings.Contains(first, want) {
			t.Errorf("the first start lacks %q:\n%s", want, first)
		}
	}
	for name, toStdout := range map[string]bool{"standard output": true, "standard error": false} {
		later := onPTY(t, "base URL", toStdout, "--state", state)
		if !strings.Contains(later, "console http://127.0.0.1:") || !strings.Contains(later, token) || strings.Contains(later, "iop key create") {
			t.Errorf("a later start, on %s:\n%s", name, later)
		}
	}
	secret, err := os.ReadFile(token)
	if err != nil || len(secret) < 10 || strings.Contains(first, strings.TrimSpace(string(secret))) {
		t.Errorf("the admin token itself, %v:\n%s", err, first)
	}
}
