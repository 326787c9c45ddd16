package identity

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// publicCA is in this process's system roots: what the world believes, and nobody here may.
var publicCA = newCA("World Wide Trust", time.Now())

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "iop-identity-")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		path := filepath.Join(dir, "roots.pem")
		if err := os.WriteFile(path, certificatePEM(publicCA.Raw), 0o600); err != nil {
			panic(err)
		}
		os.Setenv("SSL_CERT_FILE", path)
		os.Setenv("SSL_CERT_DIR", dir)
		code := m.Run()
		if err := goleak.Find(); err != nil && code == 0 {
			os.Stderr.WriteString(err.Error() + "\n")
			code = 1
		}
		return code
	}())
}

const (
	testDomain = TrustDomain("example.org")
	edgeID     = ID("spiffe://example.org/edge/main")
	nodeID     = ID("spiffe://example.org/node/gpu-1")
)

// signed is a certificate with its key.
type signed struct {
	*x509.Certificate
	key crypto.Signer
}

// newCA makes a root without constraints, at a time of the caller's clock: synctest has its own.
func newCA(name string, now time.Time) *signed {
	return sign(nil, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(1000 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	})
}

// leafOf is a right template for an ID, for tests to spoil.
func leafOf(id ID) *x509.Certificate {
	now := time.Now()
	c := &x509.Certificate{
		NotBefore: now.Add(-time.Minute), NotAfter: now.Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usageOf[id.Role()]}, BasicConstraintsValid: true,
	}
	if id != "" {
		c.URIs = uris(string(id))
	}
	return c
}

func uris(all ...string) (parsed []*url.URL) {
	for _, s := range all {
		u, err := url.Parse(s)
		if err != nil {
			panic(err)
		}
		parsed = append(parsed, u)
	}
	return parsed
}

// sign makes a certificate, by itself if there is no issuer.
func sign(issuer *signed, template *x509.Certificate) *signed {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return signKey(issuer, template, key)
}

func signKey(issuer *signed, template *x509.Certificate, key crypto.Signer) *signed {
	if template.SerialNumber == nil {
		number, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100))
		if err != nil {
			panic(err)
		}
		template.SerialNumber = number
	}
	if issuer == nil {
		issuer = &signed{template, key}
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, issuer.Certificate, key.Public(), issuer.key)
	if err != nil {
		panic(err)
	}
	parsed, err := x509.ParseCertificate(raw)
	if err != nil {
		panic(err)
	}
	return &signed{parsed, key}
}

func bundleOf(t testing.TB, roots ...*signed) *Bundle {
	t.Helper()
	var certificates []*x509.Certificate
	for _, root := range roots {
		certificates = append(certificates, root.Certificate)
	}
	b, err := NewBundle(certificates)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// source makes a Memory with a certificate of the first authority, and all of them in its bundle.
func source(t testing.TB, id ID, roots ...*signed) Memory {
	t.Helper()
	m, err := NewMemory(id)
	if err != nil {
		t.Fatal(err)
	}
	set(t, m, sign(roots[0], leafOf(id)), roots...)
	return m
}

func set(t testing.TB, m Memory, leaf *signed, roots ...*signed) {
	t.Helper()
	if err := m.Set([]*x509.Certificate{leaf.Certificate}, leaf.key, bundleOf(t, roots...)); err != nil {
		t.Fatal(err)
	}
}

// showing is a client's or server's configuration without any conscience: it shows a chain, and believes everybody.
func showing(chain ...*signed) *tls.Config {
	certificate := tls.Certificate{PrivateKey: chain[0].key}
	for _, c := range chain {
		certificate.Certificate = append(certificate.Certificate, c.Raw)
	}
	return &tls.Config{
		InsecureSkipVerify: true, ServerName: "edge.example.org",
		Certificates: []tls.Certificate{certificate},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &certificate, nil // even where no issuer that it knows is asked for
		},
	}
}

func allowAll(*Peer) error { return nil }

// stream is one direction of a connection in memory that takes any number of bytes without a reader, as a network
// does: over net.Pipe a refusing server and a client that still writes would wait for each other for ever.
type stream struct {
	mu     sync.Mutex
	more   *sync.Cond
	bytes  bytes.Buffer
	closed bool
}

func newStream() *stream {
	s := &stream{}
	s.more = sync.NewCond(&s.mu)
	return s
}

func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.more.Broadcast()
}

// pipeEnd is one end of such a connection.
type pipeEnd struct {
	net.Conn // nil: for the methods that TLS does not need
	in, out  *stream
}

func bufferedPipe() (a, b net.Conn) {
	x, y := newStream(), newStream()
	return pipeEnd{in: x, out: y}, pipeEnd{in: y, out: x}
}

func (e pipeEnd) Read(p []byte) (int, error) {
	e.in.mu.Lock()
	defer e.in.mu.Unlock()
	for e.in.bytes.Len() == 0 && !e.in.closed {
		e.in.more.Wait()
	}
	return e.in.bytes.Read(p) // io.EOF where nothing is left
}

func (e pipeEnd) Write(p []byte) (int, error) {
	e.out.mu.Lock()
	defer e.out.mu.Unlock()
	if e.out.closed {
		return 0, io.ErrClosedPipe
	}
	e.out.more.Broadcast()
	return e.out.bytes.Write(p)
}

func (e pipeEnd) Close() error {
	e.in.close()
	e.out.close()
	return nil
}

func (e pipeEnd) SetWriteDeadline(time.Time) error { return nil }

// connection is what both ends think of a handshake and of one byte each way.
type connection struct {
	server, client   error
	serverState      tls.ConnectionState
	clientState      tls.ConnectionState
	serverSawAnyByte bool
}

// connect makes one real handshake over a pipe. The client writes a byte and the server answers it, so that the client
// learns of a refusal, and gets a session ticket if there is one.
func connect(t testing.TB, server, client *tls.Config) connection {
	t.Helper()
	serverEnd, clientEnd := bufferedPipe()
	s, c := tls.Server(serverEnd, server), tls.Client(clientEnd, client)
	var result connection
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer s.Close()
		if result.server = s.Handshake(); result.server != nil {
			serverEnd.Close()
			return
		}
		result.serverState = s.ConnectionState()
		var b [1]byte
		if _, err := s.Read(b[:]); err != nil {
			result.server = err
			return
		}
		result.serverSawAnyByte = true
		_, result.server = s.Write(b[:])
	}()
	result.client = func() error {
		defer clientEnd.Close()
		if err := c.Handshake(); err != nil {
			return err
		}
		result.clientState = c.ConnectionState()
		if _, err := c.Write([]byte{1}); err != nil {
			return err
		}
		_, err := c.Read(make([]byte, 1))
		return err
	}()
	<-done
	return result
}

// wantReason checks that an error is a refusal for that reason, 0 for none.
func wantReason(t testing.TB, err error, want Reason) {
	t.Helper()
	refused, ok := errors.AsType[*RefusedError](err)
	switch {
	case want == 0 && err != nil:
		t.Errorf("refused: %v", err)
	case want != 0 && !ok:
		t.Errorf("got %v, want a refusal: %s", err, want)
	case want != 0 && refused.Reason != want:
		t.Errorf("refused for %s (%v), want %s", refused.Reason, err, want)
	}
}

// wantAlert checks that the other end learns that it was refused and nothing more.
func wantAlert(t testing.TB, err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "remote error: tls:") && !strings.Contains(err.Error(), "closed pipe") {
		t.Errorf("the refused end got %v, want an alert", err)
	}
}
