package tunnel

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/tunnel/wire"
)

// edgeKeys are an Edge's config and keys, which a test changes.
type edgeKeys struct {
	mu     sync.Mutex
	keys   [][]byte
	config *wire.EdgeConfig
}

func (k *edgeKeys) set(revision uint64, floors map[string]uint64, keys ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys = nil
	for _, key := range keys {
		k.keys = append(k.keys, []byte(key))
	}
	k.config = &wire.EdgeConfig{Revision: revision, MinimumRevisions: floors}
}

func (k *edgeKeys) verification() [][]byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.keys
}

func (k *edgeKeys) of(node execution.NodeID) *wire.EdgeConfig {
	k.mu.Lock()
	defer k.mu.Unlock()
	if node == "stranger" {
		return nil
	}
	return k.config
}

func (k *edgeKeys) configure(cfg *AcceptorConfig) {
	cfg.VerificationKeys, cfg.Config = k.verification, k.of
}

// The Edge's keys and config come at registration and by Refresh, which returns once the Node works by them.
func TestConfigAndKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ek edgeKeys
		var ks keepers
		ek.set(7, map[string]uint64{"s": 3}, "k1", "k2")
		r := newRigWith(t, withLease, rigOptions{supervisor: ks.config, acceptor: ek.configure})
		s := r.session()
		k := ks.get(0)
		reg := k.reg
		if reg.Generation != s.Generation() || reg.EdgeID != "edge" || len(reg.Keys) != 2 || string(reg.Keys[1]) != "k2" {
			t.Errorf("registration %+v", reg)
		}
		if reg.Config.Revision != 7 || reg.Config.MinimumRevisions["s"] != 3 || reg.TLS != nil || !reg.EdgeTime.Equal(time.Now()) {
			t.Errorf("registration %+v", reg)
		}
		ek.set(8, map[string]uint64{"s": 4, "t": 1}, "k2", "k3")
		if err := s.Refresh(context.Background()); err != nil {
			t.Fatal(err)
		}
		if len(k.config) != 1 || k.config[0].Revision != 8 || k.config[0].MinimumRevisions["s"] != 4 || string(k.keys[0][1]) != "k3" {
			t.Errorf("config %v, keys %q", k.config, k.keys)
		}
		ek.set(9, nil, strings.Repeat("k", wire.MaxKey+1))
		if err := s.Refresh(context.Background()); err == nil {
			t.Error("a key that is too long was told")
		}
		ek.set(9, map[string]uint64{"bad\n": 1})
		if err := s.Refresh(context.Background()); err == nil {
			t.Error("a slot that has no name was told")
		}
		ek.set(10, nil, "k3")
		if err := s.Refresh(context.Background()); err != nil || len(k.config) != 2 || k.config[1].Revision != 10 {
			t.Errorf("%v, config %v", err, k.config)
		}
		r.close()
		if err := s.Refresh(context.Background()); !errors.Is(err, ErrSessionClosed) {
			t.Errorf("refresh of what has ended: %v", err)
		}
		r.checkEmpty()
	})
}

// A Node that opens no leases lives with an Edge that seals them: it acknowledges and changes nothing.
func TestNodeWithoutLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ek edgeKeys
		ek.set(7, map[string]uint64{"s": 3}, "k1")
		r := newRigWith(t, echo, rigOptions{acceptor: ek.configure})
		s := r.session()
		if err := s.Refresh(context.Background()); err != nil {
			t.Error(err)
		}
		if err := s.Revoke(context.Background(), &wire.Revoke{Slot: "s"}); err != nil {
			t.Error(err)
		}
		if _, body, end := collect(t, open(t, s, []byte("plain"))); string(body) != "plain" || end.Outcome != execution.Completed {
			t.Errorf("%q, %+v", body, end)
		}
		r.sup.Rotate()
		if again := r.session(); again.Replaces() != s.Generation() || again.Recipient() != nil {
			t.Errorf("generation %d replaces %d", again.Generation(), again.Replaces())
		}
		r.close()
		r.checkEmpty()
	})
}

