package state

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"iop/execution"
)

const (
	// rewrapBatch bounds one transaction of Rewrap, and rewrapRest is the pause between two: writers in other processes
	// get the file only between them.
	rewrapBatch = 50
	rewrapRest  = 20 * time.Millisecond
)

// Rewrap seals what is sealed under the key from under the key to; the Store must have been told both. Values and
// revisions stay, so leases and runs do not notice. It works in small transactions and may end at any point, by an
// error, the context or a crash: called again it goes on with what is left. It returns how many slots it moved. A slot
// that does not open is passed over and named in the error.
func (s *Store) Rewrap(ctx context.Context, from, to MasterKeyID, by string) (moved int, err error) {
	if err := checkActor(by); err != nil {
		return 0, fmt.Errorf("rewrap: %w", err)
	}
	ring := s.masterKeys.Load()
	if ring == nil {
		return 0, errors.New("rewrap: no master key is known")
	}
	if from == to {
		return 0, errors.New("rewrap: both keys are the same")
	}
	for _, id := range []MasterKeyID{from, to} {
		if _, known := ring.byID[id]; !known {
			return 0, errors.New("rewrap: one of the two master keys is not known: read the file that has it")
		}
	}
	batch := rewrapping{ring: ring, from: from, to: to, by: by}
	for {
		more, err := s.rewrapBatch(ctx, &batch)
		if err != nil {
			return batch.moved, fmt.Errorf("rewrap: %w", err)
		}
		if !more {
			return batch.moved, errors.Join(batch.faults...)
		}
		select {
		case <-time.After(rewrapRest):
		case <-ctx.Done():
			return batch.moved, fmt.Errorf("rewrap: %w", ctx.Err())
		}
	}
}

// rewrapping is how far a Rewrap has come.
type rewrapping struct {
	ring     *keyring
	from, to MasterKeyID
	by       string

	after  execution.SlotName // the last slot that was looked at
	moved  int
	faults []error
}

// rewrapBatch does one transaction, and reports whether there may be more to do.
func (s *Store) rewrapBatch(ctx context.Context, r *rewrapping) (more bool, err error) {
	var rows []slotRow
	var faults []error
	err = s.db.locked(ctx, func(tx *sql.Tx) (err error) {
		rows, err = queryAll(ctx, tx, scanSlot, querySlotsOfMasterKey, string(r.from), string(r.after), int64(rewrapBatch))
		if err != nil {
			return err
		}
		for i := range rows {
			fault, err := r.rewrap(ctx, tx, &rows[i])
			if err != nil {
				return err
			}
			if fault != nil {
				faults = append(faults, fault)
			}
		}
		return nil
	})
	if err != nil || len(rows) == 0 {
		return false, err
	}
	r.after = rows[len(rows)-1].Name
	r.moved += len(rows) - len(faults)
	r.faults = append(r.faults, faults...)
	return len(rows) == rewrapBatch, nil
}

// rewrap moves one slot. fault is the slot's, err the database's.
func (r *rewrapping) rewrap(ctx context.Context, tx *sql.Tx, row *slotRow) (fault, err error) {
	value, fault := r.ring.openValue(row, row.seal.revision)
	if fault != nil {
		return fmt.Errorf("rewrap: %w", fault), nil
	}
	defer clear(value)
	sealed := r.ring.byID[r.to].sealValue(&row.Slot, row.seal.revision, value)
	if _, err := tx.ExecContext(ctx, rewrapSlot, string(row.Name), string(sealed.key), sealed.text); err != nil {
		return nil, err
	}
	return nil, addAudit(ctx, tx, AuditEntry{
		Actor: r.by, Action: AuditSlotRewrapped, Outcome: AuditDone, Subject: string(r.to),
		Slot: row.Name, Profile: row.Profile, Revision: row.Revision,
	})
}
