package e2e

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const soakRoutes = `
advertised_models: serve
routes:
  - model: near
    policy: prefix_affinity
    targets: [{model: sim-small}]
  - model: soon
    aliases: [sooner]
    policy: lowest_wait
    rename_model: true
    parameters: {defaults: {temperature: 0.3}, caps: {max_tokens: 500}}
    targets: [{model: sim-small}]
`

// soak is a steady load of every kind.
type soak struct {
	*routed
	keys   []string
	client *http.Client
	sent   atomic.Int64
	failed atomic.Int64
	last   atomic.Value // string: of the last failure
}

func newSoak(t *testing.T) *soak {
	t.Helper()
	s := &soak{routed: newRouted(t, soakRoutes, "--log", "error"), client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
	for i, args := range [][]string{nil, {"--rpm", "1000000", "--tpm", "1000000000"}, {"--concurrency", "3"}, {"--owner", "team", "--monthly-tokens", "1000000000", "--weight", "4"}} {
		s.keys = append(s.keys, s.newKey(fmt.Sprintf("key %d", i), args...))
	}
	for i := range 2 {
		sim := s.startSim("--slots", "64", "--prefix-cache", "100000")
		s.startNode(fmt.Sprintf("node-%d", i), "--log", "error", "--provider", "sim="+sim.url+",capacity=32")
		s.online(fmt.Sprintf("node-%d", i), patience)
	}
	return s
}

// one sends one request with a prompt that was never there before. sim-large has no route; sim-small is reached only through soon,
// which caps it.
func (s *soak) one(r *rand.Rand) {
	model := []string{"near", "soon", "sooner", "sim-large"}[r.IntN(4)]
	n := s.sent.Add(1)
	body := chat(model, "tokens=8", r.IntN(2) == 0)
	body["messages"] = []map[string]string{
		{"role": "system", "content": strings.Repeat(fmt.Sprintf("Prompt %d of the soak. ", r.Int64()), 1+r.IntN(60))},
		{"role": "user", "content": fmt.Sprint("question ", n)},
	}
	path := "/v1/chat/completions"
	if r.IntN(20) == 0 {
		path, body = "/v1/embeddings", map[string]any{"model": "sim-embed", "input": fmt.Sprint("text ", n)}
	}
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	a := s.with(s.keys[r.IntN(len(s.keys))]).ask(ctx, s.client, path, body)
	if r.IntN(20) == 0 {
		leave()
		<-a.done
		return
	}
	<-a.done
	if a.err != nil || a.status != http.StatusOK && a.status != http.StatusTooManyRequests {
		s.failed.Add(1)
		s.last.Store(a.String())
	}
}

// heap is how many bytes the Edge's heap has after a collection.
func (s *stack) heap() float64 {
	s.t.Helper()
	res, err := http.DefaultClient.Do(s.adminRequest("/debug/pprof/heap?gc=1&debug=1"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		s.t.Fatalf("%s, %v", res.Status, err)
	}
	_, rest, _ := strings.Cut(string(text), "# HeapAlloc = ")
	line, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.ParseFloat(line, 64)
	if err != nil {
		s.t.Fatalf("the profile says %q: %v", line, err)
	}
	return n
}

func (s *stack) adminRequest(path string) *http.Request {
	s.t.Helper()
	req, err := http.NewRequest("GET", s.admin+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.adminToken())
	return req
}

// trend fits a line through samples taken at equal distances. rise is how much it rises from the first to the last, noise
// the standard deviation of the samples from it.
func trend(samples []float64) (rise, noise float64) {
	n := float64(len(samples))
	var sum, sumX, sumXX, sumXY float64
	for i, y := range samples {
		x := float64(i)
		sum, sumX, sumXX, sumXY = sum+y, sumX+x, sumXX+x*x, sumXY+x*y
	}
	slope := (n*sumXY - sumX*sum) / (n*sumXX - sumX*sumX)
	base := (sum - slope*sumX) / n
	for i, y := range samples {
		d := y - base - slope*float64(i)
		noise += d * d
	}
	return slope * (n - 1), math.Sqrt(noise / (n - 2))
}

func TestTrend(t *testing.T) {
	if rise, noise := trend([]float64{10, 12, 14, 16, 18}); math.Abs(rise-8) > 1e-9 || noise > 1e-6 {
		t.Errorf("a line rises by %v, %v", rise, noise)
	}
	if rise, noise := trend([]float64{5, 7, 5, 7, 5, 7, 5}); math.Abs(rise) > 1e-9 || noise < 0.9 {
		t.Errorf("a level rises by %v, %v", rise, noise)
	}
}

// soakSamples are of the second half of a soak.
type soakSamples struct {
	heap     []float64 // bytes, after a collection
	requests int64     // sent meanwhile
	resident [2]int64  // bytes of the process, first and last
}

// sample waits for half of the time and looks at the Edge at each interval of the other half.
func (s *soak) sample(half, interval time.Duration) *soakSamples {
	<-time.After(half)
	got := &soakSamples{requests: -s.sent.Load()}
	got.resident[0] = s.edge.memory("VmRSS")
	ticks := time.NewTicker(interval)
	defer ticks.Stop()
	for until := time.Now().Add(half); time.Now().Before(until); <-ticks.C {
		got.heap = append(got.heap, s.heap())
	}
	got.requests += s.sent.Load()
	got.resident[1] = s.edge.memory("VmRSS")
	return got
}

// TestSoak holds a steady load for a while (IOP_SOAK, 60 s without it) and looks for what only grows: the Edge's heap in
// the second half of the time, its goroutines afterwards.
func TestSoak(t *testing.T) {
	t.Parallel()
	span := time.Minute
	if v := os.Getenv("IOP_SOAK"); v != "" {
		var err error
		if span, err = time.ParseDuration(v); err != nil {
			t.Fatal("IOP_SOAK must be a duration:", err)
		}
	}
	s := newSoak(t)
	work := make(chan int64)
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for n := range work {
				s.one(rand.New(rand.NewPCG(11, uint64(n))))
			}
		})
	}
	for n := range int64(200) { // what a busy Edge keeps
		work <- -n
	}
	s.quiet()
	s.client.CloseIdleConnections()
	goroutines := s.metric("go_goroutines")

	// The pace is given, so that a faster machine makes no more noise.
	const pace = 4 * time.Millisecond
	tick := time.NewTicker(pace)
	defer tick.Stop()
	end := time.Now().Add(span)
	samples := make(chan *soakSamples, 1)
	go func() { samples <- s.sample(span/2, span/100) }()
	for next := int64(1); time.Now().Before(end); next++ {
		<-tick.C
		select {
		case work <- next:
		case <-tick.C: // all clients are busy
		}
	}
	got := <-samples
	close(work)
	clients.Wait()
	s.client.CloseIdleConnections()
	s.quiet()

	rise, noise := trend(got.heap)
	resident := got.resident
	t.Logf("%d requests, %d of them in the second half; heap %.2f MiB, rises by %.1f KiB (%.1f bytes a request), noise %.1f KiB; resident %d, then %d MiB",
		s.sent.Load(), got.requests, got.heap[len(got.heap)-1]/(1<<20), rise/1024, rise/float64(got.requests), noise/1024, resident[0]>>20, resident[1]>>20)
	// What is under way at a sample is the noise. A leak of a request is no less than an object and what points to it.
	if rise > 2*noise+16*float64(got.requests) {
		t.Errorf("the heap rises by %.0f bytes while it works at the same pace", rise)
	}
	if grown := resident[1] - resident[0]; grown > 24<<20 {
		t.Errorf("%d MiB more are resident", grown>>20)
	}
	if n := s.failed.Load(); n > 0 {
		t.Errorf("%d requests failed, the last with %v", n, s.last.Load())
	}
	s.calm(t, goroutines-10, s.nodes...)
}
