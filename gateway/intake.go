package gateway

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"iop/openai"
	"iop/tunnel/wire"
)

const (
	// Each bodyWindow must bring bodyStep bytes of a body, or its end: a client that sends less holds memory that others
	// want. It is far below what any link carries that a prompt is sent over.
	bodyWindow = time.Minute
	bodyStep   = 64 << 10
	// firstBuffer is what a body gets before its first byte; most need no more.
	firstBuffer = 64 << 10
	// budgetWait is what a client is told to wait when too many bodies are in memory.
	budgetWait = 5 * time.Second
	// maxHeaderValue bounds a forwarded header, in bytes.
	maxHeaderValue = 1024
)

// budget bounds the request bodies that the process holds at once. The last part of it is for principals that hold little,
// so that nobody's uploads keep all others out.
type budget struct {
	limit    int64
	reserve  int64 // what is left for principals that hold no more than this
	used     atomic.Int64
	sharesOf sync.Map // principal to *keyShare; one entry for each that has ever called
}

func newBudget(limit, greatest int64) budget {
	return budget{limit: limit, reserve: min(limit/4, limit-greatest)}
}

// keyShare is what one principal's requests hold.
type keyShare struct{ used atomic.Int64 }

// share returns the share of a principal.
func (b *budget) share(principal string) *keyShare {
	if v, ok := b.sharesOf.Load(principal); ok {
		return v.(*keyShare)
	}
	v, _ := b.sharesOf.LoadOrStore(principal, new(keyShare))
	return v.(*keyShare)
}

func (b *budget) take(share *keyShare, n int64) bool {
	mine, all := share.used.Add(n), b.used.Add(n)
	if all <= b.limit-b.reserve || all <= b.limit && mine <= b.reserve {
		return true
	}
	b.give(share, n)
	return false
}

func (b *budget) give(share *keyShare, n int64) {
	if n == 0 {
		return
	}
	share.used.Add(-n)
	b.used.Add(-n)
}

// readBody reads the whole body, within the limits of one request and of all together. held is what it took of the
// budget, for the caller to give back when the body is no longer needed, also after an error.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request, share *keyShare) (body []byte, held int64, e *openai.Error) {
	switch {
	case len(r.Header["Content-Encoding"]) > 0:
		return nil, 0, openai.UnsupportedMediaType("an uncompressed body")
	case r.ContentLength > s.cfg.MaxBodyBytes:
		return nil, 0, openai.RequestTooLarge(s.cfg.MaxBodyBytes)
	case r.ContentLength == 0:
		return nil, 0, nil
	}
	rc := http.NewResponseController(w)
	in := slowReader{from: r.Body, rc: rc}
	var err error
	if r.ContentLength > 0 && r.ContentLength <= firstBuffer {
		held = r.ContentLength
		if !s.bodies.take(share, held) {
			return nil, 0, openai.Overloaded(budgetWait)
		}
		body = make([]byte, r.ContentLength)
		_, err = io.ReadFull(&in, body)
		if err == nil {
			// net/http watches for the client's going away only after it has seen the end of the body.
			var one [1]byte
			_, _ = in.Read(one[:])
		}
	} else {
		body, held, err = s.readGrowing(&in, r.ContentLength, share)
	}
	_ = rc.SetReadDeadline(time.Time{})
	if err != nil {
		if e, ok := errors.AsType[*openai.Error](err); ok {
			return nil, held, e
		}
		return nil, held, openai.InvalidRequest("", "The request body ended early, or came too slowly: each minute must bring 64 KiB of it.")
	}
	return body, held, nil
}

// readGrowing reads a body into a buffer that grows as bytes arrive, and pays the budget before it does: a length that
// was only announced costs nothing. length is -1 if unknown.
func (s *Server) readGrowing(in io.Reader, length int64, share *keyShare) (body []byte, held int64, err error) {
	limit := s.cfg.MaxBodyBytes + 1 // one byte more shows that there is more
	if length > 0 {
		limit = length
	}
	size := min(int64(firstBuffer), limit)
	if !s.bodies.take(share, size) {
		return nil, 0, openai.Overloaded(budgetWait)
	}
	held, body = size, make([]byte, 0, size)
	for {
		var one [1]byte
		room := body[len(body):cap(body)]
		if len(room) == 0 {
			room = one[:] // the end, if length was true
		}
		n, err := in.Read(room)
		if cap(body) > len(body) {
			body = body[:len(body)+n]
		}
		switch {
		case int64(len(body)) > s.cfg.MaxBodyBytes:
			return nil, held, openai.RequestTooLarge(s.cfg.MaxBodyBytes)
		case err == io.EOF && length > 0 && int64(len(body)) < length:
			return nil, held, io.ErrUnexpectedEOF
		case err == io.EOF:
			return body, held, nil
		case err != nil:
			return nil, held, err
		}
		if len(body) < cap(body) || int64(cap(body)) >= limit {
			continue
		}
		more := min(int64(cap(body)), limit-int64(cap(body)))
		if !s.bodies.take(share, more) {
			return nil, held, openai.Overloaded(budgetWait)
		}
		held += more
		body = append(make([]byte, 0, int64(cap(body))+more), body...)
	}
}

