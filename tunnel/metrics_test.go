package tunnel

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/tunnel/wire"
)

func TestHistogram(t *testing.T) {
	var h Histogram
	for _, d := range []time.Duration{0, time.Millisecond, time.Millisecond + 1, 30 * time.Millisecond, time.Hour} {
		h.Observe(d)
	}
	s := h.Snapshot()
	if s.Count != 5 || s.Sum != time.Hour+32*time.Millisecond+1 || len(s.Counts) != len(s.Bounds) {
		t.Fatalf("%+v", s)
	}
	for i, want := range map[int]uint64{0: 2, 1: 3, 4: 3, 5: 4, len(s.Bounds) - 1: 4} {
		if s.Counts[i] != want {
			t.Errorf("%d durations of at most %s, want %d", s.Counts[i], s.Bounds[i], want)
		}
	}
}

// refusalsOf lists the codes that were counted.
func refusalsOf(m *Metrics) string {
	out := ""
	m.EachRefusal(func(code string, n uint64) {
		if n > 0 {
			out += fmt.Sprintf("%s %d, ", code, n)
		}
	})
	return out
}

// TestRegistrationsAreCounted: new processes, those that come back, those that put a session beside their own, and those
// that are refused, by code.
func TestRegistrationsAreCounted(t *testing.T) {
	e := newEdgeRig(t, nil)
	m := e.acc.Metrics()
	join := func(seen, replaces uint64) *fakePeer {
		p := fakeDial(t, e.net)
		p.send(wire.TypeRegister, 0, &wire.RegisterRequest{
			ProtocolVersions: []uint32{wire.ProtocolVersion}, NodeName: "n", BootId: "b", HighestGenerationSeen: seen, ReplacesGeneration: replaces,
		})
		return p
	}
	fenced, session := e.node("n")
	peers := []*fakePeer{fenced}
	for _, c := range []struct{ seen, replaces uint64 }{{0, 0}, {1, 0}, {3, 0}, {4, 4}} {
		p := join(c.seen, c.replaces)
		p.expect(wire.TypeRegistered, nil)
		peers = append(peers, p)
	}
	session.Fence(execution.CodeSessionSuperseded, "a newer one")
	fenced.goodbye()

	e.dir.mu.Lock()
	e.dir.refuse = func(*NodeSession) error { return &Refusal{Code: "flapping", Message: "two processes"} }
	e.dir.mu.Unlock()
	p := join(0, 0)
	p.expect(wire.TypeRegistered, nil)
	peers = append(peers, p)
	e.dir.mu.Lock()
	e.dir.refuse = func(*NodeSession) error { return &Refusal{Code: "odd", Message: "of no closed set"} }
	e.dir.authFail = nil
	e.dir.mu.Unlock()
	p = join(0, 0)
	p.expect(wire.TypeRegistered, nil)
	peers = append(peers, p)
	for _, p := range peers {
		p.close()
	}
	e.close()
	if n, r, b, s := m.NewNodes.Load(), m.Reconnects.Load(), m.Replacements.Load(), m.Supersessions.Load(); n != 2 || r != 2 || b != 1 || s != 1 {
		t.Errorf("%d new, %d reconnects, %d replacements, %d supersessions", n, r, b, s)
	}
	if got := refusalsOf(m); got != "flapping 1, other 1, " || m.Refusals.Load() != 2 {
		t.Errorf("refusals: %s%d in all", got, m.Refusals.Load())
	}
}

// TestUpgradeRefusalsAreCounted: those that come before the tunnel.
func TestUpgradeRefusalsAreCounted(t *testing.T) {
	e := newEdgeRig(t, nil)
	defer e.close()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: e.net.dial}}
	get := func() {
		resp, err := client.Get("http://edge.test" + wire.Path)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	get() // without the subprotocol
	e.dir.mu.Lock()
	e.dir.authFail = &Refusal{Code: "token_expired", Message: "of old"}
	e.dir.mu.Unlock()
	get()
	get()
	if got := refusalsOf(e.acc.Metrics()); got != "token_expired 2, bad_request 1, " {
		t.Errorf("refusals: %s", got)
	}
}

// TestRoundTrips: known before the first heartbeat, and counted from the first on.
func TestRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdgeRig(t, nil)
		p := fakeDial(t, e.net)
		p.register("n")
		time.Sleep(70 * time.Millisecond) // the way there and back
		p.send(wire.TypeRefresh, 0, &wire.Refresh{Id: 1, Kind: &wire.Refresh_Node{Node: &wire.NodeRefresh{First: true, Last: true}}})
		p.send(wire.TypeReady, 0, &wire.NodeReadyRequest{})
		p.expect(wire.TypeReadyAck, nil)
		s := <-e.dir.online
		h := &e.acc.Metrics().HeartbeatRTT
		if s.RTT() != 70*time.Millisecond || h.Snapshot().Count != 0 {
			t.Errorf("at READY: round trip %s, %d counted", s.RTT(), h.Snapshot().Count)
		}
		p.send(wire.TypeRefresh, 0, &wire.Refresh{Id: 2, Kind: &wire.Refresh_Node{Node: &wire.NodeRefresh{First: true, Last: true}}})
		p.expect(wire.TypeRefresh, nil)
		time.Sleep(10 * time.Second)
		p.hush()
		var hb wire.Heartbeat
		p.expect(wire.TypeHeartbeat, &hb)
		if s.RTT() != 70*time.Millisecond {
			t.Errorf("another inventory made the round trip %s", s.RTT())
		}
		time.Sleep(40 * time.Millisecond)
		p.send(wire.TypeHeartbeatAck, 0, &wire.HeartbeatAck{Id: hb.Id})
		synctest.Wait()
		if snap := h.Snapshot(); s.RTT() != 40*time.Millisecond || snap.Count != 1 || snap.Sum != 40*time.Millisecond {
			t.Errorf("after a heartbeat: round trip %s, %+v", s.RTT(), snap)
		}
		p.close()
		e.close()
	})
}
