package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"iop/execution"
	"iop/gateway/admin"
	"iop/state"
)

const nodeListPath = "/node-list"

func newNodeListCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "node-list",
		Short: "Set which Nodes may connect in managed mode, and what may be leased to them",
		Long: `Set which Nodes may connect in managed mode, and what may be leased to them. The
deny-list, of Nodes and of single certificates, takes precedence over the
allow-list. A change ends the sessions that are no longer allowed.

These commands use the Edge's admin API. If no Edge is running, they open its state
directly.`,
		Example: "  iop node-list allow gpu-3 --slots 'openai*' --profiles openai\n  iop node-list deny --serial 4f:a0:01\n  iop node-list show",
	}, newNodeAllowCommand(), newNodeDisallowCommand(), newNodeDenyCommand("deny"), newNodeDenyCommand("undeny"), newNodeListShowCommand())
}

// nodesCall is a change of the lists: of the admin API, or of the state where no Edge runs.
type nodesCall struct {
	method, path string
	body         any // nil: none
	word         string
	onState      func(context.Context, *state.Store) error
}

// changeNodesCommand completes a command that changes the lists. prepare's error is wrong use.
func changeNodesCommand(cmd *cobra.Command, prepare func(args []string) (subject string, ask nodesCall, err error)) *cobra.Command {
	var asJSON bool
	o := bindOperator(cmd)
	jsonFlag(cmd, &asJSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.load(); err != nil {
			return err
		}
		subject, ask, err := prepare(args)
		if err != nil {
			return usageError{err}
		}
		ctx := cmd.Context()
		var change admin.NodesChange
		err = o.reach(ctx, true, func() error {
			return o.call(ctx, ask.method, nodeListPath+ask.path, ask.body, &change)
		}, func(store *state.Store) error {
			return ask.onState(ctx, store)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", onTerminal(subject), err)
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), change)
		}
		text := ""
		if change.SessionsEnded > 0 {
			text = fmt.Sprintf("; %s ended", counted(change.SessionsEnded, "session"))
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s%s\n", onTerminal(subject), ask.word, text)
		return err
	}
	return cmd
}

func newNodeAllowCommand() *cobra.Command {
	body := admin.NewAllowance{}
	cmd := &cobra.Command{
		Use:   "allow NODE",
		Short: "Allow a Node to connect, and set what may be leased to it",
		Long: `Allow a Node to connect, and set what may be leased to it: the slots that match
--slots and whose profile matches --profiles. Without both flags it may connect but
gets no credentials. This replaces the Node's previous entry.`,
		Example: "  iop node-list allow gpu-3 --slots 'openai*' --profiles openai\n  iop node-list allow gpu-4",
		Args:    exactly("the Node's name"),
	}
	cmd.Flags().StringSliceVar(&body.Slots, "slots", nil, "globs of the slots that may be leased to it")
	cmd.Flags().StringSliceVar(&body.Profiles, "profiles", nil, "globs of their profiles")
	return changeNodesCommand(cmd, func(args []string) (string, nodesCall, error) {
		body.Slots, body.Profiles = append([]string{}, body.Slots...), append([]string{}, body.Profiles...)
		if len(body.Slots) == 0 != (len(body.Profiles) == 0) {
			return "", nodesCall{}, errors.New("--slots and --profiles must be given together")
		}
		return args[0], nodesCall{method: "PUT", path: "/allowed/" + url.PathEscape(args[0]), body: body, word: "may connect",
			onState: func(ctx context.Context, store *state.Store) error {
				_, err := store.AllowNode(ctx, state.NodeAllow{Node: execution.NodeID(args[0]), Slots: body.Slots, Profiles: body.Profiles}, byCommand)
				return err
			}}, nil
	})
}

func newNodeDisallowCommand() *cobra.Command {
	return changeNodesCommand(&cobra.Command{
		Use: "disallow NODE", Short: "Remove a Node from the allow-list and end its sessions", Long: `Remove a Node from the allow-list and end its sessions. It is refused until it is
allowed again.`, Example: "  iop node-list disallow gpu-3",
		Args: exactly("the Node's name"),
	}, func(args []string) (string, nodesCall, error) {
		return args[0], nodesCall{method: "DELETE", path: "/allowed/" + url.PathEscape(args[0]), word: "may no longer connect",
			onState: func(ctx context.Context, store *state.Store) error {
				return store.DisallowNode(ctx, execution.NodeID(args[0]), byCommand)
			}}, nil
	})
}

