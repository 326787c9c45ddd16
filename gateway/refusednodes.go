package gateway

import (
	"crypto/tls"
	"errors"
	"net"

	"iop/execution"
	"iop/gateway/admin"
	"iop/gateway/registry"
	"iop/identity"
)

// remedies are what to do about a refusal whose message does not say it.
var remedies = map[string]string{
	"token_revoked":       "create another token with `iop join-token create`",
	"identity_expired":    "issue another certificate with `iop ca issue --replace`",
	"identity_revoked":    "see `iop node-list show`, or issue another certificate with `iop ca issue --replace`",
	"bad_request":         "correct what it names, or run the same version of iop as the Edge",
	"stale_generation":    "it connects again by itself; if that repeats, two processes have one name",
	"certificate_refused": "issue one with the Edge's own authority: `iop ca issue`",
}

// refusedNodes are the Nodes that ask in vain.
func (o operator) refusedNodes() []admin.RefusedNode {
	list := o.s.acceptor.Refused()
	views := make([]admin.RefusedNode, len(list))
	for i, n := range list {
		views[i] = admin.RefusedNode{
			Node: n.Node, Source: n.Source, Code: n.Code, Message: n.Message, Remedy: remedies[n.Code], Proven: n.Proven,
			First: n.First.UTC(), Last: n.Last.UTC(), Count: n.Count,
		}
	}
	return views
}

// verifying is config with a check of the peer that notes whom it refuses: only here is the peer's address known.
func (s *Server) verifying(config *tls.Config) *tls.Config {
	verify := config.VerifyConnection
	outer := config.Clone()
	outer.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		inner := config.Clone()
		inner.NextProtos = []string{"http/1.1"} // as net/http adds to the outer one
		inner.VerifyConnection = func(state tls.ConnectionState) error {
			err := verify(state)
			if err != nil {
				s.peerRefused(err, hello.Conn.RemoteAddr())
			}
			return err
		}
		return inner, nil
	}
	return outer
}

// peerRefused notes a handshake that failed on the peer's certificate.
func (s *Server) peerRefused(err error, remote net.Addr) {
	refused, ok := errors.AsType[*identity.RefusedError](err)
	if !ok {
		s.log.Warn("tunnel handshake failed", "remote", remote.String(), "error", err)
		return
	}
	s.metrics.peers.WithLabelValues(refused.Reason.String()).Inc()
	s.log.Warn("tunnel peer refused", "remote", remote.String(), "reason", refused.Reason.String(), "error", err)
	if refused.Reason == identity.NoIdentity {
		return // this Edge's own fault
	}
	var node execution.NodeID
	if refused.ID != "" {
		node = execution.NodeID(refused.ID.Name())
	}
	s.acceptor.NoteRefused(node, remote.String(), registry.HandshakeRefusal(refused))
}
