package lease

import (
	"crypto/ecdsa"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"

	"iop/execution"
)

// OpenerConfig is what an Opener needs. The functions are called while a lease is opened, by several goroutines at a
// time; they must not block. None of them may be nil.
type OpenerConfig struct {
	Issuer     Issuer               // the identity that the Edge's certificate proved on this tunnel
	Audience   Audience             // this Node's own
	Generation execution.Generation // of this session
	Recipient  *Recipient           // of this session; the Opener drops it when it is closed
	Clock      *EdgeClock           // of this session
	// Keys returns the Edge's current signing keys, as told over this tunnel.
	Keys func() KeySet
	// MinimumRevision returns the least revision of a slot that may be used; 0 where the Edge has named none.
	MinimumRevision func(execution.SlotName) execution.Revision
	// Policy reports whether this Node's own configuration knows this use: a slot and a profile that it serves, and a
	// target among its providers.
	Policy func(execution.SlotName, execution.ProfileName, Target) bool

	// ReplayBound is how many leases are remembered at most; 0 is DefaultReplayBound.
	ReplayBound int
	// Counters, or nil: whoever keeps them sees them grow over all sessions.
	Counters *Counters
}

// Counters count what Openers did.
type Counters struct {
	opened   atomic.Int64
	rejected [reasonEnd]atomic.Int64
}

// Opened returns how many leases were opened.
func (c *Counters) Opened() int64 { return c.opened.Load() }

// Rejected returns how many times a lease was refused for this reason, when it was opened or later when it was used.
// ReasonReplay above zero is an alarm: nobody sends a lease twice by accident.
func (c *Counters) Rejected(r Reason) int64 { return c.rejected[r].Load() }

// Opener opens the leases of one generation. All methods may be called at any time.
type Opener struct {
	cfg    OpenerConfig
	replay *replayCache

	mu     sync.Mutex
	stones tombstones
	live   map[*Opened]struct{} // opened and not closed; nil: the Opener is closed
}

// NewOpener returns the Opener of one generation. The error says which part of cfg is missing or wrong.
func NewOpener(cfg OpenerConfig) (*Opener, error) {
	switch {
	case !visible(string(cfg.Issuer), maxIdentityLength), !visible(string(cfg.Audience), maxIdentityLength):
		return nil, errors.New("lease: no valid issuer or audience")
	case cfg.Generation == 0, cfg.Recipient == nil, cfg.Clock == nil:
		return nil, errors.New("lease: no generation, recipient key or clock")
	case cfg.Keys == nil, cfg.MinimumRevision == nil, cfg.Policy == nil:
		return nil, errors.New("lease: no keys, minimum revisions or policy")
	case cfg.ReplayBound < 0:
		return nil, errors.New("lease: a negative bound of the replay cache")
	}
	if cfg.ReplayBound == 0 {
		cfg.ReplayBound = DefaultReplayBound
	}
	if cfg.Counters == nil {
		cfg.Counters = &Counters{}
	}
	return &Opener{cfg: cfg, replay: newReplayCache(cfg.ReplayBound), live: map[*Opened]struct{}{}}, nil
}

// Expectation is what the Node knows of the run that the lease came with: from its OPEN, and from the request as it
// received it.
type Expectation struct {
	Run       execution.RunID
	Attempt   uint32
	Principal execution.PrincipalID
	Route     execution.RouteName
	Slot      execution.SlotName
	Profile   execution.ProfileName
	Target    Target // the provider's address
	Digest    Digest // see RequestDigest
}

// Open opens a lease that came in the LEASE frame of a run. It is called once per frame, after the capacity admission and
// right before the provider call. The error is a *RejectedError: the run ends, and nothing else is tried. Whoever gets
// an Opened must Close it.
func (o *Opener) Open(token []byte, want Expectation) (*Opened, error) {
	opened, reason := o.open(token, &want)
	if reason != 0 {
		return nil, o.reject(reason)
	}
	o.cfg.Counters.opened.Add(1)
	return opened, nil
}

func (o *Opener) reject(r Reason) error {
	o.cfg.Counters.rejected[r].Add(1)
	return rejected(r)
}

// open runs the checks. Their order matters: nothing is parsed that could have been refused by its length or alphabet,
// no key is used on a header that is not exactly right, and what is forged never reaches the replay cache.
func (o *Opener) open(token []byte, want *Expectation) (*Opened, Reason) {
	if reason := o.checkOuter(token); reason != 0 {
		return nil, reason
	}
	inner, reason := o.decrypt(token)
	defer clear(inner)
	if reason != 0 {
		return nil, reason
	}
	payload, reason := o.verify(inner)
	defer clear(payload)
	if reason != 0 {
		return nil, reason
	}
	claims, credential, reason := parseClaims(payload)
	if reason == 0 {
		reason = o.admit(claims, want)
	}
	var opened *Opened
	if reason == 0 {
		opened, reason = o.enlist(claims, credential)
	}
	if reason != 0 {
		credential.Wipe()
	}
	return opened, reason
}

