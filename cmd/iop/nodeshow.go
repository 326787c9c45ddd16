package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"iop/gateway/admin"
	"iop/gateway/spelling"
)

// nodeDetails is what `iop nodes show` knows of one Node. The last two are nil of one that is not connected.
type nodeDetails struct {
	Node         admin.Node              `json:"node"`
	Capabilities *admin.NodeCapabilities `json:"capabilities,omitempty"`
	Transport    *admin.NodeTransport    `json:"transport,omitempty"`
}

func newNodeShowCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show NODE",
		Short: "Show one Node's providers, models and connection",
		Long: `Query one Node: its providers, their engines and versions, the operations that they
support, their models (a star: in memory), and the state of its connection to the
Edge as seen from both ends.`,
		Example: "  iop nodes show gpu-3\n  iop nodes show gpu-3 --json",
		Args:    exactly("the Node's name"),
	}
	o := bindOperator(cmd)
	jsonFlag(cmd, &asJSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.load(); err != nil {
			return err
		}
		details, err := askNode(cmd, o, args[0])
		if err != nil {
			return o.nextStep(cmd.Context(), args[0], err)
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), details)
		}
		return printNode(cmd.OutOrStdout(), details)
	}
	return cmd
}

// askNode asks the Edge, and through it the Node if it is connected.
func askNode(cmd *cobra.Command, o *operator, name string) (*nodeDetails, error) {
	path := "/nodes/" + url.PathEscape(name)
	d := &nodeDetails{}
	if err := o.call(cmd.Context(), "GET", path, nil, &d.Node); err != nil {
		return nil, err
	}
	var c admin.NodeCapabilities
	var t admin.NodeTransport
	err := o.call(cmd.Context(), "GET", path+"/capabilities", nil, &c)
	if err == nil {
		err = o.call(cmd.Context(), "GET", path+"/transport", nil, &t)
	}
	if refused, ok := errors.AsType[*apiError](err); ok && refused.code == "node_not_found" {
		return d, nil // it was connected once
	}
	if err != nil {
		return nil, err
	}
	d.Capabilities, d.Transport = &c, &t
	return d, nil
}

func printNode(w io.Writer, d *nodeDetails) error {
	state := d.Node.State
	if d.Node.Flapping {
		state += ", flapping: another process uses this name at " + onTerminal(cmp.Or(d.Node.Contender, "an unknown address"))
	}
	if d.Capabilities == nil {
		_, err := fmt.Fprintf(w, "%s  %s, last seen %s ago: %s\n", d.Node.Node, state, ago(&d.Node.LastSeen), cmp.Or(onTerminal(d.Node.LastCause), "reason unknown"))
		return err
	}
	c := d.Capabilities
	fmt.Fprintf(w, "%s  %s, generation %d, version %s\n", d.Node.Node, state, c.Generation, cmp.Or(onTerminal(c.Version), "unknown"))
	for i := range d.Node.Sessions {
		if s := &d.Node.Sessions[i]; s.Current && s.Ignored > 0 {
			fmt.Fprintf(w, "warning: %d models are not offered, because join token %s does not allow them\n", s.Ignored, s.JoinToken)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Labels)) {
		fmt.Fprintf(w, "label %s=%s\n", onTerminal(name), onTerminal(c.Labels[name]))
	}
	fmt.Fprintln(w)
	var rows [][]string
	for i := range c.Providers {
		rows = append(rows, capabilityRow(&c.Providers[i]))
	}
	if err := printTable(w, "PROVIDER ENGINE VERSION ADAPTER HEALTH LOAD NORMALIZED MODELS", rows); err != nil {
		return err
	}
	fmt.Fprintln(w)
	if err := printMatrix(w, c.Providers); err != nil {
		return err
	}
	return printTable(w, "TRANSPORT EDGE NODE", transportRows(d.Transport))
}

