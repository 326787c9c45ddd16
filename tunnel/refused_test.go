package tunnel

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"iop/execution"
	"iop/tunnel/wire"
)

// TestRefusedAreListed: the operator sees who asks in vain, from where, and why, until it is let in or an hour has passed. What is
// no Node, and a trial, is not listed.
func TestRefusedAreListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdgeRig(t, nil)
		defer e.close()
		auth := func(err error) {
			e.dir.mu.Lock()
			e.dir.authFail = err
			e.dir.mu.Unlock()
		}
		auth(&Refusal{Code: "unauthorized", Message: "unknown token ciop_sk-0123456789abcdef0123456789\x1b[2J"})
		for range 3 {
			upgrade(t, e.net, http.Header{wire.HeaderNode: {"gpu-3"}})
			time.Sleep(time.Minute)
		}
		upgrade(t, e.net, http.Header{wire.HeaderNode: {"gpu-3"}, wire.HeaderTrial: {"node=gpu-3"}})
		upgrade(t, e.net, http.Header{wire.HeaderNode: {"scanner"}, "Sec-Websocket-Protocol": {"other"}})
		upgrade(t, e.net, http.Header{wire.HeaderNode: {"bad name"}})
		list := e.acc.Refused()
		if len(list) != 2 || list[0].Node != "" || list[1].Node != "gpu-3" || list[1].Count != 3 || list[1].Code != "unauthorized" || list[1].Proven || list[1].Last.Sub(list[1].First) != 2*time.Minute {
			t.Fatalf("%+v", list)
		}
		if m := list[1].Message; strings.ContainsAny(m, "\x1b") || strings.Contains(m, "0123456789abcdef0123456789") || list[1].Source == "" || strings.Contains(list[1].Source, ":") {
			t.Errorf("%q from %q", m, list[1].Source)
		}

		auth(nil)
		p := fakeDial(t, e.net)
		p.send(wire.TypeRegister, 0, &wire.RegisterRequest{ProtocolVersions: []uint32{9}, NodeName: "old", BootId: "b"})
		var answer wire.RegisterResponse
		p.expect(wire.TypeRegistered, &answer)
		p.close()
		if list = e.acc.Refused(); len(list) != 3 || list[1].Node != "old" || list[1].Code != "bad_request" || !list[1].Proven {
			t.Errorf("%+v", list)
		}
		time.Sleep(59 * time.Minute)
		if list = e.acc.Refused(); len(list) != 2 {
			t.Errorf("after an hour: %+v", list)
		}
		time.Sleep(time.Hour)
		if list = e.acc.Refused(); len(list) != 0 {
			t.Errorf("after two hours: %+v", list)
		}
	})
}

// TestRefusedNodeIsLetIn: a Node that was refused and now runs is not listed any more; another one of that name elsewhere is.
func TestRefusedNodeIsLetIn(t *testing.T) {
	var l refusals
	l.note(RefusedNode{Node: "n", Source: "192.0.2.1:10", Code: "unauthorized"}, "")
	l.note(RefusedNode{Node: "n", Source: "192.0.2.1:11", Code: "node_taken"}, "token a")
	l.note(RefusedNode{Node: "n", Source: "192.0.2.2:12", Code: "unauthorized"}, "")
	l.settle("n", "192.0.2.1:13")
	if list := l.list(); len(list) != 1 || list[0].Source != "192.0.2.2" {
		t.Errorf("%+v", list)
	}
}

// TestRefusedListIsBounded: neither a stranger with ever new names, nor one with ever new addresses, nor the holder of a join token
// makes the list grow or pushes out a Node that keeps asking.
func TestRefusedListIsBounded(t *testing.T) {
	var l refusals
	holder := RefusedNode{Node: "holder", Source: "198.51.100.1:1", Code: "node_taken"}
	stranger := RefusedNode{Node: "asks-again", Source: "198.51.100.2:1", Code: "unauthorized"}
	neighbour := RefusedNode{Node: "neighbour", Source: "203.0.113.1:1", Code: "unauthorized"} // behind the same proxy as the flood
	for range 2 {
		l.note(holder, "token good")
		l.note(stranger, "")
		l.note(neighbour, "")
	}
	check := func(when string) {
		t.Helper()
		list := l.list()
		if len(list) > 64 {
			t.Errorf("%s: %d entries", when, len(list))
		}
		found := 0
		for _, n := range list {
			if n.Count == 2 {
				found++
			}
		}
		if found != 3 {
			t.Errorf("%s: %d of 3 are left", when, found)
		}
	}
	for i := range 1000 {
		l.note(RefusedNode{Node: execution.NodeID(fmt.Sprint("x", i)), Source: "203.0.113.1:7", Code: "unauthorized"}, "")
		l.note(RefusedNode{Node: execution.NodeID(fmt.Sprint("x", i)), Source: fmt.Sprintf("[2001:db8::%x]:7", i), Code: "unauthorized"}, "")
	}
	if n := len(l.list()); n > 2*maxRefusedGroup+2 {
		t.Errorf("two sources have %d entries", n)
	}
	check("two sources with ever new names")
	for i := range 1000 {
		l.note(RefusedNode{Source: fmt.Sprintf("[2001:db8:0:%x::1]:7", i), Code: "unauthorized"}, "")
	}
	check("ever new sources")
	for i := range 1000 {
		l.note(RefusedNode{Node: execution.NodeID(fmt.Sprint("y", i)), Source: "192.0.2.9:7", Code: "token_limit"}, fmt.Sprint("token ", i%40))
	}
	check("holders of tokens")
}
