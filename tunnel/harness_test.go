package tunnel

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"iop/execution"
	"iop/tunnel/wire"
)

// pipeNet is a network of net.Pipe connections, which synctest can see through.
type pipeNet struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
	// wrap, if set, wraps the Node's end of each connection.
	wrap func(net.Conn) net.Conn

	mu    sync.Mutex
	links []*fakeLink // guarded by mu: what wrap made
}

func newPipeNet() *pipeNet {
	return &pipeNet{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (n *pipeNet) Accept() (net.Conn, error) {
	select {
	case c := <-n.conns:
		return c, nil
	case <-n.done:
		return nil, net.ErrClosed
	}
}

func (n *pipeNet) Close() error   { n.once.Do(func() { close(n.done) }); return nil }
func (n *pipeNet) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (n *pipeNet) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case n.conns <- far:
		if n.wrap == nil {
			return near, nil
		}
		c := n.wrap(near)
		if l, ok := c.(*fakeLink); ok {
			n.mu.Lock()
			n.links = append(n.links, l)
			n.mu.Unlock()
		}
		return c, nil
	case <-n.done:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// testDirectory lets everyone in and remembers what it was told.
type testDirectory struct {
	mu       sync.Mutex
	next     execution.Generation
	online   chan *NodeSession
	refresh  chan *NodeSession
	gone     chan error
	refuse   func(*NodeSession) error
	register func(context.Context) error // called without the lock
	authFail error
	// authenticate, if set, answers in the place of identity and authFail.
	authenticate func(*http.Request) (Identity, error)
	identity     Identity
	ready        func(*NodeSession) error
}

func newTestDirectory() *testDirectory {
	return &testDirectory{identity: Identity{TokenID: "t"}, online: make(chan *NodeSession, 4096), refresh: make(chan *NodeSession, 4096), gone: make(chan error, 4096)}
}

func (d *testDirectory) Authenticate(r *http.Request) (Identity, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.authenticate != nil {
		return d.authenticate(r)
	}
	return d.identity, d.authFail
}

func (d *testDirectory) Register(ctx context.Context, s *NodeSession) (execution.Generation, error) {
	d.mu.Lock()
	register := d.register
	d.mu.Unlock()
	if register != nil {
		if err := register(ctx); err != nil {
			return 0, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refuse != nil {
		if err := d.refuse(s); err != nil {
			return 0, err
		}
	}
	d.next = max(d.next, s.HighestSeen()) + 1
	return d.next, nil
}

func (d *testDirectory) Ready(s *NodeSession) error {
	if d.ready != nil {
		return d.ready(s)
	}
	return nil
}
func (d *testDirectory) Online(s *NodeSession)            { d.online <- s }
func (d *testDirectory) Refreshed(s *NodeSession)         { d.refresh <- s }
func (d *testDirectory) Draining(*NodeSession)            {}
func (d *testDirectory) Gone(_ *NodeSession, cause error) { d.gone <- cause }

// rig is an Edge and a Node with a tunnel between them.
type rig struct {
	t    testing.TB
	net  *pipeNet
	dir  *testDirectory
	acc  *Acceptor
	sup  *Supervisor
	srv  *http.Server
	stop context.CancelFunc
	wg   sync.WaitGroup
	// runErr is what Supervisor.Run returned, once close has returned.
	runErr error
	proxy  *frameProxy // or nil
}

type handlerFunc func(ctx context.Context, run *NodeRun)

func (f handlerFunc) ServeRun(ctx context.Context, run *NodeRun) { f(ctx, run) }

func testLogger() *slog.Logger {
	if os.Getenv("TUNNEL_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(slog.DiscardHandler)
}

// rigOptions is what a test may change about a rig. All of it is optional.
type rigOptions struct {
	tcp        bool                    // over loopback, not net.Pipe
	wrap       func(net.Conn) net.Conn // over net.Pipe: wraps the Node's end
	tuneTCP    func(*net.TCPConn)      // over loopback: each end
	through    *frameProxy             // over net.Pipe: between the two ends
	maxStreams int
	directory  func(*testDirectory)
	supervisor func(*SupervisorConfig)
	acceptor   func(*AcceptorConfig)
	before     func(*rig) // runs before the Node dials
}

// newRig starts both ends over a pipeNet, or over loopback TCP if tcp is set.
func newRig(t testing.TB, tcp bool, h handlerFunc) *rig {
	return newRigWith(t, h, rigOptions{tcp: tcp})
}

func newRigWith(t testing.TB, h handlerFunc, o rigOptions) *rig {
	r := &rig{t: t, net: newPipeNet(), dir: newTestDirectory()}
	r.net.wrap = o.wrap
	if o.directory != nil {
		o.directory(r.dir)
	}
	var err error
	edge := AcceptorConfig{EdgeID: "edge", Directory: r.dir, Logger: testLogger(), MaxStreams: o.maxStreams}
	if o.acceptor != nil {
		o.acceptor(&edge)
	}
	if r.acc, err = NewAcceptor(edge); err != nil {
		t.Fatal(err)
	}
	var listener net.Listener = r.net
	url, dial := "ws://edge.test/tunnel/v1", r.net.dial
	if o.tcp {
		if listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		url, dial = "ws://"+listener.Addr().String(), nil
		if o.tuneTCP != nil {
			listener = tunedListener{listener, o.tuneTCP}
			dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := new(net.Dialer).DialContext(ctx, network, addr)
				if err == nil {
					o.tuneTCP(c.(*net.TCPConn))
				}
				return c, err
			}
		}
	}
	if o.through != nil {
		o.through.start(t, r.net)
		dial = o.through.net.dial
	}
	r.srv = &http.Server{Handler: r.acc}
	r.wg.Go(func() { _ = r.srv.Serve(listener) })
	cfg := SupervisorConfig{
		URL: url, Node: "node", Handler: h, Logger: testLogger(), DialContext: dial,
		Describe: func() *NodeInfo {
			return &NodeInfo{
				Labels:    map[string]string{"site": "lab"},
				Providers: []ProviderInfo{{ID: "p", Adapter: "openai", Capacity: 4, Health: wire.Health_HEALTH_OK}},
				Models:    []ModelInfo{{Provider: "p", ID: "m"}},
				Version:   "test",
			}
		},
	}
	if o.supervisor != nil {
		o.supervisor(&cfg)
	}
	if r.sup, err = NewSupervisor(cfg); err != nil {
		t.Fatal(err)
	}
	if o.before != nil {
		o.before(r)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	r.wg.Go(func() { r.runErr = r.sup.Run(ctx) })
	r.proxy = o.through
	return r
}

// tunedListener sets options on what it accepts.
type tunedListener struct {
	net.Listener
	tune func(*net.TCPConn)
}

func (l tunedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.tune(c.(*net.TCPConn))
	}
	return c, err
}

func (r *rig) close() {
	r.stop()
	r.acc.Close()
	_ = r.srv.Close()
	_ = r.net.Close()
	if r.proxy != nil {
		r.proxy.close()
	}
	r.wg.Wait()
	r.net.mu.Lock()
	defer r.net.mu.Unlock()
	for _, l := range r.net.links {
		_ = l.Close()
		l.pumps.Wait()
	}
}

// checkEmpty fails the test unless nothing is left of any run or session at either end.
func (r *rig) checkEmpty() {
	r.t.Helper()
	for name, m := range map[string]*Metrics{"Edge": r.acc.Metrics(), "Node": r.sup.cfg.Metrics} {
		if n := m.Streams.Load(); n != 0 {
			r.t.Errorf("%s: %d streams left", name, n)
		}
		if n := m.Sessions.Load(); n != 0 {
			r.t.Errorf("%s: %d sessions left", name, n)
		}
	}
	if n := r.acc.budget.left.Load(); n != windowBudget {
		r.t.Errorf("Edge: the window budget is short of %d bytes", windowBudget-n)
	}
	if n := r.sup.budget.left.Load(); n != windowBudget {
		r.t.Errorf("Node: the window budget is short of %d bytes", windowBudget-n)
	}
}

// open opens a run that must open.
func open(t testing.TB, s *NodeSession, body []byte) *Run {
	t.Helper()
	run, err := s.Open(OpenSpec{Open: tunnelOpen(), Body: body})
	if err != nil {
		t.Fatal(err)
	}
	return run
}

func (r *rig) session() *NodeSession { return <-r.dir.online }

func tunnelOpen() *wire.Open {
	return &wire.Open{RunId: string(execution.NewRunID()), Kind: &wire.Open_ProviderTunnel{ProviderTunnel: &wire.ProviderTunnelRequest{Provider: "p", Model: "m"}}}
}

// collect takes from a run until its end.
func collect(t testing.TB, run *Run) (head *wire.Head, body []byte, end execution.Terminal) {
	t.Helper()
	for {
		b, ok := run.Take()
		if !ok {
			<-run.Ready()
			continue
		}
		if b.Head != nil {
			head = b.Head
		}
		body = append(body, b.Data...)
		if b.End != nil {
			return head, body, *b.End
		}
	}
}

// echo answers with the request's body, read to its end.
func echo(_ context.Context, run *NodeRun) {
	run.Phase(execution.PhaseProviderCalled)
	if err := run.Head(&wire.Head{Status: 200}); err != nil {
		return
	}
	buf := make([]byte, 16<<10)
	for {
		n, err := run.Read(buf)
		if n > 0 && run.Write(buf[:n], true) != nil {
			return
		}
		if err == io.EOF {
			run.End(execution.Terminal{Outcome: execution.Completed, Usage: execution.Usage{Input: 1, Output: 2, Known: true}})
			return
		}
		if err != nil {
			return
		}
	}
}

// eventually waits for a condition that other goroutines bring about.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}
