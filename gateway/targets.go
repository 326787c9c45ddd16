package gateway

import (
	"bytes"
	"net/http"
	"slices"
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

// usageOption is in the error of a provider that refuses a request for the stream_options in it.
const usageOption = "stream_options"

// quotable are the marks of a request with words in it that its provider could say, or with a place from which it could have
// them: usageOption itself, also with an escape for a letter, and all that makes a provider read more.
var quotable = slices.Concat(
	slices.DeleteFunc(slices.Clone(references[:]), func(mark []byte) bool { return string(mark) == escapeMark }),
	[][]byte{[]byte(usageOption), []byte(escapeMark + "2"), []byte(escapeMark + "3"), []byte(escapeMark + "4"), []byte(escapeMark + "5"), []byte(escapeMark + "6"), []byte(escapeMark + "7")},
)

// saysRefusal reports whether a provider's error, of status 400, says for certain that it refuses the stream_options that the Edge
// added. With words of the client's it proves nothing: where the provider fetches an image, the image's server decides whether
// the request is refused, and with which words, and whether the next one is. The target would be taken for one that reports no
// usage.
func (x *exchange) saysRefusal(message []byte) bool {
	return bytes.Contains(message, []byte(usageOption)) && !x.env.ReadsMore() && !refers(x.body, quotable)
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
