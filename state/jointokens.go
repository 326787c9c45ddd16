package state

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
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
	// What Nodes may claim that join with it. Labels are key=glob: a label of a Node must match one of them; none: any.
	// Models are globs; what a Node offers beside them is ignored; none: any.
	Labels, Models  []string
	JoinTokenBounds // 0: the default
}

// JoinTokenBounds is how much Nodes may take that join with one token.
type JoinTokenBounds struct {
	MaxNodes          int64 // distinct names, of those used in the last 30 days; 100 by default, and 1 of a bound token
	MaxSessions       int64 // at once; four for each name by default, for Nodes that renew theirs
	MaxModels         int64 // in one inventory; MaxModelsBound by default
	MaxInventoryBytes int64 // memory that the inventories of all sessions take at the Edge; 64 MiB by default
}

// The highest values of JoinTokenBounds: an Edge remembers that many Nodes, an inventory has that many models, and all
// inventories together take that much memory.
const (
	MaxNodesBound          = 4096
	MaxSessionsBound       = 4 * MaxNodesBound
	MaxModelsBound         = 16384
	MaxInventoryBytesBound = 256 << 20
)

const (
	defaultNodes          = 100
	sessionsPerNode       = 4
	defaultInventoryBytes = 64 << 20
	maxLabelPatterns      = 64 // as many as a Node may have labels
)

// complete puts the defaults in the place of zeros.
func (b JoinTokenBounds) complete(bound bool) JoinTokenBounds {
	nodes := int64(defaultNodes)
	if bound {
		nodes = 1
	}
	b.MaxNodes = cmp.Or(b.MaxNodes, nodes)
	b.MaxSessions = cmp.Or(b.MaxSessions, sessionsPerNode*b.MaxNodes)
	b.MaxModels = cmp.Or(b.MaxModels, MaxModelsBound)
	b.MaxInventoryBytes = cmp.Or(b.MaxInventoryBytes, defaultInventoryBytes)
	return b
}

// JoinToken is a join token as it is known after its creation, without its secret. Times are UTC, zero for never.
type JoinToken struct {
	ID        JoinTokenID
	Node      execution.NodeID // empty: any
	Created   time.Time
	Expires   time.Time
	RevokedAt time.Time
	Labels    []string // as in JoinTokenSpec
	Models    []string
	JoinTokenBounds
}

// AllowsLabel reports whether a Node that joins with the token may have the label.
func (t *JoinToken) AllowsLabel(key, value string) bool {
	return len(t.Labels) == 0 || slices.ContainsFunc(t.Labels, func(pattern string) bool {
		k, v, _ := strings.Cut(pattern, "=")
		return k == key && (v == value || MatchGlob(v, value))
	})
}

// AllowsModel reports whether a Node that joins with the token may offer the model.
func (t *JoinToken) AllowsModel(id string) bool {
	return len(t.Models) == 0 || slices.ContainsFunc(t.Models, func(pattern string) bool { return MatchGlob(pattern, id) })
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
	token := JoinToken{
		Node: spec.Node, Created: time.Now().UTC().Truncate(time.Millisecond),
		Labels: slices.Clone(spec.Labels), Models: slices.Clone(spec.Models), JoinTokenBounds: spec.complete(spec.Node != ""),
	}
	labels, err := routesColumn(spec.Labels)
	if err != nil {
		return JoinToken{}, Secret{}, fmt.Errorf("create join token: %w", err)
	}
	models, err := routesColumn(spec.Models)
	if err != nil {
		return JoinToken{}, Secret{}, fmt.Errorf("create join token: %w", err)
	}
	if spec.TTL > 0 {
		token.Expires = fromMillis(millis(token.Created.Add(spec.TTL)))
	}
	var secret Secret
	err = s.db.locked(ctx, func(tx *sql.Tx) error {
		id, made, err := s.insertToken(ctx, tx, joinToken, insertJoinToken,
			string(token.Node), millis(token.Created), millis(token.Expires), labels, models,
			token.MaxNodes, token.MaxSessions, token.MaxModels, token.MaxInventoryBytes)
		if err != nil {
			return err
		}
		token.ID, secret = JoinTokenID(id), made
		return addAudit(ctx, tx, AuditEntry{
			Action: AuditJoinTokenCreated, Outcome: AuditDone, JoinToken: token.ID, Node: token.Node, Detail: claims(&token),
		})
	})
	if err != nil {
		return JoinToken{}, Secret{}, fmt.Errorf("create join token: %w", err)
	}
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
	if err := s.revoke(ctx, revokeJoinToken, queryJoinTokenExists, string(id), by, AuditEntry{Action: AuditJoinTokenRevoked, JoinToken: id}); err != nil {
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

// patternsOf is the inverse of routesColumn; nil where there are none.
func patternsOf(column string) (patterns []string, err error) {
	if column == "[]" {
		return nil, nil
	}
	err = json.Unmarshal([]byte(column), &patterns)
	return patterns, err
}

// scanJoinToken reads a row of joinTokenColumns.
func scanJoinToken(rows *sql.Rows) (*joinTokenRecord, error) {
	r := new(joinTokenRecord)
	var digest, labels, models string
	var created, expires, revoked int64
	t := &r.token
	err := rows.Scan(&t.ID, &digest, &r.stored.version, &t.Node, &created, &expires, &labels, &models,
		&t.MaxNodes, &t.MaxSessions, &t.MaxModels, &t.MaxInventoryBytes, &revoked)
	if err == nil {
		err = r.stored.parse(digest)
	}
	if err == nil {
		t.Labels, err = patternsOf(labels)
	}
	if err == nil {
		t.Models, err = patternsOf(models)
	}
	if err != nil {
		return nil, fmt.Errorf("read join token %q: %w", t.ID, err)
	}
	t.Created, t.Expires, t.RevokedAt = fromMillis(created), fromMillis(expires), fromMillis(revoked)
	return r, nil
}
