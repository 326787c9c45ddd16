package tunnel

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"iop/execution"
	"iop/tunnel/wire"
)

// upgrade asks for the upgrade with these headers and returns the answer and its body.
func upgrade(t *testing.T, n *pipeNet, header http.Header) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest("GET", "http://edge.test"+wire.Path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"},
		"Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="}, "Sec-Websocket-Protocol": {"other, " + wire.Subprotocol},
	}
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := (&http.Transport{DialContext: n.dial, DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return resp, ""
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

func TestUpgradeRefusals(t *testing.T) {
	e := newEdgeRig(t, nil)
	defer e.close()
	refuse := func(err error) {
		e.dir.mu.Lock()
		e.dir.authFail = err
		e.dir.mu.Unlock()
	}
	code := func(body string) (answer struct {
		Error struct{ Message, Type, Code string }
	}) {
		if err := json.Unmarshal([]byte(body), &answer); err != nil {
			t.Errorf("%q: %v", body, err)
		}
		return answer
	}
	refuse(&Refusal{Code: "token_expired", Message: "the token has expired", RetryAfter: 1500 * time.Millisecond})
	resp, body := upgrade(t, e.net, nil)
	if got := code(body); resp.StatusCode != 401 || got.Error.Code != "token_expired" || got.Error.Message != "the token has expired" || resp.Header.Get("Retry-After") != "2" || !strings.HasPrefix(resp.Header.Get("Www-Authenticate"), "Bearer") {
		t.Errorf("%s %v %s", resp.Status, resp.Header, body)
	}
	refuse(errors.New("state: password=hunter2 refused"))
	if resp, body := upgrade(t, e.net, nil); resp.StatusCode != 503 || code(body).Error.Code != "unavailable" || strings.Contains(body, "hunter2") {
		t.Errorf("%s %s", resp.Status, body)
	}
	refuse(nil)
	if resp, body := upgrade(t, e.net, http.Header{"Origin": {"https://evil.test"}}); resp.StatusCode != 403 {
		t.Errorf("a foreign origin: %s %s", resp.Status, body)
	}
	for _, list := range [][]string{nil, {"iop.tunnel.v2"}, {"IOP.TUNNEL.V1"}} {
		if resp, body := upgrade(t, e.net, http.Header{"Sec-Websocket-Protocol": list}); resp.StatusCode != 400 || code(body).Error.Code != "bad_request" {
			t.Errorf("subprotocols %q: %s %s", list, resp.Status, body)
		}
	}
	if resp, _ := upgrade(t, e.net, http.Header{"Upgrade": nil}); resp.StatusCode != 426 {
		t.Errorf("no upgrade: %s", resp.Status)
	}
	resp, _ = upgrade(t, e.net, http.Header{"Sec-Websocket-Extensions": {"permessage-deflate"}})
	if resp.StatusCode != 101 || resp.Header.Get("Sec-Websocket-Protocol") != wire.Subprotocol || resp.Header.Get("Sec-Websocket-Extensions") != "" {
		t.Errorf("%s %v", resp.Status, resp.Header)
	}
	e.acc.Close()
	if resp, body := upgrade(t, e.net, nil); resp.StatusCode != 503 || code(body).Error.Code != "draining" || resp.Header.Get("Retry-After") != "1" {
		t.Errorf("an Edge that stops: %s %s", resp.Status, body)
	}
}

func TestRegisterDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdgeRig(t, nil)
		began := time.Now()
		p := fakeDial(t, e.net)
		<-p.done
		if d := time.Since(began); d != 10*time.Second {
			t.Errorf("without REGISTER the connection lasted %v", d)
		}
		p.close()
		p = fakeDial(t, e.net)
		p.register("n")
		began = time.Now()
		if bye := p.goodbye(); bye.Code != "protocol_error" || !strings.Contains(bye.Message, "READY") {
			t.Errorf("goodbye %v", bye)
		}
		if d := time.Since(began); d < 30*time.Second || d > 31*time.Second {
			t.Errorf("without READY the session lasted %v", d)
		}
		p.close()
		<-e.dir.gone
		// A Directory that does not answer is given up, and the Node told that it is not its fault.
		e.dir.mu.Lock()
		e.dir.register = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		e.dir.mu.Unlock()
		p = fakeDial(t, e.net)
		began = time.Now()
		p.send(wire.TypeRegister, 0, &wire.RegisterRequest{ProtocolVersions: []uint32{1}, NodeName: "n", BootId: "b"})
		var answer wire.RegisterResponse
		p.expect(wire.TypeRegistered, &answer)
		if d := time.Since(began); answer.Refusal.GetCode() != "unavailable" || d != 15*time.Second {
			t.Errorf("after %v: %v", d, answer.Refusal)
		}
		<-p.done
		p.close()
		e.close()
	})
}

