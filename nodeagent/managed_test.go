package nodeagent

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"iop/execution"
	"iop/identity"
	"iop/lease"
	"iop/openai"
	"iop/tunnel"
	"iop/tunnel/wire"
)

// authority issues the certificates of one test.
type authority struct {
	*identity.Authority
	bundle *identity.Bundle
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a, err := identity.InitAuthority(filepath.Join(t.TempDir(), "ca"), "test.example", 0)
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := identity.NewBundle([]*x509.Certificate{a.Certificate()})
	if err != nil {
		t.Fatal(err)
	}
	return &authority{a, bundle}
}

// source is an identity in memory; issue gives it another certificate.
type source struct {
	identity.Memory
	authority *authority
}

func (a *authority) source(t *testing.T, role identity.Role, name string) *source {
	t.Helper()
	id, err := identity.NewID("test.example", role, name)
	if err != nil {
		t.Fatal(err)
	}
	m, err := identity.NewMemory(id)
	if err != nil {
		t.Fatal(err)
	}
	s := &source{m, a}
	t.Cleanup(func() { s.Close() })
	s.issue(t, a.bundle)
	return s
}

func (s *source) issue(t *testing.T, bundle *identity.Bundle) {
	t.Helper()
	issued, err := s.authority.Issue(identity.Request{Role: s.ID().Role(), Name: s.ID().Name()})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(issued.PEM(), issued.KeyPEM())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Set([]*x509.Certificate{issued.Certificate}, pair.PrivateKey, bundle); err != nil {
		t.Fatal(err)
	}
}

// managedEdge is an Edge in managed mode: mutual TLS, its signing keys, a Sealer.
type managedEdge struct {
	edge
	source *source
	sealer *lease.Sealer

	mu      sync.Mutex
	minimum map[string]uint64                        // guarded by mu; replaced, never changed
	last    map[execution.NodeID]*tunnel.NodeSession // guarded by mu
}