func capabilityRow(p *admin.Capability) []string {
	models := make([]string, len(p.Models))
	for i, m := range p.Models {
		if models[i] = m.ID; m.Loaded {
			models[i] += "*"
		}
	}
	return []string{
		string(p.ID), p.Engine, p.EngineVersion, p.Adapter, p.Health, fmt.Sprintf("%d/%d", p.InFlight, p.Capacity), yesNo(p.Normalized),
		strings.Join(models, ","),
	}
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// printMatrix shows which operations each provider has, those that any has.
func printMatrix(w io.Writer, providers []admin.Capability) error {
	var operations []string
	header := "OPERATION"
	for i := range providers {
		header += " " + strings.ReplaceAll(onTerminal(string(providers[i].ID)), " ", "_")
		for _, name := range providers[i].Operations {
			if !slices.Contains(operations, name) {
				operations = append(operations, name)
			}
		}
	}
	if len(operations) == 0 {
		return nil
	}
	var rows [][]string
	for _, name := range operations {
		row := []string{name}
		for i := range providers {
			switch {
			case !providers[i].OperationsKnown:
				row = append(row, "?")
			default:
				row = append(row, yesNo(slices.Contains(providers[i].Operations, name)))
			}
		}
		rows = append(rows, row)
	}
	if err := printTable(w, header, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w)
	return err
}

func transportRows(t *admin.NodeTransport) [][]string {
	row := func(name string, of func(*admin.Transport) string) []string {
		return []string{name, of(&t.Edge), of(&t.AtNode)}
	}
	number := func(of func(*admin.Transport) uint64) func(*admin.Transport) string {
		return func(v *admin.Transport) string { return strconv.FormatUint(of(v), 10) }
	}
	size := func(of func(*admin.Transport) int) func(*admin.Transport) string {
		return func(v *admin.Transport) string { return bytesText(int64(of(v))) }
	}
	since := func(ms int64) string { return brief(time.Duration(ms) * time.Millisecond) }
	return [][]string{
		row("generation", number(func(v *admin.Transport) uint64 { return uint64(v.Generation) })),
		row("up", func(v *admin.Transport) string { return since(v.UptimeMS) }),
		row("heartbeat", func(v *admin.Transport) string { return fmt.Sprintf("%.1fms", v.HeartbeatRTTMS) }),
		row("answered", func(v *admin.Transport) string { return since(v.LastAckAgeMS) + " ago" }),
		row("draining", func(v *admin.Transport) string { return yesNo(v.Draining) }),
		row("runs open", number(func(v *admin.Transport) uint64 { return uint64(v.OpenRuns) })),
		row("runs stalled", number(func(v *admin.Transport) uint64 { return uint64(v.StalledRuns) })),
		row("queued", size(func(v *admin.Transport) int { return v.QueuedBytes })),
		row("in flight", size(func(v *admin.Transport) int { return v.SessionInFlight })),
		row("window", size(func(v *admin.Transport) int { return v.SessionWindow })),
		row("frames sent", number(func(v *admin.Transport) uint64 { return v.FramesSent })),
		row("frames received", number(func(v *admin.Transport) uint64 { return v.FramesReceived })),
		row("bytes sent", size(func(v *admin.Transport) int { return int(v.BytesSent) })),
		row("bytes received", size(func(v *admin.Transport) int { return int(v.BytesReceived) })),
		row("reconnects", func(v *admin.Transport) string {
			if v.Reconnects == nil {
				return ""
			}
			return strconv.FormatUint(*v.Reconnects, 10)
		}),
		row("process up", func(v *admin.Transport) string {
			if v.ProcessUptimeMS == nil {
				return ""
			}
			return since(*v.ProcessUptimeMS)
		}),
	}
}

// bytesText writes a number of bytes with three digits or so.
func bytesText(n int64) string {
	const unit = 1000
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, prefix := float64(n)/unit, 0
	for value >= unit && prefix < 4 {
		value /= unit
		prefix++
	}
	return fmt.Sprintf("%.1f %cB", value, "kMGTP"[prefix])
}

// nextStep adds to an error about a Node what may be done about it.
func (o *operator) nextStep(ctx context.Context, node string, err error) error {
	refused, ok := errors.AsType[*apiError](err)
	if !ok {
		return err
	}
	hint := map[string]string{
		"node_not_found":     "; iop nodes lists those that are",
		"provider_not_found": "; iop nodes show " + node + " lists its providers",
		"not_ollama":         "; iop nodes show " + node + " lists its providers and their engines",
		"provider_required":  " (--provider)",
		"too_many_calls":     "; wait until one has ended",
		"node_timeout":       "; iop nodes show " + node + " shows the state of its connection",
	}[refused.code]
	if refused.code == "node_not_found" {
		if near := spelling.Nearest(node, o.otherNodes(ctx, node)); near != "" {
			hint = "; did you mean " + near + "?"
		}
	}
	return fmt.Errorf("%w%s", err, hint)
}

// otherNodes are the names of all Nodes but one; none if the Edge does not answer, as another error is at hand.
func (o *operator) otherNodes(ctx context.Context, node string) []string {
	all, err := o.nodeNames(ctx)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(all, func(name string) bool { return name == node })
}
