package nodeagent

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"iop/execution"
	"iop/identity"
	"iop/lease"
	"iop/tunnel"
	"iop/tunnel/wire"
)

// loanedRun is a run without a tunnel that brings a real lease.
type loanedRun struct{ *fakeRun }

// loans seals leases for one keeper, as the Edge of its session would.
type loans struct {
	keeper *keeper
	sealer *lease.Sealer
	to     *lease.RecipientPublic
	target lease.Target
}

const (
	testIssuer   = lease.Issuer("spiffe://test.example/edge/edge-1")
	testAudience = lease.Audience("spiffe://test.example/node/node-1")
)

func newLoans(t testing.TB, a *Agent, spec ProviderSpec) *loans {
	t.Helper()
	keys, err := lease.NewSigningKeys()
	if err != nil {
		t.Fatal(err)
	}
	a.stopping, a.stop = context.WithCancelCause(context.Background())
	made, err := a.newKeeper()
	if err != nil {
		t.Fatal(err)
	}
	l := &loans{keeper: made.(*keeper)}
	now := time.Now()
	l.keeper.clock.Observe(now, now, now)
	if err := l.keeper.take(&wire.EdgeConfig{}, keys.Public()); err != nil {
		t.Fatal(err)
	}
	l.keeper.opener, err = lease.NewOpener(lease.OpenerConfig{
		Issuer: testIssuer, Audience: testAudience, Generation: 1, Recipient: l.keeper.recipient, Clock: &l.keeper.clock,
		Keys:            func() lease.KeySet { return *l.keeper.keys.Load() },
		MinimumRevision: l.keeper.minimumRevision, Policy: a.knows, Counters: &a.leases.counters,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.keeper.Ended)
	if l.sealer, err = lease.NewSealer(lease.SealerConfig{Issuer: testIssuer, Keys: keys}); err != nil {
		t.Fatal(err)
	}
	if l.to, err = lease.ParseRecipient(l.keeper.Recipient()); err != nil {
		t.Fatal(err)
	}
	if l.target, err = lease.ParseTarget(spec.URL); err != nil {
		t.Fatal(err)
	}
	return l
}

// lend seals the lease of a chat.
func (l *loans) lend(t testing.TB, open *wire.Open, body []byte) []byte {
	t.Helper()
	digest, err := lease.RequestDigest("POST", "/v1/chat/completions", "application/json", sha256.Sum256(body))
	if err != nil {
		t.Fatal(err)
	}
	return l.lendDigest(t, open, digest)
}

// lendDigest seals the lease of a run that is bound to a digest.
func (l *loans) lendDigest(t testing.TB, open *wire.Open, digest lease.Digest) []byte {
	t.Helper()
	open.ExpectsLease, open.Attempt = true, 1
	open.Lease = &wire.LeaseBinding{Principal: "key-1", Route: "route-1", Slot: "slot-1", Profile: "profile-1"}
	secret, err := lease.NewSecret([]byte(canary))
	if err != nil {
		t.Fatal(err)
	}
	token, _, _, err := l.sealer.Seal(lease.Binding{
		Audience: testAudience, Generation: 1, Run: execution.RunID(open.GetRunId()), Attempt: 1, Principal: "key-1",
		Route: "route-1", Slot: "slot-1", Profile: "profile-1", Revision: 1, Target: l.target, Digest: digest, Header: lease.HeaderBearer,
	}, secret, l.to)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func newLoanedRun(t testing.TB, a *Agent, spec ProviderSpec, stream bool) *loanedRun {
	t.Helper()
	r := &loanedRun{chatRun(stream)}
	r.open.RunId = string(execution.NewRunID())
	l := newLoans(t, a, spec)
	r.keeper, r.lease = l.keeper, l.lend(t, r.open, r.body)
	return r
}

// tls13 shakes hands with a server.
func tls13(t *testing.T, url string, config *tls.Config) (*tls.Conn, error) {
	t.Helper()
	raw, err := net.Dial("tcp", strings.TrimPrefix(url, "https://"))
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, config)
	return conn, conn.HandshakeContext(t.Context())
}

// bounce is an Edge by its certificate that sends everybody elsewhere.
func bounce(t *testing.T, src identity.Source, to string) string {
	t.Helper()
	s := httptest.NewUnstartedServer(http.RedirectHandler(to, http.StatusTemporaryRedirect))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.TLS = identity.ServerConfig(src, func(*identity.Peer) error { return nil })
	certificates := s.TLS.GetCertificate
	s.StartTLS()
	s.TLS.Certificates, s.TLS.GetCertificate = nil, certificates
	t.Cleanup(s.Close)
	return s.URL
}

// lentRun is a nullRun with a lease.
type lentRun struct {
	*nullRun
	keeper *keeper
	token  []byte
}

func (r *lentRun) Keeper() tunnel.Keeper                 { return r.keeper }
func (r *lentRun) Lease(context.Context) ([]byte, error) { return r.token, nil }

// BenchmarkUnaryLeased is BenchmarkUnary with a lease; the sealing at the Edge is a part of it.
func BenchmarkUnaryLeased(b *testing.B) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header()["Content-Type"] = jsonType
		io.WriteString(w, unaryAnswer)
	}))
	b.Cleanup(s.Close)
	spec := slotted(ProviderSpec{ID: "p", URL: s.URL, Capacity: 256})
	a := testAgent(b, spec)
	l := newLoans(b, a, spec)
	chat := benchRun(false)
	r := &lentRun{nullRun: chat, keeper: l.keeper}
	b.ReportAllocs()
	for b.Loop() {
		r.open.RunId = string(execution.NewRunID())
		r.token = l.lend(b, r.open, r.body)
		if a.serve(context.Background(), r); r.end.Outcome != execution.Completed {
			b.Fatal(r.end)
		}
	}
}
