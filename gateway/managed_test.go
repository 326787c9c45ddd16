package gateway_test

import (
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"iop/execution"
	"iop/gateway"
	"iop/identity"
	"iop/lease"
	"iop/openai"
	"iop/state"
	"iop/tunnel"
	"iop/tunnel/wire"
)

const (
	canary      = "sk-canary-7f3a9c"
	providerURL = "https://api.example.com"
	slotFile    = "routes: [{model: m, retry: {attempts: 3, on: [unreachable, overloaded, gateway, lost, server_error]}, targets: [{slot: openai}]}]"
)

// authority is a certificate authority with a trust domain.
type authority struct {
	t      testing.TB
	ca     *identity.Authority
	bundle *identity.Bundle
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ca")
	ca, err := identity.InitAuthority(dir, "iop.test", 0)
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := identity.ReadAuthorityBundle(dir)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{t, ca, bundle}
}

// issue makes a certificate and key.
func (a *authority) issue(role identity.Role, name string, life time.Duration) ([]*x509.Certificate, crypto.PrivateKey) {
	a.t.Helper()
	issued, err := a.ca.Issue(identity.Request{Role: role, Name: name, TTL: life})
	if err != nil {
		a.t.Fatal(err)
	}
	block, _ := pem.Decode(issued.KeyPEM())
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		a.t.Fatal(err)
	}
	return []*x509.Certificate{issued.Certificate}, key
}

// source is an identity of the authority.
func (a *authority) source(role identity.Role, name string) identity.Memory {
	a.t.Helper()
	id, err := identity.NewID("iop.test", role, name)
	if err != nil {
		a.t.Fatal(err)
	}
	src, err := identity.NewMemory(id)
	if err != nil {
		a.t.Fatal(err)
	}
	a.renew(src)
	return src
}

// renew gives a source another certificate.
func (a *authority) renew(src identity.Memory) {
	a.t.Helper()
	chain, key := a.issue(src.ID().Role(), src.ID().Name(), time.Hour)
	if err := src.Set(chain, key, a.bundle); err != nil {
		a.t.Fatal(err)
	}
}

// managed is an Edge in managed mode, with a slot "openai" and Nodes n1 and n2 on its list.
type managed struct {
	*edge
	ca  *authority
	src identity.Memory
}

func newManaged(t testing.TB, file string) *managed {
	t.Helper()
	return newManagedWith(t, newAuthority(t), "edge-1", file, nil)
}

func newManagedWith(t testing.TB, ca *authority, name, file string, change func(*gateway.Config)) *managed {
	t.Helper()
	m := &managed{ca: ca, src: ca.source(identity.RoleEdge, name)}
	path := filepath.Join(t.TempDir(), "iop.yaml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	m.edge = newEdge(t, func(cfg *gateway.Config) {
		cfg.Mode, cfg.TunnelListen, cfg.Identity, cfg.Config = gateway.ModeManaged, "127.0.0.1:0", m.src, path
		seedSlots(t, cfg.Store)
		if change != nil {
			change(cfg)
		}
	})
	return m
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// seedSlots puts a slot and the lists into a state.
func seedSlots(t testing.TB, store *state.Store) {
	t.Helper()
	ctx := t.Context()
	master, err := state.NewMasterKey()
	must(t, err)
	must(t, store.UseMasterKey(master))
	_, err = store.SetProfile(ctx, state.Profile{Name: "bearer", Header: state.HeaderAuthorizationBearer, BaseURLs: []string{providerURL}}, "test")
	must(t, err)
	_, err = store.SetSlot(ctx, state.SlotSpec{Slot: "openai", Profile: "bearer", Value: state.NewSecret(canary)}, "test")
	must(t, err)
	for _, node := range []execution.NodeID{"n1", "n2"} {
		_, err = store.AllowNode(ctx, state.NodeAllow{Node: node, Profiles: []string{"*"}, Slots: []string{"openai", "o*"}}, "test")
		must(t, err)
	}
}

// keeper opens the leases of one session, as a Node does.
type keeper struct {
	node      *leasedNode
	recipient *lease.Recipient
	clock     *lease.EdgeClock

	mu       sync.Mutex
	opener   *lease.Opener
	keys     lease.KeySet
	minimums map[execution.SlotName]execution.Revision
}

func (k *keeper) Recipient() []byte {
	if k.node.noRecipient {
		return nil
	}
	return k.recipient.PublicJWK()
}

