package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"iop/execution"
	"iop/gateway/admin"
	"iop/lease"
	"iop/state"
)

const slotsPath = "/slots"

func newSlotCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "slot",
		Short: "Manage provider credentials: set, rotate, disable, revoke, list",
		Long: `Manage provider credentials for managed mode: set, rotate, disable, revoke, list. A
slot holds one credential, sealed under the master key and leased to a Node for one
run at a time.

A value is read from a file or from standard input, never from the command line,
and is never shown again. Commands that take a value out of use report on earlier
leases: "done" means that none can be used any more, "pending" gives the time until
which one may be used, because a Node has not acknowledged the change. A value that
a Node has already opened can only be invalidated at the provider.

These commands use the Edge's admin API. If no Edge is running, they open its state
directly; those that take a value then need --master-key-file.`,
		Example: "  iop slot set openai-main --profile openai --value-file key\n  iop slot list\n  iop slot revoke openai-main --rotate",
	}, newSlotSetCommand(), newSlotRotateCommand(), newSlotEnableCommand(), newSlotDisableCommand(), newSlotRevokeCommand(),
		newSlotDeleteCommand(), newSlotListCommand(), newSlotShowCommand())
}

// slotCall is a change of one slot: of the admin API, or of the state where no Edge runs.
type slotCall struct {
	method, suffix string
	body           any // nil: none
	word           string
	carries        bool // the body has a value
	withdraws      bool // a value may be taken out of use
	onState        func(context.Context, *state.Store, execution.SlotName) (*state.Slot, error)
}

// changeSlotCommand completes a command that changes a slot. prepare's error is wrong use.
func changeSlotCommand(cmd *cobra.Command, prepare func(*cobra.Command) (slotCall, error)) *cobra.Command {
	var asJSON bool
	o := bindOperator(cmd)
	o.bindMasterKeys(cmd)
	jsonFlag(cmd, &asJSON)
	quietArguments(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.load(); err != nil {
			return err
		}
		ask, err := prepare(cmd)
		if err != nil {
			return usageError{err}
		}
		if ask.carries {
			o.warnPlainAdmin(cmd.ErrOrStderr())
		}
		name, ctx := args[0], cmd.Context()
		var change admin.SlotChange
		err = o.reach(ctx, false, func() error {
			return o.call(ctx, ask.method, slotsPath+"/"+url.PathEscape(name)+ask.suffix, ask.body, &change)
		}, func(store *state.Store) (err error) {
			change, err = o.changeOnState(ctx, cmd.ErrOrStderr(), store, execution.SlotName(name), ask)
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", onTerminal(name), listedBy("iop slot list", err))
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), change)
		}
		return printSlotChange(cmd.OutOrStdout(), name, ask.word, &change)
	}
	return cmd
}

// warnPlainAdmin warns of a value that anyone on the way to the admin API can read.
func (o *operator) warnPlainAdmin(warn io.Writer) {
	if u, err := url.Parse(o.admin.URL); err == nil && u.Scheme == "http" && !isLoopback(u.Hostname()) {
		fmt.Fprintf(warn, "iop: the value is sent to %s without encryption: unless the network is trusted, run this on the Edge's machine\n", u.Host)
	}
}

// quietArguments accepts the slot's name, and repeats nothing else: it may be a value.
func quietArguments(cmd *cobra.Command) {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 {
			return fmt.Errorf("%s takes one argument, the slot's name; a value is read from --value-file or standard input", cmd.CommandPath())
		}
		return exactly("the slot's name")(cmd, args)
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, _ error) error {
		return usageError{fmt.Errorf("unknown flag, or a flag without its value; see %s --help", cmd.CommandPath())}
	})
}

// changeOnState makes the change where no Edge runs. No Node is told, so what one had leased lives to its end.
func (o *operator) changeOnState(ctx context.Context, warn io.Writer, store *state.Store, name execution.SlotName, ask slotCall) (admin.SlotChange, error) {
	if err := o.tellMasterKeys(store); err != nil {
		return admin.SlotChange{}, err
	}
	_, err := store.Slot(ctx, name)
	fresh := errors.Is(err, state.ErrNotFound)
	slot, err := ask.onState(ctx, store, name)
	if err != nil {
		return admin.SlotChange{}, onStateFault(err)
	}
	change := admin.SlotChange{Withdrawal: admin.Withdrawal{State: admin.Done}}
	if slot != nil {
		view := admin.SlotView(slot)
		change.Slot = &view
	}
	if ask.withdraws && !fresh {
		until := time.Now().Add(lease.MaxLife).UTC()
		change.Withdrawal = admin.Withdrawal{State: admin.Pending, Until: &until, Note: admin.ReleasedNote}
		fmt.Fprintf(warn, "iop: no Edge is running at %s, so no Node was notified\n", o.admin.URL)
	}
	return change, nil
}

