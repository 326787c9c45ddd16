package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"iop/execution"
	"iop/execution/safetext"
	"iop/gateway/route"
	"iop/state"
)

// Bounds of a request's body, in bytes.
const (
	maxBody   = 64 << 10
	maxConfig = 1 << 20 // as of the file
)

// guard lets in who has the admin token, and no browser that a page of another origin sent.
func (a *api) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case crossOrigin(r):
			a.fail(w, r, errCrossOrigin)
		case !a.hasToken(r):
			a.unauthorized(w, r)
		case a.admit != nil && !a.admit(w, r):
		default:
			actor := state.Actor{Name: state.ActorAdmin, Source: state.SourceOf(r.RemoteAddr)}
			next.ServeHTTP(w, r.WithContext(state.WithActor(r.Context(), actor)))
		}
	})
}

var errCrossOrigin = &failure{http.StatusForbidden, "cross_origin", "", "cross-origin requests are refused"}

// unauthorized refuses a request without the admin token. One without any token is no guess.
func (a *api) unauthorized(w http.ResponseWriter, r *http.Request) {
	if len(r.Header["Authorization"]) > 0 {
		if wait := a.wrongToken(r, "API request", state.AuditAdminRefused); wait > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(wait/time.Second)))
			a.fail(w, r, &failure{http.StatusTooManyRequests, "too_many_guesses", "", "too many wrong admin tokens from this address"})
			return
		}
	}
	w.Header().Set("WWW-Authenticate", "Bearer")
	a.fail(w, r, &failure{http.StatusUnauthorized, "invalid_admin_token", "", "the admin token is missing or differs from the one in the state directory"})
}

// crossOrigin reports whether a browser says that another origin made it send r. The token alone would do, as no browser
// adds it by itself; this holds even where a page has got hold of it. Reading is refused like changing.
func crossOrigin(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
	default:
		return true
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	u, err := url.Parse(origin)
	return err != nil || u.Host != r.Host // "null" has no host
}

func (a *api) hasToken(r *http.Request) bool {
	values := r.Header["Authorization"]
	if len(values) != 1 {
		return false
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	return ok && strings.EqualFold(scheme, "Bearer") && a.store.VerifyAdmin(token)
}

// methods are the endpoints of one path.
type methods map[string]endpoint

// byMethod serves one path.
func (a *api) byMethod(of methods) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		method := r.Method
		if method == http.MethodHead {
			method = http.MethodGet
		}
		e, ok := of[method]
		if !ok {
			allowed := slices.Sorted(maps.Keys(of))
			w.Header().Set("Allow", strings.Join(allowed, ", "))
			a.fail(w, r, &failure{http.StatusMethodNotAllowed, "method_not_allowed", "", "this path only allows " + strings.Join(allowed, " or ")})
			return
		}
		if err := e.admit(w, r); err != nil {
			a.fail(w, r, err)
			return
		}
		a.serve(w, r, e)
	})
}

// serve runs the endpoint.
func (a *api) serve(w http.ResponseWriter, r *http.Request, e endpoint) {
	if e.stream != nil {
		if err := e.stream(w, r); err != nil {
			a.fail(w, r, err)
		}
		return
	}
	v, err := e.answer(r)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	reply(w, http.StatusOK, v)
}

