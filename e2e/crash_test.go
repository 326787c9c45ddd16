package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// completion is a run that its client saw end well.
type completion struct {
	run  string
	at   time.Time
	life int // of which of the Edge's lives
}

// crowd is clients that go on and on, whatever happens to the Edge.
type crowd struct {
	*stack
	client *http.Client
	life   atomic.Int64 // the Edge's, counted from 0
	ended  chan struct{}
	all    sync.WaitGroup

	mu   sync.Mutex
	done []completion // guarded by mu
	bad  []string     // guarded by mu: answers that no crash explains
}

// nodesStay is how many crashes of the Edge the Nodes live through: from the next on they are killed too.
const nodesStay = 3

// newCrowd starts n clients, until its stop is called.
func newCrowd(s *stack, n int) *crowd {
	c := &crowd{stack: s, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: n}}, ended: make(chan struct{})}
	for i := range n {
		c.all.Go(func() {
			for round := i; ; round++ {
				select {
				case <-c.ended:
					return
				default:
					c.one(round%2 == 0)
				}
			}
		})
	}
	return c
}

func (c *crowd) stop() {
	close(c.ended)
	c.all.Wait()
	c.client.CloseIdleConnections()
}

// one sends one request and notes it if it ends well.
func (c *crowd) one(stream bool) {
	life := int(c.life.Load())
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	res, err := c.client.Do(c.request("POST", "/v1/chat/completions", chat("sim-small", "tokens=4,itl=2ms", stream), nil).WithContext(ctx))
	if err != nil {
		<-time.After(5 * time.Millisecond) // there is no Edge: no need to ask it at full speed
		return
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch whole := !stream || strings.HasSuffix(string(body), "data: [DONE]\n\n"); {
	case res.StatusCode == http.StatusOK && err == nil && whole:
		c.done = append(c.done, completion{res.Header.Get("X-Iop-Run-Id"), time.Now(), life})
	case c.life.Load() > nodesStay && stream && strings.Contains(string(body), "The connection to the model was lost."):
		// Its Node was killed as well, and it was told.
	case res.StatusCode == http.StatusUnauthorized || res.StatusCode == http.StatusOK && err == nil:
		c.bad = append(c.bad, fmt.Sprintf("%s %s", res.Status, tail(string(body), 300)))
	}
}

// completed is how many requests of this life of the Edge have ended well.
func (c *crowd) completed(life int) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, d := range c.done {
		if d.life == life {
			n++
		}
	}
	return n
}

// TestEdgeCrashes kills the Edge under load, again and again. What it had promised to keep is there.
func TestEdgeCrashes(t *testing.T) {
	t.Parallel()
	s := newEdge(t, "--log", "warn")
	sim := s.startSim("--slots", "64")
	nodes := []string{"node-0", "node-1"}
	running, generations := map[string]*process{}, map[string]uint64{}
	for _, node := range nodes {
		running[node] = s.startNode(node, "--provider", "sim="+sim.url+",capacity=16")
		generations[node] = s.online(node, patience)
	}
	c := newCrowd(s, 12)
	stopped := false
	defer func() {
		if !stopped {
			c.stop()
		}
	}()
	var killed []time.Time // at the end of each life
	keys := []string{s.key}
	const rounds = 5
	for round := range rounds {
		eventually(t, patience, "requests are served", func() bool { return c.completed(round) >= 300 })
		eventually(t, patience, "some are booked", func() bool { return s.metric("iop_usage_written_total") >= 300 })
		keys = append(keys, s.newKey(fmt.Sprintf("of round %d", round), "--rpm", "1000"))
		killed = append(killed, time.Now())
		s.edge.kill()
		c.life.Add(1)
		began := time.Now()
		s.startEdge("--log", "warn")
		for _, node := range nodes {
			// A Node waits twice as long after each session that was short. From the fourth crash on that is no test's
			// time: the Nodes start anew as well.
			if round >= nodesStay {
				running[node].kill()
				running[node] = s.launchNode(node, "--provider", "sim="+sim.url+",capacity=16")
			}
			again := s.online(node, patience)
			if again <= generations[node] {
				t.Errorf("%s has generation %d after %d", node, again, generations[node])
			}
			generations[node] = again
		}
		eventually(t, patience, "requests succeed again", func() bool { return c.completed(round+1) > 0 })
		t.Logf("round %d: in service again %s after the crash", round, time.Since(began).Round(time.Millisecond))
		for _, key := range keys {
			if res, body := s.with(key).post("/v1/chat/completions", chat("sim-small", "tokens=1", false)); res.StatusCode != http.StatusOK {
				t.Errorf("round %d, a key of before: %s %s", round, res.Status, body)
			}
		}
	}
	c.stop()
	stopped = true
	s.quiet()
	c.compare(t, killed)
}

// compare holds the books against what the clients saw.
func (c *crowd) compare(t *testing.T, killed []time.Time) {
	t.Helper()
	for _, bad := range c.bad {
		t.Error("a client got", bad)
	}
	records := c.records()
	missing := 0
	oldest := make([]time.Duration, len(killed)) // before each crash, of what is missing
	for _, d := range c.done {
		r, ok := records[d.run]
		switch {
		case ok && (r.Outcome != "completed" || r.Output != 4):
			t.Errorf("booked as %+v", r)
		case ok:
		case d.life >= len(killed):
			t.Errorf("the run %s ended after the last crash and is not booked", d.run)
		default:
			missing++
			oldest[d.life] = max(oldest[d.life], killed[d.life].Sub(d.at))
		}
	}
	t.Logf("%d requests ended well, %d records; %d are missing, the oldest from %v before the crashes", len(c.done), len(records), missing, oldest)
	// A second is what is promised; a loaded machine may take longer for a write, and proves nothing where it does.
	slices.Sort(oldest)
	if oldest[1] > time.Second || oldest[len(oldest)-1] > 10*time.Second {
		t.Errorf("runs are missing that ended %v before the crashes", oldest)
	}
}
