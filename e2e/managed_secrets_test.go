package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// leaseBeginning is how the text of each lease begins: its header is {"alg":"ECDH-ES", and so on.
const leaseBeginning = "eyJhbGciOiJFQ0RILUVTIiwi"

// newManagedSecretStack is a managed stack at log level debug with a canary in every input.
func newManagedSecretStack(t *testing.T) (*managed, *secretStack) {
	t.Helper()
	routes := managedRoutes() + "  - model: sim-small\n    targets: [{model: sim-small, slot: openai}]\n"
	for i := range failingModels {
		routes += fmt.Sprintf("  - model: failing-%d\n    targets: [{model: sim-small, slot: openai}]\n", i)
	}
	m := newManaged(t, routes)
	s := &secretStack{stack: m.stack, providerKey: firstValue}
	s.plant("the provider's key", firstValue)
	s.plantToken("the API key", m.key)
	s.plantToken("the admin token", m.adminToken())
	s.plant("a lease", leaseBeginning)
	var made struct{ Token string }
	m.json(&made, "join-token", "create", "--json")
	s.token = s.plantToken("the join token", made.Token)
	s.foreign = s.plantToken("an unknown API key", newEdge(t).key)
	s.revoked = s.plantToken("a revoked API key", m.newKey("revoked"))
	s.revokeKey("revoked")
	m.join("gpu-1", "openai")
	m.plantFiles(t, s)
	return m, s
}

// plantFiles plants what lies in files that must stay where they are: the master key and the private keys.
func (m *managed) plantFiles(t *testing.T, s *secretStack) {
	t.Helper()
	for line := range strings.Lines(unchanged(t, m.path("master-key"))) {
		if !strings.HasPrefix(line, "#") {
			const public = len("mk-iop_") + 16 // the key's id
			s.plant("the master key", strings.TrimSpace(line)[public:])
		}
	}
	for _, file := range []string{"node-gpu-1.key", "edge-main.key"} {
		lines := strings.Split(unchanged(t, m.path(file)), "\n")
		s.plant("the private key "+file, lines[2]) // the first line says what kind of key it is
	}
}

// plantLeases plants the leases that the Node has had lately, whole.
func (m *managed) plantLeases(t *testing.T, s *secretStack) {
	t.Helper()
	tokens := leasesOf(t, m.nodes[0])
	for i, token := range tokens {
		s.plant(fmt.Sprintf("lease %d of %d", i, len(tokens)), token)
	}
	if len(tokens) == 0 && runtime.GOOS == "linux" {
		t.Error("no lease was captured")
	}
	t.Logf("%d whole leases are looked for", len(tokens))
}

// TestManagedSecretsStayInside (provider key, API key, join token, master key, private keys and leases are in no output).
//
// Seen to fail with a Node that printed the header of its call.
func TestManagedSecretsStayInside(t *testing.T) {
	m, s := newManagedSecretStack(t)
	prompt := s.plant("the prompt", "the-managed-heron é/+&=? flies-at-noon-83114")
	header := s.plant("a header", "header+value/55190=kittiwake")
	h := http.Header{"X-Secret": {header}, "Cookie": {"session=" + header}, "X-Api-Key": {header}}
	t.Run("runs", func(t *testing.T) { s.managedRuns(t, prompt, h) })
	m.plantLeases(t, s)
	t.Run("leaks", func(t *testing.T) { s.leaky(t, prompt, h) })
	t.Run("changes", func(t *testing.T) { m.changes(t, s, prompt, h) })
	m.plantLeases(t, s)
	t.Run("wrong starts", func(t *testing.T) { m.wrongStarts(t, s) })
	t.Run("operator", func(t *testing.T) { m.operatorSees(t, s) })
	s.outputs(t)
}

func (s *secretStack) managedRuns(t *testing.T, prompt string, h http.Header) {
	for _, model := range []string{"chat", "sim-small"} {
		for _, stream := range []bool{false, true} {
			body := secretChat(prompt, "tokens=8", stream)
			body["model"] = model
			status, text := s.send(t, "POST", "/v1/chat/completions", body, h)
			if status != http.StatusOK {
				t.Errorf("%s", text)
			}
			s.look(t, "an answer", text, "the prompt")
		}
	}
}

