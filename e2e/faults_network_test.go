package e2e

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"
)

// linkStack is a stack whose Node reaches the Edge over a link of its own.
func linkStack(t *testing.T, rate int) (*stack, *relay) {
	t.Helper()
	s := newEdge(t)
	sim := s.startSim("--slots", "64")
	link := newRelay(t, s.edgeAddr(), rate)
	s.nodeVia(link.addr, "node-1", "--provider", "sim="+sim.url+",capacity=64")
	return s, link
}

// streams starts n streams.
func (s *stack) streams(n int, knobs string) (all []*answer) {
	s.t.Helper()
	for range n {
		all = append(all, s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", knobs, true)))
	}
	return all
}

// undisturbed fails unless all streams end well, none stands still for longer than most, and the session is the one
// of before.
func (s *stack) undisturbed(t *testing.T, generation uint64, most time.Duration, streams []*answer) {
	t.Helper()
	for i, a := range streams {
		if err := a.end(t, 3*time.Minute).whole(); err != nil {
			t.Errorf("stream %d: %v", i, err)
		}
		if gap := a.longestGap(); gap > most {
			t.Errorf("stream %d stood still for %s", i, gap)
		}
	}
	if n := s.node("node-1"); n.State != "online" || n.generation() != generation {
		t.Errorf("the Node was of generation %d, and now it is %+v", generation, n)
	}
	s.quiet()
	s.noFalseAlarm()
}

// TestLargeUploadOnSlowLink fills a link of 2 Mbit/s with an upload and a large answer, beside ten streams. Heartbeats
// and streams find their way.
func TestLargeUploadOnSlowLink(t *testing.T) {
	t.Parallel()
	s, _ := linkStack(t, 250_000)
	generation := s.online("node-1", patience)
	began := time.Now()
	streams := s.streams(10, "tokens=300,itl=100ms")
	for _, a := range streams {
		a.reaches(t, 2, patience)
	}
	large := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "big_response=2m", false))
	if status, _, body := s.upload(t, 8_000_000, false); status != http.StatusOK {
		t.Errorf("the upload: %d %s", status, tail(string(body), 300))
	}
	if took := time.Since(began); took < 30*time.Second {
		t.Fatalf("the upload took %s: the link was not slow", took)
	}
	if large.end(t, time.Minute); large.status != http.StatusOK || large.err != nil || large.body.Len() < 2<<20 {
		t.Errorf("the large answer: status %d, %d bytes, %v", large.status, large.body.Len(), large.err)
	}
	s.undisturbed(t, generation, 5*time.Second, streams)
}

// TestLargeAnswerOnThinLink has 1 MB come over a link of 30 KB/s, beside ten streams.
func TestLargeAnswerOnThinLink(t *testing.T) {
	t.Parallel()
	s, _ := linkStack(t, 30_000)
	generation := s.online("node-1", patience)
	began := time.Now()
	large := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "big_response=1m", false))
	streams := s.streams(10, "tokens=60,itl=500ms")
	if large.end(t, 3*time.Minute); large.status != http.StatusOK || large.err != nil || large.body.Len() < 1<<20 {
		t.Errorf("the large answer: status %d, %d bytes, %v", large.status, large.body.Len(), large.err)
	}
	if took := time.Since(began); took < 30*time.Second {
		t.Fatalf("the answer took %s: the link was not thin", took)
	}
	s.undisturbed(t, generation, 10*time.Second, streams)
}