// newNodeDenyCommand makes the command that bars a Node or a certificate, "deny", or the one that takes it back, "undeny".
func newNodeDenyCommand(verb string) *cobra.Command {
	var serial string
	long := `Deny a Node or one certificate, whatever the allow-list says, and end its sessions
at once. A denied Node retries every 30 seconds.`
	short, method, word := "Deny a Node or one certificate, whatever the allow-list says", "PUT", "is denied"
	if verb == "undeny" {
		short, method, word = "Remove a Node or a certificate from the deny-list", "DELETE", "is no longer denied"
		long = `Remove a Node or a certificate from the deny-list. If the allow-list names it, it
reconnects within 30 seconds.`
	}
	cmd := &cobra.Command{
		Use:     verb + " {NODE | --serial SERIAL}",
		Short:   short,
		Long:    long,
		Example: fmt.Sprintf("  iop node-list %s gpu-3\n  iop node-list %s --serial 4f:a0:01", verb, verb),
		Args:    cobra.MaximumNArgs(1),
	}
	cmd.Flags().StringVar(&serial, "serial", "", "serial number of a certificate in hexadecimal, as shown by \"iop ca inspect\"")
	return changeNodesCommand(cmd, func(args []string) (string, nodesCall, error) {
		if (len(args) == 1) == (serial != "") {
			return "", nodesCall{}, fmt.Errorf("iop node-list %s needs a Node's name or --serial", verb)
		}
		denial, subject, path := state.Denial{}, "certificate "+serial, "/denied/certificates/"
		if serial == "" {
			denial.Node, subject, path = execution.NodeID(args[0]), args[0], "/denied/nodes/"+url.PathEscape(args[0])
		} else {
			var err error
			if denial.Serial, err = state.ParseCertificateSerial(serial); err != nil {
				return "", nodesCall{}, errors.New("--serial must be in hexadecimal, for example --serial 4f:a0:01")
			}
			path += string(denial.Serial)
		}
		return subject, nodesCall{method: method, path: path, word: word, onState: func(ctx context.Context, store *state.Store) error {
			if verb == "undeny" {
				return store.UndenyNode(ctx, denial, byCommand)
			}
			return store.DenyNode(ctx, denial, byCommand)
		}}, nil
	})
}

func newNodeListShowCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "show", Short: "Show the allow-list and the deny-list", Long: `Show the allow-list, with what may be leased to each Node, and the deny-list.`, Example: "  iop node-list show --json", Args: exactly(),
	}
	o := bindOperator(cmd)
	jsonFlag(cmd, &asJSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.load(); err != nil {
			return err
		}
		ctx := cmd.Context()
		var list admin.NodeList
		err := o.reach(ctx, false, func() error {
			return o.call(ctx, "GET", nodeListPath, nil, &list)
		}, func(store *state.Store) error {
			allows, err := store.NodeAllows(ctx)
			if err != nil {
				return err
			}
			denials, err := store.Denials(ctx)
			list = admin.NodeListView(allows, denials)
			return err
		})
		if err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), list)
		}
		return printNodeList(cmd.OutOrStdout(), &list)
	}
	return cmd
}

func printNodeList(w io.Writer, list *admin.NodeList) error {
	var rows [][]string
	for i := range list.Allowed {
		a := &list.Allowed[i]
		rows = append(rows, []string{"allowed", string(a.Node), strings.Join(a.Slots, ","), strings.Join(a.Profiles, ","), ago(&a.Updated), a.By})
	}
	for i := range list.Denied {
		d := &list.Denied[i]
		subject := string(d.Node)
		if d.Serial != "" {
			subject = "certificate " + string(d.Serial)
		}
		rows = append(rows, []string{"denied", subject, "", "", ago(&d.At), d.By})
	}
	return printTable(w, "LIST NODE SLOTS PROFILES CHANGED BY", rows)
}
