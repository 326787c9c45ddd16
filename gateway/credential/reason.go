package credential

import "iop/state"

// Reason is why a run got no lease, or its Node did not take it: a closed set that only grows, fit for a metric's label.
// A client learns none of it. The zero value is invalid.
type Reason uint8

// The reasons.
const (
	ReasonOwnIdentity      Reason = iota + 1 // the Edge has no valid certificate or bundle itself
	ReasonPeerIdentity                       // the Node's certificate is trusted no longer
	ReasonNodeDenied                         // the Node or its certificate is on the deny-list
	ReasonNodeNotAllowed                     // the Node is not on the allow-list
	ReasonNotPermitted                       // the allow-list gives the Node not this slot with this profile
	ReasonKeyRevoked                         // the API key of the run was revoked or has expired
	ReasonUnknownSlot                        // there is no such slot
	ReasonSlotDisabled                       // it is disabled
	ReasonSlotRevoked                        // its value was revoked
	ReasonNoMasterKey                        // the Edge was given no master key
	ReasonUnknownMasterKey                   // the slot is sealed under a key that the Edge does not know
	ReasonSlotDamaged                        // the sealed value does not open
	ReasonProfile                            // the route names another profile than the slot has
	ReasonTarget                             // the route's address is not one of the profile's, or it names none of several
	ReasonWithdrawn                          // withdrawn while it was issued
	ReasonAudit                              // the audit has no room
	ReasonState                              // the state could not be asked
	ReasonSeal                               // it could not be sealed: a name or a value that can't be in a lease
	ReasonRejectedByNode                     // the Node refused what it got; its own log and metrics say why

	reasonCount = iota + 1
)

var reasonNames = [reasonCount]string{
	"", "own_identity", "peer_identity", "node_denied", "node_not_allowed", "not_permitted", "key_revoked", "unknown_slot",
	"slot_disabled", "slot_revoked", "no_master_key", "unknown_master_key", "slot_damaged", "profile", "target",
	"withdrawn", "audit", "state", "seal", "rejected_by_node",
}

// String returns the reason as it stands in logs, metrics and the audit.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return "unknown"
}

// Reasons returns all of them, for a metric that starts at 0.
func Reasons() []Reason {
	all := make([]Reason, 0, reasonCount-1)
	for r := ReasonOwnIdentity; r < reasonCount; r++ {
		all = append(all, r)
	}
	return all
}

// RefusedError says that a run gets no lease. Its text is for operators.
type RefusedError struct{ Reason Reason }

func (e *RefusedError) Error() string { return "no credential was leased: " + e.Reason.String() }

func refuse(r Reason) error { return &RefusedError{r} }

// slotReasons are the state's.
var slotReasons = map[state.CredentialReason]Reason{
	state.CredentialUnknownSlot:      ReasonUnknownSlot,
	state.CredentialDisabled:         ReasonSlotDisabled,
	state.CredentialRevoked:          ReasonSlotRevoked,
	state.CredentialNoMasterKey:      ReasonNoMasterKey,
	state.CredentialUnknownMasterKey: ReasonUnknownMasterKey,
	state.CredentialDamaged:          ReasonSlotDamaged,
}
