package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"iop/execution"
	"iop/gateway/admin"
	"iop/state"
)

const profilesPath = "/profiles"

func newProfileCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "profile",
		Short: "Set how credentials are sent, and to which addresses",
		Long: `Set how credentials are sent, and to which addresses, for managed mode. Each slot
has a profile. A Node sends a credential only in its profile's header, and only to
one of its base URLs.

These commands use the Edge's admin API. If no Edge is running, they open its state
directly.`,
		Example: "  iop profile set openai --header authorization-bearer --base-url https://api.example.com\n  iop profile list",
	}, newProfileSetCommand(), newProfileListCommand(), newProfileDeleteCommand())
}

func newProfileSetCommand() *cobra.Command {
	var body admin.NewProfile
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "Create or change a profile",
		Long: `Create or change a profile. A change raises the revision of its slots, which makes
leases for the old header or address useless. It needs the slots' master key: if no
Edge is running, give --master-key-file.`,
		Example: `  iop profile set openai --header authorization-bearer --base-url https://api.example.com
  iop profile set azure --header api-key --base-url https://a.example.com/openai --base-url https://b.example.com/openai`,
		Args: exactly("the profile's name"),
	}
	o := bindOperator(cmd)
	o.bindMasterKeys(cmd)
	cmd.Flags().StringVar(&body.Header, "header", "", "authorization-bearer, x-api-key or api-key (required)")
	cmd.Flags().StringArrayVar(&body.BaseURLs, "base-url", nil, "where the credential may go: an origin, optionally with a path prefix; repeatable (required)")
	jsonFlag(cmd, &asJSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.load(); err != nil {
			return err
		}
		spec, err := body.Spec(execution.ProfileName(args[0]))
		if err != nil {
			return usageError{fmt.Errorf("--%w", err)}
		}
		if len(body.BaseURLs) == 0 {
			return usageError{errors.New("--base-url is required, for example --base-url https://api.example.com")}
		}
		ctx := cmd.Context()
		var profile admin.Profile
		err = o.reach(ctx, true, func() error {
			return o.call(ctx, "PUT", profilesPath+"/"+url.PathEscape(args[0]), body, &profile)
		}, func(store *state.Store) error {
			if err := o.tellMasterKeys(store); err != nil {
				return err
			}
			set, err := store.SetProfile(ctx, spec, byCommand)
			profile = admin.ProfileView(&set)
			return onStateFault(err)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", onTerminal(args[0]), listedBy("iop profile list", err))
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), profile)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is set: %s to %s\n", onTerminal(string(profile.Name)), onTerminal(profile.Header),
			onTerminal(strings.Join(profile.BaseURLs, ", ")))
		return err
	}
	return cmd
}

func newProfileListCommand() *cobra.Command {
	return inventory[admin.Profile]{
		path: profilesPath,
		onState: func(ctx context.Context, store *state.Store) ([]admin.Profile, error) {
			profiles, err := store.Profiles(ctx)
			views := make([]admin.Profile, len(profiles))
			for i := range profiles {
				views[i] = admin.ProfileView(&profiles[i])
			}
			return views, err
		},
		header: "PROFILE HEADER BASE-URLS CHANGED BY",
		row: func(p *admin.Profile) []string {
			return []string{string(p.Name), p.Header, strings.Join(p.BaseURLs, ", "), ago(&p.Updated), p.By}
		},
	}.command(&cobra.Command{Use: "list", Short: "List the profiles", Long: `List the profiles: the header each sends a credential in, and the allowed addresses.`, Example: "  iop profile list --json"})
}

func newProfileDeleteCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "delete NAME", Short: "Delete a profile that no slot uses", Long: `Delete a profile that no slot uses. While slots use it, this is refused.`, Example: "  iop profile delete openai", Args: exactly("the profile's name"),
	}
	o := bindOperator(cmd)
	jsonFlag(cmd, &asJSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := o.load(); err != nil {
			return err
		}
		ctx := cmd.Context()
		err := o.reach(ctx, false, func() error {
			return o.call(ctx, "DELETE", profilesPath+"/"+url.PathEscape(args[0]), nil, nil)
		}, func(store *state.Store) error {
			return store.DeleteProfile(ctx, execution.ProfileName(args[0]), byCommand)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", onTerminal(args[0]), listedBy("iop profile list", err))
		}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), map[string]any{"name": args[0]})
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is deleted\n", onTerminal(args[0]))
		return err
	}
	return cmd
}
