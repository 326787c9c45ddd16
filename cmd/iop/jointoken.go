package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"iop/execution"
	"iop/gateway/admin"
	"iop/state"
)

func newJoinTokenCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "join-token",
		Short: "Make, list and revoke join tokens: what a Node needs to join",
		Long: `Make, list and revoke join tokens: what a Node needs to join.

A Node's name belongs to the first token that used it, until that token is
revoked or has expired. Revoking a token closes the sessions that it opened.

These commands talk to the Edge's admin API; when no Edge runs they open its
state themselves.`,
		Example: "  iop join-token create --node gpu-3 > token\n  iop join-token list",
	}, newJoinTokenCreateCommand(), newJoinTokenListCommand(), newJoinTokenRevokeCommand())
}

func newJoinTokenCreateCommand() *cobra.Command {
	var node string
	var ttl time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a join token; it is shown once",
		Example: `  iop join-token create --node gpu-3 > token
  iop join-token create --node gpu-3 --ttl 2160h --out token --if-missing`,
		Args: exactly(),
	}
	o := bindOperator(cmd)
	out := bindSecretOut(cmd, "token")
	cmd.Flags().StringVar(&node, "node", "", "the one Node name it is for; default: any free name")
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "how long it is valid, e.g. 2160h; 0: for ever")
	jsonFlag(cmd, &asJSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.load(); err != nil {
			return err
		}
		spec := state.JoinTokenSpec{Node: execution.NodeID(node), TTL: ttl}
		if err := checkJoinToken(spec); err != nil {
			return usageError{err}
		}
		if make, err := out.ready(); err != nil || !make {
			return err
		}
		token, err := o.createJoinToken(cmd.Context(), spec)
		if err != nil {
			return err
		}
		word := fmt.Sprintf("join token %s for any Node", token.ID)
		if node != "" {
			word = fmt.Sprintf("join token %s for the Node %s", token.ID, node)
		}
		return out.deliver(cmd, asJSON, token, token.Token, word)
	}
	return cmd
}

func checkJoinToken(spec state.JoinTokenSpec) error {
	if spec.TTL < 0 || spec.TTL > 0 && spec.TTL < time.Second {
		return errors.New("--ttl must be a second or more, for example --ttl 2160h")
	}
	if spec.Node == "" {
		return nil
	}
	if err := spec.Node.Validate(); err != nil {
		return fmt.Errorf("--node: %w", err)
	}
	return nil
}

func (o *operator) createJoinToken(ctx context.Context, spec state.JoinTokenSpec) (token admin.JoinToken, err error) {
	err = o.reach(ctx, true, func() error {
		body := admin.NewJoinToken{Node: spec.Node, TTLSeconds: int64(spec.TTL / time.Second)}
		return o.call(ctx, "POST", "/join-tokens", body, &token)
	}, func(store *state.Store) error {
		made, secret, err := store.CreateJoinToken(ctx, spec)
		if err != nil {
			return err
		}
		token = joinTokenAnswer(&made)
		token.Token = secret.Reveal()
		return nil
	})
	return token, err
}

func newJoinTokenListCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the join tokens, without their secrets",
		Example: "  iop join-token list --json",
		Args:    exactly(),
	}
	o := bindOperator(cmd)
	jsonFlag(cmd, &asJSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.load(); err != nil {
			return err
		}
		tokens, err := o.joinTokens(cmd.Context())
		if err != nil {
			return err
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), listing[admin.JoinToken]{tokens})
		}
		var rows [][]string
		for _, t := range tokens {
			node := string(t.Node)
			if node == "" {
				node = "any"
			}
			rows = append(rows, []string{string(t.ID), node, ago(&t.Created), validity(t.Expires, t.Revoked)})
		}
		return printTable(cmd.OutOrStdout(), "ID NODE AGE STATE", rows)
	}
	return cmd
}

func (o *operator) joinTokens(ctx context.Context) ([]admin.JoinToken, error) {
	list := listing[admin.JoinToken]{Data: []admin.JoinToken{}}
	err := o.reach(ctx, false, func() error {
		return o.call(ctx, "GET", "/join-tokens", nil, &list)
	}, func(store *state.Store) error {
		tokens, err := store.JoinTokens(ctx)
		for i := range tokens {
			list.Data = append(list.Data, joinTokenAnswer(&tokens[i]))
		}
		return err
	})
	return list.Data, err
}

func newJoinTokenRevokeCommand() *cobra.Command {
	return newRevokeCommand("join-token", "Revoke a join token, and close the sessions that it opened", "/join-tokens/",
		func(ctx context.Context, store *state.Store, id string) error {
			return store.RevokeJoinToken(ctx, state.JoinTokenID(id), byCommand)
		})
}

// joinTokenAnswer is a join token as the admin API shows it.
func joinTokenAnswer(t *state.JoinToken) admin.JoinToken {
	return admin.JoinToken{ID: t.ID, Node: t.Node, Created: t.Created, Expires: optional(t.Expires), Revoked: optional(t.RevokedAt)}
}
