package nodeagent

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"iop/execution"
	"iop/identity"
	"iop/lease"
	"iop/tunnel"
	"iop/tunnel/wire"
)

// The tests of this file are named after the threats that they stand for. Each was seen to fail without the check that
// its comment names.

// TestNodeReplayThreat01: a lease that comes again, with a run of the same id, is refused. Without the replay cache of
// lease.Opener the second run completes.
func TestNodeReplayThreat01(t *testing.T) {
	r := newManagedRig(t)
	first := r.leased(t, chatBody)
	if _, _, end := finish(t, first.open(t, r.edge, r.session)); end.Outcome != execution.Completed {
		t.Fatalf("%+v", end)
	}
	again := r.leased(t, chatBody)
	again.spec.Open.RunId = first.spec.Open.RunId
	again.spec.Lease = func(context.Context) ([]byte, error) { return first.token, nil }
	r.refused(t, again, lease.ReasonReplay)
}

// TestNodeBindingThreat03 spoils one part of the binding after the other, the key of another Node among them. Without a
// part of loan.expectation, or with the Recipient of one session in all, its case completes.
func TestNodeBindingThreat03(t *testing.T) {
	r := newManagedRig(t)
	other, err := lease.NewRecipient()
	if err != nil {
		t.Fatal(err)
	}
	for reason, spoil := range map[lease.Reason]func(*leasedRun){
		lease.ReasonRecipientKey:  func(l *leasedRun) { l.recipient = other.PublicJWK() },
		lease.ReasonAudience:      func(l *leasedRun) { l.binding.Audience = "spiffe://test.example/node/node-2" },
		lease.ReasonGeneration:    func(l *leasedRun) { l.binding.Generation++ },
		lease.ReasonRun:           func(l *leasedRun) { l.binding.Run = execution.NewRunID() },
		lease.ReasonAttempt:       func(l *leasedRun) { l.binding.Attempt++ },
		lease.ReasonPrincipal:     func(l *leasedRun) { l.binding.Principal = "key-2" },
		lease.ReasonRoute:         func(l *leasedRun) { l.binding.Route = "route-2" },
		lease.ReasonSlot:          func(l *leasedRun) { l.binding.Slot = "slot-2" },
		lease.ReasonProfile:       func(l *leasedRun) { l.binding.Profile = "profile-2" },
		lease.ReasonTarget:        func(l *leasedRun) { l.binding.Target += "/other" },
		lease.ReasonRequestDigest: func(l *leasedRun) { l.binding.Digest[7]++ },
		lease.ReasonMalformed: func(l *leasedRun) {
			l.spec.Lease = func(context.Context) ([]byte, error) { return []byte("a..b.c d.e"), nil }
		},
	} {
		t.Run(reason.String(), func(t *testing.T) {
			l := r.leased(t, chatBody)
			spoil(l)
			r.refused(t, l, reason)
		})
	}
	if _, _, end := finish(t, r.leased(t, chatBody).open(t, r.edge, r.session)); end.Outcome != execution.Completed {
		t.Errorf("the Node does not live on: %+v", end)
	}
}

// TestNodeSwappedBodyThreat24: a body that is not the one of the lease goes nowhere. With another body's hash in
// loan.expectation, say that of the announced one, it would.
func TestNodeSwappedBodyThreat24(t *testing.T) {
	r := newManagedRig(t)
	l := r.leased(t, chatBody)
	l.spec.Body = []byte(strings.Replace(chatBody, "[]", "{}", 1))
	r.refused(t, l, lease.ReasonRequestDigest)
	l = r.leased(t, chatBody)
	l.spec.Open.GetProviderTunnel().Headers[0].Value = "text/plain"
	r.refused(t, l, lease.ReasonRequestDigest)
}

