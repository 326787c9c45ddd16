package e2e

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestManagedPeers (who is not who it should be, or may not have it, gets nothing).
func TestManagedPeers(t *testing.T) {
	t.Parallel()
	m := newManaged(t, managedRoutes("{model: sim-small, slot: openai, node: gpu-1}")+
		"  - model: second\n    targets: [{model: sim-small, slot: openai, node: gpu-2}]\n"+
		"  - model: any\n    targets: [{model: sim-small, slot: openai}]\n")
	m.join("gpu-1", "openai")
	t.Run("not permitted", m.notPermitted)
	t.Run("refused", m.refusedNodes)
	t.Run("no certificate", m.noCertificate)
	t.Run("join token", m.joinToken)
	t.Run("denied certificate", m.deniedCertificate)
	m.chatNow(t, "chat", "", true).ok(t, "the first Node's run")
}

// notPermitted is a second Node with a valid certificate, which may connect and may not have the slot. It gets no run that
// another one can serve, and what only it could serve is refused.
//
// Seen to fail with PermittedTo always true: runs of the route "any" were refused. The list's word where leases are made is
// TestThreat26NotPermitted's.
func (m *managed) notPermitted(t *testing.T) {
	second := m.join("gpu-2")
	for range 6 {
		m.chatNow(t, "any", "", true).ok(t, "a run that the first Node may serve")
	}
	before := m.calls()
	for _, stream := range []bool{false, true} {
		m.refusedRun(t, m.chatNow(t, "second", "", stream), "a Node that may not have the slot")
	}
	if n := m.calls() - before; n != 0 {
		t.Errorf("%d calls of the provider", n)
	}
	m.allow("gpu-2", "another*")
	m.refusedRun(t, m.chatNow(t, "second", "", true), "a Node that may have another slot")
	m.allow("gpu-2", "openai")
	m.chatNow(t, "second", "", true).ok(t, "a Node that may have it now")
	second.stop(patience)
	// The Node's own policy is asked as well.
	p := m.launch("gpu-2", "--provider", m.spec("another*"))
	p.line("online", patience)
	eventually(t, patience, "gpu-2 is online", func() bool { return m.node("gpu-2").State == "online" })
	before = m.calls()
	m.refusedRun(t, m.chatNow(t, "second", "", true), "a provider that takes no lease of the slot")
	if n := m.calls() - before; n != 0 {
		t.Errorf("%d calls of the provider", n)
	}
}

// refusedNodes never get a session.
func (m *managed) refusedNodes(t *testing.T) {
	m.initCA(m.path("other-ca"))
	m.issue(m.path("other-ca"), "node", "gpu-9")
	m.writeBundle(m.ca, m.path("other-ca")) // so that the Node itself finds no fault
	foreign := m.path("foreign")
	writeRoutes(t, foreign, unchanged(t, m.path("bundle.pem")))
	m.writeBundle(m.ca) // the Edge believes one
	m.issue(m.ca, "node", "gpu-8")
	balancer := m.balancer(t)
	for name, c := range map[string]struct {
		node, why string
		change    *strings.Replacer
	}{
		"not on the list":       {"gpu-8", "refused", strings.NewReplacer()},
		"another authority":     {"gpu-9", "certificate", strings.NewReplacer(m.path("bundle.pem"), foreign)},
		"another Edge":          {"gpu-8", "edge/other", strings.NewReplacer("/edge/main", "/edge/other")},
		"a balancer in between": {"gpu-8", "IOP_EDGE_TUNNEL_LISTEN (port 8482)", strings.NewReplacer(m.tunnel, balancer)},
	} {
		args := m.nodeFlags(c.node)
		for i := range args {
			args[i] = c.change.Replace(args[i])
		}
		p := start(t, name, nil, append(args, "--provider", m.spec("*"))...)
		m.nodes = append(m.nodes, p)
		p.line(c.why, patience)
		if state := m.node(c.node).State; state == "online" {
			t.Errorf("%s: the Node is online", name)
		}
		p.stop(patience)
	}
	// A certificate under another name does not even start.
	_, stderr, err := tryIOP(t, nil, append(m.nodeFlags("gpu-8"), "--name", "gpu-1", "--provider", m.spec("*"))...)
	if exitCode(t, err) != 2 || !strings.Contains(stderr, "gpu-8") {
		t.Errorf("the certificate of gpu-8 under the name gpu-1: %v %s", err, stderr)
	}
}

