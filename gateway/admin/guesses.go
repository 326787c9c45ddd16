package admin

import (
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// Limits of wrong admin tokens. A token has 190 random bits, so that no number of guesses matters; the limits bound what guesses
// cost, in work and in log lines. The right token is always let in: a lock would let anyone who reaches the listener shut
// the operator out.
const (
	guessBurst     = 20 // wrong tokens at once from one source
	guessRefill    = 10 * time.Second
	guessBurstAll  = 100 // and from all together
	guessRefillAll = time.Second
	maxGuessers    = 1024 // sources that are remembered
	guessLogEvery  = 10 * time.Second
	// How many of them are in the audit: some 1500 a day at most.
	guessAuditBurst  = 10
	guessAuditRefill = time.Minute
)

// guesses counts requests with a wrong admin token, by source and in all.
type guesses struct {
	log *slog.Logger

	mu     sync.Mutex
	from   map[netip.Addr]*allowance
	all    allowance
	logged time.Time // when a line was last written
	silent int       // guesses since then

	audited allowance // how many more may have an entry in the audit
	left    int       // guesses that had none since the last entry
}

// allowance is how many more wrong tokens may come.
type allowance struct {
	left float64
	at   time.Time
}

func newGuesses(log *slog.Logger) *guesses {
	return &guesses{log: log, from: map[netip.Addr]*allowance{}, all: allowance{left: guessBurstAll, at: time.Now()}, audited: allowance{left: guessAuditBurst, at: time.Now()}}
}

// wrong notes a wrong token, and returns how long its source must wait; 0: it gets the usual refusal.
func (g *guesses) wrong(r *http.Request, where string) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	now, addr := time.Now(), sourceOf(r)
	if now.Sub(g.logged) >= guessLogEvery {
		g.log.Warn("admin", "action", where+" refused: wrong admin token", "remote", r.RemoteAddr, "unlogged", g.silent)
		g.logged, g.silent = now, 0
	} else {
		g.silent++
	}
	one := g.from[addr]
	if one == nil {
		if len(g.from) >= maxGuessers {
			clear(g.from) // guesses from everywhere: what bounds them all is left
		}
		one = &allowance{left: guessBurst, at: now}
		g.from[addr] = one
	}
	return max(one.take(now, guessBurst, guessRefill), g.all.take(now, guessBurstAll, guessRefillAll))
}

// forAudit reports whether a guess gets an entry in the audit, and how many before it got none.
func (g *guesses) forAudit() (before int, yes bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.audited.take(time.Now(), guessAuditBurst, guessAuditRefill) > 0 {
		g.left++
		return 0, false
	}
	before, g.left = g.left, 0
	return before, true
}

// take takes one guess, or returns when there will be one, in whole seconds.
func (a *allowance) take(now time.Time, burst float64, refill time.Duration) time.Duration {
	a.left = min(a.left+float64(now.Sub(a.at))/float64(refill), burst)
	a.at = now
	if a.left < 1 {
		return time.Duration((1-a.left)*float64(refill)).Truncate(time.Second) + time.Second
	}
	a.left--
	return 0
}

// sourceOf is who the connection is from: an IPv4 address, or the /64 of an IPv6 one. Headers that name somebody else are not
// believed.
func sourceOf(r *http.Request) netip.Addr {
	ap, _ := netip.ParseAddrPort(r.RemoteAddr)
	addr := ap.Addr().Unmap().WithZone("")
	if addr.Is6() {
		prefix, _ := addr.Prefix(64)
		return prefix.Addr()
	}
	return addr
}

// localSuffixes end names that nobody can register in the public DNS.
var localSuffixes = []string{".localhost", ".local", ".internal", ".lan", ".home.arpa", ".test", ".svc"}

// localHost reports whether a Host header names this machine by an address or by a name that only its own network gives. A page
// whose name was made to resolve to this machine (DNS rebinding) comes with a name of the public DNS.
func localHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if _, err := netip.ParseAddr(host); err == nil || !strings.Contains(host, ".") {
		return true
	}
	for _, suffix := range localSuffixes {
		if strings.HasSuffix(host, suffix) {
			return true
		}
	}
	return false
}

// open serves what asks for no token. Pages of other origins get nothing of it; where the Host is a public name, only who has the
// token does.
func (a *api) open(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case crossOrigin(r):
			a.fail(w, r, errCrossOrigin)
		case !localHost(r.Host) && !a.hasToken(r):
			a.fail(w, r, &failure{http.StatusForbidden, "foreign_host", "",
				"without the admin token, this path only answers if the Host header is an IP address or a private network's name"})
		default:
			next.ServeHTTP(w, r)
		}
	})
}
