package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// chaosRequests is how many requests TestChaos sends; IOP_CHAOS sets another number.
const chaosRequests = 10_000

// chaos is random clients, on Nodes and providers that die and come back.
type chaos struct {
	*stack
	client *http.Client
	keys   []keyState
	good   []string // models
	bad    []string // models whose requests fail on purpose
	crews  []*crew
}

// crew is a provider and its Node.
type crew struct {
	name string
	sim  *simulator
	node *process
}

func newChaos(t *testing.T) *chaos {
	t.Helper()
	c := &chaos{
		stack:  newEdge(t, "--total-timeout", "3s", "--queue-timeout", "400ms", "--queue-limit", "60", "--log", "error"),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 128}},
		good:   []string{"good-0", "good-1", "good-2", "good-3", "good-4", "good-5"},
		bad:    []string{"bad-0", "bad-1"},
	}
	for name, args := range map[string][]string{
		"free": nil, "crowded": {"--concurrency", "6"}, "a minute": {"--rpm", "2400"}, "tokens": {"--tpm", "60000", "--monthly-tokens", "1000000000"},
		"shared": {"--owner", "team", "--concurrency", "40", "--weight", "3", "--priority", "5"},
	} {
		c.keys = append(c.keys, c.limitedKey(name, args...))
	}
	for i := range 3 {
		w := &crew{name: fmt.Sprintf("node-%d", i)}
		c.crews = append(c.crews, w)
		w.sim = c.startSim("--models", strings.Join(append(c.good, c.bad...), ","), "--slots", "12", "--queue", "6")
		w.node = c.startNode(w.name, "--log", "error", "--provider", "sim="+w.sim.url+",capacity=14")
		c.online(w.name, patience)
	}
	return c
}

// strike ends a Node or a provider as a crash would, and starts it again.
func (c *chaos) strike(n int) {
	w := c.crews[n/2%len(c.crews)]
	if n%2 == 0 {
		w.node.kill()
		w.node = c.launchNode(w.name, "--log", "error", "--provider", "sim="+w.sim.url+",capacity=14")
		return
	}
	w.sim.kill()
	listen := strings.TrimPrefix(w.sim.url, "http://")
	w.sim.process = start(c.t, "sim-again", nil, "sim", "--listen", listen, "--json", "--models", strings.Join(append(c.good, c.bad...), ","), "--slots", "12", "--queue", "6")
}

// one sends one request and ends it in a way of its own.
func (c *chaos) one(r *rand.Rand) {
	key, model, knobs := c.keys[r.IntN(len(c.keys))].Key, c.good[r.IntN(len(c.good))], "tokens=3"
	switch r.IntN(10) {
	case 0:
		model = c.bad[r.IntN(len(c.bad))]
		knobs = []string{"status=500", "status=503", "midclose", "midreset", "error_event_first", "error_event_mid", "empty200", "close", "hang"}[r.IntN(9)]
	case 1:
		knobs = "tokens=200,itl=10ms"
	case 2:
		knobs = "ttft=150ms,tokens=3"
	case 3:
		knobs = "tokens=10,itl=5ms,usage=never"
	}
	path, body := "/v1/chat/completions", chat(model, knobs, r.IntN(2) == 0)
	switch r.IntN(30) {
	case 0:
		body["model"] = "nobody's"
	case 1:
		path, body = "/v1/embeddings", map[string]any{"model": model, "input": "some text"}
	case 2:
		body["messages"] = []map[string]string{{"role": "user", "content": strings.Repeat("a longer prompt ", 8<<10)}} // more than one frame
	}
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	written, first := make(chan struct{}), make(chan struct{})
	var once, onceFirst sync.Once
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteRequest:         func(httptrace.WroteRequestInfo) { once.Do(func() { close(written) }) },
		GotFirstResponseByte: func() { onceFirst.Do(func() { close(first) }) },
	})
	a := c.with(key).ask(traced, c.client, path, body)
	until := func(ch <-chan struct{}, d time.Duration) {
		select {
		case <-a.done:
		case <-ch:
			select {
			case <-a.done:
			case <-time.After(d):
			}
		}
	}
	switch r.IntN(5) {
	case 0: // it leaves once the request is written
		until(written, time.Duration(r.IntN(40))*time.Millisecond)
		leave()
	case 1: // or after the first byte
		until(first, time.Duration(r.IntN(30))*time.Millisecond)
		leave()
	case 2:
		until(first, time.Duration(r.IntN(30))*time.Millisecond)
		a.mu.Lock()
		id := a.header.Get("X-Iop-Run-Id")
		a.mu.Unlock()
		if id == "" {
			break
		}
		res, err := c.client.Do(c.with(key).request("POST", "/iop/v1/runs/"+id+"/cancel", nil, nil))
		if err == nil {
			res.Body.Close()
		}
	}
	<-a.done
}

