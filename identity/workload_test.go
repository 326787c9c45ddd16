package identity

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"iop/identity/workloadtest"
)

// agent is a Workload API server that says what a test wants, over the real protocol on a real socket.
type agent struct {
	*workloadtest.Agent
	t *testing.T
}

func newAgent(t *testing.T) *agent {
	a := &agent{workloadtest.New(filepath.Join(t.TempDir(), "agent.sock")), t}
	t.Cleanup(a.stop)
	return a
}

func (a *agent) address() string { return a.Address() }

func (a *agent) start() {
	a.t.Helper()
	if err := a.Start(); err != nil {
		a.t.Fatal(err)
	}
}

func (a *agent) stop() { a.Stop() }

// give makes the agent send SVIDs, and bundles of everybody's trust domain.
func (a *agent) give(roots []*signed, svids ...workloadtest.SVID) {
	for i := range svids {
		svids[i].Roots = concat(roots)
	}
	a.Give(svids...)
}

func concat(certificates []*signed) (raw []byte) {
	for _, c := range certificates {
		raw = append(raw, c.Raw...)
	}
	return raw
}

func svid(t *testing.T, chain ...*signed) workloadtest.SVID {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(chain[0].key)
	if err != nil {
		t.Fatal(err)
	}
	names, err := uriNames(chain[0].Certificate)
	if err != nil {
		t.Fatal(err)
	}
	return workloadtest.SVID{ID: names[0], Chain: concat(chain), Key: key}
}