// admit refuses parameters that the endpoint doesn't know and a body that it doesn't take, and bounds the one it takes.
// What is misspelt must not count as not given.
func (e *endpoint) admit(w http.ResponseWriter, r *http.Request) error {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return invalid("", "the query string can't be parsed")
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		switch {
		case !slices.Contains(e.query, name):
			return &failure{http.StatusBadRequest, "unknown_parameter", name, fmt.Sprintf("unknown parameter %q; allowed: %s", name, orNone(e.query))}
		case len(query[name]) > 1:
			return invalid(name, name+" must be given only once")
		}
	}
	if e.body == "" {
		if r.ContentLength != 0 {
			return invalid("", "this request must not have a body")
		}
		return nil
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != e.body {
		return &failure{http.StatusUnsupportedMediaType, "unsupported_media_type", "", "the body must have Content-Type: " + e.body}
	}
	limit := int64(maxBody)
	if e.body == yamlBody {
		limit = maxConfig
	}
	r.Body = http.MaxBytesReader(w, r.Body, limit)
	return nil
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// failure is an error that the operator is told.
type failure struct {
	status  int
	code    string
	param   string
	message string
}

func (f *failure) Error() string { return f.message }

func invalid(param, message string) error {
	return &failure{http.StatusBadRequest, "invalid_request", param, message}
}

// header sets what every answer has. A secret may be in any of them.
func header(w http.ResponseWriter, kind string) {
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
}

// reply writes v.
func reply(w http.ResponseWriter, status int, v any) {
	header(w, "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // a client that is gone is no news
}

// fail writes the error.
func (a *api) fail(w http.ResponseWriter, r *http.Request, err error) {
	f := a.failureOf(r, err)
	body := ErrorBody{Message: safetext.MaskKeys(f.message), Type: "admin_error", Code: f.code}
	if f.param != "" {
		param := safetext.MaskKeys(f.param) // a name that nobody knows is the caller's
		body.Param = &param
	}
	if bad, ok := errors.AsType[*route.ConfigError](err); ok {
		body.Faults = faultsOf(bad)
	}
	reply(w, f.status, map[string]ErrorBody{"error": body})
}

// failureOf says what the operator is told of err. What is unknown goes to the log.
func (a *api) failureOf(r *http.Request, err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	if command, ok := errors.AsType[*CommandError](err); ok {
		return command.failure()
	}
	if spec, ok := errors.AsType[*state.SpecError](err); ok {
		return &failure{http.StatusBadRequest, "invalid_request", spec.Field, spec.Error()}
	}
	if bad, ok := errors.AsType[*route.ConfigError](err); ok {
		return &failure{http.StatusUnprocessableEntity, "invalid_config", "", bad.Error()}
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return &failure{http.StatusRequestEntityTooLarge, "body_too_large", "", "the body is too large"}
	}
	if f := credentialFailure(err); f != nil {
		return f
	}
	if taken, ok := errors.AsType[*state.NameTakenError](err); ok {
		return &failure{http.StatusConflict, "name_taken", "name", taken.Error()}
	}
	if errors.Is(err, state.ErrNotFound) {
		return &failure{http.StatusNotFound, "not_found", "id", "there is no such ID"}
	}
	a.log.Error("admin request failed", "path", r.Pattern, "error", err)
	if f := stateFailure(err); f != nil {
		return f
	}
	return &failure{http.StatusInternalServerError, "internal_error", "", "internal error; the Edge's log has the details"}
}

// stateFailure is the answer where the state failed; nil for other errors.
func stateFailure(err error) *failure {
	if fault, ok := errors.AsType[*state.FaultError](err); ok {
		return &failure{http.StatusServiceUnavailable, "state_unavailable", "", fault.Error()}
	}
	if why := state.FailureOf(err); why != state.FailureNone {
		return &failure{http.StatusServiceUnavailable, "state_unavailable", "", "the state could not be accessed (" + why.String() + "): " + why.Reason() + "; the Edge's log has the details"}
	}
	return nil
}

// credentialFailure is the answer to an error about slots and profiles; nil for others.
func credentialFailure(err error) *failure {
	refused, ok := errors.AsType[*state.CredentialError](err)
	switch {
	case errors.Is(err, state.ErrProfileInUse):
		return &failure{http.StatusConflict, "profile_in_use", "profile", err.Error()}
	case errors.Is(err, state.ErrSameValue):
		return &failure{http.StatusConflict, "same_value", "value", err.Error()}
	case !ok || errors.Is(err, state.ErrNotFound):
		return nil
	case refused.Reason == state.CredentialNoMasterKey:
		return &failure{http.StatusConflict, "no_master_key", "", "there is no master key: start the Edge with IOP_EDGE_MASTER_KEY_FILE"}
	}
	return &failure{http.StatusConflict, "slot_unusable", "slot", refused.Error()}
}

// done notes what an operator did.
func (a *api) done(r *http.Request, action string, args ...any) {
	actor, remote := state.ActorOf(r.Context()), r.RemoteAddr
	if actor.Session != "" { // the request is the console's, in this process
		remote, args = actor.Source, append(args, "session", actor.Session)
	}
	a.log.Info("admin", append([]any{"action", action, "by", actor.Name, "remote", remote}, args...)...)
}

// nodeID is the Node in the path.
func nodeID(r *http.Request) execution.NodeID { return execution.NodeID(r.PathValue("node")) }
