package admin

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"slices"
	"time"

	"iop/state"
	"iop/tunnel/wire"
)

// Config configures the API.
type Config struct {
	Store   *state.Store // required
	Edge    Edge         // required
	Metrics http.Handler // required: served at /metrics, without the admin token
	Logger  *slog.Logger // required
	// Console makes what is served beside the API: everything but /admin/v1, /metrics, /healthz and /debug; nil: nothing.
	Console func(Parts) http.Handler
	Public  http.Handler    // the public API, for the Console
	Listen  func() string   // the address of the public listener, for the Console
	Done    <-chan struct{} // closed when the Edge is closing, for the Console
	// Admit is asked once a request has proved to be an operator's, whether there is a place for its connection; it has
	// answered if not. Nil: there always is.
	Admit func(http.ResponseWriter, *http.Request) bool
}

// Parts is what a console is made of.
type Parts struct {
	// API is the whole API below /admin/v1, without its guard: who calls it has seen to it that an operator asks.
	API http.Handler
	// Public is the public API: authenticated as ever, with an API key.
	Public http.Handler
	// Listen returns the address of the public listener.
	Listen func() string
	// Metrics is what /metrics serves.
	Metrics http.Handler
	// Verify reports in constant time whether the token is the admin token.
	Verify func(token string) bool
	// Wrong notes that a request had a token that is not, and returns how long its source must wait before another one; 0:
	// it need not. It may be nil.
	Wrong func(*http.Request) time.Duration
	// Audit notes what the context's actor did, with nothing of the state changed. It may be nil.
	Audit  func(context.Context, state.AuditAction)
	Logger *slog.Logger
	// Done is closed when the Edge is closing, so that what runs in the background ends.
	Done <-chan struct{}
	// Admit is as in Config.
	Admit func(http.ResponseWriter, *http.Request) bool
}

type api struct {
	store *state.Store
	edge  Edge
	log   *slog.Logger
	admit func(http.ResponseWriter, *http.Request) bool // or nil

	guesses *guesses // guards itself
}

// New returns the handler of the admin listener.
func New(cfg Config) http.Handler {
	a := &api{store: cfg.Store, edge: cfg.Edge, log: cfg.Logger, admit: cfg.Admit, guesses: newGuesses(cfg.Logger)}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", a.open(cfg.Metrics))
	mux.Handle("GET /healthz", a.open(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })))
	mux.HandleFunc(wire.Path, func(w http.ResponseWriter, r *http.Request) { // a Node with the wrong port
		a.fail(w, r, &failure{http.StatusNotFound, "admin_listener", "", "this is the Edge's admin listener; Nodes connect to the public one"})
	})
	routes := a.routes()
	if cfg.Console == nil {
		mux.Handle("/", a.guard(routes))
		return mux
	}
	mux.Handle(prefix+"/", a.guard(routes))
	mux.Handle("/debug/", a.guard(routes))
	mux.Handle("/", cfg.Console(Parts{
		API: routes, Public: cfg.Public, Listen: cfg.Listen, Metrics: cfg.Metrics, Verify: a.store.VerifyAdmin,
		Wrong: func(r *http.Request) time.Duration {
			return a.wrongToken(r, "console sign-in", state.AuditSignInRefused)
		},
		Audit: func(ctx context.Context, action state.AuditAction) { a.note(ctx, state.AuditEntry{Action: action}) }, Logger: cfg.Logger, Done: cfg.Done,
		Admit: cfg.Admit,
	}))
	return mux
}

// endpoint is one operation of the API.
type endpoint struct {
	method string
	path   string // under prefix, with {name} for what differs
	query  []string
	body   string // the media type that its body must have; empty: it takes none
	// One of the two: what is answered as JSON, or what writes its answer itself.
	answer func(*http.Request) (any, error)
	stream func(http.ResponseWriter, *http.Request) error
}

// prefix begins the path of every endpoint.
const prefix = "/admin/v1"

// Media types of request bodies. A page elsewhere can't send either without asking first, and nothing here answers such
// a question.
const (
	jsonBody = "application/json"
	yamlBody = "application/yaml"
)

// endpoints is the whole API. openapi.yaml describes the same operations.
func (a *api) endpoints() []endpoint {
	return slices.Concat(a.edgeEndpoints(), a.commandEndpoints(), a.credentialEndpoints())
}

