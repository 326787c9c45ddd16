package identity

import (
	"bufio"
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func newAuthority(t *testing.T) *Authority {
	t.Helper()
	a, err := InitAuthority(filepath.Join(t.TempDir(), "ca"), testDomain, 0)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAuthority(t *testing.T) {
	a := newAuthority(t)
	c := a.Certificate()
	if key, ok := c.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve != elliptic.P256() {
		t.Errorf("key %T", c.PublicKey)
	}
	if !c.IsCA || !c.MaxPathLenZero || c.MaxPathLen != 0 || c.KeyUsage != x509.KeyUsageCertSign || len(c.ExtKeyUsage) != 0 ||
		len(c.PermittedURIDomains) != 1 || c.PermittedURIDomains[0] != string(testDomain) || !c.PermittedDNSDomainsCritical {
		t.Errorf("root %+v", c)
	}
	if life := time.Until(c.NotAfter); life > DefaultAuthorityLife || life < DefaultAuthorityLife-time.Minute {
		t.Errorf("it lives %s", life)
	}
	for name, mode := range map[string]os.FileMode{authorityKey: 0o600, authorityCert: 0o644, ".": 0o700 | os.ModeDir} {
		if info, err := os.Stat(filepath.Join(a.dir, name)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	before, err := os.ReadFile(filepath.Join(a.dir, authorityKey))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := InitAuthority(a.dir, testDomain, 0); err == nil || !strings.Contains(err.Error(), "never overwritten") {
		t.Errorf("a second root: %v", err)
	}
	os.Remove(filepath.Join(a.dir, authorityCert))
	if _, err := InitAuthority(a.dir, testDomain, 0); err == nil {
		t.Error("a key alone was overwritten")
	}
	if after, err := os.ReadFile(filepath.Join(a.dir, authorityKey)); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the key changed: %v", err)
	}
	for _, domain := range []TrustDomain{"", "Example.org", "example.org/x", "10.0.0.1", "*.example.org"} {
		if _, err := InitAuthority(filepath.Join(t.TempDir(), "ca"), domain, 0); err == nil {
			t.Errorf("an authority of %q", domain)
		}
	}
	if _, err := InitAuthority(filepath.Join(t.TempDir(), "ca"), testDomain, MaxAuthorityLife+1); err == nil {
		t.Error("an authority for ever")
	}
}

// TestIssued: what an authority issues is what peers accept, and no more.
func TestIssued(t *testing.T) {
	a := newAuthority(t)
	bundle, err := ReadAuthorityBundle(a.dir)
	if err != nil {
		t.Fatal(err)
	}
	sources := map[Role]Memory{}
	for role, usage := range usageOf {
		issued, err := a.Issue(Request{Role: role, Name: "x-1"})
		if err != nil {
			t.Fatal(err)
		}
		c := issued.Certificate
		if c.IsCA || c.KeyUsage != x509.KeyUsageDigitalSignature || len(c.ExtKeyUsage) != 1 || c.ExtKeyUsage[0] != usage ||
			len(c.URIs) != 1 || len(c.DNSNames)+len(c.IPAddresses)+len(c.EmailAddresses) != 0 || c.Subject.String() != "" {
			t.Errorf("%s: %+v", role, c)
		}
		if issued.ID != ID("spiffe://example.org/"+string(role)+"/x-1") || c.URIs[0].String() != string(issued.ID) {
			t.Errorf("%s is %s and %s", role, issued.ID, c.URIs[0])
		}
		if back := time.Since(c.NotBefore); back < backdate || back > backdate+time.Minute {
			t.Errorf("valid since %s", back)
		}
		if life := time.Until(c.NotAfter); life > DefaultTTL || life < DefaultTTL-time.Minute {
			t.Errorf("valid for %s", life)
		}
		block, _ := pem.Decode(issued.KeyPEM())
		key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		m, err := NewMemory(issued.ID)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Set([]*x509.Certificate{c}, key, bundle); err != nil {
			t.Fatal(err)
		}
		sources[role] = m
		if printed := fmt.Sprintf("%v %+v %#v", issued, issued, *issued); strings.Contains(printed, "PRIVATE") {
			t.Error("the key shows in a print")
		}
	}
	if c := connect(t, ServerConfig(sources[RoleEdge], allowAll), ClientConfig(sources[RoleNode], sources[RoleEdge].ID())); c.server != nil || c.client != nil {
		t.Errorf("server %v, client %v", c.server, c.client)
	}
}

// csr makes a request that wishes for everything.
func csr(t *testing.T, key any) []byte {
	t.Helper()
	constraints := []byte{0x30, 0x03, 0x01, 0x01, 0xff} // CA:TRUE
	raw, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "admin"}, DNSNames: []string{"admin.example.org"}, IPAddresses: []net.IP{{127, 0, 0, 1}},
		URIs:            uris("spiffe://example.org/edge/main"),
		ExtraExtensions: []pkix.Extension{{Id: []int{2, 5, 29, 19}, Critical: true, Value: constraints}},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: raw})
}

