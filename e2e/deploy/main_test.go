package deploy

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Paths from this package.
const (
	deployDir = "../../deploy"
	docsDir   = "../../docs"
)

// needs returns the path of a program, or skips the test: these are programs that make can't always install.
func needs(t *testing.T, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("there is no %s here", program)
	}
	return path
}

// command runs a program to its end and returns its standard output.
func command(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	out, err := tryCommand(env, nil, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// tryCommand is command for what may fail; the error holds what the program wrote.
func tryCommand(env []string, stdin []byte, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Env, cmd.Stdin = append(os.Environ(), env...), bytes.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

func readFile(t *testing.T, path ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
