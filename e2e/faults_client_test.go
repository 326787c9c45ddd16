package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"
)

// TestClientGone leaves a request in each of its phases, in each way that a client can go.
func TestClientGone(t *testing.T) {
	t.Parallel()
	s := newStack(t, stackConfig{simArgs: []string{"--slots", "8"}})
	phases := []struct {
		name   string
		knobs  string
		stream bool
		events int // to wait for
	}{
		{"before the first token", "ttft=60s", true, 0},
		{"before the first token, after the head", "ttft=60s,headers=early", true, 0},
		{"in mid-stream", "tokens=100000,itl=20ms", true, 3},
		{"in a silence of the stream", "tokens=100,hang_after=2", true, 2},
		{"without a stream", "ttft=60s", false, 0},
	}
	for _, phase := range phases {
		for _, way := range leavings {
			t.Run(phase.name+"/"+way, func(t *testing.T) {
				fastest(t, time.Second, func() time.Duration {
					before := s.sims[0].stats(t)
					c := newCaller(t, way)
					a := s.ask(c, c.Client, "/v1/chat/completions", chat("sim-small", phase.knobs, phase.stream))
					s.sims[0].active(t, 1)
					a.reaches(t, phase.events, patience)
					left := time.Now()
					c.leave()
					eventually(t, patience, "the provider's request is cancelled", func() bool {
						st := s.sims[0].stats(t)
						return st.Active == 0 && st.Cancelled == before.Cancelled+1
					})
					return time.Since(left)
				})
				s.quiet()
				if last := s.runs()[0]; last.Outcome != "cancelled" || last.Code != "client_gone" {
					t.Errorf("the run ended as %+v", last)
				}
			})
		}
	}
	eventually(t, patience, "no capacity is in use", func() bool { return s.metric("iop_capacity_in_use") == 0 })
}

// fastest runs do up to three times, and fails unless one of them took no longer than most: on a loaded machine a
// single one proves little.
func fastest(t *testing.T, most time.Duration, do func() time.Duration) {
	t.Helper()
	best := do()
	for range 2 {
		if best <= most {
			return
		}
		best = min(best, do())
	}
	if best > most {
		t.Errorf("it took %s, not %s", best, most)
	}
}

// TestClientGoneInQueue leaves requests that wait for a place, and requests that no Node was ever there for.
func TestClientGoneInQueue(t *testing.T) {
	t.Parallel()
	s := newEdge(t)
	sim := s.startSim("--slots", "8")
	s.startNode("node-1", "--provider", "sim="+sim.url+",capacity=1")
	holder := newCaller(t, "FIN")
	held := s.ask(holder, holder.Client, "/v1/chat/completions", chat("sim-small", "tokens=100000,itl=50ms", true))
	held.reaches(t, 2, patience)
	started := sim.stats(t).Started
	for _, stream := range []bool{true, false} {
		for _, way := range leavings {
			t.Run(fmt.Sprintf("stream=%v/%s", stream, way), func(t *testing.T) {
				c := newCaller(t, way)
				s.ask(c, c.Client, "/v1/chat/completions", chat("sim-small", "tokens=3", stream))
				eventually(t, patience, "it waits", func() bool { return s.metric("iop_queued") == 1 })
				c.leave()
				eventually(t, patience, "it waits no more", func() bool { return s.metric("iop_queued") == 0 })
			})
		}
	}
	next := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=3", true))
	eventually(t, patience, "it waits", func() bool { return s.metric("iop_queued") == 1 })
	holder.leave()
	if err := next.end(t, patience).whole(); err != nil {
		t.Error("the next in the queue:", err)
	}
	s.quiet()
	if n := sim.stats(t).Started; n != started+1 {
		t.Errorf("the provider was asked %d times for requests whose client had gone", n-started-1)
	}
}

