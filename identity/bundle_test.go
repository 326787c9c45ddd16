package identity

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
	"time"
)

func TestParseBundle(t *testing.T) {
	a, b := newCA("a", time.Now()), newCA("b", time.Now())
	leaf := sign(a, leafOf(nodeID))
	pemA, pemB := string(certificatePEM(a.Raw)), string(certificatePEM(b.Raw))
	key := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("canary-key")}))
	tests := []struct {
		name  string
		data  string
		roots int // 0: refused
		fault string
	}{
		{"one", pemA, 1, ""},
		{"two", pemA + pemB, 2, ""},
		{"the same twice", pemA + pemA, 1, ""},
		{"with comments", "# old\n" + pemA + "\n# new\n" + pemB + "# end\n", 2, ""},
		{"with line ends of Windows", strings.ReplaceAll(pemA, "\n", "\r\n"), 1, ""},
		{"empty", "", 0, "no PEM certificate"},
		{"text", "hello\n", 0, "no PEM certificate"},
		{"cut in the second", pemA + pemB[:len(pemB)/2], 0, "damaged"},
		{"cut in the last line", pemA + pemB[:len(pemB)-3], 0, "damaged"},
		{"cut in the first line", pemA + "-----BEGIN CERT", 0, "damaged"},
		{"damaged in the middle", strings.Replace(pemA, "MII", "M*I", 1) + pemB, 0, "damaged"},
		{"a leaf in it", pemA + string(certificatePEM(leaf.Raw)), 0, "not an authority"},
		{"a key in it", pemA + key, 0, "not a certificate"},
		{"no certificate inside", string(certificatePEM([]byte("nothing"))), 0, "certificate 1"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			bundle, err := ParseBundle([]byte(test.data))
			if test.roots == 0 {
				if err == nil || !strings.Contains(err.Error(), test.fault) || strings.Contains(err.Error(), "canary") {
					t.Errorf("got %v, want %q", err, test.fault)
				}
				return
			}
			if err != nil || len(bundle.Roots()) != test.roots {
				t.Fatalf("got %v", err)
			}
			if again, err := ParseBundle(bundle.PEM()); err != nil || !sameCertificates(again.Roots(), bundle.Roots()) {
				t.Errorf("its PEM: %v", err)
			}
		})
	}
}

// TestHalfABundle: cut anywhere but between two blocks, a bundle is refused.
func TestHalfABundle(t *testing.T) {
	a, b := certificatePEM(newCA("a", time.Now()).Raw), certificatePEM(newCA("b", time.Now()).Raw)
	whole := append(bytes.Clone(a), b...)
	for n := range whole {
		_, err := ParseBundle(whole[:n])
		// The last line may lack its end, and a few dashes after a block are text.
		begin := len("-----BEGIN")
		readable := n >= len(a)-1 && n < len(a)+begin || n >= len(whole)-1
		if (err == nil) != readable {
			t.Errorf("%d of %d bytes (the first block has %d): %v", n, len(whole), len(a), err)
		}
	}
}

func TestBundleIsBounded(t *testing.T) {
	var roots []*x509.Certificate
	for range maxBundle + 1 {
		roots = append(roots, newCA("ca", time.Now()).Certificate)
	}
	if _, err := NewBundle(roots[:maxBundle]); err != nil {
		t.Error(err)
	}
	if _, err := NewBundle(roots); err == nil {
		t.Error("65 authorities were accepted")
	}
	if _, err := NewBundle(nil); err == nil {
		t.Error("an empty bundle was accepted")
	}
}

func TestAuthoritiesThatMayNotSign(t *testing.T) {
	template := func() *x509.Certificate {
		return &x509.Certificate{NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true}
	}
	for name, spoil := range map[string]func(*x509.Certificate){
		"no CA":                func(c *x509.Certificate) { c.IsCA = false },
		"no basic constraints": func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = false, false },
		"no keyCertSign":       func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature },
		"no usage":             func(c *x509.Certificate) { c.KeyUsage = 0 },
	} {
		c := template()
		spoil(c)
		if _, err := NewBundle([]*x509.Certificate{sign(nil, c).Certificate}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestKeys(t *testing.T) {
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	good, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	short, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	if err := checkKey(ed.Public()); err != nil {
		t.Error(err)
	}
	if err := checkKey(good.Public()); err != nil {
		t.Error(err)
	}
	for name, key := range map[string]any{"RSA 1024": short.Public(), "nothing": nil, "bytes": []byte("x")} {
		if checkKey(key) == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func FuzzParseBundle(f *testing.F) {
	a, b := newCA("a", time.Now()), newCA("b", time.Now())
	f.Add(certificatePEM(a.Raw))
	f.Add(append(certificatePEM(a.Raw), certificatePEM(b.Raw)...))
	f.Add(certificatePEM(sign(a, leafOf(nodeID)).Raw))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"))
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nh: v\n\nAA==\n-----END CERTIFICATE-----"))
	f.Fuzz(func(t *testing.T, data []byte) {
		bundle, err := ParseBundle(data)
		if err != nil {
			return
		}
		roots := bundle.Roots()
		if len(roots) == 0 || len(roots) > maxBundle {
			t.Fatalf("%d roots", len(roots))
		}
		for _, root := range roots {
			if !root.IsCA || root.KeyUsage&x509.KeyUsageCertSign == 0 {
				t.Fatal("a root that may not sign")
			}
		}
		if again, err := ParseBundle(bundle.PEM()); err != nil || !sameCertificates(again.Roots(), roots) {
			t.Fatalf("its own PEM: %v", err)
		}
	})
}
