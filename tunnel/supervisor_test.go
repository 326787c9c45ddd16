package tunnel

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/tunnel/wire"
)

// dialLog refuses dials and remembers when they came.
type dialLog struct {
	mu    sync.Mutex
	times []time.Time
}

func (d *dialLog) dial(context.Context, string, string) (net.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.times = append(d.times, time.Now())
	return nil, errors.New("connection refused")
}

func (d *dialLog) gaps() (list []time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := 1; i < len(d.times); i++ {
		list = append(list, d.times[i].Sub(d.times[i-1]))
	}
	return list
}

func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes = 30
		var logs [nodes]dialLog
		ctx, stop := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		for i := range nodes {
			sup, err := NewSupervisor(SupervisorConfig{
				URL: "ws://edge.test", Node: "n", Handler: handlerFunc(echo), Logger: testLogger(),
				DialContext: logs[i].dial, Describe: func() *NodeInfo { return nil },
			})
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() { _ = sup.Run(ctx) })
		}
		time.Sleep(15 * time.Minute)
		stop()
		wg.Wait()
		var firsts, lasts time.Duration
		var late int
		for i := range logs {
			gaps := logs[i].gaps()
			if gaps[0] > time.Second {
				t.Errorf("the first retry came after %v", gaps[0])
			}
			firsts += gaps[0]
			for n, gap := range gaps {
				if gap > backoffMax || gap > backoffBase<<min(n, 10) {
					t.Errorf("retry %d came after %v", n, gap)
				}
				if n > 10 {
					lasts += gap
					late++
				}
			}
		}
		// Full jitter: the mean is half of the bound.
		if mean := firsts / nodes; mean < 300*time.Millisecond || mean > 700*time.Millisecond {
			t.Errorf("the first retries came after %v in the mean", mean)
		}
		if mean := lasts / time.Duration(late); mean < 13*time.Second || mean > 17*time.Second {
			t.Errorf("late retries came after %v in the mean", mean)
		}
	})
}

// Nobody waits longer than the trouble has lasted.
func TestBackoffNeverOutlastsTheTrouble(t *testing.T) {
	for range 1000 {
		if d := fullJitter(10, 2*time.Second); d > 2*time.Second {
			t.Fatalf("%v after 2 s", d)
		}
		if d := fullJitter(3, time.Hour); d > 8*time.Second {
			t.Fatalf("%v at the fourth attempt", d)
		}
		if d := fullJitter(40, time.Hour); d > backoffMax {
			t.Fatalf("%v", d)
		}
	}
}

// waitAfterSessions plays an Edge whose sessions hold so long, and returns the wait before the redial after several.
func waitAfterSessions(t *testing.T, hold time.Duration, sessions int) (waits []time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeRig(t, echo, nil)
		for g := range sessions {
			p := n.online(uint64(g + 1))
			time.Sleep(hold)
			p.close()
			synctest.Wait()
			waits = append(waits, n.sup.Status().RetryIn)
		}
		n.close()
	})
	return waits
}

// A session that held 60 s resets the backoff; one that did not does not.
func TestBackoffReset(t *testing.T) {
	var steady, flaky time.Duration
	for range 5 {
		for _, w := range waitAfterSessions(t, 61*time.Second, 8) {
			steady = max(steady, w)
		}
		for _, w := range waitAfterSessions(t, 50*time.Second, 8) {
			flaky = max(flaky, w)
		}
	}
	if steady > time.Second {
		t.Errorf("after a session that held, the wait was %v", steady)
	}
	if flaky < 4*time.Second {
		t.Errorf("after many sessions that did not hold, the wait was never over %v", flaky)
	}
}