// slowReader gives each bodyStep of a body bodyWindow to arrive.
type slowReader struct {
	from io.Reader
	rc   *http.ResponseController
	set  time.Time // when the present window began
	got  int       // bytes since then
}

func (s *slowReader) Read(p []byte) (int, error) {
	if s.set.IsZero() || s.got >= bodyStep {
		s.set, s.got = time.Now(), 0
		_ = s.rc.SetReadDeadline(s.set.Add(bodyWindow)) // every writer of net/http's can
	}
	n, err := s.from.Read(p)
	s.got += n
	return n, err
}

// look finds the model in the body, and what else the Edge must know. form is nil unless the body is one. contentType are
// the lines of that header.
func look(op *openai.Operation, contentType []string, body []byte) (env openai.Envelope, form *openai.Form, e *openai.Error) {
	isForm, boundary, err := openai.RequestBodyType(op, contentType)
	switch {
	case err != nil:
	case isForm:
		if form, err = openai.ParseForm(boundary, body); err == nil {
			env.Model, env.Stream = form.Model, form.Stream
		}
	default:
		env, err = openai.ParseEnvelope(body)
	}
	switch {
	case err != nil:
		return env, form, asError(err)
	case env.Model == "":
		return env, form, openai.ModelRequired()
	}
	return env, form, nil
}

// asError returns what a client may see of err.
func asError(err error) *openai.Error {
	if e, ok := errors.AsType[*openai.Error](err); ok {
		return e
	}
	return openai.Internal()
}

// forwarded are the request headers that travel to a provider, as net/http writes them and as they are named on the
// wire. All else stays here: what authorises, identifies or routes (Authorization, X-Api-Key, Cookie, Host, Forwarded,
// X-Forwarded-*), what frames (Connection, TE, Upgrade, Expect), Accept-Encoding (the Node reads what passes), and
// x-iop-*, which are ours. Content-Type is none of them: the Edge says itself how it wrote the body.
var forwarded = [...]struct{ name, wire string }{
	{"Accept", "accept"},
	{"User-Agent", "user-agent"},
	{"Accept-Language", "accept-language"},
	{"Openai-Beta", "openai-beta"},
	{"Openai-Organization", "openai-organization"},
	{"Openai-Project", "openai-project"},
	{"Anthropic-Version", "anthropic-version"},
	{"Anthropic-Beta", "anthropic-beta"},
	{"Traceparent", "traceparent"},
	{"Tracestate", "tracestate"},
}

// forwardHeaders returns what of the client's header goes to the provider. Of a header that is there twice only the
// first goes; a value that is too long does not. contentType is that of the body as the Edge sends it, via what Via says
// of the Edges that the request has come through.
func (s *Server) forwardHeaders(h http.Header, contentType, via string) []*wire.Header {
	room := make([]wire.Header, len(forwarded)+2)
	list := make([]*wire.Header, 0, len(room))
	add := func(name, value string) {
		f := &room[len(list)]
		f.Name, f.Value = name, value
		list = append(list, f)
	}
	add("content-type", contentType)
	for i := range forwarded {
		if v := h[forwarded[i].name]; len(v) > 0 && len(v[0]) <= maxHeaderValue {
			add(forwarded[i].wire, v[0])
		}
	}
	if via != "" {
		via += ", "
	}
	add("via", via+s.via)
	return list
}

const (
	// refusedBody is how long a client that was refused may take to finish its body: net/http reads the rest of a
	// small one before it writes the answer, so that the connection can be used again.
	refusedBody = 2 * time.Second
	// operatorBody is how long an operator's request may take to arrive.
	operatorBody = 10 * time.Second
)

// hurryBody bounds the wait for a body that nobody is going to read.
func hurryBody(w http.ResponseWriter, r *http.Request) { bodyWithin(w, r, refusedBody) }

func bodyWithin(w http.ResponseWriter, r *http.Request, d time.Duration) {
	if r.ProtoMajor == 1 && r.ContentLength != 0 {
		// Every writer of net/http's can; between two requests net/http sets the deadline anew.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(d))
	}
}

// promptly serves requests whose bodies arrive in a reasonable time.
func promptly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		bodyWithin(w, r, operatorBody)
		next.ServeHTTP(w, r)
	})
}

// parameters finds what the route changes in the request's parameters, and refuses those that are the route's to choose.
func (x *exchange) parameters() *openai.Error {
	p := &x.route.Parameters
	if x.form != nil {
		x.length.Choices = 1
		if err := x.form.CheckSteering(p.Allow); err != nil {
			return asError(err)
		}
		if err := x.form.Plan(p.Defaults, p.Caps); err != nil {
			return asError(err)
		}
		return nil
	}
	if err := x.env.CheckSteering(p.Allow); err != nil {
		return asError(err)
	}
	edits, err := x.env.Plan(x.body, x.op.ID, p.Defaults, p.Caps)
	if err != nil {
		return asError(err)
	}
	x.edits = edits
	x.length = x.env.Length(x.op.ID, p.Defaults, p.Caps)
	return nil
}
