package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// TestLaggardsPlace: two clients ask for long answers and take nothing of them, one by HTTP/1.1 and one by HTTP/2 with a
// window of 0. They hold both places of a provider until others want these; then they are cut.
func TestLaggardsPlace(t *testing.T) {
	t.Parallel()
	s := newEdge(t)
	sim := s.startSim("--slots", "8")
	s.startNode("node-1", "--provider", "sim="+sim.url+",capacity=2")
	for _, ask := range []func(*testing.T, *stack, []byte) net.Conn{withoutReading, withoutWindow} {
		body, err := json.Marshal(chat("sim-small", "tokens=1000000,chunk_bytes=4000", true))
		if err != nil {
			t.Fatal(err)
		}
		defer ask(t, s, body).Close()
	}
	sim.active(t, 2)
	var next []*answer
	for range 2 {
		next = append(next, s.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=3", true)))
	}
	eventually(t, patience, "both wait", func() bool { return s.metric("iop_queued") == 2 })
	for _, a := range next {
		if err := a.end(t, 2*patience).whole(); err != nil {
			t.Error(err)
		}
	}
	s.quiet()
	eventually(t, patience, "the provider is idle", func() bool { return sim.stats(t).Active == 0 })
	if n := s.metric("iop_slow_clients_cut_total"); n != 2 {
		t.Errorf("%v clients were cut, want 2", n)
	}
	cut := 0
	for _, r := range s.runs() {
		if r.Outcome == "cancelled" && r.Code == "client_gone" {
			cut++
		}
	}
	if cut != 2 {
		t.Errorf("the records say that %d clients were cut, want 2: %+v", cut, s.runs())
	}
}

// withoutReading asks by HTTP/1.1, and reads nothing.
func withoutReading(t *testing.T, s *stack, body []byte) net.Conn {
	host := strings.TrimPrefix(s.url, "http://")
	conn, err := net.Dial("tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.(*net.TCPConn).SetReadBuffer(4096)
	if _, err := fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", host, s.key, len(body), body); err != nil {
		t.Fatal(err)
	}
	return conn
}

// withoutWindow asks by HTTP/2, and gives no credit for the answer.
func withoutWindow(t *testing.T, s *stack, body []byte) net.Conn {
	host := strings.TrimPrefix(s.url, "http://")
	conn, err := net.Dial("tcp", host)
	if err != nil {
		t.Fatal(err)
	}
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", "/v1/chat/completions"}, {":authority", host},
		{"authorization", "Bearer " + s.key}, {"content-type", "application/json"}, {"content-length", fmt.Sprint(len(body))},
	} {
		_ = enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // to memory
	}
	_, err = io.WriteString(conn, http2.ClientPreface)
	fr := http2.NewFramer(conn, conn)
	for _, write := range []func() error{
		func() error { return fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}) },
		fr.WriteSettingsAck,
		func() error {
			return fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
		},
		func() error { return fr.WriteData(1, true, body) },
	} {
		if err == nil {
			err = write()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return conn
}
