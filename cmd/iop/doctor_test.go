package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"iop/sim"
	"iop/state"
)

// diagnose runs `iop doctor` and returns its exit status and what it found.
func diagnose(t *testing.T, args ...string) (int, diagnosis) {
	t.Helper()
	status, stdout, stderr := execute(t, append(append([]string{"doctor"}, args...), "--json")...)
	var d diagnosis
	if err := json.Unmarshal([]byte(stdout), &d); err != nil || len(d.Checks) == 0 {
		t.Fatalf("status %d, %v: %q, %q", status, err, stdout, stderr)
	}
	if (status == exitFailed) != (d.Failed > 0) || status == exitUsage {
		t.Errorf("status %d with %d failed", status, d.Failed)
	}
	for _, c := range d.Checks {
		if (c.Do == "") != (c.Result == verdictOK) {
			t.Errorf("what to do about %+v?", c)
		}
	}
	return status, d
}

// has fails unless a line of the check has the verdict and holds the text, and what is found or to be done the rest.
func (d *diagnosis) has(t *testing.T, check string, result verdict, text string, more ...string) {
	t.Helper()
	for _, c := range d.Checks {
		if c.Check == check && c.Result == result && strings.Contains(c.Found, text) &&
			!slices.ContainsFunc(more, func(s string) bool { return !strings.Contains(c.Found+c.Do, s) }) {
			return
		}
	}
	t.Errorf("no line %s %s with %q and %q in %+v", check, result, text, more, d.Checks)
}

// pairFiles writes a certificate and its key.
func pairFiles(t *testing.T, name string, begin, end time.Time) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotBefore: begin, NotAfter: end,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return writeFile(t, "tls.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}))),
		writeFile(t, "tls.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
}

// quietEdge are flags of an Edge that could start: free ports, a state that does not exist yet.
func quietEdge(t *testing.T) (args []string, dir string) {
	dir = filepath.Join(t.TempDir(), "state")
	return []string{"edge", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--state", "sqlite://" + filepath.Join(dir, "iop.db")}, dir
}

func TestDoctorEdgeBeforeItsStart(t *testing.T) {
	args, dir := quietEdge(t)
	status, d := diagnose(t, args...)
	if status != exitOK {
		t.Errorf("%+v", d)
	}
	d.has(t, "state", verdictOK, "does not exist yet")
	d.has(t, "port", verdictOK, "is free")
	d.has(t, "descriptors", verdictOK, "client connections at once")
	d.has(t, "edge", verdictOK, "none runs")
	if _, err := os.Stat(dir); err == nil {
		t.Error("the doctor made a state")
	}
	if _, stdout, _ := execute(t, append([]string{"doctor"}, args...)...); !strings.Contains(stdout, "0 failed") || !strings.HasPrefix(stdout, "ok ") {
		t.Errorf("for a person: %q", stdout)
	}
}

// TestDoctorEdgeFaults: each fault is found, and said with what to do.
func TestDoctorEdgeFaults(t *testing.T) {
	now := time.Now()
	cert, key := pairFiles(t, "edge.example.org", now.Add(-time.Hour), now.Add(90*day))
	old, oldKey := pairFiles(t, "edge.example.org", now.Add(-90*day), now.Add(-time.Hour))
	soon, soonKey := pairFiles(t, "edge.example.org", now.Add(-88*day), now.Add(2*day))
	future, futureKey := pairFiles(t, "edge.example.org", now.Add(day), now.Add(9*day))
	_, other := pairFiles(t, "edge.example.org", now, now.Add(day))
	open := writeFile(t, "open.key", "x")
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		args   string
		check  string
		result verdict
		text   string
	}{
		"wrong setting":    {"--queue-limit -1", "settings", verdictFailed, "IOP_EDGE_QUEUE_LIMIT"},
		"no such routes":   {"--config /none/iop.yaml", "routes", verdictFailed, "no such file"},
		"bad routes":       {"--config " + writeFile(t, "bad.yaml", "routes:\n  - model: m\n    policy: x\n"), "routes", verdictFailed, "policy"},
		"good routes":      {"--config " + writeFile(t, "ok.yaml", "routes:\n  - model: m\n"), "routes", verdictOK, "1 route"},
		"state nowhere":    {"--state sqlite:///proc/none/iop.db", "state", verdictFailed, "can't write"},
		"state no dir":     {"--state sqlite://" + open + "/iop.db", "state", verdictFailed, "is not a directory"},
		"state unknown":    {"--state mysql://h/d", "state", verdictFailed, "unknown scheme"},
		"state broken":     {"--state sqlite://" + writeFile(t, "iop.db", strings.Repeat("no database ", 20)), "state", verdictFailed, "not a database"},
		"no address":       {"--listen 192.0.2.1:1", "port", verdictFailed, "can't listen"},
		"many may wait":    {"--queue-limit 1000000", "descriptors", verdictWarning, "1000000 may wait in one queue"},
		"admin in public":  {"--admin-listen 0.0.0.0:0", "admin port", verdictWarning, "without TLS"},
		"no tls":           {"--listen :0", "tls", verdictWarning, "can be read"},
		"tls good":         {"--tls-cert " + cert + " --tls-key " + key + " --host edge.example.org", "tls", verdictOK, "it is for edge.example.org"},
		"tls chain":        {"--tls-cert " + cert + " --tls-key " + key, "tls", verdictWarning, "does not trust its chain"},
		"tls name":         {"--tls-cert " + cert + " --tls-key " + key + " --host other.example.org", "tls", verdictFailed, "not for other.example.org"},
		"tls ended":        {"--tls-cert " + old + " --tls-key " + oldKey, "tls", verdictFailed, "expired 1h ago"},
		"tls ends":         {"--tls-cert " + soon + " --tls-key " + soonKey, "tls", verdictWarning, "expires in 47h"},
		"tls begins":       {"--tls-cert " + future + " --tls-key " + futureKey, "tls", verdictFailed, "not valid before"},
		"tls mismatch":     {"--tls-cert " + cert + " --tls-key " + other, "tls", verdictFailed, "private key"},
		"tls key open":     {"--tls-cert " + cert + " --tls-key " + open, "tls", verdictWarning, "0644"},
		"tls key missing":  {"--tls-cert " + cert + " --tls-key /none", "tls", verdictFailed, "no such file"},
		"master open":      {"--master-key-file " + open, "master key", verdictFailed, "0644"},
		"managed, bare":    {"--mode managed", "settings", verdictFailed, "IOP_EDGE_IDENTITY_CERT"},
		"managed, key":     {"--mode managed --identity-cert " + cert + " --identity-key /none --ca " + cert, "identity", verdictFailed, "no such file"},
		"managed, cert":    {"--mode managed --identity-cert " + cert + " --identity-key " + key + " --ca " + cert, "identity", verdictFailed, "authority"},
		"managed, no keys": {"--mode managed --spiffe-socket unix:///none.sock --id spiffe://a.org/edge/e", "master key", verdictWarning, "none"},
		"managed, socket":  {"--mode managed --spiffe-socket unix:///none.sock --id spiffe://a.org/edge/e", "identity", verdictFailed, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			args, _ := quietEdge(t)
			_, d := diagnose(t, append(args, strings.Fields(test.args)...)...)
			d.has(t, test.check, test.result, test.text)
		})
	}
}

