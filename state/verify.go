package state

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
)

const (
	// keyTTL is how long a record answers from memory: the longest that a revocation by another process stays unseen.
	keyTTL = 5 * time.Second

	// maxAbsent bounds the memory for ids that don't exist. A flood of ever new ids only costs the cache its use.
	maxAbsent = 4096

	// loadTimeout bounds a look-up; it is nobody's request that it belongs to.
	loadTimeout = 5 * time.Second
)

// ErrInvalidKey is the one thing a caller may learn of a key that is refused. The log may know more: errors.As finds a
// *InvalidKeyError in it.
var ErrInvalidKey = errors.New("invalid API key")

// InvalidKeyError is an ErrInvalidKey with what the log may know. Its text is ErrInvalidKey's, so that the reason does
// not reach a client by accident.
type InvalidKeyError struct {
	Reason InvalidReason
	ID     KeyID  // of the key; empty for InvalidMalformed
	Name   string // of a key that was revoked or has expired, which proved its secret; else empty
}

// Error returns the text of ErrInvalidKey.
func (e *InvalidKeyError) Error() string { return ErrInvalidKey.Error() }

// Is makes it an ErrInvalidKey.
func (e *InvalidKeyError) Is(target error) bool { return target == ErrInvalidKey }

// InvalidReason is why a key was refused: a closed set, fit for a metric's label. The zero value is invalid.
type InvalidReason uint8

// The reasons. Only who presented the right secret can cause the last two.
const (
	InvalidMalformed InvalidReason = iota + 1 // not the form of an API key, or a wrong checksum
	InvalidUnknown                            // no key has the id
	InvalidMismatch                           // the id is right, the secret is not
	InvalidExpired
	InvalidRevoked
)

// String returns the reason as it stands in logs and metrics.
func (r InvalidReason) String() string {
	names := [...]string{"", "malformed", "unknown", "mismatch", "expired", "revoked"}
	if int(r) >= len(names) {
		return fmt.Sprintf("unknown_%d", r)
	}
	return names[r]
}

// VerifyKey returns the key that was presented. Whatever is wrong with it gives ErrInvalidKey; any other error means
// that it could not be checked. A key that was checked in the last 5 s costs no look-up.
//
// What it does with an id that exists and with one that does not takes the same HMAC and the same comparison.
func (s *Store) VerifyKey(ctx context.Context, presented string) (*Key, error) {
	id, ok := clientToken.parse(presented)
	if !ok {
		return nil, &InvalidKeyError{Reason: InvalidMalformed}
	}
	now := time.Now()
	record, err := s.keyRecord(ctx, KeyID(id), now)
	if err != nil {
		return nil, fmt.Errorf("verify key: %w", err)
	}
	var stored *storedDigest
	if record != nil {
		stored = &record.stored
	}
	matches, err := s.peppers.matches(presented, stored)
	if err != nil {
		return nil, fmt.Errorf("verify key: %w", err)
	}
	reason := InvalidUnknown
	if record != nil {
		if reason = record.invalid(now); !matches {
			reason = InvalidMismatch
		}
	}
	if reason == 0 {
		s.uses.note(record, now)
		return &record.key, nil
	}
	invalid := &InvalidKeyError{Reason: reason, ID: KeyID(strings.Clone(id))}
	if reason == InvalidRevoked || reason == InvalidExpired {
		invalid.Name = record.key.Name
	}
	return nil, invalid
}

// CurrentKey returns a key that was verified before as it is now, for a request that took long. A key that has ended meanwhile
// gives ErrInvalidKey; any other error means that it could not be read. One that was read in the last 5 s costs no look-up.
func (s *Store) CurrentKey(ctx context.Context, id KeyID) (*Key, error) {
	now := time.Now()
	record, err := s.keyRecord(ctx, id, now)
	switch {
	case err != nil:
		return nil, fmt.Errorf("current key: %w", err)
	case record == nil:
		return nil, &InvalidKeyError{Reason: InvalidUnknown, ID: id}
	}
	if reason := record.invalid(now); reason != 0 {
		return nil, &InvalidKeyError{Reason: reason, ID: id, Name: record.key.Name}
	}
	return &record.key, nil
}

