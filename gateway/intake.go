package gateway

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"iop/openai"
	"iop/tunnel/wire"
)

const (
	// bodySilence is how long a client may send nothing while its body is awaited.
	bodySilence = time.Minute
	// chunkedStart is the first buffer for a body of unknown length.
	chunkedStart = 64 << 10
	// budgetWait is what a client is told to wait when too many bodies are in memory.
	budgetWait = 5 * time.Second
	// maxHeaderValue bounds a forwarded header, in bytes.
	maxHeaderValue = 1024
)

// budget bounds the request bodies that the process holds at once.
type budget struct {
	limit int64
	used  atomic.Int64
}

func (b *budget) take(n int64) bool {
	if b.used.Add(n) <= b.limit {
		return true
	}
	b.used.Add(-n)
	return false
}

func (b *budget) give(n int64) { b.used.Add(-n) }

// readBody reads the whole body, within the limits of one request and of all together. held is what it took of the
// budget, for the caller to give back when the body is no longer needed, also after an error.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) (body []byte, held int64, e *openai.Error) {
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
	if r.ContentLength > 0 {
		held = r.ContentLength
		if !s.bodies.take(held) {
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
		body, held, err = s.readChunked(&in)
	}
	_ = rc.SetReadDeadline(time.Time{})
	if err != nil {
		if e, ok := errors.AsType[*openai.Error](err); ok {
			return nil, held, e
		}
		return nil, held, openai.InvalidRequest("", "The request body ended early, or stalled for more than a minute.")
	}
	return body, held, nil
}

// readChunked reads a body of unknown length into a buffer that grows, and pays the budget before it does.
func (s *Server) readChunked(in io.Reader) (body []byte, held int64, err error) {
	size := min(int64(chunkedStart), s.cfg.MaxBodyBytes+1)
	if !s.bodies.take(size) {
		return nil, 0, openai.Overloaded(budgetWait)
	}
	held, body = size, make([]byte, 0, size)
	for {
		n, err := in.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case int64(len(body)) > s.cfg.MaxBodyBytes:
			return nil, held, openai.RequestTooLarge(s.cfg.MaxBodyBytes)
		case err == io.EOF:
			return body, held, nil
		case err != nil:
			return nil, held, err
		}
		if len(body) < cap(body) {
			continue
		}
		more := min(int64(cap(body)), s.cfg.MaxBodyBytes+1-int64(cap(body)))
		if !s.bodies.take(more) {
			return nil, held, openai.Overloaded(budgetWait)
		}
		held += more
		body = append(make([]byte, 0, int64(cap(body))+more), body...)
	}
}

// slowReader gives each read of a body bodySilence to bring something, but moves the deadline only now and then.
type slowReader struct {
	from io.Reader
	rc   *http.ResponseController
	set  time.Time
}

func (s *slowReader) Read(p []byte) (int, error) {
	if now := time.Now(); now.Sub(s.set) > bodySilence/8 {
		s.set = now
		_ = s.rc.SetReadDeadline(now.Add(bodySilence)) // every writer of net/http's can
	}
	return s.from.Read(p)
}

// look finds the model in the body, and what else the Edge must know.
func look(op *openai.Operation, contentType string, body []byte) (openai.Envelope, *openai.Error) {
	media, _, _ := mime.ParseMediaType(contentType)
	if contentType == "application/json" {
		media = contentType
	}
	if media == "multipart/form-data" {
		if !op.Multipart {
			return openai.Envelope{}, openai.UnsupportedMediaType("application/json")
		}
		model, stream, err := openai.ParseMultipartModel(contentType, body)
		if err != nil {
			return openai.Envelope{}, asError(err)
		}
		if model == "" {
			return openai.Envelope{}, openai.ModelRequired()
		}
		return openai.Envelope{Model: model, Stream: stream}, nil
	}
	if !op.JSON {
		return openai.Envelope{}, openai.UnsupportedMediaType("multipart/form-data")
	}
	env, err := openai.ParseEnvelope(body)
	if err != nil {
		return env, asError(err)
	}
	if env.Model == "" {
		return env, openai.ModelRequired()
	}
	return env, nil
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
// x-iop-*, which are ours.
var forwarded = [...]struct{ name, wire string }{
	{"Content-Type", "content-type"},
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
// first goes; a value that is too long does not. The body that the Edge sends is JSON wherever no form was sent.
func (s *Server) forwardHeaders(h http.Header) []*wire.Header {
	room := make([]wire.Header, len(forwarded)+1)
	list := make([]*wire.Header, 0, len(room))
	add := func(name, value string) {
		f := &room[len(list)]
		f.Name, f.Value = name, value
		list = append(list, f)
	}
	for i := range forwarded {
		if v := h[forwarded[i].name]; len(v) > 0 && len(v[0]) <= maxHeaderValue {
			add(forwarded[i].wire, v[0])
		} else if i == 0 {
			add("content-type", "application/json")
		}
	}
	add("via", s.via)
	return list
}

// looped reports whether the request has passed this Edge before.
func (s *Server) looped(h http.Header) bool {
	for _, v := range h["Via"] {
		if strings.Contains(v, s.via) {
			return true
		}
	}
	return false
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
