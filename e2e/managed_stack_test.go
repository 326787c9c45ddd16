package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"iop/state"
)

// managedDomain is the trust domain of the tests.
const managedDomain = "e2e.test"

// firstValue is what the provider of a managed stack takes at the beginning.
const firstValue = "sk-provider-one-Q7vK2mZp9LxWc4RtYb8N"

// managed is a stack in managed mode: an authority, an Edge, a provider that wants a key, and the slot with that key.
type managed struct {
	*stack
	dir    string // certificates, keys, bundle.pem and the master key
	ca     string // the authority's directory
	tunnel string // host:port
	file   string // of routes
	sim    *simulator
	issued int // certificates so far
}

// managedRoutes has one model that needs a slot, and nothing else.
func managedRoutes(targets ...string) string {
	if len(targets) == 0 {
		targets = []string{"{model: sim-small, slot: openai}"}
	}
	return "advertised_models: refuse\nroutes:\n  - model: chat\n    targets: [" + strings.Join(targets, ", ") + "]\n"
}

// newManaged starts everything but Nodes.
func newManaged(t *testing.T, routes string, simArgs ...string) *managed {
	t.Helper()
	m := prepareManaged(t, routes, simArgs...)
	m.startManagedEdge()
	m.fillSlot()
	return m
}

// prepareManaged starts the provider, and makes what an Edge needs.
func prepareManaged(t *testing.T, routes string, simArgs ...string) *managed {
	t.Helper()
	m := &managed{stack: &stack{t: t, state: "sqlite://" + filepath.Join(t.TempDir(), "iop.db")}, dir: t.TempDir(), tunnel: freePort(t)}
	m.ca, m.file = filepath.Join(m.dir, "ca"), filepath.Join(m.dir, "iop.yaml")
	m.url, m.admin = "http://"+freePort(t), "http://"+freePort(t)
	m.env = []string{"IOP_EDGE_STATE=" + m.state, "IOP_ADMIN_URL=" + m.admin}
	m.key = m.newKey("e2e")
	m.initCA(m.ca)
	m.writeBundle(m.ca)
	m.issue(m.ca, "edge", "main")
	if _, err := state.CreateMasterKeyFile(m.path("master-key")); err != nil {
		t.Fatal(err)
	}
	writeRoutes(t, m.file, routes)
	m.sim = m.startSim(append([]string{"--api-key", firstValue, "--slots", "64"}, simArgs...)...)
	return m
}

// fillSlot puts the provider's key into the slot.
func (m *managed) fillSlot() {
	m.t.Helper()
	m.change("PUT", "/profiles/sim", map[string]any{"header": "authorization-bearer", "base_urls": []string{m.sim.url}}, nil)
	m.change("PUT", "/slots/openai", map[string]string{"profile": "sim", "value": firstValue}, nil)
}

func (m *managed) path(name string) string { return filepath.Join(m.dir, name) }

func (m *managed) initCA(dir string) {
	m.t.Helper()
	iop(m.t, nil, "ca", "init", "--ca", dir, "--trust-domain", managedDomain)
}

// writeBundle replaces the bundle that Edge and Nodes believe, by the authorities of these directories.
func (m *managed) writeBundle(dirs ...string) {
	m.t.Helper()
	var text string
	for _, dir := range dirs {
		text += iop(m.t, nil, "ca", "bundle", "--ca", dir)
	}
	writeRoutes(m.t, m.path("bundle.pem"), text)
}

// issue gives out a certificate, and replaces the one of before: it ends later, as one that is to follow another must.
func (m *managed) issue(ca, role, name string, more ...string) {
	m.t.Helper()
	m.issued++
	ttl := (24*time.Hour + time.Duration(m.issued)*time.Minute).String()
	iop(m.t, nil, append([]string{"ca", "issue", "--ca", ca, "--role", role, "--name", name, "--gen-key", "--replace", "--out", m.dir, "--ttl", ttl}, more...)...)
}

func (m *managed) startManagedEdge(args ...string) {
	m.t.Helper()
	m.startEdge(append([]string{
		"--mode", "managed", "--tunnel-listen", m.tunnel, "--config", m.file, "--log", "debug",
		"--identity-cert", m.path("edge-main.pem"), "--identity-key", m.path("edge-main.key"), "--ca", m.path("bundle.pem"),
		"--master-key-file", m.path("master-key"),
	}, args...)...)
}

