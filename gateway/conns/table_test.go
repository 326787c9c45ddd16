package conns

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long a test waits for what takes a moment.
const patience = 10 * time.Second

// site is a server behind a Table: /hold is answered when the test says so, /up becomes a tunnel, anything else at once.
type site struct {
	t       *testing.T
	table   *Table
	address string
	logs    *logBuffer
	release chan struct{} // closed by the test's end
}

type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func newSite(t *testing.T, limits Limits) *site {
	t.Helper()
	s := &site{t: t, logs: &logBuffer{}, release: make(chan struct{})}
	s.table = New("public", limits, slog.New(slog.NewTextHandler(s.logs, nil)))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.address = l.Addr().String()
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	srv := &http.Server{Handler: s, ConnContext: WithConn, ConnState: s.table.Observe, Protocols: protocols}
	var wg sync.WaitGroup
	wg.Go(func() { _ = srv.Serve(s.table.Listener(l)) })
	t.Cleanup(func() {
		close(s.release)
		srv.Close()
		wg.Wait()
	})
	return s
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := From(r.Context())
	if r.URL.Path == "/up" {
		if c.Upgrade() != Allowed {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		defer c.Upgraded()
		if r.Header.Get("Upgrade") == "" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			s.t.Error(err)
			return
		}
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
		go func() { // until the peer closes
			_, _ = io.Copy(io.Discard, conn)
			conn.Close()
		}()
		return
	}
	if reason := c.Admit(); reason != Allowed {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusServiceUnavailable)
		io.WriteString(w, reason.String())
		return
	}
	if r.URL.Path == "/hold" {
		w.WriteHeader(http.StatusOK)
		http.NewResponseController(w).Flush()
		<-s.release
	}
}

// peer is a connection to a site.
type peer struct {
	net.Conn
	r *bufio.Reader
	t *testing.T
}

func (s *site) dial() *peer {
	s.t.Helper()
	conn, err := net.DialTimeout("tcp", s.address, patience)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		s.t.Fatal(err)
	}
	return &peer{conn, bufio.NewReader(conn), s.t}
}

// get sends a request and returns the status of its answer; the body is read where it has a length.
func (p *peer) get(path string, headers ...string) int {
	p.t.Helper()
	fmt.Fprintf(p, "GET %s HTTP/1.1\r\nHost: edge\r\n%s\r\n", path, strings.Join(headers, ""))
	res, err := http.ReadResponse(p.r, nil)
	if err != nil {
		p.t.Fatalf("%s: %v", path, err)
	}
	if res.ContentLength >= 0 {
		_, _ = io.Copy(io.Discard, res.Body)
	}
	return res.StatusCode
}

// isClosed waits for the other side's end.
func (p *peer) isClosed() bool {
	_, err := p.r.ReadByte()
	return err != nil && !isTimeout(err)
}

func isTimeout(err error) bool {
	timeout, ok := err.(net.Error)
	return ok && timeout.Timeout()
}

func (s *site) eventually(what string, cond func(Counts) bool) {
	s.t.Helper()
	for end := time.Now().Add(patience); !cond(s.table.Counts()); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("never: %s; %+v", what, s.table.Counts())
		}
	}
}

var small = Limits{Clients: 4, PerSource: 4, Tunnels: 2, Fresh: 3}

// TestIdleGiveWay: the connection that has been idle for longest makes room for a new client, and a busy one never does.
func TestIdleGiveWay(t *testing.T) {
	s := newSite(t, small)
	busy := s.dial()
	if got := busy.get("/hold"); got != 200 {
		t.Fatal(got)
	}
	var idle []*peer
	for i := range small.Clients - 1 {
		p := s.dial()
		if got := p.get("/"); got != 200 {
			t.Fatal(got)
		}
		idle = append(idle, p)
		s.eventually("it is idle", func(c Counts) bool { return c.Idle == i+1 })
	}
	if got := idle[0].get("/"); got != 200 { // now the second is the oldest
		t.Fatal(got)
	}
	s.eventually("all are idle", func(c Counts) bool { return c.Idle == 3 })
	if got := s.dial().get("/"); got != 200 {
		t.Errorf("a new client got %d", got)
	}
	if !idle[1].isClosed() {
		t.Error("the oldest is not the one that was closed")
	}
	if got := idle[0].get("/"); got != 200 {
		t.Errorf("one that was used a moment ago got %d", got)
	}
	if n := s.table.Evicted(); n != 1 {
		t.Errorf("evicted %d", n)
	}
}

