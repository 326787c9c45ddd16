package state

import (
	"encoding/base64"
	"fmt"
	"strconv"

	"iop/execution"
)

// maxCredential bounds a credential in bytes, as a lease does. Real ones have some 200; some tokens more than a thousand.
const maxCredential = 2048

// seal is a credential as a row has it.
type seal struct {
	key      MasterKeyID
	text     string // base64 of nonce, ciphertext and tag
	revision execution.Revision
}

// additionalData binds a seal to its place: a row that is moved to another slot, profile or revision does not open. No
// name holds a NUL, so no two places give the same bytes.
func additionalData(profile execution.ProfileName, slot execution.SlotName, revision execution.Revision) []byte {
	data := []byte("iop credential 1\x00")
	data = append(append(data, profile...), 0)
	data = append(append(data, slot...), 0)
	return strconv.AppendUint(data, uint64(revision), 10)
}

// sealValue seals under the key, for the place that the row has and the given revision.
func (k MasterKey) sealValue(slot *Slot, revision execution.Revision, value []byte) seal {
	sealed := k.aead().Seal(nil, nil, value, additionalData(slot.Profile, slot.Name, revision))
	return seal{key: k.id, text: base64.StdEncoding.EncodeToString(sealed), revision: revision}
}

// openValue opens the row's seal as one of the given revision. The caller clears the value. Any fault gives a
// *CredentialError that says no more than which kind it is: what the cipher has to say helps only who tries things out.
func (r *keyring) openValue(row *slotRow, revision execution.Revision) ([]byte, error) {
	if r == nil {
		return nil, row.unusable(CredentialNoMasterKey)
	}
	key, known := r.byID[row.seal.key]
	if !known {
		return nil, row.unusable(CredentialUnknownMasterKey)
	}
	sealed, err := base64.StdEncoding.Strict().DecodeString(row.seal.text)
	if err != nil {
		return nil, row.unusable(CredentialDamaged)
	}
	value, err := key.aead().Open(nil, nil, sealed, additionalData(row.Profile, row.Name, revision))
	if err != nil || checkCredential(value) != nil {
		clear(value)
		return nil, row.unusable(CredentialDamaged)
	}
	return value, nil
}

// checkCredential refuses what can't be a header's value as it is. The error does not show the value.
func checkCredential(value []byte) error {
	if len(value) == 0 || len(value) > maxCredential {
		return fault("value", "must have 1 to %d bytes", maxCredential)
	}
	for _, c := range value {
		if c <= ' ' || c > '~' {
			return fault("value", "must be visible ASCII, without spaces and line breaks")
		}
	}
	return nil
}

// CredentialReason is why a slot gives no credential: a closed set that only grows, fit for a metric's label. The zero
// value is invalid.
type CredentialReason uint8

// The reasons.
const (
	CredentialUnknownSlot      CredentialReason = iota + 1 // no such slot
	CredentialDisabled                                     // until EnableSlot
	CredentialRevoked                                      // until the slot has another value
	CredentialNoMasterKey                                  // the Store was told none
	CredentialUnknownMasterKey                             // it is sealed under a key that the Store was not told
	CredentialDamaged                                      // it does not open: the row was altered, moved or damaged
)

// String returns the reason as it stands in logs and metrics.
func (r CredentialReason) String() string {
	names := [...]string{"", "unknown_slot", "disabled", "revoked", "no_master_key", "unknown_master_key", "damaged"}
	if int(r) >= len(names) {
		return fmt.Sprintf("unknown_%d", r)
	}
	return names[r]
}

// CredentialError says that a slot gives no credential, and why. It is for operators: a client learns none of it.
type CredentialError struct {
	Slot   execution.SlotName
	Reason CredentialReason
}

// Error names the slot and the reason.
func (e *CredentialError) Error() string {
	return fmt.Sprintf("slot %q gives no credential: %v", e.Slot, e.Reason)
}

// Is makes that of an unknown slot an ErrNotFound.
func (e *CredentialError) Is(target error) bool {
	return target == ErrNotFound && e.Reason == CredentialUnknownSlot
}

func (r *slotRow) unusable(reason CredentialReason) error {
	return &CredentialError{Slot: r.Name, Reason: reason}
}
