package gateway_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"iop/execution"
	"iop/gateway"
	"iop/gateway/admin"
	"iop/identity"
	"iop/lease"
	"iop/state"
	"iop/tunnel"
)

func wantReasons(t *testing.T, n *leasedNode, want ...lease.Reason) {
	t.Helper()
	got := n.rejections()
	if len(got) != len(want) {
		t.Fatalf("the Node rejected with %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("the Node rejected with %v, want %v", got, want)
		}
	}
	if calls := len(n.got()); calls > 0 && len(want) > 0 {
		t.Errorf("the provider was called %d times", calls)
	}
}

// TestThreat04LeaseOfAnOlderGeneration: what was sealed in one session opens in no other one, even if a Node keeps its key.
//
// Seen to fail with the Edge's binding made for generation 1 whatever the session (Grant.binding): the old lease opened
// and the honest one did not.
func TestThreat04LeaseOfAnOlderGeneration(t *testing.T) {
	m := newManaged(t, slotFile)
	recipient, err := lease.NewRecipient()
	must(t, err)
	var old []byte
	first := m.join(&leasedNode{recipient: recipient, holding: func(_ context.Context, _ *tunnel.NodeRun, token []byte) []byte {
		old = token
		return token
	}}, "n1")
	if status, _, body := m.post(chat, ask); status != 200 {
		t.Fatalf("got %d %s", status, body)
	}
	first.node.stop()
	m.eventually("n1 is offline", func() bool { return m.nodeState("n1") == "offline" })
	replay := atomic.Bool{}
	replay.Store(true)
	second := m.join(&leasedNode{holding: func(_ context.Context, _ *tunnel.NodeRun, token []byte) []byte {
		if replay.Load() {
			return old
		}
		return token
	}}, "n1")
	m.wantRejected()
	wantReasons(t, second, lease.ReasonRecipientKey)
	replay.Store(false)
	if status, _, body := m.post(chat, ask); status != 200 {
		t.Errorf("an honest lease of the new session: %d %s", status, body)
	}
	m.idle()
}

// TestThreat04KeptKey: as above with the same key in both sessions, which the Opener drops with the first one; so here the
// binding alone decides.
//
// Seen to fail with the Edge's binding made for generation 1 whatever the session.
func TestThreat04KeptKey(t *testing.T) {
	m := newManaged(t, slotFile)
	n := m.join(&leasedNode{}, "n1")
	if status, _, body := m.post(chat, ask); status != 200 {
		t.Fatalf("got %d %s", status, body)
	}
	n.node.stop()
	m.eventually("n1 is offline", func() bool { return m.nodeState("n1") == "offline" })
	again := m.join(&leasedNode{}, "n1")
	if status, _, body := m.post(chat, ask); status != 200 {
		t.Fatalf("the lease is not of this session: %d %s, %v", status, body, again.rejections())
	}
	rows, _, err := m.store.AuditEntries(t.Context(), state.AuditQuery{Actions: []state.AuditAction{state.AuditLeaseIssued}})
	must(t, err)
	for range 2 {
		if len(rows) == 2 {
			break
		}
		must(t, m.store.FlushAudit(t.Context()))
		rows, _, err = m.store.AuditEntries(t.Context(), state.AuditQuery{Actions: []state.AuditAction{state.AuditLeaseIssued}})
		must(t, err)
	}
	if len(rows) != 2 || rows[0].Generation <= rows[1].Generation {
		t.Errorf("the audit says %+v", rows)
	}
}

