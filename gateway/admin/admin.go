package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"strings"

	"iop/execution"
	"iop/state"
)

// maxBody bounds a request body.
const maxBody = 64 << 10

// operator is who the state notes for what is done through this API: the admin token knows no names.
const operatorName = "admin"

// Config configures the API.
type Config struct {
	Store   *state.Store // required
	Edge    Edge         // required
	Metrics http.Handler // required: served at /metrics, without the admin token
	Logger  *slog.Logger // required
}

type api struct {
	store *state.Store
	edge  Edge
	log   *slog.Logger
}

// New returns the handler of the admin listener.
func New(cfg Config) http.Handler {
	a := &api{store: cfg.Store, edge: cfg.Edge, log: cfg.Logger}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", cfg.Metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.Handle("/", a.guard(a.routes()))
	return http.NewCrossOriginProtection().Handler(mux)
}

// routes are those that need the admin token.
func (a *api) routes() http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, h func(r *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			v, err := h(r)
			a.reply(w, r, v, err)
		})
	}
	handle("GET /admin/v1/status", func(*http.Request) (any, error) { return a.edge.Status(), nil })
	handle("GET /admin/v1/nodes", func(*http.Request) (any, error) { return list[Node]{a.edge.Nodes()}, nil })
	handle("POST /admin/v1/nodes/{node}/drain", func(r *http.Request) (any, error) { return a.onNode(r, a.edge.DrainNode) })
	handle("POST /admin/v1/nodes/{node}/resume", func(r *http.Request) (any, error) { return a.onNode(r, a.edge.ResumeNode) })
	handle("POST /admin/v1/runs/{id}/cancel", a.cancelRun)
	handle("GET /admin/v1/runs/{id}", a.oneRun)
	handle("GET /admin/v1/keys", a.keys)
	handle("POST /admin/v1/keys", a.createKey)
	handle("POST /admin/v1/keys/{id}/revoke", a.revokeKey)
	handle("GET /admin/v1/join-tokens", a.joinTokens)
	handle("POST /admin/v1/join-tokens", a.createJoinToken)
	handle("POST /admin/v1/join-tokens/{id}/revoke", a.revokeJoinToken)
	mux.HandleFunc("GET /admin/v1/runs", a.runs)
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		a.reply(w, r, nil, &failure{http.StatusNotFound, "unknown_path", "", "there is nothing for this method and path"})
	})
	return mux
}

// list is how several of a kind are answered.
type list[T any] struct {
	Data []T `json:"data"`
}

// guard asks for the admin token.
func (a *api) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		values := r.Header["Authorization"]
		if len(values) == 1 {
			scheme, token, ok := strings.Cut(values[0], " ")
			if ok && strings.EqualFold(scheme, "Bearer") && a.store.VerifyAdmin(token) {
				next.ServeHTTP(w, r)
				return
			}
		}
		w.Header().Set("WWW-Authenticate", "Bearer")
		a.reply(w, r, nil, &failure{http.StatusUnauthorized, "invalid_admin_token", "", "the admin token is missing or not the one in the state directory"})
	})
}

// failure is an error that the operator is told.
type failure struct {
	status  int
	code    string
	param   string
	message string
}

func (f *failure) Error() string { return f.message }

// reply writes v, or the error.
func (a *api) reply(w http.ResponseWriter, r *http.Request, v any, err error) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store") // a secret may be in it
	h.Set("X-Content-Type-Options", "nosniff")
	if err == nil {
		_ = json.NewEncoder(w).Encode(v) // a client that is gone is no news
		return
	}
	f := a.failureOf(r, err)
	w.WriteHeader(f.status)
	var param any
	if f.param != "" {
		param = f.param
	}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"error": map[string]any{"message": f.message, "type": "admin_error", "param": param, "code": f.code},
	})
}

// failureOf says what the operator is told of err. What is unknown goes to the log.
func (a *api) failureOf(r *http.Request, err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	if spec, ok := errors.AsType[*state.SpecError](err); ok {
		return &failure{http.StatusBadRequest, "invalid_request", "", spec.Error()}
	}
	if errors.Is(err, state.ErrNotFound) {
		return &failure{http.StatusNotFound, "not_found", "", "there is no such id"}
	}
	a.log.Error("admin request failed", "path", r.Pattern, "error", err)
	return &failure{http.StatusInternalServerError, "internal_error", "", "an internal error occurred; the log has it"}
}

// decode reads a JSON body into v.
func decode(r *http.Request, v any) error {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err == nil && len(body) > maxBody {
		err = fmt.Errorf("it is larger than %d bytes", maxBody)
	}
	if err == nil {
		d := json.NewDecoder(strings.NewReader(string(body)))
		d.DisallowUnknownFields()
		err = d.Decode(v)
	}
	if err != nil {
		return &failure{http.StatusBadRequest, "invalid_request", "", "the body is not what is expected here: " + err.Error()}
	}
	return nil
}

func (a *api) onNode(r *http.Request, do func(execution.NodeID) error) (any, error) {
	node := execution.NodeID(r.PathValue("node"))
	if err := do(node); err != nil {
		return nil, &failure{http.StatusNotFound, "node_not_found", "node", err.Error()}
	}
	a.log.Info("admin", "action", r.Pattern, "node", node)
	return map[string]any{"node": node}, nil
}
