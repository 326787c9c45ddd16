package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"iop/lease"
	"iop/nodeagent"
	"iop/tunnel"
	"iop/tunnel/reach"
	"iop/tunnel/wire"
)

// tunnelDoctor examines the way from here to an Edge's tunnel, by opening it as a Node does and going away again.
type tunnelDoctor struct {
	d       *doctor
	url     string
	token   string      // empty: none is sent
	tls     *tls.Config // nil: the system's trust
	roots   string      // file of the authorities in tls, for messages; or empty
	managed bool
	trial   *tunnel.Trial // the Node that the Edge is asked about; nil: none
	// through chooses the proxy; nil: the environment's, as the Node's own does.
	through func(*http.Request) (*url.URL, error)

	tried int // how many of the trial's models the Edge is asked about
}

func (w *tunnelDoctor) examine(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*doctorPatience)
	defer cancel()
	edge, err := nodeagent.EdgeURL(w.url)
	if err != nil {
		w.d.fail("tunnel", "give it as wss://host", "%v", err)
		return
	}
	request, err := w.request(ctx, edge)
	if err != nil {
		w.d.fail("labels", "use fewer or shorter labels", "%s", oneLine(err))
		return
	}
	if w.through == nil {
		w.through = http.ProxyFromEnvironment
	}
	w.proxy(request)
	attempt := &reach.Attempt{URL: request.URL, Peer: reach.Edge, Roots: w.roots}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if w.tls != nil {
		config = w.tls
	}
	transport := &http.Transport{
		Proxy: attempt.Through(w.through), OnProxyConnectResponse: reach.ProxyAnswered,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{Timeout: doctorPatience}).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return attempt.Listen(conn), nil
		},
		TLSClientConfig: config, DisableKeepAlives: true, TLSHandshakeTimeout: doctorPatience,
	}
	sent := time.Now()
	response, err := transport.RoundTrip(request.WithContext(attempt.Watch(ctx)))
	if err != nil {
		w.d.found(attempt.Failed(err))
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
	w.answered(attempt, response)
}

// request is the upgrade that a Node sends; edge is from nodeagent.EdgeURL.
func (w *tunnelDoctor) request(ctx context.Context, edge string) (*http.Request, error) {
	u, err := url.Parse(edge)
	if err != nil {
		return nil, err
	}
	u.Scheme = map[string]string{"ws": "http", "wss": "https"}[u.Scheme]
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
	if w.trial != nil {
		value, models, err := w.trial.Header()
		if err != nil {
			return nil, err
		}
		r.Header.Set(wire.HeaderTrial, value)
		w.tried = models
	}
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

// found notes what is wrong.
func (d *doctor) found(f reach.Finding) { d.fail(f.About, f.Do, "%s", f.Found) }

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

// answered judges what came back: an Edge's yes, an Edge's no, or somebody else.
func (w *tunnelDoctor) answered(attempt *reach.Attempt, r *http.Response) {
	if r.StatusCode == http.StatusSwitchingProtocols && r.Header.Get("Sec-WebSocket-Protocol") == wire.Subprotocol {
		w.d.ok("tunnel", "the Edge took the %s, and a WebSocket gets through", w.proof())
		w.accepted(r)
		return
	}
	var body []byte
	if r.StatusCode != http.StatusSwitchingProtocols {
		body, _ = io.ReadAll(io.LimitReader(r.Body, reach.MaxBody)) // the status is the news
	}
	w.d.found(attempt.Answered(r, body))
}

// accepted judges the answer to a trial.
func (w *tunnelDoctor) accepted(r *http.Response) {
	if w.trial == nil {
		return
	}
	ignored, checked := tunnel.TrialAnswer(r.Header)
	switch {
	case !checked:
		w.d.warn("name", "compare them with \"iop join-token list\" at the Edge, or update the Edge",
			"the Edge can't check the name %q, labels and models before the Node runs", w.trial.Node)
		return
	case ignored > 0:
		w.d.warn("models", "create a token with that --model, or leave them out with models= in --provider",
			"the join token does not allow %d of the %s that were checked: they are not offered", ignored, counted(w.tried, "model"))
	}
	w.d.ok("name", "the Edge accepts a Node %q with these labels", w.trial.Node)
}

// proof is what the Edge was shown.
func (w *tunnelDoctor) proof() string {
	if w.managed {
		return "certificate"
	}
	return "join token"
}
