package gateway

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"iop/execution"
	"iop/execution/safetext"
	"iop/gateway/admission"
	"iop/gateway/route"
	"iop/openai"
	"iop/state"
)

const (
	tunnelPath   = "/tunnel/v1"
	healthPath   = "/healthz"
	readyPath    = "/readyz"
	modelsPath   = "/v1/models"
	modelPrefix  = modelsPath + "/"
	runPrefix    = "/iop/v1/runs/"
	cancelSuffix = "/cancel"
	// readyWait bounds how long /readyz waits for the state.
	readyWait = 2 * time.Second
)

// operations is the closed table by path. Paths match as they are after net/url's decoding: a path that must be
// cleaned first is unknown here.
var operations = func() map[string]*openai.Operation {
	m := map[string]*openai.Operation{}
	for _, op := range openai.Operations() {
		m[op.Path] = &op
	}
	return m
}()

// servePublic is the public listener's handler.
func (s *Server) servePublic(w http.ResponseWriter, r *http.Request) {
	defer s.recovered(w, r)
	path := r.URL.Path
	if op := operations[path]; op != nil {
		if r.Method == op.Method {
			s.serveOperation(w, r, op)
		} else {
			s.noMethod(w, r, op.Method)
		}
		return
	}
	switch {
	case path == tunnelPath && s.managed():
		s.answer(w, r, noTunnelHere())
	case path == tunnelPath:
		if s.allow(w, r, http.MethodGet) {
			s.serveNode(w, r)
		}
	case path == modelsPath:
		if s.allow(w, r, http.MethodGet) {
			s.serveModels(w, r)
		}
	case strings.HasPrefix(path, modelPrefix) && len(path) > len(modelPrefix):
		if s.allow(w, r, http.MethodGet) {
			s.serveModel(w, r, path[len(modelPrefix):])
		}
	case strings.HasPrefix(path, runPrefix):
		s.serveRun(w, r, path[len(runPrefix):])
	case strings.HasPrefix(path, keyPrefix):
		s.serveKeyed(w, r, path[len(keyPrefix):])
	case ollamaDocuments[path] != nil:
		s.serveOllama(w, r, path)
	case path == "/":
		s.serveRoot(w, r)
	case path == healthPath:
		plain(w, http.StatusOK, "ok\n")
	case path == readyPath:
		s.serveReady(w, r)
	default:
		s.noPath(w, r)
	}
}

// withoutKey is a path as it may be said: one that was meant for serveKeyed and is misspelt (/K/..., /kk/..., //k/...) may hold a
// key of any shape, and another one a key that somebody put there in his own way.
func withoutKey(path string) string {
	segments := strings.Split(path, "/")
	for i, segment := range segments[:len(segments)-1] {
		if segment != "" && strings.Trim(segment, "kK") == "" {
			return strings.Join(segments[:i+1], "/") + "/..."
		}
	}
	for i, segment := range segments {
		if len(segment) >= longSegment && strings.ContainsAny(segment, "0123456789") {
			segments[i] = "..."
		}
	}
	return safetext.MaskKeys(strings.Join(segments, "/"))
}

// longSegment is the length from which a part of an unknown path that has digits may be a secret. Those of the API are shorter.
const longSegment = 24

// allow answers 405 unless the method is the one; HEAD counts as GET.
func (s *Server) allow(w http.ResponseWriter, r *http.Request, method string) bool {
	if r.Method == method || method == http.MethodGet && r.Method == http.MethodHead {
		return true
	}
	s.noMethod(w, r, method)
	return false
}

// answer refuses a request that is no run.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, e *openai.Error) {
	hurryBody(w, r)
	openai.WriteError(w, familyOfRequest(r), newRequestID(), e)
}

// familyOf says whose error shape a path has.
func familyOf(path string) openai.Family {
	switch {
	case path == "/v1/messages" || strings.HasPrefix(path, "/v1/messages/"):
		return openai.FamilyAnthropic
	case strings.HasPrefix(path, "/api/"):
		return openai.FamilyOllama
	}
	return openai.FamilyOpenAI
}

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text))
}

// serveReady says whether requests should come here: the state answers, and the Edge is not on its way out.
func (s *Server) serveReady(w http.ResponseWriter, r *http.Request) {
	if s.draining.Load() {
		plain(w, http.StatusServiceUnavailable, "draining\n")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), readyWait)
	defer cancel()
	if err := s.cfg.Store.Ping(ctx); err != nil {
		s.log.Warn("not ready", "error", err)
		reason := "the state does not respond"
		if fault, ok := errors.AsType[*state.FaultError](err); ok {
			reason = fault.Public()
		}
		plain(w, http.StatusServiceUnavailable, reason+"\n")
		return
	}
	if s.managed() {
		if err := usable(s.cfg.Identity); err != nil {
			s.log.Warn("not ready", "error", err)
			plain(w, http.StatusServiceUnavailable, "the Edge has no valid identity: Nodes can't connect\n")
			return
		}
	}
	plain(w, http.StatusOK, "ready\n")
}