// balancer ends TLS in front of the Edge's tunnel with a certificate of its own, and passes on what it reads.
func (m *managed) balancer(t *testing.T) (address string) {
	t.Helper()
	cert, key, _ := selfSigned(t)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				up, err := tls.Dial("tcp", m.tunnel, &tls.Config{InsecureSkipVerify: true})
				if err != nil {
					return
				}
				defer up.Close()
				go io.Copy(up, c)
				_, _ = io.Copy(c, up)
			}()
		}
	}()
	return l.Addr().String()
}

// noCertificate talks to the tunnel's listener without being anybody.
func (m *managed) noCertificate(t *testing.T) {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, Timeout: patience}
	res, err := client.Get("https://" + m.tunnel + "/tunnel/v1")
	if err == nil {
		res.Body.Close()
		t.Errorf("an answer without a certificate: %s", res.Status)
	}
	c, err := net.Dial("tcp", m.tunnel)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = c.Write([]byte("GET /tunnel/v1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + m.key + "\r\n\r\n"))
	_ = c.SetReadDeadline(time.Now().Add(patience))
	answer, _ := io.ReadAll(c)
	if strings.Contains(string(answer), " 101 ") || strings.Contains(string(answer), " 200 ") {
		t.Errorf("an answer without TLS: %q", answer)
	}
}

// joinToken tries the way of token mode.
func (m *managed) joinToken(t *testing.T) {
	var made struct{ Token string }
	m.json(&made, "join-token", "create", "--json")
	env := []string{"IOP_NODE_JOIN_TOKEN=" + made.Token, "IOP_NODE_NAME=gpu-7"}
	p := start(t, "token", env, "node", "--edge", "ws"+strings.TrimPrefix(m.url, "http")+"/tunnel/v1", "--provider", "sim="+m.sim.url)
	m.nodes = append(m.nodes, p)
	p.line("in managed mode Nodes connect to IOP_EDGE_TUNNEL_LISTEN", patience)
	p.stop(patience)
	res, body := m.do("GET", "/tunnel/v1", nil, http.Header{"Authorization": {"Bearer " + made.Token}})
	if res.StatusCode != http.StatusNotFound || !strings.Contains(string(body), "managed mode") {
		t.Errorf("the public listener's tunnel: %s %s", res.Status, body)
	}
	// Beside a certificate it is refused: a Node has one mode.
	_, stderr, err := tryIOP(t, env[:1], append(m.nodeFlags("gpu-8"), "--provider", m.spec("*"))...)
	if exitCode(t, err) != 2 || !strings.Contains(stderr, "JOIN_TOKEN") || strings.Contains(stderr, made.Token) {
		t.Errorf("a token beside a certificate: %v %s", err, stderr)
	}
}

// deniedCertificate bars the certificate of a session that lives.
func (m *managed) deniedCertificate(t *testing.T) {
	var node struct {
		Sessions []struct{ Serial string }
	}
	eventually(t, patience, "gpu-2 is online", func() bool { return m.node("gpu-2").State == "online" })
	m.operator("/nodes/gpu-2", &node)
	if len(node.Sessions) == 0 || node.Sessions[0].Serial == "" {
		t.Fatalf("the operator does not see whose a session is: %+v", node)
	}
	var change struct {
		Ended int `json:"sessions_ended"`
	}
	m.change("PUT", "/node-list/denied/certificates/"+node.Sessions[0].Serial, nil, &change)
	if change.Ended != 1 {
		t.Errorf("%d sessions ended", change.Ended)
	}
	eventually(t, patience, "gpu-2 is gone", func() bool { return m.node("gpu-2").State != "online" })
	m.issue(m.ca, "node", "gpu-2") // another certificate is not barred
	eventually(t, patience, "gpu-2 is back with another certificate", func() bool { return m.node("gpu-2").State == "online" })
}