// onStateFault says what to do about a missing master key.
func onStateFault(err error) error {
	if refused, ok := errors.AsType[*state.CredentialError](err); ok && refused.Reason == state.CredentialNoMasterKey {
		return errors.New("no Edge is running, and without --master-key-file (IOP_EDGE_MASTER_KEY_FILE) no value can be sealed")
	}
	return err
}

func printSlotChange(w io.Writer, name, word string, c *admin.SlotChange) error {
	revision := ""
	if c.Slot != nil {
		revision = fmt.Sprintf(", revision %d", c.Slot.Revision)
	}
	fmt.Fprintf(w, "%s is %s%s\n", onTerminal(name), word, revision)
	if c.Slot != nil && c.Slot.NeedsProviderRotation {
		fmt.Fprintln(w, "needs     rotation at the provider: create a new value there, then run \"iop slot rotate\"")
	}
	_, err := fmt.Fprintln(w, "leases   ", withdrawalText(&c.Withdrawal))
	if c.Note != "" {
		_, err = fmt.Fprintln(w, "but      ", onTerminal(c.Note))
	}
	return err
}

// withdrawalText says what became of the leases of before.
func withdrawalText(w *admin.Withdrawal) string {
	text := "done: no earlier lease can be used any more"
	if w.State == admin.Pending && w.Until != nil {
		text = fmt.Sprintf("pending: an earlier lease may be used until %s", w.Until.UTC().Format(time.RFC3339))
	}
	if w.Leases+w.Runs > 0 {
		text += fmt.Sprintf(" (%s withdrawn, %s cancelled)", counted(w.Leases, "lease"), counted(w.Runs, "run"))
	}
	return text
}

func newSlotSetCommand() *cobra.Command {
	var profile string
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Create a slot, or set the value and profile of an existing one",
		Long: `Create a slot, or set the value and profile of an existing one. The value is read
from --value-file or from standard input; one trailing line break is removed.`,
		Example: `  iop slot set openai-main --profile openai --value-file key
  vault read -field=key secret/openai | iop slot set openai-main --profile openai`,
	}
	cmd.Flags().StringVar(&profile, "profile", "", "the profile that sets how and where it is sent (required)")
	value := bindValue(cmd)
	return changeSlotCommand(cmd, func(cmd *cobra.Command) (slotCall, error) {
		if profile == "" {
			return slotCall{}, errors.New("--profile is required, for example --profile openai")
		}
		secret, err := value.read(cmd)
		body := admin.NewSlot{Profile: execution.ProfileName(profile), Value: admin.Value{Secret: secret}}
		return slotCall{method: "PUT", body: body, word: "set", carries: true, withdraws: true,
			onState: func(ctx context.Context, store *state.Store, name execution.SlotName) (*state.Slot, error) {
				slot, err := store.SetSlot(ctx, state.SlotSpec{Slot: name, Profile: body.Profile, Value: secret}, byCommand)
				return &slot, err
			}}, err
	})
}

func newSlotRotateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rotate NAME",
		Short: "Replace a slot's value; runs with the old one finish",
		Long: `Replace a slot's value; runs with the old one finish. Once the command returns, the
old value is not leased any more; "pending" gives the time until which an earlier run
may use it.`,
		Example: `  iop slot rotate openai-main --value-file key
  iop slot rotate openai-main < key`,
	}
	value := bindValue(cmd)
	return changeSlotCommand(cmd, func(cmd *cobra.Command) (slotCall, error) {
		secret, err := value.read(cmd)
		return slotCall{method: "POST", suffix: "/rotate", body: admin.NewValue{Value: admin.Value{Secret: secret}}, word: "rotated", carries: true, withdraws: true,
			onState: func(ctx context.Context, store *state.Store, name execution.SlotName) (*state.Slot, error) {
				slot, err := store.RotateSlot(ctx, name, secret, byCommand)
				return &slot, err
			}}, err
	})
}

func newSlotEnableCommand() *cobra.Command {
	return changeSlotCommand(&cobra.Command{
		Use: "enable NAME", Short: "Enable a disabled slot again", Long: `Enable a disabled slot again. A revoked one needs a new value first.`, Example: "  iop slot enable openai-main",
	}, func(*cobra.Command) (slotCall, error) {
		return slotCall{method: "POST", suffix: "/enable", word: "enabled",
			onState: func(ctx context.Context, store *state.Store, name execution.SlotName) (*state.Slot, error) {
				slot, err := store.EnableSlot(ctx, name, byCommand)
				return &slot, err
			}}, nil
	})
}

func newSlotDisableCommand() *cobra.Command {
	return changeSlotCommand(&cobra.Command{
		Use: "disable NAME", Short: "Disable a slot until it is enabled again; runs that use it are cancelled", Long: `Disable a slot until it is enabled again; runs that use it are cancelled. Prints
"done", or "pending" with the time until which a Node that did not respond may still
use an earlier lease.`, Example: "  iop slot disable openai-main",
	}, func(*cobra.Command) (slotCall, error) {
		return slotCall{method: "POST", suffix: "/disable", word: "disabled", withdraws: true,
			onState: func(ctx context.Context, store *state.Store, name execution.SlotName) (*state.Slot, error) {
				slot, err := store.DisableSlot(ctx, name, byCommand)
				return &slot, err
			}}, nil
	})
}

