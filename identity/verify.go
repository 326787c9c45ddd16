package identity

import (
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"slices"
	"time"
)

// maxPresented bounds the certificates that a peer may show: a leaf and a few intermediates.
const maxPresented = 8

// usageOf is the extended key usage that each role needs: an Edge serves, a Node dials.
var usageOf = map[Role]x509.ExtKeyUsage{RoleEdge: x509.ExtKeyUsageServerAuth, RoleNode: x509.ExtKeyUsageClientAuth}

// expectation is what a certificate must say. ID may be empty: any of that trust domain and role.
type expectation struct {
	domain TrustDomain
	role   Role
	id     ID
}

// verified is the outcome of a verification.
type verified struct {
	id       ID
	chain    []*x509.Certificate // from the leaf to an authority of the bundle
	notAfter time.Time           // the earliest of the chain
}

// verify makes all checks of a certificate, own or a peer's, in the order of the package's comment. The error is a
// *RefusedError.
func verify(presented []*x509.Certificate, bundle *Bundle, want expectation, now time.Time) (verified, error) {
	if n := len(presented); n == 0 || n > maxPresented {
		return verified{}, refuse(NoCertificate, "%d certificates instead of 1 to %d", n, maxPresented)
	}
	leaf := presented[0]
	v, err := verifyChain(leaf, presented[1:], bundle, usageOf[want.role], now)
	if err != nil {
		return verified{}, err
	}
	if err := verifyLeaf(leaf, usageOf[want.role]); err != nil {
		return verified{}, err
	}
	if v.id, err = verifyName(leaf, want); err != nil {
		return verified{}, err
	}
	return v, nil
}

// verifyChain finds the chain that is valid for the longest time.
func verifyChain(leaf *x509.Certificate, between []*x509.Certificate, bundle *Bundle, usage x509.ExtKeyUsage, now time.Time) (verified, error) {
	intermediates := x509.NewCertPool()
	for _, c := range between {
		intermediates.AddCert(c)
	}
	chains, err := leaf.Verify(x509.VerifyOptions{
		Roots: bundle.pool, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage},
	})
	if err != nil {
		return verified{}, chainError(err)
	}
	var best verified
	var fault error
	for _, chain := range chains {
		if err := checkChain(chain); err != nil {
			fault = err
			continue
		}
		if end := earliestEnd(chain); end.After(best.notAfter) {
			best = verified{chain: chain, notAfter: end}
		}
	}
	switch {
	case best.chain == nil:
		return verified{}, fault
	case !now.Before(best.notAfter): // x509 accepts the last instant
		return verified{}, refuse(Expired, "the chain expired at %s", best.notAfter.UTC().Format(time.RFC3339))
	}
	return best, nil
}

// chainError puts what x509 found into our words. Its texts quote names of a certificate that nobody has vouched for, so
// they are left out.
func chainError(err error) *RefusedError {
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		switch invalid.Reason {
		case x509.Expired:
			return refuse(Expired, "a certificate of the chain has expired or is not valid yet")
		case x509.IncompatibleUsage:
			return refuse(WrongUsage, "the chain does not allow this end of a connection (extended key usage)")
		case x509.NotAuthorizedToSign:
			return refuse(UnknownAuthority, "a certificate of the chain was not signed by an authority")
		case x509.TooManyIntermediates:
			return refuse(UnknownAuthority, "the chain is longer than its authority allows")
		case x509.CANotAuthorizedForThisName:
			return refuse(UnknownAuthority, "the authority may not certify this name")
		}
	}
	return refuse(UnknownAuthority, "the chain does not end in the bundle, or breaks one of its rules")
}

func checkChain(chain []*x509.Certificate) error {
	if err := checkKey(chain[0].PublicKey); err != nil {
		return refuse(WeakKey, "the certificate: %w", err)
	}
	for _, issuer := range chain[1:] {
		if err := checkKey(issuer.PublicKey); err != nil {
			return refuse(WeakKey, "an issuer: %w", err)
		}
		if err := checkAuthority(issuer); err != nil {
			return refuse(UnknownAuthority, "an issuer: %w", err)
		}
	}
	return nil
}

func earliestEnd(chain []*x509.Certificate) time.Time {
	return slices.MinFunc(chain, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) }).NotAfter
}

// verifyLeaf refuses an authority that poses as a leaf, and a leaf that does not write down what it is for: x509 takes a
// missing extended key usage, and "any", for every usage.
func verifyLeaf(leaf *x509.Certificate, usage x509.ExtKeyUsage) error {
	const signing = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	switch {
	case leaf.IsCA || leaf.KeyUsage&signing != 0:
		return refuse(WrongUsage, "the certificate is an authority's")
	case leaf.KeyUsage&x509.KeyUsageDigitalSignature == 0:
		return refuse(WrongUsage, "the certificate's key is not for signatures (digitalSignature is missing)")
	case !slices.Contains(leaf.ExtKeyUsage, usage):
		return refuse(WrongUsage, "the certificate does not name its extended key usage")
	}
	return nil
}

func verifyName(leaf *x509.Certificate, want expectation) (ID, error) {
	uris, err := uriNames(leaf)
	if err != nil {
		return "", refuse(WrongName, "the subject alternative names can't be read")
	}
	if len(uris) != 1 {
		return "", refuse(WrongName, "%d URI names instead of one", len(uris))
	}
	id, err := ParseID(uris[0])
	switch {
	case err != nil:
		return "", refuse(WrongName, "%w", err)
	case id.TrustDomain() != want.domain:
		return "", &RefusedError{WrongTrustDomain, id, errors.New("it is from another trust domain")}
	case id.Role() != want.role:
		return "", &RefusedError{WrongRole, id, errors.New("it has the other role")}
	case want.id != "" && id != want.id:
		return "", &RefusedError{WrongPeer, id, errors.New("it is not " + want.id.String())}
	}
	return id, nil
}

var subjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}

// uriNames returns the URI names of a certificate as they are written: x509 gives parsed URLs, which forget differences in
// spelling such as an empty query.
func uriNames(c *x509.Certificate) (names []string, err error) {
	const uriTag = 6
	for _, extension := range c.Extensions {
		if !extension.Id.Equal(subjectAltName) {
			continue
		}
		var all []asn1.RawValue
		if rest, err := asn1.Unmarshal(extension.Value, &all); err != nil || len(rest) > 0 {
			return nil, errors.New("bad extension")
		}
		for _, name := range all {
			if name.Class == asn1.ClassContextSpecific && name.Tag == uriTag {
				names = append(names, string(name.Bytes))
			}
		}
	}
	return names, nil
}
