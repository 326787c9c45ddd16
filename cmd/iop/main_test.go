package main

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"unicode/utf8"

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
		{"help key create", exitOK, ""},
		{"help bogus", exitUsage, `no command "bogus"`},
		{"signing-key", exitUsage, "needs a command"},
		{"completion", exitUsage, "needs a shell"},
		{"completion bash", exitOK, ""},
		{"completion tcsh", exitUsage, ""},
		{"cancel", exitUsage, "needs the run's id"},
		{"runs --limit x", exitUsage, "--limit"},
		{"doctor", exitUsage, "needs a command"},
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

// withoutJSON are the commands that print nothing that a script would read as JSON, and why.
var withoutJSON = map[string]string{
	"iop":                       "a group",
	"iop ca":                    "a group",
	"iop doctor":                "a group",
	"iop ollama":                "a group",
	"iop signing-key":           "a group",
	"iop completion":            "a group",
	"iop completion bash":       "a script for the shell",
	"iop completion zsh":        "a script for the shell",
	"iop completion fish":       "a script for the shell",
	"iop completion powershell": "a script for the shell",
	"iop help":                  "text for people",
	"iop ca bundle":             "PEM, which is what programs read",
	"iop edge":                  "its log is JSON where it is read by a program",
	"iop node":                  "its log is JSON where it is read by a program",
}

// TestEveryCommandIsExplained: each command has a line of help, a paragraph, an example that begins with its own name, and
// JSON for scripts where it prints data.
func TestEveryCommandIsExplained(t *testing.T) {
	excused := maps.Clone(withoutJSON)
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		if cmd.Hidden { // another form of a command
			return
		}
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: help %q", cmd.CommandPath(), cmd.Short)
		}
		if len(cmd.Long) < len(cmd.Short)+10 {
			t.Errorf("%s: its paragraph says no more than its line: %q", cmd.CommandPath(), cmd.Long)
		}
		if !strings.Contains(cmd.Example, cmd.CommandPath()) {
			t.Errorf("%s: no example of it in %q", cmd.CommandPath(), cmd.Example)
		}
		why, without := excused[cmd.CommandPath()]
		delete(excused, cmd.CommandPath())
		if has := cmd.Flags().Lookup("json") != nil; has == without || without && why == "" {
			t.Errorf("%s: --json: %v, excused: %v %s", cmd.CommandPath(), has, without, why)
		}
		for _, line := range strings.Split(cmd.Long, "\n") {
			if width := utf8.RuneCountInString(line); width > 85 && cmd.Name() != "sim" && cmd.Parent().Name() != "completion" {
				t.Errorf("%s: a line of %d characters in its help", cmd.CommandPath(), width)
			}
		}
		for _, c := range cmd.Commands() {
			visit(c)
		}
	}
	visit(newRootCommand())
	if len(excused) > 0 {
		t.Errorf("excused, and no commands: %v", excused)
	}
}

// TestExamplesParse: what stands in an example is a command line that the binary takes.
func TestExamplesParse(t *testing.T) {
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		text := strings.ReplaceAll(cmd.Example, "\\\n", " ")
		for line := range strings.Lines(text) {
			line, _, _ = strings.Cut(strings.TrimSpace(line), " > ")
			line, _, _ = strings.Cut(line, " | ")
			line, _, _ = strings.Cut(line, " < ")
			words := strings.Fields(strings.ReplaceAll(strings.ReplaceAll(line, "''", "none"), "'", ""))
			if len(words) == 0 || words[0] != "iop" {
				continue
			}
			found, rest, err := newRootCommand().Find(words[1:])
			if err == nil {
				err = found.ParseFlags(rest)
			}
			if err == nil {
				err = found.ValidateArgs(found.Flags().Args())
			}
			if err != nil {
				t.Errorf("%s: %q: %v", cmd.CommandPath(), line, err)
			}
		}
		for _, c := range cmd.Commands() {
			visit(c)
		}
	}
	visit(newRootCommand())
}

// TestGivenRevision: a build that knows no repository says what the linker was told.
func TestGivenRevision(t *testing.T) {
	revision = "0123456789abcdef"
	t.Cleanup(func() { revision = "" })
	if info := readBuildInfo(); info.Revision != revision {
		t.Errorf("%+v", info)
	}
}
