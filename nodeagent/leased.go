package nodeagent

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"

	"iop/execution"
	"iop/lease"
	"iop/tunnel/wire"
)

// LeaseCounters count what became of leases, over all sessions of a Node. Any goroutine may read them.
type LeaseCounters struct {
	counters lease.Counters
	unwanted atomic.Int64
	missing  atomic.Int64
}

// Opened returns how many leases were opened.
func (c *LeaseCounters) Opened() int64 { return c.counters.Opened() }

// Rejected returns how many were refused for a reason. lease.ReasonReplay above zero is an alarm.
func (c *LeaseCounters) Rejected(r lease.Reason) int64 { return c.counters.Rejected(r) }

// Unwanted returns how many runs announced a lease that their provider's specification does not accept.
func (c *LeaseCounters) Unwanted() int64 { return c.unwanted.Load() }

// Missing returns how many runs came without a lease to a provider that has slots.
func (c *LeaseCounters) Missing() int64 { return c.missing.Load() }

// refuseLease is the rule for leases at admission: a provider with slots gets no run without one, and no lease goes
// to a provider, or is of a slot, for which the operator has not written so. A run without a lease for a provider
// without slots passes at the price of two looks.
func (a *Agent) refuseLease(r run, open *wire.Open, p *provider) *refused {
	switch {
	case !open.GetExpectsLease() && !p.leased():
		return nil
	case !open.GetExpectsLease():
		a.leases.missing.Add(1)
		a.log.Warn("a run has no lease, and its provider has no other credential", "run", open.GetRunId(), "provider", string(p.spec.ID))
		return &refused{code: execution.CodeUnsupported, detail: "the provider accepts only runs with a lease"}
	}
	if k, ok := r.Keeper().(*keeper); !ok || k == nil {
		// Without its lease the run would go out without its credential, or with another one.
		return &refused{code: execution.CodeUnsupported, detail: "this Node does not open leases"}
	}
	slot := execution.SlotName(open.GetLease().GetSlot())
	if p.leased() && p.accepts(slot) {
		return nil
	}
	a.leases.unwanted.Add(1)
	a.log.Warn("lease refused: the provider's slots= do not name the slot", "run", open.GetRunId(), "provider", string(p.spec.ID), "slot", string(slot))
	return &refused{code: execution.CodeCredentialRejected, detail: rejectedDetail}
}

// rejectedDetail is all that anybody else is told of a refused lease. The reason is for this Node's log and counters.
const rejectedDetail = "lease rejected"

// errWithdrawn is the cause that ends an exchange whose lease was withdrawn while it was in use.
var errWithdrawn = errors.New("the lease was withdrawn")

// maxLeasedBody bounds a request that has a lease. It is held whole, because the lease is bound to its hash; the Edge's
// own limit is far lower.
const maxLeasedBody = 256 << 20

// loan is a lease in use, for the one call of its exchange.
type loan struct {
	log    *slog.Logger
	keeper *keeper

	opened *lease.Opened  // nil before open
	watch  sync.WaitGroup // the goroutine that looks for a withdrawal
}

// open waits for the run's lease and opens it: the request with its body is complete and will not change. The exchange
// then has a credential to look for in the answer; nothing is on the request yet.
func (l *loan) open(e *exchange, req *http.Request, body []byte) error {
	want, err := l.expectation(e, req, body)
	if err != nil {
		return err
	}
	token, err := e.run.Lease(e.runCtx)
	if err != nil {
		return err
	}
	opener := l.keeper.current()
	if opener == nil {
		return errors.New("a lease arrived before registration")
	}
	if l.opened, err = opener.Open(token, want); err != nil {
		return err
	}
	e.key = leasedCredential(l.opened.Credential().Reveal())
	l.watch.Go(func() {
		select {
		case <-l.opened.Revoked():
			e.cancel(errWithdrawn)
		case <-e.ctx.Done():
		}
	})
	return nil
}

// expectation is what the lease must be bound to: what the Edge said of the run, and what this Node is about to send.
func (l *loan) expectation(e *exchange, req *http.Request, body []byte) (lease.Expectation, error) {
	contentType := ""
	if v := req.Header["Content-Type"]; len(v) > 0 {
		contentType = v[0]
	}
	method, path := e.target.op.Method, e.target.op.UpstreamPath
	if e.norm != nil { // what was sealed is the run's input: the request is made of it here
		method, path, contentType = lease.RunMethod, lease.RunPath, lease.RunType
	}
	digest, err := lease.RequestDigest(method, path, contentType, sha256.Sum256(body))
	if err != nil {
		return lease.Expectation{}, err
	}
	b := e.open.GetLease()
	return lease.Expectation{
		Run:       execution.RunID(e.open.GetRunId()),
		Attempt:   e.open.GetAttempt(),
		Principal: execution.PrincipalID(b.GetPrincipal()),
		Route:     execution.RouteName(b.GetRoute()),
		Slot:      execution.SlotName(b.GetSlot()),
		Profile:   execution.ProfileName(b.GetProfile()),
		Target:    e.p.lease,
		Digest:    digest,
	}, nil
}

// authorize puts the credential on the request, as the last thing before it is sent.
func (l *loan) authorize(e *exchange, req *http.Request) error {
	err := l.opened.Authorize(req)
	if err != nil {
		e.phase = execution.PhaseAdmitted // nobody was called
	}
	return err
}

// close gives the lease up: the answer is over.
func (l *loan) close() {
	if l.opened != nil {
		l.opened.Close()
	}
}

// finish wipes what is left of the credential, once nothing looks for it any more and the call has ended.
func (l *loan) finish(e *exchange) {
	if l.opened == nil {
		return
	}
	l.watch.Wait()
	e.header = nil
	if e.scrub != nil {
		e.scrub.wipe()
	}
	if e.norm != nil && e.norm.scrub != nil {
		e.norm.scrub.wipe()
	}
	e.key.wipe()
}

// leaseFailed is the end of a run whose lease did not come, or was refused. Nothing else is tried.
func (e *exchange) leaseFailed(err error) execution.Terminal {
	log := e.loan.log.With("run", e.open.GetRunId(), "provider", string(e.p.spec.ID), "slot", e.open.GetLease().GetSlot())
	if r, ok := errors.AsType[*lease.RejectedError](err); ok {
		log.Warn("lease refused", "reason", r.Reason.String())
	} else if context.Cause(e.runCtx) == nil {
		log.Warn("no lease arrived", "error", err)
	}
	return e.failed(execution.CodeCredentialRejected, rejectedDetail)
}

// wholeBody reads a request that has a lease to its end.
func (e *exchange) wholeBody(length int64) ([]byte, error) {
	if length > maxLeasedBody {
		return nil, fmt.Errorf("a request with a lease has more than %d bytes", maxLeasedBody)
	}
	body, whole := e.run.Body()
	if whole {
		return body, nil
	}
	return readBody(e.run, length)
}
