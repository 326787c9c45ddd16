package web_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"iop/gateway"
)

// TestAddressesOfAnEdgeWithTLS: every page names the public listener by https or wss, and by a name of its certificate.
func TestAddressesOfAnEdgeWithTLS(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		listen, want string // host and port 0
		names        []string
	}{
		"loopback":     {"127.0.0.1:0", "edge.example.org", []string{"*.example.org", "edge.example.org", "other.example.org"}},
		"every one":    {":0", "edge.example.org", []string{"edge.example.org"}},
		"no name":      {"127.0.0.1:0", "127.0.0.1", []string{"*.example.org"}},
		"no name, all": {":0", "127.0.0.1", nil}, // the browser's
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cert, key := pairOf(t, test.names)
			r := newRig(t, func(c *gateway.Config) { c.Listen, c.TLSCert, c.TLSKey = test.listen, cert, key }).signIn()
			_, port, err := net.SplitHostPort(strings.TrimPrefix(r.public, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			at := net.JoinHostPort(test.want, port)
			for page, got := range map[string]struct{ body, want string }{
				"overview":       {r.get("/admin/").body, "Base URL <code>https://" + at + "/v1</code>"},
				"Connect a Node": {r.post("/admin/join-tokens", url.Values{"node": {"pc"}}).body, "wss://" + at + "/tunnel/v1"},
				"a new key":      {r.post("/admin/keys", url.Values{"name": {"k"}, "weight": {"1"}}).body, "curl https://" + at + "/v1/models"},
			} {
				if !strings.Contains(got.body, got.want) {
					t.Errorf("%s: no %q in %s", page, got.want, got.body)
				}
			}
		})
	}
}

// pairOf writes a certificate for names and 127.0.0.1, and its key.
func pairOf(t *testing.T, names []string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: names, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// TestGroupsOfARoute: they count as "iop routes" counts them.
func TestGroupsOfARoute(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "iop.yaml")
	const routes = "routes:\n  - model: chat\n    groups:\n      - targets: [{model: a}]\n      - targets: [{model: b}]\n"
	if err := os.WriteFile(file, []byte(routes), 0o600); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, func(c *gateway.Config) { c.Config = file }).signIn()
	if body := r.get("/admin/routes").body; !strings.Contains(body, "<caption>First group</caption>") || !strings.Contains(body, "<caption>Group 2, used when earlier groups are full</caption>") {
		t.Error(body)
	}
}

// TestSignInPageNamesTheToken: where it is differs between Edges, and the page is anybody's.
func TestSignInPageNamesTheToken(t *testing.T) {
	t.Parallel()
	if body := newRig(t).get("/admin/sign-in").body; !strings.Contains(body, "<code>admin-token</code> in its state directory") {
		t.Error(body)
	}
}