// A refusal is retried slowly, and status shows what the Edge said.
func TestRefusalsAreRetriedSlowly(t *testing.T) {
	answer := func(status int, code string, header http.Header) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for k, v := range header {
				w.Header()[k] = v
			}
			writeRefusal(w, status, &Refusal{Code: code, Message: "the Edge's own words"})
		}
	}
	for _, c := range []struct {
		name     string
		answer   http.HandlerFunc
		state    State
		least    time.Duration
		most     time.Duration
		contains string
	}{
		{"token expired", answer(401, "token_expired", nil), StateRefused, 15 * time.Second, 30 * time.Second, "the Edge's own words"},
		{"retry after", answer(401, "flapping", http.Header{"Retry-After": {"25"}}), StateRefused, 25 * time.Second, 30 * time.Second, "the Edge's own words"},
		{"an absurd hint", answer(401, "flapping", http.Header{"Retry-After": {"86400"}}), StateRefused, 15 * time.Second, 30 * time.Second, "the Edge's own words"},
		{"draining", answer(503, "draining", nil), StateRefused, 0, time.Second, "the Edge's own words"},
		{"a proxy's page", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "<html>bad gateway", http.StatusBadGateway)
		}, StateWaiting, 0, time.Second, "502"},
		{"redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://evil.test/", http.StatusFound)
		}, StateWaiting, 0, time.Second, "redirect"},
		{"no subprotocol", func(w http.ResponseWriter, r *http.Request) {
			r.Header.Del("Sec-WebSocket-Protocol")
			if c, err := acceptConn(w, r); err == nil {
				c.kill()
			}
		}, StateWaiting, 0, time.Second, wire.Subprotocol},
	} {
		synctest.Test(t, func(t *testing.T) {
			var log dialLog
			network := newPipeNet()
			srv := &http.Server{Handler: c.answer}
			served := make(chan struct{})
			go func() { defer close(served); _ = srv.Serve(network) }()
			sup, err := NewSupervisor(SupervisorConfig{
				URL: "ws://edge.test", Node: "n", Handler: handlerFunc(echo), Logger: testLogger(), Describe: func() *NodeInfo { return nil },
				Token: func() (string, error) { return "njt-secret", nil },
				DialContext: func(ctx context.Context, n, addr string) (net.Conn, error) {
					_, _ = log.dial(ctx, n, addr)
					if strings.HasPrefix(addr, "evil") {
						t.Error("the redirect was followed")
					}
					return network.dial(ctx, n, addr)
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(context.Background())
			ran := make(chan struct{})
			go func() { defer close(ran); _ = sup.Run(ctx) }()
			synctest.Wait()
			st := sup.Status()
			if st.State != c.state || !strings.Contains(st.Detail, c.contains) || strings.Contains(st.Detail, "njt-secret") {
				t.Errorf("%s: status %+v", c.name, st)
			}
			if st.RetryIn < c.least || st.RetryIn > c.most {
				t.Errorf("%s: retry in %v", c.name, st.RetryIn)
			}
			time.Sleep(31 * time.Second)
			if gaps := log.gaps(); len(gaps) == 0 || gaps[0] != st.RetryIn {
				t.Errorf("%s: redialed after %v, said %v", c.name, gaps, st.RetryIn)
			}
			stop()
			<-ran
			_ = srv.Close()
			_ = network.Close()
			<-served
		})
	}
}

// A refusal in REGISTERED, and a session that ends because its token was revoked, count as refusals too.
func TestRefusedAtRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeRig(t, echo, nil)
		p := <-n.peers
		p.expect(wire.TypeRegister, nil)
		p.send(wire.TypeRegistered, 0, &wire.RegisterResponse{Refusal: &wire.Refusal{Code: "node_taken", Message: "this name belongs to another token"}})
		<-p.done
		synctest.Wait()
		if st := n.sup.Status(); st.State != StateRefused || !strings.Contains(st.Detail, "belongs to another") || st.RetryIn < 15*time.Second {
			t.Errorf("status %+v", st)
		}
		p.close()
		p = n.online(1)
		p.send(wire.TypeGoodbye, 0, &wire.Goodbye{Code: "token_revoked", Message: "the token was revoked"})
		<-p.done
		synctest.Wait()
		if st := n.sup.Status(); st.State != StateRefused || !strings.Contains(st.Detail, "was revoked") || st.RetryIn < 15*time.Second {
			t.Errorf("status %+v", st)
		}
		p.close()
		n.close()
	})
}

