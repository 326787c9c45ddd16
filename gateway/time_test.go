package gateway_test

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/gateway"
	"iop/state"
	"iop/tunnel"
	"iop/tunnel/wire"
)

// pipes is a listener in memory, so that a whole Edge runs in synthetic time.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	a, b := net.Pipe()
	select {
	case p.conns <- remote{b}:
		return a, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// remote has an address as a socket's end has.
type remote struct{ net.Conn }

func (remote) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 2} }

// asker sends a chat request.
type asker func(body io.Reader) (*http.Response, error)

func (a asker) text(body string) (*http.Response, error) { return a(strings.NewReader(body)) }

// timed runs a test of an Edge and one Node in synthetic time.
func timed(t *testing.T, change func(*gateway.Config), h handler, test func(ask asker)) {
	bubble(t, change, h, state.KeySpec{Name: "test"}, func(send sender) {
		test(func(body io.Reader) (*http.Response, error) { return send(body) })
	})
}

// sender sends a chat request with further headers: names and values.
type sender func(body io.Reader, header ...string) (*http.Response, error)

// bubble is timed with a key of its own kind and requests with headers.
func bubble(t *testing.T, change func(*gateway.Config), h handler, spec state.KeySpec, test func(send sender)) {
	dialled(t, change, h, spec, func(send sender, _ dialler, _ string) { test(send) })
}

// dialler connects to the public listener of an Edge in synthetic time.
type dialler func(ctx context.Context, network, address string) (net.Conn, error)

// dialled is bubble for a test that makes connections of its own, with that key.
func dialled(t *testing.T, change func(*gateway.Config), h handler, spec state.KeySpec, test func(send sender, dial dialler, key string)) {
	store, err := state.Open(t.Context(), "sqlite::memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	_, key, err := store.CreateKey(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	_, join, err := store.CreateJoinToken(t.Context(), state.JoinTokenSpec{})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		public, private := newPipes(), newPipes()
		cfg := gateway.Config{Store: store, Listen: "-", AdminListen: "-", Logger: slog.New(slog.DiscardHandler)}
		if change != nil {
			change(&cfg)
		}
		server, err := gateway.NewOn(cfg, public, private)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan struct{}, 2)
		go func() { _ = server.Run(ctx); done <- struct{}{} }()
		sup, err := tunnel.NewSupervisor(tunnel.SupervisorConfig{
			URL: "ws://edge/tunnel/v1", Node: "n1", Handler: h, DialContext: public.dial,
			Token:  func() (string, error) { return join.Reveal(), nil },
			Logger: slog.New(slog.DiscardHandler),
			Describe: func() *tunnel.NodeInfo {
				return &tunnel.NodeInfo{
					Providers: []tunnel.ProviderInfo{{ID: "p", Capacity: 2, Health: wire.Health_HEALTH_OK}},
					Models:    []tunnel.ModelInfo{{Provider: "p", ID: "m"}},
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = sup.Run(ctx); done <- struct{}{} }()
		synctest.Wait()
		transport := &http.Transport{DialContext: public.dial, DisableCompression: true}
		client := &http.Client{Transport: transport}
		send := func(body io.Reader, header ...string) (*http.Response, error) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://edge"+chat, body)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+key.Reveal())
			for i := 0; i+1 < len(header); i += 2 {
				req.Header.Set(header[i], header[i+1])
			}
			return client.Do(req)
		}
		test(send, public.dial, key.Reveal())
		transport.CloseIdleConnections()
		server.Close()
		stop()
		<-done
		<-done
		transport.CloseIdleConnections()
	})
}

// afterSilence is a provider that is silent for a while before its head and again after one event.
func afterSilence(before, between time.Duration, half bool) handler {
	return func(_ context.Context, run *tunnel.NodeRun) {
		time.Sleep(before)
		_ = run.Head(head(200, "text/event-stream"))
		event := chunk("a")
		if half {
			_ = run.Write([]byte(event[:10]), false)
			time.Sleep(between)
			event = event[10:]
		}
		_ = run.Write([]byte(event), true)
		if !half {
			time.Sleep(between)
		}
		_ = run.Write([]byte(doneEvent), true)
		run.End(execution.Terminal{Outcome: execution.Completed, Phase: execution.PhaseProviderDone})
	}
}

func TestKeepAlive(t *testing.T) {
	const ping = ": ping\n"
	tests := map[string]struct {
		before, between time.Duration
		half            bool
		want            string
	}{
		"quick":                {before: 14 * time.Second, want: chunk("a") + doneEvent},
		"long prefill":         {before: 50 * time.Second, want: ping + ping + ping + chunk("a") + doneEvent},
		"stall between events": {between: 31 * time.Second, want: chunk("a") + ping + ping + doneEvent},
		"stall in an event":    {between: 31 * time.Second, half: true, want: chunk("a") + doneEvent},
		"11 minutes":           {before: 11*time.Minute + time.Second, want: strings.Repeat(ping, 44) + chunk("a") + doneEvent},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			timed(t, nil, afterSilence(test.before, test.between, test.half), func(ask asker) {
				resp, err := ask.text(`{"model":"m","stream":true}`)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || string(body) != test.want {
					t.Errorf("got %q, %v", body, err)
				}
			})
		})
	}
}