// TestNodeHeadersThreat42: what a client sends beside the lease, by whatever header, does not reach the provider, and
// what could split a header is refused (threat 38). Without requestHeaders' list it fails.
func TestNodeHeadersThreat42(t *testing.T) {
	got := make(chan http.Header, 1)
	spec := slotted(httpProvider(t, func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header
		io.WriteString(w, unaryAnswer)
	}))
	a := testAgent(t, spec)
	r := newLoanedRun(t, a, spec, false)
	for _, name := range []string{"authorization", "x-api-key", "api-key", "x-iop-lease", "cookie", "host", "connection", "proxy-authorization", "x-forwarded-for", "upgrade"} {
		r.req().Headers = append(r.req().Headers, hdr(name, "evil"))
	}
	if end := serveNow(t, a, r.fakeRun); end.Outcome != execution.Completed {
		t.Fatalf("%+v", end)
	}
	for name, values := range <-got {
		if strings.Contains(fmt.Sprint(values), "evil") || name == "Authorization" && fmt.Sprint(values) != "[Bearer "+canary+"]" {
			t.Errorf("%s: %q", name, values)
		}
	}
	r = newLoanedRun(t, a, spec, false)
	r.req().Headers = append(r.req().Headers, hdr("user-agent", "x\r\nAuthorization: evil"))
	if end := serveNow(t, a, r.fakeRun); end.Code != execution.CodeBadRequest || a.leases.Opened() != 1 {
		t.Errorf("a split header: %+v", end)
	}
}

// TestNodeTargetThreat43: nothing in a request chooses where the credential goes. The lease names the address, and it
// must be the one of the provider's specification: without Target in loan.expectation another is accepted (threat 3).
func TestNodeTargetThreat43(t *testing.T) {
	elsewhere := newEchoProvider(t)
	r := newManagedRig(t)
	body := fmt.Sprintf(`{"model":"m","api_base":%q,"base_url":%q,"target":%q}`, elsewhere.URL, elsewhere.URL, elsewhere.URL)
	if _, _, end := finish(t, r.leased(t, body).open(t, r.edge, r.session)); end.Outcome != execution.Completed {
		t.Errorf("%+v", end)
	}
	l := r.edge.leased(t, r.session, elsewhere.ProviderSpec, body)
	r.refused(t, l, lease.ReasonTarget)
	if calls, _ := elsewhere.seen(); calls != 0 {
		t.Error("the credential went elsewhere")
	}
}

// TestNodeHugeAnswerThreat49: a head that is too long, and one that never comes, end the call. Without
// MaxResponseHeaderBytes and without the watch they would not.
func TestNodeHugeAnswerThreat49(t *testing.T) {
	if end, _ := answered(t, false, json200+"X-Junk: "+strings.Repeat("x", maxResponseHeaderBytes)+"\r\n\r\n{}", 1<<20); end.Code != execution.CodeResponseTooLarge {
		t.Errorf("a long head: %+v", end)
	}
	spec := slotted(rawProvider(t, func(c net.Conn, _ *http.Request) { io.Copy(io.Discard, c) }))
	a := testAgent(t, spec)
	r := newLoanedRun(t, a, spec, false)
	r.req().FirstByteTimeoutMs = 20
	if end := serveNow(t, a, r.fakeRun); end.Code != execution.CodeProviderTimeout {
		t.Errorf("no head: %+v", end)
	}
}

// TestLeasedCallIsSentOnce: a connection that closes under the request makes it fail, where net/http would send it a
// second time without a lease. With again true in attachBody the provider sees it twice.
func TestLeasedCallIsSentOnce(t *testing.T) {
	calls := make(chan string, 8)
	spec := slotted(httpProvider(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		calls <- r.RemoteAddr
		if len(calls) == 1 {
			io.WriteString(w, unaryAnswer)
			return
		}
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			conn.Close()
		}
	}))
	a := testAgent(t, spec)
	l := newLoans(t, a, spec)
	for i, want := range []execution.Outcome{execution.Completed, execution.Failed} {
		r := chatRun(false)
		r.open.RunId = string(execution.NewRunID())
		r.keeper, r.lease = l.keeper, l.lend(t, r.open, r.body)
		if end := serveNow(t, a, r); end.Outcome != want {
			t.Errorf("run %d: %+v", i+1, end)
		}
	}
	if first, second := <-calls, <-calls; len(calls) != 0 || first != second {
		t.Errorf("the provider saw %d more calls, the first from %s and %s", len(calls), first, second)
	}
}

