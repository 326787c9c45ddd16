package sim

import (
	"net/http"
	"sync"
	"time"
)

// Sizes of what the ledger remembers.
const (
	ringSize   = 1024    // requests
	bodyPrefix = 4 << 10 // bytes of each body
)

// The states of a Request.
const (
	stateReading   = "reading"   // its body is still arriving
	stateQueued    = "queued"    // it waits for a slot
	stateActive    = "active"    // it holds a slot, or needs none
	stateFinished  = "finished"  // the answer was written to its end, or to its ordered fault
	stateCancelled = "cancelled" // the client went away first
	stateRejected  = "rejected"  // refused without a slot: 4xx, 429, an ordered status
)

// Request is one request as it arrived, for GET /sim/requests.
type Request struct {
	ID      int64       `json:"id"`
	Method  string      `json:"method"`
	Path    string      `json:"path"` // with the query, as it was sent
	Host    string      `json:"host"`
	Proto   string      `json:"proto"`
	Remote  string      `json:"remote"`
	Headers http.Header `json:"headers"`

	Inference bool   `json:"inference"`
	Model     string `json:"model,omitempty"`
	Stream    bool   `json:"stream"`
	Fault     string `json:"fault,omitempty"`

	// Chunked is set where the body came without a Content-Length.
	Chunked bool `json:"chunked"`
	// Body is the beginning of the body, at most 4 KiB; BodyLength and BodySHA256 are of all of it.
	Body       string `json:"body"`
	BodyLength int64  `json:"body_length"`
	BodySHA256 string `json:"body_sha256"`

	State  string `json:"state"`
	Status int    `json:"status,omitempty"`
	// Prompt and Cached are the prompt's tokens and those of them that were cached, of an engine with a prefix cache or
	// a pace of prefill.
	Prompt int `json:"prompt_tokens,omitempty"`
	Cached int `json:"cached_tokens,omitempty"`
	// Tokens is how many pieces had been generated when the request ended.
	Tokens int `json:"tokens"`

	Started time.Time `json:"started"`
	// Gone is when the end of the client's connection was noticed; Ended is when the slot was given back.
	Gone  *time.Time `json:"gone,omitempty"`
	Ended *time.Time `json:"ended,omitempty"`
	Error string     `json:"error,omitempty"`

	counts *Counts // of its model, or nil
}

// Counts are the inference requests of one model, or of all. Each request stands in Started and in exactly one of
// the others.
type Counts struct {
	Started   int64 `json:"started"`
	Reading   int64 `json:"reading"`
	Queued    int64 `json:"queued"`
	Active    int64 `json:"active"`
	Finished  int64 `json:"finished"`
	Cancelled int64 `json:"cancelled"`
	Rejected  int64 `json:"rejected"`
	Peak      int64 `json:"peak"` // highest Active
}

func (c *Counts) at(state string) *int64 {
	switch state {
	case stateReading:
		return &c.Reading
	case stateQueued:
		return &c.Queued
	case stateActive:
		return &c.Active
	case stateFinished:
		return &c.Finished
	case stateCancelled:
		return &c.Cancelled
	default:
		return &c.Rejected
	}
}

func (c *Counts) move(from, to string) {
	*c.at(from)--
	*c.at(to)++
	c.Peak = max(c.Peak, c.Active)
}

// ledger remembers the last requests and counts the inference requests.
type ledger struct {
	mu       sync.Mutex
	nextID   int64
	ring     [ringSize]*Request // by ID modulo ringSize; nil where empty
	all      Counts
	prompt   int64
	cached   int64
	byModel  map[string]*Counts // by model id; requests that name no known model count in all only
	lastGone lastCancel
}

// lastCancel describes the cancellation that was seen last.
type lastCancel struct {
	At *time.Time `json:"at,omitempty"`
	// RunningMS is how long the request had run when the client went.
	RunningMS float64 `json:"running_ms"`
	// LatencyMS is from the moment the end of the client was noticed until the slot was given back.
	LatencyMS float64 `json:"latency_ms"`
}

