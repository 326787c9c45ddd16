package gateway

import (
	"net/http"
	"sync"
	"sync/atomic"

	"iop/execution"
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

// learnRefusal remembers a target that refused stream_options once it has taken the same request without them. The
// refusal alone proves nothing: a client can put the word into a value that every provider refuses and repeats, and no
// stream of any other client would report its usage from then on.
func (x *exchange) learnRefusal(t admission.Target, v *verdict) {
	if t == x.refuser && v.terminal.Outcome == execution.Completed && x.answer.status < http.StatusMultipleChoices {
		x.s.refusesUsage(t)
	}
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
