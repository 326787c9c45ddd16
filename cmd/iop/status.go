package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"iop/gateway/admin"
)

func newStatusCommand() *cobra.Command {
	return showCommand("status", "Show the Edge's status in a few lines", `Show the Edge's status in a few lines: Nodes, runs, the queue, the route file and its
errors, and the available models. It fails if no Edge responds, so it can serve as a
health check.`, "/status", printStatus)
}

// showCommand is a command that prints what the admin API answers at a path.
func showCommand[T any](name, short, long, path string, show func(io.Writer, *T) error) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     name,
		Short:   short,
		Long:    long,
		Example: "  iop " + name + "\n  iop " + name + " --json",
		Args:    exactly(),
	}
	o := bindOperator(cmd)
	jsonFlag(cmd, &asJSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.load(); err != nil {
			return err
		}
		var answer T
		if err := o.call(cmd.Context(), "GET", path, nil, &answer); err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), answer)
		}
		return show(cmd.OutOrStdout(), &answer)
	}
	return cmd
}

func printStatus(w io.Writer, s *admin.Status) error {
	state := "serving"
	switch {
	case s.StateFault != nil && s.StateFault.Refusing:
		state = "refusing requests"
	case s.Draining:
		state = "draining"
	}
	models := strings.Join(s.Models, ", ")
	if models == "" {
		models = "none"
	}
	fmt.Fprintf(w, "edge     %s, %s on %s, up %s, version %s\n", s.EdgeID, state, s.Listen,
		brief(time.Duration(s.UptimeSeconds)*time.Second), s.Version)
	drained := ""
	if s.NodesDrained > 0 {
		drained = fmt.Sprintf(" (%d drained)", s.NodesDrained)
	}
	fmt.Fprintf(w, "nodes    %d online%s, %s\n", s.NodesOnline, drained, counted(s.Sessions, "session"))
	if len(s.Refused) > 0 {
		fmt.Fprintf(w, "refused  %s in the last hour: iop nodes\n", counted(len(s.Refused), "node"))
	}
	fmt.Fprintf(w, "runs     %d in flight, %d of them queued\n", s.RunsInFlight, s.Queued)
	if s.Queued > 0 {
		fmt.Fprintf(w, "queue    %d waiting for %s, the oldest for %s\n", s.Queued, counted(s.WaitingRoutes, "route"),
			brief(time.Duration(s.OldestWaitMS)*time.Millisecond))
	}
	if c := &s.Config; c.Path != "" {
		fmt.Fprintf(w, "config   %s, %s, in force for %s, digest %s\n", onTerminal(c.Path), counted(c.Routes, "route"), ago(c.Loaded), c.Digest)
	}
	if c := s.Certificate; c != nil {
		fmt.Fprintf(w, "tls      certificate for %s, expires in %s\n", onTerminal(strings.Join(c.Names, ", ")), brief(time.Until(c.NotAfter)))
	}
	_, err := fmt.Fprintf(w, "models   %s\n", onTerminal(models))
	if f := s.StateFault; f != nil {
		_, err = fmt.Fprintf(w, "warning  %s\n", onTerminal(f.Message))
	}
	if fault := s.Config.Fault; fault != nil {
		lines := strings.Split(fault.Message, "\n")
		_, err = fmt.Fprintf(w, "warning  the route file was refused %s ago; the previous routes stay in force:\n", ago(&fault.At))
		for _, line := range lines {
			_, err = fmt.Fprintf(w, "         %s\n", onTerminal(line))
		}
	}
	if c := s.Certificate; c != nil && c.Fault != "" {
		_, err = fmt.Fprintf(w, "warning  the new TLS certificate was refused; the previous one stays in use: %s\n", onTerminal(c.Fault))
	}
	for _, node := range s.Flapping {
		_, err = fmt.Fprintf(w, "warning  two processes use the name %s: rename one of them\n", node)
	}
	return err
}