// checkOuter looks at a token's text and header, before any library and any key.
func (o *Opener) checkOuter(token []byte) Reason {
	if len(token) > MaxTokenLength {
		return ReasonTooLarge
	}
	parts := segments(token, 5)
	if parts == nil || len(parts[1]) != 0 { // direct key agreement has no encrypted key
		return ReasonMalformed
	}
	members, ok := decodeHeader(parts[0])
	constant := map[string]string{"alg": "ECDH-ES", "enc": "A256GCM", "typ": outerType, "cty": innerType}
	if !ok || !hasExactly(members, constant, "kid", "epk") {
		return ReasonHeader
	}
	point, ok := parseObject(members["epk"])
	if !ok || !hasExactly(point, map[string]string{"kty": "EC", "crv": "P-256"}, "x", "y") {
		return ReasonEphemeralKey
	}
	if _, ok := parsePoint(point); !ok {
		return ReasonEphemeralKey
	}
	if string(members["kid"]) != `"`+string(o.cfg.Recipient.id)+`"` {
		return ReasonRecipientKey
	}
	return 0
}

func (o *Opener) decrypt(token []byte) ([]byte, Reason) {
	sealed, err := jose.ParseEncryptedCompact(string(token), []jose.KeyAlgorithm{jose.ECDH_ES}, []jose.ContentEncryption{jose.A256GCM})
	if err != nil {
		return nil, ReasonHeader
	}
	// checkOuter has refused these. The library would unpack by itself what says zip, so its view is asked too.
	for _, name := range []jose.HeaderKey{"zip", "crit"} {
		if _, there := sealed.Header.ExtraHeaders[name]; there {
			return nil, ReasonHeader
		}
	}
	key := o.cfg.Recipient.private.Load()
	if key == nil {
		return nil, ReasonClosed
	}
	inner, err := sealed.Decrypt(key)
	if err != nil {
		return nil, ReasonDecryption
	}
	return inner, 0
}

// verify checks the signature under the one key that the header names, of those that the Edge told over this tunnel.
func (o *Opener) verify(inner []byte) ([]byte, Reason) {
	parts := segments(inner, 3)
	if parts == nil {
		return nil, ReasonInnerMalformed
	}
	members, ok := decodeHeader(parts[0])
	if !ok || !hasExactly(members, map[string]string{"alg": "ES256", "typ": innerType}, "kid") {
		return nil, ReasonInnerHeader
	}
	signed, err := jose.ParseSignedCompact(string(inner), []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		return nil, ReasonInnerHeader
	}
	id, ok := plainString(members["kid"])
	if !ok {
		return nil, ReasonInnerHeader
	}
	var key *ecdsa.PublicKey
	if key = o.cfg.Keys().keys[Thumbprint(id)]; key == nil {
		return nil, ReasonSigningKey
	}
	payload, err := signed.Verify(key)
	if err != nil {
		return nil, ReasonSignature
	}
	return payload, 0
}

// admit compares what the lease says with what this session, this run and this Node's own configuration say.
func (o *Opener) admit(c *Claims, want *Expectation) Reason {
	for _, step := range []func(*Claims, *Expectation) Reason{o.checkSession, o.checkRun, o.checkUse, o.checkTime} {
		if reason := step(c, want); reason != 0 {
			return reason
		}
	}
	if c.Digest != want.Digest {
		return ReasonRequestDigest
	}
	return 0
}

func (o *Opener) checkSession(c *Claims, _ *Expectation) Reason {
	switch {
	case c.Issuer != o.cfg.Issuer:
		return ReasonIssuer
	case c.Audience != o.cfg.Audience:
		return ReasonAudience
	case c.Recipient != o.cfg.Recipient.id:
		return ReasonRecipient
	case c.Generation != o.cfg.Generation:
		return ReasonGeneration
	}
	return 0
}

func (o *Opener) checkRun(c *Claims, want *Expectation) Reason {
	switch {
	case c.Run != want.Run:
		return ReasonRun
	case c.Attempt != want.Attempt:
		return ReasonAttempt
	case c.Revision < o.cfg.MinimumRevision(c.Slot):
		return ReasonRevision
	case c.Principal != want.Principal:
		return ReasonPrincipal
	}
	return 0
}

func (o *Opener) checkUse(c *Claims, want *Expectation) Reason {
	switch {
	case c.Route != want.Route:
		return ReasonRoute
	case c.Slot != want.Slot:
		return ReasonSlot
	case c.Profile != want.Profile:
		return ReasonProfile
	case c.Target != want.Target:
		return ReasonTarget
	case !o.cfg.Policy(c.Slot, c.Profile, c.Target):
		return ReasonPolicy
	}
	return 0
}

