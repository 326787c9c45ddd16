package gateway

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"iop/execution"
	"iop/gateway/admission"
	"iop/gateway/registry"
	"iop/openai"
	"iop/tunnel"
	"iop/tunnel/wire"
)

const (
	// gatherLimit is how much of an answer that is not streamed is gathered before any of it is sent: below it a
	// broken answer can still become an error status, and the whole goes out in one write.
	gatherLimit = 64 << 10
	// errorLimit bounds how much of a provider's error is kept.
	errorLimit = 256 << 10
	// writeSilence is how long a client may accept no byte until it counts as gone. writeRefresh later at most, as the
	// deadline is not moved at each write.
	writeSilence = 5 * time.Minute
	writeRefresh = 30 * time.Second
	// maxRetryAfter caps what a provider says.
	maxRetryAfter = 60 * time.Second
	// firstEventError is the header by which a Node says that the error it sends as a body came as the first event of
	// an event stream.
	firstEventError = "x-iop-first-event-error"
)

// reply is what the client got so far. It outlives a dispatch.
type reply struct {
	status    int    // 0 until the head was sent
	code      string // of the error that the client got, or empty
	events    bool   // the head promised an event stream, or one of lines
	answered  bool   // bytes of the provider's answer went out: no second dispatch
	gone      bool   // a write failed
	border    bool   // nothing, or an event's end, was written last
	bytes     int64
	relayed   relayed
	firstByte time.Duration
	tail      [16]byte // the last bytes of an event stream
	killed    execution.Code
	patience  time.Time // when the write deadline was last moved
	opaque    bool      // this dispatch's answer is no event stream: nothing may be put in
}

// answer is what one dispatch brought so far.
type answer struct {
	head   *wire.Head // nil until HEAD; a normalized run has none
	status int
	kind   string // the Content-Type
	length int64  // of the body, -1 if unknown
	came   int64  // bytes of it
	sse    bool   // an event stream, or one of lines
	gather bool   // nothing is sent before the end
	bare   bool   // its status forbids a body (RFC 9110, sections 15.3.5 and 15.3.6)
	buf    []byte // gathered
}

// relay passes what comes from one run on to the client, until its end.
func (x *exchange) relay(run registry.Run, ticket *admission.Ticket) *verdict {
	x.reply.opaque = false
	x.answer = answer{}
	a := &x.answer
	lent := false
	for {
		b, ok := run.Take()
		if !ok {
			if ev := x.wait(run.Ready()); ev != eventReady {
				return x.cut(run, ev)
			}
			continue
		}
		if b.Head != nil {
			x.read(a, b.Head)
		}
		if len(b.Data) > 0 {
			if a.status < 300 {
				ticket.Answering()
			}
			if !a.counts(len(b.Data)) {
				return x.overrun(run, b.End, ticket)
			}
			if !x.take(a, &b) {
				return x.cut(run, eventGone)
			}
		}
		if b.End != nil {
			x.believe(b.End)
			return x.finish(a, b.End, run, ticket)
		}
		if x.reply.answered {
			x.letGoIfSent()
		}
		if !lent && a.sse && x.reply.answered {
			lent = true
			x.lend(run)
		}
	}
}

// cut ends a run whose answer is not wanted any more. A client that has the stream's own end hangs up when it likes, perhaps
// before the Node has said that the run is over: that is no cancel.
func (x *exchange) cut(run registry.Run, ev event) *verdict {
	code := x.codeOf(ev)
	t := x.detach(run, code)
	switch {
	case ev == eventGone && x.reply.over() && (t.Outcome == execution.Completed || t.Code == code):
		t.Outcome, t.Code, t.Detail = execution.Completed, execution.CodeNone, ""
	case t.Outcome == execution.Completed:
		t.Outcome, t.Code = execution.Cancelled, code // it came too late
	}
	if t.Outcome != execution.Completed && x.rec.hungUp.Load() {
		t.Detail = lagDetail
	}
	v := &verdict{terminal: t}
	if ev != eventGone {
		v.problem = problemOf(execution.Terminal{Code: code})
	}
	return v
}

