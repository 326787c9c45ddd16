package gateway_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/state"
	"iop/tunnel"
)

// h2Over is a client of HTTP/2 over connections that dial makes.
func h2Over(dial dialler) (*http.Client, *http.Transport) {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, DialContext: dial, DisableCompression: true}
	return &http.Client{Transport: transport}, transport
}

// TestHTTP2SilenceIsNoStall: the deadline for what a client takes is not one for what a provider sends. In HTTP/2 it would
// reset the stream whether or not something is being written.
func TestHTTP2SilenceIsNoStall(t *testing.T) {
	const half = 20 << 10
	halves := func(_ context.Context, run *tunnel.NodeRun) {
		_ = run.Head(head(http.StatusOK, "audio/mpeg"))
		_ = run.Write([]byte(strings.Repeat("a", half)), false)
		time.Sleep(12 * time.Minute)
		_ = run.Write([]byte(strings.Repeat("b", half)), false)
		run.End(execution.Terminal{Outcome: execution.Completed, Phase: execution.PhaseProviderDone})
	}
	dialled(t, nil, halves, state.KeySpec{Name: "test"}, func(_ sender, dial dialler, key string) {
		client, transport := h2Over(dial)
		defer transport.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://edge"+chat, strings.NewReader(`{"model":"m","stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+key)
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if body, err := io.ReadAll(resp.Body); err != nil || len(body) != 2*half || resp.ProtoMajor != 2 {
			t.Errorf("%s: %d bytes, %v", resp.Proto, len(body), err)
		}
	})
}

// TestHTTP2StrangersTakeTheirAnswers: a connection without a valid key may leave the streams that it opens for seconds only, the
// tunnel's included, which HTTP/2 can't upgrade.
func TestHTTP2StrangersTakeTheirAnswers(t *testing.T) {
	for _, path := range []string{chat, "/v1/models", "/nothing", "/tunnel/v1"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			e := newEdge(t, nil)
			c := &callers{t: t, key: "wrong", dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, e.server.Addr().String())
			}}
			defer c.leave()
			h := c.http2At(path, `{"model":"m"}`)
			e.eventually("the stream is reset", h.reset.Load)
		})
	}
}

// TestHTTP2AnswerThatIsNotTaken: what is no run has to be taken within minutes as well, by whom it may be.
func TestHTTP2AnswerThatIsNotTaken(t *testing.T) {
	for name, key := range map[string]string{"of a wrong key": "wrong", "of a right one, without a model": ""} {
		t.Run(name, func(t *testing.T) {
			dialled(t, nil, answerSSE(doneEvent), state.KeySpec{Name: "test"}, func(_ sender, dial dialler, right string) {
				c := &callers{t: t, dial: dial, key: right}
				if key != "" {
					c.key = key
				}
				defer c.leave()
				h := c.http2With(`{"nothing":1}`)
				synctest.Wait()
				time.Sleep(6 * time.Minute)
				synctest.Wait()
				if !h.reset.Load() {
					t.Error("the stream is open, and with it a goroutine")
				}
			})
		})
	}
}
