package gateway

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"iop/execution"
	"iop/gateway/admission"
	"iop/gateway/credential"
	"iop/gateway/limit"
	"iop/gateway/registry"
	"iop/gateway/route"
	"iop/openai"
	"iop/state"
	"iop/tunnel"
	"iop/tunnel/wire"
)

const (
	// keepAlive is the longest silence on an event stream: past 30 s some intermediaries cut it.
	keepAlive = 15 * time.Second
	// maxDispatches bounds how often one request may be opened on a Node, whatever the reasons.
	maxDispatches = 8
	// endPatience is how long a client that is told that its run was cancelled waits for the Node's own word on it,
	// which has the usage.
	endPatience = time.Second
	// deadlineGrace is how much longer than a Node the Edge waits for a run's deadline, so that the Node speaks first.
	deadlineGrace = 2 * time.Second
	// noNodeRetry is when a client may ask again that waited in vain for a Node to connect. The next request waits again.
	noNodeRetry = 10 * time.Second
)

// exchange is one request, from its envelope to its last byte. It belongs to the handler's goroutine.
type exchange struct {
	// Static.
	s         *Server
	w         http.ResponseWriter
	r         *http.Request
	cork      *corkedConn // or nil
	op        *openai.Operation
	fam       openai.Family
	requestID string
	key       *state.Key
	env       openai.Envelope
	named     bool   // route is of the file, or some Node offered its model: set when the run is over
	routed    string // the model's name that counts: env.Model, or Ollama's other spelling of it (routeFor)
	session   string // the client's session_id; empty for none
	events    bool   // the client wants an event stream
	withhold  bool   // it gets no usage-only event, as it did not ask for one
	route     *route.Route
	stats     *routeStats         // of the route, as known when the request came
	prompts   int64               // how many the request holds
	input     int64               // estimated tokens, of the prompt
	inputMost int64               // tokens that the prompt can have
	tokens    int64               // estimated, prompt and answer
	output    int64               // estimated, of the answer
	arrived   bool                // counted against the key's requests a minute
	hold      limit.Hold          // of the key's other limits, until the run ends
	affinity  *admission.Affinity // nil where the route looks at none: it is large
	edits     openai.Edits        // of the route's parameters
	length    openai.Length       // of the answer, as the request and the route bound it
	rec       *record

	// The request, for as long as it may have to be sent again; then nil (letGo).
	body    []byte
	headers []*wire.Header
	held    int64        // of the body budget
	share   *keyShare    // of the budget, of this key; never nil once the key is known
	form    *openai.Form // what body is, where it is a multipart form; else nil

	// Time. The timer runs for the earliest of what is due and is looked at when it rings, not reset at each byte.
	started  time.Time
	deadline time.Time
	queueEnd time.Time         // while queued, else zero
	waiter   *admission.Waiter // while queued, else nil
	news     queueNews
	spoke    time.Time // the last byte to the client
	timer    *time.Timer
	// rings receives when timer is due. It is a channel of our own: waiting on a time.Timer's puts it into the runtime's
	// heap and takes it out again each time.
	rings chan struct{}

	// Of the dispatch.
	line    uint64             // in the queue
	ticket  *admission.Ticket  // the last one
	opened  registry.Run       // by the last dispatch; nil before
	grant   *credential.Grant  // of this attempt's credential; nil where the route wants none
	avoid   []admission.Target // targets that failed
	kinds   admission.Kinds    // the adapters that may run the request as a normalized run
	retries int                // of them those that a provider's failure sent it away from
	earlier execution.Usage    // of the attempts before the last
	noUsage bool               // a provider refused stream_options: this request goes without
	refuser admission.Target   // the last one that did; else zero
	sent    sentBody
	norm    *normalized // once a target needed it, else nil
	leftOut []string    // of the route's defaults, from the normalized run
	answer  answer

	chunks chunkTimes
	reply  reply
	end    ending // once run has returned

	// busy is held by the handler's goroutine but while it waits. Whoever else holds it then may pass bytes on in its
	// place (passDirect), and the fields above are theirs.
	busy sync.Mutex
}

