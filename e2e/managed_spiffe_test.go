package e2e

import (
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"iop/identity/workloadtest"
)

// newAgent starts a Workload API of its own for one process, in a directory whose path is short enough for a socket.
func newAgent(t *testing.T) *workloadtest.Agent {
	t.Helper()
	dir, err := os.MkdirTemp("", "iop-agent-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	a := workloadtest.New(filepath.Join(dir, "agent.sock"))
	if err := a.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Stop)
	return a
}

// der are all PEM blocks of a file, one after the other in DER.
func der(t *testing.T, path string) (raw []byte) {
	t.Helper()
	for block, rest := pem.Decode([]byte(unchanged(t, path))); block != nil; block, rest = pem.Decode(rest) {
		raw = append(raw, block.Bytes...)
	}
	if len(raw) == 0 {
		t.Fatalf("%s holds no PEM", path)
	}
	return raw
}

// svid issues a certificate and makes an SVID of it, with the authorities of bundle.pem.
func (m *managed) svid(t *testing.T, ca, role, name string) workloadtest.SVID {
	t.Helper()
	m.issue(ca, role, name)
	base := m.path(role + "-" + name)
	return workloadtest.SVID{
		ID: "spiffe://" + managedDomain + "/" + role + "/" + name, Chain: der(t, base+".pem"), Key: der(t, base+".key"), Roots: der(t, m.path("bundle.pem")),
	}
}

// startWithAgents starts an Edge and a Node that have their identities from agents.
func (m *managed) startWithAgents(t *testing.T, edge, node string) {
	t.Helper()
	m.startEdge("--mode", "managed", "--tunnel-listen", m.tunnel, "--config", m.file, "--log", "debug", "--master-key-file", m.path("master-key"),
		"--spiffe-socket", edge, "--id", "spiffe://"+managedDomain+"/edge/main")
	m.fillSlot()
	m.allow("gpu-1", "openai")
	p := start(t, "gpu-1", nil, "node", "--log", "debug", "--edge", "wss://"+m.tunnel+"/tunnel/v1", "--edge-id", "spiffe://"+managedDomain+"/edge/main",
		"--spiffe-socket", node, "--name", "gpu-1", "--provider", m.spec("*"))
	m.nodes = append(m.nodes, p)
	eventually(t, 60*time.Second, "gpu-1 is online", func() bool { return m.node("gpu-1").State == "online" })
}

// TestManagedWorkloadAPI: Edge and Node have their identities from agents by the SPIFFE Workload API. Both certificates and
// then the authority change under load, with no cut stream and no failed run; an agent that is gone changes nothing, and
// what one takes back it can give again.
func TestManagedWorkloadAPI(t *testing.T) {
	t.Parallel()
	m := prepareManaged(t, managedRoutes())
	edge, node := newAgent(t), newAgent(t)
	edge.Give(m.svid(t, m.ca, "edge", "main"))
	first := m.svid(t, m.ca, "node", "gpu-1")
	stranger := m.svid(t, m.ca, "node", "gpu-2") // an agent may have several for one process
	node.Give(stranger, first)
	m.startWithAgents(t, edge.Address(), node.Address())
	l := newManagedLoad(m, 4, 3, 1000)
	generation := m.node("gpu-1").generation()

	node.Give(stranger, m.svid(t, m.ca, "node", "gpu-1"))
	generation = m.renewed(t, "gpu-1", generation)
	l.goesOn(t)
	edge.Give(m.svid(t, m.ca, "edge", "main"))
	generation = m.renewed(t, "gpu-1", generation)
	l.goesOn(t)

	second := m.path("ca-2")
	m.initCA(second)
	m.writeBundle(m.ca, second)
	edge.Give(m.svid(t, m.ca, "edge", "main")) // both authorities, the old one's certificates
	generation = m.renewed(t, "gpu-1", generation)
	node.Give(m.svid(t, m.ca, "node", "gpu-1"))
	generation = m.renewed(t, "gpu-1", generation)
	edge.Give(m.svid(t, second, "edge", "main"))
	generation = m.renewed(t, "gpu-1", generation)
	node.Give(m.svid(t, second, "node", "gpu-1"))
	generation = m.renewed(t, "gpu-1", generation)
	l.goesOn(t)

	edge.Stop()
	node.Stop()
	l.goesOn(t)
	if now := m.node("gpu-1").generation(); now != generation {
		t.Errorf("agents that are gone cost the session: %d, then %d", generation, now)
	}
	l.end(t, 60*time.Second)
	m.quiet()
	m.noFalseAlarm()
	m.takenBack(t, node)
}

// takenBack has the Node's agent come back and say that the Node has no identity, and then give it again.
func (m *managed) takenBack(t *testing.T, agent *workloadtest.Agent) {
	agent.Refuse(status.Error(codes.PermissionDenied, "no identity issued"))
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	m.nodes[0].line("returns no new identity", 60*time.Second)
	generation := m.node("gpu-1").generation()
	agent.Give(m.svid(t, m.path("ca-2"), "node", "gpu-1"))
	m.renewed(t, "gpu-1", generation)
	m.chatNow(t, "chat", "", true).ok(t, "a run after the identity came back")
}