// TestThreat10AnotherEdge: a lease that another Edge of the same trust domain has sealed, with valid keys, to the very
// Node and key, opens nothing in this Edge's session, even if the Node believes the other's keys.
//
// Seen to fail with lease.Issuer("spiffe://iop.test/edge/edge-1") for every Edge in credential.New: the reason was then
// that of the run.
func TestThreat10AnotherEdge(t *testing.T) {
	ca := newAuthority(t)
	one := newManagedWith(t, ca, "edge-1", slotFile, nil)
	two := newManagedWith(t, ca, "edge-2", slotFile, nil)
	recipient, err := lease.NewRecipient()
	must(t, err)
	tokens := make(chan []byte, 1)
	other := two.join(&leasedNode{recipient: recipient, holding: func(_ context.Context, _ *tunnel.NodeRun, token []byte) []byte {
		tokens <- token
		return token
	}}, "n1")
	victim := one.join(&leasedNode{recipient: recipient, holding: func(_ context.Context, run *tunnel.NodeRun, _ []byte) []byte {
		return <-tokens
	}}, "n1")
	for range 2 {
		if status, _, body := two.post(chat, ask); status != 200 {
			t.Fatalf("the other Edge: %d %s", status, body)
		}
		one.wantRejected()
		believed, mine := other.lastKeeper(), victim.lastKeeper()
		believed.mu.Lock()
		keys := believed.keys
		believed.mu.Unlock()
		mine.mu.Lock()
		mine.keys = keys
		mine.mu.Unlock()
	}
	wantReasons(t, victim, lease.ReasonSigningKey, lease.ReasonIssuer)
}

// TestThreat19RevokedBetweenIssueAndOpen: a lease that is on the Node and not open yet when its slot is revoked opens no
// more. What was not issued yet is not issued: see package credential's tests for that order.
//
// Seen to fail with tellHolders telling no session.
func TestThreat19RevokedBetweenIssueAndOpen(t *testing.T) {
	m := newManaged(t, slotFile)
	held, released := make(chan struct{}), make(chan struct{})
	n := m.join(&leasedNode{holding: func(_ context.Context, _ *tunnel.NodeRun, token []byte) []byte {
		close(held)
		<-released
		return token
	}}, "n1")
	done := make(chan struct{})
	go func() { defer close(done); m.wantRejected() }()
	<-held
	_, err := m.store.RevokeSlot(t.Context(), "openai", true, "test")
	must(t, err)
	w, err := m.server.Operator().SlotChanged(t.Context(), "openai")
	must(t, err)
	if w.Leases != 1 || w.Runs != 1 || !w.Until.IsZero() {
		t.Errorf("the withdrawal says %+v", w)
	}
	close(released)
	<-done
	m.eventually("the Node has tried", func() bool { return len(n.rejections()) > 0 })
	// The Node is told twice: by the withdrawal, which is awaited, and by the least revision, which comes beside it.
	if reason := n.rejections()[0]; reason != lease.ReasonRevoked && reason != lease.ReasonRevision || len(n.got()) > 0 {
		t.Errorf("the Node rejected with %v and called its provider %d times", n.rejections(), len(n.got()))
	}
	if row := m.audited(state.AuditLeaseRevoked, ""); row.Outcome != state.AuditDone || row.Lease == "" {
		t.Errorf("the audit says %+v", row)
	}
	m.wantRejected() // and no new one
	m.audited(state.AuditLeaseRefused, "slot_revoked")
	m.eventually("the least revision is known", func() bool { return n.lastKeeper().minimum("openai") == 2 })
	m.idle()
}

// TestThreat19NotAcknowledged: a Node that does not say that it has withdrawn the lease makes the answer an honest one.
//
// Seen to fail with h.acknowledged set whatever Revoke returns.
func TestThreat19NotAcknowledged(t *testing.T) {
	m := newManaged(t, slotFile)
	held, released := make(chan struct{}), make(chan struct{})
	m.join(&leasedNode{deaf: true, holding: func(_ context.Context, _ *tunnel.NodeRun, token []byte) []byte {
		close(held)
		<-released
		return token
	}}, "n1")
	defer close(released)
	done := make(chan struct{})
	go func() { defer close(done); m.wantRejected() }()
	<-held
	_, err := m.store.DisableSlot(t.Context(), "openai", "test")
	must(t, err)
	w, err := m.server.Operator().SlotChanged(t.Context(), "openai")
	must(t, err)
	if left := time.Until(w.Until); left <= 0 || left > lease.MaxLife {
		t.Errorf("the withdrawal says %+v", w)
	}
	<-done
	if row := m.audited(state.AuditLeaseRevoked, ""); row.Outcome != state.AuditPending || !row.Expires.Equal(w.Until) {
		t.Errorf("the audit says %+v, the answer %s", row, w.Until)
	}
}

