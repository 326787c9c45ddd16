package gateway

import (
	"errors"
	"math"
	"time"

	"iop/gateway/admission"
	"iop/openai"
	"iop/tunnel/wire"
)

// outgoing is the body that the ticket's target is sent, once prepare was content: body, then the pieces in more.
func (x *exchange) outgoing(t *admission.Ticket) (body []byte, more [][]byte) {
	if t.Normalized {
		return x.norm.input, nil
	}
	return x.sent.body, x.sent.more
}

// contentType is that of the body as a provider is sent it, whatever the client called its own.
func (x *exchange) contentType() string {
	if x.form != nil {
		return x.form.ContentType()
	}
	return openai.TypeJSON
}

// exchangeRequest is what the Node is asked where the exchange is relayed.
func (x *exchange) exchangeRequest(ticket *admission.Ticket) *wire.ProviderTunnelRequest {
	request := &wire.ProviderTunnelRequest{
		Provider:           string(ticket.Target.Provider),
		Model:              ticket.Model,
		Operation:          x.op.Name,
		Headers:            x.headers,
		Stream:             x.env.Stream,
		WithholdUsage:      x.sent.usage,
		FirstByteTimeoutMs: milliseconds(x.route.Timeouts.FirstByte),
		IdleTimeoutMs:      milliseconds(x.route.Timeouts.BetweenChunks),
	}
	if x.renames() {
		request.AnswerModel = x.env.Model
	}
	return request
}

// renames reports whether the answer bears the name that the client asked for, whatever the provider calls the model:
// where the route says so (also of the same name: a provider may answer with a more exact one), and where the client's
// name was found under another spelling.
func (x *exchange) renames() bool { return x.route.RenameModel || x.routed != x.env.Model }

// milliseconds is a timeout on the wire, 0 for none: one that is there is never lost in rounding.
func milliseconds(d time.Duration) uint32 {
	if d <= 0 {
		return 0
	}
	return uint32(min(max(d.Milliseconds(), 1), math.MaxUint32))
}

// sentBody is the body as a provider is sent it: the client's, or one with a few bytes changed; a large one is not copied
// for that. A form is written anew.
type sentBody struct {
	body  []byte
	more  [][]byte // what follows body: most of it is the client's bytes
	model string   // the name in it
	usage bool     // the usage was asked for, and is withheld
	held  int64    // of the body budget, where body is a copy
}

// errBudget says that a second copy of the body has no room.
var errBudget = errors.New("no memory for the request body")

// prepare makes x.sent what the ticket's provider is sent: a form written anew, or the client's body with the model's name
// there, and where the client wants a stream without its usage, with the usage asked for.
func (x *exchange) prepare(t *admission.Ticket) error {
	if t.Normalized {
		return x.normalize()
	}
	usage := x.withhold && !x.noUsage && !x.s.usageRefused(t.Target)
	if x.sent.body != nil && x.sent.model == t.Model && x.sent.usage == usage {
		return nil
	}
	x.held -= x.sent.held
	x.s.bodies.give(x.share, x.sent.held)
	x.sent = sentBody{body: x.body, model: t.Model, usage: usage}
	if x.form != nil {
		return x.prepareForm(t)
	}
	spec := openai.RewriteSpec{Model: t.Model, IncludeUsage: usage, Edits: x.edits}
	grows := x.edits.Grows()
	if !usage && t.Model == x.env.Model && grows == 0 {
		return nil
	}
	if len(x.body) > firstBuffer {
		parts := x.env.RewriteParts(x.body, spec)
		x.sent.body, x.sent.more = parts[0], parts[1:]
		return nil
	}
	if err := x.takeForSent(len(x.body) + len(t.Model) + grows); err != nil {
		return err
	}
	x.sent.body = x.env.Rewrite(x.body, spec)
	return nil
}

// prepareForm is prepare for a form, of which nothing goes to a provider as the client framed it.
func (x *exchange) prepareForm(t *admission.Ticket) error {
	if err := x.takeForSent(x.form.Size(t.Model)); err != nil {
		return err
	}
	pieces := x.form.Write(t.Model)
	x.sent.body, x.sent.more = pieces[0], pieces[1:]
	return nil
}

// takeForSent takes n bytes of the body budget for x.sent.
func (x *exchange) takeForSent(n int) error {
	if !x.s.bodies.take(x.share, int64(n)) {
		x.sent = sentBody{}
		return errBudget
	}
	x.held += int64(n)
	x.sent.held = int64(n)
	return nil
}
