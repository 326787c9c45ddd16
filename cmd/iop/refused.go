package main

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"iop/gateway/admin"
)

// printRefused prints the Nodes that ask in vain, if there are any.
func printRefused(cmd *cobra.Command, o *operator) error {
	var status admin.Status
	if err := o.call(cmd.Context(), "GET", "/status", nil, &status); err != nil {
		return err
	}
	if len(status.Refused) == 0 {
		return nil
	}
	var rows [][]string
	for i := range status.Refused {
		n := &status.Refused[i]
		name := cmp.Or(string(n.Node), "unknown")
		if !n.Proven {
			name += "?"
		}
		rows = append(rows, []string{name, n.Source, n.Code, strconv.Itoa(n.Count), ago(&n.Last), n.Why()})
	}
	out := cmd.OutOrStdout()
	if _, err := fmt.Fprintln(out, "\nrefused in the last hour (?: without a valid token or certificate, so the name is only a claim)"); err != nil {
		return err
	}
	return printTable(out, "NODE FROM CODE TIMES LAST WHY", rows)
}