// TestNodeOlderSessionThreat04: a lease of the session before this one is refused by its key. With one Recipient for
// all sessions it would be the generation that refuses it.
func TestNodeOlderSessionThreat04(t *testing.T) {
	r := newManagedRig(t)
	old := r.leased(t, chatBody)
	r.source.issue(t, r.authority.bundle)
	r.session = r.edge.session(t)
	r.refused(t, old, lease.ReasonRecipientKey)
}

// TestNodeOlderRevisionThreat05: a revision that is raised between the sealing and the opening wins, and one that would
// lower it does nothing. Without max in keeper.take the last run completes.
func TestNodeOlderRevisionThreat05(t *testing.T) {
	r := newManagedRig(t)
	l := r.leased(t, chatBody)
	l.before = func(t *testing.T, _ execution.LeaseID) { r.edge.raise(t, r.session, "slot-1", 4) }
	r.refused(t, l, lease.ReasonRevision)
	r.edge.raise(t, r.session, "slot-1", 2)
	r.refused(t, r.leased(t, chatBody), lease.ReasonRevision)
	newer := r.leased(t, chatBody)
	newer.binding.Revision = 4
	if _, _, end := finish(t, newer.open(t, r.edge, r.session)); end.Outcome != execution.Completed {
		t.Errorf("the new revision: %+v", end)
	}
}

// TestNodeRevokedThreat19: what is withdrawn between the sealing and the opening is not used. Without opener.Revoke in
// keeper.Revoked the runs complete.
func TestNodeRevokedThreat19(t *testing.T) {
	r := newManagedRig(t)
	revoke := func(of func(*leasedRun, execution.LeaseID) *wire.Revoke) {
		l := r.leased(t, chatBody)
		l.before = func(t *testing.T, id execution.LeaseID) {
			if err := r.session.Revoke(t.Context(), of(l, id)); err != nil {
				t.Error(err)
			}
		}
		r.refused(t, l, lease.ReasonRevoked)
	}
	revoke(func(_ *leasedRun, id execution.LeaseID) *wire.Revoke { return &wire.Revoke{LeaseId: string(id)} })
	revoke(func(l *leasedRun, _ execution.LeaseID) *wire.Revoke {
		return &wire.Revoke{RunId: string(l.binding.Run)}
	})
	if _, _, end := finish(t, r.leased(t, chatBody).open(t, r.edge, r.session)); end.Outcome != execution.Completed {
		t.Errorf("another run is hit, too: %+v", end)
	}
	revoke(func(*leasedRun, execution.LeaseID) *wire.Revoke {
		return &wire.Revoke{Slot: "slot-1", BelowRevision: 4}
	})
}

// TestNodeRevokedWhileStreamingThreat20: a stream whose lease is withdrawn ends, and so does the call of the provider.
// Without the goroutine of loan.open both go on.
func TestNodeRevokedWhileStreamingThreat20(t *testing.T) {
	r := newManagedRig(t)
	gone := make(chan struct{})
	spec := slotted(httpProvider(t, func(w http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodPost {
			return
		}
		io.Copy(io.Discard, req.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, firstChunk)
		w.(http.Flusher).Flush()
		<-req.Context().Done()
		close(gone)
	}))
	r.node.stop()
	await(t, "the first Node to stop", r.node.done)
	r.node = startManaged(t, r.edge, r.source, spec)
	s := r.edge.session(t)
	run := r.edge.leased(t, s, spec, `{"model":"m","stream":true}`).open(t, r.edge, s)
	await1(t, run)
	begin := time.Now()
	if err := s.Revoke(t.Context(), &wire.Revoke{Slot: "slot-1", BelowRevision: 4}); err != nil {
		t.Fatal(err)
	}
	_, _, end := finish(t, run)
	if end.Outcome != execution.Failed || end.Code != execution.CodeCredentialRejected || strings.Contains(fmt.Sprint(end), canary) {
		t.Errorf("ended %+v", end)
	}
	await(t, "the provider's connection to close", gone)
	t.Logf("ended after %v", time.Since(begin))
}

