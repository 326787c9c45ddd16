package credential

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"crypto/x509"
	"encoding/pem"

	"go.uber.org/goleak"

	"iop/execution"
	"iop/gateway/registry"
	"iop/identity"
	"iop/lease"
	"iop/state"
	"iop/tunnel"
	"iop/tunnel/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const canary = "sk-canary-1234567"

var errBroken = errors.New("the disk is gone")

// fakeState is a state with one slot. Its fields are the answers.
type fakeState struct {
	mu       sync.Mutex
	slot     state.Slot
	gone     bool
	profile  state.Profile
	secret   string
	credErr  error
	allow    state.NodeAllow
	allowErr error
	key      state.Key
	keyErr   error
	auditErr error
	audit    []state.AuditEntry
	asked    func() // in the middle of OpenCredentialAt, once
}

func (s *fakeState) OpenCredentialAt(context.Context, state.Moment, execution.SlotName) (state.Credential, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cred := state.Credential{Slot: s.slot.Name, Profile: s.profile, Revision: s.slot.Revision, Secret: state.NewSecret(s.secret)}
	err := s.credErr
	switch {
	case err != nil:
	case s.slot.Revoked:
		err = &state.CredentialError{Slot: s.slot.Name, Reason: state.CredentialRevoked}
	case !s.slot.Enabled:
		err = &state.CredentialError{Slot: s.slot.Name, Reason: state.CredentialDisabled}
	}
	if asked := s.asked; asked != nil {
		s.asked = nil
		s.mu.Unlock()
		asked()
		s.mu.Lock()
	}
	return cred, err
}

func (s *fakeState) NodeAllowedAt(context.Context, state.Moment, execution.NodeID, state.CertificateSerial) (state.NodeAllow, error) {
	return s.allow, s.allowErr
}
func (s *fakeState) KeyAt(context.Context, state.Moment, state.KeyID) (state.Key, error) {
	return s.key, s.keyErr
}

func (s *fakeState) Moment(context.Context) state.Moment { return state.Moment{} }

func (s *fakeState) Slots(context.Context) ([]state.Slot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil, nil
	}
	return []state.Slot{s.slot}, nil
}

func (s *fakeState) Profiles(context.Context) ([]state.Profile, error) {
	return []state.Profile{s.profile}, nil
}

func (s *fakeState) SlotRevisions(context.Context) (map[execution.SlotName]execution.Revision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return map[execution.SlotName]execution.Revision{s.slot.Name: s.slot.Revision}, nil
}

func (s *fakeState) AuditLease(e state.AuditEntry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.auditErr == nil {
		s.audit = append(s.audit, e)
	}
	return s.auditErr
}

func (s *fakeState) change(f func(*state.Slot)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.slot)
	s.slot.Revision++
}

// fakeSessions has one session.
type fakeSessions struct {
	holder registry.Holder
	gone   bool
	allow  state.NodeAllow
	silent bool // acknowledges nothing

	mu        sync.Mutex
	revoked   []*wire.Revoke
	refreshes int
}

func (s *fakeSessions) Holder(execution.NodeID, execution.Generation) (registry.Holder, error) {
	if s.gone {
		return registry.Holder{}, registry.ErrGone
	}
	return s.holder, nil
}

func (s *fakeSessions) Permits(execution.NodeID) (state.NodeAllow, bool) { return s.allow, true }

