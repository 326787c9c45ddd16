package tunnel

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"iop/execution"
	"iop/tunnel/wire"
)

// The closed set of commands.
func TestCommands(t *testing.T) {
	long := func(i int) string { return fmt.Sprintf("%s%d", strings.Repeat("m", 250), i) }
	r := newRigWith(t, echo, rigOptions{supervisor: func(cfg *SupervisorConfig) {
		info := models(1000, long)
		info.Version = "v1"
		cfg.Describe = func() *NodeInfo { return info }
	}})
	s := r.session()
	ctx := context.Background()
	result, err := s.Command(ctx, &wire.CommandRequest{Kind: &wire.CommandRequest_Capabilities{}})
	if err != nil || result.Capabilities.GetSoftwareVersion() != "v1" || len(result.Capabilities.Providers) != 1 || len(result.Capabilities.Models) < 50 || proto.Size(result) > wire.MaxPayload {
		t.Errorf("%v: %d models", err, len(result.GetCapabilities().GetModels()))
	}
	result, err = s.Command(ctx, &wire.CommandRequest{Kind: &wire.CommandRequest_TransportStatus{}})
	if err != nil || result.TransportStatus.GetGeneration() != uint64(s.Generation()) || result.TransportStatus.FramesReceived == 0 {
		t.Errorf("%v: %v", err, result)
	}
	if result, err = s.Command(ctx, &wire.CommandRequest{}); err != nil || result.Error == "" {
		t.Errorf("a command of none of these: %v, %v", err, result)
	}
	r.close()
	if _, err := s.Command(ctx, &wire.CommandRequest{}); !errors.Is(err, ErrSessionClosed) {
		t.Errorf("after the end: %v", err)
	}

	e := newEdgeRig(t, nil)
	p, ns := e.node("n")
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	for range 100 { // none is kept waiting for
		if _, err := ns.Command(cancelled, &wire.CommandRequest{}); !errors.Is(err, context.Canceled) {
			t.Fatalf("a command nobody waits for: %v", err)
		}
	}
	p.send(wire.TypeCommandResult, 0, &wire.CommandResult{Id: 3}) // too late, and of no harm
	p.send(wire.TypeCommandResult, 0, &wire.CommandResult{Id: 999})
	if err := ns.Probe(ctx); err != nil {
		t.Error(err)
	}
	p.close()
	e.close()
}

// What a Node has comes whole, however large, and with it what it works on and the correlation of who asked.
func TestCapabilities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		info := models(3000, func(i int) string { return fmt.Sprintf("%s%d", strings.Repeat("m", 200), i) })
		info.Version = "v1"
		for i := range maxProviders - 1 {
			info.Providers = append(info.Providers, ProviderInfo{
				ID: execution.ProviderID(fmt.Sprint("q", i)), Adapter: "ollama", Capacity: 2, InFlight: i % 3, Health: wire.Health_HEALTH_OK,
				Operations: []string{"chat.completions", "ollama.chat"}, OperationsKnown: true, Runs: true, Engine: "ollama", EngineVersion: "0.12.6",
			})
		}
		r := newRigWith(t, echo, rigOptions{supervisor: func(cfg *SupervisorConfig) { cfg.Describe = func() *NodeInfo { return info } }})
		defer r.close()
		s := r.session()
		got, session, err := s.Capabilities(t.Context(), "corr")
		if err != nil || session != "corr" || got.Version != "v1" || len(got.Models) != 3000 || len(got.Providers) != maxProviders {
			t.Fatalf("%v, session_id %q, %d models", err, session, len(got.Models))
		}
		if p := got.Providers[3]; p.InFlight != 2 || p.EngineVersion != "0.12.6" || !p.Runs || !p.OperationsKnown || len(p.Operations) != 2 {
			t.Errorf("%+v", p)
		}
		if p := s.Info().Providers[3]; p.InFlight != 0 || len(p.Operations) != 2 || !p.Runs || p.Engine != "ollama" {
			t.Errorf("of the inventory: %+v", p)
		}
		if _, _, err := s.Capabilities(t.Context(), execution.SessionID(strings.Repeat("s", wire.MaxSessionID+1))); err == nil {
			t.Error("a session_id over its limit was taken")
		}
	})
}

