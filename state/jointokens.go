package state

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"iop/execution"
)

// Why a join token was refused. The last two are only told to who presented the right secret.
var (
	// ErrTokenUnknown covers a malformed token, an id that does not exist and a wrong secret.
	ErrTokenUnknown = errors.New("unknown join token")
	// ErrTokenExpired says that the token's time is over.
	ErrTokenExpired = errors.New("the join token has expired")
	// ErrTokenRevoked says that an operator has ended the token.
	ErrTokenRevoked = errors.New("the join token has been revoked")
)

// JoinTokenID is the public part of a join token. The zero value is invalid.
type JoinTokenID string

// JoinTokenSpec is what a join token is created from.
type JoinTokenSpec struct {
	Node execution.NodeID // the one name it may be used for, which it reserves; empty: any that is free
	TTL  time.Duration    // 0: no end
}

// JoinToken is a join token as it is known after its creation, without its secret. Times are UTC, zero for never.
type JoinToken struct {
	ID        JoinTokenID
	Node      execution.NodeID // empty: any
	Created   time.Time
	Expires   time.Time
	RevokedAt time.Time
}

// usable returns nil, ErrTokenRevoked or ErrTokenExpired.
func (t *JoinToken) usable(now time.Time) error {
	if !t.RevokedAt.IsZero() {
		return ErrTokenRevoked
	}
	if !t.Expires.IsZero() && !now.Before(t.Expires) {
		return ErrTokenExpired
	}
	return nil
}

// CreateJoinToken makes a join token. The Secret is the whole token; it can't be had again. A wrong field gives a
// *SpecError.
func (s *Store) CreateJoinToken(ctx context.Context, spec JoinTokenSpec) (JoinToken, Secret, error) {
	if err := spec.check(); err != nil {
		return JoinToken{}, Secret{}, fmt.Errorf("create join token: %w", err)
	}
	token := JoinToken{Node: spec.Node, Created: time.Now().UTC().Truncate(time.Millisecond)}
	if spec.TTL > 0 {
		token.Expires = fromMillis(millis(token.Created.Add(spec.TTL)))
	}
	id, secret, err := s.insertToken(ctx, joinToken, insertJoinToken,
		string(token.Node), millis(token.Created), millis(token.Expires))
	if err != nil {
		return JoinToken{}, Secret{}, fmt.Errorf("create join token: %w", err)
	}
	token.ID = JoinTokenID(id)
	return token, secret, nil
}

// JoinTokens returns all join tokens, revoked and expired ones too, the oldest first.
func (s *Store) JoinTokens(ctx context.Context) ([]JoinToken, error) {
	records, err := queryAll(ctx, s.db.read, scanJoinToken, queryJoinTokens)
	if err != nil {
		return nil, fmt.Errorf("list join tokens: %w", err)
	}
	tokens := make([]JoinToken, len(records))
	for i, record := range records {
		tokens[i] = record.token
	}
	return tokens, nil
}

// RevokeJoinToken ends a join token for good; the sessions that it opened are the caller's to close. A token that is
// revoked already stays as it is. ErrNotFound if there is no such token.
func (s *Store) RevokeJoinToken(ctx context.Context, id JoinTokenID, by string) error {
	if err := s.revoke(ctx, revokeJoinToken, string(id), by); err != nil {
		return fmt.Errorf("revoke join token %q: %w", id, err)
	}
	return nil
}

// VerifyJoinToken returns the token that was presented, or ErrTokenUnknown, ErrTokenExpired or ErrTokenRevoked; any
// other error means that it could not be checked. It always looks into the database: a session starts seldom, and a
// revoked token must not open one more.
func (s *Store) VerifyJoinToken(ctx context.Context, presented string) (*JoinToken, error) {
	id, ok := joinToken.parse(presented)
	if !ok {
		return nil, ErrTokenUnknown
	}
	record, err := s.joinTokenRecord(ctx, JoinTokenID(id))
	if err != nil && !errors.Is(err, ErrTokenUnknown) {
		return nil, fmt.Errorf("verify join token: %w", err)
	}
	var stored *storedDigest
	if record != nil {
		stored = &record.stored
	}
	matches, err := s.peppers.matches(presented, stored)
	if err != nil {
		return nil, fmt.Errorf("verify join token: %w", err)
	}
	if record == nil || !matches {
		return nil, ErrTokenUnknown
	}
	if err := record.token.usable(time.Now()); err != nil {
		return nil, err
	}
	return &record.token, nil
}

type joinTokenRecord struct {
	token  JoinToken
	stored storedDigest
}

// joinTokenRecord returns ErrTokenUnknown for an id that does not exist.
func (s *Store) joinTokenRecord(ctx context.Context, id JoinTokenID) (*joinTokenRecord, error) {
	record, err := queryOne(ctx, s.db.read, scanJoinToken, queryJoinToken, string(id))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, ErrTokenUnknown
	}
	return record, err
}

// scanJoinToken reads a row of joinTokenColumns.
func scanJoinToken(rows *sql.Rows) (*joinTokenRecord, error) {
	r := new(joinTokenRecord)
	var digest string
	var created, expires, revoked int64
	t := &r.token
	err := rows.Scan(&t.ID, &digest, &r.stored.version, &t.Node, &created, &expires, &revoked)
	if err == nil {
		err = r.stored.parse(digest)
	}
	if err != nil {
		return nil, fmt.Errorf("read join token %q: %w", t.ID, err)
	}
	t.Created, t.Expires, t.RevokedAt = fromMillis(created), fromMillis(expires), fromMillis(revoked)
	return r, nil
}
