package identity

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// Longest names. They keep a SPIFFE ID far below the 2048 bytes that its standard allows, and a Node's name as long as
// execution.NodeID may be.
const (
	MaxTrustDomainLength = 255
	MaxNameLength        = 128
)

const scheme = "spiffe://"

// TrustDomain is the realm of one set of authorities, for example "iop.example.org": lower-case labels with dots between
// them. It need not exist in DNS. The zero value is invalid.
type TrustDomain string

// Validate reports whether the name is one: 1 to MaxTrustDomainLength bytes, labels of 1 to 63 letters a-z, digits, '-'
// and '_' that start and end with a letter or digit, and no IP address (name constraints can't hold one).
func (d TrustDomain) Validate() error {
	if d == "" || len(d) > MaxTrustDomainLength {
		return fmt.Errorf("a trust domain must have 1 to %d characters", MaxTrustDomainLength)
	}
	for label := range strings.SplitSeq(string(d), ".") {
		if !validLabel(label) {
			return errors.New("a trust domain must be labels of a-z, 0-9, '-' and '_' with dots between them")
		}
	}
	if _, err := netip.ParseAddr(string(d)); err == nil {
		return errors.New("a trust domain can't be an IP address")
	}
	return nil
}

func validLabel(s string) bool {
	if s == "" || len(s) > 63 || !lowerOrDigit(s[0]) || !lowerOrDigit(s[len(s)-1]) {
		return false
	}
	for i := range len(s) {
		if !lowerOrDigit(s[i]) && s[i] != '-' && s[i] != '_' {
			return false
		}
	}
	return true
}

func lowerOrDigit(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }

// Role is what somebody is in the house. The zero value is invalid.
type Role string

// The roles. Each is the first segment of an ID's path.
const (
	RoleEdge Role = "edge"
	RoleNode Role = "node"
)

// Validate reports whether the role is one of the two.
func (r Role) Validate() error {
	if r != RoleEdge && r != RoleNode {
		return fmt.Errorf("a role must be %q or %q", RoleEdge, RoleNode)
	}
	return nil
}

// ID is the identity of an Edge or a Node: spiffe://TRUST-DOMAIN/ROLE/NAME, nothing more and nothing less. There is one
// spelling of each, so IDs are compared with ==. The zero value is invalid; make one with NewID or ParseID.
type ID string

// NewID puts an ID together; the error is about the first part at fault. The name is 1 to MaxNameLength ASCII letters, digits, '.', '_' and '-', and not "." or "..".
func NewID(domain TrustDomain, role Role, name string) (ID, error) {
	if err := cmp.Or(domain.Validate(), role.Validate(), ValidateName(name)); err != nil {
		return "", err
	}
	return ID(scheme + string(domain) + "/" + string(role) + "/" + name), nil
}

// ParseID takes an ID apart and checks each part. It accepts the one spelling only: no capitals in scheme or trust
// domain, no port, no escapes, no query, no slash at the end.
func ParseID(s string) (ID, error) {
	domain, role, name, ok := split(s)
	if !ok {
		return "", errors.New("an identity must look like spiffe://trust-domain/edge/name or spiffe://trust-domain/node/name")
	}
	return NewID(domain, role, name)
}

func split(s string) (domain TrustDomain, role Role, name string, ok bool) {
	rest, hasScheme := strings.CutPrefix(s, scheme)
	d, path, hasPath := strings.Cut(rest, "/")
	r, n, hasName := strings.Cut(path, "/")
	return TrustDomain(d), Role(r), n, hasScheme && hasPath && hasName
}

// ValidateName reports whether an Edge or a Node of that name can have an ID, as NewID does. A Node's name in token mode may
// hold ':', too; a SPIFFE ID can't.
func ValidateName(name string) error {
	if name == "" || len(name) > MaxNameLength {
		return fmt.Errorf("a name must have 1 to %d characters", MaxNameLength)
	}
	if name == "." || name == ".." {
		return errors.New("a name can't consist of dots only")
	}
	for i := range len(name) {
		c := name[i]
		switch {
		case c == ':':
			return errors.New("a name in a certificate can't hold ':'; such a Node needs another name in managed mode")
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return errors.New("a name may hold letters, digits, '.', '_' and '-' only")
		}
	}
	return nil
}

// TrustDomain returns the first part; empty for an invalid ID.
func (id ID) TrustDomain() TrustDomain {
	domain, _, _, _ := split(string(id))
	return domain
}

// Role returns the second part; empty for an invalid ID.
func (id ID) Role() Role {
	_, role, _, _ := split(string(id))
	return role
}

// Name returns the last part: a Node's name, as it must stand in its hello. Empty for an invalid ID.
func (id ID) Name() string {
	_, _, name, _ := split(string(id))
	return name
}

// Validate reports whether ParseID would accept the ID.
func (id ID) Validate() error {
	_, err := ParseID(string(id))
	return err
}

func (id ID) String() string { return string(id) }

// UnmarshalText is ParseID, for configuration.
func (id *ID) UnmarshalText(text []byte) error {
	parsed, err := ParseID(string(text))
	if err == nil {
		*id = parsed
	}
	return err
}
