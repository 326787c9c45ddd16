package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// toolSetting is a variable of a command that developers use: docs/commands.md is enough.
var toolSetting = regexp.MustCompile(`^IOP_(DEV|SIM|BENCH)_`)

// TestConfigurationIsDocumented: docs/configuration.md and the Edge, the Node and the operator's commands name the same variables.
func TestConfigurationIsDocumented(t *testing.T) {
	data, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	variable := regexp.MustCompile(`\((IOP_[A-Z_]+)\)$`)
	known := map[string]bool{}
	var visit func(cmd *cobra.Command)
	visit = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(flag *pflag.Flag) {
			m := variable.FindStringSubmatch(flag.Usage)
			if m == nil {
				return
			}
			known[m[1]] = true
			if strings.HasSuffix(m[1], "_FILE") || toolSetting.MatchString(m[1]) {
				return // the forms with a file are explained once, developers' tools in docs/commands.md
			}
			if !strings.Contains(text, "| `"+m[1]+"` | `--"+flag.Name+"` |") {
				t.Errorf("%s: %s and --%s have no line in docs/configuration.md", cmd.CommandPath(), m[1], flag.Name)
			}
		})
		for _, c := range cmd.Commands() {
			visit(c)
		}
	}
	visit(newRootCommand())
	for _, name := range regexp.MustCompile(`IOP_(EDGE|NODE|DEV|ADMIN|BENCH)_[A-Z_]*[A-Z]`).FindAllString(text, -1) {
		if !known[name] {
			t.Errorf("docs/configuration.md names %s, which no command knows", name)
		}
	}
}

// TestReadmeNamesRealCommands: what a newcomer types exists.
func TestReadmeNamesRealCommands(t *testing.T) {
	for _, file := range []string{"../../README.md", "../../docs/docker.md", "../../docs/configuration.md", "../../DEVELOPERS.md"} {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("(?m)(?:^|`| /)iop ([a-z][a-z-]*)").FindAllStringSubmatch(string(data), -1) {
			if cmd, _, err := newRootCommand().Find([]string{m[1]}); err != nil || !cmd.HasParent() {
				t.Errorf("%s: iop %s is no command", file, m[1])
			}
		}
	}
}

// TestComposeUsesRealCommands: the compose file's command lines and variables are this binary's.
func TestComposeUsesRealCommands(t *testing.T) {
	data, err := os.ReadFile("../../deploy/docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^    command: (.*)$`).FindAllStringSubmatch(string(data), -1)
	if len(lines) < 4 {
		t.Fatalf("found %d command lines", len(lines))
	}
	for _, line := range lines {
		cmd, rest, err := newRootCommand().Find(strings.Fields(line[1]))
		if err != nil || !cmd.HasParent() {
			t.Errorf("%q: no such command: %v", line[1], err)
			continue
		}
		if err := cmd.ParseFlags(rest); err != nil || cmd.Flags().NArg() > 0 {
			t.Errorf("%q: %v, arguments %q", line[1], err, cmd.Flags().Args())
		}
	}
	documented, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^      (IOP_[A-Z_]+): `).FindAllStringSubmatch(string(data), -1) {
		known := func(name string) bool { return strings.Contains(string(documented), "`"+name+"`") }
		if !known(m[1]) && !known(strings.TrimSuffix(m[1], "_FILE")) {
			t.Errorf("%s is no setting", m[1])
		}
	}
}

// TestDocumentsHangTogether: each link between documents leads somewhere, and the index has every document.
func TestDocumentsHangTogether(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(files) < 15 {
		t.Fatalf("%d documents, %v", len(files), err)
	}
	index := readText(t, "../../docs/README.md")
	for _, file := range files {
		if name := filepath.Base(file); name != "README.md" && !strings.Contains(index, "("+name+")") {
			t.Errorf("docs/README.md does not list %s", name)
		}
	}
	top, err := filepath.Glob("../../*.md")
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for _, file := range append(append(files, top...), "../../tunnel/wire/README.md") {
		for _, m := range link.FindAllStringSubmatch(readText(t, file), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			path := file
			if target != "" {
				path = filepath.Join(filepath.Dir(file), target)
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s: a link to %s leads nowhere", strings.TrimPrefix(file, "../../"), m[1])
			} else if anchor != "" && !anchors(readText(t, path))[anchor] {
				t.Errorf("%s: %s has no part %s", strings.TrimPrefix(file, "../../"), path, anchor)
			}
		}
	}
}

// anchors are the names under which a page's headings can be linked to.
func anchors(text string) map[string]bool {
	names := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		name := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		names[strings.ReplaceAll(name, " ", "-")] = true
	}
	return names
}