// read looks at the head and decides how the body goes on.
func (x *exchange) read(a *answer, h *wire.Head) {
	a.head, a.status, a.length = h, int(h.Status), -1
	for _, f := range h.Headers {
		switch f.Name {
		case "content-type":
			a.kind = passedType(f.Value)
		case "content-length":
			if n, err := strconv.ParseInt(f.Value, 10, 64); err == nil && n >= 0 {
				a.length = n
			}
		}
	}
	ok := a.status >= 200 && a.status < 300
	a.bare = a.status == http.StatusNoContent || a.status == http.StatusResetContent
	a.sse = ok && (isMedia(a.kind, "text/event-stream") || x.lines() && isMedia(a.kind, kindLines))
	switch {
	case !ok, a.bare, x.reply.status != 0 && !a.sse:
		a.gather, a.sse = true, false
	case a.sse:
	case a.length >= 0:
		a.gather = a.length <= gatherLimit
	default:
		a.gather = !x.env.Stream && isMedia(a.kind, "application/json")
	}
	x.reply.opaque = !a.sse
}

// take passes body bytes on, or gathers them. It returns false if the client is gone.
func (x *exchange) take(a *answer, b *tunnel.Batch) bool {
	if !a.gather {
		return x.send(a, b.Data, b.AtBorder, b.End)
	}
	ok := a.status < 300
	switch {
	case !ok:
		a.buf = append(a.buf, b.Data[:min(len(b.Data), errorLimit-len(a.buf))]...)
	case b.End != nil && a.buf == nil:
		a.buf = b.Data // the last batch: the bytes stay
	case len(a.buf)+len(b.Data) > gatherLimit && x.reply.status == 0 && !a.bare:
		a.gather = false
		head := a.buf
		a.buf = nil
		return (len(head) == 0 || x.send(a, head, false, nil)) && x.send(a, b.Data, b.AtBorder, b.End)
	case len(a.buf) <= gatherLimit:
		a.buf = append(a.buf, b.Data...)
	}
	return true
}

// send writes bytes of the answer, after the head where it was not sent. All of them go out at once, unless the
// response ends right after.
func (x *exchange) send(a *answer, data []byte, border bool, end *execution.Terminal) bool {
	now := time.Now()
	if x.reply.status == 0 {
		if a.length < 0 && !a.sse && end != nil && end.Outcome == execution.Completed {
			a.length = int64(len(data))
		}
		x.commit(a, now)
	}
	if !x.reply.answered {
		x.reply.answered = true
		x.reply.firstByte = now.Sub(x.started)
		x.rec.firstByte.Store(int64(x.reply.firstByte))
		x.letGoIfSent() // before the write: a client that reads nothing must not hold it
	}
	if !x.write(data, now, end == nil) {
		return false
	}
	x.reply.border = border
	if a.sse {
		x.chunks.note(now)
		x.reply.remember(data)
		x.reply.relayed.note(data)
	}
	return true
}

// remember keeps the end of what was written, to know whether a stream was over.
func (r *reply) remember(data []byte) {
	n := len(r.tail)
	if len(data) >= n {
		copy(r.tail[:], data[len(data)-n:])
		return
	}
	copy(r.tail[:], r.tail[len(data):])
	copy(r.tail[n-len(data):], data)
}

// over reports whether an event stream's own end was written last.
func (r *reply) over() bool { return bytes.HasSuffix(bytes.TrimRight(r.tail[:], "\r\n"), done) }

// write writes to the client; flush sends it at once. False: the client is gone.
func (x *exchange) write(data []byte, now time.Time, flush bool) bool {
	for flush && len(data) > writePiece {
		if !x.writePiece(data[:writePiece], now, true) {
			return false
		}
		data, now = data[writePiece:], time.Now()
	}
	return x.writePiece(data, now, flush)
}

func (x *exchange) writePiece(data []byte, now time.Time, flush bool) bool {
	x.refreshDeadline(now)
	corked := flush && x.cork != nil && len(data) >= worthCorking
	switch {
	case corked:
		x.cork.hold()
	case x.cork != nil && x.reply.events && len(data) >= worthCorking:
		x.cork.holdToEnd()
	}
	n, err := x.w.Write(data)
	if err == nil && flush {
		err = http.NewResponseController(x.w).Flush()
	}
	if corked {
		if released := x.cork.release(); err == nil {
			err = released
		}
	}
	x.reply.bytes += int64(n)
	x.rec.bytes.Store(x.reply.bytes)
	x.spoke = now
	x.reply.gone = x.reply.gone || err != nil
	return err == nil
}

// refreshDeadline gives the client time to take what is written next.
func (x *exchange) refreshDeadline(now time.Time) {
	if now.Sub(x.reply.patience) > writeRefresh && !x.rec.hungUp.Load() {
		x.reply.patience = now
		_ = http.NewResponseController(x.w).SetWriteDeadline(now.Add(writeSilence + writeRefresh))
	}
}

