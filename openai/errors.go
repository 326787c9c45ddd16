package openai

import (
	"fmt"
	"net/http"
	"time"

	"iop/execution/safetext"
)

// MaxRetryAfter is the longest wait that an error tells a client to take: SDKs ignore a longer one, or give up.
const MaxRetryAfter = 60 * time.Second

// Error is what a client is told about a failure. All of it is public: it never holds a secret, a Node's name or a
// provider's address. The cause belongs in the log. Type, Code and Param are OpenAI's words; other families' are
// derived when it is written.
type Error struct {
	Status  int    // HTTP status
	Type    string // OpenAI's error class; never empty
	Code    string // what programs branch on; a string, never a number
	Param   string // the request's field at fault, or empty
	Message string // for people
	// RetryAfter is sent as Retry-After, rounded up to a second and capped at MaxRetryAfter; 0 sends none.
	RetryAfter time.Duration
	// NoRetry tells SDKs that a retry cannot mend it, whatever the status.
	NoRetry bool
	// Allow is the method that a 405 allows, else empty.
	Allow string
}

// Error implements error.
func (e *Error) Error() string {
	if e.Param != "" {
		return fmt.Sprintf("%s (%d, param %s): %s", e.Code, e.Status, e.Param, e.Message)
	}
	return fmt.Sprintf("%s (%d): %s", e.Code, e.Status, e.Message)
}

// OpenAI's error classes as this product uses them.
const (
	typeInvalidRequest = "invalid_request_error"
	typeRateLimit      = "rate_limit_error"
	typeServer         = "server_error"
)

// refusal makes an error of the client's side: the same request will be refused again.
func refusal(status int, code, param, message string) *Error {
	return &Error{Status: status, Type: typeInvalidRequest, Code: code, Param: param, Message: message, NoRetry: true}
}

// InvalidAPIKey is the one answer to a malformed, unknown, expired or revoked key: a guesser must not learn which.
func InvalidAPIKey(fam Family) *Error {
	return BadKeyHeader("This API key is not valid. " + HowToSendKey(fam))
}

// BadKeyHeader refuses a request whose headers hold no key that could be checked; message says what is wrong with them.
func BadKeyHeader(message string) *Error {
	return refusal(http.StatusUnauthorized, "invalid_api_key", "", message)
}

// HowToSendKey says which headers take the key on the family's paths.
func HowToSendKey(fam Family) string {
	if fam == FamilyAnthropic {
		return "Send a valid key as 'x-api-key: <key>' or 'Authorization: Bearer <key>'."
	}
	return "Send a valid key as 'Authorization: Bearer <key>'."
}

// ModelNotAllowed says that this key may not use the model.
func ModelNotAllowed(model string) *Error {
	return refusal(http.StatusForbidden, "model_not_allowed", "model",
		fmt.Sprintf("This API key may not use the model '%s'.", excerpt(model)))
}

// ModelNotFound says that no route leads to the model.
func ModelNotFound(model string) *Error {
	return refusal(http.StatusNotFound, "model_not_found", "model",
		fmt.Sprintf("The model '%s' does not exist here.", excerpt(model)))
}

// InvalidRequest says what is wrong with the request; param names the field, or is empty.
func InvalidRequest(param, message string) *Error {
	return refusal(http.StatusBadRequest, typeInvalidRequest, param, message)
}

// codeThreadUnsupported is the word by which clients of Anthropic's know that the request must hold its whole conversation.
const codeThreadUnsupported = "thread_unsupported_request"

// ThreadUnsupported refuses to keep a conversation for the client. Anthropic's own clients then send all of it, by
// themselves.
func ThreadUnsupported() *Error {
	return refusal(http.StatusBadRequest, codeThreadUnsupported, "thread",
		"thread: is not supported because conversations are not stored; send all messages without it")
}

// ModelRequired says that the request names no model.
func ModelRequired() *Error {
	return InvalidRequest("model", "model is missing; the request must name one")
}

// RequestTooLarge names the limit, in bytes, that the body is over.
func RequestTooLarge(limit int64) *Error {
	return refusal(http.StatusRequestEntityTooLarge, "request_too_large", "",
		fmt.Sprintf("The request body is larger than the limit of %s.", byteCount(limit)))
}

// UnsupportedMediaType names the content type that is wanted.
func UnsupportedMediaType(want string) *Error {
	return refusal(http.StatusUnsupportedMediaType, "unsupported_media_type", "",
		fmt.Sprintf("This content type is not supported; send %s.", want))
}

// UnknownPath says that nothing is served at the path.
func UnknownPath(path string) *Error {
	return refusal(http.StatusNotFound, "unknown_path", "", fmt.Sprintf("There is nothing at %s.", excerpt(path)))
}

// MethodNotAllowed names the method that the path takes.
func MethodNotAllowed(path, allow string) *Error {
	e := refusal(http.StatusMethodNotAllowed, "method_not_allowed", "",
		fmt.Sprintf("%s only allows %s.", excerpt(path), allow))
	e.Allow = allow
	return e
}

// RateLimited says that the key is over its rate; message says which one, or is empty.
func RateLimited(retryAfter time.Duration, message string) *Error {
	if message == "" {
		message = "This API key has exceeded its rate limit."
	}
	return &Error{Status: http.StatusTooManyRequests, Type: typeRateLimit, Code: "rate_limit_exceeded",
		Message: message, RetryAfter: retryAfter}
}

