package reach

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"
)

// try makes one attempt on the real network and returns what is found.
func try(t *testing.T, address string, config *tls.Config, proxy *url.URL) Finding {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	a := &Attempt{URL: u, Peer: Edge}
	transport := &http.Transport{
		Proxy:                  a.Through(func(*http.Request) (*url.URL, error) { return proxy, nil }),
		OnProxyConnectResponse: ProxyAnswered,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return a.Listen(conn), nil
		},
		TLSClientConfig: config, DisableKeepAlives: true,
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(a.Watch(ctx), http.MethodGet, address, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return a.Failed(err)
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(response.Body, MaxBody))
	return a.Answered(response, body)
}

// raw serves connections with a function, and returns the address. Connections that are still open are closed at the end.
func raw(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			serve(conn)
		}
	}()
	t.Cleanup(func() { listener.Close(); <-done })
	return listener.Addr().String()
}

// certificate is one of itself, for a name.
func certificate(t *testing.T, name string, from, until time.Time) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotBefore: from, NotAfter: until, IsCA: true, BasicConstraintsValid: true}
	if id, err := url.Parse(name); err == nil && id.Scheme == "spiffe" {
		template.DNSNames, template.URIs = nil, []*url.URL{id}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func trusting(c tls.Certificate, name string) *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(c.Leaf)
	return &tls.Config{RootCAs: pool, ServerName: name, MinVersion: tls.VersionTLS12}
}

