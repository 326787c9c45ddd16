package gateway

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"iop/openai"
	"iop/state"
)

// anyone is the key of a caller where none is asked for (AuthNone).
var anyone = &state.Key{Name: "anyone"}

// authenticate finds the caller's key, and gives the connection its place. It runs before any byte of the body is read.
func (s *Server) authenticate(w http.ResponseWriter, r *http.Request, fam openai.Family) (*state.Key, *openai.Error) {
	key, e := s.keyOf(r, fam)
	if e == nil {
		e = s.place(w, r)
	}
	if e != nil {
		return nil, e
	}
	return key, nil
}

// keyOf is the key that a request shows.
func (s *Server) keyOf(r *http.Request, fam openai.Family) (*state.Key, *openai.Error) {
	if s.cfg.Auth == AuthNone {
		return anyone, s.checkLocal(r)
	}
	presented, e := presentedKey(r.Header, fam)
	if e != nil {
		return nil, e
	}
	key, err := s.cfg.Store.VerifyKey(r.Context(), presented)
	if err == nil {
		return key, nil
	}
	var invalid *state.InvalidKeyError
	if !errors.As(err, &invalid) {
		s.log.Error("could not check an API key", "error", err)
		return nil, openai.StateUnavailable(time.Second)
	}
	s.metrics.invalidKey(invalid.Reason)
	// A revoked or expired key proves its secret: whoever goes on using it is no guesser.
	if invalid.Reason == state.InvalidUnknown || invalid.Reason == state.InvalidMismatch {
		// Only who fails is slowed down: behind a proxy or a NAT, one address is many callers.
		if wait := s.guesses.failed(clientAddr(r)); wait > 0 {
			return nil, openai.RateLimited(wait, "Too many requests with an unknown API key from this address.")
		}
	}
	if invalid.Reason == state.InvalidRevoked || invalid.Reason == state.InvalidExpired {
		if left, ok := s.oldKeys.due(invalid.ID, time.Now()); ok {
			s.log.Info("refused an API key that is no longer valid", "key", invalid.ID, "key_name", invalid.Name,
				"reason", invalid.Reason.String(), "remote", r.RemoteAddr, "left_out", left)
		}
	}
	return nil, openai.InvalidAPIKey(fam)
}

// checkLocal keeps web pages out where no key does: a page of another origin, or one whose name was made to resolve
// to loopback.
func (s *Server) checkLocal(r *http.Request) *openai.Error {
	if err := s.crossOrigin.Check(r); err != nil {
		return forbidden("Cross-origin requests from web pages are refused.")
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return forbidden("An Edge without API keys only accepts requests for a local host name such as localhost.")
	}
	return nil
}

func forbidden(message string) *openai.Error {
	return &openai.Error{
		Status: http.StatusForbidden, Type: "invalid_request_error", Code: "forbidden", Message: message, NoRetry: true,
	}
}

// clientAddr is who the connection is from: an IPv4 address, or the /64 of an IPv6 one, which is one customer's.
// Headers that name somebody else are not believed.
func clientAddr(r *http.Request) netip.Addr {
	ap, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	addr := ap.Addr().Unmap()
	if addr.Is6() {
		if p, err := addr.WithZone("").Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return addr
}

// Limits of guessing keys. A guess that has the right form costs a look-up; no guess ever succeeds by luck.
const (
	guessBurst   = 60
	guessRefill  = time.Second // one more guess each
	maxGuesses   = 4096        // addresses that are remembered
	guessMaxWait = time.Minute
)

// guesses counts requests with unknown keys by address.
type guesses struct {
	mu   sync.Mutex
	from map[netip.Addr]*guesser
}

type guesser struct {
	left float64
	at   time.Time
}

// failed notes a guess, and returns how long the address should wait with the next; 0: it may go on.
func (g *guesses) failed(addr netip.Addr) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	b := g.from[addr]
	if b == nil {
		if g.from == nil || len(g.from) >= maxGuesses {
			g.from = map[netip.Addr]*guesser{} // a flood from everywhere only costs the memory of it
		}
		b = &guesser{left: guessBurst, at: now}
		g.from[addr] = b
	}
	if b.refill(now); b.left < 1 {
		return min(time.Duration((1-b.left)*float64(guessRefill))+time.Second, guessMaxWait)
	}
	b.left--
	return 0
}

func (b *guesser) refill(now time.Time) {
	b.left = min(b.left+float64(now.Sub(b.at))/float64(guessRefill), guessBurst)
	b.at = now
}
