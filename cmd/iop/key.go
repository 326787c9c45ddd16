package main

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"iop/gateway/admin"
	"iop/state"
)

// byCommand is who the state notes for a revocation without an Edge.
const byCommand = "command"

func newKeyCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "key",
		Short: "Make, list and revoke API keys",
		Long: `Make, list and revoke API keys.

These commands talk to the Edge's admin API; when no Edge runs they open its
state themselves.`,
		Example: "  iop key create --name alice\n  iop key list",
	}, newKeyCreateCommand(), newKeyListCommand(), newKeyRevokeCommand())
}

// keyFlags are the flags of `iop key create`.
type keyFlags struct {
	name, owner string
	routes      []string
	rpm, tpm    int64
	concurrency int64
	expires     time.Duration
}

func newKeyCreateCommand() *cobra.Command {
	var flags keyFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make an API key; it is shown once",
		Example: `  iop key create --name alice
  iop key create --name ci --routes 'llama*,qwen*' --expires 720h --json`,
		Args: exactly(),
	}
	o := bindOperator(cmd)
	out := bindSecretOut(cmd, "key")
	f := cmd.Flags()
	f.StringVar(&flags.name, "name", "", "what the key is for; required")
	f.StringVar(&flags.owner, "owner", "", "whose use it counts as; default: the key's own")
	f.StringSliceVar(&flags.routes, "routes", nil, "models that it may use, as globs; default: all")
	f.Int64Var(&flags.rpm, "rpm", 0, "requests a minute; 0: no limit")
	f.Int64Var(&flags.tpm, "tpm", 0, "tokens a minute; 0: no limit")
	f.Int64Var(&flags.concurrency, "concurrency", 0, "requests at once; 0: no limit")
	f.DurationVar(&flags.expires, "expires", 0, "how long it is valid, e.g. 720h; 0: for ever")
	jsonFlag(cmd, &asJSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.load(); err != nil {
			return err
		}
		spec, err := flags.spec(time.Now())
		if err != nil {
			return usageError{err}
		}
		if make, err := out.ready(); err != nil || !make {
			return err
		}
		key, err := o.createKey(cmd.Context(), spec)
		if err != nil {
			return err
		}
		return out.deliver(cmd, asJSON, key, key.Key, fmt.Sprintf("API key %s for %q", key.ID, key.Name))
	}
	return cmd
}

func (f keyFlags) spec(now time.Time) (state.KeySpec, error) {
	if f.name == "" {
		return state.KeySpec{}, fmt.Errorf("--name is required, for example --name alice")
	}
	if f.expires < 0 {
		return state.KeySpec{}, fmt.Errorf("--expires must not be negative, for example --expires 720h")
	}
	spec := state.KeySpec{
		Name: f.name, Owner: f.owner, Routes: f.routes, RPM: f.rpm, TPM: f.tpm, Concurrency: f.concurrency,
	}
	if f.expires > 0 {
		spec.Expires = now.Add(f.expires)
	}
	return spec, nil
}

func (o *operator) createKey(ctx context.Context, spec state.KeySpec) (key admin.Key, err error) {
	err = o.reach(ctx, true, func() error {
		body := admin.NewKey{
			Name: spec.Name, Owner: spec.Owner, Routes: spec.Routes, RPM: spec.RPM, TPM: spec.TPM, Concurrency: spec.Concurrency,
		}
		if !spec.Expires.IsZero() {
			body.Expires = &spec.Expires
		}
		return o.call(ctx, "POST", "/keys", body, &key)
	}, func(store *state.Store) error {
		made, secret, err := store.CreateKey(ctx, spec)
		if err != nil {
			return err
		}
		key = keyAnswer(&made)
		key.Key = secret.Reveal()
		return nil
	})
	return key, err
}

func newKeyListCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the API keys, without their secrets",
		Example: "  iop key list --json",
		Args:    exactly(),
	}
	o := bindOperator(cmd)
	jsonFlag(cmd, &asJSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.load(); err != nil {
			return err
		}
		keys, err := o.keys(cmd.Context())
		if err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), listing[admin.Key]{keys})
		}
		var rows [][]string
		for _, k := range keys {
			rows = append(rows, []string{
				string(k.ID), k.Name, k.Principal, strings.Join(k.Routes, ","), ago(&k.Created), ago(k.LastUsed), validity(k.Expires, k.Revoked),
			})
		}
		return printTable(cmd.OutOrStdout(), "ID NAME PRINCIPAL ROUTES AGE USED STATE", rows)
	}
	return cmd
}

func (o *operator) keys(ctx context.Context) ([]admin.Key, error) {
	list := listing[admin.Key]{Data: []admin.Key{}}
	err := o.reach(ctx, false, func() error {
		return o.call(ctx, "GET", "/keys", nil, &list)
	}, func(store *state.Store) error {
		keys, err := store.Keys(ctx)
		for i := range keys {
			list.Data = append(list.Data, keyAnswer(&keys[i]))
		}
		return err
	})
	return list.Data, err
}

func newKeyRevokeCommand() *cobra.Command {
	return newRevokeCommand("key", "Revoke an API key: from now on it is refused", "/keys/", func(ctx context.Context, store *state.Store, id string) error {
		return store.RevokeKey(ctx, state.KeyID(id), byCommand)
	})
}

// newRevokeCommand makes the command that revokes a key or a join token by its id.
func newRevokeCommand(kind, short, path string, revoke func(context.Context, *state.Store, string) error) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "revoke ID",
		Short:   short,
		Example: fmt.Sprintf("  iop %s revoke 0Ab3dE9z", kind),
		Args:    exactly("the ID"),
	}
	o := bindOperator(cmd)
	jsonFlag(cmd, &asJSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.load(); err != nil {
			return err
		}
		id := args[0]
		var answer any = map[string]any{"id": id}
		err := o.reach(cmd.Context(), false, func() error {
			return o.call(cmd.Context(), "POST", path+url.PathEscape(id)+"/revoke", nil, &answer)
		}, func(store *state.Store) error {
			return revoke(cmd.Context(), store, id)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", id, err)
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), answer)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is revoked\n", id)
		return err
	}
	return cmd
}

// listing is how several of a kind are answered.
type listing[T any] struct {
	Data []T `json:"data"`
}

// validity says whether a key or a token may still be used.
func validity(expires, revoked *time.Time) string {
	switch {
	case revoked != nil:
		return "revoked"
	case expires == nil:
		return "valid"
	case expires.Before(time.Now()):
		return "expired"
	}
	return "valid for " + brief(time.Until(*expires))
}

// keyAnswer is a key as the admin API shows it.
func keyAnswer(k *state.Key) admin.Key {
	return admin.Key{
		ID: k.ID, Name: k.Name, Principal: k.Principal(), Routes: append([]string{}, k.Routes...),
		RPM: k.RPM, TPM: k.TPM, Concurrency: k.Concurrency, Created: k.Created,
		Expires: optional(k.Expires), Revoked: optional(k.RevokedAt), LastUsed: optional(k.LastUsed),
	}
}

// optional is t, or nil for never.
func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