// open enters a request. The ledger owns r from here on: change it through update only.
func (l *ledger) open(r *Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nextID++
	r.ID = l.nextID
	l.ring[r.ID%ringSize] = r
	if r.Inference {
		l.all.Started++
		*l.all.at(r.State)++
	}
}

// noInference takes a request out of the counters: nothing was asked of a model.
func (l *ledger) noInference(r *Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Inference {
		r.Inference = false
		l.all.Started--
		*l.all.at(r.State)--
	}
}

func (l *ledger) update(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// setModel counts the request under its model from now on.
func (l *ledger) setModel(r *Request, model string, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Model = model
	if !r.Inference || !known {
		return
	}
	if l.byModel == nil {
		l.byModel = map[string]*Counts{}
	}
	c := l.byModel[model]
	if c == nil {
		c = &Counts{}
		l.byModel[model] = c
	}
	r.counts = c
	c.Started++
	*c.at(r.State)++
	c.Peak = max(c.Peak, c.Active)
}

// prefilled counts a prompt.
func (l *ledger) prefilled(r *Request, prompt, cached int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Prompt, r.Cached = prompt, cached
	l.prompt += int64(prompt)
	l.cached += int64(cached)
}

func (l *ledger) setState(r *Request, state string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.moveLocked(r, state)
}

func (l *ledger) moveLocked(r *Request, state string) {
	if r.Inference {
		l.all.move(r.State, state)
		if r.counts != nil {
			r.counts.move(r.State, state)
		}
	}
	r.State = state
}

// gone books that the client has gone.
func (l *ledger) gone(r *Request) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.goneLocked(r, now)
}

func (l *ledger) goneLocked(r *Request, now time.Time) {
	if r.Gone == nil {
		r.Gone = &now
	}
}

// close ends a request.
func (l *ledger) close(r *Request, state string, now time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.moveLocked(r, state)
	r.Ended = &now
	if err != nil {
		r.Error = err.Error()
	}
	if state != stateCancelled {
		return
	}
	l.goneLocked(r, now)
	if !r.Inference {
		return
	}
	gone := *r.Gone
	l.lastGone = lastCancel{At: &gone, RunningMS: ms(gone.Sub(r.Started)), LatencyMS: ms(now.Sub(gone))}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// last returns copies of the last n requests, newest first.
func (l *ledger) last(n int) []Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]Request, 0, min(n, ringSize))
	for id := l.nextID; id > 0 && id > l.nextID-ringSize && len(out) < n; id-- {
		if r := l.ring[id%ringSize]; r != nil {
			out = append(out, *r)
		}
	}
	return out
}

// rebase forgets what has ended; what is under way stays counted.
func (l *ledger) rebase() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, r := range l.ring {
		if r != nil && r.Ended != nil {
			l.ring[i] = nil
		}
	}
	l.lastGone = lastCancel{}
	l.prompt, l.cached = 0, 0
	for _, c := range l.byModel {
		c.rebase()
	}
	l.all.rebase()
}

func (c *Counts) rebase() {
	c.Finished, c.Cancelled, c.Rejected = 0, 0, 0
	c.Started = c.Reading + c.Queued + c.Active
	c.Peak = c.Active
}

// Stats is the answer of GET /sim/stats. Its Counts never contradict themselves: they are read in one piece.
type Stats struct {
	Counts
	Slots      int               `json:"slots"`
	Busy       int               `json:"busy"` // slots taken
	QueueLimit int               `json:"queue_limit"`
	QueuePeak  int               `json:"queue_peak"`    // the longest that the queue has been
	Prompt     int64             `json:"prompt_tokens"` // with a prefix cache or a pace of prefill: of all prompts
	Cached     int64             `json:"cached_tokens"` // of those, how many needed no prefill
	Models     map[string]Counts `json:"models"`
	LastCancel lastCancel        `json:"last_cancel"`
}

// stats snapshots the ledger's part of Stats.
func (l *ledger) stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	st := Stats{Counts: l.all, LastCancel: l.lastGone, Prompt: l.prompt, Cached: l.cached, Models: make(map[string]Counts, len(l.byModel))}
	for m, c := range l.byModel {
		st.Models[m] = *c
	}
	return st
}