// TestBusyClientsLeaveRoomForNodes: beyond the clients' places requests are refused and their connections closed, while
// tunnels come in, up to their own number; who leaves makes room.
func TestBusyClientsLeaveRoomForNodes(t *testing.T) {
	s := newSite(t, small)
	var busy []*peer
	for range small.Clients {
		p := s.dial()
		if got := p.get("/hold"); got != 200 {
			t.Fatal(got)
		}
		busy = append(busy, p)
	}
	over := s.dial()
	if got := over.get("/"); got != 503 {
		t.Errorf("one client too many got %d", got)
	}
	if !over.isClosed() {
		t.Error("its connection stays open")
	}
	var tunnels []*peer
	for range small.Tunnels {
		p := s.dial()
		if got := p.get("/up", "Upgrade: x\r\n"); got != 101 {
			t.Fatalf("a Node got %d", got)
		}
		tunnels = append(tunnels, p)
	}
	if got := s.dial().get("/up", "Upgrade: x\r\n"); got != 503 {
		t.Errorf("a Node too many got %d", got)
	}
	if got := s.table.Counts(); got.Clients != small.Clients || got.Tunnels != small.Tunnels {
		t.Errorf("%+v", got)
	}
	if c, n := s.table.Refused(Clients), s.table.Refused(Tunnels); c != 1 || n != 1 {
		t.Errorf("refused clients %d, tunnels %d", c, n)
	}
	if n := strings.Count(s.logs.String(), "connections are refused"); n != 1 || !strings.Contains(s.logs.String(), "refused_clients=1") {
		t.Errorf("%d lines:\n%s", n, s.logs)
	}
	busy[0].Close()
	tunnels[0].Close()
	s.eventually("places are free", func(c Counts) bool { return c.Tunnels == small.Tunnels-1 })
	if got := s.dial().get("/up", "Upgrade: x\r\n"); got != 101 {
		t.Errorf("a Node after another's end got %d", got)
	}
}

// TestUpgradeThatFailed: one that was no Node gives the tunnel's place back, and may be a client.
func TestUpgradeThatFailed(t *testing.T) {
	s := newSite(t, small)
	p := s.dial()
	for range 3 * small.Tunnels {
		if got := p.get("/up"); got != 401 {
			t.Fatal(got)
		}
	}
	if got := p.get("/"); got != 200 {
		t.Errorf("as a client it got %d", got)
	}
	s.eventually("it is an idle client", func(c Counts) bool { return c == Counts{Clients: 1, Idle: 1} })
	if got := p.get("/up", "Upgrade: x\r\n"); got != 101 {
		t.Errorf("as a Node it got %d", got)
	}
	if got := s.table.Counts(); got != (Counts{Tunnels: 1}) {
		t.Errorf("%+v", got)
	}
}

// TestSilentConnections: those that send nothing make room for those that do, and never take the place of a busy client.
func TestSilentConnections(t *testing.T) {
	s := newSite(t, small)
	busy := s.dial()
	if got := busy.get("/hold"); got != 200 {
		t.Fatal(got)
	}
	silent := make([]*peer, 3*small.Total())
	for i := range silent {
		silent[i] = s.dial()
		fmt.Fprint(silent[i], "GET / HTTP/1.1\r\nHost:")
	}
	s.eventually("each was accepted", func(Counts) bool {
		return s.table.Refused(Fresh) >= int64(len(silent)+1-small.Total())
	})
	if !silent[0].isClosed() {
		t.Error("the oldest stayed")
	}
	if got := s.dial().get("/up", "Upgrade: x\r\n"); got != 101 {
		t.Errorf("a Node got %d", got)
	}
	if got := s.dial().get("/"); got != 200 {
		t.Errorf("a client got %d", got)
	}
	if got := s.table.Counts(); got.Fresh+got.Clients+got.Tunnels > small.Total() || got.Clients < 2 {
		t.Errorf("%+v", got)
	}
}

