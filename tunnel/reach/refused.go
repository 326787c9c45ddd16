package reach

import "errors"

// refusedPeer is the error with which a Node in managed mode refuses the server's certificate. This package must not know the one
// that makes it.
type refusedPeer interface {
	error
	PeerReason() string // of a closed list, also in docs/troubleshooting.md
}

// otherListener is the likeliest cause of a certificate that no Edge shows its Nodes.
const otherListener = "this may be the Edge's public listener or a proxy: Nodes in managed mode connect to IOP_EDGE_TUNNEL_LISTEN (port 8482)"

// peerRemedies are what to do about a refused server, by the reason.
var peerRemedies = map[string]string{
	"unknown_authority":  otherListener + "; if it is the tunnel listener, give both ends the same bundle",
	"wrong_name":         otherListener,
	"wrong_usage":        otherListener + "; if it is the tunnel listener, issue its certificate with --role edge",
	"bad_tls":            otherListener,
	"wrong_peer":         "correct --edge-id, or the URL",
	"wrong_role":         "issue the Edge's certificate with --role edge, or correct the URL",
	"wrong_trust_domain": "use certificates of one trust domain at both ends, or correct the URL",
	"expired":            "renew the Edge's certificate; if it is valid, set this machine's clock",
	"weak_key":           "issue the Edge's certificate again, with \"iop ca issue\"",
	"no_identity":        "renew this Node's certificate; \"iop ca inspect\" shows it",
}

// refusedHere is about a server that was reached, and whose certificate this end refused.
func (a *Attempt) refusedHere(host string, err error) (Finding, bool) {
	refused, ok := errors.AsType[refusedPeer](err)
	if !ok {
		return Finding{}, false
	}
	do := peerRemedies[refused.PeerReason()]
	if do == "" {
		do = "docs/troubleshooting.md has the reason"
	}
	return find("tls", do, "%s was reached, but this Node refused its certificate: %s", host, refused), true
}
