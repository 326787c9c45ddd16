package openai

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Family is the protocol family of a path, which decides the shape of an error on it. The zero value is FamilyOpenAI.
type Family uint8

// The families.
const (
	FamilyOpenAI    Family = iota // {"error":{"message","type","param","code"}}
	FamilyAnthropic               // {"type":"error","error":{"type","message"},"request_id"}
	FamilyOllama                  // {"error":"text"}
)

// WriteError writes e as a whole response in the family's shape. requestID, where not empty, becomes the family's
// request id header (and stands in Anthropic's body). It must be called before anything else was written.
func WriteError(w http.ResponseWriter, fam Family, requestID string, e *Error) {
	body := AppendError(nil, fam, requestID, e)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Del("Content-Encoding")
	if requestID != "" {
		h.Set("X-Request-Id", requestID)
		if fam == FamilyAnthropic {
			h.Set("Request-Id", requestID)
		}
	}
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(retrySeconds(e.RetryAfter)))
	}
	if e.NoRetry {
		h.Set("X-Should-Retry", "false")
	}
	if e.Allow != "" {
		h.Set("Allow", e.Allow) // RFC 9110 section 15.5.6 wants it on every 405
	}
	if e.Status == http.StatusUnauthorized {
		h.Set("Www-Authenticate", "Bearer") // RFC 9110 section 15.5.2 wants it on every 401
	}
	w.WriteHeader(e.Status)
	_, _ = w.Write(body) // a client that is gone is noticed by who reads the request
}

// retrySeconds rounds up, so that nobody comes back too early, and caps.
func retrySeconds(d time.Duration) int {
	return int((min(d, MaxRetryAfter) + time.Second - 1) / time.Second)
}

// AppendError appends e as a response body in the family's shape.
func AppendError(dst []byte, fam Family, requestID string, e *Error) []byte {
	switch fam {
	case FamilyAnthropic:
		dst = append(dst, `{"type":"error","error":`...)
		dst = appendAnthropicObject(dst, e)
		if requestID != "" {
			dst = append(dst, `,"request_id":`...)
			dst = appendString(dst, requestID)
		}
	case FamilyOllama:
		dst = append(dst, `{"error":`...)
		dst = appendString(dst, namingParam(e))
	default:
		dst = append(dst, `{"error":`...)
		dst = appendErrorObject(dst, e)
	}
	return append(dst, '}')
}

// appendErrorObject appends OpenAI's error object.
func appendErrorObject(dst []byte, e *Error) []byte {
	return append(appendErrorFields(append(dst, '{'), e), '}')
}

// appendErrorFields appends the members of OpenAI's error object, for where they stand flat. SDKs tell a missing param
// from null; a number as code breaks some of them.
func appendErrorFields(dst []byte, e *Error) []byte {
	dst = append(dst, `"message":`...)
	dst = appendString(dst, e.Message)
	dst = append(dst, `,"type":`...)
	dst = appendString(dst, e.Type)
	return appendParamAndCode(dst, e)
}

func appendParamAndCode(dst []byte, e *Error) []byte {
	dst = append(dst, `,"param":`...)
	dst = appendStringOrNull(dst, e.Param)
	dst = append(dst, `,"code":`...)
	return appendStringOrNull(dst, e.Code)
}

func appendStringOrNull(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return appendString(dst, s)
}

func appendAnthropicObject(dst []byte, e *Error) []byte {
	dst = append(dst, `{"type":"`...)
	dst = append(dst, anthropicType(e)...)
	dst = append(dst, `","message":`...)
	message := namingParam(e)
	if e.Code == codeContextLength {
		message = overflowing(message)
	}
	dst = appendString(dst, message)
	if e.Code == codeThreadUnsupported {
		dst = append(dst, `,"details":{"error_code":"`+codeThreadUnsupported+`","unsupported":[]}`...)
	}
	return append(dst, '}')
}

// namingParam is the message for a family that has no other place for the parameter: it begins with it, unless it speaks
// of it already.
func namingParam(e *Error) string {
	if e.Param == "" || strings.Contains(e.Message, e.Param) {
		return e.Message
	}
	return e.Param + ": " + e.Message
}

// anthropicType is Anthropic's error type. A 503 is overloaded_error only where load is the reason.
func anthropicType(e *Error) string {
	switch e.Code {
	case codeStopping, codeInterrupted, codeStateUnavailable, codeNoNodeAvailable:
		return "api_error"
	}
	switch e.Status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable, 529:
		return "overloaded_error"
	case http.StatusGatewayTimeout:
		return "timeout_error"
	}
	if e.Status < 500 {
		return "invalid_request_error"
	}
	return "api_error"
}

// AppendInBandError appends e as the event with which a stream of this kind reports a failure after its head was
// sent. It must be appended at an event border, and nothing may follow it.
func AppendInBandError(dst []byte, k StreamKind, e *Error) []byte {
	switch k {
	case StreamResponses:
		return appendResponsesError(dst, e)
	case StreamMessages:
		dst = append(dst, "event: error\ndata: "...)
		dst = AppendError(dst, FamilyAnthropic, "", e)
		return append(dst, "\n\n"...)
	case StreamOllama:
		return append(AppendError(dst, FamilyOllama, "", e), '\n')
	}
	dst = append(dst, "data: "...)
	dst = AppendError(dst, FamilyOpenAI, "", e)
	return append(dst, "\n\n"...)
}

// appendResponsesError appends the two events that end a failed Responses stream of which nothing was read: `error`, with
// its fields flat as the specification has them and nested as the SDKs look for them, then `response.failed`. Clients raise
// the error from the first event and never look at the rest: what names the response in the second one is empty.
func appendResponsesError(dst []byte, e *Error) []byte {
	dst = appendErrorEvent(dst, 0, e)
	dst = append(dst, "event: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":1,\"response\":{\"id\":\"\","...)
	dst = append(dst, `"object":"response","created_at":0,"status":"failed","error":{"code":`...)
	dst = appendString(dst, e.Code)
	dst = append(dst, `,"message":`...)
	dst = appendString(dst, e.Message)
	dst = append(dst, `},"incomplete_details":null,"instructions":null,"model":"","output":[],"parallel_tool_calls":true,"temperature":null,"tool_choice":"auto","tools":[],"top_p":null,"metadata":{}}}`...)
	return append(dst, "\n\n"...)
}

// appendErrorEvent appends the `error` event of a Responses stream.
func appendErrorEvent(dst []byte, seq int64, e *Error) []byte {
	dst = append(dst, "event: error\ndata: {\"type\":\"error\",\"sequence_number\":"...)
	dst = strconv.AppendInt(dst, seq, 10)
	dst = append(dst, `,"message":`...)
	dst = appendString(dst, e.Message)
	dst = appendParamAndCode(dst, e)
	dst = append(dst, `,"error":`...)
	dst = appendErrorObject(dst, e)
	return append(dst, "}\n\n"...)
}
