package credential

import (
	"crypto/tls"
	"crypto/x509"
	"testing"

	"iop/identity"
)

// verifiedPeer is the Node of a certificate as a handshake would have left it.
func verifiedPeer(t testing.TB, src identity.Source, leaf *x509.Certificate) *identity.Peer {
	t.Helper()
	peer, err := identity.NodePeer(&tls.ConnectionState{Version: tls.VersionTLS13, PeerCertificates: []*x509.Certificate{leaf}}, src)
	check(t, err)
	return peer
}