// TestIssueFromRequest: the key of a request is taken, none of its wishes.
func TestIssueFromRequest(t *testing.T) {
	a := newAuthority(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []crypto.Signer{key, edKey} {
		issued, err := a.Issue(Request{Role: RoleNode, Name: "gpu-1", TTL: time.Hour, CSR: csr(t, key)})
		if err != nil {
			t.Fatal(err)
		}
		c := issued.Certificate
		if issued.KeyPEM() != nil || c.IsCA || len(c.URIs) != 1 || c.URIs[0].String() != string(nodeID) || len(c.DNSNames)+len(c.IPAddresses) != 0 || c.Subject.String() != "" {
			t.Errorf("%+v", c)
		}
		if public := key.Public().(interface{ Equal(crypto.PublicKey) bool }); !public.Equal(c.PublicKey) {
			t.Error("another key was certified")
		}
	}
}

// TestRefusedRequests: each of them leaves nothing in the log.
//
// Seen to fail with CheckSignature's error ignored, with the authority's own key let pass, and with SHA-1 let pass.
func TestRefusedRequests(t *testing.T) {
	a := newAuthority(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p224, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	short, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	good := csr(t, key)
	block, _ := pem.Decode(good)
	broken := bytes.Clone(block.Bytes)
	broken[len(broken)-1] ^= 1
	brokenPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: broken})
	old, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{SignatureAlgorithm: x509.ECDSAWithSHA1}, key)
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]Request{
		"SHA-1":                      {Role: RoleNode, Name: "x", CSR: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: old})},
		"a signature of another":     {Role: RoleNode, Name: "x", CSR: brokenPEM},
		"P-224":                      {Role: RoleNode, Name: "x", CSR: csr(t, p224)},
		"RSA 1024":                   {Role: RoleNode, Name: "x", CSR: csr(t, short)},
		"the authority's own key":    {Role: RoleNode, Name: "x", CSR: csr(t, a.key)},
		"no request":                 {Role: RoleNode, Name: "x", CSR: []byte("hello")},
		"an empty request":           {Role: RoleNode, Name: "x", CSR: []byte{}},
		"a certificate":              {Role: RoleNode, Name: "x", CSR: certificatePEM(a.certificate.Raw)},
		"two requests":               {Role: RoleNode, Name: "x", CSR: append(bytes.Clone(good), good...)},
		"too long":                   {Role: RoleNode, Name: "x", TTL: MaxTTL + 1},
		"too short":                  {Role: RoleNode, Name: "x", TTL: time.Second},
		"negative":                   {Role: RoleNode, Name: "x", TTL: -time.Hour},
		"no role":                    {Name: "x"},
		"another role":               {Role: "admin", Name: "x"},
		"no name":                    {Role: RoleNode},
		"a wildcard":                 {Role: RoleNode, Name: "*"},
		"a path":                     {Role: RoleNode, Name: "x/../y"},
		"a colon, as Nodes may have": {Role: RoleNode, Name: "x:1"},
	}
	for name, request := range tests {
		if issued, err := a.Issue(request); err == nil {
			t.Errorf("%s: issued %s", name, issued.ID)
		}
	}
	if _, err := os.Stat(filepath.Join(a.dir, issuanceLog)); err == nil {
		t.Error("something was noted")
	}
}

