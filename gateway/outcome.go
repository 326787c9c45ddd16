package gateway

import (
	"net/http"
	"time"

	"iop/execution"
	"iop/gateway/admission"
	"iop/openai"
)

// statusCancelled is what nginx made common for a request that its client ended. SDKs don't retry it.
const statusCancelled = 499

// problemOf says what a client is told about a run that ended so. It names neither Node nor provider.
func problemOf(t execution.Terminal) *openai.Error {
	switch t.Code {
	case execution.CodeCapacity, execution.CodeDraining:
		return openai.Overloaded(time.Second)
	case execution.CodeUnknownProvider:
		return openai.NoNodeAvailable(time.Second)
	case execution.CodeUnsupported:
		return openai.InvalidRequest("", "This model's provider does not support this kind of request.")
	case execution.CodeProviderUnreachable:
		return openai.ProviderFailed("The model's provider could not be reached.")
	case execution.CodeProviderTruncated:
		return openai.ProviderTruncated()
	case execution.CodeProviderTimeout, execution.CodeDeadline:
		return openai.ProviderTimeout()
	case execution.CodeSessionLost, execution.CodeSessionSuperseded, execution.CodeLostByNode:
		return openai.ProviderFailed("The connection to the model was lost.")
	case execution.CodeCancelledByCaller, execution.CodeCancelledByOperator:
		return &openai.Error{
			Status: statusCancelled, Type: "invalid_request_error", Code: "run_cancelled",
			Message: "The run was cancelled.", NoRetry: true,
		}
	case execution.CodeDrainDeadline, execution.CodeShutdown:
		return openai.Overloaded(time.Second)
	case execution.CodeCredentialRejected:
		return openai.CredentialRejected()
	case execution.CodeBadRequest, execution.CodeInternal:
		return openai.Internal()
	}
	return openai.ProviderFailed("")
}

// failed is the verdict of a run that ended otherwise than completed, before a byte of it reached the client.
func (x *exchange) failed(t execution.Terminal, openWritten bool, ticket *admission.Ticket) *verdict {
	v := &verdict{terminal: t, problem: problemOf(t)}
	switch t.Code {
	case execution.CodeCapacity:
		ticket.Refused()
		v.next = nextAgain
	case execution.CodeDraining:
		x.s.reg.Suspect(ticket.Target)
		v.next = nextAgain
	case execution.CodeSessionLost, execution.CodeSessionSuperseded, execution.CodeLostByNode:
		if t.Code != execution.CodeLostByNode {
			x.s.reg.Suspect(ticket.Target)
		}
		v.next = nextElsewhere
		if !openWritten {
			v.next = nextAgain // no Node has seen it
		}
	case execution.CodeProviderUnreachable, execution.CodeUnknownProvider, execution.CodeUnsupported:
		v.next = nextElsewhere
	}
	return v
}

// retryable reports whether another target may do better than one that answered so.
func retryable(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}
