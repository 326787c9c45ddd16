package tunnel

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	mathrand "math/rand/v2"
	"net"
	"net/url"
	"slices"
	"sync"
	"time"

	"iop/execution"
	"iop/tunnel/wire"
)

const (
	dialTime        = 15 * time.Second // TCP, TLS and upgrade
	registeredTime  = 25 * time.Second // REGISTER to READY_ACK: the Edge may probe an incumbent
	backoffBase     = time.Second
	backoffMax      = 30 * time.Second
	steadyAfter     = 60 * time.Second // a session that held so long resets the backoff
	refusedWait     = 30 * time.Second // after a refusal that only an operator can mend
	contestedWait   = 10 * time.Second // after one because another process has the name: it may end at any time
	clockTick       = 2 * time.Second
	clockJump       = 10 * time.Second
	drainTryDefault = 30 * time.Second
	drainSlack      = 15 * time.Second // what an Edge may be late to end a session that it drains
)

// SupervisorConfig configures a Supervisor.
type SupervisorConfig struct {
	URL     string           // required: ws:// or wss://
	Node    execution.NodeID // required
	Handler Handler          // required
	// Describe returns what the Node offers now; called at registration and after Refresh. It must return at once
	// and not call the Supervisor. Required.
	Describe func() *NodeInfo
	// Optional.
	Token func() (string, error) // join token, asked at each dial so that a file may change
	TLS   *tls.Config
	Roots string // file of the authorities in TLS, for messages; or empty
	// Keeper returns what keeps the leases of one session: managed mode. It is asked for a fresh one after each dial,
	// before REGISTER; an error counts as a failed attempt. Or nil: this Node does not open leases.
	Keeper  func() (Keeper, error)
	Logger  *slog.Logger
	Metrics *Metrics
	// OnStatus is told of each change of state; must return at once. Or nil.
	OnStatus func(SupervisorStatus)
	// DialContext replaces the network dialer, for tests. Or nil.
	DialContext func(ctx context.Context, network, addr string) (net.Conn, error)
}

// State names what a Supervisor is doing.
type State string

// The states of a Supervisor.
const (
	StateConnecting State = "connecting"
	StateOnline     State = "online"
	StateWaiting    State = "waiting" // for the next attempt
	StateRefused    State = "refused" // as waiting, after an answer that only an operator can change
	StateDraining   State = "draining"
	StateStopped    State = "stopped"
)

// SupervisorStatus is what a Supervisor is doing. What does not apply to the State is zero.
type SupervisorStatus struct {
	State      State
	Generation execution.Generation // of the session, while there is one
	Detail     string               // why the last attempt or session failed, for logs
	RetryIn    time.Duration        // until the next attempt, counted from this change of state
}

// Supervisor keeps one Node connected to its Edge until its context ends.
type Supervisor struct {
	// Static after construction.
	cfg    SupervisorConfig
	bootID string
	budget *budget
	kick   chan struct{} // one token: look again at once
	rotate chan struct{} // one token: a session is wanted that begins after now
	done   chan struct{} // closed when Run has returned
	began  time.Time
	// draining ends with startDrain, when Drain is called.
	draining   context.Context
	startDrain context.CancelFunc
	// wall reads the wall clock alone. Tests make it jump.
	wall func() time.Time

	// speech belongs to Run's goroutine.
	speech speech

	mu sync.Mutex
	// Guarded by mu.
	status   SupervisorStatus
	current  *nodeSession          // or nil
	sessions map[*nodeSession]bool // current and those that drain
	seen     execution.Generation
	readied  uint64          // sessions that became ready
	patience context.Context // the first Drain's: how long runs may finish; nil before
	running  bool
	wg       sync.WaitGroup // sessions' goroutines
}

