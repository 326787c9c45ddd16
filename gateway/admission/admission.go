package admission

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"iop/execution"
	"iop/gateway/route"
)

// Target is where a run can go: one provider of one session of a Node. The zero value is no target.
type Target struct {
	Node       execution.NodeID
	Generation execution.Generation
	Provider   execution.ProviderID
}

// Offer is what one provider of a session can take.
type Offer struct {
	Provider execution.ProviderID
	Capacity int // runs at once; below 1 counts as 1
	// Selectable is false while the provider must get no new runs (its probe says hung or gone, the operator drains
	// the Node). Its models stay known.
	Selectable bool
	Models     []Model
}

// Model is a model that a provider serves.
type Model struct {
	ID     string
	Loaded bool // it is in memory already
}

// What Acquire and Waiter.Result can answer.
var (
	// ErrUnknownModel: no Node has ever offered the model.
	ErrUnknownModel = errors.New("no node has ever offered this model")
	// ErrNoOther: nothing but the avoided target serves the model.
	ErrNoOther = errors.New("no other target serves this model")
	// ErrClosed: the Edge takes no new runs.
	ErrClosed = errors.New("admission is closed")
)

// QueueFullError says that as many requests wait for the model as may.
type QueueFullError struct {
	// RetryAfter is how long the request at the head of the queue has waited so far, between 1 s and 60 s: as good a
	// guess as any of how long the queue takes.
	RetryAfter time.Duration
}

func (e *QueueFullError) Error() string { return "the queue of this model is full" }

// Limits and delays of the queue.
const (
	// DefaultQueueLimit is how many requests may wait for one model.
	DefaultQueueLimit = 1024
	// DefaultSettle is how long after the first Node came online an unknown model still waits: after a restart of
	// the Edge its Nodes come back one after the other.
	DefaultSettle = 2 * time.Second
	// maxRemembered bounds the names of models that no Node offers any more. What is forgotten answers as unknown.
	maxRemembered = 16384
	// A target that refused a run for want of capacity gets none for firstBackoff, doubled at each further refusal
	// up to maxBackoff, unless one of its runs ends well or the Node says something new.
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 5 * time.Second
)

// Config configures a Controller. All of it is optional.
type Config struct {
	QueueLimit int           // requests waiting for one model; default DefaultQueueLimit
	Settle     time.Duration // default DefaultSettle; negative for none
	// AffinityEntries is how many prefixes of prompts are remembered; default DefaultAffinityEntries.
	AffinityEntries int
}

// Counters count what happened since the start.
type Counters struct {
	BreakerOpened, BreakerClosed                 atomic.Int64
	Refusals, Failures                           atomic.Int64
	AffinityHits, AffinityMisses, AffinityYields atomic.Int64
}

// Counters returns the Controller's counters, to be read at any time.
func (c *Controller) Counters() *Counters { return &c.counters }

// Configure replaces the routes.
func (c *Controller) Configure(*route.Table) {}

// Serves reports whether some target of the route is in service now.
func (c *Controller) Serves(r *route.Route) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.models[r.Name]
	return m != nil && m.hasOther(nil)
}

// Controller owns places and queues. Its methods may be called from any goroutine and return at once.
type Controller struct {
	queueLimit int
	settle     time.Duration

	refusing atomic.Int64 // places with refusals; written under mu

	counters Counters

	mu       sync.Mutex
	sessions map[sessionKey]*session
	models   map[string]*model
	waited   map[*model]struct{} // the models with a waiter
	seq      uint64              // the last number given in line
	picks    uint64              // the last pick's number
	inFlight int                 // tickets out
	waiting  int                 // waiters in all queues
	unknown  int                 // waiters for models that were never offered
	idle     int                 // models known without a target
	settled  bool                // unknown models are refused
	timer    *time.Timer         // runs out when settled; nil until the first Node is online
	closed   bool
}

type sessionKey struct {
	node       execution.NodeID
	generation execution.Generation
}

// session is what one Node session offers.
type session struct {
	places    map[execution.ProviderID]*place
	withdrawn bool // for good: it takes no new runs
}