// QueueFull says that as many requests wait as may.
func QueueFull(retryAfter time.Duration) *Error {
	return &Error{Status: http.StatusTooManyRequests, Type: typeRateLimit, Code: "queue_full",
		Message: "Too many requests are waiting for this model.", RetryAfter: retryAfter}
}

// failure makes an error of the serving side; clients retry it by its status.
func failure(status int, code, message string, retryAfter time.Duration) *Error {
	return &Error{Status: status, Type: typeServer, Code: code, Message: message, RetryAfter: retryAfter}
}

// ProviderFailed says that the provider broke off or answered with nothing usable; message may be empty.
func ProviderFailed(message string) *Error {
	if message == "" {
		message = "The model's provider failed to answer this request."
	}
	return failure(http.StatusBadGateway, "provider_error", message, 0)
}

// ProviderTruncated says that the provider's answer ended before its end.
func ProviderTruncated() *Error {
	return ProviderFailed("The model's provider ended its response before it was complete.")
}

// ProviderRefused says that the provider did not accept the operator's credentials. That is not the client's fault,
// and trying again will not help.
func ProviderRefused() *Error {
	e := ProviderFailed("The model's provider denied the operator access.")
	e.NoRetry = true
	return e
}

// CredentialRejected says that a credential lease was refused: nothing else is tried.
func CredentialRejected() *Error {
	e := failure(http.StatusBadGateway, "credential_rejected", "The credential for the model's provider was rejected.", 0)
	e.NoRetry = true
	return e
}

// NoNodeAvailable says that nothing that serves the model is connected.
func NoNodeAvailable(retryAfter time.Duration) *Error {
	return failure(http.StatusServiceUnavailable, codeNoNodeAvailable, "No provider of this model is connected right now.", retryAfter)
}

// NoNodeInTime says that nothing that serves the model is connected, and that the request waited for it in vain. An SDK that
// tried again by itself would multiply that wait: when to do so is the caller's choice. list is the path of the list of models.
func NoNodeInTime(model, list string, waited, retryAfter time.Duration) *Error {
	e := NoNodeAvailable(retryAfter)
	e.NoRetry = true
	long := "less than a second"
	if waited >= time.Second {
		long = waited.Truncate(time.Second).String()
	}
	e.Message = fmt.Sprintf("No provider of the model '%s' is connected right now; this request waited %s for one. GET %s lists the models in service.",
		excerpt(model), long, list)
	return e
}

// ModelAway says that the model is known, but that nothing that serves it is connected.
func ModelAway(model, list string) *Error {
	e := ModelNotFound(model)
	e.Message = fmt.Sprintf("No provider of the model '%s' is connected right now. GET %s lists the models in service.", excerpt(model), list)
	return e
}

// Codes of failures between the client and the provider. They are neither the provider's fault nor a matter of load.
const (
	codeStopping         = "stopping"
	codeInterrupted      = "interrupted"
	codeNodeLost         = "node_lost"
	codeStateUnavailable = "state_unavailable"
	codeNoNodeAvailable  = "no_node_available"
)

// Stopping says that the Edge is shutting down and takes no new requests. No provider has seen this one.
func Stopping(retryAfter time.Duration) *Error {
	return failure(http.StatusServiceUnavailable, codeStopping, "The service is shutting down or restarting and accepts no new requests; try again shortly.", retryAfter)
}

// Interrupted says that the run was cut because the Edge or its Node shut down before it ended. The provider has seen it.
func Interrupted(retryAfter time.Duration) *Error {
	return failure(http.StatusServiceUnavailable, codeInterrupted, "The run was interrupted because part of the service is shutting down; send the request again.", retryAfter)
}

// NodeLost says that the connection to the Node broke, or became unusable, during the run.
func NodeLost() *Error {
	return failure(http.StatusBadGateway, codeNodeLost, "The connection to the model was lost.", 0)
}

// StateUnavailable says that the Edge can't use its own database, so that keys, limits or credentials can't be checked.
func StateUnavailable(retryAfter time.Duration) *Error {
	return failure(http.StatusServiceUnavailable, codeStateUnavailable, "The service can't access its database right now; the operator can find the reason in the log.", retryAfter)
}

// Overloaded says that the Edge itself is at a limit: of memory or of connections.
func Overloaded(retryAfter time.Duration) *Error {
	return failure(http.StatusServiceUnavailable, "overloaded", "The service is overloaded; try again shortly.", retryAfter)
}

// QueueTimeout says that no place became free in time.
func QueueTimeout() *Error {
	return failure(http.StatusGatewayTimeout, "queue_timeout", "No capacity became free for this model in time.", 0)
}

// ProviderTimeout says that the provider was too slow for the limits in force.
func ProviderTimeout() *Error {
	return failure(http.StatusGatewayTimeout, "provider_timeout", "The model's provider did not answer in time.", 0)
}

// Internal says that the fault is ours, and no more.
func Internal() *Error {
	return failure(http.StatusInternalServerError, "internal_error", "An internal error occurred.", 0)
}

// excerpt makes what a client sent fit to stand in a message: bounded, valid UTF-8.
func excerpt(s string) string {
	const limit = 200
	if len(s) > limit {
		s = s[:limit] + "..."
	}
	return safetext.Escape(safetext.MaskKeys(s))
}

// byteCount writes a limit as people read it, exactly.
func byteCount(n int64) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d bytes", n)
}
