package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"iop/identity"
)

// requestedAnswer is what request tells a script.
type requestedAnswer struct {
	ID      identity.ID `json:"id"`
	Key     string      `json:"key"`
	Request string      `json:"csr"`
}

// requestOptions are the flags of iop ca request.
type requestOptions struct {
	role, name, domain, out string
	asJSON                  bool
}

func newCARequestCommand() *cobra.Command {
	var o requestOptions
	cmd := &cobra.Command{
		Use:   "request",
		Short: "Create a key and a certificate request on the machine that will use them",
		Long: `Create a key and a certificate request on the machine that will use them:
ROLE-NAME.key (mode 0600), which stays there, and ROLE-NAME.csr, which goes to the
authority. Existing files are never overwritten. This needs no authority.

The request names spiffe://TRUST-DOMAIN/ROLE/NAME. "iop ca issue" uses only its
public key; other authorities may check the name.`,
		Example: `  iop ca request --role node --name gpu-3 --trust-domain iop.example.org
  iop ca request --role edge --name main --trust-domain iop.example.org --out /etc/iop --json`,
		Args: exactly(),
	}
	flags := cmd.Flags()
	flags.StringVar(&o.role, "role", "", "edge or node (required)")
	flags.StringVar(&o.name, "name", "", "the Edge's or Node's name (required)")
	flags.StringVar(&o.domain, "trust-domain", "", "the trust domain of all identities (required)")
	flags.StringVar(&o.out, "out", ".", "the directory for the files")
	jsonFlag(cmd, &o.asJSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return o.run(cmd) }
	return cmd
}

// id is the identity that is asked for. Its error is wrong use.
func (o *requestOptions) id() (identity.ID, error) {
	domain, role := identity.TrustDomain(o.domain), identity.Role(o.role)
	if role.Validate() != nil {
		return "", errors.New(`--role must be "edge" or "node"`)
	}
	if err := identity.ValidateName(o.name); err != nil {
		return "", fmt.Errorf("--name: %w", err)
	}
	if err := domain.Validate(); err != nil {
		return "", fmt.Errorf("--trust-domain: %w", err)
	}
	return identity.NewID(domain, role, o.name)
}

func (o *requestOptions) run(cmd *cobra.Command) error {
	id, err := o.id()
	if err != nil {
		return usageError{fmt.Errorf("ca request: %w", err)}
	}
	request, err := identity.NewKeyRequest(id)
	if err != nil {
		return fmt.Errorf("ca request: %w", err)
	}
	csr, key, err := request.Deliver(o.out)
	if err != nil {
		return fmt.Errorf("ca request: %w", err)
	}
	if o.asJSON {
		return printJSON(cmd.OutOrStdout(), requestedAnswer{id, key, csr})
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "key for %s in %s, request in %s\n", id, key, csr)
	return err
}
