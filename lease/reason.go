package lease

import "fmt"

// Reason says why a lease was refused. The set is closed and append-only: its names stand in logs and metrics. They
// are for the operator; what a client sees is one opaque error. The zero value is no reason.
type Reason uint8

// The reasons, in the order in which Open looks for them.
const (
	ReasonMalformed       Reason = iota + 1 // not five segments of base64url with an empty second one
	ReasonTooLarge                          // longer than MaxTokenLength
	ReasonClosed                            // the generation has ended, its key is gone
	ReasonHeader                            // the protected header is not exactly the one of a lease
	ReasonEphemeralKey                      // epk is not a point of P-256, or holds more than a public key
	ReasonRecipientKey                      // sealed to another key than this generation's
	ReasonDecryption                        // authenticated decryption failed
	ReasonInnerMalformed                    // what was sealed is not a compact JWS
	ReasonInnerHeader                       // the inner header is not exactly the one of a lease
	ReasonSigningKey                        // signed under a key id that the Edge does not announce
	ReasonSignature                         // the signature does not verify
	ReasonClaims                            // a claim is missing, unknown, doubled or malformed
	ReasonVersion                           // another version of the format
	ReasonIssuer                            // not from the Edge at the other end of this tunnel
	ReasonAudience                          // for another Node
	ReasonRecipient                         // signed for another recipient key: somebody sealed it again
	ReasonGeneration                        // for another session of this Node
	ReasonRun                               // for another run
	ReasonAttempt                           // for another attempt of the run
	ReasonRevision                          // the slot's value has been replaced
	ReasonPrincipal                         // for another principal than the run's
	ReasonRoute                             // for another route
	ReasonSlot                              // for another slot
	ReasonProfile                           // for another profile
	ReasonTarget                            // for another provider address
	ReasonPolicy                            // the Node's own policy does not know this use
	ReasonClockUnknown                      // the Edge's time was never learnt
	ReasonLifetime                          // the times contradict each other, or span more than MaxLife
	ReasonNotYetValid                       // iat or nbf lie in the future
	ReasonExpired                           // now is exp or later
	ReasonRequestDigest                     // the request is not the one that the lease was issued for
	ReasonReplay                            // opened before
	ReasonReplayCacheFull                   // no room to remember that it was opened
	ReasonForgotten                         // too old to know whether it was opened before: the Edge's clock went back
	ReasonRevoked                           // withdrawn by the Edge
	reasonEnd
)

var reasonNames = [...]string{
	"", "malformed", "too_large", "closed", "header", "ephemeral_key", "recipient_key", "decryption",
	"inner_malformed", "inner_header", "signing_key", "signature", "claims", "version", "issuer", "audience",
	"recipient", "generation", "run", "attempt", "revision", "principal", "route", "slot", "profile", "target",
	"policy", "clock_unknown", "lifetime", "not_yet_valid", "expired", "request_digest", "replay",
	"replay_cache_full", "forgotten", "revoked",
}

// String returns the reason's name as it stands in logs and metrics; empty for none.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return fmt.Sprintf("unknown_%d", uint8(r))
}

// Reasons returns every reason, for a metric that shows each from the start.
func Reasons() []Reason {
	all := make([]Reason, 0, reasonEnd-1)
	for r := Reason(1); r < reasonEnd; r++ {
		all = append(all, r)
	}
	return all
}

// RejectedError is the one error of opening and using a lease. Its text is the same for every Reason: who probes with
// forged leases learns nothing from it. The Reason is for the local log and metrics.
type RejectedError struct{ Reason Reason }

func (*RejectedError) Error() string { return "lease rejected" }

func rejected(r Reason) error { return &RejectedError{Reason: r} }
