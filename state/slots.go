package state

import (
	"context"
	"crypto/subtle"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"iop/execution"
)

// Slot is the place where one credential of a provider is kept, without the credential, which nothing but OpenCredential
// gives out.
type Slot struct {
	Name     execution.SlotName
	Profile  execution.ProfileName
	Revision execution.Revision // rises with each change of the slot and of its profile

	Enabled               bool // an operator lets it be used
	Revoked               bool // its value must not be used again
	NeedsProviderRotation bool // its value may be known to somebody, and only the provider can make it useless

	MasterKey MasterKeyID // that the value is sealed under
	Updated   time.Time
	By        string // who changed it last
}

// Usable reports whether the slot gives a credential, if the master key is there.
func (s *Slot) Usable() bool { return s.Enabled && !s.Revoked }

// SlotSpec is what SetSlot sets.
type SlotSpec struct {
	Slot    execution.SlotName
	Profile execution.ProfileName // must exist
	Value   Secret                // 1 to 2048 bytes of visible ASCII
}

// ErrSameValue refuses, for a slot whose value was to be replaced at the provider, that very value.
var ErrSameValue = errors.New("the value is the revoked one: create another at the provider")

// slotRow is a slot as the database has it.
type slotRow struct {
	Slot
	seal seal
}

// SetSlot makes a slot, enabled, or gives an existing one a value and a profile; one that is disabled stays so, one
// that was revoked no longer is. A wrong field gives a *SpecError. It needs a master key: else a *CredentialError.
//
// As each change of a slot it raises the revision and writes an audit row, all in one transaction. No revision of a slot
// ever comes back, not after a crash and not when the slot is deleted and made again.
func (s *Store) SetSlot(ctx context.Context, spec SlotSpec, by string) (Slot, error) {
	if err := spec.Profile.Validate(); err != nil {
		return Slot{}, fmt.Errorf("set slot: %w", fault("profile", "%v", err))
	}
	return s.changeSlot(ctx, "set", spec.Slot, slotChange{
		action: AuditSlotSet, by: by, value: &spec.Value, profile: spec.Profile, create: true,
	})
}

// RotateSlot gives a slot another value. As SetSlot, but ErrNotFound if there is no such slot.
func (s *Store) RotateSlot(ctx context.Context, slot execution.SlotName, value Secret, by string) (Slot, error) {
	return s.changeSlot(ctx, "rotate", slot, slotChange{action: AuditSlotRotated, by: by, value: &value})
}

// DisableSlot stops the use of a slot until EnableSlot. It needs no master key. A slot that is disabled already stays as
// it is. ErrNotFound if there is no such slot.
func (s *Store) DisableSlot(ctx context.Context, slot execution.SlotName, by string) (Slot, error) {
	return s.changeSlot(ctx, "disable", slot, slotChange{
		action: AuditSlotDisabled, by: by,
		edit: func(row *slotRow) (bool, error) {
			changed := row.Enabled
			row.Enabled = false
			return changed, nil
		},
	})
}

// EnableSlot allows the use of a disabled slot again. It needs the slot's master key: else a *CredentialError, as for a
// slot that is revoked. A slot that is enabled already stays as it is. ErrNotFound if there is no such slot.
func (s *Store) EnableSlot(ctx context.Context, slot execution.SlotName, by string) (Slot, error) {
	return s.changeSlot(ctx, "enable", slot, slotChange{
		action: AuditSlotEnabled, by: by,
		edit: func(row *slotRow) (bool, error) {
			if row.Revoked {
				return false, row.unusable(CredentialRevoked)
			}
			changed := !row.Enabled
			row.Enabled = true
			return changed, nil
		},
	})
}

