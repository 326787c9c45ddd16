package admission

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"iop/execution"
	"iop/gateway/route"
	"iop/openai"
)

// Target is where a run can go: one provider of one session of a Node. The zero value is no target.
type Target struct {
	Node       execution.NodeID
	Generation execution.Generation
	Provider   execution.ProviderID
}

// Principal is who asks. Between principals the queue is fair.
type Principal struct {
	ID       string
	Weight   int // its share beside others'; below 1 counts as 1
	Priority int // of this request among the principal's own; higher first
}

// Request asks for a ticket.
type Request struct {
	Route     *route.Route // never nil
	Principal Principal
	Tokens    int64    // what it costs by estimate, input and output; below 1 counts as 1
	Output    int64    // the output of that, 0: unknown
	Affinity  Affinity // zero: none
	// Avoid are targets not to use, for a try elsewhere: for this request they are out of service. If nothing else
	// serves the route the answer is ErrNoOther. Only who was in line before has something to avoid. It must not be
	// changed while the request waits, except by append.
	Avoid []Target
	// Line is the place in line of an earlier Acquire for the same request, 0 for a new one. With it the request goes
	// before all new ones, is not charged again and finds no queue full.
	Line uint64
	// Op is what is asked for: only places that have it, or whose adapter is of Kinds, are candidates. 0 asks for nothing.
	Op openai.OpID
	// Kinds are the adapters that may run it as a normalized run; none if it can't be one.
	Kinds Kinds
}

// kept reports whether the request was in line before.
func (r *Request) kept() bool { return r.Line != 0 || len(r.Avoid) > 0 }

// What Acquire and Waiter.Result can answer, besides a *QueueFullError and a *NotPermittedError.
var (
	// ErrUnknownModel: no route has the name, or no Node has ever offered the model.
	ErrUnknownModel = errors.New("no node has ever offered this model")
	// ErrNoOther: nothing but the avoided targets serves the route.
	ErrNoOther = errors.New("no other target serves this model")
	// ErrUnsupported: what serves the route can't do what is asked for.
	ErrUnsupported = errors.New("no target of this model supports this operation")
	// ErrClosed: the Edge takes no new runs.
	ErrClosed = errors.New("admission is closed")
)

// QueueFullError says that as many requests wait for the route as may.
type QueueFullError struct {
	// RetryAfter is how long the requests that wait now will take to get their places, at the rate of late: whole
	// seconds, between 1 and 60.
	RetryAfter time.Duration
}

func (e *QueueFullError) Error() string { return "the queue of this model is full" }

// Limits and delays of the queue.
const (
	// DefaultQueueLimit is how many requests may wait for one route.
	DefaultQueueLimit = 1024
	// DefaultSettle is how long after the first Node came online an unknown model still waits: after a restart of
	// the Edge its Nodes come back one after the other.
	DefaultSettle = 2 * time.Second
)

// Config configures a Controller. All of it is optional.
type Config struct {
	QueueLimit int           // requests waiting for a route that says nothing else; default DefaultQueueLimit
	Settle     time.Duration // default DefaultSettle; negative for none
	Grace      time.Duration // of a route that says nothing else; default DefaultGrace. See ErrNotConnected
	// AffinityEntries is how many hashes of prompts are remembered; default DefaultAffinityEntries. They take no memory
	// before the first route of route.PrefixAffinity.
	AffinityEntries int
}

// Counters count what happened since the start. Any goroutine may read them.
type Counters struct {
	BreakerOpened, BreakerClosed                 atomic.Int64
	Refusals, Failures                           atomic.Int64 // tickets that ended so
	AffinityHits, AffinityMisses, AffinityYields atomic.Int64 // of requests with an Affinity that found room at once
}

// Controller owns places and queues. Its methods may be called from any goroutine and return at once.
type Controller struct {
	queueLimit      int
	settle          time.Duration
	grace           time.Duration
	affinityEntries int
	jitter          func(time.Duration) time.Duration // never nil
	counters        Counters

	mu       sync.Mutex
	table    *route.Table // never nil
	sessions map[sessionKey]*session
	lines    map[string]*line       // by the route's name
	refs     map[string][]targetRef // of the file's routes, by the name that a provider must know
	index    *prefixIndex           // or nil: no route needs it
	paces    map[placeID]*pace      // of what served a run; see rememberLocked
	listed   []Permission           // see Permit
	permits  bool                   // listed was told
	waited   []*line                // with a waiter
	dirty    []*line                // lost something in this call; see settleLocked
	fair     fairness
	seq      uint64 // the last number given in line
	picks    uint64 // the last pick's number
	inFlight int    // tickets out
	waiting  int    // waiters in all queues
	unknown  int    // waiters for models that were never offered
	idle     remembered
	settled  bool // unknown models are refused
	timer    *time.Timer
	closed   bool
}

