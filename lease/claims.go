package lease

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"
	"unicode"

	"github.com/go-jose/go-jose/v4/json"

	"iop/execution"
)

// Issuer is the identity of the Edge that seals a lease: its SPIFFE ID. The zero value is invalid.
type Issuer string

// Audience is the identity of the one Node that may open a lease: its SPIFFE ID. The zero value is invalid.
type Audience string

// Thumbprint is the RFC 7638 thumbprint of a public key: SHA-256, 43 characters of base64url. The zero value is invalid.
type Thumbprint string

// Header says which header carries a credential to a provider. It is a closed set: no name travels, so that a lease can't
// set any other header. The zero value is invalid.
type Header uint8

// The headers.
const (
	HeaderBearer  Header = iota + 1 // Authorization: Bearer CREDENTIAL
	HeaderXAPIKey                   // X-Api-Key: CREDENTIAL
	HeaderAPIKey                    // Api-Key: CREDENTIAL
)

var headerNames = [...]string{"", "authorization-bearer", "x-api-key", "api-key"}

// String returns the header's name as it stands in a lease and in a profile.
func (h Header) String() string {
	if int(h) < len(headerNames) {
		return headerNames[h]
	}
	return fmt.Sprintf("unknown_%d", uint8(h))
}

// ParseHeader is the inverse of String.
func ParseHeader(name string) (Header, error) {
	if i := slices.Index(headerNames[:], name); i > 0 {
		return Header(i), nil
	}
	return 0, errors.New("want authorization-bearer, x-api-key or api-key")
}

// set puts a credential on a request, in the place of whatever is there.
func (h Header) set(to http.Header, credential []byte) {
	switch h {
	case HeaderBearer:
		to["Authorization"] = []string{"Bearer " + string(credential)}
	case HeaderXAPIKey:
		to["X-Api-Key"] = []string{string(credential)}
	case HeaderAPIKey:
		to["Api-Key"] = []string{string(credential)}
	}
}

// Claims are what a lease is bound to: everything in it but the credential. They are fit for a log.
type Claims struct {
	ID         execution.LeaseID // jti
	Issuer     Issuer            // iss
	Audience   Audience          // aud
	Generation execution.Generation
	Recipient  Thumbprint // rkt, the key that it is sealed to
	// IssuedAt, NotBefore and Expires are whole seconds of the Edge's clock. At Expires the lease has expired.
	IssuedAt, NotBefore, Expires time.Time

	Run       execution.RunID
	Attempt   uint32                // att; a retry is a lease of its own
	Principal execution.PrincipalID // sub
	Route     execution.RouteName
	Slot      execution.SlotName
	Profile   execution.ProfileName
	Revision  execution.Revision // rev, of the slot
	Target    Target             // tgt, the one place where the credential may go
	Digest    Digest             // rdg, the one request that it may go with
	Header    Header             // hdr
}

// Limits of claims in bytes, and why: an identity is a SPIFFE ID, whose parts are names; a principal is an owner's name, of
// 128 characters in any script, a route is a model's. Numbers stay exact in every JSON reader.
const (
	maxIdentityLength = 512
	maxTextLength     = 512
	maxNumber         = 1 << 53
)

const formatVersion = 1

// claimNames are all claims. Each must be there, and nothing else.
var claimNames = []string{
	"v", "iss", "aud", "sub", "jti", "iat", "nbf", "exp", "gen", "rkt", "run", "att", "rev", "route", "slot", "profile",
	"tgt", "rdg", "hdr", "cred",
}

// check says which claim can't be in a lease, whatever it is compared with; times are checked elsewhere.
func (c *Claims) check() error {
	var id [16]byte
	switch {
	case !decodeFixed(id[:], quote(string(c.ID))):
		return errors.New("jti")
	case !visible(string(c.Issuer), maxIdentityLength):
		return errors.New("iss")
	case !visible(string(c.Audience), maxIdentityLength):
		return errors.New("aud")
	case c.Generation == 0 || c.Generation > maxNumber:
		return errors.New("gen")
	case !c.Recipient.valid():
		return errors.New("rkt")
	case !visible(string(c.Run), maxTextLength):
		return errors.New("run")
	case !text(string(c.Principal)):
		return errors.New("sub")
	case !text(string(c.Route)):
		return errors.New("route")
	case c.Slot.Validate() != nil:
		return errors.New("slot")
	case c.Profile.Validate() != nil:
		return errors.New("profile")
	case c.Revision == 0 || c.Revision > maxNumber:
		return errors.New("rev")
	case c.Target.Validate() != nil:
		return errors.New("tgt")
	case c.Digest == Digest{}:
		return errors.New("rdg")
	case c.Header == 0 || int(c.Header) >= len(headerNames):
		return errors.New("hdr")
	}
	return nil
}

func (t Thumbprint) valid() bool {
	var sum [32]byte
	return decodeFixed(sum[:], quote(string(t)))
}

func quote(s string) json.RawMessage { return json.RawMessage(`"` + s + `"`) }

// visible reports whether s is 1 to limit bytes of visible ASCII.
func visible(s string, limit int) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f {
			return false
		}
	}
	return s != "" && len(s) <= limit
}

// text reports whether s is 1 to maxTextLength bytes without control characters and broken UTF-8.
func text(s string) bool {
	for _, r := range s {
		if r == unicode.ReplacementChar || unicode.IsControl(r) {
			return false
		}
	}
	return s != "" && len(s) <= maxTextLength
}

// newLeaseID returns 128 random bits.
func newLeaseID() execution.LeaseID {
	var id [16]byte
	rand.Read(id[:]) // never fails
	return execution.LeaseID(encoding.EncodeToString(id[:]))
}

