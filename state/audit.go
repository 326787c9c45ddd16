package state

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"iop/execution"
)

// AuditAction is what an audit row is about: a closed set that only grows. The zero value is invalid.
type AuditAction uint8

// The actions. The database keeps the numbers.
const (
	AuditLeaseIssued  AuditAction = iota + 1 // a lease was sealed for a run
	AuditLeaseRefused                        // none was sealed, or the Node refused it
	AuditLeaseRevoked                        // a revocation was sent to Nodes
	AuditSlotSet                             // the slot was made, or got a value and a profile
	AuditSlotRotated                         // it got another value
	AuditSlotEnabled
	AuditSlotDisabled
	AuditSlotRevoked
	AuditSlotDeleted
	AuditSlotRaised    // its profile changed
	AuditSlotRewrapped // its value is sealed under another master key, which is the subject
	AuditProfileSet
	AuditProfileDeleted
	AuditNodeAllowed
	AuditNodeDisallowed
	AuditNodeDenied   // the subject is the certificate's serial number, if it is that
	AuditNodeUndenied // as before
	AuditModelPulled  // into the Ollama of a Node; the subject is its provider and the model
	AuditModelDeleted // from there; as before

	// The subject of the next three is the key's name.
	AuditKeyCreated
	AuditKeyUpdated
	AuditKeyRevoked
	AuditJoinTokenCreated
	AuditJoinTokenRevoked
	AuditJoinTokenUsed // a Node got its name by it
	AuditNodeDrained
	AuditNodeResumed
	AuditRunCancelled
	AuditRoutesReloaded    // somebody had the file of routes read again
	AuditRoutesApplied     // its routes were put in force; the subject is its digest
	AuditSigningKeyRotated // the subject is the new one
	AuditSigningKeyRevoked // the subject is its id
	AuditSignedIn          // to the console
	AuditSignedOut
	AuditSignInRefused // not each of them, see the detail
	AuditAdminRefused  // a call of the admin API with a wrong token; as before
	AuditNodeForgotten // a Node that is away is no longer listed
)

var auditActionNames = [...]string{
	"", "lease_issued", "lease_refused", "lease_revoked", "slot_set", "slot_rotated", "slot_enabled", "slot_disabled",
	"slot_revoked", "slot_deleted", "slot_raised", "slot_rewrapped", "profile_set", "profile_deleted", "node_allowed",
	"node_disallowed", "node_denied", "node_undenied", "model_pulled", "model_deleted", "key_created", "key_updated",
	"key_revoked", "join_token_created", "join_token_revoked", "join_token_used", "node_drained", "node_resumed",
	"run_cancelled", "routes_reloaded", "routes_applied", "signing_key_rotated", "signing_key_revoked", "signed_in",
	"signed_out", "sign_in_refused", "admin_refused", "node_forgotten",
}

// AuditActions returns all actions, as APIs and logs write them.
func AuditActions() []string { return slices.Clone(auditActionNames[1:]) }

// String returns the action as APIs and logs write it.
func (a AuditAction) String() string { return wordOf(auditActionNames[:], uint8(a)) }

// ParseAuditAction is the inverse of AuditAction.String.
func ParseAuditAction(text string) (AuditAction, error) {
	if at := slices.Index(auditActionNames[1:], text); at >= 0 {
		return AuditAction(at + 1), nil
	}
	return 0, fault("action", "must be one of %s", strings.Join(auditActionNames[1:], ", "))
}

// AuditOutcome is how it ended: a closed set that only grows. The zero value is invalid.
type AuditOutcome uint8

// The outcomes.
const (
	AuditDone    AuditOutcome = iota + 1
	AuditRefused              // the reason says why
	AuditFailed               // the reason says how
	AuditPending              // not confirmed; it holds by itself at Expires
)

// String returns the outcome as APIs and logs write it.
func (o AuditOutcome) String() string {
	return wordOf([]string{"", "done", "refused", "failed", "pending"}, uint8(o))
}

func wordOf(names []string, at uint8) string {
	if at == 0 || int(at) >= len(names) {
		return fmt.Sprintf("unknown_%d", at)
	}
	return names[at]
}