// TestLateHeadersBeforeIdle: connections that owe their headers give way before clients that have proved themselves, and
// the source with the most of them first.
func TestLateHeadersBeforeIdle(t *testing.T) {
	table := New("public", small, slog.New(slog.DiscardHandler))
	from := netip.MustParseAddr("192.0.2.1")
	table.source = func(net.Conn) netip.Addr { return from }
	enter := func() *Conn {
		a, b := pipe(t)
		t.Cleanup(func() { b.Close() })
		return table.enter(a)
	}
	idle := enter()
	if r := idle.Admit(); r != Allowed {
		t.Fatal(r)
	}
	table.Observe(idle, http.StateIdle)
	lonely := enter()
	from = netip.MustParseAddr("192.0.2.2")
	var many []*Conn
	for table.total() < small.Total() {
		many = append(many, enter())
	}
	lonely.at = lonely.at.Add(-time.Minute)
	for _, c := range many {
		c.at = c.at.Add(-time.Minute)
	}
	from = netip.MustParseAddr("192.0.2.3")
	enter()
	if many[0].kind != closed || idle.kind != client || lonely.kind != fresh {
		t.Errorf("closed: %v, %v, %v", many[0].kind, idle.kind, lonely.kind)
	}
	for _, c := range many {
		c.at = time.Now()
	}
	lonely.at = time.Now()
	enter()
	if idle.kind != closed {
		t.Error("where all are young, an idle one stays")
	}
}

func (t *Table) total() int { c := t.Counts(); return c.Fresh + c.Clients + c.Tunnels }

// pipe is both ends of a connection of TCP.
func pipe(t *testing.T) (a *net.TCPConn, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if b, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.(*net.TCPConn), b
}

// TestPerSource: one source has its share, others the rest; a reverse proxy on this machine has no bound of its own.
func TestPerSource(t *testing.T) {
	limits := Limits{Clients: 10, PerSource: 2, Tunnels: 2, Fresh: 2}
	for _, test := range []struct {
		first, other string
		second       Reason // of the third connection from first
	}{
		{"192.0.2.1", "192.0.2.2", PerSource},
		{"2001:db8::", "2001:db8:0:1::", PerSource},
		{"127.0.0.1", "127.0.0.1", Allowed},
		{"::1", "::1", Allowed},
	} {
		table := New("public", limits, slog.New(slog.DiscardHandler))
		admit := func(from string) (*Conn, Reason) {
			table.source = func(net.Conn) netip.Addr { return netip.MustParseAddr(from) }
			a, b := pipe(t)
			t.Cleanup(func() { b.Close() })
			c := table.enter(a)
			return c, c.Admit()
		}
		first, _ := admit(test.first)
		if _, r := admit(test.first); r != Allowed {
			t.Fatal(r)
		}
		refused, r := admit(test.first)
		if r != test.second {
			t.Errorf("%s: the third: %v", test.first, r)
		}
		refused.Close()
		if _, r := admit(test.other); r != Allowed {
			t.Errorf("%s beside %s: %v", test.other, test.first, r)
		}
		table.Observe(first, http.StateIdle)
		if _, r := admit(test.first); r != Allowed {
			t.Errorf("%s: with an idle one of its own: %v", test.first, r)
		}
		if test.second == PerSource && first.kind != closed {
			t.Errorf("%s: its idle one stays", test.first)
		}
	}
}

// TestSources: who a connection counts for.
func TestSources(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.7:1": "192.0.2.7", "[::ffff:192.0.2.7]:1": "192.0.2.7", "[2001:db8:1:2:3::4]:1": "2001:db8:1:2::",
		"[fe80::1%eth0]:1": "fe80::", "[::1]:9": "::1", "127.0.0.1:4": "127.0.0.1",
	} {
		addr := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))
		if got := sourceOf(remote{addr: addr}); got.String() != want {
			t.Errorf("%s counts for %s", address, got)
		}
	}
}