func (k *keeper) Registered(r tunnel.Registration) error {
	peer, err := identity.EdgePeer(r.TLS, k.node.src, k.node.edge)
	if err != nil {
		return err
	}
	k.clock.Observe(r.EdgeTime, r.Sent, r.Received)
	opener, err := lease.NewOpener(lease.OpenerConfig{
		Issuer: lease.Issuer(peer.ID.String()), Audience: lease.Audience(k.node.src.ID().String()), Generation: r.Generation,
		Recipient: k.recipient, Clock: k.clock,
		Keys:            func() lease.KeySet { k.mu.Lock(); defer k.mu.Unlock(); return k.keys },
		MinimumRevision: func(s execution.SlotName) execution.Revision { k.mu.Lock(); defer k.mu.Unlock(); return k.minimums[s] },
		Policy: func(_ execution.SlotName, _ execution.ProfileName, target lease.Target) bool {
			return target == providerURL
		},
	})
	if err != nil {
		return err
	}
	k.mu.Lock()
	k.opener = opener
	k.mu.Unlock()
	return k.Refreshed(r.Config, r.Keys)
}

func (k *keeper) EdgeTime(edge, sent, received time.Time) { k.clock.Observe(edge, sent, received) }

func (k *keeper) Refreshed(config *wire.EdgeConfig, keys [][]byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	for slot, revision := range config.MinimumRevisions {
		k.minimums[execution.SlotName(slot)] = max(k.minimums[execution.SlotName(slot)], execution.Revision(revision))
	}
	if keys == nil {
		return nil
	}
	set, err := lease.ParseKeySet(keys)
	k.keys = set
	return err
}

func (k *keeper) Revoked(r *wire.Revoke) error {
	if k.node.deaf {
		return errors.New("deaf")
	}
	_, err := k.opener.Revoke(lease.Revocation{
		Lease: execution.LeaseID(r.LeaseId), Run: execution.RunID(r.RunId), Principal: execution.PrincipalID(r.Principal),
		Slot: execution.SlotName(r.Slot), Below: execution.Revision(r.BelowRevision),
	})
	return err
}

func (k *keeper) Ended() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.opener != nil {
		k.opener.Close()
	}
}

func (k *keeper) minimum(slot execution.SlotName) execution.Revision {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.minimums[slot]
}

// leasedNode is a Node that opens leases and answers as its provider would.
type leasedNode struct {
	*node
	t    testing.TB
	src  identity.Memory
	edge identity.ID
	name string // as it says; default its certificate's
	// What it does otherwise than an honest one.
	noRecipient bool
	recipient   *lease.Recipient // of every session; nil: each has its own
	serve       handler          // in place of everything; or nil
	deaf        bool             // it does not acknowledge revocations
	hung        atomic.Bool      // it reads nothing more until its end
	end         chan struct{}    // made by dial, closed when it is stopped
	// holding is called with the sealed lease, before it is opened; it may return another one. Or nil.
	holding func(ctx context.Context, run *tunnel.NodeRun, token []byte) []byte
	// answer is called with what is open. Default: a JSON answer.
	answer func(ctx context.Context, run *tunnel.NodeRun, opened *lease.Opened)
	body   func([]byte) []byte // changes the body on its way; or nil

	mu      sync.Mutex
	keepers []*keeper
	headers []http.Header // what the provider got
	reasons []lease.Reason
	runs    int
}

// join connects a Node with a certificate of the authority, and waits until it is online.
func (m *managed) join(n *leasedNode, certificate string) *leasedNode {
	m.t.Helper()
	m.dial(n, certificate)
	m.eventually("node "+certificate+" is online", func() bool { return m.nodeState(n.name) == "online" })
	return n
}