// A config beyond a frame comes in pages, all of them before READY_ACK.
func TestLargeConfig(t *testing.T) {
	const slots = 2000
	floors := make(map[string]uint64, slots)
	for i := range slots {
		floors[fmt.Sprintf("%060d", i)] = uint64(i + 1)
	}
	synctest.Test(t, func(t *testing.T) {
		var ek edgeKeys
		keys := make([]string, wire.MaxKeys)
		for i := range keys {
			keys[i] = strings.Repeat("k", wire.MaxKey)
		}
		ek.set(1, floors, keys...)
		e := newEdgeRig(t, ek.configure)
		p := fakeDial(t, e.net)
		p.register("n")
		p.send(wire.TypeReady, 0, &wire.NodeReadyRequest{})
		got := make(map[string]uint64)
		pages := 0
		for f := range p.frames {
			if f.Type == wire.TypeReadyAck {
				break
			}
			if f.Type != wire.TypeRefresh {
				continue
			}
			var msg wire.Refresh
			unmarshal(t, f.payload, &msg)
			pages++
			if want := map[bool]int{true: wire.MaxKeys}[pages == 1]; len(msg.LeaseVerificationKeys) != want {
				t.Errorf("page %d has %d keys", pages, len(msg.LeaseVerificationKeys))
			}
			for slot, n := range msg.GetEdge().MinimumRevisions {
				got[slot] = n
			}
		}
		if pages < 10 || len(got) != slots || got[fmt.Sprintf("%060d", slots-1)] != slots {
			t.Errorf("%d slots in %d pages", len(got), pages)
		}
		p.close()
		e.close()
	})
}

// One config is under way at a time: changes meanwhile make one more, and each caller hears of the one that has its
// change in it.
func TestConfigsCoalesce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ek edgeKeys
		e := newEdgeRig(t, ek.configure)
		p, s := leasedPeer(e)
		errs := make(chan error, 64)
		refresh := func(d time.Duration) {
			ctx, cancel := context.WithTimeout(context.Background(), d)
			defer cancel()
			errs <- s.Refresh(ctx)
		}
		next := func() *wire.Refresh {
			var msg wire.Refresh
			p.expect(wire.TypeRefresh, &msg)
			return &msg
		}
		ack := func(id uint64) {
			p.send(wire.TypeRefresh, 0, &wire.Refresh{Id: id, Kind: &wire.Refresh_Ack{Ack: &wire.RefreshAck{}}})
		}
		ek.set(1, nil)
		go refresh(time.Second)
		first := next()
		ek.set(2, nil)
		for range 20 {
			go refresh(time.Minute)
		}
		if err := <-errs; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without an acknowledgement: %v", err)
		}
		ack(first.Id + 5) // of nothing
		synctest.Wait()
		if len(errs) != 0 {
			t.Error("an acknowledgement of nothing counted")
		}
		ack(first.Id)
		second := next()
		if len(errs) != 0 || second.GetEdge().Revision != 2 || second.Id <= first.Id {
			t.Errorf("%d callers are done, %v", len(errs), second)
		}
		ack(second.Id)
		for range 20 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if err := s.Probe(context.Background()); err != nil {
			t.Fatal(err)
		}
		for len(p.frames) > 0 {
			if f := <-p.frames; f.Type == wire.TypeRefresh {
				t.Error("one REFRESH too many")
			}
		}
		go refresh(time.Minute)
		next()
		p.close()
		if err := <-errs; !errors.Is(err, ErrSessionClosed) {
			t.Errorf("at the session's end: %v", err)
		}
		e.close()
	})
}

// Revoke returns when the Node has acknowledged, or its caller's time is up; nothing piles up.
func TestRevoke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ks keepers
		r := newRigWith(t, withLease, rigOptions{supervisor: ks.config})
		s := r.session()
		asked := &wire.Revoke{Slot: "s", BelowRevision: 4, RunId: "run_x"}
		for range 2 {
			if err := s.Revoke(context.Background(), asked); err != nil {
				t.Fatal(err)
			}
		}
		k := ks.get(0)
		if len(k.gone) != 2 || k.gone[0].Slot != "s" || k.gone[0].BelowRevision != 4 || k.gone[1].Id <= k.gone[0].Id || asked.Id != 0 {
			t.Errorf("%v of %v", k.gone, asked)
		}
		if err := s.Revoke(context.Background(), &wire.Revoke{Principal: strings.Repeat("p", wire.MaxPayload)}); err == nil {
			t.Error("a revocation beyond a frame")
		}
		r.close()
		r.checkEmpty()
	})
	synctest.Test(t, func(t *testing.T) {
		e := newEdgeRig(t, nil)
		p, s := leasedPeer(e)
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		began := time.Now()
		if err := s.Revoke(ctx, &wire.Revoke{LeaseId: "l"}); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 2*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		cancel()
		var r wire.Revoke
		p.expect(wire.TypeRevoke, &r)
		for range 2 { // late, and once more
			p.send(wire.TypeRevokeAck, 0, &wire.RevokeAck{Id: r.Id})
		}
		if err := s.Probe(context.Background()); err != nil {
			t.Fatal(err)
		}
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		for range maxRevocations {
			if err := s.Revoke(ended, &wire.Revoke{LeaseId: "l"}); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		}
		if err := s.Revoke(ended, &wire.Revoke{LeaseId: "l"}); err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("beyond the limit: %v", err)
		}
		p.send(wire.TypeRevokeAck, 0, &wire.RevokeAck{Id: 99999})
		if bye := p.goodbye(); bye.Code != "protocol_error" || !strings.Contains(bye.Message, "never requested") {
			t.Errorf("%v", bye)
		}
		if err := s.Revoke(context.Background(), &wire.Revoke{}); !errors.Is(err, ErrSessionClosed) {
			t.Errorf("after the end: %v", err)
		}
		p.close()
		e.close()
	})
}

