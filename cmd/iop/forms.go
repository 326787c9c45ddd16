package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"iop/gateway/spelling"
)

// otherForms are the nouns among the commands by their other number, and by a shorter name.
var otherForms = map[string][]string{
	"key": {"keys"}, "join-token": {"join-tokens", "token", "tokens"}, "slot": {"slots"}, "profile": {"profiles"},
	"node-list": {"node-lists"}, "master-key": {"master-keys"}, "signing-key": {"signing-keys"},
	"routes": {"route"}, "queue": {"queues"}, "runs": {"run"},
}

// listAliases are what a command that lists may be called.
var listAliases = []string{"list", "ls"}

// addForms lets each noun be said in both numbers, with "list" or without.
func addForms(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		cmd.Aliases = append(cmd.Aliases, otherForms[cmd.Name()]...)
		switch cmd.Name() {
		case "nodes", "routes", "queue", "runs", "audit", "usage":
			cmd.AddCommand(listForm(cmd))
		case "node": // alone it runs a Node
			list := listForm(newNodesCommand())
			show := newNodeShowCommand()
			show.Hidden = true
			cmd.AddCommand(list, show)
		default:
			listAlone(cmd)
		}
	}
	completeForms(root)
}

// listForm is "list" below a command that lists.
func listForm(cmd *cobra.Command) *cobra.Command {
	list := &cobra.Command{
		Use: "list", Aliases: listAliases[1:], Hidden: true, Short: cmd.Short, Long: cmd.Long, Example: cmd.Example,
		Args: cmd.Args, RunE: cmd.RunE,
	}
	list.Flags().AddFlagSet(cmd.Flags())
	return list
}

// formAnnotation marks a group that does what its "list" does: the reference has the flags there.
const formAnnotation = "iop_form"

// listAlone has a group with a command that lists do this when it is called alone.
func listAlone(group *cobra.Command) {
	for _, list := range group.Commands() {
		if name := list.Name(); name != "list" && (name != "show" || group.Name() != "node-list") {
			continue
		}
		for _, alias := range listAliases {
			if alias != list.Name() {
				list.Aliases = append(list.Aliases, alias)
			}
		}
		if !takesNothing(list) {
			return // it needs to know of what
		}
		group.Flags().AddFlagSet(list.Flags())
		group.RunE = list.RunE
		group.Annotations = map[string]string{formAnnotation: "list"}
		return
	}
}

// takesNothing reports whether a command has no arguments, by its line of usage.
func takesNothing(cmd *cobra.Command) bool { return !strings.Contains(cmd.Use, " ") }

// completeForms lets shells complete the other forms too: those of nouns once their first letter is there.
func completeForms(root *cobra.Command) {
	root.ValidArgsFunction = func(_ *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		var words []string
		for _, cmd := range root.Commands() {
			for _, alias := range cmd.Aliases {
				if len(args) == 0 && typed != "" && strings.HasPrefix(alias, typed) {
					words = append(words, cobra.CompletionWithDesc(alias, cmd.Short))
				}
			}
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
	for _, cmd := range root.Commands() {
		var words []string
		for _, form := range cmd.Commands() {
			if form.Hidden {
				words = append(words, cobra.CompletionWithDesc(form.Name(), form.Short))
			}
		}
		if len(words) > 0 {
			cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
				if len(args) > 0 {
					return nil, cobra.ShellCompDirectiveNoFileComp
				}
				return words, cobra.ShellCompDirectiveNoFileComp
			}
		}
	}
}

func unknownCommand(cmd *cobra.Command, typed string) error {
	return fmt.Errorf("unknown command %q for %q%s", typed, cmd.CommandPath(), meantCommand(cmd, typed))
}

// meantCommand ends a message about a command that does not exist.
func meantCommand(cmd *cobra.Command, typed string) string {
	var names []string
	for _, c := range cmd.Commands() {
		if c.Hidden && c.Name() != "list" {
			continue
		}
		names = append(append(names, c.Name()), c.Aliases...)
	}
	// A word of another noun's, such as "create" of keys, is not near, but there may be a word that cobra knows.
	if near := cmd.SuggestionsFor(typed); len(near) > 0 && !slices.Contains(names, spelling.Nearest(typed, names)) {
		return fmt.Sprintf("; did you mean %q?", near[0])
	}
	if near := spelling.Nearest(typed, names); near != "" {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	return fmt.Sprintf("; see %s --help", cmd.CommandPath())
}