// TestChaos ends thousands of requests in every way while Nodes and providers die, and then counts: every gauge is back,
// and each request that was accepted has ended in one way, in the metrics and in the books.
func TestChaos(t *testing.T) {
	t.Parallel()
	requests := chaosRequests
	if v := os.Getenv("IOP_CHAOS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatal("IOP_CHAOS must be a number:", err)
		}
		requests = n
	}
	c := newChaos(t)
	work := make(chan int)
	var crowd sync.WaitGroup
	for range 80 {
		crowd.Go(func() {
			for n := range work {
				c.one(rand.New(rand.NewPCG(7, uint64(n))))
			}
		})
	}
	began, strikes := time.Now(), 0
	for n := range requests {
		work <- n
		if n%500 == 499 {
			c.strike(strikes)
			strikes++
		}
	}
	close(work)
	crowd.Wait()
	c.client.CloseIdleConnections()
	t.Logf("%d requests in %s, %d crashes", requests, time.Since(began).Round(time.Millisecond), strikes)
	c.balanced(t)
}

// balanced fails unless everything is given back, and the books add up.
func (c *chaos) balanced(t *testing.T) {
	t.Helper()
	for _, gauge := range []string{
		"iop_runs_in_flight", "iop_queued", "iop_queue_depth", "iop_places_taken", "iop_capacity_in_use", "iop_streams", "iop_body_budget_bytes", "iop_usage_pending",
	} {
		eventually(t, patience, gauge+" is 0", func() bool { return c.metric(gauge) == 0 })
	}
	for _, k := range c.keys {
		if now := c.showKey(k.ID); now.Use == nil || now.Use.Running != 0 {
			t.Errorf("of the key %q runs %+v", k.Name, now.Use)
		}
		if k.Name == "crowded" { // and all of its places can be had again
			c.fill(t, k)
		}
	}
	c.quiet()
	for _, w := range c.crews {
		w.sim.active(t, 0)
	}
	accepted, ended := c.metric("iop_requests_accepted_total"), 0.0
	outcomes, booked := c.outcomes(), c.usage("outcome")
	for outcome, n := range outcomes {
		ended += n
		if float64(booked[outcome].Runs) != n {
			t.Errorf("%v runs are %s, and %d booked", n, outcome, booked[outcome].Runs)
		}
	}
	t.Logf("%v accepted, %v; %v refused", accepted, outcomes, c.metric("iop_requests_refused_total"))
	for _, outcome := range []string{"completed", "failed", "cancelled", "rejected"} {
		if outcomes[outcome] == 0 {
			t.Errorf("no request was %s: this was no chaos", outcome)
		}
	}
	if records := len(c.records()); ended != accepted || float64(records) != accepted {
		t.Errorf("%v were accepted, %v have ended, %d are booked", accepted, ended, records)
	}
	for _, name := range []string{"iop_panics_total", "iop_protocol_errors_total", "iop_stream_errors_total", "iop_usage_dropped_total", "iop_usage_failures_total"} {
		if n := c.metric(name); n != 0 {
			t.Errorf("%s is %v", name, n)
		}
	}
}

// fill takes every concurrency place of a key at once.
func (c *chaos) fill(t *testing.T, k keyState) {
	t.Helper()
	eventually(t, patience, "a model is served", func() bool {
		res, _ := c.post("/v1/chat/completions", chat(c.good[0], "", false))
		return res.StatusCode == http.StatusOK
	})
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	for range k.Concurrency {
		c.with(k.Key).ask(ctx, c.client, "/v1/chat/completions", chat(c.good[0], "ttft=60s", false))
	}
	eventually(t, patience, fmt.Sprintf("the key %q has all of its places", k.Name), func() bool {
		return c.showKey(k.ID).Use.Running == int(k.Concurrency)
	})
	leave()
	eventually(t, patience, "it has given them back", func() bool { return c.showKey(k.ID).Use.Running == 0 })
}
