package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// storm is a crowd of clients that do to one Edge what clients do at their worst.
type storm struct {
	*stack
	client *http.Client
	sent   atomic.Int64 // requests that were written
}

// TestStorm ends thousands of requests in every way, kills Nodes meanwhile, and then counts: nothing may be left.
// IOP_STORM sets how many.
func TestStorm(t *testing.T) {
	t.Parallel()
	requests := 2000
	if v := os.Getenv("IOP_STORM"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatal("IOP_STORM must be a number:", err)
		}
		requests = n
	}
	s := newEdge(t, "--total-timeout", "2s", "--queue-limit", "100", "--log", "warn")
	transport := &http.Transport{MaxIdleConnsPerHost: 100}
	st := &storm{stack: s, client: &http.Client{Transport: transport}}
	sim := s.startSim("--slots", "24", "--queue", "4", "--models", "sim-small,failing-0,failing-1,failing-2,failing-3")
	spec := "sim=" + sim.url + ",capacity=12"
	nodes := [2]*process{s.startNode("node-0", "--provider", spec), s.startNode("node-1", "--provider", spec)}
	s.online("node-0", patience)
	s.online("node-1", patience)
	st.warmUp(t, transport)
	goroutines := s.metric("go_goroutines")

	work := make(chan int)
	var crowd sync.WaitGroup
	for range 64 {
		crowd.Go(func() {
			for n := range work {
				st.one(rand.New(rand.NewPCG(1, uint64(n))))
			}
		})
	}
	for n := range requests {
		work <- n
		if n%400 == 399 { // one Node dies; the other is there
			i := n / 400 % 2
			nodes[i].kill()
			nodes[i] = s.launchNode(fmt.Sprintf("node-%d", i), "--provider", spec)
		}
	}
	close(work)
	crowd.Wait()
	transport.CloseIdleConnections()

	s.quiet()
	s.online("node-0", patience)
	s.online("node-1", patience)
	sums := s.outcomes()
	t.Logf("%d sent: %v", st.sent.Load(), sums)
	total := 0.0
	for outcome, n := range sums {
		total += n
		if n == 0 {
			t.Errorf("no request ended as %s: the storm was none", outcome)
		}
	}
	if total != float64(st.sent.Load()) {
		t.Errorf("%v requests have ended of %d", total, st.sent.Load())
	}
	eventually(t, patience, "no capacity is in use", func() bool { return s.metric("iop_capacity_in_use") == 0 })
	sim.active(t, 0)
	for _, name := range []string{"iop_panics_total", "iop_protocol_errors_total", "iop_stream_errors_total"} {
		if n := s.metric(name); n != 0 {
			t.Errorf("%s is %v", name, n)
		}
	}
	s.calm(t, goroutines, nodes[0], nodes[1])
}

// warmUp runs what a busy Edge keeps: connections, pools.
func (st *storm) warmUp(t *testing.T, transport *http.Transport) {
	t.Helper()
	var all []*answer
	for range 20 {
		all = append(all, st.ask(st.counted(context.Background()), st.client, "/v1/chat/completions", chat("sim-small", "tokens=2", true)))
	}
	for _, a := range all {
		a.end(t, patience)
	}
	transport.CloseIdleConnections()
	st.quiet()
}

// counted counts the request once it is written.
func (st *storm) counted(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(i httptrace.WroteRequestInfo) {
		if i.Err == nil {
			st.sent.Add(1)
		}
	}})
}

// one sends one request and ends it in a way of its own.
func (st *storm) one(r *rand.Rand) {
	written := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	traced := httptrace.WithClientTrace(st.counted(ctx), &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) {
		select {
		case <-written:
		default:
			close(written)
		}
	}})
	stream := r.IntN(2) == 0
	knobs := []string{"tokens=3", "tokens=200,itl=10ms", "ttft=200ms", "ttft=30s", "fault=hang", "midclose", "midreset", "error_event_first", "status=503", "empty200"}
	kind, model := r.IntN(len(knobs)), "sim-small"
	knob := knobs[kind]
	switch {
	case r.IntN(20) == 0:
		model = "unknown-model"
	case kind > 3: // a breaker must not keep the others away
		model = fmt.Sprintf("failing-%d", r.IntN(4))
	}
	a := st.ask(traced, st.client, "/v1/chat/completions", chat(model, knob, stream))
	select {
	case <-written:
	case <-a.done:
	}
	switch r.IntN(4) {
	case 0: // the client leaves
		select {
		case <-a.done:
		case <-time.After(time.Duration(r.IntN(300)) * time.Millisecond):
			cancel()
		}
	case 1: // the run is cancelled, if it is known by then
		select {
		case <-a.done:
		case <-time.After(time.Duration(r.IntN(100)) * time.Millisecond):
			a.mu.Lock()
			id := a.header.Get("X-Iop-Run-Id")
			a.mu.Unlock()
			st.cancelRun(id)
		}
	}
	<-a.done
}

func (st *storm) cancelRun(id string) {
	if id == "" {
		return
	}
	res, err := st.client.Do(st.request("POST", "/iop/v1/runs/"+id+"/cancel", nil, nil))
	if err == nil {
		res.Body.Close()
	}
}

// calm fails if work goes on that nobody asked for: goroutines that stayed, a processor that spins.
func (s *stack) calm(t *testing.T, goroutines float64, nodes ...*process) {
	t.Helper()
	http.DefaultClient.CloseIdleConnections()
	eventually(t, patience, fmt.Sprintf("goroutines are back near %v", goroutines), func() bool {
		return s.metric("go_goroutines") <= goroutines+15
	})
	watched := append([]*process{s.edge}, nodes...)
	before := make([]time.Duration, len(watched))
	for i, p := range watched {
		before[i] = p.cpu()
	}
	const span = 2 * time.Second
	<-time.After(span)
	for i, p := range watched {
		if used := p.cpu() - before[i]; used > span/4 {
			t.Errorf("%s used %s of processor time in %s with nothing to do", p.name, used, span)
		}
	}
}