// NewSupervisor returns a Supervisor, which does nothing before Run. The error names what is wrong in cfg.
func NewSupervisor(cfg SupervisorConfig) (*Supervisor, error) {
	u, err := url.Parse(cfg.URL)
	switch {
	case err != nil:
		return nil, errors.New("tunnel: the Edge's URL can't be parsed")
	case u.Scheme != "ws" && u.Scheme != "wss":
		return nil, fmt.Errorf("tunnel: the Edge's URL must begin with ws:// or wss://, not %q", u.Scheme)
	case u.Host == "" || u.User != nil || u.Fragment != "":
		return nil, errors.New("tunnel: the Edge's URL needs a host and may hold neither user nor fragment")
	case cfg.Handler == nil || cfg.Describe == nil:
		return nil, errors.New("tunnel: Handler and Describe are required")
	}
	if err := cfg.Node.Validate(); err != nil {
		return nil, err
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = wire.Path
	}
	cfg.URL = u.String()
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Metrics == nil {
		cfg.Metrics = &Metrics{}
	}
	if cfg.DialContext == nil {
		cfg.DialContext = (&net.Dialer{Timeout: dialTime, KeepAlive: 15 * time.Second}).DialContext
	}
	s := &Supervisor{
		began: time.Now(),
		cfg:   cfg, bootID: rand.Text(), budget: newBudget(),
		kick: make(chan struct{}, 1), rotate: make(chan struct{}, 1), done: make(chan struct{}),
		wall:     func() time.Time { return time.Now().Round(0) },
		sessions: make(map[*nodeSession]bool),
	}
	s.draining, s.startDrain = context.WithCancel(context.Background())
	return s, nil
}

// Status returns the current status.
func (s *Supervisor) Status() SupervisorStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

func (s *Supervisor) setStatus(st SupervisorStatus) {
	s.mu.Lock()
	s.status = st
	s.mu.Unlock()
	if s.cfg.OnStatus != nil {
		s.cfg.OnStatus(st)
	}
}

func (s *Supervisor) describe() *NodeInfo {
	if info := s.cfg.Describe(); info != nil {
		return info
	}
	return &NodeInfo{}
}

// Refresh tells the Edge that Describe's answer changed. It never blocks.
func (s *Supervisor) Refresh() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for session := range s.sessions {
		session.announce()
	}
}

// Run dials, registers and redials until ctx ends (at once: runs are cancelled) or Drain has finished. It returns ctx's error,
// or nil after Drain. It may be called once: another call is an error.
func (s *Supervisor) Run(ctx context.Context) error {
	s.mu.Lock()
	if s.running {
		s.mu.Unlock()
		return errors.New("tunnel: the Supervisor has run before")
	}
	s.running = true
	s.mu.Unlock()
	defer close(s.done)
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { s.watchClock(ctx) })
	err := s.loop(ctx)
	if err == nil {
		s.finishAll(ctx)
	}
	s.endAll(&EndError{Code: goodbyeShutdown, Message: "the Node is stopping", Run: execution.CodeShutdown})
	cancel()
	watch.Wait()
	s.wg.Wait()
	s.setStatus(SupervisorStatus{State: StateStopped})
	return err
}