// dial begins to connect a Node.
func (m *managed) dial(n *leasedNode, certificate string) {
	m.t.Helper()
	if (n.src == identity.Memory{}) {
		n.src = m.ca.source(identity.RoleNode, certificate)
	}
	n.t = m.t
	if n.name == "" {
		n.name = certificate
	}
	if n.edge == "" {
		n.edge = m.src.ID()
	}
	info := &tunnel.NodeInfo{
		Version:   "test",
		Providers: []tunnel.ProviderInfo{{ID: "p", Adapter: "openai", Capacity: 4, Health: wire.Health_HEALTH_OK}},
		Models:    []tunnel.ModelInfo{{Provider: "p", ID: "m"}},
	}
	sup, err := tunnel.NewSupervisor(tunnel.SupervisorConfig{
		URL: "wss://" + m.server.TunnelAddr().String() + "/tunnel/v1", Node: execution.NodeID(n.name), Handler: n,
		TLS: identity.ClientConfig(n.src, n.edge), Describe: func() *tunnel.NodeInfo { return info },
		Keeper: n.keeper, Logger: slog.New(slog.DiscardHandler),
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, address)
			return &hangingConn{c, n}, err
		},
	})
	must(m.t, err)
	n.end = make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = sup.Run(ctx) }()
	n.node = &node{supervisor: sup, stop: sync.OnceFunc(func() { close(n.end); cancel(); <-done })}
	m.t.Cleanup(n.stop)
}

// hangingConn is a Node's connection, from which nothing is read while the Node hangs.
type hangingConn struct {
	net.Conn
	node *leasedNode
}

func (c *hangingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.node.hung.Load() {
		<-c.node.end
	}
	return n, err
}

func (n *leasedNode) keeper() (tunnel.Keeper, error) {
	recipient, err := n.recipient, error(nil)
	if recipient == nil {
		recipient, err = lease.NewRecipient()
	}
	if err != nil {
		return nil, err
	}
	k := &keeper{node: n, recipient: recipient, clock: &lease.EdgeClock{}, minimums: map[execution.SlotName]execution.Revision{}}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.keepers = append(n.keepers, k)
	return k, nil
}

func (n *leasedNode) lastKeeper() *keeper {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.keepers[len(n.keepers)-1]
}

// ServeRun implements tunnel.Handler.
func (n *leasedNode) ServeRun(ctx context.Context, run *tunnel.NodeRun) {
	n.mu.Lock()
	n.runs++
	n.mu.Unlock()
	if n.serve != nil {
		n.serve(ctx, run)
		return
	}
	body, err := io.ReadAll(run)
	if err != nil {
		return
	}
	if n.body != nil {
		body = n.body(body)
	}
	token, err := run.Lease(ctx)
	if err != nil {
		return // the run was cancelled
	}
	if n.holding != nil {
		token = n.holding(ctx, run, token)
	}
	opened, err := run.Keeper().(*keeper).opener.Open(token, n.expectation(run, body))
	if err != nil {
		n.reject(run, err)
		return
	}
	defer opened.Close()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, string(opened.Target), nil)
	if err == nil {
		err = opened.Authorize(request)
	}
	if err != nil {
		n.reject(run, err)
		return
	}
	n.mu.Lock()
	n.headers = append(n.headers, request.Header)
	n.mu.Unlock()
	if n.answer != nil {
		n.answer(ctx, run, opened)
		return
	}
	answerJSON(200, `{"ok":true}`)(ctx, run)
}

func (n *leasedNode) reject(run *tunnel.NodeRun, err error) {
	if rejected, ok := errors.AsType[*lease.RejectedError](err); ok {
		n.mu.Lock()
		n.reasons = append(n.reasons, rejected.Reason)
		n.mu.Unlock()
	}
	run.End(execution.Terminal{Outcome: execution.Failed, Code: execution.CodeCredentialRejected, Detail: "lease rejected"})
}

// expectation is what an honest Node knows of a run.
func (n *leasedNode) expectation(run *tunnel.NodeRun, body []byte) lease.Expectation {
	open, bound := run.Open(), run.Binding()
	request := open.GetProviderTunnel()
	var op openai.Operation
	for _, o := range openai.Operations() {
		if o.Name == request.Operation {
			op = o
		}
	}
	contentType := ""
	for _, h := range request.Headers {
		if h.Name == "content-type" {
			contentType = h.Value
		}
	}
	digest, err := lease.RequestDigest(op.Method, op.Path, contentType, sha256.Sum256(body))
	if err != nil {
		n.t.Error(err)
	}
	return lease.Expectation{
		Run: execution.RunID(open.RunId), Attempt: open.Attempt, Principal: execution.PrincipalID(bound.Principal),
		Route: execution.RouteName(bound.Route), Slot: execution.SlotName(bound.Slot), Profile: execution.ProfileName(bound.Profile),
		Target: providerURL, Digest: digest,
	}
}

