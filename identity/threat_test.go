package identity

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net"
	"testing"
	"time"
)

// edgeMeets lets a Node's chain knock at an Edge that allows all, and returns what the Edge thought.
func edgeMeets(t *testing.T, src Source, chain ...*signed) connection {
	t.Helper()
	return connect(t, ServerConfig(src, allowAll), showing(chain...))
}

// TestThreat25NameFromCertificate: a Node with a valid certificate is who the certificate says, so a hello that claims
// another name can be compared with it.
//
// Seen to fail with the name taken from the subject's common name, where there is one, in verifyName: the Node was then
// gpu-2.
func TestThreat25NameFromCertificate(t *testing.T) {
	ca := newCA("ca", time.Now())
	edge := source(t, edgeID, ca)
	template := leafOf(nodeID)
	template.Subject = pkix.Name{CommonName: "gpu-2"}
	template.DNSNames = []string{"gpu-2"}
	c := edgeMeets(t, edge, sign(ca, template))
	wantReason(t, c.server, 0)
	peer, err := NodePeer(&c.serverState, edge)
	if err != nil {
		t.Fatal(err)
	}
	if peer.ID != nodeID || peer.ID.Name() != "gpu-1" {
		t.Errorf("the Node is %s", peer.ID)
	}
	wantReason(t, peer.StillTrusted(edge, time.Now()), 0)
}

// TestThreat26ValidButNotInvited: the right authority is not enough.
//
// Seen to fail with askAllow returning nil; with the nil case of allow returning nil; with the case of the role taken out of
// verifyName (the Edge with both usages got in); with the usage of verifyChain set to x509.ExtKeyUsageAny and the
// case of the usage taken out of verifyLeaf (the Node with serverAuth alone got in).
func TestThreat26ValidButNotInvited(t *testing.T) {
	ca := newCA("ca", time.Now())
	edge := source(t, edgeID, ca)
	node := sign(ca, leafOf(nodeID))
	errUnlisted := errors.New("not on the list")

	c := connect(t, ServerConfig(edge, func(p *Peer) error {
		if p.ID != nodeID || p.Serial() != serial(node.Certificate) {
			t.Errorf("allow was asked about %s, %s", p.ID, p.Serial())
		}
		return errUnlisted
	}), showing(node))
	wantReason(t, c.server, NotAllowed)
	if !errors.Is(c.server, errUnlisted) || c.serverSawAnyByte {
		t.Errorf("server: %v, saw bytes: %v", c.server, c.serverSawAnyByte)
	}
	wantAlert(t, c.client)

	wantReason(t, connect(t, ServerConfig(edge, nil), showing(node)).server, NotAllowed)

	both := leafOf(edgeID)
	both.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	wantReason(t, edgeMeets(t, edge, sign(ca, both)).server, WrongRole)
	wantReason(t, edgeMeets(t, edge, sign(ca, leafOf(edgeID))).server, WrongUsage)

	serving := leafOf(nodeID)
	serving.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	wantReason(t, edgeMeets(t, edge, sign(ca, serving)).server, WrongUsage)
}

// TestThreat26UsageMustBeWritten: x509 lets a certificate without extended key usages, and one for any, pass as everything.
//
// Seen to fail with the case of the usage taken out of verifyLeaf.
func TestThreat26UsageMustBeWritten(t *testing.T) {
	ca := newCA("ca", time.Now())
	edge := source(t, edgeID, ca)
	for _, usages := range [][]x509.ExtKeyUsage{nil, {x509.ExtKeyUsageAny}} {
		template := leafOf(nodeID)
		template.ExtKeyUsage = usages
		wantReason(t, edgeMeets(t, edge, sign(ca, template)).server, WrongUsage)
	}
}

// TestThreat27LeafAsAuthority: who has a leaf can't make identities with it, however they build the chain.
//
// Seen to fail, the first with checkAuthority's error ignored in NewBundle. The others are x509's own checks: they failed with
// leaf.Verify replaced by a loop that checks each signature and nothing else, and checkAuthority's error ignored in checkChain.
func TestThreat27LeafAsAuthority(t *testing.T) {
	ca := newCA("ca", time.Now())
	edge := source(t, edgeID, ca)
	leaf := sign(ca, leafOf(nodeID))
	forged := sign(leaf, leafOf("spiffe://example.org/node/gpu-2"))

	if _, err := NewBundle([]*x509.Certificate{leaf.Certificate}); err == nil {
		t.Error("a leaf is in a bundle, where it would count as an authority")
	}
	wantReason(t, edgeMeets(t, edge, forged, leaf).server, UnknownAuthority)
	wantReason(t, edgeMeets(t, edge, forged, leaf, ca).server, UnknownAuthority)
}