// ready is what an exchange waits for.
type event uint8

const (
	eventReady    event = iota // what was waited for
	eventGone                  // the client
	eventKilled                // somebody cancelled the run; x.killed says how
	eventDeadline              // the run's own
	eventQueueEnd              // it waited too long
)

// verdict is what came of one dispatch.
type verdict struct {
	terminal execution.Terminal
	next     next
	// problem is what the client is told if this was the last dispatch; nil if it has its answer, or is gone.
	problem *openai.Error
	// raw is a provider's error that passes as it is, in place of problem.
	raw *rawReply
	// kinds are the adapters that can't run the request, where next is nextOtherKind.
	kinds admission.Kinds
	// told: the provider's own error has reached the client in its event stream.
	told bool
}

// next is what may follow a dispatch.
type next uint8

const (
	nextNothing   next = iota // that was it
	nextAgain                 // nothing was done: dispatch again, wherever
	nextElsewhere             // dispatch once more, on another target
	nextPlain                 // dispatch once more without asking for usage
	nextOtherKind             // dispatch once more, where the request need not be a normalized run of that kind of adapter
)

// run drives the request to its end, which is x.end. abort: the response must be cut off.
//
// From here to where a handler waits, and to where net/http writes a response's head, the frames are kept small, and
// what is large lies in the exchange: with a kilobyte more each handler would have a stack of 16 KiB in place of 8.
func (x *exchange) run() (abort bool) {
	x.busy.Lock()
	defer x.close()
	x.rings = make(chan struct{}, 1)
	x.timer = time.AfterFunc(x.alarmIn(x.started), func() {
		select {
		case x.rings <- struct{}{}:
		default:
		}
	})
	defer x.timer.Stop()
	v := x.dispatch()
	x.letGo() // a client may take its time with the answer
	abort = x.conclude(v)
	x.end = ending{
		terminal: v.terminal, status: x.reply.status, bytes: x.reply.bytes, firstByte: x.reply.firstByte,
		total: time.Since(x.started), told: toldCode(x.reply.code),
	}
	return abort
}

// close ends what may be written: the response is net/http's again, also after a panic.
func (x *exchange) close() {
	x.endGrant(execution.CodeNone) // after a panic
	x.reply.gone = true
	x.busy.Unlock()
}

// letGo forgets the request, which is not sent again. What is held of its answer stays.
func (x *exchange) letGo() {
	var answer int64
	if x.norm != nil {
		answer = x.norm.charged
	}
	x.s.bodies.give(x.share, x.held-answer)
	x.held, x.body, x.form, x.sent, x.headers = answer, nil, nil, sentBody{usage: x.sent.usage}, nil
}

// letGoIfSent is letGo for when the answer has begun, once the whole request was sent.
func (x *exchange) letGoIfSent() {
	if x.headers == nil || x.opened != nil && !x.opened.RequestWritten() {
		return
	}
	x.letGo()
	if x.norm != nil {
		x.norm.input = nil
	}
}

// giveBack gives all of the body budget back, at the end.
func (x *exchange) giveBack() {
	x.s.bodies.give(x.share, x.held)
	x.held = 0
}

