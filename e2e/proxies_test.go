package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const proxyGuide = "../docs/proxies.md"

// streamModule is what nginx loads to pass bytes on.
const streamModule = "/usr/lib/nginx/modules/ngx_stream_module.so"

// proxyConfig is the block of the guide in that language that holds a text.
func proxyConfig(t *testing.T, language, text string) string {
	t.Helper()
	for _, b := range guideBlocks(t, proxyGuide) {
		if b.language == language && strings.Contains(b.text, text) {
			return b.text
		}
	}
	t.Fatalf("%s has no block of %s with %q", proxyGuide, language, text)
	return ""
}

// exchange replaces each of the pairs, which must be there: what the guide says would not be what is tested else.
func exchange(t *testing.T, text string, pairs ...string) string {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			t.Fatalf("the guide's configuration has no %q", pairs[i])
		}
		text = strings.ReplaceAll(text, pairs[i], pairs[i+1])
	}
	return text
}

// findProgram finds a program that not every user has in the path, or skips the test.
func findProgram(t *testing.T, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	if path, err := exec.LookPath("/usr/sbin/" + name); err == nil {
		return path
	}
	t.Skipf("there is no %s here", name)
	return ""
}

// startNginx runs nginx with a configuration, all of whose files lie in a directory of the test, and waits for its port.
func startNginx(t *testing.T, address, main, http, stream string) *process {
	t.Helper()
	nginx, dir := findProgram(t, "nginx"), t.TempDir()
	config := main + "daemon off;\npid nginx.pid;\nerror_log stderr warn;\nworker_processes 1;\nevents { worker_connections 512; }\n"
	if os.Getuid() == 0 {
		config = "user root;\n" + config // the workers need the test's directory
	}
	if http != "" {
		config += "http {\naccess_log off;\n"
		for _, temp := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
			config += temp + "_temp_path " + temp + ";\n"
		}
		config += http + "}\n"
	}
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(config+stream), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startCommand(t, "nginx", nil, exec.Command(nginx, "-p", dir, "-c", file))
	awaitPort(t, p, address)
	return p
}

func awaitPort(t *testing.T, p *process, address string) {
	t.Helper()
	eventually(t, patience, p.name+" listens", func() bool {
		select {
		case <-p.done:
			t.Fatalf("%s exited:\n%s", p.name, p.text())
		default:
		}
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

// proxied is an Edge behind a proxy: its URL is the proxy's, and the Node comes through it.
type proxied struct {
	*stack
	client *http.Client
}

// newProxied starts an Edge, a proxy by start, which is given its own and the Edge's address and a certificate, and a Node.
func newProxied(t *testing.T, start func(address, edge, cert, key string)) *proxied {
	t.Helper()
	s := newEdge(t)
	cert, key, trust := selfSigned(t)
	address := freePort(t)
	start(address, strings.TrimPrefix(s.url, "http://"), cert, key)
	s.url = "https://" + address
	transport := proxyTransport(trust)
	t.Cleanup(transport.CloseIdleConnections)
	sim := s.startSim("--slots", "16")
	s.launchNode("node-1", "--edge", "wss://"+address+"/tunnel/v1", "--ca", cert, "--provider", "sim="+sim.url)
	eventually(t, patience, "node-1 serves a model", func() bool {
		n := s.node("node-1")
		return n.State == "online" && len(n.Sessions[0].Providers) > 0
	})
	return &proxied{s, &http.Client{Transport: transport}}
}

func proxyTransport(trust *x509.CertPool) *http.Transport {
	return &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trust}, ForceAttemptHTTP2: true}
}

// nginxFor is newProxied's start with the guide's configuration. pairs exchange more of it.
func nginxFor(t *testing.T, pairs ...string) func(address, edge, cert, key string) {
	return func(address, edge, cert, key string) {
		t.Helper()
		config := exchange(t, proxyConfig(t, "nginx", "upstream iop_edge"), append([]string{
			"listen 443 ssl", "listen " + address + " ssl", "server 127.0.0.1:8480", "server " + edge,
			"/etc/nginx/tls.crt", cert, "/etc/nginx/tls.key", key, "edge.example.org", "127.0.0.1",
		}, pairs...)...)
		startNginx(t, address, "", config, "")
	}
}

// streamsAsItComes: chunks are here while the provider still writes, by the order of what happens. When the client goes away
// then, so does its run.
func (p *proxied) streamsAsItComes() {
	p.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	a := p.ask(ctx, p.client, "/v1/chat/completions", chat("sim-small", "tokens=2000,itl=20ms", true))
	a.reaches(p.t, 1, 30*time.Second)
	if n := p.metric("iop_streams"); n != 1 {
		p.t.Errorf("%v runs are open when the first chunk has come", n)
	}
	// And so are others, not just those that fill a buffer.
	a.reaches(p.t, 20, 30*time.Second)
	if n := p.metric("iop_streams"); n != 1 {
		p.t.Errorf("%v runs are open when twenty chunks have come", n)
	}
	select {
	case <-a.done:
		p.t.Error("the stream of forty seconds has ended")
	default:
	}
	a.note(func() {
		if a.status != http.StatusOK || a.header.Get("Content-Encoding") != "" {
			p.t.Errorf("%d, %v", a.status, a.header)
		}
	})
	cancel()
	<-a.done
	eventually(p.t, patience, "the run is cancelled", func() bool { return p.metric("iop_streams") == 0 })
}

// takesLargeBodies of nearly what the Edge takes.
func (p *proxied) takesLargeBodies() {
	p.t.Helper()
	body, length := large(60 << 20)
	req := p.request("POST", "/v1/chat/completions", nil, http.Header{"Content-Type": {"application/json"}})
	req.Body, req.ContentLength = io.NopCloser(body), length
	res, err := p.client.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		p.t.Errorf("a body of 60 MiB: %s", res.Status)
	}
}

