package reach

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync"
)

// Attempt watches one connection being made, from resolving a name to the answer. URL and Peer are required and must not change;
// a zero value of the rest is right. Its methods may be called by any goroutine.
type Attempt struct {
	URL  *url.URL // http, https, ws or wss
	Peer Peer
	// Roots is the file with the authorities that the server's certificate has to come from; empty: the system's.
	Roots string

	mu sync.Mutex
	// Guarded by mu.
	stage stage
	proxy *url.URL // or nil: none on the way
	first byte     // the first byte that arrived
	heard bool     // first is known
	ended bool     // the other side closed the connection before its first byte
}

// stage is how far an Attempt has come.
type stage int

const (
	stageStart stage = iota
	stageResolving
	stageConnecting
	stageHandshake
	stageAsked // the request is written
)

func (a *Attempt) reached(s stage) {
	a.mu.Lock()
	a.stage = s
	a.mu.Unlock()
}

// attemptKey is the context key of an Attempt.
type attemptKey struct{}

// Of returns the Attempt that a context of Watch belongs to, or nil.
func Of(ctx context.Context) *Attempt {
	a, _ := ctx.Value(attemptKey{}).(*Attempt)
	return a
}

// Watch returns a context for the request that is the attempt.
func (a *Attempt) Watch(ctx context.Context) context.Context {
	ctx = context.WithValue(ctx, attemptKey{}, a)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		DNSStart:          func(httptrace.DNSStartInfo) { a.reached(stageResolving) },
		ConnectStart:      func(string, string) { a.reached(stageConnecting) },
		TLSHandshakeStart: func() { a.reached(stageHandshake) },
		WroteRequest:      func(httptrace.WroteRequestInfo) { a.reached(stageAsked) },
	})
}

// Through returns choose, which picks a proxy as http.ProxyFromEnvironment does, noting what it picks.
func (a *Attempt) Through(choose func(*http.Request) (*url.URL, error)) func(*http.Request) (*url.URL, error) {
	return func(r *http.Request) (*url.URL, error) {
		proxy, err := choose(r)
		a.mu.Lock()
		a.proxy = proxy
		a.mu.Unlock()
		return proxy, err
	}
}

// proxyRefusal is the answer of a proxy that does not connect.
type proxyRefusal struct {
	proxy  string // its host: the URL may hold a password
	status int
}

func (e *proxyRefusal) Error() string {
	return fmt.Sprintf("the proxy %s answered %d", e.proxy, e.status)
}

// ProxyAnswered is for http.Transport.OnProxyConnectResponse.
func ProxyAnswered(_ context.Context, proxy *url.URL, _ *http.Request, response *http.Response) error {
	if response.StatusCode == http.StatusOK {
		return nil
	}
	return &proxyRefusal{proxy.Host, response.StatusCode}
}

// Listen returns conn, noting the first byte that arrives.
func (a *Attempt) Listen(conn net.Conn) net.Conn { return &listened{Conn: conn, attempt: a} }

// listened is a connection whose first byte is noted.
type listened struct {
	net.Conn
	attempt *Attempt
	heard   bool // the first Read has brought something; the reader's alone
}

// Read implements net.Conn.
func (l *listened) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if !l.heard && (n > 0 || err != nil) {
		l.heard = true
		l.attempt.begins(p[:n], err)
	}
	return n, err
}

// begins notes the first bytes that arrive, or the error in their place.
func (a *Attempt) begins(first []byte, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(first) > 0 {
		a.first, a.heard = first[0], true
		return
	}
	a.ended = hasEnded(err)
}

// wasClosed reports whether the connection was closed before it brought anything. Not every error of net/http says so.
func (a *Attempt) wasClosed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ended
}

// tlsAlertRecord is the first byte of a TLS alert (RFC 8446, section 5.1), the answer of many servers to plain HTTP. No HTTP
// answer begins with it.
const tlsAlertRecord = 21

func (a *Attempt) sawTLS() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.heard && a.first == tlsAlertRecord
}

func (a *Attempt) proxyURL() *url.URL {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.proxy
}

// Via is the proxy on the way by its host, or empty.
func (a *Attempt) Via() string {
	if proxy := a.proxyURL(); proxy != nil {
		return proxy.Host
	}
	return ""
}

// Silent says what an attempt that has brought neither an answer nor an error is waiting for.
func (a *Attempt) Silent() Finding {
	a.mu.Lock()
	at, proxy := a.stage, a.proxy
	a.mu.Unlock()
	host, about := hostOf(a.URL), a.Peer.about
	dropped := "check for a firewall that drops packets and allow TCP to " + host + ", or correct host and port"
	if proxy != nil {
		host, about = proxy.Host, "proxy"
		dropped = "correct HTTPS_PROXY or HTTP_PROXY, or add the server's host to NO_PROXY"
	}
	switch at {
	case stageResolving:
		return find(about, "check this machine's DNS", "the DNS server has not answered for %s", host)
	case stageHandshake:
		return find(about, "check that the port is right, and that no firewall on the way blocks TLS", "%s accepts connections, but does not answer the TLS handshake", host)
	case stageAsked:
		return find(about, "check that the port is right; a hung server looks the same", "%s accepts connections, but does not answer", host)
	}
	return find(about, dropped, "nothing answers at %s", host)
}