// TestThreat20RevokedWhileStreaming: the stream ends with an error at once, and the provider's call is cancelled.
//
// Seen to fail with tellHolders cancelling no run: the stream went on until the test's time was up.
func TestThreat20RevokedWhileStreaming(t *testing.T) {
	m := newManaged(t, slotFile)
	cancelled := make(chan error, 1)
	m.join(&leasedNode{answer: func(ctx context.Context, run *tunnel.NodeRun, opened *lease.Opened) {
		_ = run.Head(head(200, "text/event-stream"))
		_ = run.Write([]byte(chunk("a")), true)
		<-opened.Revoked()
		<-ctx.Done()
		cancelled <- context.Cause(ctx)
		run.End(execution.Terminal{Outcome: execution.Cancelled, Code: execution.CodeCredentialRejected})
	}}, "n1")
	resp := m.do(m.request(http.MethodPost, chat, `{"model":"m","stream":true}`))
	defer resp.Body.Close()
	first := make([]byte, len(chunk("a")))
	if _, err := io.ReadFull(resp.Body, first); err != nil {
		t.Fatal(err)
	}
	_, err := m.store.RevokeSlot(t.Context(), "openai", false, "test")
	must(t, err)
	began := time.Now()
	w, err := m.server.Operator().SlotChanged(t.Context(), "openai")
	must(t, err)
	rest, err := io.ReadAll(resp.Body)
	if !strings.Contains(string(rest), "credential_rejected") || strings.Contains(string(rest), "[DONE]") {
		t.Errorf("the stream ends with %q, %v", rest, err)
	}
	if took := time.Since(began); took > patience { // about 10 ms
		t.Errorf("it took %s", took)
	}
	if w.Runs != 1 || !w.Until.IsZero() {
		t.Errorf("the withdrawal says %+v", w)
	}
	if cause := <-cancelled; cause == nil {
		t.Error("the provider's call was not cancelled")
	}
	m.clean(string(rest))
	m.idle()
}

// TestThreat20KeyRevokedWhileStreaming: as above, for the API key that the run was asked for with.
//
// Seen to fail with ofKey matching nothing: the stream went on until the test's time was up.
func TestThreat20KeyRevokedWhileStreaming(t *testing.T) {
	m := newManaged(t, slotFile)
	m.join(&leasedNode{answer: func(ctx context.Context, run *tunnel.NodeRun, opened *lease.Opened) {
		_ = run.Head(head(200, "text/event-stream"))
		_ = run.Write([]byte(chunk("a")), true)
		<-opened.Revoked()
		run.End(execution.Terminal{Outcome: execution.Cancelled, Code: execution.CodeCredentialRejected})
	}}, "n1")
	resp := m.do(m.request(http.MethodPost, chat, `{"model":"m","stream":true}`))
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, len(chunk("a")))); err != nil {
		t.Fatal(err)
	}
	keys, err := m.store.Keys(t.Context())
	must(t, err)
	must(t, m.store.RevokeKey(t.Context(), keys[0].ID, "test"))
	w, err := m.server.Operator().KeyRevoked(t.Context(), keys[0].ID)
	must(t, err)
	if rest, err := io.ReadAll(resp.Body); w.Runs != 1 || !strings.Contains(string(rest), "credential_rejected") {
		t.Errorf("%+v; the stream ends with %q, %v", w, rest, err)
	}
	m.idle()
}

// TestThreat24BodyChangedAfterSealing: one byte of the request other than what the Edge sent, and nothing is sent on.
//
// Seen to fail with the Node computing its digest of the body before the change. That the Edge's digest is the one of what
// it sends was seen by TestLeasedRun, which fails with Grant.Lease hashing nothing.
func TestThreat24BodyChangedAfterSealing(t *testing.T) {
	m := newManaged(t, slotFile)
	n := m.join(&leasedNode{body: func(b []byte) []byte {
		b = append([]byte(nil), b...)
		b[len(b)-2] ^= 1
		return b
	}}, "n1")
	m.wantRejected()
	wantReasons(t, n, lease.ReasonRequestDigest)
	m.audited(state.AuditLeaseRefused, "rejected_by_node")
	if !m.metric(`iop_leases_refused_total{reason="rejected_by_node"} 1`) {
		t.Error("the refusal is not counted")
	}
	m.idle()
}