// Each end says what its session is doing: what waits, what is under way, how long an answer takes.
func TestTransportStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRigWith(t, flood(300<<10), rigOptions{directory: superseding})
		defer r.close()
		s := r.session()
		stalled := open(t, s, nil)
		time.Sleep(heartbeatInterval + time.Second)
		synctest.Wait()
		node, session, err := s.PeerTransportStatus(t.Context(), "corr")
		if err != nil || session != "corr" {
			t.Fatalf("%v, session_id %q", err, session)
		}
		if node.Generation != s.Generation() || node.OpenStreams != 1 || node.StalledStreams != 1 || node.QueuedBytes < 1<<10 || node.SessionWindow < sessionWindowMin {
			t.Errorf("Node: %+v", node)
		}
		if node.Uptime < heartbeatInterval || node.ProcessUptime < node.Uptime || node.LastAckAge > heartbeatInterval || node.Reconnects != 0 || node.Draining {
			t.Errorf("Node: %+v", node)
		}
		edge := s.TransportStatus()
		if edge.Generation != s.Generation() || edge.OpenStreams != 1 || edge.QueuedBytes != 0 || edge.Uptime < heartbeatInterval || edge.HeartbeatRTT != s.RTT() {
			t.Errorf("Edge: %+v", edge)
		}
		if edge.BytesReceived < streamWindowMin || edge.FramesReceived == 0 || node.BytesSent < streamWindowMin || node.FramesSent < edge.FramesReceived-1 {
			t.Errorf("Edge: %+v\nNode: %+v", edge, node)
		}
		stalled.Cancel(execution.CodeClientGone, "")
		r.sup.Rotate()
		second := r.session()
		if node, _, err = second.PeerTransportStatus(t.Context(), ""); err != nil || node.Reconnects != 1 || node.FramesSent > 50 {
			t.Errorf("%v: %+v", err, node)
		}
		if st := s.TransportStatus(); !st.Draining {
			t.Errorf("the former session: %+v", st)
		}
	})
}

// A command outside the closed set can't be said in the schema. One that is made of bytes, of a number that nobody has,
// of one from the future beside none of ours, or of nothing, is refused by an answer; the session goes on.
func TestUnknownCommandsAreRefused(t *testing.T) {
	n := newNodeRig(t, echo, nil)
	p := n.online(1)
	message := func(field protowire.Number) []byte {
		return protowire.AppendBytes(protowire.AppendTag(protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 7), field, protowire.BytesType), []byte("\x0a\x05shell"))
	}
	for name, payload := range map[string][]byte{
		"a kind of the next number": message(5), "a kind of a far number": message(1000), "nothing": {8, 7},
		"a number for a kind": {8, 7, 9 << 3, 1},
	} {
		p.raw(p.frame(wire.TypeCommand, 0, 0, payload))
		var result wire.CommandResult
		p.expect(wire.TypeCommandResult, &result)
		if result.Id != 7 || result.Error == "" || result.Capabilities != nil || result.TransportStatus != nil {
			t.Errorf("%s: %v", name, &result)
		}
	}
	p.close()
	n.close()
}

// An Edge is not led astray by a Node's answers: an error in control characters, an answer to another question, pages
// without end, numbers beyond sense.
func TestCommandAnswersAreChecked(t *testing.T) {
	for name, answer := range map[string]func(id uint64) *wire.CommandResult{
		"an error":       func(uint64) *wire.CommandResult { return &wire.CommandResult{Error: "no\x1b[2J"} },
		"another answer": func(uint64) *wire.CommandResult { return &wire.CommandResult{TransportStatus: &wire.TransportStatus{}} },
		"endless pages": func(uint64) *wire.CommandResult {
			return &wire.CommandResult{Capabilities: &wire.Capabilities{More: true, Models: []*wire.Model{{Provider: "p", Id: "m"}}}}
		},
		"a provider without a name": func(uint64) *wire.CommandResult {
			return &wire.CommandResult{Capabilities: &wire.Capabilities{Providers: []*wire.Provider{{Capacity: 1}}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEdgeRig(t, nil)
			p, s := e.node("n")
			done := make(chan error, 1)
			go func() {
				_, _, err := s.Capabilities(t.Context(), "")
				done <- err
			}()
			for {
				select {
				case err := <-done:
					if err == nil || strings.ContainsRune(err.Error(), 0x1b) {
						t.Errorf("%v", err)
					}
					p.close()
					e.close()
					return
				case f := <-p.frames:
					var c wire.CommandRequest
					if f.Type != wire.TypeCommand {
						continue
					}
					if err := proto.Unmarshal(f.payload, &c); err != nil {
						t.Error(err)
					}
					r := answer(c.Id)
					r.Id = c.Id
					p.send(wire.TypeCommandResult, 0, r)
				}
			}
		})
	}
	st := parseStatus(&wire.TransportStatus{UptimeMs: -1, QueuedBytes: 1<<64 - 1, HeartbeatRttUs: -5, ProcessUptimeMs: 1<<63 - 1})
	if st.Uptime != 0 || st.QueuedBytes < 0 || st.HeartbeatRTT != 0 || st.ProcessUptime < 0 {
		t.Errorf("%+v", st)
	}
}
