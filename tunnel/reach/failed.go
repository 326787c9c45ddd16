package reach

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"reflect"
	"runtime"
	"syscall"
)

// Failed says why an attempt brought no HTTP answer. err is what a client or transport of net/http returned, and not nil. It may
// be called once the attempt is over.
func (a *Attempt) Failed(err error) Finding {
	if f, ok := a.proxyFailed(err); ok {
		return f
	}
	host := hostOf(a.URL)
	if f, ok := a.unconnected(host, err); ok {
		return f
	}
	if f, ok := a.refusedHere(host, err); ok {
		return f
	}
	if f, ok := a.untrusted(host, err); ok {
		return f
	}
	return a.brokenOff(host, err)
}

// unconnected is about errors from before TLS.
func (a *Attempt) unconnected(host string, err error) (Finding, bool) {
	dns, ok := errors.AsType[*net.DNSError](err)
	switch {
	case ok && dns.IsTimeout:
		return find(a.Peer.about, "check this machine's DNS", "the DNS server did not answer for %s", dns.Name), true
	case ok && dns.IsNotFound:
		return find(a.Peer.about, "correct the URL, or this machine's DNS", "the name %s does not resolve", dns.Name), true
	case ok:
		return find(a.Peer.about, "check this machine's network and DNS", "the name %s can't be resolved: %s", dns.Name, dns.Err), true
	case isErrno(err, syscall.ECONNREFUSED, 10061):
		return find(a.Peer.about, a.Peer.start, "nothing listens at %s", host), true
	case isErrno(err, syscall.EHOSTUNREACH, 10065), isErrno(err, syscall.ENETUNREACH, 10051):
		return find(a.Peer.about, "check the address and this machine's network; a firewall on the way that rejects connections looks the same", "there is no route to %s", host), true
	case isErrno(err, syscall.EACCES, 10013), errors.Is(err, syscall.EPERM):
		return find(a.Peer.about, "allow it in this machine's firewall, or in the sandbox or the unit that this process runs in", "this machine forbids the connection to %s", host), true
	}
	return Finding{}, false
}

// isErrno reports whether an error is one of the system's; Windows has numbers of its own for sockets.
func isErrno(err error, unix, windows syscall.Errno) bool {
	return errors.Is(err, unix) || runtime.GOOS == "windows" && errors.Is(err, windows)
}

// isIdentity reports whether a certificate is one that Edges in managed mode show Nodes: a SPIFFE ID and no other name.
func isIdentity(c *x509.Certificate) bool {
	return c != nil && len(c.URIs) == 1 && c.URIs[0].Scheme == "spiffe" && len(c.DNSNames) == 0
}

// managedListener is about a Node without a certificate of its own at a listener that asks for one.
func managedListener(host string) Finding {
	return find("tls", "give this Node its own certificate with --tls-cert, --tls-key and --edge-id (docs/managed-mode.md), or correct the URL",
		"%s was reached, and is the tunnel listener of an Edge in managed mode", host)
}

// untrusted is about the TLS handshake.
func (a *Attempt) untrusted(host string, err error) (Finding, bool) {
	if record, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		if string(record.RecordHeader[:]) == "HTTP/" {
			return a.speaksPlain(host), true
		}
		return find("tls", "correct the port, or use "+a.Peer.plain+" if the server has no certificate", "%s does not speak TLS", host), true
	}
	if errors.Is(err, http.ErrSchemeMismatch) {
		return a.speaksPlain(host), true
	}
	if unknown, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		if isIdentity(unknown.Cert) {
			return managedListener(host), true
		}
		return a.untrustedIssuer(host), true
	}
	if name, ok := errors.AsType[x509.HostnameError](err); ok {
		if isIdentity(name.Certificate) {
			return managedListener(host), true
		}
		return find("tls", "use a name in the certificate, or get a certificate for this name", "the certificate of %s is for another name: %s", host, name), true
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		if invalid.Reason == x509.Expired {
			return find("tls", "renew it; if it is valid, set this machine's clock", "the certificate of %s has expired or is not valid yet: %s", host, invalid), true
		}
		return find("tls", "get another certificate for the server", "the certificate of %s can't be used: %s", host, invalid), true
	}
	if alert, ok := peerAlert(err); ok {
		return a.refusedHandshake(host, alert), true
	}
	return Finding{}, false
}

// untrustedIssuer is about a certificate from an authority that was not given, or not known to the system.
func (a *Attempt) untrustedIssuer(host string) Finding {
	if a.Roots != "" {
		return find("tls", "put the authority that issued it into "+a.Roots+"; if it should be there, the connection may be intercepted",
			"the issuer of the certificate of %s is not in %s", host, a.Roots)
	}
	return find("tls", a.Peer.trust, "this machine does not trust the issuer of the certificate of %s", host)
}

