package e2e

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"iop/tunnel/wire"
)

// TestThreat34CrossOrigin: a page in a browser that has a Node's certificate opens no tunnel.
//
// Seen to fail with the acceptor told to skip the check of the origin (InsecureSkipVerify): 101.
func TestThreat34CrossOrigin(t *testing.T) {
	t.Parallel()
	m := newManaged(t, managedRoutes())
	m.allow("gpu-1", "*")
	m.issue(m.ca, "node", "gpu-1")
	pair, err := tls.LoadX509KeyPair(m.path("node-gpu-1.pem"), m.path("node-gpu-1.key"))
	if err != nil {
		t.Fatal(err)
	}
	upgrade := http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="},
		"Sec-Websocket-Protocol": {wire.Subprotocol},
	}
	for name, c := range map[string]struct {
		field, value string
		status       int
	}{
		"a Node":              {"X-Nothing", "x", http.StatusSwitchingProtocols},
		"a page":              {"Origin", "https://evil.example", http.StatusForbidden},
		"a page without name": {"Origin", "null", http.StatusForbidden},
		"no subprotocol":      {"Sec-Websocket-Protocol", "chat", http.StatusBadRequest},
		"a token as well":     {"Authorization", "Bearer " + m.key, http.StatusUnauthorized},
	} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true}}
		req, err := http.NewRequest("GET", "https://"+m.tunnel+"/tunnel/v1", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = upgrade.Clone()
		req.Header.Set(c.field, c.value)
		res, err := transport.RoundTrip(req)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		res.Body.Close()
		if res.StatusCode != c.status {
			t.Errorf("%s: %s, not %d", name, res.Status, c.status)
		}
		transport.CloseIdleConnections()
	}
}

// atSim are the headers of the last request for inference at the simulator.
func (m *managed) atSim(t *testing.T) http.Header {
	t.Helper()
	var all []struct {
		Method  string
		Headers http.Header
	}
	m.sim.control(t, "GET", "/sim/requests", nil, &all)
	for _, r := range all {
		if r.Method == "POST" {
			return r.Headers
		}
	}
	t.Fatal("nothing reached the provider")
	return nil
}

// TestThreat40ConnectionNamesHeaders: a client that names headers in Connection takes none from the provider's request.
//
// Seen to fail with an Edge that passed Connection on and a Node that heeded it: the provider got no credential.
func TestThreat40ConnectionNamesHeaders(t *testing.T) {
	t.Parallel()
	m := newManaged(t, managedRoutes())
	m.join("gpu-1", "*")
	for _, names := range []string{"Authorization", "X-Api-Key, Authorization, Content-Type", "close, Content-Length, Authorization"} {
		a := rawRequest{target: "/v1/chat/completions", header: []string{"Connection: " + names}, body: `{"model":"chat","messages":[]}`}.send(t, m.stack)
		if a.status != http.StatusOK {
			t.Errorf("Connection: %s: %+v", names, a)
			continue
		}
		h := m.atSim(t)
		if h.Get("Authorization") != "Bearer "+firstValue || h.Get("Content-Type") != "application/json" {
			t.Errorf("Connection: %s: at the provider %v", names, h)
		}
	}
}

// TestThreat41HeadersOfAClient: what a client sends passes by list, and none of it names a run, a lease or a place.
//
// Seen to fail with every header passed on by Edge and Node: they reached the provider.
func TestThreat41HeadersOfAClient(t *testing.T) {
	t.Parallel()
	m := newManaged(t, managedRoutes())
	m.join("gpu-1", "*")
	sent := http.Header{}
	for _, name := range []string{
		"Cookie", "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip", "Proxy-Authorization", "X-Api-Key", "Api-Key", "X-Iop-Lease", "X-Iop-Run", "X-Iop-Slot",
		"X-Iop-Node", "Te", "X-Amz-Security-Token", "Anthropic-Api-Key",
	} {
		sent.Set(name, "canary")
	}
	res, body := m.do("POST", "/v1/chat/completions", chat("chat", "", false), sent)
	if res.StatusCode != http.StatusOK {
		t.Fatalf("%s %s", res.Status, body)
	}
	for name, values := range m.atSim(t) {
		if strings.Contains(strings.Join(values, ","), "canary") {
			t.Errorf("%s reached the provider", name)
		}
	}
}

// TestThreat45Paths: no spelling of a path reaches the provider or another listener's paths.
//
// Seen to fail with paths cleaned before they are looked up: three of them were run.
func TestThreat45Paths(t *testing.T) {
	t.Parallel()
	m := newManaged(t, managedRoutes())
	m.join("gpu-1", "*")
	before := m.calls()
	for _, path := range []string{
		"/v1/../admin/v1/slots", "/v1/%2e%2e/admin/v1/slots", "/v1/..%2fadmin%2fv1%2fslots", "//v1/chat/completions", "/v1//chat/completions", "/v1\\chat\\completions",
		"/v1/chat/completions%00", "/v1/chat/completions%2f", "/v1/chat/completions//", "/v1/chat/completions/../../sim/requests", "/admin/v1/slots", "/debug/pprof/heap", "/V1/chat/completions",
	} {
		a := rawRequest{target: path, body: `{"model":"chat","messages":[]}`}.send(t, m.stack)
		if a.status != http.StatusNotFound && a.status != http.StatusBadRequest {
			t.Errorf("%s: %+v", path, a)
		}
	}
	if n := m.calls() - before; n != 0 {
		t.Errorf("%d requests reached the provider", n)
	}
}