func newSlotRevokeCommand() *cobra.Command {
	var rotate bool
	cmd := &cobra.Command{
		Use:   "revoke NAME",
		Short: "Revoke a slot's value for good; runs that use it are cancelled",
		Long: `Revoke a slot's value for good; runs that use it are cancelled. The slot needs a new
value to be usable again. With --rotate the value is marked as compromised: it must
be replaced at the provider, and setting the same value again is refused.`,
		Example: "  iop slot revoke openai-main\n  iop slot revoke openai-main --rotate",
	}
	cmd.Flags().BoolVar(&rotate, "rotate", false, "the value is compromised and must be replaced at the provider")
	return changeSlotCommand(cmd, func(*cobra.Command) (slotCall, error) {
		return slotCall{method: "POST", suffix: "/revoke", body: admin.Revocation{NeedsProviderRotation: rotate}, word: "revoked", withdraws: true,
			onState: func(ctx context.Context, store *state.Store, name execution.SlotName) (*state.Slot, error) {
				slot, err := store.RevokeSlot(ctx, name, rotate, byCommand)
				return &slot, err
			}}, nil
	})
}

func newSlotDeleteCommand() *cobra.Command {
	return changeSlotCommand(&cobra.Command{
		Use: "delete NAME", Short: "Delete a slot and its value; runs that use it are cancelled", Long: `Delete a slot and its value; runs that use it are cancelled. Prints "done", or
"pending" with the time until which a Node that did not respond may still use an
earlier lease.`, Example: "  iop slot delete openai-main",
	}, func(*cobra.Command) (slotCall, error) {
		return slotCall{method: "DELETE", word: "removed", withdraws: true,
			onState: func(ctx context.Context, store *state.Store, name execution.SlotName) (*state.Slot, error) {
				_, err := store.DeleteSlot(ctx, name, byCommand)
				return nil, err
			}}, nil
	})
}

func newSlotListCommand() *cobra.Command {
	return inventory[admin.Slot]{
		path: slotsPath,
		onState: func(ctx context.Context, store *state.Store) ([]admin.Slot, error) {
			slots, err := store.Slots(ctx)
			views := make([]admin.Slot, len(slots))
			for i := range slots {
				views[i] = admin.SlotView(&slots[i])
			}
			return views, err
		},
		header: "SLOT PROFILE REVISION STATE MASTER-KEY CHANGED BY",
		row: func(s *admin.Slot) []string {
			return []string{
				string(s.Name), string(s.Profile), strconv.FormatUint(uint64(s.Revision), 10), slotState(s), string(s.MasterKey), ago(&s.Updated), s.By,
			}
		},
	}.command(&cobra.Command{Use: "list", Short: "List the slots without their values", Long: `List the slots without their values: profile, revision, state and last use.`, Example: "  iop slot list --json"})
}

// slotState is in a word whether a slot is leased.
func slotState(s *admin.Slot) string {
	switch {
	case s.NeedsProviderRotation:
		return "revoked, rotate at the provider"
	case s.Revoked:
		return "revoked"
	case !s.Enabled:
		return "disabled"
	}
	return "in use"
}

func newSlotShowCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "show NAME", Short: "Show a slot without its value", Long: `Show a slot without its value: profile, state, revision, the master key that seals
it, and who changed it last.`, Example: "  iop slot show openai-main", Args: exactly("the slot's name"),
	}
	o := bindOperator(cmd)
	jsonFlag(cmd, &asJSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.load(); err != nil {
			return err
		}
		ctx := cmd.Context()
		var slot admin.Slot
		err := o.reach(ctx, false, func() error {
			return o.call(ctx, "GET", slotsPath+"/"+url.PathEscape(args[0]), nil, &slot)
		}, func(store *state.Store) error {
			got, err := store.Slot(ctx, execution.SlotName(args[0]))
			slot = admin.SlotView(&got)
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", onTerminal(args[0]), listedBy("iop slot list", err))
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), slot)
		}
		return printSlot(cmd.OutOrStdout(), &slot)
	}
	return cmd
}

func printSlot(w io.Writer, s *admin.Slot) error {
	for _, line := range [][2]string{
		{"slot", string(s.Name)}, {"profile", string(s.Profile)}, {"state", slotState(s)}, {"revision", strconv.FormatUint(uint64(s.Revision), 10)},
		{"sealed", "under the master key " + string(s.MasterKey)}, {"changed", s.Updated.UTC().Format(time.RFC3339) + " by " + s.By},
	} {
		if _, err := fmt.Fprintf(w, "%-9s %s\n", line[0], onTerminal(line[1])); err != nil {
			return err
		}
	}
	return nil
}