// patienceEnd is when the write deadline must be moved although nothing is written: in HTTP/2 its passing resets the stream,
// and a provider may be silent for longer in the middle of an answer.
func (x *exchange) patienceEnd(now time.Time) time.Time {
	if x.reply.patience.IsZero() {
		return now.Add(writeSilence)
	}
	return x.reply.patience.Add(writeSilence)
}

// keepsAlive reports whether comments may fill the silence.
func (x *exchange) keepsAlive() bool { return x.events && !x.reply.opaque && !x.reply.gone }

// pingLine is a comment. No blank line follows: some parsers take that for an event without data.
var pingLine = []byte(": ping\n")

// ping fills the silence, if it is one between events. False: the client is gone.
func (x *exchange) ping(now time.Time) bool {
	if x.reply.status == 0 {
		x.commit(nil, now)
	} else if !x.reply.border {
		return true
	}
	return x.write(pingLine, now, true)
}

// finish is the verdict of a run that has ended.
func (x *exchange) finish(a *answer, end *execution.Terminal, run registry.Run, ticket *admission.Ticket) *verdict {
	v := &verdict{terminal: *end}
	switch {
	case end.Outcome != execution.Completed && x.reply.answered:
		report(ticket, end.Code)
		v.problem, v.told = problemOf(*end), end.Told && x.reply.events
	case end.Outcome != execution.Completed:
		return x.failed(*end, x.reached(run), ticket)
	case a.head == nil:
		v.fail(openai.ProviderFailed(""))
	case a.status >= 300:
		return x.refused(a, *end, ticket)
	case a.bare && len(a.buf) > 0:
		v.fail(openai.ProviderFailed("The model's provider sent a body with a status that allows none."))
	case a.declares() && a.came < a.length:
		v.fallsShort()
	case a.gather && x.reply.status != 0:
		v.fail(openai.ProviderFailed("The model's provider did not answer with an event stream."))
	case a.gather:
		a.length = int64(len(a.buf))
		if len(a.buf) > 0 {
			x.send(a, a.buf, true, end)
		} else {
			x.commitEmpty(a)
		}
	case !x.reply.answered && a.sse:
		v.terminal.Code = execution.CodeProviderTruncated
		v.fail(openai.ProviderTruncated())
	case !x.reply.answered:
		x.commitEmpty(a)
	}
	switch {
	case v.terminal.Outcome == execution.Completed:
		ticket.Served(x.sampleOf(end))
	case end.Outcome == execution.Completed: // no answer at all, or no usable one
		ticket.Failed()
	}
	return v
}

// commitEmpty sends the head of an answer without a body.
func (x *exchange) commitEmpty(a *answer) {
	if x.reply.status == 0 {
		if a.length = 0; a.bare {
			a.length = -1
		}
		x.commit(a, time.Now())
	}
}

// fail makes a completed exchange with a provider a failure.
func (v *verdict) fail(e *openai.Error) {
	v.problem = e
	v.terminal.Outcome = execution.Failed
	if v.terminal.Code == execution.CodeNone {
		v.terminal.Code = execution.CodeProviderError
	}
}

// rawReply is a provider's error that passes with its own body.
type rawReply struct {
	status     int
	body       []byte
	retryAfter time.Duration
}

// answeredWith says for the operator with which error status a provider ended a run.
func answeredWith(status int) string {
	detail := "the provider answered " + strconv.Itoa(status)
	if status == http.StatusUnauthorized || status == http.StatusForbidden {
		detail += ": check the key that it gets"
	}
	return detail
}

// refused is the verdict of an exchange that the provider ended with an error status.
func (x *exchange) refused(a *answer, end execution.Terminal, ticket *admission.Ticket) *verdict {
	status, body := a.status, bytes.Clone(a.buf)
	end.Usage = x.usedForError(end.Usage, body)
	end.Detail = cmp.Or(end.Detail, answeredWith(status))
	v := &verdict{terminal: end}
	if status == http.StatusBadGateway && header(a.head, firstEventError) != "" { // the Node could not tell which
		if e := firstEvent(body); e != nil {
			v.fail(e)
			v.next = x.afterStatus(e.Status)
			reportStatus(ticket, e.Status, 0, end)
			return v
		}
	}
	wait := retryAfter(a.head)
	reportStatus(ticket, status, wait, end)
	if status == http.StatusBadRequest && x.sent.usage && x.saysRefusal(body) {
		v.next = nextPlain
	} else {
		v.next = x.afterStatus(status)
	}
	newStatus, _, e := openai.WrapProviderError(status, body)
	if newStatus != http.StatusTooManyRequests && newStatus != http.StatusServiceUnavailable {
		wait = 0
	}
	if newStatus >= 500 || newStatus == http.StatusTooManyRequests {
		v.terminal.Outcome, v.terminal.Code = execution.Failed, execution.CodeProviderError
	}
	if e == nil && !inShape(x.fam, body) {
		e = (&rawReply{status: newStatus, body: body}).problem()
	}
	if e == nil {
		v.raw = &rawReply{status: newStatus, body: body, retryAfter: wait}
		return v
	}
	told := *e
	if told.RetryAfter == 0 {
		told.RetryAfter = wait
	}
	v.problem = &told
	return v
}

