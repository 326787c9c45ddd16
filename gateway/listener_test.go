package gateway_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"iop/execution"
	"iop/gateway"
	"iop/state"
	"iop/tunnel"
)

// badConfig spoils a configuration; the error must say names.
type badConfig struct {
	change func(*gateway.Config)
	names  string
}

// configsAreRefused spoils a good configuration in one way after the other.
func configsAreRefused(t *testing.T, good gateway.Config, tests map[string]badConfig) {
	t.Helper()
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cfg := good
			test.change(&cfg)
			s, err := gateway.New(cfg)
			if err == nil {
				s.Close()
				t.Fatal("it is taken")
			}
			if !strings.Contains(err.Error(), test.names) {
				t.Errorf("the error does not say what is wrong: %v", err)
			}
		})
	}
}

func TestConfigIsChecked(t *testing.T) {
	store, err := state.Open(t.Context(), "sqlite::memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	good := gateway.Config{Store: store, Listen: "127.0.0.1:0", AdminListen: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)}
	configsAreRefused(t, good, map[string]badConfig{
		"no store":         {func(c *gateway.Config) { c.Store = nil }, "Store"},
		"no listen":        {func(c *gateway.Config) { c.Listen = "" }, "Listen"},
		"no admin":         {func(c *gateway.Config) { c.AdminListen = "" }, "AdminListen"},
		"half of TLS":      {func(c *gateway.Config) { c.TLSCert = "x.pem" }, "TLSKey"},
		"TLS not there":    {func(c *gateway.Config) { c.TLSCert, c.TLSKey = "x.pem", "y.pem" }, "certificate"},
		"auth unknown":     {func(c *gateway.Config) { c.Auth = "open" }, "Auth"},
		"open to everyone": {func(c *gateway.Config) { c.Auth, c.Listen = gateway.AuthNone, ":0" }, "loopback"},
		"negative":         {func(c *gateway.Config) { c.QueueLimit = -1 }, "negative"},
		"budget too small": {func(c *gateway.Config) { c.BodyBudget = 1 }, "BodyBudget"},
		"bad address":      {func(c *gateway.Config) { c.Listen = "nowhere" }, "nowhere"},
		"bad admin":        {func(c *gateway.Config) { c.AdminListen = "nowhere" }, "admin"},
	})
	s, err := gateway.New(good)
	if err != nil {
		t.Fatal(err)
	}
	s.Close() // never run
	s.Close()
}

func TestWithoutKeysOnlyThisMachineIsServed(t *testing.T) {
	e := newEdge(t, func(c *gateway.Config) { c.Auth = gateway.AuthNone })
	e.addNode("n1", 4, answerJSON(200, `{}`), "m")
	tests := map[string]struct {
		change func(*http.Request)
		status int
	}{
		"no key":             {func(r *http.Request) { r.Header.Del("Authorization") }, 200},
		"any key":            {func(*http.Request) {}, 200},
		"localhost":          {func(r *http.Request) { r.Host = "localhost:8480" }, 200},
		"a page elsewhere":   {func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") }, 403},
		"a cross-site fetch": {func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, 403},
		"a rebound name":     {func(r *http.Request) { r.Host = "evil.example:8480" }, 403},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			req := e.request(http.MethodPost, chat, `{"model":"m"}`)
			test.change(req)
			resp := e.do(req)
			resp.Body.Close()
			if resp.StatusCode != test.status {
				t.Errorf("got %d", resp.StatusCode)
			}
		})
	}
	e.idle()
}

// certificate writes a self-signed certificate for 127.0.0.1.
func certificate(t *testing.T) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	priv, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, priv.Public(), priv)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(priv)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	pool.AddCert(parsed)
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", keyDER), pool
}