// invalid says how the key has ended, 0 if it has not.
func (r *keyRecord) invalid(now time.Time) InvalidReason {
	switch {
	case !r.key.RevokedAt.IsZero():
		return InvalidRevoked
	case !r.key.Expires.IsZero() && !now.Before(r.key.Expires):
		return InvalidExpired
	}
	return 0
}

// keyRecord returns the record of an id, nil if there is none.
func (s *Store) keyRecord(ctx context.Context, id KeyID, now time.Time) (*keyRecord, error) {
	if record, known := s.keys.get(id, now); known {
		return record, nil
	}
	// The id is a part of the presented key. A copy keeps the key's secret from living on in the cache.
	id = KeyID(strings.Clone(string(id)))
	return s.keys.load(id, func() (*keyRecord, error) {
		// Others may wait for the answer too: the first one's client going away is not their end.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadTimeout)
		defer cancel()
		record, err := queryOne(ctx, s.queries.key, scanKey, queryKey, string(id))
		if errors.Is(err, sql.ErrNoRows) {
			return nil, nil
		}
		return record, err
	})
}

// keyRecord is a key as the cache has it. All but usedMinute is immutable once it is read.
type keyRecord struct {
	key        Key
	stored     storedDigest
	loaded     time.Time    // before the row was read
	usedMinute atomic.Int64 // the last minute since 1970 that useLog was told of
}

// keyCache keeps records, and the ids that have none, for keyTTL. The zero value is ready.
type keyCache struct {
	loads singleflight.Group // a record that expires under load is read once

	mu      sync.RWMutex
	records map[KeyID]*keyRecord
	absent  map[KeyID]time.Time // when that was found
	epoch   uint64              // counts forget: what was being read meanwhile is stale
}

// get returns what is known of an id; the record is nil for one that does not exist.
func (c *keyCache) get(id KeyID, now time.Time) (record *keyRecord, known bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if record := c.records[id]; record != nil {
		return record, now.Sub(record.loaded) < keyTTL
	}
	at, absent := c.absent[id]
	return nil, absent && now.Sub(at) < keyTTL
}

// load reads an id's record with read and keeps it, unless a forget happened since the reading began.
func (c *keyCache) load(id KeyID, read func() (*keyRecord, error)) (*keyRecord, error) {
	v, err, _ := c.loads.Do(string(id), func() (any, error) {
		c.mu.RLock()
		epoch := c.epoch
		c.mu.RUnlock()
		began := time.Now()
		record, err := read()
		if err == nil {
			c.put(id, record, began, epoch)
		}
		return record, err
	})
	record, _ := v.(*keyRecord)
	return record, err
}

func (c *keyCache) put(id KeyID, record *keyRecord, began time.Time, epoch uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if record != nil {
		record.loaded = began
	}
	if epoch != c.epoch {
		return
	}
	if record == nil {
		if c.absent == nil || len(c.absent) >= maxAbsent {
			c.absent = make(map[KeyID]time.Time)
		}
		c.absent[id] = began
		delete(c.records, id)
		return
	}
	if c.records == nil {
		c.records = make(map[KeyID]*keyRecord)
	}
	c.records[id] = record
	delete(c.absent, id)
}

// forget drops an id. Once it has returned, no verification that begins uses what was read before.
func (c *keyCache) forget(id KeyID) {
	c.mu.Lock()
	c.epoch++
	delete(c.records, id)
	delete(c.absent, id)
	c.mu.Unlock()
	c.loads.Forget(string(id)) // who comes now does not join a reading that began before
}

// prune drops what has expired.
func (c *keyCache) prune(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, record := range c.records {
		if now.Sub(record.loaded) >= keyTTL {
			delete(c.records, id)
		}
	}
	for id, at := range c.absent {
		if now.Sub(at) >= keyTTL {
			delete(c.absent, id)
		}
	}
}