// TestThreat53DoubledFields: two readers of a body can't see two different models, so there is no slot by trick.
//
// Seen to fail with an envelope that takes a field twice: the second body was run.
func TestThreat53DoubledFields(t *testing.T) {
	t.Parallel()
	m := newManaged(t, managedRoutes()+"  - model: dear\n    principals: [nobody]\n    targets: [{model: sim-small, slot: openai}]\n")
	m.join("gpu-1", "*")
	before := m.calls()
	for _, body := range []string{
		`{"model":"chat","model":"dear","messages":[]}`, `{"model":"dear","model":"chat","messages":[]}`, `{"model":"chat","Model":"dear","messages":[]}`, `{"model":"chat","MODEL":"dear","messages":[]}`,
		`{"model":"chat","m\u006fdel":"dear","messages":[]}`, `{"model":"dear","messages":[]}`,
	} {
		a := rawRequest{target: "/v1/chat/completions", body: body}.send(t, m.stack)
		if a.status/100 != 4 {
			t.Errorf("%s: %+v", body, a)
		}
	}
	if n := m.calls() - before; n != 0 {
		t.Errorf("%d requests reached the provider", n)
	}
}

// TestThreat64RunsOfOthers: what a run was, and its lease, is its caller's and the operator's.
//
// Seen to fail with the key left out where a run is looked up: 200.
func TestThreat64RunsOfOthers(t *testing.T) {
	t.Parallel()
	m := newManaged(t, managedRoutes())
	m.join("gpu-1", "*")
	a := m.chatNow(t, "chat", "", false)
	a.ok(t, "a run")
	path := "/iop/v1/runs/" + a.header.Get("X-Iop-Run-Id")
	if res, body := m.get(path); res.StatusCode != http.StatusOK || strings.Contains(string(body), "lease") || strings.Contains(string(body), "slot") {
		t.Errorf("its own caller: %s %s", res.Status, body)
	}
	other := http.Header{"Authorization": {"Bearer " + m.newKey("other")}}
	_, nobody := m.do("GET", "/iop/v1/runs/run_nobodys", nil, other)
	res, body := m.do("GET", path, nil, other)
	strip := func(b []byte) string { return strings.NewReplacer(path, "", "run_nobodys", "").Replace(string(b)) }
	if res.StatusCode != http.StatusNotFound || strings.Contains(string(body), "gpu-1") || len(strip(body)) > len(strip(nobody))+64 {
		t.Errorf("another caller: %s %s", res.Status, body)
	}
}

// TestThreat68Dumps: profiles are for the operator, and neither process writes a core.
//
// Seen to fail with forbidCoreDumps emptied: "unlimited".
func TestThreat68Dumps(t *testing.T) {
	t.Parallel()
	m := newManaged(t, managedRoutes())
	node := m.join("gpu-1", "*")
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/goroutine?debug=2", "/debug/pprof/cmdline"} {
		for address, header := range map[string]http.Header{m.admin: {}, m.url: {"Authorization": {"Bearer " + m.adminToken()}}} {
			req, err := http.NewRequest("GET", address+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header = header
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != http.StatusUnauthorized && res.StatusCode != http.StatusNotFound {
				t.Errorf("%s%s: %s", address, path, res.Status)
			}
		}
	}
	for _, p := range []*process{m.edge, node} {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", p.pid()))
		if err != nil {
			t.Skip("limits of a process can't be read here")
		}
		_, line, _ := strings.Cut(string(data), "Max core file size")
		if fields := strings.Fields(line); len(fields) < 2 || fields[0] != "0" || fields[1] != "0" {
			t.Errorf("%s may write a core: %.60s", p.name, line)
		}
	}
}

// TestThreat69Labels: what a client makes up is no label: metrics stay as many as they are.
//
// Seen to fail with the time in a label of refused requests: 60 series more.
func TestThreat69Labels(t *testing.T) {
	t.Parallel()
	m := newManaged(t, managedRoutes())
	m.join("gpu-1", "*")
	series := func() int {
		res, err := http.Get(m.admin + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "made-up") {
			t.Error("a label has what a client made up")
		}
		return strings.Count(string(text), "\niop_")
	}
	invent := func(i int) {
		name := fmt.Sprintf("made-up-%d", i)
		m.do("POST", "/v1/chat/completions", chat(name, "", false), nil)
		m.do("POST", "/v1/"+name, chat("chat", "", false), nil)
		m.do("MADE-UP", "/v1/chat/completions", nil, nil)
		m.do("POST", "/v1/chat/completions", chat("chat", "", false), http.Header{"User-Agent": {name}, "Content-Type": {"application/json; x=" + name}})
		m.do("POST", "/v1/chat/completions", chat("chat", "", false), http.Header{"Authorization": {"Bearer sk-iop_" + name}})
	}
	invent(0)
	before := series()
	for i := range 30 {
		invent(i + 1)
	}
	if after := series(); after > before+8 {
		t.Errorf("%d series, and %d after requests that were made up", before, after)
	}
}
