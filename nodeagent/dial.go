package nodeagent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"iop/tunnel/reach"
)

// Limits and times of the connections to a provider.
const (
	dialTimeout      = 10 * time.Second
	handshakeTimeout = 10 * time.Second
	// idleConnTimeout is below the 5 s after which uvicorn (vLLM, SGLang) and llama.cpp close an idle connection: the
	// Node closes first, so that a request never meets a connection that the provider is just closing.
	idleConnTimeout = 4 * time.Second
	// maxIdleConns is never the limit: a provider's capacity is.
	maxIdleConns = maxCapacity
	// readBufferSize takes a whole burst of events in one read.
	readBufferSize = 32 << 10
	// writeBufferSize lets the usual request leave in one packet train.
	writeBufferSize = 16 << 10
	// maxResponseHeaderBytes bounds what a provider's head may cost; net/http's own default is 10 MiB.
	maxResponseHeaderBytes = 64 << 10
)

// dialError is an error from before a request could reach the provider: resolving, connecting, the TLS handshake.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// dialer opens connections to the one address of its provider.
type dialer struct {
	host    string // as configured, without port
	address string // host:port, the only one that is ever dialed
	net     net.Dialer
	tls     *tls.Config // nil for http
	// leased: credentials of others travel here. A public name must not lead into a private network then.
	leased bool
	// replaced is dialed with in place of net, or nil. It is set before the first call.
	replaced func(ctx context.Context, network, address string) (net.Conn, error)
}

func newDialer(base *url.URL, roots *tls.Config) *dialer {
	d := &dialer{host: base.Hostname()}
	port := base.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[base.Scheme]
	}
	d.address = net.JoinHostPort(d.host, port)
	d.net = net.Dialer{Timeout: dialTimeout, ControlContext: d.control}
	if base.Scheme == "https" {
		d.tls = &tls.Config{MinVersion: tls.VersionTLS12}
		if roots != nil {
			d.tls = roots.Clone()
		}
		d.tls.ServerName = d.host
		d.tls.NextProtos = []string{"http/1.1"}
	}
	return d
}

// dial ignores the address that the transport names: a bug elsewhere must not choose where the Node connects to.
func (d *dialer) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	dial := d.net.DialContext
	if d.replaced != nil {
		dial = d.replaced
	}
	conn, err := dial(ctx, "tcp", d.address)
	if err != nil {
		return nil, &dialError{err}
	}
	if probe := reach.Of(ctx); probe != nil && d.tls == nil {
		return probe.Listen(conn), nil
	}
	return conn, nil
}

func (d *dialer) dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	raw, err := d.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, d.tls)
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, &dialError{err}
	}
	return conn, nil
}

// control sees the address that is really being connected to, after resolution: a name that suddenly resolves to a
// machine's metadata service or to the Node itself (DNS rebinding) ends here.
func (d *dialer) control(_ context.Context, _, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("the address can't be parsed: %w", err)
	}
	if d.leased {
		if err := checkPublic(d.host, ap.Addr()); err != nil {
			return err
		}
	}
	return checkAddress(d.host, ap.Addr())
}

// sharedAddresses are those of carriers' own networks (RFC 6598), which netip does not count as private.
var sharedAddresses = netip.MustParsePrefix("100.64.0.0/10")

// checkPublic reports whether host may be at addr for a provider that is sent leased credentials: whoever can bend a
// public name could otherwise have them delivered to a machine of the Node's network.
func checkPublic(host string, addr netip.Addr) error {
	addr = addr.Unmap().WithZone("")
	if declaredLocal(host) || !addr.IsPrivate() && !sharedAddresses.Contains(addr) {
		return nil
	}
	return fmt.Errorf("the provider's public name resolves to %s, a private address; if this is intended, use a local name or the address itself", addr)
}

// declaredLocal reports whether the operator has written a host that can only be in this machine's own network.
func declaredLocal(host string) bool {
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return isLocalName(host)
	}
	addr = addr.Unmap().WithZone("")
	return addr.IsLoopback() || addr.IsPrivate() || addr.IsLinkLocalUnicast() || sharedAddresses.Contains(addr)
}

// metadataAddresses are those of cloud metadata services outside the link-local ranges.
var metadataAddresses = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"),   // AWS
	netip.MustParseAddr("100.100.100.200"), // Alibaba Cloud
	netip.MustParseAddr("192.0.0.192"),     // Oracle Cloud
}

// checkAddress reports whether a provider configured with host may be reached at addr. An address that the operator
// wrote literally is always right.
func checkAddress(host string, addr netip.Addr) error {
	addr = addr.Unmap()
	if literal, err := netip.ParseAddr(host); err == nil && literal.Unmap() == addr {
		return nil
	}
	bare := addr.WithZone("")
	switch {
	case bare.IsLinkLocalUnicast(), bare.IsMulticast(), bare.IsUnspecified():
		return fmt.Errorf("the provider's name resolves to %s, a link-local or special address; if this is intended, use the address itself", addr)
	case isMetadata(bare):
		return fmt.Errorf("the provider's name resolves to %s, a cloud's metadata service; if this is intended, use the address itself", addr)
	case bare.IsLoopback() && !isLocalName(host):
		return fmt.Errorf("the provider's name resolves to %s, this machine itself; if this is intended, use localhost or the address itself", addr)
	}
	return nil
}

func isMetadata(addr netip.Addr) bool {
	for _, m := range metadataAddresses {
		if m == addr {
			return true
		}
	}
	return false
}

// isLocalName reports whether a name can only be given by this machine or its network, and so may mean this machine.
func isLocalName(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if !strings.Contains(host, ".") {
		return true
	}
	for _, suffix := range []string{".localhost", ".local", ".internal", ".lan", ".home.arpa"} {
		if strings.HasSuffix(host, suffix) {
			return true
		}
	}
	name, err := os.Hostname()
	return err == nil && strings.EqualFold(name, host)
}

// newTransport returns the transport of one provider: HTTP/1.1, its own pool, no proxy, no compression.
func newTransport(d *dialer) *http.Transport {
	return &http.Transport{
		Proxy:                  nil,
		DialContext:            d.dial,
		DialTLSContext:         d.dialTLS,
		DisableCompression:     true,
		MaxIdleConns:           0,
		MaxIdleConnsPerHost:    maxIdleConns,
		IdleConnTimeout:        idleConnTimeout,
		MaxResponseHeaderBytes: maxResponseHeaderBytes,
		ReadBufferSize:         readBufferSize,
		WriteBufferSize:        writeBufferSize,
	}
}

// newOneShot returns a transport that opens a connection for each request.
func newOneShot(d *dialer) *http.Transport {
	t := newTransport(d)
	t.DisableKeepAlives = true
	return t
}

// unreachable reports whether err means that the provider can't have seen the request.
func unreachable(err error) bool {
	_, ok := errors.AsType[*dialError](err)
	return ok
}
