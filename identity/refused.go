package identity

import "fmt"

// Reason is why a peer was refused, a closed list to which values are only added: metrics have it as a label.
type Reason uint8

// The reasons. The zero value is invalid.
const (
	NoIdentity       Reason = iota + 1 // this side has no valid certificate or no bundle itself
	BadTLS                             // a version below 1.3, or a resumed session
	NoCertificate                      // the peer showed none, or too many
	UnknownAuthority                   // the chain does not end in the bundle, or breaks a rule on the way
	Expired                            // something in the chain has ended, or not begun
	WrongUsage                         // not for this end of a connection, or not a leaf
	WeakKey                            // a key that is too short or of an unknown kind
	WrongName                          // not exactly one URI name of the right form
	WrongTrustDomain                   // an ID of somewhere else
	WrongRole                          // an Edge where a Node must be, or the other way round
	WrongPeer                          // a valid Edge, but not the one that was asked for
	NotAllowed                         // the allow function said no
)

var reasonNames = [...]string{
	NoIdentity: "no_identity", BadTLS: "bad_tls", NoCertificate: "no_certificate", UnknownAuthority: "unknown_authority",
	Expired: "expired", WrongUsage: "wrong_usage", WeakKey: "weak_key", WrongName: "wrong_name",
	WrongTrustDomain: "wrong_trust_domain", WrongRole: "wrong_role", WrongPeer: "wrong_peer", NotAllowed: "not_allowed",
}

// Reasons returns all of them, for a metric that starts at 0.
func Reasons() (all []Reason) {
	for r := NoIdentity; int(r) < len(reasonNames); r++ {
		all = append(all, r)
	}
	return all
}

func (r Reason) String() string {
	if r == 0 || int(r) >= len(reasonNames) {
		return "invalid"
	}
	return reasonNames[r]
}

// RefusedError is why a peer is not trusted, or not any more. It is for this side's log: names in it were certified by an
// authority of the bundle or are left out.
type RefusedError struct {
	Reason Reason
	ID     ID    // the peer's, or empty: nothing certified it
	Err    error // never nil
}

func (e *RefusedError) Error() string {
	if e.ID == "" {
		return fmt.Sprintf("peer refused (%s): %v", e.Reason, e.Err)
	}
	return fmt.Sprintf("peer %s refused (%s): %v", e.ID, e.Reason, e.Err)
}

func (e *RefusedError) Unwrap() error { return e.Err }

// PeerReason is the reason by its name, for packages that must not import this one.
func (e *RefusedError) PeerReason() string { return e.Reason.String() }

func refuse(reason Reason, format string, args ...any) *RefusedError {
	return &RefusedError{Reason: reason, Err: fmt.Errorf(format, args...)}
}
