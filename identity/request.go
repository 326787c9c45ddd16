package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"iop/filewatch"
)

// KeyRequest is a fresh key pair with a request for its certificate, made where the key will be used.
type KeyRequest struct {
	ID  ID
	csr []byte        // PEM
	key func() []byte // never nil; in a closure, so that no print of the struct shows it
}

// NewKeyRequest makes a P-256 key and a PKCS#10 request that names the ID as its one URI, and nothing else. Authority.Issue
// does not look at the name; other authorities may.
func NewKeyRequest(id ID) (*KeyRequest, error) {
	if err := id.Validate(); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	private, err := privateKeyPEM(key)
	if err != nil {
		return nil, err
	}
	raw, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{URIs: []*url.URL{uriOf(id)}}, key)
	if err != nil {
		return nil, err
	}
	return &KeyRequest{
		ID: id, csr: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: raw}), key: func() []byte { return private },
	}, nil
}

// Deliver writes key and request to dir as ROLE-NAME.key (mode 0600) and ROLE-NAME.csr, and returns the paths. Files that
// exist are never replaced: a key that is gone can't be had again.
func (r *KeyRequest) Deliver(dir string) (csrPath, keyPath string, err error) {
	base := filepath.Join(dir, string(r.ID.Role())+"-"+r.ID.Name())
	csrPath, keyPath = base+".csr", base+".key"
	for _, path := range []string{keyPath, csrPath} {
		if _, err := os.Lstat(path); err == nil {
			return "", "", fmt.Errorf("%s already exists and is not replaced", path)
		}
	}
	if err := filewatch.Create(keyPath, r.key(), 0o600); err != nil {
		return "", "", err
	}
	if err := filewatch.Create(csrPath, r.csr, 0o644); err != nil {
		return "", "", fmt.Errorf("the key is in %s, its request can't be written: %w", keyPath, err)
	}
	return csrPath, keyPath, nil
}