// TestIssuanceLog: each certificate has its line, at whatever pace, from whatever process; without a line no certificate.
func TestIssuanceLog(t *testing.T) {
	a := newAuthority(t)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			own, err := OpenAuthority(a.dir)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := own.Issue(Request{Role: RoleNode, Name: fmt.Sprintf("n-%d", i)}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	path := filepath.Join(a.dir, issuanceLog)
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	serials := map[string]bool{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var entry LogEntry
		if err := json.Unmarshal(lines.Bytes(), &entry); err != nil || entry.ID.Validate() != nil || entry.Key != "generated" || entry.NotAfter.IsZero() || len(entry.Fingerprint) != 64 {
			t.Errorf("%s: %v", lines.Text(), err)
		}
		if number, ok := new(big.Int).SetString(entry.Serial, 16); !ok || number.BitLen() < 64 || number.BitLen() > 127 || serials[entry.Serial] {
			t.Errorf("serial %s", entry.Serial)
		}
		serials[entry.Serial] = true
	}
	if len(serials) != 20 {
		t.Errorf("%d lines", len(serials))
	}
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Issue(Request{Role: RoleNode, Name: "unnoted"}); err == nil {
		t.Error("a certificate that nobody noted")
	}
}

func TestIssueNearTheEnd(t *testing.T) {
	a, err := InitAuthority(filepath.Join(t.TempDir(), "ca"), testDomain, 2*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Issue(Request{Role: RoleNode, Name: "x"}); err == nil || !strings.Contains(err.Error(), "authority itself expires") {
		t.Errorf("a certificate outlives its authority: %v", err)
	}
	if _, err := a.Issue(Request{Role: RoleNode, Name: "x", TTL: time.Hour}); err != nil {
		t.Error(err)
	}
}

func TestOpenAuthorityRefuses(t *testing.T) {
	a := newAuthority(t)
	key := filepath.Join(a.dir, authorityKey)
	if err := os.Chmod(key, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenAuthority(a.dir); err == nil || !strings.Contains(err.Error(), "0600") {
		t.Errorf("a key for all to read: %v", err)
	}
	b := newAuthority(t)
	if err := os.Rename(filepath.Join(b.dir, authorityKey), key); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenAuthority(a.dir); err == nil || !strings.Contains(err.Error(), "no private key that matches") {
		t.Errorf("another's key: %v", err)
	}
	if _, err := OpenAuthority(t.TempDir()); err == nil {
		t.Error("an empty directory")
	}
}

func TestDeliver(t *testing.T) {
	a, dir := newAuthority(t), t.TempDir()
	first, err := a.Issue(Request{Role: RoleNode, Name: "gpu-1"})
	if err != nil {
		t.Fatal(err)
	}
	certPath, keyPath, err := first.Deliver(dir, false)
	if err != nil || filepath.Base(certPath) != "node-gpu-1.pem" || filepath.Base(keyPath) != "node-gpu-1.key" {
		t.Fatalf("%s, %s, %v", certPath, keyPath, err)
	}
	if info, err := os.Stat(keyPath); err != nil || info.Mode() != 0o600 {
		t.Errorf("key: %v, %v", info.Mode(), err)
	}
	second, err := a.Issue(Request{Role: RoleNode, Name: "gpu-1", TTL: 48 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := second.Deliver(dir, false); err == nil {
		t.Error("files were overwritten")
	}
	config := FilesConfig{ID: nodeID, CertFile: certPath, KeyFile: keyPath, BundleFile: filepath.Join(a.dir, authorityCert)}
	files, err := OpenFiles(config)
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	if _, _, err := second.Deliver(dir, true); err != nil {
		t.Fatal(err)
	}
	if err := files.Reload(); err != nil {
		t.Fatal(err)
	}
	shows(t, files, &signed{Certificate: second.Certificate})
	if left, err := filepath.Glob(filepath.Join(dir, ".iop-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestInspect(t *testing.T) {
	a := newAuthority(t)
	issued, err := a.Issue(Request{Role: RoleNode, Name: "gpu-1"})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	all, err := Inspect(append(issued.PEM(), certificatePEM(a.certificate.Raw)...), now)
	if err != nil || len(all) != 2 {
		t.Fatalf("%v, %v", all, err)
	}
	if d := all[0]; d.Kind != "certificate" || d.ID != nodeID || d.Key != "ECDSA P-256" || len(d.Faults) > 0 || d.Fingerprint != Fingerprint(issued.Certificate) {
		t.Errorf("%+v", d)
	}
	if d := all[1]; d.Kind != "authority" || d.TrustDomain != string(testDomain) || len(d.Faults) > 0 {
		t.Errorf("%+v", d)
	}
	all, err = Inspect(issued.PEM(), now.Add(DefaultTTL))
	if err != nil || len(all[0].Faults) != 1 || all[0].Faults[0] != "it has expired" {
		t.Errorf("%+v, %v", all, err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	all, err = Inspect(csr(t, key), now)
	if err != nil || all[0].Kind != "request" || len(all[0].Faults) > 0 {
		t.Errorf("%+v, %v", all, err)
	}
	bad := leafOf(nodeID)
	bad.URIs, bad.ExtKeyUsage = uris("https://example.org/"), nil
	all, err = Inspect(certificatePEM(sign(newCA("ca", now), bad).Raw), now)
	if err != nil || len(all[0].Faults) != 1 || all[0].ID != "" {
		t.Errorf("%+v, %v", all, err)
	}
	for _, data := range [][]byte{issued.KeyPEM(), []byte("hello"), nil, certificatePEM([]byte("x"))} {
		if _, err := Inspect(data, now); err == nil {
			t.Errorf("%.30q was described", data)
		}
	}
	bundle, err := NewBundle([]*x509.Certificate{a.certificate})
	if err != nil {
		t.Fatal(err)
	}
	if id, err := VerifyFile(issued.PEM(), bundle, now); err != nil || id != nodeID {
		t.Errorf("%s, %v", id, err)
	}
	if _, err := VerifyFile(issued.PEM(), bundleOf(t, newCA("other", now)), now); err == nil {
		t.Error("verified against another authority")
	}
}
