package gateway

import (
	"errors"
	"net/http"
	"time"

	"iop/openai"
	"iop/tunnel/wire"
)

const (
	// maxHeaderValue bounds a forwarded header, in bytes.
	maxHeaderValue = 1024
)

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
// X-Forwarded-*), what chooses the account that pays (OpenAI-Organization, OpenAI-Project: the provider's key is the
// operator's), what frames (Connection, TE, Upgrade, Expect), Accept-Encoding (the Node reads what passes), and x-iop-*,
// which are ours. Content-Type is none of them: the Edge says itself how it wrote the body.
var forwarded = [...]struct{ name, wire string }{
	{"Accept", "accept"},
	{"User-Agent", "user-agent"},
	{"Accept-Language", "accept-language"},
	{"Openai-Beta", "openai-beta"},
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
	p, limited := &x.route.Parameters, x.key.Limited() || x.route.Limited()
	if x.form != nil {
		x.length.Choices = 1
		if err := x.form.CheckSteering(x.op.ID, p.Allow); err != nil {
			return asError(err)
		}
		if err := x.form.CheckMembers(x.op.ID, p, limited); err != nil {
			return asError(err)
		}
		if err := x.form.Plan(p.Defaults, p.Caps); err != nil {
			return asError(err)
		}
		return nil
	}
	if err := x.env.CheckSteering(x.op.ID, p.Allow); err != nil {
		return asError(err)
	}
	if err := x.env.CheckMembers(x.body, x.op.ID, p, limited); err != nil {
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