func TestRegisterRefusals(t *testing.T) {
	e := newEdgeRig(t, nil)
	defer e.close()
	good := func() *wire.RegisterRequest {
		return &wire.RegisterRequest{ProtocolVersions: []uint32{7, 1}, NodeName: "n", BootId: "b"}
	}
	long := strings.Repeat("x", 257)
	for _, c := range []struct {
		name   string
		change func(*wire.RegisterRequest)
		want   string // in the message
	}{
		{"no name", func(r *wire.RegisterRequest) { r.NodeName = "" }, "node_name"},
		{"a name with a slash", func(r *wire.RegisterRequest) { r.NodeName = "a/b" }, "node_name"},
		{"a directory's name", func(r *wire.RegisterRequest) { r.NodeName = ".." }, "node_name"},
		{"no version", func(r *wire.RegisterRequest) { r.ProtocolVersions = nil }, "protocol_versions"},
		{"a later version", func(r *wire.RegisterRequest) { r.ProtocolVersions = []uint32{2} }, "speaks 1"},
		{"no boot id", func(r *wire.RegisterRequest) { r.BootId = "" }, "boot_id"},
		{"a long label", func(r *wire.RegisterRequest) { r.Labels = map[string]string{"a": long} }, "labels"},
	} {
		p := fakeDial(t, e.net)
		req := good()
		c.change(req)
		p.send(wire.TypeRegister, 0, req)
		var answer wire.RegisterResponse
		p.expect(wire.TypeRegistered, &answer)
		if answer.Refusal.GetCode() != "bad_request" || !strings.Contains(answer.Refusal.GetMessage(), c.want) || answer.Generation != 0 {
			t.Errorf("%s: %v", c.name, &answer)
		}
		<-p.done
		p.close()
	}
	e.dir.mu.Lock()
	e.dir.refuse = func(*NodeSession) error {
		return &Refusal{Code: "flapping", Message: "two \xff processes", RetryAfter: time.Minute}
	}
	e.dir.mu.Unlock()
	p := fakeDial(t, e.net)
	p.send(wire.TypeRegister, 0, good())
	var answer wire.RegisterResponse
	p.expect(wire.TypeRegistered, &answer)
	if r := answer.Refusal; r.GetCode() != "flapping" || r.GetMessage() != "two \uFFFD processes" || r.GetRetryAfterMs() != 60_000 {
		t.Errorf("%v", &answer)
	}
	p.close()
}

// A stranger's first message is REGISTER and nothing else, or the connection ends without a word.
func TestFirstMessage(t *testing.T) {
	e := newEdgeRig(t, nil)
	defer e.close()
	register := wire.AppendFrame(nil, wire.FrameHeader{Type: wire.TypeRegister}, nil)
	for name, message := range map[string][]byte{
		"empty":            {},
		"half a header":    register[:9],
		"READY":            wire.AppendFrame(nil, wire.FrameHeader{Type: wire.TypeReady}, nil),
		"seq 1":            wire.AppendFrame(nil, wire.FrameHeader{Type: wire.TypeRegister, Seq: 1}, nil),
		"something behind": append(bytes.Clone(register), register...),
		"not protobuf":     wire.AppendFrame(nil, wire.FrameHeader{Type: wire.TypeRegister}, []byte{0xff}),
		"OPEN on a stream": wire.AppendFrame(nil, wire.FrameHeader{Type: wire.TypeOpen, Stream: 1}, nil),
	} {
		p := fakeDial(t, e.net)
		p.raw(message)
		<-p.done
		if n := len(p.frames); n != 0 {
			t.Errorf("%s: was answered with %d frames", name, n)
		}
		p.close()
	}
}

// Messages that are none: text, too long, torn. The session says why and ends.
func TestMessagesThatAreNone(t *testing.T) {
	e := newEdgeRig(t, nil)
	defer e.close()
	for name, c := range map[string]struct {
		typ     websocket.MessageType
		message []byte
		want    string
	}{
		"text":     {websocket.MessageText, []byte("hello"), "text"},
		"too long": {websocket.MessageBinary, make([]byte, wire.MaxMessage+1), "over 65536"},
		"empty":    {websocket.MessageBinary, nil, "empty message"},
		"torn":     {websocket.MessageBinary, make([]byte, 20), ""},
	} {
		p, _ := e.node("n")
		written := make(chan struct{})
		go func() {
			defer close(written)
			_ = p.ws.Write(context.Background(), c.typ, c.message)
		}()
		if bye := p.goodbye(); bye.Code != "protocol_error" || !strings.Contains(bye.Message, c.want) {
			t.Errorf("%s: goodbye %v", name, bye)
		}
		p.close()
		<-written
	}
	// The longest message that may be is taken.
	p, s := e.node("n")
	var message []byte
	for len(message)+wire.HeaderSize <= wire.MaxMessage {
		n := min(wire.MaxPayload, wire.MaxMessage-len(message)-wire.HeaderSize)
		p.mu.Lock()
		message = wire.AppendFrame(message, wire.FrameHeader{Type: 200, Flags: wire.FlagIgnorable, Seq: p.seq[0]}, make([]byte, n))
		p.seq[0]++
		p.mu.Unlock()
	}
	if len(message) != wire.MaxMessage {
		t.Fatalf("%d bytes", len(message))
	}
	p.raw(message)
	if err := s.Probe(context.Background()); err != nil {
		t.Error(err)
	}
	p.close()
}

