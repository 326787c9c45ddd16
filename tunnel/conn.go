package tunnel

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"iop/tunnel/wire"
)

// messageConn moves whole messages over one WebSocket. Reads and writes carry no context: a context that ends during
// either would close the connection under every run of it. Whoever wants it closed calls kill.
type messageConn struct {
	ws   *websocket.Conn
	cork *corkedConn
}

// receive waits for one message and gives it to take, for as long as take runs. While it waits it holds no buffer: a
// thousand idle Nodes cost none.
func (c messageConn) receive(take func(message []byte) error) error {
	typ, r, err := c.ws.Reader(context.Background())
	if err != nil {
		return err
	}
	buf := messageBuffers.Get().(*[]byte)
	defer messageBuffers.Put(buf)
	message, err := readAll(typ, r, (*buf)[:wire.MaxMessage])
	if err != nil {
		return err
	}
	return take(message)
}

func readAll(typ websocket.MessageType, r io.Reader, buf []byte) ([]byte, error) {
	if typ != websocket.MessageBinary {
		return nil, fmt.Errorf("%w: text", errUnread)
	}
	n := 0
	for {
		if n == len(buf) {
			// Only EOF may follow a message of the full size.
			var one [1]byte
			if m, err := r.Read(one[:]); m > 0 || err != io.EOF {
				return nil, fmt.Errorf("%w: over %d bytes", errUnread, len(buf))
			}
			return buf[:n], nil
		}
		m, err := r.Read(buf[n:])
		n += m
		if err == io.EOF {
			return buf[:n], nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// smallMessage is what the library's writer sends in one piece: its smallest buffer, less a frame's header
// (RFC 6455 section 5.2).
const smallMessage = writeBuffer - 14

// write sends one message with one write to the socket. A small one needs no buffer of ours for that: a heartbeat of
// each of a thousand Nodes falls due at the same time.
func (c messageConn) write(message []byte) error {
	if len(message) <= smallMessage {
		return c.ws.Write(context.Background(), websocket.MessageBinary, message)
	}
	c.cork.hold()
	err := c.ws.Write(context.Background(), websocket.MessageBinary, message)
	if ferr := c.cork.release(); err == nil {
		err = ferr
	}
	return err
}

// close runs the closing handshake, for as long as the peer takes part; kill bounds it.
func (c messageConn) close(code websocket.StatusCode, reason string) {
	// The error says only whether the peer answered the close frame in time; the connection is closed either way.
	_ = c.ws.Close(code, reason)
}

// kill closes the socket under whatever is blocked on it. The library's CloseNow does not do that while a Close is
// under way.
func (c messageConn) kill() { _ = c.cork.Close() }

// corkedConn gathers the pieces of one message (frame header, masked blocks of 4 KiB, TLS records) into one system
// call. Between hold and release writes are gathered; outside they pass through.
type corkedConn struct {
	net.Conn

	// lock holds one token while somebody writes or gathers. It is a channel because its holder may be blocked on the
	// socket for as long as the session lives.
	lock chan struct{}
	held *[]byte // guarded by lock; or nil: writes pass through
}

func newCorkedConn(conn net.Conn) *corkedConn {
	return &corkedConn{Conn: conn, lock: make(chan struct{}, 1)}
}

var corkBuffers = sync.Pool{New: func() any { b := make([]byte, 0, wire.MaxMessage+4096); return &b }}

func (c *corkedConn) hold() {
	c.lock <- struct{}{}
	c.held = corkBuffers.Get().(*[]byte)
	<-c.lock
}

// release writes what was gathered. A write by the library's control frames waits for the lock meanwhile: it can't fall
// between two halves of a message.
func (c *corkedConn) release() error {
	c.lock <- struct{}{}
	defer func() { <-c.lock }()
	buf := c.held
	c.held = nil
	_, err := c.Conn.Write(*buf)
	if cap(*buf) <= 2*wire.MaxMessage {
		*buf = (*buf)[:0]
		corkBuffers.Put(buf)
	}
	return err
}

func (c *corkedConn) Write(p []byte) (int, error) {
	c.lock <- struct{}{}
	defer func() { <-c.lock }()
	if c.held != nil {
		*c.held = append(*c.held, p...)
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// writeBuffer is the size of the library's writer at the Edge; at the Node it is larger.
const writeBuffer = 1024

// corkingWriter is a ResponseWriter whose hijacked connection is corked.
type corkingWriter struct {
	http.ResponseWriter
	cork *corkedConn // set by Hijack
}

func (w *corkingWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	// The server's deadlines were for the request's head; a tunnel lives on heartbeats. That the peer has gone already,
	// which is all that can be wrong here, shows at the first read.
	_ = conn.SetDeadline(time.Time{})
	tuneSocket(conn)
	w.cork = newCorkedConn(conn)
	// A small writer: each larger message is gathered by the cork anyway, and a thousand idle Nodes hold no buffers.
	return w.cork, bufio.NewReadWriter(rw.Reader, bufio.NewWriterSize(w.cork, writeBuffer)), nil
}

// acceptConn upgrades a request that was found good.
func acceptConn(w http.ResponseWriter, r *http.Request) (messageConn, error) {
	cw := &corkingWriter{ResponseWriter: w}
	ws, err := websocket.Accept(cw, r, &websocket.AcceptOptions{
		Subprotocols:   []string{wire.Subprotocol},
		OnPingReceived: ignorePing,
	})
	if err != nil {
		return messageConn{}, err
	}
	c := messageConn{ws: ws, cork: cw.cork}
	ws.SetReadLimit(wire.MaxMessage)
	return c, nil
}

// offersSubprotocol reports whether the request names the tunnel's subprotocol.
func offersSubprotocol(r *http.Request) bool {
	for _, list := range r.Header.Values("Sec-WebSocket-Protocol") {
		for name := range strings.SplitSeq(list, ",") {
			if strings.TrimSpace(name) == wire.Subprotocol {
				return true
			}
		}
	}
	return false
}

// ignorePing answers no ping: a pong that meets a blocked write would end the reader after 5 s.
func ignorePing(context.Context, []byte) bool { return false }
