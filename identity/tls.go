package identity

import (
	"crypto/tls"
	"errors"
	"time"
)

// ServerConfig makes an Edge's TLS configuration for tunnels: TLS 1.3, a Node's certificate required, no tickets. allow
// is asked last, with everything else verified, once in each handshake and on the goroutine of its connection; an
// error from it refuses the Node. A nil allow refuses all. The source must have an Edge's ID.
//
// The configuration may be cloned, and given protocols; its certificates and hooks must stay. VerifyPeerCertificate and
// ClientCAs stay unset: both would be skipped, or stale, when it matters.
func ServerConfig(src Source, allow func(*Peer) error) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		SessionTicketsDisabled: true,
		// Any certificate gets as far as VerifyConnection, where all of them are judged.
		ClientAuth: tls.RequireAnyClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return ownCertificate(src, RoleEdge)
		},
		VerifyConnection: func(state tls.ConnectionState) error {
			peer, err := NodePeer(&state, src)
			if err != nil {
				return err
			}
			return askAllow(peer, allow)
		},
	}
}

// ClientConfig makes a Node's TLS configuration for its tunnel: TLS 1.3, its own certificate shown, no session cache, and
// at the other end the Edge with exactly that ID, whatever host name was dialled and whatever its DNS names are. The
// source must have a Node's ID.
func ClientConfig(src Source, edge ID) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		SessionTicketsDisabled: true,
		ClientSessionCache:     nil,
		// crypto/tls would check a host name against the system's roots. VerifyConnection checks everything instead.
		InsecureSkipVerify: true,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return ownCertificate(src, RoleNode)
		},
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := EdgePeer(&state, src, edge)
			return err
		},
	}
}

func ownCertificate(src Source, role Role) (*tls.Certificate, error) {
	if src.ID().Role() != role {
		return nil, errors.New("this process's own identity has the wrong role: " + src.ID().String())
	}
	return src.Certificate()
}

func askAllow(peer *Peer, allow func(*Peer) error) error {
	err := errors.New("no Node is allowed")
	if allow != nil {
		err = allow(peer)
	}
	if err != nil {
		return &RefusedError{NotAllowed, peer.ID, err}
	}
	return nil
}

func expectEdge(src Source, edge ID) (expectation, error) {
	if edge.Validate() != nil || edge.Role() != RoleEdge {
		return expectation{}, refuse(WrongPeer, "no Edge was given to connect to")
	}
	return expectation{domain: src.ID().TrustDomain(), role: RoleEdge, id: edge}, nil
}

// peerOf makes the checks of the connection itself, then those of the certificates.
func peerOf(state *tls.ConnectionState, src Source, want expectation) (*Peer, error) {
	switch {
	case state == nil:
		return nil, refuse(BadTLS, "the connection is not encrypted")
	case state.Version < tls.VersionTLS13:
		return nil, refuse(BadTLS, "the connection is older than TLS 1.3")
	case state.DidResume:
		return nil, refuse(BadTLS, "the session was resumed")
	}
	return newPeer(state.PeerCertificates, src, want, time.Now())
}
