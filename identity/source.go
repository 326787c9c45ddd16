package identity

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Source holds an identity and keeps it current. Its methods are for any goroutine.
type Source interface {
	// ID is who this process is; it never changes.
	ID() ID
	// Certificate returns the certificate and key to show, valid now. Without one there is an error, which is
	// temporary: no handshake may succeed until it has gone. Not to be changed.
	Certificate() (*tls.Certificate, error)
	// Bundle returns the authorities to believe, all of the ID's trust domain. An error is as above.
	Bundle() (*Bundle, error)
	// Changed returns a channel that is closed at the next change of certificate or bundle. Ask for it before looking at
	// either, so that no change is missed.
	Changed() <-chan struct{}
	// Status says how the identity is kept.
	Status() Status
	// Close ends what keeps it current and waits for that. From then on Certificate and Bundle give errors.
	Close() error
}

// Status is how a Source fares, for metrics, readiness and operators.
type Status struct {
	ID        ID
	Serial    string    // of the certificate, in hexadecimal; empty where there is none
	NotBefore time.Time // of the certificate; zero where there is none
	NotAfter  time.Time // the earliest end in its chain; zero where there is none
	Roots     int       // authorities in the bundle
	Changed   time.Time // when the identity in force took effect
	Loads     uint64    // identities that took effect
	Refused   uint64    // different faults that were met since the start
	// Fault is why what was offered last did not take effect, and FaultAt since when; empty and zero while all is well.
	Fault   string
	FaultAt time.Time
}

// errNoCertificate is temporary: the source has none, or not yet.
var errNoCertificate = errors.New("there is no certificate for this identity")

// errClosed is what a closed source answers.
var errClosed = errors.New("the source of this identity is closed")

// material is one certificate with the bundle that it came with. It does not change.
type material struct {
	certificate *tls.Certificate // or nil: withdrawn
	bundle      *Bundle          // never nil
	notAfter    time.Time        // the earliest end of the certificate's chain
}

// newMaterial makes the checks that peers will make, so that a set which they would refuse never takes effect.
func newMaterial(id ID, chain []*x509.Certificate, key crypto.PrivateKey, bundle *Bundle) (*material, error) {
	want := expectation{domain: id.TrustDomain(), role: id.Role(), id: id}
	v, err := verify(chain, bundle, want, time.Now())
	if err != nil {
		if refused, ok := errors.AsType[*RefusedError](err); ok {
			err = refused.Err
		}
		return nil, fmt.Errorf("certificate for %s: %w", id, err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("certificate for %s: its key can't sign", id)
	}
	public, ok := signer.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(chain[0].PublicKey) {
		return nil, fmt.Errorf("certificate for %s: the key belongs to another certificate", id)
	}
	certificate := &tls.Certificate{PrivateKey: key, Leaf: chain[0]}
	for _, c := range chain {
		certificate.Certificate = append(certificate.Certificate, c.Raw)
	}
	return &material{certificate, bundle, v.notAfter}, nil
}

// holder is what all sources have in common: the identity in force, and who waits for the next.
type holder struct {
	id ID

	mu      sync.Mutex
	now     *material     // guarded by mu; nil before the first and after close
	closed  bool          // guarded by mu
	changed chan struct{} // guarded by mu; closed and replaced at each change
	status  Status        // guarded by mu
}

func newHolder(id ID) *holder {
	return &holder{id: id, changed: make(chan struct{}), status: Status{ID: id}}
}

func (h *holder) ID() ID { return h.id }

func (h *holder) Certificate() (*tls.Certificate, error) {
	m, err := h.current()
	switch {
	case err != nil:
		return nil, err
	case m.certificate == nil:
		return nil, errNoCertificate
	case !time.Now().Before(m.notAfter):
		return nil, fmt.Errorf("the certificate for %s expired at %s", h.id, m.notAfter.UTC().Format(time.RFC3339))
	}
	return m.certificate, nil
}

func (h *holder) Bundle() (*Bundle, error) {
	m, err := h.current()
	if err != nil {
		return nil, err
	}
	return m.bundle, nil
}

func (h *holder) current() (*material, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.closed:
		return nil, errClosed
	case h.now == nil:
		return nil, errNoCertificate
	}
	return h.now, nil
}

func (h *holder) Changed() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

func (h *holder) Status() Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.status
}

// inForce returns the Bundle that is in force where it holds the same authorities, and otherwise the given one: where nothing
// changed, peers need not be verified again.
func (h *holder) inForce(b *Bundle) *Bundle {
	if m, err := h.current(); err == nil && sameCertificates(m.bundle.roots, b.roots) {
		return m.bundle
	}
	return b
}

// install makes m the identity in force.
func (h *holder) install(m *material) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = m
	s := &h.status
	s.Serial, s.NotBefore, s.NotAfter = "", time.Time{}, time.Time{}
	if m.certificate != nil {
		s.Serial, s.NotBefore, s.NotAfter = serial(m.certificate.Leaf), m.certificate.Leaf.NotBefore, m.notAfter
		s.Fault, s.FaultAt = "", time.Time{}
	}
	s.Roots, s.Changed = len(m.bundle.roots), time.Now()
	s.Loads++
	h.announceLocked()
}

// fault notes why something did not take effect, and reports whether that is news.
func (h *holder) fault(err error) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.status.Fault == err.Error() {
		return false
	}
	h.status.Fault, h.status.FaultAt = err.Error(), time.Now()
	h.status.Refused++
	return true
}

// well forgets a fault: what is offered now is what is in force.
func (h *holder) well() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status.Fault, h.status.FaultAt = "", time.Time{}
}

// shut makes the source give errors, and tells who waits. It reports whether it was the first call.
func (h *holder) shut() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.closed = true
	h.announceLocked()
	return true
}

func (h *holder) announceLocked() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// Memory is a Source whose owner puts the identity in: for an Edge and a Node in one process, and for tests of what
// uses a Source.
type Memory struct{ *holder }

var _ Source = Memory{}

// NewMemory makes a Source without a certificate, which Set brings. The error is that of an ID that is invalid.
func NewMemory(id ID) (Memory, error) {
	if err := id.Validate(); err != nil {
		return Memory{}, err
	}
	return Memory{newHolder(id)}, nil
}

// Set checks a certificate as peers will, leaf first, and makes it and the bundle the ones in force. After an error the
// old ones stay.
func (m Memory) Set(chain []*x509.Certificate, key crypto.PrivateKey, bundle *Bundle) error {
	next, err := newMaterial(m.id, chain, key, m.inForce(bundle))
	if err != nil {
		m.fault(err)
		return err
	}
	m.install(next)
	return nil
}

// Close makes the Source give errors from then on. It may be called more than once; the error is nil.
func (m Memory) Close() error {
	m.shut()
	return nil
}
