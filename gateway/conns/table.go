package conns

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Reason is why a connection or its request was refused. The zero value is no refusal.
type Reason int

// The reasons.
const (
	Allowed     Reason = iota
	Clients            // all clients' places are taken by busy connections
	PerSource          // all that one source may have are
	Tunnels            // all tunnels' places are taken
	Fresh              // it was closed for a newer one before it showed a valid secret
	Descriptors        // the system had no descriptor for it
	reasons
)

func (r Reason) String() string {
	return [...]string{"", "clients", "source", "tunnels", "fresh", "descriptors"}[r]
}

// Reasons are all reasons for a refusal.
func Reasons() (all []Reason) {
	for r := Clients; r < reasons; r++ {
		all = append(all, r)
	}
	return all
}

const (
	// looked bounds how many connections are looked at to find the one that gives way: the rest are no older.
	looked = 64
	// headersDue is when a client should have sent its first headers, TLS handshake included: one that is later than that
	// gives way before an idle one that has proved itself.
	headersDue = 2 * time.Second
	// logEvery is how often refusals are logged at most.
	logEvery = 5 * time.Second
)

// Table counts the connections of one listener.
type Table struct {
	// Static after New.
	name   string
	limits Limits
	log    *slog.Logger
	source func(net.Conn) netip.Addr

	refused [reasons]atomic.Int64
	evicted atomic.Int64

	mu      sync.Mutex // guards what follows
	counts  Counts
	fresh   list // in the order of their arrival
	idle    list // clients that wait for their next request, in the order of their last one
	sources map[netip.Addr]*source
	logged  time.Time // when the last refusals were
	since   [reasons]int
}

// source is where connections come from.
type source struct {
	addr                 netip.Addr
	open, fresh, clients int // guarded by Table.mu
}

// Counts are how many connections a Table has.
type Counts struct {
	Fresh   int
	Clients int // busy and idle ones
	Idle    int // of these
	Tunnels int // places that are kept for an upgrade included
}

// New returns a Table for the listener of that name. Refusals are logged, a line in five seconds for all of them.
func New(name string, limits Limits, log *slog.Logger) *Table {
	return &Table{name: name, limits: limits, log: log, source: sourceOf, sources: make(map[netip.Addr]*source)}
}

// Limits returns what New was given.
func (t *Table) Limits() Limits { return t.limits }

// Counts returns how many connections there are.
func (t *Table) Counts() Counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counts
}

// Refused returns how many connections and requests were refused for that reason.
func (t *Table) Refused(r Reason) int64 { return t.refused[r].Load() }

// Evicted returns how many idle connections of clients were closed because others needed their places.
func (t *Table) Evicted() int64 { return t.evicted.Load() }

// Listener makes a Table's connections of those that l accepts, which must be TCP.
func (t *Table) Listener(l net.Listener) net.Listener { return listener{l, t} }

type listener struct {
	net.Listener
	table *Table
}

// Accept implements net.Listener. Its connections are *Conn.
func (l listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			l.table.failed(err)
			return nil, err
		}
		tcp, ok := conn.(*net.TCPConn)
		if !ok {
			return conn, nil
		}
		if c := l.table.enter(tcp); c != nil {
			return c, nil
		}
		tcp.Close()
	}
}

// failed notes that a connection could not be accepted. net/http tries again after a pause, so an idle connection gives
// its descriptor for the next attempt.
func (t *Table) failed(err error) {
	if errors.Is(err, net.ErrClosed) {
		return
	}
	t.mu.Lock()
	victim := t.evictIdleLocked(nil)
	t.refuseLocked(Descriptors, err)
	t.mu.Unlock()
	victim.drop()
}

// enter counts a new connection; nil if there is no place for it.
func (t *Table) enter(tcp *net.TCPConn) *Conn {
	t.mu.Lock()
	victim, ok := t.placeLocked()
	if !ok {
		t.mu.Unlock()
		return nil
	}
	c := &Conn{TCPConn: tcp, table: t, at: time.Now(), from: t.sourceLocked(t.source(tcp))}
	c.from.open++
	c.from.fresh++
	t.counts.Fresh++
	t.fresh.add(c)
	t.mu.Unlock()
	victim.drop()
	return c
}

// placeLocked finds a place for a new connection, if need be that of a victim, which the caller drops.
func (t *Table) placeLocked() (victim *Conn, ok bool) {
	if t.counts.Fresh+t.counts.Clients+t.counts.Tunnels < t.limits.Total() {
		return nil, true
	}
	oldest := t.oldestFreshLocked()
	if oldest == nil || time.Since(oldest.at) < headersDue {
		if victim = t.evictIdleLocked(nil); victim != nil {
			return victim, true
		}
	}
	t.refuseLocked(Fresh, nil) // the one or the other
	if oldest == nil {
		return nil, false
	}
	t.forgetLocked(oldest)
	return oldest, true
}

func (t *Table) sourceLocked(addr netip.Addr) *source {
	s := t.sources[addr]
	if s == nil {
		s = &source{addr: addr}
		t.sources[addr] = s
	}
	return s
}

// drop closes the connection under whoever serves it. Nothing is done for nil.
func (c *Conn) drop() {
	if c != nil {
		c.TCPConn.Close() // its error would be that it is closed
	}
}