// loop is Run without its cleaning up.
func (s *Supervisor) loop(ctx context.Context) error {
	attempt := 0
	lost := time.Now() // when the trouble began that the attempts are counted from
	for {
		s.setStatus(SupervisorStatus{State: StateConnecting})
		s.sayConnecting()
		session, err := s.connect(ctx)
		for err == nil {
			s.sayConnected()
			began := time.Now()
			session, err = s.hold(ctx, session)
			if time.Since(began) >= steadyAfter {
				attempt, lost = 0, time.Now()
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if s.isDraining() {
			return nil
		}
		wait := s.pause(err, attempt, time.Since(lost))
		attempt++
		if wait < 0 { // the Edge asked for it
			attempt, lost = 0, time.Now()
			continue
		}
		if !s.sleep(ctx, wait) {
			attempt, lost = 0, time.Now()
		}
		if s.isDraining() {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// pause decides how long to wait before the next attempt, and says so. down is how long the trouble has lasted.
func (s *Supervisor) pause(err error, attempt int, down time.Duration) time.Duration {
	if errors.Is(err, errReplace) {
		return -1
	}
	wait := fullJitter(attempt, down)
	state := StateWaiting
	if r, ok := errors.AsType[*Refusal](err); ok {
		state = StateRefused
		wait = refusedPause(r)
		s.cfg.Metrics.refused(r.Code)
	}
	s.sayFailed(err, wait)
	s.setStatus(SupervisorStatus{State: state, Detail: err.Error(), RetryIn: wait})
	return wait
}

// refusedPause is slow for what only an operator can mend, quick for an Edge that is just going away.
func refusedPause(r *Refusal) time.Duration {
	switch r.Code {
	case "draining", "unavailable", "stale_generation":
		return max(r.RetryAfter, jitter(backoffBase))
	case "flapping":
		return max(r.RetryAfter, contestedWait/2+jitter(contestedWait/2))
	default:
		return max(r.RetryAfter, refusedWait/2+jitter(refusedWait/2))
	}
}

// fullJitter is a random time below the exponential bound: attempts of many Nodes spread out evenly. Nor does it pass
// the time that the trouble has lasted: of a thousand Nodes some use up their first attempts in no time, and they must
// not wait half a minute for an Edge that was away for two seconds.
func fullJitter(attempt int, down time.Duration) time.Duration {
	bound := backoffBase << min(attempt, 10)
	return jitter(min(backoffMax, bound, max(backoffBase, down)))
}

func jitter(d time.Duration) time.Duration { return time.Duration(mathrand.Int64N(int64(d) + 1)) }

// sleep reports whether the whole time passed, and not a kick, a drain or the end.
func (s *Supervisor) sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.kick:
	case <-s.rotate:
	case <-s.draining.Done():
	case <-ctx.Done():
	}
	return false
}

// errReplace says that a session is to be replaced at once, errDraining that this Node takes no new one.
var (
	errReplace  = errors.New("the Edge asked this Node to reconnect")
	errDraining = errors.New("this Node is draining")
)

// hold waits until the session has ended, or returns the one that took its place.
func (s *Supervisor) hold(ctx context.Context, session *nodeSession) (*nodeSession, error) {
	select {
	case <-session.link.done:
		select {
		case <-session.drainAsked: // with the session's last breath: its hint still wins
			return s.replace(ctx, session)
		default:
		}
		s.forget(session)
		return nil, s.sessionError(session)
	case <-session.drainAsked:
		return s.replace(ctx, session)
	case <-s.rotate:
		return s.renew(ctx, session)
	case <-s.draining.Done():
		return nil, errDraining
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *Supervisor) sessionError(session *nodeSession) error {
	session.link.mu.Lock()
	defer session.link.mu.Unlock()
	end := session.link.end
	if end.Remote {
		switch end.Code {
		case "token_revoked", "token_expired", "unauthorized", "flapping", "node_taken", "node_reserved", "wrong_node", "stale_generation",
			"identity_expired", "identity_revoked", "token_limit", "edge_limit", "label_not_allowed", goodbyeTooFast:
			return &Refusal{Code: end.Code, Message: end.Message}
		}
	}
	return end
}

// replace follows the Edge's DRAIN: the old session keeps its runs, the new one is opened first.
func (s *Supervisor) replace(ctx context.Context, old *nodeSession) (*nodeSession, error) {
	old.link.mu.Lock()
	d := old.drain
	old.link.mu.Unlock()
	s.cfg.Logger.Info("tunnel: the Edge drains this session", "generation", uint64(old.generation), "reason", d.Reason)
	s.wg.Go(func() { s.outlive(old, time.Duration(d.DeadlineMs)*time.Millisecond) })
	wait := time.Duration(d.ReconnectAfterMs) * time.Millisecond
	if time.Since(old.started) < backoffMax {
		// An Edge that drains what it has just accepted must not be dialed in a tight loop.
		wait = max(wait, jitter(backoffBase))
	}
	s.sleep(ctx, wait)
	tryFor := time.Duration(d.TryForMs) * time.Millisecond
	if tryFor == 0 {
		tryFor = drainTryDefault
	}
	until := time.Now().Add(tryFor)
	for time.Now().Before(until) && ctx.Err() == nil && !s.isDraining() {
		s.setStatus(SupervisorStatus{State: StateConnecting})
		session, err := s.connect(ctx)
		if err == nil {
			return session, nil
		}
		s.sayNoReplacement(slog.LevelInfo, err)
		s.sleep(ctx, jitter(backoffBase))
	}
	return nil, errReplace
}

// outlive waits for the end of a session that the Edge drains. The Edge ends it with its last run: it alone knows
// whether an OPEN is still on its way. One that forgets is helped out of it.
func (s *Supervisor) outlive(old *nodeSession, deadline time.Duration) {
	if deadline > 0 {
		late := time.AfterFunc(deadline+drainSlack, func() {
			old.link.fail(&EndError{Code: goodbyeDeadline, Message: "the Edge's drain deadline passed", Run: execution.CodeDrainDeadline})
		})
		defer late.Stop()
	}
	<-old.link.done
	s.forget(old)
}

// finishAll is the Node's own drain, of the current session and of those that an Edge drains.
func (s *Supervisor) finishAll(ctx context.Context) {
	s.mu.Lock()
	patience := s.patience
	status := SupervisorStatus{State: StateDraining}
	if s.current != nil {
		status.Generation = s.current.generation
	}
	s.mu.Unlock()
	s.setStatus(status)
	var wg sync.WaitGroup
	for _, session := range s.list() {
		wg.Go(func() { session.finish(ctx, patience) })
	}
	wg.Wait()
}

// Drain says DRAIN, lets open runs finish until ctx ends, says GOODBYE; then Run returns nil. Runs that have not ended
// by then end as cancelled, drain_deadline, and Drain returns ctx's error.
func (s *Supervisor) Drain(ctx context.Context) error {
	s.mu.Lock()
	running := s.running
	if s.patience == nil {
		s.patience = ctx
		s.startDrain()
	}
	s.mu.Unlock()
	if !running {
		return nil
	}
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
	}
	// The runs are told now, and the Edge is told of their ends: that takes a moment, and no longer.
	t := time.NewTimer(3 * farewellTime)
	defer t.Stop()
	select {
	case <-s.done:
	case <-t.C:
	}
	return ctx.Err()
}

func (s *Supervisor) isDraining() bool {
	return s.draining.Err() != nil
}

func (s *Supervisor) forget(session *nodeSession) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, session)
	if s.current == session {
		s.current = nil
	}
}

func (s *Supervisor) endAll(end *EndError) {
	for _, session := range s.list() {
		session.link.fail(end)
	}
}

// list returns the sessions that have not ended.
func (s *Supervisor) list() []*nodeSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.sessions))
}

// watchClock redials at once when the wall clock jumped against the monotonic one: the machine was suspended, and
// what the session takes for a connection is one no longer.
func (s *Supervisor) watchClock(ctx context.Context) {
	tick := time.NewTicker(clockTick)
	defer tick.Stop()
	lastWall, last := s.wall(), time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		wall, now := s.wall(), time.Now()
		jump := wall.Sub(lastWall) - now.Sub(last)
		lastWall, last = wall, now
		if jump.Abs() > clockJump {
			s.cfg.Logger.Warn("tunnel: the clock jumped, reconnecting", "jump", jump.String())
			s.endAll(&EndError{Code: goodbyeClock, Message: "the Node's clock jumped"})
			poke(s.kick)
		}
	}
}
