package gateway

import (
	"context"
	"errors"
	"sync"
	"time"

	"iop/lease"
)

// keyChanges say when the key that signs leases is changed: once in a life, and when an operator has ordered it.
type keyChanges struct {
	wake chan struct{} // has room for one: the times have changed

	changing sync.Mutex // held while the key is changed

	mu      sync.Mutex // guards what follows
	due     time.Time  // when it is changed without an order
	ordered time.Time  // when an order takes effect that came too early; zero: there is none
}

// at returns when the key is changed next.
func (c *keyChanges) at() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ordered.IsZero() && c.ordered.Before(c.due) {
		return c.ordered
	}
	return c.due
}

// changed notes that the key was changed: another life begins.
func (c *keyChanges) changed(life time.Duration) {
	c.mu.Lock()
	c.due, c.ordered = time.Now().Add(life), time.Time{}
	c.mu.Unlock()
	c.awaken()
}

// order notes that the key is to be changed at that time at the latest.
func (c *keyChanges) order(at time.Time) {
	c.mu.Lock()
	c.ordered = at
	c.mu.Unlock()
	c.awaken()
}

// putOff notes that the key can't be changed before that time, whoever wants it.
func (c *keyChanges) putOff(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.due, c.ordered = at, time.Time{}
}

func (c *keyChanges) awaken() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// rotateKeys puts the next signing key in force when it is time, until Close.
func (s *Server) rotateKeys() {
	timer := time.NewTimer(time.Until(s.keyChanges.at()))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			s.rotateWhenDue()
		case <-s.keyChanges.wake:
		case <-s.ended:
			return
		}
		timer.Reset(time.Until(s.keyChanges.at()))
	}
}

// rotateWhenDue changes the key, or puts the change off: to when the next key has been announced long enough, or, after a
// failure, for as long as an announcement lasts.
func (s *Server) rotateWhenDue() {
	changed, err := s.changeSigningKey(true)
	early, tooEarly := errors.AsType[*lease.TooEarlyError](err)
	switch {
	case changed:
		s.tellNodes(s.background)
	case tooEarly:
		s.keyChanges.putOff(early.At)
	case err != nil:
		s.log.Error("the lease signing key can't be rotated; retrying", "error", err, "after", lease.PublishAhead)
		s.keyChanges.putOff(time.Now().Add(lease.PublishAhead))
	}
}

// changeSigningKey puts the next signing key in force; with ifDue only if it is time. Whoever called it has to tell the
// Nodes which keys verify from now on. Its error may be a *lease.TooEarlyError.
func (s *Server) changeSigningKey(ifDue bool) (changed bool, err error) {
	s.keyChanges.changing.Lock()
	defer s.keyChanges.changing.Unlock()
	if ifDue && time.Now().Before(s.keyChanges.at()) {
		return false, nil // an operator was faster
	}
	if err := s.signing.Rotate(); err != nil {
		return false, err
	}
	s.keyChanges.changed(s.cfg.SigningKeyLife)
	s.log.Info("a new key signs leases", "kid", string(s.signing.Current()))
	return true, nil
}

// SigningKeys implements admin.Edge.
func (o operator) SigningKeys() ([]lease.KeyStatus, time.Time) {
	if !o.s.managed() {
		return nil, time.Time{}
	}
	return o.s.signing.Status(), o.s.keyChanges.at()
}

// RotateSigningKey implements admin.Edge. The order of one that comes too early stands: who wants another key must not
// have to come again.
func (o operator) RotateSigningKey(ctx context.Context) (time.Time, error) {
	if !o.s.managed() {
		return time.Time{}, errTokenMode
	}
	_, err := o.s.changeSigningKey(false)
	early, ok := errors.AsType[*lease.TooEarlyError](err)
	switch {
	case ok:
		o.s.keyChanges.order(early.At)
		at := o.s.keyChanges.at()
		o.s.log.Info("a new key was announced for signing leases", "at", at, "kid", string(o.s.nextKey()))
		return at, nil
	case err != nil:
		return time.Time{}, err
	}
	o.s.tellNodes(ctx)
	return time.Time{}, nil
}

// RevokeSigningKey implements admin.Edge. If the key was the one that signs, the next one does from now on, which Nodes
// may not know for a moment: their runs are refused, and nothing is signed with a key that somebody else may have.
func (o operator) RevokeSigningKey(ctx context.Context, id lease.Thumbprint) (found bool, err error) {
	if !o.s.managed() {
		return false, errTokenMode
	}
	if found, err = o.s.dropSigningKey(id); !found || err != nil {
		return false, err
	}
	o.s.tellNodes(ctx)
	return true, nil
}

func (s *Server) dropSigningKey(id lease.Thumbprint) (found bool, err error) {
	s.keyChanges.changing.Lock()
	defer s.keyChanges.changing.Unlock()
	signed := s.signing.Current() == id
	if found, err = s.signing.Revoke(id); !found || err != nil {
		return false, err
	}
	if signed {
		s.keyChanges.changed(s.cfg.SigningKeyLife)
	}
	s.log.Warn("a lease signing key was revoked", "kid", string(id), "signs", string(s.signing.Current()))
	return true, nil
}

// nextKey is the key that will sign next.
func (s *Server) nextKey() lease.Thumbprint {
	for _, key := range s.signing.Status() {
		if key.Role == lease.KeyNext {
			return key.ID
		}
	}
	return ""
}
