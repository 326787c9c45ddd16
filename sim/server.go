package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// shutdownGrace is how long Run waits for answers that are being written when it ends.
const shutdownGrace = time.Second

// redirectedPath is where the knob redirect leads without a URL, so that a client that follows shows itself.
const redirectedPath = "/redirected"

// Server is one simulated engine. Make it with New; its methods may be called from any goroutine.
type Server struct {
	// Static after New.
	config  Config
	mux     *http.ServeMux
	life    context.Context // ends with Run; what ignores its client's end lives as long
	endLife context.CancelFunc
	large   chan struct{} // a token for each large body in memory

	slots    slots
	ledger   ledger
	memory   *memory
	prefixes *prefixCache
	failures failures

	mu       sync.Mutex
	listener net.Listener      // nil before Listen
	models   []string          // never changed in place
	defaults map[string]string // default knobs by key
	preset   knobs             // config and defaults, put together
}

// New returns a simulator that does nothing yet: serve its Handler, or Run it.
func New(c Config) (*Server, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	c.Models = slices.Clone(c.Models)
	s := &Server{config: c, models: c.Models, preset: newKnobs(c), large: make(chan struct{}, largeBodies)}
	s.memory, s.prefixes, s.failures.rate = newMemory(c), newPrefixCache(c.PrefixCache), c.FailRate
	s.slots.places, s.slots.queue = c.Slots, c.Queue
	s.life, s.endLife = context.WithCancel(context.Background())
	s.mux = s.routes()
	return s, nil
}

// Handler returns the simulated engine as a handler, for a server of the caller's.
func (s *Server) Handler() http.Handler { return s.mux }

// Listen binds the configured address. Run does so itself where it has not happened; calling Listen first makes Addr
// and URL known before Run.
func (s *Server) Listen() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener != nil {
		return nil
	}
	l, err := net.Listen("tcp", s.config.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	s.listener = l
	return nil
}

// Addr returns the bound address, or nil before Listen.
func (s *Server) Addr() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil {
		return nil
	}
	return s.listener.Addr()
}

// URL returns the base URL of the bound address without a slash at its end, or "" before Listen.
func (s *Server) URL() string {
	a := s.Addr()
	if a == nil {
		return ""
	}
	return "http://" + a.String()
}

// Run serves until ctx ends, then cuts what is still running and returns nil, once every handler has ended: what Stats
// says then stays true. It may be called once.
func (s *Server) Run(ctx context.Context) error {
	if err := s.Listen(); err != nil {
		return err
	}
	var running sync.WaitGroup
	hs := s.httpServer(&running)
	served := make(chan error, 1)
	go func() { served <- hs.Serve(s.listener) }()
	var err error
	select {
	case err = <-served:
		s.endLife()
	case <-ctx.Done():
		s.endLife()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
		defer cancel()
		_ = hs.Shutdown(grace) // Close cuts what it has left
		err = <-served
	}
	hs.Close()
	running.Wait()
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// httpServer returns the server that Run runs. running counts its connections and its handlers: net/http waits neither
// for handlers whose connection was closed nor for those that took it over, as a cut does. A handler begins while its
// connection counts, so nothing is added once the listener is closed and all has ended.
func (s *Server) httpServer(running *sync.WaitGroup) *http.Server {
	return &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			running.Add(1)
			defer running.Done()
			s.mux.ServeHTTP(w, r)
		}),
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew: // before Serve goes on, so never beside Wait
				running.Add(1)
			case http.StateClosed, http.StateHijacked: // exactly one of them
				running.Done()
			}
		},
		BaseContext:       func(net.Listener) context.Context { return s.life },
		ReadHeaderTimeout: 30 * time.Second,
		MaxHeaderBytes:    1 << 20,
	}
}

// Models returns the ids that the server knows now.
func (s *Server) Models() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.models)
}

// SetModels replaces the models, as an engine does that loads and unloads them.
func (s *Server) SetModels(models []string) error {
	if err := validateModels(models); len(models) > 0 && err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.models = slices.Clone(models)
	return nil
}

func (s *Server) knows(model string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.models, model) ||
		s.config.Flavour == Ollama && slices.Contains(s.models, strings.TrimSuffix(model, ":latest"))
}

