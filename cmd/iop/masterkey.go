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
		Short: "Create, add and list the master keys that seal credentials, and reseal slots",
		Long: `Create, add and list the master keys that seal credentials, and reseal slots. Keep
the file apart from the Edge's state, pass it to the Edge as
IOP_EDGE_MASTER_KEY_FILE, and back it up in a safe place: without it the slots
can't be opened.

To change the key: "add" puts a new one first, SIGHUP makes the Edge reload the
file, and "rewrap" reseals every slot under the new key. Once "list" shows no slots
for the old key, you can delete its line.`,
		Example: "  iop master-key create /etc/iop/master-key\n  iop master-key list",
	}, newMasterKeyFileCommand("create", "Create a file with a master key", `Create a file with a master key, mode 0600. An existing file is never overwritten.
Back it up in a safe place: without it the slots can't be opened.`, state.CreateMasterKeyFile),
		newMasterKeyFileCommand("add", "Add a master key at the top of a file, so that new values are sealed under it", `Add a master key at the top of a file, so that new values are sealed under it. Then
send the Edge a SIGHUP, and reseal the slots of the old key ("rewrap").`, state.AddMasterKey),
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
			return fmt.Errorf("%s already exists; \"iop master-key add\" adds a key to it", args[0])
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
			use := "unknown: its slots can't be opened"
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
		Use: "list", Short: "List the ids of the master keys and how many slots each seals", Long: `List the ids of the master keys and how many slots each seals. A key that seals none
can be deleted from the file. Slots of an unknown key are unusable.`, Example: "  iop master-key list",
	})
}

func newRewrapCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "rewrap",
		Short: "Reseal all slots under the first master key",
		Long: `Reseal all slots under the first master key. Values and revisions stay the same, so
leases and runs are not affected. After a failure it can be run again.

The Edge must have loaded the file with the new key (SIGHUP). With
--master-key-file the command checks that first.`,
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
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s resealed under the master key %s\n", counted(done.Moved, "slot"), done.MasterKey)
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
	return fmt.Errorf("the Edge does not seal under %s, the first key of %s: make it reload the file (SIGHUP)", keys[0].ID(), o.master.File)
}