// TestThreat27AuthorityAsLeaf: what can sign is no Node, even if all else is right.
//
// Seen to fail with the first case taken out of verifyLeaf, with only its second half taken out (the leaf with keyCertSign
// got in), and with the second case taken out (the leaf with keyEncipherment got in).
func TestThreat27AuthorityAsLeaf(t *testing.T) {
	ca := newCA("ca", time.Now())
	edge := source(t, edgeID, ca)

	template := leafOf(nodeID)
	template.IsCA, template.KeyUsage = true, template.KeyUsage|x509.KeyUsageCertSign
	wantReason(t, edgeMeets(t, edge, sign(ca, template)).server, WrongUsage)

	template = leafOf(nodeID)
	template.KeyUsage |= x509.KeyUsageCertSign // a leaf that claims the usage alone
	wantReason(t, edgeMeets(t, edge, sign(ca, template)).server, WrongUsage)

	template = leafOf(nodeID)
	template.KeyUsage = x509.KeyUsageKeyEncipherment
	wantReason(t, edgeMeets(t, edge, sign(ca, template)).server, WrongUsage)

	root := leafOf(nodeID) // an authority of the bundle itself
	root.IsCA, root.KeyUsage = true, root.KeyUsage|x509.KeyUsageCertSign
	own := sign(nil, root)
	edge = source(t, edgeID, ca, own)
	wantReason(t, edgeMeets(t, edge, own).server, WrongUsage)
}

// TestThreat27IntermediateThatMayNotSign: x509 lets an intermediate without any key usage sign.
//
// Seen to fail with checkAuthority's error ignored in checkChain: the one without key usages got in. The one with another
// usage is x509's own catch.
func TestThreat27IntermediateThatMayNotSign(t *testing.T) {
	now := time.Now()
	ca := newCA("ca", now)
	edge := source(t, edgeID, ca)
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "between"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	between := sign(ca, template)
	c := edgeMeets(t, edge, sign(between, leafOf(nodeID)), between)
	wantReason(t, c.server, 0)
	if peer, err := NodePeer(&c.serverState, edge); err != nil || !peer.NotAfter().Equal(between.NotAfter) || len(peer.trust.Load().chain) != 3 {
		t.Errorf("%v: a chain ends with its first certificate to end", err)
	}
	for _, usage := range []x509.KeyUsage{0, x509.KeyUsageCRLSign} {
		template.SerialNumber, template.KeyUsage = nil, usage
		between = sign(ca, template)
		wantReason(t, edgeMeets(t, edge, sign(between, leafOf(nodeID)), between).server, UnknownAuthority)
	}
}

