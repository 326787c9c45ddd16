package lease

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"sync/atomic"

	"github.com/go-jose/go-jose/v4"
)

// Recipient is the key pair that leases of one generation are sealed to. The Node makes one for each session, before it
// registers; it is never written anywhere. All methods may be called at any time.
type Recipient struct {
	id      Thumbprint
	jwk     []byte
	private atomic.Pointer[ecdsa.PrivateKey] // or nil: dropped
}

// NewRecipient makes a key pair on P-256, for one session of a Node.
func NewRecipient() (*Recipient, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a recipient key: %w", err)
	}
	return recipientOf(key)
}

func recipientOf(key *ecdsa.PrivateKey) (*Recipient, error) {
	id, jwk, err := publicJWK(&key.PublicKey, "enc", string(jose.ECDH_ES))
	if err != nil {
		return nil, err
	}
	r := &Recipient{id: id, jwk: jwk}
	r.private.Store(key)
	return r, nil
}

// PublicJWK returns the public key as a JWK in JSON, for the registration. The caller must not change it.
func (r *Recipient) PublicJWK() []byte { return r.jwk }

// Thumbprint names the key; it is fit for a log.
func (r *Recipient) Thumbprint() Thumbprint { return r.id }

// Drop forgets the private key. Nothing that was sealed to it can be opened by this process any more.
func (r *Recipient) Drop() { r.private.Store(nil) }

// RecipientPublic is the public half at the Edge. It does not change.
type RecipientPublic struct {
	id        Thumbprint
	encrypter jose.Encrypter
}

// ParseRecipient reads what a Node registered, which must be exactly a P-256 public key for ECDH-ES whose id is its
// thumbprint. The error is fit for the Node.
func ParseRecipient(jwk []byte) (*RecipientPublic, error) {
	id, key, err := parseJWK(jwk, "enc", string(jose.ECDH_ES))
	if err != nil {
		return nil, fmt.Errorf("recipient key: %w", err)
	}
	options := (&jose.EncrypterOptions{}).WithType(outerType).WithContentType(innerType)
	encrypter, err := jose.NewEncrypter(jose.A256GCM, jose.Recipient{Algorithm: jose.ECDH_ES, Key: key, KeyID: string(id)}, options)
	if err != nil {
		return nil, fmt.Errorf("recipient key: %w", err)
	}
	return &RecipientPublic{id: id, encrypter: encrypter}, nil
}

// Thumbprint names the key; it is fit for a log.
func (r *RecipientPublic) Thumbprint() Thumbprint { return r.id }
