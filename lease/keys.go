package lease

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/json"
)

// Limits of the keys that an Edge announces, and why: a set has the current key, the next and those of the last minute,
// and a JWK of P-256 has some 250 bytes.
const (
	maxKeys      = 16
	maxJWKLength = 1 << 10
)

// PublishAhead is how long a signing key is announced before it may be used, so that every Node has it by then.
const PublishAhead = 10 * time.Minute

// SigningKeys are the keys that one Edge signs leases with: the current one, the next, which is announced already, and
// those that were current until lately. They live in memory only: an Edge that starts has new ones, and its Nodes
// learn them when they register. All methods may be called at any time.
type SigningKeys struct {
	mu      sync.Mutex
	current *signingKey
	next    *signingKey
	old     []retiredKey
}

type signingKey struct {
	id        Thumbprint
	signer    jose.Signer
	jwk       []byte // the public part
	announced time.Time
}

type retiredKey struct {
	id        Thumbprint
	jwk       []byte
	announced time.Time
	// until is when the last lease under it has expired at every Node.
	until time.Time
}

// KeyRole is what an announced signing key is for.
type KeyRole string

// The roles.
const (
	KeyCurrent KeyRole = "current" // signs
	KeyNext    KeyRole = "next"    // will sign
	KeyFormer  KeyRole = "former"  // signed until lately, and still verifies
)

// KeyStatus says how a signing key stands. Nothing of it is secret.
type KeyStatus struct {
	ID            Thumbprint
	Role          KeyRole
	Announced     time.Time
	UsableFrom    time.Time // of the next key; else zero
	VerifiesUntil time.Time // of a former key: its last lease has ended then; else zero
}

// NewSigningKeys makes a current and a next key.
func NewSigningKeys() (*SigningKeys, error) {
	current, err := newSigningKey()
	if err != nil {
		return nil, err
	}
	next, err := newSigningKey()
	if err != nil {
		return nil, err
	}
	return &SigningKeys{current: current, next: next}, nil
}

// newSigningKey makes a key whose ID, which operators give to commands, can't be taken for a flag: one in 64 begins with a hyphen.
func newSigningKey() (*signingKey, error) {
	for {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, fmt.Errorf("make a lease signing key: %w", err)
		}
		k, err := signingKeyOf(key)
		if err != nil || k.id[0] != '-' {
			return k, err
		}
	}
}

func signingKeyOf(key *ecdsa.PrivateKey) (*signingKey, error) {
	id, jwk, err := publicJWK(&key.PublicKey, "sig", string(jose.ES256))
	if err != nil {
		return nil, err
	}
	options := (&jose.SignerOptions{}).WithType(innerType)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: string(id)}}, options)
	if err != nil {
		return nil, fmt.Errorf("use a lease signing key: %w", err)
	}
	return &signingKey{id: id, signer: signer, jwk: jwk, announced: time.Now()}, nil
}

// TooEarlyError says that the next signing key may not be used before At.
type TooEarlyError struct{ At time.Time }

func (e *TooEarlyError) Error() string {
	return "the next signing key has not been announced long enough; it can be used from " + e.At.UTC().Format(time.RFC3339)
}

// Rotate makes the next key the current one and announces another next one. The former current key goes on verifying
// until its last lease has expired. The caller then sends Public to the Nodes. A key that was announced less than
// PublishAhead ago is a *TooEarlyError.
func (k *SigningKeys) Rotate() error {
	fresh, err := newSigningKey()
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	if at := k.next.announced.Add(PublishAhead); now.Before(at) {
		return &TooEarlyError{At: at}
	}
	k.old = append(k.old, retiredKey{id: k.current.id, jwk: k.current.jwk, announced: k.current.announced, until: now.Add(keepFor)})
	k.current, k.next = k.next, fresh
	k.pruneLocked(now)
	return nil
}

// Revoke drops a key that is no longer to be trusted, at once: leases under it that are under way will be refused by every
// Node that has the new set. If it was the current key, the next one takes its place whenever it was announced. The
// caller then sends Public to the Nodes. It reports whether there was such a key.
func (k *SigningKeys) Revoke(id Thumbprint) (bool, error) {
	fresh, err := newSigningKey()
	if err != nil {
		return false, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	before := len(k.old)
	k.old = slices.DeleteFunc(k.old, func(old retiredKey) bool { return old.id == id })
	switch id {
	case k.current.id:
		k.current, k.next = k.next, fresh
	case k.next.id:
		k.next = fresh
	default:
		return len(k.old) < before, nil
	}
	return true, nil
}

// Current returns the id of the key that signs now.
func (k *SigningKeys) Current() Thumbprint {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.current.id
}

// Status returns the keys that are announced: the current one, the next, then the former ones, the oldest first.
func (k *SigningKeys) Status() []KeyStatus {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pruneLocked(time.Now())
	keys := []KeyStatus{
		{ID: k.current.id, Role: KeyCurrent, Announced: k.current.announced},
		{ID: k.next.id, Role: KeyNext, Announced: k.next.announced, UsableFrom: k.next.announced.Add(PublishAhead)},
	}
	for _, old := range k.old {
		keys = append(keys, KeyStatus{ID: old.id, Role: KeyFormer, Announced: old.announced, VerifiesUntil: old.until})
	}
	return keys
}

// Public returns the public keys that verify this Edge's leases, the next one among them, each as a JWK in JSON.
func (k *SigningKeys) Public() [][]byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pruneLocked(time.Now())
	keys := [][]byte{k.current.jwk, k.next.jwk}
	for _, old := range k.old {
		keys = append(keys, old.jwk)
	}
	return keys
}

