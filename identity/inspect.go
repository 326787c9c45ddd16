package identity

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Description is what a certificate or a certificate request says, for people and scripts. Texts in it come from whoever
// made the file.
type Description struct {
	Kind        string     `json:"kind"` // "authority", "certificate" or "request"
	ID          ID         `json:"id,omitempty"`
	TrustDomain string     `json:"trust_domain,omitempty"` // an authority's constraint
	Subject     string     `json:"subject,omitempty"`
	Issuer      string     `json:"issuer,omitempty"`
	Serial      string     `json:"serial,omitempty"`
	NotBefore   *time.Time `json:"not_before,omitempty"`
	NotAfter    *time.Time `json:"not_after,omitempty"`
	Key         string     `json:"key"`
	Fingerprint string     `json:"sha256,omitempty"` // of a certificate
	// Faults are why no Edge and no Node would accept it, as far as it shows without a bundle; empty where it is right.
	Faults []string `json:"faults"`
}

// Inspect describes each certificate and request in a PEM file. It refuses a private key: nothing about one is to be shown.
func Inspect(data []byte, now time.Time) (all []Description, err error) {
	for {
		block, rest := pem.Decode(data)
		if block == nil {
			break
		}
		data = rest
		d, err := describeBlock(block, now)
		if err != nil {
			return nil, fmt.Errorf("PEM block %d: %w", len(all)+1, err)
		}
		all = append(all, d)
	}
	if len(all) == 0 {
		return nil, errors.New("no PEM certificate found or certificate request")
	}
	return all, nil
}

func describeBlock(block *pem.Block, now time.Time) (Description, error) {
	switch {
	case block.Type == "CERTIFICATE":
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return Description{}, err
		}
		return describe(c, now), nil
	case strings.HasSuffix(block.Type, "CERTIFICATE REQUEST"):
		r, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			return Description{}, err
		}
		return describeRequest(r), nil
	case strings.HasSuffix(block.Type, "PRIVATE KEY"):
		return Description{}, errors.New("it is a private key, which is not shown")
	}
	return Description{}, fmt.Errorf("it is %.40q, neither a certificate nor a request", block.Type)
}

func describe(c *x509.Certificate, now time.Time) Description {
	d := Description{
		Kind: "certificate", Subject: c.Subject.String(), Issuer: c.Issuer.String(), Serial: serial(c),
		NotBefore: &c.NotBefore, NotAfter: &c.NotAfter, Key: keyKind(c.PublicKey), Fingerprint: Fingerprint(c), Faults: []string{},
	}
	fault := func(err error) {
		if err != nil {
			d.Faults = append(d.Faults, err.Error())
		}
	}
	switch {
	case now.Before(c.NotBefore):
		d.Faults = append(d.Faults, "it is not valid yet")
	case !now.Before(c.NotAfter):
		d.Faults = append(d.Faults, "it has expired")
	}
	if c.IsCA {
		d.Kind, d.TrustDomain = "authority", strings.Join(c.PermittedURIDomains, " ")
		fault(checkAuthority(c))
		return d
	}
	fault(checkKey(c.PublicKey))
	id, err := idOf(c)
	if fault(err); err == nil {
		d.ID = id
		fault(withoutReason(verifyLeaf(c, usageOf[id.Role()])))
	}
	return d
}

// idOf reads the ID of a leaf, whatever trust domain and role it has.
func idOf(c *x509.Certificate) (ID, error) {
	uris, err := uriNames(c)
	if err != nil || len(uris) != 1 {
		return "", fmt.Errorf("it has %d URI names instead of one", len(uris))
	}
	return ParseID(uris[0])
}

func withoutReason(err error) error {
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		return refused.Err
	}
	return err
}

func describeRequest(r *x509.CertificateRequest) Description {
	d := Description{Kind: "request", Subject: r.Subject.String(), Key: keyKind(r.PublicKey), Faults: []string{}}
	if len(r.URIs) == 1 {
		d.ID, _ = ParseID(r.URIs[0].String()) // a request need not name anybody
	}
	for _, err := range []error{r.CheckSignature(), checkKey(r.PublicKey)} {
		if err != nil {
			d.Faults = append(d.Faults, err.Error())
		}
	}
	return d
}

func keyKind(key any) string {
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		return "ECDSA " + k.Curve.Params().Name
	case ed25519.PublicKey:
		return "Ed25519"
	case *rsa.PublicKey:
		return fmt.Sprintf("RSA %d", k.N.BitLen())
	}
	return "unknown"
}

// VerifyFile reports whether a certificate file, leaf first, would be accepted by peers of its own trust domain that
// believe the bundle, and whose it is.
func VerifyFile(data []byte, bundle *Bundle, now time.Time) (ID, error) {
	chain, err := parseCertificates(data)
	if err != nil {
		return "", err
	}
	id, err := idOf(chain[0])
	if err != nil {
		return "", err
	}
	_, err = verify(chain, bundle, expectation{domain: id.TrustDomain(), role: id.Role(), id: id}, now)
	return id, withoutReason(err)
}
