package credential

import (
	"context"
	"fmt"
	"sync"
	"time"

	"iop/execution"
	"iop/lease"
	"iop/state"
)

const (
	// syncEvery is how often the state is looked at for changes of slots by another process.
	syncEvery = 2 * time.Second
	// refreshWait bounds how long Nodes may take to acknowledge new least revisions.
	refreshWait = 10 * time.Second
)

// table is the slots as they were read last. It only tells runs what to ask for: whether they get it is found out when
// the lease is issued. It is immutable.
type table struct {
	slots    map[execution.SlotName]state.Slot
	profiles map[execution.ProfileName]state.Profile
}

// Run keeps the slots current until ctx ends.
func (i *Issuer) Run(ctx context.Context) {
	poll := time.NewTicker(syncEvery)
	defer poll.Stop()
	due := time.NewTimer(syncEvery)
	defer due.Stop()
	var telling sync.WaitGroup
	defer telling.Wait()
	for {
		if i.raiseDue(time.Now()) {
			telling.Go(func() { i.tell(ctx) })
		}
		due.Reset(i.untilRise())
		select {
		case <-ctx.Done():
			return
		case <-i.wake:
		case <-due.C:
		case <-poll.C:
			if err := i.Sync(ctx); err != nil && ctx.Err() == nil {
				i.cfg.Logger.Error("the credential slots can't be read", "error", err)
			}
		}
	}
}

// untilRise returns how long it is until a least revision is to rise.
func (i *Issuer) untilRise() time.Duration {
	i.mu.Lock()
	defer i.mu.Unlock()
	wait := time.Hour
	for _, r := range i.rising {
		wait = min(wait, time.Until(r.at))
	}
	return max(wait, 0)
}

// raiseDue puts the least revisions in force whose time has come, and reports whether Nodes are to be told of any.
func (i *Issuer) raiseDue(now time.Time) (untold bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for slot, r := range i.rising {
		if now.Before(r.at) {
			continue
		}
		delete(i.rising, slot)
		i.raiseLocked(slot, r.to)
	}
	untold, i.untold = i.untold, false
	return untold
}

// raiseLocked never lowers: what a Node was told once stays true.
func (i *Issuer) raiseLocked(slot execution.SlotName, to execution.Revision) {
	if i.minimums[slot] < to {
		i.minimums[slot] = to
		i.version++
		i.untold = true
	}
}

// tell brings the least revisions to all Nodes.
func (i *Issuer) tell(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, refreshWait)
	defer cancel()
	i.cfg.Sessions.Refresh(ctx)
}

// Sync reads the slots and lets every change take effect that was made since the last reading, by whomever: of a slot
// that may no longer be used, leases are withdrawn.
func (i *Issuer) Sync(ctx context.Context) error {
	i.syncing.Lock()
	defer i.syncing.Unlock()
	return i.syncLocked(ctx)
}

// SlotChanged is to be called after each change of a slot in the state. It returns when the change has taken effect, or
// after about 2 s, and says what came of it.
func (i *Issuer) SlotChanged(ctx context.Context, slot execution.SlotName) (Withdrawal, error) {
	i.syncing.Lock()
	defer i.syncing.Unlock()
	if err := i.syncLocked(ctx); err != nil {
		return Withdrawal{}, err
	}
	return i.outcomes[slot].Withdrawal.at(time.Now()), nil
}

func (i *Issuer) syncLocked(ctx context.Context) error {
	// The revisions first: a slot that is in the list may then be newer than its revision, never older.
	revisions, err := i.cfg.Store.SlotRevisions(ctx)
	if err != nil {
		return fmt.Errorf("read slots: %w", err)
	}
	slots, err := i.cfg.Store.Slots(ctx)
	if err != nil {
		return fmt.Errorf("read slots: %w", err)
	}
	profiles, err := i.cfg.Store.Profiles(ctx)
	if err != nil {
		return fmt.Errorf("read slots: %w", err)
	}
	t := &table{slots: map[execution.SlotName]state.Slot{}, profiles: map[execution.ProfileName]state.Profile{}}
	for _, p := range profiles {
		t.profiles[p.Name] = p
	}
	for _, s := range slots {
		t.slots[s.Name] = s
		revisions[s.Name] = s.Revision
	}
	i.table.Store(t)
	i.applyLocked(ctx, t, revisions)
	return nil
}

// applyLocked lets what has changed take effect.
func (i *Issuer) applyLocked(ctx context.Context, t *table, revisions map[execution.SlotName]execution.Revision) {
	changed := false
	for slot, revision := range revisions {
		former, seen := i.outcomes[slot]
		if seen && former.revision >= revision {
			continue
		}
		changed = true
		s, there := t.slots[slot]
		done := outcome{revision: revision}
		switch {
		case !seen:
			i.raise(slot, revision)
		case there && s.Usable():
			done.Until = i.rotated(slot, revision)
		default:
			i.raise(slot, revision)
			done.Withdrawal = i.withdraw(ctx, slotBelow(slot, revision))
		}
		i.outcomes[slot] = done
	}
	if !changed {
		return
	}
	// The answer to an operator does not wait for all Nodes: what is out was withdrawn above.
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

// raise lets the least revision of a slot rise now; Run tells the Nodes.
func (i *Issuer) raise(slot execution.SlotName, to execution.Revision) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.epoch++
	delete(i.rising, slot)
	i.raiseLocked(slot, to)
}

// rotated lets the least revision of a slot rise when the last lease of an older one has ended, and returns that time,
// zero if none is out.
func (i *Issuer) rotated(slot execution.SlotName, to execution.Revision) (until time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.epoch++ // who is about to issue one of the former value asks again
	for _, end := range i.outLocked(slot, time.Now()) {
		if end.After(until) {
			until = end
		}
	}
	if until.IsZero() {
		delete(i.rising, slot)
		i.raiseLocked(slot, to)
		return until
	}
	i.rising[slot] = rise{to: to, at: until.Add(lease.Leeway)}
	return until
}

// outLocked returns when the last lease of a slot ends in each session, for those where it has not.
func (i *Issuer) outLocked(slot execution.SlotName, now time.Time) map[holderKey]time.Time {
	out := i.last[slot]
	for key, end := range out {
		if !end.After(now) {
			delete(out, key)
		}
	}
	return out
}

// leasedLocked notes that a lease of a slot may be used in a session until it ends.
func (i *Issuer) leasedLocked(slot execution.SlotName, holder holderKey, end time.Time) {
	out := i.last[slot]
	former, known := out[holder]
	switch {
	case out == nil:
		out = map[holderKey]time.Time{}
		i.last[slot] = out
	case !known:
		i.outLocked(slot, time.Now()) // sessions come and go
	}
	if former.Before(end) {
		out[holder] = end
	}
}