// leaseKey returns the bits of an id that check has seen.
func leaseKey(id execution.LeaseID) (key [16]byte) {
	decodeFixed(key[:], quote(string(id)))
	return key
}

// claimsJSON is what stands in a lease beside the credential.
type claimsJSON struct {
	Version    int                   `json:"v"`
	Issuer     Issuer                `json:"iss"`
	Audience   Audience              `json:"aud"`
	Subject    execution.PrincipalID `json:"sub"`
	ID         execution.LeaseID     `json:"jti"`
	IssuedAt   int64                 `json:"iat"`
	NotBefore  int64                 `json:"nbf"`
	Expires    int64                 `json:"exp"`
	Generation execution.Generation  `json:"gen"`
	Recipient  Thumbprint            `json:"rkt"`
	Run        execution.RunID       `json:"run"`
	Attempt    uint32                `json:"att"`
	Revision   execution.Revision    `json:"rev"`
	Route      execution.RouteName   `json:"route"`
	Slot       execution.SlotName    `json:"slot"`
	Profile    execution.ProfileName `json:"profile"`
	Target     Target                `json:"tgt"`
	Digest     string                `json:"rdg"`
	Header     string                `json:"hdr"`
}

// marshal returns the claims and the credential as the JSON of a lease. The credential never is a string of ours here,
// so that the caller can clear what it got.
func (c *Claims) marshal(credential []byte) ([]byte, error) {
	head, err := json.Marshal(&claimsJSON{
		Version: formatVersion, Issuer: c.Issuer, Audience: c.Audience, Subject: c.Principal, ID: c.ID,
		IssuedAt: c.IssuedAt.Unix(), NotBefore: c.NotBefore.Unix(), Expires: c.Expires.Unix(),
		Generation: c.Generation, Recipient: c.Recipient, Run: c.Run, Attempt: c.Attempt, Revision: c.Revision,
		Route: c.Route, Slot: c.Slot, Profile: c.Profile, Target: c.Target, Digest: c.Digest.String(), Header: c.Header.String(),
	})
	if err != nil {
		return nil, err
	}
	const name = `,"cred":"`
	out := make([]byte, 0, len(head)+len(name)+encoding.EncodedLen(len(credential))+2)
	out = append(append(out, head[:len(head)-1]...), name...)
	return append(encoding.AppendEncode(out, credential), `"}`...), nil
}

// parseClaims reads the payload of a lease. The Secret is to be wiped by the caller if the lease comes to nothing.
func parseClaims(payload []byte) (*Claims, Secret, Reason) {
	members, ok := parseObject(payload)
	defer clear(members["cred"])
	if !ok {
		return nil, Secret{}, ReasonClaims
	}
	if v, ok := members["v"]; ok && string(v) != strconv.Itoa(formatVersion) {
		return nil, Secret{}, ReasonVersion
	}
	if !hasExactly(members, nil, claimNames...) {
		return nil, Secret{}, ReasonClaims
	}
	c := &Claims{}
	if !c.read(members) || c.check() != nil {
		return nil, Secret{}, ReasonClaims
	}
	encoded, ok := plainString(members["cred"])
	if !ok || len(encoded) > encoding.EncodedLen(MaxCredentialLength) {
		return nil, Secret{}, ReasonClaims
	}
	value, err := encoding.AppendDecode(nil, encoded)
	if err != nil {
		return nil, Secret{}, ReasonClaims
	}
	secret, err := NewSecret(value)
	if err != nil {
		clear(value)
		return nil, Secret{}, ReasonClaims
	}
	return c, secret, 0
}

// read takes the claims over by their types alone.
func (c *Claims) read(members map[string]json.RawMessage) bool {
	var issued, notBefore, expires, attempt uint64
	var header string
	ok := readText(members, "iss", &c.Issuer) && readText(members, "aud", &c.Audience) && readText(members, "sub", &c.Principal) &&
		readText(members, "jti", &c.ID) && readText(members, "rkt", &c.Recipient) && readText(members, "run", &c.Run) &&
		readText(members, "route", &c.Route) && readText(members, "slot", &c.Slot) && readText(members, "profile", &c.Profile) &&
		readText(members, "tgt", &c.Target) && readText(members, "hdr", &header) &&
		readNumber(members, "iat", &issued) && readNumber(members, "nbf", &notBefore) && readNumber(members, "exp", &expires) &&
		readNumber(members, "gen", &c.Generation) && readNumber(members, "rev", &c.Revision) && readNumber(members, "att", &attempt)
	if !ok || attempt > 1<<32-1 || !decodeFixed(c.Digest[:], members["rdg"]) {
		return false
	}
	var err error
	if c.Header, err = ParseHeader(header); err != nil {
		return false
	}
	c.Attempt = uint32(attempt)
	c.IssuedAt, c.NotBefore, c.Expires = seconds(issued), seconds(notBefore), seconds(expires)
	return true
}

// readText takes over a string. parseObject has seen that all of the object is JSON in UTF-8, so that a string without
// escapes is what stands between its quotes.
func readText[T ~string](members map[string]json.RawMessage, name string, to *T) bool {
	raw := members[name]
	if plain, ok := plainString(raw); ok {
		*to = T(plain)
		return true
	}
	var value string
	ok := raw[0] == '"' && json.Unmarshal(raw, &value) == nil
	*to = T(value)
	return ok
}

// readNumber takes over a number of digits alone: no sign, no fraction, no exponent, no string.
func readNumber[T ~uint64](members map[string]json.RawMessage, name string, to *T) bool {
	n, err := strconv.ParseUint(string(members[name]), 10, 64)
	*to = T(n)
	return err == nil && n <= maxNumber
}

func seconds(unix uint64) time.Time { return time.Unix(int64(unix), 0).UTC() }