// What the Keeper can't take ends the session, and nothing is acknowledged.
func TestKeeperRefuses(t *testing.T) {
	for name, ask := range map[string]func(ctx context.Context, s *NodeSession) error{
		"REFRESH": func(ctx context.Context, s *NodeSession) error { return s.Refresh(ctx) },
		"REVOKE":  func(ctx context.Context, s *NodeSession) error { return s.Revoke(ctx, &wire.Revoke{}) },
	} {
		synctest.Test(t, func(t *testing.T) {
			var ks keepers
			r := newRigWith(t, withLease, rigOptions{supervisor: ks.config})
			s := r.session()
			k := ks.get(0)
			k.mu.Lock()
			k.fail = errors.New("can't be taken")
			k.mu.Unlock()
			if err := ask(context.Background(), s); !errors.Is(err, ErrSessionClosed) {
				t.Errorf("%s: %v", name, err)
			}
			if end := endOf(t, <-r.dir.gone); !end.Remote || end.Code != "protocol_error" || !strings.Contains(end.Message, name+": can't be taken") {
				t.Errorf("%s: %v", name, end)
			}
			r.session() // it comes back, with another key
			if n := k.endings(); n != 1 || string(ks.get(-1).key) == string(k.key) {
				t.Errorf("%s: dropped %d times, then %q", name, n, ks.get(-1).key)
			}
			r.close()
			r.checkEmpty()
		})
	}
	synctest.Test(t, func(t *testing.T) { // at registration
		ks := keepers{fail: errors.New("the Edge's clock is off")}
		n := newNodeRig(t, echo, ks.config)
		p, req := n.registered(1)
		if string(req.RecipientPublicKey) != "key1" {
			t.Errorf("REGISTER with %q", req.RecipientPublicKey)
		}
		if bye := p.goodbye(); bye.Code != "refused" || !strings.Contains(bye.Message, "clock is off") {
			t.Errorf("%v", bye)
		}
		synctest.Wait()
		if st := n.sup.Status(); st.State != StateWaiting || !strings.Contains(st.Detail, "clock is off") {
			t.Errorf("status %+v", st)
		}
		if ks.get(0).endings() != 1 {
			t.Error("the key was not dropped")
		}
		p.close()
		n.close()
	})
}

func endOf(t *testing.T, err error) *EndError {
	t.Helper()
	var end *EndError
	if !errors.As(err, &end) {
		t.Fatalf("gone: %v", err)
	}
	return end
}

// The Node learns the Edge's time where the contract says so, with what bounds its error.
func TestEdgeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ahead = 7 * time.Minute
		var ks keepers
		n := newNodeRig(t, echo, ks.config)
		edge := func() int64 { return time.Now().Add(ahead).UnixMilli() }
		p := <-n.peers
		p.hush()
		p.expect(wire.TypeRegister, nil)
		time.Sleep(3 * time.Second)
		p.send(wire.TypeRegistered, 0, &wire.RegisterResponse{
			Generation: 1, EdgeId: "fake", MaxStreams: 64, ProtocolVersion: 1, EdgeTimeUnixMs: edge(), LeaseVerificationKeys: [][]byte{[]byte("k")},
		})
		p.expect(wire.TypeReady, nil)
		time.Sleep(2 * time.Second)
		p.send(wire.TypeReadyAck, 0, &wire.NodeReadyResponse{EdgeTimeUnixMs: edge()})
		var hb wire.Heartbeat
		p.expect(wire.TypeHeartbeat, &hb)
		time.Sleep(time.Second)
		p.send(wire.TypeHeartbeatAck, 0, &wire.HeartbeatAck{Id: hb.Id, EdgeTimeUnixMs: edge()})
		p.expect(wire.TypeHeartbeat, &hb)
		p.send(wire.TypeHeartbeatAck, 0, &wire.HeartbeatAck{Id: hb.Id}) // an Edge that does not say
		synctest.Wait()
		k := ks.get(0)
		if r := k.reg; r.EdgeTime.Sub(r.Received) != ahead || r.Received.Sub(r.Sent) != 3*time.Second || string(r.Keys[0]) != "k" {
			t.Errorf("%+v", r)
		}
		if len(k.times) != 2 || k.times[0] != ahead || k.times[1] != ahead || k.spans[0] != 2*time.Second || k.spans[1] != time.Second {
			t.Errorf("times %v, which took %v", k.times, k.spans)
		}
		p.close()
		n.close()
	})
}

