package gateway

import (
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"iop/execution"
	"iop/execution/safetext"
	"iop/gateway/admission"
	"iop/gateway/registry"
	"iop/state"
)

// recentRuns is how many ended runs are remembered.
const recentRuns = 1024

// record is what is known of one run, while it runs and for a while after. Whoever wants to look at it or to end it
// does so here; the run itself belongs to its handler.
type record struct {
	// Static.
	id        execution.RunID
	requestID string
	clientID  string // X-Client-Request-Id, as far as it is fit to be logged
	key       state.KeyID
	keyName   string
	principal string // whom it counts for
	op        string
	model     string // as the client named it
	session   string // the client's; empty for none
	route     string
	stream    bool
	started   time.Time
	kill      chan execution.Code // has room for one; never closed

	// For who looks while it runs; end has them afterwards.
	firstByte atomic.Int64 // as ending's, in nanoseconds
	bytes     atomic.Int64 // as ending's
	hungUp    atomic.Bool  // the client was too slow: it gets no more time for a write

	lag lag // owned by watchLaggards

	mu       sync.Mutex
	run      registry.Run        // while one is open, else nil
	w        http.ResponseWriter // the client's, while run is not nil
	target   admission.Target
	upstream string // the model's name at the provider
	reason   admission.Reason
	normal   bool // the last attempt is, or was, a normalized run
	attempts int
	queued   time.Duration // waiting for tickets, all attempts together; of the wait that goes on, see waiting
	waiting  time.Time     // when the wait that goes on began; else zero
	state    runState
	end      ending // set once state is runEnded
}

type runState uint8

const (
	runQueued runState = iota
	runActive
	runEnded
)

// ending is how a request ended, from the client's side and the run's.
type ending struct {
	terminal  execution.Terminal
	status    int           // HTTP status; 0 if none was sent
	bytes     int64         // body bytes to the client
	firstByte time.Duration // from the start; 0 if there was none
	total     time.Duration
	told      string // the code of the error that the client got, or empty
}

// maxToldCode bounds what is remembered of the code: it can be the provider's.
const maxToldCode = 64

// toldCode is a code as it is shown.
func toldCode(code string) string {
	return safetext.Escape(safetext.MaskKeys(code[:min(len(code), maxToldCode)]))
}

// opened notes that a run was opened, whose answer goes to w.
func (rec *record) opened(run registry.Run, t *admission.Ticket, w http.ResponseWriter) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.w = w
	rec.run, rec.target, rec.upstream, rec.reason, rec.state = run, t.Target, t.Model, t.Reason, runActive
	rec.normal = t.Normalized
	rec.attempts++
}

// What the execution of a run is called, in headers, logs and APIs.
const (
	executionRaw        = "raw"        // the exchange with the provider was relayed
	executionNormalized = "normalized" // the Node's adapter ran it
)

// how says how the last attempt was executed; empty before the first.
func (rec *record) how() string {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return rec.howLocked()
}

func (rec *record) howLocked() string {
	switch {
	case rec.attempts == 0:
		return ""
	case rec.normal:
		return executionNormalized
	}
	return executionRaw
}

// requeued notes that the run waits again.
func (rec *record) requeued() {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.run, rec.w, rec.state = nil, nil, runQueued
}

// waits notes that the run waits for a ticket from then on.
func (rec *record) waits(began time.Time) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.waiting = began
}

func (rec *record) waited(d time.Duration) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.queued, rec.waiting = rec.queued+d, time.Time{}
}

// queuedLocked is how long the run has waited for tickets, up to now.
func (rec *record) queuedLocked() time.Duration {
	if rec.waiting.IsZero() {
		return rec.queued
	}
	return rec.queued + time.Since(rec.waiting)
}

// queuedFor returns how long the request waited for tickets so far.
func (rec *record) queuedFor() time.Duration {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return rec.queued
}

// found reports whether there was a target for it.
func (rec *record) found() bool {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return rec.target != admission.Target{}
}

// phase returns how far the run is.
func (rec *record) phase() execution.Phase {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	switch {
	case rec.state == runEnded:
		return rec.end.terminal.Phase
	case rec.run != nil:
		return rec.run.Phase()
	}
	return execution.PhaseQueued
}

// cancel ends the run from outside its handler. The Node is told at once, even while the handler is stuck in a write
// to its client.
func (rec *record) cancel(code execution.Code) {
	select {
	case rec.kill <- code:
	default: // it is being ended already
	}
	rec.mu.Lock()
	run := rec.run
	rec.mu.Unlock()
	if run != nil {
		run.Cancel(code, code.String())
	}
}

// runs holds the live runs and remembers the last ones.
type runs struct {
	live atomic.Int64

	mu      sync.Mutex
	byID    map[execution.RunID]*record // live and recent
	recent  [recentRuns]*record         // a ring of ended ones
	next    int                         // where the next goes
	idle    chan struct{}               // closed when no run is live; nil while nobody waits
	watches map[*watch]struct{}
	watched atomic.Bool // somebody does
}

// watch gets the runs that end. A slow reader misses some.
type watch struct{ ended chan *record }

func (rs *runs) begin(rec *record) {
	rs.live.Add(1)
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.byID == nil {
		rs.byID = make(map[execution.RunID]*record, recentRuns)
	}
	rs.byID[rec.id] = rec
}

func (rs *runs) finish(rec *record, end ending) {
	rec.mu.Lock()
	rec.run, rec.w, rec.state, rec.end = nil, nil, runEnded, end
	rec.mu.Unlock()
	rs.mu.Lock()
	if old := rs.recent[rs.next]; old != nil {
		delete(rs.byID, old.id)
	}
	rs.recent[rs.next] = rec
	rs.next = (rs.next + 1) % recentRuns
	if rs.live.Add(-1) == 0 && rs.idle != nil {
		close(rs.idle)
		rs.idle = nil
	}
	if rs.watched.Load() {
		for w := range rs.watches {
			select {
			case w.ended <- rec:
			default:
			}
		}
	}
	rs.mu.Unlock()
}

func (rs *runs) find(id execution.RunID) *record {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.byID[id]
}

// whenIdle returns a channel that is closed once no run is live.
func (rs *runs) whenIdle() <-chan struct{} {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.live.Load() == 0 {
		done := make(chan struct{})
		close(done)
		return done
	}
	if rs.idle == nil {
		rs.idle = make(chan struct{})
	}
	return rs.idle
}

// list returns the live runs and the recent ones, in no order.
func (rs *runs) list() []*record {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	list := make([]*record, 0, len(rs.byID))
	for _, rec := range rs.byID {
		list = append(list, rec)
	}
	return list
}

// cancelAll ends every live run.
func (rs *runs) cancelAll(code execution.Code) {
	for _, rec := range rs.list() {
		rec.mu.Lock()
		live := rec.state != runEnded
		rec.mu.Unlock()
		if live {
			rec.cancel(code)
		}
	}
}

func (rs *runs) watch() *watch {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	w := &watch{ended: make(chan *record, 256)}
	if rs.watches == nil {
		rs.watches = map[*watch]struct{}{}
	}
	rs.watches[w] = struct{}{}
	rs.watched.Store(true)
	return w
}

func (rs *runs) unwatch(w *watch) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.watches, w)
	rs.watched.Store(len(rs.watches) > 0)
}
