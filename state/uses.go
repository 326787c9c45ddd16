package state

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// housekeepingInterval is how often uses are written down and the cache is pruned.
	housekeepingInterval = time.Minute

	// flushBatch bounds one transaction, so that no generation waits long behind it.
	flushBatch = 500
)

// useLog remembers the minute in which each key was last used until it is written down. It holds at most one entry a
// key. The zero value is ready.
type useLog struct {
	mu      sync.Mutex
	pending map[KeyID]int64 // minutes since 1970
}

// note records a use. All but the first use of a key in a minute end at one atomic load.
func (u *useLog) note(record *keyRecord, now time.Time) {
	minute := now.Unix() / 60
	if record.usedMinute.Load() >= minute {
		return
	}
	record.usedMinute.Store(minute)
	u.add(record.key.ID, minute)
}

func (u *useLog) add(id KeyID, minute int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.pending == nil {
		u.pending = make(map[KeyID]int64)
	}
	u.pending[id] = max(u.pending[id], minute)
}

// last returns what is not written down yet, zero if nothing.
func (u *useLog) last(id KeyID) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	if minute, ok := u.pending[id]; ok {
		return time.Unix(minute*60, 0).UTC()
	}
	return time.Time{}
}

// take empties the log.
func (u *useLog) take() map[KeyID]int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	taken := u.pending
	u.pending = nil
	return taken
}

// keepHouse runs until the context ends.
func (s *Store) keepHouse(ctx context.Context) {
	ticker := time.NewTicker(housekeepingInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			s.keys.prune(now)
			if err := s.flushUses(ctx); err != nil && ctx.Err() == nil {
				slog.Warn("state: could not write when keys were last used; retrying", "error", err)
			}
		}
	}
}

// flushUses writes down the uses. What fails stays for the next time.
func (s *Store) flushUses(ctx context.Context) error {
	taken := s.uses.take()
	for batch := range slices.Chunk(slices.Sorted(maps.Keys(taken)), flushBatch) {
		if err := s.flushBatch(ctx, batch, taken); err != nil {
			for id, minute := range taken { // those that were written are written again, to no effect
				s.uses.add(id, minute)
			}
			return fmt.Errorf("write down uses of keys: %w", err)
		}
	}
	return nil
}

func (s *Store) flushBatch(ctx context.Context, batch []KeyID, minutes map[KeyID]int64) error {
	return s.db.locked(ctx, func(tx *sql.Tx) error {
		for _, id := range batch {
			if _, err := tx.ExecContext(ctx, touchKey, string(id), minutes[id]*time.Minute.Milliseconds()); err != nil {
				return err
			}
		}
		return nil
	})
}