// One listener speaks HTTP/1.1 and HTTP/2, with TLS and in the clear, and the client sees the same.
func TestProtocols(t *testing.T) {
	cert, key, pool := certificate(t)
	for name, secure := range map[string]bool{"TLS": true, "clear": false} {
		e := newEdge(t, func(c *gateway.Config) {
			if secure {
				c.TLSCert, c.TLSKey = cert, key
			}
		})
		scheme := "http"
		if secure {
			scheme = "https"
		}
		for _, version := range []int{1, 2} {
			t.Run(fmt.Sprint(name, " HTTP/", version), func(t *testing.T) {
				protocols := new(http.Protocols)
				protocols.SetHTTP1(version == 1)
				protocols.SetHTTP2(version == 2 && secure)
				protocols.SetUnencryptedHTTP2(version == 2 && !secure)
				transport := &http.Transport{Protocols: protocols, TLSClientConfig: &tls.Config{RootCAs: pool}}
				defer transport.CloseIdleConnections()
				resp, err := (&http.Client{Transport: transport}).Get(scheme + "://" + e.server.Addr().String() + "/healthz")
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				if resp.ProtoMajor != version || resp.StatusCode != 200 {
					t.Errorf("got %s %d", resp.Proto, resp.StatusCode)
				}
			})
		}
	}
}

// h2 returns a client that speaks HTTP/2 in the clear.
func (e *edge) h2() *http.Client {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	e.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func TestHTTP2StreamAndCancel(t *testing.T) {
	e := newEdge(t, nil)
	codes := make(chan execution.Code, 1)
	e.addNode("n1", 4, waiting(codes, startStream), "m")
	e.client = e.h2()
	ctx, leave := context.WithCancel(t.Context())
	resp := e.do(e.request(http.MethodPost, chat, `{"model":"m","stream":true}`).WithContext(ctx))
	defer resp.Body.Close()
	first := make([]byte, len(chunk("a")))
	if _, err := io.ReadFull(resp.Body, first); err != nil || string(first) != chunk("a") || resp.ProtoMajor != 2 {
		t.Fatalf("%s: %q, %v", resp.Proto, first, err)
	}
	leave()
	if code := <-codes; code != execution.CodeClientGone {
		t.Errorf("the Node was told %v", code)
	}
	e.idle()
}

// Thousands of requests that are reset as soon as they are sent (CVE-2023-44487) leave nothing behind.
func TestThreat51RapidReset(t *testing.T) {
	e := newEdge(t, nil)
	e.addNode("n1", 4, func(ctx context.Context, run *tunnel.NodeRun) {
		<-ctx.Done()
		run.End(execution.Terminal{Outcome: execution.Cancelled, Code: execution.CodeClientGone})
	}, "m")
	conn, err := net.Dial("tcp", e.server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	fr := http2.NewFramer(conn, nil)
	if err := fr.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	const body = `{"model":"m"}`
	for i := range 3000 {
		block.Reset()
		for _, f := range [][2]string{
			{":method", "POST"}, {":scheme", "http"}, {":path", chat}, {":authority", "edge"},
			{"authorization", "Bearer " + e.key}, {"content-length", fmt.Sprint(len(body))},
		} {
			_ = enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // to memory
		}
		id := uint32(2*i + 1)
		err := fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true})
		if err == nil {
			err = fr.WriteData(id, true, []byte(body))
		}
		if err == nil {
			err = fr.WriteRSTStream(id, http2.ErrCodeCancel)
		}
		if err != nil {
			break // the server had enough, as it may
		}
	}
	e.eventually("the Edge serves others", func() bool { return e.get("/healthz") == "ok\n" })
	conn.Close()
	e.idle()
}

// A header block that never ends (CVE-2023-45288) ends the connection, not the process.
func TestThreat51ContinuationFlood(t *testing.T) {
	e := newEdge(t, nil)
	conn, err := net.Dial("tcp", e.server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	closed := make(chan struct{})
	go func() { defer close(closed); _, _ = io.Copy(io.Discard, conn) }()
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	fr := http2.NewFramer(conn, nil)
	_ = fr.WriteSettings()
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	_ = enc.WriteField(hpack.HeaderField{Name: "x-filler", Value: strings.Repeat("x", 8000), Sensitive: true})
	err = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes()})
	for range 10_000 {
		if err != nil {
			break
		}
		err = fr.WriteContinuation(1, false, block.Bytes())
	}
	if err == nil {
		t.Error("80 MB of headers were read")
	}
	<-closed
	if got := e.get("/healthz"); got != "ok\n" {
		t.Errorf("healthz: %q", got)
	}
}