func TestDoctorEdgeStateOpenToOthers(t *testing.T) {
	args, dir := quietEdge(t)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[os.FileMode]verdict{0o755: verdictWarning, 0o777: verdictFailed, 0o700: verdictOK} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		_, d := diagnose(t, args...)
		d.has(t, "state", want, dir)
	}
}

// TestDoctorEdgePepper: an Edge would not start without the pepper of its state, or with another one.
func TestDoctorEdgePepper(t *testing.T) {
	args, dir := quietEdge(t)
	store, err := state.Open(t.Context(), "sqlite://"+filepath.Join(dir, "iop.db"))
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	_, d := diagnose(t, args...)
	d.has(t, "state", verdictOK, "opens")
	pepper := filepath.Join(dir, "pepper")
	for content, fault := range map[string]string{
		"":                                     "the file is missing",
		"1 " + strings.Repeat("ab", 32) + "\n": "version 1 is not the one",
		"2 " + strings.Repeat("ab", 32) + "\n": "lacks version 1",
		"nothing\n":                            "pepper",
	} {
		if err := os.Remove(pepper); err != nil && content != "" {
			t.Fatal(err)
		}
		if content != "" {
			if err := os.WriteFile(pepper, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, d := diagnose(t, args...)
		d.has(t, "state", verdictFailed, fault)
		if err := os.WriteFile(pepper, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNewStateIsSaid: a command that makes a state, because it was given no other, says so.
func TestNewStateIsSaid(t *testing.T) {
	t.Chdir(t.TempDir())
	const admin = "http://127.0.0.1:1" // where nothing listens
	if status, _, stderr := execute(t, "key", "create", "--name", "a", "--admin-url", admin); status != exitOK || !strings.Contains(stderr, "no Edge is running at "+admin+": created a new state at iop-data/iop.db") {
		t.Errorf("%d: %s", status, stderr)
	}
	if status, _, stderr := execute(t, "key", "create", "--name", "b", "--admin-url", admin); status != exitOK || strings.Contains(stderr, "new state") {
		t.Errorf("%d: %s", status, stderr)
	}
}

func TestDoctorWarnsOfMisspeltVariables(t *testing.T) {
	t.Setenv("IOP_EDGE_LISTN", ":1")
	args, _ := quietEdge(t)
	_, d := diagnose(t, args...)
	d.has(t, "settings", verdictWarning, "IOP_EDGE_LISTN")
}

// TestDoctorEdgePorts: a port that an Edge holds is right, one that another program holds is not.
func TestDoctorEdgePorts(t *testing.T) {
	other := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	args, _ := quietEdge(t)
	taken := strings.TrimPrefix(other.URL, "http://")
	_, d := diagnose(t, append(args, "--listen", taken, "--admin-listen", taken)...)
	d.has(t, "port", verdictFailed, "another program")
	d.has(t, "admin port", verdictFailed, "another program")

	edge := startEdge(t)
	_, d = diagnose(t, "edge", "--listen", edge.public, "--admin-listen", edge.admin, "--state", edge.state, "--tls-cert", "c", "--tls-key", "k")
	d.has(t, "port", verdictWarning, "used by a running Edge without TLS")
	_, d = diagnose(t, "edge", "--listen", edge.public, "--admin-listen", edge.admin, "--state", edge.state)
	d.has(t, "port", verdictOK, "used by a running Edge")
	d.has(t, "admin port", verdictOK, "used by a running Edge")
	d.has(t, "admin token", verdictOK, "next to the state")
	d.has(t, "edge", verdictOK, "runs")
	d.has(t, "edge", verdictWarning, "no Node")
}

// TestDoctorEdgeWithoutTheTLSOfTheEdge: an Edge that has TLS is recognised with settings that have none.
func TestDoctorEdgeWithoutTheTLSOfTheEdge(t *testing.T) {
	cert, key := pairFiles(t, "edge.test", time.Now().Add(-time.Hour), time.Now().Add(day))
	edge := startEdge(t, "--tls-cert", cert, "--tls-key", key)
	_, d := diagnose(t, "edge", "--listen", edge.public, "--admin-listen", edge.admin, "--state", edge.state)
	d.has(t, "port", verdictWarning, "used by a running Edge with TLS, unlike these settings")
}

// runningEdge is an `iop edge` of this process.
type runningEdge struct{ public, admin, state string }

func startEdge(t *testing.T, args ...string) runningEdge {
	t.Helper()
	e := runningEdge{state: "sqlite://" + filepath.Join(t.TempDir(), "state", "iop.db")}
	c := begin(t, append([]string{"edge", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--state", e.state}, args...)...)
	var line struct{ Public, Admin string }
	c.object(`"listening"`, &line)
	e.public, e.admin = line.Public, line.Admin
	return e
}

// TestDoctorNode: what is well with a Node whose Edge takes it.
func TestDoctorNode(t *testing.T) {
	edge := startEdge(t)
	t.Setenv("IOP_ADMIN_URL", "http://"+edge.admin)
	t.Setenv("IOP_EDGE_STATE", edge.state)
	token := filepath.Join(t.TempDir(), "token")
	if status, _, stderr := execute(t, "join-token", "create", "--out", token); status != exitOK {
		t.Fatal(stderr)
	}
	sim := startSimulator(t)
	status, d := diagnose(t, "node", "--name", "n", "--edge", "ws://"+edge.public, "--join-token-file", token, "--provider", "s="+sim)
	if status != exitOK {
		t.Errorf("%+v", d)
	}
	d.has(t, "tunnel", verdictOK, "took the join token")
	d.has(t, "provider", verdictOK, "default, as it does not report its own")
	_, d = diagnose(t, "node", "--name", "n", "--edge", "ws://"+edge.public, "--join-token-file", token, "--provider", "s="+sim+",models=sim-small|sim-smal,capacity=3")
	d.has(t, "provider", verdictWarning, "does not list the model sim-smal")
	d.has(t, "provider", verdictOK, "3 runs at once, 2 models")
	d.has(t, "clock", verdictOK, "agrees")
	d.has(t, "proxy", verdictOK, "directly")
	d.has(t, "join token", verdictOK, "only by its owner")
	d.has(t, "provider", verdictOK, "sim-small")

	_, d = diagnose(t, "node", "--name", "n", "--edge", "ws://"+edge.public, "--join-token", "njt-iop_wrong", "--provider", "s=http://127.0.0.1:1")
	d.has(t, "tunnel", verdictFailed, "unauthorized")
	d.has(t, "provider", verdictFailed, "can't be reached")
	_, d = diagnose(t, "node", "--name", "n", "--edge", "ws://"+edge.public+"/tunnel/v2", "--join-token-file", token, "--provider", "s=http://127.0.0.1:1")
	d.has(t, "tunnel", verdictFailed, "no tunnel at /tunnel/v2")
}

func startSimulator(t *testing.T) string {
	t.Helper()
	config := sim.DefaultConfig()
	config.Listen = "127.0.0.1:0"
	s, err := sim.New(config)
	if err == nil {
		err = s.Listen()
	}
	if err != nil {
		t.Fatal(err)
	}
	server := accompany(func() {}, func() error { return s.Run(t.Context()) })
	t.Cleanup(server.end)
	return s.URL()
}

// TestDoctorNodeWithoutAnEdge: whatever answers in an Edge's place is told from one.
func TestDoctorNodeWithoutAnEdge(t *testing.T) {
	answer := func(status int, header http.Header, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for name := range header {
				w.Header().Set(name, header.Get(name))
			}
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}
	}
	late := time.Now().Add(-90 * time.Minute).UTC().Format(http.TimeFormat)
	for name, test := range map[string]struct {
		serve       http.HandlerFunc
		check, text string
		result      verdict
	}{
		"web server":    {answer(200, nil, "<html>"), "tunnel", "is not an Edge", verdictFailed},
		"redirect":      {answer(301, http.Header{"Location": {"https://h/"}}, ""), "tunnel", "redirect", verdictFailed},
		"empty proxy":   {answer(502, http.Header{"Server": {"nginx"}}, ""), "tunnel", "nginx answered 502", verdictFailed},
		"no upgrade":    {answer(426, http.Header{"Server": {"nginx"}}, ""), "tunnel", "upgrade to a WebSocket was lost", verdictFailed},
		"refused":       {answer(401, nil, `{"error":{"code":"token_expired"}}`), "tunnel", "token_expired", verdictFailed},
		"other 401":     {answer(401, nil, "who?"), "tunnel", "is not an Edge", verdictFailed},
		"proxy's login": {answer(407, nil, ""), "proxy", "407", verdictFailed},
		"clock":         {answer(401, http.Header{"Date": {late}}, ""), "clock", "1h from the Edge's", verdictWarning},
		"hostile":       {answer(418, http.Header{"Server": {"a\x1b[31m"}}, ""), "tunnel", "malformed", verdictFailed},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(test.serve)
			t.Cleanup(server.Close)
			_, d := diagnose(t, "node", "--name", "n", "--edge", server.URL, "--join-token", "njt-iop_"+canary, "--provider", "s=http://127.0.0.1:1")
			d.has(t, test.check, test.result, test.text)
			if text := fmt.Sprint(d); strings.Contains(text, canary) || strings.Contains(text, "\x1b") {
				t.Errorf("a secret, or what a terminal obeys: %q", text)
			}
		})
	}
}

// TestDoctorNodeTLS: each fault of TLS has its own line.
func TestDoctorNodeTLS(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	ca := writeFile(t, "ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})))
	otherCA, _ := pairFiles(t, "other.test", time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(secure.URL, "https://"))
	for name, test := range map[string]struct{ args, check, text string }{
		"authority":  {"--edge " + secure.URL, "tls", "does not trust"},
		"another ca": {"--edge " + secure.URL + " --ca " + otherCA, "tls", "is not in " + otherCA},
		"name":       {"--edge https://localhost:" + port + " --ca " + ca, "tls", "localhost"},
		"no TLS":     {"--edge https://" + strings.TrimPrefix(plain.URL, "http://"), "tls", "does not speak TLS"},
		"trusted":    {"--edge " + secure.URL + " --ca " + ca, "tunnel", "is not an Edge"},
		"no ca":      {"--edge " + secure.URL + " --ca /none", "tls", "no such file"},
		"nobody":     {"--edge http://127.0.0.1:1", "tunnel", "nothing listens"},
		"no name":    {"--edge http://edge.invalid", "tunnel", "does not resolve"},
	} {
		t.Run(name, func(t *testing.T) {
			if through, err := http.ProxyFromEnvironment(httptest.NewRequest("GET", "http://edge.invalid", nil)); name == "no name" && (through != nil || err != nil) {
				t.Skip("a proxy resolves names here")
			}
			args := append([]string{"node", "--name", "n", "--join-token", "njt-iop_x", "--provider", "s=http://127.0.0.1:1"}, strings.Fields(test.args)...)
			_, d := diagnose(t, args...)
			d.has(t, test.check, verdictFailed, test.text)
		})
	}
}

// TestDoctorNodeThroughAProxy: the tunnel takes the proxy of the environment, and one that lets nothing through is named.
func TestDoctorNodeThroughAProxy(t *testing.T) {
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	t.Cleanup(proxy.Close)
	through, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	d := &doctor{show: func(checkup) {}}
	w := tunnelDoctor{d: d, url: "wss://edge.example.org", through: http.ProxyURL(through)}
	w.examine(t.Context())
	d.has(t, "proxy", verdictOK, "goes through "+through.Host)
	if d.Failed != 1 || !strings.Contains(fmt.Sprint(d.Checks), "Forbidden") {
		t.Errorf("%+v", d.Checks)
	}
}

// TestDoctorProviders: what an inference server lacks is told.
func TestDoctorProviders(t *testing.T) {
	serve := func(status int, body string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	key := writeFile(t, "key", "secret")
	if err := os.Chmod(key, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		provider string
		result   verdict
		text     string
	}{
		"not started": {"http://127.0.0.1:1", verdictFailed, "can't be reached"},
		"no models":   {serve(200, `{"object":"list","data":[]}`), verdictWarning, "has no model"},
		"no list":     {serve(404, ""), verdictWarning, "was not found (404)"},
		"broken":      {serve(500, ""), verdictWarning, "fails (500)"},
		"open key":    {serve(404, "") + ",key-file=" + key, verdictWarning, "0644"},
	} {
		t.Run(name, func(t *testing.T) {
			_, d := diagnose(t, "node", "--name", "n", "--edge", "http://127.0.0.1:1", "--join-token", "njt-iop_x", "--provider", "s:openai="+test.provider)
			d.has(t, "provider", test.result, test.text)
		})
	}
	_, d := diagnose(t, "node", "--name", "n", "--join-token", "x", "--provider", "s=http://127.0.0.1:1")
	d.has(t, "settings", verdictFailed, "IOP_NODE_EDGE")
	d.has(t, "join token", verdictFailed, "does not look like")
}

// TestDoctorOfManagedMode: certificates at both ends, and a Node that is not on the list.
func TestDoctorOfManagedMode(t *testing.T) {
	c := newCertified(t)
	c.startEdge(c.edgeFlags()...)
	var line struct{ Tunnel string }
	c.edge.object(`"listening"`, &line)
	look := func() *diagnosis {
		_, d := diagnose(t, append(c.nodeFlags(line.Tunnel), "--provider", "s=http://127.0.0.1:1")...)
		return &d
	}
	d := look()
	d.has(t, "identity", verdictOK, "spiffe://iop.example.org/node/gpu-3")
	d.has(t, "tunnel", verdictFailed, "unauthorized")
	c.try(exitOK, "node-list", "allow", "gpu-3")
	d = look()
	d.has(t, "tunnel", verdictOK, "took the certificate")
	d.has(t, "clock", verdictOK, "agrees")

	// Another Edge than the one asked for, and the public listener in place of the tunnel's: both were reached.
	_, other := diagnose(t, append(c.nodeFlags(line.Tunnel), "--edge-id", "spiffe://iop.example.org/edge/other", "--provider", "s=http://127.0.0.1:1")...)
	other.has(t, "tls", verdictFailed, "(wrong_peer): it is not spiffe://iop.example.org/edge/other", "correct --edge-id")
	public := httptest.NewUnstartedServer(http.NotFoundHandler())
	public.Config.ErrorLog = log.New(io.Discard, "", 0)
	public.StartTLS()
	t.Cleanup(public.Close)
	_, old := diagnose(t, append(c.nodeFlags(public.Listener.Addr().String()), "--provider", "s=http://127.0.0.1:1")...)
	old.has(t, "tls", verdictFailed, "was reached", "unknown_authority", "public listener", "IOP_EDGE_TUNNEL_LISTEN (port 8482)")

	args, _ := quietEdge(t)
	_, edge := diagnose(t, append(args, c.edgeFlags()...)...)
	edge.has(t, "identity", verdictOK, "spiffe://iop.example.org/edge/main")
	edge.has(t, "master key", verdictOK, "1 key")
	if err := os.Chmod(c.path("node-gpu-3.key"), 0o644); err != nil {
		t.Fatal(err)
	}
	look().has(t, "identity", verdictFailed, "0644")
}
