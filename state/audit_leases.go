package state

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
)

const (
	// leaseInterval is how long an entry about a lease waits at most while the database works: what a crash may lose.
	leaseInterval = 500 * time.Millisecond

	// leaseBuffer bounds the entries that wait, some 25 MB of them.
	leaseBuffer = 65536

	// leaseBatch bounds one transaction, so that no generation waits long behind it.
	leaseBatch = 500

	// leaseTimeout bounds one transaction; longer than it waits for another process.
	leaseTimeout = 15 * time.Second
)

// ErrAuditFull says that the database has not taken entries for so long that no more can wait. A lease that can't be
// recorded must not be issued.
var ErrAuditFull = errors.New("the audit has no room for more entries that wait for the database")

// AuditLeaseStats are counts since Open, but for Pending.
type AuditLeaseStats struct {
	Pending  int64 // entries that wait
	Refused  int64 // entries that found no room
	Written  int64 // entries that the database has taken
	Failures int64 // writes that failed, and were or are tried again
}

// leaseLog keeps entries about leases until they are written in a batch.
type leaseLog struct {
	room   int           // entries that may wait; static
	work   chan struct{} // holds a value when the first entry has come; never closed
	writer chan struct{} // holds a value while somebody writes; never closed

	mu      sync.Mutex
	waiting []AuditEntry // the oldest first; only the writer takes from it
	stats   AuditLeaseStats
}

func newLeaseLog() leaseLog {
	return leaseLog{room: leaseBuffer, work: make(chan struct{}, 1), writer: make(chan struct{}, 1)}
}

// AuditLease takes an entry about a lease, to be written with others within half a second. It never blocks and never
// touches the disk. After an error, ErrAuditFull or that of an entry without actor, action or outcome, the lease must
// not be issued. Close writes what waits; a crash may lose it.
func (s *Store) AuditLease(entry AuditEntry) error {
	entry, err := entry.complete()
	if err != nil {
		return fmt.Errorf("audit of a lease: %w", err)
	}
	l := &s.leases
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) >= l.room {
		l.stats.Refused++
		return ErrAuditFull
	}
	l.waiting = append(l.waiting, entry)
	wake(l.work)
	return nil
}

// AuditLeaseStats returns the counts.
func (s *Store) AuditLeaseStats() AuditLeaseStats {
	s.leases.mu.Lock()
	defer s.leases.mu.Unlock()
	stats := s.leases.stats
	stats.Pending = int64(len(s.leases.waiting))
	return stats
}

// FlushAudit writes the entries about leases that were taken before the call. After an error they still wait.
func (s *Store) FlushAudit(ctx context.Context) error {
	l := &s.leases
	select {
	case l.writer <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-l.writer }()
	l.mu.Lock()
	left := len(l.waiting)
	l.mu.Unlock()
	for left > 0 {
		n, err := s.writeLeaseBatch(ctx, min(left, leaseBatch))
		if err != nil {
			return fmt.Errorf("%d entries about leases are not written: %w", left, err)
		}
		left -= n
	}
	return nil
}

// writeLeaseBatch writes the n oldest entries. An entry keeps its ID, so one that was written although an error came
// back is not written twice.
func (s *Store) writeLeaseBatch(ctx context.Context, n int) (int, error) {
	l := &s.leases
	l.mu.Lock()
	batch := slices.Clone(l.waiting[:n])
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	err := s.Audit(ctx, batch...)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.stats.Failures++
		return 0, err
	}
	clear(l.waiting[:n])
	if l.waiting = l.waiting[n:]; len(l.waiting) == 0 {
		l.waiting = nil
	}
	l.stats.Written += int64(n)
	return n, nil
}

// writeLeases runs until the context ends. What waits then is left to Close.
func (s *Store) writeLeases(ctx context.Context) {
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.leases.work:
		}
		select { // for more to come
		case <-ctx.Done():
			return
		case <-time.After(leaseInterval):
		}
		err := s.FlushAudit(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			wake(s.leases.work)
		}
		if err != nil && !failing {
			slog.Warn("state: could not write the audit of leases; retrying", "error", err)
		} else if err == nil && failing {
			slog.Info("state: the audit of leases is written again")
		}
		failing = err != nil
	}
}

func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // it is awake
	}
}