// pruneLocked drops what no lease needs any more, and the oldest where a set would grow too large for a Node.
func (k *SigningKeys) pruneLocked(now time.Time) {
	k.old = slices.DeleteFunc(k.old, func(old retiredKey) bool { return !now.Before(old.until) })
	if excess := len(k.old) + 2 - maxKeys; excess > 0 {
		k.old = slices.Delete(k.old, 0, excess)
	}
}

func (k *SigningKeys) sign(payload []byte) (string, error) {
	k.mu.Lock()
	signer := k.current.signer
	k.mu.Unlock()
	signed, err := signer.Sign(payload)
	if err != nil {
		return "", err
	}
	return signed.CompactSerialize()
}

// KeySet is what a Node knows of its Edge's signing keys. It does not change; the zero value verifies nothing.
type KeySet struct {
	keys map[Thumbprint]*ecdsa.PublicKey
}

// ParseKeySet reads the keys that an Edge announced, JWKs in JSON. One that is not exactly a P-256 public key for ES256
// whose id is its thumbprint refuses the whole set, and so does an empty one.
func ParseKeySet(jwks [][]byte) (KeySet, error) {
	if len(jwks) == 0 || len(jwks) > maxKeys {
		return KeySet{}, fmt.Errorf("%d lease verification keys, want 1 to %d", len(jwks), maxKeys)
	}
	set := KeySet{keys: map[Thumbprint]*ecdsa.PublicKey{}}
	for i, jwk := range jwks {
		id, key, err := parseJWK(jwk, "sig", string(jose.ES256))
		if err != nil {
			return KeySet{}, fmt.Errorf("lease verification key %d: %w", i, err)
		}
		set.keys[id] = key
	}
	return set, nil
}

// publicJWK returns a public key's thumbprint and its JWK.
func publicJWK(key *ecdsa.PublicKey, use, algorithm string) (Thumbprint, []byte, error) {
	id, err := thumbprint(key)
	if err != nil {
		return "", nil, err
	}
	jwk, err := jose.JSONWebKey{Key: key, KeyID: string(id), Use: use, Algorithm: algorithm}.MarshalJSON()
	return id, jwk, err
}

func thumbprint(key *ecdsa.PublicKey) (Thumbprint, error) {
	sum, err := (&jose.JSONWebKey{Key: key}).Thumbprint(crypto.SHA256)
	if err != nil {
		return "", fmt.Errorf("thumbprint of a public key: %w", err)
	}
	return Thumbprint(encoding.EncodeToString(sum)), nil
}

var errJWK = errors.New("not exactly the JWK of a P-256 public key")

// parseJWK reads what publicJWK writes.
func parseJWK(jwk []byte, use, algorithm string) (Thumbprint, *ecdsa.PublicKey, error) {
	if len(jwk) > maxJWKLength {
		return "", nil, errJWK
	}
	members, ok := parseObject(jwk)
	constant := map[string]string{"kty": "EC", "crv": "P-256", "use": use, "alg": algorithm}
	if !ok || !hasExactly(members, constant, "kid", "x", "y") {
		return "", nil, errJWK
	}
	key, ok := parsePoint(members)
	if !ok {
		return "", nil, errJWK
	}
	id, err := thumbprint(key)
	if err != nil {
		return "", nil, err
	}
	if string(members["kid"]) != `"`+string(id)+`"` {
		return "", nil, errors.New("a key's id is not its thumbprint")
	}
	return id, key, nil
}

// parsePoint reads x and y, and refuses what does not lie on P-256.
func parsePoint(members map[string]json.RawMessage) (*ecdsa.PublicKey, bool) {
	const size = 32
	point := [1 + 2*size]byte{4} // uncompressed
	if !decodeFixed(point[1:1+size], members["x"]) || !decodeFixed(point[1+size:], members["y"]) {
		return nil, false
	}
	key, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point[:])
	return key, err == nil
}
