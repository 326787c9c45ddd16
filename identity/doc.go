// Package identity says who an Edge and a Node are, and checks who the other one is: the whole of mutual TLS in managed
// mode. It is the only package that knows certificates, go-spiffe and the Workload API.
//
// # Who somebody is
//
// An [ID] is a SPIFFE ID of one of two shapes, spiffe://TRUST-DOMAIN/edge/NAME and spiffe://TRUST-DOMAIN/node/NAME. It
// stands in a certificate as the one URI of its subject alternative names. Common names and DNS names mean nothing here.
// A [Source] holds this process's own certificate and the [Bundle] of authorities that it believes: from PEM files
// ([OpenFiles]), from the SPIFFE Workload API ([OpenWorkload]), or handed over in memory ([Memory]).
//
// # What is checked, and where
//
// Everything is checked in VerifyConnection of the configurations that [ServerConfig] and [ClientConfig] make, because that
// is the one hook of crypto/tls that runs in every handshake, resumed ones too; VerifyPeerCertificate does not. The
// order is:
//
//  1. TLS 1.3, and not resumed. Tickets are off on both sides; who resumed would skip whatever changed since.
//  2. The chain ends in the bundle as it is now, never in the system's roots, and allows the usage: clientAuth for a
//     Node, serverAuth for an Edge. The pool is read at each handshake: a pool in a tls.Config would stay what it was.
//  3. Every issuer is an authority that may sign, every key is strong enough, nothing in the chain has expired. A
//     certificate is refused at the very second of its end.
//  4. The leaf is a leaf: no authority, digitalSignature and no signing usage, and the extended usage is written down in it.
//  5. It has exactly one URI name, of the right form, in exactly our trust domain (a name constraint of x509 lets
//     subdomains pass, so constraints are a second line only), with the role that this end expects.
//  6. A Node finds exactly the Edge that it was told; an Edge asks its allow function, and without one refuses everybody.
//
// Until the first of these has passed nothing is read from a peer but the handshake, and until the last one no name out of
// its certificate is repeated.
//
// TLS does not look again. A certificate that expires, or whose authority leaves the bundle, changes nothing in a
// connection that is open. So a [Peer] is asked again at each dispatch ([Peer.StillTrusted], nearly free while nothing
// changed), and its session is closed when [Peer.Watch] returns.
//
// # What fails, and how
//
// A [Source] that has no valid certificate gives an error and so no handshake succeeds: there is no fallback to a
// weaker mode. A reload that is at fault in any part changes nothing and shows in [Status]. A refused peer is told
// nothing but a TLS alert; this side gets a [RefusedError] with a [Reason] from a closed list, for logs and metrics.
// In TLS 1.3 a client's handshake is done before the server has judged its certificate: a refused Node learns it from its
// first read.
//
// # The small authority
//
// [Authority] is for those who run no certificate authority: a root in a directory, and certificates for at most 90
// days. It opens no port, copies no name out of a request, issues nothing that could issue, and notes each
// certificate in an append-only log before it hands it over. There are no revocation lists: certificates are
// short-lived, and an Edge refuses single ones through its allow function, by ID or by serial number.
//
// # What never enters
//
// What an ID may do (that is the Edge's list), sessions, leases, join tokens. Private keys leave this package in a
// tls.Certificate and in [Issued.KeyPEM] only; no error and no log line has one.
package identity
