package admin

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	"iop/state"
)

// This file writes into the audit what changes nothing in the state, which notes its own changes.

// auditPatience is how long an entry may take after the operator has gone.
const auditPatience = 5 * time.Second

// by is who makes a request's changes.
func by(r *http.Request) string { return state.ActorOf(r.Context()).Name }

// note writes down what the context's actor did, unless the entry names another; done, unless it says otherwise. What was
// done stays done where that fails: the log has it too.
func (a *api) note(ctx context.Context, entry state.AuditEntry) {
	actor := state.ActorOf(ctx)
	entry.Actor, entry.Outcome = cmp.Or(entry.Actor, actor.Name), cmp.Or(entry.Outcome, state.AuditDone)
	entry.Source, entry.Session = cmp.Or(entry.Source, actor.Source), actor.Session
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditPatience)
	defer cancel()
	if err := a.store.Audit(ctx, entry); err != nil {
		a.log.Error("an entry of the audit could not be written", "action", entry.Action.String(), "by", entry.Actor,
			"node", string(entry.Node), "subject", entry.Subject, "error", err)
	}
}

// wrongToken notes that a request had a wrong admin token, and returns how long its source must wait before another one.
// The audit has some of these requests, and how many it has not.
func (a *api) wrongToken(r *http.Request, where string, action state.AuditAction) time.Duration {
	wait := a.guesses.wrong(r, where)
	if before, yes := a.guesses.forAudit(); yes {
		entry := state.AuditEntry{
			Actor: state.ActorUnknown, Action: action, Outcome: state.AuditRefused, Reason: "wrong_token", Source: state.SourceOf(r.RemoteAddr),
		}
		if before > 0 {
			entry.Detail = fmt.Sprintf("%d more since the entry before", before)
		}
		a.note(r.Context(), entry)
	}
	return wait
}
