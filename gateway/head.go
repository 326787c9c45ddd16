package gateway

import (
	"net/http"
	"strconv"
	"time"

	"iop/openai"
	"iop/tunnel/wire"
)

// commit sends the head of the response: the provider's, or without one (a nil) that of an event stream.
func (x *exchange) commit(a *answer, now time.Time) {
	h := x.w.Header()
	v := make(headerValues, 0, 20)
	status := http.StatusOK
	switch {
	case a == nil:
		v.set(h, "Content-Type", eventStream)
	default:
		status = a.status
		if a.head != nil {
			v.copy(h, a.head.Headers)
		} else { // of a normalized run
			v.set(h, "Content-Type", a.kind)
		}
		if _, ok := h["Content-Type"]; !ok {
			h["Content-Type"] = nil // none, rather than net/http's guess
		}
		if a.length >= 0 && !a.sse {
			v.set(h, "Content-Length", strconv.FormatInt(a.length, 10))
		}
	}
	x.reply.events = a == nil || a.sse
	if x.reply.events || x.env.Stream {
		v.set(h, "Cache-Control", "no-cache")
		v.set(h, "X-Accel-Buffering", "no")
	}
	x.ownHeaders(h, &v, now)
	x.reply.status, x.reply.border = status, true
	x.w.WriteHeader(status)
}

// ownHeaders sets the headers that every answer of a run has.
func (x *exchange) ownHeaders(h http.Header, v *headerValues, now time.Time) {
	v.set(h, "X-Request-Id", x.requestID)
	if x.fam == openai.FamilyAnthropic {
		v.set(h, "Request-Id", x.requestID)
	}
	v.set(h, "X-Iop-Run-Id", string(x.rec.id))
	if x.waiter == nil { // else it is not known yet: see tellDispatched
		v.set(h, "X-Iop-Queue-Ms", strconv.FormatInt(x.rec.queuedFor().Milliseconds(), 10))
	}
	if x.news.position > 0 {
		v.set(h, "X-Iop-Queue-Position", strconv.Itoa(x.news.position))
		if x.news.estimate > 0 {
			v.set(h, "X-Iop-Queue-Estimate-Ms", strconv.FormatInt(x.news.estimate.Milliseconds(), 10))
		}
	}
	if x.echoesSession() {
		v.set(h, "X-Iop-Session-Id", x.session)
	}
	if how := x.rec.how(); how != "" {
		v.set(h, "X-Iop-Execution", how)
	}
	x.limitHeaders(h)
	v.set(h, "Openai-Processing-Ms", strconv.FormatInt(now.Sub(x.started).Milliseconds(), 10))
}

// headerValues is the one array behind all values of a response's header.
type headerValues []string

// set puts a value under a name in canonical form.
func (v *headerValues) set(h http.Header, name, value string) {
	*v = append(*v, value)
	n := len(*v)
	h[name] = (*v)[n-1 : n : n]
}

// copy takes over what of a provider's header a client may see. The list is closed, whatever the Node let through.
func (v *headerValues) copy(h http.Header, fields []*wire.Header) {
	for _, f := range fields {
		switch f.Name {
		case "content-type":
			v.set(h, "Content-Type", passedType(f.Value))
		case "content-disposition":
			v.set(h, "Content-Disposition", f.Value)
		case "content-language":
			v.set(h, "Content-Language", f.Value)
		case "content-encoding":
			v.set(h, "Content-Encoding", f.Value)
		case "openai-model":
			v.set(h, "Openai-Model", f.Value)
		case "openai-version":
			v.set(h, "Openai-Version", f.Value)
		case "x-request-id", "request-id":
			v.set(h, "X-Iop-Provider-Request-Id", f.Value)
		}
	}
}
