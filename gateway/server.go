package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"iop/execution"
	"iop/gateway/admin"
	"iop/gateway/admission"
	"iop/gateway/conns"
	"iop/gateway/credential"
	"iop/gateway/limit"
	"iop/gateway/meter"
	"iop/gateway/registry"
	"iop/lease"
	"iop/tunnel"
)

// Limits of the listeners. There is no write timeout: an answer may take as long as its run; a client that accepts
// nothing is dealt with per write.
const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 3 * time.Minute // beyond what clients and balancers keep a connection for
	maxHeaderBytes    = 64 << 10
	maxH2Streams      = 250
	// cutGrace is how long handlers get to tell their clients that a run was cut at the end of a drain.
	cutGrace = 2 * endPatience
	// shutdownGrace is how long connections get to take the last bytes once no run is left.
	shutdownGrace = 500 * time.Millisecond
	// recallTime bounds how long a start waits for what the state knows of Nodes.
	recallTime = 10 * time.Second
	// closeGrace bounds the wait for handlers after everything they could wait for was ended.
	closeGrace = 5 * time.Second
)

// Server is the Edge.
type Server struct {
	// Static after New.
	cfg         Config
	pseudonym   string // in Via; of this process alone
	via         string // what this Edge adds to Via
	log         *slog.Logger
	adm         *admission.Controller
	reg         *registry.Registry
	acceptor    *tunnel.Acceptor
	metrics     *metrics
	crossOrigin *http.CrossOriginProtection
	public      *http.Server
	admin       *http.Server
	listener    net.Listener
	adminLn     net.Listener
	tunnel      *http.Server // managed mode, as the next ones; else nil
	tunnelLn    net.Listener
	doors       doors
	pair        *publicPair // or nil: without TLS. Guards itself
	signing     *lease.SigningKeys
	keyChanges  keyChanges // guards itself
	issuer      *credential.Issuer
	started     time.Time

	// Each guards itself.
	bodies   budget
	guesses  guesses
	oldKeys  oldKeys
	runs     runs
	routing  routing
	limits   *limit.Limiter
	meter    *meter.Meter
	draining atomic.Bool
	plain    plainTargets

	background context.Context // ends with Close
	closing    func()          // ends background, once
	ended      <-chan struct{} // background's
	tasks      sync.WaitGroup  // what Run has begun and background ends
}

// New checks cfg, binds its listeners, and reads the file of routes. The error names the field of cfg or the fault in the file.
// The Server must be Run or closed.
func New(cfg Config) (*Server, error) {
	cfg, err := cfg.checked()
	if err != nil {
		return nil, err
	}
	public, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("gateway: listen on %q: %w", cfg.Listen, err)
	}
	if cfg.Auth == AuthNone && !public.Addr().(*net.TCPAddr).IP.IsLoopback() {
		public.Close()
		return nil, fmt.Errorf("gateway: Auth %q requires a loopback address, and %q is not one: listen on 127.0.0.1 or use keys", AuthNone, cfg.Listen)
	}
	private, err := net.Listen("tcp", cfg.AdminListen)
	if err != nil {
		public.Close()
		return nil, fmt.Errorf("gateway: listen on %q (admin): %w", cfg.AdminListen, err)
	}
	var nodes net.Listener
	if cfg.Mode == ModeManaged {
		if nodes, err = net.Listen("tcp", cfg.TunnelListen); err != nil {
			public.Close()
			private.Close()
			return nil, fmt.Errorf("gateway: listen on %q (tunnel): %w", cfg.TunnelListen, err)
		}
	}
	s, err := newServer(cfg, public, private, nodes)
	if err != nil {
		public.Close()
		private.Close()
		if nodes != nil {
			nodes.Close()
		}
	}
	return s, err
}