// place is one target and its capacity. Guarded by Controller.mu.
type place struct {
	target     Target
	capacity   int
	selectable bool
	load       *load // never nil
	models     []*model
	names      []string // as offered
	picked     uint64   // when it was last picked, for turns among equals
	refusals   int      // since the last run that went well
	blocked    bool     // backing off after a refusal
	timer      *time.Timer
}

// load counts the runs of one provider of one Node process. Sessions that replace each other share it: the runs that
// finish on the former still take places of the same engine.
type load struct {
	inFlight int
	place    *place // the one that takes new runs, or nil
}

// model is a name, who serves it, and who waits for it. Guarded by Controller.mu.
type model struct {
	name       string
	known      bool // was offered at least once
	targets    []*place
	turn       int // where in targets the next sample begins
	head, tail *Waiter
	waiting    int
	picky      int // waiters that avoid a target
}

// New returns a Controller with nothing offered.
func New(cfg Config) *Controller {
	if cfg.QueueLimit <= 0 {
		cfg.QueueLimit = DefaultQueueLimit
	}
	if cfg.Settle == 0 {
		cfg.Settle = DefaultSettle
	}
	return &Controller{
		queueLimit: cfg.QueueLimit,
		settle:     cfg.Settle,
		sessions:   map[sessionKey]*session{},
		models:     map[string]*model{},
		waited:     map[*model]struct{}{},
	}
}

// Reason says why a target was chosen, for logs and operators.
type Reason struct {
	Rule       string // "least_busy", "only_target", "queue"
	Candidates int    // targets with a free place that were compared
	InFlight   int    // runs at the target, this one included
	Capacity   int
}

// String renders the reason, e.g. "least_busy 1/4 of 3".
func (r Reason) String() string {
	if r.Rule == "" {
		return ""
	}
	return fmt.Sprintf("%s %d/%d of %d", r.Rule, r.InFlight, r.Capacity, r.Candidates)
}

// Public renders what a caller may see of the reason: nothing of how many Nodes there are, or how large.
func (r Reason) Public() string { return r.Rule }

// Principal is who asks. Between principals the queue is fair.
type Principal struct {
	ID       string
	Weight   int // below 1 counts as 1
	Priority int // among the principal's own requests; higher first
}

// Request asks for a ticket.
type Request struct {
	Route     *route.Route // never nil
	Principal Principal
	Tokens    int64    // what it costs by estimate, input and output; below 1 counts as 1
	Output    int64    // the output of that
	Affinity  Affinity // zero: none
	// Avoid are targets not to use, for a try elsewhere. If nothing else serves the route the answer is ErrNoOther.
	Avoid []Target
	// Line is the place in line of an earlier Acquire for the same request, so that a second dispatch does not go
	// to the end; 0 for a new request.
	Line uint64
}

// Acquire gives a ticket, or a Waiter when nothing is free, or an error. Exactly one of the three is not nil.
func (c *Controller) Acquire(req Request) (*Ticket, *Waiter, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, ErrClosed
	}
	if req.Line == 0 {
		c.seq++
		req.Line = c.seq
	}
	m := c.models[req.Route.Name]
	// While somebody who takes any place waits, there is none: it would have been given away.
	if m != nil && m.waiting == m.picky {
		if p, free := c.pickLocked(m, req.Avoid); p != nil {
			rule := "least_busy"
			if len(m.targets) == 1 {
				rule = "only_target"
			}
			return c.takeLocked(p, m, req.Line, rule, free), nil, nil
		}
	}
	if len(req.Avoid) > 0 && (m == nil || !m.hasOther(req.Avoid)) {
		return nil, nil, ErrNoOther
	}
	w, err := c.enqueueLocked(m, req)
	return nil, w, err
}

// maxCandidates is how many places with room are compared. Of more, the best of a sample that moves on is hardly
// worse than the best of all, and takes no longer with a thousand Nodes than with ten.
const maxCandidates = 16

