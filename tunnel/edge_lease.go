package tunnel

import (
	"context"
	"errors"
	"fmt"
	"time"

	"iop/execution"
	"iop/tunnel/wire"
)

// sealTime bounds OpenSpec.Lease: it may have to ask the state.
const sealTime = 10 * time.Second

// ErrSuperseded is for OpenSpec.Lease to return, wrapped or not, when the session's generation is not the Node's current
// one any more: nothing was refused, and the run may be dispatched again.
var ErrSuperseded = errors.New("a newer session of the Node took over")

// ErrNoRecipient is what Open answers where a lease is to be sealed and the Node gave no key for that. Nothing was sent.
var ErrNoRecipient = errors.New("the session has no key to seal leases to")

// seal is what is kept of a run whose lease is still to be made.
type seal struct {
	lease func(context.Context) ([]byte, error) // OpenSpec.Lease
	stop  context.CancelFunc                    // tells lease to give up; nil before it is called
}

// LeaseSent reports whether LEASE was handed to the socket. A run that has a lease and whose lease was not sent did not
// reach its provider, whatever became of its session.
func (r *Run) LeaseSent() bool {
	r.link.mu.Lock()
	defer r.link.mu.Unlock()
	return r.tx.leased
}

// requestSent begins to seal the lease of a run whose request, all but that, was just written: a lease lives for
// seconds, and neither a queue nor a slow upload may use them up.
func (s *NodeSession) requestSent(st *stream) {
	l := &s.link
	l.mu.Lock()
	r := s.runs[st.id]
	if r == nil || r.decided || r.tx.dead {
		l.mu.Unlock()
		return // there is nobody to seal it for
	}
	ctx, cancel := context.WithTimeout(context.Background(), sealTime)
	r.seal.stop = cancel
	lease := r.seal.lease
	l.mu.Unlock()
	// The writer, which calls this, is in wg itself. The goroutine ends with the run: ctx does.
	l.wg.Go(func() {
		defer cancel()
		token, err := lease(ctx)
		r.sealed(token, err)
	})
}

// sealed queues the lease behind the request, unless the run or its session has ended meanwhile.
func (r *Run) sealed(token []byte, err error) {
	r.link.mu.Lock()
	defer r.unlock()
	r.seal = nil
	if r.decided || r.tx.dead {
		return
	}
	if err == nil && (len(token) == 0 || len(token) > wire.MaxLease) {
		err = fmt.Errorf("a lease has %d bytes, want 1 to %d", len(token), wire.MaxLease)
	}
	if err != nil {
		r.unsealedLocked(err)
		return
	}
	r.pushLocked(sendItem{typ: wire.TypeLease, flags: wire.FlagLast, data: token})
	r.link.wakeWriter()
}

// unsealedLocked ends a run that gets no lease.
func (r *Run) unsealedLocked(err error) {
	code, reason := execution.CodeCredentialRejected, "the run has no lease"
	if errors.Is(err, ErrSuperseded) {
		code, reason = execution.CodeSessionSuperseded, ErrSuperseded.Error()
	}
	r.link.metrics.LeasesFailed.Add(1)
	r.tx.dead = true // the lease would have been the last
	r.link.urgentLocked(wire.TypeCancel, &r.stream, &wire.Cancel{Code: uint32(code), Reason: reason})
	r.finishLocked(&execution.Terminal{Outcome: execution.Failed, Code: code, Detail: "lease: " + truncate(err.Error(), wire.MaxDetail)})
}

// stopSealLocked tells whoever seals that nobody waits for it.
func (r *Run) stopSealLocked() {
	if r.seal != nil && r.seal.stop != nil {
		r.seal.stop()
	}
}
