package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"iop/gateway/admin"
	"iop/state"
)

const keysPath = "/keys"

func newKeyCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "key",
		Short: "Create, list, show, change and revoke API keys",
		Long: `Create, list, show, change and revoke API keys.

These commands use the Edge's admin API. If no Edge is running, they open its state
directly.`,
		Example: "  iop key create --name alice\n  iop key list\n  iop key update alice --rpm 120",
	}, newKeyCreateCommand(), newKeyListCommand(), newKeyShowCommand(), newKeyUpdateCommand(), newKeyRevokeCommand())
}

// keyFlags are the flags of `iop key create` and `iop key update`.
type keyFlags struct {
	name, owner   string
	routes        []string
	rpm, tpm      int64
	concurrency   int64
	monthlyTokens int64
	weight        int
	priority      int
	expires       span
}

func (k *keyFlags) bind(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&k.name, "name", "", "name of the key, unique among live keys; required for a new one")
	f.StringVar(&k.owner, "owner", "", "owner: keys with the same owner count as one caller in queues, principals of routes and usage; default: the key itself")
	f.StringSliceVar(&k.routes, "routes", nil, "models that it may use, as globs; default: all")
	f.Int64Var(&k.rpm, "rpm", 0, "requests per minute; 0: no limit")
	f.Int64Var(&k.tpm, "tpm", 0, "tokens per minute; 0: no limit")
	f.Int64Var(&k.concurrency, "concurrency", 0, "concurrent requests; 0: no limit")
	f.Int64Var(&k.monthlyTokens, "monthly-tokens", 0, "tokens per calendar month (UTC); 0: no limit")
	f.IntVar(&k.weight, "weight", 1, "its owner's share of a queue, 1 to 1000; 2 gets twice as much as 1")
	f.IntVar(&k.priority, "priority", 0, "-100 to 100; among its owner's requests higher ones go first")
	f.Var(&k.expires, "expires", "how long from now it is valid, e.g. 30d; 0: forever")
}

// until is when the key expires, nil for never.
func (k *keyFlags) until() (*time.Time, error) {
	if k.expires < 0 {
		return nil, errors.New("--expires must not be negative, for example --expires 30d")
	}
	if k.expires == 0 {
		return nil, nil
	}
	t := time.Now().Add(time.Duration(k.expires)).UTC()
	return &t, nil
}

func newKeyCreateCommand() *cobra.Command {
	var flags keyFlags
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create an API key, which is shown only once",
		Long: `Create an API key. It is shown only once: alone on standard output, or in the file
given by --out. By default it has no limits and may use every model. A warning lists
the models of --routes that no route and no connected Node has.`,
		Example: `  iop key create --name alice
  iop key create --name ci --owner team-a --routes 'llama*,qwen*' --expires 30d --json
  iop key create --name batch --rpm 600 --tpm 200000 --concurrency 8 --monthly-tokens 50000000`,
	}
	flags.bind(cmd)
	return creation[admin.NewKey, admin.Key]{
		secret: "key", path: keysPath, body: flags.body, onState: createKey,
		reveal:   func(k *admin.Key) (secret, word string) { return k.Key, fmt.Sprintf("API key %s for %q", k.ID, k.Name) },
		secretOf: func(k *admin.Key) *string { return &k.Key },
		doubts:   func(k *admin.Key) []string { return texts(k.Unmatched) },
	}.command(cmd)
}

func (k *keyFlags) body() (admin.NewKey, error) {
	if k.name == "" {
		return admin.NewKey{}, errors.New("--name is required, for example --name alice")
	}
	expires, err := k.until()
	return admin.NewKey{
		Name: k.name, Owner: k.owner, Routes: k.routes, RPM: k.rpm, TPM: k.tpm, Concurrency: k.concurrency,
		MonthlyTokens: k.monthlyTokens, Weight: k.weight, Priority: k.priority, Expires: expires,
	}, err
}

func createKey(ctx context.Context, store *state.Store, body admin.NewKey) (admin.Key, error) {
	made, secret, err := store.CreateKey(ctx, body.Spec())
	if err != nil {
		return admin.Key{}, err
	}
	key := admin.KeyView(&made)
	key.Key = secret.Reveal()
	return key, nil
}