// firstEvent reads the error that an engine put into its event stream before anything else. Nil if it is none.
func firstEvent(body []byte) *openai.Error {
	f := openai.NewStreamFilter(openai.StreamChat, false)
	f.Push(slices.Concat([]byte("data: "), body, blankLines))
	if found := f.ErrorEvent(); found != nil {
		return found.Err
	}
	return nil
}

// problem is the error as it is told inside an event stream.
func (r *rawReply) problem() *openai.Error {
	var body struct {
		Error struct {
			Message string          `json:"message"`
			Type    string          `json:"type"`
			Param   string          `json:"param"`
			Code    json.RawMessage `json:"code"`
		} `json:"error"`
	}
	if json.Unmarshal(r.body, &body) != nil || body.Error.Message == "" {
		return openai.ProviderFailed("")
	}
	e := body.Error
	return &openai.Error{
		Status: r.status, Type: cmp.Or(e.Type, "invalid_request_error"), Param: e.Param, Message: e.Message,
		Code: strings.Trim(string(e.Code), `"`),
	}
}

func header(h *wire.Head, name string) string {
	for _, f := range h.Headers {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

// retryAfter reads a provider's Retry-After in seconds; a date is not believed, clocks differ.
func retryAfter(h *wire.Head) time.Duration {
	seconds, err := strconv.Atoi(header(h, "retry-after"))
	if err != nil || seconds <= 0 {
		return 0
	}
	return time.Duration(min(seconds, int(maxRetryAfter/time.Second))) * time.Second
}

// conclude tells the client of the failure, if there is one and it can still be told. abort: the response must be cut
// off, so that the client does not take it for whole.
func (x *exchange) conclude(v *verdict) (abort bool) {
	switch {
	case v.problem == nil && v.raw == nil || v.told:
		return x.reply.gone
	case x.reply.gone:
		return true
	case x.reply.status == 0:
		x.refuse(v)
		return false
	case x.reply.events:
		x.inBand(v)
		return false
	}
	return true
}

// refuse answers with an error status.
func (x *exchange) refuse(v *verdict) {
	now := time.Now()
	x.refreshDeadline(now)
	h := x.w.Header()
	values := make(headerValues, 0, 8)
	x.ownHeaders(h, &values, now)
	if v.raw == nil {
		x.reply.status, x.reply.code = v.problem.Status, v.problem.Code
		openai.WriteError(x.w, x.fam, x.requestID, v.problem)
		return
	}
	x.reply.status = v.raw.status
	values.set(h, "Content-Type", "application/json") // what goes on as it is, is
	values.set(h, "Content-Length", strconv.Itoa(len(v.raw.body)))
	if v.raw.retryAfter > 0 {
		values.set(h, "Retry-After", strconv.Itoa(int(v.raw.retryAfter/time.Second)))
	}
	x.w.WriteHeader(v.raw.status)
	x.write(v.raw.body, now, false)
}

var (
	done       = []byte("[DONE]")
	blankLines = []byte("\n\n")
)

// inBand ends an event stream with the protocol's own error. A stream that was over stays as it is.
func (x *exchange) inBand(v *verdict) {
	if x.reply.over() {
		return
	}
	problem := v.problem
	if problem == nil {
		problem = v.raw.problem()
	}
	x.reply.code = problem.Code
	if x.renders() {
		x.failInBand(problem)
		return
	}
	var out []byte
	switch {
	case x.reply.border:
	case x.lines():
		out = append(out, '\n') // the line that was cut off ends here
	default:
		out = append(out, blankLines...) // so does the event
	}
	x.write(openai.AppendInBandError(out, x.op.Stream, problem), time.Now(), false)
}
