package gateway

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"iop/identity"
	"iop/lease"
	"iop/openai"
)

const (
	// DefaultSigningKeyLife is how long a key signs leases.
	DefaultSigningKeyLife = 24 * time.Hour
	// listPoll is how often Nodes are looked up on the lists anew: another process may have changed them.
	listPoll = 15 * time.Second
	// refreshWait bounds how long one telling of a change waits for Nodes.
	refreshWait = 10 * time.Second
	// renewPause is how long, at most, one Node waits after the other when all are asked for new sessions.
	renewPause = 100 * time.Millisecond
)

// checkManaged checks what belongs to managed mode, and that nothing of it is given without.
func (c *Config) checkManaged() error {
	switch {
	case c.Mode != ModeToken && c.Mode != ModeManaged:
		return fmt.Errorf("gateway: Mode must be %q or %q, not %q", ModeToken, ModeManaged, c.Mode)
	case c.Mode == ModeToken && (c.TunnelListen != "" || c.Identity != nil || c.SigningKeyLife != 0):
		return errors.New("gateway: TunnelListen, Identity and SigningKeyLife require managed mode")
	case c.Mode == ModeToken:
		return nil
	case c.TunnelListen == "":
		return errors.New("gateway: TunnelListen is required in managed mode")
	case c.Identity == nil:
		return errors.New("gateway: Identity is required in managed mode")
	}
	id := c.Identity.ID()
	switch {
	case id.Role() != identity.RoleEdge:
		return fmt.Errorf("gateway: the identity %q is not an Edge's", id)
	case c.EdgeID != "" && c.EdgeID != id.Name():
		return fmt.Errorf("gateway: EdgeID is %q, but the certificate is for %q", c.EdgeID, id.Name())
	case c.SigningKeyLife != 0 && c.SigningKeyLife < lease.PublishAhead:
		return fmt.Errorf("gateway: SigningKeyLife must be at least %s", lease.PublishAhead)
	}
	if err := usable(c.Identity); err != nil {
		return fmt.Errorf("gateway: %w", err)
	}
	c.EdgeID = id.Name()
	setDefault(&c.SigningKeyLife, DefaultSigningKeyLife)
	return nil
}

// usable reports whether the Edge can show who it is, and knows whom to believe.
func usable(src identity.Source) error {
	if _, err := src.Certificate(); err != nil {
		return fmt.Errorf("the Edge's own identity: %w", err)
	}
	if _, err := src.Bundle(); err != nil {
		return fmt.Errorf("the Edge's trust bundle: %w", err)
	}
	return nil
}

func (s *Server) managed() bool { return s.cfg.Mode == ModeManaged }

// TunnelAddr is the address of the tunnel's own listener; nil in token mode, where Nodes come to the public one.
func (s *Server) TunnelAddr() net.Addr {
	if s.tunnelLn == nil {
		return nil
	}
	return s.tunnelLn.Addr()
}

// tunnelServer serves the tunnel in managed mode: TLS 1.3 with certificates of both sides that are checked before the first
// byte of a request is read.
func (s *Server) tunnelServer() *http.Server {
	config := identity.ServerConfig(s.cfg.Identity, func(*identity.Peer) error {
		return nil // the lists are asked by the registry, which can tell a Node why it is refused
	})
	srv := s.httpServer(http.HandlerFunc(s.serveTunnel), s.verifying(config))
	srv.Protocols = new(http.Protocols)
	srv.Protocols.SetHTTP1(true)
	return srv
}

// serveTunnel is the handler of the tunnel's own listener.
func (s *Server) serveTunnel(w http.ResponseWriter, r *http.Request) {
	defer s.recovered(w, r)
	switch {
	case r.URL.Path != tunnelPath:
		s.answer(w, r, openai.UnknownPath(withoutKey(r.URL.Path)))
	case s.allow(w, r, http.MethodGet):
		s.serveNode(w, r)
	}
}

// noTunnelHere is the public listener's answer to Nodes in managed mode.
func noTunnelHere() *openai.Error {
	e := openai.UnknownPath(tunnelPath)
	e.Message = "This Edge runs in managed mode: Nodes connect to its tunnel listener with a certificate. Join tokens are not accepted."
	return e
}

// keepTrust looks at the sessions again whenever who is trusted may have changed, until Close.
func (s *Server) keepTrust() {
	poll := time.NewTicker(listPoll)
	defer poll.Stop()
	own := s.cfg.Identity.Status().Serial
	for {
		changed := s.cfg.Identity.Changed() // before the look, so that no change falls between
		if _, err := s.reg.Verify(s.background); err != nil && s.background.Err() == nil {
			s.log.Error("can't check whether Nodes are still trusted; they get no leases", "error", err)
		}
		if now := s.cfg.Identity.Status(); now.Serial != own && now.Serial != "" {
			own = now.Serial
			s.tasks.Go(s.renewSessions)
		}
		select {
		case <-changed:
		case <-poll.C:
		case <-s.ended:
			return
		}
	}
}

// renewSessions asks every Node for a new session after the Edge's certificate has changed: the old one ends, and Nodes
// close their sessions with it. Runs finish where they are.
func (s *Server) renewSessions() {
	s.reg.Renew("the Edge uses a new certificate", func() bool {
		pause := time.NewTimer(rand.N(renewPause)) // not all at once
		defer pause.Stop()
		select {
		case <-pause.C:
			return true
		case <-s.ended:
			return false
		}
	})
}

// tellNodes tells every Node the minimum revisions and verification keys as they are now.
func (s *Server) tellNodes(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, refreshWait)
	defer cancel()
	s.reg.Refresh(ctx)
}
