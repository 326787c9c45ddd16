package main

import (
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"iop/gateway/admin"
)

func newRunShowCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show RUN",
		Short: "Show one run",
		Long: `Show one run: its key and model, the Node and provider, the reason why they were
chosen, its times and its result. The detail is what the Node reported; clients
never see it.`,
		Example: "  iop runs show run_4x2k…\n  iop runs show run_4x2k… --json",
		Args:    exactly("the run's id"),
	}
	o := bindOperator(cmd)
	jsonFlag(cmd, &asJSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.load(); err != nil {
			return err
		}
		var run admin.Run
		if err := o.call(cmd.Context(), "GET", "/runs/"+url.PathEscape(args[0]), nil, &run); err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), run)
		}
		return printRun(cmd.OutOrStdout(), &run)
	}
	return cmd
}

// printRun writes what is known of a run, a line for each.
func printRun(w io.Writer, r *admin.Run) error {
	v, ttfb := viewRun(r), ""
	if r.TTFBMS > 0 {
		ttfb = briefMS(r.TTFBMS)
	}
	for _, line := range [][2]string{
		{"run", string(r.ID)}, {"request", r.RequestID}, {"state", v.state}, {"status", zeroless(r.Status)},
		{"key", keyOfRun(r)}, {"operation", r.Operation},
		{"model", r.Model}, {"route", r.Route}, {"node", string(r.Node)}, {"provider", string(r.Provider)}, {"reason", r.Reason},
		{"attempts", zeroless(r.Attempts)}, {"started", r.Started.Local().Format(time.DateTime)}, {"queued", v.queue},
		{"first byte", ttfb}, {"took", v.took}, {"tokens", v.tokens}, {"detail", r.Detail},
	} {
		if _, err := fmt.Fprintf(w, "%-12s %s\n", line[0], orDash(line[1])); err != nil {
			return err
		}
	}
	return nil
}

// keyOfRun is the run's key by name and id, and its owner.
func keyOfRun(r *admin.Run) string {
	text := string(r.Key)
	if r.KeyName != "" {
		text = r.KeyName + " (" + text + ")"
	}
	if r.Principal != "" && !strings.HasPrefix(r.Principal, "key:") {
		text += " of " + r.Principal
	}
	return text
}

func zeroless(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}
