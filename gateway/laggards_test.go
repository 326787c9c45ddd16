package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"iop/execution"
	"iop/state"
	"iop/tunnel"
)

// endless answers without an end to who asks for "endless", and with one word else.
func endless(kind string, pause time.Duration) handler {
	return func(ctx context.Context, run *tunnel.NodeRun) {
		body, _ := io.ReadAll(run)
		if !bytes.Contains(body, []byte("endless")) {
			answerSSE(chunk("turn"), doneEvent)(ctx, run)
			return
		}
		_ = run.Head(head(http.StatusOK, kind))
		for run.Write([]byte(chunk(strings.Repeat("x", 1000))), true) == nil {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		}
		code := execution.CodeInternal
		if cause, ok := context.Cause(ctx).(*tunnel.CancelError); ok {
			code = cause.Code
		}
		run.End(execution.Terminal{Outcome: execution.Cancelled, Code: code})
	}
}

const endlessBody = `{"model":"m","stream":true,"user":"endless"}`

// callers are clients with connections of their own, and what they do meanwhile.
type callers struct {
	t     *testing.T
	dial  dialler
	key   string
	conns []net.Conn
	wg    sync.WaitGroup
}

func (c *callers) connect() net.Conn {
	conn, err := c.dial(c.t.Context(), "tcp", "edge")
	if err != nil {
		c.t.Fatal(err)
	}
	c.conns = append(c.conns, conn)
	return conn
}

// leave ends the connections, and waits for who used them.
func (c *callers) leave() {
	for _, conn := range c.conns {
		conn.Close()
	}
	c.wg.Wait()
}

// every calls f in each interval until it fails, which it does once its connection is closed.
func (c *callers) every(interval time.Duration, f func(i uint32) error) {
	c.wg.Go(func() {
		for i := uint32(0); f(i) == nil; i++ {
			time.Sleep(interval)
		}
	})
}

// read takes n bytes in each interval.
func (c *callers) read(conn net.Conn, n int64, interval time.Duration) {
	c.every(interval, func(uint32) error { _, err := io.CopyN(io.Discard, conn, n); return err })
}

// http1 asks in HTTP/1.1.
func (c *callers) http1() net.Conn {
	conn := c.connect()
	_, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: edge\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s",
		chat, c.key, len(endlessBody), endlessBody)
	if err != nil {
		c.t.Fatal(err)
	}
	return conn
}

// http2Conn is a connection of HTTP/2 that gives no more credit than it is told to.
type http2Conn struct {
	mu    sync.Mutex // for writing
	fr    *http2.Framer
	reset atomic.Bool // the Edge gave a stream up
}

// http2 asks in HTTP/2 for an endless answer, with a window of 0 for it.
func (c *callers) http2() *http2Conn { return c.http2With(endlessBody) }

func (c *callers) http2With(body string) *http2Conn { return c.http2At(chat, body) }

func (c *callers) http2At(path, body string) *http2Conn {
	conn := c.connect()
	h := &http2Conn{fr: http2.NewFramer(conn, conn)}
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", path}, {":authority", "edge"},
		{"authorization", "Bearer " + c.key}, {"content-length", fmt.Sprint(len(body))},
	} {
		_ = enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // to memory
	}
	_, err := io.WriteString(conn, http2.ClientPreface)
	c.wg.Go(h.read)
	for _, write := range []func() error{
		func() error { return h.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}) },
		func() error {
			return h.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
		},
		func() error { return h.fr.WriteData(1, true, []byte(body)) },
	} {
		if err == nil {
			err = h.write(write)
		}
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return h
}

func (h *http2Conn) write(f func() error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return f()
}

// read takes what comes, and answers settings and pings: the connection lives.
func (h *http2Conn) read() {
	for {
		f, err := h.fr.ReadFrame()
		if err != nil {
			return
		}
		switch f := f.(type) {
		case *http2.RSTStreamFrame:
			h.reset.Store(true)
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = h.write(h.fr.WriteSettingsAck)
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				err = h.write(func() error { return h.fr.WritePing(true, f.Data) })
			}
		}
		if err != nil {
			return
		}
	}
}