// TestCancelRun ends runs by the caller's own key and by the operator's command, in each phase.
func TestCancelRun(t *testing.T) {
	t.Parallel()
	s := newEdge(t)
	sim := s.startSim("--slots", "8")
	s.startNode("node-1", "--provider", "sim="+sim.url+",capacity=1")
	byCaller := func(t *testing.T, id string) {
		if res, body := s.post("/iop/v1/runs/"+id+"/cancel", nil); res.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", res.Status, body)
		}
	}
	byOperator := func(t *testing.T, id string) { iop(t, s.env, "cancel", id) }
	for _, who := range []struct {
		name, code string
		cancel     func(*testing.T, string)
	}{{"caller", "cancelled_by_caller", byCaller}, {"operator", "cancelled_by_operator", byOperator}} {
		t.Run(who.name+"/stream", func(t *testing.T) {
			a := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=100000,itl=20ms,usage=always", true))
			a.reaches(t, 5, patience)
			who.cancel(t, a.header.Get("X-Iop-Run-Id"))
			if err := a.end(t, patience).broken(); err != nil {
				t.Error(err)
			}
			sim.active(t, 0)
			s.quiet()
			s.cancelled(t, a.header.Get("X-Iop-Run-Id"), who.code)
		})
		t.Run(who.name+"/unary", func(t *testing.T) {
			a := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "ttft=60s", false))
			sim.active(t, 1)
			id := s.live(t, 1)[0].ID
			who.cancel(t, id)
			if a.end(t, patience); a.status != 499 || a.header.Get("X-Should-Retry") != "false" {
				t.Errorf("%s, %v", a, a.header)
			}
			sim.active(t, 0)
			s.quiet()
			s.cancelled(t, id, who.code)
		})
		t.Run(who.name+"/queued", func(t *testing.T) {
			holder := newCaller(t, "FIN")
			s.ask(holder, holder.Client, "/v1/chat/completions", chat("sim-small", "ttft=60s", false))
			sim.active(t, 1)
			a := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "", true))
			eventually(t, patience, "it waits", func() bool { return s.metric("iop_queued") == 1 })
			for _, r := range s.live(t, 2) {
				if r.State == "queued" {
					who.cancel(t, r.ID)
				}
			}
			if a.end(t, patience); a.status != 499 {
				t.Error(a)
			}
			holder.leave()
			s.quiet()
		})
	}
	if res, body := s.post("/iop/v1/runs/run_00000000000000000000000000/cancel", nil); res.StatusCode != http.StatusNotFound {
		t.Errorf("a run that is none: %s %s", res.Status, body)
	}
	if _, stderr, err := tryIOP(t, s.env, "cancel", "run_none"); err == nil || stderr == "" {
		t.Errorf("a run that is none: %v, %q", err, stderr)
	}
}

// live waits until n runs are under way and returns them.
func (s *stack) live(t *testing.T, n int) (live []runState) {
	t.Helper()
	eventually(t, patience, fmt.Sprintf("%d runs are under way", n), func() bool {
		live = nil
		for _, r := range s.runs() {
			if r.State != "ended" {
				live = append(live, r)
			}
		}
		return len(live) == n
	})
	return live
}

// cancelled checks what the caller and the operator are told of a run that was cancelled.
func (s *stack) cancelled(t *testing.T, id, code string) {
	t.Helper()
	if r := s.run(id); r.State != "ended" || r.Outcome != "cancelled" || r.Code != code {
		t.Errorf("the operator sees %+v", r)
	}
	_, body := s.get("/iop/v1/runs/" + id)
	var r struct{ State, Outcome, Code, Node string }
	if err := json.Unmarshal(body, &r); err != nil || r.State != "ended" || r.Outcome != "cancelled" || r.Code != code || r.Node != "" {
		t.Errorf("the caller sees %s (%v)", body, err)
	}
}

// TestNoNodeYet sends requests to an Edge without a Node; one joins, and they run.
func TestNoNodeYet(t *testing.T) {
	t.Parallel()
	s := newEdge(t)
	sim := s.startSim()
	var waiting []*answer
	for range 5 {
		waiting = append(waiting, s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=5", true)))
	}
	eventually(t, patience, "all wait", func() bool { return s.metric("iop_queued") == 5 })
	s.startNode("node-1", "--provider", "sim="+sim.url)
	for _, a := range waiting {
		if err := a.end(t, patience).whole(); err != nil {
			t.Error(err)
		}
		if a.header.Get("X-Iop-Queue-Ms") == "0" {
			t.Errorf("it says that it did not wait: %v", a.header)
		}
	}
	s.quiet()
}
