package conns

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"sync/atomic"
	"time"
)

// kind is what a connection is.
type kind int

const (
	fresh kind = iota // no request of it had a valid secret yet
	client
	tunnel
	closed
)

// Conn is a connection that a Table counts. It is an end of TCP; everything but Close passes through.
type Conn struct {
	*net.TCPConn

	// Static after Accept.
	table *Table
	from  *source
	at    time.Time // when it was accepted

	admitted atomic.Bool // it is a client, for whom no lock is needed

	// Guarded by table.mu.
	kind       kind
	waiting    bool  // no request is under way
	upgrading  bool  // one of the tunnels' places is kept for it
	in         *list // or nil
	next, prev *Conn // in the list
}

// Close closes the connection and gives its place back. It may be called more than once.
func (c *Conn) Close() error {
	err := c.TCPConn.Close()
	c.table.leave(c)
	return err
}

// Counted is a connection that holds a Conn, as its Close must call that of the Conn.
type Counted interface{ Connection() *Conn }

// Connection implements Counted.
func (c *Conn) Connection() *Conn { return c }

// of finds the Conn in a connection of net/http's, nil if there is none.
func of(conn net.Conn) *Conn {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	if c, ok := conn.(Counted); ok {
		return c.Connection()
	}
	return nil
}

type contextKey struct{}

// WithConn is for http.Server.ConnContext: From then finds the connection.
func WithConn(ctx context.Context, conn net.Conn) context.Context {
	if c := of(conn); c != nil {
		return context.WithValue(ctx, contextKey{}, c)
	}
	return ctx
}

// From returns the connection of a request by its context; nil, whose methods allow everything, if it is not counted.
func From(ctx context.Context) *Conn {
	c, _ := ctx.Value(contextKey{}).(*Conn)
	return c
}

// sourceOf is whom a connection counts for: an IPv4 address, or the /64 of an IPv6 one, which is one customer's.
func sourceOf(conn net.Conn) netip.Addr {
	tcp, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	addr := tcp.AddrPort().Addr().Unmap().WithZone("")
	if addr.Is6() && !addr.IsLoopback() {
		if p, err := addr.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return addr
}

// list is connections in the order in which they were added. The zero value is empty.
type list struct{ first, last *Conn }

func (l *list) add(c *Conn) {
	c.in, c.prev, c.next = l, l.last, nil
	if l.last != nil {
		l.last.next = c
	} else {
		l.first = c
	}
	l.last = c
}

// remove takes a connection out of its list, if it is in one.
func (c *Conn) remove() {
	l := c.in
	if l == nil {
		return
	}
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		l.first = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	} else {
		l.last = c.prev
	}
	c.in, c.next, c.prev = nil, nil, nil
}
