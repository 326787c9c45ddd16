package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"iop/identity"
)

// maxCertificateInput bounds what is read of a certificate file or a request.
const maxCertificateInput = 1 << 20

func newCACommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "ca",
		Short: "A small certificate authority for Edges and Nodes",
		Long: `A small certificate authority for Edges and Nodes.

Keep its directory on a machine that is neither an Edge nor a Node. These commands
open no port, and no other command reads the directory. Certificates are
short-lived and can't be revoked; instead, an Edge can deny a Node by name or by
serial number ("iop node-list deny").

To change the authority: create a new one, distribute a bundle of both
("iop ca bundle --with"), and issue certificates from the new one. When all are
renewed, distribute the new bundle alone.`,
		Example: `  iop ca init --trust-domain iop.example.org
  iop ca request --role edge --name main --trust-domain iop.example.org
  iop ca issue --role edge --name main --csr edge-main.csr
  iop ca bundle > bundle.pem`,
	}, newCAInitCommand(), newCARequestCommand(), newCAIssueCommand(), newCABundleCommand(), newCAInspectCommand())
}

func caFlag(cmd *cobra.Command, target *string) {
	cmd.Flags().StringVar(target, "ca", "iop-ca", "the authority's directory")
}

// authorityAnswer is what init tells a script.
type authorityAnswer struct {
	Directory   string               `json:"directory"`
	TrustDomain identity.TrustDomain `json:"trust_domain"`
	Fingerprint string               `json:"sha256"`
	NotAfter    time.Time            `json:"not_after"`
}

func newCAInitCommand() *cobra.Command {
	var dir, domain string
	var life time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Create an authority: a directory with its root certificate and key",
		Long: `Create an authority: a directory with its root certificate (ca.pem) and key (ca.key,
mode 0600). It can issue certificates for its trust domain only, and no further
authorities. An existing authority is never overwritten.

The trust domain is a name such as iop.example.org. It need not exist in DNS.`,
		Example: "  iop ca init --trust-domain iop.example.org\n  iop ca init --ca ca-2027 --trust-domain iop.example.org --life 17520h --json",
		Args:    exactly(),
	}
	caFlag(cmd, &dir)
	cmd.Flags().StringVar(&domain, "trust-domain", "", "the trust domain of all its identities (required)")
	cmd.Flags().DurationVar(&life, "life", identity.DefaultAuthorityLife, "how long the authority is valid, at most 87600h")
	jsonFlag(cmd, &asJSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := identity.TrustDomain(domain).Validate(); err != nil {
			return usageError{fmt.Errorf("--trust-domain: %w", err)}
		}
		if life < time.Hour || life > identity.MaxAuthorityLife {
			return usageError{errors.New("--life must be 1h to 87600h")}
		}
		authority, err := identity.InitAuthority(dir, identity.TrustDomain(domain), life)
		if err != nil {
			return fmt.Errorf("ca init: %w", err)
		}
		c := authority.Certificate()
		answer := authorityAnswer{dir, authority.TrustDomain(), identity.Fingerprint(c), c.NotAfter}
		if asJSON {
			return printJSON(cmd.OutOrStdout(), answer)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "authority of %s in %s until %s\nSHA-256 %s\n",
			answer.TrustDomain, dir, answer.NotAfter.UTC().Format(time.DateOnly), answer.Fingerprint)
		return err
	}
	return cmd
}

// issueOptions are the flags of iop ca issue.
type issueOptions struct {
	dir, out, csr   string
	generate        bool
	replace, asJSON bool
	request         identity.Request
}

// issuedAnswer is what issue tells a script.
type issuedAnswer struct {
	ID          identity.ID `json:"id"`
	Serial      string      `json:"serial"`
	NotAfter    time.Time   `json:"not_after"`
	Fingerprint string      `json:"sha256"`
	Certificate string      `json:"certificate"`
	Key         string      `json:"key,omitempty"`
}

