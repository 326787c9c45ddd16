package gateway_test

import (
	"context"
	"crypto/sha256"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"iop/execution"
	"iop/gateway"
	"iop/identity"
	"iop/lease"
	"iop/nodeagent"
	"iop/state"
)

const (
	// leasedRound is how many requests of one kind follow each other: so few that what else the machine does meets
	// both kinds alike.
	leasedRound = 256
	// leasedClients send them at once.
	leasedClients = 16
	// leasedRoutes are two models of one Node and one provider, of which one needs a lease.
	leasedRoutes = "routes: [{model: leased, targets: [{provider: leased, slot: openai}]}, {model: plain, targets: [{provider: plain}]}]"
)

// BenchmarkLeasedRun is what a lease costs: the same small request with one and without, through client, Edge, tunnel,
// Node and provider, in one process over real sockets, in turns, and beside them the sealing and opening alone, as many at
// once. The state is a file. Look at x-seal+open: the CPU time that a leased run takes more, over that of seal and open;
// medians of the rounds.
func BenchmarkLeasedRun(b *testing.B) {
	m := newLeasedBench(b)
	sealOpen := newSealOpen(b)
	var plain, leased, alone []time.Duration // of a round
	for _, model := range []string{"plain", "leased"} {
		m.round(b, model) // connections, caches
	}
	b.ResetTimer()
	for b.Loop() {
		plain = append(plain, cpuOf(b, func() { m.round(b, "plain") }))
		leased = append(leased, cpuOf(b, func() { m.round(b, "leased") }))
		alone = append(alone, cpuOf(b, func() { clients(sealOpen) }))
	}
	each := func(rounds []time.Duration) float64 { // the median, in microseconds
		slices.Sort(rounds)
		return float64(rounds[len(rounds)/2].Microseconds()) / leasedRound
	}
	b.ReportMetric(each(plain), "plain-us")
	b.ReportMetric(each(leased), "leased-us")
	b.ReportMetric(each(alone), "seal+open-us")
	b.ReportMetric((each(leased)-each(plain))/each(alone), "x-seal+open")
}

// cpuOf returns the process's CPU time that f takes.
func cpuOf(b *testing.B, f func()) time.Duration {
	b.Helper()
	before := processCPU(b)
	f()
	return processCPU(b) - before
}

// leasedBench is an Edge and a real Node in managed mode.
type leasedBench struct {
	*managed
	body map[string]string // of a request, by model
}

func newLeasedBench(b *testing.B) *leasedBench {
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header()["Content-Type"] = []string{"application/json"}
		_, _ = io.WriteString(w, `{"object":"chat.completion","choices":[{"message":{"content":"hello"}}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`)
	}))
	b.Cleanup(provider.Close)
	m := &leasedBench{managed: benchManaged(b, provider.URL), body: map[string]string{}}
	agent, err := nodeagent.New(nodeagent.Config{
		Edge: "wss://" + m.server.TunnelAddr().String() + "/tunnel/v1", Name: "n1",
		Identity: m.ca.source(identity.RoleNode, "n1"), EdgeID: m.src.ID(),
		Providers: []nodeagent.ProviderSpec{
			{ID: "plain", Engine: "openai", URL: provider.URL, Capacity: 1024, Models: []string{"plain"}},
			{ID: "leased", Engine: "openai", URL: provider.URL, Capacity: 1024, Models: []string{"leased"}, Slots: []string{"openai"}},
		},
		Logger: slog.New(slog.DiscardHandler), DrainTimeout: time.Second,
	})
	must(b, err)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- agent.Run(ctx) }()
	b.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			b.Error(err)
		}
	})
	for _, model := range []string{"plain", "leased"} {
		m.body[model] = `{"model":"` + model + `","messages":[{"role":"user","content":"` + strings.Repeat("x", 200) + `"}]}`
	}
	m.eventually("both models are served", func() bool {
		plain, _, _ := m.post(chat, m.body["plain"])
		leased, _, _ := m.post(chat, m.body["leased"])
		return plain == http.StatusOK && leased == http.StatusOK
	})
	return m
}