// RevokeSlot stops the use of a slot's value for good: only another value brings the slot back. needsProviderRotation
// says that the value may be known to somebody, so that the very same value is refused from then on, and that the
// operator must replace it at the provider, which is the only place where it can be made useless. It needs no master
// key. Revoking again changes nothing but may add that mark. ErrNotFound if there is no such slot.
func (s *Store) RevokeSlot(ctx context.Context, slot execution.SlotName, needsProviderRotation bool, by string) (Slot, error) {
	return s.changeSlot(ctx, "revoke", slot, slotChange{
		action: AuditSlotRevoked, by: by,
		edit: func(row *slotRow) (bool, error) {
			changed := !row.Revoked || needsProviderRotation && !row.NeedsProviderRotation
			row.Revoked = true
			row.NeedsProviderRotation = row.NeedsProviderRotation || needsProviderRotation
			return changed, nil
		},
	})
}

// DeleteSlot removes a slot and its sealed value, and returns the revision that the removal has: all leases of the slot
// have a lower one. ErrNotFound if there is no such slot.
func (s *Store) DeleteSlot(ctx context.Context, slot execution.SlotName, by string) (execution.Revision, error) {
	deleted, err := s.changeSlot(ctx, "delete", slot, slotChange{action: AuditSlotDeleted, by: by, remove: true})
	return deleted.Revision, err
}

// Slots returns all slots, by name.
func (s *Store) Slots(ctx context.Context) ([]Slot, error) {
	rows, err := queryAll(ctx, s.db.read, scanSlot, querySlots)
	if err != nil {
		return nil, fmt.Errorf("list slots: %w", err)
	}
	slots := make([]Slot, len(rows))
	for i := range rows {
		slots[i] = rows[i].Slot
	}
	return slots, nil
}

// Slot returns one slot. ErrNotFound if there is none of that name.
func (s *Store) Slot(ctx context.Context, name execution.SlotName) (Slot, error) {
	err := name.Validate()
	var row slotRow
	if err == nil {
		row, err = queryOne(ctx, s.db.read, scanSlot, querySlot, string(name))
	}
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNotFound
	}
	if err != nil {
		return Slot{}, fmt.Errorf("slot: %w", err)
	}
	return row.Slot, nil
}

// SlotRevisions returns the last revision of every slot that there ever was, of deleted ones too.
func (s *Store) SlotRevisions(ctx context.Context) (map[execution.SlotName]execution.Revision, error) {
	revisions := make(map[execution.SlotName]execution.Revision)
	_, err := queryAll(ctx, s.db.read, func(rows *sql.Rows) (none struct{}, err error) {
		var slot execution.SlotName
		var revision execution.Revision
		err = rows.Scan(&slot, &revision)
		revisions[slot] = revision
		return none, err
	}, queryRevisions)
	if err != nil {
		return nil, fmt.Errorf("revisions of slots: %w", err)
	}
	return revisions, nil
}

// Credential is a slot's credential with what binds it, all of one moment.
type Credential struct {
	Slot     execution.SlotName
	Profile  Profile
	Revision execution.Revision
	Secret   Secret
}

// OpenCredential opens a slot's credential. It reads the database each time, so that what another process has disabled
// or revoked is refused at once. Whatever is wrong with the slot gives a *CredentialError; any other error means that it
// could not be looked up.
func (s *Store) OpenCredential(ctx context.Context, slot execution.SlotName) (Credential, error) {
	return s.OpenCredentialAt(ctx, Moment{}, slot)
}

// OpenCredentialAt is OpenCredential as of a Moment. What is learned is the sealed row, and it is opened each time: no
// value stays in memory. Nobody may change the profile's list of addresses.
func (s *Store) OpenCredentialAt(ctx context.Context, m Moment, slot execution.SlotName) (Credential, error) {
	credential, err := s.openCredential(ctx, m, slot)
	if err != nil {
		return Credential{}, fmt.Errorf("open credential: %w", err)
	}
	return credential, nil
}

// credentialRow is a slot, with its value sealed, and its profile.
type credentialRow struct {
	slotRow
	profile Profile
}