func (s *fakeSessions) Revoke(ctx context.Context, _ execution.NodeID, _ execution.Generation, what *wire.Revoke) error {
	s.mu.Lock()
	s.revoked = append(s.revoked, what)
	s.mu.Unlock()
	if s.silent {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (s *fakeSessions) Refresh(context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refreshes++
}

// world is an Issuer among fakes.
type world struct {
	*Issuer
	t         testing.TB
	state     *fakeState
	sessions  *fakeSessions
	src       identity.Memory
	log       *strings.Builder
	cancelled int
}

// member makes an identity in memory, and its certificate.
func member(t testing.TB, ca *identity.Authority, bundle *identity.Bundle, role identity.Role, name string) (identity.Memory, *x509.Certificate) {
	t.Helper()
	id, err := identity.NewID("iop.test", role, name)
	check(t, err)
	issued, err := ca.Issue(identity.Request{Role: role, Name: name, TTL: time.Hour})
	check(t, err)
	block, _ := pem.Decode(issued.KeyPEM())
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	check(t, err)
	src, err := identity.NewMemory(id)
	check(t, err)
	check(t, src.Set([]*x509.Certificate{issued.Certificate}, key, bundle))
	return src, issued.Certificate
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newWorld(t testing.TB) *world {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ca")
	ca, err := identity.InitAuthority(dir, "iop.test", 0)
	check(t, err)
	bundle, err := identity.ReadAuthorityBundle(dir)
	check(t, err)
	src, _ := member(t, ca, bundle, identity.RoleEdge, "edge-1")
	_, leaf := member(t, ca, bundle, identity.RoleNode, "n1")
	peer := verifiedPeer(t, src, leaf)
	recipient, err := lease.NewRecipient()
	check(t, err)
	public, err := lease.ParseRecipient(recipient.PublicJWK())
	check(t, err)
	allow := state.NodeAllow{Node: "n1", Profiles: []string{"*"}, Slots: []string{"s*"}}
	w := &world{
		t: t, src: src, log: &strings.Builder{},
		state: &fakeState{
			slot: state.Slot{Name: "slot", Profile: "p", Revision: 1, Enabled: true}, secret: canary, allow: allow,
			profile: state.Profile{Name: "p", Header: state.HeaderXAPIKey, BaseURLs: []string{"https://a.example"}},
		},
		sessions: &fakeSessions{holder: registry.Holder{Peer: peer, Serial: "1", Recipient: public}, allow: allow},
	}
	keys, err := lease.NewSigningKeys()
	check(t, err)
	w.Issuer, err = New(t.Context(), Config{
		Store: w.state, Sessions: w.sessions, Identity: src, Keys: keys, Logger: slog.New(slog.NewTextHandler(io.Writer(w.log), nil)),
	})
	check(t, err)
	return w
}

func (w *world) use() Use {
	return Use{
		Node: "n1", Generation: 1, Run: "run_1", Attempt: 1, Principal: "team", Key: "k1", Route: "m", Slot: "slot",
		Method: "POST", Path: "/v1/chat/completions", ContentType: "application/json", Body: []byte("{}"),
		Cancel: func() { w.cancelled++ },
	}
}

// ask returns the reason why there is no lease; 0: there is one.
func (w *world) ask(use Use) Reason {
	w.t.Helper()
	g, err := w.Begin(use)
	var token []byte
	if err == nil {
		defer g.End(execution.CodeNone)
		token, err = g.Lease(w.t.Context())
	}
	var refused *RefusedError
	switch {
	case err == nil && len(token) > 0:
		return 0
	case errors.As(err, &refused) && token == nil:
		if strings.Contains(err.Error()+w.log.String(), canary) {
			w.t.Error("the credential was told")
		}
		return refused.Reason
	}
	w.t.Fatalf("%d bytes and the error %v", len(token), err)
	return 0
}

// TestFence: whatever says no, or can't be asked, there is no lease, and the reason is told to the operator alone.
//
// Some rows were seen to fail with their case taken out of fence, holder, caller, addressOf, Begin or seal; not all.
func TestFence(t *testing.T) {
	refusedSlot := func(r state.CredentialReason) func(*world, *Use) {
		return func(w *world, _ *Use) { w.state.credErr = &state.CredentialError{Slot: "slot", Reason: r} }
	}
	past := time.Now().Add(-time.Second)
	for name, test := range map[string]struct {
		change func(*world, *Use)
		want   Reason
	}{
		"as it should be":   {func(*world, *Use) {}, 0},
		"no key asked for":  {func(w *world, u *Use) { u.Key, w.state.keyErr = "", errBroken }, 0},
		"the profile named": {func(_ *world, u *Use) { u.Profile = "p" }, 0},
		"the address named": {func(w *world, u *Use) {
			u.BaseURL, w.state.profile.BaseURLs = "https://b.example", []string{"https://a.example", "https://b.example"}
		}, 0},
		"own identity gone":     {func(w *world, _ *Use) { _ = w.src.Close() }, ReasonOwnIdentity},
		"authority left":        {func(w *world, _ *Use) { w.otherAuthority() }, ReasonPeerIdentity},
		"node denied":           {func(w *world, _ *Use) { w.state.allowErr = state.ErrNodeDenied }, ReasonNodeDenied},
		"node not listed":       {func(w *world, _ *Use) { w.state.allowErr = state.ErrNodeNotAllowed }, ReasonNodeNotAllowed},
		"lists not readable":    {func(w *world, _ *Use) { w.state.allowErr = errBroken }, ReasonState},
		"other slots":           {func(w *world, _ *Use) { w.state.allow.Slots = []string{"x*"} }, ReasonNotPermitted},
		"other profiles":        {func(w *world, _ *Use) { w.state.allow.Profiles = nil }, ReasonNotPermitted},
		"key revoked":           {func(w *world, _ *Use) { w.state.key.RevokedAt = past }, ReasonKeyRevoked},
		"key expired":           {func(w *world, _ *Use) { w.state.key.Expires = past }, ReasonKeyRevoked},
		"key gone":              {func(w *world, _ *Use) { w.state.keyErr = state.ErrNotFound }, ReasonKeyRevoked},
		"key not readable":      {func(w *world, _ *Use) { w.state.keyErr = errBroken }, ReasonState},
		"slot unknown at start": {func(_ *world, u *Use) { u.Slot = "slit" }, ReasonUnknownSlot},
		"slot deleted":          {refusedSlot(state.CredentialUnknownSlot), ReasonUnknownSlot},
		"slot disabled":         {refusedSlot(state.CredentialDisabled), ReasonSlotDisabled},
		"slot revoked":          {refusedSlot(state.CredentialRevoked), ReasonSlotRevoked},
		"no master key":         {refusedSlot(state.CredentialNoMasterKey), ReasonNoMasterKey},
		"unknown master key":    {refusedSlot(state.CredentialUnknownMasterKey), ReasonUnknownMasterKey},
		"row damaged":           {refusedSlot(state.CredentialDamaged), ReasonSlotDamaged},
		"slot not readable":     {func(w *world, _ *Use) { w.state.credErr = errBroken }, ReasonState},
		"another profile named": {func(_ *world, u *Use) { u.Profile = "q" }, ReasonProfile},
		"profile changed":       {func(w *world, _ *Use) { w.state.profile.Name = "q" }, ReasonProfile},
		"several addresses":     {func(w *world, _ *Use) { w.state.profile.BaseURLs = []string{"https://a.example", "https://b.example"} }, ReasonTarget},
		"another address":       {func(_ *world, u *Use) { u.BaseURL = "https://evil.example" }, ReasonTarget},
		"audit full":            {func(w *world, _ *Use) { w.state.auditErr = state.ErrAuditFull }, ReasonAudit},
		"no header's value":     {func(w *world, _ *Use) { w.state.secret = "a\r\nb" }, ReasonSeal},
		"a path with a line":    {func(_ *world, u *Use) { u.Path = "/v1\n" }, ReasonSeal},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			use := w.use()
			test.change(w, &use)
			if got := w.ask(use); got != test.want {
				t.Errorf("refused as %q, want %q", got, test.want)
			}
			if test.want != 0 && (w.Refused(test.want) != 1 || w.Issued() != 0) {
				t.Errorf("%d issued, %d refused as %s", w.Issued(), w.Refused(test.want), test.want)
			}
			if w.state.auditErr == nil && (len(w.state.audit) != 1 || w.state.audit[0].Reason != test.want.String()) {
				t.Errorf("the audit has %+v", w.state.audit)
			}
		})
	}
}

func (w *world) otherAuthority() {
	dir := filepath.Join(w.t.TempDir(), "other")
	ca, err := identity.InitAuthority(dir, "iop.test", 0)
	check(w.t, err)
	bundle, err := identity.ReadAuthorityBundle(dir)
	check(w.t, err)
	issued, err := ca.Issue(identity.Request{Role: identity.RoleEdge, Name: "edge-1", TTL: time.Hour})
	check(w.t, err)
	block, _ := pem.Decode(issued.KeyPEM())
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	check(w.t, err)
	check(w.t, w.src.Set([]*x509.Certificate{issued.Certificate}, key, bundle))
}

// A session that has ended is no refusal: the run may be dispatched again.
func TestSessionGone(t *testing.T) {
	w := newWorld(t)
	w.sessions.gone = true
	g, err := w.Begin(w.use())
	check(t, err)
	defer g.End(execution.CodeNone)
	if _, err := g.Lease(t.Context()); !errors.Is(err, tunnel.ErrSuperseded) {
		t.Errorf("got %v", err)
	}
	if len(w.state.audit) > 0 {
		t.Errorf("the audit has %+v", w.state.audit)
	}
}

// TestThreat19RevokedWhileIssuing: a slot is revoked between the look at it and the seal. Who has looked before looks again.
//
// Seen to fail with the comparison of epochs taken out of enter: the lease was issued.
func TestThreat19RevokedWhileIssuing(t *testing.T) {
	w := newWorld(t)
	w.state.asked = func() {
		w.state.change(func(s *state.Slot) { s.Revoked = true })
		done, err := w.SlotChanged(t.Context(), "slot")
		if err != nil || !done.Until.IsZero() {
			t.Errorf("%+v, %v", done, err)
		}
	}
	if got := w.ask(w.use()); got != ReasonSlotRevoked {
		t.Errorf("refused as %q", got)
	}
}

// A rotation lets leases of the former value end by themselves, and then raises the least revision.
func TestRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ctx, stop := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer stop()
		go w.Run(ctx)
		if got := w.ask(w.use()); got != 0 {
			t.Fatalf("refused as %q", got)
		}
		end := w.state.audit[0].Expires
		w.state.change(func(*state.Slot) {})
		done, err := w.SlotChanged(ctx, "slot")
		check(t, err)
		if !done.Until.Equal(end) || done.Runs != 0 || w.cancelled != 0 {
			t.Errorf("the rotation says %+v, the lease ends %s", done, end)
		}
		least := func() uint64 { return w.Minimums("n1").MinimumRevisions["slot"] }
		time.Sleep(time.Until(end))
		if least() != 1 {
			t.Error("the least revision has risen while a lease may be used")
		}
		time.Sleep(lease.Leeway + time.Millisecond)
		synctest.Wait()
		if least() != 2 || w.sessions.refreshes == 0 || len(w.sessions.revoked) > 0 {
			t.Errorf("least revision %d, %d tellings, revoked %v", least(), w.sessions.refreshes, w.sessions.revoked)
		}
	})
}

