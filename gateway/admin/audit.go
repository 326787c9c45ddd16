package admin

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"iop/execution"
	"iop/state"
)

// How many entries a page of the audit has.
const (
	defaultAudit = 100
	maxAudit     = 1000
)

var auditParameters = []string{"from", "to", "action", "actor", "slot", "profile", "node", "lease", "run", "key", "join_token", "source", "before", "limit"}

// AuditEntry is who did what, when and how it ended. What does not apply is absent; no value is ever in one.
type AuditEntry struct {
	ID      string    `json:"id"`
	At      time.Time `json:"at"`
	Actor   string    `json:"actor"`
	Action  string    `json:"action"`
	Outcome string    `json:"outcome"`
	Reason  string    `json:"reason,omitempty"`
	Subject string    `json:"subject,omitempty"` // what the action names, if it is none of the following

	Slot       execution.SlotName    `json:"slot,omitempty"`
	Profile    execution.ProfileName `json:"profile,omitempty"`
	Revision   execution.Revision    `json:"revision,omitempty"`
	Node       execution.NodeID      `json:"node,omitempty"`
	Generation execution.Generation  `json:"generation,omitempty"`
	Lease      execution.LeaseID     `json:"lease,omitempty"`
	Run        execution.RunID       `json:"run,omitempty"`
	Attempt    int                   `json:"attempt,omitempty"`
	Principal  execution.PrincipalID `json:"principal,omitempty"`
	Route      execution.RouteName   `json:"route,omitempty"`
	Target     string                `json:"target,omitempty"`
	Expires    *time.Time            `json:"expires,omitempty"` // of the lease

	Key       state.KeyID       `json:"key,omitempty"`
	JoinToken state.JoinTokenID `json:"join_token,omitempty"`
	Source    string            `json:"source,omitempty"`  // the address that the actor's request came from
	Session   string            `json:"session,omitempty"` // of the console
	Detail    string            `json:"detail,omitempty"`  // what was changed

	PrincipalName string `json:"principal_name,omitempty"` // what people call it
}

// AuditPage is the answer to GET /admin/v1/audit, the newest entry first.
type AuditPage struct {
	Data []AuditEntry `json:"data"`
	Next string       `json:"next"` // the parameter before of the next page; empty: there is none
}

// auditEntryView is an entry as this API shows it.
func auditEntryView(e *state.AuditEntry) AuditEntry {
	return AuditEntry{
		ID: e.ID, At: e.At.UTC(), Actor: e.Actor, Action: e.Action.String(), Outcome: e.Outcome.String(), Reason: e.Reason, Subject: e.Subject,
		Slot: e.Slot, Profile: e.Profile, Revision: e.Revision, Node: e.Node, Generation: e.Generation, Lease: e.Lease, Run: e.Run,
		Attempt: e.Attempt, Principal: e.Principal, Route: e.Route, Target: e.Target, Expires: optional(e.Expires),
		Key: e.Key, JoinToken: e.JoinToken, Source: e.Source, Session: e.Session, Detail: e.Detail,
	}
}

// audit answers with a page of the entries that are meant.
func (a *api) audit(r *http.Request) (any, error) {
	query, err := AuditQuery(r.URL.Query())
	if err == nil {
		query.Key, err = a.keyAsked(r, "key")
	}
	if err != nil {
		return nil, err
	}
	if err := a.store.FlushAudit(r.Context()); err != nil {
		return nil, err
	}
	return ReadAudit(r.Context(), a.store, query)
}

// ReadAudit reads a page of the audit.
func ReadAudit(ctx context.Context, store *state.Store, query state.AuditQuery) (AuditPage, error) {
	entries, next, err := store.AuditEntries(ctx, query)
	if err != nil {
		return AuditPage{}, err
	}
	page := auditPageView(entries, next)
	if !slices.ContainsFunc(entries, func(e state.AuditEntry) bool { return e.Principal != "" }) {
		return page, nil
	}
	names, err := readKeyNames(ctx, store)
	for i := range page.Data {
		e := &page.Data[i]
		e.PrincipalName = names.principal(string(e.Principal))
	}
	return page, err
}

// auditPageView is a page as this API shows it.
func auditPageView(entries []state.AuditEntry, next state.AuditCursor) AuditPage {
	page := AuditPage{Data: make([]AuditEntry, len(entries))}
	for i := range entries {
		page.Data[i] = auditEntryView(&entries[i])
	}
	if next != (state.AuditCursor{}) {
		page.Next = fmt.Sprintf("%d.%s", next.At.UnixMilli(), next.ID)
	}
	return page
}

// AuditQuery reads the parameters of a query. An error says which is wrong. Its Key is what was given: an id or a name.
func AuditQuery(values url.Values) (q state.AuditQuery, err error) {
	q = state.AuditQuery{
		Actor: values.Get("actor"), Slot: execution.SlotName(values.Get("slot")), Profile: execution.ProfileName(values.Get("profile")),
		Node: execution.NodeID(values.Get("node")), Lease: execution.LeaseID(values.Get("lease")), Run: execution.RunID(values.Get("run")),
		Key: state.KeyID(values.Get("key")), JoinToken: state.JoinTokenID(values.Get("join_token")), Source: values.Get("source"),
		Limit: defaultAudit,
	}
	for _, at := range []struct {
		name string
		into *time.Time
	}{{"from", &q.From}, {"to", &q.To}} {
		if text := values.Get(at.name); text != "" {
			if *at.into, err = ParseTime(text); err != nil {
				return q, invalid(at.name, at.name+" "+err.Error())
			}
		}
	}
	if text := values.Get("action"); text != "" {
		for name := range strings.SplitSeq(text, ",") {
			action, err := state.ParseAuditAction(name)
			if err != nil {
				return q, err
			}
			q.Actions = append(q.Actions, action)
		}
	}
	if text := values.Get("limit"); text != "" {
		if q.Limit, err = strconv.Atoi(text); err != nil || q.Limit < 1 || q.Limit > maxAudit {
			return q, invalid("limit", fmt.Sprintf("limit must be a number from 1 to %d", maxAudit))
		}
	}
	if text := values.Get("before"); text != "" {
		millis, id, ok := strings.Cut(text, ".")
		at, err := strconv.ParseInt(millis, 10, 64)
		if err != nil || !ok || id == "" {
			return q, invalid("before", "before must be the next value of an earlier response")
		}
		q.Before = state.AuditCursor{At: time.UnixMilli(at).UTC(), ID: id}
	}
	return q, nil
}
