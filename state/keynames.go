package state

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
)

// A key is called by its name as well as by its id, so a name belongs to one live key: one that is neither revoked nor
// expired. Keys that shared a name before that was so still do. An id is never taken for a name: no key gets the id of
// another one for its name.

// NameTakenError says that a live key has the name already.
type NameTakenError struct {
	Name string
	Key  KeyID // that has it
}

// Error names the key, and says what to do.
func (e *NameTakenError) Error() string {
	return fmt.Sprintf("name: the key %s has the name %q: choose another name, or rename or revoke that key first", e.Key, e.Name)
}

// AmbiguousNameError says that a name stands for several keys: several live ones, or several of which none is.
type AmbiguousNameError struct {
	Name string
	Keys []KeyID // the oldest first
}

// maxAmbiguous bounds the ids that an AmbiguousNameError names.
const maxAmbiguous = 8

// Error names the keys.
func (e *AmbiguousNameError) Error() string {
	ids, more := make([]string, 0, maxAmbiguous), ""
	for _, id := range e.Keys[max(0, len(e.Keys)-maxAmbiguous):] {
		ids = append(ids, string(id))
	}
	if len(e.Keys) > maxAmbiguous {
		more = ", of which the newest are"
	}
	return fmt.Sprintf("%d keys have the name %q%s %s: give the id of one", len(e.Keys), e.Name, more, strings.Join(ids, ", "))
}

// live reports whether the key can be used.
func (k *Key) live(now time.Time) bool {
	return k.RevokedAt.IsZero() && (k.Expires.IsZero() || now.Before(k.Expires))
}

// FindKey returns the key with that id or, where there is none, with that name. Of those that have the name it is the
// live one; where no one is, the only one. Otherwise the error is an *AmbiguousNameError, or ErrNotFound.
func (s *Store) FindKey(ctx context.Context, idOrName string) (Key, error) {
	key, err := s.findKey(ctx, idOrName)
	if err != nil {
		return Key{}, fmt.Errorf("key %q: %w", idOrName, err)
	}
	return s.lastUse(key), nil
}

func (s *Store) findKey(ctx context.Context, idOrName string) (Key, error) {
	records, err := queryAll(ctx, s.db.read, scanKey, queryKeysCalled, usageText(idOrName))
	if err != nil {
		return Key{}, err
	}
	var live, past []*keyRecord
	now := time.Now()
	for _, record := range records {
		switch {
		case string(record.key.ID) == idOrName:
			return record.key, nil
		case record.key.live(now):
			live = append(live, record)
		default:
			past = append(past, record)
		}
	}
	if len(live) == 0 {
		live = past
	}
	switch len(live) {
	case 0:
		return Key{}, ErrNotFound
	case 1:
		return live[0].key, nil
	}
	ambiguous := &AmbiguousNameError{Name: idOrName}
	for _, record := range live {
		ambiguous.Keys = append(ambiguous.Keys, record.key.ID)
	}
	return Key{}, ambiguous
}

// KeyNames returns the names of all keys by their ids.
func (s *Store) KeyNames(ctx context.Context) (map[KeyID]string, error) {
	type named struct {
		id   KeyID
		name string
	}
	rows, err := queryAll(ctx, s.db.read, func(rows *sql.Rows) (n named, err error) {
		err = rows.Scan(&n.id, &n.name)
		return n, err
	}, queryKeyNames)
	if err != nil {
		return nil, fmt.Errorf("names of keys: %w", err)
	}
	names := make(map[KeyID]string, len(rows))
	for _, n := range rows {
		names[n.id] = n.name
	}
	return names, nil
}

// SharedKeyNames returns names that several live keys have, from before a name belonged to one: at most 100.
func (s *Store) SharedKeyNames(ctx context.Context) ([]string, error) {
	names, err := queryAll(ctx, s.db.read, scanOne[string], queryKeyNamesShared, millis(time.Now()))
	if err != nil {
		return nil, fmt.Errorf("shared names of keys: %w", err)
	}
	return names, nil
}

// claimName makes room for a name that the key is to have; its id is empty if it is yet to be made. The error is a
// *NameTakenError, or a *SpecError where another key has the name for its id.
func claimName(ctx context.Context, tx *sql.Tx, name string, id KeyID, now time.Time) error {
	if _, err := tx.ExecContext(ctx, releaseKeyName, name, millis(now)); err != nil {
		return err
	}
	holder, err := queryOne(ctx, tx, scanOne[string], queryKeyNameHolder, name, millis(now), string(id))
	switch {
	case err == nil:
		return &NameTakenError{Name: name, Key: KeyID(holder)}
	case !errors.Is(err, sql.ErrNoRows):
		return err
	}
	_, err = queryOne(ctx, tx, scanKey, queryKey, name)
	switch {
	case err == nil:
		return fault("name", "%q is the id of another key", name)
	case !errors.Is(err, sql.ErrNoRows):
		return err
	}
	return nil
}