// Stats returns the counters.
func (s *Server) Stats() Stats {
	st := s.ledger.stats()
	s.slots.fill(&st)
	return st
}

// Requests returns the last n requests, newest first.
func (s *Server) Requests(n int) []Request { return s.ledger.last(n) }

// configure merges changes into the default knobs: all or none.
func (s *Server) configure(changes map[string]any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := maps.Clone(s.defaults)
	if next == nil {
		next = map[string]string{}
	}
	for key, v := range changes {
		value, drop, err := jsonValue(v)
		if err != nil {
			return fmt.Errorf("knob %s %w", key, err)
		}
		if drop {
			delete(next, key)
			continue
		}
		next[key] = value
	}
	return s.presetLocked(next)
}

func (s *Server) clearConfig() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.defaults, s.preset = nil, newKnobs(s.config)
	s.failures.forget()
}

func (s *Server) presetLocked(next map[string]string) error {
	k := newKnobs(s.config)
	for _, key := range slices.Sorted(maps.Keys(next)) {
		if err := k.apply(key, next[key]); err != nil {
			return err
		}
	}
	s.defaults, s.preset = next, k
	s.failures.forget()
	return nil
}

// knobsFor returns the knobs that a request starts from, and takes it off `times`.
func (s *Server) knobsFor(r *http.Request, inference bool) knobs {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.preset
	switch {
	case k.path == "" && inference, k.path == "*", k.path != "" && strings.HasPrefix(r.URL.Path, k.path):
	default:
		return newKnobs(s.config)
	}
	if k.times > 0 {
		s.preset.times--
		if s.preset.times == 0 {
			s.defaults, s.preset = nil, newKnobs(s.config)
		}
	}
	return k
}

// routes lists every path. A path that the imitated engine does not have is not there.
func (s *Server) routes() *http.ServeMux {
	m := http.NewServeMux()
	s.controlRoutes(m)
	s.flavourRoutes(m)
	m.Handle("GET /v1/models", s.plain(serveModels))
	m.Handle("GET /v1/models/{id...}", s.plain(serveModel))
	for path, handler := range s.operations() {
		if !s.config.Exact || !s.config.Flavour.lacks(path) {
			m.Handle("POST "+path, handler)
		}
	}
	m.Handle(redirectedPath, s.plain(func(x *exchange) error { return x.json(http.StatusOK, map[string]bool{"redirected": true}) }))
	m.Handle("/", s.plain((*exchange).nowhere))
	return m
}

// operations are the endpoints that any engine may have, by their paths.
func (s *Server) operations() map[string]http.Handler {
	return map[string]http.Handler{
		"/v1/chat/completions":      s.infer(decodeChat),
		"/v1/completions":           s.infer(decodeCompletion),
		"/v1/embeddings":            s.infer(decodeEmbeddings),
		"/v1/responses":             s.infer(decodeResponses),
		"/v1/moderations":           s.infer(decodeModeration),
		"/v1/rerank":                s.infer(decodeRerank),
		"/rerank":                   s.infer(decodeRerank),
		"/v2/rerank":                s.infer(decodeRerank),
		"/v1/images/generations":    s.infer(decodeImages),
		"/v1/images/edits":          s.infer(decodeImageEdits),
		"/v1/audio/speech":          s.infer(decodeSpeech),
		"/v1/audio/transcriptions":  s.infer(decodeTranscription),
		"/v1/audio/translations":    s.infer(decodeTranscription),
		"/v1/messages":              s.infer(decodeMessages),
		"/v1/messages/count_tokens": s.aside(decodeCountTokens),
		"/tokenize":                 s.aside(decodeTokenize),
		"/detokenize":               s.aside(decodeDetokenize),
	}
}

// nowhere answers for a path that the engine does not have. LM Studio says 200 to it, and its error in the body.
func (x *exchange) nowhere() error {
	if x.k.anyPath || x.s.config.Exact && x.s.config.Flavour == LMStudio {
		return x.json(http.StatusOK, map[string]string{"error": "Unexpected endpoint or method. (" + x.r.Method + " " + x.r.URL.Path + ")"})
	}
	return x.refuse(apiError{status: http.StatusNotFound, kind: "not_found_error", message: "no such path: " + x.r.Method + " " + x.r.URL.Path})
}

// writeJSON is for the control paths, which know no knobs.
func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(append(b, '\n'))
}