// dispatch opens the run, as often as the outcome allows, and returns the last verdict.
func (x *exchange) dispatch() *verdict {
	var former *verdict      // of the last target to avoid
	var last execution.Usage // of the attempt before, unless former is the end
	for attempt := 1; ; attempt++ {
		ticket, v := x.admit()
		if ticket == nil && former != nil && v.next == nextElsewhere {
			return former // there is no other
		}
		x.earlier = plus(x.earlier, last)
		if ticket == nil {
			return v
		}
		x.ticket, x.line = ticket, ticket.Line
		run, err := x.open(ticket, attempt)
		here, isHere := errors.AsType[*hereError](err)
		if isHere {
			ticket.Release()
			v = x.answered(here.body)
		} else if err != nil {
			v = openVerdict(ticket, err)
		} else {
			x.opened = run
			x.rec.opened(run, ticket, x.w)
			if ticket.Normalized {
				v = x.relayEvents(run, ticket)
			} else {
				v = x.relay(run, ticket)
			}
		}
		ticket.Done()
		x.settleGrant(v)
		x.learnRefusal(ticket.Target, v)
		if v.next == nextNothing || attempt == maxDispatches {
			return v
		}
		x.rec.requeued()
		last = x.spent(&v.terminal)
		switch v.next {
		case nextElsewhere:
			if v.terminal.Outcome != execution.Rejected { // no provider has seen the others
				if x.retries >= x.route.Retry.Attempts {
					return v
				}
				x.retries++
			}
			x.avoid, former = append(x.avoid, ticket.Target), v
			x.s.metrics.retried(v.terminal.Code)
		case nextPlain:
			x.noUsage, x.refuser = true, ticket.Target
		case nextOtherKind:
			x.kinds &^= v.kinds
			former = v
		}
	}
}

// admit waits for a ticket. Without one, the verdict says why; its next is nextElsewhere if only avoided targets are
// left.
func (x *exchange) admit() (*admission.Ticket, *verdict) {
	ticket, waiter, err := x.s.adm.Acquire(x.admission())
	if ticket == nil && x.op.ID == openai.OpCountTokens && (err == nil || errors.Is(err, admission.ErrUnsupported)) {
		return nil, x.countTokens(waiter)
	}
	if waiter != nil {
		ev := x.queue(waiter)
		if ev != eventReady {
			absent := waiter.Absent()
			waiter.Leave()
			return nil, x.interrupted(ev, absent)
		}
		ticket, err = waiter.Result()
	}
	if ticket != nil && (waiter != nil || x.ticket != nil) {
		if e := x.stillMay(); e != nil {
			ticket.Release()
			ticket.Done()
			return nil, &verdict{terminal: execution.Terminal{Outcome: execution.Rejected, Code: execution.CodeUnknownProvider}, problem: e}
		}
	}
	if waiter != nil {
		if ticket != nil && !x.tellDispatched() {
			waiter.Leave()
			return nil, x.interrupted(eventGone, false)
		}
	}
	if e, ok := errors.AsType[*admission.NotPermittedError](err); ok {
		return nil, x.notPermitted(e)
	}
	if err != nil {
		v := admitVerdict(x.env.Model, x.op, err)
		if errors.Is(err, admission.ErrUnknownModel) {
			x.s.suggest(v.problem, x.key, x.fam, x.env.Model)
		}
		if errors.Is(err, admission.ErrNotConnected) {
			v.problem = x.nobodyConnected()
		}
		return nil, v
	}
	return ticket, nil
}

// admission is what is asked of admission.
func (x *exchange) admission() admission.Request {
	r := admission.Request{
		Route:     x.route,
		Principal: admission.Principal{ID: x.key.Principal(), Weight: x.key.Weight, Priority: x.key.Priority},
		Tokens:    x.tokens, Output: x.output, Avoid: x.avoid, Line: x.line,
		Op: x.op.ID, Kinds: x.kinds,
	}
	if x.affinity != nil {
		r.Affinity = *x.affinity
	}
	return r
}

// admitVerdict says why there is no ticket.
func admitVerdict(model string, op *openai.Operation, err error) *verdict {
	v := &verdict{terminal: execution.Terminal{Outcome: execution.Rejected, Code: execution.CodeCapacity, Detail: err.Error()}}
	full, isFull := errors.AsType[*admission.QueueFullError](err)
	switch {
	case isFull:
		v.problem = openai.QueueFull(full.RetryAfter)
	case errors.Is(err, admission.ErrUnknownModel):
		v.terminal.Code = execution.CodeUnknownProvider
		v.problem = openai.ModelNotFound(model)
	case errors.Is(err, admission.ErrNotConnected):
		v.terminal.Code = execution.CodeNoNodeAvailable
		v.problem = openai.NoNodeAvailable(noNodeRetry)
	case errors.Is(err, admission.ErrNoOther):
		v.terminal.Code = execution.CodeNoNodeAvailable
		v.problem, v.next = openai.NoNodeAvailable(time.Second), nextElsewhere
	case errors.Is(err, admission.ErrUnsupported):
		v.terminal.Code = execution.CodeUnsupported
		v.problem, v.next = unsupportedOperation(model, op), nextElsewhere
	case errors.Is(err, admission.ErrClosed):
		v.terminal.Code = execution.CodeDraining
		v.problem = openai.Stopping(time.Second)
	default:
		v.terminal.Code = execution.CodeInternal
		v.problem = openai.Internal()
	}
	return v
}