func TestKeepAliveComesInTime(t *testing.T) {
	timed(t, nil, afterSilence(time.Minute, 0, false), func(ask asker) {
		began := time.Now()
		resp, err := ask.text(`{"model":"m","stream":true}`)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if took := time.Since(began); took != 15*time.Second {
			t.Errorf("the head came after %v", took)
		}
		if got := resp.Header.Get("Content-Type"); got != "text/event-stream; charset=utf-8" {
			t.Errorf("Content-Type %q", got)
		}
		r := bufio.NewReader(resp.Body)
		for i := 1; i <= 3; i++ {
			line, err := r.ReadString('\n')
			if line != ": ping\n" || err != nil || time.Since(began) != time.Duration(i)*15*time.Second {
				t.Errorf("after %v: %q, %v", time.Since(began), line, err)
			}
		}
	})
}

func TestSilentUnaryAnswerIsWaitedFor(t *testing.T) {
	slow := func(ctx context.Context, run *tunnel.NodeRun) {
		time.Sleep(11 * time.Minute)
		answerJSON(200, `{"late":true}`)(ctx, run)
	}
	timed(t, nil, slow, func(ask asker) {
		resp, err := ask.text(`{"model":"m"}`)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if body, _ := io.ReadAll(resp.Body); resp.StatusCode != 200 || string(body) != `{"late":true}` {
			t.Errorf("got %d %q", resp.StatusCode, body)
		}
	})
}

// A failure after the head was sent for the comments' sake is told in-band; before, it is a status.
func TestLateFailureIsInBand(t *testing.T) {
	late := func(after time.Duration) handler {
		return func(ctx context.Context, run *tunnel.NodeRun) {
			time.Sleep(after)
			answerJSON(400, errorBody("context too long"))(ctx, run)
		}
	}
	timed(t, nil, late(20*time.Second), func(ask asker) {
		resp, err := ask.text(`{"model":"m","stream":true}`)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		want := ": ping\n" + `data: {"error":{"message":"context too long","type":"t","param":null,"code":"c"}}` + "\n\n"
		if resp.StatusCode != 200 || string(body) != want {
			t.Errorf("got %d %q", resp.StatusCode, body)
		}
	})
	timed(t, nil, late(10*time.Second), func(ask asker) {
		resp, err := ask.text(`{"model":"m","stream":true}`)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != 400 {
			t.Errorf("got %d", resp.StatusCode)
		}
	})
}

func TestTimeouts(t *testing.T) {
	block := func(ctx context.Context, run *tunnel.NodeRun) {
		<-ctx.Done()
		run.End(execution.Terminal{Outcome: execution.Cancelled, Code: execution.CodeDeadline})
	}
	tests := map[string]struct {
		change func(*gateway.Config)
		after  time.Duration
		code   string
		fill   int // requests before that take the places
	}{
		"total":   {func(c *gateway.Config) { c.TotalTimeout = time.Minute }, time.Minute, "provider_timeout", 0},
		"default": {nil, 30 * time.Minute, "provider_timeout", 0},
		"queue":   {func(c *gateway.Config) { c.QueueTimeout = 20 * time.Second }, 20 * time.Second, "queue_timeout", 2},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			timed(t, test.change, block, func(ask asker) {
				done := make(chan struct{})
				for range test.fill {
					go func() {
						if resp, err := ask.text(`{"model":"m"}`); err == nil {
							resp.Body.Close()
						}
						done <- struct{}{}
					}()
				}
				synctest.Wait()
				began := time.Now()
				resp, err := ask.text(`{"model":"m"}`)
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				took := time.Since(began)
				if code, _ := errorOf(t, string(body)); resp.StatusCode != 504 || code != test.code || took < test.after || took > test.after+2*time.Second {
					t.Errorf("after %v: %d %s", took, resp.StatusCode, body)
				}
				for range test.fill {
					<-done
				}
			})
		})
	}
}

// A client that takes nothing for five minutes counts as gone, and its run is cancelled.
func TestClientThatTakesNothing(t *testing.T) {
	var cancelled chan time.Duration
	flood := func(ctx context.Context, run *tunnel.NodeRun) {
		began := time.Now()
		_ = run.Head(head(200, "text/event-stream"))
		for run.Write([]byte(chunk(strings.Repeat("x", 1000))), true) == nil {
		}
		cancelled <- time.Since(began)
		run.End(execution.Terminal{Outcome: execution.Cancelled, Code: execution.CodeClientGone})
	}
	timed(t, nil, flood, func(ask asker) {
		cancelled = make(chan time.Duration, 1) // of the bubble
		resp, err := ask.text(`{"model":"m","stream":true}`)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if after := <-cancelled; after < 5*time.Minute || after > 6*time.Minute {
			t.Errorf("cancelled after %v", after)
		}
	})
}
