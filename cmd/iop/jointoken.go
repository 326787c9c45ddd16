package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"iop/gateway/admin"
	"iop/state"
)

func newJoinTokenCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "join-token",
		Short: "Create, list and revoke join tokens, which let Nodes join",
		Long: `Create, list and revoke join tokens, which let Nodes join.

A token bound to a Node's name reserves that name. Any other name belongs to the
first token that used it. Both last until the token is revoked or expires.
Revoking a token closes the sessions that it opened.

These commands use the Edge's admin API. If no Edge is running, they open its state
directly.`,
		Example: "  iop join-token create --node gpu-3 > token\n  iop join-token list",
	}, newJoinTokenCreateCommand(), newJoinTokenListCommand(), newJoinTokenRevokeCommand())
}

func newJoinTokenCreateCommand() *cobra.Command {
	var body admin.NewJoinToken
	var ttl span
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create a join token, which is shown only once",
		Long: `Create a join token. It is shown only once: alone on standard output, or in the file
given by --out. Bind it to a name with --node if you can: anyone holding an unbound
token can join under any free name.

A bound token reserves its name at once: a Node that uses that name with an
unbound token is refused at its next connection. To replace a bound token, create
another one for the same name, give it to the Node, then revoke the first.

By default a Node may declare any labels and models. With --label, a Node that has
any other label is refused. With --model, other models that it offers are ignored.
Both flags are repeatable.`,
		Example: `  iop join-token create --node gpu-3 > token
  iop join-token create --node gpu-3 --ttl 90d --out token --if-missing
  iop join-token create --label site=lab --label 'gpu=*' --model 'llama*' --max-nodes 20 > token`,
	}
	cmd.Flags().StringVar((*string)(&body.Node), "node", "", "the only Node name it is valid for, reserved by it; default: any free name")
	cmd.Flags().Var(&ttl, "ttl", "how long it is valid, e.g. 90d; 0: forever")
	f := cmd.Flags()
	f.StringArrayVar(&body.Labels, "label", nil, "label that its Nodes may have, KEY=VALUE, the value a glob; repeatable; default: any")
	f.StringArrayVar(&body.Models, "model", nil, "models that its Nodes may offer, a glob; repeatable; default: all")
	f.Int64Var(&body.MaxNodes, "max-nodes", 0, "maximum distinct Node names in use in the last 30 days; default: 100, or 1 with --node")
	f.Int64Var(&body.MaxSessions, "max-sessions", 0, "maximum concurrent sessions; default: four per name")
	f.Int64Var(&body.MaxModels, "max-models", 0, "maximum models per Node; more are ignored; default: 16384")
	f.Int64Var(&body.MaxInventoryBytes, "max-inventory-bytes", 0, "Edge memory for what its Nodes offer, in bytes; default: 67108864")
	return creation[admin.NewJoinToken, admin.JoinToken]{
		secret:   "token",
		path:     joinTokensPath,
		body:     func() (admin.NewJoinToken, error) { return body, checkJoinToken(&body, time.Duration(ttl)) },
		onState:  createJoinToken,
		secretOf: func(t *admin.JoinToken) *string { return &t.Token },
		reveal: func(t *admin.JoinToken) (secret, word string) {
			if t.Node == "" {
				return t.Token, fmt.Sprintf("join token %s for any Node", t.ID)
			}
			return t.Token, fmt.Sprintf("join token %s for the Node %s", t.ID, t.Node)
		},
	}.command(cmd)
}

const joinTokensPath = "/join-tokens"

// checkJoinToken completes the body, and checks it before an Edge is asked.
func checkJoinToken(body *admin.NewJoinToken, ttl time.Duration) error {
	body.TTLSeconds = int64(ttl / time.Second)
	if ttl < 0 || ttl > 0 && ttl < time.Second {
		return errors.New("--ttl must be a second or more, for example --ttl 90d")
	}
	spec := body.JoinTokenSpec()
	if fault, ok := errors.AsType[*state.SpecError](spec.Check()); ok {
		return fmt.Errorf("--%s: %s", tokenFlags[fault.Field], fault.Fault)
	}
	return nil
}

// tokenFlags are the flags for the fields of a state.JoinTokenSpec.
var tokenFlags = map[string]string{
	"node": "node", "ttl": "ttl", "labels": "label", "models": "model", "max_nodes": "max-nodes", "max_sessions": "max-sessions",
	"max_models": "max-models", "max_inventory_bytes": "max-inventory-bytes",
}

func createJoinToken(ctx context.Context, store *state.Store, body admin.NewJoinToken) (admin.JoinToken, error) {
	made, secret, err := store.CreateJoinToken(ctx, body.JoinTokenSpec())
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
		header: "ID NODE LABELS MODELS AGE STATE",
		row: func(t *admin.JoinToken) []string {
			node := string(t.Node)
			if node == "" {
				node = "any"
			}
			return []string{string(t.ID), node, orAny(t.Labels), orAny(t.Models), ago(&t.Created), validity(t.Expires, t.Revoked)}
		},
	}.command(&cobra.Command{
		Use: "list", Short: "List the join tokens without their secrets", Long: `List the join tokens without their secrets: the Node each is for, the labels and
models its Nodes may have, its age, and whether it is still valid.`, Example: "  iop join-token list --json",
	})
}

func orAny(patterns []string) string {
	if len(patterns) == 0 {
		return "any"
	}
	return onTerminal(strings.Join(patterns, ","))
}

func newJoinTokenRevokeCommand() *cobra.Command {
	return revocation{
		kind: "join-token", argument: "ID", named: "the ID", example: "0Ab3dE9z", path: joinTokensPath,
		short: "Revoke a join token and close the sessions that it opened",
		long: `Revoke a join token and close the sessions that it opened. Its Node names are then
free for other tokens.`,
		onState: func(ctx context.Context, store *state.Store, id string) (string, error) {
			return id, store.RevokeJoinToken(ctx, state.JoinTokenID(id), byCommand)
		},
	}.command()
}
