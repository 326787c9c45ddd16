package main

import (
	"fmt"
	"net/url"

	"github.com/spf13/cobra"
)

func newNodeForgetCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "forget NODE",
		Short: "Forget a Node that is gone for good",
		Long: `Forget a Node that is not connected, its models and its drain. It leaves the list at
once instead of after 30 days, and requests for models that only it had get 404. If
it connects again, it is listed again; revoke its join token to prevent that.`,
		Example: "  iop nodes forget gpu-3\n  iop nodes forget gpu-3 --json",
		Args:    exactly("the Node's name"),
	}
	o := bindOperator(cmd)
	jsonFlag(cmd, &asJSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.load(); err != nil {
			return err
		}
		var answer map[string]any
		if err := o.call(cmd.Context(), "DELETE", "/nodes/"+url.PathEscape(args[0]), nil, &answer); err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), answer)
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is forgotten\n", onTerminal(args[0]))
		return err
	}
	return cmd
}
