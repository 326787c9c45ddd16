package browser

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// behindNginx comes over HTTPS through nginx with the guide's configuration: signing in, a change and a stream work.
func (s *story) behindNginx(t *testing.T) {
	nginx, err := exec.LookPath("nginx")
	if err != nil {
		t.Skip("there is no nginx here: .ci/programs nginx")
	}
	address := freePort(t)
	s.startNginx(t, nginx, address)
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.origin = "https://" + otherHost + ":" + port
	s.mu.Unlock()
	s.open("/admin/keys")
	s.fill("#token", s.token)
	s.submit("main button")
	s.until("it is signed in", "location.pathname === '/admin/keys'")
	s.eval("document.querySelector('main details').open = true", nil)
	s.fill("input[name=name]", "behind a proxy")
	s.submit("form[action='/admin/keys'] button")
	s.shows("The key behind a proxy")

	s.open("/admin/playground")
	s.eval("document.querySelector('select[name=model]').value = 'talker'", nil)
	s.fill("textarea[name=prompt]", "sim:tokens=100000,itl=20ms A long story")
	s.press("#playground button[type=submit]")
	s.until("the answer comes bit by bit", "document.querySelector('#talk').lastElementChild.querySelector('.text').textContent.length > 40")
	s.press("#stop")
	eventually(t, "stopping ends the run at the Edge", func() bool { return !strings.Contains(s.get("/admin/v1/runs?state=active"), "talker") })
	s.submit("header form button")
	s.until("it asks for the token again", "location.pathname === '/admin/sign-in'")
}

// startNginx runs nginx at the address, in front of the console, as docs/console.md has it.
func (s *story) startNginx(t *testing.T, nginx, address string) {
	t.Helper()
	guide, err := os.ReadFile(filepath.FromSlash("../../docs/console.md"))
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```nginx\n(.*?)```").FindSubmatch(guide)
	if block == nil {
		t.Fatal("docs/console.md has no configuration of nginx")
	}
	server := string(block[1])
	dir := t.TempDir()
	writeCertificate(t, dir)
	for before, after := range map[string]string{
		"listen 443 ssl;":                   "listen " + address + " ssl; ssl_certificate " + dir + "/tls.crt; ssl_certificate_key " + dir + "/tls.key;",
		"proxy_pass http://127.0.0.1:8481;": "proxy_pass " + s.edgeAdmin + ";",
		"server_name admin.example.com;":    "server_name " + otherHost + ";",
	} {
		if !strings.Contains(server, before) {
			t.Fatalf("docs/console.md has no %q", before)
		}
		server = strings.Replace(server, before, after, 1)
	}
	config := "daemon off;\npid nginx.pid;\nerror_log stderr warn;\nworker_processes 1;\nevents { worker_connections 256; }\nhttp {\naccess_log off;\n"
	if os.Getuid() == 0 {
		config = "user root;\n" + config // its files lie in this test's directory
	}
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		config += kind + "_temp_path " + kind + ";\n"
	}
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(config+server+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	startCommand(t, "nginx", exec.Command(nginx, "-p", dir, "-c", file))
	eventually(t, "nginx listens", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

// writeCertificate writes a certificate that nobody vouches for; the browser is told not to mind.
func writeCertificate(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{otherHost}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"tls.crt": {Type: "CERTIFICATE", Bytes: cert}, "tls.key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