// open hands the run to the session that the ticket names.
func (x *exchange) open(ticket *admission.Ticket, attempt int) (registry.Run, error) {
	if err := x.prepare(ticket); err != nil {
		return nil, err
	}
	if err := x.begin(ticket, attempt); err != nil {
		return nil, err
	}
	body, more := x.outgoing(ticket)
	spec := tunnel.OpenSpec{
		Open: &wire.Open{
			RunId:     string(x.rec.id),
			Attempt:   uint32(attempt),
			SessionId: x.session,
			TimeoutMs: max(milliseconds(time.Until(x.deadline)), 1),
		},
		Body:     body,
		More:     more,
		Released: ticket.Release,
	}
	if ticket.Normalized {
		spec.Open.Kind = &wire.Open_Run{Run: x.runRequest(ticket)}
	} else {
		spec.Open.Kind = &wire.Open_ProviderTunnel{ProviderTunnel: x.exchangeRequest(ticket)}
	}
	if x.grant != nil {
		spec.Open.Lease, spec.Lease = x.grant.Binding(), x.grant.Lease
	}
	return x.s.reg.Open(ticket.Target, spec)
}

// openVerdict says what follows an Open that sent nothing.
func openVerdict(t *admission.Ticket, err error) *verdict {
	v := &verdict{
		terminal: execution.Terminal{Outcome: execution.Rejected, Code: execution.CodeDraining, Detail: err.Error()},
		problem:  openai.NoNodeAvailable(time.Second),
		next:     nextAgain,
	}
	parse, isParse := errors.AsType[*parseError](err)
	switch {
	case errors.Is(err, registry.ErrGone):
		t.Release()
	case errors.Is(err, tunnel.ErrTooManyStreams):
		v.terminal.Code = execution.CodeCapacity
		t.Refused(0)
	case errors.Is(err, errBudget):
		t.Release()
		v.terminal.Code, v.problem, v.next = execution.CodeCapacity, openai.Overloaded(budgetWait), nextNothing
	case isParse:
		t.Release()
		v.terminal.Code, v.problem = execution.CodeBadRequest, parse.told
		v.next, v.kinds = nextOtherKind, admission.EveryKind
	case isRefused(err):
		t.Release()
		v.terminal.Outcome, v.terminal.Code = execution.Failed, execution.CodeCredentialRejected
		v.problem, v.next = refusalOf(err), nextNothing
	default:
		t.Release()
		v.terminal.Code, v.problem, v.next = execution.CodeInternal, openai.Internal(), nextNothing
	}
	return v
}

// wait waits for ready, the client's going, a cancel or a deadline, and keeps an event stream alive meanwhile.
func (x *exchange) wait(ready <-chan struct{}) event {
	for {
		ev, now, killed := x.sleep(ready)
		switch ev {
		case eventReady:
			if x.reply.gone { // found out by passDirect
				return eventGone
			}
			return eventReady
		case eventGone:
			return eventGone
		case eventKilled:
			x.reply.killed = killed
			return eventKilled
		}
		if ev = x.alarm(now); ev != eventReady {
			return ev
		}
	}
}

// sleep lets go of the exchange until something happens. eventDeadline: the timer rang.
func (x *exchange) sleep(ready <-chan struct{}) (ev event, now time.Time, killed execution.Code) {
	x.busy.Unlock()
	defer x.busy.Lock()
	select {
	case <-ready:
		return eventReady, now, killed
	case <-x.r.Context().Done():
		return eventGone, now, killed
	case killed = <-x.rec.kill:
		return eventKilled, now, killed
	case <-x.rings:
		return eventDeadline, time.Now(), killed
	}
}