// What another process does to a slot is found out, and withdrawn as well; the answer to a silent Node is honest, also
// for leases of runs that have ended.
func TestDisabledElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.sessions.silent = true
		ctx, stop := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer stop()
		go w.Run(ctx)
		if got := w.ask(w.use()); got != 0 { // and its run has ended
			t.Fatalf("refused as %q", got)
		}
		end := w.state.audit[0].Expires
		w.state.change(func(s *state.Slot) { s.Enabled = false })
		time.Sleep(syncEvery + ackWait + time.Second)
		synctest.Wait()
		if len(w.sessions.revoked) != 1 || w.sessions.revoked[0].BelowRevision != 2 || w.Minimums("n1").MinimumRevisions["slot"] != 2 {
			t.Fatalf("told: %v, least revisions %v", w.sessions.revoked, w.Minimums("n1"))
		}
		done, err := w.SlotChanged(ctx, "slot")
		check(t, err)
		if !done.Until.Equal(end) {
			t.Errorf("the answer is %+v, the lease ends %s", done, end)
		}
		time.Sleep(time.Until(end))
		if done, err = w.SlotChanged(ctx, "slot"); err != nil || !done.Until.IsZero() {
			t.Errorf("after its end the answer is %+v, %v", done, err)
		}
	})
}