func (s *Store) openCredential(ctx context.Context, m Moment, slot execution.SlotName) (Credential, error) {
	if err := slot.Validate(); err != nil {
		return Credential{}, err
	}
	row, err := s.facts.credentials.get(m, slot, func() (credentialRow, error) {
		return queryOne(ctx, s.queries.credential, scanCredential, queryCredential, string(slot))
	})
	if errors.Is(err, sql.ErrNoRows) {
		return Credential{}, &CredentialError{Slot: slot, Reason: CredentialUnknownSlot}
	}
	switch {
	case err != nil:
		return Credential{}, err
	case row.Revoked:
		return Credential{}, row.unusable(CredentialRevoked)
	case !row.Enabled:
		return Credential{}, row.unusable(CredentialDisabled)
	}
	value, err := s.masterKeys.Load().openValue(&row.slotRow, row.Revision)
	if err != nil {
		return Credential{}, err
	}
	defer clear(value)
	return Credential{Slot: row.Name, Profile: row.profile, Revision: row.Revision, Secret: NewSecret(string(value))}, nil
}

// slotChange is one change of a slot. But for who and why, what is not set stays as it is.
type slotChange struct {
	action AuditAction
	by     string
	at     time.Time

	create  bool
	remove  bool
	profile execution.ProfileName
	value   *Secret // or nil

	// edit changes flags, and reports whether there is anything to change; or nil.
	edit func(*slotRow) (bool, error)
}

// changeSlot makes a change in a transaction of its own.
func (s *Store) changeSlot(ctx context.Context, verb string, name execution.SlotName, change slotChange) (Slot, error) {
	if err := name.Validate(); err != nil {
		return Slot{}, fmt.Errorf("%s slot: %w", verb, fault("slot", "%v", err))
	}
	if err := checkActor(change.by); err != nil {
		return Slot{}, fmt.Errorf("%s slot: %w", verb, err)
	}
	var row slotRow
	err := s.db.locked(ctx, func(tx *sql.Tx) (err error) {
		change.at = now() // in here, so that times follow one another as the changes do
		row, err = loadSlot(ctx, tx, name, change.create)
		if err != nil {
			return err
		}
		if change.edit != nil {
			if changed, err := change.edit(&row); err != nil || !changed {
				return err
			}
		}
		return s.applyChange(ctx, tx, &row, change)
	})
	if err != nil {
		return Slot{}, fmt.Errorf("%s slot %q: %w", verb, name, err)
	}
	return row.Slot, nil
}

// loadSlot returns the row of a slot, an empty one for a slot that is to be made.
func loadSlot(ctx context.Context, tx *sql.Tx, name execution.SlotName, create bool) (slotRow, error) {
	row, err := queryOne(ctx, tx, scanSlot, querySlot, string(name))
	if !errors.Is(err, sql.ErrNoRows) {
		return row, err
	}
	if !create {
		return slotRow{}, ErrNotFound
	}
	return slotRow{Slot: Slot{Name: name, Enabled: true}}, nil
}

// applyChange gives the row its next revision, seals its value for that, and writes it and an audit row.
func (s *Store) applyChange(ctx context.Context, tx *sql.Tx, row *slotRow, change slotChange) error {
	next, err := queryOne(ctx, tx, scanOne[int64], nextRevision, string(row.Name))
	if errors.Is(err, sql.ErrNoRows) {
		err = errors.New("its revisions are used up")
	}
	if err != nil {
		return err
	}
	if change.value != nil {
		err = s.replaceValue(ctx, tx, row, execution.Revision(next), change)
	} else if row.Usable() && !change.remove {
		err = s.sealAgain(row, execution.Revision(next))
	}
	if err != nil {
		return err
	}
	row.Revision, row.Updated, row.By = execution.Revision(next), change.at, change.by
	if change.remove {
		_, err = tx.ExecContext(ctx, deleteSlot, string(row.Name))
	} else {
		_, err = tx.ExecContext(ctx, putSlot, row.args()...)
	}
	if err != nil {
		return err
	}
	return addAudit(ctx, tx, AuditEntry{
		At: change.at, Actor: change.by, Action: change.action, Outcome: AuditDone,
		Slot: row.Name, Profile: row.Profile, Revision: row.Revision,
	})
}