// New returns a Controller with nothing offered, whose routes are route.Advertised.
func New(cfg Config) *Controller {
	if cfg.QueueLimit <= 0 {
		cfg.QueueLimit = DefaultQueueLimit
	}
	if cfg.Settle == 0 {
		cfg.Settle = DefaultSettle
	}
	if cfg.Grace <= 0 {
		cfg.Grace = DefaultGrace
	}
	return &Controller{
		queueLimit:      cfg.QueueLimit,
		settle:          cfg.Settle,
		grace:           cfg.Grace,
		affinityEntries: cfg.AffinityEntries,
		jitter:          aroundTenth,
		table:           route.Advertised(),
		sessions:        map[sessionKey]*session{},
		lines:           map[string]*line{},
		refs:            map[string][]targetRef{},
		paces:           map[placeID]*pace{},
		fair:            newFairness(),
	}
}

// Counters returns the Controller's counters.
func (c *Controller) Counters() *Counters { return &c.counters }

// Acquire gives a ticket, or a Waiter when nothing is free, or an error. Exactly one of the three is not nil.
func (c *Controller) Acquire(req Request) (*Ticket, *Waiter, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, ErrClosed
	}
	l, err := c.lineLocked(req.Route)
	if err != nil {
		return nil, nil, err
	}
	// The routes may have changed since the request was authorised, as when it is tried again after half an hour.
	if l != nil && l.route != req.Route && !l.route.Allows(req.Principal.ID) {
		return nil, nil, ErrUnknownModel
	}
	if l != nil && l.hopeless(req.need()) {
		return nil, nil, ErrUnsupported
	}
	kept := req.kept()
	if req.Line == 0 {
		c.seq++
		req.Line = c.seq
	}
	now := time.Now()
	// While somebody waits who could take what is free, nothing is: it would have been given away.
	if l != nil {
		if x, why := c.pickLocked(l, &req, now); x != nil {
			return c.takeLocked(x, &req, why, now), nil, nil
		}
	}
	if len(req.Avoid) > 0 && (l == nil || !c.hasOtherLocked(l, req.scope())) {
		return nil, nil, ErrNoOther
	}
	if l != nil {
		if err := l.notPermitted(); err != nil {
			return nil, nil, err
		}
	}
	w, err := c.enqueueLocked(l, &req, kept, now)
	return nil, w, err
}

// lineLocked returns the line of a route, nil for a model that no Node has offered yet and nobody waits for. A route of
// a former Table is what its name means now.
func (c *Controller) lineLocked(r *route.Route) (*line, error) {
	if l := c.lines[r.Name]; l != nil {
		return l, nil
	}
	r = c.table.Resolve(r.Name)
	if r == nil {
		return nil, ErrUnknownModel
	}
	return c.lines[r.Name], nil
}

// Serves reports whether the route has a selectable target. What its breaker says does not count: as a last resort each
// is used.
func (c *Controller) Serves(r *route.Route) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, _ := c.lineLocked(r)
	if l == nil {
		return false
	}
	for _, g := range l.groups {
		if g.selectable > 0 {
			return true
		}
	}
	return false
}

// Knows reports whether the route stands in the file, or some Node has offered its model.
func (c *Controller) Knows(r *route.Route) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	l, _ := c.lineLocked(r)
	return l != nil && l.known
}

// startSettlingLocked starts the time after which unknown models are refused; called when a Node comes online.
func (c *Controller) startSettlingLocked() {
	if c.timer != nil || c.settled || c.closed {
		return
	}
	if c.settle < 0 {
		c.refuseUnknownLocked()
		return
	}
	c.timer = time.AfterFunc(c.settle, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.refuseUnknownLocked()
	})
}

func (c *Controller) refuseUnknownLocked() {
	c.settled = true
	for i := len(c.waited) - 1; i >= 0; i-- {
		if l := c.waited[i]; !l.known {
			c.failAllLocked(l, ErrUnknownModel)
		}
	}
}

// Close answers everyone who waits, and every later Acquire, with ErrClosed. Tickets stay valid.
func (c *Controller) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.timer != nil {
		c.timer.Stop()
	}
	for i := len(c.waited) - 1; i >= 0; i-- {
		c.failAllLocked(c.waited[i], ErrClosed)
	}
	for _, s := range c.sessions {
		for _, p := range s.places {
			p.engine.stopTimers()
		}
	}
}