// change asks the admin API for a change, and decodes its answer into out unless that is nil.
func (m *managed) change(method, path string, body, out any) {
	m.t.Helper()
	status, text := m.tryChange(method, path, body)
	if status/100 != 2 {
		m.t.Fatalf("%s %s: %d %s", method, path, status, text)
	}
	if out != nil {
		if err := json.Unmarshal([]byte(text), out); err != nil {
			m.t.Fatalf("%s %s: %v in %s", method, path, err, text)
		}
	}
}

func (m *managed) tryChange(method, path string, body any) (int, string) {
	m.t.Helper()
	var reader io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			m.t.Fatal(err)
		}
		reader = bytes.NewReader(data)
	}
	req, err := http.NewRequest(method, m.admin+"/admin/v1"+path, reader)
	if err != nil {
		m.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+m.adminToken())
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		m.t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		m.t.Fatal(err)
	}
	return res.StatusCode, string(data)
}

// allow puts a Node on the list; slots are globs.
func (m *managed) allow(node string, slots ...string) {
	m.t.Helper()
	if slots == nil {
		slots = []string{}
	}
	m.change("PUT", "/node-list/allowed/"+node, map[string]any{"slots": slots, "profiles": []string{"*"}}, nil)
}

// nodeFlags are what a Node of that name is started with.
func (m *managed) nodeFlags(name string) []string {
	return []string{
		"node", "--log", "debug", "--edge", "wss://" + m.tunnel + "/tunnel/v1", "--edge-id", "spiffe://" + managedDomain + "/edge/main",
		"--tls-cert", m.path("node-" + name + ".pem"), "--tls-key", m.path("node-" + name + ".key"), "--ca", m.path("bundle.pem"),
	}
}

// spec is a provider at the stack's simulator, for leases of these slots.
func (m *managed) spec(slots string) string {
	return fmt.Sprintf("sim:openai=%s,capacity=64,models=sim-small,slots=%s", m.sim.url, slots)
}

// launch starts a Node with a certificate of its own, without waiting for it.
func (m *managed) launch(name string, more ...string) *process {
	m.t.Helper()
	m.issue(m.ca, "node", name)
	if more == nil {
		more = []string{"--provider", m.spec("*")}
	}
	p := start(m.t, name, nil, append(m.nodeFlags(name), more...)...)
	m.nodes = append(m.nodes, p)
	return p
}

// join starts a Node that is allowed these slots, and waits until it is online.
func (m *managed) join(name string, slots ...string) *process {
	m.t.Helper()
	m.allow(name, slots...)
	p := m.launch(name)
	eventually(m.t, patience, name+" is online", func() bool {
		select {
		case <-p.done:
			m.t.Fatalf("%s exited:\n%s", name, p.text())
		default:
		}
		return m.node(name).State == "online"
	})
	return p
}

// calls are the requests for inference that reached the simulator.
func (m *managed) calls() int64 { return m.sim.stats(m.t).Started }

// refusedRun fails unless the answer is the one of a run whose credential was refused, after one attempt.
func (m *managed) refusedRun(t *testing.T, a *answer, what string) {
	t.Helper()
	if a.status != http.StatusBadGateway || a.header.Get("X-Should-Retry") != "false" {
		t.Errorf("%s: %s %v", what, a, a.header)
	}
	var e errorObject
	if err := json.Unmarshal([]byte(a.body.String()), &e); err != nil || e.Error == nil || e.Error.Code != "credential_rejected" {
		t.Errorf("%s: %s", what, a)
		return
	}
	for _, word := range []string{"slot", "openai", "lease", "revoked", "disabled", m.sim.url, "gpu-"} {
		if strings.Contains(a.body.String(), word) {
			t.Errorf("%s: the client is told %q: %s", what, word, a)
		}
	}
	if r := m.run(a.header.Get("X-Iop-Run-Id")); r.Attempts > 1 {
		t.Errorf("%s: %d attempts", what, r.Attempts)
	}
}

// auditOf are the audit's entries about leases of a run, the newest first.
func (m *managed) auditOf(run string) (entries []struct {
	Action, Outcome, Reason, Lease, Node, Target string
	Attempt                                      int
}) {
	m.t.Helper()
	var page struct{ Data json.RawMessage }
	m.operator("/audit?run="+run, &page)
	if err := json.Unmarshal(page.Data, &entries); err != nil {
		m.t.Fatal(err)
	}
	return entries
}

// unchanged is the text of a file, to be put back.
func unchanged(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
