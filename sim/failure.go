package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Why an exchange ended otherwise than by its answer.
var (
	errRejected = errors.New("refused")       // the refusal is written
	errFault    = errors.New("ordered fault") // the fault has struck
	errGone     = errors.New("client gone")
)

// apiError is an error of the engine towards its client.
type apiError struct {
	status     int
	kind       string // OpenAI's error.type
	code       string // may be empty
	param      string // may be empty
	message    string
	retryAfter string // may be empty
}

func badRequest(param, message string) apiError {
	return apiError{status: http.StatusBadRequest, kind: "invalid_request_error", param: param, message: message}
}

func nullable(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// object renders the error object, without what stands around it, as the flavour does.
func (e apiError) object(f Flavour) map[string]any {
	o := map[string]any{"message": e.message, "type": e.kind, "param": nullable(e.param), "code": nullable(e.code)}
	switch f {
	case VLLM, SGLang, LlamaCPP:
		o["code"] = e.status
	}
	return o
}

// render returns the body and its content type in the given shape; an empty shape is the flavour's own.
func (e apiError) render(shape string, f Flavour) (body []byte, contentType string) {
	var v any
	switch shape {
	case "string", "ollama":
		v = map[string]any{"error": e.message}
	case "detail":
		v = map[string]any{"detail": e.message}
	case "flat":
		v = map[string]any{"object": "error", "message": e.message, "type": e.kind, "param": nullable(e.param), "code": e.status}
	case "anthropic":
		v = map[string]any{"type": "error", "error": map[string]any{"type": anthropicKind(e.status), "message": e.message}, "request_id": "req_sim"}
	case "html":
		return []byte("<html><head><title>" + http.StatusText(e.status) + "</title></head><body><h1>" + http.StatusText(e.status) + "</h1></body></html>\n"), "text/html"
	case "empty":
		return nil, ""
	case "openai":
		v = map[string]any{"error": e.object(OpenAI)}
	default:
		v = map[string]any{"error": e.object(f)}
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps of strings and numbers
	}
	return b, "application/json"
}

func anthropicKind(status int) string {
	switch status {
	case http.StatusBadRequest:
		return "invalid_request_error"
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
	case 529:
		return "overloaded_error"
	}
	return "api_error"
}

// errorShape is the shape of an error on this request's path, unless a knob orders another.
func (x *exchange) errorShape() string {
	switch {
	case x.k.errorShape != "":
		return x.k.errorShape
	case strings.HasPrefix(x.r.URL.Path, "/api/"):
		return "ollama"
	case strings.HasPrefix(x.r.URL.Path, "/v1/messages"), x.s.config.Flavour == Anthropic:
		return "anthropic"
	}
	return ""
}

// refuse answers with e and returns errRejected.
func (x *exchange) refuse(e apiError) error {
	if x.k.leak {
		e.message += " " + x.credentials()
	}
	body, contentType := e.render(x.errorShape(), x.s.config.Flavour)
	if e.retryAfter != "" {
		x.w.Header().Set("Retry-After", e.retryAfter)
	}
	if err := x.whole(e.status, contentType, body); err != nil {
		return err
	}
	return errRejected
}

// failures decides which requests fail by the server's configuration or by the knob fail_first.
type failures struct {
	rate float64 // static

	mu   sync.Mutex
	seen int64          // inference requests
	left map[string]int // failures still to come, by order
}

// maxOrders bounds the orders that are remembered; beyond it all are forgotten.
const maxOrders = 10_000

// next reports whether the next inference request is one of the share that fails. The share is spread evenly and not by
// chance: the same requests get the same answers.
func (f *failures) next() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen++
	return int64(f.rate*float64(f.seen)) > int64(f.rate*float64(f.seen-1))
}

// first reports whether this request is among the first n with the same order.
func (f *failures) first(n int, order string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	left, known := f.left[order]
	switch {
	case known:
	case len(f.left) >= maxOrders, f.left == nil:
		f.left = map[string]int{}
		fallthrough
	default:
		left = n
	}
	f.left[order] = max(0, left-1)
	return left > 0
}

// forget begins to count anew.
func (f *failures) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left, f.seen = nil, 0
}

// failure returns the status with which this request must fail at once, 0 if it need not.
func (x *exchange) failure() int {
	switch {
	case x.k.failFirst > 0 && !x.s.failures.first(x.k.failFirst, x.k.order):
		return 0
	case x.k.status != 0:
		return x.k.status
	case x.k.failFirst > 0:
		return x.s.config.FailStatus
	case x.rec.Inference && x.s.failures.next():
		if x.k.retryAfter == "" && x.s.config.RetryAfter > 0 {
			x.k.retryAfter = strconv.FormatInt(int64((x.s.config.RetryAfter+time.Second-1)/time.Second), 10)
		}
		return x.s.config.FailStatus
	}
	return 0
}

func errUnknownModel(model string) error { return fmt.Errorf("there is no model %q", model) }

// ordered is the error of a request that must fail with that status.
func (x *exchange) ordered(status int) apiError {
	e := apiError{status: status, kind: "server_error", message: "The simulator was told to answer " + http.StatusText(x.k.status) + ".", retryAfter: x.k.retryAfter}
	switch {
	case e.status == http.StatusTooManyRequests:
		e.kind, e.code = "requests", "rate_limit_exceeded"
	case e.status < http.StatusInternalServerError:
		e.kind = "invalid_request_error"
	}
	return e
}

// engineDied is the error that an engine reports in mid-answer.
func engineDied() apiError {
	return apiError{status: http.StatusInternalServerError, kind: "server_error", code: "engine_error", message: "The simulated engine died."}
}

// overflow is the error of a prompt that does not fit the model's context.
func (x *exchange) overflow(a *ask) apiError {
	const most = contextLength
	tokens := most + a.input
	switch shape := x.errorShape(); {
	case shape == "anthropic":
		return badRequest("", fmt.Sprintf("prompt is too long: %d tokens > %d maximum", tokens, most))
	case shape == "ollama":
		return badRequest("", "the input length exceeds the context length")
	case x.s.config.Flavour == LlamaCPP:
		e := badRequest("", "the request exceeds the available context size, try increasing it")
		e.kind = "exceed_context_size_error"
		return e
	}
	e := badRequest("messages", fmt.Sprintf("This model's maximum context length is %d tokens. However, your messages resulted in %d tokens.", most, tokens))
	e.code = "context_length_exceeded"
	return e
}