// AuditEntry is who did what, when and how it ended. It has no place for a value. What does not apply stays empty.
type AuditEntry struct {
	ID      string    // of the row; empty: it gets one
	At      time.Time // to the millisecond; zero: now
	Actor   string    // never empty: an Actor's name, or the Edge's own id
	Action  AuditAction
	Outcome AuditOutcome
	Reason  string // a word of a closed set, such as a lease.Reason: letters, digits and '_'; other text becomes "unnamed"
	Subject string // what the action names, if it is none of the following
	Source  string // as of Actor, as the next one
	Session string
	Detail  string // what was changed, in the words of the API; never a secret

	Key       KeyID       // that was changed
	JoinToken JoinTokenID // that was changed or used

	// What a lease is bound to.
	Lease      execution.LeaseID
	Run        execution.RunID
	Attempt    int
	Principal  execution.PrincipalID
	Route      execution.RouteName
	Slot       execution.SlotName
	Profile    execution.ProfileName
	Revision   execution.Revision
	Node       execution.NodeID
	Generation execution.Generation
	Target     string    // origin and path prefix
	Expires    time.Time // of the lease
}

// maxReason bounds a reason, in bytes.
const maxReason = 64

// complete checks what must be there, and gives the entry what a row needs.
func (e AuditEntry) complete() (AuditEntry, error) {
	if e.Actor == "" || e.Action == 0 || e.Outcome == 0 {
		return AuditEntry{}, errors.New("an audit entry needs an actor, an action and an outcome")
	}
	if e.ID == "" {
		e.ID = newAuditID()
	}
	if e.At.IsZero() {
		e.At = now()
	}
	if !isWord(e.Reason) {
		e.Reason = "unnamed" // the text of an error could hold anything
	}
	return e, nil
}

// lastAuditID is the number in the last id that this process made.
var lastAuditID atomic.Int64

// newAuditID returns an id that no other process makes, and that is greater than all before: entries of one millisecond
// keep their order.
func newAuditID() string {
	for {
		last := lastAuditID.Load()
		next := max(last+1, time.Now().UnixNano())
		if lastAuditID.CompareAndSwap(last, next) {
			return fmt.Sprintf("aud_%016x%s", next, strings.ToLower(rand.Text()[:16]))
		}
	}
}