func newKeyListCommand() *cobra.Command {
	return inventory[admin.Key]{
		path: keysPath,
		onState: func(ctx context.Context, store *state.Store) ([]admin.Key, error) {
			keys, err := store.Keys(ctx)
			views := make([]admin.Key, len(keys))
			for i := range keys {
				views[i] = admin.KeyView(&keys[i])
			}
			return views, err
		},
		header: "ID NAME PRINCIPAL ROUTES LIMITS AGE USED STATE",
		row: func(k *admin.Key) []string {
			return []string{
				string(k.ID), k.Name, k.Principal, strings.Join(k.Routes, ","), limitsOf(k), ago(&k.Created), ago(k.LastUsed),
				validity(k.Expires, k.Revoked),
			}
		},
	}.command(&cobra.Command{
		Use: "list", Short: "List the API keys and their limits, without their secrets", Long: `List the API keys and their limits, without their secrets. PRINCIPAL is who a key's
usage counts for, USED when it was last used.`, Example: "  iop key list --json",
	})
}

// limitsOf is a key's limits in a word, and what sets it apart in a queue; empty if there is nothing to say.
func limitsOf(k *admin.Key) string {
	var words []string
	for _, limit := range []struct {
		value int64
		unit  string
	}{{k.RPM, "/min"}, {k.TPM, " tok/min"}, {k.Concurrency, " at once"}, {k.MonthlyTokens, " tok/month"}} {
		if limit.value != 0 {
			words = append(words, strconv.FormatInt(limit.value, 10)+limit.unit)
		}
	}
	if k.Weight > 1 {
		words = append(words, fmt.Sprintf("weight %d", k.Weight))
	}
	if k.Priority != 0 {
		words = append(words, fmt.Sprintf("priority %d", k.Priority))
	}
	return strings.Join(words, ", ")
}

func newKeyShowCommand() *cobra.Command {
	return oneKeyCommand(&cobra.Command{
		Use: "show KEY", Short: "Show an API key, its limits and its current use", Long: `Show an API key, its limits and its current use: open requests, what is left for
this minute, and the tokens of this month. The last three need a running Edge.
KEY is the key's name or id.`, Example: "  iop key show alice\n  iop key show 0Ab3dE9z",
	}, func(*cobra.Command) (keyCall, error) {
		return keyCall{method: "GET", onState: func(ctx context.Context, store *state.Store, id state.KeyID) (state.Key, error) {
			return store.Key(ctx, id)
		}}, nil
	})
}

func newKeyUpdateCommand() *cobra.Command {
	var flags keyFlags
	cmd := &cobra.Command{
		Use:   "update KEY",
		Short: "Change an API key's name, owner, models, limits or expiry",
		Long: `Change an API key's name, owner, models, limits or expiry. Everything without a
flag stays unchanged. The change applies from the key's next request. KEY is the
key's name or id.`,
		Example: `  iop key update alice --rpm 120 --priority 5
  iop key update alice --name alice-laptop
  iop key update 0Ab3dE9z --routes '' --expires 0`,
	}
	flags.bind(cmd)
	return oneKeyCommand(cmd, func(cmd *cobra.Command) (keyCall, error) {
		change, err := flags.change(cmd)
		return keyCall{method: "PATCH", body: change, onState: func(ctx context.Context, store *state.Store, id state.KeyID) (state.Key, error) {
			return store.UpdateKey(ctx, id, change.Change())
		}}, err
	})
}

// change is what the flags that were given say.
func (k *keyFlags) change(cmd *cobra.Command) (*admin.KeyChange, error) {
	change := &admin.KeyChange{}
	any := false
	given := func(flag string) bool {
		changed := cmd.Flags().Changed(flag)
		any = any || changed
		return changed
	}
	set(given("name"), &change.Name, &k.name)
	set(given("owner"), &change.Owner, &k.owner)
	set(given("routes"), &change.Routes, &k.routes)
	set(given("rpm"), &change.RPM, &k.rpm)
	set(given("tpm"), &change.TPM, &k.tpm)
	set(given("concurrency"), &change.Concurrency, &k.concurrency)
	set(given("monthly-tokens"), &change.MonthlyTokens, &k.monthlyTokens)
	set(given("weight"), &change.Weight, &k.weight)
	set(given("priority"), &change.Priority, &k.priority)
	if given("expires") {
		expires, err := k.until()
		if err != nil {
			return nil, err
		}
		change.Expires.Given = true
		if expires != nil {
			change.Expires.Time = *expires
		}
	}
	if !any {
		return nil, errors.New("nothing to change; give a flag such as --rpm 120")
	}
	return change, nil
}

