package tunnel

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"iop/tunnel/wire"
)

// errNoLease says that a run has no lease to give away.
var errNoLease = errors.New("the run has no lease, or it was already handed over")

// leaseWait is what is kept of the lease that a run is to get.
type leaseWait struct {
	arrived chan struct{} // closed when token is there
	// Guarded by link.mu.
	seen  bool   // LEASE has come
	token []byte // what it held, until it is given away
}

// ExpectsLease reports whether a lease follows the request: the provider must not be called before it was opened.
func (r *NodeRun) ExpectsLease() bool { return r.open.GetExpectsLease() }

// Binding returns what the run's lease must be bound to, as the Edge announced it; nil without a lease.
func (r *NodeRun) Binding() *wire.LeaseBinding {
	if !r.ExpectsLease() {
		return nil
	}
	return r.open.GetLease()
}

// Lease waits for the sealed lease, which comes behind the whole request body, and gives it away: the next call fails.
// So does one for a run without a lease. When the run is cancelled or its session ends the error is a *CancelError,
// when ctx ends it is ctx's. It is for one goroutine, and may be called while another one reads the body.
func (r *NodeRun) Lease(ctx context.Context) ([]byte, error) {
	if r.lease == nil {
		return nil, errNoLease
	}
	select {
	case <-r.lease.arrived:
	case <-r.ctx.Done():
	case <-ctx.Done():
	}
	// An end counts more than a lease: whoever is to send nothing must not find out late.
	if r.ctx.Err() != nil {
		return nil, context.Cause(r.ctx)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.link.mu.Lock()
	defer r.link.mu.Unlock()
	token := r.lease.token
	r.lease.token = nil
	if token == nil {
		return nil, errNoLease
	}
	return token, nil
}

// Keeper returns the Keeper of the run's session; nil without one.
func (r *NodeRun) Keeper() Keeper { return r.session().keeper }

func (r *NodeRun) session() *nodeSession { return r.link.peer.(*nodeSession) }

// leaseFrameLocked takes LEASE.
func (r *NodeRun) leaseFrameLocked(payload []byte) error {
	switch {
	case r.lease == nil:
		return fmt.Errorf("was not announced")
	case r.lease.seen:
		return fmt.Errorf("twice")
	case len(payload) == 0 || len(payload) > wire.MaxLease:
		return fmt.Errorf("%d bytes, not 1 to %d", len(payload), wire.MaxLease)
	case r.bodyLeft > 0:
		return fmt.Errorf("before the last %d bytes of the body", r.bodyLeft)
	}
	r.lease.seen = true
	if r.ended || r.tx.dead {
		r.link.metrics.FramesDropped.Add(1)
		return nil
	}
	r.lease.token = bytes.Clone(payload)
	close(r.lease.arrived)
	return nil
}
