package gateway

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"iop/gateway/route"
	"iop/openai"
	"iop/state"
)

const (
	// configPoll is how often iop.yaml is looked at.
	configPoll = time.Second
	// maxRouteStats bounds the routes that are told apart in metrics and estimates: advertised models are as many as
	// Nodes say.
	maxRouteStats = 256
)

// routing is the table in force, and what is learned of each route.
type routing struct {
	table   atomic.Pointer[route.Table] // never nil after New
	watcher *route.Watcher              // or nil: there is no file

	mu     sync.RWMutex
	byName map[string]*routeStats
	other  routeStats // of all routes beyond maxRouteStats, and of models that nobody serves. It has no name
}

// routeStats is what is learned of one route.
type routeStats struct {
	name   string
	output lengths // of answers
	chunks chunkHistogram
	series series
}

// stats returns what is known of a route. Only the names of routes that a target was found for are remembered: others
// are whatever clients write.
func (r *routing) stats(name string, found bool) *routeStats {
	r.mu.RLock()
	st := r.byName[name]
	full := len(r.byName) >= maxRouteStats
	r.mu.RUnlock()
	switch {
	case st != nil:
		return st
	case !found || full:
		return &r.other
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if st = r.byName[name]; st == nil {
		if r.byName == nil {
			r.byName = map[string]*routeStats{}
		}
		st = &routeStats{name: name}
		r.byName[name] = st
	}
	return st
}

// inFile reports whether a route of the file has the name.
func (r *routing) inFile(name string) bool {
	found := r.table.Load().Resolve(name)
	return found != nil && !found.Advertised && found.Name == name
}

// all returns what is known of every route.
func (r *routing) all() []*routeStats {
	r.mu.RLock()
	defer r.mu.RUnlock()
	list := make([]*routeStats, 0, len(r.byName)+1)
	for _, st := range r.byName {
		list = append(list, st)
	}
	return append(list, &r.other)
}

// loadRoutes reads the file of routes, if there is one, and again whenever it changes, until Close.
func (s *Server) loadRoutes() (err error) {
	if s.cfg.Config == "" {
		s.apply(route.Advertised())
		return nil
	}
	s.routing.watcher, err = route.Watch(s.background, s.cfg.Config, configPoll, s.apply, func(err error) {
		s.log.Error("the configuration is invalid; the previous one stays in force", "file", s.cfg.Config, "error", err)
	}, route.Managed(s.managed()))
	if _, ok := errors.AsType[*fs.PathError](err); ok { // it was not read: the setting may be wrong. Other errors name a line of it
		return fmt.Errorf("the route file can't be read (IOP_EDGE_CONFIG, --config): %w", err)
	}
	return err
}

// maxChangesLogged bounds what one line of the log says of a new file.
const maxChangesLogged = 50

// apply puts a table in force. Requests that have a route keep it; those that wait are looked at anew.
func (s *Server) apply(t *route.Table) {
	former := s.routing.table.Swap(t)
	s.adm.Configure(t)
	if former == nil {
		return
	}
	level, changes := slog.LevelInfo, []string{}
	for i, c := range route.Changes(former, t) {
		if c.Opens {
			level = slog.LevelWarn // somebody may do more than before: it should be meant
		}
		if i < maxChangesLogged {
			changes = append(changes, c.String())
		}
	}
	s.log.Log(s.background, level, "configuration applied", "file", s.cfg.Config, "digest", t.Digest(), "routes", len(t.Routes()), "changes", changes)
	s.noteApplied(t)
}

// auditPatience bounds the writing of an entry: no change waits longer for a database that does not answer.
const auditPatience = 5 * time.Second

// noteApplied notes that the routes of a file are in force. The file was changed by whoever may write to it.
func (s *Server) noteApplied(t *route.Table) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.background), auditPatience)
	defer cancel()
	err := s.cfg.Store.Audit(ctx, state.AuditEntry{
		Actor: state.ActorEdge, Action: state.AuditRoutesApplied, Outcome: state.AuditDone, Subject: t.Digest(),
	})
	if err != nil {
		s.log.Error("an entry of the audit could not be written", "action", state.AuditRoutesApplied.String(), "error", err)
	}
}

// Reload reads the file of routes again now; without one it does nothing. The error names its faults; then nothing has changed.
// Any goroutine may call it.
func (s *Server) Reload() error {
	if s.routing.watcher == nil {
		return nil
	}
	return s.routing.watcher.Reload()
}

// mayUse: the key lists the route or the alias that was asked for, and the route lists the key's principal.
func mayUse(key *state.Key, r *route.Route, model string) bool {
	return (key.AllowsModel(r.Name) || key.AllowsModel(model)) && r.Allows(key.Principal())
}

// stillMay refuses a request that has waited, or goes on to another target, if its key has ended since it came, or may no longer
// use what the model's name means now.
func (x *exchange) stillMay() *openai.Error {
	if x.key == anyone {
		return nil
	}
	key, err := x.s.cfg.Store.CurrentKey(x.r.Context(), x.key.ID)
	switch {
	case errors.Is(err, state.ErrInvalidKey):
		return openai.InvalidAPIKey(x.fam)
	case err != nil:
		x.s.log.Error("could not check an API key", "error", err)
		return openai.StateUnavailable(time.Second)
	}
	r := x.s.routing.table.Load().Resolve(x.route.Name)
	switch {
	case r != nil && mayUse(key, r, x.routed):
		return nil
	case key.AllowsModel(x.routed):
		return openai.ModelNotFound(x.env.Model)
	}
	return openai.ModelNotAllowed(x.env.Model)
}