// TestLinkStalls has a link without a packet for 12 s, in the midst of streams, an upload and a large answer. All go on.
func TestLinkStalls(t *testing.T) {
	t.Parallel()
	s, link := linkStack(t, 2_000_000)
	generation := s.online("node-1", patience)
	streams := append(s.streams(10, "tokens=200,itl=100ms"), s.streams(3, "tokens=2000,chunk_bytes=2000")...)
	for _, a := range streams {
		a.reaches(t, 2, patience)
	}
	large := s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "big_response=4m", false))
	uploaded := make(chan int, 1)
	go func() {
		status, _, _ := s.upload(t, 4<<20, true)
		uploaded <- status
	}()
	eventually(t, patience, "all are under way", func() bool { return s.metric("iop_streams") == 15 })
	link.silence()
	waiting := s.streams(5, "tokens=5") // these come while nothing passes
	<-time.After(12 * time.Second)
	link.resume()
	if status := <-uploaded; status != http.StatusOK {
		t.Errorf("the upload: %d", status)
	}
	if large.end(t, 2*time.Minute); large.status != http.StatusOK || large.err != nil || large.body.Len() < 4<<20 {
		t.Errorf("the large answer: status %d, %d bytes, %v", large.status, large.body.Len(), large.err)
	}
	s.undisturbed(t, generation, 30*time.Second, append(streams, waiting...))
	s.healthy(t)
}

// TestLinkCut cuts the link under a working Node. What had begun is told; what comes later is served on the next one.
func TestLinkCut(t *testing.T) {
	t.Parallel()
	s, link := linkStack(t, 0)
	generation := s.online("node-1", patience)
	for range 3 {
		streams := s.streams(5, "tokens=100000,itl=10ms")
		for _, a := range streams {
			a.reaches(t, 3, patience)
		}
		link.cut()
		for _, a := range streams {
			if err := a.end(t, patience).broken(); err != nil {
				t.Error(err)
			}
		}
		s.sims[0].active(t, 0)
		eventually(t, patience, "a new session", func() bool { return s.node("node-1").generation() > generation })
		generation = s.online("node-1", patience)
		s.healthy(t)
	}
}

// stall asks for a large stream and never reads it.
func (s *stack) stall(t *testing.T) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", s.edgeAddr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	req := s.request("POST", "/v1/chat/completions", chat("sim-small", "tokens=1000000,chunk_bytes=4000", true), nil)
	if err := req.Write(conn); err != nil {
		t.Fatal(err)
	}
	return conn
}

// TestStalledClients has one and a hundred clients that read nothing, beside one that does. It compares that one's
// delays with those of before, and so has the machine for itself: no parallel test.
func TestStalledClients(t *testing.T) {
	s := newEdge(t)
	sim := s.startSim("--slots", "256")
	s.startNode("node-1", "--provider", "sim="+sim.url+",capacity=256")
	s.online("node-1", patience)
	// p99 is the least of three measurements at least, and of fifteen while none is as low as enough.
	p99 := func(enough time.Duration) time.Duration {
		best := time.Hour
		for i := 0; i < 3 || i < 15 && best > enough; i++ { // one quiet moment of the machine is enough
			a := s.streams(1, "tokens=100,itl=10ms,text=stamp")[0]
			if err := a.end(t, patience).whole(); err != nil {
				t.Fatal(err)
			}
			best = min(best, percentile(a.delays(t), 99))
		}
		return best
	}
	usual := p99(time.Hour)
	var stalled []net.Conn
	for _, n := range []int{1, 100} {
		for len(stalled) < n {
			stalled = append(stalled, s.stall(t))
		}
		sim.active(t, int64(n))
		s.stoodStill(t)
		most := 3*usual + 5*time.Millisecond
		hurt := p99(most)
		t.Logf("%d stalled: p99 %s, %s without", n, hurt, usual)
		if hurt > most {
			t.Errorf("%d stalled clients: p99 %s, %s without", n, hurt, usual)
		}
		s.upload(t, 4<<20, false)
	}
	for _, conn := range stalled {
		conn.Close()
	}
	sim.active(t, 0)
	s.quiet()
	s.noFalseAlarm()
}

// stoodStill waits until next to nothing comes through the tunnel any more.
func (s *stack) stoodStill(t *testing.T) {
	t.Helper()
	last, since := -1.0, time.Now()
	eventually(t, 60*time.Second, "the stalled streams stand still", func() bool {
		if n := s.metric("iop_tunnel_bytes_received_total"); n-last > 1000 || last < 0 {
			last, since = n, time.Now()
		}
		return time.Since(since) > 500*time.Millisecond
	})
}
