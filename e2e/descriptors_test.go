package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// newEdgeWith is newEdge for an Edge that may have so many file descriptors.
func newEdgeWith(t *testing.T, descriptors int) *stack {
	t.Helper()
	s := &stack{t: t, state: "sqlite://" + filepath.Join(t.TempDir(), "iop.db")}
	listen, admin := freePort(t), freePort(t)
	s.url, s.admin = "http://"+listen, "http://"+admin
	s.env = []string{"IOP_EDGE_STATE=" + s.state, "IOP_ADMIN_URL=" + s.admin}
	s.key = s.newKey("e2e")
	var made struct{ Token string }
	s.json(&made, "join-token", "create", "--json")
	s.token = made.Token
	s.edge = startCommand(t, "edge", nil, exec.Command("sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, descriptors),
		binary, "edge", "--listen", listen, "--admin-listen", admin, "--state", s.state))
	s.edge.line("listening", patience)
	return s
}

// occupy opens n connections to an address and sends request on each. They stay open until the test ends.
func occupy(t *testing.T, address, request string, n int) []net.Conn {
	t.Helper()
	all := make([]net.Conn, n)
	for i := range all {
		conn, err := net.DialTimeout("tcp", address, patience)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := conn.Write([]byte(request)); err != nil {
			t.Logf("connection %d: %v", i, err) // it may be closed already
		}
		all[i] = conn
	}
	return all
}

// TestDescriptors: an Edge with few descriptors and more clients than it has, who hold their connections in every way there
// is, still takes a Node in, answers the operator, and says what it does.
func TestDescriptors(t *testing.T) {
	t.Parallel()
	const descriptors, clients = 256, 300
	s := newEdgeWith(t, descriptors)
	address := strings.TrimPrefix(s.url, "http://")
	// It is said at the start.
	s.edge.line("file descriptor limit is low", patience)

	t.Log("slow headers")
	occupy(t, address, "POST /v1/chat/completions HTTP/1.1\r\nHost: edge\r\nX-Slow:", clients)
	sim := s.startSim("--slots", "400")
	s.startNode("node-1", "--provider", "sim="+sim.url+",capacity=400")

	t.Log("idle")
	occupy(t, address, "GET /v1/models HTTP/1.1\r\nHost: edge\r\nAuthorization: Bearer "+s.key+"\r\n\r\n", clients)
	s.served(t, chat("sim-small", "tokens=2", false))
	if n := s.metric("iop_connections_evicted_total"); n == 0 {
		t.Error("no idle connection was closed")
	}

	t.Log("busy")
	body := `{"model":"sim-small","stream":true,"user":"sim:ttft=60s","messages":[{"role":"user","content":"hello"}]}`
	streams := occupy(t, address, fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: edge\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", s.key, len(body), body), clients)
	eventually(t, patience, "clients are refused", func() bool { return s.metric("iop_connections_refused_total") > 0 })
	s.edge.line("connections are refused", patience)
	var refused atomic.Int64
	var readers sync.WaitGroup
	for _, conn := range streams {
		readers.Go(func() { // until the test closes it, if it is served
			res, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err == nil && res.StatusCode == http.StatusServiceUnavailable && res.Header.Get("Retry-After") != "" && res.Close {
				refused.Add(1)
			}
		})
	}
	eventually(t, patience, "clients are told 503 with Retry-After", func() bool { return refused.Load() > 0 })
	res, err := http.Get(s.url + "/readyz")
	if err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("a balancer is told %v, %v", res, err)
	} else {
		res.Body.Close()
	}

	// A Node comes in beside them, and the operator is answered.
	s.launchNode("node-2", "--provider", "sim="+sim.url)
	eventually(t, patience, "the second Node is online", func() bool { return s.nodeOnline("node-2") })
	for _, conn := range streams {
		conn.Close()
	}
	readers.Wait()
	eventually(t, patience, "clients are served again", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		a := s.ask(ctx, http.DefaultClient, "/v1/chat/completions", chat("sim-small", "tokens=1", false))
		<-a.done
		return a.status == http.StatusOK
	})
	if n := s.metric("process_open_fds"); n > descriptors {
		t.Errorf("%v descriptors", n)
	}
}
