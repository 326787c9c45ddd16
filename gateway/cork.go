package gateway

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"iop/gateway/conns"
)

// corkedConn gathers what net/http writes for one batch of an answer (the chunk's size, the bytes, the line end) into
// one system call. It is for HTTP/1.1 without TLS, where a connection belongs to one handler at a time: between hold
// and release only that handler's goroutine writes. Outside it passes everything through.
type corkedConn struct {
	*conns.Conn

	// rest is what a write that could not wait left over; whoever writes next waits for it.
	rest   sync.WaitGroup
	behind atomic.Bool // there is a rest

	// Owned by the handler's goroutine, or by whom it lends them to while it waits (exchange.busy).
	holding bool
	last    bool        // the response ends with what is held: its own end releases it
	parts   net.Buffers // what waits, in order; slices of small, or of whoever wrote them
	sending net.Buffers // parts while they are written, which empties it
	small   []byte      // copies of what came out of net/http's buffer, which is used again
}

const (
	// httpBuffer is the size of net/http's buffer in front of a connection: no write that comes out of it is larger,
	// and every larger one is the handler's own slice, which stays as it is until release.
	httpBuffer = 4096
	// worthCorking is the least batch that net/http would write in several pieces.
	worthCorking = 2048
)

// Write gathers p while the connection is held.
func (c *corkedConn) Write(p []byte) (int, error) {
	if !c.holding {
		c.rest.Wait()
		return c.TCPConn.Write(p)
	}
	q := p
	if len(p) <= httpBuffer {
		c.small = append(c.small, p...)
		q = c.small[len(c.small)-len(p):]
	}
	c.parts = append(c.parts, q)
	if c.last && bytes.HasSuffix(p, lastChunk) {
		return len(p), c.release()
	}
	return len(p), nil
}

func (c *corkedConn) hold() { c.holding = true }

// lastChunk ends a chunked response (RFC 9112 section 7.1) that has no trailers.
var lastChunk = []byte("0\r\n\r\n")

// holdToEnd gathers the rest of a chunked response. net/http writes its end after the handler has returned; that
// releases it. So does whatever else net/http does with the connection then, should the end never come.
func (c *corkedConn) holdToEnd() { c.holding, c.last = true, true }

// SetReadDeadline is what net/http calls between two requests.
func (c *corkedConn) SetReadDeadline(t time.Time) error {
	if c.last {
		_ = c.release() // the next write fails, too
	}
	return c.TCPConn.SetReadDeadline(t)
}

// release writes what was gathered.
func (c *corkedConn) release() error {
	c.rest.Wait()
	c.holding, c.last = false, false
	c.sending = c.parts
	_, err := c.sending.WriteTo(c.TCPConn)
	clear(c.parts)
	c.parts, c.small = c.parts[:0], c.small[:0]
	return err
}

// releaseNow writes what was gathered without ever waiting: what the kernel does not take at once is written by a
// goroutine of its own, and until that is done lagging reports true.
func (c *corkedConn) releaseNow() error {
	c.holding = false
	message := c.small
	if len(c.parts) != 1 || len(c.parts[0]) != len(message) {
		message = bytes.Join(c.parts, nil)
	}
	n, err := writeSome(c.TCPConn, message)
	if err == nil && n < len(message) {
		left := bytes.Clone(message[n:])
		c.behind.Store(true)
		c.rest.Go(func() {
			// Its error is that of the next write, too. The write deadline of the response bounds it.
			_, _ = c.TCPConn.Write(left)
			c.behind.Store(false)
		})
	}
	clear(c.parts)
	c.parts, c.small = c.parts[:0], c.small[:0]
	return err
}

// lagging reports whether the client has yet to take bytes that were written before.
func (c *corkedConn) lagging() bool { return c.behind.Load() }

// corkingListener makes corkedConns of counted connections.
type corkingListener struct{ net.Listener }

// Accept implements net.Listener.
func (l corkingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if counted, ok := conn.(*conns.Conn); ok {
		return &corkedConn{Conn: counted}, nil
	}
	return conn, err
}

type connKey struct{}

// withConn lets a handler find its connection.
func withConn(ctx context.Context, c net.Conn) context.Context {
	ctx = conns.WithConn(ctx, c)
	if c, ok := c.(*corkedConn); ok {
		return context.WithValue(ctx, connKey{}, c)
	}
	return ctx
}

// corkOf returns the connection of a request that has it to itself, or nil.
func corkOf(r *http.Request) *corkedConn {
	if r.ProtoMajor != 1 || r.ProtoMinor == 0 {
		return nil
	}
	c, _ := r.Context().Value(connKey{}).(*corkedConn)
	return c
}
