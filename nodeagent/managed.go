package nodeagent

import (
	"errors"
	"fmt"

	"iop/execution"
	"iop/identity"
)

// managed reports whether the Node is in managed mode.
func (a *Agent) managed() bool { return a.cfg.Identity != nil }

// Leases returns what became of leases; all zero in token mode.
func (a *Agent) Leases() *LeaseCounters { return &a.leases }

// checkMode checks that the configuration is of one mode as a whole: nothing falls back to the other.
func (c *Config) checkMode() error {
	if c.Identity == nil {
		return c.checkTokenMode()
	}
	id := c.Identity.ID()
	if c.Name == "" {
		c.Name = execution.NodeID(id.Name())
	}
	switch {
	case id.Role() != identity.RoleNode:
		return errors.New("managed mode: the identity must be a Node's, spiffe://TRUST-DOMAIN/node/NAME")
	case c.EdgeID.Role() != identity.RoleEdge:
		return errors.New("managed mode: the Edge's ID is required, spiffe://TRUST-DOMAIN/edge/NAME")
	case c.EdgeID.TrustDomain() != id.TrustDomain():
		return errors.New("managed mode: the Edge's ID must be of the Node's own trust domain")
	case string(c.Name) != id.Name():
		return fmt.Errorf("managed mode: the Node's name must be that of its certificate, %q", id.Name())
	case c.JoinToken != nil:
		return errors.New("managed mode: a certificate and a join token can't be combined")
	case c.TLS != nil:
		return errors.New("managed mode: the identity decides whom to trust, so no other TLS configuration is allowed")
	}
	return nil
}

func (c *Config) checkTokenMode() error {
	if c.EdgeID != "" {
		return errors.New("the Edge's ID belongs to managed mode, which needs a certificate")
	}
	for _, spec := range c.Providers {
		if len(spec.Slots) > 0 {
			return fmt.Errorf("provider %q: slots belongs to managed mode, which needs a certificate", spec.ID)
		}
	}
	return nil
}
