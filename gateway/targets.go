package gateway

import (
	"sync"
	"sync/atomic"

	"iop/gateway/admission"
)

// maxPlainTargets bounds plainTargets; beyond it all is learned anew.
const maxPlainTargets = 1024

// plainTargets remembers the providers that refuse stream_options, for as long as their session lives: the Edge does
// not ask them for usage. The zero value is ready.
type plainTargets struct {
	count atomic.Int64

	mu   sync.Mutex
	seen map[admission.Target]struct{}
}

// refusesUsage notes that the target refused a request for the stream_options that the Edge had added.
func (s *Server) refusesUsage(t admission.Target) {
	p := &s.plain
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen == nil || len(p.seen) >= maxPlainTargets {
		p.seen = map[admission.Target]struct{}{}
	}
	p.seen[t] = struct{}{}
	p.count.Store(int64(len(p.seen)))
}

func (s *Server) usageRefused(t admission.Target) bool {
	p := &s.plain
	if p.count.Load() == 0 {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, ok := p.seen[t]
	return ok
}