// newServer builds the Edge on bound listeners, nodes being nil in token mode; cfg was checked.
func newServer(cfg Config, public, private, nodes net.Listener) (*Server, error) {
	s := &Server{
		cfg: cfg, pseudonym: pseudonym(cfg.EdgeID), log: cfg.Logger, started: time.Now(),
		adm:         admission.New(admission.Config{QueueLimit: cfg.QueueLimit, Grace: cfg.NoNodeTimeout}),
		crossOrigin: http.NewCrossOriginProtection(),
		listener:    public, adminLn: private, tunnelLn: nodes,
		bodies: newBudget(cfg.BodyBudget, cfg.MaxBodyBytes, cfg.QueueTimeout),
		limits: limit.New(limit.Config{Spent: cfg.Store.MonthTokens}),
		meter:  meter.New(meter.Config{Store: books{cfg.Store}, Retention: cfg.UsageRetention, Logger: cfg.Logger}),
	}
	s.via = viaMember(s.pseudonym)
	s.background, s.closing = context.WithCancel(context.Background())
	s.ended = s.background.Done()
	if err := s.loadRoutes(); err != nil {
		return nil, err
	}
	tlsConfig, err := s.tlsConfig()
	if err != nil {
		return nil, err
	}
	s.openDoors()
	if err := s.newTunnel(); err != nil {
		return nil, err
	}
	s.metrics = newMetrics(s)
	s.public = s.httpServer(withoutSlash(takenInTime(http.HandlerFunc(s.servePublic))), tlsConfig)
	if tlsConfig == nil {
		s.listener = corkingListener{s.listener}
	}
	s.admin = s.httpServer(promptly(admin.New(admin.Config{
		Store: cfg.Store, Edge: operator{s}, Metrics: s.metrics.handler(), Logger: s.log,
		Console: cfg.Console, Public: withoutSlash(http.HandlerFunc(s.servePublic)), Listen: func() string { return s.Addr().String() }, Done: s.ended,
		Admit: s.admitOperator,
	})), nil)
	s.boundConnections()
	return s, nil
}

// newTunnel makes what Nodes meet.
func (s *Server) newTunnel() (err error) {
	cfg := &s.cfg
	if s.reg, err = registry.New(registry.Config{Store: cfg.Store, Admission: s.adm, Identity: cfg.Identity, Logger: s.log}); err != nil {
		return err
	}
	recall, cancel := context.WithTimeout(s.background, recallTime)
	defer cancel()
	if err := s.reg.Recall(recall); err != nil {
		s.log.Warn("the Nodes of before are not known: requests for their models get 404 until they connect, and drains have ended", "error", err)
	}
	accept := tunnel.AcceptorConfig{EdgeID: cfg.EdgeID, Directory: s.reg, Try: s.reg.Try, MaxStreams: cfg.MaxStreamsPerNode, Logger: s.log}
	if s.managed() {
		if err := s.newIssuer(); err != nil {
			return err
		}
		accept.VerificationKeys, accept.Config = s.signing.Public, s.issuer.Minimums
		s.tunnel = s.tunnelServer()
	}
	s.acceptor, err = tunnel.NewAcceptor(accept)
	return err
}

func (s *Server) tlsConfig() (*tls.Config, error) {
	if s.cfg.TLSCert == "" {
		return nil, nil
	}
	pair, err := openPair(s.cfg.TLSCert, s.cfg.TLSKey, s.log)
	if err != nil {
		return nil, fmt.Errorf("gateway: TLS certificate: %w", err)
	}
	s.pair = pair
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.get}, nil
}

func (s *Server) httpServer(h http.Handler, tlsConfig *tls.Config) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler: guarded(h),
		// net/http's own answer to OPTIONS * would pass guarded by.
		DisableGeneralOptionsHandler: true,
		TLSConfig:                    tlsConfig,
		Protocols:                    protocols,
		ReadHeaderTimeout:            readHeaderTimeout,
		IdleTimeout:                  idleTimeout,
		MaxHeaderBytes:               maxHeaderBytes,
		HTTP2:                        &http.HTTP2Config{MaxConcurrentStreams: maxH2Streams, SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
		ErrorLog:                     slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
}

// noSniff is the value of a header that every answer has: what a provider or a client wrote is no page, whatever it looks like.
var noSniff = []string{"nosniff"}

// guarded sets what every answer of a listener has, and ends a connection behind each request whose body's end another server
// may have seen elsewhere: what follows it may be a request that somebody else sent, or hid.
//
// RFC 9112 section 6.1 wants that of a body in chunks that names a length as well; net/http takes such a length away unseen, so
// all bodies in chunks share its fate. It also wants it of HTTP/1.0 with Transfer-Encoding; net/http takes that header away
// unseen, so no connection of HTTP/1.0 is kept. The clients' own requests are HTTP/1.1 with a length.
func guarded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["X-Content-Type-Options"] = noSniff
		if r.ProtoMajor == 1 && (r.ProtoMinor == 0 || len(r.TransferEncoding) > 0) {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})
}

// takenInTime gives a client writeSilence to take what is no run's answer, and what net/http writes after a handler's return.
// Else one that takes nothing (a window of 0 in HTTP/2) keeps a goroutine for each stream for as long as it likes. A run's answer
// has deadlines of its own, and a tunnel's connection is none of net/http's.
func takenInTime(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Path
		if path == tunnelPath && r.ProtoMajor == 1 {
			next.ServeHTTP(w, r)
			return
		}
		rc := http.NewResponseController(w) // every writer of net/http's can
		if operations[path] == nil {
			_ = rc.SetWriteDeadline(time.Now().Add(writeSilence))
		}
		next.ServeHTTP(w, r)
		_ = rc.SetWriteDeadline(time.Now().Add(patienceWith(r)))
	})
}