// benchManaged is an Edge in managed mode that logs as an operator's would, to nowhere, and keeps its state in a file.
func benchManaged(b *testing.B, provider string) *managed {
	b.Helper()
	ca := newAuthority(b)
	m := &managed{ca: ca, src: ca.source(identity.RoleEdge, "edge-1")}
	dir := b.TempDir()
	file := filepath.Join(dir, "iop.yaml")
	must(b, os.WriteFile(file, []byte(leasedRoutes), 0o600))
	logs := gateway.NewLogWriter(io.Discard)
	b.Cleanup(func() { _ = logs.Close() })
	m.edge = newEdgeOn(b, "sqlite://"+filepath.Join(dir, "iop.db"), func(c *gateway.Config) {
		c.Mode, c.TunnelListen, c.Identity, c.Config = gateway.ModeManaged, "127.0.0.1:0", m.src, file
		c.Logger = slog.New(gateway.NewLogHandler(logs, slog.LevelInfo))
		seedSlots(b, c.Store)
		_, err := c.Store.SetProfile(b.Context(), state.Profile{Name: "bearer", Header: state.HeaderAuthorizationBearer, BaseURLs: []string{provider}}, "test")
		must(b, err)
	})
	m.client.Transport.(*http.Transport).MaxIdleConnsPerHost = leasedClients
	return m
}

// round sends requests for a model and waits for their answers.
func (m *leasedBench) round(b *testing.B, model string) {
	clients(func() {
		if status, _, answer := m.post(chat, m.body[model]); status != http.StatusOK {
			b.Errorf("%d %s", status, answer)
		}
	})
}

// clients does one thing as often as a round has requests, with as much of it at once: what shares a processor's core with
// others takes longer.
func clients(do func()) {
	var wg sync.WaitGroup
	for range leasedClients {
		wg.Go(func() {
			for range leasedRound / leasedClients {
				do()
			}
		})
	}
	wg.Wait()
}

// newSealOpen returns what seals and opens one lease.
func newSealOpen(b *testing.B) func() {
	b.Helper()
	const edge, node = "spiffe://iop.test/edge/edge-1", "spiffe://iop.test/node/n1"
	signing, err := lease.NewSigningKeys()
	must(b, err)
	sealer, err := lease.NewSealer(lease.SealerConfig{Issuer: edge, Keys: signing})
	must(b, err)
	recipient, err := lease.NewRecipient()
	must(b, err)
	to, err := lease.ParseRecipient(recipient.PublicJWK())
	must(b, err)
	keys, err := lease.ParseKeySet(signing.Public())
	must(b, err)
	clock := &lease.EdgeClock{}
	clock.Observe(time.Now(), time.Now(), time.Now())
	opener, err := lease.NewOpener(lease.OpenerConfig{
		Issuer: edge, Audience: node, Generation: 1, Recipient: recipient, Clock: clock, Keys: func() lease.KeySet { return keys },
		MinimumRevision: func(execution.SlotName) execution.Revision { return 1 },
		Policy:          func(execution.SlotName, execution.ProfileName, lease.Target) bool { return true },
		ReplayBound:     1 << 30,
	})
	must(b, err)
	digest, err := lease.RequestDigest(http.MethodPost, chat, "application/json", sha256.Sum256([]byte("{}")))
	must(b, err)
	secret, err := lease.NewSecret([]byte(canary))
	must(b, err)
	bound := lease.Binding{
		Audience: node, Generation: 1, Run: execution.NewRunID(), Attempt: 1, Principal: "key-1", Route: "leased", Slot: "openai",
		Profile: "bearer", Revision: 1, Target: providerURL, Digest: digest, Header: lease.HeaderBearer,
	}
	want := lease.Expectation{
		Run: bound.Run, Attempt: 1, Principal: bound.Principal, Route: bound.Route, Slot: bound.Slot, Profile: bound.Profile,
		Target: bound.Target, Digest: digest,
	}
	return func() {
		token, _, _, err := sealer.Seal(bound, secret, to)
		if err != nil {
			b.Error(err)
			return
		}
		opened, err := opener.Open(token, want)
		if err != nil {
			b.Error(err)
			return
		}
		opened.Close()
	}
}
