package identity

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"iop/filewatch"
)

// How long a certificate of an Edge or a Node is valid. Nothing revokes it, so it is short.
const (
	DefaultTTL = 24 * time.Hour
	MaxTTL     = 90 * 24 * time.Hour
	minTTL     = time.Minute
)

// Request asks an Authority for a certificate.
type Request struct {
	// Required.
	Role Role
	Name string

	// Optional.
	TTL time.Duration // 0 means DefaultTTL
	// CSR is a certificate request, PEM. Its key is taken, and its signature proves who has it; every name and wish
	// in it is ignored. Without one the Authority makes a key, which then exists outside of its machine.
	CSR []byte
}

// Issued is a new certificate, and the private key where Authority.Issue made it. It does not change.
type Issued struct {
	ID          ID
	Certificate *x509.Certificate
	key         func() []byte // or nil; in a closure, so that no print of the struct shows it
}

// PEM returns the certificate alone: its authority is in the bundle.
func (i *Issued) PEM() []byte { return certificatePEM(i.Certificate.Raw) }

// KeyPEM returns the private key that was made, or nil where a CSR brought its own. Every call is a place to review.
func (i *Issued) KeyPEM() []byte {
	if i.key == nil {
		return nil
	}
	return bytes.Clone(i.key())
}

// Validate reports what is wrong with the request, apart from the CSR's content.
func (r *Request) Validate() error {
	if r.TTL != 0 && (r.TTL < minTTL || r.TTL > MaxTTL) {
		return fmt.Errorf("a certificate must be valid for %s to %s", minTTL, MaxTTL)
	}
	return cmp.Or(r.Role.Validate(), ValidateName(r.Name))
}

// Issue makes a certificate for a Node or an Edge: one URI name, made of the authority's trust domain and the request's role
// and name; the one usage of the role; no authority. It is noted in the log before it is returned.
func (a *Authority) Issue(r Request) (*Issued, error) {
	if err := r.Validate(); err != nil {
		return nil, err
	}
	id, err := NewID(a.domain, r.Role, r.Name)
	if err != nil {
		return nil, err
	}
	public, key, err := a.subjectKey(r.CSR)
	if err != nil {
		return nil, err
	}
	template, err := a.leafTemplate(id, r.TTL)
	if err != nil {
		return nil, err
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, a.certificate, public, a.key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(raw)
	if err != nil {
		return nil, err
	}
	issued := &Issued{ID: id, Certificate: certificate, key: key}
	if err := a.note(issued); err != nil {
		return nil, fmt.Errorf("not issued, because it can't be recorded: %w", err)
	}
	return issued, nil
}

// subjectKey returns the key to certify and, where it was made here, the private one.
func (a *Authority) subjectKey(csr []byte) (crypto.PublicKey, func() []byte, error) {
	if csr != nil {
		public, err := a.keyOfCSR(csr)
		return public, nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	encoded, err := privateKeyPEM(key)
	if err != nil {
		return nil, nil, err
	}
	return key.Public(), func() []byte { return encoded }, nil
}

func (a *Authority) keyOfCSR(data []byte) (crypto.PublicKey, error) {
	request, err := parseCSR(data)
	if err != nil {
		return nil, err
	}
	switch request.SignatureAlgorithm {
	case x509.SHA1WithRSA, x509.ECDSAWithSHA1: // CheckSignature lets them pass
		return nil, errors.New("certificate request: it is signed with SHA-1")
	}
	if err := request.CheckSignature(); err != nil {
		return nil, fmt.Errorf("certificate request: its signature is wrong: %w", err)
	}
	if err := checkKey(request.PublicKey); err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	if a.key.PublicKey.Equal(request.PublicKey) {
		return nil, errors.New("certificate request: it has the authority's own key")
	}
	return request.PublicKey, nil
}

func parseCSR(data []byte) (*x509.CertificateRequest, error) {
	block, rest := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE REQUEST" && block.Type != "NEW CERTIFICATE REQUEST" {
		return nil, errors.New("certificate request: it does not begin with a PEM block of that type")
	}
	if more, _ := pem.Decode(rest); more != nil {
		return nil, errors.New("certificate request: there is more than one PEM block")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	return request, nil
}

func (a *Authority) leafTemplate(id ID, ttl time.Duration) (*x509.Certificate, error) {
	if ttl == 0 {
		ttl = DefaultTTL
	}
	number, err := randomSerial()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	if now.Add(ttl).After(a.certificate.NotAfter) {
		return nil, fmt.Errorf("the authority itself expires at %s: create a new one and put both into the bundles",
			a.certificate.NotAfter.UTC().Format(time.RFC3339))
	}
	return &x509.Certificate{
		SerialNumber:          number,
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(ttl),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{usageOf[id.Role()]},
		BasicConstraintsValid: true,
		URIs:                  []*url.URL{uriOf(id)},
	}, nil
}

// uriOf is the one name in a certificate.
func uriOf(id ID) *url.URL {
	return &url.URL{Scheme: "spiffe", Host: string(id.TrustDomain()), Path: "/" + string(id.Role()) + "/" + id.Name()}
}

// LogEntry is a line of the issuance log.
type LogEntry struct {
	Time        time.Time `json:"time"`
	ID          ID        `json:"id"`
	Serial      string    `json:"serial"`
	NotBefore   time.Time `json:"not_before"`
	NotAfter    time.Time `json:"not_after"`
	Fingerprint string    `json:"sha256"`
	Key         string    `json:"key"` // "csr" or "generated"
}

// note appends to the log and waits until it is on the disk.
func (a *Authority) note(i *Issued) error {
	entry := LogEntry{
		Time: time.Now().UTC().Truncate(time.Second), ID: i.ID, Serial: serial(i.Certificate), NotBefore: i.Certificate.NotBefore,
		NotAfter: i.Certificate.NotAfter, Fingerprint: Fingerprint(i.Certificate), Key: "csr",
	}
	if i.key != nil {
		entry.Key = "generated"
	}
	line, err := json.Marshal(entry)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(a.dir, issuanceLog), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(append(line, '\n')) // in one write, so that lines of two processes don't mix
	return errors.Join(err, file.Sync(), file.Close())
}

// Deliver writes the certificate, and the key where one was made, to dir as ROLE-NAME.pem and ROLE-NAME.key (mode 0600),
// and returns the paths. Files that exist are replaced only if replace says so, the key first: a Source that looks
// in between finds a set that does not fit, and waits.
func (i *Issued) Deliver(dir string, replace bool) (certPath, keyPath string, err error) {
	base := filepath.Join(dir, string(i.ID.Role())+"-"+i.ID.Name())
	certPath = base + ".pem"
	place := filewatch.Replace
	if !replace {
		place = filewatch.Create
		if err := CheckDelivery(dir, i.ID.Role(), i.ID.Name(), i.key != nil); err != nil {
			return "", "", err
		}
	}
	if i.key != nil {
		keyPath = base + ".key"
		if err := place(keyPath, i.key(), 0o600); err != nil {
			return "", "", err
		}
	}
	return certPath, keyPath, place(certPath, i.PEM(), 0o644)
}

// CheckDelivery reports whether Deliver would find a file in its way, before a certificate is issued in vain.
func CheckDelivery(dir string, role Role, name string, withKey bool) error {
	endings := []string{".pem"}
	if withKey {
		endings = append(endings, ".key")
	}
	for _, ending := range endings {
		path := filepath.Join(dir, string(role)+"-"+name+ending)
		if _, err := os.Lstat(path); err == nil {
			return fmt.Errorf("%s exists already", path)
		}
	}
	return nil
}