// speaksPlain is about a URL with TLS and a port without.
func (a *Attempt) speaksPlain(host string) Finding {
	do := fmt.Sprintf("use the TLS port, or %s%s if the network is trusted", a.Peer.plain, a.URL.Host)
	return find("tls", do, "%s does not speak TLS: it answers in plain HTTP, but the URL begins with %s", host, a.Peer.secure)
}

// speaksTLS is about a URL without TLS and a port with.
func (a *Attempt) speaksTLS(host string) Finding {
	return find("tls", "use "+a.Peer.secure+a.URL.Host, "%s speaks TLS, but the URL begins with %s", host, a.Peer.plain)
}

// peerAlert is the TLS alert with which the other side ended the connection. crypto/tls keeps the alert's type to itself, except
// with QUIC: the operation and the kind of the value are what is public of it.
func peerAlert(err error) (tls.AlertError, bool) {
	if alert, ok := errors.AsType[tls.AlertError](err); ok {
		return alert, true
	}
	op, ok := errors.AsType[*net.OpError](err)
	if !ok || op.Op != "remote error" || op.Err == nil {
		return 0, false
	}
	value := reflect.ValueOf(op.Err)
	if value.Kind() != reflect.Uint8 {
		return 0, false
	}
	return tls.AlertError(value.Uint()), true
}

// Alerts of RFC 8446, section 6.2.
const (
	alertHandshakeFailure    = 40
	alertProtocolVersion     = 70
	alertUnrecognizedName    = 112
	alertCertificateRequired = 116
)

func (a *Attempt) refusedHandshake(host string, alert tls.AlertError) Finding {
	switch alert {
	case alertCertificateRequired:
		return find("tls", "this is the port for Nodes in managed mode: give --tls-cert and --tls-key, or use the public port with a join token", "%s requires a client certificate (%s)", host, alert)
	case alertUnrecognizedName:
		return find("tls", "use the server's own name in the URL", "%s does not serve this name (%s)", host, alert)
	case alertProtocolVersion, alertHandshakeFailure:
		return find("tls", "enable TLS 1.2 or later on it; managed mode needs 1.3", "%s and this machine have no TLS version or cipher in common (%s)", host, alert)
	}
	return find("tls", `the Edge's log says why; compare both bundles, and check "iop node-list show" at the Edge`, "%s refused the handshake: %s", host, alert)
}

// brokenOff is about a connection that ended or stayed silent before there was an answer, and about what has no name here.
func (a *Attempt) brokenOff(host string, err error) Finding {
	closed := hasEnded(err) || a.wasClosed()
	switch {
	case !isSecure(a.URL) && a.sawTLS():
		return a.speaksTLS(host)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), isTimeout(err):
		return a.Silent()
	case closed && isSecure(a.URL):
		return find(a.Peer.about, "check that the port is right, and that no proxy or firewall on the way blocks TLS", "%s closed the connection without an answer", host)
	case closed:
		return find(a.Peer.about, "if it expects TLS, use "+a.Peer.secure+a.URL.Host+"; otherwise check that the port is right", "%s closed the connection without an answer", host)
	}
	return find(a.Peer.about, `try the same URL with "curl -v"`, "%s can't be reached: %s", host, err)
}

func hasEnded(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || isErrno(err, syscall.ECONNRESET, 10054) || isErrno(err, syscall.EPIPE, 10053)
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

// proxyFailed is about a proxy on the way.
func (a *Attempt) proxyFailed(err error) (Finding, bool) {
	except := "or add the server's host to NO_PROXY"
	if refused, ok := errors.AsType[*proxyRefusal](err); ok {
		if refused.status == http.StatusProxyAuthRequired {
			return find("proxy", "put the user name and password into HTTPS_PROXY, "+except, "the proxy %s requires authentication (407)", refused.proxy), true
		}
		return find("proxy", "have the proxy allow CONNECT to "+hostOf(a.URL)+", "+except, "the proxy %s refused to connect to %s: %d %s", refused.proxy, hostOf(a.URL), refused.status, http.StatusText(refused.status)), true
	}
	proxy := a.proxyURL()
	if proxy == nil {
		return Finding{}, false
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && (op.Op == "proxyconnect" || op.Op == "dial") {
		through := Attempt{URL: proxy, Peer: Peer{about: "proxy", start: "start it"}}
		if f, ok := through.unconnected(hostOf(proxy), op); ok {
			return find("proxy", "correct HTTPS_PROXY or HTTP_PROXY, "+except, "the proxy can't be reached: %s", f.Found), true
		}
	}
	return Finding{}, false
}
