package lease

import (
	"errors"
	"slices"
	"time"

	"iop/execution"
)

// Revocation withdraws leases: those of which everything that is set here is true. The zero value withdraws nothing and
// is invalid.
type Revocation struct {
	Lease     execution.LeaseID
	Run       execution.RunID
	Principal execution.PrincipalID
	Slot      execution.SlotName
	Below     execution.Revision // needs Slot: leases of an older revision of it
}

// Validate refuses a Revocation that says nothing, or a revision of no slot.
func (r Revocation) Validate() error {
	switch {
	case r == Revocation{}:
		return errors.New("a revocation without a target")
	case r.Below != 0 && r.Slot == "":
		return errors.New("a revocation of a revision without a slot")
	}
	return nil
}

// Matches reports whether a lease with these claims is withdrawn. What is invalid matches nothing.
func (r Revocation) Matches(c *Claims) bool {
	return r.Validate() == nil &&
		(r.Lease == "" || r.Lease == c.ID) &&
		(r.Run == "" || r.Run == c.Run) &&
		(r.Principal == "" || r.Principal == c.Principal) &&
		(r.Slot == "" || r.Slot == c.Slot) &&
		(r.Below == 0 || c.Revision < r.Below)
}

// maxTombstones bounds the revocations that are remembered. Each open looks at all of them, and each lives for about a
// minute.
const maxTombstones = 1024

// tombstones remember revocations until every lease that was issued before them has expired. They are bounded and fail
// closed: where there is no room for one more, every lease issued until then counts as withdrawn. The Opener's mutex guards them.
type tombstones struct {
	stones []tombstone
	all    tombstone // of everything, or zero
}

type tombstone struct {
	Revocation
	// It counts until both are past: kept by the local monotonic clock, and until by the Edge's, which may be set back.
	kept, until time.Time
}

func newTombstone(r Revocation, local, edge time.Time) tombstone {
	return tombstone{Revocation: r, kept: local.Add(keepFor), until: edge.Add(keepFor)}
}

func (t *tombstone) past(local, edge time.Time) bool {
	return !local.Before(t.kept) && !edge.Before(t.until)
}

func (t *tombstones) add(r Revocation, local, edge time.Time) {
	t.stones = slices.DeleteFunc(t.stones, func(old tombstone) bool { return old.past(local, edge) })
	if len(t.stones) < maxTombstones {
		t.stones = append(t.stones, newTombstone(r, local, edge))
		return
	}
	t.all = newTombstone(Revocation{}, local, edge)
}

// match reports whether the lease is withdrawn.
func (t *tombstones) match(c *Claims, local, edge time.Time) bool {
	if !t.all.past(local, edge) {
		return true
	}
	for i := range t.stones {
		if stone := &t.stones[i]; stone.Matches(c) && !stone.past(local, edge) {
			return true
		}
	}
	return false
}