// TestThreat27SystemRoots: what the world's authorities certify means nothing here, in either direction.
//
// Seen to fail with the system's roots added to the bundle's in verifyChain: the Node got in, and so did the Edge.
func TestThreat27SystemRoots(t *testing.T) {
	if _, err := sign(publicCA, leafOf(nodeID)).Verify(x509.VerifyOptions{KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		t.Fatalf("this test needs its authority among the system's roots: %v", err)
	}
	ca := newCA("ca", time.Now())
	edge, node := source(t, edgeID, ca), source(t, nodeID, ca)
	wantReason(t, edgeMeets(t, edge, sign(publicCA, leafOf(nodeID))).server, UnknownAuthority)
	wantReason(t, connect(t, showing(sign(publicCA, leafOf(edgeID))), ClientConfig(node, edgeID)).client, UnknownAuthority)
}

// TestThreat28Names: one URI name, spelled in the one way.
//
// Seen to fail with `len(uris) != 1` made `len(uris) < 1` (two names); with a fall back to the common name where there are no
// URIs (common name alone); with the case of the trust domain taken out of verifyName, and with it made a comparison of suffixes
// (subdomain); with x509's parsed URLs and their String in place of uriNames (empty fragment).
func TestThreat28Names(t *testing.T) {
	ca := newCA("ca", time.Now())
	edge := source(t, edgeID, ca)
	tests := []struct {
		name  string
		spoil func(*x509.Certificate)
		want  Reason
	}{
		{"right", func(*x509.Certificate) {}, 0},
		{"DNS and mail names beside it", func(c *x509.Certificate) {
			c.DNSNames, c.EmailAddresses, c.IPAddresses = []string{"edge.example.org"}, []string{"a@example.org"}, []net.IP{{127, 0, 0, 1}}
		}, 0},
		{"two URIs", func(c *x509.Certificate) { c.URIs = uris(string(nodeID), "spiffe://example.org/node/gpu-2") }, WrongName},
		{"the same URI twice", func(c *x509.Certificate) { c.URIs = uris(string(nodeID), string(nodeID)) }, WrongName},
		{"a second URI of another kind", func(c *x509.Certificate) { c.URIs = uris(string(nodeID), "https://example.org/") }, WrongName},
		{"no names", func(c *x509.Certificate) { c.URIs = nil }, WrongName},
		{"common name alone", func(c *x509.Certificate) { c.URIs, c.Subject.CommonName = nil, string(nodeID) }, WrongName},
		{"DNS name alone", func(c *x509.Certificate) { c.URIs, c.DNSNames = nil, []string{"gpu-1"} }, WrongName},
		{"subdomain", func(c *x509.Certificate) { c.URIs = uris("spiffe://sub.example.org/node/gpu-1") }, WrongTrustDomain},
		{"longer domain", func(c *x509.Certificate) { c.URIs = uris("spiffe://badexample.org/node/gpu-1") }, WrongTrustDomain},
		{"parent domain", func(c *x509.Certificate) { c.URIs = uris("spiffe://org/node/gpu-1") }, WrongTrustDomain},
		{"capitals", func(c *x509.Certificate) { c.URIs = uris("spiffe://Example.org/node/gpu-1") }, WrongName},
		{"port", func(c *x509.Certificate) { c.URIs = uris("spiffe://example.org:443/node/gpu-1") }, WrongName},
		{"user", func(c *x509.Certificate) { c.URIs = uris("spiffe://a@example.org/node/gpu-1") }, WrongName},
		{"other scheme", func(c *x509.Certificate) { c.URIs = uris("https://example.org/node/gpu-1") }, WrongName},
		{"other role", func(c *x509.Certificate) { c.URIs = uris("spiffe://example.org/edge/main") }, WrongRole},
		{"unknown role", func(c *x509.Certificate) { c.URIs = uris("spiffe://example.org/admin/gpu-1") }, WrongName},
		{"longer path", func(c *x509.Certificate) { c.URIs = uris("spiffe://example.org/node/gpu-1/x") }, WrongName},
		{"no name", func(c *x509.Certificate) { c.URIs = uris("spiffe://example.org/node/") }, WrongName},
		{"escape", func(c *x509.Certificate) { c.URIs = uris("spiffe://example.org/node/gpu%2d1") }, WrongName},
		{"dots", func(c *x509.Certificate) { c.URIs = uris("spiffe://example.org/edge/../node/gpu-1") }, WrongName},
		{"query", func(c *x509.Certificate) { c.URIs = uris("spiffe://example.org/node/gpu-1?a=b") }, WrongName},
		{"empty query", func(c *x509.Certificate) { c.URIs = uris("spiffe://example.org/node/gpu-1?") }, WrongName},
		{"fragment", func(c *x509.Certificate) { c.URIs = uris("spiffe://example.org/node/gpu-1#a") }, WrongName},
		{"empty fragment", func(c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{{Id: subjectAltName, Value: rawURI("spiffe://example.org/node/gpu-1#")}}
		}, WrongName},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			template := leafOf(nodeID)
			test.spoil(template)
			c := edgeMeets(t, edge, sign(ca, template))
			wantReason(t, c.server, test.want)
			if test.want != 0 {
				wantAlert(t, c.client)
			}
		})
	}
}

// rawURI is a subject alternative name extension with one URI, for spellings that url.URL can't hold.
func rawURI(uri string) []byte {
	name := append([]byte{0x86, byte(len(uri))}, uri...)
	return append([]byte{0x30, byte(len(name))}, name...)
}

// TestThreat28SubdomainUnderConstraint: our own authority's name constraint lets a subdomain pass, the comparison does not.
//
// Seen to fail with the case of the trust domain taken out of verifyName.
func TestThreat28SubdomainUnderConstraint(t *testing.T) {
	a, err := InitAuthority(t.TempDir()+"/ca", testDomain, 0)
	if err != nil {
		t.Fatal(err)
	}
	ca := &signed{a.certificate, a.key}
	edge := source(t, edgeID, ca)
	wantReason(t, edgeMeets(t, edge, sign(ca, leafOf("spiffe://sub.example.org/node/gpu-1"))).server, WrongTrustDomain)
	wantReason(t, edgeMeets(t, edge, sign(ca, leafOf("spiffe://other.org/node/gpu-1"))).server, UnknownAuthority)
}