func newManagedEdge(t *testing.T, src *source) *managedEdge {
	t.Helper()
	keys, err := lease.NewSigningKeys()
	if err != nil {
		t.Fatal(err)
	}
	sealer, err := lease.NewSealer(lease.SealerConfig{Issuer: lease.Issuer(src.ID()), Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	e := &managedEdge{source: src, sealer: sealer, last: map[execution.NodeID]*tunnel.NodeSession{}}
	e.sessions, e.changed, e.gone = make(chan *tunnel.NodeSession, 16), make(chan *tunnel.NodeSession, 256), make(chan error, 16)
	acceptor, err := tunnel.NewAcceptor(tunnel.AcceptorConfig{
		EdgeID: src.ID().Name(), Directory: e, Logger: slog.New(slog.DiscardHandler), VerificationKeys: keys.Public,
		Config: func(execution.NodeID) *wire.EdgeConfig {
			e.mu.Lock()
			defer e.mu.Unlock()
			return &wire.EdgeConfig{MinimumRevisions: e.minimum}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(acceptor)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = identity.ServerConfig(src, func(*identity.Peer) error { return nil })
	certificates := server.TLS.GetCertificate
	server.StartTLS() // adds a certificate of its own
	server.TLS.Certificates, server.TLS.GetCertificate = nil, certificates
	t.Cleanup(server.Close)
	t.Cleanup(acceptor.Close)
	e.url = server.URL
	return e
}

// Authenticate replaces the edge's: the certificate says who it is.
func (e *managedEdge) Authenticate(r *http.Request) (tunnel.Identity, error) {
	peer, err := identity.NodePeer(r.TLS, e.source)
	if err != nil {
		return tunnel.Identity{}, &tunnel.Refusal{Code: "unauthorized", Message: "no"}
	}
	return tunnel.Identity{Peer: peer.ID.String(), Serial: peer.Serial(), NotAfter: peer.NotAfter()}, nil
}

// Online ends the Node's former session once its runs have finished.
func (e *managedEdge) Online(s *tunnel.NodeSession) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if former := e.last[s.Node()]; former != nil {
		former.Supersede(patience)
	}
	e.last[s.Node()] = s
	e.sessions <- s
}

// raise announces a minimum revision and waits until the Node has it.
func (e *managedEdge) raise(t *testing.T, s *tunnel.NodeSession, slot string, revision uint64) {
	t.Helper()
	e.mu.Lock()
	e.minimum = map[string]uint64{slot: revision}
	e.mu.Unlock()
	if err := s.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func startManaged(t *testing.T, e *managedEdge, src *source, specs ...ProviderSpec) *node {
	t.Helper()
	return startNode(t, Config{Edge: e.url, Identity: src, EdgeID: e.source.ID(), Providers: specs})
}

// leasedRun is a run with a lease as an Edge makes it, for a test to spoil.
type leasedRun struct {
	spec       tunnel.OpenSpec
	binding    lease.Binding
	credential string
	recipient  []byte
	// before is called when the lease is sealed and not yet sent, or nil.
	before func(t *testing.T, id execution.LeaseID)
	token  []byte // what was sent
}

// leased prepares a run at the provider of id "p".
func (e *managedEdge) leased(t *testing.T, s *tunnel.NodeSession, provider ProviderSpec, body string) *leasedRun {
	t.Helper()
	spec := openSpec("p", "m", "chat.completions", body)
	spec.Open.Attempt = 1
	spec.Open.Lease = &wire.LeaseBinding{Principal: "key-1", Route: "route-1", Slot: "slot-1", Profile: "profile-1"}
	id, _ := openai.ParseOp("chat.completions")
	ops := openai.Operations()
	op := ops[slices.IndexFunc(ops, func(o openai.Operation) bool { return o.ID == id })]
	digest, err := lease.RequestDigest(op.Method, op.UpstreamPath, "application/json", sha256.Sum256([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	target, err := lease.ParseTarget(provider.URL)
	if err != nil {
		t.Fatal(err)
	}
	peer := s.Identity().Peer
	return &leasedRun{spec: spec, credential: canary, recipient: s.Recipient(), binding: lease.Binding{
		Audience: lease.Audience(peer), Generation: s.Generation(), Run: execution.RunID(spec.Open.RunId), Attempt: 1,
		Principal: "key-1", Route: "route-1", Slot: "slot-1", Profile: "profile-1", Revision: 3,
		Target: target, Digest: digest, Header: lease.HeaderBearer,
	}}
}

// open dispatches the run; its lease is sealed when the Edge asks for it.
func (l *leasedRun) open(t *testing.T, e *managedEdge, s *tunnel.NodeSession) *tunnel.Run {
	t.Helper()
	if l.spec.Lease == nil {
		l.spec.Lease = func(context.Context) ([]byte, error) { return l.seal(t, e) }
	}
	run, err := s.Open(l.spec)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

func (l *leasedRun) seal(t *testing.T, e *managedEdge) ([]byte, error) {
	secret, err := lease.NewSecret([]byte(l.credential))
	if err != nil {
		return nil, err
	}
	to, err := lease.ParseRecipient(l.recipient)
	if err != nil {
		return nil, err
	}
	token, id, _, err := e.sealer.Seal(l.binding, secret, to)
	if err != nil {
		return nil, err
	}
	if l.before != nil {
		l.before(t, id)
	}
	l.token = token
	return token, nil
}

// slotted makes a provider one that gets its credentials by lease.
func slotted(spec ProviderSpec) ProviderSpec {
	spec.Engine, spec.Models, spec.Slots = OpenAIEngine, []string{"m"}, []string{"slot-*"}
	return spec
}

// echoProvider answers a chat, and counts the calls and the credentials that came with them.
type echoProvider struct {
	ProviderSpec
	mu    sync.Mutex
	calls int
	auth  []string
	hash  [sha256.Size]byte // of the last body
}

func newEchoProvider(t *testing.T) *echoProvider {
	t.Helper()
	p := &echoProvider{}
	p.ProviderSpec = slotted(httpProvider(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		p.mu.Lock()
		defer p.mu.Unlock()
		if r.Method == http.MethodPost {
			p.calls++
			p.auth = append(p.auth, r.Header.Get("Authorization"))
			p.hash = sha256.Sum256(body)
		} else if r.Header.Get("Authorization") != "" {
			p.auth = append(p.auth, "asked with a credential")
		}
		w.Header()["Content-Type"] = jsonType
		io.WriteString(w, unaryAnswer)
	}))
	return p
}

func (p *echoProvider) seen() (calls int, auth string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.calls, strings.Join(p.auth, ",")
}

const chatBody = `{"model":"m","messages":[]}`

// managedRig is an Edge, a Node and a provider with a slot.
type managedRig struct {
	authority *authority
	edge      *managedEdge
	source    *source // the Node's
	node      *node
	session   *tunnel.NodeSession
	provider  *echoProvider
}

func newManagedRig(t *testing.T) *managedRig {
	t.Helper()
	r := &managedRig{authority: newAuthority(t), provider: newEchoProvider(t)}
	r.edge = newManagedEdge(t, r.authority.source(t, identity.RoleEdge, "edge-1"))
	r.source = r.authority.source(t, identity.RoleNode, "node-1")
	r.node = startManaged(t, r.edge, r.source, r.provider.ProviderSpec)
	r.session = r.edge.session(t)
	return r
}

func (r *managedRig) leased(t *testing.T, body string) *leasedRun {
	t.Helper()
	return r.edge.leased(t, r.session, r.provider.ProviderSpec, body)
}

// refused runs a run that must fail for that reason, without a call of the provider and without a word of the reason
// outside.
func (r *managedRig) refused(t *testing.T, l *leasedRun, reason lease.Reason) {
	t.Helper()
	before, _ := r.provider.seen()
	count := r.node.Leases().Rejected(reason)
	head, _, end := finish(t, l.open(t, r.edge, r.session))
	if end.Outcome != execution.Failed || end.Code != execution.CodeCredentialRejected || head != nil || end.Detail != rejectedDetail {
		t.Errorf("ended %+v with head %v, want credential_rejected and no more", end, head)
	}
	if calls, _ := r.provider.seen(); calls != before {
		t.Error("the provider was called")
	}
	if got := r.node.Leases().Rejected(reason); got != count+1 {
		t.Errorf("%d rejected as %s, want %d; log:\n%s", got, reason, count+1, r.node.logs)
	}
	if logs := r.node.logs.String(); !strings.Contains(logs, "reason="+reason.String()) || strings.Contains(logs, canary) {
		t.Errorf("the log should have the reason %s and no credential:\n%s", reason, logs)
	}
}

// TestLeasedRun is the whole way: small and large bodies, whose credential reaches the provider and nobody else.
func TestLeasedRun(t *testing.T) {
	r := newManagedRig(t)
	for _, size := range []int{0, 100, 70 << 10, 3 << 20} {
		body := chatBody + strings.Repeat(" ", size)
		head, answer, end := finish(t, r.leased(t, body).open(t, r.edge, r.session))
		if end.Outcome != execution.Completed || head.GetStatus() != 200 || answer != unaryAnswer {
			t.Fatalf("%d bytes: %+v, %v, %s\n%s", size, end, head, answer, r.node.logs)
		}
		if r.provider.hash != sha256.Sum256([]byte(body)) {
			t.Errorf("%d bytes: the provider got another body", size)
		}
	}
	if calls, auth := r.provider.seen(); calls != 4 || auth != strings.TrimSuffix(strings.Repeat("Bearer "+canary+",", 4), ",") {
		t.Errorf("%d calls with %s", calls, auth)
	}
	if r.node.Leases().Opened() != 4 || strings.Contains(r.node.logs.String(), canary) {
		t.Errorf("%d opened, log:\n%s", r.node.Leases().Opened(), r.node.logs)
	}
}

// TestRotation: a new certificate brings a new session with a new key, and a stream goes on over the old one.
func TestRotation(t *testing.T) {
	r := newManagedRig(t)
	next := make(chan string)
	spec := httpProvider(t, func(w http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodPost {
			return
		}
		for s := range next {
			io.WriteString(w, s)
			w.(http.Flusher).Flush()
		}
	})
	r.node.stop()
	await(t, "the first Node to stop", r.node.done)
	r.node = startManaged(t, r.edge, r.source, slotted(spec))
	old := r.edge.session(t)
	l := r.edge.leased(t, old, spec, `{"model":"m","stream":true}`)
	run := l.open(t, r.edge, old)
	next <- firstChunk
	serial := r.source.Status().Serial
	r.source.issue(t, r.authority.bundle)
	s := r.edge.session(t)
	if s.Identity().Serial == serial || s.Generation() <= old.Generation() || string(s.Recipient()) == string(old.Recipient()) {
		t.Errorf("the new session has serial %s, generation %d", s.Identity().Serial, s.Generation())
	}
	next <- lastChunk + doneEvent
	close(next)
	if _, answer, end := finish(t, run); end.Outcome != execution.Completed || answer != firstChunk+lastChunk+doneEvent {
		t.Errorf("the stream ended %+v: %s", end, answer)
	}
	select {
	case <-old.Done():
	case <-time.After(patience):
		t.Error("the old session stays")
	}
}

// TestAuthorityLeaves: the Node closes the session of an Edge whose authority it believes no longer.
func TestAuthorityLeaves(t *testing.T) {
	r := newManagedRig(t)
	other := newAuthority(t)
	both, err := identity.NewBundle(append(other.bundle.Roots(), r.authority.bundle.Roots()...))
	if err != nil {
		t.Fatal(err)
	}
	r.source.issue(t, both) // a rotation begins; both authorities are believed
	s := r.edge.session(t)
	r.source.authority = other
	r.source.issue(t, other.bundle)
	select {
	case <-s.Done():
	case <-time.After(patience):
		t.Fatal("the session stays")
	}
	eventually(t, "the log to say so", func() bool {
		return strings.Contains(r.node.logs.String(), "no longer trusted")
	})
}

// TestManagedConfig: no part of token mode is accepted beside an identity.
func TestManagedConfig(t *testing.T) {
	a := newAuthority(t)
	src, other := a.source(t, identity.RoleNode, "node-1"), a.source(t, identity.RoleEdge, "edge-1")
	good := Config{Edge: "wss://h", Identity: src, EdgeID: other.ID(), Logger: slog.New(slog.DiscardHandler)}
	n, err := New(good)
	if err != nil || n.cfg.Name != "node-1" {
		t.Fatalf("%v, named %q", err, n.cfg.Name)
	}
	for want, spoil := range map[string]func(*Config){
		"must be a Node's":           func(c *Config) { c.Identity = other },
		"Edge's ID is required":      func(c *Config) { c.EdgeID = "" },
		"own trust domain":           func(c *Config) { c.EdgeID = "spiffe://sub.test.example/edge/edge-1" },
		"that of its certificate":    func(c *Config) { c.Name = "node-2" },
		"join token":                 func(c *Config) { c.JoinToken = func() (string, error) { return "", nil } },
		"no other TLS configuration": func(c *Config) { c.TLS = &tls.Config{} },
		"wss://":                     func(c *Config) { c.Edge = "http://h" },
		"needs a certificate":        func(c *Config) { c.Identity = nil; c.Name = "n" },
	} {
		c := good
		if spoil(&c); c.Identity == nil {
			c.Edge = "ws://h"
		}
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	t.Setenv("GODEBUG", "http2debug=1")
	if _, err := New(good); err == nil || !strings.Contains(err.Error(), "http2debug") {
		t.Errorf("with http2debug: %v", err)
	}
}