// What the Edge must answer to REGISTER, and by when.
func TestRegisteredMustBeWhole(t *testing.T) {
	for name, message := range map[string]*wire.RegisterResponse{
		"no generation": {MaxStreams: 1, ProtocolVersion: 1},
		"no streams":    {Generation: 1, ProtocolVersion: 1},
		"version 2":     {Generation: 1, MaxStreams: 1, ProtocolVersion: 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			n := newNodeRig(t, echo, nil)
			p := <-n.peers
			p.expect(wire.TypeRegister, nil)
			p.send(wire.TypeRegistered, 0, message)
			<-p.done
			synctest.Wait()
			if st := n.sup.Status(); st.State != StateWaiting {
				t.Errorf("%s: status %+v", name, st)
			}
			p.close()
			n.close()
		})
	}
	synctest.Test(t, func(t *testing.T) { // an Edge that never answers, and one that never says READY_ACK
		n := newNodeRig(t, echo, nil)
		began := time.Now()
		p := <-n.peers
		<-p.done
		if d := time.Since(began); d != 25*time.Second {
			t.Errorf("the Node waited %v for REGISTERED", d)
		}
		p.close()
		p, _ = n.registered(1)
		began = time.Now()
		<-p.done
		if d := time.Since(began); d < 24*time.Second || d > 26*time.Second {
			t.Errorf("the Node waited %v for READY_ACK", d)
		}
		p.close()
		n.close()
	})
}

// REGISTER says what the Node saw: the greatest generation, over sessions and Edges.
func TestRegisterTellsWhatWasSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeRig(t, echo, nil)
		p := n.online(41)
		p.close()
		p, req := n.registered(7) // an Edge that lost its memory
		if req.HighestGenerationSeen != 41 || req.ReplacesGeneration != 0 {
			t.Errorf("%v", req)
		}
		boot := req.BootId
		p.close()
		p, req = n.registered(50)
		if req.HighestGenerationSeen != 41 || req.BootId != boot || boot == "" {
			t.Errorf("%v", req)
		}
		p.close()
		n.close()
	})
}

// The token is asked for at each dial; one that can't be read is an error like any other.
func TestTokenIsReadAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []string
		asked := 0
		n := newNodeRigBefore(t, echo, func(cfg *SupervisorConfig) {
			cfg.Token = func() (string, error) {
				if asked++; asked == 2 {
					return "", errors.New("no such file")
				}
				return "token" + string(rune('0'+asked)), nil
			}
		}, func(n *nodeRig) {
			n.seen = func(r *http.Request) { seen = append(seen, r.Header.Get("Authorization")) }
		})
		p := n.online(1)
		p.close()
		synctest.Wait()
		time.Sleep(2 * time.Second)
		p = n.online(2)
		p.close()
		n.close()
		if len(seen) < 2 || seen[0] != "Bearer token1" || seen[1] != "Bearer token3" {
			t.Errorf("tokens %q", seen)
		}
	})
}

// A Node that stops does not wait for an Edge that does not answer.
func TestStopWhileConnecting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNodeRig(t, echo, nil)
		p := <-n.peers // and no answer
		began := time.Now()
		if err := n.sup.Drain(context.Background()); err != nil {
			t.Error(err)
		}
		<-n.ran
		if d := time.Since(began); d > time.Second || n.runErr != nil {
			t.Errorf("after %v: %v", d, n.runErr)
		}
		p.close()
		n.close()
	})
}

// OnStatus hears of each change, in order.
func TestStatusChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var states []State
		n := newNodeRig(t, echo, func(cfg *SupervisorConfig) {
			cfg.OnStatus = func(st SupervisorStatus) { states = append(states, st.State) }
		})
		p := n.online(3)
		synctest.Wait()
		if st := n.sup.Status(); st.State != StateOnline || st.Generation != execution.Generation(3) {
			t.Errorf("status %+v", st)
		}
		p.send(wire.TypeGoodbye, 0, &wire.Goodbye{Code: "shutdown"})
		synctest.Wait()
		p.close()
		n.close()
		want := []State{StateConnecting, StateOnline, StateWaiting, StateStopped}
		if len(states) != len(want) {
			t.Fatalf("states %v", states)
		}
		for i := range want {
			if states[i] != want[i] {
				t.Errorf("states %v", states)
			}
		}
	})
}