// refusedWith waits until a Node says that the Edge refuses it.
func (m *managed) refusedWith(n *leasedNode, what string) {
	m.t.Helper()
	m.eventually("refused: "+what, func() bool {
		return strings.Contains(n.node.supervisor.Status().Detail, what)
	})
	if state := m.nodeState(n.name); state == "online" {
		m.t.Errorf("node %s is online", n.name)
	}
}

// TestThreat25NodeClaimsAnotherName: a valid certificate entitles to the name in it and to no other.
//
// Seen to fail with the comparison taken out of Registry.introduce: n1 came online.
func TestThreat25NodeClaimsAnotherName(t *testing.T) {
	m := newManaged(t, slotFile)
	n := &leasedNode{name: "n1"}
	m.dial(n, "n2")
	m.refusedWith(n, `the certificate is for node "n2", not "n1"`)
}

// TestThreat26ValidButNotListed: the trust domain's certificate is not enough: the list must have the Node, and an Edge is no
// Node.
//
// Seen to fail with NodeAllowed not asked in authenticateManaged and trusted (n9 and the denied one came online), and with
// the handshake's checks replaced by tls.RequireAnyClientCert alone (the Edge's certificate got as far as the lists).
func TestThreat26ValidButNotListed(t *testing.T) {
	m := newManaged(t, slotFile)
	stranger := &leasedNode{}
	m.dial(stranger, "n9")
	m.refusedWith(stranger, "not on the allow-list")
	must(t, m.store.DenyNode(t.Context(), state.Denial{Node: "n2"}, "test"))
	denied := &leasedNode{}
	m.dial(denied, "n2")
	m.refusedWith(denied, "deny-list")
	edge := m.ca.source(identity.RoleEdge, "n1")
	if body, err := m.knock(edge); err == nil {
		t.Errorf("an Edge's certificate got the answer %s", body)
	}
	m.eventually("it is counted", func() bool {
		_, body := m.operate(http.MethodGet, "/metrics", "")
		return strings.Contains(body, `iop_peer_refusals_total{reason="wrong_usage"} 1`) || strings.Contains(body, `iop_peer_refusals_total{reason="wrong_role"} 1`) || strings.Contains(body, `iop_peer_refusals_total{reason="unknown_authority"} 1`)
	})
	// The operator sees all three, and no more of whom nothing certified than where it comes from.
	var status admin.Status
	_, body := m.operate(http.MethodGet, "/admin/v1/status", "")
	must(t, json.Unmarshal([]byte(body), &status))
	got := map[string]string{}
	for _, n := range status.Refused {
		if got[string(n.Node)] = n.Code; n.Source != "127.0.0.1" || n.Proven || n.Why() == "" {
			t.Errorf("%+v", n)
		}
	}
	if want := map[string]string{"n9": "unauthorized", "n2": "identity_revoked", "": "certificate_refused"}; !maps.Equal(got, want) {
		t.Errorf("refused %v, want %v", got, want)
	}
}

// knock asks the tunnel listener with whatever certificate.
func (m *managed) knock(src identity.Source) (string, error) {
	m.t.Helper()
	config := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}
	if src != nil {
		cert, err := src.Certificate()
		must(m.t, err)
		config.Certificates = []tls.Certificate{*cert}
	}
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Get("https://" + m.server.TunnelAddr().String() + "/tunnel/v1")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// TestThreat26NotPermitted: a Node that has lost its permission gets no lease, also where selection does not know it yet:
// the list is asked again when the lease is made.
//
// Seen to fail with the case of Allows taken out of Grant.holder.
func TestThreat26NotPermitted(t *testing.T) {
	m := newManaged(t, slotFile)
	m.permit("n2") // so that nobody waits for it
	n := m.join(&leasedNode{}, "n1")
	m.eventually("a run is selected for n1, which may not have its slot any more", func() bool {
		m.permit("n1", "openai")
		m.list("n1", "other") // unless the Edge looks by itself right now, it learns of that when the lease is made
		m.wantRejected()
		return n.served() > 0
	})
	if row := m.audited(state.AuditLeaseRefused, "not_permitted"); row.Node != "n1" {
		t.Errorf("the audit says %+v", row)
	}
	wantReasons(t, n)
	if calls := len(n.got()); calls > 0 {
		t.Errorf("the provider was called %d times", calls)
	}
}