// await1 waits until some of an answer is there, and leaves it there.
func await1(t *testing.T, run *tunnel.Run) {
	t.Helper()
	eventually(t, "the answer to begin", func() bool { return run.Phase() >= execution.PhaseStreaming })
}

// TestSessionEndsLeases: what the Node still does under a lease ends with its session.
func TestSessionEndsLeases(t *testing.T) {
	r := newManagedRig(t)
	waiting := make(chan struct{})
	l := r.leased(t, chatBody)
	l.spec.Lease = func(ctx context.Context) ([]byte, error) {
		close(waiting)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	run := l.open(t, r.edge, r.session)
	await(t, "the lease to be asked for", waiting)
	r.session.Refuse(&tunnel.Refusal{Code: "identity_revoked", Message: "no more"})
	if _, _, end := finish(t, run); end.Outcome == execution.Completed || end.Code == execution.CodeNone {
		t.Errorf("ended %+v", end)
	}
	p := r.node.only()
	eventually(t, "the place to be free", func() bool { return p.inUse.Load() == 0 })
	if calls, _ := r.provider.seen(); calls != 0 {
		t.Error("the provider was called")
	}
}

// TestWaitForLeaseIsCancellable: a client that leaves while the lease is awaited frees the place; so does a lease that
// the Edge can't make.
func TestWaitForLeaseIsCancellable(t *testing.T) {
	r := newManagedRig(t)
	p := r.node.only()
	waiting := make(chan struct{})
	l := r.leased(t, chatBody)
	l.spec.Lease = func(ctx context.Context) ([]byte, error) {
		close(waiting)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	run := l.open(t, r.edge, r.session)
	await(t, "the lease to be asked for", waiting)
	eventually(t, "the place to be taken", func() bool { return p.inUse.Load() == 1 })
	run.Cancel(execution.CodeClientGone, "left")
	if _, _, end := finish(t, run); end.Outcome != execution.Cancelled || end.Code != execution.CodeClientGone {
		t.Errorf("ended %+v", end)
	}
	eventually(t, "the place to be free", func() bool { return p.inUse.Load() == 0 })

	l = r.leased(t, chatBody)
	l.spec.Lease = func(context.Context) ([]byte, error) { return nil, errors.New("no credential") }
	if _, _, end := finish(t, l.open(t, r.edge, r.session)); end.Code != execution.CodeCredentialRejected {
		t.Errorf("without a lease it ended %+v", end)
	}
	eventually(t, "the place to be free", func() bool { return p.inUse.Load() == 0 })
	if calls, _ := r.provider.seen(); calls != 0 {
		t.Error("the provider was called")
	}
}

// TestNodePolicyThreat70: a lease of a slot that the provider's operator did not name is not even awaited, a run without
// a lease does not reach a provider with slots, and one with a lease none without. Without refuseLease all three go on.
func TestNodePolicyThreat70(t *testing.T) {
	r := newManagedRig(t)
	wrong := r.leased(t, chatBody)
	wrong.spec.Open.Lease.Slot, wrong.binding.Slot = "other", "other"
	wrong.spec.Lease = func(ctx context.Context) ([]byte, error) { <-ctx.Done(); return nil, ctx.Err() }
	if _, _, end := finish(t, wrong.open(t, r.edge, r.session)); end.Outcome != execution.Failed || end.Code != execution.CodeCredentialRejected || end.Detail != rejectedDetail {
		t.Errorf("another slot: %+v", end)
	}
	none, err := r.session.Open(openSpec("p", "m", "chat.completions", chatBody))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, end := finish(t, none); end.Outcome != execution.Rejected || end.Code != execution.CodeUnsupported {
		t.Errorf("no lease: %+v", end)
	}
	plain := r.provider.ProviderSpec
	plain.Slots = nil
	r.node.stop()
	await(t, "the first Node to stop", r.node.done)
	if l := r.node.Leases(); l.Unwanted() != 1 || l.Missing() != 1 {
		t.Errorf("%d unwanted, %d missing", l.Unwanted(), l.Missing())
	}
	n := startManaged(t, r.edge, r.source, plain)
	s := r.edge.session(t)
	if _, _, end := finish(t, r.edge.leased(t, s, plain, chatBody).open(t, r.edge, s)); end.Outcome != execution.Failed || end.Code != execution.CodeCredentialRejected {
		t.Errorf("a provider without slots: %+v", end)
	}
	if n.Leases().Unwanted() != 1 {
		t.Errorf("%d unwanted", n.Leases().Unwanted())
	}
	if calls, auth := r.provider.seen(); calls != 0 || auth != "" {
		t.Errorf("%d calls, %q", calls, auth)
	}
}

// TestNodeClockThreat23: an Edge whose clock is more than five minutes off is not registered with, one that is less off
// counts, whatever this machine's clock says. Without Check in Registered the first is accepted.
func TestNodeClockThreat23(t *testing.T) {
	r := newManagedRig(t)
	keys, err := lease.NewSigningKeys()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := tls13(t, r.edge.url, identity.ClientConfig(r.source, r.edge.source.ID()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	state := conn.ConnectionState()
	for offset, ok := range map[time.Duration]bool{0: true, 4 * time.Minute: true, -4 * time.Minute: true, 10 * time.Minute: false, -10 * time.Minute: false} {
		made, err := r.node.newKeeper()
		if err != nil {
			t.Fatal(err)
		}
		k := made.(*keeper)
		now := time.Now()
		err = k.Registered(tunnel.Registration{Generation: 9, EdgeTime: now.Add(offset), Sent: now, Received: now, Keys: keys.Public(), Config: &wire.EdgeConfig{}, TLS: &state, Close: func(string) {}})
		if (err == nil) != ok {
			t.Errorf("%v off: %v, want ok %v", offset, err, ok)
		}
		if edge, known := k.clock.Now(); ok && (!known || (time.Until(edge)-offset).Abs() > time.Second) {
			t.Errorf("%v off: the Edge's time is %v", offset, edge)
		}
		k.Ended()
		if _, err := r.node.newKeeper(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNodeKeysAreChecked: an Edge without keys, or with other things than keys, is not registered with.
func TestNodeKeysAreChecked(t *testing.T) {
	k := &keeper{minimum: map[execution.SlotName]execution.Revision{}}
	if k.take(&wire.EdgeConfig{}, nil) == nil || k.take(&wire.EdgeConfig{}, [][]byte{[]byte(`{"kty":"EC"}`)}) == nil {
		t.Error("taken")
	}
	if k.Revoked(&wire.Revoke{RunId: "r"}) == nil {
		t.Error("revoked before the registration")
	}
}

// TestNodeEdgeThreat31: the Node shows itself to the one Edge that it was told only, however valid another one's
// certificate is. Without the Edge's ID in both ClientConfig and EdgePeer the first comes online.
func TestNodeEdgeThreat31(t *testing.T) {
	a := newAuthority(t)
	e := newManagedEdge(t, a.source(t, identity.RoleEdge, "edge-2"))
	other, err := identity.NewID("test.example", identity.RoleEdge, "edge-1")
	if err != nil {
		t.Fatal(err)
	}
	stranger := newManagedEdge(t, newAuthority(t).source(t, identity.RoleEdge, "edge-1"))
	for url, id := range map[string]identity.ID{e.url: other, stranger.url: other} {
		n := startNode(t, Config{Edge: url, Identity: a.source(t, identity.RoleNode, "node-1"), EdgeID: id, Providers: []ProviderSpec{slotted(ProviderSpec{ID: "p", URL: "http://127.0.0.1:1"})}})
		eventually(t, "the dial to fail", func() bool { return n.Status().State == tunnel.StateWaiting })
		if len(e.sessions)+len(stranger.sessions) != 0 {
			t.Error("it came online")
		}
	}
}

// answered runs one leased run against a provider that answers with these bytes, cut into pieces.
func answered(t *testing.T, stream bool, answer string, cut int) (end execution.Terminal, all string) {
	t.Helper()
	spec := slotted(rawProvider(t, func(c net.Conn, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+canary {
			t.Errorf("the provider got %q", r.Header.Get("Authorization"))
		}
		for s := answer; s != ""; s = s[min(cut, len(s)):] {
			io.WriteString(c, s[:min(cut, len(s))])
		}
	}))
	a := testAgent(t, spec)
	r := newLoanedRun(t, a, spec, stream)
	end = serveNow(t, a, r.fakeRun)
	return end, fmt.Sprint(end, r.head, r.out.String())
}

// The forms in which providers of these tests repeat the credential.
var (
	echoPlain   = base64.StdEncoding.EncodeToString([]byte("Bearer " + canary))
	echoShifted = base64.URLEncoding.EncodeToString([]byte("x" + canary))
	echoBody    = `{"a":"` + canary + `","b":"` + echoPlain + `","c":"` + echoShifted + `"}`
)

const json200 = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

// echoCase is an answer that repeats the credential.
type echoCase struct {
	stream bool
	answer string
}

// nothingComesOut runs each case whole, byte by byte and in pieces.
func nothingComesOut(t *testing.T, cases map[string]echoCase) {
	for name, tt := range cases {
		for _, cut := range []int{len(tt.answer), 1, 7} {
			t.Run(fmt.Sprintf("%s by %d", name, cut), func(t *testing.T) {
				end, all := answered(t, tt.stream, tt.answer, cut)
				for _, form := range []string{canary, strings.TrimRight(echoPlain, "=")[10:], strings.TrimRight(echoShifted, "=")[2:], "provider-words", "Location", "Link"} {
					if strings.Contains(all, form) {
						t.Errorf("%q came out: %+v %s", form, end, all)
					}
				}
				if name == "compressed" && end.Code != execution.CodeProviderError {
					t.Errorf("ended %+v", end)
				}
			})
		}
	}
}

// TestNodeEchoThreat37: whatever body a provider repeats the credential of a lease in, it does not come out, and the
// provider's own words to a 401 or 403 don't at all. Without e.key in loan.open, without the scrubber, without mask in
// clean, or without the check of compressed answers, a case fails.
func TestNodeEchoThreat37(t *testing.T) {
	event := `data: {"choices":[{"index":0,"delta":{"content":"` + canary + " and " + echoPlain + " and " + echoShifted + `"}}]}` + "\n\n"
	nothingComesOut(t, map[string]echoCase{
		"unary":              {false, json200 + "\r\n" + echoBody},
		"stream":             {true, sseHead + event + doneEvent},
		"first event error":  {true, sseHead + `data: {"error":{"message":"bad key ` + canary + `"}}` + "\n\n"},
		"error after":        {true, sseHead + firstChunk + `error: {"message":"bad key ` + canary + `"}` + "\n\n"},
		"status 400":         {false, "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n\r\n" + echoBody},
		"status 401":         {false, "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: " + canary + "\r\n\r\nprovider-words " + canary},
		"status 403":         {false, "HTTP/1.1 403 Forbidden\r\n\r\nprovider-words " + echoPlain},
		"no HTTP":            {false, canary + "\r\n\r\n"},
		"redirect":           {false, "HTTP/1.1 302 " + canary + "\r\nLocation: http://127.0.0.1:1/" + canary + "\r\n\r\n"},
		"compressed":         {false, json200 + "Content-Encoding: gzip\r\n\r\n" + echoBody},
		"status 400, zipped": {false, "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Encoding: br\r\n\r\n" + echoBody},
		"no end":             {false, json200 + "Content-Length: 99999\r\n\r\n" + echoBody},
		"broken in the key":  {false, json200 + "Content-Length: 99999\r\n\r\n" + echoBody[:len(canary)]},
		"switched protocols": {false, "HTTP/1.1 101 " + canary + "\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"},
	})
}

// TestNodeEchoInHeaderThreat35: headers pass by the list, and those that do are masked. Without mask in sendHead it
// fails.
func TestNodeEchoInHeaderThreat35(t *testing.T) {
	nothingComesOut(t, map[string]echoCase{
		"header":  {false, json200 + "Authorization: " + canary + "\r\nX-Api-Key: " + canary + "\r\nX-Request-Id: " + canary + "\r\nX-Echo: " + canary + "\r\nContent-Length: 2\r\n\r\n{}"},
		"encoded": {false, json200 + "Openai-Organization: " + echoPlain + "\r\nX-Ratelimit-Key: " + echoShifted + "\r\nContent-Length: 2\r\n\r\n{}"},
	})
}

// TestNodeEchoAsideThreat36: interim answers and trailers, announced or not, do not pass. Nothing in the package reads
// them; with resp.Trailer added to the head in sendHead the announced one fails.
func TestNodeEchoAsideThreat36(t *testing.T) {
	chunked := json200 + "Transfer-Encoding: chunked\r\n"
	nothingComesOut(t, map[string]echoCase{
		"103":     {false, "HTTP/1.1 103 Early Hints\r\nX-Request-Id: " + canary + "\r\nLink: " + canary + "\r\n\r\n" + json200 + "Content-Length: 2\r\n\r\n{}"},
		"100":     {false, "HTTP/1.1 100 Continue\r\nX-Request-Id: " + canary + "\r\n\r\n" + json200 + "Content-Length: 2\r\n\r\n{}"},
		"trailer": {false, chunked + "Trailer: X-Request-Id\r\n\r\n2\r\n{}\r\n0\r\nX-Request-Id: " + canary + "\r\n\r\n"},
		"unnamed": {false, chunked + "\r\n2\r\n{}\r\n0\r\nX-Request-Id: " + canary + "\r\n\r\n"},
	})
}

// TestNodeRedirectThreat46: nobody is called where a provider points to. Without the check of 3xx the redirect would
// pass; nothing in the package follows one.
func TestNodeRedirectThreat46(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	called := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c, err := l.Accept(); err == nil {
			close(called)
			c.Close()
		}
	}()
	end, _ := answered(t, false, "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://"+l.Addr().String()+"/v1/chat/completions\r\nContent-Length: 0\r\n\r\n", 1<<10)
	l.Close()
	<-done
	select {
	case <-called:
		t.Error("the redirect was followed")
	default:
	}
	if end.Code != execution.CodeProviderRedirect {
		t.Errorf("ended %+v", end)
	}
}

// TestNodeTunnelRedirectThreat33: a redirect of the tunnel's own dial is not followed.
func TestNodeTunnelRedirectThreat33(t *testing.T) {
	a := newAuthority(t)
	src := a.source(t, identity.RoleEdge, "edge-1")
	e := newManagedEdge(t, src)
	bouncer := bounce(t, src, e.url+"/tunnel/v1")
	n := startNode(t, Config{Edge: bouncer, Identity: a.source(t, identity.RoleNode, "node-1"), EdgeID: src.ID(), Providers: []ProviderSpec{slotted(ProviderSpec{ID: "p", URL: "http://127.0.0.1:1"})}})
	eventually(t, "the dial to fail", func() bool {
		s := n.Status().State
		return s == tunnel.StateWaiting || s == tunnel.StateRefused
	})
	if len(e.sessions) != 0 {
		t.Error("the redirect was followed")
	}
}

// TestLeaseErrorsPrintNothing: whatever of a lease gets into a log line has no credential in it.
func TestLeaseErrorsPrintNothing(t *testing.T) {
	var out safeBuffer
	c := leasedCredential([]byte(canary))
	e := &exchange{key: c}
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "key", c, "exchange", e)
	fmt.Fprintf(&out, "%v %+v %#v", *c, *c, *c)
	if s := out.String(); strings.Contains(s, canary) || strings.Contains(s, fmt.Sprintf("%x", canary)) {
		t.Errorf("printed: %s", s)
	}
}