// evictIdleLocked forgets the client that has been idle for longest, of one source if that is not nil; the caller drops
// it. It returns nil if there is none among those that have been idle for long.
func (t *Table) evictIdleLocked(from *source) *Conn {
	c := t.idle.first
	for n := 0; c != nil && from != nil && c.from != from; n++ {
		if c = c.next; n == looked {
			return nil
		}
	}
	if c != nil {
		t.forgetLocked(c)
		t.evicted.Add(1)
	}
	return c
}

// oldestFreshLocked is the oldest fresh connection of the source that has the most, among the oldest ones; or nil. One whose
// upgrade is under way gives way to nobody.
func (t *Table) oldestFreshLocked() (worst *Conn) {
	n := 0
	for c := t.fresh.first; c != nil && n < looked; c = c.next {
		if n++; !c.upgrading && (worst == nil || c.from.fresh > worst.from.fresh) {
			worst = c
		}
	}
	return worst
}

// leave gives a connection's place back.
func (t *Table) leave(c *Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forgetLocked(c)
}

// forgetLocked takes a connection out of the books, once.
func (t *Table) forgetLocked(c *Conn) {
	t.uncountLocked(c)
	if c.kind == closed {
		return
	}
	c.kind = closed
	if c.upgrading {
		c.upgrading = false
		t.counts.Tunnels--
	}
	if c.from.open--; c.from.open == 0 {
		delete(t.sources, c.from.addr)
	}
}

// uncountLocked takes a connection out of the count of its kind.
func (t *Table) uncountLocked(c *Conn) {
	if c.in == &t.idle {
		t.counts.Idle--
	}
	c.remove()
	switch c.kind {
	case fresh:
		t.counts.Fresh--
		c.from.fresh--
	case client:
		t.counts.Clients--
		c.from.clients--
	case tunnel:
		t.counts.Tunnels--
	}
}

// Admitted reports whether the connection has one of the clients' places, or is not counted.
func (c *Conn) Admitted() bool { return c == nil || c.admitted.Load() }

// Admit gives a connection one of the clients' places, if it has none yet, and says why not. Idle connections make room.
// A request that is not admitted must be refused and its connection closed. It costs a connection's later requests nothing.
func (c *Conn) Admit() Reason {
	if c == nil || c.admitted.Load() {
		return Allowed
	}
	t := c.table
	t.mu.Lock()
	victim, reason := t.roomLocked(c)
	if reason != Allowed {
		t.refuseLocked(reason, nil)
	} else if c.kind == fresh {
		t.uncountLocked(c)
		c.kind = client
		t.counts.Clients++
		c.from.clients++
		c.admitted.Store(true)
		if c.waiting { // its request was reset meanwhile (HTTP/2)
			t.idle.add(c)
			t.counts.Idle++
		}
	}
	t.mu.Unlock()
	victim.drop()
	return reason
}

// roomLocked makes room for one more client.
func (t *Table) roomLocked(c *Conn) (victim *Conn, _ Reason) {
	if c.kind != fresh {
		return nil, Allowed
	}
	if c.from.clients >= t.limits.PerSource && !c.from.addr.IsLoopback() {
		if victim = t.evictIdleLocked(c.from); victim == nil {
			return nil, PerSource
		}
	}
	if t.counts.Clients >= t.limits.Clients {
		if victim = t.evictIdleLocked(nil); victim == nil {
			return nil, Clients
		}
	}
	return victim, Allowed
}

// Upgrade keeps one of the tunnels' places for a connection that may be upgraded, and says why not. If it is Allowed, the
// caller calls Upgraded when the handler has done its work, whether it was upgraded or not.
func (c *Conn) Upgrade() Reason {
	if c == nil {
		return Allowed
	}
	t := c.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counts.Tunnels >= t.limits.Tunnels {
		t.refuseLocked(Tunnels, nil)
		return Tunnels
	}
	if c.kind != closed && c.kind != tunnel && !c.upgrading {
		c.upgrading = true
		t.counts.Tunnels++
	}
	return Allowed
}

// Upgraded ends what Upgrade began.
func (c *Conn) Upgraded() {
	if c == nil {
		return
	}
	t := c.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.upgrading {
		c.upgrading = false
		t.counts.Tunnels--
	}
}

// Observe is for http.Server.ConnState.
func (t *Table) Observe(conn net.Conn, state http.ConnState) {
	c := of(conn)
	if c == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	c.waiting = state == http.StateIdle
	switch {
	case c.kind == closed:
	case state == http.StateActive && c.in == &t.idle:
		t.counts.Idle--
		c.remove()
	case state == http.StateIdle && c.kind == client && c.in == nil:
		t.idle.add(c)
		t.counts.Idle++
	case state == http.StateHijacked && c.kind != tunnel:
		t.uncountLocked(c)
		c.kind = tunnel
		if t.counts.Tunnels++; c.upgrading {
			c.upgrading = false
			t.counts.Tunnels--
		}
	}
}

// refuseLocked notes a refusal. err, if any, is the system's.
func (t *Table) refuseLocked(r Reason, err error) {
	t.refused[r].Add(1)
	t.since[r]++
	now := time.Now()
	if now.Sub(t.logged) < logEvery {
		return
	}
	args := []any{"listener", t.name, "clients", t.counts.Clients, "clients_limit", t.limits.Clients,
		"tunnels", t.counts.Tunnels, "tunnels_limit", t.limits.Tunnels}
	for _, r := range Reasons() {
		if t.since[r] > 0 {
			args = append(args, "refused_"+r.String(), t.since[r])
		}
	}
	if err != nil {
		args = append(args, "error", err)
	}
	t.logged, t.since = now, [reasons]int{}
	t.log.Warn("connections are refused", args...)
}