func newCAIssueCommand() *cobra.Command {
	var o issueOptions
	var role string
	cmd := &cobra.Command{
		Use:   "issue",
		Short: "Issue a certificate for an Edge or a Node",
		Long: `Issue a certificate for an Edge or a Node, as ROLE-NAME.pem.

Create the key on the machine that uses it, and never copy it. This command
only needs the certificate request that "iop ca request" creates there.

Only the public key is taken from the request; --role and --name set the identity.
With --gen-key the key is created here, as ROLE-NAME.key, for testing only.
Each certificate is recorded in the authority's issued.log before it is written.`,
		Example: `  iop ca issue --role node --name gpu-3 --csr node-gpu-3.csr
  iop ca issue --role node --name gpu-3 --csr - --ttl 720h --replace < node-gpu-3.csr
  iop ca issue --role edge --name main --gen-key --out certs`,
		Args: exactly(),
	}
	caFlag(cmd, &o.dir)
	flags := cmd.Flags()
	flags.StringVar(&role, "role", "", "edge or node (required)")
	flags.StringVar(&o.request.Name, "name", "", "the Edge's or Node's name (required)")
	flags.StringVar(&o.csr, "csr", "", "PEM file with the certificate request; - for standard input")
	flags.BoolVar(&o.generate, "gen-key", false, "create the key here instead")
	flags.DurationVar(&o.request.TTL, "ttl", identity.DefaultTTL, "how long the certificate is valid, at most 2160h")
	flags.StringVar(&o.out, "out", ".", "the directory for the files")
	flags.BoolVar(&o.replace, "replace", false, "overwrite existing files")
	jsonFlag(cmd, &o.asJSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o.request.Role = identity.Role(role)
		return o.run(cmd)
	}
	return cmd
}

func (o *issueOptions) check() error {
	nameErr := identity.ValidateName(o.request.Name)
	switch {
	case o.request.Role.Validate() != nil:
		return errors.New(`--role must be "edge" or "node"`)
	case nameErr != nil:
		return fmt.Errorf("--name: %w", nameErr)
	case o.request.TTL == 0:
		return errors.New("--ttl must be 1m to 2160h")
	case (o.csr == "") == !o.generate:
		return errors.New("give either --csr with a certificate request, or --gen-key to create a key here")
	}
	return o.request.Validate()
}

func (o *issueOptions) run(cmd *cobra.Command) error {
	if err := o.check(); err != nil {
		return usageError{fmt.Errorf("ca issue: %w", err)}
	}
	issued, err := o.issue(cmd.InOrStdin())
	if err != nil {
		return fmt.Errorf("ca issue: %w", err)
	}
	certificate, key, err := issued.Deliver(o.out, o.replace)
	if err != nil {
		return fmt.Errorf("ca issue: the certificate was issued and recorded, but can't be written: %w", err)
	}
	c := issued.Certificate
	if o.asJSON {
		return printJSON(cmd.OutOrStdout(), issuedAnswer{
			issued.ID, fmt.Sprintf("%032x", c.SerialNumber), c.NotAfter, identity.Fingerprint(c), certificate, key,
		})
	}
	files := certificate
	if key != "" {
		files += " and " + key
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s until %s, in %s\n", issued.ID, c.NotAfter.UTC().Format(time.RFC3339), files)
	return err
}

func (o *issueOptions) issue(stdin io.Reader) (*identity.Issued, error) {
	authority, err := identity.OpenAuthority(o.dir)
	if err != nil {
		return nil, err
	}
	if !o.replace {
		if err := identity.CheckDelivery(o.out, o.request.Role, o.request.Name, o.generate); err != nil {
			return nil, fmt.Errorf("%w; --replace overwrites it", err)
		}
	}
	if !o.generate {
		if o.request.CSR, err = readInput(o.csr, stdin); err != nil {
			return nil, err
		}
	}
	return authority.Issue(o.request)
}

// readInput reads a file, or standard input for "-".
func readInput(path string, stdin io.Reader) ([]byte, error) {
	in := stdin
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		in = file
	}
	data, err := io.ReadAll(io.LimitReader(in, maxCertificateInput+1))
	if err == nil && len(data) > maxCertificateInput {
		err = fmt.Errorf("%s is longer than %d bytes", path, maxCertificateInput)
	}
	return data, err
}