// Keys beyond the limits are a fault of the Edge's.
func TestTooManyKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ks keepers
		n := newNodeRig(t, echo, ks.config)
		p := <-n.peers
		p.expect(wire.TypeRegister, nil)
		p.send(wire.TypeRegistered, 0, &wire.RegisterResponse{
			Generation: 1, MaxStreams: 1, ProtocolVersion: 1, LeaseVerificationKeys: make([][]byte, wire.MaxKeys+1),
		})
		<-p.done
		p.close()
		p = n.online(2)
		p.send(wire.TypeRefresh, 0, &wire.Refresh{Kind: &wire.Refresh_Edge{}, LeaseVerificationKeys: [][]byte{nil}})
		if bye := p.goodbye(); bye.Code != "protocol_error" {
			t.Errorf("%v", bye)
		}
		p.close()
		n.close()
	})
}

// A session ends when its certificate does, at a time of day; that time can be moved.
func TestEndAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		notAfter := began.Add(10 * time.Minute).Round(0)
		r := newRigWith(t, untilGate(nil), rigOptions{directory: func(d *testDirectory) {
			d.identity = Identity{Peer: "spiffe://example.org/node/n", NotAfter: notAfter}
		}})
		s := r.session()
		if s.Identity().Peer != "spiffe://example.org/node/n" {
			t.Errorf("%+v", s.Identity())
		}
		run := open(t, s, nil)
		_, _, end := collect(t, run)
		if d := time.Since(began); d != 10*time.Minute || end.Outcome != execution.Failed || end.Code != execution.CodeSessionLost {
			t.Errorf("after %v: %+v", d, end)
		}
		if code := goneCode(t, <-r.dir.gone); code != "identity_expired" {
			t.Errorf("gone: %s", code)
		}
		synctest.Wait()
		if st := r.sup.Status(); st.State != StateRefused || !strings.Contains(st.Detail, "expired") {
			t.Errorf("status %+v", st)
		}
		r.dir.mu.Lock()
		r.dir.identity = Identity{}
		r.dir.mu.Unlock()
		r.sup.Rotate() // the Node has a new certificate: no need to wait
		kicked := time.Now()
		s = r.session()
		if d := time.Since(kicked); d > time.Second {
			t.Errorf("back after %v", d)
		}
		s.EndAt(time.Now().Add(time.Minute), &Refusal{Code: "identity_revoked", Message: "never said"})
		s.EndAt(time.Now().Add(2*time.Hour), &Refusal{Code: "identity_revoked", Message: "never said"})
		s.EndAt(time.Time{}, nil)
		time.Sleep(3 * time.Hour)
		select {
		case <-s.Done():
			t.Error("an end that was taken back")
		default:
		}
		s.EndAt(time.Now().Add(-time.Second), &Refusal{Code: "identity_revoked", Message: "the Node is not on the list"})
		<-s.Done()
		if end := endOf(t, <-r.dir.gone); end.Code != "identity_revoked" || end.Message != "the Node is not on the list" {
			t.Errorf("%v", end)
		}
		r.close()
		r.checkEmpty()
	})
}

// The Node ends a session whose Edge it trusts no longer, and dials again.
func TestNodeDistrusts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ks keepers
		r := newRigWith(t, untilGate(nil), rigOptions{supervisor: ks.config})
		s := r.session()
		run := open(t, s, nil)
		synctest.Wait()
		ks.get(0).reg.Close("the authority was removed")
		if _, _, end := collect(t, run); end.Code != execution.CodeSessionLost {
			t.Errorf("%+v", end)
		}
		if end := endOf(t, <-r.dir.gone); end.Code != "untrusted" || end.Message != "the authority was removed" {
			t.Errorf("%v", end)
		}
		if again := r.session(); string(again.Recipient()) != "key2" || ks.get(0).endings() != 1 {
			t.Errorf("again with %q", again.Recipient())
		}
		ks.get(0).reg.Close("again") // of what has ended
		r.close()
		r.checkEmpty()
	})
}
