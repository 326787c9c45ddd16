package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"iop/lease"
	"iop/tunnel/wire"
)

// tunnelDoctor examines the way from here to an Edge's tunnel, by opening it as a Node does and going away again.
type tunnelDoctor struct {
	d       *doctor
	url     string
	token   string      // empty: none is sent
	tls     *tls.Config // nil: the system's trust
	managed bool
	// through chooses the proxy; nil: the environment's, as the Node's own does.
	through func(*http.Request) (*url.URL, error)
}

func (w *tunnelDoctor) examine(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*doctorPatience)
	defer cancel()
	request, err := w.request(ctx)
	if err != nil {
		w.d.fail("tunnel", "give it as wss://host/tunnel/v1", "the Edge's URL can't be read")
		return
	}
	if w.through == nil {
		w.through = http.ProxyFromEnvironment
	}
	w.proxy(request)
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if w.tls != nil {
		config = w.tls
	}
	transport := &http.Transport{Proxy: w.through, TLSClientConfig: config, DisableKeepAlives: true, TLSHandshakeTimeout: doctorPatience}
	sent := time.Now()
	response, err := transport.RoundTrip(request)
	if err != nil {
		w.unreached(request.URL, err)
		return
	}
	defer response.Body.Close()
	if response.TLS != nil {
		leaf := response.TLS.PeerCertificates[0]
		w.d.remains("tls", "the certificate of "+request.URL.Host, leaf.NotBefore, leaf.NotAfter)
	} else if !isLoopback(request.URL.Hostname()) {
		w.d.warn("tls", "use wss:// outside of a trusted network", "the tunnel is not encrypted")
	}
	w.clock(sent, response)
	w.answered(response)
}

// request is the upgrade that a Node sends.
func (w *tunnelDoctor) request(ctx context.Context) (*http.Request, error) {
	u, err := url.Parse(w.url)
	if err != nil || u.Host == "" {
		return nil, errors.New("no URL")
	}
	u.Scheme = cmp.Or(map[string]string{"ws": "http", "wss": "https"}[u.Scheme], u.Scheme)
	if u.Path == "" || u.Path == "/" {
		u.Path = "/tunnel/v1"
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	var key [16]byte
	rand.Read(key[:]) // never fails
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "websocket")
	r.Header.Set("Sec-WebSocket-Version", "13")
	r.Header.Set("Sec-WebSocket-Key", base64.StdEncoding.EncodeToString(key[:]))
	r.Header.Set("Sec-WebSocket-Protocol", wire.Subprotocol)
	if w.token != "" {
		r.Header.Set("Authorization", "Bearer "+w.token)
	}
	return r, nil
}

// proxy says which way the connection takes.
func (w *tunnelDoctor) proxy(r *http.Request) {
	through, err := w.through(r)
	switch {
	case err != nil:
		w.d.fail("proxy", "correct HTTPS_PROXY or HTTP_PROXY", "the proxy's URL can't be read")
	case through != nil:
		w.d.ok("proxy", "the tunnel goes through %s (HTTPS_PROXY, HTTP_PROXY; NO_PROXY names exceptions)", through.Host)
	default:
		w.d.ok("proxy", "the tunnel goes to %s directly", r.URL.Host)
	}
}

// unreached says why nothing answered.
func (w *tunnelDoctor) unreached(u *url.URL, err error) {
	var (
		dns       *net.DNSError
		authority x509.UnknownAuthorityError
		name      x509.HostnameError
		invalid   x509.CertificateInvalidError
		plain     tls.RecordHeaderError
		alert     tls.AlertError
	)
	switch {
	case errors.As(err, &dns):
		w.d.fail("tunnel", "correct the URL, or this machine's DNS", "the name %s does not resolve", dns.Name)
	case errors.Is(err, syscall.ECONNREFUSED):
		w.d.fail("tunnel", "start the Edge, or correct host and port; a firewall may answer so too", "nothing listens at %s", u.Host)
	case errors.As(err, &authority):
		w.d.fail("tls", "if the Edge's authority is your own, give it with IOP_NODE_CA; if not, somebody is in between", "this machine does not trust who signed the certificate of %s", u.Host)
	case errors.As(err, &name):
		w.d.fail("tls", "use a name that the certificate has, or get one for this name", "%s", oneLine(name))
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		w.d.fail("tls", "renew it; if it is valid, set this machine's clock", "the certificate of %s has ended, or has not begun: %s", u.Host, oneLine(invalid))
	case errors.As(err, &plain):
		w.d.fail("tls", "use ws:// if the Edge has no certificate, or the port that has TLS", "%s does not speak TLS", u.Host)
	case errors.As(err, &alert):
		w.d.fail("tls", "compare both bundles, and \"iop node-list show\" at the Edge, whose log says why", "%s refused the handshake: %s", u.Host, oneLine(err))
	case strings.Contains(err.Error(), "Proxy") || strings.Contains(err.Error(), "proxy"):
		w.d.fail("proxy", "have the proxy allow CONNECT to "+u.Host+", or put it into NO_PROXY", "%s", oneLine(err))
	case errors.Is(err, context.DeadlineExceeded):
		w.d.fail("tunnel", "a firewall that drops what it does not allow looks like this: allow TCP to "+u.Host, "nothing answered at %s in time", u.Host)
	default:
		w.d.fail("tunnel", "compare it with what \"curl -v\" says of the same URL", "%s", oneLine(err))
	}
}