// secure serves TLS with a configuration, and nothing in it.
func secure(t *testing.T, config *tls.Config) string {
	t.Helper()
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.TLS = config
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// TestFaults: each fault of a connection, made on the real network, has a finding of its own.
func TestFaults(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	plainAt := plain.Listener.Addr().String()
	now := time.Now()
	good, old := certificate(t, "edge.test", now.Add(-time.Hour), now.Add(time.Hour)), certificate(t, "edge.test", now.Add(-time.Hour), now.Add(-time.Minute))
	secureAt := secure(t, &tls.Config{Certificates: []tls.Certificate{good}})
	identity := certificate(t, "spiffe://example.org/edge/main", now.Add(-time.Hour), now.Add(time.Hour))
	managedAt := secure(t, &tls.Config{Certificates: []tls.Certificate{identity}})
	oldAt := secure(t, &tls.Config{Certificates: []tls.Certificate{old}})
	mutualAt := secure(t, &tls.Config{Certificates: []tls.Certificate{good}, ClientAuth: tls.RequireAnyClientCert})
	closing := raw(t, func(c net.Conn) { c.Close() })
	alerting := raw(t, func(c net.Conn) { // as servers of OpenSSL and rustls answer plain HTTP
		_, _ = c.Write([]byte{tlsAlertRecord, 3, 1, 0, 2, 2, 10})
		c.Close()
	})
	noise := raw(t, func(c net.Conn) { _, _ = c.Write([]byte("SSH-2.0-x\r\n")); c.Close() })
	silent := raw(t, func(net.Conn) {})
	answer := func(status int) *url.URL {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		t.Cleanup(s.Close)
		u, _ := url.Parse(s.URL)
		return u
	}
	nobody := &url.URL{Scheme: "http", Host: "127.0.0.1:1", User: url.UserPassword("u", "hunter2")}
	for name, test := range map[string]struct {
		url       string
		tls       *tls.Config
		proxy     *url.URL
		about     string
		found, do string
	}{
		"HTTP to an HTTPS port":   {"http://" + secureAt, nil, nil, "tls", "speaks TLS, but the URL begins with ws://", "wss://" + secureAt},
		"HTTPS to an HTTP port":   {"https://" + plainAt, nil, nil, "tls", "does not speak TLS: it answers in plain HTTP", "ws://" + plainAt},
		"HTTP, a TLS alert":       {"http://" + alerting, nil, nil, "tls", "speaks TLS", "wss://"},
		"HTTPS to another server": {"https://" + noise, nil, nil, "tls", "does not speak TLS", "port"},
		"unknown authority":       {"https://" + secureAt, &tls.Config{ServerName: "edge.test"}, nil, "tls", "does not trust", "IOP_NODE_CA"},
		"another name":            {"https://" + secureAt, trusting(good, "other.test"), nil, "tls", "for another name", "name"},
		"a managed Edge":          {"https://" + managedAt, trusting(identity, "edge.test"), nil, "tls", "is the tunnel listener of an Edge in managed mode", "--edge-id"},
		"a managed Edge, unknown": {"https://" + managedAt, &tls.Config{ServerName: "edge.test"}, nil, "tls", "is the tunnel listener of an Edge in managed mode", "--edge-id"},
		"expired":                 {"https://" + oldAt, trusting(old, "edge.test"), nil, "tls", "has expired", "renew"},
		"wants a certificate":     {"https://" + mutualAt, trusting(good, "edge.test"), nil, "tls", "requires a client certificate", "--tls-cert"},
		"no common version":       {"https://" + secureAt, &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, nil, "tls", "no TLS version", "TLS 1.2"},
		"nobody":                  {"http://127.0.0.1:1", nil, nil, "tunnel", "nothing listens at 127.0.0.1:1", "start the Edge"},
		"no name":                 {"http://edge.invalid", nil, nil, "tunnel", "edge.invalid", "DNS"},
		"closed":                  {"http://" + closing, nil, nil, "tunnel", "closed the connection", "wss://" + closing},
		"closed in TLS":           {"https://" + closing, nil, nil, "tunnel", "closed the connection", "proxy or firewall"},
		"silent":                  {"http://" + silent, nil, nil, "tunnel", "accepts connections, but does not answer", "port"},
		"silent in TLS":           {"https://" + silent, nil, nil, "tunnel", "does not answer the TLS handshake", "firewall"},
		"another web server":      {"http://" + plainAt + "/tunnel/v1", nil, nil, "tunnel", "answered 404 and is not an Edge", "own URL"},
		"proxy is away":           {"https://edge.test", nil, nobody, "proxy", "nothing listens at 127.0.0.1:1", "NO_PROXY"},
		"proxy is away, plain":    {"http://edge.test", nil, nobody, "proxy", "nothing listens at 127.0.0.1:1", "NO_PROXY"},
		"proxy forbids":           {"https://edge.test", nil, answer(403), "proxy", "refused to connect to edge.test:443: 403 Forbidden", "allow CONNECT"},
		"proxy wants a login":     {"https://edge.test", nil, answer(407), "proxy", "requires authentication", "user name and password"},
		"proxy answers itself":    {"http://edge.test/tunnel/v1", nil, answer(404), "tunnel", "the proxy 127.0.0.1", "own URL"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.tls == nil {
				test.tls = &tls.Config{MinVersion: tls.VersionTLS12}
			}
			f := try(t, test.url, test.tls, test.proxy)
			if f.About != test.about || !strings.Contains(f.Found, test.found) || !strings.Contains(f.Do, test.do) {
				t.Errorf("%+v", f)
			}
			if strings.Contains(f.Found+f.Do, "hunter2") {
				t.Errorf("a password: %+v", f)
			}
		})
	}
}

// TestDropped: a dial that brings nothing, as a firewall that drops packets makes it, names the port.
func TestDropped(t *testing.T) {
	a := &Attempt{URL: &url.URL{Scheme: "https", Host: "edge.test"}, Peer: Edge}
	for _, f := range []Finding{a.Silent(), a.Failed(context.DeadlineExceeded), a.Failed(&net.OpError{Op: "dial", Err: errTimeout{}})} {
		if f.Found != "nothing answers at edge.test:443" || !strings.Contains(f.Do, "allow TCP to edge.test:443") {
			t.Errorf("%+v", f)
		}
	}
	a.reached(stageResolving)
	if f := a.Silent(); !strings.Contains(f.Found, "DNS server") {
		t.Errorf("%+v", f)
	}
}

