package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"iop/gateway/admin"
)

func newNodesCommand() *cobra.Command {
	cmd := newViewCommand(&cobra.Command{
		Use:   "nodes",
		Short: "List the connected and formerly connected Nodes and their providers",
		Long: `List the connected and formerly connected Nodes, one line per provider. A Node
that is offline is listed for 30 days, with when it was last seen and how its last
session ended. Nodes that were refused in the last hour follow, with the reason.`,
		Example: "  iop nodes\n  iop nodes --json\n  iop nodes show gpu-3",
	}, "/nodes", "NODE STATE GEN SINCE RTT PROVIDER ADAPTER HEALTH LOAD MODELS", nodeRows, printRefused)
	cmd.AddCommand(newNodeShowCommand(), newNodeForgetCommand())
	return cmd
}

// nodeRows are a Node's lines: one for each provider of each session, at least one.
func nodeRows(n *admin.Node) [][]string {
	state := n.State
	if n.Drain && n.OpenRuns > 0 {
		state += ", " + counted(n.OpenRuns, "run") + " open"
	}
	if n.Flapping {
		state += ", flapping"
	}
	if len(n.Sessions) == 0 {
		if n.Drain {
			state += ", drained"
		}
		return [][]string{{string(n.Node), state, "", ago(&n.LastSeen), "", "", "", "", "", n.LastCause}}
	}
	var rows [][]string
	for i := range n.Sessions {
		s := &n.Sessions[i]
		if !s.Current {
			state = s.State
		}
		head := []string{
			string(n.Node), state, strconv.FormatUint(uint64(s.Generation), 10), ago(&s.Since), fmt.Sprintf("%.1fms", s.RTTMS),
		}
		if len(s.Providers) == 0 {
			rows = append(rows, append(head, "", "", "", "", ""))
		}
		for _, p := range s.Providers {
			load := fmt.Sprintf("%d/%d", p.InFlight, p.Capacity)
			rows = append(rows, append(append([]string{}, head...), string(p.ID), p.Adapter, p.Health, load, strings.Join(p.Models, ",")))
		}
	}
	return rows
}
