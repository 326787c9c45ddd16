package main

import (
	"fmt"
	"io"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"iop/gateway/admin"
	"iop/lease"
)

const signingKeyPath = "/signing-key"

func newSigningKeyCommand() *cobra.Command {
	show := showCommand("signing-key show", "Show the ids of the keys that sign leases", `Show the ids of the keys that sign leases: the one in use, and the next one with the
time from which it signs.`, signingKeyPath, printSigningKeys)
	show.Use = "show"
	return group(&cobra.Command{
		Use:   "signing-key",
		Short: "Rotate, revoke and show the keys that sign leases",
		Long: `Rotate, revoke and show the keys that sign leases. They exist only in the Edge's
memory: an Edge creates new ones when it starts, and sends them to its Nodes as they
connect. Each is used for a day.

A key is announced to Nodes ten minutes before it signs its first lease, so that no
lease is refused because its key is unknown.`,
		Example: "  iop signing-key rotate\n  iop signing-key show",
	}, newSigningKeyRotateCommand(), newSigningKeyRevokeCommand(), show)
}

func newSigningKeyRotateCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Sign leases with the next key",
		Long: `Sign leases with the next key, and announce the one after it. The previous key still
verifies the leases that it signed, so no run fails.

If the next key was announced less than ten minutes ago, as after the Edge's start or
another rotation, the Edge rotates once the ten minutes have passed. The answer is
then "pending", with the time.`,
		Example: "  iop signing-key rotate\n  iop signing-key rotate --json",
		Args:    exactly(),
	}
	o := bindOperator(cmd)
	jsonFlag(cmd, &asJSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.load(); err != nil {
			return err
		}
		var done admin.SigningKeyRotation
		if err := o.call(cmd.Context(), "POST", signingKeyPath+"/rotate", nil, &done); err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), done)
		}
		return printSigningKeyRotation(cmd.OutOrStdout(), &done)
	}
	return cmd
}

func newSigningKeyRevokeCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "revoke ID",
		Short: "Revoke a key that may be compromised, at once",
		Long: `Revoke a key that may be compromised, at once. Leases signed with it that no Node has
opened yet are refused, and their runs fail; opened leases stay in use until their
call ends. If it was the current key, the next one signs from now on, even if it was
announced less than ten minutes ago.

To replace a key that is not compromised, use iop signing-key rotate.`,
		Example: "  iop signing-key revoke nfX3hZy9LkqIuZ0Wl5b8cK2mTg7dQe1sRvAo6jPxUwE",
		Args:    exactly("ID"),
	}
	o := bindOperator(cmd)
	jsonFlag(cmd, &asJSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.load(); err != nil {
			return err
		}
		var left admin.SigningKeys
		if err := o.call(cmd.Context(), "DELETE", signingKeyPath+"/"+url.PathEscape(args[0]), nil, &left); err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), left)
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "revoked: the key %s signs leases\n", onTerminal(keyOf(left.Keys, lease.KeyCurrent)))
		return err
	}
	return cmd
}

func printSigningKeyRotation(w io.Writer, done *admin.SigningKeyRotation) error {
	if done.Until != nil {
		_, err := fmt.Fprintf(w, "pending: the key %s signs leases from %s on, ten minutes after its announcement\n",
			onTerminal(keyOf(done.Keys, lease.KeyNext)), done.Until.UTC().Format(time.RFC3339))
		return err
	}
	_, err := fmt.Fprintf(w, "done: the key %s signs leases\n", onTerminal(keyOf(done.Keys, lease.KeyCurrent)))
	return err
}

// keyOf is the id of the key with a role.
func keyOf(keys []admin.SigningKey, role lease.KeyRole) string {
	for _, k := range keys {
		if k.Role == role {
			return string(k.ID)
		}
	}
	return "-"
}

func printSigningKeys(w io.Writer, keys *admin.SigningKeys) error {
	rows := make([][]string, len(keys.Keys))
	for i, k := range keys.Keys {
		does := "signs until " + keys.Rotates.Format(time.RFC3339)
		switch {
		case k.UsableFrom != nil:
			does = "signs from " + keys.Rotates.Format(time.RFC3339) + " on, may from " + k.UsableFrom.Format(time.RFC3339) + " on"
		case k.VerifiesUntil != nil:
			does = "verifies until " + k.VerifiesUntil.Format(time.RFC3339)
		}
		rows[i] = []string{string(k.ID), string(k.Role), ago(&k.Announced), does}
	}
	return printTable(w, "ID ROLE ANNOUNCED USE", rows)
}