// patienceWith is how long a client may leave the end of an answer. 250 streams of a connection take 3 MiB, so that a stranger
// has little time where each stream has a deadline of its own; in HTTP/1.1 it would still hold for the connection's next request.
func patienceWith(r *http.Request) time.Duration {
	if r.ProtoMajor > 1 && !conns.From(r.Context()).Admitted() {
		return strangerTakes
	}
	return writeSilence
}

// strangerTakes is how long a connection without a valid API key may leave an answer: it is short, and waits for nothing but
// the client's window.
const strangerTakes = 2 * time.Second

// Addr is the address of the public listener.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// AdminAddr is the address of the admin listener.
func (s *Server) AdminAddr() net.Addr { return s.adminLn.Addr() }

// Run serves until ctx ends, then lets the runs finish for up to Config.DrainTimeout; or until Close. It returns nil
// unless a listener failed. It may be called once.
func (s *Server) Run(ctx context.Context) error {
	failed := make(chan error, 3)
	metering, stop := context.WithCancel(context.WithoutCancel(ctx))
	var books sync.WaitGroup
	books.Go(func() { s.meter.Run(metering) })
	books.Go(func() { s.reg.Run(metering) })
	defer books.Wait() // the last records are written
	defer stop()
	s.tasks.Go(func() { s.cfg.Store.Watch(s.background, s.log) })
	var wg sync.WaitGroup
	s.tasks.Go(s.watchLaggards)
	s.tasks.Go(s.watchCoverage)
	if s.pair != nil {
		s.tasks.Go(func() { s.pair.files.Run(s.background, pairPoll) })
	}
	wg.Go(func() { failed <- serve(s.public, s.listener) })
	wg.Go(func() { failed <- serve(s.admin, s.adminLn) })
	s.tasks.Go(func() { s.bodies.collect(s.background) })
	if s.managed() {
		s.runManaged()
		wg.Go(func() { failed <- serve(s.tunnel, s.tunnelLn) })
	}
	var err error
	select {
	case <-ctx.Done():
		s.drain()
	case <-s.ended:
	case err = <-failed:
	}
	s.Close()
	wg.Wait()
	s.tasks.Wait()
	// Handlers whose connections were closed under them still close their books.
	select {
	case <-s.runs.whenIdle():
	case <-time.After(closeGrace):
		s.log.Warn("handlers are stuck", "runs", s.runs.live.Load())
	}
	return err
}

func serve(srv *http.Server, l net.Listener) error {
	var err error
	if srv.TLSConfig != nil {
		err = srv.ServeTLS(l, "", "")
	} else {
		err = srv.Serve(l)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// drain takes no new runs and waits for the live ones: those that are not done in time are cancelled, and their clients
// told. Nodes are told at once to go elsewhere. The listener stays open meanwhile, so that a balancer sees /readyz fail.
func (s *Server) drain() {
	defer s.logDrain()()
	s.draining.Store(true)
	s.adm.Close() // who waits is told to come again
	s.bodies.close()
	nodes, cancel := context.WithTimeout(context.Background(), s.cfg.DrainTimeout+cutGrace)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.acceptor.Drain(nodes) }) // it fails when runs are left, which Close ends
	if !s.idleWithin(s.cfg.DrainTimeout) {
		s.log.Warn("the time to drain is over: runs are cut", "runs", s.runs.live.Load())
		s.runs.cancelAll(execution.CodeDrainDeadline)
		s.idleWithin(cutGrace)
	}
	cancel()
	wg.Wait()
	brief, stop := context.WithTimeout(context.Background(), shutdownGrace)
	defer stop()
	_ = s.public.Shutdown(brief) // the last bytes of answers; Close ends what is left
}

// idleWithin waits until no run is live, and reports whether that came about in time. Close ends the wait.
func (s *Server) idleWithin(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-s.runs.whenIdle():
		return true
	case <-s.ended:
	case <-timer.C:
	}
	return false
}

// Close ends everything at once: runs, sessions, connections. It may be called more than once, and while Run drains.
func (s *Server) Close() {
	s.closing()
	s.draining.Store(true)
	s.adm.Close()
	s.bodies.close()
	s.runs.cancelAll(execution.CodeShutdown)
	s.acceptor.Close()
	s.public.Close()
	s.admin.Close()
	// Neither server closes a listener that it never served.
	s.listener.Close()
	s.adminLn.Close()
	if s.tunnelLn != nil {
		s.tunnel.Close()
		s.tunnelLn.Close()
	}
}
