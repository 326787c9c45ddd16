package execution

import "fmt"

// LeaseID names one lease of a credential: 22 characters of base64url, from 128 random bits. The zero value is invalid.
type LeaseID string

// PrincipalID says whom a request counts for: the owner of its API key, or the key's public id; never the key. The zero
// value is invalid.
type PrincipalID string

// RouteName is the model name under which clients reach a route. The zero value is invalid.
type RouteName string

// SlotName names the place where the Edge keeps one credential of a provider. The zero value is invalid.
type SlotName string

// ProfileName names how a credential is used: which header carries it and where it may go. The zero value is invalid.
type ProfileName string

// Revision counts the values that a slot has had; each change raises it. The zero value is invalid.
type Revision uint64

// maxNameLength bounds the names that stand in every lease, in bytes.
const maxNameLength = 64

// Validate reports whether the name may be used for a slot: 1 to 64 bytes of ASCII letters, digits, '.', '_', ':', '-',
// and neither "." nor "..".
func (s SlotName) Validate() error { return validateName("slot", string(s), maxNameLength) }

// Validate reports whether the name may be used for a profile: as for a slot.
func (p ProfileName) Validate() error { return validateName("profile", string(p), maxNameLength) }

func validateName(kind, name string, most int) error {
	if name == "" || len(name) > most {
		return fmt.Errorf("a %s name must be 1 to %d characters long", kind, most)
	}
	// Names are segments of the admin API's paths, where these two mean a directory: clients and proxies resolve them,
	// so a request about such a name reaches another resource.
	if name == "." || name == ".." {
		return fmt.Errorf("a %s name must not be %q", kind, name)
	}
	if !plain(name) {
		return fmt.Errorf("a %s name must consist of letters, digits, '.', '_', ':' and '-'", kind)
	}
	return nil
}

// plain reports whether a name needs no escaping anywhere.
func plain(name string) bool {
	for i := range len(name) {
		c := name[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == ':', c == '-':
		default:
			return false
		}
	}
	return true
}
