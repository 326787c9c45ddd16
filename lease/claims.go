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

// marshal returns the claims and the credential as the JSON of a lease. The credential never is a string of ours here,
// so that the caller can clear what it got.
func (c *Claims) marshal(credential []byte) ([]byte, error) {
	members := map[string]any{
		"v": formatVersion, "iss": c.Issuer, "aud": c.Audience, "sub": c.Principal, "jti": c.ID,
		"iat": c.IssuedAt.Unix(), "nbf": c.NotBefore.Unix(), "exp": c.Expires.Unix(),
		"gen": c.Generation, "rkt": c.Recipient, "run": c.Run, "att": c.Attempt, "rev": c.Revision,
		"route": c.Route, "slot": c.Slot, "profile": c.Profile, "tgt": c.Target, "rdg": c.Digest.String(),
		"hdr": c.Header.String(),
	}
	head, err := json.Marshal(members)
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
	texts := map[string]string{}
	for _, name := range []string{"iss", "aud", "sub", "jti", "rkt", "run", "route", "slot", "profile", "tgt", "hdr"} {
		var value string
		if members[name][0] != '"' || json.Unmarshal(members[name], &value) != nil {
			return false
		}
		texts[name] = value
	}
	numbers := map[string]uint64{}
	for _, name := range []string{"iat", "nbf", "exp", "gen", "rev", "att"} {
		// As digits alone: no sign, no fraction, no exponent, no string.
		n, err := strconv.ParseUint(string(members[name]), 10, 64)
		if err != nil || n > maxNumber {
			return false
		}
		numbers[name] = n
	}
	if numbers["att"] > 1<<32-1 || !decodeFixed(c.Digest[:], members["rdg"]) {
		return false
	}
	var err error
	if c.Header, err = ParseHeader(texts["hdr"]); err != nil {
		return false
	}
	c.ID = execution.LeaseID(texts["jti"])
	c.Issuer, c.Audience, c.Recipient = Issuer(texts["iss"]), Audience(texts["aud"]), Thumbprint(texts["rkt"])
	c.Generation, c.Revision = execution.Generation(numbers["gen"]), execution.Revision(numbers["rev"])
	c.IssuedAt, c.NotBefore, c.Expires = seconds(numbers["iat"]), seconds(numbers["nbf"]), seconds(numbers["exp"])
	c.Run, c.Attempt, c.Principal = execution.RunID(texts["run"]), uint32(numbers["att"]), execution.PrincipalID(texts["sub"])
	c.Route, c.Slot, c.Profile = execution.RouteName(texts["route"]), execution.SlotName(texts["slot"]), execution.ProfileName(texts["profile"])
	c.Target = Target(texts["tgt"])
	return true
}

func seconds(unix uint64) time.Time { return time.Unix(int64(unix), 0).UTC() }