func (p *proxied) checkAll() {
	p.t.Helper()
	p.streamsAsItComes()
	p.takesLargeBodies()
}

// TestNginx has the guide's nginx in front of an Edge.
func TestNginx(t *testing.T) {
	t.Parallel()
	findProgram(t, "nginx")
	newProxied(t, nginxFor(t)).checkAll()
}

// TestNginxBuffering: where somebody forgot to switch buffering off, the Edge's header does it for streams.
func TestNginxBuffering(t *testing.T) {
	t.Parallel()
	findProgram(t, "nginx")
	newProxied(t, nginxFor(t, "proxy_buffering off;", "proxy_buffering on;")).streamsAsItComes()
}

// TestNginxIdleTunnel: heartbeats carry a tunnel over nginx's limit on silence, and where that is shorter than what lies
// between two of them, it is nginx that ends it: the limit was in force.
func TestNginxIdleTunnel(t *testing.T) {
	t.Parallel()
	findProgram(t, "nginx")
	for name, c := range map[string]struct {
		limit string
		lives bool
	}{"longer": {"35s", true}, "shorter": {"20s", false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProxied(t, nginxFor(t, "proxy_read_timeout 75s;", "proxy_read_timeout "+c.limit+";"))
			first := p.node("node-1").generation()
			if !c.lives {
				eventually(t, 2*time.Minute, "the Node has another session", func() bool { return p.node("node-1").generation() > first })
				return
			}
			// The fourth comes after a minute and a half of silence, the first soon after the start.
			eventually(t, 4*time.Minute, "four heartbeats were answered", func() bool { return p.metric("iop_heartbeat_round_trip_seconds_count") >= 4 })
			if n := p.node("node-1"); n.generation() != first || n.State != "online" || p.metric("iop_node_reconnects_total") != 0 {
				t.Errorf("node-1 is %s, generation %d after %d", n.State, n.generation(), first)
			}
			if err := p.ask(context.Background(), p.client, "/v1/chat/completions", chat("sim-small", "tokens=3", true)).end(t, patience).whole(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestNginxPassesManagedTunnel: the guide's stream server passes the tunnel of managed mode on, by its name.
func TestNginxPassesManagedTunnel(t *testing.T) {
	t.Parallel()
	findProgram(t, "nginx")
	if _, err := os.Stat(streamModule); err != nil {
		t.Skip("nginx has no stream module here")
	}
	m := newManaged(t, managedRoutes())
	m.issue(m.ca, "node", "node-1")
	m.allow("node-1", "*")
	address := freePort(t)
	config := exchange(t, proxyConfig(t, "nginx", "ssl_preread"), "listen 443;", "listen "+address+";", "tunnel.example.org", "localhost",
		"127.0.0.1:8482", m.tunnel, "127.0.0.1:8443", strings.TrimPrefix(m.url, "http://"))
	startNginx(t, address, "load_module "+streamModule+";\n", "", config)
	_, port, _ := strings.Cut(address, ":")
	flags := m.nodeFlags("node-1")
	for i, f := range flags {
		if f == "--edge" {
			flags[i+1] = "wss://localhost:" + port + "/tunnel/v1"
		}
	}
	start(t, "node-1", nil, append(flags, "--provider", m.spec("*"))...)
	m.online("node-1", patience)
	if err := m.ask(context.Background(), http.DefaultClient, "/v1/chat/completions", chat("chat", "tokens=3", true)).end(t, patience).whole(); err != nil {
		t.Error(err)
	}
	// What asks for no name goes to the public listener.
	res, err := http.Get("http://" + address + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("the other names' listener: %s", res.Status)
	}
}

// TestCaddy has the guide's Caddy in front of an Edge.
func TestCaddy(t *testing.T) {
	t.Parallel()
	caddy := findProgram(t, "caddy")
	newProxied(t, func(address, edge, cert, key string) {
		dir := t.TempDir()
		file := filepath.Join(dir, "Caddyfile")
		config := "{\n\tadmin off\n\tauto_https off\n}\n" +
			exchange(t, proxyConfig(t, "caddyfile", "reverse_proxy"), "edge.example.org {", "https://"+address+" {\n\ttls "+cert+" "+key, "127.0.0.1:8480", edge)
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		env := []string{"HOME=" + dir, "XDG_DATA_HOME=" + dir, "XDG_CONFIG_HOME=" + dir}
		awaitPort(t, startCommand(t, "caddy", env, exec.Command(caddy, "run", "--config", file, "--adapter", "caddyfile")), address)
	}).checkAll()
}