// TestThreat30TrustEndsWhileTheTunnelLives: TLS does not notice that a certificate is not good any more; the Edge does, and
// closes the session.
//
// Seen to fail with Registry.Verify not called in keepTrust, and with StillTrusted not asked in Registry.trusted: the
// session was only asked to come back, as when the Edge has another certificate.
func TestThreat30TrustEndsWhileTheTunnelLives(t *testing.T) {
	m := newManaged(t, slotFile)
	n := m.join(&leasedNode{}, "n1")
	other := newAuthority(t)
	chain, key := other.issue(identity.RoleEdge, "edge-1", time.Hour)
	must(t, m.src.Set(chain, key, other.bundle)) // the old authority has left
	m.eventually("n1 is offline", func() bool { return m.nodeState("n1") == "offline" })
	m.eventually("the Node knows", func() bool { return n.node.supervisor.Status().State != tunnel.StateOnline })
	if !strings.Contains(m.logs.String(), "no longer trusted") {
		t.Error("the log does not say so")
	}
}

// TestThreat30DeniedWhileTheTunnelLives: so it is when an operator denies a Node, or its one certificate.
//
// Seen to fail with NodeAllowed not asked in Registry.trusted.
func TestThreat30DeniedWhileTheTunnelLives(t *testing.T) {
	m := newManaged(t, slotFile)
	n := m.join(&leasedNode{}, "n1")
	cert, err := n.src.Certificate()
	must(t, err)
	serial := state.SerialOf(cert.Leaf.SerialNumber)
	must(t, m.store.DenyNode(t.Context(), state.Denial{Serial: serial}, "test"))
	ended, err := m.server.Operator().NodesChanged(t.Context())
	if ended != 1 || err != nil {
		t.Errorf("%d sessions ended, %v", ended, err)
	}
	m.eventually("n1 is offline", func() bool { return m.nodeState("n1") == "offline" })
	m.refusedWith(n, "deny-list")
}

// TestThreat30DispatchAsksAgain: a session that has not been closed yet gets no lease once its Node is denied.
//
// Seen to fail with NodeAllowed not asked in Grant.holder.
func TestThreat30DispatchAsksAgain(t *testing.T) {
	m := newManaged(t, slotFile)
	n := m.join(&leasedNode{}, "n1")
	must(t, m.store.DenyNode(t.Context(), state.Denial{Node: "n1"}, "test"))
	m.wantRejected()
	m.audited(state.AuditLeaseRefused, "node_denied")
	wantReasons(t, n)
}

// TestThreat32BalancerThatEndsTLS: in managed mode nobody can stand between: the Node does not take the balancer for its
// Edge, and the Edge does not take the balancer for a Node.
//
// Seen to fail with ClientAuth set to tls.NoClientCert and VerifyConnection taken away at the Edge.
func TestThreat32BalancerThatEndsTLS(t *testing.T) {
	m := newManaged(t, slotFile)
	if body, err := m.knock(nil); err == nil {
		t.Errorf("without a certificate the Edge says %s", body)
	}
	balancer := newAuthority(t)
	src := balancer.source(identity.RoleEdge, "edge-1") // the right name, of nobody that the Node believes
	cert, err := src.Certificate()
	must(t, err)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{*cert}, ClientAuth: tls.RequestClientCert})
	must(t, err)
	var passed atomic.Int64
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			n, _ := io.Copy(io.Discard, conn)
			passed.Add(n)
			conn.Close()
		}
	}()
	sup, err := tunnel.NewSupervisor(tunnel.SupervisorConfig{
		URL: "wss://" + listener.Addr().String() + "/tunnel/v1", Node: "n1", Handler: &leasedNode{},
		TLS:      identity.ClientConfig(m.ca.source(identity.RoleNode, "n1"), m.src.ID()),
		Describe: func() *tunnel.NodeInfo { return &tunnel.NodeInfo{} }, Logger: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = sup.Run(ctx) }()
	m.eventually("the Node has seen through it", func() bool { return sup.Status().State == tunnel.StateWaiting })
	cancel()
	<-done
	listener.Close()
	<-served
	if n := passed.Load(); n > 0 {
		t.Errorf("the Node said %d bytes", n)
	}
}