// replaceValue seals a new value into the row.
func (s *Store) replaceValue(ctx context.Context, tx *sql.Tx, row *slotRow, next execution.Revision, change slotChange) error {
	value := []byte(change.value.Reveal())
	defer clear(value)
	if err := checkCredential(value); err != nil {
		return err
	}
	ring := s.masterKeys.Load()
	if ring == nil {
		return row.unusable(CredentialNoMasterKey)
	}
	if row.NeedsProviderRotation {
		if err := ring.checkOtherValue(row, value); err != nil {
			return err
		}
	}
	if change.profile != "" {
		_, err := queryOne(ctx, tx, scanProfile, queryProfile, string(change.profile))
		if errors.Is(err, sql.ErrNoRows) {
			return fault("profile", "does not exist")
		}
		if err != nil {
			return err
		}
		row.Profile = change.profile
	}
	row.seal = ring.current.sealValue(&row.Slot, next, value)
	row.MasterKey, row.Revoked, row.NeedsProviderRotation = row.seal.key, false, false
	return nil
}

// checkOtherValue refuses the value that the row has. A row that does not open any more can't be compared: such a slot
// must be deleted, and whoever does that says that it is another value.
func (r *keyring) checkOtherValue(row *slotRow, value []byte) error {
	before, err := r.openValue(row, row.seal.revision)
	if err != nil {
		return fmt.Errorf("compare with the revoked value (deleting the slot ends that): %w", err)
	}
	defer clear(before)
	if subtle.ConstantTimeCompare(before, value) == 1 {
		return ErrSameValue
	}
	return nil
}

// sealAgain seals the row's value for another revision, under the current key.
func (s *Store) sealAgain(row *slotRow, next execution.Revision) error {
	ring := s.masterKeys.Load()
	value, err := ring.openValue(row, row.seal.revision)
	if err != nil {
		return err
	}
	defer clear(value)
	row.seal = ring.current.sealValue(&row.Slot, next, value)
	row.MasterKey = row.seal.key
	return nil
}

// args are the values of putSlot.
func (r *slotRow) args() []any {
	return []any{string(r.Name), string(r.Profile), int64(r.Revision), string(r.seal.key), r.seal.text, int64(r.seal.revision),
		flag(r.Enabled), flag(r.Revoked), flag(r.NeedsProviderRotation), millis(r.Updated), r.By}
}

// slotScan is what a row of slotColumns is read into.
type slotScan struct {
	row                                                        slotRow
	revision, sealed, enabled, revoked, needsRotation, updated int64
}

func (s *slotScan) places() []any {
	return []any{&s.row.Name, &s.row.Profile, &s.revision, &s.row.seal.key, &s.row.seal.text, &s.sealed,
		&s.enabled, &s.revoked, &s.needsRotation, &s.updated, &s.row.By}
}

func (s *slotScan) finish() slotRow {
	row := s.row
	row.Revision, row.seal.revision = execution.Revision(s.revision), execution.Revision(s.sealed)
	row.Enabled, row.Revoked, row.NeedsProviderRotation = s.enabled != 0, s.revoked != 0, s.needsRotation != 0
	row.MasterKey, row.Updated = row.seal.key, fromMillis(s.updated)
	return row
}

// scanSlot reads a row of slotColumns.
func scanSlot(rows *sql.Rows) (slotRow, error) {
	var s slotScan
	err := rows.Scan(s.places()...)
	return s.finish(), err
}

// scanCredential reads a row of slotColumns and profileColumns.
func scanCredential(rows *sql.Rows) (credentialRow, error) {
	var s slotScan
	var p profileRow
	if err := rows.Scan(append(s.places(), p.places()...)...); err != nil {
		return credentialRow{}, err
	}
	profile, err := p.finish()
	return credentialRow{s.finish(), profile}, err
}

// checkActor checks who makes a change.
func checkActor(by string) error {
	if by == "" {
		return fault("by", "must not be empty")
	}
	return checkName("by", by)
}