// changes refuses runs, changes the slot in every way, and gives it values that can't be.
func (m *managed) changes(t *testing.T, s *secretStack, prompt string, h http.Header) {
	next := s.plant("the next provider's key", "sk-provider-two-H8rTq31-Dunlin-Wm")
	for _, step := range []struct {
		method, path string
		body         any
		fails        bool
	}{
		{"POST", "/slots/openai/disable", nil, true},
		{"POST", "/slots/openai/enable", nil, false},
		{"POST", "/slots/openai/rotate", map[string]string{"value": next}, true}, // the simulator takes the first one only
		{"POST", "/slots/openai/revoke", map[string]any{"needs_provider_rotation": true}, true},
		{"PUT", "/slots/openai", map[string]string{"profile": "sim", "value": firstValue}, false},
	} {
		status, text := m.tryChange(step.method, step.path, step.body)
		if status/100 != 2 {
			t.Errorf("%s %s: %d %s", step.method, step.path, status, text)
		}
		s.look(t, "the answer to "+step.path, text)
		body := secretChat(prompt, "tokens=3", true)
		body["model"] = "chat"
		status, text = s.send(t, "POST", "/v1/chat/completions", body, h)
		if step.fails == (status == http.StatusOK) {
			t.Errorf("after %s: %s", step.path, text)
		}
		s.look(t, "the answer after "+step.path, text, "the prompt")
	}
	file := filepath.Join(t.TempDir(), "value")
	for _, value := range []string{
		s.plant("a value of two lines", "sk-two-lines-7731-Whinchat\nsk-two-lines-7731-Whinchat"), s.plant("a value with a control character", "sk-control-\x01-6120-Fieldfare-Lp"),
		s.plant("a value that is too long", strings.Repeat("sk-long-9914-Redwing-", 400)),
	} {
		if err := os.WriteFile(file, []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
		stdout, stderr, err := tryIOP(t, m.env, "slot", "set", "bad", "--profile", "sim", "--value-file", file)
		if err == nil {
			t.Errorf("a wrong value was taken: %s", stdout)
		}
		s.look(t, "iop slot set with a wrong value", stdout+stderr)
		status, text := m.tryChange("PUT", "/slots/bad", map[string]string{"profile": "sim", "value": value})
		if status/100 != 4 {
			t.Errorf("a wrong value was taken: %d %s", status, text)
		}
		s.look(t, "the answer to a wrong value", text)
	}
}

// wrongStarts are processes whose secrets are wrong, or lie beside something wrong.
func (m *managed) wrongStarts(t *testing.T, s *secretStack) {
	bad := s.plant("a wrong master key", "mk-wrong-4471-Turnstone-Vx81-Qr93")
	file := filepath.Join(t.TempDir(), "master")
	if err := os.WriteFile(file, []byte(bad+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := "IOP_NODE_JOIN_TOKEN=" + s.token
	edge := []string{"edge", "--mode", "managed", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--tunnel-listen", "127.0.0.1:0", "--ca", m.path("bundle.pem"),
		"--state", "sqlite://" + filepath.Join(t.TempDir(), "iop.db")}
	for name, c := range map[string]struct {
		env  []string
		args []string
	}{
		"a wrong master key":             {nil, append(edge, "--identity-cert", m.path("edge-main.pem"), "--identity-key", m.path("edge-main.key"), "--master-key-file", file)},
		"a key in place of a bundle":     {nil, append(edge, "--identity-cert", m.path("edge-main.pem"), "--identity-key", m.path("edge-main.key"), "--ca", m.path("edge-main.key"))},
		"a key in place of the master's": {nil, append(edge, "--identity-cert", m.path("edge-main.pem"), "--identity-key", m.path("edge-main.key"), "--master-key-file", m.path("edge-main.key"))},
		"another's private key":          {nil, append(edge, "--identity-cert", m.path("edge-main.pem"), "--identity-key", m.path("node-gpu-1.key"))},
		"a key in place of a chain":      {nil, append(edge, "--identity-cert", m.path("edge-main.key"), "--identity-key", m.path("edge-main.key"))},
		"a join token with a chain":      {[]string{good}, append(m.nodeFlags("gpu-1"), "--provider", m.spec("*"))},
		"debug output of HTTP/2":         {[]string{"GODEBUG=http2debug=2"}, append(m.nodeFlags("gpu-1"), "--provider", m.spec("*"))},
	} {
		stdout, stderr, err := tryIOP(t, c.env, c.args...)
		if err == nil {
			t.Errorf("%s: no error\n%s", name, stdout+stderr)
		}
		s.look(t, name, stdout+stderr)
	}
}

// operatorSees looks through what managed mode shows its operator beside what token mode does.
func (m *managed) operatorSees(t *testing.T, s *secretStack) {
	for _, path := range []string{
		"/admin/v1/slots", "/admin/v1/slots/openai", "/admin/v1/profiles", "/admin/v1/node-list", "/admin/v1/identity", "/admin/v1/master-keys", "/admin/v1/audit?limit=1000",
		"/debug/pprof/heap?debug=1", "/debug/pprof/allocs?debug=1", "/debug/pprof/goroutine?debug=2",
	} {
		status, text := s.adminGet(t, path, s.adminToken())
		if status != http.StatusOK || len(text) < 50 {
			t.Errorf("%s: %d %s", path, status, text)
		}
		s.look(t, path, text)
	}
	for _, args := range [][]string{
		{"slot", "list"}, {"slot", "show", "openai", "--json"}, {"profile", "list", "--json"}, {"node-list", "show"}, {"master-key", "list"}, {"audit", "--limit", "0"},
		{"audit", "--limit", "0", "--json"}, {"audit", "--limit", "0", "--csv"}, {"usage", "--records", "--csv"},
	} {
		s.look(t, "iop "+strings.Join(args, " "), iop(t, m.env, args...))
	}
	// With debug output a log would have shown everything by now, and the audit must know of leases.
	audit := iop(t, m.env, "audit", "--limit", "0")
	if !strings.Contains(audit, "lease_issued") || !strings.Contains(audit, "lease_refused") {
		t.Errorf("the audit tells of no leases: %s", tail(audit, 500))
	}
	eventually(t, patience, "the log tells of runs", func() bool { return strings.Contains(m.edge.text(), "run_") })
}