// alarm looks at what is due, and sets the timer anew. eventReady: nothing that ends the wait.
func (x *exchange) alarm(now time.Time) event {
	switch {
	case !now.Before(x.deadline.Add(deadlineGrace)), !x.queueEnd.IsZero() && !now.Before(x.deadline):
		return eventDeadline
	case !x.queueEnd.IsZero() && !now.Before(x.queueEnd):
		return eventQueueEnd
	}
	if x.newsDue(now) && !x.tellPlace(now) {
		return eventGone
	}
	if x.keepsAlive() && now.Sub(x.spoke) >= keepAlive && !x.holdsHead() {
		if !x.ping(now) {
			return eventGone
		}
	}
	if !now.Before(x.patienceEnd(now)) {
		x.refreshDeadline(now)
	}
	x.rearm(now)
	return eventReady
}

// rearm sets the timer for what is due next.
func (x *exchange) rearm(now time.Time) { x.timer.Reset(x.alarmIn(now)) }

func (x *exchange) alarmIn(now time.Time) time.Duration {
	due := x.deadline.Add(deadlineGrace)
	if !x.queueEnd.IsZero() {
		due = x.queueEnd
		if x.deadline.Before(due) {
			due = x.deadline
		}
	}
	if x.keepsAlive() {
		next := x.spoke.Add(keepAlive)
		if !next.After(now) {
			next = now.Add(keepAlive) // inside an event nothing may be said
			if x.waiter != nil {
				next = now.Add(newsInterval) // until holdsHead ends
			}
		}
		if next.Before(due) {
			due = next
		}
	}
	if x.waiter != nil && x.news.when != newsNever && x.news.next.Before(due) {
		due = x.news.next
	}
	if end := x.patienceEnd(now); x.r.ProtoMajor > 1 && end.Before(due) {
		due = end
	}
	return due.Sub(now)
}

// interrupted is the verdict of a wait that ended before its time, with no run open. absent: no target was connected.
func (x *exchange) interrupted(ev event, absent bool) *verdict {
	v := &verdict{terminal: execution.Terminal{Outcome: execution.Cancelled, Code: x.codeOf(ev)}}
	switch ev {
	case eventQueueEnd, eventDeadline:
		v.problem = openai.QueueTimeout()
		if absent { // there was no queue
			v.problem, v.terminal.Code = x.nobodyConnected(), execution.CodeNoNodeAvailable
		}
	case eventKilled:
		v.problem = problemOf(v.terminal)
	}
	return v
}

// nobodyConnected refuses a request that waited in vain for a target to be connected.
func (x *exchange) nobodyConnected() *openai.Error {
	return openai.NoNodeInTime(x.env.Model, listPath(x.fam), time.Since(x.news.began), noNodeRetry)
}

// codeOf is the code that a run is cancelled with because of ev.
func (x *exchange) codeOf(ev event) execution.Code {
	switch ev {
	case eventGone:
		x.reply.gone = true
		return execution.CodeClientGone
	case eventKilled:
		return x.reply.killed
	}
	return execution.CodeDeadline
}

// detach waits for the end of a run whose answer nobody gets any more, as long as that is worth it: the Node's word
// has the usage. The tunnel makes an end itself when the Node stays silent.
func (x *exchange) detach(run registry.Run, code execution.Code) execution.Terminal {
	run.Cancel(code, code.String())
	patience := endPatience
	if code == execution.CodeClientGone {
		patience = time.Minute // nobody is kept waiting
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.r.Context()), patience)
	defer cancel()
	for {
		if b, ok := run.Take(); ok {
			if b.End != nil {
				x.believe(b.End)
				return *b.End
			}
			continue
		}
		select {
		case <-run.Ready():
		case <-ctx.Done():
			run.Abandon(code, code.String())
			return execution.Terminal{Outcome: execution.Cancelled, Code: code, Phase: run.Phase()}
		}
	}
}
