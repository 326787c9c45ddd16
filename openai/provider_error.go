package openai

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"
)

// statusOverloaded is what Anthropic answers when it has no room.
const statusOverloaded = 529

// maxProviderText bounds how much of a provider's own words goes into a message.
const maxProviderText = 2000

// WrapProviderError decides what a client gets for a provider's answer with this status (400 and above; a redirect,
// which is never followed, counts too). Either the answer passes as it is (e is nil, status and body are the
// arguments), or e says it in our shape and newBody is e as an OpenAI body.
//
// A 4xx passes if its body is an object with an `error` object, whatever else is in it, and is put into one if it is
// not: `{"error":"text"}`, FastAPI's `{"detail":...}`, the flat `{"message":...}` of older engines, plain text, HTML.
// 401 and 403 are about the operator's credential, and their text may quote it: 502 without a word of it. 503, and 529 as
// some providers write it, say that waiting helps: 503 (its Retry-After is the caller's to add). Everything else is 502.
// Both have the provider's message where it gave one.
func WrapProviderError(status int, body []byte) (newStatus int, newBody []byte, e *Error) {
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		e = ProviderRefused()
	case status >= 400 && status < 500:
		if wellFormed(body) && is(member(body, "error"), '{') {
			return status, body, nil
		}
		e = providerError(status, body)
	case status == http.StatusServiceUnavailable || status == statusOverloaded:
		e = Overloaded(0)
		e.Message = providerError(status, body).Message
	case status >= 500:
		e = ProviderFailed(providerError(status, body).Message)
		e.NoRetry = status == http.StatusNotImplemented // the engine will not learn it meanwhile
	default:
		e = ProviderFailed("")
	}
	return e.Status, AppendError(nil, FamilyOpenAI, "", e), e
}

// providerError reads whatever a provider said into an error of that status.
func providerError(status int, body []byte) *Error {
	e := &Error{Status: status, Type: typeInvalidRequest, Code: codeForStatus(status), NoRetry: !mayRetry(status)}
	if status == http.StatusTooManyRequests {
		e.Type = typeRateLimit
	} else if status >= 500 {
		e.Type = typeServer
	}
	if body = bytes.TrimSpace(body); wellFormed(body) {
		e.read(body)
	} else if plainText(body) {
		e.Message = string(body)
	}
	if e.Message == "" {
		e.Message = fmt.Sprintf("The model's provider answered with status %d.", status)
	}
	e.Message = cut(e.Message)
	return e
}

// mayRetry reports whether the status is one whose cause may pass.
func mayRetry(status int) bool {
	return status == http.StatusRequestTimeout || status == http.StatusConflict || status == http.StatusTooManyRequests || status >= 500
}

func codeForStatus(status int) string {
	switch {
	case status == http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case status == http.StatusTooManyRequests:
		return "rate_limit_exceeded"
	case status >= 500:
		return "provider_error"
	}
	return typeInvalidRequest
}

// read takes what a well-formed body says. Engines differ in where they put the message; the first that is there
// counts.
func (e *Error) read(body []byte) {
	switch {
	case is(body, '"'):
		e.Message = unquote(body)
	case is(body, '{'):
		m := objectMembers(body)
		for m.next() {
			e.readMember(string(m.key), m.val)
		}
	}
}

func (e *Error) readMember(key string, val []byte) {
	switch key {
	case "error":
		if is(val, '{') {
			e.read(val)
		} else {
			e.say(text(val))
		}
	case "message":
		e.say(text(val))
	case "detail":
		e.readDetail(val)
	case "type", "error_type":
		if t := text(val); t != "" && t != "error" {
			e.Type = t
		}
	case "param":
		e.Param = text(val)
	case "code":
		if is(val, '"') {
			e.Code = unquote(val)
		}
	}
}

func (e *Error) say(message string) {
	if e.Message == "" {
		e.Message = message
	}
}

// readDetail reads FastAPI's detail: a text, or a list of validation faults with the place of each.
func (e *Error) readDetail(val []byte) {
	if is(val, '{') { // some put an error object in there
		e.read(val)
		return
	}
	e.say(text(val))
	var parts []string
	for el := arrayElements(val); el.next() && len(parts) < 8; {
		msg, loc := text(member(el.val, "msg")), lastString(member(el.val, "loc"))
		if loc != "" && e.Param == "" {
			e.Param = loc
		}
		if loc != "" {
			msg = loc + ": " + msg
		}
		if msg != "" {
			parts = append(parts, msg)
		}
	}
	e.say(strings.Join(parts, "; "))
}

func lastString(list []byte) (s string) {
	for el := arrayElements(list); el.next(); {
		if is(el.val, '"') {
			s = unquote(el.val)
		}
	}
	return s
}

// plainText reports whether an answer that is no JSON is short enough, and text enough, to be shown: no pages.
func plainText(body []byte) bool {
	return len(body) > 0 && len(body) <= 500 && body[0] != '<' && body[0] != '{' && utf8.Valid(body)
}

// cut bounds a message without leaving half a character.
func cut(s string) string {
	if len(s) <= maxProviderText {
		return s
	}
	return strings.ToValidUTF8(s[:maxProviderText], "") + "..."
}

// streamedError makes the error that an event inside a 200 stream reports. val is the error as the provider wrote it:
// an object or a text. Its status is what the provider should have answered with, as far as it can be told.
func streamedError(val []byte) *Error {
	if is(val, '"') { // {"error":"text"} says nothing about whose fault it is
		return ProviderFailed(cut(unquote(val)))
	}
	status := statusOf(val)
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return ProviderRefused()
	case status >= 400 && status < 500:
		return providerError(status, val)
	}
	return ProviderFailed(providerError(http.StatusBadGateway, val).Message)
}

// statusOf finds the HTTP status in an error object: engines put it into code (a number or digits), status or
// status_code, or name a class that implies one. 0 if there is none.
func statusOf(obj []byte) int {
	class := 0
	for m := objectMembers(obj); m.next(); {
		switch string(m.key) {
		case "code", "status", "status_code":
			v := m.val
			if is(v, '"') {
				v = v[1 : len(v)-1]
			}
			if n, err := strconv.Atoi(string(v)); err == nil && n >= 400 && n < 600 {
				return n
			}
		case "type":
			class = statusOfType(text(m.val))
		}
	}
	return class
}

func statusOfType(t string) int {
	switch t {
	case "invalid_request_error", "BadRequestError", "exceed_context_size_error":
		return http.StatusBadRequest
	case "not_found_error", "NotFoundError":
		return http.StatusNotFound
	case "rate_limit_error", "RateLimitError", "rate_limit_exceeded":
		return http.StatusTooManyRequests
	case "authentication_error":
		return http.StatusUnauthorized
	case "permission_error":
		return http.StatusForbidden
	}
	return 0
}