// The Directory hears of a session in order, whatever happens to it.
func TestReadyRefused(t *testing.T) {
	e := newEdgeRig(t, nil)
	defer e.close()
	e.dir.ready = func(*NodeSession) error { return &Refusal{Code: "stale_generation", Message: "a newer one is ready"} }
	p := fakeDial(t, e.net)
	p.register("n")
	p.send(wire.TypeReady, 0, &wire.NodeReadyRequest{})
	if bye := p.goodbye(); bye.Code != "stale_generation" || bye.Message != "a newer one is ready" {
		t.Errorf("goodbye %v", bye)
	}
	<-e.dir.gone
	if len(e.dir.online) != 0 {
		t.Error("it was online")
	}
	p.close()
}

// READY counts once, even when two come in one message.
func TestReadyTwice(t *testing.T) {
	e := newEdgeRig(t, nil)
	defer e.close()
	p := fakeDial(t, e.net)
	p.register("n")
	p.raw(append(p.frame(wire.TypeReady, 0, 0, nil), p.frame(wire.TypeReady, 0, 0, nil)...))
	if bye := p.goodbye(); bye.Code != "protocol_error" {
		t.Errorf("goodbye %v", bye)
	}
	<-e.dir.gone
	if n := len(e.dir.online); n > 1 {
		t.Errorf("online %d times", n)
	}
	p.close()
}

func TestConfigErrors(t *testing.T) {
	for name, cfg := range map[string]AcceptorConfig{
		"no id":        {Directory: newTestDirectory()},
		"no directory": {EdgeID: "e"},
		"many streams": {EdgeID: "e", Directory: newTestDirectory(), MaxStreams: wire.MaxStreams + 1},
	} {
		if _, err := NewAcceptor(cfg); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	describe := func() *NodeInfo { return nil }
	for name, cfg := range map[string]SupervisorConfig{
		"https":      {URL: "https://edge.test", Node: "n", Handler: handlerFunc(echo), Describe: describe},
		"no host":    {URL: "wss:///x", Node: "n", Handler: handlerFunc(echo), Describe: describe},
		"a user":     {URL: "wss://u:secret@edge.test", Node: "n", Handler: handlerFunc(echo), Describe: describe},
		"no URL":     {Node: "n", Handler: handlerFunc(echo), Describe: describe},
		"torn":       {URL: "wss://%zz", Node: "n", Handler: handlerFunc(echo), Describe: describe},
		"no name":    {URL: "wss://edge.test", Handler: handlerFunc(echo), Describe: describe},
		"no handler": {URL: "wss://edge.test", Node: "n", Describe: describe},
	} {
		_, err := NewSupervisor(cfg)
		if err == nil {
			t.Errorf("%s was accepted", name)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error shows a secret: %v", name, err)
		}
	}
	s, err := NewSupervisor(SupervisorConfig{URL: "ws://edge.test", Node: "n", Handler: handlerFunc(echo), Describe: describe})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
	if err := s.Run(ctx); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("the second Run: %v", err)
	}
	if st := s.Status(); st.State != StateStopped {
		t.Errorf("status %+v", st)
	}
	if (&CancelError{Code: execution.CodeDeadline, Reason: "late"}).Error() != "deadline: late" {
		t.Error("CancelError's text")
	}
}

// TestSilentConnectionsOfAToken: a token's connections that don't register are bounded, others are let in meanwhile, and each that
// registers or ends makes room.
func TestSilentConnectionsOfAToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEdgeRig(t, nil)
		as := func(account string) {
			e.dir.mu.Lock()
			e.dir.identity = Identity{TokenID: account, Allowance: &Allowance{Account: account, Joining: 3}}
			e.dir.mu.Unlock()
		}
		as("a")
		var peers []*fakePeer
		for i := range 9 {
			p, status := tryDial(t, e.net)
			if refused := i >= 3; refused != (p == nil) || refused && status != http.StatusTooManyRequests {
				t.Fatalf("connection %d: %d", i, status)
			}
			if p != nil {
				peers = append(peers, p)
			}
		}
		as("b")
		p, _ := e.node("other")
		peers = append(peers, p)
		as("a")
		peers[0].ready("n")
		<-e.dir.online
		peers = append(peers, fakeDial(t, e.net))
		if p, _ := tryDial(t, e.net); p != nil {
			t.Error("a registered one made room for two")
		}
		time.Sleep(registerTime + time.Second)
		for range 3 {
			peers = append(peers, fakeDial(t, e.net))
		}
		for _, p := range peers {
			p.close()
		}
		time.Sleep(registerTime + time.Second)
		e.close()
		e.acc.mu.Lock()
		defer e.acc.mu.Unlock()
		if n := len(e.acc.joining); n != 0 {
			t.Errorf("%d accounts are left", n)
		}
	})
}
