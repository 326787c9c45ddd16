package lease

import (
	"errors"
	"fmt"
	"time"

	"iop/execution"
)

// DefaultLife is how long a lease lives unless the operator says otherwise, and MaxLife the longest that any Node accepts.
const (
	DefaultLife = 30 * time.Second
	MaxLife     = 60 * time.Second
)

// Leeway is how far in the future a Node accepts iat and nbf: two clocks are never the same. There is none for exp.
const Leeway = 2 * time.Second

// keepFor is how long what concerns a lease is remembered: until the last one that may have been issued by now has
// expired on any clock.
const keepFor = MaxLife + 2*Leeway

// MaxTokenLength bounds a sealed lease in bytes. Ordinary ones have 1.2 to 1.6 KiB.
const MaxTokenLength = 8192

// The types of the two layers, as they stand in their headers.
const (
	outerType = "lease+jwe"
	innerType = "lease+jwt"
)

// SealerConfig is what a Sealer needs.
type SealerConfig struct {
	Issuer Issuer       // required: this Edge's identity, the one of its certificate
	Keys   *SigningKeys // required
	// Life is how long a lease lives, in whole seconds up to MaxLife; 0 is DefaultLife.
	Life time.Duration
}

// Sealer issues leases. Its methods may be called at any time.
type Sealer struct{ cfg SealerConfig }

// NewSealer returns a Sealer. The error says which part of cfg is missing or wrong.
func NewSealer(cfg SealerConfig) (*Sealer, error) {
	if cfg.Life == 0 {
		cfg.Life = DefaultLife
	}
	switch {
	case !visible(string(cfg.Issuer), maxIdentityLength):
		return nil, errors.New("lease: no valid issuer")
	case cfg.Keys == nil:
		return nil, errors.New("lease: no signing keys")
	case cfg.Life < time.Second || cfg.Life > MaxLife || cfg.Life%time.Second != 0:
		return nil, fmt.Errorf("lease: a life of %s, want whole seconds from 1s to %s", cfg.Life, MaxLife)
	}
	return &Sealer{cfg: cfg}, nil
}

// Binding is the one use that a lease allows. Every field is required; Attempt may be 0 where attempts count from 0.
type Binding struct {
	Audience   Audience
	Generation execution.Generation
	Run        execution.RunID
	Attempt    uint32
	Principal  execution.PrincipalID
	Route      execution.RouteName
	Slot       execution.SlotName
	Profile    execution.ProfileName
	Revision   execution.Revision
	Target     Target
	Digest     Digest
	Header     Header
}

// Seal issues a lease: the credential, signed with its binding, encrypted to the recipient. It is called at the moment
// at which the lease is sent, after the caller has fenced: the session is current, the identity and the revision hold,
// nothing is revoked. An error names the claim that can't be in a lease, never the credential.
func (s *Sealer) Seal(b Binding, credential Secret, to *RecipientPublic) (token []byte, id execution.LeaseID, expires time.Time, err error) {
	now := time.Now().UTC().Truncate(time.Second)
	claims := Claims{
		ID: newLeaseID(), Issuer: s.cfg.Issuer, Audience: b.Audience, Generation: b.Generation, Recipient: to.id,
		IssuedAt: now, NotBefore: now, Expires: now.Add(s.cfg.Life),
		Run: b.Run, Attempt: b.Attempt, Principal: b.Principal, Route: b.Route, Slot: b.Slot, Profile: b.Profile,
		Revision: b.Revision, Target: b.Target, Digest: b.Digest, Header: b.Header,
	}
	if err := claims.check(); err != nil {
		return nil, "", time.Time{}, fmt.Errorf("lease: the claim %w is missing or malformed", err)
	}
	value := credential.Reveal()
	defer clear(value)
	if value == nil {
		return nil, "", time.Time{}, errors.New("lease: no credential")
	}
	token, err = s.seal(&claims, value, to)
	if err != nil {
		return nil, "", time.Time{}, err
	}
	return token, claims.ID, claims.Expires, nil
}

func (s *Sealer) seal(claims *Claims, credential []byte, to *RecipientPublic) ([]byte, error) {
	payload, err := claims.marshal(credential)
	if err != nil {
		return nil, fmt.Errorf("lease: encode: %w", err)
	}
	defer clear(payload)
	signed, err := s.cfg.Keys.sign(payload)
	if err != nil {
		return nil, fmt.Errorf("lease: sign: %w", err)
	}
	inner := []byte(signed)
	defer clear(inner)
	sealed, err := to.encrypter.Encrypt(inner)
	if err != nil {
		return nil, fmt.Errorf("lease: encrypt: %w", err)
	}
	token, err := sealed.CompactSerialize()
	if err != nil {
		return nil, fmt.Errorf("lease: serialise: %w", err)
	}
	if len(token) > MaxTokenLength {
		return nil, fmt.Errorf("lease: %d bytes, more than %d: shorten the credential or the names", len(token), MaxTokenLength)
	}
	return []byte(token), nil
}