func openWorkload(t *testing.T, a *agent, id ID, log *bytes.Buffer) *Workload {
	t.Helper()
	config := WorkloadConfig{ID: id, Address: a.address(), Timeout: time.Minute}
	if log != nil {
		config.Logger = slog.New(slog.NewTextHandler(log, nil))
	}
	w, err := OpenWorkload(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

// until waits for a source to be as the test wants it.
func until(t *testing.T, src Source, what string, reached func() bool) {
	t.Helper()
	const patience = time.Minute
	deadline := time.After(patience)
	for {
		changed := src.Changed()
		if reached() {
			return
		}
		select {
		case <-changed:
		case <-time.After(10 * time.Millisecond): // a fault changes the status alone
		case <-deadline:
			t.Fatalf("not within %s: %s; status %+v", patience, what, src.Status())
		}
	}
}

func has(src Source, want *signed) func() bool {
	return func() bool {
		got, err := src.Certificate()
		return err == nil && got.Leaf.Equal(want.Certificate)
	}
}

// TestWorkload: the SVID with our ID out of several, an update of it and of the bundle, over the real protocol.
func TestWorkload(t *testing.T) {
	old, next := newCA("old", time.Now()), newCA("new", time.Now())
	a := newAgent(t)
	a.start()
	other := svid(t, sign(old, leafOf("spiffe://example.org/node/gpu-2")))
	first := sign(old, leafOf(nodeID))
	a.give([]*signed{old}, other, svid(t, first))
	var log bytes.Buffer
	w := openWorkload(t, a, nodeID, &log)
	shows(t, w, first)

	edge := source(t, edgeID, next, old)
	node := ClientConfig(w, edgeID)
	wantReason(t, connect(t, ServerConfig(edge, allowAll), node).client, UnknownAuthority) // the Node believes the old one alone

	second := sign(next, leafOf(nodeID))
	a.give([]*signed{old, next}, svid(t, second), other)
	until(t, w, "the second certificate", has(w, second))
	if c := connect(t, ServerConfig(edge, allowAll), node); c.server != nil || c.client != nil {
		t.Errorf("server %v, client %v", c.server, c.client)
	}
	before, _ := w.Bundle()
	third := sign(next, leafOf(nodeID))
	a.give([]*signed{old, next}, svid(t, third))
	until(t, w, "the third certificate", has(w, third))
	if after, err := w.Bundle(); err != nil || after != before {
		t.Errorf("a bundle that did not change became another: %v", err)
	}
	w.Close()
	if _, err := w.Certificate(); err == nil {
		t.Error("a closed source has a certificate")
	}
	if strings.Contains(log.String(), "PRIVATE") || strings.Count(log.String(), "identity: updated") != 3 {
		t.Errorf("the log:\n%s", &log)
	}
}

// TestWorkloadAgentGone: the last identity stays in force, and the watch goes on when the agent is back.
func TestWorkloadAgentGone(t *testing.T) {
	ca := newCA("ca", time.Now())
	a := newAgent(t)
	a.start()
	first, second := sign(ca, leafOf(nodeID)), sign(ca, leafOf(nodeID))
	a.give([]*signed{ca}, svid(t, first))
	w := openWorkload(t, a, nodeID, nil)
	a.stop()
	until(t, w, "a fault", func() bool { return w.Status().Fault != "" })
	shows(t, w, first)
	if status := w.Status(); status.FaultAt.IsZero() || status.Serial == "" {
		t.Errorf("status %+v", status)
	}
	a.give([]*signed{ca}, svid(t, second))
	a.start()
	until(t, w, "the second certificate", has(w, second))
	if status := w.Status(); status.Fault != "" {
		t.Errorf("status %+v", status)
	}
}

// TestWorkloadSaysNo: an agent that takes the identity back is believed; peers are still judged; and it can give it again.
//
// Seen to fail with withdraw doing nothing.
func TestWorkloadSaysNo(t *testing.T) {
	ca := newCA("ca", time.Now())
	a := newAgent(t)
	a.start()
	first := sign(ca, leafOf(nodeID))
	other := svid(t, sign(ca, leafOf("spiffe://example.org/node/gpu-2")))
	a.give([]*signed{ca}, svid(t, first), other)
	w := openWorkload(t, a, nodeID, nil)
	gone := func() bool { _, err := w.Certificate(); return errors.Is(err, errNoCertificate) }

	a.give([]*signed{ca}, other)
	until(t, w, "no certificate: it is not among those given", gone)
	if _, err := w.Bundle(); err != nil {
		t.Errorf("no bundle either: %v", err)
	}
	if status := w.Status(); status.Serial != "" || !strings.Contains(status.Fault, "not among them") {
		t.Errorf("status %+v", status)
	}
	a.give([]*signed{ca}, svid(t, first))
	until(t, w, "the certificate again", has(w, first))

	a.Refuse(status.Error(codes.PermissionDenied, "no identity issued"))
	until(t, w, "no certificate: permission denied", gone)
	a.give([]*signed{ca}, svid(t, first))
	until(t, w, "the certificate once more", has(w, first))
}

// TestWorkloadBadUpdates: what a peer would refuse does not take effect, nor what can't be read.
func TestWorkloadBadUpdates(t *testing.T) {
	ca, other := newCA("ca", time.Now()), newCA("other", time.Now())
	a := newAgent(t)
	a.start()
	first := sign(ca, leafOf(nodeID))
	a.give([]*signed{ca}, svid(t, first))
	w := openWorkload(t, a, nodeID, nil)

	serving := leafOf(nodeID)
	serving.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	garbled := svid(t, first)
	garbled.Chain = []byte("nothing")
	for _, bad := range []struct {
		name  string
		roots []*signed
		svid  workloadtest.SVID
	}{
		{"signed by another authority", []*signed{ca}, svid(t, sign(other, leafOf(nodeID)))},
		{"for another usage", []*signed{ca}, svid(t, sign(ca, serving))},
		{"not a certificate", []*signed{ca}, garbled},
		{"a leaf in the bundle", []*signed{ca, first}, svid(t, sign(ca, leafOf(nodeID)))},
	} {
		refused := w.Status().Refused
		a.give(bad.roots, bad.svid)
		until(t, w, bad.name, func() bool { return w.Status().Refused > refused })
		shows(t, w, first)
	}
	second := sign(ca, leafOf(nodeID))
	a.give([]*signed{ca}, svid(t, second))
	until(t, w, "the second certificate", has(w, second))
}

// TestWorkloadNeverReady: without an SVID of the ID there is no source, and the error says what was wrong.
func TestWorkloadNeverReady(t *testing.T) {
	ca := newCA("ca", time.Now())
	a := newAgent(t)
	a.start()
	config := WorkloadConfig{ID: nodeID, Address: a.address(), Timeout: 300 * time.Millisecond}
	for _, test := range []struct {
		say   func()
		fault string
	}{
		{func() { a.Refuse(nil) }, "no answer"},
		{func() { a.give([]*signed{ca}, svid(t, sign(ca, leafOf(edgeID)))) }, "not among them"},
		{func() { a.Refuse(status.Error(codes.PermissionDenied, "no identity issued")) }, "no identity for this process"},
	} {
		test.say()
		for patient := config; ; patient.Timeout *= 4 { // a busy machine needs longer to hear what is wrong
			_, err := OpenWorkload(t.Context(), patient)
			if err == nil || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), test.fault) && patient.Timeout > 15*time.Second {
				t.Errorf("got %v, want %q", err, test.fault)
				break
			}
			if strings.Contains(err.Error(), test.fault) {
				break
			}
		}
	}
	a.stop()
	if _, err := OpenWorkload(t.Context(), config); err == nil {
		t.Error("no agent, and no error")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := OpenWorkload(ctx, config); err == nil {
		t.Error("an ended context, and no error")
	}
}

func TestWorkloadAddress(t *testing.T) {
	t.Setenv("SPIFFE_ENDPOINT_SOCKET", "")
	for address, ok := range map[string]bool{
		"unix:///run/agent.sock": true, "tcp://127.0.0.1:8081": true, "tcp://[::1]:8081": true,
		"": false, "tcp://10.0.0.1:8081": false, "tcp://agent:8081": false, "http://127.0.0.1:1": false, "/run/agent.sock": false,
	} {
		if _, err := workloadAddress(address); (err == nil) != ok {
			t.Errorf("%q: %v", address, err)
		}
	}
	t.Setenv("SPIFFE_ENDPOINT_SOCKET", "unix:///run/spire.sock")
	if address, err := workloadAddress(""); err != nil || address != "unix:///run/spire.sock" {
		t.Errorf("%q, %v", address, err)
	}
	if _, err := OpenWorkload(t.Context(), WorkloadConfig{ID: "nobody", Address: "unix:///x"}); err == nil {
		t.Error("an identity of nobody")
	}
}