// TestThreat66LateAnswerOfAnOldGeneration: what a superseded session still says reaches nobody.
//
// Seen to fail with readied superseding the former session in place of fencing it (its answer was the client's).
func TestThreat66LateAnswerOfAnOldGeneration(t *testing.T) {
	m := newManaged(t, "routes: [{model: m, groups: [{targets: [{node: n1, slot: openai}]}, {targets: [{slot: openai}]}]}]")
	fresh := func(ctx context.Context, run *tunnel.NodeRun, _ *lease.Opened) {
		answerJSON(200, `{"from":"new"}`)(ctx, run)
	}
	running, late := make(chan struct{}), make(chan struct{})
	first := m.join(&leasedNode{answer: func(ctx context.Context, run *tunnel.NodeRun, _ *lease.Opened) {
		close(running)
		<-late
		answerJSON(200, `{"from":"old"}`)(ctx, run)
	}}, "n1")
	type reply struct {
		status int
		body   string
	}
	replies := make(chan reply, 1)
	go func() {
		status, _, body := m.post(chat, ask)
		replies <- reply{status, body}
	}()
	<-running
	other := m.join(&leasedNode{answer: fresh}, "n2") // so that the run always has somewhere to go
	second := m.joinBeside(&leasedNode{answer: fresh}, first)
	close(late)
	if got := <-replies; got.status != 200 || got.body != `{"from":"new"}` {
		t.Errorf("the client got %+v", got)
	}
	if calls := len(second.got()) + len(other.got()); calls != 1 {
		t.Errorf("it ran %d times anew", calls)
	}
	must(t, m.store.FlushAudit(t.Context()))
	rows, _, err := m.store.AuditEntries(t.Context(), state.AuditQuery{Actions: []state.AuditAction{state.AuditLeaseIssued}})
	must(t, err)
	if len(rows) != 2 || rows[0].Lease == rows[1].Lease || rows[0].Run != rows[1].Run || rows[0].Attempt != 2 || rows[1].Attempt != 1 {
		t.Errorf("each attempt must have a lease of its own: %+v", rows)
	}
}

// joinBeside connects a second process of a Node's name, which takes the first one's place: that one hears nothing
// more. It goes on with what it does, and can't come back.
func (m *managed) joinBeside(n, former *leasedNode) *leasedNode {
	m.t.Helper()
	former.hung.Store(true)
	must(m.t, former.src.Close())
	m.dial(n, former.name)
	m.eventually("the second process is online", func() bool { return n.node.supervisor.Status().State == tunnel.StateOnline })
	return n
}

// TestThreat67EdgeEndsBetweenDispatchAndAnswer: a run whose Edge ends is never sent again by anybody.
//
// There is no check to remove: it is that nothing which outlives the Edge remembers a run.
func TestThreat67EdgeEndsBetweenDispatchAndAnswer(t *testing.T) {
	m := newManaged(t, slotFile)
	running := make(chan struct{}, 4)
	n := m.join(&leasedNode{answer: func(ctx context.Context, run *tunnel.NodeRun, _ *lease.Opened) {
		running <- struct{}{}
		<-ctx.Done()
	}}, "n1")
	failed := make(chan struct{})
	go func() {
		defer close(failed)
		resp, err := m.client.Do(m.request(http.MethodPost, chat, ask))
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == 200 {
				t.Error("the client was told that all is well")
			}
		}
	}()
	<-running
	m.server.Close()
	<-failed
	// The next process of the Edge, on the same state: its Nodes come back and nothing runs.
	again, err := gateway.New(gateway.Config{
		Store: m.store, Listen: "127.0.0.1:0", AdminListen: "127.0.0.1:0", Mode: gateway.ModeManaged,
		TunnelListen: m.server.TunnelAddr().String(), Identity: m.src, Logger: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- again.Run(ctx) }()
	m.eventually("the Node is back", func() bool { return n.node.supervisor.Status().State == tunnel.StateOnline })
	if calls := len(n.got()); calls != 1 {
		t.Errorf("the provider was called %d times", calls)
	}
	cancel()
	must(t, <-done)
}
