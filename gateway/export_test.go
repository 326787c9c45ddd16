package gateway

import (
	"context"
	"net"
	"net/http"
	"time"

	"iop/state"
)

// NewOn is New on listeners that a test made, which may be in memory.
func NewOn(cfg Config, public, private net.Listener) (*Server, error) {
	cfg, err := cfg.checked()
	if err != nil {
		return nil, err
	}
	return newServer(cfg, public, private, nil)
}

// NewManagedOn is NewOn with a listener for Nodes.
func NewManagedOn(cfg Config, public, private, nodes net.Listener) (*Server, error) {
	cfg, err := cfg.checked()
	if err != nil {
		return nil, err
	}
	return newServer(cfg, public, private, nodes)
}

// Via is what the Edge adds to a Via header.
func (s *Server) Via() string { return s.via }

// Public is the handler of the public listener.
func (s *Server) Public() http.Handler { return withoutSlash(http.HandlerFunc(s.servePublic)) }

// Operator is the Edge as the admin API sees it.
func (s *Server) Operator() Operator { return operator{s} }

// Operator is the type of that.
type Operator = operator

// Prune forgets what the meter forgets when its retention has passed.
func Prune(ctx context.Context, store *state.Store, before time.Time) (int64, error) {
	return books{store}.PruneUsage(ctx, before)
}

// Meant is the path of the API that a wrong one was meant for.
var Meant = meant

// IsPlainHost reports what may stand in the page at the root.
var IsPlainHost = isPlainHost
