package gateway_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"iop/gateway"
	"iop/identity"
	"iop/nodeagent"
	"iop/state"
)

// A normalized run takes its credential from a lease as a relayed one does: bound to its input, and given to the provider in
// the request that the adapter made of it.
func TestLeasedNormalizedRun(t *testing.T) {
	keys := make(chan string, 4)
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost { // the Node looks whether it is there
			http.NotFound(w, r)
			return
		}
		body, _ := io.ReadAll(r.Body)
		keys <- r.URL.Path + " " + r.Header.Get("Authorization")
		if !strings.Contains(string(body), `"max_tokens"`) {
			http.Error(w, "no Messages request", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for _, event := range []string{
			`{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"theirs","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":3,"output_tokens":1}}}`,
			`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`,
			`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}`,
			`{"type":"content_block_stop","index":0}`,
			`{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":2}}`,
			`{"type":"message_stop"}`,
		} {
			kind, _, _ := strings.Cut(strings.TrimPrefix(event, `{"type":"`), `"`)
			_, _ = io.WriteString(w, "event: "+kind+"\ndata: "+event+"\n\n")
		}
	}))
	t.Cleanup(provider.Close)
	m := newManagedWith(t, newAuthority(t), "edge-1", "routes: [{model: m, targets: [{slot: openai}]}]", func(c *gateway.Config) {
		_, err := c.Store.SetProfile(t.Context(), state.Profile{Name: "bearer", Header: state.HeaderAuthorizationBearer, BaseURLs: []string{provider.URL}}, "test")
		must(t, err)
	})
	agent, err := nodeagent.New(nodeagent.Config{
		Edge: "wss://" + m.server.TunnelAddr().String() + "/tunnel/v1", Name: "n1",
		Identity: m.ca.source(identity.RoleNode, "n1"), EdgeID: m.src.ID(),
		Providers: []nodeagent.ProviderSpec{{ID: "p", Engine: "anthropic", URL: provider.URL, Capacity: 4, Models: []string{"m"}, Slots: []string{"openai"}}},
		Logger:    slog.New(slog.DiscardHandler), DrainTimeout: time.Second,
	})
	must(t, err)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- agent.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	m.eventually("the model is served", func() bool { return strings.Contains(m.get("/v1/models"), `"m"`) })
	for name, f := range families {
		status, h, answer := f.ask(m.edge, false)
		want := "normalized"
		if name == "messages" {
			want = "raw"
		}
		if got := <-keys; got != "/v1/messages Bearer "+canary {
			t.Errorf("%s: the provider got %q", name, got)
		}
		if status != http.StatusOK || h.Get("X-Iop-Execution") != want || want != "raw" && !strings.Contains(answer, f.whole) {
			t.Errorf("%s: %d, %s: %s", name, status, h.Get("X-Iop-Execution"), answer)
		}
		m.clean(answer)
	}
	m.idle()
}