// got returns what the provider was sent.
func (n *leasedNode) got() []http.Header {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]http.Header(nil), n.headers...)
}

func (n *leasedNode) rejections() []lease.Reason {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]lease.Reason(nil), n.reasons...)
}

func (n *leasedNode) served() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.runs
}

const ask = `{"model":"m","messages":[]}`

// wantRejected asks, and expects the one answer that a refused credential has.
func (m *managed) wantRejected() {
	m.t.Helper()
	status, h, body := m.post(chat, ask)
	if status != http.StatusBadGateway || !strings.Contains(body, `"credential_rejected"`) || h.Get("X-Should-Retry") != "false" {
		m.t.Errorf("got %d, x-should-retry %q: %s", status, h.Get("X-Should-Retry"), body)
	}
	m.clean(body)
}

// clean checks that nothing that is told has the credential.
func (m *managed) clean(texts ...string) {
	m.t.Helper()
	for _, text := range append(texts, m.logs.String()) {
		if strings.Contains(text, canary) {
			m.t.Error("the credential was told")
		}
	}
}

// metric returns a metric's line.
func (m *managed) metric(line string) bool {
	_, body := m.operate(http.MethodGet, "/metrics", "")
	return strings.Contains(body, line+"\n")
}

// audited waits for an audit row.
func (m *managed) audited(action state.AuditAction, reason string) state.AuditEntry {
	m.t.Helper()
	must(m.t, m.store.FlushAudit(m.t.Context()))
	rows, _, err := m.store.AuditEntries(m.t.Context(), state.AuditQuery{Actions: []state.AuditAction{action}})
	must(m.t, err)
	for _, row := range rows {
		if row.Reason == reason {
			return row
		}
	}
	m.t.Fatalf("no audit row %v %q in %+v", action, reason, rows)
	return state.AuditEntry{}
}

func TestLeasedRun(t *testing.T) {
	m := newManaged(t, slotFile)
	n := m.join(&leasedNode{}, "n1")
	status, _, body := m.post(chat, ask)
	if status != 200 || body != `{"ok":true}` {
		t.Fatalf("got %d %q", status, body)
	}
	if got := n.got(); len(got) != 1 || got[0].Get("Authorization") != "Bearer "+canary {
		t.Errorf("the provider got %d requests, not one with the credential", len(got))
	}
	row := m.audited(state.AuditLeaseIssued, "")
	if row.Node != "n1" || row.Slot != "openai" || row.Profile != "bearer" || row.Target != providerURL || row.Lease == "" ||
		row.Route != "m" || row.Revision == 0 || row.Attempt != 1 || row.Expires.IsZero() {
		t.Errorf("the audit says %+v", row)
	}
	if !m.metric("iop_leases_issued_total 1") {
		t.Error("the lease is not counted")
	}
	m.clean(body)
	m.idle()
}

func TestRunWithoutSlotHasNoLease(t *testing.T) {
	m := newManaged(t, "routes: [{model: m}]")
	seen := make(chan bool, 1)
	m.join(&leasedNode{serve: func(ctx context.Context, run *tunnel.NodeRun) {
		seen <- run.ExpectsLease() || run.Binding() != nil
		answerJSON(200, `{}`)(ctx, run)
	}}, "n1")
	if status, _, body := m.post(chat, ask); status != 200 {
		t.Fatalf("got %d %s", status, body)
	}
	if <-seen {
		t.Error("a lease was announced")
	}
}

// Nobody comes in by the public listener, nor by a join token.
func TestManagedModeTakesNoJoinTokens(t *testing.T) {
	m := newManaged(t, slotFile)
	if body := m.get("/tunnel/v1"); !strings.Contains(body, "managed mode") {
		t.Errorf("the public listener says %s", body)
	}
	config := identity.ClientConfig(m.ca.source(identity.RoleNode, "n1"), m.src.ID())
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+m.server.TunnelAddr().String()+"/tunnel/v1", nil)
	must(t, err)
	req.Header.Set("Authorization", "Bearer "+m.join0())
	resp, err := (&http.Client{Transport: transport}).Do(req)
	must(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	if resp.StatusCode != http.StatusUnauthorized || !strings.Contains(string(body), "join tokens are not accepted") {
		t.Errorf("the tunnel says %d %s", resp.StatusCode, body)
	}
}

// join0 is the Edge's join token; join is another method here.
func (m *managed) join0() string { return m.edge.join }
