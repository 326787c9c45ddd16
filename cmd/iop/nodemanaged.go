package main

import (
	"context"
	"errors"
	"log/slog"
	"net/url"

	"iop/identity"
	"iop/nodeagent"
)

// managed reports whether the settings are those of managed mode: a certificate, from files or an agent.
func (c *nodeSettings) managed() bool { return c.TLSCert != "" || c.SPIFFESocket != "" }

// checkMode checks that the settings are of one mode as a whole, and sets what of the configuration depends on it.
func (c *nodeSettings) checkMode(s *settings, cfg *nodeagent.Config) error {
	if c.managed() {
		return c.checkManaged(s, cfg)
	}
	switch {
	case c.TLSKey != "":
		return s.fault("TLS_CERT", "and IOP_NODE_TLS_KEY (--tls-key) must be given together")
	case c.EdgeID != "":
		return s.fault("EDGE_ID", "requires managed mode: set IOP_NODE_TLS_CERT (--tls-cert) or IOP_NODE_SPIFFE_SOCKET (--spiffe-socket) too")
	case c.JoinToken == "":
		return s.fault("JOIN_TOKEN", "is required: create one with \"iop join-token create\"")
	}
	return nil
}

func (c *nodeSettings) checkManaged(s *settings, cfg *nodeagent.Config) error {
	switch {
	case c.JoinToken != "":
		return s.fault("JOIN_TOKEN", "and a certificate can't be combined: managed mode uses no join token")
	case c.SPIFFESocket != "" && (c.TLSCert != "" || c.TLSKey != "" || c.CA != ""):
		return s.fault("SPIFFE_SOCKET", "can't be combined with IOP_NODE_TLS_CERT, IOP_NODE_TLS_KEY and IOP_NODE_CA: the agent provides them")
	case c.TLSCert != "" && c.TLSKey == "":
		return s.fault("TLS_CERT", "and IOP_NODE_TLS_KEY (--tls-key) must be given together")
	case c.TLSCert != "" && c.CA == "":
		return s.fault("CA", "is required with a certificate: the authorities of the Edge's, from \"iop ca bundle\"")
	case c.EdgeID == "":
		return s.fault("EDGE_ID", "is required with a certificate: the Edge this Node may connect to")
	}
	edge, err := identity.ParseID(c.EdgeID)
	if err != nil || edge.Role() != identity.RoleEdge {
		return s.fault("EDGE_ID", "must be an Edge's SPIFFE ID")
	}
	if u, err := url.Parse(c.Edge); err != nil || u.Scheme != "wss" && u.Scheme != "https" {
		return s.fault("EDGE", "must begin with wss:// in managed mode")
	}
	cfg.JoinToken, cfg.EdgeID = nil, edge
	if c.SPIFFESocket == "" && !s.given("NAME") {
		cfg.Name = "" // the certificate's
	}
	return nil
}

// run runs the Node until ctx ends.
func (c *nodeSettings) run(ctx context.Context, s *settings, cfg nodeagent.Config) (err error) {
	if c.managed() {
		if err := guardSecrets(); err != nil {
			return err
		}
		if cfg.Identity, err = c.openIdentity(ctx, s, &cfg); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, cfg.Identity.Close()) }()
		defer onHangup(func() { hangupNode(cfg.Identity, cfg.Logger) })()
	}
	agent, err := nodeagent.New(cfg)
	if err != nil {
		return usageError{err}
	}
	warnPlainTunnel(cfg.Logger, c.Edge)
	return agent.Run(ctx)
}

func (c *nodeSettings) openIdentity(ctx context.Context, s *settings, cfg *nodeagent.Config) (identity.Source, error) {
	name := "TLS_CERT"
	files := identityFiles{cert: c.TLSCert, key: c.TLSKey, bundle: c.CA, socket: c.SPIFFESocket}
	if c.SPIFFESocket != "" {
		name = "SPIFFE_SOCKET"
		var err error
		if files.id, err = identity.NewID(cfg.EdgeID.TrustDomain(), identity.RoleNode, string(cfg.Name)); err != nil {
			return nil, s.fault("NAME", "is not valid: %v", err)
		}
	}
	source, err := files.open(ctx, identity.RoleNode, cfg.Logger)
	if err != nil {
		return nil, s.bareFault(name, err)
	}
	return source, nil
}

func hangupNode(source identity.Source, logger *slog.Logger) {
	if reloads, err := reloadIdentity(source); err != nil {
		logger.Error("SIGHUP: the previous identity stays in force", "error", err)
	} else if !reloads {
		logger.Warn("SIGHUP: the identity comes from an agent, so there is nothing to reload")
	}
}
