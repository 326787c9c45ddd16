package gateway_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"iop/gateway"
	"iop/identity"
	"iop/state"
	"iop/tunnel"
)

// TestThreat30CertificateEndsWhileTheTunnelLives: TLS does not notice that a certificate has ended; the Edge closes the
// session at that second.
//
// Seen to fail without the NotAfter of authenticateManaged and without keepTrust: the Node stayed online.
func TestThreat30CertificateEndsWhileTheTunnelLives(t *testing.T) {
	store, err := state.Open(t.Context(), "sqlite::memory:")
	must(t, err)
	defer store.Close()
	seedSlots(t, store)
	synctest.Test(t, func(t *testing.T) {
		ca := newAuthority(t)
		edge, node := ca.source(identity.RoleEdge, "edge-1"), ca.source(identity.RoleNode, "n1")
		chain, key := ca.issue(identity.RoleNode, "n1", time.Minute)
		must(t, node.Set(chain, key, ca.bundle))
		nodes := newPipes()
		s, err := gateway.NewManagedOn(gateway.Config{
			Store: store, Listen: "-", AdminListen: "-", TunnelListen: "-", Mode: gateway.ModeManaged, Identity: edge,
			Logger: slog.New(slog.DiscardHandler),
		}, newPipes(), newPipes(), nodes)
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		n := &leasedNode{t: t, src: node, edge: edge.ID()}
		sup, err := tunnel.NewSupervisor(tunnel.SupervisorConfig{
			URL: "wss://edge/tunnel/v1", Node: "n1", Handler: n, TLS: identity.ClientConfig(node, edge.ID()), Keeper: n.keeper,
			Describe: func() *tunnel.NodeInfo { return &tunnel.NodeInfo{} }, Logger: slog.New(slog.DiscardHandler), DialContext: nodes.dial,
		})
		must(t, err)
		stopped := make(chan struct{})
		go func() { defer close(stopped); _ = sup.Run(ctx) }()
		online := func() bool {
			for _, n := range s.Operator().Nodes() {
				if n.State == "online" {
					return true
				}
			}
			return false
		}
		time.Sleep(5 * time.Second)
		end := chain[0].NotAfter
		time.Sleep(time.Until(end) - time.Second)
		if !online() {
			t.Fatal("the Node is not online")
		}
		time.Sleep(1100 * time.Millisecond)
		if online() {
			t.Error("the Node is online after the end of its certificate")
		}
		cancel()
		<-stopped
		s.Close()
		must(t, <-ended)
	})
}
