package main

import (
	"context"
	"fmt"
	"log/slog"

	"iop/gateway"
	"iop/identity"
	"iop/state"
)

// defaultTunnelListen is where Nodes connect in managed mode.
const defaultTunnelListen = ":8482"

func (c *edgeSettings) managed() bool { return c.Mode == gateway.ModeManaged }

// checkMode checks that the settings are of one mode as a whole: nothing falls back to the other.
func (c *edgeSettings) checkMode(s *settings) error {
	switch c.Mode {
	case gateway.ModeToken:
		for _, name := range []string{"TUNNEL_LISTEN", "IDENTITY_CERT", "IDENTITY_KEY", "CA", "SPIFFE_SOCKET"} {
			if s.given(name) {
				return s.fault(name, "requires managed mode (IOP_EDGE_MODE=managed); this is token mode")
			}
		}
		if c.ID != "" {
			if err := identity.ValidateName(c.ID); err != nil {
				return s.fault("ID", "is not valid: %v", err)
			}
		}
		return nil
	case gateway.ModeManaged:
		if c.checkOnly {
			return nil // a file of routes can be looked at where no certificate is
		}
		return c.checkManaged(s)
	}
	return s.fault("MODE", "must be token or managed")
}

func (c *edgeSettings) checkManaged(s *settings) error {
	if c.TunnelListen == "" {
		c.TunnelListen = defaultTunnelListen
	}
	if !isHostPort(c.TunnelListen) {
		return s.fault("TUNNEL_LISTEN", "must be host:port or :port")
	}
	if c.SPIFFESocket != "" {
		switch id := identity.ID(c.ID); {
		case c.IdentityCert != "" || c.IdentityKey != "" || c.CA != "":
			return s.fault("SPIFFE_SOCKET", "can't be combined with IOP_EDGE_IDENTITY_CERT, IOP_EDGE_IDENTITY_KEY and IOP_EDGE_CA: the agent provides them")
		case id.Validate() != nil || id.Role() != identity.RoleEdge:
			return s.fault("ID", "must be the SPIFFE ID to request from the agent, spiffe://TRUST-DOMAIN/edge/NAME")
		}
		return nil
	}
	switch {
	case c.IdentityCert == "":
		return s.fault("IDENTITY_CERT", "or IOP_EDGE_SPIFFE_SOCKET (--spiffe-socket) is required in managed mode: create a certificate with \"iop ca issue\"")
	case c.IdentityKey == "":
		return s.fault("IDENTITY_KEY", "is required with IOP_EDGE_IDENTITY_CERT")
	case c.CA == "":
		return s.fault("CA", "is required in managed mode: the authorities of the Nodes' certificates, from \"iop ca bundle\"")
	}
	return nil
}

// openIdentity opens who this Edge is to its Nodes; nil in token mode.
func (c *edgeSettings) openIdentity(ctx context.Context, s *settings, logger *slog.Logger) (identity.Source, error) {
	if !c.managed() {
		return nil, nil
	}
	files := identityFiles{
		cert: c.IdentityCert, key: c.IdentityKey, bundle: c.CA, socket: c.SPIFFESocket, id: identity.ID(c.ID),
		check: func(id identity.ID) error {
			if c.ID != "" && c.ID != id.Name() && c.ID != id.String() {
				return fmt.Errorf("%s is the certificate of %s, and IOP_EDGE_ID (--id) is %s", c.IdentityCert, id, c.ID)
			}
			return nil
		},
	}
	source, err := files.open(ctx, identity.RoleEdge, logger)
	if err != nil {
		name := "IDENTITY_CERT"
		if c.SPIFFESocket != "" {
			name = "SPIFFE_SOCKET"
		}
		return nil, s.bareFault(name, err)
	}
	c.ID = source.ID().Name()
	return source, nil
}

// useMasterKeys tells the store the keys of the file, if there is one.
func (c *edgeSettings) useMasterKeys(ctx context.Context, s *settings, store *state.Store, logger *slog.Logger) error {
	if c.MasterKeyFile != "" {
		if err := readMasterKeys(store, c.MasterKeyFile); err != nil {
			return s.bareFault("MASTER_KEY_FILE", oneLine(err))
		}
	}
	return warnUnopened(ctx, store, logger)
}

// warnUnopened warns of slots whose master key is not known: they give no credential.
func warnUnopened(ctx context.Context, store *state.Store, logger *slog.Logger) error {
	uses, err := store.MasterKeyUses(ctx)
	if err != nil {
		return err
	}
	for _, use := range uses {
		if !use.Known {
			logger.Warn("slots can't be opened: IOP_EDGE_MASTER_KEY_FILE does not hold their key", "slots", use.Slots, "master_key", string(use.ID))
		}
	}
	return nil
}

// hangup reads again what lies in files: the routes, the identity, the master keys. What has a fault stays as it was.
func (c *edgeSettings) hangup(ctx context.Context, edge *gateway.Server, source identity.Source, store *state.Store, logger *slog.Logger) {
	nothing := true
	if c.Config != "" {
		nothing = false
		if err := edge.Reload(); err != nil {
			logger.Error("SIGHUP: the previous routes stay in force", "file", c.Config, "error", err)
		}
	}
	if c.TLSCert != "" {
		nothing = false
		if err := edge.ReloadCertificate(); err != nil {
			logger.Error("SIGHUP: the previous TLS certificate stays in use", "file", c.TLSCert, "error", err)
		}
	}
	if reloads, err := reloadIdentity(source); reloads {
		nothing = false
		if err != nil {
			logger.Error("SIGHUP: the previous identity stays in force", "error", err)
		}
	}
	if c.MasterKeyFile != "" {
		nothing = false
		if err := readMasterKeys(store, c.MasterKeyFile); err != nil {
			logger.Error("SIGHUP: the previous master keys stay in force", "file", c.MasterKeyFile, "error", err)
		} else if err := warnUnopened(ctx, store, logger); err != nil {
			logger.Error("SIGHUP: can't read which slots use the master keys", "error", err)
		}
	}
	if nothing {
		logger.Warn("SIGHUP: the Edge was started without a route file, so there is nothing to reload")
	}
}