func (a *api) edgeEndpoints() []endpoint {
	return []endpoint{
		{method: "GET", path: "/openapi.yaml", stream: a.document},
		{method: "GET", path: "/status", answer: a.status},
		{method: "GET", path: "/nodes", answer: a.nodes},
		{method: "GET", path: "/nodes/{node}", answer: a.oneNode},
		{method: "DELETE", path: "/nodes/{node}", answer: a.forgetNode},
		{method: "POST", path: "/nodes/{node}/drain", answer: a.drainNode},
		{method: "POST", path: "/nodes/{node}/resume", answer: a.resumeNode},
		{method: "GET", path: "/routes", answer: a.liveRoutes},
		{method: "GET", path: "/queue", answer: a.queues},
		{method: "GET", path: "/runs", query: runParameters, stream: a.runs},
		{method: "GET", path: "/runs/{id}", answer: a.oneRun},
		{method: "POST", path: "/runs/{id}/cancel", answer: a.cancelRun},
		{method: "GET", path: "/keys", answer: a.keys},
		{method: "POST", path: "/keys", body: jsonBody, answer: a.createKey},
		{method: "GET", path: "/keys/{id}", answer: a.oneKey},
		{method: "PATCH", path: "/keys/{id}", body: jsonBody, answer: a.updateKey},
		{method: "POST", path: "/keys/{id}/revoke", answer: a.revokeKey},
		{method: "GET", path: "/join-tokens", answer: a.joinTokens},
		{method: "POST", path: "/join-tokens", body: jsonBody, answer: a.createJoinToken},
		{method: "POST", path: "/join-tokens/{id}/revoke", answer: a.revokeJoinToken},
		{method: "GET", path: "/usage", query: usageParameters, answer: a.usage},
		{method: "GET", path: "/usage/records", query: recordParameters, stream: a.usageRecords},
		{method: "GET", path: "/config", answer: a.configuration},
		{method: "POST", path: "/config/reload", answer: a.reloadConfig},
		{method: "POST", path: "/config/check", body: yamlBody, answer: a.checkConfig},
	}
}

// credentialEndpoints are about what Nodes are lent in managed mode, and which Nodes may have it.
func (a *api) credentialEndpoints() []endpoint {
	return []endpoint{
		{method: "GET", path: "/slots", answer: a.slots},
		{method: "GET", path: "/slots/{slot}", answer: a.oneSlot},
		{method: "PUT", path: "/slots/{slot}", body: jsonBody, answer: a.setSlot},
		{method: "DELETE", path: "/slots/{slot}", answer: a.deleteSlot},
		{method: "POST", path: "/slots/{slot}/rotate", body: jsonBody, answer: a.rotateSlot},
		{method: "POST", path: "/slots/{slot}/enable", answer: a.enableSlot},
		{method: "POST", path: "/slots/{slot}/disable", answer: a.disableSlot},
		{method: "POST", path: "/slots/{slot}/revoke", body: jsonBody, answer: a.revokeSlot},
		{method: "GET", path: "/profiles", answer: a.profiles},
		{method: "GET", path: "/profiles/{profile}", answer: a.oneProfile},
		{method: "PUT", path: "/profiles/{profile}", body: jsonBody, answer: a.setProfile},
		{method: "DELETE", path: "/profiles/{profile}", answer: a.deleteProfile},
		{method: "GET", path: "/node-list", answer: a.nodeList},
		{method: "PUT", path: "/node-list/allowed/{node}", body: jsonBody, answer: a.allowNode},
		{method: "DELETE", path: "/node-list/allowed/{node}", answer: a.disallowNode},
		{method: "PUT", path: "/node-list/denied/nodes/{node}", answer: a.denyNode},
		{method: "DELETE", path: "/node-list/denied/nodes/{node}", answer: a.undenyNode},
		{method: "PUT", path: "/node-list/denied/certificates/{serial}", answer: a.denyCertificate},
		{method: "DELETE", path: "/node-list/denied/certificates/{serial}", answer: a.undenyCertificate},
		{method: "GET", path: "/identity", answer: a.identity},
		{method: "GET", path: "/signing-key", answer: a.signingKeys},
		{method: "POST", path: "/signing-key/rotate", answer: a.rotateSigningKey},
		{method: "DELETE", path: "/signing-key/{id}", answer: a.revokeSigningKey},
		{method: "GET", path: "/master-keys", answer: a.masterKeys},
		{method: "POST", path: "/master-keys/rewrap", answer: a.rewrap},
		{method: "GET", path: "/audit", query: auditParameters, answer: a.audit},
	}
}

// routes are those that need the admin token.
func (a *api) routes() http.Handler {
	mux := http.NewServeMux()
	paths := map[string]methods{}
	for _, e := range a.endpoints() {
		if paths[e.path] == nil {
			paths[e.path] = methods{}
			mux.Handle(prefix+e.path, a.byMethod(paths[e.path]))
		}
		paths[e.path][e.method] = e
	}
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		a.fail(w, r, &failure{http.StatusNotFound, "unknown_path", "", "there is no such path"})
	})
	return mux
}

// list is how several of a kind are answered.
type list[T any] struct {
	Data []T `json:"data"`
}