// TestLaggardGivesItsPlaceUp: whoever takes next to nothing of an answer while others wait for the place is cut, however it
// feigns life. Two runs fill the provider; one of the two is cut when one request waits.
func TestLaggardGivesItsPlaceUp(t *testing.T) {
	tests := map[string]func(c *callers){
		"HTTP/1.1, reads nothing":   func(c *callers) { c.http1() },
		"HTTP/1.1, a byte a second": func(c *callers) { c.read(c.http1(), 1, time.Second) },
		"HTTP/2, a window of 0":     func(c *callers) { c.http2() },
		"HTTP/2, window updates of 1": func(c *callers) {
			h := c.http2()
			c.every(time.Second, func(uint32) error { return h.write(func() error { return h.fr.WriteWindowUpdate(1, 1) }) })
		},
		"HTTP/2, settings that change the window": func(c *callers) {
			h := c.http2()
			c.every(5*time.Second, func(i uint32) error {
				return h.write(func() error {
					return h.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 100 * (i % 2)})
				})
			})
		},
		"HTTP/2, pings": func(c *callers) {
			h := c.http2()
			c.every(time.Second, func(i uint32) error {
				return h.write(func() error { return h.fr.WritePing(false, [8]byte{byte(i)}) })
			})
		},
	}
	for name, ask := range tests {
		for _, kind := range []string{"text/event-stream", "application/octet-stream"} {
			t.Run(name+", "+kind, func(t *testing.T) {
				dialled(t, nil, endless(kind, 0), state.KeySpec{Name: "test"}, func(send sender, dial dialler, key string) {
					c := &callers{t: t, dial: dial, key: key}
					defer c.leave()
					ask(c)
					ask(c)
					synctest.Wait()
					began := time.Now()
					turn(t, send, "the first")
					if took := time.Since(began); took < 25*time.Second || took > 40*time.Second {
						t.Errorf("the next request waited %v, want about 30 s", took)
					}
					// The other one has held its place as long, and is cut as soon as somebody waits for it, too.
					held, err := send(strings.NewReader(endlessBody))
					if err != nil {
						t.Fatal(err)
					}
					defer held.Body.Close()
					began = time.Now()
					turn(t, send, "the second")
					if took := time.Since(began); took > 10*time.Second {
						t.Errorf("the one after it waited %v, want a few seconds", took)
					}
				})
			})
		}
	}
}

// turn sends a request that is answered as soon as it has a place.
func turn(t *testing.T, send sender, which string) {
	resp, err := send(strings.NewReader(`{"model":"m","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(body), chunk("turn")) {
		t.Errorf("%s: %s %q, %v", which, resp.Status, body, err)
	}
}

// TestSlowIsNoLaggard: a client that goes on taking its answer keeps its place, and so does one whose provider is slow,
// whoever waits.
func TestSlowIsNoLaggard(t *testing.T) {
	tests := map[string]struct {
		pause time.Duration // between two chunks of the provider
		take  int64         // bytes in each interval
		each  time.Duration
	}{
		"a slow client":     {0, 2 << 10, time.Second},
		"a client by fits":  {0, 40 << 10, 20 * time.Second},
		"a slow provider":   {20 * time.Second, 1 << 20, 0},
		"a silent provider": {3 * time.Minute, 1 << 20, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dialled(t, nil, endless("text/event-stream", test.pause), state.KeySpec{Name: "test"}, func(send sender, dial dialler, key string) {
				c := &callers{t: t, dial: dial, key: key}
				defer c.leave()
				var cut atomic.Int32
				for range 2 {
					conn := c.http1()
					c.every(test.each, func(uint32) error {
						_, err := io.CopyN(io.Discard, conn, test.take)
						if err != nil {
							cut.Add(1)
						}
						return err
					})
				}
				synctest.Wait()
				waiter := c.connect()
				_, err := fmt.Fprintf(waiter, "POST %s HTTP/1.1\r\nHost: edge\r\nAuthorization: Bearer %s\r\nContent-Length: 13\r\n\r\n{\"model\":\"m\"}", chat, key)
				if err != nil {
					t.Fatal(err)
				}
				_ = waiter.SetReadDeadline(time.Now().Add(10 * time.Minute))
				began := time.Now()
				if got, err := io.ReadAll(waiter); len(got) > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("a place became free after %v: %q, %v", time.Since(began), got, err)
				}
				if n := cut.Load(); n > 0 {
					t.Errorf("%d clients were cut", n)
				}
			})
		})
	}
}