// pickLocked returns the least busy selectable place of m with room, of how many that were compared.
func (c *Controller) pickLocked(m *model, avoid []Target) (best *place, free int) {
	n := len(m.targets)
	if n > maxCandidates {
		m.turn = (m.turn + 1) % n
	} else {
		m.turn = 0
	}
	for i := 0; i < n && free < maxCandidates; i++ {
		p := m.targets[(m.turn+i)%n]
		if !p.free() || slices.Contains(avoid, p.target) {
			continue
		}
		free++
		if best == nil || p.before(best) {
			best = p
		}
	}
	return best, free
}

func (p *place) free() bool {
	return p.selectable && !p.blocked && p.load.inFlight < p.capacity
}

// before orders places by the share of their capacity that is taken, then by who was picked longest ago.
func (p *place) before(q *place) bool {
	a, b := p.load.inFlight*q.capacity, q.load.inFlight*p.capacity
	if a != b {
		return a < b
	}
	return p.picked < q.picked
}

func (m *model) hasOther(avoid []Target) bool {
	for _, p := range m.targets {
		if p.selectable && !slices.Contains(avoid, p.target) {
			return true
		}
	}
	return false
}

func (c *Controller) takeLocked(p *place, m *model, line uint64, rule string, candidates int) *Ticket {
	c.picks++
	p.picked = c.picks
	p.load.inFlight++
	c.inFlight++
	return &Ticket{
		Target: p.target,
		Model:  m.name,
		Reason: Reason{Rule: rule, Candidates: candidates, InFlight: p.load.inFlight, Capacity: p.capacity},
		Line:   line,
		ctl:    c,
		place:  p,
	}
}

// Ticket is the right to open one run at a target. It holds a place until Release or Refused.
type Ticket struct {
	Target Target
	Model  string // what the provider calls it
	Reason Reason
	Line   uint64 // the place in line, for another Acquire of the same request

	ctl   *Controller
	place *place
	done  bool // guarded by ctl.mu
}

// Release gives the place back. Only the first call counts. Any goroutine may call it.
func (t *Ticket) Release() { t.ctl.release(t, false) }

// Refused gives the place back, if Release has not yet, and keeps new runs away from the target for a moment: the Node
// has no room, whatever was counted here.
func (t *Ticket) Refused(retryAfter time.Duration) { t.ctl.release(t, true) }

func (c *Controller) release(t *Ticket, refused bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := t.place.load.place
	if !t.done {
		t.done = true
		c.inFlight--
		t.place.load.inFlight--
	} else if !refused {
		return
	}
	switch {
	case p == nil || c.closed:
		return
	case refused:
		c.blockLocked(p)
		return
	}
	c.serveLocked(p)
}

// Failed says that the run failed by its target's fault.
func (t *Ticket) Failed() { t.ctl.counters.Failures.Add(1) }

// Served says that the run of this ticket went well: if its target rests after refusals, it has room again.
func (t *Ticket) Served(Sample) {
	c := t.ctl
	if c.refusing.Load() == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := t.place.load.place; p != nil && p.refusals > 0 {
		c.forgiveLocked(p)
		c.serveLocked(p)
	}
}

// forgiveLocked forgets p's refusals.
func (c *Controller) forgiveLocked(p *place) {
	if p.refusals > 0 {
		p.refusals = 0
		c.refusing.Add(-1)
	}
	c.unblockLocked(p)
}

// blockLocked lets p rest. The time grows with each refusal in a row, so that a Node that always refuses costs little.
func (c *Controller) blockLocked(p *place) {
	d := min(firstBackoff<<min(p.refusals, 10), maxBackoff)
	if p.refusals++; p.refusals == 1 {
		c.refusing.Add(1)
	}
	p.blocked = true
	if p.timer != nil {
		p.timer.Stop()
	}
	var timer *time.Timer
	timer = time.AfterFunc(d, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if p.timer != timer {
			return // stopped too late
		}
		c.unblockLocked(p)
		c.serveLocked(p)
	})
	p.timer = timer
}

func (c *Controller) unblockLocked(p *place) {
	p.blocked = false
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
}
