package gateway

import (
	"iop/execution"
	"iop/gateway/admission"
	"iop/gateway/registry"
	"iop/openai"
)

// A Node makes content-length from the body that it sends, so an honest one never sends more or less: an answer that does is
// not whole, whatever its END says. Only what is passed on with that length is held to it: no stream of events, no error.

// counts adds to what came of the body. False: that is more than was declared.
func (a *answer) counts(n int) bool {
	a.came += int64(n)
	return !a.declares() || a.came <= a.length
}

// declares reports whether the answer has a length to keep to.
func (a *answer) declares() bool { return a.length >= 0 && !a.sse && !a.bare && a.status < 300 }

// overrun ends a run whose answer is longer than it was declared to be. Nothing of the surplus goes to the client: behind a
// complete answer it would be read as the next one.
func (x *exchange) overrun(run registry.Run, end *execution.Terminal, ticket *admission.Ticket) *verdict {
	if end == nil {
		t := x.detach(run, execution.CodeProtocol)
		end = &t
	} else {
		x.believe(end)
	}
	t := *end
	t.Outcome, t.Code, t.Detail = execution.Failed, execution.CodeProtocol, "the response is longer than its content-length"
	report(ticket, t.Code)
	return &verdict{terminal: t, problem: openai.ProviderFailed("")}
}

// fallsShort makes a completed exchange whose answer is shorter than it was declared to be a failure.
func (v *verdict) fallsShort() {
	v.terminal.Code, v.terminal.Detail = execution.CodeProviderTruncated, "the response is shorter than its content-length"
	v.fail(openai.ProviderTruncated())
}