func isWord(text string) bool {
	return len(text) <= maxReason && !strings.ContainsFunc(text, func(r rune) bool {
		return r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
}

// Audit writes entries down, all or none, and returns when they last. Each change that this package makes has written
// its own already. An entry without actor, action or outcome is an error; text that no database could keep is mended.
func (s *Store) Audit(ctx context.Context, entries ...AuditEntry) error {
	err := s.db.locked(ctx, func(tx *sql.Tx) error {
		insert, err := tx.PrepareContext(ctx, s.db.inOrder(insertAudit))
		if err != nil {
			return err
		}
		defer insert.Close()
		return eachRow(ctx, len(entries), func(ctx context.Context, i int) error {
			entry, err := entries[i].complete()
			if err == nil {
				_, err = insert.ExecContext(ctx, entry.args()...)
			}
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	return nil
}

// addAudit adds one entry to a transaction. One whose ID is there already stays as it is.
func addAudit(ctx context.Context, tx *sql.Tx, entry AuditEntry) error {
	entry, err := entry.by(ctx).complete()
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, insertAudit, entry.args()...)
	return err
}

// args are the values of auditColumns.
func (e *AuditEntry) args() []any {
	return []any{
		usageText(e.ID), max(millis(e.At), 0), usageText(e.Actor), int64(e.Action), int64(e.Outcome), e.Reason,
		usageText(e.Subject), usageText(string(e.Lease)), usageText(string(e.Run)), int64(e.Attempt),
		usageText(string(e.Principal)), usageText(string(e.Route)), usageText(string(e.Slot)), usageText(string(e.Profile)),
		column(uint64(e.Revision)), usageText(string(e.Node)), column(uint64(e.Generation)), usageText(e.Target),
		max(millis(e.Expires), 0), usageText(string(e.Key)), usageText(string(e.JoinToken)), usageText(e.Source),
		usageText(e.Session), usageText(e.Detail),
	}
}

// column is a number as a column can hold it.
func column(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// scanAudit reads a row of auditColumns.
func scanAudit(rows *sql.Rows) (e AuditEntry, err error) {
	var at, expires int64
	err = rows.Scan(&e.ID, &at, &e.Actor, &e.Action, &e.Outcome, &e.Reason, &e.Subject, &e.Lease, &e.Run, &e.Attempt,
		&e.Principal, &e.Route, &e.Slot, &e.Profile, &e.Revision, &e.Node, &e.Generation, &e.Target, &expires, &e.Key, &e.JoinToken, &e.Source,
		&e.Session, &e.Detail)
	e.At, e.Expires = fromMillis(at), fromMillis(expires)
	return e, err
}

const (
	defaultAuditPage = 100
	maxAuditPage     = 1000
	maxAuditActions  = 64
)

// AuditQuery says which entries are meant; what is not set, all.
type AuditQuery struct {
	From, To time.Time // From is part of it, To is not
	Actions  []AuditAction
	Actor    string
	Slot     execution.SlotName
	Profile  execution.ProfileName
	Node     execution.NodeID
	Lease    execution.LeaseID
	Run      execution.RunID

	Key       KeyID
	JoinToken JoinTokenID
	Source    string

	Before AuditCursor // go on where a page ended
	Limit  int         // entries a page; 0: 100; at most 1000
}

// AuditCursor is where a page of entries ended. The zero value is the beginning.
type AuditCursor struct {
	At time.Time
	ID string
}

// AuditEntries returns a page of entries, the newest first, and where the next one begins; that is zero when there is
// none. Entries about leases appear up to half a second late.
func (s *Store) AuditEntries(ctx context.Context, q AuditQuery) ([]AuditEntry, AuditCursor, error) {
	query, args, limit, err := q.compose()
	if err != nil {
		return nil, AuditCursor{}, fmt.Errorf("audit entries: %w", err)
	}
	entries, err := queryAll(ctx, s.db.read, scanAudit, query, args...)
	if err != nil {
		return nil, AuditCursor{}, fmt.Errorf("audit entries: %w", err)
	}
	if len(entries) <= limit {
		return entries, AuditCursor{}, nil
	}
	last := &entries[limit-1]
	return entries[:limit], AuditCursor{At: last.At, ID: last.ID}, nil
}

// compose builds the query, of constants alone. It asks for one entry more than the page has, to know whether there is
// a next one.
func (q *AuditQuery) compose() (_ string, args []any, limit int, err error) {
	limit = q.Limit
	if limit == 0 {
		limit = defaultAuditPage
	}
	if limit < 0 || limit > maxAuditPage {
		return "", nil, 0, fault("limit", "must be 1 to %d", maxAuditPage)
	}
	if len(q.Actions) > maxAuditActions {
		return "", nil, 0, fault("action", "at most %d", maxAuditActions)
	}
	until := int64(math.MaxInt64)
	if !q.To.IsZero() {
		until = millis(q.To)
	}
	var text strings.Builder
	text.WriteString(queryAudit)
	args = []any{millis(q.From), until}
	if q.Before != (AuditCursor{}) {
		text.WriteString(auditBefore)
		args = append(args, millis(q.Before.At), usageText(q.Before.ID))
	}
	for _, filter := range q.filters() {
		if filter.value != "" {
			args = append(args, usageText(filter.value))
			text.WriteString(` AND ` + filter.column + ` = $` + strconv.Itoa(len(args)))
			if filter.partial {
				text.WriteString(` AND ` + filter.column + ` <> ''`)
			}
		}
	}
	for i, action := range q.Actions {
		text.WriteString([]string{` AND action IN (`, `, `}[min(i, 1)] + strconv.Itoa(int(action)))
	}
	if len(q.Actions) > 0 {
		text.WriteString(`)`)
	}
	return text.String() + auditOrder + strconv.Itoa(limit+1), args, limit, nil
}

// auditFilter is a column and the value that it must have; empty: any.
type auditFilter struct {
	column, value string
	partial       bool // the column's index lacks empty values, and SQLite uses it only for a query that says so, too
}

func (q *AuditQuery) filters() []auditFilter {
	return []auditFilter{
		{`actor`, q.Actor, false}, {`slot`, string(q.Slot), false}, {`profile`, string(q.Profile), false},
		{`node`, string(q.Node), false}, {`lease`, string(q.Lease), false}, {`run`, string(q.Run), false},
		{`key_id`, string(q.Key), true}, {`join_token`, string(q.JoinToken), true}, {`source`, q.Source, false},
	}
}

// PruneAudit deletes entries of before then, as PruneUsage does, and returns how many: those about issued or refused
// leases, and about what leaves nothing behind in the state. Those about changes of the state stay: they are few, and its
// history.
func (s *Store) PruneAudit(ctx context.Context, before time.Time) (int64, error) {
	deleted, err := s.prune(ctx, pruneAudit, before)
	if err != nil {
		return deleted, fmt.Errorf("prune audit: %w", err)
	}
	return deleted, nil
}
