package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"
	"sync/atomic"
	"time"
)

// maxNap is how long Watch sleeps at most: the clock on the wall may be set while it does.
const maxNap = time.Minute

// Peer is somebody whose certificate was verified. Its methods are for any goroutine.
type Peer struct {
	// Static.
	ID        ID
	Leaf      *x509.Certificate // never nil, not to be changed
	want      expectation
	presented []*x509.Certificate

	trust atomic.Pointer[trust] // never nil
}

// trust is the outcome of the last verification that went well.
type trust struct {
	bundle *Bundle
	verified
}

// newPeer verifies what a peer presented. The error is a *RefusedError.
func newPeer(presented []*x509.Certificate, src Source, want expectation, now time.Time) (*Peer, error) {
	bundle, err := src.Bundle()
	if err != nil {
		return nil, &RefusedError{Reason: NoIdentity, Err: err}
	}
	v, err := verify(presented, bundle, want, now)
	if err != nil {
		return nil, err
	}
	p := &Peer{ID: v.id, Leaf: presented[0], want: want, presented: slices.Clone(presented)}
	p.trust.Store(&trust{bundle, v})
	return p, nil
}

// NodePeer says on an Edge which Node is at the other end of a connection that ServerConfig has let in. It makes all
// checks again but the allow function's.
func NodePeer(state *tls.ConnectionState, src Source) (*Peer, error) {
	return peerOf(state, src, expectation{domain: src.ID().TrustDomain(), role: RoleNode})
}

// EdgePeer says on a Node which Edge is at the other end of a connection made with ClientConfig: the one that is given, or
// there is an error.
func EdgePeer(state *tls.ConnectionState, src Source, edge ID) (*Peer, error) {
	want, err := expectEdge(src, edge)
	if err != nil {
		return nil, err
	}
	return peerOf(state, src, want)
}

// NotAfter is when the first certificate of the chain ends. From that instant on the peer is not trusted.
func (p *Peer) NotAfter() time.Time { return p.trust.Load().notAfter }

// Serial is the serial number of the peer's certificate in hexadecimal, as an allow function may look for it.
func (p *Peer) Serial() string { return serial(p.Leaf) }

// StillTrusted reports, for each dispatch, whether the peer's certificate is valid at that time and its issuer still in
// the source's bundle. The error is a *RefusedError. It costs two comparisons while the bundle is the one of the last call.
func (p *Peer) StillTrusted(src Source, now time.Time) error {
	last := p.trust.Load()
	bundle, err := src.Bundle()
	switch {
	case err != nil:
		return &RefusedError{Reason: NoIdentity, ID: p.ID, Err: err}
	case bundle != last.bundle:
		return p.verifyAgain(bundle, now)
	case !now.Before(last.notAfter):
		return &RefusedError{Reason: Expired, ID: p.ID, Err: errors.New("its certificate has expired")}
	}
	return nil
}

func (p *Peer) verifyAgain(bundle *Bundle, now time.Time) error {
	v, err := verify(p.presented, bundle, p.want, now)
	if err != nil {
		if refused, ok := errors.AsType[*RefusedError](err); ok {
			refused.ID = p.ID
		}
		return err
	}
	p.trust.Store(&trust{bundle, v})
	return nil
}

// Watch returns when the peer is not trusted any more, with the reason: a *RefusedError; its session must be closed then. It
// looks at each change of the source, at the end of the certificate, and once a minute because clocks are set. When ctx ends
// it returns ctx.Err().
func (p *Peer) Watch(ctx context.Context, src Source) error {
	for {
		changed := src.Changed() // before the look, so that no change falls between
		if err := p.StillTrusted(src, time.Now()); err != nil {
			return err
		}
		nap := time.NewTimer(min(time.Until(p.NotAfter()), maxNap))
		select {
		case <-ctx.Done():
			nap.Stop()
			return ctx.Err()
		case <-changed:
			nap.Stop()
		case <-nap.C:
		}
	}
}
