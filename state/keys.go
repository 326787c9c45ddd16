package state

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
)

// KeyID is the public part of an API key: lists, logs and metrics may show it. The zero value is invalid.
type KeyID string

// KeyPrincipal begins the principal of a key that has no owner, before the key's id. No owner begins so.
const KeyPrincipal = "key:"

// KeySpec is what an API key is created from.
type KeySpec struct {
	Name string // 1 to 128 printable characters; no other live key may have it

	// Optional.
	Owner         string    // whom the key's use counts for; empty: the key itself
	Routes        []string  // globs of the models it may use, see Key.AllowsModel; none: all
	RPM           int64     // requests a minute; 0: no limit, as for the next three; MaxLimit at most
	TPM           int64     // tokens a minute
	Concurrency   int64     // runs at once
	MonthlyTokens int64     // tokens a calendar month in UTC
	Weight        int       // its principal's share among others', 1 to 1000; 0 stands for 1
	Priority      int       // among its principal's requests, -100 to 100, higher first
	Expires       time.Time // zero: never
}

// KeyChange says what to change of a key; what is nil stays as it is. A pointer to a zero value removes a limit, the
// owner, the routes or the end.
type KeyChange struct {
	Name                       *string
	Owner                      *string
	Routes                     *[]string
	RPM, TPM                   *int64
	Concurrency, MonthlyTokens *int64
	Weight, Priority           *int
	Expires                    *time.Time
}

// Key is an API key as it is known after its creation, without its secret. Times are UTC, zero for never. It is shared
// between goroutines: nobody may change it.
type Key struct {
	ID            KeyID
	Name          string
	Owner         string
	Routes        []string
	RPM           int64
	TPM           int64
	Concurrency   int64
	MonthlyTokens int64
	Weight        int
	Priority      int
	Created       time.Time
	Expires       time.Time
	RevokedAt     time.Time
	RevokedBy     string
	LastUsed      time.Time // to the minute, and up to two minutes late

	principal string // of a key that has no owner; empty: to be made
}

// Principal is whom the key's use counts for: its owner, or "key:" and the id.
func (k *Key) Principal() string {
	switch {
	case k.Owner != "":
		return k.Owner
	case k.principal != "":
		return k.principal
	}
	return KeyPrincipal + string(k.ID)
}

// AllowsModel reports whether the key may use a model: one of its Routes matches the whole name, or it has none. '*' in
// a pattern stands for any run of characters, '/' and none included; '?' for one character.
func (k *Key) AllowsModel(model string) bool {
	if len(k.Routes) == 0 {
		return true
	}
	return slices.ContainsFunc(k.Routes, func(pattern string) bool { return MatchGlob(pattern, model) })
}

// Limited reports whether the key is limited in what it may use: to some models, or in requests, tokens or runs.
func (k *Key) Limited() bool {
	return len(k.Routes) > 0 || k.RPM > 0 || k.TPM > 0 || k.Concurrency > 0 || k.MonthlyTokens > 0
}

// mintAttempts bounds the tries to find a free id. Two in a row that are taken don't happen by chance.
const mintAttempts = 3

// CreateKey makes an API key. The Secret is the whole key; it can't be had again. A wrong field gives a *SpecError, a name
// that a live key has a *NameTakenError.
func (s *Store) CreateKey(ctx context.Context, spec KeySpec) (Key, Secret, error) {
	now := time.Now().UTC().Truncate(time.Millisecond)
	if spec.Weight == 0 {
		spec.Weight = 1
	}
	if err := spec.check(now); err != nil {
		return Key{}, Secret{}, fmt.Errorf("create key: %w", err)
	}
	routes, err := routesColumn(spec.Routes)
	if err != nil {
		return Key{}, Secret{}, fmt.Errorf("create key: %w", err)
	}
	var key Key
	var secret Secret
	err = s.db.locked(ctx, func(tx *sql.Tx) (err error) {
		if err := claimName(ctx, tx, spec.Name, "", now); err != nil {
			return err
		}
		var id string
		id, secret, err = s.insertToken(ctx, tx, clientToken, insertKey, spec.Name, spec.Owner, routes, spec.RPM, spec.TPM,
			spec.Concurrency, spec.MonthlyTokens, spec.Weight, spec.Priority, millis(now), millis(spec.Expires))
		if errors.Is(err, errNoFreeID) { // another key may have got the name meanwhile, where writers don't wait for each other
			err = cmp.Or(claimName(ctx, tx, spec.Name, "", now), err)
		}
		if err != nil {
			return err
		}
		key = newKey(id, &spec, now)
		return addAudit(ctx, tx, AuditEntry{
			Action: AuditKeyCreated, Outcome: AuditDone, Key: key.ID, Subject: key.Name, Detail: changes(&Key{Name: key.Name, Weight: 1}, &key),
		})
	})
	if err != nil {
		return Key{}, Secret{}, fmt.Errorf("create key: %w", err)
	}
	return key, secret, nil
}

