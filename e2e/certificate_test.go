package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// TestRenewedCertificate: the Edge's certificate is renewed under load. New handshakes get the new one, none fails, streams and
// tunnels go on; a faulty pair changes nothing, and is reported.
func TestRenewedCertificate(t *testing.T) {
	t.Parallel()
	s, client, cert := newTLSStack(t)
	key := strings.TrimSuffix(cert, "crt") + "key"
	first, second := x509Of(t, cert), newPair(t)
	third := newPair(t)
	trust := x509.NewCertPool()
	for _, c := range []*x509.Certificate{first, second.leaf, third.leaf} {
		trust.AddCert(c)
	}
	shown := func() *x509.Certificate {
		conn, err := tls.Dial("tcp", strings.TrimPrefix(s.url, "https://"), &tls.Config{RootCAs: trust})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0]
	}
	if !shown().Equal(first) {
		t.Fatal("another certificate than the given one")
	}
	session := s.node("node-1").Sessions[0].Generation
	var streams []*answer
	for range 10 {
		a := s.ask(context.Background(), client, "/v1/chat/completions", chat("sim-small", "tokens=400,itl=20ms", true))
		a.reaches(t, 3, patience)
		streams = append(streams, a)
	}
	handshakes := s.handshakes(trust)

	second.replace(t, cert, key)
	eventually(t, patience, "new handshakes get the new certificate", func() bool { return shown().Equal(second.leaf) })
	says(t, s.edge.line("TLS certificate loaded", patience), `"names":`)

	if err := os.WriteFile(key, []byte("none\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	says(t, s.edge.line("the new TLS certificate was refused", patience), `"level":"ERROR"`, cert)
	if !shown().Equal(second.leaf) {
		t.Error("a faulty pair took effect")
	}
	says(t, iop(t, s.env, "status"), "tls      certificate for 127.0.0.1, expires in ", "warning  the new TLS certificate was refused; the previous one stays in use: ")
	if s.metric("iop_tls_fault") != 1 || s.metric("iop_tls_expiry_seconds") <= 0 {
		t.Error("the metrics know nothing of it")
	}
	out, _, _ := tryIOP(t, s.env, "doctor", "edge", "--admin-listen", strings.TrimPrefix(s.admin, "http://"), "--state", s.state, "--listen", strings.TrimPrefix(s.url, "https://"), "--tls-cert", cert, "--tls-key", key)
	says(t, out, "it refused its new TLS certificate and uses the previous one")
	s.edge.signal(syscall.SIGHUP)
	s.edge.line("SIGHUP: the previous TLS certificate stays in use", patience)

	third.replace(t, cert, key)
	s.edge.signal(syscall.SIGHUP)
	eventually(t, patience, "SIGHUP has the third in use", func() bool { return shown().Equal(third.leaf) })
	if s.metric("iop_tls_fault") != 0 {
		t.Error("the fault is still there")
	}

	handshakes()
	for _, a := range streams {
		<-a.done
		if err := a.whole(); err != nil || a.err != nil {
			t.Errorf("a stream across the renewals: %v, %v", err, a.err)
		}
	}
	if got := s.node("node-1").Sessions; len(got) != 1 || got[0].Generation != session {
		t.Errorf("the tunnel did not go on: %+v", got)
	}
}

// handshakes makes new connections all the time until what it returns is called, which fails the test if one failed.
func (s *stack) handshakes(trust *x509.CertPool) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var crowd sync.WaitGroup
	var done, failed atomic.Int64
	var last atomic.Value
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trust}, DisableKeepAlives: true}}
	for range 2 {
		crowd.Go(func() {
			for ctx.Err() == nil {
				a := s.ask(context.Background(), client, "/v1/chat/completions", chat("sim-small", "tokens=1", false))
				<-a.done
				done.Add(1)
				if a.err != nil || a.status != 200 {
					failed.Add(1)
					last.Store(a.String())
				}
			}
		})
	}
	return func() {
		s.t.Helper()
		cancel()
		crowd.Wait()
		if failed.Load() > 0 || done.Load() == 0 {
			s.t.Errorf("%d of %d requests on new connections failed, the last: %v", failed.Load(), done.Load(), last.Load())
		}
	}
}

// tlsPair is a certificate and its key as PEM.
type tlsPair struct {
	leaf      *x509.Certificate
	cert, key []byte
}

func newPair(t *testing.T) (p tlsPair) {
	t.Helper()
	cert, key, _ := selfSigned(t)
	p.leaf = x509Of(t, cert)
	var err1, err2 error
	p.cert, err1 = os.ReadFile(cert)
	p.key, err2 = os.ReadFile(key)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	return p
}

// replace renames the pair into place, one file after the other.
func (p tlsPair) replace(t *testing.T, cert, key string) {
	t.Helper()
	for path, content := range map[string][]byte{cert: p.cert, key: p.key} {
		if err := os.WriteFile(path+".new", bytes.Clone(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
}

func x509Of(t *testing.T, path string) *x509.Certificate {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(data)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}
