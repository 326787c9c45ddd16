package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"iop/filewatch"
)

// Names in an authority's directory.
const (
	authorityCert = "ca.pem"
	authorityKey  = "ca.key"
	issuanceLog   = "issued.log"
)

// How long an authority lives.
const (
	DefaultAuthorityLife = 5 * 365 * 24 * time.Hour
	MaxAuthorityLife     = 10 * 365 * 24 * time.Hour
)

// backdate makes a certificate valid for clocks that are a little behind.
const backdate = 5 * time.Minute

// Authority is a root in a directory that issues certificates of one trust domain. It is for one goroutine; several
// processes may issue from one directory.
type Authority struct {
	dir         string
	domain      TrustDomain
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// InitAuthority makes a directory, and in it a P-256 root: ca.pem, and ca.key with mode 0600. The root may sign
// certificates and nothing else, no authorities below it, and only for names of the trust domain; as x509 counts its
// subdomains among these, peers compare the trust domain itself. It never replaces a file. A life of 0 means
// DefaultAuthorityLife.
func InitAuthority(dir string, domain TrustDomain, life time.Duration) (*Authority, error) {
	if life == 0 {
		life = DefaultAuthorityLife
	}
	if err := domain.Validate(); err != nil {
		return nil, err
	}
	if life < time.Hour || life > MaxAuthorityLife {
		return nil, fmt.Errorf("an authority must live 1h to %s", MaxAuthorityLife)
	}
	certPath, keyPath := filepath.Join(dir, authorityCert), filepath.Join(dir, authorityKey)
	for _, path := range []string{certPath, keyPath} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(fmt.Errorf("%s exists already: an authority is never overwritten", path), err)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	raw, err := selfSigned(domain, key, life)
	if err != nil {
		return nil, err
	}
	encoded, err := privateKeyPEM(key)
	if err != nil {
		return nil, err
	}
	defer clear(encoded)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := filewatch.Create(keyPath, encoded, 0o600); err != nil {
		return nil, err
	}
	if err := filewatch.Create(certPath, certificatePEM(raw), 0o644); err != nil {
		return nil, errors.Join(err, os.Remove(keyPath))
	}
	return OpenAuthority(dir)
}

func selfSigned(domain TrustDomain, key *ecdsa.PrivateKey, life time.Duration) ([]byte, error) {
	number, err := randomSerial()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: number,
		// Two roots of one trust domain stand in one bundle during a rotation: the name tells them apart for people.
		Subject:               pkix.Name{Organization: []string{"IOP"}, CommonName: fmt.Sprintf("%.20s CA %.8x", domain, number.Bytes())},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(life),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
		// The name of the field is about DNS; it makes the whole extension critical.
		PermittedDNSDomainsCritical: true,
		PermittedURIDomains:         []string{string(domain)},
	}
	return x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
}

// OpenAuthority opens what InitAuthority has made. It refuses a key that others than its owner may read, and one that is not
// the certificate's. The error says which file is at fault, and shows nothing of the key.
func OpenAuthority(dir string) (*Authority, error) {
	certData, err := readFile(filepath.Join(dir, authorityCert), false)
	if err != nil {
		return nil, err
	}
	keyPath := filepath.Join(dir, authorityKey)
	keyData, err := readFile(keyPath, true)
	if err != nil {
		return nil, err
	}
	defer clear(keyData)
	pair, err := tls.X509KeyPair(certData, keyData)
	if err != nil {
		return nil, fmt.Errorf("%s: no private key that matches %s", keyPath, authorityCert)
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	certificate := pair.Leaf
	if !ok || checkAuthority(certificate) != nil || len(certificate.PermittedURIDomains) != 1 {
		return nil, fmt.Errorf("%s is not an authority created by iop ca init", dir)
	}
	domain := TrustDomain(certificate.PermittedURIDomains[0])
	if err := domain.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return &Authority{dir: dir, domain: domain, certificate: certificate, key: key}, nil
}

// ReadAuthorityBundle returns the Bundle of an authority's directory without its key.
func ReadAuthorityBundle(dir string) (*Bundle, error) {
	data, err := readFile(filepath.Join(dir, authorityCert), false)
	if err != nil {
		return nil, err
	}
	return ParseBundle(data)
}

// TrustDomain is whose certificates it issues.
func (a *Authority) TrustDomain() TrustDomain { return a.domain }

// Certificate returns the root, not to be changed.
func (a *Authority) Certificate() *x509.Certificate { return a.certificate }

// Fingerprint returns the SHA-256 of a certificate in hexadecimal, for people to compare.
func Fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}

func randomSerial() (*big.Int, error) {
	var number [16]byte
	for {
		if _, err := rand.Read(number[:]); err != nil {
			return nil, err
		}
		number[0] &= 0x7f // it is a signed number: so it never takes a 17th byte
		if n := new(big.Int).SetBytes(number[:]); n.Sign() > 0 {
			return n, nil
		}
	}
}

func privateKeyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	defer clear(raw)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), nil
}