// newKey is the key that the spec asked for.
func newKey(id string, spec *KeySpec, now time.Time) Key {
	return Key{
		ID: KeyID(id), Name: spec.Name, Owner: spec.Owner, Routes: slices.Clone(spec.Routes),
		RPM: spec.RPM, TPM: spec.TPM, Concurrency: spec.Concurrency, MonthlyTokens: spec.MonthlyTokens,
		Weight: spec.Weight, Priority: spec.Priority, Created: now, Expires: fromMillis(millis(spec.Expires)),
		principal: KeyPrincipal + id,
	}
}

// routesColumn is how patterns stand in the database: [] and not null where there are none.
func routesColumn(routes []string) (string, error) {
	column, err := json.Marshal(slices.Concat([]string{}, routes))
	return string(column), err
}

// insertToken mints a token and inserts its row; query takes id, digest and pepper version before the columns.
func (s *Store) insertToken(ctx context.Context, q querier, kind tokenKind, query string, columns ...any) (id string, _ Secret, err error) {
	for range mintAttempts {
		id, token := kind.mint()
		digest := s.peppers.newest.digest(token)
		args := append([]any{id, hex.EncodeToString(digest[:]), s.peppers.newest.version}, columns...)
		_, err := queryOne(ctx, q, scanOne[string], query, args...)
		if err == nil {
			return id, NewSecret(token), nil
		}
		if !errors.Is(err, sql.ErrNoRows) {
			return "", Secret{}, err
		}
	}
	return "", Secret{}, errNoFreeID
}

var errNoFreeID = errors.New("could not find a free id")

// Keys returns all keys, revoked and expired ones too, the oldest first.
func (s *Store) Keys(ctx context.Context) ([]Key, error) {
	records, err := queryAll(ctx, s.db.read, scanKey, queryKeys)
	if err != nil {
		return nil, fmt.Errorf("list keys: %w", err)
	}
	keys := make([]Key, len(records))
	for i, record := range records {
		keys[i] = s.lastUse(record.key)
	}
	return keys, nil
}

// lastUse adds to a key what is not written down yet of its use.
func (s *Store) lastUse(key Key) Key {
	if used := s.uses.last(key.ID); used.After(key.LastUsed) {
		key.LastUsed = used
	}
	return key
}

// Key returns one key, also a revoked or expired one. ErrNotFound if there is no such key.
func (s *Store) Key(ctx context.Context, id KeyID) (Key, error) { return s.KeyAt(ctx, Moment{}, id) }

// KeyAt is Key as of a Moment.
func (s *Store) KeyAt(ctx context.Context, m Moment, id KeyID) (Key, error) {
	record, err := s.facts.keys.get(m, id, func() (*keyRecord, error) {
		return queryOne(ctx, s.queries.key, scanKey, queryKey, string(id))
	})
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNotFound
	}
	if err != nil {
		return Key{}, fmt.Errorf("key %q: %w", id, err)
	}
	return s.lastUse(record.key), nil
}