// checkTime asks in the Edge's time. The JWT library would accept a lease without times, and one that expires now.
func (o *Opener) checkTime(c *Claims, _ *Expectation) Reason {
	now, known := o.cfg.Clock.Now()
	switch {
	case !known:
		return ReasonClockUnknown
	case !c.Expires.After(c.IssuedAt), !c.Expires.After(c.NotBefore), c.Expires.Sub(c.IssuedAt) > MaxLife:
		return ReasonLifetime
	case c.IssuedAt.After(now.Add(Leeway)), c.NotBefore.After(now.Add(Leeway)):
		return ReasonNotYetValid
	case !now.Before(c.Expires):
		return ReasonExpired
	}
	return 0
}

// enlist uses the lease up, and then looks whether it is withdrawn. From here on a revocation finds it.
func (o *Opener) enlist(c *Claims, credential Secret) (*Opened, Reason) {
	if reason := o.replay.insert(leaseKey(c.ID), c.Expires); reason != 0 {
		return nil, reason
	}
	opened := &Opened{Claims: *c, credential: credential, opener: o, revoked: make(chan struct{})}
	local := time.Now()
	edge, _ := o.cfg.Clock.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.live == nil:
		return nil, ReasonClosed
	case o.stones.match(c, local, edge):
		return nil, ReasonRevoked
	}
	o.live[opened] = struct{}{}
	return opened, 0
}

// Revoke withdraws leases: those that are opened now lose their credential and have Revoked closed, those that come later
// are refused. It returns how many were open. When it has returned, no lease that matches will be used: then the Edge may
// be told. A Revocation that is not valid is an error and withdraws nothing.
func (o *Opener) Revoke(r Revocation) (open int, err error) {
	if err := r.Validate(); err != nil {
		return 0, err
	}
	local := time.Now()
	edge, _ := o.cfg.Clock.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stones.add(r, local, edge)
	for opened := range o.live {
		if r.Matches(&opened.Claims) {
			o.endLocked(opened, true)
			open++
		}
	}
	return open, nil
}

// Close ends the generation: the recipient key is dropped, every open lease is revoked, and nothing opens any more.
func (o *Opener) Close() {
	o.cfg.Recipient.Drop()
	o.mu.Lock()
	defer o.mu.Unlock()
	for opened := range o.live {
		o.endLocked(opened, true)
	}
	o.live = nil
}

// endLocked takes the credential from an open lease; once.
func (o *Opener) endLocked(opened *Opened, revoked bool) {
	if _, live := o.live[opened]; !live {
		return
	}
	delete(o.live, opened)
	opened.credential.Wipe()
	if revoked {
		close(opened.revoked)
	}
}

// Opened is a lease that was opened: good for one provider call, by one goroutine; Close and Revoked are for any.
type Opened struct {
	Claims
	credential Secret
	opener     *Opener
	revoked    chan struct{} // closed by the Opener, under its mutex
}

// Authorize puts the credential on the request of the provider call, right before it is sent. It asks again what may have
// changed since the lease was opened: revocation, the least revision, the time. The error is a *RejectedError; the
// request must not be sent then.
func (o *Opened) Authorize(request *http.Request) error {
	if reason := o.authorize(request.Header); reason != 0 {
		return o.opener.reject(reason)
	}
	return nil
}

func (o *Opened) authorize(header http.Header) Reason {
	now, _ := o.opener.cfg.Clock.Now()
	switch {
	case o.Revision < o.opener.cfg.MinimumRevision(o.Slot):
		return ReasonRevision
	case !now.Before(o.Expires):
		return ReasonExpired
	}
	o.opener.mu.Lock()
	defer o.opener.mu.Unlock()
	select {
	case <-o.revoked:
		return ReasonRevoked
	default:
	}
	if _, live := o.opener.live[o]; !live {
		return ReasonClosed
	}
	value := o.credential.Reveal()
	defer clear(value)
	o.Header.set(header, value)
	return 0
}

// Credential returns the credential for the one other thing that it is good for: finding it in the provider's answer. It
// is empty after Close or a revocation.
func (o *Opened) Credential() Secret { return o.credential }

// Revoked is closed when the lease is withdrawn or its generation ends: the provider call must be cancelled. Close does
// not close it.
func (o *Opened) Revoked() <-chan struct{} { return o.revoked }

// Close gives the lease up and wipes the credential. It may be called more than once.
func (o *Opened) Close() {
	o.opener.mu.Lock()
	defer o.opener.mu.Unlock()
	o.opener.endLocked(o, false)
}
