package tunnel

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

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
