package main

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"iop/gateway/admin"
)

func newIdentityCommand() *cobra.Command {
	return showCommand("identity", "Show the Edge's identity and certificate in managed mode",
		`Show the Edge's identity and certificate in managed mode: serial number, expiry,
authorities and, if the last reload was refused, why.`, "/identity", printIdentity)
}

func printIdentity(w io.Writer, id *admin.Identity) error {
	if !id.Managed {
		_, err := fmt.Fprintln(w, "none: the Edge runs in token mode")
		return err
	}
	at := func(t *time.Time) string {
		if t == nil {
			return "-"
		}
		return t.UTC().Format(time.RFC3339)
	}
	end := at(id.NotAfter)
	if id.NotAfter != nil {
		end += ", in " + brief(time.Until(*id.NotAfter))
	}
	lines := [][2]string{
		{"identity", string(id.ID)}, {"serial", id.Serial}, {"ends", end}, {"in force", "since " + at(id.Changed)}, {"trusts", counted(id.Roots, "root")},
		{"loads", strconv.FormatUint(id.Loads, 10) + ", " + strconv.FormatUint(id.Refused, 10) + " refused"},
	}
	if id.Fault != "" {
		lines = append(lines, [2]string{"warning", "the reload at " + at(id.FaultAt) + " was refused: " + id.Fault})
	}
	for _, line := range lines {
		if _, err := fmt.Fprintf(w, "%-9s %s\n", line[0], onTerminal(line[1])); err != nil {
			return err
		}
	}
	return nil
}