// TestRejected: a firewall that rejects connections is named, the one on the way and this machine's own.
func TestRejected(t *testing.T) {
	a := &Attempt{URL: &url.URL{Scheme: "https", Host: "edge.test"}, Peer: Edge}
	for errno, found := range map[syscall.Errno]string{
		syscall.EHOSTUNREACH: "no route to edge.test:443", syscall.ENETUNREACH: "no route to edge.test:443",
		syscall.EACCES: "forbids the connection to edge.test:443", syscall.EPERM: "forbids the connection to edge.test:443",
	} {
		f := a.Failed(&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", errno)})
		if !strings.Contains(f.Found, found) || !strings.Contains(f.Do, "firewall") {
			t.Errorf("%v: %+v", errno, f)
		}
	}
}

// refusedBy is what a Node's own check of a certificate returns.
type refusedBy string

func (r refusedBy) Error() string      { return "peer refused (" + string(r) + ")" }
func (r refusedBy) PeerReason() string { return string(r) }

// TestRefusedHere: a server whose certificate this end refuses was reached. Reasons without a remedy of their own have one.
func TestRefusedHere(t *testing.T) {
	a := &Attempt{URL: &url.URL{Scheme: "wss", Host: "edge.test:8482"}, Peer: Edge}
	for reason, do := range map[refusedBy]string{"unknown_authority": "port 8482", "wrong_peer": "--edge-id", "of_a_later_version": "troubleshooting"} {
		f := a.Failed(fmt.Errorf("Get: %w", reason))
		if f.About != "tls" || f.Found != "edge.test:8482 was reached, but this Node refused its certificate: "+reason.Error() || !strings.Contains(f.Do, do) {
			t.Errorf("%s: %+v", reason, f)
		}
	}
}

// TestClosedUnsaid: net/http has an error without a type for a connection that was closed before the request was written.
func TestClosedUnsaid(t *testing.T) {
	a := &Attempt{URL: &url.URL{Scheme: "http", Host: "edge.test"}, Peer: Edge}
	near, far := net.Pipe()
	far.Close()
	if _, err := a.Listen(near).Read(make([]byte, 1)); err == nil {
		t.Fatal("it was not closed")
	}
	if f := a.Failed(errors.New("http: server closed idle connection")); !strings.Contains(f.Found, "closed the connection") {
		t.Errorf("%+v", f)
	}
}

type errTimeout struct{}

func (errTimeout) Error() string   { return "i/o timeout" }
func (errTimeout) Timeout() bool   { return true }
func (errTimeout) Temporary() bool { return true }

// TestNames: resolvers fail in more ways than one.
func TestNames(t *testing.T) {
	a := &Attempt{URL: &url.URL{Scheme: "http", Host: "edge.test"}, Peer: Edge}
	for text, dns := range map[string]*net.DNSError{
		"does not resolve":   {Name: "edge.test", Err: "no such host", IsNotFound: true},
		"did not answer":     {Name: "edge.test", Err: "i/o timeout", IsTimeout: true},
		"can't be resolved:": {Name: "edge.test", Err: "server misbehaving", IsTemporary: true},
	} {
		if f := a.Failed(&url.Error{Op: "Get", URL: "http://edge.test", Err: dns}); !strings.Contains(f.Found, text) {
			t.Errorf("%q: %+v", text, f)
		}
	}
}

// TestAnswers: what answers in an Edge's place is told from one.
func TestAnswers(t *testing.T) {
	for _, test := range []struct {
		status    int
		server    string
		body      string
		found, do string
	}{
		{401, "", `{"error":{"code":"unauthorized","type":"tunnel_error"}}`, "the Edge answered: unauthorized (401)", "join-token create"},
		{401, "", `{"error":{"code":"node_taken"}}`, "node_taken", "--name"},
		{401, "", `{"error":{"code":"invalid_api_key"}}`, "answered 401 and is not an Edge", "own URL"},
		{401, "", "who?", "is not an Edge", "own URL"},
		{404, "", `{"error":{"code":"admin_listener"}}`, "admin listener", "8480"},
		{404, "", `{"error":{"code":"unknown_path"}}`, "no tunnel at /tunnel/v1", "8482"},
		{404, "nginx", "<html>", "nginx answered 404", "own URL"},
		{400, "nginx/1.2", "<center>The plain HTTP request was sent to HTTPS port</center>", "speaks TLS", "wss://edge.test"},
		{400, "nginx/1.2", "Client sent an HTTP request to an HTTPS server.\n", "a proxy in front of", "proxy_pass https"},
		{400, "", "Client sent an HTTP request to an HTTPS server.\n", "speaks TLS", "wss://edge.test"},
		{400, "nginx/1.2", "no", "upgrade to a WebSocket was lost", "Upgrade and Connection"},
		{101, "", "", "not an Edge", "own URL"},
		{302, "", "", "redirect", "not followed"},
		{502, "nginx", "", "can't reach an Edge", "start the Edge"},
		{407, "", "", "407", "HTTPS_PROXY"},
	} {
		a := &Attempt{URL: &url.URL{Scheme: "http", Host: "edge.test", Path: "/tunnel/v1"}, Peer: Edge}
		r := &http.Response{StatusCode: test.status, Header: http.Header{"Server": {test.server}}}
		if f := a.Answered(r, []byte(test.body)); !strings.Contains(f.Found, test.found) || !strings.Contains(f.Do, test.do) {
			t.Errorf("%d %q: %+v", test.status, test.body, f)
		}
	}
}

// TestLists: what answers in place of a list of models.
func TestLists(t *testing.T) {
	page := http.Header{"Content-Type": {"text/html; charset=utf-8"}}
	for _, test := range []struct {
		status    int
		header    http.Header
		body      string
		key       bool
		found, do string
	}{
		{401, nil, "", false, "requires a key (401)", "key-file=PATH"},
		{403, nil, "", true, "rejects the key", "correct the key"},
		{404, nil, "", false, "/v1/models was not found (404)", "correct its URL"},
		{200, page, "", false, "answers with a web page (200)", "web page"},
		{200, nil, "\n <!DOCTYPE html><p>", false, "answers with a web page", "web page"},
		{200, nil, `{"a":1}`, false, "not with a list of models", "inference server"},
		{400, nil, "Client sent an HTTP request to an HTTPS server.\n", false, "speaks TLS", "https://127.0.0.1:8000"},
		{307, nil, "", false, "redirect", "not followed"},
		{503, nil, "", false, "fails (503)", "log"},
		{418, nil, "", false, "does not list its models (418)", "models=a|b"},
	} {
		a := &Attempt{URL: &url.URL{Scheme: "http", Host: "127.0.0.1:8000", Path: "/v1/models"}, Peer: Provider}
		if f := a.List(test.status, test.header, []byte(test.body), test.key); !strings.Contains(f.Found, test.found) || !strings.Contains(f.Do, test.do) {
			t.Errorf("%d %q: %+v", test.status, test.body, f)
		}
	}
}

// FuzzAnswered: whatever answers, a finding is short, printable and complete, and shows no key.
func FuzzAnswered(f *testing.F) {
	f.Add(401, "nginx", []byte(`{"error":{"code":"unauthorized"}}`))
	f.Add(400, "\x1b[31m", []byte("Client sent an HTTP request to an HTTPS server"))
	f.Add(200, "a", []byte("<html>\u202e"))
	f.Fuzz(func(t *testing.T, status int, server string, body []byte) {
		a := &Attempt{URL: &url.URL{Scheme: "http", Host: "edge.test"}, Peer: Edge}
		for _, found := range []Finding{
			a.Answered(&http.Response{StatusCode: status, Header: http.Header{"Server": {server}}}, body),
			a.List(status, http.Header{"Content-Type": {server}}, body, false),
			a.Failed(errors.New(string(body))),
		} {
			if found.About == "" || found.Found == "" || found.Do == "" || len(found.Found) > 7*maxText {
				t.Fatalf("%+v", found)
			}
			if strings.ContainsFunc(found.Error(), func(r rune) bool { return unicode.IsControl(r) || r == '\u202e' }) {
				t.Fatalf("%q", found.Error())
			}
		}
	})
}