type remote struct {
	net.Conn
	addr net.Addr
}

func (r remote) RemoteAddr() net.Addr { return r.addr }

// TestHTTP2: a connection with many requests has one place, and gives way when all are answered, not before.
func TestHTTP2(t *testing.T) {
	s := newSite(t, Limits{Clients: 1, PerSource: 1, Tunnels: 1, Fresh: 3})
	newClient := func() *http.Client {
		tr := &http.Transport{Protocols: new(http.Protocols)}
		tr.Protocols.SetUnencryptedHTTP2(true)
		t.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Transport: tr, Timeout: patience}
	}
	get := func(c *http.Client, path string) *http.Response {
		t.Helper()
		res, err := c.Get("http://" + s.address + path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { res.Body.Close() })
		return res
	}
	first, second := newClient(), newClient()
	held := get(first, "/hold")
	get(first, "/").Body.Close()
	if got := get(second, "/"); got.StatusCode != 503 {
		t.Errorf("beside a busy one: %d", got.StatusCode)
	}
	held.Body.Close() // resets the stream; its handler is stuck, its connection idle
	s.eventually("the first is idle", func(c Counts) bool { return c.Idle == 1 })
	if got := get(second, "/"); got.StatusCode != 200 {
		t.Errorf("beside an idle one: %d", got.StatusCode)
	}
	if n := s.table.Evicted(); n != 1 {
		t.Errorf("evicted %d", n)
	}
}

// TestNoDescriptors: an accept that fails for want of one is counted and logged, and an idle client gives its own.
func TestNoDescriptors(t *testing.T) {
	var logs bytes.Buffer
	table := New("public", small, slog.New(slog.NewTextHandler(&logs, nil)))
	a, b := pipe(t)
	defer b.Close()
	idle := table.enter(a)
	idle.Admit()
	table.Observe(idle, http.StateIdle)
	_, err := table.Listener(failing{}).Accept()
	if err == nil || table.Refused(Descriptors) != 1 || table.Evicted() != 1 || !strings.Contains(logs.String(), "too many open files") {
		t.Errorf("%v, refused %d, evicted %d:\n%s", err, table.Refused(Descriptors), table.Evicted(), &logs)
	}
	if _, err := b.Read(make([]byte, 1)); err == nil {
		t.Error("the idle one is open")
	}
	idle.Close()
	idle.Close()
	if got := table.Counts(); got != (Counts{}) || len(table.sources) != 0 {
		t.Errorf("at the end %+v and %d sources", got, len(table.sources))
	}
}

type failing struct{ net.Listener }

func (failing) Accept() (net.Conn, error) { return nil, syscall.EMFILE }

// TestDivide: the shares of every number of descriptors add up, and none is empty.
func TestDivide(t *testing.T) {
	for files := range maxFiles + 1000 {
		for _, managed := range []bool{false, true} {
			s := Divide(files, managed)
			all := s.Public.Total() + s.Tunnel.Total() + s.Admin.Total()
			if most := max(min(files, maxFiles), ownFiles+8*leastPlaces) - ownFiles; all != most {
				t.Fatalf("%d: %d places of %d: %+v", files, all, most, s)
			}
			nodes := s.Public
			if managed {
				nodes = s.Tunnel
			}
			for _, n := range []int{s.Public.Clients, s.Public.PerSource, s.Public.Fresh, s.Admin.Clients, s.Admin.Fresh, nodes.Tunnels, nodes.Fresh} {
				if n < 1 {
					t.Fatalf("%d: an empty share: %+v", files, s)
				}
			}
		}
	}
	if n := FilesFor(1024); Divide(n, false).Public.Clients < 1024 || Divide(n/2, false).Public.Clients >= 1024 {
		t.Errorf("1024 clients take %d", n)
	}
	if n := FilesFor(1 << 30); n != maxFiles {
		t.Errorf("too many clients take %d", n)
	}
}