// clockWarning is from where on clocks that differ are told in token mode, where little depends on them.
const clockWarning = time.Minute

// clock holds the Edge's against this machine's. A Date has whole seconds.
func (w *tunnelDoctor) clock(sent time.Time, response *http.Response) {
	theirs, err := http.ParseTime(response.Header.Get("Date"))
	if err != nil {
		return // an upgraded answer need not have one
	}
	middle := sent.Add(time.Since(sent) / 2)
	off := middle.Sub(theirs.Add(500 * time.Millisecond)).Abs()
	const do = "set both clocks by NTP (timedatectl set-ntp true)"
	switch {
	case off > lease.MaxClockOffset && w.managed:
		w.d.fail("clock", do, "this machine's is %s from the Edge's, and %s is the most", brief(off), brief(lease.MaxClockOffset))
	case off > clockWarning:
		w.d.warn("clock", do, "this machine's is %s from the Edge's", brief(off))
	default:
		w.d.ok("clock", "it agrees with the Edge's")
	}
}

// refusalSteps are what to do about the Edge's refusals.
var refusalSteps = map[string]string{
	"unauthorized":     "make a token with \"iop join-token create --node NAME\" at the Edge; in managed mode \"iop node-list allow NAME\"",
	"token_expired":    "make another one with \"iop join-token create --node NAME\" at the Edge",
	"token_revoked":    "make another one with \"iop join-token create --node NAME\" at the Edge",
	"node_taken":       "revoke the other token at the Edge, or choose another --name",
	"node_reserved":    "use the join token that is bound to the name, or choose another --name",
	"wrong_node":       "use the name that the token or the certificate is for",
	"identity_expired": "issue another certificate: iop ca issue --replace",
	"identity_revoked": "iop node-list undeny at the Edge, if it was not meant",
	"draining":         "try again: the Edge is stopping",
	"unavailable":      "look at the Edge's log: its state can't be asked",
	"bad_request":      "run the same version of iop at both ends",
}

// answered judges what came back: an Edge's yes, an Edge's no, or somebody else.
func (w *tunnelDoctor) answered(r *http.Response) {
	if r.StatusCode == http.StatusSwitchingProtocols {
		if r.Header.Get("Sec-WebSocket-Protocol") != wire.Subprotocol {
			w.d.fail("tunnel", "give the Edge's own URL, wss://host/tunnel/v1", "a WebSocket is served at %s, but not an Edge's", r.Request.URL.Path)
			return
		}
		w.d.ok("tunnel", "the Edge took the %s, and a WebSocket gets through", w.proof())
		return
	}
	code := errorCode(r.Body)
	if step, ours := refusalSteps[code]; ours {
		w.d.fail("tunnel", step, "the Edge answered: %s (%d); so the way to it is open", code, r.StatusCode)
		return
	}
	by := cmp.Or(r.Header.Get("Server"), r.Header.Get("Via"), "something")
	switch s := r.StatusCode; {
	case code == "unknown_path":
		w.d.fail("tunnel", "in managed mode Nodes come to IOP_EDGE_TUNNEL_LISTEN (port 8482); in token mode the path is /tunnel/v1", "an Edge answers, but has no tunnel at %s", r.Request.URL.Path)
	case s >= 300 && s < 400:
		w.d.fail("tunnel", "give the URL that it leads to, if that is the Edge: redirects are not followed", "%s answered with a redirect (%d)", by, s)
	case s == http.StatusProxyAuthRequired:
		w.d.fail("proxy", "put user and password into HTTPS_PROXY", "the proxy wants to know who asks (407)")
	case s == http.StatusBadGateway, s == http.StatusServiceUnavailable, s == http.StatusGatewayTimeout:
		w.d.fail("tunnel", "start the Edge behind it, or have it lead there", "%s answered %d: a proxy that does not reach an Edge", by, s)
	case s == http.StatusUpgradeRequired, s == http.StatusBadRequest, s == http.StatusMethodNotAllowed:
		w.d.fail("tunnel", "have the proxy pass Upgrade and Connection on (nginx: proxy_http_version 1.1 and both headers)", "%s answered %d: the upgrade to a WebSocket was lost on the way", by, s)
	default:
		w.d.fail("tunnel", "give the Edge's own URL, wss://host/tunnel/v1", "%s answered %d, and is no Edge", by, s)
	}
}

// proof is what the Edge was shown.
func (w *tunnelDoctor) proof() string {
	if w.managed {
		return "certificate"
	}
	return "join token"
}