// recovered keeps a panic of one request from ending the process.
func (s *Server) recovered(w http.ResponseWriter, r *http.Request) {
	p := recover()
	switch p {
	case nil:
		return
	case http.ErrAbortHandler:
		panic(p) // ours, to net/http
	}
	s.log.Error("panic while serving a request", "method", r.Method, "panic", p, "stack", string(debug.Stack()))
	s.metrics.panics.Inc()
	panic(http.ErrAbortHandler)
}

// serveOperation runs one request.
func (s *Server) serveOperation(w http.ResponseWriter, r *http.Request, op *openai.Operation) {
	x := &exchange{
		s: s, w: w, r: r, cork: corkOf(r), op: op, fam: familyOf(op.Path), requestID: newRequestID(), started: time.Now(),
	}
	x.spoke = x.started
	x.reply.border = true
	defer x.giveBack()
	defer x.hold.Release() // of a request that became no run: a run's is settled by then
	if e := x.intake(); e != nil {
		s.refused(x, e)
		return
	}
	s.runs.begin(x.rec)
	s.metrics.accepted.Inc()
	s.metrics.bytes.WithLabelValues("request").Add(float64(len(x.body)))
	finished := false
	defer func() {
		if !finished { // a panic
			s.finish(x, x.broken())
		}
	}()
	abort := x.run()
	finished = true
	s.finish(x, x.end)
	if abort {
		panic(http.ErrAbortHandler)
	}
}

// intake authenticates the caller, reads the body and looks at it.
func (x *exchange) intake() (e *openai.Error) {
	s, r := x.s, x.r
	if x.key, e = s.authenticate(x.w, r, x.fam); e != nil {
		return e
	}
	if s.draining.Load() {
		x.w.Header().Set("Connection", "close")
		return openai.Stopping(time.Second)
	}
	if e = x.arrive(); e != nil {
		return e
	}
	via, looped := viaTrail(r.Header["Via"], s.pseudonym)
	if looped {
		return loopError()
	}
	x.share = s.bodies.share(x.key.Principal())
	if x.body, x.held, e = s.readBody(x.w, r, x.share); e != nil {
		return e
	}
	if e = x.look(); e != nil {
		return e
	}
	x.estimate()
	if e = x.charge(); e != nil {
		return e
	}
	x.events = x.env.Stream && x.op.Streams() && x.op.Stream != openai.StreamNone && !x.lines()
	x.kinds = x.normalizers()
	x.withhold = x.events && x.op.IncludeUsage && !x.env.IncludeUsage
	x.news.when = x.whenNews()
	if x.route.Policy == route.PrefixAffinity {
		hints := admission.AffinityOf(x.key.Principal(), x.session, x.env.PromptCacheKey, x.env.Prompt(x.body))
		x.affinity = &hints
	}
	x.deadline = x.started.Add(cmp.Or(x.route.Timeouts.Total, s.cfg.TotalTimeout))
	x.headers = s.forwardHeaders(r.Header, x.contentType(), via)
	x.rec = &record{
		id: execution.NewRunID(), requestID: x.requestID, clientID: clientRequestID(r.Header), key: x.key.ID,
		keyName: x.key.Name, principal: x.key.Principal(),
		op: x.op.Name, model: x.env.Model, session: x.session, route: x.route.Name, stream: x.env.Stream, started: x.started,
		kill: make(chan execution.Code, 1),
	}
	return nil
}

// look finds out what is asked for, and what it means here.
func (x *exchange) look() (e *openai.Error) {
	if x.env, x.form, e = look(x.op, x.r.Header["Content-Type"], x.body); e != nil {
		return e
	}
	if x.op.StreamsUnlessTold() && !x.env.StreamSet {
		x.env.Stream = true
	}
	x.session = safetext.Escape(safetext.MaskKeys(sessionOf(x.r.Header, &x.env, x.body))) // it is repeated in logs, exports and the answer
	if x.routed, x.route, e = x.s.routeFor(x.key, x.fam, x.env.Model); e != nil {
		return e
	}
	x.stats = x.s.routing.stats(x.route.Name, false)
	return x.parameters()
}

func loopError() *openai.Error {
	e := openai.InvalidRequest("", "This request has already passed through this gateway: one of its providers points back to it.")
	e.Code = "request_loop"
	return e
}

// clientRequestID is the id by which the client knows its request, as far as it is fit for a log line.
func clientRequestID(h http.Header) string {
	v := h["X-Client-Request-Id"]
	if len(v) == 0 || len(v[0]) > 128 {
		return ""
	}
	for i := range len(v[0]) {
		if c := v[0][i]; c <= ' ' || c > '~' {
			return ""
		}
	}
	return v[0]
}
