package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"iop/gateway/admin"
)

// completionPatience is how long a person who pressed the tabulator waits for an Edge.
const completionPatience = time.Second

// addCompletion adds "iop completion", and has the shells ask an Edge for what commands are about: names of Nodes, ids of
// runs and keys, slots.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		if cmd.Name() != "completion" {
			continue
		}
		cmd.Short = "Print the completion script for a shell"
		cmd.Long = `Print the completion script for a shell. It completes commands and flags and, if an
Edge responds within a second, names of Nodes and slots and ids of runs and keys.`
		cmd.Example = "  source <(iop completion bash)\n  iop completion zsh > \"${fpath[1]}/_iop\"\n  iop completion fish > ~/.config/fish/completions/iop.fish"
		for _, shell := range cmd.Commands() {
			shell.Example = "  iop completion " + shell.Name()
			shell.Short = "Print the completion script for " + shell.Name()
			shell.RunE = completionScript // the library's own writes to where output went before it was said where
		}
		cmd.RunE = func(cmd *cobra.Command, _ []string) error {
			return usageError{fmt.Errorf("%s needs a shell: bash, zsh, fish or powershell", cmd.CommandPath())}
		}
	}
	completeFrom(root)
}

// completionScript writes the script of the shell that the command is named after.
func completionScript(cmd *cobra.Command, _ []string) error {
	root, out := cmd.Root(), cmd.OutOrStdout()
	plain, err := cmd.Flags().GetBool("no-descriptions")
	if err != nil {
		return err
	}
	switch cmd.Name() {
	case "bash":
		return root.GenBashCompletionV2(out, !plain)
	case "zsh":
		if plain {
			return root.GenZshCompletionNoDesc(out)
		}
		return root.GenZshCompletion(out)
	case "fish":
		return root.GenFishCompletion(out, !plain)
	}
	if plain {
		return root.GenPowerShellCompletion(out)
	}
	return root.GenPowerShellCompletionWithDesc(out)
}

// completeFrom has each command that asks an Edge complete its arguments and flags from one.
func completeFrom(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		completeFrom(c)
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if words := flagWords[f.Name]; words != nil && isCompleted(cmd) {
			// It fails for a flag that has one already.
			_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
		}
		if kind := flagKinds[f.Name]; kind != nil && isCompleted(cmd) {
			_ = cmd.RegisterFlagCompletionFunc(f.Name, func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
				return kind(cmd), cobra.ShellCompDirectiveNoFileComp
			})
		}
	})
	if !isCompleted(cmd) || cmd.ValidArgsFunction != nil {
		return
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		kind := argumentKind(cmd, len(args))
		if kind == nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return kind(cmd), cobra.ShellCompDirectiveNoFileComp
	}
}

func isCompleted(cmd *cobra.Command) bool { return cmd.Flags().Lookup("admin-url") != nil }

// flagWords are flags with a closed set of values.
var flagWords = map[string][]string{
	"run-state": {"queued", "active", "ended"},
	"outcome":   {"completed", "failed", "cancelled", "rejected"},
	"by":        admin.Dimensions,
}

// flagKinds are flags that name something at the Edge.
var flagKinds = map[string]func(*cobra.Command) []string{
	"node": completeNodes, "route": completeRoutes, "slot": completeSlots, "key": completeKeys, "profile": completeProfiles,
}

// argumentKind is what the argument at that place names, by the command's own line of usage; nil: nothing that an Edge knows.
func argumentKind(cmd *cobra.Command, place int) func(*cobra.Command) []string {
	words := strings.Fields(cmd.Use)[1:]
	if place >= len(words) {
		return nil
	}
	parent := cmd.Parent().Name()
	switch word := strings.Trim(words[place], "{}[]"); {
	case word == "NODE":
		return completeNodes
	case word == "RUN":
		return completeRuns
	case word == "KEY":
		return completeKeys
	case word == "ID" && parent == "join-token":
		return completeJoinTokens
	case word == "NAME" && parent == "slot":
		return completeSlots
	case word == "NAME" && parent == "profile":
		return completeProfiles
	}
	return nil
}

// completionOf asks the Edge of the command's flags and variables. A failure gives no words: a shell has no place for it.
func completionOf[T any](cmd *cobra.Command, path string, word func(*T) (value, description string)) []string {
	scratch := &cobra.Command{}
	o := bindOperator(scratch)
	for _, name := range []string{"admin-url", "admin-token", "admin-token-file", "state"} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
			if err := scratch.Flags().Set(name, f.Value.String()); err != nil {
				return nil
			}
		}
	}
	ctx, cancel := context.WithTimeout(contextOf(cmd), completionPatience)
	defer cancel()
	if o.load() != nil {
		return nil
	}
	var list listing[T]
	if o.call(ctx, "GET", path, nil, &list) != nil {
		return nil
	}
	var words []string
	for i := range list.Data {
		value, description := word(&list.Data[i])
		words = append(words, cobra.CompletionWithDesc(onTerminal(value), onTerminal(description)))
	}
	slices.Sort(words)
	return slices.Compact(words)
}

// contextOf is the command's context; completion has none.
func contextOf(cmd *cobra.Command) context.Context {
	if ctx := cmd.Context(); ctx != nil {
		return ctx
	}
	return context.Background()
}

func completeNodes(cmd *cobra.Command) []string {
	return completionOf(cmd, "/nodes", func(n *admin.Node) (string, string) { return string(n.Node), n.State })
}

func completeRuns(cmd *cobra.Command) []string {
	return completionOf(cmd, "/runs?state=active", func(r *admin.Run) (string, string) { return string(r.ID), r.Model })
}

func completeRoutes(cmd *cobra.Command) []string {
	return completionOf(cmd, "/routes", func(r *admin.Route) (string, string) { return r.Name, "" })
}

func completeKeys(cmd *cobra.Command) []string {
	return completionOf(cmd, keysPath, func(k *admin.Key) (string, string) {
		if k.Revoked != nil {
			return string(k.ID), "revoked: " + k.Name // another key may have the name now
		}
		return k.Name, string(k.ID)
	})
}

func completeJoinTokens(cmd *cobra.Command) []string {
	return completionOf(cmd, joinTokensPath, func(t *admin.JoinToken) (string, string) { return string(t.ID), string(t.Node) })
}

func completeSlots(cmd *cobra.Command) []string {
	return completionOf(cmd, slotsPath, func(s *admin.Slot) (string, string) { return string(s.Name), string(s.Profile) })
}

func completeProfiles(cmd *cobra.Command) []string {
	return completionOf(cmd, "/profiles", func(p *admin.Profile) (string, string) { return string(p.Name), p.Header })
}

// newHelpCommand is "iop help", which takes the name of no command for wrong use.
func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show the help for a command",
		Long: `Show the help for a command, like "iop COMMAND --help". Without an argument, list
all commands.`,
		Example: "  iop help key create",
		Args:    cobra.ArbitraryArgs,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			about, _, err := cmd.Root().Find(args)
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			var words []string
			for _, c := range about.Commands() {
				if c.IsAvailableCommand() {
					words = append(words, cobra.CompletionWithDesc(c.Name(), c.Short))
				}
			}
			return words, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return usageError{fmt.Errorf("there is no command %q; see iop --help", strings.Join(args, " "))}
			}
			return about.Help()
		},
	}
}
