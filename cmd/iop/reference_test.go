package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// update has TestReferencesAreCurrent write the references instead of comparing: make generate.
var update = flag.Bool("update", false, "write docs/commands.md and the tables of docs/configuration.md")

const (
	configurationFile = "../../docs/configuration.md"
	commandsFile      = "../../docs/commands.md"
)

// TestReferencesAreCurrent makes the references anew from the commands and their settings, and compares.
func TestReferencesAreCurrent(t *testing.T) {
	before := readText(t, configurationFile)
	for file, fresh := range map[string]string{
		configurationFile: configurationReference(t, before), commandsFile: commandsReference(newRootCommand()),
	} {
		if *update {
			if err := os.WriteFile(file, []byte(fresh), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if readText(t, file) != fresh {
			t.Errorf("%s is not what the commands say; run: make generate", strings.TrimPrefix(file, "../../"))
		}
	}
}

func readText(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil && !(*update && os.IsNotExist(err)) {
		t.Fatal(err)
	}
	return string(data)
}

// generatedTable is a table of settings in docs/configuration.md: the command whose they are, and perhaps a word.
var generatedTable = regexp.MustCompile(`(?s)<!-- settings: ([a-z -]+?)(, managed)? -->\n.*?<!-- end -->`)

// configurationReference is the text with its tables made anew.
func configurationReference(t *testing.T, text string) string {
	t.Helper()
	return generatedTable.ReplaceAllStringFunc(text, func(old string) string {
		m := generatedTable.FindStringSubmatch(old)
		cmd, rest, err := newRootCommand().Find(strings.Fields(m[1]))
		if err != nil || len(rest) > 0 {
			t.Fatalf("docs/configuration.md: a table for %q: %v", m[1], err)
		}
		begin, _, _ := strings.Cut(old, "\n")
		return begin + "\n\n" + settingsTable(cmd, m[2] != "") + "\n<!-- end -->"
	})
}

const managedHelp = "managed mode: "

// settingsTable is the settings of a command that are for managed mode, or the others. What each is for is in the
// command's help, so in docs/commands.md; the table has the rest.
func settingsTable(cmd *cobra.Command, managed bool) string {
	rows := []string{"| variable | flag | default | notes |", "| --- | --- | --- | --- |"}
	cmd.Flags().SortFlags = false
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Annotations[helpAnnotation] == nil || strings.HasPrefix(annotation(f, helpAnnotation), managedHelp) != managed {
			return
		}
		var notes []string
		if more := annotation(f, moreAnnotation); more != "" {
			notes = append(notes, strings.TrimSuffix(more, "."))
		}
		variable := variableOf(f)
		if cmd.Flags().Lookup(f.Name+"-file") != nil && !strings.HasSuffix(variable, "_FILE") {
			notes = append(notes, fmt.Sprintf("Also %s_FILE (--%s-file)", variable, f.Name))
		}
		row := fmt.Sprintf("| `%s` | `--%s` | %s | %s", variable, f.Name, defaultOf(f), inTable(strings.Join(notes, ". ")))
		rows = append(rows, strings.TrimRight(row, " ")+" |")
	})
	return strings.Join(rows, "\n") + "\n"
}

func annotation(f *pflag.Flag, name string) string { return strings.Join(f.Annotations[name], " ") }

var flagVariable = regexp.MustCompile(`\((IOP_[A-Z_]+)\)$`)

// variableOf is the variable of a setting's flag, empty if there is none.
func variableOf(f *pflag.Flag) string {
	if m := flagVariable.FindStringSubmatch(f.Usage); m != nil {
		return m[1]
	}
	return ""
}

// defaultOf is a setting's default as the table has it: where it depends on the machine, words.
func defaultOf(f *pflag.Flag) string {
	if absent := annotation(f, absentAnnotation); absent != "" {
		return absent
	}
	if f.DefValue == "" {
		return "-"
	}
	return "`" + f.DefValue + "`"
}

// inTable is text as a cell: what looks like code is set as code.
func inTable(text string) string {
	text = regexp.MustCompile(`\bIOP_[A-Z_]+=?[a-z]*|--[a-z][a-z-]+|\bid\[:adapter\]=URL\S*|sqlite://\S*path/iop\.db|"iop [a-z -]+"`).
		ReplaceAllStringFunc(text, func(s string) string { return "`" + strings.Trim(s, `"`) + "`" })
	return strings.ReplaceAll(text, "|", `\|`)
}

const commandsHead = `# Commands

<!-- Made from the commands themselves by "make generate". Change them, not this file. -->

Each command explains itself with ` + "`--help`" + `. The exit status is 0, 1 (it failed) or 2 (wrong use). A second Ctrl-C or SIGTERM
ends a command at once. ` + "`--json`" + ` prints JSON for scripts. A setting with a name in brackets is an environment variable, too;
[configuration.md](configuration.md) explains those of Edge and Node. Singular, plural and ` + "`list` are optional: `iop keys`, `iop key list` and `iop key`" + ` are
one command, and so are ` + "`iop nodes` and `iop node list`; `iop token` is short for `iop join-token`" + `.

## The operator's flags

Commands that ask an Edge have these as well. ` + "`key`, `join-token`, `slot`, `profile`, `node-list`, `audit` and `master-key`" + ` open the
state themselves where no Edge runs on this machine; the others need a running Edge.

`

// operatorFlags are those that every operator's command has; they are told once.
var operatorFlags = []string{"admin-url", "admin-token", "admin-token-file", "state"}

// commandsReference describes every command.
func commandsReference(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString(commandsHead)
	operator, _, _ := root.Find([]string{"status"})
	fmt.Fprintf(&b, "```text\n%s```\n\n## Overview\n\n| command | what it does |\n| --- | --- |\n", flagUsages(operator, true))
	var all []*cobra.Command
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		if cmd.HasParent() && !cmd.Hidden {
			all = append(all, cmd)
		}
		for _, c := range cmd.Commands() {
			visit(c)
		}
	}
	visit(root)
	for _, cmd := range all {
		anchor := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", cmd.CommandPath(), anchor, strings.ReplaceAll(cmd.Short, "|", `\|`))
	}
	for _, cmd := range all {
		describeCommand(&b, cmd)
	}
	return b.String()
}

func describeCommand(b *strings.Builder, cmd *cobra.Command) {
	long := cmd.Long
	if long == "" {
		long = cmd.Short + "."
	}
	fmt.Fprintf(b, "\n## %s\n\n```text\n%s\n\n%s\n```\n", cmd.CommandPath(), cmd.UseLine(), strings.TrimSpace(long))
	if cmd.Example != "" {
		fmt.Fprintf(b, "\nFor example:\n\n```text\n%s\n```\n", cmd.Example)
	}
	if cmd.Annotations[formAnnotation] != "" {
		return // its flags are those of its list
	}
	if flags := flagUsages(cmd, false); flags != "" {
		fmt.Fprintf(b, "\n```text\n%s```\n", flags)
	}
	if isOperators(cmd) {
		b.WriteString("\nAnd the [operator's flags](#the-operators-flags).\n")
	}
}

func isOperators(cmd *cobra.Command) bool { return cmd.Flags().Lookup("admin-url") != nil }

// flagUsages is the help of the command's flags: of the operator's, or of the others.
func flagUsages(cmd *cobra.Command, operators bool) string {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		shared := isOperators(cmd) && slices.Contains(operatorFlags, f.Name)
		if f.Name == "help" || shared != operators {
			return
		}
		if annotation(f, absentAnnotation) != "" {
			f.DefValue = "" // the machine's
		}
		set.AddFlag(f)
	})
	return set.FlagUsages()
}
