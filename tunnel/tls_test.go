package tunnel

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"iop/execution"
)

// Over TLS the same holds: whole bodies both ways, and a connection that is cut ends its runs at once.
func TestOverTLS(t *testing.T) {
	dir := newTestDirectory()
	acc, err := NewAcceptor(AcceptorConfig{EdgeID: "edge", Directory: dir, Logger: testLogger()})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(acc)
	srv.EnableHTTP2 = true // as an Edge's public listener offers it; a tunnel is HTTP/1.1
	srv.StartTLS()
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	r := newRigWith(t, echo, rigOptions{supervisor: func(cfg *SupervisorConfig) {
		cfg.URL = "wss" + strings.TrimPrefix(srv.URL, "https")
		cfg.DialContext = new(net.Dialer).DialContext
		cfg.TLS = &tls.Config{RootCAs: roots}
	}})
	s := <-dir.online
	for _, size := range []int{0, 100, 1 << 20} {
		body := bytes.Repeat([]byte{'t'}, size)
		if _, got, end := collect(t, open(t, s, body)); !bytes.Equal(got, body) || end.Outcome != execution.Completed {
			t.Errorf("%d bytes of %d, %+v", len(got), size, end)
		}
	}
	run := open(t, s, make([]byte, 1<<20)) // nobody takes the echo
	s.link.conn.kill()
	if _, _, end := collect(t, run); end.Code != execution.CodeSessionLost {
		t.Errorf("end %+v", end)
	}
	again := <-dir.online
	if again.Generation() <= s.Generation() {
		t.Errorf("generation %d after %d", again.Generation(), s.Generation())
	}
	r.close()
	acc.Close()
	srv.Close()
}

// An Edge whose certificate is not the expected one is not spoken to: the token stays at home.
func TestWrongCertificate(t *testing.T) {
	asked := make(chan struct{}, 1)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{} }))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	r := newRigWith(t, echo, rigOptions{supervisor: func(cfg *SupervisorConfig) {
		cfg.URL = "wss" + strings.TrimPrefix(srv.URL, "https")
		cfg.DialContext = new(net.Dialer).DialContext
		cfg.Token = func() (string, error) { return "njt-secret", nil }
	}})
	eventually(t, "the Node says what is wrong", func() bool {
		st := r.sup.Status()
		return st.State == StateWaiting && strings.Contains(st.Detail, "certificate")
	})
	select {
	case <-asked:
		t.Error("it was asked nevertheless")
	default:
	}
	r.close()
	srv.Close()
}

// certificateFor issues a self-signed client certificate of that serial number.
func certificateFor(t *testing.T, serial int64) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, &x509.Certificate{SerialNumber: big.NewInt(serial)}, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// Over mutual TLS the Edge sees the certificate of each dial, and the Keeper that of the Edge; Rotate brings the new one
// while a run goes on.
func TestRotateCertificate(t *testing.T) {
	dir := newTestDirectory()
	dir.authenticate = func(r *http.Request) (Identity, error) {
		peer := r.TLS.PeerCertificates[0]
		return Identity{Peer: "n", Serial: peer.SerialNumber.String(), NotAfter: peer.NotAfter}, nil
	}
	superseding(dir)
	acc, err := NewAcceptor(AcceptorConfig{EdgeID: "edge", Directory: dir, Logger: testLogger()})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(acc)
	srv.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS13}
	srv.StartTLS()
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	var present atomic.Pointer[tls.Certificate]
	first, second := certificateFor(t, 1001), certificateFor(t, 1002)
	present.Store(&first)
	var ks keepers
	gate := make(chan struct{})
	r := newRigWith(t, untilGate(gate), rigOptions{supervisor: func(cfg *SupervisorConfig) {
		cfg.URL = "wss" + strings.TrimPrefix(srv.URL, "https")
		cfg.DialContext = new(net.Dialer).DialContext
		cfg.Keeper = ks.next
		cfg.TLS = &tls.Config{RootCAs: roots, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return present.Load(), nil
		}}
	}})
	old := <-dir.online
	run := open(t, old, nil)
	for b, ok := run.Take(); !ok || b.Head == nil; b, ok = run.Take() {
		<-run.Ready()
	}
	present.Store(&second)
	r.sup.Rotate()
	s := <-dir.online
	if old.Identity().Serial != "1001" || s.Identity().Serial != "1002" || s.Replaces() != old.Generation() {
		t.Errorf("certificate %s, then %s; replaces %d", old.Identity().Serial, s.Identity().Serial, s.Replaces())
	}
	if state := ks.get(0).reg.TLS; state == nil || !state.PeerCertificates[0].Equal(srv.Certificate()) {
		t.Error("the Keeper did not see the Edge's certificate")
	}
	close(gate)
	if _, body, end := collect(t, run); string(body) != "done" || end.Outcome != execution.Completed {
		t.Errorf("what was under way: %q, %+v", body, end)
	}
	<-old.Done()
	r.close()
	acc.Close()
	srv.Close()
}
