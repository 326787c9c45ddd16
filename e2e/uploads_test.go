package e2e

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// filler repeats one piece of text for n bytes, without holding them.
type filler struct{ left int64 }

var letters = bytes.Repeat([]byte("abcdefghijklmnopqrstuvwxyz012345"), 1<<11)

func (f *filler) Read(p []byte) (int, error) {
	if f.left == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(int64(len(p)), f.left)], letters)
	f.left -= int64(n)
	return n, nil
}

// large is a chat request of about n bytes whose model stands at its end, as that of a client with images may.
func large(n int64) (body io.Reader, length int64) {
	head, end := `{"messages":[{"role":"user","content":"sim:tokens=2 `, `"}],"stream":false,"model":"sim-small"}`
	return io.MultiReader(strings.NewReader(head), &filler{n}, strings.NewReader(end)), int64(len(head)+len(end)) + n
}

// upload sends a large request; chunked hides its length.
func (s *stack) upload(t *testing.T, n int64, chunked bool) (int, http.Header, []byte) {
	body, length := large(n)
	req := s.request("POST", "/v1/chat/completions", nil, http.Header{"Content-Type": {"application/json"}})
	req.Body, req.ContentLength = io.NopCloser(body), length
	if chunked {
		req.ContentLength = -1
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		t.Errorf("upload of %d bytes: %v", n, err)
		return 0, nil, nil
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Errorf("upload of %d bytes: %v after %q", n, err, data)
	}
	return res.StatusCode, res.Header, data
}

// TestLargeUploads sends 20 requests of 40 MB at once. What does not fit into the budget waits until it does; the
// memory stays bounded all the while. It has the machine for itself: no parallel test.
func TestLargeUploads(t *testing.T) {
	s := newStack(t, stackConfig{})
	const size = 40 << 20
	var mu sync.Mutex
	count := map[int]int{}
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			status, header, body := s.upload(t, size, i%4 == 3)
			mu.Lock()
			defer mu.Unlock()
			count[status]++
			if status != http.StatusOK {
				t.Errorf("%d %v %s", status, header, tail(string(body), 300))
			}
		})
	}
	all.Wait()
	s.quiet()
	edge, node := s.edge.memory("VmHWM"), s.nodes[0].memory("VmHWM")
	t.Logf("answers %v; the Edge had %d MiB at most, the Node %d MiB", count, edge>>20, node>>20)
	if limit := int64(512+512/4+64) << 20; edge > limit {
		t.Errorf("the Edge had %d MiB", edge>>20)
	}
	if node > 192<<20 {
		t.Errorf("the Node had %d MiB: it holds bodies", node>>20)
	}
	for _, chunked := range []bool{true, false} {
		if status, _, body := s.upload(t, size, chunked); status != http.StatusOK {
			t.Errorf("afterwards: %d %s", status, tail(string(body), 300))
		}
		status, _, body := s.upload(t, 65<<20, chunked)
		if status != http.StatusRequestEntityTooLarge || !bytes.Contains(body, []byte(`"request_too_large"`)) || !bytes.Contains(body, []byte("64 MiB")) {
			t.Errorf("too large: %d %s", status, tail(string(body), 300))
		}
	}
	s.quiet()
}

// selfSigned writes a certificate for the loopback address, and returns the files and who trusts it.
func selfSigned(t *testing.T) (cert, key string, trust *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "127.0.0.1"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	trust = x509.NewCertPool()
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	trust.AddCert(parsed)
	return cert, key, trust
}

// newTLSStack is a stack whose Edge speaks TLS, to clients and to the Node.
func newTLSStack(t *testing.T) (s *stack, client *http.Client, cert string) {
	t.Helper()
	cert, key, trust := selfSigned(t)
	listen, admin := freePort(t), freePort(t)
	s = &stack{t: t, url: "https://" + listen, admin: "http://" + admin, state: "sqlite://" + filepath.Join(t.TempDir(), "iop.db")}
	s.env = []string{"IOP_EDGE_STATE=" + s.state, "IOP_ADMIN_URL=" + s.admin}
	s.key = s.newKey("e2e")
	var made struct{ Token string }
	s.json(&made, "join-token", "create", "--json")
	s.token = made.Token
	s.edge = start(t, "edge", nil, "edge", "--listen", listen, "--admin-listen", admin, "--state", s.state, "--tls-cert", cert, "--tls-key", key)
	s.edge.line("listening", patience)
	sim := s.startSim("--slots", "128")
	s.launchNode("node-1", "--provider", "sim="+sim.url+",capacity=128", "--ca", cert)
	eventually(t, patience, "the Node is online", func() bool { return s.node("node-1").State == "online" })
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trust}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return s, &http.Client{Transport: transport}, cert
}

// TestHTTP2 streams over HTTP/2, with TLS and without, to Go's client and to curl.
func TestHTTP2(t *testing.T) {
	t.Parallel()
	s, client, cert := newTLSStack(t)
	var streams []*answer
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for i := range 60 { // one connection for all
		c, knobs := context.Background(), "tokens=30,itl=30ms,text=mix,split=9"
		if i%6 == 0 {
			c, knobs = ctx, "tokens=100000,itl=30ms"
		}
		streams = append(streams, s.ask(c, client, "/v1/chat/completions", chat("sim-small", knobs, true)))
	}
	for _, a := range streams {
		a.reaches(t, 3, patience)
	}
	cancel()
	for i, a := range streams {
		a.end(t, 60*time.Second)
		if i%6 == 0 {
			if a.err == nil {
				t.Error("a stream that was reset has ended well")
			}
		} else if err := a.whole(); err != nil {
			t.Errorf("stream %d: %v", i, err)
		}
	}
	res, err := client.Do(s.request("GET", "/v1/models", nil, nil))
	if err != nil || res.ProtoMajor != 2 || res.StatusCode != http.StatusOK {
		t.Fatalf("%v, %+v", err, res)
	}
	res.Body.Close()

	plain := newStack(t, stackConfig{})
	body, err := json.Marshal(chat("sim-small", "tokens=5,text=emoji", true))
	if err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"TLS":       {"--cacert", cert, "--http2", s.url, s.key},
		"cleartext": {"--http2-prior-knowledge", plain.url, plain.key},
	} {
		n := len(args)
		cmd := exec.Command("curl", append(args[:n-2:n-2], "-sS", "-N", "-w", "\nHTTP %{http_version}", "-H", "Authorization: Bearer "+args[n-1],
			"-H", "Content-Type: application/json", "-d", string(body), args[n-2]+"/v1/chat/completions")...)
		cmd.Env = cleanEnv()
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.HasSuffix(string(out), "data: [DONE]\n\n\nHTTP 2") || !strings.Contains(string(out), "👩‍👩‍👧‍👦") {
			t.Errorf("curl, %s: %v\n%s", name, err, out)
		}
	}
	s.quiet()
}