func set[T any](given bool, field **T, value *T) {
	if given {
		*field = value
	}
}

// keyCall is what a command asks about one key: of the admin API, or of the state where no Edge runs.
type keyCall struct {
	method  string
	body    any // nil: none
	onState func(context.Context, *state.Store, state.KeyID) (state.Key, error)
}

// oneKeyCommand completes a command about one key, which it then prints. prepare's error is wrong use.
func oneKeyCommand(cmd *cobra.Command, prepare func(*cobra.Command) (keyCall, error)) *cobra.Command {
	var asJSON bool
	o := bindOperator(cmd)
	jsonFlag(cmd, &asJSON)
	cmd.Args = exactly("the key's name or id")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.load(); err != nil {
			return err
		}
		id := args[0]
		ask, err := prepare(cmd)
		if err != nil {
			return usageError{err}
		}
		ctx := cmd.Context()
		var key admin.Key
		err = o.reach(ctx, false, func() error {
			return o.call(ctx, ask.method, keysPath+"/"+url.PathEscape(id), ask.body, &key)
		}, func(store *state.Store) error {
			found, err := store.FindKey(ctx, id)
			if err != nil {
				return err
			}
			got, err := ask.onState(ctx, store, found.ID)
			key = admin.KeyView(&got)
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", id, listedBy("iop key list", err))
		}
		warn(cmd, texts(key.Unmatched))
		if asJSON {
			return printJSON(cmd.OutOrStdout(), key)
		}
		return printKey(cmd.OutOrStdout(), &key)
	}
	return cmd
}

func printKey(w io.Writer, k *admin.Key) error {
	use := k.Use
	if use == nil {
		use = &admin.KeyUse{}
	}
	limit := func(n int64, rest string) string {
		if n == 0 {
			return "no limit"
		}
		return strconv.FormatInt(n, 10) + rest
	}
	window := func(w *admin.Window) string {
		if w == nil || w.Remaining == w.Limit {
			return ""
		}
		return fmt.Sprintf(", %d left now, all of it in %s", w.Remaining, brief(time.Duration(w.ResetMS)*time.Millisecond))
	}
	running, month := "", ""
	if k.Use != nil {
		running, month = fmt.Sprintf(", %d running", use.Running), fmt.Sprintf(", %d used", use.MonthTokens)
	}
	routes := strings.Join(k.Routes, ", ")
	if routes == "" {
		routes = "all"
	}
	for _, line := range [][2]string{
		{"id", string(k.ID)}, {"name", k.Name}, {"principal", k.Principal}, {"state", validity(k.Expires, k.Revoked)},
		{"routes", routes},
		{"requests", limit(k.RPM, " a minute"+window(use.Requests))},
		{"tokens", limit(k.TPM, " a minute"+window(use.Tokens))},
		{"at once", limit(k.Concurrency, running)},
		{"month", limit(k.MonthlyTokens, " tokens"+month)},
		{"weight", strconv.Itoa(k.Weight)}, {"priority", strconv.Itoa(k.Priority)},
		{"created", k.Created.Local().Format(time.DateTime)},
	} {
		if _, err := fmt.Fprintf(w, "%-10s %s\n", line[0], onTerminal(line[1])); err != nil {
			return err
		}
	}
	return nil
}

func newKeyRevokeCommand() *cobra.Command {
	return revocation{
		kind: "key", argument: "KEY", named: "the key's name or id", example: "alice", path: keysPath,
		short: "Revoke an API key: it is refused from now on",
		long: `Revoke an API key: it is refused from now on. Open runs finish ("iop cancel" ends
them); those with a leased credential are cancelled. This can't be undone. KEY is
the key's name or id; a new key can then have the name.`,
		onState: func(ctx context.Context, store *state.Store, id string) (string, error) {
			key, err := store.FindKey(ctx, id)
			if err == nil {
				err = store.RevokeKey(ctx, key.ID, byCommand)
			}
			return string(key.ID), err
		},
	}.command()
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