// UpdateKey changes a key and returns it as it is then. The change counts in this process before it returns, in others
// within the cache's 5 s; a *Key that was handed out before stays what it was. A revoked key may be changed and stays
// revoked. A wrong field gives a *SpecError, a name that another live key has a *NameTakenError (also where it is the key's
// own, whose end had come), and nothing is changed; ErrNotFound if there is no such key.
func (s *Store) UpdateKey(ctx context.Context, id KeyID, change KeyChange) (Key, error) {
	if err := change.check(time.Now()); err != nil {
		return Key{}, fmt.Errorf("update key %q: %w", id, err)
	}
	args := []any{string(id), change.Name, change.Owner, nil, change.RPM, change.TPM, change.Concurrency,
		change.MonthlyTokens, change.Weight, change.Priority, nil, nil}
	if change.Routes != nil {
		routes, err := routesColumn(*change.Routes)
		if err != nil {
			return Key{}, fmt.Errorf("update key %q: %w", id, err)
		}
		args[3] = routes
	}
	if change.Expires != nil {
		args[10] = millis(*change.Expires)
	}
	var record *keyRecord
	err := s.db.locked(ctx, func(tx *sql.Tx) error {
		former, err := queryOne(ctx, tx, scanKey, queryKey, string(id))
		if err != nil {
			return err
		}
		if args[11], err = sharesName(ctx, tx, &former.key, &change); err != nil {
			return err
		}
		if record, err = queryOne(ctx, tx, scanKey, updateKey, args...); err != nil {
			return err
		}
		detail := changes(&former.key, &record.key)
		if detail == "" {
			return nil
		}
		return addAudit(ctx, tx, AuditEntry{
			Action: AuditKeyUpdated, Outcome: AuditDone, Key: id, Subject: record.key.Name, Detail: detail,
		})
	})
	s.keys.forget(id) // also after an error: a commit may have been the last thing that worked
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNotFound
	}
	if err != nil {
		return Key{}, fmt.Errorf("update key %q: %w", id, err)
	}
	return s.lastUse(record.key), nil
}

// sharesName is the column after the change; nil where it stays as it is. A key that is live after the change, and was not
// or had another name, takes its name from now on.
func sharesName(ctx context.Context, tx *sql.Tx, former *Key, change *KeyChange) (any, error) {
	now, changed := time.Now(), *former
	if change.Name != nil {
		changed.Name = *change.Name
	}
	if change.Expires != nil {
		changed.Expires = *change.Expires
	}
	switch {
	case !changed.live(now):
		return int64(1), nil
	case former.live(now) && changed.Name == former.Name:
		return nil, nil
	}
	return int64(0), claimName(ctx, tx, changed.Name, former.ID, now)
}

// RevokeKey ends a key for good: in this process before it returns, in others within the cache's 5 s. A key that is
// revoked already stays as it is. ErrNotFound if there is no such key.
func (s *Store) RevokeKey(ctx context.Context, id KeyID, by string) error {
	if err := s.revoke(ctx, revokeKey, queryKeyExists, string(id), by, AuditEntry{Action: AuditKeyRevoked, Key: id}); err != nil {
		return fmt.Errorf("revoke key %q: %w", id, err)
	}
	s.keys.forget(id)
	return nil
}

// revoke runs one of the revocation queries. What is revoked already stays as it is, and leaves no entry; exists finds it.
func (s *Store) revoke(ctx context.Context, query, exists, id, by string, entry AuditEntry) error {
	if err := checkName("by", by); err != nil {
		return err
	}
	return s.db.locked(ctx, func(tx *sql.Tx) error {
		entry.At, entry.Actor, entry.Outcome = now(), by, AuditDone
		name, err := queryOne(ctx, tx, scanOne[string], query, id, millis(entry.At), by)
		switch {
		case err == nil:
			entry.Subject = name
			return addAudit(ctx, tx, entry)
		case !errors.Is(err, sql.ErrNoRows):
			return err
		}
		_, err = queryOne(ctx, tx, scanOne[string], exists, id)
		if errors.Is(err, sql.ErrNoRows) {
			err = ErrNotFound
		}
		return err
	})
}

// scanKey reads a row of keyColumns.
func scanKey(rows *sql.Rows) (*keyRecord, error) {
	r := new(keyRecord)
	var digest, routes string
	var created, expires, used, revoked int64
	k := &r.key
	err := rows.Scan(&k.ID, &digest, &r.stored.version, &k.Name, &k.Owner, &routes, &k.RPM, &k.TPM, &k.Concurrency,
		&k.MonthlyTokens, &k.Weight, &k.Priority, &created, &expires, &used, &revoked, &k.RevokedBy)
	if err == nil {
		err = r.stored.parse(digest)
	}
	if err == nil {
		err = json.Unmarshal([]byte(routes), &k.Routes)
	}
	if err != nil {
		return nil, fmt.Errorf("read key %q: %w", k.ID, err)
	}
	k.Created, k.Expires, k.RevokedAt = fromMillis(created), fromMillis(expires), fromMillis(revoked)
	k.LastUsed, k.principal = fromMillis(used), KeyPrincipal+string(k.ID)
	r.usedMinute.Store(used / time.Minute.Milliseconds())
	return r, nil
}
