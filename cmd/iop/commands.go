package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newRootCommand() *cobra.Command {
	root := group(&cobra.Command{
		Use:   "iop",
		Short: "One public, OpenAI-compatible URL for inference machines behind NAT",
		Long: `One public, OpenAI-compatible URL for inference machines behind NAT.

"iop dev" runs everything on this machine. For real use, run "iop edge" where
clients can reach it, and "iop node" next to each inference server. A Node dials
out to the Edge and needs no open port.`,
		Example: `  iop dev
  iop edge
  iop node --edge wss://edge.example.org/tunnel/v1 --join-token-file token`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}, commands()...)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		fault := flagFaultOf(cmd, err)
		if strings.HasSuffix(fault.Error(), "?") {
			return usageError{fault}
		}
		return usageError{fmt.Errorf("%w; see %s --help", fault, cmd.CommandPath())}
	})
	root.PersistentPreRun = warnBefore
	root.SetHelpCommand(newHelpCommand())
	root.InitDefaultHelpCmd()
	addForms(root)
	addCompletion(root)
	wrongArgsAreWrongUse(root)
	return root
}

// flagFault says what a number or a switch must be, in words that are not the parser's.
func flagFault(err error) error {
	wrong, ok := errors.AsType[*pflag.InvalidValueError](err)
	number, isNumber := errors.AsType[*strconv.NumError](err)
	switch {
	case !ok || !isNumber:
		return err
	case errors.Is(number.Err, strconv.ErrRange):
		return fmt.Errorf("--%s is too large: %s", wrong.GetFlag().Name, wrong.GetValue())
	case number.Func == "ParseBool":
		return fmt.Errorf("--%s must be true or false, not %q", wrong.GetFlag().Name, wrong.GetValue())
	}
	return fmt.Errorf("--%s must be a whole number, not %q", wrong.GetFlag().Name, wrong.GetValue())
}

func wrongArgsAreWrongUse(cmd *cobra.Command) {
	check := cmd.Args
	if check == nil {
		check = cobra.NoArgs
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError{err}
		}
		return nil
	}
	for _, c := range cmd.Commands() {
		wrongArgsAreWrongUse(c)
	}
}

// commands lists the commands of the binary, each made in a file of its own.
func commands() []*cobra.Command {
	return []*cobra.Command{
		newDevCommand(),
		newEdgeCommand(),
		newNodeCommand(),
		newKeyCommand(),
		newJoinTokenCommand(),
		newSlotCommand(),
		newProfileCommand(),
		newNodeListCommand(),
		newMasterKeyCommand(),
		newSigningKeyCommand(),
		newAuditCommand(),
		newCACommand(),
		newStatusCommand(),
		newIdentityCommand(),
		newNodesCommand(),
		newOllamaCommand(),
		newRoutesCommand(),
		newQueueCommand(),
		newRunsCommand(),
		newCancelCommand(),
		newDrainCommand(),
		newUsageCommand(),
		newSimCommand(),
		newBenchCommand(),
		newDoctorCommand(),
		newVersionCommand(),
	}
}

// group makes a command that only holds others: alone it prints its help.
func group(cmd *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	cmd.AddCommand(commands...)
	cmd.SuggestionsMinimumDistance = 2
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		return unknownCommand(cmd, args[0])
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.HasParent() {
			return usageError{fmt.Errorf("%s needs a command; see %s --help", cmd.CommandPath(), cmd.CommandPath())}
		}
		return cmd.Help()
	}
	return cmd
}

// exactly accepts as many arguments as there are names.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return fmt.Errorf("%s needs %s; see %s --help", cmd.CommandPath(), names[len(args)], cmd.CommandPath())
		case len(args) > len(names) && len(names) == 0 && cmd.HasSubCommands():
			return unknownCommand(cmd, args[0])
		case len(args) > len(names):
			return fmt.Errorf("%s takes no argument %q; see %s --help", cmd.CommandPath(), args[len(names)], cmd.CommandPath())
		}
		return nil
	}
}
