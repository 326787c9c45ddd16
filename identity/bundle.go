package identity

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
)

// maxBundle bounds the authorities of a trust domain: a rotation needs two, and each handshake may try all of them.
const maxBundle = 64

// minRSABits is the weakest RSA key that anybody here may have.
const minRSABits = 2048

// Bundle is the set of authorities that a trust domain believes, never empty. It does not change.
type Bundle struct {
	roots []*x509.Certificate
	pool  *x509.CertPool // never nil: a nil pool would mean the system's roots
}

// NewBundle makes a Bundle of 1 to 64 authorities; a certificate that stands there twice counts once. Each must be an
// authority that may sign certificates: verification treats whatever is in the pool as one, a leaf too. One that has
// expired is accepted, and nothing that it signed is.
func NewBundle(roots []*x509.Certificate) (*Bundle, error) {
	b := &Bundle{pool: x509.NewCertPool()}
	for _, root := range roots {
		if slices.ContainsFunc(b.roots, root.Equal) {
			continue
		}
		if err := checkAuthority(root); err != nil {
			return nil, fmt.Errorf("certificate %s in the bundle: %w", serial(root), err)
		}
		b.roots = append(b.roots, root)
		b.pool.AddCert(root)
	}
	if len(b.roots) == 0 || len(b.roots) > maxBundle {
		return nil, fmt.Errorf("a bundle must hold 1 to %d authorities, not %d", maxBundle, len(b.roots))
	}
	return b, nil
}

// ParseBundle reads PEM certificates and nothing else; text outside of them is skipped. It is strict about damage, so that
// half a file is not taken for a shorter one.
func ParseBundle(data []byte) (*Bundle, error) {
	certificates, err := parseCertificates(data)
	if err != nil {
		return nil, err
	}
	return NewBundle(certificates)
}

// Roots returns the authorities, in a slice of its own.
func (b *Bundle) Roots() []*x509.Certificate { return slices.Clone(b.roots) }

// PEM returns the bundle as ParseBundle reads it.
func (b *Bundle) PEM() []byte {
	var out bytes.Buffer
	for _, root := range b.roots {
		out.Write(certificatePEM(root.Raw))
	}
	return out.Bytes()
}

func certificatePEM(raw []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
}

// parseCertificates reads PEM blocks that must all be certificates, at least one.
func parseCertificates(data []byte) (certificates []*x509.Certificate, err error) {
	begin := []byte("-----BEGIN")
	announced := bytes.Count(data, begin)
	for {
		block, rest := pem.Decode(data)
		if block == nil {
			break
		}
		data = rest
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("a PEM block is %.40q, not a certificate", block.Type)
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(certificates)+1, err)
		}
		certificates = append(certificates, certificate)
	}
	// pem.Decode skips what it can't read, so what began must be counted.
	switch {
	case announced != len(certificates) || bytes.Contains(data, begin):
		return nil, fmt.Errorf("only %d of %d PEM blocks can be read: the file is damaged or incomplete", len(certificates), announced)
	case announced == 0:
		return nil, errors.New("no PEM certificate found")
	}
	return certificates, nil
}

// checkAuthority reports why a certificate may not sign others. x509 lets an authority without any key usage pass, and in a
// root does not look at basic constraints.
func checkAuthority(c *x509.Certificate) error {
	switch {
	case !c.BasicConstraintsValid || !c.IsCA:
		return errors.New("it is not an authority's (CA:TRUE is missing)")
	case c.KeyUsage&x509.KeyUsageCertSign == 0:
		return errors.New("its key may not sign certificates (keyCertSign is missing)")
	}
	return checkKey(c.PublicKey)
}

// checkKey reports why a public key is too weak or of a kind that nobody here expects.
func checkKey(key any) error {
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		if k.Curve != elliptic.P256() && k.Curve != elliptic.P384() && k.Curve != elliptic.P521() {
			return errors.New("its key is on a curve other than P-256, P-384 and P-521")
		}
	case ed25519.PublicKey:
	case *rsa.PublicKey:
		if k.N.BitLen() < minRSABits {
			return fmt.Errorf("its RSA key has less than %d bits", minRSABits)
		}
	default:
		return errors.New("its key is neither ECDSA, Ed25519 nor RSA")
	}
	return nil
}

func sameCertificates(a, b []*x509.Certificate) bool {
	return slices.EqualFunc(a, b, (*x509.Certificate).Equal)
}

// serial writes a certificate's serial number as logs and lists have it.
func serial(c *x509.Certificate) string { return fmt.Sprintf("%032x", c.SerialNumber) }
