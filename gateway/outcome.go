package gateway

import (
	"net/http"
	"time"

	"iop/execution"
	"iop/gateway/admission"
	"iop/gateway/route"
	"iop/openai"
)

// statusCancelled is what nginx made common for a request that its client ended. SDKs don't retry it.
const statusCancelled = 499

// problemOf says what a client is told about a run that ended so. It names neither Node nor provider.
func problemOf(t execution.Terminal) *openai.Error {
	switch t.Code {
	case execution.CodeCapacity:
		return openai.Overloaded(time.Second)
	case execution.CodeUnknownProvider, execution.CodeDraining, execution.CodeNoNodeAvailable: // every Node that was asked takes no new runs
		return openai.NoNodeAvailable(time.Second)
	case execution.CodeUnsupported:
		return openai.InvalidRequest("", "This model's provider does not support this kind of request.")
	case execution.CodeProviderUnreachable:
		return openai.ProviderFailed("The model's provider could not be reached.")
	case execution.CodeProviderTruncated:
		return openai.ProviderTruncated()
	case execution.CodeProviderTimeout, execution.CodeDeadline:
		return openai.ProviderTimeout()
	case execution.CodeSessionLost, execution.CodeSessionSuperseded, execution.CodeLostByNode, execution.CodeFlowControl,
		execution.CodeProtocol, execution.CodeCancelTimeout:
		return openai.NodeLost()
	case execution.CodeCancelledByCaller, execution.CodeCancelledByOperator:
		return &openai.Error{
			Status: statusCancelled, Type: "invalid_request_error", Code: "run_cancelled",
			Message: "The run was cancelled.", NoRetry: true,
		}
	case execution.CodeClientGone: // it was cut, and can still be told
		return &openai.Error{
			Status: statusCancelled, Type: "invalid_request_error", Code: "run_cancelled", NoRetry: true,
			Message: "The run was cancelled because the client read the response too slowly while others waited for the model.",
		}
	case execution.CodeDrainDeadline, execution.CodeShutdown:
		return openai.Interrupted(time.Second)
	case execution.CodeCredentialRejected:
		return openai.CredentialRejected()
	case execution.CodeBadRequest, execution.CodeInternal:
		return openai.Internal()
	}
	return openai.ProviderFailed("")
}

// unsupportedOperation says that the model is there, but nothing that serves it can do what was asked for.
func unsupportedOperation(model string, op *openai.Operation) *openai.Error {
	e := openai.ModelNotFound(model)
	e.Code, e.Message = "unsupported_operation", "The providers of this model do not support "+op.Path+"."
	return e
}

// failed is the verdict of a run that ended otherwise than completed, before a byte of it reached the client.
func (x *exchange) failed(t execution.Terminal, reached bool, ticket *admission.Ticket) *verdict {
	v := &verdict{terminal: t, problem: problemOf(t)}
	report(ticket, t.Code)
	switch t.Code {
	case execution.CodeCapacity:
		v.next = nextAgain
	case execution.CodeDraining:
		x.s.reg.Suspect(ticket.Target)
		v.next = nextAgain
	case execution.CodeSessionLost, execution.CodeSessionSuperseded, execution.CodeLostByNode:
		if t.Code != execution.CodeLostByNode {
			x.s.reg.Suspect(ticket.Target)
		}
		v.next = x.elsewhere(route.RetryLost)
		if !reached {
			v.next = nextAgain // no provider has seen it
		}
	case execution.CodeDrainDeadline: // its Node is leaving, as one that is lost
		v.next = x.elsewhere(route.RetryLost)
	case execution.CodeProviderUnreachable:
		v.next = x.elsewhere(route.RetryUnreachable)
	case execution.CodeProviderTimeout:
		if x.route.Timeouts.FirstByte > 0 { // the route would rather have another answer than this one
			v.next = x.elsewhere(route.RetryGateway)
		}
	case execution.CodeUnknownProvider, execution.CodeUnsupported:
		v.next = nextElsewhere // it reached no provider
	}
	return v
}

// elsewhere is what follows a failure of that kind by the route's retry policy.
func (x *exchange) elsewhere(kind route.RetryOn) next {
	if x.route.Retry.On&kind == 0 {
		return nextNothing
	}
	return nextElsewhere
}

// afterStatus is what follows an error status of the provider.
func (x *exchange) afterStatus(status int) next {
	switch status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return x.elsewhere(route.RetryOverloaded)
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		return x.elsewhere(route.RetryGateway)
	case http.StatusInternalServerError:
		return x.elsewhere(route.RetryServerError)
	}
	return nextNothing
}

// report tells admission what a run's code says of its target. What is the client's doing, the connection's or the Edge's
// says nothing. A Node that breaks the contract or can't do its part fails fast, so it would attract all runs if that did
// not count.
func report(t *admission.Ticket, code execution.Code) {
	switch code {
	case execution.CodeCapacity:
		t.Refused(0)
	case execution.CodeProviderUnreachable, execution.CodeProviderError, execution.CodeProviderTimeout,
		execution.CodeProviderTruncated, execution.CodeProviderRedirect, execution.CodeResponseTooLarge,
		execution.CodeUnknownProvider, execution.CodeProtocol, execution.CodeFlowControl, execution.CodeInternal:
		t.Failed()
	}
}

// reportStatus tells admission what a provider's error status says of it: that it is full, that it is broken, or that it
// works and the request was wrong. Its 401 and 403 are its operator's fault, and not mended by the next request.
func reportStatus(t *admission.Ticket, status int, retryAfter time.Duration, end execution.Terminal) {
	switch {
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
		t.Refused(retryAfter)
	case status >= 500, status == http.StatusUnauthorized, status == http.StatusForbidden:
		t.Failed()
	default:
		t.Served(admission.Sample{Duration: end.Timings.Provider})
	}
}

// broken ends whatever a handler that met a panic has left: its place in the queue, its ticket, its run.
func (x *exchange) broken() ending {
	phase := x.rec.phase()
	x.rec.mu.Lock()
	run := x.rec.run
	x.rec.mu.Unlock()
	switch {
	case run != nil:
		run.Abandon(execution.CodeInternal, execution.CodeInternal.String())
	case x.waiter != nil:
		x.waiter.Leave()
	case x.ticket != nil:
		x.ticket.Release()
	}
	if x.ticket != nil {
		x.ticket.Done()
	}
	return ending{
		terminal: execution.Terminal{Outcome: execution.Failed, Code: execution.CodeInternal, Phase: phase},
		status:   x.reply.status, bytes: x.reply.bytes, firstByte: x.reply.firstByte, total: time.Since(x.started),
	}
}
