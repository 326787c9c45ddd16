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

A token that is bound to a Node's name reserves it. A name that no token is
bound to belongs to the first token that used it. Both last until that token is
revoked or has expired. Revoking a token closes the sessions that it opened.

These commands talk to the Edge's admin API; when no Edge runs they open its
state themselves.`,
		Example: "  iop join-token create --node gpu-3 > token\n  iop join-token list",
	}, newJoinTokenCreateCommand(), newJoinTokenListCommand(), newJoinTokenRevokeCommand())
}

func newJoinTokenCreateCommand() *cobra.Command {
	var node string
	var ttl span
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a join token; it is shown once",
		Long: `Make a join token; it is shown once: alone on standard output, or in the file of
--out. Bind it to a name with --node where you can: anyone who holds an unbound
token can join under any free name.

A bound token reserves its name at once: a Node that uses that name with an
unbound token is refused from its next connection on. To exchange a bound token,
make another one for the same name, give it to the Node, then revoke the first.`,
		Example: `  iop join-token create --node gpu-3 > token
  iop join-token create --node gpu-3 --ttl 90d --out token --if-missing`,
	}
	cmd.Flags().StringVar(&node, "node", "", "the one Node name it is for, and reserves; default: any free name")
	cmd.Flags().Var(&ttl, "ttl", "how long it is valid, e.g. 90d; 0: for ever")
	return creation[admin.NewJoinToken, admin.JoinToken]{
		secret:  "token",
		path:    joinTokensPath,
		body:    func() (admin.NewJoinToken, error) { return newJoinToken(node, time.Duration(ttl)) },
		onState: createJoinToken,
		reveal: func(t *admin.JoinToken) (secret, word string) {
			if t.Node == "" {
				return t.Token, fmt.Sprintf("join token %s for any Node", t.ID)
			}
			return t.Token, fmt.Sprintf("join token %s for the Node %s", t.ID, t.Node)
		},
	}.command(cmd)
}

const joinTokensPath = "/join-tokens"

func newJoinToken(node string, ttl time.Duration) (admin.NewJoinToken, error) {
	body := admin.NewJoinToken{Node: execution.NodeID(node), TTLSeconds: int64(ttl / time.Second)}
	if ttl < 0 || ttl > 0 && ttl < time.Second {
		return body, errors.New("--ttl must be a second or more, for example --ttl 90d")
	}
	if node != "" {
		if err := body.Node.Validate(); err != nil {
			return body, fmt.Errorf("--node: %w", err)
		}
	}
	return body, nil
}

func createJoinToken(ctx context.Context, store *state.Store, body admin.NewJoinToken) (admin.JoinToken, error) {
	made, secret, err := store.CreateJoinToken(ctx, state.JoinTokenSpec{
		Node: body.Node, TTL: time.Duration(body.TTLSeconds) * time.Second,
	})
	if err != nil {
		return admin.JoinToken{}, err
	}
	token := admin.JoinTokenView(&made)
	token.Token = secret.Reveal()
	return token, nil
}

func newJoinTokenListCommand() *cobra.Command {
	return inventory[admin.JoinToken]{
		path: joinTokensPath,
		onState: func(ctx context.Context, store *state.Store) ([]admin.JoinToken, error) {
			tokens, err := store.JoinTokens(ctx)
			views := make([]admin.JoinToken, len(tokens))
			for i := range tokens {
				views[i] = admin.JoinTokenView(&tokens[i])
			}
			return views, err
		},
		header: "ID NODE AGE STATE",
		row: func(t *admin.JoinToken) []string {
			node := string(t.Node)
			if node == "" {
				node = "any"
			}
			return []string{string(t.ID), node, ago(&t.Created), validity(t.Expires, t.Revoked)}
		},
	}.command(&cobra.Command{
		Use: "list", Short: "List the join tokens, without their secrets", Long: `List the join tokens, without their secrets: which Node each is for, how old it is
and whether it may still be used.`, Example: "  iop join-token list --json",
	})
}

func newJoinTokenRevokeCommand() *cobra.Command {
	return newRevokeCommand("join-token", "Revoke a join token, and close the sessions that it opened",
		`Revoke a join token, and close the sessions that it opened. The name that it had
is free for another token then.`, joinTokensPath,
		func(ctx context.Context, store *state.Store, id string) error {
			return store.RevokeJoinToken(ctx, state.JoinTokenID(id), byCommand)
		})
}