// A deleted slot is withdrawn as a revoked one.
func TestDeleted(t *testing.T) {
	w := newWorld(t)
	g, err := w.Begin(w.use())
	check(t, err)
	defer g.End(execution.CodeNone)
	if _, err := g.Lease(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.state.change(func(*state.Slot) { w.state.gone = true })
	done, err := w.SlotChanged(t.Context(), "slot")
	if err != nil || done.Runs != 1 || done.Leases != 1 || w.cancelled != 1 || len(w.sessions.revoked) != 1 {
		t.Errorf("%+v, %v; %d cancelled, told %v", done, err, w.cancelled, w.sessions.revoked)
	}
}

// A Node is told of the slots that it may have and of no others.
func TestMinimumsConcernTheNode(t *testing.T) {
	w := newWorld(t)
	if got := w.Minimums("n1").MinimumRevisions; len(got) != 1 || got["slot"] != 1 {
		t.Errorf("told: %v", got)
	}
	w.sessions.allow.Slots = []string{"other"}
	if got := w.Minimums("n1").MinimumRevisions; len(got) != 0 {
		t.Errorf("told: %v", got)
	}
}

// Leases that nobody waits for leave nothing behind.
func TestEndedGrant(t *testing.T) {
	w := newWorld(t)
	g, err := w.Begin(w.use())
	check(t, err)
	g.End(execution.CodeClientGone)
	if token, err := g.Lease(t.Context()); token != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("%d bytes, %v", len(token), err)
	}
	if len(w.live) > 0 {
		t.Errorf("%d are live", len(w.live))
	}
}

func BenchmarkLease(b *testing.B) {
	w := newWorld(b)
	for b.Loop() {
		if got := w.ask(w.use()); got != 0 {
			b.Fatal(got)
		}
		w.state.audit = w.state.audit[:0]
	}
}
