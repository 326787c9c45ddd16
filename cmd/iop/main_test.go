package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// execute runs a command line to its end.
func execute(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	status = run(t.Context(), args, &out, &errs)
	return status, out.String(), errs.String()
}

func TestExitStatus(t *testing.T) {
	tests := []struct {
		args   string
		status int
		stderr string // part of it
	}{
		{"", exitOK, ""},
		{"--help", exitOK, ""},
		{"version", exitOK, ""},
		{"bogus", exitUsage, `unknown command "bogus"`},
		{"verison", exitUsage, `did you mean "version"?`},
		{"--bogus", exitUsage, "unknown flag: --bogus"},
		{"version --bogus", exitUsage, "unknown flag: --bogus"},
		{"version more", exitUsage, `takes no argument "more"`},
	}
	for _, test := range tests {
		t.Run(test.args, func(t *testing.T) {
			status, _, stderr := execute(t, strings.Fields(test.args)...)
			if status != test.status || !strings.Contains(stderr, test.stderr) {
				t.Errorf("status %d, stderr %q; want %d, %q", status, stderr, test.status, test.stderr)
			}
			if strings.Count(stderr, "\n") > 1 {
				t.Errorf("stderr has more than one line: %q", stderr)
			}
		})
	}
}

func TestVersionJSON(t *testing.T) {
	_, stdout, _ := execute(t, "version", "--json")
	var info buildInfo
	if err := json.Unmarshal([]byte(stdout), &info); err != nil || info.Go == "" || info.Platform == "" {
		t.Errorf("%q: %v", stdout, err)
	}
}

func TestVersionLine(t *testing.T) {
	for want, info := range map[string]buildInfo{
		"iop (devel) (no revision recorded) go1 a/b":                       {Version: "(devel)", Go: "go1", Platform: "a/b"},
		"iop v1 (0123456789ab, 2026-01-02T03:04:05Z) go1 a/b":              {Version: "v1", Revision: "0123456789abcdef", Time: "2026-01-02T03:04:05Z", Go: "go1", Platform: "a/b"},
		"iop v1 (0123456789ab with changes, 2026-01-02T03:04:05Z) go1 a/b": {Version: "v1", Revision: "0123456789abcdef", Time: "2026-01-02T03:04:05Z", Modified: true, Go: "go1", Platform: "a/b"},
	} {
		if got := info.line(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestEveryCommandIsExplained: each command has a line of help, and an example that begins with its own name.
func TestEveryCommandIsExplained(t *testing.T) {
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: help %q", cmd.CommandPath(), cmd.Short)
		}
		if !strings.Contains(cmd.Example, cmd.CommandPath()) {
			t.Errorf("%s: no example of it in %q", cmd.CommandPath(), cmd.Example)
		}
		for _, c := range cmd.Commands() {
			visit(c)
		}
	}
	visit(newRootCommand())
}