func newCABundleCommand() *cobra.Command {
	var dir string
	var with []string
	cmd := &cobra.Command{
		Use:   "bundle",
		Short: "Print the bundle: the authorities that Edges and Nodes trust",
		Long: `Print the bundle: the authorities that Edges and Nodes trust, as PEM. During a
change of authority it holds the old and the new one.`,
		Example: "  iop ca bundle > bundle.pem\n  iop ca bundle --ca ca-2027 --with old-bundle.pem > bundle.pem",
		Args:    exactly(),
	}
	caFlag(cmd, &dir)
	cmd.Flags().StringArrayVar(&with, "with", nil, "PEM file with more authorities; repeatable")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		bundle, err := identity.ReadAuthorityBundle(dir)
		if err != nil {
			return fmt.Errorf("ca bundle: %w", err)
		}
		roots := bundle.Roots()
		for _, path := range with {
			more, err := readBundle(path)
			if err != nil {
				return fmt.Errorf("ca bundle: %w", err)
			}
			roots = slices.Concat(roots, more.Roots())
		}
		if bundle, err = identity.NewBundle(roots); err != nil {
			return fmt.Errorf("ca bundle: %w", err)
		}
		_, err = cmd.OutOrStdout().Write(bundle.PEM())
		return err
	}
	return cmd
}

func readBundle(path string) (*identity.Bundle, error) {
	data, err := readInput(path, nil)
	if err != nil {
		return nil, err
	}
	bundle, err := identity.ParseBundle(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return bundle, nil
}

func newCAInspectCommand() *cobra.Command {
	var bundle string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "inspect FILE",
		Short: "Show the contents of certificates and certificate requests",
		Long: `Show the contents of certificates and certificate requests, and why Edges and Nodes
would refuse one. With --bundle the file's first certificate is verified as a peer
would. The exit status is 1 if anything is wrong.`,
		Example: "  iop ca inspect iop-ca/ca.pem\n  iop ca inspect node-gpu-3.pem --bundle bundle.pem --json\n  iop ca inspect - < node-gpu-3.csr",
		Args:    exactly("FILE"),
	}
	cmd.Flags().StringVar(&bundle, "bundle", "", "PEM file with the authorities to verify the file against")
	jsonFlag(cmd, &asJSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return inspectFile(cmd, args[0], bundle, asJSON)
	}
	return cmd
}

func inspectFile(cmd *cobra.Command, path, bundle string, asJSON bool) error {
	data, err := readInput(path, cmd.InOrStdin())
	if err != nil {
		return fmt.Errorf("ca inspect: %w", err)
	}
	all, err := identity.Inspect(data, time.Now())
	if err != nil {
		return fmt.Errorf("ca inspect: %s: %w", path, err)
	}
	if bundle != "" {
		if err := checkAgainst(data, bundle, &all[0]); err != nil {
			return fmt.Errorf("ca inspect: %w", err)
		}
	}
	if asJSON {
		err = printJSON(cmd.OutOrStdout(), listing[identity.Description]{all})
	} else {
		err = printDescriptions(cmd.OutOrStdout(), all)
	}
	if err != nil {
		return err
	}
	if slices.ContainsFunc(all, func(d identity.Description) bool { return len(d.Faults) > 0 }) {
		return fmt.Errorf("ca inspect: %s would be refused", path)
	}
	return nil
}

// checkAgainst adds to the first description what a peer would object to.
func checkAgainst(data []byte, path string, first *identity.Description) error {
	bundle, err := readBundle(path)
	if err != nil {
		return err
	}
	if _, err := identity.VerifyFile(data, bundle, time.Now()); err != nil && !slices.Contains(first.Faults, err.Error()) {
		first.Faults = append(first.Faults, err.Error())
	}
	return nil
}

func printDescriptions(w io.Writer, all []identity.Description) error {
	var out strings.Builder
	for i := range all {
		if i > 0 {
			out.WriteString("\n")
		}
		describeTo(&out, &all[i])
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// describeTo writes a description in lines. Names come from whoever made the file.
func describeTo(out *strings.Builder, d *identity.Description) {
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(out, "%-13s %s\n", name, onTerminal(value))
		}
	}
	line("kind", d.Kind)
	line("identity", string(d.ID))
	line("trust domain", d.TrustDomain)
	line("subject", d.Subject)
	line("issuer", d.Issuer)
	line("serial", d.Serial)
	line("key", d.Key)
	if d.NotAfter != nil {
		line("valid", d.NotBefore.UTC().Format(time.RFC3339)+" to "+d.NotAfter.UTC().Format(time.RFC3339))
	}
	line("SHA-256", d.Fingerprint)
	for _, fault := range d.Faults {
		line("FAULT", fault)
	}
}
