package main

import (
	"context"
	"fmt"
	"net/url"
	"os/user"

	"github.com/spf13/cobra"

	"iop/gateway/admin"
	"iop/state"
)

// byCommand is who the state notes for a change without an Edge.
const byCommand = state.ActorCommand

// commandActor is who a command's changes are, where it opens the state itself: the operating system's user.
func commandActor() state.Actor {
	actor := state.Actor{Name: byCommand}
	if u, err := user.Current(); err == nil {
		actor.Source = u.Username
	}
	return actor
}

// listing is how several of a kind are answered.
type listing[T any] struct {
	Data []T `json:"data"`
}

// creation is what the commands that make a secret have in common: B is the body of the request, T the answer.
type creation[B, T any] struct {
	secret   string            // what it is called in help: "key"
	path     string            // of the admin API
	body     func() (B, error) // from the flags; an error is wrong use
	onState  func(context.Context, *state.Store, B) (T, error)
	reveal   func(*T) (secret, word string) // the secret, and what it is for
	secretOf func(*T) *string               // where the answer has the secret
	doubts   func(*T) []string              // what the user should know about it; or nil
}

// command completes cmd, which has its names and its own flags, and must not have been run.
func (c creation[B, T]) command(cmd *cobra.Command) *cobra.Command {
	var asJSON bool
	o := bindOperator(cmd)
	out := bindSecretOut(cmd, c.secret)
	jsonFlag(cmd, &asJSON)
	cmd.Args = exactly()
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.load(); err != nil {
			return err
		}
		body, err := c.body()
		if err != nil {
			return usageError{err}
		}
		if make, err := out.ready(); err != nil || !make {
			return err
		}
		ctx := cmd.Context()
		var made T
		err = o.reach(ctx, true, func() error {
			return o.call(ctx, "POST", c.path, body, &made)
		}, func(store *state.Store) (err error) {
			made, err = c.onState(ctx, store, body)
			return err
		})
		if err != nil {
			return err
		}
		if c.doubts != nil {
			warn(cmd, c.doubts(&made))
		}
		secret, word := c.reveal(&made)
		if out.path != "" {
			*c.secretOf(&made) = "" // the file has it; standard output may end up in a log
		}
		return out.deliver(cmd, asJSON, made, secret, word)
	}
	return cmd
}

// warn prints lines on standard error, each as a warning.
func warn(cmd *cobra.Command, lines []string) {
	for _, line := range lines {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s\n", onTerminal(line))
	}
}

// inventory is what the commands that list a kind, such as keys, have in common.
type inventory[T any] struct {
	path    string // of the admin API
	onState func(context.Context, *state.Store) ([]T, error)
	header  string
	row     func(*T) []string
	opens   bool // it also needs the master keys where no Edge runs
}

// command completes cmd, which has its names.
func (l inventory[T]) command(cmd *cobra.Command) *cobra.Command {
	var asJSON bool
	o := bindOperator(cmd)
	if l.opens {
		o.bindMasterKeys(cmd)
	}
	jsonFlag(cmd, &asJSON)
	cmd.Args = exactly()
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.load(); err != nil {
			return err
		}
		ctx := cmd.Context()
		list := listing[T]{Data: []T{}}
		err := o.reach(ctx, false, func() error {
			return o.call(ctx, "GET", l.path, nil, &list)
		}, func(store *state.Store) error {
			if err := o.tellMasterKeys(store); err != nil {
				return err
			}
			data, err := l.onState(ctx, store)
			list.Data = append(list.Data, data...)
			return err
		})
		if err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), list)
		}
		var rows [][]string
		for i := range list.Data {
			rows = append(rows, l.row(&list.Data[i]))
		}
		if len(rows) == 0 {
			sayEmpty(cmd, l.path)
		}
		return printTable(cmd.OutOrStdout(), l.header, rows)
	}
	return cmd
}

// revocation is what the commands that revoke a key or a join token have in common.
type revocation struct {
	kind, argument, named, example, path string
	short, long                          string
	onState                              func(context.Context, *state.Store, string) (id string, _ error)
}

// command makes the command.
func (v revocation) command() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "revoke " + v.argument, Short: v.short, Long: v.long, Args: exactly(v.named),
		Example: fmt.Sprintf("  iop %s revoke %s", v.kind, v.example),
	}
	o := bindOperator(cmd)
	jsonFlag(cmd, &asJSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.load(); err != nil {
			return err
		}
		id := args[0]
		answer := map[string]any{"id": id}
		err := o.reach(cmd.Context(), false, func() error {
			return o.call(cmd.Context(), "POST", v.path+"/"+url.PathEscape(id)+"/revoke", nil, &answer)
		}, func(store *state.Store) (err error) {
			answer["id"], err = v.onState(cmd.Context(), store, id)
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", id, listedBy("iop "+v.kind+" list", err))
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), answer)
		}
		until := ""
		if answer["state"] == admin.Pending {
			until = fmt.Sprintf("; a credential leased for it may be used until %v", answer["until"])
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is revoked%s\n", id, onTerminal(until))
		return err
	}
	return cmd
}
