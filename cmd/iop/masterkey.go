package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"github.com/spf13/cobra"

	"iop/gateway/admin"
	"iop/state"
)

const masterKeysPath = "/master-keys"

func newMasterKeyCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "master-key",
		Short: "Make, add and list the keys that seal credentials, and seal anew",
		Long: `Make, add and list the keys that seal credentials, and seal anew. The file is
kept apart from the Edge's state, is given to the Edge as
IOP_EDGE_MASTER_KEY_FILE, and should have a copy in a safe: without it the slots
can't be opened.

To change the key: "add" puts another one first, SIGHUP has the Edge read the
file, "rewrap" seals under the new one what the old one still does, and once
"list" shows no slots for the old one its line may go.`,
		Example: "  iop master-key create /etc/iop/master-key\n  iop master-key list",
	}, newMasterKeyFileCommand("create", "Make a file with a master key", `Make a file with a master key, mode 0600. It replaces nothing. Keep a copy in a safe:
without it the slots can't be opened.`, state.CreateMasterKeyFile),
		newMasterKeyFileCommand("add", "Put another master key first in a file, where new values are sealed under it", `Put another master key first in a file, where new values are sealed under it. Send
the Edge a SIGHUP then, and seal anew what the former key seals ("rewrap").`, state.AddMasterKey),
		newMasterKeyListCommand(), newRewrapCommand())
}

// newMasterKeyFileCommand makes a command that puts a fresh key into a file. Nothing shows the key.
func newMasterKeyFileCommand(verb, short, long string, put func(path string) (state.MasterKey, error)) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: verb + " FILE", Short: short, Long: long, Example: fmt.Sprintf("  iop master-key %s /etc/iop/master-key", verb), Args: exactly("the file"),
	}
	jsonFlag(cmd, &asJSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		key, err := put(args[0])
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%s exists already; \"iop master-key add\" puts another key into it", args[0])
		}
		if err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), map[string]any{"id": key.ID(), "file": args[0]})
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "master key %s, first in %s\n", key.ID(), args[0])
		return err
	}
	return cmd
}

func newMasterKeyListCommand() *cobra.Command {
	return inventory[admin.MasterKey]{
		path: masterKeysPath,
		onState: func(ctx context.Context, store *state.Store) ([]admin.MasterKey, error) {
			uses, err := store.MasterKeyUses(ctx)
			return admin.MasterKeyViews(uses), err
		},
		header: "ID SLOTS STATE",
		row: func(k *admin.MasterKey) []string {
			use := "not known: its slots give no credential"
			switch {
			case k.Current:
				use = "current"
			case k.Known:
				use = "known"
			}
			return []string{string(k.ID), strconv.FormatInt(k.Slots, 10), use}
		},
		opens: true,
	}.command(&cobra.Command{
		Use: "list", Short: "List the master keys by their ids, and how many slots each seals", Long: `List the master keys by their ids, and how many slots each seals. A key that seals
none may go from the file; one that is not known leaves its slots unusable.`, Example: "  iop master-key list",
	})
}

func newRewrapCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "rewrap",
		Short: "Seal under the first master key what the others still seal",
		Long: `Seal under the first master key what the others still seal. Values and revisions
stay, so neither leases nor runs notice. After a failure it may be run again.

The Edge must have read the file with the new key (SIGHUP). With
--master-key-file the command makes sure of that before it begins.`,
		Example: "  iop master-key rewrap --master-key-file /etc/iop/master-key",
		Args:    exactly(),
	}
	o := bindOperator(cmd)
	o.bindMasterKeys(cmd)
	jsonFlag(cmd, &asJSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.load(); err != nil {
			return err
		}
		ctx := cmd.Context()
		var done admin.Rewrapped
		err := o.reach(ctx, false, func() error {
			if err := o.edgeHasRead(ctx); err != nil {
				return err
			}
			return o.call(ctx, "POST", masterKeysPath+"/rewrap", nil, &done)
		}, func(store *state.Store) (err error) {
			if err := o.tellMasterKeys(store); err != nil {
				return err
			}
			done, err = admin.Rewrap(ctx, store, byCommand)
			return onStateFault(err)
		})
		if err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), done)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s sealed anew, under the master key %s\n", counted(done.Moved, "slot"), done.MasterKey)
		return err
	}
	return cmd
}

// edgeHasRead makes sure that the Edge seals under the first key of the file, if one is given.
func (o *operator) edgeHasRead(ctx context.Context) error {
	if o.master.File == "" {
		return nil
	}
	keys, err := state.ReadMasterKeys(o.master.File)
	if err != nil {
		return o.masterBound.bareFault("MASTER_KEY_FILE", oneLine(err))
	}
	var list listing[admin.MasterKey]
	if err := o.call(ctx, "GET", masterKeysPath, nil, &list); err != nil {
		return err
	}
	for _, k := range list.Data {
		if k.Current && k.ID == keys[0].ID() {
			return nil
		}
	}
	return fmt.Errorf("the Edge does not seal under %s, the first key of %s: have it read the file again (SIGHUP)", keys[0].ID(), o.master.File)
}
