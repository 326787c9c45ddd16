package e2e

import (
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// relay is a piece of network between a Node and its Edge: it can be slow, silent or cut.
type relay struct {
	addr string
	to   string

	mu      sync.Mutex
	gate    chan struct{} // closed while bytes pass
	conns   map[net.Conn]bool
	up      meter // towards the Edge
	down    meter
	dead    chan struct{} // closed at the end of the test
	accepts int
	wg      sync.WaitGroup
}

// meter lets bytes pass at a rate, in one direction of the whole link.
type meter struct {
	rate float64 // bytes a second; 0: as fast as they come
	free time.Time
}

// meterBurst is how far a meter makes good for the lateness of timers.
const meterBurst = 20 * time.Millisecond

// newRelay starts a relay to address to, at the rate in bytes a second each way; 0 is no limit.
func newRelay(t *testing.T, to string, rate int) *relay {
	t.Helper()
	small := net.ListenConfig{}
	if rate > 0 {
		small.Control = smallBuffers
	}
	l, err := small.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	open := make(chan struct{})
	close(open)
	r := &relay{
		addr: l.Addr().String(), to: to, gate: open, conns: map[net.Conn]bool{}, dead: make(chan struct{}),
		up: meter{rate: float64(rate)}, down: meter{rate: float64(rate)},
	}
	r.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r.wg.Go(func() { r.carry(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		close(r.dead)
		r.cut()
		r.wg.Wait()
	})
	return r
}

// carry joins one connection with one to the other side.
func (r *relay) carry(near net.Conn) {
	dialer := net.Dialer{}
	if r.up.rate > 0 {
		dialer.Control = smallBuffers
	}
	far, err := dialer.Dial("tcp", r.to)
	if err != nil {
		near.Close()
		return
	}
	r.mu.Lock()
	r.conns[near], r.conns[far] = true, true
	r.accepts++
	r.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { r.pump(far, near, &r.up) })
	both.Go(func() { r.pump(near, far, &r.down) })
	both.Wait()
	r.mu.Lock()
	delete(r.conns, near)
	delete(r.conns, far)
	r.mu.Unlock()
}

// pump carries one direction. What was read while the link was silent is late, not lost.
func (r *relay) pump(to, from net.Conn, m *meter) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 4<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if !r.pass(m, n) {
				return
			}
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			r.pass(m, 0) // the end of a connection is late, too
			return
		}
	}
}

// pass waits until n bytes may go on. False: the test is over.
func (r *relay) pass(m *meter, n int) bool {
	r.mu.Lock()
	gate := r.gate
	wait := time.Duration(0)
	if m.rate > 0 {
		now := time.Now()
		if late := now.Add(-meterBurst); m.free.Before(late) {
			m.free = late
		}
		m.free = m.free.Add(time.Duration(float64(n) / m.rate * float64(time.Second)))
		wait = m.free.Sub(now)
	}
	r.mu.Unlock()
	select {
	case <-time.After(wait):
	case <-r.dead:
		return false
	}
	select {
	case <-gate:
		return true
	case <-r.dead:
		return false
	}
}

// silence stops every byte in both directions; no connection is closed. It is what a machine without power looks like.
func (r *relay) silence() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gate = make(chan struct{})
}

// resume lets bytes pass again, the late ones first.
func (r *relay) resume() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.gate)
}

// cut closes every connection.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		c.Close()
	}
}

// nodeVia launches a Node that reaches the Edge through addr.
func (s *stack) nodeVia(addr, name string, args ...string) *process {
	s.t.Helper()
	return s.launchNode(name, append([]string{"--edge", "ws://" + addr + "/tunnel/v1"}, args...)...)
}

// edgeAddr is where the Edge listens.
func (s *stack) edgeAddr() string { return strings.TrimPrefix(s.url, "http://") }
